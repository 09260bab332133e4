"""Anomalies: things that no training scene holds, in the colours and textures of known things.

They stand on the ground in true perspective, and go through the same light, air and sensor.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from segunc.toyroads import paint
from segunc.toyroads.camera import Corner, Floats, Outline, Points, ellipse, limb, upright
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
        light, outline = self.at.stage.light, np.asarray(corners) * (self.mirror * self.size, self.size)
        colour = self.colours[which] * light.shade((0.0, 0.3, -0.95)) * factor
        self.at.fill(outline, colour, ANOMALY, paint.rounded(self.patches[which], light.side))

    def blob(self, centre: Corner, radii: Corner, which: int = 0, factor: float = 1.0, tilt: float = 0.0) -> None:
        """Fill a standing ellipse, in the same units as :meth:`part`."""
        self.part(ellipse(centre, radii, tilt), which, factor)


def _animal(it: Figure) -> None:
    """Draw a cow, deer, dog or boar: four legs that walk, trunk, neck, head."""
    leg, trunk, neck = 0.45 + 0.3 * it.shape[0], 0.2 + 0.14 * it.shape[1], 0.15 + 0.4 * it.shape[2]
    body = leg + trunk
    head = (0.72 + 0.25 * (1 - it.shape[2]), body + neck)
    for i, x in enumerate((-0.48, 0.42, -0.4, 0.5)):
        foot = x + 0.16 * np.sin(it.phase + i * np.pi / 2)
        it.part(limb((x, leg + 0.1), (foot, 0.02), 0.17, 0.08), 0, 0.7 if i < 2 else 0.95)
    it.blob((0.0, body), (0.65, trunk))
    it.part(limb((0.45, body + 0.05), head, 0.32, 0.2))
    it.blob((head[0] + 0.1, head[1]), (0.21, 0.115), 1, 1.0, -0.35)


def _boulder(it: Figure) -> None:
    """Draw a rock of angular outline, its upper half in the light."""
    angles = np.linspace(0, np.pi, 8)
    radius = 0.75 * (0.85 + 0.3 * it.shape)
    rim = np.column_stack([radius * np.cos(angles), 0.95 * radius * np.sin(angles)])
    it.part(rim, 0, 0.8)
    it.part(0.6 * rim + (0.0, 0.25), 0, 1.1)


def _sofa(it: Figure) -> None:
    """Draw a sofa without arms: back and seat."""
    s, place = it.size, replace(it.at, yaw=np.pi + 0.7 * it.at.yaw)
    back = np.array([[-0.15, 0.08], [-0.2, 0.95], [-0.45, 0.95], [-0.45, 0.08]]) * s
    seat = np.array([[0.45, 0.08], [0.45, 0.48], [-0.2, 0.45], [-0.2, 0.08]]) * s
    place.solid(back, 1.9 * s, it.colours[0], ANOMALY, it.patches[0])
    place.solid(seat, 1.9 * s, it.colours[1], ANOMALY, it.patches[1])


def _cone(it: Figure) -> None:
    """Draw a striped cone on a foot plate."""
    it.part([(-0.5, 0.0), (0.5, 0.0), (0.46, 0.09), (-0.46, 0.09)], 0, 0.7)
    heights, halves = np.linspace(0.08, 1.13, 6), np.linspace(0.36, 0.05 + 0.12 * it.shape[0], 6)
    for i, (low, high, a, b) in enumerate(zip(heights, heights[1:], halves, halves[1:], strict=False)):
        it.part([(-a, low), (a, low), (b, high), (-b, high)], i % 2)


# How it is drawn; half its width and its height for shadows, both for size 1; the range of sizes.
_KINDS = {
    "animal": (_animal, 0.95, 1.2, (1.2, 1.8)),
    "boulder": (_boulder, 0.75, 0.9, (1.0, 1.6)),
    "sofa": (_sofa, 1.0, 0.9, (1.0, 1.5)),
    "cone": (_cone, 0.55, 0.9, (1.4, 2.0)),
}
KINDS = tuple(_KINDS)  # the shapes that an anomaly may have


def sample_anomaly(
    rng: np.random.Generator, lateral: float, station: float, kind: str | None = None, mirror: int | None = None
) -> Thing:
    """Return a random anomaly at a place; an animal of a video walks."""
    kind = kind or str(rng.choice(KINDS))
    first, second = paint.odd_colour(rng), paint.odd_colour(rng)
    one, other = paint.fabric(rng), paint.fabric(rng)
    sketch, wide, tall, sizes = _KINDS[kind]
    size, yaw, drawn = rng.uniform(*sizes), rng.uniform(-0.8, 0.8), int(rng.choice((-1, 1)))
    phase, shape = rng.uniform(0, 2 * np.pi), rng.random(8)

    def draw(at: Place) -> None:
        gait = phase + 7.0 * at.stage.time
        sketch(Figure(at, size, mirror or drawn, gait, shape, (first, second), (one, other)))

    reach = upright(0.8 * wide * size, (-0.3, 0.3), tall * size, 0.64 * wide * size)
    return Thing(lateral, station, reach, draw, wide * size, yaw)
