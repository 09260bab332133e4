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
from segunc.sampling.branches import AnyPosterior, Branch, branches_of, draws_of
from segunc.uncertainty import entropy_share


def posterior_of(network: nn.Module, alpha: float = 0.3, members: int = 2) -> ABNNPosterior:
    convert(network)
    return ABNNPosterior.around(AffineLayout(network), alpha, members)


def assert_mean_of(result: Prediction, draws: Sequence[Tensor], atol: float = 2e-6) -> None:
    probabilities = torch.stack([logits.softmax(1) for logits in draws])
    mean = probabilities.mean(0)
    torch.testing.assert_close(result.probabilities, mean, atol=atol, rtol=0)
    expected = decompose_draws(probabilities)
    for name in ("entropy", "aleatoric", "epistemic"):
        torch.testing.assert_close(result.scores[name], getattr(expected, name), atol=atol, rtol=0)
    # Where two classes are as good as equal, either is right.
    chosen = mean.gather(1, result.prediction.long()[:, None])
    largest = mean.amax(1, keepdim=True)
    assert float((largest - chosen).max()) <= 2 * atol


def assert_maps_of_a_plain_loop(
    sampler: Sampler,
    images: Tensor,
    atol: float = 1e-5,
    scope: str | None = None,
) -> Prediction:
    posterior = sampler.posterior
    layout = AffineLayout(sampler.network)
    assert isinstance(posterior, ABNNPosterior)
    draws = []
    with torch.no_grad():
        for number in range(sampler.draws):
            affine = posterior.affine(layout, [number], sampler.noise, scope)
            with layout.active(affine):
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


def one_draw(branch: Branch, number: int, noise: NoiseSource) -> AbstractContextManager[object]:
    """Let the network of a branch run with this draw."""
    if not branch.stochastic:
        return nullcontext()
    layout = AffineLayout(branch.network)
    numbers = branch.numbers(range(number, number + 1))
    affine = branch.posterior.affine(layout, numbers, branch.noise(noise))
    return layout.active(affine)


@torch.no_grad()
def draw_logits(
    network: nn.Module,
    posterior: AnyPosterior,
    images: Tensor,
    draws: int,
    seed: int = 0,
) -> Iterator[Tensor]:
    """Yield logits ``[n, C, H, W]`` of draw 0, 1, ... of one batch of images, one plain pass a
    draw.
    """
    branches = branches_of(network, posterior)
    noise = NoiseSource(seed, DEFAULT_SCHEME, draws_of(branches, posterior, draws))
    for number in range(noise.total or 0):
        branch = branches[number % len(branches)]
        transform = branch.transform
        with one_draw(branch, number, noise):
            logits = branch.network(transform.apply(images))
        if transform.identity:
            yield logits
        else:
            yield transform.undo(logits, images.shape[-2:])
