"""The canvas that faces are painted on, and solids made of faces.

Whatever is drawn writes all three from the same polygon, so labels follow the drawn shapes exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import cos, sin

import cv2
import numpy as np
import numpy.typing as npt

from segunc.toyroads.camera import Camera, Floats, Points
from segunc.toyroads.light import Light

ROAD, SIDEWALK, BUILDING, POLE, SIGN, VEGETATION, SKY, PERSON, CAR = 7, 8, 11, 17, 20, 21, 23, 24, 26
"""Raw label ids of the label map ``toy``, as in Cityscapes."""
ANOMALY = 5
"""Raw id 'dynamic' (ignored in training) of anomaly pixels."""
# Ties of the majority vote go to the first: thin things first, or they would fade with distance.
VOTE_ORDER = (ANOMALY, SIGN, POLE, PERSON, CAR, SIDEWALK, VEGETATION, BUILDING, ROAD, SKY)
Corner = tuple[float, float]
_SHIFT = 3  # polygons are drawn with 1/8 pixel


@dataclass
class Canvas:
    """``colours`` float32 [rows, columns, 3], ``labels`` uint8 [rows, columns], ``depth`` float32 metres (sky: 0)."""

    colours: Floats
    labels: npt.NDArray[np.uint8]
    depth: Floats

    @classmethod
    def over(cls, sky: Floats) -> Canvas:
        """A canvas that shows nothing but a sky."""
        rows, columns = sky.shape[:2]
        return cls(
            np.ascontiguousarray(sky), np.full((rows, columns), SKY, np.uint8), np.zeros((rows, columns), np.float32)
        )

    def fill(
        self, outline: Points, depth: float | Points, colour: Points, label: int, patch: Floats | None = None
    ) -> None:
        """Fill a polygon.

        Args:
            outline: ``[N, 2]`` (column, row), continuous pixel coordinates.
            depth: metres, one for all or one for each corner (then 1/depth is interpolated as on a plane).
            colour: RGB.
            label: raw label id.
            patch: factors that multiply the colour, stretched over the polygon's bounding box.
        """
        rows, columns = self.labels.shape
        # On a handful of numbers Python's own min and max are several times faster than numpy's.
        xs, ys = outline[:, 0].tolist(), outline[:, 1].tolist()
        low, high = (min(xs), min(ys)), (max(xs), max(ys))
        left, top = max(0, int(low[0]) - 1), max(0, int(low[1]) - 1)
        right, bottom = min(columns, int(high[0]) + 2), min(rows, int(high[1]) + 2)
        if right <= left or bottom <= top or len(outline) < 3:
            return
        # Far outside the canvas OpenCV's fixed-point numbers would overflow.
        if min(low[0], low[1]) < -8 * columns or max(high[0], high[1]) > 9 * columns:
            outline = outline.clip(-8 * columns, 9 * columns)
        fixed = [np.rint((outline - (left + 0.5, top + 0.5)) * (1 << _SHIFT)).astype(np.int32)]
        where = (slice(top, bottom), slice(left, right))
        plane = None if isinstance(depth, float) else self._plane(outline, depth, where)
        if patch is None and plane is None:
            cv2.fillPoly(self.colours[where], fixed, tuple(map(float, colour)), shift=_SHIFT)
            cv2.fillPoly(self.labels[where], fixed, (label,), shift=_SHIFT)
            cv2.fillPoly(
                self.depth[where], fixed, (depth if isinstance(depth, float) else float(depth.mean()),), shift=_SHIFT
            )
            return
        mask = np.zeros((bottom - top, right - left), np.uint8)
        cv2.fillPoly(mask, fixed, (255,), shift=_SHIFT)
        inside = mask > 0
        if patch is None:
            self.colours[where][inside] = colour
        else:
            factors = _stretch(patch, low, high, left, top, right, bottom)
            # One row of factors for each pixel inside: cheaper than the whole window.
            chosen = factors[inside]
            self.colours[where][inside] = (chosen[:, None] if chosen.ndim == 1 else chosen) * colour.astype(np.float32)
        self.labels[where][inside] = label
        self.depth[where][inside] = np.mean(depth) if plane is None else plane[inside]

    @staticmethod
    def _plane(outline: Points, depth: Points, where: tuple[slice, slice]) -> Floats | None:
        """Depth over a window, from the plane through the corners; None where the corners are about as far."""
        distances = depth.tolist()
        if max(distances) < 1.05 * min(distances):
            return None
        system = np.column_stack([outline, np.ones(len(outline))])
        slope = np.linalg.lstsq(system, 1 / depth, rcond=None)[0]
        row = np.arange(where[0].start, where[0].stop) + 0.5
        column = np.arange(where[1].start, where[1].stop) + 0.5
        inverse = slope[0] * column[None] + slope[1] * row[:, None] + slope[2]
        plane: Floats = (1 / np.clip(inverse, 1 / depth.max(), 1 / depth.min())).astype(np.float32)
        return plane

    def warp(self, corners: Points, depth: Points, texture: Floats, factor: Points, label: int) -> None:
        """Draw a texture ``[h, w, 3]`` over a quadrilateral.

        Args:
            corners: ``[4, 2]`` of the texture's top left, top right, bottom right, bottom left.
            depth: metres at the four corners.
            factor: RGB light that multiplies the texture.
        """
        rows, columns = self.labels.shape
        low, high = corners.min(axis=0), corners.max(axis=0)
        left, top = max(0, int(low[0]) - 1), max(0, int(low[1]) - 1)
        right, bottom = min(columns, int(high[0]) + 2), min(rows, int(high[1]) + 2)
        if right <= left or bottom <= top:
            return
        # Shrunk to about its size in the picture first: warping alone would skip pixels and flicker.
        spans = np.linalg.norm(np.roll(corners, -1, axis=0) - corners, axis=1)
        width = int(np.clip(max(spans[0], spans[2]), 2, texture.shape[1]))
        height = int(np.clip(max(spans[1], spans[3]), 2, texture.shape[0]))
        small = cv2.resize(texture, (width, height), interpolation=cv2.INTER_AREA)
        source = np.array([[0, 0], [width, 0], [width, height], [0, height]], np.float32)
        target = (corners - (left, top)).astype(np.float32)
        # OpenCV samples at pixel corners, our coordinates are of areas: half a pixel on both sides.
        matrix = cv2.getPerspectiveTransform(source - np.float32(0.5), target - np.float32(0.5))
        window = (right - left, bottom - top)
        shown = cv2.warpPerspective(small, matrix, window, flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
        mask = np.zeros((bottom - top, right - left), np.uint8)
        bounded = np.clip(target, -8 * columns, 9 * columns) - np.float32(0.5)
        cv2.fillPoly(mask, [np.rint(bounded * (1 << _SHIFT)).astype(np.int32)], (255,), shift=_SHIFT)
        inside = mask > 0
        where = (slice(top, bottom), slice(left, right))
        plane = self._plane(corners, depth, where)
        self.colours[where][inside] = shown[inside] * factor.astype(np.float32)
        self.labels[where][inside] = label
        self.depth[where][inside] = plane[inside] if plane is not None else np.float32(depth.mean())


def _stretch(patch: Floats, low: Corner, high: Corner, left: int, top: int, right: int, bottom: int) -> Floats:
    """The part of a patch, stretched over the box low..high, that the window shows."""
    width, height = max(1.0, float(high[0] - low[0])), max(1.0, float(high[1] - low[1]))
    small = patch
    if width < patch.shape[1] or height < patch.shape[0]:
        size = (int(min(np.ceil(width), patch.shape[1])), int(min(np.ceil(height), patch.shape[0])))
        small = np.asarray(cv2.resize(patch, size, interpolation=cv2.INTER_AREA), np.float32)
    scale_x, scale_y = small.shape[1] / width, small.shape[0] / height
    # From window pixels to patch pixels, pixel centre to pixel centre.
    matrix = np.array(
        [
            [scale_x, 0, (left + 0.5 - low[0]) * scale_x - 0.5],
            [0, scale_y, (top + 0.5 - low[1]) * scale_y - 0.5],
        ]
    )
    return np.asarray(
        cv2.warpAffine(
            small,
            matrix,
            (right - left, bottom - top),
            flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP,
            borderMode=cv2.BORDER_REPLICATE,
        ),
        np.float32,
    )


@dataclass(frozen=True)
class Stage:
    """Where a thing draws itself: the canvas, seen by a camera, lit by a light."""

    canvas: Canvas
    camera: Camera
    light: Light

    def flat(
        self, corners: Points, colour: Points, label: int, patch: Floats | None = None, one_depth: bool = True
    ) -> None:
        """Fill a polygon of street points ``[N, 3]`` with an already lit colour."""
        visible = self.camera.clip(corners)
        if len(visible) < 3:
            return
        depth: float | Points = visible[:, 2] - self.camera.station
        if one_depth:
            depth = sum(visible[:, 2].tolist()) / len(visible) - self.camera.station
        self.canvas.fill(self.camera.project(visible), depth, colour, label, patch)

    def disc(
        self, centre: tuple[float, float, float], radii: tuple[float, float], colour: Points, label: int,
        patch: Floats | None = None, tilt: float = 0.0,
    ) -> None:  # fmt: skip
        """Fill an upright ellipse (metres) facing the camera, turned by ``tilt`` radians."""
        self.flat(ellipse(centre, radii, tilt), colour, label, patch)


_ANGLES = np.linspace(0, 2 * np.pi, 16, endpoint=False)


def ellipse(centre: tuple[float, float, float], radii: tuple[float, float], tilt: float = 0.0) -> Points:
    """Street points ``[16, 3]`` of an upright ellipse at one station."""
    x, y = radii[0] * np.cos(_ANGLES), radii[1] * np.sin(_ANGLES)
    cosine, sine = np.cos(tilt), np.sin(tilt)
    return np.column_stack(
        [centre[0] + cosine * x - sine * y, centre[1] + sine * x + cosine * y, np.full(16, centre[2])]
    )


def upright(corners: list[tuple[float, float]], lateral: float, station: float) -> Points:
    """Street points of a polygon (right, up) in metres that stands at a place, facing the camera."""
    points = np.empty((len(corners), 3))
    points[:, :2] = corners
    points[:, 0] += lateral
    points[:, 2] = station
    return points


def limb(start: tuple[float, float], end: tuple[float, float], thick: float, thin: float) -> list[tuple[float, float]]:
    """A tapering limb from start to end as a polygon (right, up); ``thick`` and ``thin`` are its widths in metres."""
    dx, dy = end[0] - start[0], end[1] - start[1]
    length = max(1e-6, float(np.hypot(dx, dy)))
    nx, ny = -dy / length / 2, dx / length / 2
    return [
        (start[0] + nx * thick, start[1] + ny * thick),
        (end[0] + nx * thin, end[1] + ny * thin),
        (end[0] - nx * thin, end[1] - ny * thin),
        (start[0] - nx * thick, start[1] - ny * thick),
    ]


@dataclass(frozen=True)
class Placement:
    """A place on the street: lateral and station in metres, yaw in radians (0: the body looks along the street)."""

    lateral: float
    station: float
    yaw: float = 0.0

    def place(self, local: Points) -> Points:
        """Street points ``[N, 3]`` of local ones (right, up, forward)."""
        cosine, sine = cos(self.yaw), sin(self.yaw)
        placed = np.empty_like(local)
        placed[:, 0] = self.lateral + cosine * local[:, 0] + sine * local[:, 2]
        placed[:, 1] = local[:, 1]
        placed[:, 2] = self.station - sine * local[:, 0] + cosine * local[:, 2]
        return placed

    def turn(self, normal: Points) -> Points:
        """A local direction in street axes."""
        cosine, sine = cos(self.yaw), sin(self.yaw)
        return np.array([cosine * normal[0] + sine * normal[2], normal[1], -sine * normal[0] + cosine * normal[2]])


@dataclass(frozen=True)
class Face:
    """One flat face in local coordinates: corners ``[N, 3]``, outward normal, and its name (``left``, ``edge 3``)."""

    name: str
    corners: Points
    normal: Points


def prism(profile: Points, width: float) -> list[Face]:
    """Faces of a side profile ``[N, 2]`` (forward, up), counter-clockwise seen from the right, ``width`` m wide.

    ``edge i`` runs from profile corner i to i + 1; its first two corners are on the left.
    """
    count = len(profile)
    half = width / 2
    sides = {x: np.column_stack([np.full(count, x), profile[:, 1], profile[:, 0]]) for x in (-half, half)}
    faces = [Face("left", sides[-half], np.array([-1.0, 0, 0])), Face("right", sides[half], np.array([1.0, 0, 0]))]
    for i in range(count):
        j = (i + 1) % count
        along = profile[j] - profile[i]
        outward = np.array([0.0, -along[0], along[1]]) / max(1e-9, float(np.hypot(*along)))
        corners = np.stack([sides[-half][i], sides[-half][j], sides[half][j], sides[half][i]])
        faces.append(Face(f"edge {i}", corners, outward))
    return faces


def box(width: float, height: float, length: float, base: float = 0.0) -> list[Face]:
    """A box centred over its place, its foot ``base`` m above the ground."""
    half = length / 2
    return prism(np.array([[half, base], [half, base + height], [-half, base + height], [-half, base]]), width)


def visible(faces: list[Face], placement: Placement, stage: Stage) -> list[tuple[Face, Points, Points]]:
    """Faces that look at the camera, farthest first: (face, street corners, street normal)."""
    shown = []
    camera = stage.camera
    for face in faces:
        corners = placement.place(face.corners)
        normal = placement.turn(face.normal)
        x, y, z = (sum(axis) / len(corners) for axis in corners.T.tolist())
        x, y, z = x, y - camera.height, z - camera.station
        x += camera.curvature / 2 * max(1.0, z) ** 2
        if x * normal[0] + y * normal[1] + z * normal[2] < 0:
            shown.append((x * x + y * y + z * z, face, corners, normal))
    return [(face, corners, normal) for _, face, corners, normal in sorted(shown, key=lambda item: -item[0])]


def draw_solid(
    faces: list[Face], placement: Placement, stage: Stage, colour: Points, label: int, patch: Floats | None = None
) -> None:
    """Draw the faces that look at the camera, each in the colour lit by its own direction."""
    for _, corners, normal in visible(faces, placement, stage):
        stage.flat(corners, colour * stage.light.shade(normal), label, patch, one_depth=False)


def on_face(corners: Points, left: float, right: float, low: float, high: float) -> Points:
    """A rectangle on a four-cornered face of :func:`prism`, as shares (0..1) across it and up along its edge."""
    a, b, c, d = corners

    def at(across: float, along: float) -> Points:
        point: Points = (1 - along) * ((1 - across) * a + across * d) + along * ((1 - across) * b + across * c)
        return point

    return np.stack([at(left, low), at(left, high), at(right, high), at(right, low)])
