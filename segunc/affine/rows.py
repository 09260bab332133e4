"""Whether each image of a batch meets its own draw. Training takes a draw for each image, and a
network that does not keep the batch outermost (tokens or tiles before it) would give wrong
gradients without an error. So it is checked before the first step.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn

from segunc.affine.draws import AffineDraws, AffineLayout
from segunc.core.device import full_float32
from segunc.core.errors import NoteWarning, is_out_of_memory

TOLERANCE = 1e-3  # largest difference of logits, relative to the largest, that counts as rounding
SPREAD = 0.3  # of the draws of the check, as a share of gamma: far above rounding
LEAST_SPREAD = 0.03  # as a share of the mean gamma, so that a layer whose gamma is 0 differs, too


class RowOrder:
    """What was found out of the batches of a network, by the shape of their images.

    Args:
        network: converted.
        scope: of the draws; layers outside of it have one affine for all images.
    """

    def __init__(self, network: nn.Module, scope: str) -> None:
        self._network = network
        self._scope = scope
        self._kept: dict[tuple[int, ...], bool] = {}

    def is_kept(self, layout: AffineLayout, images: Tensor) -> bool:
        """Return whether each of images ``[N, 3, H, W]`` in a batch meets its own draw alone, else
        they must run one by one. It is checked at the first batch of each shape; the first shape
        where it fails gives a :class:`NoteWarning`.
        """
        shape = tuple(images.shape)
        if len(images) < 2:
            return True
        if shape not in self._kept:
            difference = row_difference(self._network, layout, images, self._scope)
            kept = difference <= tolerance(images.dtype)
            if not kept and all(self._kept.values()):
                draws_itself = draws_random_numbers(self._network, layout, images, self._scope)
                warn_of_rows(difference, draws_itself=draws_itself)
            self._kept[shape] = kept
        return self._kept[shape]


def warn_of_rows(difference: float, *, draws_itself: bool = False) -> None:
    """Say that images run one by one.

    Args:
        difference: of the batch from its images alone, as of :func:`row_difference`.
        draws_itself: whether the network draws random numbers in eval mode.
    """
    what = "the logits of a batch whose images have a draw each"
    how = f"differ by {difference:.1e} of the largest from those of each image alone"
    if difference == float("inf"):
        how = "cannot be computed"
    if draws_itself:
        how += (
            ", and also between two passes of the same batch: the network draws random numbers in "
            "eval mode, so whether it mixes images cannot be told"
        )
    warnings.warn(f"{what} {how}; the images run one by one", NoteWarning, stacklevel=4)


@torch.no_grad()
def draws_random_numbers(
    network: nn.Module, layout: AffineLayout, images: Tensor, scope: str
) -> bool:
    """Return whether two passes of a batch of images ``[N, 3, H, W]`` with the same draws differ by
    more than rounding; False where the network fails on the batch."""
    draws = different_draws(layout, len(images), scope)
    try:
        with full_float32(), torch.autocast(images.device.type, enabled=False):
            first = _logits(network, layout, images, draws)
            second = _logits(network, layout, images, draws)
    except (RuntimeError, ValueError, TypeError, LookupError) as error:
        if is_out_of_memory(error):
            raise
        return False
    largest = max(1e-12, float(first.abs().max()))
    distance = float((first - second).abs().max().nan_to_num(nan=0.0))
    return distance / largest > tolerance(images.dtype)


def tolerance(dtype: torch.dtype) -> float:
    """Return the largest difference that is rounding for images of a type: kernels differ with the
    size of the batch.
    """
    return max(TOLERANCE, 8 * torch.finfo(dtype).eps)


@torch.no_grad()
def row_difference(network: nn.Module, layout: AffineLayout, images: Tensor, scope: str) -> float:
    """Return how far the logits of a batch of images ``[N, 3, H, W]`` with N different draws are
    from those of each image alone with its draw, relative to the largest logit; infinite where the
    network fails on one of both, or a logit is not finite.
    """
    draws = different_draws(layout, len(images), scope)
    difference = 0.0
    largest = 1e-12
    try:
        with full_float32(), torch.autocast(images.device.type, enabled=False):
            together = _logits(network, layout, images, draws)
            for row in range(len(images)):
                rows = slice(row, row + 1)
                single = AffineDraws(draws.weight[rows], draws.bias[rows])
                alone = _logits(network, layout, images[rows], single)
                distance = (together[rows] - alone).abs().max().nan_to_num(nan=torch.inf)
                difference = max(difference, float(distance))
                largest = max(largest, float(alone.abs().max()))
    except (RuntimeError, ValueError, TypeError, LookupError) as error:
        if is_out_of_memory(error):
            raise
        return float("inf")
    return difference / largest


def _logits(network: nn.Module, layout: AffineLayout, images: Tensor, draws: AffineDraws) -> Tensor:
    with layout.active(draws):
        logits: Tensor = network(images.contiguous(memory_format=torch.channels_last))
    return logits.float()


def different_draws(layout: AffineLayout, rows: int, scope: str) -> AffineDraws:
    """Return draws that differ in every gamma and beta of a scope, always the same ones."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(2, rows, layout.total, generator=generator, dtype=torch.float32)
    noise = noise.to(layout.device)
    size = layout.weight.abs()
    spread = (SPREAD * size + LEAST_SPREAD * size.mean()) * layout.mask(scope)
    return AffineDraws(layout.weight + spread * noise[0], layout.bias + spread * noise[1])
