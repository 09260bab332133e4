"""What stands and moves on and beside a street, and the anomalies: things that no training scene
holds. Anomalies take their colours from the very distributions of the known things, so that colour
alone gives nothing away.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import cv2
import numpy as np

from segunc.toyroads import canvas
from segunc.toyroads.canvas import (
    LEFT,
    RIGHT,
    Floats,
    Id,
    Outline,
    Place,
    Points,
    Random,
    Stage,
    Thing,
    ellipse,
    limb,
)

_FACING = (0.0, 0.1, -0.995)


def sample_post(rng: Random, lateral: float, station: float) -> Thing:
    """Return a lamp post whose arm reaches over the street, at times a plain post."""
    colour, patch = canvas.colour(rng, "metal"), canvas.speckle(rng, 0.08)
    arm = rng.uniform(0.8, 2.0) * (1 if lateral < 0 else -1) if rng.random() < 0.75 else 0.0
    top, wide = rng.uniform(4.0, 8.0), rng.uniform(0.14, 0.26)

    def draw(at: Place) -> None:
        light = at.stage.light
        lit, body = colour * light.shade(_FACING), canvas.rounded(patch, light.side)
        at.fill(limb((0, 0), (0, top), wide, 0.7 * wide), lit, Id.POLE, body)
        if arm:
            at.fill(limb((0.0, top - 0.05), (arm, top + 0.35), 0.1, 0.08), lit, Id.POLE)
            glow = np.array([1.0, 0.85, 0.55]) if light.weather == "dusk" else lit * 1.2
            at.fill(
                limb((0.8 * arm, top + 0.33), (1.15 * arm, top + 0.33), 0.14, 0.2), glow, Id.POLE
            )

    return Thing(
        lateral, station, canvas.upright(wide / 2, (-wide / 2, wide / 2), top, wide / 2), draw
    )


_TRIANGLE = np.array([(-0.95, -0.6), (0.95, -0.6), (0.0, 1.0)])
_PLATE = np.array([(-0.8, -1.0), (0.8, -1.0), (0.8, 1.0), (-0.8, 1.0)])
_SHAPES = (ellipse((0, 0), (1, 1)), _TRIANGLE, -_TRIANGLE, _PLATE)  # of signs, for a half size of 1


def sample_sign(rng: Random, lateral: float, station: float) -> Thing:
    """Return a traffic sign with a rim, on a post and facing the camera."""
    height, half = rng.uniform(2.4, 3.4), rng.uniform(0.38, 0.56)
    face, rim, post = (canvas.colour(rng, thing) for thing in ("sign", "sign", "metal"))
    shape = half * _SHAPES[rng.integers(len(_SHAPES))]

    def draw(at: Place) -> None:
        shade = at.stage.light.shade(_FACING)
        at.fill(limb((0, 0), (0, height), 0.09, 0.09), post * shade, Id.POLE)
        # Sign faces are retro-reflective: brighter than their canvas.
        for scale, colour in ((1.0, rim), (0.7, face)):
            at.fill(scale * shape + (0, height - half), colour * shade * 1.15, Id.SIGN)

    return Thing(lateral, station, canvas.upright(0.05, (-0.05, 0.05), height, 0.05), draw)


def sample_person(rng: Random, lateral: float, station: float) -> Thing:
    """Return a random person at a place, whose legs and arms swing in a video."""
    h, stride = rng.uniform(1.4, 1.92), rng.uniform(0.05, 0.5)  # metres, radians
    wide = 0.125 * h * rng.uniform(0.65, 1.2)
    top, trousers = canvas.colour(rng, "clothing"), canvas.colour(rng, "clothing") * 0.85
    skin, hair, patch = canvas.colour(rng, "skin"), canvas.colour(rng, "bark"), canvas.fabric(rng)

    def draw(at: Place) -> None:
        light = at.stage.light
        shade, body = light.shade((0.0, 0.25, -0.97)) * 1.05, canvas.rounded(patch, light.side)

        def part(corners: Outline, colour: Points) -> None:
            at.fill(corners, colour * shade, Id.PERSON, body)

        hip, shoulder = 0.5 * h, 0.82 * h
        swing = 0.47 * h * np.sin(stride * np.cos(6.0 * at.stage.time))
        for sign in (-1, 1):
            part(
                limb(
                    (0.4 * sign * wide, hip),
                    (0.4 * sign * wide + sign * swing, 0.0),
                    0.1 * h,
                    0.06 * h,
                ),
                trousers,
            )
        part(limb((0, hip - 0.02 * h), (0, shoulder), 1.7 * wide, 1.9 * wide), top)
        for sign in (-1, 1):
            joint = (0.95 * sign * wide, shoulder - 0.03 * h)
            part(
                limb(joint, (joint[0] - 0.6 * sign * swing, 0.46 * h), 0.065 * h, 0.045 * h),
                top * 0.88,
            )
        part(ellipse((0, 0.925 * h), (0.05 * h, 0.072 * h)), hair)
        part(ellipse((0, 0.9 * h), (0.04 * h, 0.06 * h)), skin)

    return Thing(lateral, station, canvas.upright(0.2, (-0.1, 0.15), h, 0.15), draw, half_width=0.3)


# Side profiles (forward; up) in metres for a length of 4.4 m, counter-clockwise seen from the
# right, from the front bumper on.
_PROFILES = (
    ((2.2, 2.2, 1.9, 0.95, 0.25, -0.85, -1.5, -2.15, -2.2), (0.2, 0.7, 0.85, 0.95, 1.42, 1.44, 1.0, 0.95, 0.2)),  # sedan
    ((2.2, 2.2, 2.0, 1.0, 0.45, -1.8, -2.12, -2.2, -2.2), (0.25, 0.9, 1.0, 1.1, 1.7, 1.72, 1.12, 1.05, 0.25)),  # estate
)  # fmt: skip
_SCREEN, _REAR, _TAIL = 3, 5, 7  # edges of the profiles that carry glass and lamps
_TYRE = np.array([0.07, 0.07, 0.075])
_CIRCLE = np.linspace(0, 2 * np.pi, 12, endpoint=False)


def sample_car(rng: Random, lateral: float, station: float, yaw: float) -> Thing:
    """Return a random car whose middle is at a place; ``yaw`` 0 looks away from the camera, pi
    towards it.
    """
    # Paint mirrors the sky above and the street below.
    gloss = np.linspace(1.12, 0.85, 48, dtype=np.float32)[:, None]
    patch = canvas.speckle(rng, rng.uniform(0.02, 0.08), "cloud") * gloss
    colour, width, scale = canvas.colour(rng, "car"), rng.uniform(1.7, 1.95), rng.uniform(0.93, 1.1)
    profile = np.column_stack(_PROFILES[rng.integers(len(_PROFILES))]) * scale
    cabin, half = profile[3:7], width / 2
    window = cabin.mean(axis=0) + (cabin - cabin.mean(axis=0)) * (0.82, 0.72)

    def draw(at: Place) -> None:
        light = at.stage.light
        for face, corners, normal in at.faces(profile, width):
            shade, middle = light.shade(normal), corners.mean(axis=0)
            glass = 0.16 * shade + 0.1 * light.skyline
            at.stage.flat(corners, colour * shade, Id.CAR, patch)
            if face in (_SCREEN, _REAR):
                at.stage.flat(middle + 0.8 * (corners - middle), glass, Id.CAR)
            elif face == _TAIL:  # a bar of lamps at its upper edge
                bar = corners + 0.7 * (corners[[0, 0, 3, 3]] - corners)
                at.stage.flat(bar, np.array([0.6, 0.05, 0.06]) * shade, Id.CAR)
            elif face in (LEFT, RIGHT):
                beside = half if face == RIGHT else -half
                side(at, beside, window, glass)
                for z in (profile[0, 0] - 0.8 * scale, profile[-1, 0] + 0.8 * scale):
                    wheel = np.column_stack(
                        [z + 0.34 * np.cos(_CIRCLE), 0.34 + 0.34 * np.sin(_CIRCLE)]
                    )
                    side(at, beside, wheel, _TYRE * shade)

    def side(at: Place, beside: float, outline: Points, colour: Points) -> None:
        forward, up = outline.T
        local = np.column_stack([np.full(len(up), beside), up, forward])
        at.stage.flat(canvas.turned(local, at.yaw, at.lateral, at.station), colour, Id.CAR)

    (back, _), (front, roof) = profile.min(axis=0), profile.max(axis=0)
    foot = [(x, 0.0, z) for x in (-half, half) for z in (back, front)]
    top = [(x, roof, z) for x in (-0.8 * half, 0.8 * half) for z in (back + 0.5, 0.6)]
    reach, across = canvas.turned(np.array(foot + top), yaw), abs(np.sin(yaw)) > 0.5
    return Thing(lateral, station, reach, draw, half_width=2.4 if across else 1.0, yaw=yaw)


def _boxed(laterals: tuple[float, float], height: float, length: float) -> Points:
    """Return the reach of a box on the ground that ends here: its eight corners."""
    return np.array([(x, y, z) for x in laterals for y in (0.0, height) for z in (-length, 0.0)])


def sample_house(rng: Random, lateral: float, start: float, length: float, lit: float) -> Thing:
    """Return a random house whose front begins at ``start`` and is ``length`` m long; ``lit`` is
    the share of windows with light.
    """
    storeys, storey, wall = (
        int(rng.integers(2, 7)),
        rng.uniform(2.9, 3.6),
        canvas.colour(rng, "facade"),
    )
    bays, depth, shops = (
        max(1, round(length / rng.uniform(2.2, 3.6))),
        rng.uniform(9, 14),
        rng.random() < 0.5,
    )
    rows, columns = 16 * storeys, 12 * bays
    front = np.full((rows, columns, 3), wall, np.float32)
    front *= cv2.resize(canvas.speckle(rng, rng.uniform(0.03, 0.1), "cloud"), (columns, rows))[
        ..., None
    ]
    top, bottom, left = int(rng.integers(2, 5)), int(rng.integers(11, 14)), int(rng.integers(2, 4))
    frame = np.clip(wall * rng.uniform(0.7, 1.5), 0, 0.95)
    glass = np.array([0.16, 0.2, 0.26]) * rng.uniform(0.5, 1.8)
    for y in range(0, rows, 16):
        for x in range(0, columns, 12):
            light = rng.random() < lit
            pane = (
                np.array([0.95, 0.78, 0.45]) * rng.uniform(0.5, 1.0)
                if light
                else glass * rng.uniform(0.6, 1.6)
            )
            if shops and y + 16 == rows:
                front[y + 3 : y + 15, x + 1 : x + 11] = pane
                continue
            front[y + top - 1 : y + bottom + 1, x + left - 1 : x + 13 - left] = frame
            front[y + top : y + bottom, x + left : x + 12 - left] = pane
    front = np.clip(front, 0.02, 0.98)
    # What stands beside the front is nearer than its far end, the house's station, and so drawn
    # later.
    end, height, side = start + length, storeys * storey, float(np.sign(lateral))

    def draw(at: Place) -> None:
        camera = at.stage.camera
        shown = max(start, camera.station + 1.2)
        cut = front[:, int((shown - start) / length * front.shape[1]) :]
        if end <= shown or cut.shape[1] < 2:
            return
        whole = replace(at, lateral=lateral + side * depth / 2, station=start + length / 2)
        whole.box(length, height, depth, wall, Id.BUILDING, np.ones((2, 2), np.float32))
        corners = np.array(
            [(lateral, y, z) for y, z in ((height, shown), (height, end), (0, end), (0, shown))]
        )
        shade = at.stage.light.shade((-side, 0.0, 0.0))
        at.stage.canvas.warp(
            camera.project(corners), corners[:, 2] - camera.station, cut, shade, Id.BUILDING
        )

    return Thing(lateral, end, _boxed((0.0, side * depth), height, length), draw)


def sample_tree(rng: Random, lateral: float, station: float, bush: bool = False) -> Thing:
    """Return a random tree of clumps of leaves, or a bush: a low crown without a trunk."""
    trunk, crown = (
        (0.0, rng.uniform(0.5, 1.3)) if bush else (rng.uniform(1.8, 3.4), rng.uniform(1.5, 3.1))
    )
    clumps: list[tuple[Points, float]] = []  # outline and brightness
    for _ in range(int(rng.integers(4, 8))):
        centre = np.array((rng.normal(0, 0.5 * crown), trunk + crown * rng.uniform(0.5, 1.5)))
        ragged = crown * rng.uniform(0.5, 0.85) * (1 + rng.uniform(-0.16, 0.16, (16, 1)))
        outline = centre + ragged * ellipse((0.0, 0.0), (1.0, 0.9))
        clumps.append((np.maximum(outline, (-np.inf, 0.0)), rng.uniform(0.7, 1.2)))
    leaf, bark, patch = (
        canvas.colour(rng, "foliage"),
        canvas.colour(rng, "bark"),
        canvas.leaves(rng),
    )

    def draw(at: Place) -> None:
        light = at.stage.light
        shade, leaves = light.shade((0.0, 0.45, -0.89)), canvas.rounded(patch, light.side, 0.4)
        at.fill(
            limb((0, 0), (0, trunk + 0.8 * crown), 0.3, 0.15), bark * shade, Id.VEGETATION, patch
        )
        for outline, bright in clumps:
            at.fill(outline, leaf * shade * bright, Id.VEGETATION, leaves)

    return Thing(
        lateral, station, canvas.upright(0.2, (-0.2, 0.2), trunk + crown, 0.8 * crown), draw
    )


def sample_hedge(rng: Random, lateral: float, start: float, length: float) -> Thing:
    """Return a random clipped hedge along the street, ``length`` m from ``start``."""
    height, leaf, patch = rng.uniform(0.8, 2.2), canvas.colour(rng, "foliage"), canvas.leaves(rng)

    def draw(at: Place) -> None:
        replace(at, station=start + length / 2).box(length, height, 0.8, leaf, Id.VEGETATION, patch)

    return Thing(lateral, start + length, _boxed((-0.4, 0.4), height, length), draw)


def sample_skyline(rng: Random, woods: float) -> Callable[[Stage], None]:
    """Return what draws a random skyline: far houses and a share of woods across the whole picture,
    which move with the camera.
    """
    distance = rng.uniform(160, 240)
    blocks, left = [], -distance
    while left < distance:
        width, wood = rng.uniform(10, 35), rng.random() < woods
        height = rng.uniform(4, 12) if wood else rng.uniform(7, 26)
        outline = np.array(
            [(left, -1.5), (left, height), (left + width, height), (left + width, -1.5)]
        )
        kind, label = ("foliage", Id.VEGETATION) if wood else ("facade", Id.BUILDING)
        blocks.append((outline, canvas.colour(rng, kind), label, canvas.fabric(rng)))
        left += width

    def draw(stage: Stage) -> None:
        # The bend of the street must not carry the skyline away.
        bend = stage.camera.curvature / 2 * distance**2
        at = Place(stage, -bend, stage.camera.station + distance)
        for outline, colour, label, patch in blocks:
            at.fill(outline, colour * stage.light.shade((0.0, 0.2, -0.98)), label, patch)

    return draw


@dataclass(frozen=True)
class Figure:
    """One anomaly at its place; ``shape`` holds eight random numbers in 0..1 that vary its form."""

    at: Place
    size: float  # height scale, metres
    mirror: int  # 1 or -1
    phase: float  # radians, the gait of an animal
    shape: Points
    colours: tuple[Points, Points]
    patches: tuple[Floats, Floats]

    def part(self, corners: Outline, which: int = 0, factor: float = 1.0) -> None:
        """Fill a standing polygon (right, up; before ``size`` and ``mirror``) in one of the
        colours.
        """
        light, outline = (
            self.at.stage.light,
            np.asarray(corners) * (self.mirror * self.size, self.size),
        )
        colour = self.colours[which] * light.shade((0.0, 0.3, -0.95)) * factor
        self.at.fill(outline, colour, Id.ANOMALY, canvas.rounded(self.patches[which], light.side))


def _animal(it: Figure) -> None:
    leg, trunk, neck = 0.45 + 0.3 * it.shape[0], 0.2 + 0.14 * it.shape[1], 0.15 + 0.4 * it.shape[2]
    body, head = leg + trunk, (0.72 + 0.25 * (1 - it.shape[2]), leg + trunk + neck)
    for i, x in enumerate((-0.48, 0.42, -0.4, 0.5)):
        foot = x + 0.16 * np.sin(it.phase + i * np.pi / 2)
        it.part(limb((x, leg + 0.1), (foot, 0.02), 0.17, 0.08), 0, 0.7 if i < 2 else 0.95)
    it.part(ellipse((0.0, body), (0.65, trunk)))
    it.part(limb((0.45, body + 0.05), head, 0.32, 0.2))
    it.part(ellipse((head[0] + 0.1, head[1]), (0.21, 0.115), -0.35), 1)


def _boulder(it: Figure) -> None:
    angles = np.linspace(0, np.pi, 8)
    radius = 0.75 * (0.85 + 0.3 * it.shape)
    rim = np.column_stack([radius * np.cos(angles), 0.95 * radius * np.sin(angles)])
    it.part(rim, 0, 0.8)
    it.part(0.6 * rim + (0.0, 0.25), 0, 1.1)


def _sofa(it: Figure) -> None:
    s, place = it.size, replace(it.at, yaw=np.pi + 0.7 * it.at.yaw)
    back = np.array([[-0.15, 0.08], [-0.2, 0.95], [-0.45, 0.95], [-0.45, 0.08]]) * s
    seat = np.array([[0.45, 0.08], [0.45, 0.48], [-0.2, 0.45], [-0.2, 0.08]]) * s
    place.solid(back, 1.9 * s, it.colours[0], Id.ANOMALY, it.patches[0])
    place.solid(seat, 1.9 * s, it.colours[1], Id.ANOMALY, it.patches[1])


def _cone(it: Figure) -> None:
    it.part([(-0.5, 0.0), (0.5, 0.0), (0.46, 0.09), (-0.46, 0.09)], 0, 0.7)
    heights, halves = np.linspace(0.08, 1.13, 6), np.linspace(0.36, 0.05 + 0.12 * it.shape[0], 6)
    for i, (low, high, a, b) in enumerate(
        zip(heights, heights[1:], halves, halves[1:], strict=False)
    ):
        it.part([(-a, low), (a, low), (b, high), (-b, high)], i % 2)


# How it is drawn; half its width and its height for shadows, both for size 1; the range of sizes.
KINDS = {
    "animal": (_animal, 0.95, 1.2, (1.2, 1.8)),
    "boulder": (_boulder, 0.75, 0.9, (1.0, 1.6)),
    "sofa": (_sofa, 1.0, 0.9, (1.0, 1.5)),
    "cone": (_cone, 0.55, 0.9, (1.4, 2.0)),
}


def sample_anomaly(
    rng: Random, lateral: float, station: float, kind: str | None = None, mirror: int | None = None
) -> Thing:
    """Return a random anomaly at a place; an animal of a video walks."""
    kind = kind or str(rng.choice([*KINDS]))
    first, second = canvas.odd_colour(rng), canvas.odd_colour(rng)
    one, other = canvas.fabric(rng), canvas.fabric(rng)
    sketch, wide, tall, sizes = KINDS[kind]
    size, yaw, drawn = rng.uniform(*sizes), rng.uniform(-0.8, 0.8), int(rng.choice((-1, 1)))
    phase, shape = rng.uniform(0, 2 * np.pi), rng.random(8)

    def draw(at: Place) -> None:
        gait = phase + 7.0 * at.stage.time
        sketch(Figure(at, size, mirror or drawn, gait, shape, (first, second), (one, other)))

    reach = canvas.upright(0.8 * wide * size, (-0.3, 0.3), tall * size, 0.64 * wide * size)
    return Thing(lateral, station, reach, draw, wide * size, yaw)
