"""Selective prediction: how much error is left when the least certain pixels are refused, from counts by key.

Counts are int64 ``[2, 65536]``: labelled pixels by the key of a score (higher = less certain); row 0 rightly, row 1
wrongly predicted. The loss of a pixel is 0 or 1 throughout. The numbers are those of a reader who accepts the k most
certain of N pixels, for k = 1..N:

* selective risk r(k): share of wrong pixels among the k accepted; AURC: the mean of r(k) over k (Geifman & El-Yaniv
  2017, arXiv 1705.08500; Geifman et al. 2019, arXiv 1805.08206);
* generalised risk: share of pixels that are accepted and wrong, among all N; AUGRC: its area over the coverage k / N
  (Traub et al. 2024, arXiv 2407.01032), which equals (1 - AUROC) a (1 - a) + (1 - a)^2 / 2 with the accuracy a;
* AUSE: area between the sparsification curve of the score and that of the true error (Ilg et al. 2018,
  arXiv 1802.07095), both divided by the error rate, so that they start at 1 with nothing removed.

Equal scores are one threshold: nothing says which of them to accept first, so every number is its expectation over all
orders of the tied pixels. Of a tie with n pixels, w of them wrong, the first j accepted hold j w / n wrong ones on
average, which makes the number of wrong pixels a straight line within the tie, and the sums over k closed forms.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from segunc.errors import InputError
from segunc.metrics.pixel_curves import Counts, auroc, average_precision, detection_curve, fpr_at_recall

NUMBERS = ("aurc", "augrc", "ause", "failure_auroc", "failure_aupr", "failure_fpr95")
"""The numbers of :func:`selective_numbers`."""
NO_PIXEL = "no pixel has both a class label and a prediction"
NO_FAILURE = "no pixel is wrongly predicted"
NO_SUCCESS = "no pixel is rightly predicted"

Values = npt.NDArray[np.float64]


@dataclass(frozen=True)
class RiskCoverage:
    """Accepted pixels at each distinct score, from the most certain up.

    Attributes:
        accepted: int64 ``[T]`` pixels whose score is at or below each threshold; the last one is their total N.
        wrong: int64 ``[T]`` the wrongly predicted ones among them.
    """

    accepted: npt.NDArray[np.int64]
    wrong: npt.NDArray[np.int64]

    @property
    def total(self) -> int:
        """Number of pixels, N."""
        return int(self.accepted[-1]) if len(self.accepted) else 0

    @property
    def failures(self) -> int:
        """Number of wrongly predicted pixels."""
        return int(self.wrong[-1]) if len(self.wrong) else 0

    @property
    def coverage(self) -> Values:
        """Share of accepted pixels in 0..1 at each threshold, ``[T]``."""
        return self.accepted / max(self.total, 1)

    @property
    def risk(self) -> Values:
        """Selective risk in 0..1 at each threshold, ``[T]``."""
        return self.wrong / self.accepted

    def risk_at(self, coverage: npt.ArrayLike) -> Values:
        """Expected selective risk in 0..1 at any coverage, the shape of ``coverage``.

        Raises:
            InputError: a coverage is not in 0..1 (0 excluded), or there is no pixel.
        """
        asked = np.asarray(coverage, np.float64)
        if not ((asked > 0.0) & (asked <= 1.0)).all():
            raise InputError("a coverage outside 0..1", "numbers above 0 and at most 1")
        if not self.total:
            raise InputError(NO_PIXEL, "counts of at least one pixel")
        pixels = asked * self.total
        wrong = np.interp(pixels, np.append(0, self.accepted), np.append(0, self.wrong))
        risk: Values = wrong / pixels
        return risk


def risk_coverage(counts: Counts) -> RiskCoverage:
    """The curve of counts ``[2, K]`` by key: one point for each key that occurs, from the lowest key up."""
    keys = np.flatnonzero(counts.any(axis=0))
    correct, wrong = counts[:, keys].cumsum(axis=1)
    return RiskCoverage(correct + wrong, wrong)


def aurc(curve: RiskCoverage) -> float | None:
    """Mean selective risk over all coverages k / N, 0..1, lower is better; None without a pixel.

    Within a tie that begins after K pixels, W of them wrong, and holds a share q of wrong ones, the expected risk at k
    is (W + (k - K) q) / k = q + (W - K q) / k; its sum over k needs the harmonic numbers.
    """
    if not curve.total:
        return None
    before = np.concatenate(([0], curve.accepted[:-1]))
    wrong_before = np.concatenate(([0], curve.wrong[:-1]))
    share = (curve.wrong - wrong_before) / (curve.accepted - before)
    sums = (curve.wrong - wrong_before) + (wrong_before - before * share) * _harmonic_between(before, curve.accepted)
    return float(sums.sum() / curve.total)


def optimal_aurc(curve: RiskCoverage) -> float | None:
    """AURC of a score that ranks every wrong pixel above every right one, 0..1; None without a pixel."""
    if not curve.total:
        return None
    right = curve.total - curve.failures
    return float((curve.failures - right * _harmonic_between(right, curve.total)) / curve.total)


def augrc(curve: RiskCoverage) -> float | None:
    """Area under the generalised risk over the coverage by the trapezoid, 0..0.5, lower is better; None without a pixel.

    The trapezoid is no approximation: within a tie the expected generalised risk is a straight line.
    """
    if not curve.total:
        return None
    coverage = np.concatenate(([0.0], curve.coverage))
    risk = np.concatenate(([0], curve.wrong)) / curve.total
    return float(np.sum(np.diff(coverage) * (risk[1:] + risk[:-1]) / 2.0))


def ause(curve: RiskCoverage) -> float | None:
    """Area between the normalised sparsification curves by the score and by the true error; 0 is best.

    What is left after a share f of the pixels is removed is accepted at coverage 1 - f, so for a loss of 0 or 1 the
    curves are selective risks and the area is (AURC - optimal AURC) / error rate. Ilg et al. take the end-point error of
    optical flow; other tools take the Brier score; here it is whether the class is wrong. None without a wrong pixel,
    where there is nothing to normalise by.
    """
    area, optimum = aurc(curve), optimal_aurc(curve)
    if area is None or optimum is None or not curve.failures:
        return None
    return max(0.0, area - optimum) * curve.total / curve.failures


@dataclass(frozen=True)
class Sparsification:
    """Sparsification curves, normalised to 1 with nothing removed.

    Attributes:
        removed: ``[P]`` share of the pixels that are removed, 0..1 (1 excluded), the least certain ones first.
        by_score: ``[P]`` error rate of the rest over that of all pixels, removed by the score.
        by_error: ``[P]`` the same where the wrong pixels are removed first, the best that any score can do.
    """

    removed: Values
    by_score: Values
    by_error: Values


def sparsification(curve: RiskCoverage, points: int = 200) -> Sparsification | None:
    """The curves whose area between them is :func:`ause`, at shares 0, 1/P, ..., (P-1)/P; None without a wrong pixel."""
    if not curve.failures:
        return None
    removed = np.arange(points) / points
    rate = curve.failures / curve.total
    best = np.maximum(0.0, 1.0 - (1.0 - rate) / (1.0 - removed))
    return Sparsification(removed, curve.risk_at(1.0 - removed) / rate, best / rate)


def selective_numbers(counts: Counts) -> dict[str, float | None]:
    """AURC, AUGRC, AUSE and the detection of failures, by the names of :data:`NUMBERS`, as fractions of 1.

    ``failure_*`` are the pooled detection numbers with "this pixel is wrong" as the positive: FPR95 is the share of
    right pixels that are flagged at the first threshold that flags 95 % of the wrong ones. None where a number cannot be
    made; :func:`why_undefined` says why.
    """
    curve, failure = risk_coverage(counts), detection_curve(counts)
    values = (
        aurc(curve),
        augrc(curve),
        ause(curve),
        auroc(failure),
        average_precision(failure),
        fpr_at_recall(failure),
    )
    return dict(zip(NUMBERS, values, strict=True))


def why_undefined(counts: Counts) -> dict[str, str]:
    """The reason of each number of :func:`selective_numbers` that is None."""
    right, wrong = (int(row) for row in counts.sum(axis=1))
    why = NO_PIXEL if right + wrong == 0 else NO_FAILURE if wrong == 0 else NO_SUCCESS
    return {name: why for name, value in selective_numbers(counts).items() if value is None}


TABLE = 256
"""Harmonic numbers up to this are summed; beyond it the omitted term of their expansion is below 2e-17."""
_HARMONIC = np.concatenate(([0.0], np.cumsum(1.0 / np.arange(1, TABLE + 1))))


def _harmonic_between(low: npt.ArrayLike, high: npt.ArrayLike) -> Values:
    """Sum of 1 / k over low < k <= high, elementwise.

    By H(n) = ln n + Euler's constant + 1/(2n) - 1/(12 n^2) + 1/(120 n^4) - ..., as one difference, so that two large
    numbers that lie close together do not cancel.
    """
    below, above = np.asarray(low, np.int64), np.asarray(high, np.int64)
    small = _HARMONIC[np.minimum(above, TABLE)] - _HARMONIC[np.minimum(below, TABLE)]
    a, b = (np.maximum(ends, TABLE).astype(np.float64) for ends in (below, above))
    large = np.log1p((b - a) / a) + (1 / b - 1 / a) / 2 - (b**-2 - a**-2) / 12 + (b**-4 - a**-4) / 120
    total: Values = small + large
    return total
