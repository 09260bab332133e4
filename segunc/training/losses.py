"""Losses, learning-rate schedules, and training that diverges."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, OneCycleLR

from segunc.core.errors import InputError, PartialFailure
from segunc.data.labels import IGNORE


def check_labels(labels: Tensor, classes: int) -> None:
    """Raise InputError for labels that are neither a class id below ``classes`` nor 255: on a GPU,
    they would end the whole process.
    """
    wrong = (labels != IGNORE) & ((labels < 0) | (labels >= classes))
    if bool(wrong.any()):
        frame = int(wrong.flatten(1).any(1).nonzero()[0])
        message = (
            f"label {int(labels[wrong][0])} in frame {frame} of a batch is neither a class id "
            f"below {classes} nor {IGNORE}"
        )
        raise InputError(message, hint="map the labels to train ids")


def segmentation_loss(logits: Tensor, labels: Tensor, weights: Tensor | None = None) -> Tensor:
    """Return the mean-pixel cross-entropy of logits ``[N, C, H, W]`` and labels ``[N, H, W]``
    int64, 255 ignored, with weights ``[C]`` of the classes; 0 with a gradient of 0 where every
    pixel is ignored, or of a class with weight 0.
    """
    check_labels(labels, logits.shape[1])
    logits = logits.float()
    counted = labels != IGNORE
    if weights is not None:
        counted &= (weights > 0)[labels.masked_fill(~counted, 0)]
    if not bool(counted.any()):
        return logits.sum() * 0.0
    return F.cross_entropy(logits, labels, weights, ignore_index=IGNORE)


def balanced_weights(
    frequencies: Sequence[float], power: float = 0.5, limit: float = 5.0
) -> list[float]:
    """Return class weights ``frequency ** -power``, scaled so that the mean over pixels is 1, at
    most ``limit``; 1 for classes that do not occur. ``power`` 0 is plain cross-entropy, 1 gives
    every class the same share of the loss.
    """
    unscaled = [frequency**-power if frequency > 0 else 0.0 for frequency in frequencies]
    mean = sum(frequency * weight for frequency, weight in zip(frequencies, unscaled, strict=True))
    weights: list[float] = []
    for weight in unscaled:
        occurs = weight > 0
        weights.append(min(limit, weight / mean) if occurs else 1.0)
    return weights


Schedule = Literal["onecycle", "poly", "constant"]
OptimizerName = Literal["adamw", "sgd"]


def make_optimizer(name: OptimizerName, groups: Iterable[Any], lr: float) -> Optimizer:
    """Return AdamW, or SGD with Nesterov momentum 0.9. Only groups with a weight_decay decay."""
    if name == "adamw":
        return AdamW(groups, lr, weight_decay=0.0)
    return SGD(groups, lr, momentum=0.9, nesterov=True)


def make_schedule(
    optimizer: Optimizer, name: Schedule, steps: int, peak: float | list[float]
) -> LRScheduler:
    """Return a schedule over ``steps`` optimiser steps; ``peak`` is one rate, or one a parameter
    group. ``onecycle`` warms up over 20 % to ``peak`` and anneals to nearly 0 (Smith 2018);
    ``poly`` is ``(1 - step / steps) ** 0.9`` (DeepLab); ``constant`` keeps it.
    """
    if name == "onecycle":
        total = max(steps, 2) + 1
        # PyTorch divides by zero where the warm-up is a single step.
        warmup_share = 0.2 if total > 10 else 0.5
        return OneCycleLR(optimizer, peak, total_steps=total, pct_start=warmup_share)
    if name == "poly":
        return LambdaLR(optimizer, lambda step: max(0.0, 1.0 - step / max(steps, 1)) ** 0.9)
    return LambdaLR(optimizer, lambda step: 1.0)


def diverged(what: str, step: int) -> InputError | PartialFailure:
    """Return the error of a loss or a parameter that is not finite after optimiser ``step``."""
    hint = "lower the learning rate (lr)"
    if step == 0:
        return InputError(f"{what} is NaN or infinite before the first step", hint=hint)
    return PartialFailure(
        f"{what} became NaN or infinite at step {step}; "
        f"the last checkpoint is from before that and stays; {hint} and give another --out"
    )


def require_finite_state(state: Mapping[str, Tensor], step: int) -> None:
    """Raise :func:`diverged` before a checkpoint is written that is not finite, so that the good
    one before it stays.
    """
    for name, tensor in state.items():
        # Modules may store more than tensors (get_extra_state).
        if isinstance(tensor, Tensor) and not bool(torch.isfinite(tensor).all()):
            raise diverged(name, step)
