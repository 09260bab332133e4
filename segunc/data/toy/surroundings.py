"""What lines a street: houses, trees, hedges, and the far skyline behind everything."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from segunc.data.toy import palette, textures
from segunc.data.toy.camera import Floats, Points
from segunc.data.toy.canvas import BUILDING, VEGETATION, Stage, limb, upright
from segunc.data.toy.solids import Placement, box, draw_solid


@dataclass(frozen=True)
class House:
    """A house beside the street: its front is the plane ``lateral`` from ``start`` to ``end``, ``depth`` m deep."""

    lateral: float
    start: float
    end: float
    height: float
    depth: float
    front: Floats
    side: Floats

    @property
    def station(self) -> float:
        """The far end: what stands beside the front is nearer and drawn later."""
        return self.end

    def footprint(self) -> Points:
        """Street points of foot and eaves, for shadows."""
        back = self.lateral + np.sign(self.lateral) * self.depth
        return np.array(
            [(x, y, z) for x in (self.lateral, back) for y in (0.0, self.height) for z in (self.start, self.end)]
        )

    def draw(self, stage: Stage) -> None:
        camera, sign = stage.camera, float(np.sign(self.lateral))
        near = camera.station + 1.2
        if self.end <= near:
            return
        back = self.lateral + sign * self.depth
        if self.start > near:
            corners = np.array(
                [
                    (self.lateral, self.height, self.start),
                    (back, self.height, self.start),
                    (back, 0, self.start),
                    (self.lateral, 0, self.start),
                ]
            )
            self._warp(stage, corners, self.side, (0.0, 0.0, -1.0))
        start = max(self.start, near)
        cut = int((start - self.start) / (self.end - self.start) * self.front.shape[1])
        front = self.front[:, cut:]
        if front.shape[1] < 2:
            return
        corners = np.array(
            [
                (self.lateral, self.height, start),
                (self.lateral, self.height, self.end),
                (self.lateral, 0, self.end),
                (self.lateral, 0, start),
            ]
        )
        self._warp(stage, corners, front, (-sign, 0.0, 0.0))

    def _warp(self, stage: Stage, corners: Points, texture: Floats, normal: tuple[float, float, float]) -> None:
        depth = np.maximum(corners[:, 2] - stage.camera.station, 0.5)
        stage.canvas.warp(stage.camera.project(corners), depth, texture, stage.light.shade(normal), BUILDING)


def sample_house(rng: np.random.Generator, lateral: float, start: float, length: float, lit: float) -> House:
    """A random house whose front begins at ``start`` and is ``length`` m long."""
    storeys = int(rng.integers(2, 7))
    storey = float(rng.uniform(2.9, 3.6))
    wall = palette.facade(rng)
    bays = max(1, round(length / float(rng.uniform(2.2, 3.6))))
    depth = float(rng.uniform(9, 14))
    front = textures.house_front(rng, wall, storeys=storeys, bays=bays, lit=lit, shops=bool(rng.random() < 0.5))
    # Gable ends often have no windows.
    if rng.random() < 0.5:
        side = textures.house_front(rng, wall, storeys=storeys, bays=max(1, round(depth / 3)), lit=lit, shops=False)
    else:
        side = (textures.speckle(rng, 0.07, "cloud")[..., None] * wall).astype(np.float32)
    return House(lateral, start, start + length, storeys * storey, depth, front, side)


@dataclass(frozen=True)
class Tree:
    """A tree: a trunk and clumps of leaves (right, up, radius, brightness), or a conifer's layers, or a bush."""

    lateral: float
    station: float
    trunk: float
    clumps: tuple[tuple[Points, float], ...]
    leaf: Points
    bark: Points
    patch: Floats
    crown: float

    def footprint(self) -> Points:
        """Street points of the crown's middle and of the foot, for shadows."""
        half, low = 0.8 * self.crown, self.trunk
        foot = [(self.lateral + x, 0.0, self.station + z) for x in (-0.2, 0.2) for z in (-0.2, 0.2)]
        top = [
            (self.lateral + half * np.cos(a), low + self.crown, self.station + half * np.sin(a))
            for a in np.linspace(0, 6.28, 8, endpoint=False)
        ]
        return np.array(foot + top)

    def draw(self, stage: Stage) -> None:
        light = stage.light
        shade = light.shade((0.0, 0.45, -0.89))
        if self.trunk > 0.3:
            wide = 0.07 * self.trunk + 0.12
            trunk = limb((0, 0), (0, self.trunk + 0.8 * self.crown), wide, 0.5 * wide)
            stage.flat(upright(trunk, self.lateral, self.station), self.bark * shade, VEGETATION, self.patch)
        patch = textures.rounded(self.patch, light.side, 0.4)
        for outline, bright in self.clumps:
            corners = np.column_stack(
                [outline[:, 0] + self.lateral, outline[:, 1], np.full(len(outline), self.station)]
            )
            stage.flat(corners, self.leaf * shade * bright, VEGETATION, patch)


