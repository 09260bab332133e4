"""Toy road scenes: ground and sky, what stands where, the picture; folders and videos of them."""

from __future__ import annotations

import operator
import os
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from segunc.core.bounds import NonNegativeInt, Settings, Side
from segunc.core.errors import InputError, PartialFailure
from segunc.core.files import read_json, write_file, write_json
from segunc.core.removal import move_own, remove_empty, remove_own_folder
from segunc.data.images import Image
from segunc.frames.video import encode_video
from segunc.toyroads import canvas as paint, things
from segunc.toyroads.canvas import (
    Camera,
    Canvas,
    Corner,
    Floats,
    GroundGrid,
    Id,
    Light,
    Points,
    Random,
    Stage,
    Thing,
)

Bytes = npt.NDArray[np.uint8]
LINE_WIDTH = 0.15  # metres
FAR = 600.0  # metres; ground that is farther is not drawn
DASH = 4.5  # metres; a dashed line has gaps of the same length
GRAIN_SCALE = 22.0  # pixels of the noise tile to a metre of ground


@dataclass(frozen=True)
class Ground:
    """The cross-section of a street and its colours; laterals in metres from the camera's path."""

    road: Corner  # left and right kerb
    sidewalk: Corner  # outer edges of the left and the right sidewalk
    lines: list[float]  # of the lanes, the middle first
    edges: Corner  # the two outer lines, which are not dashed
    asphalt: Points  # RGB
    paving: Points  # RGB
    grass: Points  # RGB
    white: np.float32  # of the lines
    rough: np.float32  # standard deviation of the grain of asphalt and slabs

    @property
    def sidewalks(self) -> list[Corner]:
        """Kerb and outer edge of both sidewalks, the left one first."""
        return list(zip(self.road, self.sidewalk, strict=True))

    def draw(self, stage: Stage, shadows: Floats) -> None:
        """Draw all of it, darkened by shadows (factors, ``[rows, columns]``)."""
        grid = stage.camera.ground_grid()
        visible = grid.distance < FAR
        near = np.minimum(grid.distance, np.float32(FAR))
        station = near + np.float32(stage.camera.station)
        on_road = (grid.lateral > self.road[0]) & (grid.lateral < self.road[1])
        paved = (grid.lateral > self.sidewalk[0]) & (grid.lateral < self.sidewalk[1])
        beside = np.where(paved, Id.SIDEWALK, Id.VEGETATION)
        label = np.where(on_road, Id.ROAD, beside).astype(np.uint8)
        colour_beside = np.where(paved[..., None], self.paving, self.grass)
        tones = np.where(on_road[..., None], self.asphalt, colour_beside).astype(np.float32)
        colour = tones * self._grain(grid, station, label)[..., None]
        self._draw_lines(colour, grid, station)
        light = stage.light
        lit = light.shade((0.0, 1.0, 0.0)).astype(np.float32) * np.float32(1 - 0.35 * light.wet)
        colour = colour * lit * shadows[grid.first_row :, :, None]
        stage.canvas.colours[grid.first_row :][visible] = colour[visible]
        stage.canvas.labels[grid.first_row :][visible] = label[visible]
        stage.canvas.depth[grid.first_row :][visible] = near[visible]

    def _grain(self, grid: GroundGrid, station: Floats, label: Bytes) -> Floats:
        """Return noise factors around 1; grain finer than a pixel averages out."""
        roughness = np.where(label == Id.VEGETATION, np.float32(0.2), self.rough)
        strength = roughness / (1 + (12 * grid.pixel_width) ** 2)
        noise = cv2.remap(
            paint.noise_tile("medium"),
            grid.lateral * np.float32(GRAIN_SCALE),
            station * np.float32(GRAIN_SCALE),
            cv2.INTER_LINEAR,
            borderMode=cv2.BORDER_WRAP,
        )
        return np.clip(1 + strength * noise, 0.35, 1.7)

    def _draw_lines(self, colour: Floats, grid: GroundGrid, station: Floats) -> None:
        """Blend the lines of the lanes into the colour of the ground, in place."""
        pixel = np.maximum(grid.pixel_width, 1e-4)
        half = np.float32(LINE_WIDTH / 2)
        for lateral in self.lines:
            # How much of each pixel a line covers; thin far lines fade as in a real picture.
            inside = half - np.abs(grid.lateral - np.float32(lateral))
            share = inside / pixel + np.float32(0.5)
            cover = np.clip(share, 0, np.minimum(1, 2 * half / pixel)).astype(np.float32)
            if lateral not in self.edges:
                cover = cover * (station % (2 * DASH) < DASH)
            colour += cover[..., None] * (self.white - colour)


