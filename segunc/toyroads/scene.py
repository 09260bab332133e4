"""A scene: what stands where, and its picture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import cv2
import numpy as np
import numpy.typing as npt

from segunc.toyroads import surroundings
from segunc.toyroads.anomalies import sample_anomaly
from segunc.toyroads.camera import Camera, Corner
from segunc.toyroads.canvas import ANOMALY, VOTE_ORDER, Canvas, Stage, Thing
from segunc.toyroads.light import Light, apply_air, draw_sky, expose, sample_light
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
    """A street scene before it is drawn."""

    light: Light
    ground: Ground
    skyline: Callable[[Stage], None]
    camera: Camera  # without rows and columns yet
    things: list[Thing] = field(default_factory=list)
    taken: list[tuple[float, ...]] = field(default_factory=list)  # lateral and station, half width and length

    def take(self, lateral: float, station: float, half_width: float, half_length: float) -> bool:
        """Take a rectangle around a place; False, and nothing is taken, where it meets another one."""
        meets = (abs(lateral - x) < half_width + w and abs(station - z) < half_length + d for x, z, w, d in self.taken)
        if free := not any(meets):
            self.taken.append((lateral, station, half_width, half_length))
        return free

    @property
    def sidewalks(self) -> list[Corner]:
        """Laterals of the kerb and of the outer edge of the sidewalks to the left and right."""
        return list(zip(self.ground.road, self.ground.sidewalk, strict=True))


def sample_layout(rng: np.random.Generator, anomalies: bool = False) -> Layout:
    """Return a random street scene, if asked for with one to three anomalies on the road or sidewalk."""
    woods = rng.uniform(0, 1)
    skyline = surroundings.sample_skyline(rng, woods)
    view, horizon, height = float(np.deg2rad(rng.uniform(50, 68))), rng.uniform(0.40, 0.52), rng.uniform(1.25, 1.75)
    camera = Camera(0, 0, view, horizon, height, curvature=rng.normal(0, 0.0016), roll=rng.normal(0, 0.008))
    layout = Layout(sample_light(rng), surroundings.sample_ground(rng), skyline, camera)
    if anomalies:
        _place_anomalies(rng, layout)
    for kerb, outer in layout.sidewalks:
        _line_side(rng, layout, kerb, outer, woods)
    _traffic(rng, layout)
    _people(rng, layout)
    return layout


def _line_side(rng: np.random.Generator, layout: Layout, kerb: float, outer: float, woods: float) -> None:
    """Place houses, or hedges and trees, behind one sidewalk; lamp posts and traffic signs along the kerb."""
    side, add = (1 if outer > kerb else -1), layout.things.append
    lit = 0.35 if layout.light.weather == "dusk" else 0.04
    built, station = rng.random() > 0.1 + 0.4 * woods, rng.uniform(-12, -2)
    while station < REACH:
        length = rng.uniform(8, 24)
        if built and rng.random() < 0.85:
            add(surroundings.sample_house(rng, outer + side * rng.uniform(0.1, 2.5), station, length, lit))
        else:
            add(surroundings.sample_hedge(rng, outer + side * 0.6, station, length))
            for _ in range(2):
                place = (outer + side * rng.uniform(1.2, 12), station + rng.uniform(0, length))
                add(surroundings.sample_tree(rng, *place, bush=rng.random() < 0.3))
        station += length
    for place in np.arange(rng.uniform(4, 18), 45, rng.uniform(18, 40)).tolist():
        add(sample_post(rng, kerb + side * 0.5, place))
    for place in (5 + 22 * rng.beta(1, 1.8, int(rng.integers(0, 4)))).tolist():
        add(sample_sign(rng, kerb + side * rng.uniform(0.25, 1.0), place))


def _traffic(rng: np.random.Generator, layout: Layout) -> None:
    """Place parked cars, cars ahead and oncoming cars."""
    road, lines = layout.ground.road, layout.ground.lines

    def add(lateral: float, station: float, half: Corner, away: bool) -> None:
        # Nobody drives with a car's tail in the windscreen.
        if (abs(lateral) > 2.1 or station > 8.5) and layout.take(lateral, station, *half):
            layout.things.append(sample_car(rng, lateral, station, 0.0 if away else np.pi))

    for lateral, edge, away in ((road[0] + 1.1, min(lines), False), (road[1] - 1.1, max(lines), True)):
        for place in np.arange(rng.uniform(3, 9), 50, 6.5).tolist():
            # Where there is room beside the lanes.
            if abs(lateral - edge) > 0.9 and rng.random() < 0.35:
                add(lateral, place, (1.0, 2.6), away)
    for _ in range(int(rng.integers(1, 4))):
        away, place = rng.random() < 0.55, 9 + 32 * rng.beta(1, 1.7)
        lanes = (lines[0] + 1.2, road[1] - 2.6) if away else (road[0] + 2.6, lines[0] - 1.2)
        add(rng.uniform(min(lanes), max(lanes)), place, (1.2, 4.0), away)


def _people(rng: np.random.Generator, layout: Layout) -> None:
    """Place persons on the sidewalks and some who cross."""
    places = []
    for _ in range(int(rng.poisson(7.0))):
        kerb, outer = layout.sidewalks[rng.integers(2)]
        places.append((kerb + rng.uniform(0.1, 0.9) * (outer - kerb), 4.5 + 18 * rng.beta(1, 1.6)))
    # Enough who cross that a network cannot take whatever stands on the road for a car.
    places += [(rng.uniform(*layout.ground.road), rng.uniform(6, 20)) for _ in range(int(rng.integers(0, 4)))]
    for lateral, station in places:
        if layout.take(lateral, station, 0.3, 0.4):
            layout.things.append(sample_person(rng, lateral, station))


def _place_anomalies(rng: np.random.Generator, layout: Layout) -> None:
    """Place one to three anomalies on road or sidewalk, within the picture."""
    for _ in range(int(rng.choice((1, 2, 3), p=(0.5, 0.35, 0.15)))):
        station = 10.5 * float(np.exp(rng.uniform(0, 0.55)))
        reach = 0.8 * station * float(np.tan(layout.camera.field_of_view / 2))
        # Half of them beside a kerb, where no car stands.
        low, high = layout.ground.sidewalk if rng.random() < 0.5 else sorted(layout.sidewalks[rng.integers(2)])
        lateral = float(np.clip(rng.uniform(low, high), -reach, reach))
        one = sample_anomaly(rng, lateral, station)
        if layout.take(lateral, station, one.half_width + 0.2, 0.8):
            layout.things.append(one)
            # Nothing else may stand between it and the camera.
            for far in (0.3, 0.6, 0.9):
                layout.taken.append((lateral * far, station * far, one.half_width * far, 0.15 * station))


def render_scene(seed: int | Sequence[int] | np.random.SeedSequence, size: tuple[int, int], anomaly: bool) -> Scene:
    """Draw the scene of a seed (of a data set: seed, split and frame), with one to three anomalies or none.

    The street depends on the seed alone; ``size``, (height, width) in pixels of 32 or more, changes the resolution.
    """
    rng = np.random.default_rng(seed)
    return render_layout(sample_layout(rng, anomaly), size, rng)


def render_layout(
    layout: Layout, size: tuple[int, int], rng: np.random.Generator, station: float = 0.0, time: float = 0.0
) -> Scene:
    """Draw a layout as a camera at ``station`` m along it sees it, ``time`` s into a video; ``rng`` makes the noise."""
    height, width = size
    camera = replace(layout.camera, rows=SUPERSAMPLING * height, columns=SUPERSAMPLING * width, station=station)
    canvas = Canvas(draw_sky(camera, layout.light))
    stage = Stage(canvas, camera, layout.light, time)
    layout.skyline(stage)
    ahead = [thing for thing in layout.things if thing.station > station + 0.5]
    ahead.sort(key=lambda thing: -thing.station)
    footprints = [thing.reach + np.array((thing.lateral, 0.0, thing.station)) for thing in ahead]
    layout.ground.draw(stage, draw_shadows(camera, layout.light, footprints))
    for thing in ahead:
        thing.draw(stage)
    colours = apply_air(canvas.colours, canvas.depth, layout.light)
    blurred = cv2.GaussianBlur(colours, (0, 0), 0.4 * SUPERSAMPLING)  # the lens
    picture = np.asarray(cv2.resize(blurred, (width, height), interpolation=cv2.INTER_AREA), np.float32)
    labels, anomaly = vote(canvas.labels)
    return Scene(expose(picture, layout.light, rng), labels, anomaly)


def vote(labels: Bytes) -> tuple[Bytes, Bytes]:
    """Return labels of the final pixels by majority over their canvas pixels, and the anomaly mask.

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
