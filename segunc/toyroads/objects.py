"""What stands and moves on a street."""

from __future__ import annotations

import numpy as np

from segunc.toyroads import paint
from segunc.toyroads.camera import LEFT, RIGHT, Outline, Points, ellipse, limb, turned, upright
from segunc.toyroads.canvas import CAR, PERSON, POLE, SIGN, Place, Thing

_FACING = (0.0, 0.1, -0.995)


def sample_post(rng: np.random.Generator, lateral: float, station: float) -> Thing:
    """Return a lamp post whose arm reaches over the street, at times a plain post."""
    colour, patch = paint.colour(rng, "metal"), paint.speckle(rng, 0.08)
    arm = rng.uniform(0.8, 2.0) * (1 if lateral < 0 else -1) if rng.random() < 0.75 else 0.0
    top, wide = rng.uniform(4.0, 8.0), rng.uniform(0.14, 0.26)

    def draw(at: Place) -> None:
        light = at.stage.light
        lit, body = colour * light.shade(_FACING), paint.rounded(patch, light.side)
        at.fill(limb((0, 0), (0, top), wide, 0.7 * wide), lit, POLE, body)
        if arm:
            at.fill(limb((0.0, top - 0.05), (arm, top + 0.35), 0.1, 0.08), lit, POLE)
            glow = np.array([1.0, 0.85, 0.55]) if light.weather == "dusk" else lit * 1.2
            at.fill(limb((0.8 * arm, top + 0.33), (1.15 * arm, top + 0.33), 0.14, 0.2), glow, POLE)

    half = wide / 2
    return Thing(lateral, station, upright(half, (-half, half), top, half), draw)


_TRIANGLE = np.array([(-0.95, -0.6), (0.95, -0.6), (0.0, 1.0)])
_PLATE = np.array([(-0.8, -1.0), (0.8, -1.0), (0.8, 1.0), (-0.8, 1.0)])
_SHAPES = (ellipse((0, 0), (1, 1)), _TRIANGLE, -_TRIANGLE, _PLATE)  # of signs, for a half size of 1


def sample_sign(rng: np.random.Generator, lateral: float, station: float) -> Thing:
    """Return a traffic sign with a rim, on a post and facing the camera."""
    height, half = rng.uniform(2.4, 3.4), rng.uniform(0.38, 0.56)
    face, rim, post = (paint.colour(rng, thing) for thing in ("sign", "sign", "metal"))
    shape = half * _SHAPES[rng.integers(len(_SHAPES))]

    def draw(at: Place) -> None:
        shade = at.stage.light.shade(_FACING)
        at.fill(limb((0, 0), (0, height), 0.09, 0.09), post * shade, POLE)
        # Sign faces are retro-reflective: brighter than their paint.
        for scale, colour in ((1.0, rim), (0.7, face)):
            at.fill(scale * shape + (0, height - half), colour * shade * 1.15, SIGN)

    return Thing(lateral, station, upright(0.05, (-0.05, 0.05), height, 0.05), draw)


def sample_person(rng: np.random.Generator, lateral: float, station: float) -> Thing:
    """Return a random person at a place, whose legs and arms swing in a video."""
    h, stride = rng.uniform(1.4, 1.92), rng.uniform(0.05, 0.5)  # metres, radians
    wide = 0.125 * h * rng.uniform(0.65, 1.2)
    top, trousers = paint.colour(rng, "clothing"), paint.colour(rng, "clothing") * 0.85
    skin, hair, patch = paint.colour(rng, "skin"), paint.colour(rng, "bark"), paint.fabric(rng)

    def draw(at: Place) -> None:
        """Draw legs first, then the trunk, the arms and the head."""
        light = at.stage.light
        shade, body = light.shade((0.0, 0.25, -0.97)) * 1.05, paint.rounded(patch, light.side)

        def part(corners: Outline, colour: Points) -> None:
            at.fill(corners, colour * shade, PERSON, body)

        hip, shoulder = 0.5 * h, 0.82 * h
        swing = 0.47 * h * np.sin(stride * np.cos(6.0 * at.stage.time))
        for sign in (-1, 1):
            part(limb((0.4 * sign * wide, hip), (0.4 * sign * wide + sign * swing, 0.0), 0.1 * h, 0.06 * h), trousers)
        part(limb((0, hip - 0.02 * h), (0, shoulder), 1.7 * wide, 1.9 * wide), top)
        for sign in (-1, 1):
            joint = (0.95 * sign * wide, shoulder - 0.03 * h)
            part(limb(joint, (joint[0] - 0.6 * sign * swing, 0.46 * h), 0.065 * h, 0.045 * h), top * 0.88)
        part(ellipse((0, 0.925 * h), (0.05 * h, 0.072 * h)), hair)
        part(ellipse((0, 0.9 * h), (0.04 * h, 0.06 * h)), skin)

    return Thing(lateral, station, upright(0.2, (-0.1, 0.15), h, 0.15), draw, half_width=0.3)