def sample_ground(rng: Random) -> Ground:
    """Return a random street: two to four lanes, ours to the right of the middle, sidewalks on both
    sides.
    """
    lane = rng.uniform(2.9, 3.6)
    ours = int(rng.integers(1, 3))
    theirs = int(rng.integers(1, 3))
    left_parking = _sample_parking(rng)
    right_parking = _sample_parking(rng)
    middle = -lane / 2 + rng.normal(0, 0.2)
    edges = (middle - theirs * lane, middle + ours * lane)
    lines = [middle]
    lines += [middle + i * lane for i in range(1, ours)]
    lines += [middle - i * lane for i in range(1, theirs)]
    lines += edges
    road = (edges[0] - left_parking, edges[1] + right_parking)
    return Ground(
        road=road,
        sidewalk=(road[0] - rng.uniform(2.2, 5.0), road[1] + rng.uniform(2.2, 5.0)),
        lines=lines,
        edges=edges,
        asphalt=paint.colour(rng, "asphalt"),
        paving=paint.colour(rng, "paving"),
        grass=paint.colour(rng, "foliage"),
        white=np.float32(rng.uniform(0.5, 0.9)),
        rough=np.float32(rng.uniform(0.05, 0.12)),
    )


def _sample_parking(rng: Random) -> float:
    """Return the width in metres between the outer line and the kerb, with room for cars or not."""
    return 2.2 if rng.random() < 0.5 else rng.uniform(0.2, 0.6)


def draw_shadows(camera: Camera, light: Light, footprints: list[Points]) -> Floats:
    """Return factors by which the ground is darkened, float32 ``[rows, columns]``.

    Args:
        footprints: street points ``[N, 3]`` of each thing. Those on the ground make the contact
            shadow; all of them, moved along the sun's rays, make the outline of the cast shadow.
    """
    factors = np.full((camera.rows, camera.columns), 1, np.float32)
    slide = light.sun / max(float(light.sun[1]), 0.25)
    bound = 8 * camera.columns  # OpenCV's fixed-point numbers would overflow far outside
    cast_factor = float(light.ambient.mean() / max(light.shade((0.0, 1.0, 0.0)).mean(), 1e-6))
    for points in footprints:
        cast = (points - points[:, 1:2] * slide) * (1, 0, 1)
        contact = points[points[:, 1] < 0.05]
        for outline, factor in ((cast, cast_factor), (contact, 0.55)):
            corners = np.rint(np.clip(camera.project(outline), -bound, bound)).astype(np.int32)
            cv2.fillConvexPoly(factors, cv2.convexHull(corners), (factor,))
    return np.asarray(cv2.GaussianBlur(factors, (0, 0), 0.003 * camera.columns), np.float32)


REACH = 110.0  # metres of street that are furnished
SAMPLES = 2  # canvas pixels along each side of a final pixel


@dataclass(frozen=True)
class Scene:
    """A drawn scene, all uint8."""

    image: Bytes  # RGB [H, W, 3]
    labels: Bytes  # raw ids of the label map ``toy`` [H, W]; anomalies are 5: 'dynamic', ignored
    # [H, W]: 0 normal, 1 anomaly, 255 ignored, which is the rim of one pixel around an anomaly.
    anomaly: Bytes


@dataclass(frozen=True)
class Rectangle:
    """A rectangle along the street, in metres."""

    lateral: float  # of its middle
    station: float
    half_width: float
    half_length: float

    def meets(self, other: Rectangle) -> bool:
        beside = abs(self.lateral - other.lateral) >= self.half_width + other.half_width
        before = abs(self.station - other.station) >= self.half_length + other.half_length
        return not beside and not before


