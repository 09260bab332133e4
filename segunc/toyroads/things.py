"""What stands and moves on and beside a street, and the anomalies: things that no training scene
holds. Anomalies take their colours from the very distributions of the known things, so that colour
alone gives nothing away.

Each ``sample_*`` draws the random numbers of a thing; its recipe draws the thing at a place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import cv2
import numpy as np

from segunc.toyroads import canvas
from segunc.toyroads.canvas import (
    LEFT,
    RIGHT,
    Corner,
    Floats,
    Id,
    Outline,
    Place,
    Points,
    Random,
    Stage,
    Thing,
    ellipse,
    limb,
)

_FACING = (0.0, 0.1, -0.995)  # normal of what faces the camera, a little upwards


def sample_post(rng: Random, lateral: float, station: float) -> Thing:
    """Return a lamp post whose arm reaches over the street, at times a plain post."""
    colour = canvas.colour(rng, "metal")
    patch = canvas.speckle(rng, 0.08)
    arm = 0.0  # metres to the right
    if rng.random() < 0.75:
        over_the_street = 1 if lateral < 0 else -1
        arm = rng.uniform(0.8, 2.0) * over_the_street
    height = rng.uniform(4.0, 8.0)
    width = rng.uniform(0.14, 0.26)

    def draw(place: Place) -> None:
        light = place.stage.light
        lit = colour * light.shade(_FACING)
        post = limb((0, 0), (0, height), width, 0.7 * width)
        place.fill(post, lit, Id.POLE, canvas.rounded(patch, light.side))
        if arm:
            place.fill(limb((0.0, height - 0.05), (arm, height + 0.35), 0.1, 0.08), lit, Id.POLE)
            glow = np.array([1.0, 0.85, 0.55]) if light.weather == "dusk" else lit * 1.2
            lamp = limb((0.8 * arm, height + 0.33), (1.15 * arm, height + 0.33), 0.14, 0.2)
            place.fill(lamp, glow, Id.POLE)

    half = width / 2
    return Thing(lateral, station, canvas.upright(half, (-half, half), height, half), draw)


_TRIANGLE = np.array([(-0.95, -0.6), (0.95, -0.6), (0.0, 1.0)])
_PLATE = np.array([(-0.8, -1.0), (0.8, -1.0), (0.8, 1.0), (-0.8, 1.0)])
_SHAPES = (ellipse((0, 0), (1, 1)), _TRIANGLE, -_TRIANGLE, _PLATE)  # of signs, for a half size of 1


def sample_sign(rng: Random, lateral: float, station: float) -> Thing:
    """Return a traffic sign with a rim, on a post and facing the camera."""
    height = rng.uniform(2.4, 3.4)
    half = rng.uniform(0.38, 0.56)
    face = canvas.colour(rng, "sign")
    rim = canvas.colour(rng, "sign")
    post = canvas.colour(rng, "metal")
    shape = half * _SHAPES[rng.integers(len(_SHAPES))]

    def draw(place: Place) -> None:
        shade = place.stage.light.shade(_FACING)
        place.fill(limb((0, 0), (0, height), 0.09, 0.09), post * shade, Id.POLE)
        # Sign faces are retro-reflective: brighter than their canvas.
        for scale, colour in ((1.0, rim), (0.7, face)):
            outline = scale * shape + (0, height - half)
            place.fill(outline, colour * shade * 1.15, Id.SIGN)

    return Thing(lateral, station, canvas.upright(0.05, (-0.05, 0.05), height, 0.05), draw)


@dataclass(frozen=True)
class Person:
    """A person, whose legs and arms swing in a video."""

    height: float  # metres
    width: float  # of half a trunk, metres
    stride: float  # radians
    top: Points  # RGB of the clothes
    trousers: Points
    skin: Points
    hair: Points
    patch: Floats

    def draw(self, place: Place) -> None:
        light = place.stage.light
        shade = light.shade((0.0, 0.25, -0.97)) * 1.05
        body = canvas.rounded(self.patch, light.side)
        height = self.height
        hip = 0.5 * height
        shoulder = 0.82 * height
        swing = 0.47 * height * np.sin(self.stride * np.cos(6.0 * place.stage.time))

        def part(outline: Outline, colour: Points) -> None:
            place.fill(outline, colour * shade, Id.PERSON, body)

        for side in (-1, 1):
            hip_joint = (0.4 * side * self.width, hip)
            foot = (0.4 * side * self.width + side * swing, 0.0)
            part(limb(hip_joint, foot, 0.1 * height, 0.06 * height), self.trousers)
        trunk = limb((0, hip - 0.02 * height), (0, shoulder), 1.7 * self.width, 1.9 * self.width)
        part(trunk, self.top)
        for side in (-1, 1):
            shoulder_joint = (0.95 * side * self.width, shoulder - 0.03 * height)
            hand = (shoulder_joint[0] - 0.6 * side * swing, 0.46 * height)
            part(limb(shoulder_joint, hand, 0.065 * height, 0.045 * height), self.top * 0.88)
        part(ellipse((0, 0.925 * height), (0.05 * height, 0.072 * height)), self.hair)
        part(ellipse((0, 0.9 * height), (0.04 * height, 0.06 * height)), self.skin)


def sample_person(rng: Random, lateral: float, station: float) -> Thing:
    """Return a random person at a place."""
    height = rng.uniform(1.4, 1.92)
    stride = rng.uniform(0.05, 0.5)
    person = Person(
        height=height,
        stride=stride,
        width=0.125 * height * rng.uniform(0.65, 1.2),
        top=canvas.colour(rng, "clothing"),
        trousers=canvas.colour(rng, "clothing") * 0.85,
        skin=canvas.colour(rng, "skin"),
        hair=canvas.colour(rng, "bark"),
        patch=canvas.fabric(rng),
    )
    reach = canvas.upright(0.2, (-0.1, 0.15), height, 0.15)
    return Thing(lateral, station, reach, person.draw, half_width=0.3)


# Side profiles of cars of 4.4 m, corners (forward, up) in metres, counter-clockwise seen from the
# right, from the front bumper on.
_SEDAN = (
    (2.2, 0.2),
    (2.2, 0.7),
    (1.9, 0.85),
    (0.95, 0.95),
    (0.25, 1.42),
    (-0.85, 1.44),
    (-1.5, 1.0),
    (-2.15, 0.95),
    (-2.2, 0.2),
)
_ESTATE = (
    (2.2, 0.25),
    (2.2, 0.9),
    (2.0, 1.0),
    (1.0, 1.1),
    (0.45, 1.7),
    (-1.8, 1.72),
    (-2.12, 1.12),
    (-2.2, 1.05),
    (-2.2, 0.25),
)
_PROFILES = (_SEDAN, _ESTATE)
# Edges of the profiles that carry glass and lamps: the edge after the corner of this number.
_SCREEN = 3
_REAR = 5
_TAIL = 7
_CABIN = slice(3, 7)  # corners of the profiles around the side window
_TAIL_LAMPS = np.array([0.6, 0.05, 0.06])
_TYRE = np.array([0.07, 0.07, 0.075])
_WHEEL_RADIUS = 0.34  # metres
_CIRCLE = np.linspace(0, 2 * np.pi, 12, endpoint=False)


@dataclass(frozen=True)
class Car:
    """A car whose middle stands at its place."""

    profile: Points  # [9, 2] forward, up, metres; counter-clockwise seen from the right
    scale: float  # of the profile
    width: float  # metres
    colour: Points  # RGB
    patch: Floats

    def draw(self, place: Place) -> None:
        stage = place.stage
        for face in place.faces(self.profile, self.width):
            shade = stage.light.shade(face.normal)
            glass = 0.16 * shade + 0.1 * stage.light.skyline
            stage.flat(face.corners, self.colour * shade, Id.CAR, self.patch)
            if face.number in (_SCREEN, _REAR):
                middle = face.corners.mean(axis=0)
                pane = middle + 0.8 * (face.corners - middle)
                stage.flat(pane, glass, Id.CAR)
            elif face.number == _TAIL:
                upper_edge = face.corners[[0, 0, 3, 3]]
                lamps = face.corners + 0.7 * (upper_edge - face.corners)
                stage.flat(lamps, _TAIL_LAMPS * shade, Id.CAR)
            elif face.number in (LEFT, RIGHT):
                right = self.width / 2 if face.number == RIGHT else -self.width / 2
                self._draw_side(place, right, glass, _TYRE * shade)

    def _draw_side(self, place: Place, right: float, glass: Points, tyre: Points) -> None:
        """Draw the window and the wheels of the side that is ``right`` m from the middle."""
        cabin = self.profile[_CABIN]
        middle = cabin.mean(axis=0)
        self._fill(place, right, middle + (cabin - middle) * (0.82, 0.72), glass)
        for axle in (
            self.profile[0, 0] - 0.8 * self.scale,
            self.profile[-1, 0] + 0.8 * self.scale,
        ):
            wheel = np.column_stack(
                [
                    axle + _WHEEL_RADIUS * np.cos(_CIRCLE),
                    _WHEEL_RADIUS + _WHEEL_RADIUS * np.sin(_CIRCLE),
                ]
            )
            self._fill(place, right, wheel, tyre)

    def _fill(self, place: Place, right: float, outline: Points, colour: Points) -> None:
        """Fill an outline ``[N, 2]`` (forward, up) on the side that is ``right`` m away."""
        forward, up = outline.T
        local = np.column_stack([np.full(len(up), right), up, forward])
        corners = canvas.turned(local, place.yaw, place.lateral, place.station)
        place.stage.flat(corners, colour, Id.CAR)

    def reach(self) -> Points:
        """Return foot and roof ``[8, 3]`` (right, up, forward) of the car."""
        back, _ = self.profile.min(axis=0)
        front, roof = self.profile.max(axis=0)
        half = self.width / 2
        points = []
        for right in (-half, half):
            points += [(right, 0.0, back), (right, 0.0, front)]
        for right in (-0.8 * half, 0.8 * half):
            points += [(right, roof, back + 0.5), (right, roof, 0.6)]
        return np.array(points)


def sample_car(rng: Random, lateral: float, station: float, yaw: float) -> Thing:
    """Return a random car whose middle is at a place; ``yaw`` 0 looks away from the camera, pi
    towards it.
    """
    # Paint mirrors the sky above and the street below.
    gloss = np.linspace(1.12, 0.85, 48, dtype=np.float32)[:, None]
    patch = canvas.speckle(rng, rng.uniform(0.02, 0.08), "cloud") * gloss
    colour = canvas.colour(rng, "car")
    width = rng.uniform(1.7, 1.95)
    scale = rng.uniform(0.93, 1.1)
    profile = np.array(_PROFILES[rng.integers(len(_PROFILES))]) * scale
    car = Car(profile=profile, scale=scale, width=width, colour=colour, patch=patch)
    across = abs(np.sin(yaw)) > 0.5
    half_width = 2.4 if across else 1.0
    return Thing(lateral, station, canvas.turned(car.reach(), yaw), car.draw, half_width, yaw)


def _boxed(laterals: Corner, height: float, length: float) -> Points:
    """Return the reach of a box on the ground that ends here: its eight corners."""
    corners = []
    for right in laterals:
        for up in (0.0, height):
            corners += [(right, up, -length), (right, up, 0.0)]
    return np.array(corners)


# Pixels of the picture of a front.
_STOREY = 16
_BAY = 12
_LAMPLIGHT = np.array([0.95, 0.78, 0.45])  # RGB


@dataclass(frozen=True)
class Windows:
    """How the windows of a front look; sides in pixels of a storey and a bay."""

    top: int
    bottom: int
    left: int  # and as much at the right
    frame: Points  # RGB
    glass: Points  # RGB
    lit: float  # share of windows with light
    shops: bool  # whether the ground floor has shop windows

    def paint(self, rng: Random, front: Floats) -> None:
        """Paint the windows onto the picture of a front, in place."""
        rows, columns = front.shape[:2]
        for y in range(0, rows, _STOREY):
            for x in range(0, columns, _BAY):
                pane = self._sample_pane(rng)
                right = x + _BAY - self.left
                if self.shops and y + _STOREY == rows:
                    front[y + 3 : y + 15, x + 1 : x + 11] = pane
                    continue
                front[y + self.top - 1 : y + self.bottom + 1, x + self.left - 1 : right + 1] = (
                    self.frame
                )
                front[y + self.top : y + self.bottom, x + self.left : right] = pane

    def _sample_pane(self, rng: Random) -> Points:
        if rng.random() < self.lit:
            return _LAMPLIGHT * rng.uniform(0.5, 1.0)
        return self.glass * rng.uniform(0.6, 1.6)


@dataclass(frozen=True)
class House:
    """A house whose front stands along the street, from ``start`` on."""

    front: Floats  # RGB [h, w, 3], from the near end to the far one
    wall: Points  # RGB
    lateral: float  # of the front, metres
    side: float  # 1 right of the street, -1 left of it
    start: float  # station, metres
    length: float  # metres
    height: float
    depth: float

    def draw(self, place: Place) -> None:
        stage = place.stage
        end = self.start + self.length
        shown = max(self.start, stage.camera.station + 1.2)
        cut = self.front[:, int((shown - self.start) / self.length * self.front.shape[1]) :]
        if end <= shown or cut.shape[1] < 2:
            return
        middle = replace(
            place,
            lateral=self.lateral + self.side * self.depth / 2,
            station=self.start + self.length / 2,
        )
        plain = np.ones((2, 2), np.float32)
        middle.box(self.length, self.height, self.depth, self.wall, Id.BUILDING, plain)
        corners = np.array(
            [
                (self.lateral, self.height, shown),
                (self.lateral, self.height, end),
                (self.lateral, 0, end),
                (self.lateral, 0, shown),
            ]
        )
        shade = stage.light.shade((-self.side, 0.0, 0.0))
        distances = corners[:, 2] - stage.camera.station
        outline = stage.camera.project(corners)
        stage.canvas.warp(outline, distances, cut, shade, Id.BUILDING)


def sample_house(rng: Random, lateral: float, start: float, length: float, lit: float) -> Thing:
    """Return a random house whose front begins at ``start`` and is ``length`` m long; ``lit`` is
    the share of windows with light.
    """
    storeys = int(rng.integers(2, 7))
    storey_height = rng.uniform(2.9, 3.6)
    wall = canvas.colour(rng, "facade")
    bays = max(1, round(length / rng.uniform(2.2, 3.6)))
    depth = rng.uniform(9, 14)
    shops = rng.random() < 0.5
    rows = _STOREY * storeys
    columns = _BAY * bays
    front = np.full((rows, columns, 3), wall, np.float32)
    stains = canvas.speckle(rng, rng.uniform(0.03, 0.1), "cloud")
    front *= cv2.resize(stains, (columns, rows))[..., None]
    windows = Windows(
        top=int(rng.integers(2, 5)),
        bottom=int(rng.integers(11, 14)),
        left=int(rng.integers(2, 4)),
        frame=np.clip(wall * rng.uniform(0.7, 1.5), 0, 0.95),
        glass=np.array([0.16, 0.2, 0.26]) * rng.uniform(0.5, 1.8),
        lit=lit,
        shops=shops,
    )
    windows.paint(rng, front)
    side = float(np.sign(lateral))
    house = House(
        front=np.clip(front, 0.02, 0.98),
        wall=wall,
        lateral=lateral,
        side=side,
        start=start,
        length=length,
        height=storeys * storey_height,
        depth=depth,
    )
    reach = _boxed((0.0, side * depth), house.height, length)
    # What stands beside the front is nearer than its far end, the house's station, and so drawn
    # later.
    return Thing(lateral, start + length, reach, house.draw)


@dataclass(frozen=True)
class Tree:
    """A tree of clumps of leaves, or a bush: a low crown without a trunk."""

    trunk: float  # height, metres
    crown: float  # radius, metres
    clumps: list[tuple[Points, float]]  # outline (right, up) and brightness
    leaf: Points  # RGB
    bark: Points  # RGB
    patch: Floats

    def draw(self, place: Place) -> None:
        light = place.stage.light
        shade = light.shade((0.0, 0.45, -0.89))
        leaves = canvas.rounded(self.patch, light.side, 0.4)
        stem = limb((0, 0), (0, self.trunk + 0.8 * self.crown), 0.3, 0.15)
        place.fill(stem, self.bark * shade, Id.VEGETATION, self.patch)
        for outline, bright in self.clumps:
            place.fill(outline, self.leaf * shade * bright, Id.VEGETATION, leaves)


def sample_tree(rng: Random, lateral: float, station: float, bush: bool = False) -> Thing:
    """Return a random tree or bush."""
    if bush:
        trunk = 0.0
        crown = rng.uniform(0.5, 1.3)
    else:
        trunk = rng.uniform(1.8, 3.4)
        crown = rng.uniform(1.5, 3.1)
    clumps = []
    for _ in range(int(rng.integers(4, 8))):
        centre = np.array((rng.normal(0, 0.5 * crown), trunk + crown * rng.uniform(0.5, 1.5)))
        ragged = crown * rng.uniform(0.5, 0.85) * (1 + rng.uniform(-0.16, 0.16, (16, 1)))
        outline = centre + ragged * ellipse((0.0, 0.0), (1.0, 0.9))
        above_ground = np.maximum(outline, (-np.inf, 0.0))
        clumps.append((above_ground, rng.uniform(0.7, 1.2)))
    tree = Tree(
        trunk=trunk,
        crown=crown,
        clumps=clumps,
        leaf=canvas.colour(rng, "foliage"),
        bark=canvas.colour(rng, "bark"),
        patch=canvas.leaves(rng),
    )
    reach = canvas.upright(0.2, (-0.2, 0.2), trunk + crown, 0.8 * crown)
    return Thing(lateral, station, reach, tree.draw)


def sample_hedge(rng: Random, lateral: float, start: float, length: float) -> Thing:
    """Return a random clipped hedge along the street, ``length`` m from ``start``."""
    height = rng.uniform(0.8, 2.2)
    leaf = canvas.colour(rng, "foliage")
    patch = canvas.leaves(rng)

    def draw(place: Place) -> None:
        middle = replace(place, station=start + length / 2)
        middle.box(length, height, 0.8, leaf, Id.VEGETATION, patch)

    return Thing(lateral, start + length, _boxed((-0.4, 0.4), height, length), draw)


@dataclass(frozen=True)
class Block:
    """A block of far houses, or of woods."""

    outline: Points  # [4, 2] right, up, metres
    colour: Points  # RGB
    label: int
    patch: Floats


def sample_skyline(rng: Random, woods: float) -> Callable[[Stage], None]:
    """Return what draws a random skyline: far houses and a share of woods across the whole picture,
    which move with the camera.
    """
    distance = rng.uniform(160, 240)
    blocks = []
    left = -distance
    while left < distance:
        right = left + rng.uniform(10, 35)
        if rng.random() < woods:
            height = rng.uniform(4, 12)
            colour = canvas.colour(rng, "foliage")
            label = Id.VEGETATION
        else:
            height = rng.uniform(7, 26)
            colour = canvas.colour(rng, "facade")
            label = Id.BUILDING
        outline = np.array([(left, -1.5), (left, height), (right, height), (right, -1.5)])
        blocks.append(Block(outline, colour, label, canvas.fabric(rng)))
        left = right

    def draw(stage: Stage) -> None:
        # The bend of the street must not carry the skyline away.
        bend = stage.camera.curvature / 2 * distance**2
        place = Place(stage, -bend, stage.camera.station + distance)
        shade = stage.light.shade((0.0, 0.2, -0.98))
        for block in blocks:
            place.fill(block.outline, block.colour * shade, block.label, block.patch)

    return draw


@dataclass(frozen=True)
class Figure:
    """One anomaly at its place."""

    place: Place
    size: float  # height scale, metres
    mirror: int  # 1 or -1
    phase: float  # radians, the gait of an animal
    shape: Points  # eight random numbers in 0..1 that vary its form
    colours: tuple[Points, Points]
    patches: tuple[Floats, Floats]

    def part(self, corners: Outline, which: int = 0, factor: float = 1.0) -> None:
        """Fill a standing polygon (right, up; before ``size`` and ``mirror``) in one of the two
        colours, times a factor.
        """
        light = self.place.stage.light
        outline = np.asarray(corners) * (self.mirror * self.size, self.size)
        colour = self.colours[which] * light.shade((0.0, 0.3, -0.95)) * factor
        patch = canvas.rounded(self.patches[which], light.side)
        self.place.fill(outline, colour, Id.ANOMALY, patch)


def _animal(figure: Figure) -> None:
    leg_shape, trunk_shape, neck_shape = figure.shape[:3]
    leg = 0.45 + 0.3 * leg_shape
    trunk = 0.2 + 0.14 * trunk_shape
    neck = 0.15 + 0.4 * neck_shape
    body = leg + trunk
    head = (0.72 + 0.25 * (1 - neck_shape), leg + trunk + neck)
    for i, hip in enumerate((-0.48, 0.42, -0.4, 0.5)):
        foot = hip + 0.16 * np.sin(figure.phase + i * np.pi / 2)
        shade = 0.7 if i < 2 else 0.95  # the far legs are darker
        figure.part(limb((hip, leg + 0.1), (foot, 0.02), 0.17, 0.08), factor=shade)
    figure.part(ellipse((0.0, body), (0.65, trunk)))
    figure.part(limb((0.45, body + 0.05), head, 0.32, 0.2))
    figure.part(ellipse((head[0] + 0.1, head[1]), (0.21, 0.115), -0.35), which=1)


def _boulder(figure: Figure) -> None:
    angles = np.linspace(0, np.pi, 8)
    radius = 0.75 * (0.85 + 0.3 * figure.shape)
    rim = np.column_stack([radius * np.cos(angles), 0.95 * radius * np.sin(angles)])
    figure.part(rim, factor=0.8)
    figure.part(0.6 * rim + (0.0, 0.25), factor=1.1)


# Side profiles of a sofa, corners (forward, up) for size 1.
_BACK = np.array([[-0.15, 0.08], [-0.2, 0.95], [-0.45, 0.95], [-0.45, 0.08]])
_SEAT = np.array([[0.45, 0.08], [0.45, 0.48], [-0.2, 0.45], [-0.2, 0.08]])


def _sofa(figure: Figure) -> None:
    place = replace(figure.place, yaw=np.pi + 0.7 * figure.place.yaw)
    width = 1.9 * figure.size
    for number, profile in enumerate((_BACK, _SEAT)):
        colour = figure.colours[number]
        patch = figure.patches[number]
        place.solid(profile * figure.size, width, colour, Id.ANOMALY, patch)


def _cone(figure: Figure) -> None:
    figure.part([(-0.5, 0.0), (0.5, 0.0), (0.46, 0.09), (-0.46, 0.09)], factor=0.7)
    heights = np.linspace(0.08, 1.13, 6)
    halves = np.linspace(0.36, 0.05 + 0.12 * figure.shape[0], 6)
    for i in range(5):  # stripes
        low = heights[i]
        high = heights[i + 1]
        stripe = [
            (-halves[i], low),
            (halves[i], low),
            (halves[i + 1], high),
            (-halves[i + 1], high),
        ]
        figure.part(stripe, which=i % 2)


@dataclass(frozen=True)
class Kind:
    """A kind of anomaly."""

    draw: Callable[[Figure], None]
    half_width: float  # for shadows, of size 1
    height: float  # for shadows, of size 1
    sizes: Corner  # smallest and largest


KINDS = {
    "animal": Kind(_animal, half_width=0.95, height=1.2, sizes=(1.2, 1.8)),
    "boulder": Kind(_boulder, half_width=0.75, height=0.9, sizes=(1.0, 1.6)),
    "sofa": Kind(_sofa, half_width=1.0, height=0.9, sizes=(1.0, 1.5)),
    "cone": Kind(_cone, half_width=0.55, height=0.9, sizes=(1.4, 2.0)),
}


def sample_anomaly(
    rng: Random, lateral: float, station: float, kind: str | None = None, mirror: int | None = None
) -> Thing:
    """Return a random anomaly at a place; an animal of a video walks."""
    chosen = KINDS[kind or str(rng.choice([*KINDS]))]
    colours = (canvas.odd_colour(rng), canvas.odd_colour(rng))
    patches = (canvas.fabric(rng), canvas.fabric(rng))
    size = rng.uniform(*chosen.sizes)
    yaw = rng.uniform(-0.8, 0.8)
    random_mirror = int(rng.choice((-1, 1)))
    phase = rng.uniform(0, 2 * np.pi)
    shape = rng.random(8)

    def draw(place: Place) -> None:
        gait = phase + 7.0 * place.stage.time
        chosen.draw(Figure(place, size, mirror or random_mirror, gait, shape, colours, patches))

    half_width = chosen.half_width * size
    reach = canvas.upright(
        0.8 * chosen.half_width * size,
        (-0.3, 0.3),
        chosen.height * size,
        0.64 * chosen.half_width * size,
    )
    return Thing(lateral, station, reach, draw, half_width, yaw)
