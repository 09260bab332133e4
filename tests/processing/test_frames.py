"""The process of the pipeline: its ways give one another's maps, and frames that cannot be fail alone."""

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
from segunc.processing import FrameProcess, Tiling, frame_seed
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


@pytest.mark.parametrize("given", [{}, {"size": (32, 48)}, {"redraw": True}])
def test_tiles_change_nothing(given: dict[str, Any]) -> None:
    whole = computed(FrameProcess(sampler(), DEFAULT_SCORES, **given), frames())
    tiled = FrameProcess(sampler(), DEFAULT_SCORES, tiling=Tiling((40, 40), 8), **given)
    assert_equal_maps(whole, computed(tiled, frames()))


def test_redrawn_frames_have_their_own_draws_in_any_company() -> None:
    given = frames()
    same = [Frame(name, 0, given[0].image) for name in ("000000", "000001")]

    def epistemic(seed: int, some: list[Frame], redraw: bool = False) -> list[np.ndarray]:
        process = FrameProcess(sampler(seed), ("epistemic",), redraw=redraw)
        return [maps["epistemic"] for maps in computed(process, some)]

    first, second = epistemic(7, same, redraw=True)
    assert np.abs(first - second).max() > 1e-3
    np.testing.assert_array_equal(*epistemic(7, same))
    np.testing.assert_array_equal(epistemic(7, same[1:], redraw=True), [second])
    np.testing.assert_array_equal(epistemic(frame_seed(7, "000001"), same[1:]), [second])


def test_seeds_of_frames_differ_and_stay() -> None:
    seeds = {frame_seed(seed, f"{number:06d}") for seed in range(3) for number in range(500)}
    assert len(seeds) == 1500
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert frame_seed(0, "000000") == 6029157275481174940


def test_a_frame_that_the_network_refuses_fails_alone() -> None:
    broken = sampler()
    with torch.no_grad():
        next(broken.network.parameters()).fill_(float("nan"))
    for process in (
        FrameProcess(broken, ("entropy",), tiling=Tiling((64, 64), 0)),
        FrameProcess(broken, ("entropy",), redraw=True),
    ):
        results = process(frames(2))
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


def test_frames_that_do_not_fit_into_memory_together_are_computed_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    process = FrameProcess(sampler(), ("entropy",))
    expected = [maps for frame in frames() for maps in computed(process, [frame])]
    plain = Sampler.__call__

    def limited(self: Sampler, images: torch.Tensor, **settings: Any) -> Any:
        if len(images) > 1:
            raise torch.OutOfMemoryError("too much")
        return plain(self, images, **settings)

    monkeypatch.setattr(Sampler, "__call__", limited)
    for found, one in zip(computed(process, frames()), expected, strict=True):
        np.testing.assert_array_equal(found["entropy"], one["entropy"])


@pytest.mark.parametrize("given", [{}, {"tiling": Tiling((64, 64), 16)}])
def test_a_frame_that_memory_does_not_suffice_for_fails_alone(
    given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a lack of a CPU's memory, too; any other failure of the network ends the run."""
    process, plain, errors = FrameProcess(sampler(), ("entropy",), **given), Engine.logits, list[Exception]()
    dark = Frame("dark", 9, np.zeros((40, 56, 3), np.uint8))
    groups = [frames()] if given else [[frame] for frame in frames()]  # the last bit depends on the size of a batch
    expected = [maps for group in groups for maps in computed(process, group)]

    def limited(self: Engine, images: torch.Tensor, *rest: Any, **watched: Any) -> Any:
        if images[0].max() == images[0].min():
            raise errors[-1]
        return plain(self, images, *rest, **watched)

    monkeypatch.setattr(Engine, "logits", limited)
    for error in (
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
    ):
        errors.append(error)
        results = [*process([dark]), *process(frames())] if given else process([dark, *frames()])
        assert "not enough memory for a frame of 56 x 40 pixels" in str(results[0])
        for found, one in zip(results[1:], expected, strict=True):
            np.testing.assert_array_equal(found["entropy"], one["entropy"])
    errors.append(ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        process([dark])


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_maps_of_a_gpu_are_whole_when_they_are_looked_at() -> None:
    on_gpu = sampler()
    on_gpu.network.cuda()
    on_gpu = Sampler(on_gpu.network, on_gpu.posterior, draws=4)
    process = FrameProcess(on_gpu, ("entropy",))
    given = frames(4, (400, 560))
    results = [maps for frame in given for maps in computed(process, [frame])]
    for found, expected in zip(results, computed(FrameProcess(sampler(), ("entropy",)), given), strict=True):
        np.testing.assert_allclose(found["entropy"], expected["entropy"], atol=1e-4)
