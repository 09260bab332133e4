"""The canvas of the toy scenes: a pinhole camera over a gently bending street, colours, textures
and light.

Street coordinates are in metres: lateral (right of the camera's path), up, station (along the
street). The bend moves a point sideways by ``curvature / 2 * distance^2``. A texture is a float32
patch ``[h, w]`` or ``[h, w, 3]`` of factors around 1 that multiplies a colour.
"""

from __future__ import annotations

import colorsys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from math import cos, sin, tan
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

Points = npt.NDArray[np.float64]
Floats = npt.NDArray[np.float32]
Random = np.random.Generator
Corner = tuple[float, float]
Outline = list[Corner] | Points
Window = tuple[slice, slice]
Mask = npt.NDArray[np.bool_]


class Id:
    """Raw label ids of the label map ``toy``, as in Cityscapes; anomalies are 'dynamic', which
    training ignores.
    """

    ROAD = 7
    SIDEWALK = 8
    BUILDING = 11
    POLE = 17
    SIGN = 20
    VEGETATION = 21
    SKY = 23
    PERSON = 24
    CAR = 26
    ANOMALY = 5
    # Ties of the majority vote go to the first: thin things first, or they would fade with
    # distance.
    VOTE_ORDER = (ANOMALY, SIGN, POLE, PERSON, CAR, SIDEWALK, VEGETATION, BUILDING, ROAD, SKY)


NEAR = 1.0  # metres in front of the camera; what is nearer is not drawn
# Numbers of the two sides of a solid.
LEFT = -2
RIGHT = -1
_SHIFT = 3  # polygons are drawn with 1/8 pixel: 3 binary digits
_REPEAT = cv2.BORDER_REPLICATE
_ANGLES = np.linspace(0, 2 * np.pi, 16, endpoint=False)

Hsv = tuple[float, float, float]


@dataclass(frozen=True)
class Tone:
    """A colour of which random shades are drawn."""

    hsv: Hsv  # hue, saturation, value, 0..1
    spread: Hsv  # of each, to both sides


# Of each thing, its equally frequent tones.
_TONES = {
    "car": (
        Tone(hsv=(0.6, 0.05, 0.55), spread=(0.1, 0.05, 0.15)),  # mostly grey, black and white
        Tone(hsv=(0.6, 0.1, 0.12), spread=(0.1, 0.1, 0.07)),
        Tone(hsv=(0.12, 0.04, 0.85), spread=(0.1, 0.04, 0.1)),
        Tone(hsv=(0.3, 0.55, 0.5), spread=(0.4, 0.3, 0.2)),
    ),
    "clothing": (
        Tone(hsv=(0.62, 0.3, 0.22), spread=(0.1, 0.25, 0.14)),
        Tone(hsv=(0.08, 0.25, 0.4), spread=(0.06, 0.2, 0.25)),
        Tone(hsv=(0.5, 0.5, 0.5), spread=(0.5, 0.4, 0.3)),
    ),
    "facade": (
        Tone(hsv=(0.1, 0.18, 0.68), spread=(0.04, 0.12, 0.18)),  # plaster
        Tone(hsv=(0.03, 0.4, 0.46), spread=(0.03, 0.18, 0.16)),  # brick
        Tone(hsv=(0.55, 0.08, 0.52), spread=(0.15, 0.06, 0.2)),  # concrete
    ),
    "foliage": (Tone(hsv=(0.26, 0.5, 0.35), spread=(0.08, 0.2, 0.12)),),
    "bark": (Tone(hsv=(0.08, 0.3, 0.26), spread=(0.03, 0.15, 0.1)),),
    "asphalt": (Tone(hsv=(0.6, 0.05, 0.37), spread=(0.2, 0.05, 0.1)),),
    "paving": (
        Tone(hsv=(0.1, 0.08, 0.56), spread=(0.06, 0.06, 0.12)),  # concrete slabs
        Tone(hsv=(0.03, 0.25, 0.5), spread=(0.02, 0.12, 0.1)),  # bricks
    ),
    "metal": (
        Tone(hsv=(0.58, 0.04, 0.48), spread=(0.1, 0.04, 0.14)),  # galvanised
        Tone(hsv=(0.5, 0.2, 0.18), spread=(0.16, 0.15, 0.1)),  # painted dark
    ),
    "skin": (Tone(hsv=(0.06, 0.42, 0.6), spread=(0.02, 0.15, 0.25)),),
    "sign": (
        Tone(hsv=(0.99, 0.8, 0.65), spread=(0.02, 0.12, 0.14)),  # red
        Tone(hsv=(0.6, 0.75, 0.55), spread=(0.03, 0.15, 0.15)),  # blue
        Tone(hsv=(0.12, 0.05, 0.85), spread=(0.1, 0.05, 0.1)),  # white
        Tone(hsv=(0.13, 0.75, 0.78), spread=(0.02, 0.15, 0.12)),  # yellow
    ),
}
# Anomalies take their colours from these things, each as often as it stands here.
_COLOURS_OF_ANOMALIES = (
    "facade",
    "facade",
    "facade",
    "foliage",
    "foliage",
    "clothing",
    "clothing",
    "car",
    "paving",
    "bark",
    "sign",
)
_ROAD_GREY = 0.37  # RGB value of a middling road
_MIN_CONTRAST = 0.27  # largest difference of a channel from it, above which an anomaly is seen