@dataclass
class Layout:
    """A street scene before it is drawn."""

    light: Light
    ground: Ground
    skyline: Callable[[Stage], None]
    camera: Camera  # without rows and columns yet
    things: list[Thing] = field(default_factory=list)
    taken: list[Rectangle] = field(default_factory=list)

    def take(self, rectangle: Rectangle) -> bool:
        """Take a rectangle of the street; return False, and take nothing, where it meets one that
        is taken.
        """
        if any(rectangle.meets(other) for other in self.taken):
            return False
        self.taken.append(rectangle)
        return True


def sample_layout(rng: Random, anomalies: bool = False) -> Layout:
    """Return a random street scene, if asked for with one to three anomalies on the road or
    sidewalk.
    """
    woods = rng.uniform(0, 1)
    skyline = things.sample_skyline(rng, woods)
    camera = Camera(
        rows=0,
        columns=0,
        field_of_view=float(np.deg2rad(rng.uniform(50, 68))),
        horizon=rng.uniform(0.40, 0.52),
        height=rng.uniform(1.25, 1.75),
        curvature=rng.normal(0, 0.0016),
        roll=rng.normal(0, 0.008),
    )
    light = paint.sample_light(rng)
    layout = Layout(light, sample_ground(rng), skyline, camera)
    if anomalies:
        _place_anomalies(rng, layout)
    for kerb, outer in layout.ground.sidewalks:
        side = 1 if outer > kerb else -1
        _place_buildings(rng, layout, outer, side, woods)
        _place_posts_and_signs(rng, layout, kerb, side)
    _place_parked_cars(rng, layout)
    _place_driving_cars(rng, layout)
    _place_persons(rng, layout)
    return layout


def _place_buildings(rng: Random, layout: Layout, outer: float, side: int, woods: float) -> None:
    """Place houses, or hedges and trees, behind the outer edge of a sidewalk.

    Args:
        side: 1 of the right sidewalk, -1 of the left one.
        woods: share of woods in the scene, 0..1.
    """
    lit = 0.35 if layout.light.weather == "dusk" else 0.04
    built = rng.random() > 0.1 + 0.4 * woods
    station = rng.uniform(-12, -2)
    while station < REACH:
        length = rng.uniform(8, 24)
        if built and rng.random() < 0.85:
            lateral = outer + side * rng.uniform(0.1, 2.5)
            layout.things.append(things.sample_house(rng, lateral, station, length, lit))
        else:
            layout.things.append(things.sample_hedge(rng, outer + side * 0.6, station, length))
            for _ in range(2):
                lateral = outer + side * rng.uniform(1.2, 12)
                tree_station = station + rng.uniform(0, length)
                bush = rng.random() < 0.3
                layout.things.append(things.sample_tree(rng, lateral, tree_station, bush))
        station += length


def _place_posts_and_signs(rng: Random, layout: Layout, kerb: float, side: int) -> None:
    """Place lamp posts and traffic signs along a kerb; ``side`` is 1 of the right one, else -1."""
    for station in np.arange(rng.uniform(4, 18), 45, rng.uniform(18, 40)).tolist():
        layout.things.append(things.sample_post(rng, kerb + side * 0.5, station))
    stations = 5 + 22 * rng.beta(1, 1.8, int(rng.integers(0, 4)))
    for station in stations.tolist():
        lateral = kerb + side * rng.uniform(0.25, 1.0)
        layout.things.append(things.sample_sign(rng, lateral, station))


def _add_car(rng: Random, layout: Layout, place: Rectangle, away: bool) -> None:
    """Add a car that looks away from the camera, or towards it, where its place is free."""
    # Nobody drives with a car's tail in the windscreen.
    in_the_way = abs(place.lateral) <= 2.1 and place.station <= 8.5
    if not in_the_way and layout.take(place):
        yaw = 0.0 if away else np.pi
        layout.things.append(things.sample_car(rng, place.lateral, place.station, yaw))


