"""A scene: what stands where, and its picture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import cv2
import numpy as np
import numpy.typing as npt

from segunc.core.errors import InputError
from segunc.toyroads import surroundings
from segunc.toyroads.anomalies import sample_anomaly
from segunc.toyroads.camera import Camera, Corner, Floats
from segunc.toyroads.canvas import ANOMALY, CAR, PERSON, ROAD, VOTE_ORDER, Canvas, Stage, Thing
from segunc.toyroads.light import Light, add_rain, apply_air, draw_sky, expose, sample_light
from segunc.toyroads.objects import sample_car, sample_person, sample_post, sample_sign
from segunc.toyroads.surroundings import Ground, draw_shadows

REACH = 110.0  # metres of street that are furnished
SUPERSAMPLING = 2  # canvas pixels along each side of a final pixel
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Scene:
    """A drawn scene, all uint8: RGB ``[H, W, 3]``, and two of ``[H, W]``.

    ``labels`` are raw ids of the label map ``toy`` (anomalies are 5: 'dynamic', ignored); ``anomaly`` is 0 normal,
    1 anomaly, 255 ignored (the rim of one pixel around an anomaly).
    """

    image: Bytes
    labels: Bytes
    anomaly: Bytes


@dataclass
class Layout:
    """A street scene before it is drawn: its ``camera`` has no rows and columns yet.

    ``taken`` are rectangles of the street: lateral and station of the middle, half width, half length.
    """

    light: Light
    ground: Ground
    skyline: Callable[[Stage], None]
    camera: Camera
    things: list[Thing] = field(default_factory=list)
    taken: list[tuple[float, float, float, float]] = field(default_factory=list)

    def take(self, lateral: float, station: float, half_width: float, half_length: float) -> bool:
        """Take a rectangle around a place; False, and nothing is taken, where it meets another one."""
        meets = (abs(lateral - x) < half_width + w and abs(station - z) < half_length + d for x, z, w, d in self.taken)
        if free := not any(meets):
            self.taken.append((lateral, station, half_width, half_length))
        return free

    def side(self, side: int) -> Corner:
        """Laterals of the kerb and of the sidewalk's outer edge, to the left (-1) or right (1)."""
        which = (side + 1) // 2
        return self.ground.road[which], self.ground.sidewalk[which]


def sample_layout(rng: np.random.Generator, anomalies: bool = False, film: bool = False) -> Layout:
    """A random street scene.

    Args:
        anomalies: put one to three on the road or sidewalk.
        film: for a camera that moves along it: a straight street without roll, in clear weather.
    """
    light = sample_light(rng, "clear" if film else None)
    ground = surroundings.sample_ground(rng)
    woods = rng.uniform(0, 1)
    skyline = surroundings.sample_skyline(rng, woods)
    view, horizon, height = float(np.deg2rad(rng.uniform(50, 68))), rng.uniform(0.40, 0.52), rng.uniform(1.25, 1.75)
    curvature, roll = (0.0, 0.0) if film else (rng.normal(0, 0.0016), rng.normal(0, 0.008))
    layout = Layout(light, ground, skyline, Camera(0, 0, view, horizon, height, curvature, roll))
    odd = _place_anomalies(rng, layout) if anomalies else []
    for side in (-1, 1):
        _line_side(rng, layout, side, woods)
    _furnish(rng, layout)
    _traffic(rng, layout)
    _people(rng, layout)
    # Nobody drives with a car's tail in the windscreen.
    seen = [one for one in layout.things if not (one.label == CAR and abs(one.lateral) < 2.1 and one.station < 8.5)]
    layout.things = [*(thing for thing in seen if not any(_hides(thing, one) for one in odd)), *odd]
    return layout


def _line_side(rng: np.random.Generator, layout: Layout, side: int, woods: float) -> None:
    """Houses, or hedges and trees, behind one sidewalk."""
    (kerb, outer), add = layout.side(side), layout.things.append
    lit = 0.35 if layout.light.weather == "dusk" else 0.04
    built = rng.random() > 0.1 + 0.4 * woods
    setback, station = rng.uniform(0.0, 2.5), rng.uniform(-12, -2)
    while station < REACH:
        length = rng.uniform(8, 24)
        if built and rng.random() < 0.85:
            add(surroundings.sample_house(rng, outer + side * (0.1 + setback), station, length, lit))
        elif rng.random() < 0.6:
            add(surroundings.sample_hedge(rng, outer + side * 0.6, station, length))
        if not built or rng.random() < 0.15:
            for _ in range(int(rng.integers(1, 4))):
                place = (outer + side * rng.uniform(1.2, 12), station + rng.uniform(0, length))
                add(surroundings.sample_tree(rng, *place, bush=rng.random() < 0.3))
        station += length + (rng.uniform(2, 9) if rng.random() < 0.3 else 0.0)
    if rng.random() < 0.2:  # an avenue
        lateral = kerb + side * 0.8
        for trunk in np.arange(rng.uniform(4, 12), REACH, rng.uniform(7, 13)).tolist():
            if layout.take(lateral, trunk, 0.5, 0.5):
                add(surroundings.sample_tree(rng, lateral, trunk))


