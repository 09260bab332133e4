"""A small model of which images can be asked."""

from typing import Any

import numpy as np
import torch
from torch import nn

import segunc

CLASSES = ("road", "car", "sky")
IMAGE = np.random.default_rng(0).integers(0, 256, (32, 48, 3), np.uint8)


def small_model(**settings: Any) -> segunc.Model:
    """Return an ABNN of two convolutions; the settings are those of :func:`segunc.wrap`."""
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 3, 1)
    )
    module[1].running_var.uniform_(0.5, 2)
    base = segunc.wrap(module.eval(), CLASSES, **settings)
    return segunc.ABNN(members=2, alpha=0.2).fit(base)
