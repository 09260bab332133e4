"""The logits of every draw, for what needs more of them than a sum."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from segunc.affine.branches import AnyPosterior, branches_of, draws_of
from segunc.affine.draws import AffineLayout
from segunc.affine.noise import DEFAULT_SCHEME, NoiseSource
from segunc.core.errors import InputError


@torch.no_grad()
def draw_logits(
    network: nn.Module, posterior: AnyPosterior, images: Tensor, draws: int, seed: int = 0
) -> Iterator[Tensor]:
    """Logits ``[n, C, H, W]`` of draw 0, 1, ... of one batch of images, one draw at a time.

    The draws are those of :class:`segunc.sampling.Sampler` with the same seed, in its default scheme. It folds them into sums; here the caller
    sees each, and decides what to keep.

    Args:
        network: in eval mode; converted, unless the posterior is deterministic.
        posterior: makes the draws; one without noise gives one draw for each of its branches.
        images: ``[n, 3, H, W]`` on the network's device.
        draws: S in total.
        seed: of the noise.

    Raises:
        InputError: fewer draws than members, or a draw with NaN or infinite logits.
    """
    branches = branches_of(network, posterior)
    count = draws_of(branches, posterior, draws)
    layouts = {id(b.network): AffineLayout(b.network) for b in branches if b.stochastic}
    noise = NoiseSource(seed, DEFAULT_SCHEME, count)
    size: tuple[int, int] | None = None
    for draw in range(count):
        branch = branches[draw % len(branches)]
        seen = branch.transform.apply(images)
        if branch.stochastic:
            layout = layouts[id(branch.network)]
            (number,) = branch.numbers(range(draw, draw + 1))
            with layout.active(branch.posterior.affine(layout, [number], branch.noise(noise))):
                logits = branch.network(seen)
        else:
            logits = branch.network(seen)
        if not branch.transform.identity:
            if size is None:
                size = _grid(network, images)
            logits = branch.transform.undo(logits, size)
        if not torch.isfinite(logits).all():
            raise InputError(
                "a draw gives NaN or infinite logits", "finite logits", "check the model with segunc doctor"
            )
        yield logits


def _grid(network: nn.Module, images: Tensor) -> tuple[int, int]:
    """(height, width) of the network's logits of these images."""
    logits = network(images[:1])
    return logits.shape[-2], logits.shape[-1]
