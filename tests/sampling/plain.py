"""What every way of sampling is compared with: plain passes, one draw at a time, as people write them by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from segunc.affine.convert import convert
from segunc.affine.draws import AffineLayout
from segunc.posteriors.abnn import ABNNPosterior
from segunc.sampling import Prediction, Sampler
from segunc.uncertainty import entropy_share


def posterior_of(network: nn.Module, alpha: float = 0.3, members: int = 2) -> ABNNPosterior:
    """A posterior around a network, which is converted."""
    convert(network)
    return ABNNPosterior.around(AffineLayout(network), alpha, members)


def assert_mean_of(result: Prediction, draws: Sequence[Tensor], atol: float = 2e-6) -> None:
    """The maps are those of the logits ``[n, C, H, W]`` of each draw."""
    probabilities = torch.stack([logits.softmax(1) for logits in draws])
    expected, mean = decompose_draws(probabilities), probabilities.mean(0)
    torch.testing.assert_close(result.probabilities, mean, atol=atol, rtol=0)
    for name in ("entropy", "aleatoric", "epistemic"):
        torch.testing.assert_close(result.scores[name], getattr(expected, name), atol=atol, rtol=0)
    # Where two classes are as good as equal, either is right.
    chosen = mean.gather(1, result.prediction.long()[:, None])
    assert float((mean.amax(1, keepdim=True) - chosen).max()) <= 2 * atol


def assert_maps_of_a_plain_loop(
    sampler: Sampler, images: Tensor, atol: float = 1e-5, scope: str | None = None
) -> Prediction:
    posterior, layout = sampler.posterior, AffineLayout(sampler.network)
    assert isinstance(posterior, ABNNPosterior)
    draws = []
    with torch.no_grad():
        for draw in range(sampler.draws):
            with layout.active(posterior.affine(layout, [draw], sampler.noise, scope)):
                draws.append(sampler.network(images))
    result = sampler(images, keep_probabilities=True)
    assert_mean_of(result, draws, atol)
    return result


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
