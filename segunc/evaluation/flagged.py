"""What a threshold flags: on frames of known scenes false alarms, by class and as regions; of anomalies precision and recall.

A pixel is flagged where its score is at or above the threshold.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np

from segunc.core.errors import InputError
from segunc.data.labels import IGNORE
from segunc.evaluation import parts
from segunc.evaluation.labelled_frame import Array, LabelledFrame
from segunc.evaluation.parts import ALL_IGNORED, NO_ANOMALY_LABEL, RECALLS, ArrayPart, Forms, Metric, Numbers
from segunc.evaluation.resampling import NumberPath
from segunc.evaluation.results import load_results
from segunc.metrics.counting import NO_ANOMALY, Counts
from segunc.scores import SCORES

SMALLEST_REGION = 50
"""Pixels from which on a flagged region counts, as a predicted component of SegmentMeIfYouCan's obstacle track."""


@dataclass(frozen=True)
class Threshold:
    """From which value on pixels are flagged; of which form of maps and by which file, where one says."""

    value: float
    form: str | None = None
    source: str = ""


def read_thresholds(words: Iterable[str]) -> dict[str, Threshold]:
    """Return the threshold of each score.

    Args:
        words: ``SCORE=VALUE``, or ``FILE.json[:RECALL]``, a result of evaluate, whose scores all have one for each of
            :data:`RECALLS` (default 0.8).

    Raises:
        InputError: anything else, a value that the score cannot have, or a score given twice.
    """
    thresholds: dict[str, Threshold] = {}
    for word in words:
        file = re.fullmatch(r"(.+\.json)(?::([^:]*))?", word)
        more = _of_result(Path(file[1]), file[2] or "0.8") if file else dict([_of_value(word)])
        if twice := thresholds.keys() & more.keys():
            raise InputError(f"--flag {word} is a second threshold of '{min(twice)}'")
        thresholds |= more
    return thresholds


def flag_parts(
    flag: Mapping[str, Threshold], scores: Sequence[str], classes: Sequence[str], anomalies: bool
) -> list[_Flagged]:
    """Return the parts of the thresholds of the scores that are evaluated, for the kinds of labels there are."""
    # A result may hold thresholds of further scores, but one that was given for a score was asked for.
    unused = [name for name, threshold in flag.items() if name not in scores and not threshold.source]
    used = {name: flag[name] for name in scores if name in flag}
    if unused or (flag and not used):
        message = f"--flag has a threshold of '{(unused or [*flag])[0]}', which is not evaluated"
        raise InputError(message, hint=f"evaluated are {', '.join(scores)}; name others with --scores")
    alarms = [FalseAlarms(name, threshold, classes) for name, threshold in used.items() if classes]
    return [*alarms, *(Hits(name, threshold) for name, threshold in used.items() if anomalies)]


def _of_value(word: str) -> tuple[str, Threshold]:
    name, _, text = word.partition("=")
    try:
        value = float(text)
    except ValueError:
        value = np.nan
    if not name or not np.isfinite(value):
        message = f"--flag {word} is neither SCORE=VALUE nor FILE.json[:RECALL]"
        raise InputError(message, hint="--flag entropy=0.5, or --flag metrics.json:0.95")
    low, high = (SCORES[name].lower, SCORES[name].upper) if name in SCORES else (None, None)
    if (low is not None and value < low) or (high is not None and value > high):
        raise InputError(f"--flag {word}: {name} lies in {low:g} to {np.inf if high is None else high:g}")
    return name, Threshold(value)


def _of_result(path: Path, recall: str) -> dict[str, Threshold]:
    keys = [f"{value:g}" for value in RECALLS]
    key = next((key for key in keys if recall.rstrip("0") == key), None)
    if key is None:
        raise InputError(f"--flag {path}:{recall}: a result has thresholds for a recall of {' and '.join(keys)}")
    (result,) = load_results([path])
    thresholds = {}
    for name in result.content["scores"]:
        value = result.numbers.get(("scores", name, "pooled", "thresholds", key))
        if value is not None:
            thresholds[name] = Threshold(value, result.content.get("forms", {}).get(name), path.name)
    if not thresholds:
        hint = "evaluate anomaly labels with --protocols pooled, and give that result"
        raise InputError(f"--flag {path} holds no threshold of a recall of {key}", hint=hint)
    return thresholds


