"""Toy road scenes: ground and sky, what stands where, the picture; and folders and videos
of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

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
    Id,
    Light,
    Points,
    Random,
    Stage,
    Thing,
)


@dataclass(frozen=True)
class Ground:
    """The cross-section of a street; laterals in metres from the camera's path."""

    road: Corner  # left and right kerb
    sidewalks: list[Corner]  # kerb and outer edge of both
    lines: list[float]  # of the lanes, the middle first
    draw: Callable[
        [Stage, Floats], None
    ]  # all of it, darkened by shadows (factors, [rows, columns])


def sample_ground(rng: Random) -> Ground:
    """Return a random street: two to four lanes, ours to the right of the middle, sidewalks on both
    sides.
    """
    lane = rng.uniform(2.9, 3.6)
    ours, theirs = int(rng.integers(1, 3)), int(rng.integers(1, 3))
    parking = [2.2 if rng.random() < 0.5 else rng.uniform(0.2, 0.6) for _ in range(2)]
    middle = -lane / 2 + rng.normal(0, 0.2)
    edges = (middle - theirs * lane, middle + ours * lane)
    inner = [middle + i * lane for i in range(1, ours)] + [
        middle - i * lane for i in range(1, theirs)
    ]
    lines = [middle, *inner, *edges]
    road = (edges[0] - parking[0], edges[1] + parking[1])
    sidewalk = (road[0] - rng.uniform(2.2, 5.0), road[1] + rng.uniform(2.2, 5.0))
    asphalt, paving, grass = [
        paint.colour(rng, thing) for thing in ("asphalt", "paving", "foliage")
    ]
    white = np.float32(rng.uniform(0.5, 0.9))
    rough = np.float32(rng.uniform(0.05, 0.12))  # of asphalt and slabs

    def draw(stage: Stage, shadows: Floats) -> None:
        first, lateral, distance, slope = stage.camera.ground_grid()
        ground = distance < 600
        near = np.minimum(distance, np.float32(600))
        station = near + np.float32(stage.camera.station)
        on_road = (lateral > road[0]) & (lateral < road[1])
        paved = (lateral > sidewalk[0]) & (lateral < sidewalk[1])
        label = np.where(on_road, Id.ROAD, np.where(paved, Id.SIDEWALK, Id.VEGETATION)).astype(
            np.uint8
        )
        tones = np.where(
            on_road[..., None], asphalt, np.where(paved[..., None], paving, grass)
        ).astype(np.float32)
        # Grain finer than a pixel averages out.
        strength = np.where(label == Id.VEGETATION, np.float32(0.2), rough) / (
            1 + (12 * slope) ** 2
        )
        scaled = lateral * np.float32(22), station * np.float32(22)
        noise = cv2.remap(
            paint.noise_tile("medium"), *scaled, cv2.INTER_LINEAR, borderMode=cv2.BORDER_WRAP
        )
        colour = tones * np.clip(1 + strength * noise, 0.35, 1.7)[..., None]
        pixel, half = np.maximum(slope, 1e-4), np.float32(0.075)
        for place in lines:
            # How much of each pixel a line covers; thin far lines fade as in a real picture.
            share = (half - np.abs(lateral - np.float32(place))) / pixel + np.float32(0.5)
            line = np.clip(share, 0, np.minimum(1, 2 * half / pixel)).astype(np.float32)
            line = line if place in edges else line * (station % 9 < 4.5)
            colour += line[..., None] * (white - colour)
        canvas, light = stage.canvas, stage.light
        lit = light.shade((0.0, 1.0, 0.0)).astype(np.float32) * np.float32(1 - 0.35 * light.wet)
        colour = colour * lit * shadows[first:, :, None]
        for layer, drawn in (
            (canvas.colours, colour),
            (canvas.labels, label),
            (canvas.depth, near),
        ):
            layer[first:][ground] = drawn[ground]

    return Ground(road, list(zip(road, sidewalk, strict=True)), lines, draw)