def _place_parked_cars(rng: Random, layout: Layout) -> None:
    """Place parked cars at both kerbs, where there is room beside the lanes."""
    left, right = layout.ground.road
    lines = layout.ground.lines
    for lateral, edge, away in (
        (left + 1.1, min(lines), False),
        (right - 1.1, max(lines), True),
    ):
        for station in np.arange(rng.uniform(3, 9), 50, 6.5).tolist():
            if abs(lateral - edge) > 0.9 and rng.random() < 0.35:
                _add_car(rng, layout, Rectangle(lateral, station, 1.0, 2.6), away)


def _place_driving_cars(rng: Random, layout: Layout) -> None:
    """Place one to three cars ahead or oncoming."""
    left, right = layout.ground.road
    middle = layout.ground.lines[0]
    for _ in range(int(rng.integers(1, 4))):
        away = rng.random() < 0.55
        station = 9 + 32 * rng.beta(1, 1.7)
        lanes = (middle + 1.2, right - 2.6) if away else (left + 2.6, middle - 1.2)
        lateral = rng.uniform(min(lanes), max(lanes))
        _add_car(rng, layout, Rectangle(lateral, station, 1.2, 4.0), away)


def _place_persons(rng: Random, layout: Layout) -> None:
    """Place persons on the sidewalks and some who cross."""
    places = []
    for _ in range(int(rng.poisson(7.0))):
        kerb, outer = layout.ground.sidewalks[rng.integers(2)]
        lateral = kerb + rng.uniform(0.1, 0.9) * (outer - kerb)
        places.append(Rectangle(lateral, 4.5 + 18 * rng.beta(1, 1.6), 0.3, 0.4))
    # Enough who cross that a network cannot take whatever stands on the road for a car.
    for _ in range(int(rng.integers(0, 4))):
        lateral = rng.uniform(*layout.ground.road)
        places.append(Rectangle(lateral, rng.uniform(6, 20), 0.3, 0.4))
    for place in places:
        if layout.take(place):
            layout.things.append(things.sample_person(rng, place.lateral, place.station))


def _place_anomalies(rng: Random, layout: Layout) -> None:
    """Place one to three anomalies on road or sidewalk, within the picture."""
    for _ in range(int(rng.choice((1, 2, 3), p=(0.5, 0.35, 0.15)))):
        station = 10.5 * float(np.exp(rng.uniform(0, 0.55)))
        reach = 0.8 * station * float(np.tan(layout.camera.field_of_view / 2))
        if rng.random() < 0.5:
            low, high = layout.ground.sidewalk
        else:
            # Half of them beside a kerb, where no car stands.
            low, high = sorted(layout.ground.sidewalks[rng.integers(2)])
        lateral = float(np.clip(rng.uniform(low, high), -reach, reach))
        anomaly = things.sample_anomaly(rng, lateral, station)
        if layout.take(Rectangle(lateral, station, anomaly.half_width + 0.2, 0.8)):
            layout.things.append(anomaly)
            # Nothing else may stand between it and the camera.
            for share in (0.3, 0.6, 0.9):
                between = Rectangle(
                    lateral * share,
                    station * share,
                    anomaly.half_width * share,
                    0.15 * station,
                )
                layout.taken.append(between)


def render_scene(
    seed: int | Sequence[int] | np.random.SeedSequence, size: tuple[int, int], anomaly: bool
) -> Scene:
    """Draw the scene of a seed, with one to three anomalies or none; the (height, width) ``size``,
    at least 32, changes no street.
    """
    rng = np.random.default_rng(seed)
    return render_layout(sample_layout(rng, anomaly), size, rng)


def render_layout(
    layout: Layout, size: tuple[int, int], rng: Random, station: float = 0.0, time: float = 0.0
) -> Scene:
    """Draw a layout as a camera sees it.

    Args:
        size: (height, width) of the scene.
        rng: makes the noise of the sensor.
        station: of the camera, metres along the layout.
        time: seconds into a video.
    """
    height, width = size
    camera = replace(layout.camera, rows=SAMPLES * height, columns=SAMPLES * width, station=station)
    light = layout.light
    canvas = Canvas(_draw_sky(camera, light))
    stage = Stage(canvas, camera, light, time)
    layout.skyline(stage)
    ahead = [thing for thing in layout.things if thing.station > station + 0.5]
    ahead.sort(key=lambda thing: -thing.station)
    footprints = [thing.reach + np.array((thing.lateral, 0.0, thing.station)) for thing in ahead]
    layout.ground.draw(stage, draw_shadows(camera, light, footprints))
    for thing in ahead:
        thing.draw(stage)
    labels, anomaly = vote(canvas.labels)
    image = _take_picture(_add_haze(canvas, light), light, size, rng)
    return Scene(image, labels, anomaly)


