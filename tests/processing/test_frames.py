"""Frames to their maps: the ways give one another's maps, tiles too, and frames that cannot be fail alone."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given as given_all
from hypothesis import strategies as st
from torch import nn

from segunc.affine.convert import convert
from segunc.affine.draws import AffineLayout
from segunc.core.errors import InputError
from segunc.frames.source import Frame
from segunc.maps.store import Maps
from segunc.networks import NetworkDescription, SegmentationNetwork
from segunc.posteriors.abnn import ABNNPosterior
from segunc.processing import STRIDE, FrameProcess, Tiling, finish_maps, sample_means, spans
from segunc.sampling import Sampler
from segunc.sampling.engine import Engine
from segunc.sampling.sampler import Fitted
from segunc.scores import DEFAULT_SCORES
from segunc.uncertainty import Calibrator


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


@pytest.mark.parametrize("given", [{}, {"size": (32, 48)}])
def test_tiles_change_nothing(given: dict[str, Any]) -> None:
    whole = computed(FrameProcess(sampler(), DEFAULT_SCORES, **given), frames())
    tiled = FrameProcess(sampler(), DEFAULT_SCORES, tiling=Tiling((40, 40), 8), **given)
    assert_equal_maps(whole, computed(tiled, frames()))


def test_frames_that_the_network_refuses_fail_one_by_one() -> None:
    broken = sampler()
    with torch.no_grad():
        next(broken.network.parameters()).fill_(float("nan"))
    results = FrameProcess(broken, ("entropy",), tiling=Tiling((64, 64), 0))(frames(2))
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


@pytest.mark.parametrize("given", [{}, {"tiling": Tiling((64, 64), 16)}])
def test_a_frame_that_memory_does_not_suffice_for_fails_alone(
    given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where frames do not fit together; any other failure of the network ends the run."""
    process, plain, errors = FrameProcess(sampler(), ("entropy",), **given), Engine.logits, [Exception()]
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


REACH = 3
"""Pixels to each side that decide a pixel of the network below: three convolutions of 3 x 3."""


TILED_SCORES = ("msp", "entropy", "aleatoric", "epistemic", "deterministic-max-logit")


def bare_sampler() -> Sampler:
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(),
        nn.Conv2d(6, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(),
        nn.Conv2d(6, 4, 3, padding=1),
    ).eval()  # fmt: skip
    convert(network)
    posterior = ABNNPosterior.around(AffineLayout(network), 0.5)
    return Sampler(network, posterior, draws=3, scores=("aleatoric", "deterministic-max-logit"))


@given_all(st.integers(1, 400), st.integers(STRIDE, 160), st.integers(0, 120))
def test_weights_add_up_to_one_at_every_pixel(length: int, tile: int, overlap: int) -> None:
    if tile - overlap < STRIDE:
        with pytest.raises(InputError, match="an overlap of"):
            Tiling((tile, tile), overlap)
        return
    found = spans(length, tile, overlap)
    total = torch.zeros(length)
    for span in found:
        assert span.start % STRIDE == 0
        assert 0 < span.end - span.start <= tile
        assert (span.weights >= 0).all()
        total[span.start : span.end] += span.weights
    torch.testing.assert_close(total, torch.ones(length), rtol=0, atol=1e-6)
    assert (found[0].start, found[-1].end) == (0, length)
    for first, second in pairwise(found):
        assert first.end - second.start >= min(overlap, length - tile)
        quarter = (first.end - second.start) // 4
        # What lies near a tile's border counts for nothing.
        assert not first.weights[len(first.weights) - quarter :].any()
        assert not second.weights[:quarter].any()


@pytest.mark.parametrize("size", [(64, 96), (100, 130), (40, 200)])
def test_tiled_maps_are_those_of_the_whole_frame(size: tuple[int, int]) -> None:
    image = torch.rand(1, 3, *size, generator=torch.Generator().manual_seed(1))
    whole_sampler = bare_sampler()
    whole = finish_maps(sample_means(whole_sampler, image), size, TILED_SCORES)
    tiling = Tiling((48, 64), 4 * REACH)
    tiled = finish_maps(tiling.run(image, lambda tile: sample_means(whole_sampler, tile)), size, TILED_SCORES)
    assert len(list(tiling.tiles(*size))) > 2
    assert list(whole) == ["prediction", *TILED_SCORES]
    assert torch.equal(whole["prediction"], tiled["prediction"])
    for score in TILED_SCORES:
        torch.testing.assert_close(tiled[score], whole[score], rtol=1e-5, atol=2e-6)


def test_too_small_an_overlap_shows_at_the_seams() -> None:
    """Guards the test above: without an overlap the borders of the tiles must differ."""
    image = torch.rand(1, 3, 64, 96, generator=torch.Generator().manual_seed(1))
    whole_sampler = bare_sampler()
    whole = sample_means(whole_sampler, image)
    tiled = Tiling((32, 32), 0).run(image, lambda tile: sample_means(whole_sampler, tile))
    difference = (tiled["expected entropy"] - whole["expected entropy"]).abs()
    # Far above what the test above allows, whichever draws there are.
    assert difference[:, 31:33].max() > 2e-4


@pytest.mark.parametrize(
    "calibrator", [None, Calibrator((0.5,)), Calibrator((0.5, 1.0, 2.0, 1.0), (1.0, 0.0, -1.0, 0.5))], ids=str
)
def test_what_is_blended_is_calibrated_once_and_after_that(calibrator: Calibrator | None) -> None:
    """In one piece the maps are the sampler's own; of two frames the mean is calibrated, and epistemic is of the raw one."""
    image = torch.rand(1, 3, 40, 56, generator=torch.Generator().manual_seed(2))
    network = bare_sampler().network
    given = {"draws": 3, "scores": [*DEFAULT_SCORES, "variance"]}
    raw = Sampler(network, ABNNPosterior.around(AffineLayout(network), 0.5), **given)
    own = Sampler(
        network, ABNNPosterior.around(AffineLayout(network), 0.5), fitted=Fitted(calibrator=calibrator), **given
    )
    for size in ((40, 56), (61, 90)):
        expected = own(image, size=size)
        found = finish_maps(sample_means(own, image), size, own.scores, calibrator)
        assert torch.equal(found["prediction"], expected.prediction[0])
        for score in expected.scores:
            torch.testing.assert_close(found[score], expected.scores[score][0], rtol=1e-5, atol=2e-6)
    if calibrator is None:
        return
    parts = [sample_means(own, part) for part in (image, 1 - image)]
    torch.testing.assert_close(parts[0]["probabilities"], sample_means(raw, image)["probabilities"])
    mean = {name: sum(part[name] for part in parts) / 2 for name in ("probabilities", "expected entropy")}
    found, plain = (finish_maps(mean, (40, 56), DEFAULT_SCORES[:4], c) for c in (calibrator, None))
    p, entropy = calibrator(mean["probabilities"][None])
    torch.testing.assert_close(found["msp"], 1 - p[0].amax(0))
    torch.testing.assert_close(found["entropy"], entropy[0])
    assert torch.equal(found["epistemic"], plain["epistemic"])
    assert not torch.allclose(found["entropy"], plain["entropy"], atol=1e-4)
