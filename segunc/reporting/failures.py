"""Pictures of the worst failures of maps with labels: missed objects, false alarms and confident
errors.
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import cv2
import numpy as np
import numpy.typing as npt

from segunc.core.errors import one_line
from segunc.core.terminal import counted
from segunc.decisions.flags import Threshold
from segunc.decisions.guarantee import calibration_frames
from segunc.evaluation.from_maps import read_frame
from segunc.evaluation.parts import LabelledFrame
from segunc.gallery.colours import page_ranges
from segunc.gallery.drawing import (
    BLACK,
    FLAGGED,
    LABELLED_STROKES,
    Legend,
    Mask,
    Strokes,
    score_colours,
)
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
SCALE = 2  # of the views of a picture: the lines of small objects lie apart
FLAGGED_STROKES: Strokes = ((BLACK, 4), (FLAGGED, 2))  # a page shows pictures at half their size
MISSED = "Missed"
FALSE_ALARM = "False alarm"
CONFIDENT_ERROR = "Confident error"


class Failure(NamedTuple):
    """One region of a frame; failures are sorted by their kind and weight."""

    title: str
    weight: float
    frame: str
    line: str
    box: tuple[int, int, int, int]  # left, top, width, height


@dataclass(frozen=True)
class Failures:
    """The worst failures of maps.

    Attributes:
        pictures: ``title``, ``frame``, ``line`` and ``jpeg`` in base64 of each picture.
        searched: number of labelled frames in which failures were looked for. Without pictures, 0
            means that nothing was measured, and any other number that nothing was found.
        found: of each kind that was found, by its title: how many failures, or frames with one,
            since of false alarms and confident errors each frame gives its worst one.
        bars: of the colours of each score: ``score``, ``ticks``, ``hatched`` (whether its upper
            half is extrapolated), ``words``, what its scale means, ``flagged``, which pixels are
            flagged, and ``mark``, the place 0..1 of the threshold on the bar; None where it is no
            value of the scale.
        labelled: whether labelled anomalies are outlined in the pictures.
        labels: what the labels are of, in words; empty where it is not known.
        masked: whether a mask leaves pixels out, which are striped in the pictures.
    """

    pictures: list[dict[str, str]]
    searched: int
    bars: list[dict[str, Any]] = field(default_factory=list)
    found: dict[str, int] = field(default_factory=dict)
    labelled: bool = False
    labels: str = ""
    masked: bool = False


@dataclass(frozen=True)
class OperatingPoint:
    """What is flagged of maps, and which labelled objects count."""

    score: str
    flag: Threshold
    smallest_object: int  # pixels


def failures(
    inputs: Inputs, labels: labelled.LabelSources, notes: list[str] | None = None
) -> Failures:
    """Draw the worst failures of each kind, of frames that lie apart where there is a choice; none
    of maps without labels.

    A pixel is flagged from the value of a threshold of its score on, else from the one that the
    maps record for regions. Frames of a calibration are left out, because a threshold has seen
    them.

    Args:
        inputs: of a report.
        labels: where the labels of the maps come from.
        notes: gets a line for each maps folder whose frames have no label.

    Returns:
        The pictures, and in how many frames failures were looked for.
    """
    if not (labels.anomaly_labels or labels.labels):
        return Failures([], 0)
    searched = 0
    pictures: list[dict[str, str]] = []
    bars: list[dict[str, Any]] = []
    found: Counter[str] = Counter()
    is_labelled = False
    for reader in inputs.maps:
        point = _operating_point(inputs, reader)
        if point is None:
            continue
        try:
            files = labels.find(reader, reader.frames)
        except labelled.NoLabelError as failure:  # of several maps folders some may have no label
            if notes is not None:
                notes.append(f"no pictures of failures from {reader.place}: {one_line(failure)}")
            continue
        candidates: list[Failure] = []
        for name in _test_frames(inputs, reader, files, point.score):
            candidates.extend(_of_frame(reader, files, name, point))
            searched += 1
        found.update(f"{candidate.title}." for candidate in candidates)
        worst = _worst(candidates, max(EACH // len(inputs.maps), 1), reader.frames)
        if worst and len(pictures) < 3 * EACH:
            bar = _bar(reader, point)
            pictures += _pictures(reader, files, point, worst)
            is_labelled = is_labelled or bool(files.anomaly_files)
            if bar not in bars:
                bars.append(bar)
    return Failures(
        pictures=pictures[: 3 * EACH],
        searched=searched,
        bars=bars,
        found=dict(found),
        labelled=is_labelled,
        labels=labels.words,
        masked=any(reader.region is not None for reader in inputs.maps),
    )


def _bar(reader: MapsReader, point: OperatingPoint) -> dict[str, Any]:
    """Return what a legend says of the colours of a score and of what is flagged by it."""
    score = point.score
    shown = page_ranges(reader, [score])[score]
    unit = (reader.manifest or {}).get("maps", {}).get(score, {}).get("unit", "")
    legend = Legend(
        score, unit, shown, threshold=point.flag.value, preparation=point.flag.preparation
    )
    mark = legend.threshold_on_scale
    return {
        "score": score,
        "ticks": list(shown.ticks),
        "hatched": shown.measured_to is not None,
        "words": legend.words,
        "flagged": legend.flagged,
        "mark": None if mark is None else float(shown.share(np.float32(mark))),
    }


def _operating_point(inputs: Inputs, reader: MapsReader) -> OperatingPoint | None:
    """Return what is flagged of maps, None where no threshold is known."""
    for threshold in inputs.thresholds.values():
        if threshold.score in reader.scores:
            flag = Threshold(
                threshold.value,
                guarantee=threshold,
                found_share=threshold.found_share,
                smallest=threshold.smallest,
            )
            return OperatingPoint(threshold.score, flag, threshold.smallest_object)
    score = first_shown(reader.scores)
    value = region_threshold(reader, score)
    return None if value is None else OperatingPoint(score, Threshold(value), SMALLEST_OBJECT)


def _test_frames(
    inputs: Inputs, reader: MapsReader, files: labelled.ReviewLabels, score: str
) -> list[str]:
    """Return the labelled frames that no threshold was calibrated on."""
    frames = [(name, reader.identity(name, score)) for name in files.labelled(reader.frames)]
    calibrated: set[str] = set()
    for threshold in inputs.thresholds.values():
        calibrated.update(calibration_frames(threshold.frames, frames))
    return [name for name, _ in frames if name not in calibrated]


def _worst(failures: Sequence[Failure], most: int, frames: Sequence[str]) -> list[Failure]:
    """Return heavy failures of each kind, ``most`` at most.

    Args:
        failures: of all kinds.
        most: number of each kind.
        frames: names of all frames in their order; neighbours show nearly the same scene.
    """
    places = {name: place for place, name in enumerate(frames)}
    of_kind: dict[str, list[Failure]] = {}
    for failure in sorted(failures, reverse=True):
        of_kind.setdefault(failure.title, []).append(failure)
    worst: list[Failure] = []
    for heaviest_first in of_kind.values():
        worst += _apart(heaviest_first, most, places)
    return worst


def _apart(failures: Sequence[Failure], most: int, places: Mapping[str, int]) -> list[Failure]:
    """Return the heaviest failure and the heaviest ones of frames that are far from those of the
    chosen ones. Where there are too few, the distance is halved; other failures of the same frame
    come last, also in the order.

    Args:
        failures: of one kind, the heaviest first.
        most: number of failures to return.
        places: of the frames in their order.
    """
    chosen: list[Failure] = []
    distance = max(len(places) // most, 1)
    while distance:
        for failure in failures:
            place = places[failure.frame]
            near = any(abs(place - places[other.frame]) < distance for other in chosen)
            if not near and len(chosen) < most:
                chosen.append(failure)
        distance //= 2
    more: list[Failure] = []
    for failure in failures:
        if failure not in chosen and len(chosen) + len(more) < most:
            more.append(failure)
    return sorted(chosen, reverse=True) + more


def _pictures(
    reader: MapsReader,
    files: labelled.ReviewLabels,
    point: OperatingPoint,
    failures: Sequence[Failure],
) -> Iterator[dict[str, str]]:
    """Yield the picture of each failure: the region in the image and in the score's colours, with
    the outlines of what is flagged and of labelled anomalies.
    """
    score = point.score
    shown = {failure.frame for failure in failures}
    names = [name for name in reader.frames if name in shown]
    source, _ = labelled.open_images(reader, None, names)
    images = {name: image for name, image, _ in labelled.with_images(names, source)}
    for failure in failures:
        shown_range = page_ranges(reader, [score])[score]
        values = reader.read(failure.frame, score)
        colours = score_colours(values, shown_range, reader.kept(values.shape))
        outlines = _outlines(_frame(reader, files, failure.frame, point), point)
        jpeg = draw_crop(failure.box, images[failure.frame], colours, outlines, SCALE)
        yield {
            "title": f"{failure.title}.",
            "frame": failure.frame,
            "line": failure.line,
            "jpeg": base64.b64encode(jpeg).decode(),
        }


def _outlines(frame: LabelledFrame, point: OperatingPoint) -> list[tuple[Mask, Strokes]]:
    """Return what is outlined in a frame, the uppermost first: what is flagged, and anomalies that
    are labelled.
    """
    flagged = is_flagged(_prepared(frame, point.score, point.flag), point.flag.value)
    outlines = [(flagged, FLAGGED_STROKES)]
    if frame.anomaly is not None:
        outlines.append((frame.anomaly == 1, LABELLED_STROKES))
    return outlines


def _frame(
    reader: MapsReader, files: labelled.ReviewLabels, name: str, point: OperatingPoint
) -> LabelledFrame:
    """Return the maps and labels of a frame."""
    places = bool(point.flag.preparation.place_ids)
    fields = read_frame(reader, [point.score], files, None, name, places=places)
    return LabelledFrame(name, **fields, smallest_object=point.smallest_object)


def _of_frame(
    reader: MapsReader, files: labelled.ReviewLabels, name: str, point: OperatingPoint
) -> Iterator[Failure]:
    """Yield objects of which less than a share is flagged, the strongest false alarm and the
    largest confident error of a frame.
    """
    frame = _frame(reader, files, name, point)
    yield from _missed(frame, point.score, point.flag)
    yield from _false_alarm(frame, point.score, point.flag)
    yield from _confident_error(frame, point.score, point.flag, reader.class_names)


def _prepared(frame: LabelledFrame, score: str, flag: Threshold) -> npt.NDArray[np.floating]:
    """Return the map ``[H, W]`` that is compared with the threshold; -inf where a mask leaves
    pixels out, whose 0 may be above it.
    """
    prepared = flag.prepared(frame.values(score), lambda: frame.prediction, frame.kept)
    if frame.kept is None:
        return prepared
    return np.where(frame.kept, prepared, prepared.dtype.type(-np.inf))


def _missed(frame: LabelledFrame, score: str, flag: Threshold) -> Iterator[Failure]:
    """Yield the labelled objects of which too little is flagged."""
    objects = frame.objects
    if objects is None:
        return
    flagged = is_flagged(_prepared(frame, score, flag), flag.value)
    counts = np.bincount(objects.number[flagged], minlength=len(objects.pixels) + 1)[1:]
    shares = counts / objects.pixels
    words = title_of(score, capital=False)
    for number in np.flatnonzero(shares < flag.found_share).tolist():
        area = int(objects.pixels[number])
        left, top, width, height = objects.boxes[number].tolist()
        share = f"of which {shares[number]:.0%} are flagged by {words}"
        pixels = counted(area, "pixel")
        line = f"{frame.name}: an object of {pixels}, {share}."
        yield Failure(MISSED, area, frame.name, line, (left, top, width, height))


def _false_alarm(frame: LabelledFrame, score: str, flag: Threshold) -> Iterator[Failure]:
    """Yield the flagged region with the strongest flagged normal ground. It may hold an anomaly,
    too, as where what surrounds an object is flagged with it.
    """
    if frame.anomaly is None:
        return
    values = _prepared(frame, score, flag)
    normal = np.where(frame.anomaly == 0, values, values.dtype.type(-np.inf))
    words = title_of(score, capital=False)
    for region in strongest_regions(normal, flag.value, smallest=flag.smallest, most=1):
        whole, box = _region_at(is_flagged(values, flag.value), region.peak)
        labels = frame.anomaly[whole]
        normal_pixels = int(np.count_nonzero(labels == 0))
        labelled_pixels = int(np.count_nonzero(labels == 1))
        line = f"{frame.name}: {normal_pixels:,} pixels of normal ground flagged, "
        if labelled_pixels:
            line += f"in one region with {labelled_pixels:,} labelled pixels of an anomaly; "
        line += f"{words} up to {normal[region.peak[::-1]]:.3g} on normal ground."
        yield Failure(FALSE_ALARM, region.strength, frame.name, line, box)


def _region_at(flagged: Mask, pixel: tuple[int, int]) -> tuple[Mask, tuple[int, int, int, int]]:
    """Return the connected region (8 neighbours) of flagged pixels that a pixel belongs to.

    Args:
        flagged: bool ``[H, W]``.
        pixel: x and y of a flagged pixel.

    Returns:
        The pixels of the region, bool ``[H, W]``, and its box: left, top, width and height.
    """
    _, numbers, boxes, _ = cv2.connectedComponentsWithStats(
        flagged.astype(np.uint8), connectivity=8
    )
    x, y = pixel
    number = int(numbers[y, x])
    left, top, width, height = map(int, boxes[number][:4])
    return np.asarray(numbers == number), (left, top, width, height)


def _confident_error(
    frame: LabelledFrame, score: str, flag: Threshold, class_names: list[str] | None
) -> Iterator[Failure]:
    """Yield the largest region that is wrongly predicted and not flagged."""
    if frame.wrong is None or frame.labels is None or frame.prediction is None:
        return
    values = _prepared(frame, score, flag)
    sure = ((frame.wrong == 1) & ~is_flagged(values, flag.value)).astype(np.float32)
    names = class_names or list(map(str, range(256)))
    for region in strongest_regions(sure, 0.5, smallest=flag.smallest, most=1):
        true_id, predicted_id, count = commonest_mistake(
            region.pixels(frame.labels), region.pixels(frame.prediction)
        )
        mean = f"mean {title_of(score, capital=False)} {region.pixels(values).mean():.3g}"
        mistake = f"most often {names[true_id]} taken for {names[predicted_id]} ({count:,})"
        line = f"{frame.name}: {region.area:,} wrong pixels, {mistake}; {mean}."
        yield Failure(CONFIDENT_ERROR, region.area, frame.name, line, region.box)


def commonest_mistake(
    labels: npt.NDArray[np.uint8], prediction: npt.NDArray[np.uint8]
) -> tuple[int, int, int]:
    """Return the true and the predicted class that stand together most often, and how often.

    Args:
        labels: class ids of wrong pixels, ``[N]`` with N of at least 1.
        prediction: their predicted class ids, ``[N]``.

    >>> commonest_mistake(np.array([3, 3, 3, 1, 1]), np.array([0, 1, 2, 0, 0]))
    (1, 0, 2)
    """
    pairs = labels.astype(np.int64) * 256 + prediction
    counts = np.bincount(pairs)
    commonest = int(counts.argmax())
    return commonest // 256, commonest % 256, int(counts[commonest])
