"""Frames to their maps: frames of a batch have the maps of frames alone, and frames that cannot be fail alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from segunc.affine.convert import convert
from segunc.affine.draws import AffineLayout
from segunc.frames.source import Frame
from segunc.maps.store import Maps
from segunc.networks import NetworkDescription, SegmentationNetwork
from segunc.posteriors.abnn import ABNNPosterior
from segunc.processing import FrameProcess
from segunc.sampling import Sampler
from segunc.sampling.engine import Engine
from segunc.scores import DEFAULT_SCORES


def sampler(seed: int = 0, *, inference_size: tuple[int, int] | None = None) -> Sampler:
    torch.manual_seed(1)
    body = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 3, 1))
    description = NetworkDescription("body", "none", ("road", "car", "sky"), inference_size=inference_size)
    network = SegmentationNetwork(body, description, stride=1).eval()
    convert(network)
    return Sampler(network, ABNNPosterior.around(AffineLayout(network), 0.5), draws=4, seed=seed)


def frames(count: int = 3, size: tuple[int, int] = (40, 56)) -> list[Frame]:
    generator = np.random.default_rng(0)
    return [Frame(f"{i:06d}", i, generator.integers(0, 256, (*size, 3), np.uint8), time=i / 10) for i in range(count)]


def computed(process: FrameProcess, given: list[Frame]) -> list[Maps]:
    """The maps of frames of which none fails."""
    found = process(given)
    assert not [result for result in found if isinstance(result, Exception)]
    return found


def assert_equal_maps(first: list[Maps], second: list[Maps]) -> None:
    for one, other in zip(first, second, strict=True):
        assert set(one) == set(other) == {"prediction", *DEFAULT_SCORES}
        np.testing.assert_array_equal(one["prediction"], other["prediction"])
        for score in DEFAULT_SCORES:
            assert other[score].dtype == np.float32
            np.testing.assert_allclose(one[score], other[score], rtol=1e-5, atol=3e-6)


def test_frames_that_the_network_refuses_fail_one_by_one() -> None:
    broken = sampler()
    with torch.no_grad():
        next(broken.network.parameters()).fill_(float("nan"))
    results = FrameProcess(broken, ("entropy",))(frames(2))
    assert all(isinstance(result, Exception) and "NaN" in str(result) for result in results)


class Fragile(nn.Sequential):
    """NaN for frames that are black."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.where(x.mean((1, 2, 3), keepdim=True) < -1.5, torch.nan, super().forward(x))


def test_frames_that_share_a_batch_have_the_maps_of_frames_alone() -> None:
    given = frames(5)
    process = FrameProcess(sampler(), DEFAULT_SCORES)
    assert_equal_maps(computed(process, given), [maps for frame in given for maps in computed(process, [frame])])


def test_a_frame_at_fault_does_not_take_its_group_with_it() -> None:
    whole = sampler()
    network = whole.network
    network.body = Fragile(*network.body)
    given = frames(3)
    given[1] = Frame("black", 1, np.zeros((40, 56, 3), np.uint8))
    results = FrameProcess(Sampler(network, whole.posterior, draws=4), ("entropy",))(given)
    assert [isinstance(result, Exception) for result in results] == [False, True, False]
    (expected,) = computed(FrameProcess(sampler(), ("entropy",)), given[2:])
    np.testing.assert_array_equal(results[2]["entropy"], expected["entropy"])


def test_a_frame_that_memory_does_not_suffice_for_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where frames do not fit together; any other failure of the network ends the run."""
    process, plain, errors = FrameProcess(sampler(), ("entropy",)), Engine.logits, [Exception()]
    dark = Frame("dark", 9, np.zeros((40, 56, 3), np.uint8))
    expected = [maps for frame in frames() for maps in computed(process, [frame])]

    def limited(self: Engine, images: torch.Tensor, *rest: Any) -> Any:
        if images[0].max() == images[0].min():
            raise errors[-1]
        return plain(self, images, *rest)

    monkeypatch.setattr(Engine, "logits", limited)
    for text in ("out of memory", "DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"):
        errors.append(MemoryError() if text == "out of memory" else RuntimeError(text))
        results = process([dark, *frames()])
        assert "not enough memory for a frame of 56 x 40 pixels" in str(results[0])
        for found, frame in zip(results[1:], expected, strict=True):
            np.testing.assert_array_equal(found["entropy"], frame["entropy"])
    errors.append(ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        process([dark])
