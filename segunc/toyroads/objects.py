"""What stands and moves on a street."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from segunc.toyroads import paint as palette
from segunc.toyroads import paint as textures
from segunc.toyroads.camera import Floats, Points
from segunc.toyroads.canvas import (
    CAR,
    PERSON,
    POLE,
    SIGN,
    Placement,
    Stage,
    ellipse,
    limb,
    on_face,
    prism,
    upright,
    visible,
)

_FACING = (0.0, 0.1, -0.995)
SHAPES = ("round", "triangle", "octagon", "diamond", "plate", "yield")


def _shadow_points(lateral: float, station: float, height: float, half: float) -> Points:
    ground = [(lateral + x, 0.0, station + z) for x in (-half, half) for z in (-half, half)]
    return np.array([*ground, (lateral - half, height, station), (lateral + half, height, station)])


@dataclass(frozen=True)
class Post:
    """A lamp post (``arm`` m over the street, to the side of its sign) or, without an arm, a plain post or bollard."""

    lateral: float
    station: float
    height: float
    width: float
    arm: float
    colour: Points
    patch: Floats

    def footprint(self) -> Points:
        """Street points of foot and top, for shadows."""
        return _shadow_points(self.lateral, self.station, self.height, self.width / 2)

    def draw(self, stage: Stage) -> None:
        colour = self.colour * stage.light.shade(_FACING)
        patch = textures.rounded(self.patch, stage.light.side)
        shaft = limb((0, 0), (0, self.height), self.width, self.width * (0.6 if self.arm else 0.95))
        stage.flat(upright(shaft, self.lateral, self.station), colour, POLE, patch)
        foot = limb((0, 0), (0, min(0.6, 0.3 * self.height)), 1.5 * self.width, 1.4 * self.width)
        stage.flat(upright(foot, self.lateral, self.station), colour * 0.9, POLE, patch)
        if self.arm:
            bend = (0.25 * self.arm, self.height + 0.3)
            for start, end in (((0, self.height - 0.05), bend), (bend, (self.arm, self.height + 0.35))):
                stage.flat(upright(limb(start, end, 0.1, 0.08), self.lateral, self.station), colour, POLE)
            lamp = limb((0.8 * self.arm, self.height + 0.33), (1.15 * self.arm, self.height + 0.33), 0.14, 0.2)
            glow = np.array([1.0, 0.85, 0.55]) if stage.light.weather == "dusk" else colour * 1.2
            stage.flat(upright(lamp, self.lateral, self.station), glow, POLE)


@dataclass(frozen=True)
class Sign:
    """A traffic sign (or two, one under the other) on a post, facing the camera."""

    lateral: float
    station: float
    height: float
    size: float
    shapes: tuple[str, ...]
    faces: tuple[Points, ...]
    rims: tuple[Points, ...]
    marks: tuple[int, ...]
    post: Points

    def footprint(self) -> Points:
        """Street points of foot and top, for shadows."""
        return _shadow_points(self.lateral, self.station, self.height, 0.05)

    def draw(self, stage: Stage) -> None:
        shade = stage.light.shade(_FACING)
        post = limb((0, 0), (0, self.height), 0.09, 0.09)
        stage.flat(upright(post, self.lateral, self.station), self.post * shade, POLE)
        centre = self.height - 0.5 * self.size
        for shape, face, rim, mark in zip(self.shapes, self.faces, self.rims, self.marks, strict=True):
            # Sign faces are retro-reflective: brighter than their paint.
            for scale, colour in ((1.0, rim), (0.78, face)):
                points = _outline(shape, 0.5 * self.size * scale)
                stage.flat(
                    upright([(x, y + centre) for x, y in points], self.lateral, self.station),
                    colour * shade * 1.15,
                    SIGN,
                )
            self._mark(stage, mark, centre, rim * shade if face.mean() > 0.6 else np.full(3, 0.85) * shade)
            centre -= 1.05 * self.size

    def _mark(self, stage: Stage, mark: int, centre: float, colour: Points) -> None:
        s = 0.5 * self.size
        bars = {
            0: [],
            1: [limb((-0.5 * s, centre), (0.5 * s, centre), 0.28 * s, 0.28 * s)],
            2: [limb((0, centre - 0.5 * s), (0, centre + 0.4 * s), 0.24 * s, 0.16 * s)],
            3: [limb((-0.35 * s, centre - 0.35 * s), (0.35 * s, centre + 0.35 * s), 0.2 * s, 0.2 * s)],
            4: [limb((x * s, centre - 0.3 * s), (x * s, centre + 0.3 * s), 0.22 * s, 0.22 * s) for x in (-0.3, 0.3)],
        }[mark]
        for bar in bars:
            stage.flat(upright(bar, self.lateral, self.station), colour, SIGN)


def _outline(shape: str, radius: float) -> list[tuple[float, float]]:
    if shape == "round":
        points = ellipse((0, 0, 0), (radius, radius))
        return [(float(x), float(y)) for x, y, _ in points]
    if shape == "plate":
        return [(-0.8 * radius, -radius), (0.8 * radius, -radius), (0.8 * radius, radius), (-0.8 * radius, radius)]
    corners, start = {"triangle": (3, 90.0), "yield": (3, -90.0), "diamond": (4, 90.0), "octagon": (8, 22.5)}[shape]
    angles = np.deg2rad(start + 360 / corners * np.arange(corners))
    return [(float(1.1 * radius * np.cos(a)), float(1.1 * radius * np.sin(a))) for a in angles]


def sample_post(rng: np.random.Generator, lateral: float, station: float) -> Post:
    """A lamp post whose arm reaches over the street, at times a plain post or a bollard."""
    kind = rng.random()
    colour, patch = palette.metal(rng), textures.speckle(rng, 0.08)
    if kind < 0.7:
        arm = float(rng.uniform(0.8, 2.0)) * (1 if lateral < 0 else -1)
        return Post(lateral, station, float(rng.uniform(5, 8)), float(rng.uniform(0.16, 0.26)), arm, colour, patch)
    if kind < 0.85:
        return Post(lateral, station, float(rng.uniform(3, 7)), float(rng.uniform(0.12, 0.22)), 0.0, colour, patch)
    return Post(lateral, station, float(rng.uniform(0.8, 1.1)), float(rng.uniform(0.13, 0.2)), 0.0, colour, patch)


def sample_sign(rng: np.random.Generator, lateral: float, station: float) -> Sign:
    """A random traffic sign."""
    count = 2 if rng.random() < 0.3 else 1
    faces = tuple(palette.sign(rng) for _ in range(count))
    return Sign(
        lateral=lateral,
        station=station,
        height=float(rng.uniform(2.4, 3.4)),
        size=float(rng.uniform(0.7, 1.05)),
        shapes=tuple(str(rng.choice(SHAPES)) for _ in range(count)),
        faces=faces,
        rims=tuple(palette.sign(rng) if rng.random() < 0.6 else face * 0.9 for face in faces),
        marks=tuple(int(rng.integers(5)) for _ in range(count)),
        post=palette.metal(rng),
    )


_FACING_people = (0.0, 0.25, -0.97)


@dataclass(frozen=True)
class Person:
    """One person; ``stride`` is the swing of the legs in radians, ``turn`` the width seen (0.6 side .. 1 front)."""

    lateral: float
    station: float
    height: float
    stride: float
    turn: float
    build: float
    top: Points
    trousers: Points
    skin: Points
    hair: Points
    patch: Floats
    skirt: bool
    bag: int

    def footprint(self) -> Points:
        """Street points of feet and head, for shadows."""
        half = 0.2
        return np.array(
            [
                *((self.lateral + x, 0.0, self.station + z) for x in (-half, half) for z in (-0.1, 0.15)),
                *((self.lateral + x, self.height, self.station) for x in (-0.15, 0.15)),
            ]
        )

    def draw(self, stage: Stage) -> None:
        """Legs first, then the far arm, the trunk, the near arm and the head."""
        h, light = self.height, stage.light
        shade = light.shade(_FACING_people) * 1.05
        patch = textures.rounded(self.patch, light.side)
        wide = 0.125 * h * self.build * self.turn
        hip, shoulder = 0.5 * h, 0.82 * h

        def part(corners: list[tuple[float, float]], colour: Points) -> None:
            stage.flat(upright(corners, self.lateral, self.station), colour * shade, PERSON, patch)

        # Hands, shoes and bags of far persons are less than a pixel.
        near = stage.camera.pixels_per_metre(self.station) > 14
        swing = 0.47 * h * np.sin(self.stride)
        for sign in (-1, 1):
            start = (sign * 0.045 * h * self.turn, hip)
            knee = (start[0] + 0.55 * sign * swing, 0.27 * h)
            foot = (start[0] + sign * swing, 0.03 * h)
            part(limb(start, knee, 0.1 * h * self.build, 0.075 * h), self.trousers)
            part(limb(knee, foot, 0.078 * h, 0.055 * h), self.trousers)
            if near:
                part(
                    limb((foot[0] - 0.03, 0.02 * h), (foot[0] + 0.06, 0.02 * h), 0.045 * h, 0.04 * h),
                    self.trousers * 0.4,
                )
        if self.skirt:
            part(
                [(-wide, hip + 0.08), (wide, hip + 0.08), (1.5 * wide, 0.26 * h), (-1.5 * wide, 0.26 * h)],
                self.top * 0.8,
            )
        part(
            [(-0.85 * wide, hip - 0.02 * h), (0.85 * wide, hip - 0.02 * h), (wide, shoulder - 0.04 * h),
             (0.55 * wide, shoulder + 0.01 * h), (-0.55 * wide, shoulder + 0.01 * h), (-wide, shoulder - 0.04 * h)],
            self.top,
        )  # fmt: skip
        for sign in (-1, 1):
            joint = (sign * 0.95 * wide, shoulder - 0.03 * h)
            hand = (joint[0] - 0.6 * sign * swing + 0.02 * sign, 0.46 * h)
            part(limb(joint, hand, 0.065 * h, 0.045 * h), self.top * 0.88)
            if not near:
                continue
            stage.disc((self.lateral + hand[0], hand[1] - 0.01, self.station), (0.05, 0.06), self.skin * shade, PERSON)
            if self.bag == sign:
                low = hand[1] - 0.02
                part(
                    [
                        (hand[0] - 0.13, low),
                        (hand[0] + 0.13, low),
                        (hand[0] + 0.15, low - 0.3),
                        (hand[0] - 0.15, low - 0.3),
                    ],
                    self.hair,
                )
        stage.disc((self.lateral, 0.86 * h, self.station), (0.045, 0.07), self.skin * shade * 0.9, PERSON)
        head = (self.lateral, 0.925 * h, self.station)
        stage.disc(head, (0.052 * h * 0.95, 0.072 * h), self.hair * shade, PERSON)
        if self.turn > 0.7 or self.bag != 0:
            face = (self.lateral + 0.01, 0.905 * h, self.station)
            stage.disc(face, (0.04 * h, 0.052 * h), self.skin * shade, PERSON)


def sample_person(rng: np.random.Generator, lateral: float, station: float) -> Person:
    """A random person at a place."""
    return Person(
        lateral=lateral,
        station=station,
        height=float(rng.uniform(1.5, 1.92)) if rng.random() < 0.88 else float(rng.uniform(1.05, 1.4)),
        stride=float(rng.uniform(0.05, 0.5)) if rng.random() < 0.75 else 0.03,
        turn=float(rng.uniform(0.6, 1.0)),
        build=float(rng.uniform(0.9, 1.3)),
        top=palette.clothing(rng),
        trousers=palette.clothing(rng) * 0.85,
        skin=palette.skin(rng),
        hair=palette.bark(rng) * rng.uniform(0.4, 1.4),
        patch=textures.fabric(rng),
        skirt=bool(rng.random() < 0.2),
        bag=int(rng.choice([-1, 0, 0, 1])),
    )


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
