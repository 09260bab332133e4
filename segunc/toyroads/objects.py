"""What stands and moves on a street."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from segunc.toyroads import paint
from segunc.toyroads.camera import Floats, Outline, Points
from segunc.toyroads.canvas import CAR, LEFT, PERSON, POLE, RIGHT, SIGN, Placement, Stage, Thing, ellipse, limb, on_face

_FACING = (0.0, 0.1, -0.995)


@dataclass(frozen=True)
class Post(Thing):
    """A lamp post (``arm`` m over the street, to the side of its sign) or, without an arm, a plain post or bollard."""

    height: float
    width: float
    arm: float
    colour: Points
    patch: Floats

    def footprint(self) -> Points:
        half = self.width / 2
        return self.upright(half, (-half, half), self.height, half)

    def draw(self, stage: Stage) -> None:
        arm, top, wide = self.arm, self.height, self.width
        colour = self.colour * stage.light.shade(_FACING)
        patch = paint.rounded(self.patch, stage.light.side)
        self.fill(stage, limb((0, 0), (0, top), wide, wide * (0.6 if arm else 0.95)), colour, POLE, patch)
        self.fill(stage, limb((0, 0), (0, min(0.6, 0.3 * top)), 1.5 * wide, 1.4 * wide), colour * 0.9, POLE, patch)
        if arm:
            bend = (0.25 * arm, top + 0.3)
            for start, end in (((0.0, top - 0.05), bend), (bend, (arm, top + 0.35))):
                self.fill(stage, limb(start, end, 0.1, 0.08), colour, POLE)
            glow = np.array([1.0, 0.85, 0.55]) if stage.light.weather == "dusk" else colour * 1.2
            lamp = limb((0.8 * arm, top + 0.33), (1.15 * arm, top + 0.33), 0.14, 0.2)
            self.fill(stage, lamp, glow, POLE)


def sample_post(rng: np.random.Generator, lateral: float, station: float) -> Post:
    """A lamp post whose arm reaches over the street, at times a plain post or a bollard."""
    kind = rng.random()
    colour, patch = paint.colour(rng, "metal"), paint.speckle(rng, 0.08)
    arm = 0.0
    if kind < 0.7:
        arm = rng.uniform(0.8, 2.0) * (1 if lateral < 0 else -1)
        heights, widths = (5.0, 8.0), (0.16, 0.26)
    else:
        heights, widths = ((3.0, 7.0), (0.12, 0.22)) if kind < 0.85 else ((0.8, 1.1), (0.13, 0.2))
    return Post(lateral, station, rng.uniform(*heights), rng.uniform(*widths), arm, colour, patch)


# Corners and the angle of the first one in degrees; the other two shapes are no regular polygons.
_POLYGONS = {"triangle": (3, 90.0), "octagon": (8, 22.5), "diamond": (4, 90.0), "yield": (3, -90.0)}
_SHAPES = ("round", "triangle", "octagon", "diamond", "plate", "yield")
# The marks on a sign: bars from (right, up) to (right, up) of some widths, all in half sizes of the sign.
_MARKS: tuple[tuple[tuple[float, ...], ...], ...] = (
    (),
    ((-0.5, 0, 0.5, 0, 0.28, 0.28),),
    ((0, -0.5, 0, 0.4, 0.24, 0.16),),
    ((-0.35, -0.35, 0.35, 0.35, 0.2, 0.2),),
    ((-0.3, -0.3, -0.3, 0.3, 0.22, 0.22), (0.3, -0.3, 0.3, 0.3, 0.22, 0.22)),
)


@dataclass(frozen=True)
class Sign(Thing):
    """A traffic sign (or two, one under the other: shape, face, rim and mark of each) on a post, facing the camera."""

    height: float
    size: float
    plates: tuple[tuple[str, Points, Points, int], ...]
    post: Points

    def footprint(self) -> Points:
        return self.upright(0.05, (-0.05, 0.05), self.height, 0.05)

    def draw(self, stage: Stage) -> None:
        shade = stage.light.shade(_FACING)
        self.fill(stage, limb((0, 0), (0, self.height), 0.09, 0.09), self.post * shade, POLE)
        half, centre = 0.5 * self.size, self.height - 0.5 * self.size
        for shape, face, rim, mark in self.plates:
            # Sign faces are retro-reflective: brighter than their paint.
            for scale, colour in ((1.0, rim), (0.78, face)):
                outline = _outline(shape, half * scale) + np.array([0, centre])
                self.fill(stage, outline, colour * shade * 1.15, SIGN)
            colour = rim * shade if face.mean() > 0.6 else np.full(3, 0.85) * shade
            for a, b, c, d, thick, thin in _MARKS[mark]:
                start, end = (a * half, centre + b * half), (c * half, centre + d * half)
                self.fill(stage, limb(start, end, thick * half, thin * half), colour, SIGN)
            centre -= 1.05 * self.size


def _outline(shape: str, radius: float) -> Points:
    if shape == "round":
        return ellipse((0, 0), (radius, radius))
    if shape == "plate":
        return np.array([(-0.8, -1), (0.8, -1), (0.8, 1), (-0.8, 1)]) * radius
    corners, start = _POLYGONS[shape]
    angles = np.deg2rad(start + 360 / corners * np.arange(corners))
    return 1.1 * radius * np.column_stack([np.cos(angles), np.sin(angles)])


def sample_sign(rng: np.random.Generator, lateral: float, station: float) -> Sign:
    """A random traffic sign."""
    count = 2 if rng.random() < 0.3 else 1
    faces = [paint.colour(rng, "sign") for _ in range(count)]
    height, size = rng.uniform(2.4, 3.4), rng.uniform(0.7, 1.05)
    shapes = [str(rng.choice(_SHAPES)) for _ in range(count)]
    rims = [paint.colour(rng, "sign") if rng.random() < 0.6 else face * 0.9 for face in faces]
    marks = [int(rng.integers(len(_MARKS))) for _ in range(count)]
    plates = tuple(zip(shapes, faces, rims, marks, strict=True))
    return Sign(lateral, station, height, size, plates, post=paint.colour(rng, "metal"))


@dataclass(frozen=True)
class Person(Thing):
    """One person; ``stride`` is the swing of the legs in radians, ``turn`` the width seen (0.6 side .. 1 front)."""

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
        return self.upright(0.2, (-0.1, 0.15), self.height, 0.15)

    def draw(self, stage: Stage) -> None:
        """Legs first, then the far arm, the trunk, the near arm and the head."""
        h, light = self.height, stage.light
        shade = light.shade((0.0, 0.25, -0.97)) * 1.05
        patch = paint.rounded(self.patch, light.side)
        wide = 0.125 * h * self.build * self.turn
        hip, shoulder = 0.5 * h, 0.82 * h

        def part(corners: Outline, colour: Points) -> None:
            self.fill(stage, corners, colour * shade, PERSON, patch)

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
                shoe = limb((foot[0] - 0.03, 0.02 * h), (foot[0] + 0.06, 0.02 * h), 0.045 * h, 0.04 * h)
                part(shoe, self.trousers * 0.4)
        if self.skirt:
            low, flare = 0.26 * h, 1.5 * wide
            part([(-wide, hip + 0.08), (wide, hip + 0.08), (flare, low), (-flare, low)], self.top * 0.8)
        right = [(0.85 * wide, hip - 0.02 * h), (wide, shoulder - 0.04 * h), (0.55 * wide, shoulder + 0.01 * h)]
        left = [(-x, y) for x, y in right]
        part([left[0], *right, *left[:0:-1]], self.top)
        for sign in (-1, 1):
            joint = (sign * 0.95 * wide, shoulder - 0.03 * h)
            hand = (joint[0] - 0.6 * sign * swing + 0.02 * sign, 0.46 * h)
            part(limb(joint, hand, 0.065 * h, 0.045 * h), self.top * 0.88)
            if not near:
                continue
            self.fill(stage, ellipse((hand[0], hand[1] - 0.01), (0.05, 0.06)), self.skin * shade, PERSON)
            if self.bag == sign:
                low = hand[1] - 0.02
                bag = ((-0.13, low), (0.13, low), (0.15, low - 0.3), (-0.15, low - 0.3))
                part([(hand[0] + x, y) for x, y in bag], self.hair)
        self.fill(stage, ellipse((0, 0.86 * h), (0.045, 0.07)), self.skin * shade * 0.9, PERSON)
        self.fill(stage, ellipse((0, 0.925 * h), (0.052 * h * 0.95, 0.072 * h)), self.hair * shade, PERSON)
        if self.turn > 0.7 or self.bag != 0:
            self.fill(stage, ellipse((0.01, 0.905 * h), (0.04 * h, 0.052 * h)), self.skin * shade, PERSON)


def sample_person(rng: np.random.Generator, lateral: float, station: float) -> Person:
    """A random person at a place."""
    return Person(
        lateral,
        station,
        height=rng.uniform(1.5, 1.92) if rng.random() < 0.88 else rng.uniform(1.05, 1.4),
        stride=rng.uniform(0.05, 0.5) if rng.random() < 0.75 else 0.03,
        turn=rng.uniform(0.6, 1.0),
        build=rng.uniform(0.9, 1.3),
        top=paint.colour(rng, "clothing"),
        trousers=paint.colour(rng, "clothing") * 0.85,
        skin=paint.colour(rng, "skin"),
        hair=paint.colour(rng, "bark") * rng.uniform(0.4, 1.4),
        patch=paint.fabric(rng),
        skirt=rng.random() < 0.2,
        bag=int(rng.choice([-1, 0, 0, 1])),
    )


# Side profiles (forward; up) in metres for a length of 4.4 m, counter-clockwise seen from the right, from the
# front bumper up over hood, windscreen, roof, rear window and boot.
_PROFILES = {
    "sedan": ((2.2, 2.2, 1.9, 0.95, 0.25, -0.85, -1.5, -2.15, -2.2), (0.3, 0.7, 0.85, 0.95, 1.42, 1.44, 1.0, 0.95, 0.3)),
    "hatchback": ((2.1, 2.1, 1.8, 1.0, 0.35, -1.5, -2.0, -2.1, -2.1), (0.3, 0.7, 0.88, 0.98, 1.46, 1.48, 0.98, 0.9, 0.3)),
    "suv": ((2.2, 2.2, 2.0, 1.0, 0.45, -1.8, -2.12, -2.2, -2.2), (0.4, 0.9, 1.08, 1.14, 1.72, 1.74, 1.12, 1.05, 0.4)),
    "van": ((2.3, 2.3, 2.1, 1.6, 1.0, -2.2, -2.3, -2.3, -2.3), (0.35, 0.9, 1.1, 1.2, 1.95, 2.0, 1.15, 1.1, 0.35)),
}  # fmt: skip
_NOSE, _SCREEN, _REAR, _TAIL = 0, 3, 5, 7  # edges of the profiles that carry lamps and glass
_TYRE = np.array([0.07, 0.07, 0.075])
_CIRCLE = np.linspace(0, 2 * np.pi, 12, endpoint=False)


@dataclass(frozen=True)
class Car(Thing):
    """One car; ``station`` is its middle, ``yaw`` 0 looks away from the camera, pi towards it.

    ``speed`` is along the street in m/s, 0 for a parked car.
    """

    yaw: float
    body: str
    colour: Points
    width: float
    scale: float
    patch: Floats
    glass: Points
    braking: bool
    speed: float

    def _placement(self) -> Placement:
        return Placement(self.lateral, self.station, self.yaw)

    def _profile(self) -> Points:
        return np.column_stack(_PROFILES[self.body]) * self.scale

    def footprint(self) -> Points:
        profile, half = self._profile(), self.width / 2
        (back, _), (front, roof) = profile.min(axis=0), profile.max(axis=0)
        foot = [(x, 0.0, z) for x in (-half, half) for z in (back, front)]
        top = [(x, roof, z) for x in (-0.8 * half, 0.8 * half) for z in (back + 0.5, 0.6)]
        return self._placement().place(np.array(foot + top))

    def draw(self, stage: Stage) -> None:
        """Draw the underbody, the lit faces, then glass, lights and wheels on them."""
        profile, light, place = self._profile(), stage.light, self._placement()
        # Of a far car only body and glass are left.
        near = stage.camera.pixels_per_metre(self.station) > 5
        low, front, back = profile[0, 1], profile[0, 0] - 0.25, profile[-1, 0] + 0.25
        under = np.array([[front, 0.06], [front, low], [back, low], [back, 0.06]])
        for _, corners, _ in place.visible(under, self.width * 0.9, stage):
            stage.flat(corners, _TYRE * light.shade((0, 0.2, 0)), CAR)
        for face, corners, normal in place.visible(profile, self.width, stage):
            shade = light.shade(normal)
            stage.flat(corners, self.colour * shade, CAR, self.patch)
            if face in (LEFT, RIGHT):
                self._side(stage, self.width / 2 * (1 if face == RIGHT else -1), shade, near)
            elif face in (_SCREEN, _REAR):
                stage.flat(on_face(corners, 0.1, 0.9, 0.12, 0.88), self.glass * shade + 0.12 * light.skyline, CAR)
            elif near and face in (_NOSE, _TAIL):
                self._end(stage, corners, shade, face == _TAIL)

    def _end(self, stage: Stage, corners: Points, shade: Points, tail: bool) -> None:
        """Lamps, number plate and bumper."""
        if tail:  # its edge runs downwards
            colour = np.array([0.85, 0.06, 0.05]) if self.braking else np.array([0.45, 0.05, 0.06])
            lamps, plate, bumper = (0.12, 0.42), (0.5, 0.75), (0.8, 1.0)
        else:
            colour = np.array([0.85, 0.85, 0.75])
            lamps, plate, bumper = (0.55, 0.95), (0.15, 0.4), (0.0, 0.14)
        for left, right in ((0.04, 0.22), (0.78, 0.96)):
            stage.flat(on_face(corners, left, right, *lamps), colour * (1.0 if self.braking else shade), CAR)
        stage.flat(on_face(corners, 0.36, 0.64, *plate), np.array([0.75, 0.75, 0.7]) * shade, CAR)
        stage.flat(on_face(corners, 0.0, 1.0, *bumper), 0.12 * shade, CAR)

    def _side(self, stage: Stage, lateral: float, shade: Points, near: bool) -> None:
        """Windows and wheels, ``lateral`` m beside the car's middle."""
        profile, place, scale = self._profile(), self._placement(), self.scale

        def fill(forward: Points, up: Points, colour: Points) -> None:
            points = np.column_stack([np.full(len(forward), lateral), up, forward])
            stage.flat(place.place(points), colour, CAR)

        cabin = profile[3:7]
        centre = cabin.mean(axis=0)
        inner = centre + (cabin - centre) * (0.82, 0.72)
        split = centre[0]
        if self.body == "van":  # a loading space without side windows
            inner[2:, 0] = np.maximum(inner[2:, 0], split + 0.2)
        fill(inner[:, 0], inner[:, 1], self.glass * shade + 0.1 * stage.light.skyline)
        if not near:
            return
        if self.body != "van":  # the pillar between the doors
            low, high = inner[:, 1].min(), inner[:, 1].max()
            pillar = split + np.array([-0.05, 0.05, 0.05, -0.05])
            fill(pillar, np.array([low, low, high, high]), self.colour * shade)
        for z in (profile[0, 0] - 0.8 * scale, profile[-1, 0] + 0.8 * scale):
            for radius, colour in ((0.34 * scale, _TYRE), (0.2 * scale, np.full(3, 0.42))):
                fill(z + radius * np.cos(_CIRCLE), 0.33 * scale + radius * np.sin(_CIRCLE), colour * shade)


def sample_car(rng: np.random.Generator, lateral: float, station: float, yaw: float, speed: float = 0.0) -> Car:
    """A random car at a place."""
    body = str(rng.choice(list(_PROFILES), p=(0.35, 0.3, 0.22, 0.13)))
    # Paint mirrors the sky above and the street below.
    gloss = np.linspace(1.12, 0.85, 48, dtype=np.float32)[:, None]
    patch = paint.speckle(rng, rng.uniform(0.02, 0.08), "cloud") * gloss
    if body == "van" and rng.random() < 0.4:  # lettering, dirt, a company's stripes
        patch = 1 + 0.5 * (paint.fabric(rng) - 1)
    return Car(
        lateral,
        station,
        yaw=yaw + rng.normal(0, 0.03),
        body=body,
        colour=paint.colour(rng, "car"),
        width=rng.uniform(1.7, 1.95) + (0.1 if body == "van" else 0.0),
        scale=rng.uniform(0.93, 1.1),
        patch=patch,
        glass=np.array([0.13, 0.16, 0.19]) * rng.uniform(0.6, 1.6),
        braking=rng.random() < 0.3,
        speed=speed,
    )
