"""The canvas that faces are painted on, and the things that paint themselves on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

from segunc.toyroads.camera import LEFT, RIGHT, Camera, Floats, Outline, Points, turned
from segunc.toyroads.light import Light

ROAD, SIDEWALK, BUILDING, POLE, SIGN, VEGETATION, SKY, PERSON, CAR = 7, 8, 11, 17, 20, 21, 23, 24, 26
"""Raw label ids of the label map ``toy``, as in Cityscapes."""
ANOMALY = 5  # raw id 'dynamic' (ignored in training) of anomaly pixels
# Ties of the majority vote go to the first: thin things first, or they would fade with distance.
VOTE_ORDER = (ANOMALY, SIGN, POLE, PERSON, CAR, SIDEWALK, VEGETATION, BUILDING, ROAD, SKY)
Window = tuple[slice, slice]
Mask = npt.NDArray[np.bool_]
_SHIFT, _REPEAT = 3, cv2.BORDER_REPLICATE  # polygons are drawn with 1/8 pixel


class Canvas:
    """Colours float32 ``[rows, columns, 3]`` (a sky, at first), raw labels uint8 and depth float32 metres (sky: 0).

    Whatever is drawn writes all three from the same polygon, so labels follow the drawn shapes exactly.
    """

    def __init__(self, sky: Floats) -> None:
        self.colours = sky
        self.labels: npt.NDArray[np.uint8] = np.full(sky.shape[:2], SKY, np.uint8)
        self.depth: Floats = np.zeros(sky.shape[:2], np.float32)

    def fill(self, outline: Points, depth: Points, colour: Points, label: int, patch: Floats | None = None) -> None:
        """Fill a polygon ``[N, 2]`` (column, row; continuous pixel coordinates).

        Args:
            depth: metres, one for all or one for each corner (then 1/depth is interpolated as on a plane).
            patch: factors ``[h, w]`` that multiply the colour, stretched over the polygon's bounding box.
        """
        columns = self.labels.shape[1]
        low, high = outline.min(axis=0), outline.max(axis=0)
        where = self._window(low, high)
        if where is None:
            return
        # Far outside the canvas OpenCV's fixed-point numbers would overflow.
        outline = outline.clip(-8 * columns, 9 * columns)
        inside = _inside(where, _fixed(outline - (where[1].start + 0.5, where[0].start + 0.5)))
        painted: Points | Floats = colour
        if patch is not None:
            # One row of factors for each pixel inside: cheaper than the whole window.
            painted = _stretch(patch, low, high, where)[inside][:, None] * colour.astype(np.float32)
        self._put(where, inside, painted, label, _depths(outline, depth, where))

    def warp(self, corners: Points, depth: Points, texture: Floats, factor: Points, label: int) -> None:
        """Draw a texture ``[h, w, 3]``, multiplied by an RGB light, over a quadrilateral.

        ``corners`` ``[4, 2]`` are those of the texture's top left, top right, bottom right and bottom left.
        """
        columns = self.labels.shape[1]
        where = self._window(corners.min(axis=0), corners.max(axis=0))
        if where is None:
            return
        # Shrunk to about its size in the picture first: warping alone would skip pixels and flicker.
        spans = np.linalg.norm(np.roll(corners, -1, axis=0) - corners, axis=1)
        width = int(np.clip(max(spans[0], spans[2]), 2, texture.shape[1]))
        height = int(np.clip(max(spans[1], spans[3]), 2, texture.shape[0]))
        small = cv2.resize(texture, (width, height), interpolation=cv2.INTER_AREA)
        source = np.array([[0, 0], [width, 0], [width, height], [0, height]], np.float32)
        target = (corners - (where[1].start, where[0].start)).astype(np.float32)
        # OpenCV samples at pixel corners, our coordinates are of areas: half a pixel on both sides.
        half = np.float32(0.5)
        matrix = cv2.getPerspectiveTransform(source - half, target - half)
        inside = _inside(where, _fixed(np.clip(target, -8 * columns, 9 * columns) - half))
        shown = cv2.warpPerspective(small, matrix, inside.shape[::-1], flags=cv2.INTER_LINEAR, borderMode=_REPEAT)
        colours = np.asarray(shown[inside] * factor.astype(np.float32), np.float32)
        self._put(where, inside, colours, label, _depths(corners, depth, where))

    def _window(self, low: Points, high: Points) -> Window | None:
        """Return the part of the canvas around a box of pixel coordinates; None where they do not meet."""
        rows, columns = self.labels.shape
        left, top = max(0, int(low[0]) - 1), max(0, int(low[1]) - 1)
        right, bottom = min(columns, int(high[0]) + 2), min(rows, int(high[1]) + 2)
        return None if right <= left or bottom <= top else (slice(top, bottom), slice(left, right))

    def _put(self, where: Window, inside: Mask, colours: Points | Floats, label: int, depths: Floats | float) -> None:
        """Set the pixels inside; the depths are of each pixel of the window, or of all."""
        self.colours[where][inside] = colours
        self.labels[where][inside] = label
        self.depth[where][inside] = depths if isinstance(depths, float) else depths[inside]


def _fixed(points: Points | Floats) -> list[npt.NDArray[np.int32]]:
    return [np.rint(points * (1 << _SHIFT)).astype(np.int32)]


def _inside(where: Window, fixed: list[npt.NDArray[np.int32]]) -> Mask:
    mask = np.zeros([axis.stop - axis.start for axis in where], np.uint8)
    cv2.fillPoly(mask, fixed, (255,), shift=_SHIFT)
    return mask > 0


def _depths(outline: Points, depth: Points, where: Window) -> Floats | float:
    """Return depth over a window, from the plane through the corners; their mean where they are about as far."""
    distances = depth.tolist()
    if max(distances) < 1.05 * min(distances):
        return float(depth.mean())
    system = np.column_stack([outline, np.ones(len(outline))])
    slope = np.linalg.lstsq(system, 1 / depth, rcond=None)[0]
    row, column = (np.arange(axis.start, axis.stop) + 0.5 for axis in where)
    inverse = slope[0] * column[None] + slope[1] * row[:, None] + slope[2]
    return np.asarray(1 / np.clip(inverse, 1 / depth.max(), 1 / depth.min()), np.float32)


def _stretch(patch: Floats, low: Points, high: Points, where: Window) -> Floats:
    """Return the part of a patch, stretched over the box low..high, that the window shows."""
    width, height = max(1.0, high[0] - low[0]), max(1.0, high[1] - low[1])
    small = patch
    if width < patch.shape[1] or height < patch.shape[0]:
        size = (int(min(np.ceil(width), patch.shape[1])), int(min(np.ceil(height), patch.shape[0])))
        small = np.asarray(cv2.resize(patch, size, interpolation=cv2.INTER_AREA), np.float32)
    scale_x, scale_y = small.shape[1] / width, small.shape[0] / height
    (top, bottom), (left, right) = ((axis.start, axis.stop) for axis in where)
    # From window pixels to patch pixels, pixel centre to pixel centre.
    shift_x, shift_y = (left + 0.5 - low[0]) * scale_x - 0.5, (top + 0.5 - low[1]) * scale_y - 0.5
    matrix = np.array([[scale_x, 0, shift_x], [0, scale_y, shift_y]])
    size, flags = (right - left, bottom - top), cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    return np.asarray(cv2.warpAffine(small, matrix, size, flags=flags, borderMode=_REPEAT), np.float32)


@dataclass(frozen=True)
class Stage:
    """What things are drawn on: the canvas, seen by a camera, lit by a light, ``time`` seconds into a video."""

    canvas: Canvas
    camera: Camera
    light: Light
    time: float = 0.0

    def flat(self, corners: Points, colour: Points, label: int, patch: Floats | None = None) -> None:
        """Fill a polygon of street points ``[N, 3]`` with an already lit colour."""
        shown = self.camera.clip(corners)
        if len(shown) >= 3:
            self.canvas.fill(self.camera.project(shown), shown[:, 2] - self.camera.station, colour, label, patch)


@dataclass(frozen=True)
class Place:
    """A place on a stage: lateral and station in metres, yaw in radians (0: a body there looks along the street)."""

    stage: Stage
    lateral: float
    station: float
    yaw: float = 0.0

    def fill(self, outline: Outline, colour: Points, label: int, patch: Floats | None = None) -> None:
        """Fill a polygon (right, up) in metres from the place, facing the camera, with an already lit colour."""
        points = np.column_stack([np.add(outline, (self.lateral, 0.0)), np.full(len(outline), self.station)])
        self.stage.flat(points, colour, label, patch)

    def street(self, local: Points) -> Points:
        """Return street points ``[N, 3]`` of local ones (right, up, forward)."""
        return turned(local, self.yaw, self.lateral, self.station)

    def faces(self, profile: Points, width: float) -> list[tuple[int, Points, Points]]:
        """Return the faces of a solid here that look at the camera, farthest first: (number, street corners, street normal).

        It is ``width`` m wide; its side profile ``[N, 2]`` (forward, up) runs counter-clockwise seen from the right.
        Face i runs from profile corner i to i + 1, its first two corners on the left; the sides are LEFT and RIGHT.
        """
        count, half = len(profile), width / 2
        left, right = (np.column_stack([np.full(count, x), profile[:, 1], profile[:, 0]]) for x in (-half, half))
        faces = [(LEFT, left, np.array([-1.0, 0, 0])), (RIGHT, right, np.array([1.0, 0, 0]))]
        for i in range(count):
            j = (i + 1) % count
            along = profile[j] - profile[i]
            outward = np.array([0.0, -along[0], along[1]]) / max(1e-9, float(np.hypot(*along)))
            faces.append((i, np.stack([left[i], left[j], right[j], right[i]]), outward))
        shown, camera = [], self.stage.camera
        for number, local, outward in faces:
            corners, normal = self.street(local), turned(outward[None], self.yaw)[0]
            x, y, z = (sum(axis) / len(corners) for axis in corners.T.tolist())
            y, z = y - camera.height, z - camera.station
            x += camera.curvature / 2 * max(1.0, z) ** 2
            if x * normal[0] + y * normal[1] + z * normal[2] < 0:
                shown.append((x * x + y * y + z * z, number, corners, normal))
        return [face[1:] for face in sorted(shown, key=lambda face: -face[0])]

    def solid(self, profile: Points, width: float, colour: Points, label: int, patch: Floats) -> None:
        """Draw a solid, each face in the colour lit by its own direction."""
        for _, corners, normal in self.faces(profile, width):
            self.stage.flat(corners, colour * self.stage.light.shade(normal), label, patch)


@dataclass(frozen=True)
class Thing:
    """Something that stands on the street; things are drawn from the farthest ``station`` to the nearest."""

    lateral: float  # where it stands, metres
    station: float  # likewise; of what is long, the far end
    reach: Points  # [N, 3] (right, up, ahead) of foot and top from there, for shadows
    recipe: Callable[[Place], None]  # draws it at its place
    half_width: float = 0.0  # of what may stand before an anomaly, metres
    yaw: float = 0.0  # radians

    def draw(self, stage: Stage) -> None:
        self.recipe(Place(stage, self.lateral, self.station, self.yaw))
