"""Checks of the values that go into a network and come out of it, which tell other conventions apart."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from segunc.core.errors import InputError, NotFiniteError
from segunc.networks.network import SegmentationNetwork

TOLERANCE = 1e-4
LOWEST, HIGHEST = -0.5, 1.5
"""Of images in 0..1, with room for what resizing and corruptions overshoot. Normalised images go below, 0..255 above."""


def check_images(images: Tensor, network: nn.Module | None = None) -> None:
    """Check images ``[N, 3, H, W]`` before a network takes them: floats without NaN, and in 0..1 for a
    :class:`SegmentationNetwork`, which normalises them itself. A module of another kind takes what it was made for.

    Raises:
        InputError: another type or range; NotFiniteError for NaN or infinite values.
    """
    if not images.is_floating_point():
        raise InputError(f"images of the type {images.dtype} are no floats", hint="images.float() / 255")
    low, high = (float(bound) for bound in images.aminmax()) if images.numel() else (0.0, 0.0)
    if not (abs(low) < torch.inf and abs(high) < torch.inf):
        raise NotFiniteError("the images hold NaN or infinite values")
    if isinstance(network, SegmentationNetwork) and (low < LOWEST or high > HIGHEST):
        hint = "divide by 255" if high > 10 else "leave the normalisation out: the network does it itself"
        raise InputError(f"images have values from {low:.3g} to {high:.3g}, not in 0..1", hint=hint)


def softmax_output(outputs: Tensor) -> str:
    """Return ``probabilities`` or ``log-probabilities`` where outputs ``[N, C, H, W]`` are such at every pixel, as behind a softmax or
    a log-softmax over at least two classes; else ""."""
    values = outputs.float()
    if outputs.shape[1] < 2:
        return ""
    if bool(values.amin() >= 0) and bool((values.sum(1) - 1).abs().amax() < TOLERANCE):
        return "probabilities"
    return "log-probabilities" if bool(values.logsumexp(1).abs().amax() < TOLERANCE) else ""


@torch.no_grad()
def check_logits(network: nn.Module, outputs: Tensor, images: Tensor) -> str:
    """Check that a network returns logits: a second softmax makes nearly equal shares of probabilities.

    Logits of one frame may sum to 1 by chance, those of constant networks for example. So the network is asked again about wide noise.

    Args:
        outputs: what it returned for ``images`` ``[N, 3, H, W]``, at any resolution.

    Returns:
        a note on log-probabilities, which give right probabilities but no energies and largest logits; else "".

    Raises:
        InputError: the network ends in a softmax.
    """
    kind = "" if getattr(network, "logarithms", False) else softmax_output(outputs)
    if kind:
        noise = torch.rand(images[:1].shape, generator=torch.Generator().manual_seed(0)).to(images)
        probes = (noise, noise**4) if isinstance(network, SegmentationNetwork) else (6 * noise - 3, 100 * noise)
        kind = kind if all(softmax_output(network(probe)) == kind for probe in probes) else ""
    if kind == "probabilities":
        message = f"{type(network).__name__} returns probabilities, which sum to 1 at every pixel, not logits"
        raise InputError(message, hint="leave its last softmax out")
    return kind and (
        "the network returns log-probabilities: its probabilities and entropies are right, but energies and largest logits say "
        "nothing; leave its last log-softmax out"
    )