def _draw_sky(camera: Camera, light: Light) -> Floats:
    """Return the sky behind everything: a gradient with clouds that fade to the horizon."""
    row = np.arange(camera.rows, dtype=np.float32) + 0.5
    above = np.clip(1 - row / (camera.horizon * camera.rows), 0, 1)[:, None, None]
    sky = light.skyline + (light.zenith - light.skyline) * np.sqrt(above)
    cover = cv2.resize(light.clouds, (camera.columns, camera.rows))[..., None]
    cloud = 0.75 * light.skyline + 0.2
    cloudy = sky + 0.7 * cover * np.minimum(1, 4 * above) * (cloud - sky)
    return np.asarray(cloudy, np.float32)


def _add_haze(canvas: Canvas, light: Light) -> Floats:
    """Return the colours of a canvas through haze, by Koschmieder's law ``c exp(-k d) + skyline (1
    - exp(-k d))``; depth 0 (the sky) stays as it is.
    """
    skyline = light.skyline.astype(np.float32)
    clear = np.asarray(cv2.exp(-np.float32(light.extinction) * canvas.depth), np.float32)
    hazy: Floats = skyline + (canvas.colours - skyline) * clear[..., None]
    return hazy


def _take_picture(colours: Floats, light: Light, size: tuple[int, int], rng: Random) -> Bytes:
    """Return what lens and sensor make of the colours of a canvas, uint8 ``[H, W, 3]``."""
    height, width = size
    blurred = cv2.GaussianBlur(colours, (0, 0), 0.4 * SAMPLES)  # the lens
    small = cv2.resize(blurred, (width, height), interpolation=cv2.INTER_AREA)
    exposed = np.asarray(small, np.float32) * np.float32(light.exposure)
    # Highlights roll off instead of clipping: identity below 0.7, then towards 1.
    over = np.maximum(exposed - np.float32(0.7), 0)
    roll_off = np.float32(0.3) * over / (over + np.float32(0.3))
    picture = np.minimum(exposed, np.float32(0.7)) + roll_off
    # Noise grows with the signal.
    grain = rng.standard_normal(picture.shape, dtype=np.float32)
    deviation = np.float32(light.noise) * np.sqrt(0.3 + 1.4 * np.maximum(picture, 0))
    picture = picture + deviation * grain
    image: Bytes = np.rint(np.clip(picture, 0, 1) * 255).astype(np.uint8)
    return image


def _count(corners: Sequence[Bytes], label: int) -> Bytes:
    """Return how many of the corners of each block have a label."""
    return np.asarray(
        np.sum([corner == label for corner in corners], axis=0, dtype=np.uint8), np.uint8
    )


def vote(labels: Bytes) -> tuple[Bytes, Bytes]:
    """Return labels of the final pixels by majority over their canvas pixels, and the anomaly mask:
    pixels that an anomaly touches without the majority, and the ring of one pixel around it, where
    the lens mixes both, are 255.
    """
    # The same corner of every block, as strided views: reducing over axes of two is an order
    # slower.
    corners = []
    for row in range(SAMPLES):
        corners += [labels[row::SAMPLES, column::SAMPLES] for column in range(SAMPLES)]
    votes = [_count(corners, label) for label in Id.VOTE_ORDER]
    winner = np.array(Id.VOTE_ORDER, np.uint8)[np.argmax(votes, axis=0)]  # the first of several
    touched = np.any([corner == Id.ANOMALY for corner in corners], axis=0)
    anomaly = (winner == Id.ANOMALY).astype(np.uint8)
    ring = (cv2.dilate(anomaly, np.ones((3, 3), np.uint8)) > 0) | touched
    anomaly[ring & (anomaly == 0)] = 255
    return winner, anomaly


