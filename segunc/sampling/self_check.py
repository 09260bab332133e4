"""Whether a network keeps the order of the draws in its batch, and lets them share what is common: asked, not assumed."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from segunc.affine.draws import AffineDraws
from segunc.core.errors import InputError
from segunc.sampling.engine import Engine
from segunc.sampling.prefix import Prefix

SIDE = 256
"""Longest side of the image of the self-check, which runs some twenty passes."""
TOLERANCE = 1e-3
"""Largest difference of logits, relative to the largest logit, that counts as rounding (float32)."""


@dataclass(frozen=True)
class SelfCheck:
    """What was found with the base network and two draws over two frames.

    Attributes:
        batched: largest difference of two draws as a batch from the same two one by one, relative to the largest logit.
        shared: the same for passes that share what is common to all draws.
        shared_one: the same for passes of one draw. Networks that take the size of the batch from a tensor before the
            first draw, and use it after, can share in no others.
    """

    batched: float
    shared: float
    shared_one: float

    @property
    def batched_passed(self) -> bool:
        return self.batched <= TOLERANCE

    @property
    def shared_passed(self) -> bool:
        return self.shared <= TOLERANCE

    @property
    def shared_one_passed(self) -> bool:
        return self.shared_one <= TOLERANCE


def check(engine: Engine, images: Tensor, draws: AffineDraws) -> SelfCheck:
    """Compare the ways of running draws, in float32, on a small image.

    Args:
        engine: in float32.
        images: ``[n, 3, H, W]``, of which the first is looked at.
        draws: at least two, of which the first is mostly the base network's own affine.

    Raises:
        InputError: the base network or a draw gives NaN or infinite logits.
    """
    try:
        return _check(engine, _two_frames(images[:1].float(), SIDE), draws)
    except (InputError, torch.OutOfMemoryError):
        raise
    except Exception:
        # Some networks take frames of their own size only.
        return _check(engine, _two_frames(images[:1].float(), max(images.shape[-2:])), draws)


def _check(engine: Engine, frames: Tensor, draws: AffineDraws) -> SelfCheck:
    last = min(3, len(draws))
    plain, common = (engine.fold(draws, share=share) for share in (False, True))
    base = plain.part(0, 1)
    single = [engine.logits(frames, base, None)[0]]
    if not torch.isfinite(single[0]).all():
        raise InputError(
            "the network returns NaN or infinite logits", "finite logits", "check its weights and its input"
        )
    single += [engine.logits(frames, plain.part(s, s + 1), None)[0] for s in range(1, last)]
    if not all(torch.isfinite(s).all() for s in single):
        raise InputError("a draw gives NaN or infinite logits", "finite logits", "lower alpha")
    size = max(max(float(s.abs().max()) for s in single), 1e-12)

    def difference(found: list[Tensor], expected: list[Tensor]) -> float:
        return max(float((f - e).abs().max()) for f, e in zip(found, expected, strict=True)) / size

    try:
        together = engine.logits(frames, plain.part(1, last), None)[0]
        batched = difference([together], [torch.cat(single[1:])])
    except (InputError, RuntimeError):
        batched = float("inf")
    prefix = Prefix()
    shared_one = shared = float("inf")
    try:
        found = [engine.logits(frames, common.part(0, 1), None, prefix)[0]]
        found += [engine.logits(frames, common.part(s, s + 1), None, prefix)[0] for s in range(1, last)]
        shared_one = difference(found, single)
        if batched <= TOLERANCE:
            together = engine.logits(frames, common.part(1, last), None, prefix)[0]
            shared = max(shared_one, difference([together], [torch.cat(single[1:])]))
    except (InputError, RuntimeError, TypeError, ValueError, LookupError):
        pass  # the differences that are not known stay infinite
    return SelfCheck(batched, shared if batched <= TOLERANCE else shared_one, shared_one)


def _two_frames(image: Tensor, side: int) -> Tensor:
    """An image ``[1, 3, H, W]`` and its mirror image, with sides of at most ``side`` pixels.

    Two, because with one frame a forgotten repetition would be put right by broadcasting.
    """
    height, width = image.shape[-2:]
    scale = side / max(height, width)
    if scale < 1:
        # Whole multiples of the usual stride, so that a bare smp network takes them.
        size = [max(64, 32 * round(s * scale / 32)) for s in (height, width)]
        image = F.interpolate(image, size, mode="bilinear", align_corners=False)
    return torch.cat([image, image.flip(-1)]).contiguous(memory_format=torch.channels_last)
