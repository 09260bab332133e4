"""What every way of sampling is compared with: plain passes, one draw at a time, as people write
them by hand.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
from torch import Tensor, nn

from segunc.affine.convert import convert
from segunc.affine.draws import AffineLayout
from segunc.affine.noise import DEFAULT_SCHEME, NoiseSource
from segunc.posteriors.abnn import ABNNPosterior
from segunc.sampling import Prediction, Sampler
from segunc.sampling.branches import AnyPosterior, branches_of, draws_of
from segunc.uncertainty import entropy_share


def posterior_of(network: nn.Module, alpha: float = 0.3, members: int = 2) -> ABNNPosterior:
    convert(network)
    return ABNNPosterior.around(AffineLayout(network), alpha, members)


def assert_mean_of(result: Prediction, draws: Sequence[Tensor], atol: float = 2e-6) -> None:
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


@torch.no_grad()
def draw_logits(
    network: nn.Module, posterior: AnyPosterior, images: Tensor, draws: int, seed: int = 0
) -> Iterator[Tensor]:
    """Yield logits ``[n, C, H, W]`` of draw 0, 1, ... of one batch of images, one plain pass a
    draw.
    """
    branches = branches_of(network, posterior)
    noise = NoiseSource(seed, DEFAULT_SCHEME, draws_of(branches, posterior, draws))
    for draw in range(noise.total or 0):
        branch = branches[draw % len(branches)]
        active: AbstractContextManager[object] = nullcontext()
        if branch.stochastic:
            layout, numbers = AffineLayout(branch.network), branch.numbers(range(draw, draw + 1))
            active = layout.active(branch.posterior.affine(layout, numbers, branch.noise(noise)))
        with active:
            logits = branch.network(branch.transform.apply(images))
        yield (
            logits
            if branch.transform.identity
            else branch.transform.undo(logits, images.shape[-2:])
        )