def _furnish(rng: np.random.Generator, layout: Layout) -> None:
    """Lamp posts and traffic signs along the kerbs."""
    for side in (-1, 1):
        lateral = layout.side(side)[0] + side * rng.uniform(0.35, 0.7)
        if rng.random() < 0.6:
            for place in np.arange(rng.uniform(4, 18), 45, rng.uniform(14, 30)).tolist():
                layout.things.append(sample_post(rng, lateral, place))
    for _ in range(int(rng.integers(1, 5))):
        side = 1 if rng.random() < 0.65 else -1
        lateral = layout.side(side)[0] + side * rng.uniform(0.25, 1.0)
        layout.things.append(sample_sign(rng, lateral, 5 + 22 * rng.beta(1, 1.8)))


def _traffic(rng: np.random.Generator, layout: Layout) -> None:
    """Parked cars, cars ahead, oncoming cars, at times one that turns across."""
    road, lines = layout.ground.road, layout.ground.lines

    def add(lateral: float, station: float, half: Corner, yaw: float | None, speed: float = 0.0) -> None:
        if layout.take(lateral, station, *half):
            yaw = rng.uniform(0.7, 2.4) * float(rng.choice((-1, 1))) if yaw is None else yaw
            layout.things.append(sample_car(rng, lateral, station, yaw, speed))

    for side in (-1, 1):
        kerb = layout.side(side)[0]
        if abs(kerb - (max if side > 0 else min)(lines)) < 2.0:
            continue
        busy, place = rng.uniform(0.1, 0.6), rng.uniform(3, 9)
        while place < 50:
            if rng.random() < busy:
                add(kerb - side * 1.1, place, (1.0, 2.6), 0.0 if side > 0 else np.pi)
            place += rng.uniform(5.4, 8)
    for _ in range(int(rng.integers(1, 4))):
        oncoming = rng.random() < 0.45
        lanes = (road[0] + 2.6, lines[0] - 1.2) if oncoming else (lines[0] + 1.2, road[1] - 2.6)
        lateral, place = rng.uniform(min(lanes), max(lanes)), 9 + 32 * rng.beta(1, 1.7)
        add(lateral, place, (1.2, 4.0), np.pi if oncoming else 0.0, -5.0 if oncoming else 5.0)
    if rng.random() < 0.15:
        add(rng.uniform(*road), rng.uniform(12, 30), (2.6, 2.6), None)


def _people(rng: np.random.Generator, layout: Layout) -> None:
    """Persons on the sidewalks, alone or together, and some who cross."""

    def add(lateral: float, station: float, half: Corner) -> None:
        if layout.take(lateral, station, *half):
            layout.things.append(sample_person(rng, lateral, station))

    for _ in range(int(rng.poisson(4.0))):
        side = int(rng.choice((-1, 1)))
        kerb, outer = layout.side(side)
        low, high = sorted((kerb + side * 0.4, outer - side * 0.3))
        lateral, place = rng.uniform(low, high), 4.5 + 18 * rng.beta(1, 1.6)
        for i in range(int(rng.choice((1, 1, 2, 3)))):
            add(lateral + 0.6 * i * side, place + 0.3 * i, (0.25, 0.3))
    # Enough who cross that a network cannot take whatever stands on the road for a car.
    for _ in range(int(rng.choice((0, 1, 2, 3)))):
        add(rng.uniform(*layout.ground.road), rng.uniform(6, 20), (0.3, 0.5))


def _place_anomalies(rng: np.random.Generator, layout: Layout) -> list[Thing]:
    """One to three anomalies on road or sidewalk, within the picture."""
    placed, (left, right) = [], layout.ground.sidewalk
    for _ in range(int(rng.choice((1, 2, 3), p=(0.5, 0.35, 0.15)))):
        station = 10.5 * float(np.exp(rng.uniform(0, 0.55)))
        # The street bends away from under the camera's axis.
        reach = 0.8 * station * float(np.tan(layout.camera.field_of_view / 2))
        lateral = rng.uniform(max(left + 0.8, -reach), min(right - 0.8, reach))
        if rng.random() < 0.5:  # beside the kerb, where no car stands
            low, high = sorted(layout.side(int(rng.choice((-1, 1)))))
            lateral = float(np.clip(rng.uniform(low, high), -reach, reach))
        one = sample_anomaly(rng, lateral, station)
        if layout.take(lateral, station, one.half_width + 0.2, 0.8):
            placed.append(one)
    return placed


