"""What a street lies in: ground, buildings, trees, sky."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import cv2
import numpy as np
import numpy.typing as npt

from segunc.toyroads import paint
from segunc.toyroads.camera import Camera, Corner, Floats, Points, block, boxed, limb
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
    """A random street: two to four lanes, ours to the right of the middle, sidewalks on both sides."""
    lane = rng.uniform(2.9, 3.6)
    ours, theirs = int(rng.integers(1, 3)), int(rng.integers(1, 3))
    parking = [2.2 if rng.random() < 0.5 else rng.uniform(0.2, 0.6) for _ in range(2)]
    shift = lane * (ours - 1) * int(rng.integers(0, 2))  # which of our lanes the camera drives in
    middle = -lane / 2 - shift + rng.normal(0, 0.2)
    edges = (middle - theirs * lane, middle + ours * lane)
    dashed = {middle: rng.random() < 0.6}
    lines = [middle, *(middle + i * lane for i in range(1, ours)), *(middle - i * lane for i in range(1, theirs))]
    if rng.random() < 0.6:
        lines += edges
        dashed |= dict.fromkeys(edges, False)
    road = (edges[0] - parking[0], edges[1] + parking[1])
    sidewalk = (road[0] - rng.uniform(2.2, 5.0), road[1] + rng.uniform(2.2, 5.0))
    zebra = rng.uniform(8, 40) if rng.random() < 0.25 else None
    tones = [paint.colour(rng, thing) for thing in ("asphalt", "paving", "foliage")]
    white = np.array([0.85, 0.85, 0.82] if rng.random() < 0.85 else [0.85, 0.68, 0.25], np.float32)
    wear, rough = np.float32(rng.uniform(0.1, 0.9)), rng.uniform(0.02, 0.14)  # of the marks; of stains and repairs
    slab, offset = rng.uniform(0.5, 1.4), rng.uniform(0, 50)  # metres between joints; where the noise begins

    def draw(stage: Stage, shadows: Floats) -> None:
        first, lateral, distance, slope = stage.camera.ground_grid()
        ground = distance < 600
        near = np.minimum(distance, np.float32(600))
        station = near + np.float32(stage.camera.station)
        on_road = (lateral > road[0]) & (lateral < road[1])
        paved = (lateral > sidewalk[0]) & (lateral < sidewalk[1])
        label = np.where(on_road, ROAD, np.where(paved, SIDEWALK, VEGETATION)).astype(np.uint8)
        table = np.zeros((256, 3), np.float32)
        table[[ROAD, SIDEWALK, VEGETATION]] = tones
        factor = grain(lateral, station, slope, label)
        colour = table[label] * factor[..., None]
        kerb = _stripe(lateral, road[0] - 0.09, 0.09, slope) + _stripe(lateral, road[1] + 0.09, 0.09, slope)
        colour += (np.float32(0.55) * np.minimum(kerb, 1))[..., None] * (np.float32(0.62) - colour)
        worn = np.clip(1 - wear * (0.6 + 3 * np.abs(factor - 1)), 0, 1)
        marked = np.asarray(marks(lateral, station, slope) * worn, np.float32) * on_road
        colour += marked[..., None] * (white - colour)
        light = stage.light
        lit = light.shade((0.0, 1.0, 0.0)).astype(np.float32) * np.float32(1 - 0.35 * light.wet)
        colour = colour * lit * shadows[first:, :, None]
        canvas = stage.canvas
        for layer, drawn in ((canvas.colours, colour), (canvas.labels, label), (canvas.depth, near)):
            layer[first:][ground] = drawn[ground]

    def grain(lateral: Floats, station: Floats, slope: Floats, label: npt.NDArray[np.uint8]) -> Floats:
        """Factors of stains, grass, tyre tracks, and joints between slabs."""
        fine, broad = (_noise(kind, lateral + offset, station, at) for kind, at in (("medium", 22.0), ("cloud", 5.0)))
        # Grain finer than a pixel averages out.
        fade = 1 / (1 + (12 * slope) ** 2)
        strength = np.where(label == VEGETATION, np.float32(0.2), np.float32(0.05 + 0.2 * rough))
        tyre_tracks = 1 - np.float32(0.06) * np.cos(np.float32(2 * np.pi / 1.7) * lateral)
        stains = (1 + strength * fade * fine + np.float32(rough) * broad) * tyre_tracks
        joints = ((_phase(station, slab) < 0.06) | (_phase(lateral, slab) < 0.06)) & (label == SIDEWALK)
        worn = np.clip(stains, 0.35, 1.7) * (1 - np.float32(0.2) * joints / (1 + (25 * slope) ** 2))
        return np.asarray(worn, np.float32)

    def marks(lateral: Floats, station: Floats, slope: Floats) -> Floats:
        """The share of each pixel that lines and the crossing cover."""
        covered = np.zeros_like(lateral)
        for place in lines:
            line = _stripe(lateral, place, 0.075, slope)
            covered = np.maximum(covered, line * (_phase(station, 9.0) < 4.5) if dashed.get(place, True) else line)
        if zebra is not None:
            bars = (_phase(lateral - np.float32(road[0]), 1.0) > 0.5) & (np.abs(station - zebra) < 1.6)
            covered = np.maximum(covered, bars.astype(np.float32))
        return covered

    return Ground(road, sidewalk, lines, draw)


def _stripe(lateral: Floats, place: float, half: float, slope: Floats) -> Floats:
    """How much of each pixel a stripe along the street covers, 0..1; thin far stripes fade as in a real picture."""
    pixel = np.maximum(slope, 1e-4)
    inner = (np.float32(half) - np.abs(lateral - np.float32(place))) / pixel + np.float32(0.5)
    return np.asarray(np.clip(inner, 0, np.minimum(1, 2 * np.float32(half) / pixel)), np.float32)


def _phase(values: Floats, period: float) -> Floats:
    """``values`` modulo ``period`` (several times faster than np.mod)."""
    return np.asarray(values - np.float32(period) * np.floor(values * np.float32(1 / period)), np.float32)


def _noise(grain: str, lateral: Floats, station: Floats, per_metre: float) -> Floats:
    map_x, map_y = lateral * np.float32(per_metre), station * np.float32(per_metre)
    found = cv2.remap(paint.noise_tile(grain), map_x, map_y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_WRAP)
    return np.asarray(found, np.float32)


def draw_shadows(camera: Camera, light: Light, footprints: list[Points]) -> Floats:
    """Factors by which the ground is darkened, float32 ``[rows, columns]``.

    Of the street points of each thing, those on the ground make the contact shadow, and all of them, moved along the
    sun's rays to the ground, the outline of the cast one.
    """
    cast = np.full((camera.rows, camera.columns), 1, np.float32)
    contact = cast.copy()
    slide = light.sun[[0, 2]] / max(float(light.sun[1]), 0.25)
    for points in footprints:
        fallen = points * (1, 0, 1)
        fallen[:, [0, 2]] -= points[:, 1:2] * slide
        _fill_hull(cast, camera.project(fallen), light.shadow)
        _fill_hull(contact, camera.project(points[points[:, 1] < 0.05]), 0.55)
    sigma = 0.004 * camera.columns
    return np.asarray(
        cv2.GaussianBlur(cast, (0, 0), 0.3 * sigma) * cv2.GaussianBlur(contact, (0, 0), sigma), np.float32
    )


def _fill_hull(target: Floats, outline: Points, value: float) -> None:
    reach = 8 * target.shape[1]
    fixed = np.rint(np.clip(outline, -reach, reach) * 8).astype(np.int32)
    cv2.fillConvexPoly(target, cv2.convexHull(fixed), (value,), shift=3)


def sample_house(rng: np.random.Generator, lateral: float, start: float, length: float, lit: float) -> Thing:
    """A random house whose front begins at ``start`` and is ``length`` m long.

    What stands beside the front is nearer than its far end, the house's station, and so drawn later.
    """
    storeys, storey = int(rng.integers(2, 7)), rng.uniform(2.9, 3.6)
    wall = paint.colour(rng, "facade")
    bays = max(1, round(length / rng.uniform(2.2, 3.6)))
    depth = rng.uniform(9, 14)
    front = paint.house_front(rng, wall, storeys=storeys, bays=bays, lit=lit, shops=rng.random() < 0.5)
    # Gable ends often have no windows.
    if rng.random() < 0.5:
        gable = paint.house_front(rng, wall, storeys=storeys, bays=max(1, round(depth / 3)), lit=lit, shops=False)
    else:
        gable = (paint.speckle(rng, 0.07, "cloud")[..., None] * wall).astype(np.float32)
    end, height, side = start + length, storeys * storey, float(np.sign(lateral))

    def draw(at: Place) -> None:
        def face(texture: Floats, left: Corner, right: Corner, normal: tuple[float, float, float]) -> None:
            """Warp a texture over the wall between two places (lateral, station)."""
            ends = ((left, height), (right, height), (right, 0.0), (left, 0.0))
            corners = np.array([(x, y, z) for (x, z), y in ends])
            distances = np.maximum(corners[:, 2] - camera.station, 0.5)
            light = at.stage.light.shade(normal)
            at.stage.canvas.warp(camera.project(corners), distances, texture, light, BUILDING)

        camera = at.stage.camera
        near = camera.station + 1.2
        if end <= near:
            return
        if start > near:
            face(gable, (lateral, start), (lateral + side * depth, start), (0.0, 0.0, -1.0))
        shown = max(start, near)
        cut = front[:, int((shown - start) / (end - start) * front.shape[1]) :]
        if cut.shape[1] >= 2:
            face(cut, (lateral, shown), (lateral, end), (-side, 0.0, 0.0))

    return Thing(lateral, end, BUILDING, boxed((0.0, side * depth), height, (-length, 0.0)), draw)


def _clump(rng: np.random.Generator, centre: Corner, radii: Corner) -> Points:
    """A ragged outline ``[22, 2]`` around a centre."""
    angles = np.linspace(0, 2 * np.pi, 22, endpoint=False)
    ragged = 1 + rng.uniform(-0.16, 0.16, 22)
    up = centre[1] + radii[1] * ragged * np.sin(angles)
    return np.column_stack([centre[0] + radii[0] * ragged * np.cos(angles), np.maximum(0, up)])


def sample_tree(rng: np.random.Generator, lateral: float, station: float, bush: bool = False) -> Thing:
    """A random broad-leaved tree of clumps of leaves, a conifer of layers, or a bush."""
    clumps: list[tuple[Points, float]] = []  # outline and brightness
    if bush:
        trunk, crown = 0.0, rng.uniform(0.5, 1.3)
        for _ in range(int(rng.integers(2, 5))):
            centre = (rng.normal(0, 0.7 * crown), rng.uniform(0.3, 0.8) * crown)
            clumps.append((_clump(rng, centre, (crown, 0.8 * crown)), rng.uniform(0.7, 1.15)))
    elif rng.random() < 0.18:
        trunk, crown, height = rng.uniform(0.5, 1.2), rng.uniform(1.2, 2.0), rng.uniform(6, 11)
        for low in np.linspace(trunk, 0.75 * height, 5):
            wide = crown * (1.1 - low / height)
            layer = [(-wide, low), (wide, low), (0.15 * wide, low + 0.3 * height), (-0.15 * wide, low + 0.3 * height)]
            clumps.append((np.array(layer) + rng.normal(0, 0.08, (4, 2)), rng.uniform(0.75, 1.05)))
    else:
        trunk, crown = rng.uniform(1.8, 3.4), rng.uniform(1.5, 3.1)
        for _ in range(int(rng.integers(4, 8))):
            centre = (rng.normal(0, 0.5 * crown), trunk + crown * rng.uniform(0.5, 1.5))
            radius = crown * rng.uniform(0.5, 0.85)
            clumps.append((_clump(rng, centre, (radius, 0.9 * radius)), rng.uniform(0.7, 1.2)))
    leaf, bark, patch = paint.colour(rng, "foliage"), paint.colour(rng, "bark"), paint.leaves(rng)

    def draw(at: Place) -> None:
        light = at.stage.light
        shade, leaves = light.shade((0.0, 0.45, -0.89)), paint.rounded(patch, light.side, 0.4)
        if trunk > 0.3:
            wide = 0.07 * trunk + 0.12
            at.fill(limb((0, 0), (0, trunk + 0.8 * crown), wide, 0.5 * wide), bark * shade, VEGETATION, patch)
        for outline, bright in clumps:
            at.fill(outline, leaf * shade * bright, VEGETATION, leaves)

    foot = [(x, 0.0, z) for x in (-0.2, 0.2) for z in (-0.2, 0.2)]
    ring = 0.8 * crown * np.exp(1j * np.linspace(0, 6.28, 8, endpoint=False))
    reach = np.array([*foot, *((a.real, trunk + crown, a.imag) for a in ring)])
    return Thing(lateral, station, VEGETATION, reach, draw)


def sample_hedge(rng: np.random.Generator, lateral: float, start: float, length: float) -> Thing:
    """A random clipped hedge or overgrown fence along the street, ``length`` m from ``start``."""
    height, leaf, patch = rng.uniform(0.8, 2.2), paint.colour(rng, "foliage"), paint.leaves(rng)
    end = start + length

    def draw(at: Place) -> None:
        middle = replace(at, station=(start + end) / 2)
        middle.solid(block(end - start, height), 0.8, leaf, VEGETATION, patch)

    return Thing(lateral, end, VEGETATION, boxed((-0.4, 0.4), height, (-length, 0.0)), draw)


def sample_skyline(rng: np.random.Generator, woods: float) -> Callable[[Stage], None]:
    """What draws a random skyline: far houses and woods across the whole picture, which move with the camera.

    ``woods`` is the share of trees in it (0..1).
    """
    distance = rng.uniform(160, 240)
    ridge = np.linspace(-distance, distance, 80)
    tops = 5 + 3 * woods + 1.5 * paint.crop(rng, "coarse", 1, 80)[0] + 3 * paint.crop(rng, "cloud", 1, 80)[0]
    wood = np.vstack([np.column_stack([ridge, np.maximum(tops, 2)]), [[distance, -1.5], [-distance, -1.5]]])
    blocks = [(wood, paint.colour(rng, "foliage"), VEGETATION, paint.leaves(rng))]
    left = -distance
    while left < distance:
        width = rng.uniform(10, 35)
        if rng.random() > woods:
            height = rng.uniform(7, 26)
            outline = np.array([(left, -1.5), (left, height), (left + width, height), (left + width, -1.5)])
            front = paint.fabric(rng)
            blocks.append((outline, paint.colour(rng, "facade"), BUILDING, front))
        left += width * rng.uniform(0.8, 1.6)

    def draw(stage: Stage) -> None:
        # The bend of the street must not carry the skyline away.
        bend = stage.camera.curvature / 2 * distance**2
        at = Place(stage, -bend, stage.camera.station + distance)
        for outline, colour, label, patch in blocks:
            at.fill(outline, colour * stage.light.shade((0.0, 0.2, -0.98)), label, patch)

    return draw