# Side profiles (forward; up) in metres for a length of 4.4 m, counter-clockwise seen from the right, from the
# front bumper up over hood, windscreen, roof, rear window and boot.
_PROFILES = (
    ((2.2, 2.2, 1.9, 0.95, 0.25, -0.85, -1.5, -2.15, -2.2), (0.2, 0.7, 0.85, 0.95, 1.42, 1.44, 1.0, 0.95, 0.2)),  # sedan
    ((2.2, 2.2, 2.0, 1.0, 0.45, -1.8, -2.12, -2.2, -2.2), (0.25, 0.9, 1.0, 1.1, 1.7, 1.72, 1.12, 1.05, 0.25)),  # estate
)  # fmt: skip
_SCREEN, _REAR, _TAIL = 3, 5, 7  # edges of the profiles that carry glass and lamps
_TYRE = np.array([0.07, 0.07, 0.075])
_CIRCLE = np.linspace(0, 2 * np.pi, 12, endpoint=False)


def sample_car(rng: np.random.Generator, lateral: float, station: float, yaw: float) -> Thing:
    """Return a random car whose middle is at a place; ``yaw`` 0 looks away from the camera, pi towards it."""
    # Paint mirrors the sky above and the street below.
    gloss = np.linspace(1.12, 0.85, 48, dtype=np.float32)[:, None]
    patch = paint.speckle(rng, rng.uniform(0.02, 0.08), "cloud") * gloss
    colour, width, scale = paint.colour(rng, "car"), rng.uniform(1.7, 1.95), rng.uniform(0.93, 1.1)
    profile = np.column_stack(_PROFILES[rng.integers(len(_PROFILES))]) * scale
    cabin, half = profile[3:7], width / 2
    window = cabin.mean(axis=0) + (cabin - cabin.mean(axis=0)) * (0.82, 0.72)

    def draw(at: Place) -> None:
        """Draw the faces, each with its glass, lamps and wheels."""
        light = at.stage.light
        for face, corners, normal in at.faces(profile, width):
            shade, middle = light.shade(normal), corners.mean(axis=0)
            glass = 0.16 * shade + 0.1 * light.skyline
            at.stage.flat(corners, colour * shade, CAR, patch)
            if face in (_SCREEN, _REAR):
                at.stage.flat(middle + 0.8 * (corners - middle), glass, CAR)
            elif face == _TAIL:  # a bar of lamps at its upper edge
                bar = corners + 0.7 * (corners[[0, 0, 3, 3]] - corners)
                at.stage.flat(bar, np.array([0.6, 0.05, 0.06]) * shade, CAR)
            elif face in (LEFT, RIGHT):
                beside = half if face == RIGHT else -half
                side(at, beside, window, glass)
                for z in (profile[0, 0] - 0.8 * scale, profile[-1, 0] + 0.8 * scale):
                    wheel = np.column_stack([z + 0.34 * np.cos(_CIRCLE), 0.34 + 0.34 * np.sin(_CIRCLE)])
                    side(at, beside, wheel, _TYRE * shade)

    def side(at: Place, beside: float, outline: Points, colour: Points) -> None:
        """Fill a polygon (forward, up) on a side, ``beside`` the car's middle in metres."""
        forward, up = outline.T
        at.stage.flat(at.street(np.column_stack([np.full(len(up), beside), up, forward])), colour, CAR)

    (back, _), (front, roof) = profile.min(axis=0), profile.max(axis=0)
    foot = [(x, 0.0, z) for x in (-half, half) for z in (back, front)]
    top = [(x, roof, z) for x in (-0.8 * half, 0.8 * half) for z in (back + 0.5, 0.6)]
    reach, across = turned(np.array(foot + top), yaw), abs(np.sin(yaw)) > 0.5
    return Thing(lateral, station, reach, draw, half_width=2.4 if across else 1.0, yaw=yaw)
