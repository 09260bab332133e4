"""Distances relative to what is usual at their place of the frame, and smoothed ones."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from scipy.ndimage import gaussian_filter
from torch import nn
from torch.nn import functional as F

from segunc import FeatureDensity, Model, load, wrap
from segunc.baselines.density import (
    PLACE_GRID,
    PLACE_PRIOR,
    FeatureDistances,
    Neighbours,
    place_levels,
    smoothed,
    usual_distances,
)
from segunc.baselines.feature_extractor import FeatureExtractor
from segunc.baselines.features import bank_content
from segunc.core.errors import InputError
from segunc.scores import FEATURE_DISTANCE
from tests.conftest import change_record

NEEDS = {FEATURE_DISTANCE}
LAYER = "body.0"


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def origins(frames: list[int]) -> torch.Tensor:
    """Return frame, row, column and class of features at different places."""
    numbers = torch.tensor(frames)[:, None]
    return torch.cat([numbers, torch.rand(len(frames), 2), torch.zeros(len(frames), 1)], 1)


def test_usual_distances_are_those_to_the_other_frames() -> None:
    features = random(40, 6)
    frames = [index % 3 for index in range(40)]
    where = origins(frames)
    usual = usual_distances(features, where)
    assert torch.equal(usual[:, :3], where[:, :3])
    for frame in range(3):
        of_frame = torch.tensor(frames) == frame
        others = Neighbours(features[~of_frame])
        expected = others(F.normalize(features[of_frame], dim=1))
        torch.testing.assert_close(usual[of_frame, 3], expected)


def test_usual_distances_of_one_frame_are_refused() -> None:
    with pytest.raises(InputError, match="it holds one alone"):
        usual_distances(random(5, 3), origins([4] * 5))


def test_a_level_is_the_mean_of_its_cell_drawn_to_that_of_all() -> None:
    corner = torch.tensor([[0.0, 0.01, 0.01, 0.9]]).repeat(30, 1)
    edge = torch.tensor([[0.0, 1.0, 1.0, 0.3]]).repeat(10, 1)
    levels = place_levels(torch.cat([corner, edge]))
    mean = (30 * 0.9 + 10 * 0.3) / 40
    assert levels.shape == (PLACE_GRID, PLACE_GRID)
    assert float(levels[0, 0]) == pytest.approx((0.9 - mean) * 30 / (30 + PLACE_PRIOR), abs=1e-6)
    assert float(levels[-1, -1]) == pytest.approx((0.3 - mean) * 10 / (10 + PLACE_PRIOR), abs=1e-6)
    assert int((levels == 0).sum()) == PLACE_GRID**2 - 2


def test_no_usual_distance_gives_levels_of_zero() -> None:
    assert torch.equal(place_levels(torch.zeros(0, 4)), torch.zeros(PLACE_GRID, PLACE_GRID))


@pytest.mark.parametrize("deviation", [0.7, 3.0, 20.0])
def test_smoothing_is_the_filter_of_scipy(deviation: float) -> None:
    maps = random(2, 15, 22)
    radius = -int(-3 * deviation // 1)
    for ours, raw in zip(smoothed(maps, deviation), maps, strict=True):
        expected = gaussian_filter(raw.numpy(), deviation, mode="nearest", radius=radius)
        torch.testing.assert_close(ours, torch.from_numpy(expected), atol=1e-5, rtol=1e-4)


def distances_of(levels: list[torch.Tensor], smoothing: float) -> torch.Tensor:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1)).eval()
    extractor = FeatureExtractor(network, ["0"])
    distances = FeatureDistances(
        extractor, [Neighbours(random(9, 4))], levels=levels, smoothing=smoothing
    )
    images = torch.rand(1, 3, 48, 36, generator=torch.Generator().manual_seed(1))
    found: torch.Tensor = distances(images, NEEDS)[FEATURE_DISTANCE]
    return found


def test_levels_are_subtracted_at_their_place() -> None:
    levels = torch.zeros(PLACE_GRID, PLACE_GRID)
    levels[: PLACE_GRID // 2] = -0.25
    change = distances_of([levels], 0) - distances_of([], 0)
    torch.testing.assert_close(change[0, :20], torch.full((20, 36), 0.25))
    assert torch.equal(change[0, 28:], torch.zeros(20, 36))


def test_a_distance_below_what_is_usual_is_zero() -> None:
    levels = torch.full((PLACE_GRID, PLACE_GRID), 5.0)
    assert torch.equal(distances_of([levels], 0), torch.zeros(1, 48, 36))


def test_distances_are_smoothed_last() -> None:
    torch.testing.assert_close(distances_of([], 2.0), smoothed(distances_of([], 0), 2.0))


@pytest.fixture(scope="module")
def base() -> Model:
    torch.manual_seed(0)
    body = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Conv2d(4, 2, 1))
    return wrap(body, ("road", "other"))


def batches(frames: int) -> list[Any]:
    images = torch.rand(frames, 3, 24, 24, generator=torch.Generator().manual_seed(0))
    images[:, :, :12] *= 0.2  # the upper half varies less
    return [(images, torch.zeros(frames, 24, 24, dtype=torch.long))]


def knn_of(model: Model, frames: Any = None) -> Any:
    return model.attachments["features"].providers(model, NEEDS, frames)[-1]


def test_a_fit_stores_what_is_usual_and_subtracts_it(base: Model, tmp_path: Path) -> None:
    plain = FeatureDensity(layers=[LAYER]).fit(base, batches(4))
    model = FeatureDensity(layers=[LAYER], by_place=True, smoothing=1.5).fit(base, batches(4))
    image = torch.rand(1, 3, 24, 24, generator=torch.Generator().manual_seed(9))
    found = knn_of(model)(image, NEEDS)[FEATURE_DISTANCE]
    raw = knn_of(plain)(image, NEEDS)[FEATURE_DISTANCE]
    (levels,) = knn_of(model).levels
    level = F.interpolate(levels[None, None], (24, 24), mode="bilinear")[0]
    torch.testing.assert_close(found, smoothed(raw - level, 1.5).clamp(0, 2))
    assert float(levels[PLACE_GRID // 2 :].mean() - levels[: PLACE_GRID // 2].mean()) > 1e-4
    frames = model.attachments["features"].frames
    left_out = knn_of(model, set(frames[1:])).levels[0]
    stored = load_of(model, tmp_path)["0.usual"]
    torch.testing.assert_close(left_out, place_levels(stored[stored[:, 0] > 0]))


def load_of(model: Model, folder: Path) -> dict[str, torch.Tensor]:
    model.save(folder / "model")
    return load_file(folder / "model" / "features.safetensors")


def test_a_loaded_model_has_the_same_distances(base: Model, tmp_path: Path) -> None:
    model = FeatureDensity(layers=[LAYER], by_place=True, smoothing=1.0).fit(base, batches(3))
    model.save(tmp_path / "model")
    image = torch.rand(1, 3, 24, 24)
    again = load(tmp_path / "model", network=base)
    record = again.attachments["features"]
    assert (record.by_place, record.smoothing) == (True, 1.0)
    expected = knn_of(model)(image, NEEDS)[FEATURE_DISTANCE]
    torch.testing.assert_close(knn_of(again)(image, NEEDS)[FEATURE_DISTANCE], expected)


def test_a_record_of_an_earlier_version_is_of_plain_distances(base: Model, tmp_path: Path) -> None:
    model = FeatureDensity(layers=[LAYER]).fit(base, batches(3))
    model.save(tmp_path / "model")
    change_record(tmp_path / "model" / "features.json", without=["by_place", "smoothing"])
    again = load(tmp_path / "model", network=base)
    assert knn_of(again).levels == []
    assert knn_of(again).smoothing == 0


def test_one_frame_cannot_say_what_is_usual(base: Model) -> None:
    with pytest.raises(InputError, match="by_place compares frames of the bank with each other"):
        FeatureDensity(layers=[LAYER], by_place=True).fit(base, batches(1))


def test_a_negative_smoothing_is_refused() -> None:
    with pytest.raises(InputError, match="smoothing"):
        FeatureDensity(smoothing=-1.0)


def test_banks_of_other_smoothing_have_other_hashes(base: Model) -> None:
    """Maps and thresholds know a bank by its hash alone."""
    plain = FeatureDensity(layers=[LAYER]).fit(base, batches(3))
    filtered = FeatureDensity(layers=[LAYER], smoothing=1.5).fit(base, batches(3))
    again = FeatureDensity(layers=[LAYER], smoothing=1.5).fit(base, batches(3))
    assert filtered.hashes["features_sha256"] != plain.hashes["features_sha256"]
    assert filtered.hashes["features_sha256"] == again.hashes["features_sha256"]


def test_banks_of_frames_at_other_sizes_have_other_hashes(base: Model) -> None:
    """Frames of the network's size give both the same features; frames of other sizes do not."""
    hashes = set()
    for resolution in ("network", "frame"):
        model = FeatureDensity(layers=[LAYER], resolution=resolution).fit(base, batches(3))
        hashes.add(model.hashes["features_sha256"])
    assert len(hashes) == 2


def test_the_settings_of_a_bank_are_one_value() -> None:
    """safetensors writes several values in an order that changes from run to run, and so would the
    hash of the bank.
    """
    content = bank_content({"a": torch.zeros(2)}, smoothing=1.5, resolution="frame")
    length = int.from_bytes(content[:8], "little")
    metadata = json.loads(content[8 : 8 + length])["__metadata__"]
    assert metadata == {"settings": '{"resolution": "frame", "smoothing": 1.5}'}
