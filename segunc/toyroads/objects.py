"""What stands and moves on a street."""

from __future__ import annotations

import numpy as np

from segunc.toyroads import paint
from segunc.toyroads.camera import LEFT, RIGHT, Corner, Outline, Points, ellipse, limb, on_face, turned, upright
from segunc.toyroads.canvas import CAR, PERSON, POLE, SIGN, Place, Stage, Thing

_FACING = (0.0, 0.1, -0.995)


def sample_post(rng: np.random.Generator, lateral: float, station: float) -> Thing:
    """A lamp post whose arm reaches over the street, at times a plain post or a bollard."""
    kind = rng.random()
    colour, patch = paint.colour(rng, "metal"), paint.speckle(rng, 0.08)
    arm = 0.0
    if kind < 0.7:
        arm = rng.uniform(0.8, 2.0) * (1 if lateral < 0 else -1)
        heights, widths = (5.0, 8.0), (0.16, 0.26)
    else:
        heights, widths = ((3.0, 7.0), (0.12, 0.22)) if kind < 0.85 else ((0.8, 1.1), (0.13, 0.2))
    top, wide = rng.uniform(*heights), rng.uniform(*widths)

    def draw(at: Place) -> None:
        light = at.stage.light
        lit, body = colour * light.shade(_FACING), paint.rounded(patch, light.side)
        at.fill(limb((0, 0), (0, top), wide, wide * (0.6 if arm else 0.95)), lit, POLE, body)
        at.fill(limb((0, 0), (0, min(0.6, 0.3 * top)), 1.5 * wide, 1.4 * wide), lit * 0.9, POLE, body)
        if arm:
            bend = (0.25 * arm, top + 0.3)
            for start, end in (((0.0, top - 0.05), bend), (bend, (arm, top + 0.35))):
                at.fill(limb(start, end, 0.1, 0.08), lit, POLE)
            glow = np.array([1.0, 0.85, 0.55]) if light.weather == "dusk" else lit * 1.2
            at.fill(limb((0.8 * arm, top + 0.33), (1.15 * arm, top + 0.33), 0.14, 0.2), glow, POLE)

    half = wide / 2
    return Thing(lateral, station, POLE, upright(half, (-half, half), top, half), draw)


def _regular(corners: int, start: float) -> Points:
    """A regular polygon whose first corner lies at an angle in degrees."""
    angles = np.deg2rad(start + 360 / corners * np.arange(corners))
    return 1.1 * np.column_stack([np.cos(angles), np.sin(angles)])


# Round, triangle, octagon, diamond, plate, yield; all for a half size of 1.
_SHAPES = (
    *(ellipse((0, 0), (1, 1)), _regular(3, 90.0), _regular(8, 22.5), _regular(4, 90.0)),
    *(np.array([(-0.8, -1), (0.8, -1), (0.8, 1), (-0.8, 1)]), _regular(3, -90.0)),
)
# The marks on a sign: bars from (right, up) to (right, up) of some widths, all in half sizes of the sign.
_MARKS: tuple[tuple[tuple[float, ...], ...], ...] = (
    (),
    ((-0.5, 0, 0.5, 0, 0.28, 0.28),),
    ((0, -0.5, 0, 0.4, 0.24, 0.16),),
    ((-0.35, -0.35, 0.35, 0.35, 0.2, 0.2),),
    ((-0.3, -0.3, -0.3, 0.3, 0.22, 0.22), (0.3, -0.3, 0.3, 0.3, 0.22, 0.22)),
)


