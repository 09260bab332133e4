"""What a training does about NaN: it stops, says where, and keeps the checkpoint from before."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from segunc.errors import InputError, PartialFailure


def diverged(what: str, step: int) -> InputError | PartialFailure:
    """The error of a loss or a parameter that is not finite.

    Args:
        what: is not finite.
        step: optimiser steps made before; at 0 the settings are to blame, and nothing is there to keep.
    """
    remedy = "lower the learning rate (lr)"
    if step == 0:
        return InputError(f"{what} is NaN or infinite before the first step", "finite numbers", remedy)
    return PartialFailure(
        f"{what} became NaN or infinite at step {step}; the last checkpoint is from before that and stays; {remedy} "
        "and give another --out"
    )


def require_finite_state(state: Mapping[str, Tensor], step: int) -> None:
    """Raise before a checkpoint is written that is not finite, so that the one before it, which is good, stays.

    Raises:
        InputError, PartialFailure: see :func:`diverged`.
    """
    for name, tensor in state.items():
        if not bool(torch.isfinite(tensor).all()):
            raise diverged(name, step)
