"""One score of several: its scales, and the choice of its parts by pasted anomalies."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score
from torch import Tensor

from segunc import build_network
from segunc.core.errors import InputError
from segunc.networks.description import NetworkDescription
from segunc.posteriors.anomaly import (
    AnomalyConfig,
    ScoreSum,
    Standard,
    Surprise,
    candidates,
    choose,
    weighted_sum,
)
from segunc.posteriors.pasted import Pixels, gather_pixels, mean_precision
from segunc.scores import SUM
from segunc.training.config import SelectConfig
from segunc.training.selection import SelectionFrame
from tests.records import change_record


def known(count: int = 200_000, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).exponential(size=count)).float()


def test_surprise_is_the_share_of_known_pixels_that_score_as_high() -> None:
    values = known()
    surprise = Surprise.of(values)
    for share in (1.0, 0.5, 0.1, 0.03, 0.001):
        at = torch.quantile(values[:100_000].double(), 1 - share).float()
        measured = -math.log10(float((values >= at).float().mean()))
        assert float(surprise(at[None])) == pytest.approx(measured, abs=0.05)
    # exp(-x) of the pixels of an exponential law exceed x, and its tail goes on as it must where none was seen.
    far = torch.tensor([9.0, 14.0, 30.0])
    np.testing.assert_allclose(surprise(far).numpy(), far.numpy() / math.log(10), rtol=0.1)


def test_surprise_keeps_the_order_and_takes_equal_levels() -> None:
    surprise = Surprise.of(torch.cat([torch.zeros(90_000), known(10_000)]))  # nine in ten are one value
    assert len(set(surprise.levels)) < len(surprise.levels)
    values = torch.linspace(-1, 20, 2001).reshape(3, 23, 29)
    found = surprise(values)
    assert found.shape == values.shape
    assert torch.isfinite(found).all()
    assert float(found.min()) >= 0
    assert (found.flatten().diff() >= 0).all()
    assert (found[values > 1e-3].diff() > 0).all()
    assert float(found[values <= 0].max()) == 0  # all pixels reach the value that nine in ten have


def test_a_largest_value_that_many_share_has_a_tail_all_the_same() -> None:
    surprise = Surprise.of(known(5000).clamp(max=2.0))
    assert surprise.excess > 0
    found = surprise(torch.tensor([1.0, 2.0, 3.0]))
    assert float(found[1]) == pytest.approx(
        2 / math.log(10), abs=0.13
    )  # the share that reaches it: a step below is within 1 / 8
    assert float(found[2]) > 3.0 > float(found[1]) > float(found[0])


def test_standard_is_in_standard_deviations() -> None:
    values = known(1000)
    scaled = Standard.of(values)(values)
    assert float(scaled.mean()) == pytest.approx(0, abs=1e-5)
    assert float(scaled.std(correction=0)) == pytest.approx(1, rel=1e-5)


def planted(parts: list[Tensor], size: Tensor, clean: Tensor | None = None) -> Pixels:
    return Pixels(torch.stack(parts), size, torch.ones(len(size), dtype=torch.bool) if clean is None else clean)


def scene(count: int = 30_000, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Noise of pixels, and which of them are objects: a tenth, of three ranges of sizes."""
    generator = torch.Generator().manual_seed(seed)
    size = torch.zeros(count, dtype=torch.int64)
    size[: count // 10] = torch.randint(1, 4, (count // 10,), generator=generator)
    return torch.randn(4, count, generator=generator), size


def test_a_planted_signal_is_found_and_noise_is_left_out() -> None:
    noise, size = scene()
    signal = noise[0] + 2 * (size > 0)
    chosen, found = choose(planted([noise[1], signal, noise[2]], size), ["a", "b", "c"], AnomalyConfig(parts=["a"]))
    assert chosen.places == (1,)
    assert len(found) == sum(1 for _ in candidates(3, AnomalyConfig()))
    assert found[chosen.words(["a", "b", "c"])] == max(found.values())


def test_two_signals_are_added_and_the_stronger_weighs_more() -> None:
    noise, size = scene()
    weak, strong = noise[0] + 1 * (size > 0), noise[1] + 2 * (size > 0)
    chosen, _ = choose(
        planted([weak, noise[2], strong], size), ["a", "b", "c"], AnomalyConfig(normalisation="standard")
    )
    # The best linear combination of Gaussians of equal variance weighs by the distance of the means.
    assert (chosen.places, chosen.weights) == ((0, 2), (1.0, 2.0))


def test_small_objects_count_as_much_as_large_ones() -> None:
    noise, size = scene()
    size[: len(size) // 10] = 3
    size[:50] = 1
    large, all_of_them = noise[0] + 3 * (size == 3), noise[1] + 2.5 * (size > 0)
    settings = AnomalyConfig(normalisation="standard")
    pixels = planted([large, all_of_them], size)
    pooled = [average_precision_score((size > 0).numpy(), part.numpy()) for part in pixels.values]
    assert pooled[0] > pooled[1]  # a pool of pixels would choose the score that no small object moves
    alone = [mean_precision(part, size) for part in pixels.values]
    assert alone[1] > alone[0]
    expected = []
    for other in (1, 3):
        kept = size != 4 - other
        weights = torch.where(size[kept] > 0, 0.1 / 0.9 * int((size == 0).sum()) / int((size == other).sum()), 1.0)
        truth, values = (size[kept] > 0).numpy(), all_of_them[kept].half().numpy()
        expected.append(average_precision_score(truth, values, sample_weight=weights.numpy()))
    assert alone[1] == pytest.approx(sum(expected) / 2, rel=1e-3)
    assert 1 in choose(pixels, ["large", "all"], settings)[0].places


def test_scales_are_those_of_clean_known_pixels() -> None:
    noise, size = scene()
    clean = torch.arange(len(size)) % 2 == 0
    part = torch.where(clean, noise[0], 100 + noise[0]) + 2 * (size > 0)
    pixels = planted([part], size, clean)
    of_known = pixels.values[0, clean & (size == 0)]
    _, found = choose(pixels, ["a"], AnomalyConfig(normalisation="standard"))
    assert found["a, standard"] == pytest.approx(mean_precision(Standard.of(of_known)(part), size), abs=1e-12)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (AnomalyConfig(weights=[2, 1]), ["2 a + b, standard", "2 a + b, rank"]),
        (AnomalyConfig(normalisation="rank"), ["a, rank", "b, rank", "a + b, rank", "a + 2 b, rank", "2 a + b, rank"]),
    ],
)
def test_the_candidates(settings: AnomalyConfig, words: list[str]) -> None:
    assert [candidate.words("ab") for candidate in candidates(2, settings)] == words