def draw_shadows(camera: Camera, light: Light, footprints: list[Points]) -> Floats:
    """Return factors by which the ground is darkened, float32 ``[rows, columns]``: of the street
    points of each thing, those on the ground make the contact shadow, and all of them, moved along
    the sun's rays, the outline of the cast one.
    """
    factors = np.full((camera.rows, camera.columns), 1, np.float32)
    slide, reach = light.sun / max(float(light.sun[1]), 0.25), 8 * camera.columns
    shadow = float(light.ambient.mean() / max(light.shade((0.0, 1.0, 0.0)).mean(), 1e-6))
    for points in footprints:
        fallen = (points - points[:, 1:2] * slide) * (1, 0, 1)
        for outline, value in ((fallen, shadow), (points[points[:, 1] < 0.05], 0.55)):
            shown = np.rint(np.clip(camera.project(outline), -reach, reach)).astype(np.int32)
            cv2.fillConvexPoly(factors, cv2.convexHull(shown), (value,))
    return np.asarray(cv2.GaussianBlur(factors, (0, 0), 0.003 * camera.columns), np.float32)


REACH = 110.0  # metres of street that are furnished
SAMPLES = 2  # canvas pixels along each side of a final pixel
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Scene:
    """A drawn scene, all uint8."""

    image: Bytes  # RGB [H, W, 3]
    labels: Bytes  # raw ids of the label map ``toy`` [H, W]; anomalies are 5: 'dynamic', ignored
    anomaly: (
        Bytes  # 0 normal, 1 anomaly, 255 ignored: the rim of one pixel around an anomaly [H, W]
    )


@dataclass
class Layout:
    """A street scene before it is drawn."""

    light: Light
    ground: Ground
    skyline: Callable[[Stage], None]
    camera: Camera  # without rows and columns yet
    things: list[Thing] = field(default_factory=list)
    taken: list[tuple[float, ...]] = field(
        default_factory=list
    )  # lateral and station, half width and length

    def take(self, lateral: float, station: float, half_width: float, half_length: float) -> bool:
        """Take a rectangle around a place; False, and nothing is taken, where it meets
        another one.
        """
        meets = (
            abs(lateral - x) < half_width + w and abs(station - z) < half_length + d
            for x, z, w, d in self.taken
        )
        if free := not any(meets):
            self.taken.append((lateral, station, half_width, half_length))
        return free


def sample_layout(rng: Random, anomalies: bool = False) -> Layout:
    """Return a random street scene, if asked for with one to three anomalies on the road or
    sidewalk.
    """
    woods = rng.uniform(0, 1)
    skyline = things.sample_skyline(rng, woods)
    view, horizon, height = (
        float(np.deg2rad(rng.uniform(50, 68))),
        rng.uniform(0.40, 0.52),
        rng.uniform(1.25, 1.75),
    )
    camera = Camera(
        0, 0, view, horizon, height, curvature=rng.normal(0, 0.0016), roll=rng.normal(0, 0.008)
    )
    layout = Layout(paint.sample_light(rng), sample_ground(rng), skyline, camera)
    if anomalies:
        _place_anomalies(rng, layout)
    for kerb, outer in layout.ground.sidewalks:
        _line_side(rng, layout, kerb, outer, woods)
    _traffic(rng, layout)
    return layout


def _line_side(rng: Random, layout: Layout, kerb: float, outer: float, woods: float) -> None:
    """Place houses, or hedges and trees, behind one sidewalk; lamp posts and traffic signs along
    the kerb.
    """
    side, add = (1 if outer > kerb else -1), layout.things.append
    lit = 0.35 if layout.light.weather == "dusk" else 0.04
    built, station = rng.random() > 0.1 + 0.4 * woods, rng.uniform(-12, -2)
    while station < REACH:
        length = rng.uniform(8, 24)
        if built and rng.random() < 0.85:
            add(
                things.sample_house(rng, outer + side * rng.uniform(0.1, 2.5), station, length, lit)
            )
        else:
            add(things.sample_hedge(rng, outer + side * 0.6, station, length))
            for _ in range(2):
                place = (outer + side * rng.uniform(1.2, 12), station + rng.uniform(0, length))
                add(things.sample_tree(rng, *place, bush=rng.random() < 0.3))
        station += length
    for place in np.arange(rng.uniform(4, 18), 45, rng.uniform(18, 40)).tolist():
        add(things.sample_post(rng, kerb + side * 0.5, place))
    for place in (5 + 22 * rng.beta(1, 1.8, int(rng.integers(0, 4)))).tolist():
        add(things.sample_sign(rng, kerb + side * rng.uniform(0.25, 1.0), place))


