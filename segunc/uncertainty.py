"""Per-pixel uncertainty as pure functions of logits or probabilities ``[N, C, ...]``.

They compute in float32; means over draws may be float64.

The total uncertainty is the entropy H(mean_s p_s), the aleatoric one mean_s H(p_s). The epistemic
one is their difference, the mutual information of prediction and parameters (BALD), clamped at 0
(Houlsby et al. 2011, arXiv 1112.5745; Depeweg et al. 2018).
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass

import torch
from torch import Tensor


def entropy_from_probabilities(probabilities: Tensor, dim: int = 1) -> Tensor:
    """Return the entropy ``-sum_c p_c ln p_c`` in nats of probabilities in 0..1 (0 ln 0 = 0).

    The result has the shape of the probabilities without ``dim``.
    """
    # float64 stays: the decomposition takes a small difference of two entropies.
    wide = probabilities if probabilities.dtype == torch.float64 else probabilities.float()
    entropy: Tensor = torch.special.entr(wide).sum(dim)
    return entropy


def entropy_share(probabilities: Tensor) -> Tensor:
    """Return the entropy of probabilities ``[N, C, ...]`` divided by ln C, in 0..1."""
    return entropy_from_probabilities(probabilities) * per_ln(probabilities.shape[1])


def mutual_information(total_entropy: Tensor, expected_entropy: Tensor) -> Tensor:
    """Return the difference of total and expected entropy, at least 0 (BALD)."""
    return (total_entropy - expected_entropy).clamp_min_(0.0)


def set_size(probabilities: Tensor, threshold: float) -> Tensor:
    """Return how many classes of a pixel have a probability of at least ``1 - threshold``.

    It is at least 1: a set that would be empty holds the predicted class alone, which is in every
    other set already (Sadinle et al. 2019, arXiv 1609.00451).
    """
    in_set = (1.0 - probabilities.float()) <= threshold
    return in_set.sum(1).clamp_min(1).float()


def negative_max_logit(logits: Tensor) -> Tensor:
    """Return ``-max_c z_c``, unbounded (Hendrycks et al. 2022, arXiv 1911.11132)."""
    return -logits.float().amax(1)


def rejected_by_all(class_scores: Tensor) -> Tensor:
    """Return ``-sum_c tanh(s_c)`` of class scores s, in -C..0 (RbA; Nayal et al. 2023, arXiv
    2211.14293)."""
    return -class_scores.float().tanh().sum(1)


def max_softmax(probabilities: Tensor) -> Tensor:
    """Return ``1 - max_c p_c`` in 0..1, the msp score (Hendrycks & Gimpel, arXiv 1610.02136)."""
    return (1.0 - probabilities.float().amax(1)).clamp_(0.0, 1.0)


def max_softmax_of_logits(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """Return :func:`max_softmax` of ``softmax(z / T)``, z ``[N, C, ...]``."""
    return max_softmax(shifted_logits(logits, temperature).softmax(1))


def entropy_share_of_logits(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """Return the entropy of ``softmax(z / T)`` divided by ln C, in 0..1, z ``[N, C, ...]``."""
    return entropy_share(shifted_logits(logits, temperature).softmax(1))


def energy(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """Return the energy anomaly score ``-T logsumexp(z / T)``, unbounded (Liu et al. 2020)."""
    normaliser = shifted_logits(logits, temperature).logsumexp(1)
    return -(logits.float().amax(1) + temperature * normaliser)


def shifted_logits(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """Return ``(z - max_c z) / T`` of logits z ``[N, C, ...]``.

    It is at most 0, so that no finite logit makes a sum of their ``exp`` infinite.
    """
    z = logits.float()
    return (z - z.amax(1, keepdim=True)) / temperature


LEAST_SHIFT = -104.0
"""A logit that lies so far below the largest one of its pixel has no probability: ``exp`` of the
difference is 0 in float32.
"""


def largest_logit(logits: Tensor) -> float:
    """Return the largest magnitude of the logits ``[N, C, ...]`` to which a softmax gives some
    probability; NaN where one of these is NaN.
    """
    z = logits.float()
    masked = z < z.amax(1, keepdim=True) + LEAST_SHIFT
    return float(z.masked_fill(masked, 0.0).abs().max())


def relative_difference(logits: Tensor, expected: Tensor, largest: float | None = None) -> float:
    """Return the largest difference of two sets of logits ``[N, C, ...]`` over the largest logit;
    infinite where one is NaN.

    A logit to which a softmax gives no probability counts as 104 below the largest one of its
    pixel, and is not the largest logit. Otherwise, beside a class that is masked by the lowest
    float, every other difference would look like rounding.

    Args:
        largest: the largest logit; None is that of those expected.
    """
    size = largest_logit(expected) if largest is None else largest
    difference = (_bounded(logits) - _bounded(expected)).abs().max()
    return float(difference.nan_to_num(nan=torch.inf)) / max(size, 1e-12)


def _bounded(logits: Tensor) -> Tensor:
    """Return logits, none of which is further below the largest one than :data:`LEAST_SHIFT`."""
    z = logits.float()
    return z.maximum(z.amax(1, keepdim=True) + LEAST_SHIFT)


def per_ln(classes: int) -> float:
    """Return 1 / ln C, which makes an entropy in nats a share of the largest; 1 for one class."""
    return 1.0 / math.log(classes) if classes > 1 else 1.0


STRIP_NUMBERS = 1 << 18
"""Probabilities that a calibrator works on at a time, so that they stay in the cache."""


@dataclass(frozen=True)
class Calibrator:
    """``softmax(ln p / T)`` of mean probabilities p, with one temperature T > 0.

    Draws are pooled first and calibrated then (Rahaman & Thiery, NeurIPS 2021, arXiv 2007.08792;
    Guo et al., ICML 2017, arXiv 1706.04599). A p that float32 cannot hold as a normal number, 0
    too, counts as 1.2e-38, the smallest one. The most probable class stays the one it was.
    """

    temperature: float

    @property
    def sha256(self) -> str:
        # As earlier versions wrote it, to which sums of scores are bound.
        return hashlib.sha256(json.dumps([[1 / self.temperature], []]).encode()).hexdigest()

    def __str__(self) -> str:
        return f"temperature {self.temperature:.4f}"

    def __call__(self, probabilities: Tensor) -> tuple[Tensor, Tensor]:
        """Return the calibrated probabilities ``[N, C, H, W]`` and their entropy divided by ln C
        ``[N, H, W]``, both float32.
        """
        classes, height, width = probabilities.shape[1:]
        calibrated_mean = torch.empty_like(probabilities, dtype=torch.float32)
        entropy = calibrated_mean.new_empty(len(probabilities), height, width)
        rows = max(1, STRIP_NUMBERS // (classes * width))
        for top in range(0, height, rows):
            strip = (..., slice(top, top + rows), slice(None))
            calibrated_mean[strip], entropy[strip] = self.calibrate(probabilities[strip])
        return calibrated_mean, entropy

    def calibrate(self, probabilities: Tensor) -> tuple[Tensor, Tensor]:
        """Return the same, computed for all pixels at once, which needs more memory."""
        logs = probabilities.float().clamp_min(torch.finfo(torch.float32).tiny).log_()
        logs = (logs * (1 / self.temperature)).log_softmax(1)
        calibrated = logs.exp()
        entropy = (calibrated * logs).sum(1).mul_(-per_ln(probabilities.shape[1]))
        return calibrated, entropy.clamp_(0.0, 1.0)
