"""The ground: road with its marks, sidewalks with kerbs, verges; and the shadows that fall on it."""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

from segunc.data.toy import palette
from segunc.data.toy.camera import Camera, Floats, Points
from segunc.data.toy.canvas import ROAD, SIDEWALK, VEGETATION, Canvas
from segunc.data.toy.light import Light
from segunc.data.toy.textures import noise_tile


@dataclass(frozen=True)
class Ground:
    """The cross-section of a street; laterals in metres from the camera's path.

    Attributes:
        road: left and right kerb.
        sidewalk: outer edges of the left and right sidewalk.
        lines: (lateral, dashed) of the lane lines; zebra: station of a crossing, or None.
        asphalt, paving, verge, paint: RGB colours.
        wear: of the marks, 0..1; rough: contrast of stains and repairs; slab: metres between slab joints.
        offset: where the noise begins.
    """

    road: tuple[float, float]
    sidewalk: tuple[float, float]
    lines: tuple[tuple[float, bool], ...]
    zebra: float | None
    asphalt: Points
    paving: Points
    verge: Points
    paint: Points
    wear: float
    rough: float
    slab: float
    offset: float

    def draw(self, canvas: Canvas, camera: Camera, light: Light, shadows: Floats) -> None:
        """Draw all of the ground, darkened by ``shadows`` (factors, ``[rows, columns]``)."""
        first, lateral, distance, slope = camera.ground_grid()
        ground = distance < 600
        near = np.minimum(distance, np.float32(600))
        station = near + np.float32(camera.station)
        on_road = (lateral > self.road[0]) & (lateral < self.road[1])
        paved = (lateral > self.sidewalk[0]) & (lateral < self.sidewalk[1])
        label = np.where(on_road, ROAD, np.where(paved, SIDEWALK, VEGETATION)).astype(np.uint8)
        table = np.zeros((256, 3), np.float32)
        table[ROAD], table[SIDEWALK], table[VEGETATION] = self.asphalt, self.paving, self.verge
        colour = table[label]
        grass = label == VEGETATION
        factor = self._grain(lateral, station, slope, grass)
        factor *= self._joints(lateral, station, slope, paved & ~on_road)
        colour = colour * factor[..., None]
        kerb = _stripe(lateral, self.road[0] - 0.09, 0.09, slope) + _stripe(lateral, self.road[1] + 0.09, 0.09, slope)
        colour += (np.float32(0.55) * np.minimum(kerb, 1))[..., None] * (np.float32(0.62) - colour)
        marks = self._marks(lateral, station, slope, factor) * on_road
        colour += marks[..., None] * (self.paint.astype(np.float32) - colour)
        lit = light.shade((0.0, 1.0, 0.0)).astype(np.float32) * np.float32(1 - 0.35 * light.wet)
        colour = colour * lit * shadows[first:, :, None]
        canvas.colours[first:][ground] = colour[ground]
        canvas.labels[first:][ground] = label[ground]
        canvas.depth[first:][ground] = near[ground]

    def _grain(self, lateral: Floats, station: Floats, slope: Floats, grass: npt.NDArray[np.bool_]) -> Floats:
        fine = _noise("medium", lateral + self.offset, station, 22.0)
        broad = _noise("cloud", lateral + self.offset, station, 5.0)
        # Grain finer than a pixel averages out.
        fade = 1 / (1 + (12 * slope) ** 2)
        strength = np.where(grass, np.float32(0.2), np.float32(0.05 + 0.2 * self.rough))
        tyre_tracks = 1 - np.float32(0.06) * np.cos(np.float32(2 * np.pi / 1.7) * lateral)
        grain: Floats = np.clip((1 + strength * fade * fine + np.float32(self.rough) * broad) * tyre_tracks, 0.35, 1.7)
        return grain

    def _joints(self, lateral: Floats, station: Floats, slope: Floats, paved: npt.NDArray[np.bool_]) -> Floats:
        reach = (_phase(station, self.slab) < 0.06) | (_phase(lateral, self.slab) < 0.06)
        return 1 - np.float32(0.2) * (reach & paved) / (1 + (25 * slope) ** 2)

    def _marks(self, lateral: Floats, station: Floats, slope: Floats, factor: Floats) -> Floats:
        marks = np.zeros_like(lateral)
        for place, dashed in self.lines:
            line = _stripe(lateral, place, 0.075, slope)
            if dashed:
                line = line * (_phase(station, 9.0) < 4.5)
            marks = np.maximum(marks, line)
        if self.zebra is not None:
            bars = (_phase(lateral - np.float32(self.road[0]), 1.0) > 0.5) & (np.abs(station - self.zebra) < 1.6)
            marks = np.maximum(marks, bars.astype(np.float32))
        worn: Floats = marks * np.clip(1 - np.float32(self.wear) * (0.6 + 3 * np.abs(factor - 1)), 0, 1)
        return worn


