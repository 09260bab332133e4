"""One toy road scene: from a seed to picture, labels and anomaly mask."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

from segunc.data.toy.camera import Camera, Floats
from segunc.data.toy.canvas import ANOMALY, ROAD, VOTE_ORDER, Canvas, Stage
from segunc.data.toy.ground import draw_shadows
from segunc.data.toy.layout import Layout, sample_layout
from segunc.data.toy.light import Light, add_rain, apply_air, draw_sky, expose
from segunc.errors import InputError

SUPERSAMPLING = 2
"""Canvas pixels along each side of a final pixel."""
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Scene:
    """A drawn scene.

    Attributes:
        image: RGB uint8 ``[H, W, 3]``.
        labels: raw label ids of the label map ``toy``, uint8 ``[H, W]``; anomalies are 5 ('dynamic', ignored).
        anomaly: uint8 ``[H, W]``: 0 normal, 1 anomaly, 255 ignored (the rim of one pixel around an anomaly).
    """

    image: Bytes
    labels: Bytes
    anomaly: Bytes


def render_scene(seed: int | Sequence[int] | np.random.SeedSequence, size: tuple[int, int], anomaly: bool) -> Scene:
    """Draw the scene of a seed.

    The street depends on the seed alone; ``size`` only changes the resolution (and the sensor noise).

    Args:
        seed: whatever :func:`numpy.random.default_rng` takes as a seed; the data set uses (seed, split, frame).
        size: (height, width) in pixels, at least 32 each.
        anomaly: put one to three anomalies into the scene.

    Raises:
        InputError: the size is too small.
    """
    check_size(size)
    rng = np.random.default_rng(seed)
    layout = sample_layout(rng, anomaly)
    return render_layout(layout, size, rng)


def check_size(size: tuple[int, int]) -> None:
    """Refuse sizes that no scene can be drawn in."""
    if len(size) != 2 or min(size) < 32:
        raise InputError(f"toy scenes of size {size}", "(height, width) of at least 32 pixels each", "ask for more")


def render_layout(layout: Layout, size: tuple[int, int], rng: np.random.Generator, station: float = 0.0) -> Scene:
    """Draw a layout as the camera at ``station`` (metres along the street) sees it; ``rng`` drives rain and noise."""
    height, width = size
    camera = layout.camera(SUPERSAMPLING * height, SUPERSAMPLING * width, station)
    canvas = draw_canvas(layout, camera)
    colours = apply_air(canvas.colours, canvas.depth, layout.light)
    if layout.light.wet:
        colours = _mirror(colours, canvas.labels, camera, layout.light)
    blurred = cv2.GaussianBlur(colours, (0, 0), SUPERSAMPLING * layout.light.blur)
    picture = np.asarray(cv2.resize(blurred, (width, height), interpolation=cv2.INTER_AREA), np.float32)
    picture = add_rain(picture, layout.light, rng)
    labels, anomaly = vote(canvas.labels)
    return Scene(expose(picture, layout.light, rng), labels, anomaly)


def draw_canvas(layout: Layout, camera: Camera) -> Canvas:
    """Sky, skyline, shadowed ground, then all things from far to near."""
    canvas = Canvas.over(draw_sky(camera, layout.light))
    stage = Stage(canvas, camera, layout.light)
    layout.skyline.draw(stage)
    ordered = sorted(layout.things, key=lambda thing: -thing.station)
    ahead = [thing for thing in ordered if thing.station > camera.station + 0.5]
    footprints = [thing.footprint() for thing in ahead]
    layout.ground.draw(canvas, camera, layout.light, draw_shadows(camera, layout.light, footprints))
    for thing, points in zip(ahead, footprints, strict=True):
        # Crowns and lamp arms reach beyond the points that make the shadow.
        if not camera.misses(points, 2.5):
            thing.draw(stage)
    return canvas


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
    winner = np.zeros_like(corners[0])
    best = np.zeros_like(winner)
    touched = np.zeros(winner.shape, bool)
    for label in VOTE_ORDER:
        count = np.zeros_like(winner)
        for corner in corners:
            count += corner == label
        better = count > best
        winner[better] = label
        np.maximum(best, count, out=best)
        if label == ANOMALY:
            touched = count > 0
    anomaly = (winner == ANOMALY).astype(np.uint8)
    ring = (cv2.dilate(anomaly, np.ones((3, 3), np.uint8)) > 0) | touched
    anomaly[ring & (anomaly == 0)] = 255
    return winner, anomaly
