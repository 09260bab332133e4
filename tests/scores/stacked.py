"""Scores from all draws at once, ``[S, N, C, ...]``: what the streaming sums must equal."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from segunc.uncertainty import entropy_share


class Decomposition(NamedTuple):
    """Total uncertainty split in two, shares of ln C; each ``[N, ...]``."""

    entropy: Tensor
    aleatoric: Tensor
    epistemic: Tensor


def decompose_draws(probabilities: Tensor) -> Decomposition:
    total = entropy_share(probabilities.mean(0))
    expected = torch.stack([entropy_share(p) for p in probabilities]).mean(0)
    return Decomposition(total, expected, (total - expected).clamp_min(0))


def draw_variance(probabilities: Tensor) -> Tensor:
    """``(1/C) sum_c Var_s p_c`` (population variance), Kendall et al., arXiv 1511.02680."""
    return probabilities.var(0, correction=0).mean(1)


def variation_ratio(probabilities: Tensor) -> Tensor:
    """``1 - votes of the modal class / S``; a draw votes for its most probable class (Gal 2016, thesis, section 3.3.1)."""
    draws, classes = probabilities.shape[0], probabilities.shape[2]
    winners = probabilities.argmax(2)
    return 1 - torch.stack([(winners == c).sum(0) for c in range(classes)], 1).amax(1) / draws


def expected_pairwise_kl(probabilities: Tensor) -> Tensor:
    """The mean over ordered pairs of draws i != j of ``KL(p_i || p_j)`` in nats, 0 for S = 1: Malinin & Gales, arXiv 2002.07650."""
    draws = probabilities.shape[0]
    total = torch.zeros_like(probabilities[0].sum(1))
    for i in range(draws):
        for j in range(draws):
            if i != j:
                cross = torch.special.xlogy(probabilities[i], probabilities[j])
                total -= (torch.special.entr(probabilities[i]) + cross).sum(1)
    return total / max(1, draws * (draws - 1))


PURE = {"variance": draw_variance, "variation-ratio": variation_ratio, "expected-pairwise-kl": expected_pairwise_kl}