def _clump(rng: np.random.Generator, centre: tuple[float, float], radii: tuple[float, float]) -> Points:
    """A ragged outline ``[22, 2]`` around a centre."""
    angles = np.linspace(0, 2 * np.pi, 22, endpoint=False)
    ragged = 1 + rng.uniform(-0.16, 0.16, 22)
    return np.column_stack(
        [centre[0] + radii[0] * ragged * np.cos(angles), np.maximum(0, centre[1] + radii[1] * ragged * np.sin(angles))]
    )


def sample_tree(rng: np.random.Generator, lateral: float, station: float, bush: bool = False) -> Tree:
    """A random broad-leaved tree or conifer, or a bush."""
    clumps: list[tuple[Points, float]] = []
    if bush:
        trunk, crown = 0.0, float(rng.uniform(0.5, 1.3))
        for _ in range(int(rng.integers(2, 5))):
            centre = (float(rng.normal(0, 0.7 * crown)), float(rng.uniform(0.3, 0.8)) * crown)
            clumps.append((_clump(rng, centre, (crown, 0.8 * crown)), float(rng.uniform(0.7, 1.15))))
    elif rng.random() < 0.18:
        trunk, crown = float(rng.uniform(0.5, 1.2)), float(rng.uniform(1.2, 2.0))
        height = float(rng.uniform(6, 11))
        for low in np.linspace(trunk, 0.75 * height, 5):
            wide = crown * (1.1 - low / height)
            layer = [(-wide, low), (wide, low), (0.15 * wide, low + 0.3 * height), (-0.15 * wide, low + 0.3 * height)]
            clumps.append((np.array(layer) + rng.normal(0, 0.08, (4, 2)), float(rng.uniform(0.75, 1.05))))
    else:
        trunk, crown = float(rng.uniform(1.8, 3.4)), float(rng.uniform(1.5, 3.1))
        for _ in range(int(rng.integers(4, 8))):
            centre = (float(rng.normal(0, 0.5 * crown)), trunk + crown * float(rng.uniform(0.5, 1.5)))
            radius = crown * float(rng.uniform(0.5, 0.85))
            clumps.append((_clump(rng, centre, (radius, 0.9 * radius)), float(rng.uniform(0.7, 1.2))))
    return Tree(
        lateral, station, trunk, tuple(clumps), palette.foliage(rng), palette.bark(rng), textures.leaves(rng), crown
    )


@dataclass(frozen=True)
class Hedge:
    """A clipped hedge or overgrown fence along the street from ``start`` to ``end``."""

    lateral: float
    start: float
    end: float
    height: float
    leaf: Points
    patch: Floats

    @property
    def station(self) -> float:
        return self.end

    def footprint(self) -> Points:
        """Street points of foot and top, for shadows."""
        return np.array(
            [(self.lateral + x, y, z) for x in (-0.4, 0.4) for y in (0.0, self.height) for z in (self.start, self.end)]
        )

    def draw(self, stage: Stage) -> None:
        length = self.end - self.start
        place = Placement(self.lateral, (self.start + self.end) / 2)
        draw_solid(box(0.8, self.height, length), place, stage, self.leaf, VEGETATION, self.patch)


def sample_hedge(rng: np.random.Generator, lateral: float, start: float, length: float) -> Hedge:
    """A random hedge."""
    height = float(rng.uniform(0.8, 2.2))
    return Hedge(lateral, start, start + length, height, palette.foliage(rng), textures.leaves(rng))


@dataclass(frozen=True)
class Skyline:
    """Far houses and woods across the whole picture; it moves with the camera, ``distance`` m away."""

    distance: float
    blocks: tuple[tuple[Points, Points, int, Floats], ...]

    def draw(self, stage: Stage) -> None:
        far = stage.camera.station + self.distance
        for outline, colour, label, patch in self.blocks:
            corners = np.column_stack([outline, np.full(len(outline), far)])
            # The bend of the street must not carry the skyline away.
            corners[:, 0] -= stage.camera.curvature / 2 * self.distance**2
            stage.flat(corners, colour * stage.light.shade((0.0, 0.2, -0.98)), label, patch)


def sample_skyline(rng: np.random.Generator, woods: float) -> Skyline:
    """A random skyline; ``woods`` is the share of trees in it (0..1)."""
    distance = float(rng.uniform(160, 240))
    blocks: list[tuple[Points, Points, int, Floats]] = []
    left = -distance
    ridge = np.linspace(-distance, distance, 80)
    tops = 5 + 3 * woods + 1.5 * textures.crop(rng, "coarse", 1, 80)[0] + 3 * textures.crop(rng, "cloud", 1, 80)[0]
    wood = np.vstack([np.column_stack([ridge, np.maximum(tops, 2)]), [[distance, -1.5], [-distance, -1.5]]])
    blocks.append((wood, palette.foliage(rng), VEGETATION, textures.leaves(rng)))
    while left < distance:
        width = float(rng.uniform(10, 35))
        if rng.random() > woods:
            height = float(rng.uniform(7, 26))
            outline = np.array([(left, -1.5), (left, height), (left + width, height), (left + width, -1.5)])
            front = textures.fabric(rng)
            blocks.append((outline, palette.facade(rng), BUILDING, front))
        left += width * float(rng.uniform(0.8, 1.6))
    return Skyline(distance, tuple(blocks))