def colour(rng: Random, thing: str) -> Points:
    """Return a random RGB of a known thing, by its name in the table of tones."""
    tones = _TONES[thing]
    tone = tones[rng.integers(len(tones))]
    hue, saturation, value = np.array(tone.hsv) + rng.uniform(-1, 1, 3) * np.array(tone.spread)
    return np.array(
        colorsys.hsv_to_rgb(hue % 1.0, np.clip(saturation, 0, 1), np.clip(value, 0.03, 0.97))
    )


def odd_colour(rng: Random) -> Points:
    """Return the RGB of an anomaly: a colour of a known thing that does not hide it on a grey road.

    A grey lump on grey asphalt is road to every network, without a doubt; nothing could be learned
    from it.
    """
    while True:
        rgb = colour(rng, _COLOURS_OF_ANOMALIES[rng.integers(len(_COLOURS_OF_ANOMALIES))])
        if np.abs(rgb - _ROAD_GREY).max() > _MIN_CONTRAST:
            return rgb


TILE = 256
# Of each grain, the size of its blobs: about 2 and 6 pixels, and 0 of clouds (1/f noise).
_GRAINS = {"medium": 5.0, "coarse": 14.0, "cloud": 0.0}


@cache
def noise_tile(grain: str) -> Floats:
    """Return a tileable noise ``[256, 256]`` with mean 0 and standard deviation 1."""
    rng = np.random.default_rng([20240617, [*_GRAINS].index(grain)])
    spectrum = np.fft.rfft2(rng.standard_normal((TILE, TILE)))
    frequency = np.hypot(np.fft.fftfreq(TILE)[:, None], np.fft.rfftfreq(TILE)[None])
    blob = _GRAINS[grain]
    if blob:
        spectrum *= np.exp(-((frequency * blob) ** 2))
    else:
        spectrum *= 1 / np.maximum(frequency, 1 / TILE) ** 1.5
    spectrum[0, 0] = 0
    tile = np.fft.irfft2(spectrum, s=(TILE, TILE))
    return np.ascontiguousarray(tile / tile.std(), dtype=np.float32)


def crop(rng: Random, grain: str, height: int = 48, width: int = 48) -> Floats:
    """Return a random piece of a noise tile, at most 256 pixels high and wide."""
    top, left = rng.integers(0, (TILE - height + 1, TILE - width + 1)).tolist()
    return noise_tile(grain)[top : top + height, left : left + width]


def speckle(rng: Random, strength: float, grain: str = "medium") -> Floats:
    """Return noise factors ``[48, 48]`` around 1 with standard deviation ``strength``, held within
    0.2..1.8.
    """
    return np.asarray(np.clip(1 + np.float32(strength) * crop(rng, grain), 0.2, 1.8), np.float32)


def leaves(rng: Random) -> Floats:
    """Return clumps of leaves ``[64, 64]``: dark gaps between lit clumps, lighter at the top."""
    patch = 1 + 0.22 * crop(rng, "medium", 64, 64) + 0.24 * crop(rng, "coarse", 64, 64)
    patch = patch * np.linspace(1.2, 0.75, 64, dtype=np.float32)[:, None]
    return np.asarray(np.clip(patch, 0.25, 1.9), np.float32)


