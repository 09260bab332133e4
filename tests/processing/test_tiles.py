"""Tiles: weights that add up to one, and maps that are those of the whole frame where the network sees no farther."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from segunc.affine.convert import convert
from segunc.affine.draws import AffineLayout
from segunc.core.errors import InputError
from segunc.posteriors.abnn import ABNNPosterior
from segunc.processing import STRIDE, Means, Tiling, finish_maps, sample_means, spans
from segunc.sampling import Sampler
from segunc.sampling.sampler import Fitted
from segunc.scores import DEFAULT_SCORES
from segunc.uncertainty import Calibrator

REACH = 3
"""Pixels to each side that decide a pixel of the network below: three convolutions of 3 x 3."""


SCORES = ("msp", "entropy", "aleatoric", "epistemic", "deterministic-max-logit")


def sampler() -> Sampler:
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(),
        nn.Conv2d(6, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(),
        nn.Conv2d(6, 4, 3, padding=1),
    ).eval()  # fmt: skip
    convert(network)
    return Sampler(
        network,
        ABNNPosterior.around(AffineLayout(network), 0.5),
        draws=3,
        scores=("aleatoric", "deterministic-max-logit"),
    )


@given(st.integers(1, 400), st.integers(STRIDE, 160), st.integers(0, 120))
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
    whole_sampler = sampler()
    whole = finish_maps(sample_means(whole_sampler, image), size, SCORES)
    tiling = Tiling((48, 64), 4 * REACH)
    tiled = finish_maps(tiling.run(image, lambda tile: sample_means(whole_sampler, tile)), size, SCORES)
    assert len(list(tiling.tiles(*size))) > 2
    assert list(whole) == ["prediction", *SCORES]
    assert torch.equal(whole["prediction"], tiled["prediction"])
    for score in SCORES:
        torch.testing.assert_close(tiled[score], whole[score], rtol=1e-5, atol=2e-6)


def test_too_small_an_overlap_shows_at_the_seams() -> None:
    """Guards the test above: without an overlap the borders of the tiles must differ."""
    image = torch.rand(1, 3, 64, 96, generator=torch.Generator().manual_seed(1))
    whole_sampler = sampler()
    whole = sample_means(whole_sampler, image)
    tiled = Tiling((32, 32), 0).run(image, lambda tile: sample_means(whole_sampler, tile))
    difference = (tiled["expected entropy"] - whole["expected entropy"]).abs()
    # Far above what the test above allows, whichever draws there are.
    assert difference[:, 31:33].max() > 2e-4
    assert difference[:24, 8:24].max() < 1e-5


def test_means_give_the_samplers_own_maps() -> None:
    """At another size too: entropies are resized as maps, msp comes from resized probabilities."""
    image = torch.rand(1, 3, 40, 56, generator=torch.Generator().manual_seed(2))
    network = sampler().network
    own = Sampler(network, ABNNPosterior.around(AffineLayout(network), 0.5), draws=3)
    for size in ((40, 56), (61, 90)):
        expected = own(image, size=size)
        found = finish_maps(sample_means(own, image), size, own.scores)
        assert torch.equal(found["prediction"], expected.prediction[0])
        for score in expected.scores:
            torch.testing.assert_close(found[score], expected.scores[score][0], rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize(
    "calibrator", [Calibrator((0.5,)), Calibrator((0.5, 1.0, 2.0, 1.0), (1.0, 0.0, -1.0, 0.5))], ids=str
)
def test_what_is_blended_is_calibrated_once_and_after_that(calibrator: Calibrator) -> None:
    """In one piece the maps are the sampler's own; of two frames the mean is calibrated, and epistemic is of the raw one."""
    image = torch.rand(1, 3, 40, 56, generator=torch.Generator().manual_seed(2))
    network = sampler().network
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
    parts = [sample_means(own, part) for part in (image, 1 - image)]
    torch.testing.assert_close(parts[0]["probabilities"], sample_means(raw, image)["probabilities"])
    mean = {name: sum(part[name] for part in parts) / 2 for name in ("probabilities", "expected entropy")}
    found, plain = (finish_maps(mean, (40, 56), DEFAULT_SCORES[:4], c) for c in (calibrator, None))
    p, entropy = calibrator(mean["probabilities"][None])
    torch.testing.assert_close(found["msp"], 1 - p[0].amax(0))
    torch.testing.assert_close(found["entropy"], entropy[0])
    assert torch.equal(found["epistemic"], plain["epistemic"])
    assert not torch.allclose(found["entropy"], plain["entropy"], atol=1e-4)


def test_blended_epistemic_is_never_negative() -> None:
    generator = torch.Generator().manual_seed(3)

    def certain(tile: Tensor) -> Means:
        """One-hot probabilities without entropy, of another class for every tile: blending makes epistemic."""
        height, width = tile.shape[-2:]
        winner = torch.randint(0, 4, (1,), generator=generator)
        probabilities = torch.zeros(4, height, width)
        probabilities[winner] = 1.0
        return {"probabilities": probabilities, "expected entropy": torch.zeros(height, width)}

    maps = finish_maps(Tiling((64, 64), 32).run(torch.zeros(1, 3, 200, 200), certain), (200, 200), SCORES[:4])
    assert float(maps["epistemic"].min()) == 0.0
    assert float(maps["epistemic"].max()) > 0.3
    torch.testing.assert_close(maps["epistemic"], maps["entropy"])