def _traffic(rng: Random, layout: Layout) -> None:
    """Place parked cars, cars ahead and oncoming cars, persons on the sidewalks and some
    who cross.
    """
    road, lines = layout.ground.road, layout.ground.lines

    def add(lateral: float, station: float, half: Corner, away: bool) -> None:
        # Nobody drives with a car's tail in the windscreen.
        if (abs(lateral) > 2.1 or station > 8.5) and layout.take(lateral, station, *half):
            layout.things.append(things.sample_car(rng, lateral, station, 0.0 if away else np.pi))

    for lateral, edge, away in (
        (road[0] + 1.1, min(lines), False),
        (road[1] - 1.1, max(lines), True),
    ):
        for place in np.arange(rng.uniform(3, 9), 50, 6.5).tolist():
            # Where there is room beside the lanes.
            if abs(lateral - edge) > 0.9 and rng.random() < 0.35:
                add(lateral, place, (1.0, 2.6), away)
    for _ in range(int(rng.integers(1, 4))):
        away, place = rng.random() < 0.55, 9 + 32 * rng.beta(1, 1.7)
        lanes = (lines[0] + 1.2, road[1] - 2.6) if away else (road[0] + 2.6, lines[0] - 1.2)
        add(rng.uniform(min(lanes), max(lanes)), place, (1.2, 4.0), away)
    places = []
    for _ in range(int(rng.poisson(7.0))):
        kerb, outer = layout.ground.sidewalks[rng.integers(2)]
        places.append((kerb + rng.uniform(0.1, 0.9) * (outer - kerb), 4.5 + 18 * rng.beta(1, 1.6)))
    # Enough who cross that a network cannot take whatever stands on the road for a car.
    places += [
        (rng.uniform(*layout.ground.road), rng.uniform(6, 20))
        for _ in range(int(rng.integers(0, 4)))
    ]
    for lateral, station in places:
        if layout.take(lateral, station, 0.3, 0.4):
            layout.things.append(things.sample_person(rng, lateral, station))