def sample_sign(rng: np.random.Generator, lateral: float, station: float) -> Thing:
    """A traffic sign, or two, one under the other, on a post and facing the camera."""
    count = 2 if rng.random() < 0.3 else 1
    faces = [paint.colour(rng, "sign") for _ in range(count)]
    height, size = rng.uniform(2.4, 3.4), rng.uniform(0.7, 1.05)
    shapes = [_SHAPES[rng.choice(len(_SHAPES))] for _ in range(count)]
    rims = [paint.colour(rng, "sign") if rng.random() < 0.6 else face * 0.9 for face in faces]
    marks = [_MARKS[rng.integers(len(_MARKS))] for _ in range(count)]
    post, half = paint.colour(rng, "metal"), 0.5 * size

    def draw(at: Place) -> None:
        shade = at.stage.light.shade(_FACING)
        at.fill(limb((0, 0), (0, height), 0.09, 0.09), post * shade, POLE)
        centre = height - half
        for shape, face, rim, mark in zip(shapes, faces, rims, marks, strict=True):
            # Sign faces are retro-reflective: brighter than their paint.
            for scale, colour in ((1.0, rim), (0.78, face)):
                at.fill(half * scale * shape + (0, centre), colour * shade * 1.15, SIGN)
            colour = rim * shade if face.mean() > 0.6 else np.full(3, 0.85) * shade
            for a, b, c, d, thick, thin in mark:
                bar = limb((a * half, centre + b * half), (c * half, centre + d * half), thick * half, thin * half)
                at.fill(bar, colour, SIGN)
            centre -= 1.05 * size

    return Thing(lateral, station, POLE, upright(0.05, (-0.05, 0.05), height, 0.05), draw)


def sample_person(rng: np.random.Generator, lateral: float, station: float) -> Thing:
    """A random person at a place, walking or standing, whose legs swing in a video."""
    h = rng.uniform(1.5, 1.92) if rng.random() < 0.88 else rng.uniform(1.05, 1.4)
    stride, pace = (rng.uniform(0.05, 0.5), 6.0) if rng.random() < 0.75 else (0.03, 0.0)  # radians, radians/s
    turn, build = rng.uniform(0.6, 1.0), rng.uniform(0.9, 1.3)  # the width that is seen of the body, 1 from the front
    top, trousers = paint.colour(rng, "clothing"), paint.colour(rng, "clothing") * 0.85
    skin, hair = paint.colour(rng, "skin"), paint.colour(rng, "bark") * rng.uniform(0.4, 1.4)
    patch, skirt, bag = paint.fabric(rng), rng.random() < 0.2, int(rng.choice([-1, 0, 0, 1]))

    def draw(at: Place) -> None:
        """Legs first, then the trunk, the arms and the head."""
        light = at.stage.light
        shade, body = light.shade((0.0, 0.25, -0.97)) * 1.05, paint.rounded(patch, light.side)
        wide, hip, shoulder = 0.125 * h * build * turn, 0.5 * h, 0.82 * h

        def part(corners: Outline, colour: Points) -> None:
            at.fill(corners, colour * shade, PERSON, body)

        def round_part(centre: Corner, radii: Corner, colour: Points) -> None:
            at.fill(ellipse(centre, radii), colour * shade, PERSON)

        # Hands, shoes and bags of far persons are less than a pixel.
        near = at.stage.camera.pixels_per_metre(at.station) > 14
        swing = 0.47 * h * np.sin(stride * np.cos(pace * at.stage.time))
        for sign in (-1, 1):
            start = (sign * 0.045 * h * turn, hip)
            knee = (start[0] + 0.55 * sign * swing, 0.27 * h)
            foot = (start[0] + sign * swing, 0.03 * h)
            part(limb(start, knee, 0.1 * h * build, 0.075 * h), trousers)
            part(limb(knee, foot, 0.078 * h, 0.055 * h), trousers)
            if near:
                shoe = limb((foot[0] - 0.03, 0.02 * h), (foot[0] + 0.06, 0.02 * h), 0.045 * h, 0.04 * h)
                part(shoe, trousers * 0.4)
        if skirt:
            low, flare = 0.26 * h, 1.5 * wide
            part([(-wide, hip + 0.08), (wide, hip + 0.08), (flare, low), (-flare, low)], top * 0.8)
        right = [(0.85 * wide, hip - 0.02 * h), (wide, shoulder - 0.04 * h), (0.55 * wide, shoulder + 0.01 * h)]
        left = [(-x, y) for x, y in right]
        part([left[0], *right, *left[:0:-1]], top)
        for sign in (-1, 1):
            joint = (sign * 0.95 * wide, shoulder - 0.03 * h)
            hand = (joint[0] - 0.6 * sign * swing + 0.02 * sign, 0.46 * h)
            part(limb(joint, hand, 0.065 * h, 0.045 * h), top * 0.88)
            if near:
                round_part((hand[0], hand[1] - 0.01), (0.05, 0.06), skin)
            if near and bag == sign:
                low = hand[1] - 0.02
                held = ((-0.13, low), (0.13, low), (0.15, low - 0.3), (-0.15, low - 0.3))
                part([(hand[0] + x, y) for x, y in held], hair)
        round_part((0, 0.86 * h), (0.045, 0.07), skin * 0.9)
        round_part((0, 0.925 * h), (0.052 * h * 0.95, 0.072 * h), hair)
        if turn > 0.7 or bag != 0:
            round_part((0.01, 0.905 * h), (0.04 * h, 0.052 * h), skin)

    return Thing(lateral, station, PERSON, upright(0.2, (-0.1, 0.15), h, 0.15), draw, half_width=0.3)


