"""Street furniture: lamp posts, bollards, and traffic signs on their posts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from segunc.data.toy import palette, textures
from segunc.data.toy.camera import Floats, Points
from segunc.data.toy.canvas import POLE, SIGN, Stage, ellipse, limb, upright

_FACING = (0.0, 0.1, -0.995)
SHAPES = ("round", "triangle", "octagon", "diamond", "plate", "yield")


def _shadow_points(lateral: float, station: float, height: float, half: float) -> Points:
    ground = [(lateral + x, 0.0, station + z) for x in (-half, half) for z in (-half, half)]
    return np.array([*ground, (lateral - half, height, station), (lateral + half, height, station)])


@dataclass(frozen=True)
class Post:
    """A lamp post (``arm`` m over the street, to the side of its sign) or, without an arm, a plain post or bollard."""

    lateral: float
    station: float
    height: float
    width: float
    arm: float
    colour: Points
    patch: Floats

    def footprint(self) -> Points:
        """Street points of foot and top, for shadows."""
        return _shadow_points(self.lateral, self.station, self.height, self.width / 2)

    def draw(self, stage: Stage) -> None:
        colour = self.colour * stage.light.shade(_FACING)
        patch = textures.rounded(self.patch, stage.light.side)
        shaft = limb((0, 0), (0, self.height), self.width, self.width * (0.6 if self.arm else 0.95))
        stage.flat(upright(shaft, self.lateral, self.station), colour, POLE, patch)
        foot = limb((0, 0), (0, min(0.6, 0.3 * self.height)), 1.5 * self.width, 1.4 * self.width)
        stage.flat(upright(foot, self.lateral, self.station), colour * 0.9, POLE, patch)
        if self.arm:
            bend = (0.25 * self.arm, self.height + 0.3)
            for start, end in (((0, self.height - 0.05), bend), (bend, (self.arm, self.height + 0.35))):
                stage.flat(upright(limb(start, end, 0.1, 0.08), self.lateral, self.station), colour, POLE)
            lamp = limb((0.8 * self.arm, self.height + 0.33), (1.15 * self.arm, self.height + 0.33), 0.14, 0.2)
            glow = np.array([1.0, 0.85, 0.55]) if stage.light.weather == "dusk" else colour * 1.2
            stage.flat(upright(lamp, self.lateral, self.station), glow, POLE)


@dataclass(frozen=True)
class Sign:
    """A traffic sign (or two, one under the other) on a post, facing the camera."""

    lateral: float
    station: float
    height: float
    size: float
    shapes: tuple[str, ...]
    faces: tuple[Points, ...]
    rims: tuple[Points, ...]
    marks: tuple[int, ...]
    post: Points

    def footprint(self) -> Points:
        """Street points of foot and top, for shadows."""
        return _shadow_points(self.lateral, self.station, self.height, 0.05)

    def draw(self, stage: Stage) -> None:
        shade = stage.light.shade(_FACING)
        post = limb((0, 0), (0, self.height), 0.09, 0.09)
        stage.flat(upright(post, self.lateral, self.station), self.post * shade, POLE)
        centre = self.height - 0.5 * self.size
        for shape, face, rim, mark in zip(self.shapes, self.faces, self.rims, self.marks, strict=True):
            # Sign faces are retro-reflective: brighter than their paint.
            for scale, colour in ((1.0, rim), (0.78, face)):
                points = _outline(shape, 0.5 * self.size * scale)
                stage.flat(
                    upright([(x, y + centre) for x, y in points], self.lateral, self.station),
                    colour * shade * 1.15,
                    SIGN,
                )
            self._mark(stage, mark, centre, rim * shade if face.mean() > 0.6 else np.full(3, 0.85) * shade)
            centre -= 1.05 * self.size

    def _mark(self, stage: Stage, mark: int, centre: float, colour: Points) -> None:
        s = 0.5 * self.size
        bars = {
            0: [],
            1: [limb((-0.5 * s, centre), (0.5 * s, centre), 0.28 * s, 0.28 * s)],
            2: [limb((0, centre - 0.5 * s), (0, centre + 0.4 * s), 0.24 * s, 0.16 * s)],
            3: [limb((-0.35 * s, centre - 0.35 * s), (0.35 * s, centre + 0.35 * s), 0.2 * s, 0.2 * s)],
            4: [limb((x * s, centre - 0.3 * s), (x * s, centre + 0.3 * s), 0.22 * s, 0.22 * s) for x in (-0.3, 0.3)],
        }[mark]
        for bar in bars:
            stage.flat(upright(bar, self.lateral, self.station), colour, SIGN)


def _outline(shape: str, radius: float) -> list[tuple[float, float]]:
    if shape == "round":
        points = ellipse((0, 0, 0), (radius, radius))
        return [(float(x), float(y)) for x, y, _ in points]
    if shape == "plate":
        return [(-0.8 * radius, -radius), (0.8 * radius, -radius), (0.8 * radius, radius), (-0.8 * radius, radius)]
    corners, start = {"triangle": (3, 90.0), "yield": (3, -90.0), "diamond": (4, 90.0), "octagon": (8, 22.5)}[shape]
    angles = np.deg2rad(start + 360 / corners * np.arange(corners))
    return [(float(1.1 * radius * np.cos(a)), float(1.1 * radius * np.sin(a))) for a in angles]


def sample_post(rng: np.random.Generator, lateral: float, station: float) -> Post:
    """A lamp post whose arm reaches over the street, at times a plain post or a bollard."""
    kind = rng.random()
    colour, patch = palette.metal(rng), textures.speckle(rng, 0.08)
    if kind < 0.7:
        arm = float(rng.uniform(0.8, 2.0)) * (1 if lateral < 0 else -1)
        return Post(lateral, station, float(rng.uniform(5, 8)), float(rng.uniform(0.16, 0.26)), arm, colour, patch)
    if kind < 0.85:
        return Post(lateral, station, float(rng.uniform(3, 7)), float(rng.uniform(0.12, 0.22)), 0.0, colour, patch)
    return Post(lateral, station, float(rng.uniform(0.8, 1.1)), float(rng.uniform(0.13, 0.2)), 0.0, colour, patch)


def sample_sign(rng: np.random.Generator, lateral: float, station: float) -> Sign:
    """A random traffic sign."""
    count = 2 if rng.random() < 0.3 else 1
    faces = tuple(palette.sign(rng) for _ in range(count))
    return Sign(
        lateral=lateral,
        station=station,
        height=float(rng.uniform(2.4, 3.4)),
        size=float(rng.uniform(0.7, 1.05)),
        shapes=tuple(str(rng.choice(SHAPES)) for _ in range(count)),
        faces=faces,
        rims=tuple(palette.sign(rng) if rng.random() < 0.6 else face * 0.9 for face in faces),
        marks=tuple(int(rng.integers(5)) for _ in range(count)),
        post=palette.metal(rng),
    )