def fabric(rng: Random) -> Floats:
    """Return any surface of made things ``[48, 48]``: speckled, striped or patched."""
    kind = int(rng.integers(3))
    strength = rng.uniform(0.03, 0.2)
    patch = speckle(rng, 0.5 * strength)
    if kind == 1:
        stripes = np.sin(np.linspace(0, 2 * np.pi * rng.uniform(2, 7), 48))
        patch += strength * np.sign(stripes)[:, None]
    elif kind == 2:
        patch += 1.5 * strength * np.sign(crop(rng, "coarse") - np.float32(rng.uniform(-0.5, 0.8)))
    return patch.clip(0.25, 1.75)


def rounded(patch: Floats, side: float, strength: float = 0.35) -> Floats:
    """Return a patch shaded as a round body: lit from ``side`` (-1 left .. 1 right), darker at its
    foot.
    """
    across = np.linspace(-1, 1, patch.shape[1], dtype=np.float32)[None]
    down = np.linspace(0.12, -0.18, patch.shape[0], dtype=np.float32)[:, None]
    shade: Floats = 1 + np.float32(strength * side) * across - np.float32(0.15) * across**2 + down
    return patch * shade


@dataclass(frozen=True)
class Light:
    """What lights a scene and what lies between it and the sensor."""

    weather: str
    sun: Points  # unit vector towards the sun (right, up, ahead)
    sun_colour: Points  # RGB factors of direct light
    ambient: Points  # and of sky light
    zenith: Points  # RGB of the sky above
    skyline: Points  # and at the horizon; the haze's colour too
    clouds: Floats  # cover of the sky, 0..1, stretched over it
    extinction: float  # of the air, 1/m
    exposure: float  # of the sensor, a factor
    noise: float  # standard deviation of the sensor noise at middle grey (0..1)
    wet: float  # how much rain has darkened the ground, 0..1

    def shade(self, normal: tuple[float, float, float] | Points) -> Points:
        """Return RGB factors of a surface with this unit normal (right, up, ahead)."""
        direct = max(0.0, float(np.dot(np.asarray(normal), self.sun)))
        # Surfaces that face the ground see less sky.
        return self.ambient * (0.8 + 0.2 * float(normal[1])) + self.sun_colour * direct

    @property
    def side(self) -> float:
        """From which side round bodies are lit, -1 left .. 1 right, weak without direct sun."""
        strength = self.sun_colour.mean() / (self.sun_colour.mean() + self.ambient.mean())
        return float(self.sun[0] * min(1.0, 1.8 * strength))


@dataclass(frozen=True)
class Weather:
    """What the light of a kind of weather or of a time of day has in common."""

    direct: float  # factor of the sun's light
    ambient: float  # and of the sky's
    zenith: tuple[float, float, float]  # RGB
    skyline: tuple[float, float, float]  # RGB


_WEATHER = {
    "clear": Weather(
        direct=0.95, ambient=0.6, zenith=(0.28, 0.47, 0.78), skyline=(0.72, 0.82, 0.93)
    ),
    "overcast": Weather(
        direct=0.06, ambient=0.8, zenith=(0.72, 0.75, 0.78), skyline=(0.84, 0.84, 0.84)
    ),
    "dusk": Weather(direct=0.4, ambient=0.42, zenith=(0.2, 0.26, 0.45), skyline=(0.78, 0.55, 0.41)),
}


def _direction(azimuth: float, elevation: float) -> Points:
    """Return the unit vector (right, up, ahead) of two angles in radians."""
    right = np.cos(elevation) * np.sin(azimuth)
    up = np.sin(elevation)
    ahead = np.cos(elevation) * np.cos(azimuth)
    return np.array([right, up, ahead])


