"""Pictures of the worst failures of maps with labels: missed objects, false alarms and confident errors."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from segunc.core.errors import PartialFailure
from segunc.decisions.threshold import calibration_frames
from segunc.evaluation.flagged import SMALLEST_REGION, Threshold
from segunc.evaluation.maps import read_frame
from segunc.evaluation.parts import LabelledFrame
from segunc.gallery.overlay import colourise, page_ranges
from segunc.gallery.page import FrameFiles
from segunc.gallery.pictures import draw_crop
from segunc.maps import labelled
from segunc.maps.reader import MapsReader
from segunc.maps.statistics import strongest_regions
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
    """Return pictures of the worst failures of each kind: ``title``, ``line`` and ``jpeg`` in base64; none of maps without labels. A pixel
    is flagged from the value of a threshold of its score on, else from the one that the maps record for regions. Frames of a calibration
    are left out, because a threshold has seen them."""
    pictures = []
    for reader in inputs.maps if labels.anomaly_labels or labels.labels else ():
        made = next((of for of in inputs.thresholds.values() if of.score in reader.scores), None)
        score = made.score if made else first_shown(reader.scores)
        value = made.value if made else FrameFiles.region_from(reader, score)
        least = made.found_share if made else Threshold.found_share
        if value is None:
            continue
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
                for failure in _of_frame(reader, files, name, score, value, least)
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
    value: float,
    least: float,
) -> Iterator[Failure]:
    """Yield objects of which less than a share is flagged, the strongest false alarm and the largest confident error of a frame."""
    frame, words = (
        LabelledFrame(name, **read_frame(reader, [score], files, None, name)),
        title_of(score, capital=False),
    )
    values = frame.values(score)
    if frame.anomaly is not None:
        for region in strongest_regions(
            (frame.anomaly == 1).astype(np.float32),
            0.5,
            smallest=SMALLEST_REGION,
            most=frame.anomaly.size,
        ):
            if (share := float((region.pixels(values) >= value).mean())) < least:
                line = f"{name}: an object of {region.area:,} pixels, of which {share:.0%} are flagged by {words}."
                yield Failure("Missed", region.area, name, line, region.box)
        normal = np.where(frame.anomaly == 0, values, -np.inf).astype(np.float32)
        for region in strongest_regions(normal, value, smallest=SMALLEST_REGION)[:1]:
            line = f"{name}: {region.area:,} pixels of normal ground, {words} up to {normal[region.peak[::-1]]:.3g}."
            yield Failure("False alarm", region.strength, name, line, region.box)
    if frame.wrong is not None:
        sure = ((frame.wrong == 1) & (values < value)).astype(np.float32)
        for region in strongest_regions(sure, 0.5, smallest=SMALLEST_REGION, most=1):
            names = reader.class_names or list(map(str, range(256)))
            true, taken = (
                names[number]
                for of in (frame.labels, frame.prediction)
                if (number := region.class_of(of)) is not None
            )
            line = f"{name}: {region.area:,} pixels of {true} taken for {taken}, mean {words} {region.pixels(values).mean():.3g}."
            yield Failure("Confident error", region.area, name, line, region.box)
