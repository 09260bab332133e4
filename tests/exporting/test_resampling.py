"""Frames are resized in a graph as ``predict`` resizes them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from segunc.core.errors import InputError
from segunc.exporting.resampling import Resampling
from segunc.sampling.sampler import network_input

AREAS = [
    ((128, 256), (64, 128)),  # 2 x 2 pixels
    ((96, 192), (32, 64)),  # 3 x 3
    ((75, 100), (25, 25)),  # 3 x 4
    ((108, 192), (52, 102)),
    ((94, 311), (88, 304)),
    ((90, 128), (44, 128)),  # the width stays
]
BILINEAR = [
    ((50, 100), (64, 128)),
    ((64, 128), (128, 256)),
    ((31, 53), (176, 320)),
    ((64, 150), (64, 128)),  # only the width shrinks
    ((60, 100), (90, 50)),
]


def levels_of(
    source: tuple[int, int], target: tuple[int, int], channels: int = 3
) -> tuple[torch.Tensor, ...]:
    """Return frames of random pixels at the target size: resized in a graph, and by predict."""
    pixels = np.random.default_rng(0).integers(0, 256, (2, *source, channels), dtype=np.uint8)
    images = torch.from_numpy(pixels).permute(0, 3, 1, 2).float()
    expected = network_input(list(pixels), target) * 255
    return Resampling(source, target)(images), expected.round()


@pytest.mark.parametrize(("source", "target"), AREAS)
def test_means_over_areas_are_those_of_predict(
    source: tuple[int, int], target: tuple[int, int]
) -> None:
    levels, expected = levels_of(source, target)
    assert torch.equal(levels, expected)


@pytest.mark.parametrize("channels", [1, 2, 4, 5, 8])
@pytest.mark.parametrize("target", [(64, 128), (52, 102)], ids=["half", "any"])
def test_means_of_other_than_three_channels_are_those_of_predict(
    target: tuple[int, int], channels: int
) -> None:
    """OpenCV rounds halves of 2 x 2 pixels up for one, three and four channels alone."""
    levels, expected = levels_of((128, 256), target, channels)
    assert torch.equal(levels, expected)


@pytest.mark.parametrize(("source", "target"), BILINEAR)
def test_bilinear_values_are_those_of_predict_but_for_few(
    source: tuple[int, int], target: tuple[int, int]
) -> None:
    levels, expected = levels_of(source, target)
    difference = (levels - expected).abs()
    assert difference.max() <= 1
    assert (difference > 0).float().mean() < 1e-4


def test_frames_that_become_lower_and_wider_are_refused() -> None:
    with pytest.raises(InputError, match="480x640 would be lower and wider at the network's"):
        Resampling((480, 640), (352, 704))