def sample_light(rng: np.random.Generator) -> Light:
    """Return a random time of day and weather."""
    name = str(rng.choice(["clear", "overcast", "dusk"], p=[0.5, 0.38, 0.12]))
    weather = _WEATHER[name]
    azimuth = rng.uniform(-np.pi, np.pi)
    if name == "dusk":
        elevation = np.deg2rad(rng.uniform(8, 18))
        sun_tint = np.array([1.0, 0.62, 0.38])
    else:
        elevation = np.deg2rad(rng.uniform(22, 62))
        sun_tint = np.array([1.0, 0.96, 0.88])
    sky_tint = np.array([1.0, 1.0, 1.0] if name == "overcast" else [0.94, 0.99, 1.08])
    bright = rng.uniform(0.8, 1.15)
    direct = weather.direct * rng.uniform(0.75, 1.2)
    ambient = weather.ambient * rng.uniform(0.88, 1.12)
    cover = 0.55 * crop(rng, "cloud", 24, 48) + rng.uniform(-0.7, 0.7)
    extinction = rng.uniform(0.003, 0.012) if name == "overcast" else rng.uniform(0.001, 0.005)
    exposure = rng.uniform(0.9, 1.3)
    noise = rng.uniform(0.005, 0.016)
    wet = rng.uniform(0, 0.6) if name == "overcast" else 0.0
    return Light(
        weather=name,
        sun=_direction(azimuth, elevation),
        sun_colour=direct * sun_tint,
        ambient=ambient * sky_tint,
        zenith=bright * np.array(weather.zenith),
        skyline=min(1.0, bright) * np.array(weather.skyline),
        clouds=np.clip(cover, 0, 1),
        extinction=extinction,
        exposure=exposure,
        noise=noise,
        wet=wet,
    )


@dataclass(frozen=True)
class GroundGrid:
    """The ground under each pixel of a canvas, from the first row on that may show ground: float32
    ``[rows - first_row, columns]`` each.
    """

    first_row: int
    lateral: Floats  # metres
    distance: Floats  # metres; infinite above the horizon
    pixel_width: Floats  # metres of lateral that a pixel spans


@dataclass(frozen=True)
class Camera:
    """A camera ``height`` m above the ground at a station of the street, looking along it, for a
    canvas of some pixels.
    """

    rows: int
    columns: int
    field_of_view: float  # horizontal, radians
    horizon: float  # row of the horizon as a fraction of the rows, at the middle column
    height: float
    curvature: float = 0.0  # of the street, 1/m, positive to the right
    roll: float = 0.0  # radians, positive turns the picture clockwise
    station: float = 0.0

    @cached_property
    def focal(self) -> float:
        """Focal length in canvas pixels."""
        return self.columns / 2 / tan(self.field_of_view / 2)

    def project(self, points: Points) -> Points:
        """Return canvas positions (column, row) ``[N, 2]`` of street points ``[N, 3]``; distances
        are held at NEAR or more.
        """
        distance = np.maximum(points[:, 2] - self.station, NEAR)
        scale = self.focal / distance
        x = (points[:, 0] + self.curvature / 2 * distance * distance) * scale
        y = (self.height - points[:, 1]) * scale
        cosine = cos(self.roll)
        sine = sin(self.roll)
        columns = self.columns / 2 + cosine * x - sine * y
        rows = self.horizon * self.rows + sine * x + cosine * y
        return np.column_stack([columns, rows])

    def clip(self, points: Points) -> Points:
        """Return the part of a polygon ``[N, 3]`` that lies beyond NEAR (Sutherland & Hodgman
        1974); may be empty.
        """
        ahead = points[:, 2] - self.station - NEAR
        kept: list[Points] = []
        for i in range(len(points)):
            j = (i + 1) % len(points)
            if ahead[i] >= 0:
                kept.append(points[i])
            if (ahead[i] >= 0) != (ahead[j] >= 0):
                share = ahead[i] / (ahead[i] - ahead[j])
                kept.append(points[i] + share * (points[j] - points[i]))
        return np.array(kept).reshape(-1, 3)

    def ground_grid(self) -> GroundGrid:
        """Return the ground under each pixel of the canvas."""
        # The roll lifts the horizon at one side.
        lift = abs(np.sin(self.roll)) * self.columns / 2
        horizon = self.horizon * self.rows
        first_row = int(np.clip(np.floor(horizon - lift), 0, self.rows - 1))
        rows = np.arange(first_row, self.rows, dtype=np.float32)[:, None]
        row = rows + np.float32(0.5 - horizon)
        columns = np.arange(self.columns, dtype=np.float32)[None]
        column = columns + np.float32(0.5 - self.columns / 2)
        cosine = np.float32(np.cos(self.roll))
        sine = np.float32(np.sin(self.roll))
        below = cosine * row - sine * column  # pixels below the horizon
        across = cosine * column + sine * row
        focal = np.float32(self.focal)
        with np.errstate(divide="ignore"):
            distance = np.where(
                below > 0.02, np.float32(self.focal * self.height) / below, np.float32(np.inf)
            )
        near = np.minimum(distance, np.float32(1e4))
        lateral = across * near / focal - np.float32(self.curvature / 2) * near**2
        return GroundGrid(
            first_row=first_row,
            lateral=lateral.astype(np.float32),
            distance=distance.astype(np.float32),
            pixel_width=(distance / focal).astype(np.float32),
        )


