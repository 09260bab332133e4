"""Anomalies: things that no training scene holds, in the colours and textures of known things.

They stand on the ground in true perspective, and go through the same light, air and sensor.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from segunc.toyroads import paint
from segunc.toyroads.camera import Corner, Floats, Outline, Points, block, ellipse, limb, upright
from segunc.toyroads.canvas import ANOMALY, Place, Thing


@dataclass(frozen=True)
class Figure:
    """One anomaly at its place, in metres.

    ``size`` is its height scale, ``mirror`` 1 or -1, ``phase`` (radians) the gait of an animal, and ``shape`` eight
    random numbers in 0..1 that vary its form.
    """

    at: Place
    size: float
    mirror: int
    phase: float
    shape: Points
    colours: tuple[Points, Points]
    patches: tuple[Floats, Floats]

    def part(self, corners: Outline, which: int = 0, factor: float = 1.0) -> None:
        """Fill a standing polygon (right, up; before ``size`` and ``mirror``) in one of the colours."""
        self.at.fill(np.asarray(corners) * (self.mirror * self.size, self.size), *self.surface(which, factor))

    def blob(self, centre: Corner, radii: Corner, which: int = 0, factor: float = 1.0, tilt: float = 0.0) -> None:
        """Fill a standing ellipse, in the same units as :meth:`part`."""
        self.part(ellipse(centre, radii, tilt), which, factor)

    def surface(self, which: int, factor: float) -> tuple[Points, int, Floats]:
        """The lit colour, the label and the texture of a face."""
        light = self.at.stage.light
        shade = light.shade((0.0, 0.3, -0.95))
        return self.colours[which] * shade * factor, ANOMALY, paint.rounded(self.patches[which], light.side)


def _animal(it: Figure) -> None:
    """Cow, deer, dog or boar: trunk, four legs, neck, head, ears or antlers, tail."""
    leg, trunk, neck, horns = 0.45 + 0.3 * it.shape[0], 0.2 + 0.14 * it.shape[1], 0.15 + 0.4 * it.shape[2], it.shape[3]
    for i, x in enumerate((-0.48, 0.42, -0.4, 0.5)):
        swing = 0.16 * np.sin(it.phase + i * np.pi / 2)
        knee = (x + 0.5 * swing, 0.5 * leg)
        shade = 0.7 if i < 2 else 0.95
        it.part(limb((x, leg + 0.05), knee, 0.17, 0.1), 0, shade)
        it.part(limb(knee, (x + swing, 0.02), 0.095, 0.075), 0, 0.9 * shade)
    body = leg + trunk
    it.part(limb((-0.6, body + 0.5 * trunk), (-0.74, leg), 0.06, 0.04), 1, 0.8)
    it.blob((0.0, body), (0.64, trunk))
    it.blob((0.36, body + 0.02), (0.28, trunk * 1.08))
    it.blob((-0.38, body + 0.03), (0.27, trunk))
    head = (0.72 + 0.25 * (1 - it.shape[2]), body + neck)
    it.part(limb((0.45, body + 0.05), head, 0.32, 0.2), 0)
    it.blob((head[0] + 0.1, head[1]), (0.21, 0.115), 0, 1.0, -0.35)
    it.blob((head[0] - 0.06, head[1] + 0.13), (0.045, 0.1), 1, 0.9, 0.5)
    if horns > 0.5:
        for tilt in (-0.12, 0.14):
            tip = (head[0] + tilt, head[1] + 0.2 + 0.35 * horns)
            it.part(limb((head[0], head[1] + 0.06), tip, 0.05, 0.03), 1, 0.8)


def _tyre(it: Figure) -> None:
    """A big tyre: lying on the ground, or standing with its hole towards the camera."""
    if it.shape[0] >= 0.5:
        for x, radius, which, factor in ((0.0, 0.55, 0, 0.85), (0.03, 0.5, 0, 1.0), (0.02, 0.27, 1, 0.55)):
            it.blob((x, 0.55), (radius, radius), which, factor)
        return
    outer, tall = 0.62 * it.size, 0.34 * it.size
    angles = np.linspace(0, 2 * np.pi, 24, endpoint=False)

    def ring(radius: float, height: float) -> Points:
        x, z = it.at.lateral + radius * np.cos(angles), it.at.station + radius * np.sin(angles)
        return np.column_stack([x, np.full(24, height), z])

    lower, upper = ring(outer, 0.0), ring(outer, tall)
    front = np.concatenate([lower[12:], lower[:1], upper[:1], upper[:11:-1]])
    for face, which, factor in ((front, 0, 0.75), (upper, 0, 1.0), (ring(0.5 * outer, tall), 1, 0.45)):
        it.at.stage.flat(face, *it.surface(which, factor))


def _boulder(it: Figure) -> None:
    """A rock of flat facets around a ridge."""
    angles = np.linspace(0, np.pi, 9)
    radius = 0.75 * (0.75 + 0.5 * np.resize(it.shape, 9))
    rim = [(r * np.cos(a), max(0.0, 0.95 * r * np.sin(a))) for r, a in zip(radius, angles, strict=True)]
    ridge = (0.3 * (it.shape[0] - 0.5), 0.25 + 0.25 * it.shape[1])
    it.part(rim, 0, 0.8)
    side = it.at.stage.light.side
    for i in range(8):
        facing = np.cos((angles[i] + angles[i + 1]) / 2)
        factor = 0.85 + 0.35 * side * facing + 0.18 * np.sin(angles[i]) + 0.12 * (it.shape[i] - 0.5)
        it.part([rim[i], rim[i + 1], ridge], 0, float(np.clip(factor, 0.5, 1.3)))


def _boxes(it: Figure) -> None:
    """A heap of two to four crates or cartons."""
    base, at, shape = 0.0, it.at, it.shape
    for i in range(2 + int(shape[0] * 2.99)):
        side = it.size * (0.72 - 0.13 * i)
        lateral, station = at.lateral + 0.22 * (shape[i] - 0.5), at.station + 0.01 * i
        place = Place(at.stage, lateral, station, at.yaw + 0.9 * (shape[i + 3] - 0.5))
        height = side * (0.55 + 0.35 * shape[i + 1])
        place.solid(block(side, height, base), side * 1.15, it.colours[i % 2], ANOMALY, it.patches[i % 2])
        base += height


def _sofa(it: Figure) -> None:
    """A sofa: back, seat and two arms."""
    s, place = it.size, replace(it.at, yaw=np.pi + 0.7 * it.at.yaw)
    back = np.array([[-0.15, 0.08], [-0.2, 0.95], [-0.45, 0.95], [-0.45, 0.08]]) * s
    seat = np.array([[0.45, 0.08], [0.45, 0.48], [-0.2, 0.45], [-0.2, 0.08]]) * s
    colour, patches = it.colours[0], it.patches
    place.solid(back, 1.9 * s, colour, ANOMALY, patches[0])
    place.solid(seat, 1.6 * s, colour * 0.93, ANOMALY, patches[1])
    for lateral, _, station in place.street(np.array([[-0.87 * s, 0.0, 0.0], [0.87 * s, 0.0, 0.0]])):
        arm = replace(place, lateral=lateral, station=station)
        arm.solid(block(0.95 * s, 0.62 * s, 0.06 * s), 0.24 * s, colour, ANOMALY, patches[0])


def _bands(it: Figure, halves: Points, heights: Points, marked: tuple[int, ...]) -> None:
    """Bands from the ground up between widths at some heights; the marked ones are in the second colour."""
    for i, (a, b, low, high) in enumerate(zip(halves, halves[1:], heights, heights[1:], strict=False)):
        it.part([(-a, low), (a, low), (b, high), (-b, high)], int(i in marked))


def _cone(it: Figure) -> None:
    """A cone or a striped pylon on a foot plate."""
    wide, thin = 0.36, 0.05 + 0.12 * it.shape[0]
    it.part([(-0.5, 0.0), (0.5, 0.0), (0.46, 0.09), (-0.46, 0.09)], 0, 0.7)
    shares = np.linspace(0, 1, 4 + int(3.99 * it.shape[1]))
    _bands(it, wide + (thin - wide) * shares, 0.08 + 1.05 * shares, (1, 3, 5))


def _drum(it: Figure) -> None:
    """A barrel with hoops, standing."""
    belly = 0.4 + 0.1 * it.shape[0]
    heights = np.linspace(0, 1.05, 7)
    widths = 0.38 + (belly - 0.38) * np.sin(np.pi * heights / 1.05)
    _bands(it, widths, heights, (1, 4))
    it.blob((0.0, 1.05), (0.38, 0.07), 1, 1.1)
    it.blob((0.0, 0.0), (0.37, 0.05), 0, 0.8)


def _log(it: Figure) -> None:
    """A fallen trunk across the way, its cut end showing, with stumps of branches."""
    thick, rise = 0.28 + 0.14 * it.shape[0], 0.5 * (it.shape[1] - 0.5)
    start, end = (-1.15, thick), (1.1, thick * 1.05 + max(0.0, rise))
    for x in (-0.5, 0.1, 0.6):
        tip = (x + 0.25, thick * 1.9 + 0.5 * it.shape[int(4 + 3 * abs(x))])
        it.part(limb((x, thick), tip, 0.14, 0.07), 1, 0.85)
    it.part(limb(start, end, 2 * thick, 1.5 * thick))
    it.blob(start, (0.55 * thick, thick), 1, 1.15)


# How it is drawn; half its width and its height for shadows, both for size 1; the range of sizes.
_KINDS = {
    "animal": (_animal, 0.95, 1.2, (1.2, 1.8)),
    "tyre": (_tyre, 0.55, 0.3, (1.3, 1.8)),
    "boulder": (_boulder, 0.75, 0.9, (1.2, 1.9)),
    "boxes": (_boxes, 0.7, 0.9, (1.2, 2.0)),
    "sofa": (_sofa, 1.0, 0.9, (1.2, 1.8)),
    "cone": (_cone, 0.55, 0.9, (1.4, 2.0)),
    "drum": (_drum, 0.55, 0.9, (1.2, 1.8)),
    "log": (_log, 1.2, 0.45, (1.2, 1.8)),
}
KINDS = tuple(_KINDS)  # the shapes that an anomaly may have


def sample_anomaly(
    rng: np.random.Generator, lateral: float, station: float, kind: str | None = None, mirror: int | None = None
) -> Thing:
    """A random anomaly at a place; an animal of a video walks."""
    kind = kind or str(rng.choice(KINDS))
    first = paint.odd_colour(rng)
    # Marks are of another colour or just a lighter or darker one.
    second = paint.odd_colour(rng) if rng.random() < 0.8 else np.clip(first * rng.uniform(0.5, 1.7), 0.02, 0.95)
    one, other = (paint.fabric(rng) if rng.random() < 0.72 else paint.leaves(rng) for _ in range(2))
    sketch, wide, tall, sizes = _KINDS[kind]
    size, yaw, drawn = rng.uniform(*sizes), rng.uniform(-0.8, 0.8), int(rng.choice((-1, 1)))
    phase, shape = rng.uniform(0, 2 * np.pi), rng.random(8)

    def draw(at: Place) -> None:
        walked = phase + 7.0 * at.stage.time
        sketch(Figure(at, size, mirror or drawn, walked, shape, (first, second), (one, other)))

    half = 0.8 * (wide * size)
    reach = upright(half, (-0.3, 0.3), size * tall, 0.8 * half)
    return Thing(lateral, station, ANOMALY, reach, draw, wide * size, yaw)