class _Flagged(ArrayPart):
    def __init__(self, score: str, threshold: Threshold) -> None:
        self.score, self.threshold, self.section = score, threshold, ("flagged", score)

    def flagged(self, frame: LabelledFrame) -> Array:
        """Return which pixels of a frame are flagged, bool ``[H, W]``."""
        form, threshold = str(frame.form(self.score)), self.threshold
        if threshold.form not in (None, form):
            other = f"the threshold of {threshold.source} is of maps stored as {threshold.form}"
            message = f"the map '{self.score}' is stored as {form}, but {other}"
            raise InputError(message, hint="evaluate maps of one tool, or give --flag SCORE=VALUE")
        return np.asarray(frame.values(self.score) >= np.float64(threshold.value))


class FalseAlarms(_Flagged):
    """Known pixels that are flagged, by class, and the regions of at least :data:`SMALLEST_REGION` pixels that they make.

    Known are the pixels with a class label, but for those that an anomaly label marks; nothing else counts or is part of a region
    (8-connected). Its counts are ``[2 C + 3]``: known pixels and flagged ones by class; frames, regions, and frames with one.
    """

    needs, undefined = "class", ALL_IGNORED
    metrics = (
        *(parts.lower("share", "share"), parts.lower("by_class.*"), parts.lower("regions_per_frame", "regions/frame")),
        parts.lower("frames_with_region", "frames with one"),
    )

    def __init__(self, score: str, threshold: Threshold, classes: Sequence[str]) -> None:
        super().__init__(score, threshold)
        self.classes, self.lacks = classes, f"no labelled frame has a map '{score}'"
        of_class = (("by_class", name) for name in classes)
        self.names = (("share",), *of_class, ("regions_per_frame",), ("frames_with_region",))

    def count(self, frame: LabelledFrame) -> Counts | None:
        if frame.labels is None or self.score not in frame.stored:
            return None
        known = frame.labels != IGNORE if frame.anomaly is None else (frame.labels != IGNORE) & (frame.anomaly != 1)
        flagged = known & self.flagged(frame)
        by_class = [np.bincount(frame.labels[mask], minlength=len(self.classes)) for mask in (known, flagged)]
        *_, regions, _ = cv2.connectedComponentsWithStats(flagged.view(np.uint8), connectivity=8)
        large = int(np.count_nonzero(regions[1:, cv2.CC_STAT_AREA] >= SMALLEST_REGION))
        return np.concatenate([*by_class, [1, large, large > 0]]).astype(np.int64)

    def numbers(self, counts: Counts, forms: Forms) -> Numbers:
        known, flagged = counts[:-3].reshape(2, -1)
        frames, regions, with_region = counts[-3:].tolist()
        if not known.any():
            return dict.fromkeys(self.names)
        shares = [f / n if n else None for n, f in zip(known.tolist(), flagged.tolist(), strict=True)]
        values = (flagged.sum() / known.sum(), *shares, regions / frames, with_region / frames)
        return dict(zip(self.names, values, strict=True))

    def why(self, counts: Counts, name: NumberPath) -> str:
        return "no pixel is labelled with the class" if counts.any() and len(name) > 1 else self.undefined


class Hits(_Flagged):
    """Precision and recall of the flagged pixels, over all pixels with an anomaly label; counts ``[2, 2]``, by label and flag."""

    needs, lacks = "anomaly", NO_ANOMALY_LABEL
    metrics = parts.higher("precision", "precision"), parts.higher("recall", "recall")

    def count(self, frame: LabelledFrame) -> Counts | None:
        if frame.anomaly is None:
            return None
        flagged = self.flagged(frame)
        return np.stack([np.bincount(flagged[frame.anomaly == label], minlength=2) for label in (0, 1)])

    def numbers(self, counts: Counts, forms: Forms) -> Numbers:
        (_, false), (missed, hit) = counts.tolist()
        precision, recall = (hit / total if total else None for total in (hit + false, hit + missed))
        return {("precision",): precision, ("recall",): recall}

    def why(self, counts: Counts, name: NumberPath) -> str:
        return NO_ANOMALY if name == ("recall",) else "no pixel with an anomaly label is flagged"


METRICS = Metric("threshold", "threshold"), *FalseAlarms.metrics, *Hits.metrics