def turned(local: Points, yaw: float, lateral: float = 0.0, station: float = 0.0) -> Points:
    """Return street points or directions ``[N, 3]`` of local ones (right, up, forward) at a turned
    place.
    """
    cosine = cos(yaw)
    sine = sin(yaw)
    right, up, forward = local.T
    return np.column_stack(
        [lateral + cosine * right + sine * forward, up, station - sine * right + cosine * forward]
    )


def upright(half: float, depths: Corner, height: float, top: float) -> Points:
    """Return the reach ``[6, 3]`` of what stands: four points at the foot, ``half`` m to both
    sides, and two ``height`` m above it, ``top`` m to both sides.
    """
    near, far = depths
    return np.array(
        [
            (-half, 0.0, near),
            (-half, 0.0, far),
            (half, 0.0, near),
            (half, 0.0, far),
            (-top, height, 0.0),
            (top, height, 0.0),
        ]
    )


def ellipse(centre: Corner, radii: Corner, tilt: float = 0.0) -> Points:
    """Return the outline ``[16, 2]`` (right, up) of an ellipse turned by ``tilt`` radians."""
    x = radii[0] * np.cos(_ANGLES)
    y = radii[1] * np.sin(_ANGLES)
    cosine = np.cos(tilt)
    sine = np.sin(tilt)
    return np.column_stack([centre[0] + cosine * x - sine * y, centre[1] + sine * x + cosine * y])


def limb(start: Corner, end: Corner, thick: float, thin: float) -> list[Corner]:
    """Return a tapering limb from start to end as a polygon (right, up); ``thick`` and ``thin`` are
    its widths in metres.
    """
    along_x = end[0] - start[0]
    along_y = end[1] - start[1]
    length = max(1e-6, float(np.hypot(along_x, along_y)))
    # Half of the unit vector across the limb.
    across_x = -along_y / length / 2
    across_y = along_x / length / 2
    ends = ((start, thick), (end, thin), (end, -thin), (start, -thick))
    return [(x + across_x * width, y + across_y * width) for (x, y), width in ends]


class Canvas:
    """Colours float32 ``[rows, columns, 3]`` (a sky, at first), raw labels uint8 and depth float32
    metres (sky: 0); whatever is drawn writes all three from the same polygon, so labels follow the
    drawn shapes exactly.
    """

    def __init__(self, sky: Floats) -> None:
        self.colours = sky
        self.labels: npt.NDArray[np.uint8] = np.full(sky.shape[:2], Id.SKY, np.uint8)
        self.depth: Floats = np.zeros(sky.shape[:2], np.float32)

    def fill(
        self,
        outline: Points,
        depth: Points,
        colour: Points,
        label: int,
        patch: Floats | None = None,
    ) -> None:
        """Fill a polygon ``[N, 2]`` (column, row) of corners with a depth in metres; ``patch`` is
        stretched over its bounding box.
        """
        low, high = outline.min(axis=0), outline.max(axis=0)
        where = self._window(low, high)
        if where is None:
            return
        outline = self._bounded(outline)
        inside = _inside(where, outline - (where[1].start + 0.5, where[0].start + 0.5))
        painted: Points | Floats = colour
        if patch is not None:
            # One row of factors for each pixel inside: cheaper than the whole window.
            painted = _stretch(patch, low, high, where)[inside][:, None] * colour.astype(np.float32)
        self._put(where, inside, painted, label, _depths(outline, depth, where))

    def warp(
        self, corners: Points, depth: Points, texture: Floats, factor: Points, label: int
    ) -> None:
        """Draw a texture ``[h, w, 3]``, multiplied by an RGB light, over a quadrilateral ``[4,
        2]``, top left corner first.
        """
        where = self._window(corners.min(axis=0), corners.max(axis=0))
        if where is None:
            return
        # Shrunk to about its size in the picture first: warping alone would skip pixels and
        # flicker.
        spans = np.linalg.norm(np.roll(corners, -1, axis=0) - corners, axis=1)
        width = int(np.clip(max(spans[0], spans[2]), 2, texture.shape[1]))
        height = int(np.clip(max(spans[1], spans[3]), 2, texture.shape[0]))
        small = cv2.resize(texture, (width, height), interpolation=cv2.INTER_AREA)
        source = np.array([[0, 0], [width, 0], [width, height], [0, height]], np.float32)
        target = (corners - (where[1].start, where[0].start)).astype(np.float32)
        # OpenCV samples at pixel corners, our coordinates are of areas: half a pixel on both sides.
        half = np.float32(0.5)
        matrix = cv2.getPerspectiveTransform(source - half, target - half)
        inside = _inside(where, self._bounded(target) - half)
        shown = cv2.warpPerspective(
            small, matrix, inside.shape[::-1], flags=cv2.INTER_LINEAR, borderMode=_REPEAT
        )
        colours = np.asarray(shown[inside] * factor.astype(np.float32), np.float32)
        self._put(where, inside, colours, label, _depths(corners, depth, where))

    def _bounded(self, points: Any) -> Any:
        """Hold points near the canvas: far outside OpenCV's fixed-point numbers would overflow."""
        columns = self.labels.shape[1]
        return np.clip(points, -8 * columns, 9 * columns)

    def _window(self, low: Points, high: Points) -> Window | None:
        """Return the part of the canvas that holds a box, with a rim; None if that is empty."""
        rows, columns = self.labels.shape
        left = max(0, int(low[0]) - 1)
        top = max(0, int(low[1]) - 1)
        right = min(columns, int(high[0]) + 2)
        bottom = min(rows, int(high[1]) + 2)
        if right <= left or bottom <= top:
            return None
        return (slice(top, bottom), slice(left, right))

    def _put(
        self,
        where: Window,
        inside: Mask,
        colours: Points | Floats,
        label: int,
        depths: Floats | float,
    ) -> None:
        self.colours[where][inside] = colours
        self.labels[where][inside] = label
        self.depth[where][inside] = depths if isinstance(depths, float) else depths[inside]


