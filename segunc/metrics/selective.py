"""Selective prediction: risk against coverage, failure detection, and patch accuracy against patch uncertainty.

Counts are int64 ``[2, K]``: labelled pixels by the key of a score (higher = less certain); row 0 rightly, row 1 wrongly
predicted. The loss of a pixel is 0 or 1. A reader accepts the k most certain of N pixels, k = 1..N:

* selective risk r(k): share of wrong pixels among the k accepted; AURC: the mean of r(k) over k (Geifman & El-Yaniv
  2017, arXiv 1705.08500; Geifman et al. 2019, arXiv 1805.08206);
* generalised risk: share of pixels that are accepted and wrong, among all N; AUGRC: its area over the coverage k / N
  (Traub et al. 2024, arXiv 2407.01032), which equals (1 - AUROC) a (1 - a) + (1 - a)^2 / 2 with the accuracy a;
* AUSE: area between the sparsification curve of the score and that of the true error (Ilg et al. 2018,
  arXiv 1802.07095), both divided by the error rate, so that they start at 1 with nothing removed.

Equal scores are one threshold, and every number is its expectation over all orders of the tied pixels. Of a tie with n
pixels, w of them wrong, the first j accepted hold j w / n wrong ones on average: the number of wrong pixels is a straight
line within the tie, and the sums over k have closed forms.

Patches (Mukhoti & Gal 2018, arXiv 1811.12709): a frame is cut into windows of 4 x 4 pixels that do not overlap. A patch is
accurate where the share of right pixels is above one half, and uncertain where its mean uncertainty is above the threshold,
both strictly. Shares and means are over the labelled pixels of a window; a window without any is left out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from segunc.metrics.counting import Counts, Floats, auroc, average_precision, detection_curve, fpr_at_recall, steps

SELECTIVE_NUMBERS = ("aurc", "augrc", "ause", "failure_auroc", "failure_aupr", "failure_fpr95")
WINDOW = 4
"""Side of a patch in pixels."""
ACCURACY_THRESHOLD = 0.5
"""A patch is accurate above this share of right pixels."""
SHARES = ("accurate_if_certain", "uncertain_if_inaccurate", "pavpu")
"""p(accurate | certain), p(uncertain | inaccurate), and the share of patches that are accurate and certain, or inaccurate
and uncertain."""
NO_PIXEL = "no pixel has both a class label and a prediction"
NO_FAILURE = "no pixel is wrongly predicted"
NO_SUCCESS = "no pixel is rightly predicted"

_TABLE = 256
"""Harmonic numbers up to this are summed; beyond it the omitted term of their expansion is below 2e-17."""
_HARMONIC = np.concatenate(([0.0], np.cumsum(1.0 / np.arange(1, _TABLE + 1))))


@dataclass(frozen=True)
class RiskCoverage:
    """Accepted pixels at each of T distinct scores, from the most certain up."""

    accepted: npt.NDArray[np.int64]  # [T] pixels with a score at or below each threshold; the last is their total N
    wrong: npt.NDArray[np.int64]  # [T] the wrongly predicted ones among them

    @property
    def total(self) -> int:
        """Number of pixels, N."""
        return int(self.accepted[-1]) if len(self.accepted) else 0

    @property
    def failures(self) -> int:
        """Number of wrongly predicted pixels."""
        return int(self.wrong[-1]) if len(self.wrong) else 0

    def risk_at(self, coverage: npt.ArrayLike) -> Floats:
        """Return the expected selective risk in 0..1 at coverages in 0..1 (0 excluded) of any shape, of at least one pixel."""
        pixels = np.asarray(coverage, np.float64) * self.total
        wrong = np.interp(pixels, np.append(0, self.accepted), np.append(0, self.wrong))
        return np.asarray(wrong / pixels, np.float64)


def risk_coverage(counts: Counts) -> RiskCoverage:
    """Return the curve of counts ``[2, K]`` by key: one point for each key that occurs, from the lowest key up."""
    keys = np.flatnonzero(counts.any(axis=0))
    correct, wrong = counts.take(keys, axis=1).cumsum(axis=1)
    return RiskCoverage(correct + wrong, wrong)


def aurc(curve: RiskCoverage) -> float | None:
    """Return the mean selective risk over all coverages k / N, 0..1, lower is better; None without a pixel.

    Within a tie that begins after K pixels, W of them wrong, and holds a share q of wrong ones, the expected risk at k
    is (W + (k - K) q) / k = q + (W - K q) / k; its sum over k needs the harmonic numbers.
    """
    if not curve.total:
        return None
    wrong, pixels = steps(curve.wrong), steps(curve.accepted)
    share = wrong / pixels
    sums = (curve.wrong - wrong) - (curve.accepted - pixels) * share
    sums = wrong + sums * _harmonic_steps(np.append(0, curve.accepted))
    return float(sums.sum() / curve.total)


def optimal_aurc(curve: RiskCoverage) -> float | None:
    """Return the AURC of a score that ranks every wrong pixel above every right one, 0..1; None without a pixel."""
    if not curve.total:
        return None
    right = curve.total - curve.failures
    return float((curve.failures - right * _harmonic_steps(np.array([right, curve.total]))[0]) / curve.total)


def augrc(curve: RiskCoverage) -> float | None:
    """Return the area under the generalised risk over the coverage, 0..0.5, lower is better; None without a pixel.

    By the trapezoid, which is no approximation: within a tie the expected generalised risk is a straight line.
    """
    if not curve.total:
        return None
    coverage = np.concatenate(([0], curve.accepted)) / curve.total
    risk = np.concatenate(([0], curve.wrong)) / curve.total
    return float(np.sum((coverage[1:] - coverage[:-1]) * (risk[1:] + risk[:-1]) / 2.0))


def ause(curve: RiskCoverage, area: float | None = None) -> float | None:
    """Return the area between the normalised sparsification curves by the score and by the true error; 0 is best.

    What is left after a share f of the pixels is removed is accepted at coverage 1 - f, so for a loss of 0 or 1 (where Ilg
    et al. take the end-point error of optical flow, and other tools the Brier score) the curves are selective risks and
    the area is (AURC - optimal AURC) / error rate. None without a wrong pixel. ``area`` is the AURC, where it is known.
    """
    area, optimum = aurc(curve) if area is None else area, optimal_aurc(curve)
    if area is None or optimum is None or not curve.failures:
        return None
    return max(0.0, area - optimum) * curve.total / curve.failures


def selective_numbers(counts: Counts) -> dict[str, float | None]:
    """Return AURC, AUGRC, AUSE and the numbers of failure detection by :data:`SELECTIVE_NUMBERS`, as fractions of 1.

    ``failure_*`` are the pooled detection numbers with "this pixel is wrong" as the positive: FPR95 is the share of
    right pixels that are flagged at the first threshold that flags 95 % of the wrong ones. :func:`why_undefined` says why
    a number is None.
    """
    curve, failure = risk_coverage(counts), detection_curve(counts)
    of_failure = auroc(failure), average_precision(failure), fpr_at_recall(failure)
    area = aurc(curve)
    return dict(zip(SELECTIVE_NUMBERS, (area, augrc(curve), ause(curve, area), *of_failure), strict=True))


def why_undefined(counts: Counts) -> dict[str, str]:
    """Return the reason of each number of :func:`selective_numbers` that is None."""
    right, wrong = (int(row) for row in counts.sum(axis=1))
    why = NO_PIXEL if right + wrong == 0 else NO_FAILURE if wrong == 0 else NO_SUCCESS
    return {name: why for name, value in selective_numbers(counts).items() if value is None}


def _harmonic_steps(ends: npt.NDArray[np.int64]) -> Floats:
    """Return the sum of 1 / k over ends[i] < k <= ends[i + 1] for each i, of rising ends.

    By H(n) = ln n + Euler's constant + 1/(2n) - 1/(12 n^2) + 1/(120 n^4) - ..., as one difference, so that two large
    numbers that lie close together do not cancel.
    """
    n, summed = np.maximum(ends, _TABLE).astype(np.float64), _HARMONIC[np.minimum(ends, _TABLE)]
    inverse, square, fourth = 1 / n, n**-2, n**-4
    large = np.log1p((n[1:] - n[:-1]) / n[:-1]) + (inverse[1:] - inverse[:-1]) / 2
    large = large - (square[1:] - square[:-1]) / 12 + (fourth[1:] - fourth[:-1]) / 120
    return np.asarray(summed[1:] - summed[:-1] + large, np.float64)


def patch_means(
    uncertainty: npt.NDArray[np.floating],
    correct: npt.NDArray[np.bool_],
    counted: npt.NDArray[np.bool_],
    window: int = WINDOW,
) -> tuple[Floats, npt.NDArray[np.uint8]]:
    """Return the mean uncertainty of each patch of a frame ``[P]``, and whether the patch is inaccurate ``[P]`` (0 or 1).

    Args:
        uncertainty: ``[H, W]`` in any unit; higher is less certain. May be anything where ``counted`` is False.
        correct: ``[H, W]`` whether the predicted class is right.
        counted: ``[H, W]`` whether the pixel has a label.
        window: side of a patch in pixels.
    """
    border = [(0, -side % window) for side in uncertainty.shape]
    labelled, right, total = (
        _window_sums(np.pad(values.astype(np.float64), border), window)
        for values in (counted, correct & counted, np.where(counted, uncertainty, 0.0))
    )
    kept = labelled > 0
    inaccurate = right[kept] <= ACCURACY_THRESHOLD * labelled[kept]
    return total[kept] / labelled[kept], inaccurate.astype(np.uint8)


def _window_sums(values: Floats, window: int) -> Floats:
    """Sum over the windows of ``[H, W]``, added row by row of a window: ``[H / w, W / w]``."""
    return np.asarray(sum(values[y::window, x::window] for y in range(window) for x in range(window)), np.float64)


def patch_summary(
    counts: Counts, values: npt.NDArray[np.floating], threshold: float | None = None
) -> dict[str, float | None]:
    """Return ``threshold`` and :data:`SHARES`, in 0..1; None where no patch defines a number.

    Args:
        counts: int64 ``[2, K]`` patches by the key of their mean uncertainty; row 0 accurate, row 1 inaccurate.
        values: ``[K]`` the uncertainty of each key, rising; keys without a patch may be anything.
        threshold: of the uncertainty, which the metric leaves open; None is the mean over all patches, which needs no other data.
    """
    keys = np.flatnonzero(counts.any(axis=0))
    if not len(keys):
        return dict.fromkeys(("threshold", *SHARES))
    uncertainty, (accurate, inaccurate) = values[keys].astype(np.float64), counts[:, keys]
    patches = accurate + inaccurate
    threshold = float(np.sum(uncertainty * patches) / patches.sum()) if threshold is None else threshold
    certain = uncertainty <= values.dtype.type(threshold)
    accurate_certain, caught = int(accurate[certain].sum()), int(inaccurate[~certain].sum())
    fractions = (
        (accurate_certain, int(patches[certain].sum())),
        (caught, int(inaccurate.sum())),
        (accurate_certain + caught, int(patches.sum())),
    )
    shares = [part / whole if whole else None for part, whole in fractions]
    return {"threshold": threshold, **dict(zip(SHARES, shares, strict=True))}