def _place_anomalies(rng: Random, layout: Layout) -> None:
    """Place one to three anomalies on road or sidewalk, within the picture."""
    for _ in range(int(rng.choice((1, 2, 3), p=(0.5, 0.35, 0.15)))):
        station = 10.5 * float(np.exp(rng.uniform(0, 0.55)))
        reach = 0.8 * station * float(np.tan(layout.camera.field_of_view / 2))
        # Half of them beside a kerb, where no car stands.
        (_, left), (_, right) = layout.ground.sidewalks
        low, high = (
            (left, right)
            if rng.random() < 0.5
            else sorted(layout.ground.sidewalks[rng.integers(2)])
        )
        lateral = float(np.clip(rng.uniform(low, high), -reach, reach))
        one = things.sample_anomaly(rng, lateral, station)
        if layout.take(lateral, station, one.half_width + 0.2, 0.8):
            layout.things.append(one)
            # Nothing else may stand between it and the camera.
            for far in (0.3, 0.6, 0.9):
                layout.taken.append(
                    (lateral * far, station * far, one.half_width * far, 0.15 * station)
                )


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
    """Draw a layout as a camera at ``station`` m along it sees it, ``time`` s into a video; ``rng``
    makes the noise.
    """
    height, width = size
    camera = replace(layout.camera, rows=SAMPLES * height, columns=SAMPLES * width, station=station)
    light = layout.light
    # The sky behind everything: a gradient with clouds that fade to the horizon.
    row = np.arange(camera.rows, dtype=np.float32) + 0.5
    above = np.clip(1 - row / (camera.horizon * camera.rows), 0, 1)[:, None, None]
    sky = light.skyline + (light.zenith - light.skyline) * np.sqrt(above)
    cover = cv2.resize(light.clouds, (camera.columns, camera.rows))[..., None]
    cloudy = sky + 0.7 * cover * np.minimum(1, 4 * above) * (0.75 * light.skyline + 0.2 - sky)
    canvas = Canvas(np.asarray(cloudy, np.float32))
    stage = Stage(canvas, camera, light, time)
    layout.skyline(stage)
    ahead = [thing for thing in layout.things if thing.station > station + 0.5]
    ahead.sort(key=lambda thing: -thing.station)
    footprints = [thing.reach + np.array((thing.lateral, 0.0, thing.station)) for thing in ahead]
    layout.ground.draw(stage, draw_shadows(camera, light, footprints))
    for thing in ahead:
        thing.draw(stage)
    # Haze by Koschmieder's law c exp(-k d) + skyline (1 - exp(-k d)); depth 0 (the sky) stays as it
    # is.
    skyline = light.skyline.astype(np.float32)
    clear = np.asarray(cv2.exp(-np.float32(light.extinction) * canvas.depth), np.float32)
    hazy = skyline + (canvas.colours - skyline) * clear[..., None]
    blurred = cv2.GaussianBlur(hazy, (0, 0), 0.4 * SAMPLES)  # the lens
    picture = np.asarray(
        cv2.resize(blurred, (width, height), interpolation=cv2.INTER_AREA), np.float32
    )
    # The sensor: highlights roll off instead of clipping (identity below 0.7, then towards 1), and
    # noise grows with the signal.
    picture = picture * np.float32(light.exposure)
    over = np.maximum(picture - np.float32(0.7), 0)
    picture = np.minimum(picture, np.float32(0.7)) + np.float32(0.3) * over / (
        over + np.float32(0.3)
    )
    grain = rng.standard_normal(picture.shape, dtype=np.float32)
    picture = (
        picture + np.float32(light.noise) * np.sqrt(0.3 + 1.4 * np.maximum(picture, 0)) * grain
    )
    return Scene(np.rint(np.clip(picture, 0, 1) * 255).astype(np.uint8), *vote(canvas.labels))


def vote(labels: Bytes) -> tuple[Bytes, Bytes]:
    """Return labels of the final pixels by majority over their canvas pixels, and the anomaly mask:
    pixels that an anomaly touches without the majority, and the ring of one pixel around it, where
    the lens mixes both, are 255.
    """
    # The same corner of every block, as strided views: reducing over axes of two is an order
    # slower.
    corners = [labels[i::SAMPLES, j::SAMPLES] for i in range(SAMPLES) for j in range(SAMPLES)]
    votes = [
        np.sum([corner == label for corner in corners], axis=0, dtype=np.uint8)
        for label in Id.VOTE_ORDER
    ]
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


