"""Pictures of the worst failures of maps with labels: missed objects, false alarms and confident errors."""

from __future__ import annotations

import base64
import heapq
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import cv2
import numpy as np

from segunc.core.errors import InputError, PartialFailure
from segunc.data.labels import IGNORE
from segunc.evaluation.flagged import SMALLEST_REGION
from segunc.gallery.overlay import colourise, page_ranges
from segunc.maps import labelled
from segunc.maps.encoding import encode_jpeg
from segunc.maps.folder import PREDICTION
from segunc.maps.reader import MapsReader
from segunc.maps.statistics import strongest_regions
from segunc.scores import first_shown, title_of

EACH = 4  # pictures of each kind
FOUND_SHARE = 0.5  # of an object's pixels that are flagged, from which on it counts as found
WIDTH, HEIGHT = 240, 180  # of each of the two views of a picture
_OUTLINE = (255, 255, 255)


class Failure(NamedTuple):
    """One region of a frame; failures are sorted by their weight."""

    weight: float
    frame: str
    title: str
    line: str
    box: tuple[int, int, int, int]  # left, top, width, height


def failures(reader: MapsReader, labels: labelled.LabelSources, thresholds: Mapping[str, Mapping[str, Any]]) -> list[dict[str, str]]:
    """Return pictures of maps, the worst of each kind first: ``title``, ``line`` and ``jpeg`` in base64; none where no label belongs to a
    frame. A pixel is flagged from the threshold of the maps' score on, else from the value that they record for regions."""
    try:
        files = labels.find(reader, reader.frames)
    except PartialFailure:  # of several maps folders some may have no label
        return []
    promised = next((of for of in thresholds.values() if of["score"] in reader.scores), None)
    score = promised["score"] if promised else first_shown(reader.scores)
    recorded = (reader.manifest or {}).get("maps", {}).get(score, {}).get("component_threshold")
    threshold = promised["value"] if promised else recorded
    worst: dict[str, list[Failure]] = {}
    for name in reader.frames if threshold is not None else ():
        for failure in _of_frame(reader, files, name, score, threshold):
            kind = worst.setdefault(failure.title, [])
            (heapq.heappush if len(kind) < EACH else heapq.heappushpop)(kind, failure)
    chosen = [failure for kind in worst.values() for failure in sorted(kind, reverse=True)]
    names = sorted({failure.frame for failure in chosen}, key=reader.frames.index)
    source, _ = labelled.open_images(reader, None, names)
    images = {name: image for name, image, _ in labelled.with_images(names, source)}
    ranges = page_ranges(reader, [score])[score]
    return [_draw(failure, images[failure.frame], colourise(reader.read(failure.frame, score), ranges)) for failure in chosen]


def _of_frame(reader: MapsReader, files: labelled.ReviewLabels, name: str, score: str, threshold: float) -> Iterator[Failure]:
    values, words = reader.read(name, score), title_of(score, capital=False)
    anomaly, classes = files.anomaly(name), files.classes(name)
    for label in (anomaly, classes):
        if label is not None and label.shape != values.shape:
            raise InputError(f"frame {name}: the maps are {values.shape}, and the label is {label.shape}", hint="predict at the labels' size")
    if anomaly is not None:
        _, numbers, boxes, _ = cv2.connectedComponentsWithStats((anomaly == 1).view(np.uint8), connectivity=8)
        flagged = np.bincount(numbers[values >= threshold], minlength=len(boxes))
        for number, (*box, area) in enumerate(boxes[1:].tolist(), start=1):
            if area >= SMALLEST_REGION and (share := flagged[number] / area) < FOUND_SHARE:
                line = f"{name}: an object of {area:,} pixels, of which {share:.0%} are flagged by {words}."
                yield Failure(area, name, "Missed.", line, tuple(box))
        normal = np.where(anomaly == 0, values, -np.inf).astype(np.float32)
        for region in strongest_regions(normal, threshold, smallest=SMALLEST_REGION):
            line = f"{name}: {region.area:,} pixels of normal ground, {words} up to {normal[region.peak[::-1]]:.3g}."
            yield Failure(region.strength, name, "False alarm.", line, region.box)
    if classes is not None and reader.has(name, PREDICTION):
        prediction = reader.prediction(name)
        wrong = (classes != IGNORE) & (prediction != classes) & (values < threshold)
        _, numbers, boxes, _ = cv2.connectedComponentsWithStats(wrong.view(np.uint8), connectivity=8)
        for number in np.argsort(-boxes[1:, cv2.CC_STAT_AREA])[:EACH] + 1:
            *box, area = boxes[number].tolist()
            inside, names = numbers == number, reader.class_names or [f"class {index}" for index in range(256)]
            taken, true = (names[int(np.bincount(of[inside]).argmax())] for of in (prediction, classes))
            line = f"{name}: {area:,} pixels of {true} taken for {taken}, mean {words} {values[inside].mean():.3g}."
            yield Failure(area, name, "Confident error.", line, tuple(box))


def _draw(failure: Failure, image: Any, score: Any) -> dict[str, str]:
    """Draw the surroundings of a failure in the image, where there is one, and in the score's colours side by side."""
    left, top, width, height = failure.box
    rows, columns = score.shape[:2]
    wide = min(max(2.5 * width, 2.5 * height * WIDTH / HEIGHT, columns / 5), columns, rows * WIDTH / HEIGHT)
    high = wide * HEIGHT / WIDTH
    x, y = (
        int(np.clip(start + size / 2 - view / 2, 0, whole - view))
        for start, size, view, whole in ((left, width, wide, columns), (top, height, high, rows))
    )
    views = []
    for picture in (score,) if image is None else (cv2.resize(image, (columns, rows)), score):
        view = cv2.resize(picture[y : y + round(high), x : x + round(wide)], (WIDTH, HEIGHT), interpolation=cv2.INTER_AREA)
        corners = [round((at - start) * WIDTH / wide) for at, start in ((left, x), (top, y), (left + width, x), (top + height, y))]
        for colour, thickness in (((0, 0, 0), 4), (_OUTLINE, 2)):
            cv2.rectangle(view, corners[:2], corners[2:], colour, thickness, cv2.LINE_AA)
        views.append(view)
    jpeg = base64.b64encode(encode_jpeg(np.hstack(views), 82)).decode()
    return {"title": failure.title, "line": failure.line, "jpeg": jpeg}
