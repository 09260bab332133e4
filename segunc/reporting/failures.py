"""Pictures of the worst failures of maps with labels: missed objects, false alarms and confident
errors.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from segunc.core.errors import PartialFailure
from segunc.decisions.flags import Threshold
from segunc.decisions.guarantee import calibration_frames
from segunc.evaluation.maps import read_frame
from segunc.evaluation.parts import LabelledFrame
from segunc.gallery.colours import colourise, page_ranges
from segunc.gallery.frame_files import region_threshold
from segunc.gallery.pictures import draw_crop
from segunc.maps import labelled
from segunc.maps.encoding import is_flagged
from segunc.maps.reader import MapsReader
from segunc.maps.regions import strongest_regions
from segunc.metrics.objects import SMALLEST_OBJECT
from segunc.reporting.inputs import Inputs
from segunc.scores import first_shown, title_of

EACH = 4  # pictures of each kind


class Failure(NamedTuple):
    """One region of a frame; failures are sorted by their kind and weight."""

    title: str
    weight: float
    frame: str
    line: str
    box: tuple[int, int, int, int]  # left, top, width, height


def failures(inputs: Inputs, labels: labelled.LabelSources) -> list[dict[str, str]]:
    """Return pictures of the worst failures of each kind: ``title``, ``line`` and ``jpeg`` in
    base64; none of maps without labels. A pixel is flagged from the value of a threshold of its
    score on, else from the one that the maps record for regions. Frames of a calibration are left
    out, because a threshold has seen them.
    """
    pictures = []
    for reader in inputs.maps if labels.anomaly_labels or labels.labels else ():
        made = next((of for of in inputs.thresholds.values() if of.score in reader.scores), None)
        score = made.score if made else first_shown(reader.scores)
        value = made.value if made else region_threshold(reader, score)
        if value is None:
            continue
        flag = Threshold(value)
        smallest_object = SMALLEST_OBJECT
        if made:
            flag = Threshold(value, found_share=made.found_share, smallest=made.smallest)
            smallest_object = made.smallest_object
        try:
            files = labels.find(reader, reader.frames)
        except PartialFailure:  # of several maps folders some may have no label
            continue
        frames = [(name, reader.identity(name, score)) for name in files.labelled(reader.frames)]
        calibrated: set[str] = set()
        for threshold in inputs.thresholds.values():
            calibrated.update(calibration_frames(threshold.frames, frames))
        seen = [name for name, _ in frames if name not in calibrated]
        found = sorted(
            (
                failure
                for name in seen
                for failure in _of_frame(reader, files, name, score, flag, smallest_object)
            ),
            reverse=True,
        )
        most = max(EACH // len(inputs.maps), 1)
        worst = [
            f
            for place, f in enumerate(found)
            if place < most or found[place - most].title != f.title
        ]
        names = [name for name in reader.frames if name in {failure.frame for failure in worst}]
        images = {
            name: image
            for name, image, _ in labelled.with_images(
                names, labelled.open_images(reader, None, names)[0]
            )
        }
        for failure in worst:
            colours = colourise(
                reader.read(failure.frame, score), page_ranges(reader, [score])[score]
            )
            jpeg = base64.b64encode(draw_crop(failure.box, images[failure.frame], colours)).decode()
            pictures.append({"title": f"{failure.title}.", "line": failure.line, "jpeg": jpeg})
    return pictures[: 3 * EACH]


def _of_frame(
    reader: MapsReader,
    files: labelled.ReviewLabels,
    name: str,
    score: str,
    flag: Threshold,
    smallest_object: int,
) -> Iterator[Failure]:
    """Yield objects of which less than a share is flagged, the strongest false alarm and the
    largest confident error of a frame.
    """
    fields = read_frame(reader, [score], files, None, name)
    frame = LabelledFrame(name, **fields, smallest_object=smallest_object)
    yield from _missed(frame, score, flag)
    yield from _false_alarm(frame, score, flag)
    yield from _confident_error(frame, score, flag, reader.class_names)


def _missed(frame: LabelledFrame, score: str, flag: Threshold) -> Iterator[Failure]:
    """Yield the labelled objects of which too little is flagged."""
    objects = frame.objects
    if objects is None:
        return
    flagged = is_flagged(frame.values(score), flag.value)
    counts = np.bincount(objects.number[flagged], minlength=len(objects.pixels) + 1)[1:]
    shares = counts / objects.pixels
    words = title_of(score, capital=False)
    for number in np.flatnonzero(shares < flag.found_share).tolist():
        area = int(objects.pixels[number])
        left, top, width, height = objects.boxes[number].tolist()
        share = f"of which {shares[number]:.0%} are flagged by {words}"
        line = f"{frame.name}: an object of {area:,} pixels, {share}."
        yield Failure("Missed", area, frame.name, line, (left, top, width, height))


def _false_alarm(frame: LabelledFrame, score: str, flag: Threshold) -> Iterator[Failure]:
    """Yield the strongest flagged region of normal ground."""
    if frame.anomaly is None:
        return
    values = frame.values(score)
    normal = np.where(frame.anomaly == 0, values, values.dtype.type(-np.inf))
    words = title_of(score, capital=False)
    for region in strongest_regions(normal, flag.value, smallest=flag.smallest, most=1):
        highest = f"{words} up to {normal[region.peak[::-1]]:.3g}"
        line = f"{frame.name}: {region.area:,} pixels of normal ground, {highest}."
        yield Failure("False alarm", region.strength, frame.name, line, region.box)


def _confident_error(
    frame: LabelledFrame, score: str, flag: Threshold, class_names: list[str] | None
) -> Iterator[Failure]:
    """Yield the largest region that is wrongly predicted and not flagged."""
    if frame.wrong is None:
        return
    values = frame.values(score)
    sure = ((frame.wrong == 1) & ~is_flagged(values, flag.value)).astype(np.float32)
    names = class_names or list(map(str, range(256)))
    for region in strongest_regions(sure, 0.5, smallest=flag.smallest, most=1):
        words = []
        for ids in (frame.labels, frame.prediction):
            number = region.class_of(ids)
            words.append("" if number is None else names[number])
        mean = f"mean {title_of(score, capital=False)} {region.pixels(values).mean():.3g}"
        line = f"{frame.name}: {region.area:,} pixels of {words[0]} taken for {words[1]}, {mean}."
        yield Failure("Confident error", region.area, frame.name, line, region.box)
