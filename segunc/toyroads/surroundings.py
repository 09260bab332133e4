"""What a street lies in: ground, buildings, trees, sky."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import cv2
import numpy as np

from segunc.toyroads import paint
from segunc.toyroads.camera import Camera, Corner, Floats, Points, block, boxed, ellipse, limb, upright
from segunc.toyroads.canvas import BUILDING, ROAD, SIDEWALK, VEGETATION, Place, Stage, Thing
from segunc.toyroads.light import Light


@dataclass(frozen=True)
class Ground:
    """The cross-section of a street; laterals in metres from the camera's path."""

    road: Corner  # left and right kerb
    sidewalk: Corner  # the outer edges of both
    lines: list[float]  # of the lanes, the middle first
    draw: Callable[[Stage, Floats], None]  # all of it, darkened by shadows (factors, [rows, columns])


def sample_ground(rng: np.random.Generator) -> Ground:
    """Return a random street: two to four lanes, ours to the right of the middle, sidewalks on both sides."""
    lane = rng.uniform(2.9, 3.6)
    ours, theirs = int(rng.integers(1, 3)), int(rng.integers(1, 3))
    parking = [2.2 if rng.random() < 0.5 else rng.uniform(0.2, 0.6) for _ in range(2)]
    middle = -lane / 2 + rng.normal(0, 0.2)
    edges = (middle - theirs * lane, middle + ours * lane)
    lines = [
        middle,
        *(middle + i * lane for i in range(1, ours)),
        *(middle - i * lane for i in range(1, theirs)),
        *edges,
    ]
    road = (edges[0] - parking[0], edges[1] + parking[1])
    sidewalk = (road[0] - rng.uniform(2.2, 5.0), road[1] + rng.uniform(2.2, 5.0))
    asphalt, paving, grass = [paint.colour(rng, thing) for thing in ("asphalt", "paving", "foliage")]
    white = np.float32(rng.uniform(0.5, 0.9))
    rough = np.float32(rng.uniform(0.05, 0.12))  # of asphalt and slabs

    def draw(stage: Stage, shadows: Floats) -> None:
        first, lateral, distance, slope = stage.camera.ground_grid()
        ground = distance < 600
        near = np.minimum(distance, np.float32(600))
        station = near + np.float32(stage.camera.station)
        on_road = (lateral > road[0]) & (lateral < road[1])
        paved = (lateral > sidewalk[0]) & (lateral < sidewalk[1])
        label = np.where(on_road, ROAD, np.where(paved, SIDEWALK, VEGETATION)).astype(np.uint8)
        tones = np.where(on_road[..., None], asphalt, np.where(paved[..., None], paving, grass)).astype(np.float32)
        # Grain finer than a pixel averages out.
        strength = np.where(label == VEGETATION, np.float32(0.2), rough) / (1 + (12 * slope) ** 2)
        scaled = lateral * np.float32(22), station * np.float32(22)
        noise = cv2.remap(paint.noise_tile("medium"), *scaled, cv2.INTER_LINEAR, borderMode=cv2.BORDER_WRAP)
        colour = tones * np.clip(1 + strength * noise, 0.35, 1.7)[..., None]
        for place in lines:
            line = _stripe(lateral, place, 0.075, slope)
            line = line if place in edges else line * (station % 9 < 4.5)
            colour += line[..., None] * (white - colour)
        light = stage.light
        lit = light.shade((0.0, 1.0, 0.0)).astype(np.float32) * np.float32(1 - 0.35 * light.wet)
        colour = colour * lit * shadows[first:, :, None]
        canvas = stage.canvas
        for layer, drawn in ((canvas.colours, colour), (canvas.labels, label), (canvas.depth, near)):
            layer[first:][ground] = drawn[ground]

    return Ground(road, sidewalk, lines, draw)


def _stripe(lateral: Floats, place: float, half: float, slope: Floats) -> Floats:
    """Return how much of each pixel a stripe along the street covers, 0..1; thin far stripes fade as in a real picture."""
    pixel = np.maximum(slope, 1e-4)
    inner = (np.float32(half) - np.abs(lateral - np.float32(place))) / pixel + np.float32(0.5)
    return np.asarray(np.clip(inner, 0, np.minimum(1, 2 * np.float32(half) / pixel)), np.float32)


def draw_shadows(camera: Camera, light: Light, footprints: list[Points]) -> Floats:
    """Return factors by which the ground is darkened, float32 ``[rows, columns]``.

    Of the street points of each thing, those on the ground make the contact shadow, and all of them, moved along the
    sun's rays to the ground, the outline of the cast one.
    """
    factors = np.full((camera.rows, camera.columns), 1, np.float32)
    slide = light.sun / max(float(light.sun[1]), 0.25)
    reach = 8 * camera.columns
    for points in footprints:
        fallen = (points - points[:, 1:2] * slide) * (1, 0, 1)
        for outline, value in ((fallen, light.shadow), (points[points[:, 1] < 0.05], 0.55)):
            shown = np.rint(np.clip(camera.project(outline), -reach, reach)).astype(np.int32)
            cv2.fillConvexPoly(factors, cv2.convexHull(shown), (value,))
    return np.asarray(cv2.GaussianBlur(factors, (0, 0), 0.003 * camera.columns), np.float32)


