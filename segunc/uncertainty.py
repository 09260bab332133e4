"""Per-pixel uncertainty as pure functions of logits or probabilities.

Conventions: the class axis is 1 (``[N, C, ...]``), draws are stacked along axis 0 (``[S, N, C, ...]``), everything
is computed in float32 (sums over draws may come in float64) and every result is in nats unless ``normalised`` says otherwise (divided by ln C: 0..1).

Definitions (Houlsby et al. 2011, arXiv 1112.5745; Depeweg et al. 2018):

* entropy: H(mean_s p_s), the total uncertainty;
* aleatoric: mean_s H(p_s), the expected entropy of one draw;
* epistemic: their difference, the mutual information of prediction and parameters (BALD), clamped at 0.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor


class Decomposition(NamedTuple):
    """Total uncertainty split in two; each ``[N, ...]`` without the class axis."""

    entropy: Tensor
    aleatoric: Tensor
    epistemic: Tensor


def entropy_from_logits(logits: Tensor, dim: int = 1) -> Tensor:
    """Entropy of softmax(logits) in nats, as ``logsumexp(z) - sum_c p_c z_c``; shape without ``dim``.

    This form needs no logarithm of a probability and so is exact for logits of any size.
    """
    # Shifted by the maximum, so that the two terms stay small and their difference keeps its digits.
    shifted = logits.float() - logits.float().amax(dim, keepdim=True)
    log_normaliser = shifted.logsumexp(dim)
    return (log_normaliser - (shifted.softmax(dim) * shifted).sum(dim)).clamp_min_(0.0)


def entropy_from_probabilities(probabilities: Tensor, dim: int = 1) -> Tensor:
    """Entropy ``-sum_c p_c ln p_c`` in nats of probabilities in 0..1 (0 ln 0 = 0); shape without ``dim``."""
    # float64 stays: the decomposition takes a small difference of two entropies.
    wide = probabilities if probabilities.dtype == torch.float64 else probabilities.float()
    entropy: Tensor = torch.special.entr(wide).sum(dim)
    return entropy


def entropy_share(probabilities: Tensor) -> Tensor:
    """The entropy of probabilities ``[N, C, ...]`` divided by ln C, in 0..1."""
    return entropy_from_probabilities(probabilities) * _per_ln(probabilities.shape[1])


def max_softmax(probabilities: Tensor, dim: int = 1) -> Tensor:
    """The msp anomaly score ``1 - max_c p_c`` in 0..1 (Hendrycks & Gimpel, arXiv 1610.02136)."""
    return (1.0 - probabilities.float().amax(dim)).clamp_(0.0, 1.0)


def max_softmax_of_logits(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """:func:`max_softmax` of ``softmax(z / T)``, z ``[N, C, ...]``."""
    return max_softmax((logits.float() / temperature).softmax(1))


def entropy_share_of_logits(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """The entropy of ``softmax(z / T)`` divided by ln C, in 0..1, z ``[N, C, ...]``."""
    return entropy_share((logits.float() / temperature).softmax(1))


def max_logit(logits: Tensor, dim: int = 1) -> Tensor:
    """The max-logit anomaly score ``-max_c z_c``, unbounded (Hendrycks et al., arXiv 1911.11132)."""
    return -logits.float().amax(dim)


def energy(logits: Tensor, temperature: float = 1.0, dim: int = 1) -> Tensor:
    """The energy anomaly score ``-T logsumexp(z / T)``, unbounded (Liu et al. 2020)."""
    return -temperature * (logits.float() / temperature).logsumexp(dim)


def decompose(sum_probabilities: Tensor, sum_entropy: Tensor, draws: int, *, normalised: bool = True) -> Decomposition:
    """Split total uncertainty from two running sums over draws.

    Args:
        sum_probabilities: ``[N, C, ...]`` sum over draws of p.
        sum_entropy: ``[N, ...]`` sum over draws of H(p) in nats.
        draws: S, the number of draws that were summed.
        normalised: divide by ln C, so that every map lies in 0..1.

    Returns:
        entropy, aleatoric and epistemic, each ``[N, ...]``.
    """
    scale = _per_ln(sum_probabilities.shape[1]) if normalised else 1.0
    total = entropy_from_probabilities(sum_probabilities / draws) * scale
    aleatoric = sum_entropy * (scale / draws)
    return Decomposition(total, aleatoric, mutual_information(total, aleatoric))


def mutual_information(total: Tensor, expected: Tensor) -> Tensor:
    """Epistemic uncertainty ``H(mean p) - mean H(p)``, at least 0, from the two entropies of any unit."""
    return (total - expected).clamp_min_(0.0)


def _per_ln(classes: int) -> float:
    """What makes an entropy of so many classes a share of the largest."""
    return 1.0 / math.log(classes) if classes > 1 else 1.0


def decompose_draws(probabilities: Tensor, *, normalised: bool = True) -> Decomposition:
    """Split total uncertainty from stacked draws ``[S, N, C, ...]`` of probabilities (small inputs: it holds all S)."""
    draws = probabilities.shape[0]
    expected = entropy_from_probabilities(probabilities, dim=2).sum(0)
    return decompose(probabilities.float().sum(0), expected, draws, normalised=normalised)


def draw_variance(probabilities: Tensor) -> Tensor:
    """The variance score ``(1/C) sum_c Var_s p_c`` (population variance), 0 where the draws agree, at most 1/4.

    Kendall et al., arXiv 1511.02680. From stacked draws ``[S, N, C, ...]`` of probabilities; returns ``[N, ...]``.
    """
    return probabilities.var(0, correction=0).mean(1)


def variation_ratio(probabilities: Tensor) -> Tensor:
    """The variation ratio ``1 - votes of the modal class / S`` in 0..1 - 1/S (Gal 2016, thesis, section 3.3.1).

    A draw votes for its most probable class. From stacked draws ``[S, N, C, ...]``; returns ``[N, ...]``.
    """
    draws, classes = probabilities.shape[0], probabilities.shape[2]
    winners = probabilities.argmax(2)
    return outvoted_share(torch.stack([(winners == c).sum(0) for c in range(classes)], 1) / draws)


def outvoted_share(votes: Tensor) -> Tensor:
    """The variation ratio from the share of the draws that vote for each class, ``[N, C, ...]``."""
    return 1.0 - votes.amax(1)


def expected_pairwise_kl(probabilities: Tensor) -> Tensor:
    """The mean over ordered pairs of draws i != j of ``KL(p_i || p_j)`` in nats, 0 for S = 1.

    Malinin & Gales, arXiv 2002.07650. Infinite where one draw excludes what another allows. From stacked draws
    ``[S, N, C, ...]``, pair by pair (small inputs); returns ``[N, ...]``.
    """
    draws = probabilities.shape[0]
    total = torch.zeros_like(probabilities[0].sum(1))
    for i in range(draws):
        for j in range(draws):
            if i != j:
                cross = torch.special.xlogy(probabilities[i], probabilities[j])
                total -= (torch.special.entr(probabilities[i]) + cross).sum(1)
    return total / max(1, draws * (draws - 1))