def _inside(where: Window, points: Points | Floats) -> Mask:
    """Return which pixels of a window are inside of a polygon ``[N, 2]`` (column, row)."""
    mask = np.zeros([axis.stop - axis.start for axis in where], np.uint8)
    corners = np.rint(points * (1 << _SHIFT)).astype(np.int32)
    cv2.fillPoly(mask, [corners], (255,), shift=_SHIFT)
    return mask > 0


def _depths(outline: Points, depth: Points, where: Window) -> Floats | float:
    """Return depth over a window, from the plane through the corners; their mean where they are
    about as far.
    """
    if depth.max() < 1.05 * depth.min():
        return float(depth.mean())
    system = np.column_stack([outline, np.ones(len(outline))])
    slope = np.linalg.lstsq(system, 1 / depth, rcond=None)[0]
    row, column = (np.arange(axis.start, axis.stop) + 0.5 for axis in where)
    inverse = slope[0] * column[None] + slope[1] * row[:, None] + slope[2]
    return np.asarray(1 / np.clip(inverse, 1 / depth.max(), 1 / depth.min()), np.float32)


def _stretch(patch: Floats, low: Points, high: Points, where: Window) -> Floats:
    """Return the part of a patch, stretched over the box low..high, that the window shows."""
    width = max(1.0, high[0] - low[0])
    height = max(1.0, high[1] - low[1])
    rows, columns = patch.shape
    small = patch
    if width < columns or height < rows:
        size = (int(min(np.ceil(width), columns)), int(min(np.ceil(height), rows)))
        small = np.asarray(cv2.resize(patch, size, interpolation=cv2.INTER_AREA), np.float32)
    scale_x = small.shape[1] / width
    scale_y = small.shape[0] / height
    vertical, horizontal = where
    # From window pixels to patch pixels, pixel centre to pixel centre.
    shift_x = (horizontal.start + 0.5 - low[0]) * scale_x - 0.5
    shift_y = (vertical.start + 0.5 - low[1]) * scale_y - 0.5
    stretched = cv2.warpAffine(
        small,
        np.array([[scale_x, 0, shift_x], [0, scale_y, shift_y]]),
        (horizontal.stop - horizontal.start, vertical.stop - vertical.start),
        flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP,
        borderMode=_REPEAT,
    )
    return np.asarray(stretched, np.float32)


