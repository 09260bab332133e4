"""The process of the pipeline: its ways give one another's maps, and frames that cannot be fail alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from segunc.affine.convert import convert
from segunc.affine.draws import AffineLayout
from segunc.frames.sources import Frame
from segunc.maps.store import Maps
from segunc.networks import NetworkDescription, SegmentationNetwork
from segunc.networks.features import FeatureExtractor
from segunc.posteriors.abnn import ABNNPosterior
from segunc.processing.frames import FrameProcess, HostMaps, frame_seed
from segunc.processing.means import Tiling
from segunc.processing.smoothing import Smoother
from segunc.sampling import Sampler
from segunc.sampling.density import FeatureDensity, Neighbours
from segunc.sampling.engine import Engine
from segunc.sampling.frames import network_input
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
def test_tiles_and_a_short_time_constant_change_nothing(tmp_path: Path, given: dict[str, Any]) -> None:
    whole = computed(FrameProcess(sampler(), DEFAULT_SCORES, **given), frames())
    ways: list[dict[str, Any]] = [{"tiling": Tiling((40, 40), 8)}, {"smoother": Smoother(1e-6, tmp_path)}]
    for way in ways:
        assert_equal_maps(whole, computed(FrameProcess(sampler(), DEFAULT_SCORES, **given, **way), frames()))


def test_smoothing_is_at_the_size_the_network_sees(tmp_path: Path) -> None:
    whole = FrameProcess(sampler(inference_size=(20, 28)), DEFAULT_SCORES)
    smoothed = FrameProcess(sampler(inference_size=(20, 28)), DEFAULT_SCORES, smoother=Smoother(1e-6, tmp_path))
    assert_equal_maps(computed(whole, frames()), computed(smoothed, frames()))


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


def test_a_frame_that_the_network_refuses_fails_alone(tmp_path: Path) -> None:
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

    def limited(self: Engine, images: torch.Tensor, *rest: Any) -> Any:
        if images[0].max() == images[0].min():
            raise errors[-1]
        return plain(self, images, *rest)

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


def test_what_each_place_is_most_like_is_that_of_the_whole_frame_as_the_network_sees_it(tmp_path: Path) -> None:
    given = sampler()
    extractor = FeatureExtractor(given.network, ["body.0"])
    bank = torch.randn(50, 8, generator=torch.Generator().manual_seed(0))
    density, pictures = FeatureDensity(extractor, [[Neighbours(bank)]]), frames(3)
    expected = density.nearest(network_input([frame.image for frame in pictures], (20, 28)))
    ways: list[dict[str, Any]] = [{}, {"redraw": True}, {"smoother": Smoother(1.0, tmp_path)}]
    for way in ways:
        process = FrameProcess(given, DEFAULT_SCORES, size=(20, 28), nearest=density, **way)
        for index, found in enumerate(computed(process, pictures)):
            assert isinstance(found, HostMaps)
            assert found.nearest.extent == (1.0, 1.0)
            np.testing.assert_array_equal(found.nearest.rows, expected.rows[index])
            np.testing.assert_allclose(found.nearest.distances, expected.distances[index], atol=1e-6)
            assert "nearest" not in found
    (without,) = computed(FrameProcess(given, DEFAULT_SCORES), pictures[:1])
    assert isinstance(without, HostMaps)
    assert without.nearest is None