# Side profiles (forward; up) in metres for a length of 4.4 m, counter-clockwise seen from the right, from the
# front bumper up over hood, windscreen, roof, rear window and boot.
_PROFILES = {
    "sedan": ((2.2, 2.2, 1.9, 0.95, 0.25, -0.85, -1.5, -2.15, -2.2), (0.3, 0.7, 0.85, 0.95, 1.42, 1.44, 1.0, 0.95, 0.3)),
    "hatchback": ((2.1, 2.1, 1.8, 1.0, 0.35, -1.5, -2.0, -2.1, -2.1), (0.3, 0.7, 0.88, 0.98, 1.46, 1.48, 0.98, 0.9, 0.3)),
    "suv": ((2.2, 2.2, 2.0, 1.0, 0.45, -1.8, -2.12, -2.2, -2.2), (0.4, 0.9, 1.08, 1.14, 1.72, 1.74, 1.12, 1.05, 0.4)),
    "van": ((2.3, 2.3, 2.1, 1.6, 1.0, -2.2, -2.3, -2.3, -2.3), (0.35, 0.9, 1.1, 1.2, 1.95, 2.0, 1.15, 1.1, 0.35)),
}  # fmt: skip
_NOSE, _SCREEN, _REAR, _TAIL = 0, 3, 5, 7  # edges of the profiles that carry lamps and glass
_TYRE = np.array([0.07, 0.07, 0.075])
_CIRCLE = np.linspace(0, 2 * np.pi, 12, endpoint=False)


