"""The pinhole camera of the toy scenes, over a gently bending street, and the shapes that things are made of.

Street coordinates in metres: lateral (right of the camera's path), up (above the ground), station (along the
street). The street bends with a constant curvature seen from the camera, so a point ``station`` ahead is moved
sideways by ``curvature / 2 * distance^2``; everything that is projected bends with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import cos, sin, tan

import numpy as np
import numpy.typing as npt

Points = npt.NDArray[np.float64]
Floats = npt.NDArray[np.float32]
Corner = tuple[float, float]
Outline = list[Corner] | Points

NEAR = 1.0  # metres in front of the camera; what is nearer is not drawn
LEFT, RIGHT = -2, -1  # numbers of a solid's sides


@dataclass(frozen=True)
class Camera:
    """A camera ``height`` m above the ground at a station of the street, looking along it, for a canvas of some pixels."""

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
        """Return canvas positions (column, row) ``[N, 2]`` of street points ``[N, 3]``; distances are held at NEAR or more."""
        distance = np.maximum(points[:, 2] - self.station, NEAR)
        scale = self.focal / distance
        x = (points[:, 0] + self.curvature / 2 * distance * distance) * scale
        y = (self.height - points[:, 1]) * scale
        cosine, sine = cos(self.roll), sin(self.roll)
        columns, rows = self.columns / 2 + cosine * x - sine * y, self.horizon * self.rows + sine * x + cosine * y
        return np.column_stack([columns, rows])

    def clip(self, points: Points) -> Points:
        """Return the part of a polygon ``[N, 3]`` that lies beyond NEAR (Sutherland & Hodgman 1974); may be empty."""
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

    def ground_grid(self) -> tuple[int, Floats, Floats, Floats]:
        """Return the first row that may show ground, and street coordinates of the ground under each pixel from there.

        These are lateral, distance (from the camera; infinite above the horizon) and slope (metres of lateral that a
        pixel spans), each float32 ``[rows - first, columns]``.
        """
        # The roll lifts the horizon at one side.
        lift = abs(np.sin(self.roll)) * self.columns / 2
        first = int(np.clip(np.floor(self.horizon * self.rows - lift), 0, self.rows - 1))
        row = np.arange(first, self.rows, dtype=np.float32)[:, None] + np.float32(0.5 - self.horizon * self.rows)
        column = np.arange(self.columns, dtype=np.float32)[None] + np.float32(0.5 - self.columns / 2)
        cosine, sine = np.float32(np.cos(self.roll)), np.float32(np.sin(self.roll))
        below = cosine * row - sine * column
        across = cosine * column + sine * row
        with np.errstate(divide="ignore"):
            distance = np.where(below > 0.02, np.float32(self.focal * self.height) / below, np.float32(np.inf))
        slope = distance / np.float32(self.focal)
        near = np.minimum(distance, np.float32(1e4))
        lateral = across * near / np.float32(self.focal) - np.float32(self.curvature / 2) * near**2
        return first, lateral.astype(np.float32), distance.astype(np.float32), slope.astype(np.float32)


def turned(local: Points, yaw: float, lateral: float = 0.0, station: float = 0.0) -> Points:
    """Return street points or directions ``[N, 3]`` of local ones (right, up, forward) at a turned place."""
    cosine, sine = cos(yaw), sin(yaw)
    right, up, forward = local.T
    return np.column_stack([lateral + cosine * right + sine * forward, up, station - sine * right + cosine * forward])


def upright(half: float, depths: Corner, height: float, top: float) -> Points:
    """Return the reach of four points at the foot, ``half`` m to both sides, and two ``height`` m above it."""
    foot = [(x, 0.0, z) for x in (-half, half) for z in depths]
    return np.array([*foot, *((x, height, 0.0) for x in (-top, top))])


def boxed(laterals: Corner, height: float, depths: Corner) -> Points:
    """Return the reach of a box on the ground along the street: its eight corners."""
    return np.array([(x, y, z) for x in laterals for y in (0.0, height) for z in depths])


_ANGLES = np.linspace(0, 2 * np.pi, 16, endpoint=False)


def ellipse(centre: Corner, radii: Corner, tilt: float = 0.0) -> Points:
    """Return the outline ``[16, 2]`` (right, up) of an ellipse turned by ``tilt`` radians."""
    x, y = radii[0] * np.cos(_ANGLES), radii[1] * np.sin(_ANGLES)
    cosine, sine = np.cos(tilt), np.sin(tilt)
    return np.column_stack([centre[0] + cosine * x - sine * y, centre[1] + sine * x + cosine * y])


def limb(start: Corner, end: Corner, thick: float, thin: float) -> list[Corner]:
    """Return a tapering limb from start to end as a polygon (right, up); ``thick`` and ``thin`` are its widths in metres."""
    dx, dy = end[0] - start[0], end[1] - start[1]
    length = max(1e-6, float(np.hypot(dx, dy)))
    nx, ny = -dy / length / 2, dx / length / 2
    ends = ((start, thick), (end, thin), (end, -thin), (start, -thick))
    return [(x + nx * width, y + ny * width) for (x, y), width in ends]


def block(length: float, height: float, base: float = 0.0) -> Points:
    """Return the side profile of a box centred over its place, its foot ``base`` m above the ground."""
    half = length / 2
    return np.array([[half, base], [half, base + height], [-half, base + height], [-half, base]])
