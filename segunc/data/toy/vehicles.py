"""Cars: five body shapes with windows, wheels, lights and number plates, parked or driving."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from segunc.data.toy import palette, textures
from segunc.data.toy.camera import Floats, Points
from segunc.data.toy.canvas import CAR, Stage
from segunc.data.toy.solids import Placement, on_face, prism, visible

# Side profiles (forward, up) in metres for a length of 4.4 m, counter-clockwise seen from the right, from the
# front bumper up over hood, windscreen, roof, rear window and boot. The named edges carry glass.
_PROFILES: dict[str, tuple[list[tuple[float, float]], dict[str, int]]] = {
    "sedan": (
        [
            (2.2, 0.3),
            (2.2, 0.7),
            (1.9, 0.85),
            (0.95, 0.95),
            (0.25, 1.42),
            (-0.85, 1.44),
            (-1.5, 1.0),
            (-2.15, 0.95),
            (-2.2, 0.3),
        ],
        {"screen": 3, "roof": 4, "rear": 5, "nose": 0, "tail": 7},
    ),
    "hatchback": (
        [
            (2.1, 0.3),
            (2.1, 0.7),
            (1.8, 0.88),
            (1.0, 0.98),
            (0.35, 1.46),
            (-1.5, 1.48),
            (-2.0, 0.98),
            (-2.1, 0.9),
            (-2.1, 0.3),
        ],
        {"screen": 3, "roof": 4, "rear": 5, "nose": 0, "tail": 7},
    ),
    "suv": (
        [
            (2.2, 0.4),
            (2.2, 0.9),
            (2.0, 1.08),
            (1.0, 1.14),
            (0.45, 1.72),
            (-1.8, 1.74),
            (-2.12, 1.12),
            (-2.2, 1.05),
            (-2.2, 0.4),
        ],
        {"screen": 3, "roof": 4, "rear": 5, "nose": 0, "tail": 7},
    ),
    "van": (
        [
            (2.3, 0.35),
            (2.3, 0.9),
            (2.1, 1.1),
            (1.6, 1.2),
            (1.0, 1.95),
            (-2.2, 2.0),
            (-2.3, 1.15),
            (-2.3, 1.1),
            (-2.3, 0.35),
        ],
        {"screen": 3, "roof": 4, "rear": 5, "nose": 0, "tail": 7},
    ),
}
_GLASS = np.array([0.13, 0.16, 0.19])
_TYRE = np.array([0.07, 0.07, 0.075])


@dataclass(frozen=True)
class Car:
    """One car; ``station`` is its middle, ``yaw`` 0 looks away from the camera, pi towards it.

    ``speed`` is along the street in m/s, 0 for a parked car.
    """

    lateral: float
    station: float
    yaw: float
    body: str
    colour: Points
    width: float
    scale: float
    patch: Floats
    glass: Points
    braking: bool
    speed: float = 0.0

    @property
    def placement(self) -> Placement:
        return Placement(self.lateral, self.station, self.yaw)

    def _profile(self) -> Points:
        return np.array(_PROFILES[self.body][0]) * self.scale

    def footprint(self) -> Points:
        """Street points of the foot and of the roof, for shadows."""
        profile = self._profile()
        half = self.width / 2
        ends = (float(profile[:, 0].min()), float(profile[:, 0].max()))
        foot = [(x, 0.0, z) for x in (-half, half) for z in ends]
        top = [(x, float(profile[:, 1].max()), z) for x in (-0.8 * half, 0.8 * half) for z in (ends[0] + 0.5, 0.6)]
        return self.placement.place(np.array(foot + top))

    def draw(self, stage: Stage) -> None:
        """Draw the underbody, the lit faces, then glass, lights and wheels on them."""
        profile, edges, light = self._profile(), _PROFILES[self.body][1], stage.light
        # Of a far car only body and glass are left.
        near = stage.camera.pixels_per_metre(self.station) > 5
        dark = _TYRE * light.shade((0, 0.2, 0))
        low, ends = float(profile[0, 1]), (float(profile[-1, 0]) + 0.25, float(profile[0, 0]) - 0.25)
        under = prism(np.array([[ends[1], 0.06], [ends[1], low], [ends[0], low], [ends[0], 0.06]]), self.width * 0.9)
        for _, corners, _ in visible(under, self.placement, stage):
            stage.flat(corners, dark, CAR)
        shown = visible(prism(profile, self.width), self.placement, stage)
        for face, corners, normal in shown:
            stage.flat(corners, self.colour * light.shade(normal), CAR, self.patch)
            if face.name in ("left", "right"):
                self._side(stage, face.name, normal, near)
            elif face.name in (f"edge {edges['screen']}", f"edge {edges['rear']}"):
                glass = self.glass * light.shade(normal) + 0.12 * light.skyline
                stage.flat(on_face(corners, 0.1, 0.9, 0.12, 0.88), glass, CAR)
            elif near and face.name == f"edge {edges['nose']}":
                self._lamps(stage, corners, normal, np.array([0.85, 0.85, 0.75]), 0.55, 0.95)
            elif near and face.name == f"edge {edges['tail']}":
                red = np.array([0.85, 0.06, 0.05]) if self.braking else np.array([0.45, 0.05, 0.06])
                # The tail's edge runs downwards.
                self._lamps(stage, corners, normal, red, 0.12, 0.42)

    def _lamps(self, stage: Stage, corners: Points, normal: Points, colour: Points, low: float, high: float) -> None:
        shade = stage.light.shade(normal)
        for left, right in ((0.04, 0.22), (0.78, 0.96)):
            lamp = colour * (1.0 if self.braking else shade)
            stage.flat(on_face(corners, left, right, low, high), lamp, CAR)
        middle = (0.5, 0.75) if low < 0.5 else (0.15, 0.4)
        stage.flat(on_face(corners, 0.36, 0.64, *middle), np.array([0.75, 0.75, 0.7]) * shade, CAR)
        bumper = (0.8, 1.0) if low < 0.5 else (0.0, 0.14)
        stage.flat(on_face(corners, 0.0, 1.0, *bumper), 0.12 * shade, CAR)

    def _side(self, stage: Stage, name: str, normal: Points, near: bool) -> None:
        profile = self._profile()
        half = self.width / 2 * (1 if name == "right" else -1)
        cabin = profile[3:7]
        centre = cabin.mean(axis=0)
        glass = self.glass * stage.light.shade(normal) + 0.1 * stage.light.skyline
        inner = centre + (cabin - centre) * (0.82, 0.72)
        split = float(centre[0])
        if self.body == "van":  # a loading space without side windows
            inner[2:, 0] = np.maximum(inner[2:, 0], split + 0.2)
        points = np.column_stack([np.full(4, half), inner[:, 1], inner[:, 0]])
        stage.flat(self.placement.place(points), glass, CAR)
        if not near:
            return
        pillar = np.array([[split - 0.05, inner[:, 1].min()], [split + 0.05, inner[:, 1].min()],
                           [split + 0.05, inner[:, 1].max()], [split - 0.05, inner[:, 1].max()]])  # fmt: skip
        if self.body != "van":
            stage.flat(
                self.placement.place(np.column_stack([np.full(4, half), pillar[:, 1], pillar[:, 0]])),
                self.colour * stage.light.shade(normal), CAR,
            )  # fmt: skip
        angles = np.linspace(0, 2 * np.pi, 12, endpoint=False)
        for z in (profile[0, 0] - 0.8 * self.scale, profile[-1, 0] + 0.8 * self.scale):
            for radius, colour in ((0.34, _TYRE), (0.2, np.full(3, 0.42))):
                r = radius * self.scale
                wheel = np.column_stack(
                    [np.full(12, half), 0.33 * self.scale + r * np.sin(angles), z + r * np.cos(angles)]
                )
                stage.flat(self.placement.place(wheel), colour * stage.light.shade(normal), CAR)


def sample_car(rng: np.random.Generator, lateral: float, station: float, yaw: float, speed: float = 0.0) -> Car:
    """A random car at a place."""
    body = str(rng.choice(list(_PROFILES), p=(0.35, 0.3, 0.22, 0.13)))
    # Paint mirrors the sky above and the street below.
    gloss = np.linspace(1.12, 0.85, 48, dtype=np.float32)[:, None]
    patch = textures.speckle(rng, float(rng.uniform(0.02, 0.08)), "cloud") * gloss
    if body == "van" and rng.random() < 0.4:  # lettering, dirt, a company's stripes
        patch = 1 + 0.5 * (textures.fabric(rng) - 1)
    return Car(
        lateral=lateral,
        station=station,
        yaw=yaw + float(rng.normal(0, 0.03)),
        body=body,
        colour=palette.car(rng),
        width=float(rng.uniform(1.7, 1.95)) + (0.1 if body == "van" else 0.0),
        scale=float(rng.uniform(0.93, 1.1)),
        patch=patch,
        glass=_GLASS * rng.uniform(0.6, 1.6),
        braking=bool(rng.random() < 0.3),
        speed=speed,
    )
