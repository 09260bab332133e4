"""A small sampler, and frames for it."""

import numpy as np
import torch
from torch import nn

from segunc.affine.convert import convert
from segunc.affine.draws import AffineLayout
from segunc.frames.source import Frame
from segunc.networks import NetworkDescription, SegmentationNetwork
from segunc.posteriors.abnn import ABNNPosterior
from segunc.sampling import Sampler

SMALL_DECODER = {"decoder_pyramid_channels": 32, "decoder_segmentation_channels": 32}
"""Options of a small FPN."""


def small_sampler(seed: int = 0, *, inference_size: tuple[int, int] | None = None) -> Sampler:
    """Return the sampler of two convolutions with four noisy draws."""
    torch.manual_seed(1)
    body = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 3, 1)
    )
    description = NetworkDescription(
        "body", "none", ("road", "car", "sky"), inference_size=inference_size
    )
    network = SegmentationNetwork(body, description, stride=1).eval()
    convert(network)
    posterior = ABNNPosterior.around(AffineLayout(network), 0.5)
    return Sampler(network, posterior, draws=4, seed=seed)


def random_frames(count: int = 3, size: tuple[int, int] = (40, 56)) -> list[Frame]:
    """Return frames of random colours, a tenth of a second apart."""
    generator = np.random.default_rng(0)
    frames = []
    for index in range(count):
        image = generator.integers(0, 256, (*size, 3), np.uint8)
        frames.append(Frame(f"{index:06d}", index, image, time=index / 10))
    return frames