VERSION = 2  # raised whenever the same configuration would give other files
SPLITS = ("train", "val", "test", "anomaly")
VIDEO_SPLIT = len(SPLITS)  # the video's place in the seeds, after the splits
FRAMES_PER_SECOND = 12.5
_CITIES = {
    "train": ("alderton", "birkenau"),
    "val": ("corvalle",),
    "test": ("dunmoor",),
    "anomaly": ("elsewhere",),
}
CROSSING = 24.0  # station of the crossing animal, metres ahead of the first frame's camera


@dataclass(frozen=True)
class ToyConfig(Settings):
    """What to generate: scenes of each split and frames of the video (0 leaves it out); ``size`` is
    (height, width) in pixels.

    Frame i of a split is drawn from the seed (``seed``, split, i) alone, so longer and shorter sets
    share frames.
    """

    seed: NonNegativeInt = 0
    train: NonNegativeInt = 160
    val: NonNegativeInt = 32
    test: NonNegativeInt = 32
    anomaly: NonNegativeInt = 32
    video_frames: NonNegativeInt = 48
    size: tuple[Side, Side] = (128, 256)

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(side % 2 for side in self.size):
            raise InputError(
                f"toy scenes of size {self.size} have an odd side, which no video can have"
            )


DrawAll = Callable[[Iterable[Callable[[], Scene]]], Iterator[Scene]]
"""Draws scenes, and yields them in their order."""


def generate_toy(
    root: Path,
    config: ToyConfig = ToyConfig(),
    *,
    progress: Callable[[str], None] = lambda line: None,
    processes: int = 1,
) -> None:
    """Write the toy road scenes below ``root``: ``leftImg8bit/SPLIT/CITY/F_leftImg8bit.png``,
    ``gtFine/SPLIT/CITY/F_gtFine_labelIds.png`` (raw ids of the label map ``toy``), for the split
    ``anomaly`` also ``gtAnomaly/anomaly/CITY/F_anomaly.png`` (0 normal, 1 anomaly, 255 ignored),
    ``video/crossing.webm`` (VP8, 12.5 frames a second) with ``video/crossing_anomaly/000000.png``
    and on, and ``toy.json`` with the configuration. A finished set of the same configuration is
    kept; a set is whole or absent. ``progress`` is told a line after each split and the video.
    ``processes`` draw at once. More than one read the file of the calling script again, so it needs
    ``if __name__ == "__main__"``.

    InputError where ``root`` holds something else, or scenes of another configuration or version;
    PartialFailure where a file cannot be written.
    """
    settings = {**asdict(config), "size": [*config.size]}
    description = {"content": "segunc toy road scenes", "version": VERSION, "config": settings}
    if root.exists() and not (root.is_dir() and not any(root.iterdir())):
        _check_finished(root, description)
        progress(f"toy road scenes in {root} are complete")
        return
    unfinished = root.absolute().with_name(f".{root.absolute().name}.{os.getpid()}.unfinished")
    try:
        unfinished.mkdir(parents=True)
        with _drawn_by(processes) as draw_all:
            for index, split in enumerate(SPLITS):
                seeds = [(config.seed, index, i) for i in range(settings[split])]
                draws = [partial(render_scene, s, config.size, split == "anomaly") for s in seeds]
                for i, scene in enumerate(draw_all(draws)):
                    _write_scene(unfinished, split, i, scene)
                progress(f"toy road scenes: {settings[split]} of {split}")
            if config.video_frames:
                _write_video(unfinished / "video", config, draw_all)
                progress(f"toy road scenes: video of {config.video_frames} frames")
        write_json(unfinished / "toy.json", description)
        if root.is_dir():
            remove_empty(root)
        move_own(unfinished, root.absolute())
    except OSError as error:
        raise PartialFailure(
            f"toy road scenes could not be written to {root}: {error.strerror or error}"
        ) from error
    except BrokenExecutor as error:
        raise PartialFailure(f"a process that drew toy road scenes ended: {error}") from error
    finally:
        remove_own_folder(unfinished, os.getpid())