def generate_toy(
    root: Path,
    config: ToyConfig = ToyConfig(),
    *,
    progress: Callable[[str], None] = lambda line: None,
) -> None:
    """Write the toy road scenes below ``root``: ``leftImg8bit/SPLIT/CITY/F_leftImg8bit.png``,
    ``gtFine/SPLIT/CITY/F_gtFine_labelIds.png`` (raw ids of the label map ``toy``), for the split
    ``anomaly`` also ``gtAnomaly/anomaly/CITY/F_anomaly.png`` (0 normal, 1 anomaly, 255 ignored),
    ``video/crossing.webm`` (VP8, 12.5 frames a second) with ``video/crossing_anomaly/000000.png``
    and on, and ``toy.json`` with the configuration. A finished set of the same configuration is
    kept; a set is whole or absent. ``progress`` is told a line after each split and the video.

    InputError where ``root`` holds something else, or scenes of another configuration or version;
    PartialFailure where a file cannot be written.
    """
    settings = {**asdict(config), "size": [*config.size]}
    description = {"content": "segunc toy road scenes", "version": VERSION, "config": settings}
    if root.exists() and not (root.is_dir() and not any(root.iterdir())):
        marker = root / "toy.json"
        if not marker.is_file() or read_json(marker, "the file of a finished set") != description:
            what = f"{root} holds something else than toy scenes of this configuration"
            raise InputError(what, hint="choose a new or empty folder")
        return progress(f"toy road scenes in {root} are complete")
    unfinished = root.absolute().with_name(f".{root.absolute().name}.{os.getpid()}.unfinished")
    pictures, classes, masks = (
        unfinished / name for name in ("leftImg8bit", "gtFine", "gtAnomaly")
    )
    try:
        unfinished.mkdir(parents=True)
        for index, split in enumerate(SPLITS):
            for i in range(settings[split]):
                frame = frame_name(split, i)
                scene = render_scene((config.seed, index, i), config.size, split == "anomaly")
                _write_png(pictures / split / f"{frame}_leftImg8bit.png", scene.image[..., ::-1])
                _write_png(classes / split / f"{frame}_gtFine_labelIds.png", scene.labels)
                if split == "anomaly":
                    _write_png(masks / split / f"{frame}_anomaly.png", scene.anomaly)
            progress(f"toy road scenes: {settings[split]} of {split}")
        if config.video_frames:
            _write_video(unfinished / "video", config)
            progress(f"toy road scenes: video of {config.video_frames} frames")
        write_json(unfinished / "toy.json", description)
        if root.is_dir():
            remove_empty(root)
        move_own(unfinished, root.absolute())
    except OSError as error:
        raise PartialFailure(
            f"toy road scenes could not be written to {root}: {error.strerror or error}"
        ) from error
    finally:
        remove_own_folder(unfinished, os.getpid())


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


def _write_video(folder: Path, config: ToyConfig) -> None:
    folder.mkdir(parents=True)

    def pictures() -> Iterator[tuple[float, Image]]:
        scenes = video_frames(
            (config.seed, VIDEO_SPLIT), config.size, config.video_frames, FRAMES_PER_SECOND
        )
        for i, scene in enumerate(scenes):
            _write_png(folder / "crossing_anomaly" / f"{i:06d}.png", scene.anomaly)
            yield i / FRAMES_PER_SECOND, scene.image

    encode_video(folder / "crossing.webm", pictures(), FRAMES_PER_SECOND, config.size)


def video_frames(
    seed: tuple[int, int], size: tuple[int, int], frames: int, rate: float
) -> Iterator[Scene]:
    """Draw the frames of the video one after the other: an animal that crosses the street in all of
    their time.
    """
    rng = np.random.default_rng((*seed, 0))
    layout = sample_layout(rng)
    # The bend is seen from the camera and would move with it.
    layout.camera = replace(layout.camera, curvature=0.0)
    animal = things.sample_anomaly(rng, 0.0, CROSSING, "animal", mirror=1)
    left, right = layout.ground.road
    # It starts at the left kerb and ends near the right one, within the picture.
    start, end = left + 0.3, min(right - 0.8, 3.0)
    # Whatever is on the road before it would hide it, or be driven into.
    standing = [
        one for one in layout.things if not left < one.lateral < right or one.station > CROSSING + 6
    ]
    for i in range(frames):
        time, share = i / rate, i / max(1, frames - 1)
        crossing = replace(animal, lateral=start + (end - start) * share)
        sensor = np.random.default_rng((*seed, i + 1))
        # The camera stops short of the animal, as a driver would.
        station = (CROSSING - 6.5) * i / frames
        yield render_layout(
            replace(layout, things=[*standing, crossing]), size, sensor, station, time
        )