def _hides(thing: Thing, odd: Thing) -> bool:
    """Whether a car or person stands in the line of sight of an anomaly."""
    if thing.label not in (CAR, PERSON) or not 0 < thing.station < odd.station + 0.5:
        return False
    # A car's rear is nearer than its middle and so looks wider.
    scale = odd.station / max(1.0, thing.station - (2.2 if thing.label == CAR else 0.0))
    return abs(thing.lateral * scale - odd.lateral) < odd.half_width + thing.half_width * scale


def render_scene(seed: int | Sequence[int] | np.random.SeedSequence, size: tuple[int, int], anomaly: bool) -> Scene:
    """Draw the scene of a seed (of a data set: seed, split and frame), with one to three anomalies or none.

    The street depends on the seed alone; ``size``, (height, width) in pixels, only changes the resolution (and the sensor noise).
    InputError where it is below 32 either way.
    """
    check_size(size)
    rng = np.random.default_rng(seed)
    return render_layout(sample_layout(rng, anomaly), size, rng)


def check_size(size: tuple[int, int]) -> None:
    """Refuse sizes that no scene can be drawn in."""
    if len(size) != 2 or min(size) < 32:
        raise InputError(f"toy scenes of size {size}", "(height, width) of at least 32 pixels each", "ask for more")


def render_layout(
    layout: Layout, size: tuple[int, int], rng: np.random.Generator, station: float = 0.0, time: float = 0.0
) -> Scene:
    """Draw a layout as the camera at ``station`` (metres along the street) sees it after ``time`` seconds of a video.

    ``rng`` drives rain and noise.
    """
    height, width = size
    camera = replace(layout.camera, rows=SUPERSAMPLING * height, columns=SUPERSAMPLING * width, station=station)
    canvas = Canvas(draw_sky(camera, layout.light))
    stage = Stage(canvas, camera, layout.light, time)
    layout.skyline(stage)
    ordered = sorted(layout.things, key=lambda thing: -thing.station)
    ahead = [thing for thing in ordered if thing.station > camera.station + 0.5]
    footprints = [thing.reach + np.array((thing.lateral, 0.0, thing.station)) for thing in ahead]
    layout.ground.draw(stage, draw_shadows(camera, layout.light, footprints))
    for thing, points in zip(ahead, footprints, strict=True):
        # Crowns and lamp arms reach beyond the points that make the shadow.
        if not camera.misses(points, 2.5):
            thing.draw(stage)
    colours = apply_air(canvas.colours, canvas.depth, layout.light)
    if layout.light.wet:
        colours = _mirror(colours, canvas.labels, camera, layout.light)
    blurred = cv2.GaussianBlur(colours, (0, 0), SUPERSAMPLING * layout.light.blur)
    picture = np.asarray(cv2.resize(blurred, (width, height), interpolation=cv2.INTER_AREA), np.float32)
    picture = add_rain(picture, layout.light, rng)
    labels, anomaly = vote(canvas.labels)
    return Scene(expose(picture, layout.light, rng), labels, anomaly)


def _mirror(colours: Floats, labels: Bytes, camera: Camera, light: Light) -> Floats:
    """A wet road mirrors what stands above it, smeared upwards and downwards."""
    rows = camera.rows
    source = np.clip(np.rint(2 * camera.horizon * rows - np.arange(rows)), 0, rows - 1).astype(np.intp)
    smeared = cv2.blur(colours[source], (3, max(3, rows // 12)))
    share = (np.float32(light.wet) * (labels == ROAD))[..., None]
    return np.asarray(colours + share * (smeared - colours), np.float32)


def vote(labels: Bytes) -> tuple[Bytes, Bytes]:
    """Labels of the final pixels by majority over their canvas pixels, and the anomaly mask.

    Ties go to the earlier id of VOTE_ORDER. Pixels that an anomaly touches without the majority, and the ring of
    one pixel around it, where the lens mixes both, are 255 in the mask.
    """
    step = SUPERSAMPLING
    # The same corner of every block, as strided views: reducing over axes of two is an order slower.
    corners = [labels[i::step, j::step] for i in range(step) for j in range(step)]
    votes = [np.sum([corner == label for corner in corners], axis=0, dtype=np.uint8) for label in VOTE_ORDER]
    winner = np.array(VOTE_ORDER, np.uint8)[np.argmax(votes, axis=0)]  # the first of several
    touched = np.any([corner == ANOMALY for corner in corners], axis=0)
    anomaly = (winner == ANOMALY).astype(np.uint8)
    ring = (cv2.dilate(anomaly, np.ones((3, 3), np.uint8)) > 0) | touched
    anomaly[ring & (anomaly == 0)] = 255
    return winner, anomaly
