"""A model that has something to calibrate, made without a training."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import torch

from segunc.affine.convert import convert
from segunc.affine.draws import AffineLayout
from segunc.affine.files import save_posterior
from segunc.data.module import SegmentationDataModule
from segunc.networks import load_network, save_network
from segunc.posteriors.abnn import ABNN

CONFIDENCE = 2.0
"""What the log frequencies are multiplied by, so that the best temperature is near it."""


def save_overconfident(trained: Path, data: Path, folder: Path) -> tuple[Path, Path]:
    """Model folders of a base network and an ABNN over it; the toy networks of two steps are worse than a guess.

    Their encoder stays; the last layer's bias says twice the log frequency of each class, and its weights say little.

    Args:
        trained: a trained network of the toy classes.
        data: the toy set.
        folder: gets the two model folders.
    """
    network = load_network(trained)
    frequencies = torch.tensor(SegmentationDataModule("toy", str(data)).class_frequencies())
    head = cast(Any, network.body).segmentation_head[0]
    with torch.no_grad():
        head.weight.mul_(0.1)
        head.bias.copy_(CONFIDENCE * frequencies.clamp_min(1e-3).log())
    save_network(network, folder / "base")
    report = convert(network.body)
    layout = AffineLayout(network)
    posterior = ABNN.around(layout, 0.2, 2)
    save_posterior(posterior, layout, report, folder / "base", folder / "abnn", seed=0, provenance={})
    return folder / "base", folder / "abnn"
