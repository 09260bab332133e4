"""Losses over logits ``[N, C, H, W]`` and train ids ``[N, H, W]`` with 255 ignored."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from segunc.data.labels import IGNORE
from segunc.errors import InputError


def dice_loss(logits: Tensor, labels: Tensor, smooth: float = 1.0) -> Tensor:
    """1 - mean over the classes present of the soft Dice coefficient (Milletari et al. 2016); a scalar."""
    valid = labels != IGNORE
    probabilities = logits.float().softmax(1) * valid.unsqueeze(1)
    truth = F.one_hot(labels.masked_fill(~valid, 0), logits.shape[1]).movedim(-1, 1) * valid.unsqueeze(1)
    overlap = (probabilities * truth).sum((0, 2, 3))
    size = probabilities.sum((0, 2, 3)) + truth.sum((0, 2, 3))
    present = truth.sum((0, 2, 3)) > 0
    dice = (2 * overlap + smooth) / (size + smooth)
    return 1.0 - dice[present].mean() if bool(present.any()) else probabilities.sum() * 0.0


class SegmentationLoss(nn.Module):
    """Cross-entropy with class weights, plus ``dice`` times the Dice loss.

    Args:
        class_weights: one weight a class, or None for 1.
        dice: weight of the Dice term; 0 leaves it out.
        label_smoothing: 0..1, of the cross-entropy.
    """

    class_weights: Tensor | None

    def __init__(
        self, class_weights: Sequence[float] | Tensor | None = None, dice: float = 0.0, label_smoothing: float = 0.0
    ) -> None:
        super().__init__()
        self.dice, self.label_smoothing = dice, label_smoothing
        weights = None if class_weights is None else torch.as_tensor(class_weights, dtype=torch.float32)
        self.register_buffer("class_weights", weights)

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The loss, a scalar; 0 with a gradient of 0 where every pixel is ignored."""
        logits = logits.float()
        if not bool((labels != IGNORE).any()):
            return logits.sum() * 0.0
        loss = F.cross_entropy(
            logits, labels, self.class_weights, ignore_index=IGNORE, label_smoothing=self.label_smoothing
        )
        return loss + self.dice * dice_loss(logits, labels) if self.dice else loss


def balanced_weights(frequencies: Sequence[float], power: float = 0.5, limit: float = 5.0) -> list[float]:
    """Class weights ``frequency ** -power``, scaled so that the mean over pixels is 1, at most ``limit``.

    ``power`` 0 is plain cross-entropy, 1 gives every class the same share of the loss; classes that do not occur
    in the training set get weight 1.
    """
    if not 0.0 <= power <= 1.0:
        raise InputError(f"class weight power {power}", "a number in 0..1", "0 for plain cross-entropy")
    raw = [f**-power if f > 0 else 0.0 for f in frequencies]
    mean = sum(f * w for f, w in zip(frequencies, raw, strict=True))
    return [min(limit, w / mean) if w > 0 else 1.0 for w in raw]
