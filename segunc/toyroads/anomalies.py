"""Anomalies: things that no training scene holds, in the colours and textures of known things.

Each one draws its colour from :func:`palette.anomaly` and its surface from the textures of the known things, stands
on the ground in true perspective, and goes through the same light, air and sensor.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from segunc.toyroads import paint as palette
from segunc.toyroads import paint as textures
from segunc.toyroads.camera import Floats, Points
from segunc.toyroads.canvas import ANOMALY, Placement, Stage, box, draw_solid, ellipse, limb, prism, upright

_FACING = (0.0, 0.3, -0.95)


@dataclass(frozen=True)
class Anomaly:
    """One anomaly; ``size`` is its height scale in metres, ``shape`` random numbers in 0..1 that vary its form.

    ``phase`` (radians) is the gait of an animal; ``mirror`` is 1 or -1.
    """

    kind: str
    lateral: float
    station: float
    size: float
    yaw: float
    mirror: int
    phase: float
    shape: Points
    colours: tuple[Points, ...]
    patches: tuple[Floats, ...]

    @property
    def half_width(self) -> float:
        """About half of its lateral extent in metres."""
        return {"animal": 0.95, "sofa": 1.0, "boxes": 0.7, "log": 1.2, "boulder": 0.75}.get(self.kind, 0.55) * self.size

    def footprint(self) -> Points:
        """Street points of foot and top, for shadows."""
        half, height = 0.8 * self.half_width, self.size * {"tyre": 0.3, "log": 0.45, "animal": 1.2}.get(self.kind, 0.9)
        foot = [(self.lateral + x, 0.0, self.station + z) for x in (-half, half) for z in (-0.3, 0.3)]
        return np.array([*foot, *[(self.lateral + x, height, self.station) for x in (-0.8 * half, 0.8 * half)]])

    def draw(self, stage: Stage) -> None:
        _DRAW[self.kind](self, stage)

    def moved(self, lateral: float, phase: float) -> Anomaly:
        """The same anomaly elsewhere across the street, in another phase of its gait."""
        return replace(self, lateral=lateral, phase=phase)

    def part(self, stage: Stage, corners: list[tuple[float, float]], which: int = 0, factor: float = 1.0) -> None:
        """Fill a standing polygon (right, up; metres before ``size`` and ``mirror``) in one of the colours."""
        points = [(self.mirror * self.size * x, self.size * y) for x, y in corners]
        self._surface(stage, upright(points, self.lateral, self.station), which, factor)

    def blob(self, stage: Stage, centre: tuple[float, float], radii: tuple[float, float], which: int = 0,
             factor: float = 1.0, tilt: float = 0.0) -> None:  # fmt: skip
        """Fill a standing ellipse, in the same units as :meth:`part`."""
        points = ellipse((centre[0], centre[1], 0), radii, tilt)[:, :2]
        self.part(stage, [(float(x), float(y)) for x, y in points], which, factor)

    def _surface(self, stage: Stage, corners: Points, which: int, factor: float) -> None:
        patch = textures.rounded(self.patches[which], stage.light.side)
        stage.flat(corners, self.colours[which] * stage.light.shade(_FACING) * factor, ANOMALY, patch)


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
            return np.column_stack(
                [it.lateral + radius * np.cos(angles), np.full(24, height), it.station + radius * np.sin(angles)]
            )

        lower, upper = ring(outer, 0.0), ring(outer, tall)
        front = np.concatenate([lower[12:], lower[:1], upper[:1], upper[:11:-1]])
        it._surface(stage, front, 0, 0.75)
        it._surface(stage, upper, 0, 1.0)
        it._surface(stage, ring(0.5 * outer, tall), 1, 0.45)
        return
    it.blob(stage, (0.0, 0.55), (0.55, 0.55), 0, 0.85)
    it.blob(stage, (0.03, 0.55), (0.5, 0.5), 0, 1.0)
    it.blob(stage, (0.02, 0.55), (0.27, 0.27), 1, 0.55)


def _boulder(it: Anomaly, stage: Stage) -> None:
    """A rock of flat facets around a ridge."""
    count = 9
    angles = np.linspace(0, np.pi, count)
    radius = 0.75 * (0.75 + 0.5 * np.resize(it.shape, count))
    rim = [(float(r * np.cos(a)), float(max(0.0, 0.95 * r * np.sin(a)))) for r, a in zip(radius, angles, strict=True)]
    ridge = (float(0.3 * (it.shape[0] - 0.5)), float(0.25 + 0.25 * it.shape[1]))
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
        place = Placement(
            it.lateral + 0.22 * (it.shape[i] - 0.5), it.station + 0.01 * i, it.yaw + 0.9 * (it.shape[i + 3] - 0.5)
        )
        which = i % len(it.colours)
        height = side * (0.55 + 0.35 * it.shape[i + 1])
        draw_solid(box(side * 1.15, height, side, base), place, stage, it.colours[which], ANOMALY, it.patches[which])
        base += height


def _sofa(it: Anomaly, stage: Stage) -> None:
    """A sofa: back, seat and two arms."""
    s, place = it.size, Placement(it.lateral, it.station, np.pi + 0.7 * it.yaw)
    back = np.array([[-0.15, 0.08], [-0.2, 0.95], [-0.45, 0.95], [-0.45, 0.08]]) * s
    seat = np.array([[0.45, 0.08], [0.45, 0.48], [-0.2, 0.45], [-0.2, 0.08]]) * s
    draw_solid(prism(back, 1.9 * s), place, stage, it.colours[0], ANOMALY, it.patches[0])
    draw_solid(prism(seat, 1.6 * s), place, stage, it.colours[0] * 0.93, ANOMALY, it.patches[1])
    for x in (-0.87, 0.87):
        shift = place.place(np.array([[x * s, 0.0, 0.0]]))[0]
        arm = Placement(float(shift[0]), float(shift[2]), place.yaw)
        draw_solid(box(0.24 * s, 0.62 * s, 0.95 * s, 0.06 * s), arm, stage, it.colours[0], ANOMALY, it.patches[0])


def _cone(it: Anomaly, stage: Stage) -> None:
    """A cone or a striped pylon on a foot plate."""
    wide, thin = 0.36, 0.05 + 0.12 * it.shape[0]
    it.part(stage, [(-0.5, 0.0), (0.5, 0.0), (0.46, 0.09), (-0.46, 0.09)], 0, 0.7)
    bands = 3 + int(3.99 * it.shape[1])
    for i in range(bands):
        low, high = i / bands, (i + 1) / bands
        a, b = wide + (thin - wide) * low, wide + (thin - wide) * high
        y0, y1 = 0.08 + 1.05 * low, 0.08 + 1.05 * high
        it.part(stage, [(-a, y0), (a, y0), (b, y1), (-b, y1)], i % 2)


def _drum(it: Anomaly, stage: Stage) -> None:
    """A barrel with hoops, standing."""
    belly = 0.4 + 0.1 * it.shape[0]
    heights = np.linspace(0, 1.05, 7)
    widths = 0.38 + (belly - 0.38) * np.sin(np.pi * heights / 1.05)
    for i in range(6):
        a, b, low, high = widths[i], widths[i + 1], heights[i], heights[i + 1]
        it.part(stage, [(-a, low), (a, low), (b, high), (-b, high)], int(i in (1, 4)), 1.0)
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


_DRAW: dict[str, Callable[[Anomaly, Stage], None]] = {
    "animal": _animal,
    "tyre": _tyre,
    "boulder": _boulder,
    "boxes": _boxes,
    "sofa": _sofa,
    "cone": _cone,
    "drum": _drum,
    "log": _log,
}
KINDS = tuple(_DRAW)
"""The shapes that an anomaly may have."""
_SIZES = {"animal": (1.2, 1.8), "tyre": (1.3, 1.8), "boulder": (1.2, 1.9), "boxes": (1.2, 2.0), "cone": (1.4, 2.0)}


def sample_anomaly(rng: np.random.Generator, lateral: float, station: float, kind: str | None = None) -> Anomaly:
    """A random anomaly at a place."""
    kind = kind or str(rng.choice(KINDS))
    first = palette.anomaly(rng)
    # Marks are of another colour or just a lighter or darker one.
    second = palette.anomaly(rng) if rng.random() < 0.8 else np.clip(first * rng.uniform(0.5, 1.7), 0.02, 0.95)
    patches = tuple(textures.fabric(rng) if rng.random() < 0.72 else textures.leaves(rng) for _ in range(2))
    return Anomaly(
        kind=kind,
        lateral=lateral,
        station=station,
        size=float(rng.uniform(*_SIZES.get(kind, (1.2, 1.8)))),
        yaw=float(rng.uniform(-0.8, 0.8)),
        mirror=int(rng.choice((-1, 1))),
        phase=float(rng.uniform(0, 2 * np.pi)),
        shape=rng.random(8),
        colours=(first, second),
        patches=patches,
    )