def sample_car(rng: np.random.Generator, lateral: float, station: float, yaw: float, speed: float = 0.0) -> Thing:
    """A random car whose middle is at a place; ``yaw`` 0 looks away from the camera, pi towards it; ``speed`` 0: parked."""
    body = str(rng.choice(list(_PROFILES), p=(0.35, 0.3, 0.22, 0.13)))
    van = body == "van"
    # Paint mirrors the sky above and the street below.
    gloss = np.linspace(1.12, 0.85, 48, dtype=np.float32)[:, None]
    patch = paint.speckle(rng, rng.uniform(0.02, 0.08), "cloud") * gloss
    if van and rng.random() < 0.4:  # lettering, dirt, a company's stripes
        patch = 1 + 0.5 * (paint.fabric(rng) - 1)
    yaw += rng.normal(0, 0.03)
    colour, width = paint.colour(rng, "car"), rng.uniform(1.7, 1.95) + (0.1 if van else 0.0)
    scale, glass = rng.uniform(0.93, 1.1), np.array([0.13, 0.16, 0.19]) * rng.uniform(0.6, 1.6)
    braking, half = rng.random() < 0.3, width / 2
    profile = np.column_stack(_PROFILES[body]) * scale

    def draw(at: Place) -> None:
        """The underbody, then the lit faces, each with its glass, lamps and wheels."""
        stage, light = at.stage, at.stage.light
        # Of a far car only body and glass are left.
        near = stage.camera.pixels_per_metre(at.station) > 5
        low, front, back = profile[0, 1], profile[0, 0] - 0.25, profile[-1, 0] + 0.25
        under = np.array([[front, 0.06], [front, low], [back, low], [back, 0.06]])
        for _, corners, _ in at.faces(under, width * 0.9):
            stage.flat(corners, _TYRE * light.shade((0, 0.2, 0)), CAR)
        for face, corners, normal in at.faces(profile, width):
            shade = light.shade(normal)
            stage.flat(corners, colour * shade, CAR, patch)
            if face in (LEFT, RIGHT):
                side(at, half if face == RIGHT else -half, shade, near)
            elif face in (_SCREEN, _REAR):
                stage.flat(on_face(corners, 0.1, 0.9, 0.12, 0.88), glass * shade + 0.12 * light.skyline, CAR)
            elif near and face in (_NOSE, _TAIL):
                _end(stage, corners, shade, face == _TAIL, braking)

    def side(at: Place, beside: float, shade: Points, near: bool) -> None:
        """Windows and wheels, ``beside`` the car's middle in metres."""

        def fill(forward: Points, up: Points, colour: Points) -> None:
            at.stage.flat(at.street(np.column_stack([np.full(len(forward), beside), up, forward])), colour, CAR)

        cabin = profile[3:7]
        centre = cabin.mean(axis=0)
        inner = centre + (cabin - centre) * (0.82, 0.72)
        if van:  # a loading space without side windows
            inner[2:, 0] = np.maximum(inner[2:, 0], centre[0] + 0.2)
        fill(inner[:, 0], inner[:, 1], glass * shade + 0.1 * at.stage.light.skyline)
        if not near:
            return
        if not van:  # the pillar between the doors
            low, high = inner[:, 1].min(), inner[:, 1].max()
            fill(centre[0] + np.array([-0.05, 0.05, 0.05, -0.05]), np.array([low, low, high, high]), colour * shade)
        for z in (profile[0, 0] - 0.8 * scale, profile[-1, 0] + 0.8 * scale):
            for radius, tone in ((0.34 * scale, _TYRE), (0.2 * scale, np.full(3, 0.42))):
                fill(z + radius * np.cos(_CIRCLE), 0.33 * scale + radius * np.sin(_CIRCLE), tone * shade)

    (back, _), (front, roof) = profile.min(axis=0), profile.max(axis=0)
    foot = [(x, 0.0, z) for x in (-half, half) for z in (back, front)]
    top = [(x, roof, z) for x in (-0.8 * half, 0.8 * half) for z in (back + 0.5, 0.6)]
    reach, across = turned(np.array(foot + top), yaw), abs(np.sin(yaw)) > 0.5
    return Thing(lateral, station, CAR, reach, draw, half_width=2.4 if across else 1.0, yaw=yaw, speed=speed)


def _end(stage: Stage, corners: Points, shade: Points, tail: bool, braking: bool) -> None:
    """Lamps, number plate and bumper of a car's nose or tail."""
    if tail:  # its edge runs downwards
        lamp = np.array([0.85, 0.06, 0.05]) if braking else np.array([0.45, 0.05, 0.06])
        lamps, plate, bumper = (0.12, 0.42), (0.5, 0.75), (0.8, 1.0)
    else:
        lamp = np.array([0.85, 0.85, 0.75])
        lamps, plate, bumper = (0.55, 0.95), (0.15, 0.4), (0.0, 0.14)
    for left, right in ((0.04, 0.22), (0.78, 0.96)):
        stage.flat(on_face(corners, left, right, *lamps), lamp * (1.0 if braking else shade), CAR)
    stage.flat(on_face(corners, 0.36, 0.64, *plate), np.array([0.75, 0.75, 0.7]) * shade, CAR)
    stage.flat(on_face(corners, 0.0, 1.0, *bumper), 0.12 * shade, CAR)