class OneFold:
    """A data set of frames 0 and 1, whose sequences are their names, the first of them held out by name or by nobody."""

    size = None

    def __init__(self, validation: str) -> None:
        self.validation = validation

    def folds(self) -> list[OneFold]:
        return [self]

    def dataset(self, split: str) -> Any:
        return SimpleNamespace(samples=[SimpleNamespace(name="1")])


def gathered(monkeypatch: pytest.MonkeyPatch, label: int, anomaly: int, validation: str = "val") -> Any:
    """What of_fold was given; of one frame whose left half is labelled so, its right half an anomaly or not."""
    image, mask = np.zeros((32, 64, 3), np.uint8), np.full((32, 64), label, np.uint8)
    mask[:, 32:] = anomaly
    frame = SelectionFrame("0", image, mask, mask, None)
    monkeypatch.setattr("segunc.posteriors.pasted.selection_frames", lambda fold, select: iter([frame]))
    network = build_network(NetworkDescription("FPN", "mobilenet_v2", ("road", "car")))
    model: Any = SimpleNamespace(network=network)
    seen: list[Any] = []

    def of_fold(trained_on: Any) -> Any:
        seen.append(trained_on)
        return lambda image: image[:, 0]

    gather_pixels(model, OneFold(validation), SelectConfig(anomalies="cut-paste"), 0, of_fold)
    return seen[0]


def test_a_sequence_that_is_held_out_by_name_does_not_count_either(monkeypatch: pytest.MonkeyPatch) -> None:
    assert gathered(monkeypatch, 0, 1) is None
    assert gathered(monkeypatch, 0, 1, "leave-sequence-out") == {"1"}


def test_frames_without_what_selection_needs_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="1 frames in which nothing that was pasted"):
        gathered(monkeypatch, 0, 0)
    with pytest.raises(InputError, match="without a labelled pixel of a known class"):
        gathered(monkeypatch, 255, 1)


def model(temperature: float = 1.0, bank: str | None = "bank") -> Any:
    hashes = {"base_sha256": "base", "posterior_sha256": None, "calibrator_sha256": None}
    return SimpleNamespace(hashes=hashes | {"temperature": temperature, "features_sha256": bank})


def total() -> ScoreSum:
    values = torch.stack([known(seed=0), known(seed=1)])
    scales = (Standard.of(values[0]), Surprise.of(values[1]))
    surprise = Surprise.of(weighted_sum(values, (1.0, 2.0), scales))
    parts = ("deterministic-energy", "knn")
    return ScoreSum(parts, (1.0, 2.0), scales, surprise, {}, {"dataset": "toy"}, 3, 1, 1.0, "base", None, "bank")


def test_a_sum_comes_back_and_tells_a_surprise(tmp_path: Path) -> None:
    written = total()
    written.write(tmp_path)
    again = ScoreSum.load(tmp_path, model())
    assert again == written
    maps = {"deterministic-energy": known(600, 5).view(1, 20, 30), "knn": known(600, 6).view(1, 20, 30)}
    terms = [
        (maps["deterministic-energy"] - written.scales[0].mean) / written.scales[0].std,
        2 * written.scales[1](maps["knn"]),
    ]
    torch.testing.assert_close(again(maps), {SUM: written.surprise(terms[0] + terms[1])})
    with pytest.raises(InputError, match=r"fitted on a model of temperature 1\.0, the one here has 1\.5"):
        ScoreSum.load(tmp_path, model(1.5))
    with pytest.raises(InputError, match="feature bank with the hash bank, the one here has None"):
        ScoreSum.load(tmp_path, model(bank=None))


@pytest.mark.parametrize("parts", [["knn", "nothing"], ["anomaly", "knn"]])
def test_a_sum_of_what_is_no_part_is_one_line(tmp_path: Path, parts: list[str]) -> None:
    total().write(tmp_path)
    change_record(tmp_path / ScoreSum.file, parts=parts)
    with pytest.raises(InputError, match=parts[-2] if parts[0] == "anomaly" else "nothing"):
        ScoreSum.load(tmp_path, model())