def sample_house(rng: np.random.Generator, lateral: float, start: float, length: float, lit: float) -> Thing:
    """Return a random house whose front begins at ``start`` and is ``length`` m long.

    What stands beside the front is nearer than its far end, the house's station, and so drawn later.
    """
    storeys, storey = int(rng.integers(2, 7)), rng.uniform(2.9, 3.6)
    wall = paint.colour(rng, "facade")
    bays = max(1, round(length / rng.uniform(2.2, 3.6)))
    depth = rng.uniform(9, 14)
    front = paint.house_front(rng, wall, storeys=storeys, bays=bays, lit=lit, shops=rng.random() < 0.5)
    end, height, side = start + length, storeys * storey, float(np.sign(lateral))

    def draw(at: Place) -> None:
        camera = at.stage.camera
        shown = max(start, camera.station + 1.2)
        cut = front[:, int((shown - start) / length * front.shape[1]) :]
        if end <= shown or cut.shape[1] < 2:
            return
        whole = replace(at, lateral=lateral + side * depth / 2, station=start + length / 2)
        whole.solid(block(length, height), depth, wall, BUILDING, np.ones((2, 2), np.float32))
        corners = np.array([(lateral, y, z) for y, z in ((height, shown), (height, end), (0, end), (0, shown))])
        shade = at.stage.light.shade((-side, 0.0, 0.0))
        at.stage.canvas.warp(camera.project(corners), corners[:, 2] - camera.station, cut, shade, BUILDING)

    return Thing(lateral, end, boxed((0.0, side * depth), height, (-length, 0.0)), draw)


def sample_tree(rng: np.random.Generator, lateral: float, station: float, bush: bool = False) -> Thing:
    """Return a random tree of clumps of leaves, or a bush: a low crown without a trunk."""
    trunk, crown = (0.0, rng.uniform(0.5, 1.3)) if bush else (rng.uniform(1.8, 3.4), rng.uniform(1.5, 3.1))
    clumps: list[tuple[Points, float]] = []  # outline and brightness
    for _ in range(int(rng.integers(4, 8))):
        centre = np.array((rng.normal(0, 0.5 * crown), trunk + crown * rng.uniform(0.5, 1.5)))
        ragged = crown * rng.uniform(0.5, 0.85) * (1 + rng.uniform(-0.16, 0.16, (16, 1)))
        outline = centre + ragged * ellipse((0.0, 0.0), (1.0, 0.9))
        clumps.append((np.maximum(outline, (-np.inf, 0.0)), rng.uniform(0.7, 1.2)))
    leaf, bark, patch = paint.colour(rng, "foliage"), paint.colour(rng, "bark"), paint.leaves(rng)

    def draw(at: Place) -> None:
        light = at.stage.light
        shade, leaves = light.shade((0.0, 0.45, -0.89)), paint.rounded(patch, light.side, 0.4)
        at.fill(limb((0, 0), (0, trunk + 0.8 * crown), 0.3, 0.15), bark * shade, VEGETATION, patch)
        for outline, bright in clumps:
            at.fill(outline, leaf * shade * bright, VEGETATION, leaves)

    reach = upright(0.2, (-0.2, 0.2), trunk + crown, 0.8 * crown)
    return Thing(lateral, station, reach, draw)


def sample_hedge(rng: np.random.Generator, lateral: float, start: float, length: float) -> Thing:
    """Return a random clipped hedge along the street, ``length`` m from ``start``."""
    height, leaf, patch = rng.uniform(0.8, 2.2), paint.colour(rng, "foliage"), paint.leaves(rng)

    def draw(at: Place) -> None:
        replace(at, station=start + length / 2).solid(block(length, height), 0.8, leaf, VEGETATION, patch)

    return Thing(lateral, start + length, boxed((-0.4, 0.4), height, (-length, 0.0)), draw)


def sample_skyline(rng: np.random.Generator, woods: float) -> Callable[[Stage], None]:
    """Return what draws a random skyline: far houses and woods across the whole picture, which move with the camera.

    ``woods`` is the share of trees in it (0..1).
    """
    distance = rng.uniform(160, 240)
    blocks, left = [], -distance
    while left < distance:
        width, wood = rng.uniform(10, 35), rng.random() < woods
        height = rng.uniform(4, 12) if wood else rng.uniform(7, 26)
        outline = np.array([(left, -1.5), (left, height), (left + width, height), (left + width, -1.5)])
        kind, label = ("foliage", VEGETATION) if wood else ("facade", BUILDING)
        blocks.append((outline, paint.colour(rng, kind), label, paint.fabric(rng)))
        left += width

    def draw(stage: Stage) -> None:
        # The bend of the street must not carry the skyline away.
        bend = stage.camera.curvature / 2 * distance**2
        at = Place(stage, -bend, stage.camera.station + distance)
        for outline, colour, label, patch in blocks:
            at.fill(outline, colour * stage.light.shade((0.0, 0.2, -0.98)), label, patch)

    return draw