def _stripe(lateral: Floats, place: float, half: float, slope: Floats) -> Floats:
    """How much of each pixel a stripe along the street covers, 0..1; thin far stripes fade as in a real picture."""
    inner = (np.float32(half) - np.abs(lateral - np.float32(place))) / np.maximum(slope, 1e-4) + np.float32(0.5)
    cover: Floats = np.clip(inner, 0, np.minimum(1, 2 * np.float32(half) / np.maximum(slope, 1e-4)))
    return cover


def _phase(values: Floats, period: float) -> Floats:
    """``values`` modulo ``period`` (several times faster than np.mod)."""
    phase: Floats = values - np.float32(period) * np.floor(values * np.float32(1 / period))
    return phase


def _noise(grain: str, lateral: Floats, station: Floats, per_metre: float) -> Floats:
    map_x, map_y = lateral * np.float32(per_metre), station * np.float32(per_metre)
    return np.asarray(
        cv2.remap(noise_tile(grain), map_x, map_y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_WRAP), np.float32
    )


def sample_ground(rng: np.random.Generator) -> Ground:
    """A random street: two to four lanes, ours to the right of the middle, sidewalks on both sides."""
    lane = float(rng.uniform(2.9, 3.6))
    ours, theirs = int(rng.integers(1, 3)), int(rng.integers(1, 3))
    parking = [2.2 if rng.random() < 0.5 else float(rng.uniform(0.2, 0.6)) for _ in range(2)]
    shift = lane * (ours - 1) * int(rng.integers(0, 2))  # which of our lanes the camera drives in
    middle = -lane / 2 - shift + float(rng.normal(0, 0.2))
    edges = (middle - theirs * lane, middle + ours * lane)
    lines: list[tuple[float, bool]] = [(middle, bool(rng.random() < 0.6))]
    lines += [(middle + i * lane, True) for i in range(1, ours)] + [(middle - i * lane, True) for i in range(1, theirs)]
    if rng.random() < 0.6:
        lines += [(edges[0], False), (edges[1], False)]
    road = (edges[0] - parking[0], edges[1] + parking[1])
    return Ground(
        road=road,
        sidewalk=(road[0] - float(rng.uniform(2.2, 5.0)), road[1] + float(rng.uniform(2.2, 5.0))),
        lines=tuple(lines),
        zebra=float(rng.uniform(8, 40)) if rng.random() < 0.25 else None,
        asphalt=palette.asphalt(rng),
        paving=palette.paving(rng),
        verge=palette.foliage(rng),
        paint=np.array([0.85, 0.85, 0.82]) if rng.random() < 0.85 else np.array([0.85, 0.68, 0.25]),
        wear=float(rng.uniform(0.1, 0.9)),
        rough=float(rng.uniform(0.02, 0.14)),
        slab=float(rng.uniform(0.5, 1.4)),
        offset=float(rng.uniform(0, 50)),
    )


def draw_shadows(camera: Camera, light: Light, footprints: list[Points]) -> Floats:
    """Factors by which the ground is darkened, float32 ``[rows, columns]``.

    Args:
        footprints: for each thing its street points; those on the ground make the contact shadow, and all of
            them, moved along the sun's rays to the ground, the outline of the cast one.
    """
    cast = np.full((camera.rows, camera.columns), 1, np.float32)
    contact = cast.copy()
    slide = light.sun[[0, 2]] / max(float(light.sun[1]), 0.25)
    for points in footprints:
        fallen = points.copy()
        fallen[:, 0] -= points[:, 1] * slide[0]
        fallen[:, 2] -= points[:, 1] * slide[1]
        fallen[:, 1] = 0
        _fill_hull(cast, camera.project(fallen), light.shadow)
        foot = points[points[:, 1] < 0.05].copy()
        _fill_hull(contact, camera.project(foot), 0.55)
    sigma = 0.004 * camera.columns
    soft = np.asarray(cv2.GaussianBlur(contact, (0, 0), sigma), np.float32)
    return np.asarray(cv2.GaussianBlur(cast, (0, 0), 0.3 * sigma), np.float32) * soft


def _fill_hull(target: Floats, outline: Points, value: float) -> None:
    reach = 8 * target.shape[1]
    fixed = np.rint(np.clip(outline, -reach, reach) * 8).astype(np.int32)
    cv2.fillConvexPoly(target, cv2.convexHull(fixed), (value,), shift=3)
