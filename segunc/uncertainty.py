"""Per-pixel uncertainty as pure functions of logits or probabilities.

Conventions: the class axis is 1 (``[N, C, ...]``), everything is computed in float32 (means over draws may come in float64).

Definitions (Houlsby et al. 2011, arXiv 1112.5745; Depeweg et al. 2018):

* entropy: H(mean_s p_s), the total uncertainty;
* aleatoric: mean_s H(p_s), the expected entropy of one draw;
* epistemic: their difference, the mutual information of prediction and parameters (BALD), clamped at 0.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


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
    return entropy_from_probabilities(probabilities) * per_ln(probabilities.shape[1])


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


def mutual_information(total: Tensor, expected: Tensor) -> Tensor:
    """Epistemic uncertainty ``H(mean p) - mean H(p)``, at least 0, from the two entropies of any unit."""
    return (total - expected).clamp_min_(0.0)


def per_ln(classes: int) -> float:
    """1 / ln C, which makes an entropy in nats a share of the largest; 1 for one class."""
    return 1.0 / math.log(classes) if classes > 1 else 1.0


def outvoted_share(votes: Tensor) -> Tensor:
    """The variation ratio from the share of the draws that vote for each class, ``[N, C, ...]``."""
    return 1.0 - votes.amax(1)