@dataclass(frozen=True)
class Stage:
    """What things are drawn on: the canvas, seen by a camera, lit by a light, ``time`` seconds into
    a video.
    """

    canvas: Canvas
    camera: Camera
    light: Light
    time: float = 0.0

    def flat(
        self, corners: Points, colour: Points, label: int, patch: Floats | None = None
    ) -> None:
        """Fill a flat polygon of street points ``[N, 3]`` with an already lit colour."""
        shown = self.camera.clip(corners)
        if len(shown) >= 3:
            distances = shown[:, 2] - self.camera.station
            self.canvas.fill(self.camera.project(shown), distances, colour, label, patch)


@dataclass(frozen=True)
class Face:
    """A flat face of a solid."""

    number: int  # from corner i of the profile to i + 1, or LEFT or RIGHT
    corners: Points  # [N, 3], local or of the street
    normal: Points  # [3], outward, of length 1


@dataclass(frozen=True)
class Place:
    """A place on a stage: lateral and station in metres, yaw in radians (0: a body there looks
    along the street).
    """

    stage: Stage
    lateral: float
    station: float
    yaw: float = 0.0

    def fill(
        self, outline: Outline, colour: Points, label: int, patch: Floats | None = None
    ) -> None:
        """Fill a polygon (right, up) in metres from the place, facing the camera, with an already
        lit colour.
        """
        beside_and_up = np.add(outline, (self.lateral, 0.0))
        stations = np.full(len(outline), self.station)
        self.stage.flat(np.column_stack([beside_and_up, stations]), colour, label, patch)

    def faces(self, profile: Points, width: float) -> list[Face]:
        """Return the faces of a solid here that look at the camera, farthest first, in street
        coordinates.

        Args:
            profile: the side ``[N, 2]`` (forward, up) of the solid, counter-clockwise seen from the
                right.
        """
        camera = self.stage.camera
        shown: list[tuple[float, Face]] = []  # squared distance from the camera, and the face
        for face in _local_faces(profile, width):
            corners = turned(face.corners, self.yaw, self.lateral, self.station)
            normal = turned(face.normal[None], self.yaw)[0]
            x, y, z = (sum(axis) / len(corners) for axis in corners.T.tolist())
            y = y - camera.height
            z = z - camera.station
            x += camera.curvature / 2 * max(1.0, z) ** 2
            if x * normal[0] + y * normal[1] + z * normal[2] < 0:
                shown.append((x * x + y * y + z * z, Face(face.number, corners, normal)))
        shown.sort(key=lambda pair: -pair[0])
        return [face for _, face in shown]

    def solid(
        self, profile: Points, width: float, colour: Points, label: int, patch: Floats
    ) -> None:
        """Draw a solid here by its side profile ``[N, 2]`` (forward, up)."""
        for face in self.faces(profile, width):
            shade = self.stage.light.shade(face.normal)
            self.stage.flat(face.corners, colour * shade, label, patch)

    def box(
        self, length: float, height: float, width: float, colour: Points, label: int, patch: Floats
    ) -> None:
        """Draw a box on the ground, with its middle here."""
        half = length / 2
        profile = np.array([[half, 0], [half, height], [-half, height], [-half, 0]])
        self.solid(profile, width, colour, label, patch)


def _local_faces(profile: Points, width: float) -> list[Face]:
    """Return all faces of a solid in local coordinates (right, up, forward)."""
    count = len(profile)
    forward, up = profile.T
    left = np.column_stack([np.full(count, -width / 2), up, forward])
    right = np.column_stack([np.full(count, width / 2), up, forward])
    faces = [
        Face(LEFT, left, np.array([-1.0, 0, 0])),
        Face(RIGHT, right, np.array([1.0, 0, 0])),
    ]
    for i in range(count):
        j = (i + 1) % count
        along = profile[j] - profile[i]
        length = max(1e-9, float(np.hypot(*along)))
        outward = np.array([0.0, -along[0], along[1]]) / length
        faces.append(Face(i, np.stack([left[i], left[j], right[j], right[i]]), outward))
    return faces


@dataclass(frozen=True)
class Thing:
    """Something that stands on the street; things are drawn from the farthest ``station`` to the
    nearest.
    """

    lateral: float  # where it stands, metres
    station: float  # likewise; of what is long, the far end
    reach: Points  # [N, 3] (right, up, ahead) of foot and top from there, for shadows
    recipe: Callable[[Place], None]  # draws it at its place
    half_width: float = 0.0  # of what may stand before an anomaly, metres
    yaw: float = 0.0  # radians

    def draw(self, stage: Stage) -> None:
        self.recipe(Place(stage, self.lateral, self.station, self.yaw))
