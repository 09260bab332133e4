"""Solid bodies in street coordinates: a side profile drawn out over a width, turned and lit face by face."""

from __future__ import annotations

from dataclasses import dataclass
from math import cos, sin

import numpy as np

from segunc.data.toy.camera import Floats, Points
from segunc.data.toy.canvas import Stage


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
