"""Anomalies: things that no training scene holds, in the colours and textures of known things.

Each one draws its colour from :func:`palette.anomaly` and its surface from the textures of the known things, stands
on the ground in true perspective, and goes through the same light, air and sensor.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from segunc.toyroads import paint
from segunc.toyroads.camera import Corner, Floats, Outline, Points
from segunc.toyroads.canvas import ANOMALY, Placement, Stage, Thing, block, ellipse, limb


@dataclass(frozen=True)
class Anomaly(Thing):
    """One anomaly; ``size`` is its height scale in metres, ``shape`` random numbers in 0..1 that vary its form.

    ``phase`` (radians) is the gait of an animal; ``mirror`` is 1 or -1.
    """

    kind: str
    size: float
    yaw: float
    mirror: int
    phase: float
    shape: Points
    colours: tuple[Points, Points]
    patches: tuple[Floats, Floats]

    @property
    def half_width(self) -> float:
        """About half of its lateral extent in metres."""
        return _KINDS[self.kind][1] * self.size

    def footprint(self) -> Points:
        half = 0.8 * self.half_width
        return self.upright(half, (-0.3, 0.3), self.size * _KINDS[self.kind][2], 0.8 * half)

    def draw(self, stage: Stage) -> None:
        _KINDS[self.kind][0](self, stage)

    def part(self, stage: Stage, corners: Outline, which: int = 0, factor: float = 1.0) -> None:
        """Fill a standing polygon (right, up; metres before ``size`` and ``mirror``) in one of the colours."""
        points = np.asarray(corners) * (self.mirror * self.size, self.size)
        self.fill(stage, points, *self.surface(stage, which, factor))

    def blob(self, stage: Stage, centre: Corner, radii: Corner, which: int = 0, factor: float = 1.0,
             tilt: float = 0.0) -> None:  # fmt: skip
        """Fill a standing ellipse, in the same units as :meth:`part`."""
        self.part(stage, ellipse(centre, radii, tilt), which, factor)

    def surface(self, stage: Stage, which: int, factor: float) -> tuple[Points, int, Floats]:
        """The lit colour, the label and the texture of a face."""
        shade = stage.light.shade((0.0, 0.3, -0.95))
        return self.colours[which] * shade * factor, ANOMALY, paint.rounded(self.patches[which], stage.light.side)


def _animal(it: Anomaly, stage: Stage) -> None:
    """Cow, deer, dog or boar: trunk, four legs, neck, head, ears or antlers, tail."""
    leg, trunk, neck, horns = 0.45 + 0.3 * it.shape[0], 0.2 + 0.14 * it.shape[1], 0.15 + 0.4 * it.shape[2], it.shape[3]
    for i, x in enumerate((-0.48, 0.42, -0.4, 0.5)):
        swing = 0.16 * np.sin(it.phase + i * np.pi / 2)
        knee = (x + 0.5 * swing, 0.5 * leg)
        shade = 0.7 if i < 2 else 0.95
        it.part(stage, limb((x, leg + 0.05), knee, 0.17, 0.1), 0, shade)
        it.part(stage, limb(knee, (x + swing, 0.02), 0.095, 0.075), 0, 0.9 * shade)
    body = leg + trunk
    it.part(stage, limb((-0.6, body + 0.5 * trunk), (-0.74, leg), 0.06, 0.04), 1, 0.8)
    it.blob(stage, (0.0, body), (0.64, trunk))
    it.blob(stage, (0.36, body + 0.02), (0.28, trunk * 1.08))
    it.blob(stage, (-0.38, body + 0.03), (0.27, trunk))
    head = (0.72 + 0.25 * (1 - it.shape[2]), body + neck)
    it.part(stage, limb((0.45, body + 0.05), head, 0.32, 0.2), 0)
    it.blob(stage, (head[0] + 0.1, head[1]), (0.21, 0.115), 0, 1.0, -0.35)
    it.blob(stage, (head[0] - 0.06, head[1] + 0.13), (0.045, 0.1), 1, 0.9, 0.5)
    if horns > 0.5:
        for tilt in (-0.12, 0.14):
            tip = (head[0] + tilt, head[1] + 0.2 + 0.35 * horns)
            it.part(stage, limb((head[0], head[1] + 0.06), tip, 0.05, 0.03), 1, 0.8)


def _tyre(it: Anomaly, stage: Stage) -> None:
    """A big tyre: lying on the ground, or standing with its hole towards the camera."""
    if it.shape[0] < 0.5:
        outer, tall = 0.62 * it.size, 0.34 * it.size
        angles = np.linspace(0, 2 * np.pi, 24, endpoint=False)

        def ring(radius: float, height: float) -> Points:
            x, z = it.lateral + radius * np.cos(angles), it.station + radius * np.sin(angles)
            return np.column_stack([x, np.full(24, height), z])

        lower, upper = ring(outer, 0.0), ring(outer, tall)
        front = np.concatenate([lower[12:], lower[:1], upper[:1], upper[:11:-1]])
        for face, which, factor in ((front, 0, 0.75), (upper, 0, 1.0), (ring(0.5 * outer, tall), 1, 0.45)):
            stage.flat(face, *it.surface(stage, which, factor))
        return
    it.blob(stage, (0.0, 0.55), (0.55, 0.55), 0, 0.85)
    it.blob(stage, (0.03, 0.55), (0.5, 0.5), 0, 1.0)
    it.blob(stage, (0.02, 0.55), (0.27, 0.27), 1, 0.55)


def _boulder(it: Anomaly, stage: Stage) -> None:
    """A rock of flat facets around a ridge."""
    count = 9
    angles = np.linspace(0, np.pi, count)
    radius = 0.75 * (0.75 + 0.5 * np.resize(it.shape, count))
    rim = [(r * np.cos(a), max(0.0, 0.95 * r * np.sin(a))) for r, a in zip(radius, angles, strict=True)]
    ridge = (0.3 * (it.shape[0] - 0.5), 0.25 + 0.25 * it.shape[1])
    it.part(stage, rim, 0, 0.8)
    side = stage.light.side
    for i in range(count - 1):
        facing = np.cos((angles[i] + angles[i + 1]) / 2)
        factor = 0.85 + 0.35 * side * facing + 0.18 * np.sin(angles[i]) + 0.12 * (it.shape[i % 8] - 0.5)
        it.part(stage, [rim[i], rim[i + 1], ridge], 0, float(np.clip(factor, 0.5, 1.3)))


def _boxes(it: Anomaly, stage: Stage) -> None:
    """A heap of two to four crates or cartons."""
    base = 0.0
    for i in range(2 + int(it.shape[0] * 2.99)):
        side = it.size * (0.72 - 0.13 * i)
        yaw = it.yaw + 0.9 * (it.shape[i + 3] - 0.5)
        place = Placement(it.lateral + 0.22 * (it.shape[i] - 0.5), it.station + 0.01 * i, yaw)
        height = side * (0.55 + 0.35 * it.shape[i + 1])
        colour, patch = it.colours[i % 2], it.patches[i % 2]
        place.draw(stage, block(side, height, base), side * 1.15, colour, ANOMALY, patch)
        base += height


def _sofa(it: Anomaly, stage: Stage) -> None:
    """A sofa: back, seat and two arms."""
    s, place = it.size, Placement(it.lateral, it.station, np.pi + 0.7 * it.yaw)
    back = np.array([[-0.15, 0.08], [-0.2, 0.95], [-0.45, 0.95], [-0.45, 0.08]]) * s
    seat = np.array([[0.45, 0.08], [0.45, 0.48], [-0.2, 0.45], [-0.2, 0.08]]) * s
    colour, patches = it.colours[0], it.patches
    place.draw(stage, back, 1.9 * s, colour, ANOMALY, patches[0])
    place.draw(stage, seat, 1.6 * s, colour * 0.93, ANOMALY, patches[1])
    for x in (-0.87, 0.87):
        shift = place.place(np.array([[x * s, 0.0, 0.0]]))[0]
        arm = Placement(float(shift[0]), float(shift[2]), place.yaw)
        arm.draw(stage, block(0.95 * s, 0.62 * s, 0.06 * s), 0.24 * s, colour, ANOMALY, patches[0])


def _bands(it: Anomaly, stage: Stage, halves: Points, heights: Points, marked: tuple[int, ...]) -> None:
    """Bands from the ground up between widths at some heights; the marked ones are in the second colour."""
    for i, (a, b, low, high) in enumerate(zip(halves, halves[1:], heights, heights[1:], strict=False)):
        it.part(stage, [(-a, low), (a, low), (b, high), (-b, high)], int(i in marked))


def _cone(it: Anomaly, stage: Stage) -> None:
    """A cone or a striped pylon on a foot plate."""
    wide, thin = 0.36, 0.05 + 0.12 * it.shape[0]
    it.part(stage, [(-0.5, 0.0), (0.5, 0.0), (0.46, 0.09), (-0.46, 0.09)], 0, 0.7)
    count = 3 + int(3.99 * it.shape[1])
    shares = np.arange(count + 1) / count
    _bands(it, stage, wide + (thin - wide) * shares, 0.08 + 1.05 * shares, (1, 3, 5))


def _drum(it: Anomaly, stage: Stage) -> None:
    """A barrel with hoops, standing."""
    belly = 0.4 + 0.1 * it.shape[0]
    heights = np.linspace(0, 1.05, 7)
    widths = 0.38 + (belly - 0.38) * np.sin(np.pi * heights / 1.05)
    _bands(it, stage, widths, heights, (1, 4))
    it.blob(stage, (0.0, 1.05), (0.38, 0.07), 1, 1.1)
    it.blob(stage, (0.0, 0.0), (0.37, 0.05), 0, 0.8)


def _log(it: Anomaly, stage: Stage) -> None:
    """A fallen trunk across the way, its cut end showing, with stumps of branches."""
    thick, rise = 0.28 + 0.14 * it.shape[0], 0.5 * (it.shape[1] - 0.5)
    start, end = (-1.15, thick), (1.1, thick * 1.05 + max(0.0, rise))
    for x in (-0.5, 0.1, 0.6):
        tip = (x + 0.25, thick * 1.9 + 0.5 * it.shape[int(4 + 3 * abs(x))])
        it.part(stage, limb((x, thick), tip, 0.14, 0.07), 1, 0.85)
    it.part(stage, limb(start, end, 2 * thick, 1.5 * thick))
    it.blob(stage, start, (0.55 * thick, thick), 1, 1.15)


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
KINDS = tuple(_KINDS)
"""The shapes that an anomaly may have."""


def sample_anomaly(rng: np.random.Generator, lateral: float, station: float, kind: str | None = None) -> Anomaly:
    """A random anomaly at a place."""
    kind = kind or str(rng.choice(KINDS))
    first = paint.odd_colour(rng)
    # Marks are of another colour or just a lighter or darker one.
    second = paint.odd_colour(rng) if rng.random() < 0.8 else np.clip(first * rng.uniform(0.5, 1.7), 0.02, 0.95)
    one, other = (paint.fabric(rng) if rng.random() < 0.72 else paint.leaves(rng) for _ in range(2))
    return Anomaly(
        lateral,
        station,
        kind,
        size=rng.uniform(*_KINDS[kind][3]),
        yaw=rng.uniform(-0.8, 0.8),
        mirror=int(rng.choice((-1, 1))),
        phase=rng.uniform(0, 2 * np.pi),
        shape=rng.random(8),
        colours=(first, second),
        patches=(one, other),
    )
