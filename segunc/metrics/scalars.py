"""Numbers of the functional core as the tensors that torchmetrics classes return."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


def scalar_tensors(numbers: Mapping[str, float | None], device: torch.device) -> dict[str, Tensor]:
    """float64 scalars by name; NaN where the number is None, because loggers know no null."""
    return {
        name: torch.tensor(float("nan") if value is None else value, dtype=torch.float64, device=device)
        for name, value in numbers.items()
    }
