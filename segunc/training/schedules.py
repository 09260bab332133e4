"""Learning-rate schedules by name, stepped after every optimiser step."""

from __future__ import annotations

from typing import Literal

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, OneCycleLR

Schedule = Literal["onecycle", "poly", "constant"]


def make_schedule(
    optimizer: Optimizer, name: Schedule, steps: int, peak: float | list[float], poly_power: float = 0.9
) -> LRScheduler:
    """A schedule over ``steps`` optimiser steps.

    ``onecycle`` warms up over 20 % to ``peak`` and anneals to nearly 0 (Smith 2018); ``poly`` is
    ``(1 - step / steps) ** poly_power`` (DeepLab); ``constant`` keeps the rate. ``peak`` is one rate, or one for each
    parameter group.
    """
    if name == "onecycle":
        total = max(steps, 2) + 1
        # PyTorch divides by zero where the warm-up is a single step.
        return OneCycleLR(optimizer, peak, total_steps=total, pct_start=0.2 if total > 10 else 0.5)
    if name == "poly":
        return LambdaLR(optimizer, lambda step: max(0.0, 1.0 - step / max(steps, 1)) ** poly_power)
    return LambdaLR(optimizer, lambda step: 1.0)