@contextmanager
def _drawn_by(processes: int) -> Iterator[DrawAll]:
    """Give what draws scenes in their order, by so many processes."""
    if processes == 1:
        yield partial(map, operator.call)
        return
    # Forked processes may hang: they inherit the locks of OpenCV's threads, but not the threads.
    pool = ProcessPoolExecutor(processes, get_context("spawn"), initializer=_begin_drawing)
    try:
        yield partial(pool.map, operator.call)
    finally:
        pool.shutdown(cancel_futures=True)


def _begin_drawing() -> None:
    """Leave Ctrl-C, which all processes of a terminal receive, to the process that waits, and the
    other cores to the other processes that draw.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    cv2.setNumThreads(1)


def _check_finished(root: Path, description: dict[str, Any]) -> None:
    """Raise InputError where a folder does not hold a finished set of this description."""
    marker = root / "toy.json"
    if not marker.is_file() or read_json(marker, "the file of a finished set") != description:
        raise InputError(
            f"{root} holds something else than toy scenes of this configuration",
            hint="choose a new or empty folder",
        )


def _write_scene(root: Path, split: str, index: int, scene: Scene) -> None:
    """Write image, labels and, of the split anomaly, the anomaly mask of a frame."""
    frame = frame_name(split, index)
    images = root / "leftImg8bit" / split
    labels = root / "gtFine" / split
    _write_png(images / f"{frame}_leftImg8bit.png", scene.image[..., ::-1])
    _write_png(labels / f"{frame}_gtFine_labelIds.png", scene.labels)
    if split == "anomaly":
        _write_png(root / "gtAnomaly" / split / f"{frame}_anomaly.png", scene.anomaly)


def frame_name(split: str, index: int) -> str:
    """Return the path of a frame below its split's folder, without its ending:
    ``CITY/CITY_000003_000019``.
    """
    city = _CITIES[split][index % len(_CITIES[split])]
    # Scenes are numbered as sequences; the frame number is the one that Cityscapes labels.
    return f"{city}/{city}_{index:06d}_000019"


def _write_png(path: Path, picture: npt.NDArray[np.uint8]) -> None:
    # Written by Python: cv2.imwrite reports a full disk as nothing but False.
    write_file(path, cv2.imencode(".png", picture)[1].tobytes())


def _write_video(folder: Path, config: ToyConfig, draw_all: DrawAll) -> None:
    folder.mkdir(parents=True)

    def pictures() -> Iterator[tuple[float, Image]]:
        seed = (config.seed, VIDEO_SPLIT)
        frames = config.video_frames
        draw = partial(video_frame, seed, config.size, frames, FRAMES_PER_SECOND)
        for i, scene in enumerate(draw_all([partial(draw, i) for i in range(frames)])):
            _write_png(folder / "crossing_anomaly" / f"{i:06d}.png", scene.anomaly)
            yield i / FRAMES_PER_SECOND, scene.image

    encode_video(folder / "crossing.webm", pictures(), FRAMES_PER_SECOND, config.size)


def video_frame(
    seed: tuple[int, int], size: tuple[int, int], frames: int, rate: float, i: int
) -> Scene:
    """Draw frame ``i`` of the video, in which an animal crosses the street in all of its time."""
    rng = np.random.default_rng((*seed, 0))
    layout = sample_layout(rng)
    # The bend is seen from the camera and would move with it.
    layout.camera = replace(layout.camera, curvature=0.0)
    animal = things.sample_anomaly(rng, 0.0, CROSSING, "animal", mirror=1)
    left, right = layout.ground.road
    # It starts at the left kerb and ends near the right one, within the picture.
    start = left + 0.3
    end = min(right - 0.8, 3.0)
    # Whatever is on the road before it would hide it, or be driven into.
    standing = [
        thing
        for thing in layout.things
        if not left < thing.lateral < right or thing.station > CROSSING + 6
    ]
    share = i / max(1, frames - 1)
    crossing = replace(animal, lateral=start + (end - start) * share)
    # The camera stops short of the animal, as a driver would.
    station = (CROSSING - 6.5) * i / frames
    sensor = np.random.default_rng((*seed, i + 1))
    layout = replace(layout, things=[*standing, crossing])
    return render_layout(layout, size, sensor, station=station, time=i / rate)
