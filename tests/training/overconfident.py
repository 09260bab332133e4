"""Bayesian models made without a training; one of them has something to calibrate."""

from pathlib import Path
from typing import Any, cast

import torch

from segunc.affine.convert import convert
from segunc.affine.draws import AffineLayout
from segunc.data.module import SegmentationDataModule
from segunc.networks import load_network, save_network
from segunc.posteriors.abnn import ABNNPosterior
from segunc.posteriors.model import link_network
from segunc.posteriors.saving import posterior_record, save_posterior

CONFIDENCE = 2.0
"""What the log frequencies are multiplied by, so that the best temperature is near it."""


def save_abnn(base: Path, folder: Path, alpha: float = 0.1) -> Path:
    network = load_network(base)
    report = convert(network.body)
    layout = AffineLayout(network)
    posterior = ABNNPosterior.around(layout, alpha, 2)
    record = posterior_record(posterior, report, base_sha256=network.sha256, seed=0, provenance={})
    link_network(base, folder)
    save_posterior(posterior, record, folder)
    return folder


def save_overconfident(trained: Path, data: Path, folder: Path) -> tuple[Path, Path]:
    """Model folders of a base network and an ABNN over it; the toy networks of two steps are worse
    than a guess.

    The encoder of a trained network of the toy classes stays; the last layer's bias says twice the
    log frequency of each class in the toy set, and its weights say little.
    """
    network = load_network(trained)
    frequencies = torch.tensor(SegmentationDataModule("toy", str(data)).class_frequencies())
    head = cast(Any, network.body).segmentation_head[0]
    with torch.no_grad():
        head.weight.mul_(0.1)
        head.bias.copy_(CONFIDENCE * frequencies.clamp_min(1e-3).log())
    save_network(network, folder / "base")
    return folder / "base", save_abnn(folder / "base", folder / "abnn", 0.2)
