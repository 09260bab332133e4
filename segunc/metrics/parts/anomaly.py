"""The pixel protocols of anomaly scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np

from segunc.metrics.labelled_frame import LabelledFrame, decode_keys
from segunc.metrics.parts.base import ArrayPart, Counts, Forms, KeyPart, Numbers, Part, Path, coarse_keys, fine_keys
from segunc.metrics.per_image import NO_IMAGE_WITH_BOTH, per_image_result, per_image_sums
from segunc.metrics.per_image import NUMBERS as PER_IMAGE_NUMBERS
from segunc.metrics.pixel_curves import (
    KEYS,
    auroc,
    average_precision,
    best_f1,
    detection_curve,
    fpr_at_recall,
)
from segunc.metrics.smiyc import (
    VALUES_OF_FLOAT_KEYS,
    SmiycBins,
    bins_by_key,
    merge_bins,
    smiyc_bins,
    smiyc_curve,
    smiyc_result,
)

Protocol = Literal["pooled", "per-image", "smiyc"]
PROTOCOLS: tuple[Protocol, ...] = get_args(Protocol)
NO_ANOMALY_LABEL = "no frame has an anomaly label"
_NAMES = (("auroc",), ("aupr",), ("fpr95",), ("best_f1",), ("threshold",))


def anomaly_part(score: str, protocol: Protocol) -> Part[Counts] | Part[SmiycBins]:
    """The part of a score under a protocol."""
    if protocol == "pooled":
        return Pooled(score)
    return PerImage(score) if protocol == "per-image" else Smiyc(score)


class Pooled(KeyPart):
    """All pixels of the set in one pool; equal scores are one threshold."""

    names = _NAMES
    point = frozenset({("threshold",)})
    needs = "anomaly"

    def __init__(self, score: str) -> None:
        self.score, self.section = score, ("scores", score, "pooled")

    def count(self, frame: LabelledFrame) -> Counts | None:
        return frame.anomaly_counts(self.score)

    def numbers(self, counts: Counts, forms: Forms) -> Numbers:
        curve = detection_curve(counts)
        best = best_f1(curve)
        if best is None:
            return dict.fromkeys(self.names)
        threshold = float(decode_keys(forms[self.score], np.array([best[1]], np.uint16))[0])
        values = (auroc(curve), average_precision(curve), fpr_at_recall(curve), best[0], threshold)
        return dict(zip(self.names, values, strict=True))

    def why(self, counts: Counts | None, name: Path) -> str:
        return NO_ANOMALY_LABEL if counts is None else str(detection_curve(counts).undefined)


class PerImage(ArrayPart):
    """The numbers of each image, and their mean over the images that hold both kinds of pixels."""

    names = tuple((name,) for name in PER_IMAGE_NUMBERS)
    needs = "anomaly"

    def __init__(self, score: str) -> None:
        self.score, self.section = score, ("scores", score, "per-image")

    def count(self, frame: LabelledFrame) -> Counts | None:
        counts = frame.anomaly_counts(self.score)
        return None if counts is None else per_image_sums(counts)

    def numbers(self, counts: Counts, forms: Forms) -> Numbers:
        return {(name,): value for name, value in per_image_result(counts).items()}

    def why(self, counts: Counts | None, name: Path) -> str:
        return NO_ANOMALY_LABEL if counts is None else NO_IMAGE_WITH_BOTH


class Smiyc(Part[SmiycBins]):
    """SegmentMeIfYouCan's pixel protocol: quantile bins of each frame, pooled by their lower edges."""

    names = _NAMES
    point = frozenset({("threshold",)})
    needs = "anomaly"
    batch = 128

    def __init__(self, score: str) -> None:
        self.score, self.section = score, ("scores", score, "smiyc")

    def count(self, frame: LabelledFrame) -> SmiycBins | None:
        counts = frame.anomaly_counts(self.score)
        if counts is None:
            return None
        # The values are those of the score as the benchmark would read it, in float16.
        values = decode_keys(frame.form(self.score), np.arange(KEYS, dtype=np.uint16)).astype(np.float16)
        return smiyc_bins(counts, values)

    def combine(self, counts: Sequence[SmiycBins]) -> SmiycBins:
        return merge_bins(counts)

    def coarsen(self, counts: SmiycBins) -> Counts:
        return coarse_keys(bins_by_key(counts))

    def refine(self, coarse: Counts) -> SmiycBins:
        by_key = fine_keys(coarse)
        used = np.flatnonzero(by_key.any(axis=0))
        return SmiycBins(VALUES_OF_FLOAT_KEYS[used].astype(np.float64), by_key[:, used])

    def numbers(self, counts: SmiycBins, forms: Forms) -> Numbers:
        return {(name,): value for name, value in smiyc_result(counts).items()}

    def why(self, counts: SmiycBins | None, name: Path) -> str:
        return NO_ANOMALY_LABEL if counts is None else str(smiyc_curve(counts).undefined)
