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

from segunc.colours import colourise
from segunc.core.errors import one_line
from segunc.decisions.flags import Threshold
from segunc.decisions.guarantee import calibration_frames
from segunc.evaluation.from_maps import read_frame
from segunc.evaluation.parts import LabelledFrame
from segunc.gallery.colours import page_ranges
from segunc.gallery.drawing import BLACK, FLAGGED, LABELLED_STROKES, Legend, Mask, Strokes
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
    """

    pictures: list[dict[str, str]]
    searched: int
    bars: list[dict[str, Any]] = field(default_factory=list)
    is_labelled = False
