"""The choice of the parts of ``anomaly``: the rule on numbers alone, and whole fits on networks
whose scores find pasted objects or do not.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import segunc
from segunc.baselines.anomaly import ScoreSum
from segunc.baselines.part_choice import (
    MAX_FPR95_RISE,
    MIN_FRAMES,
    PastedFrame,
    candidate_sums,
    choose_parts,
)
from segunc.core.errors import InputError
from segunc.core.progress import ConsoleProgress
from segunc.data.images import Image
from segunc.posteriors.model import Model
from segunc.training.fit_data import content_name
from tests.conftest import change_record

ENTROPY = "deterministic-entropy"
ENERGY = "deterministic-energy"
SUMS = candidate_sums([ENTROPY, ENERGY, "entropy"])


def frames_with(
    precision: Sequence[Sequence[float]], fpr95: Sequence[float] = (0.2, 0.2, 0.2, 0.2)
) -> list[PastedFrame]:
    """Frames with the average precision of each candidate."""
    frames = []
    for number, values in enumerate(precision):
        frames.append(PastedFrame(str(number), str(number), 100, tuple(values), tuple(fpr95)))
    return frames


def chosen(frames: Sequence[PastedFrame]) -> tuple[str, ...]:
    return choose_parts(SUMS, frames).chosen.parts


def test_knn_counts_twice_unless_weights_are_given() -> None:
    assert [candidate.weights for candidate in SUMS] == [(1.0,), *[(1.0, 2.0)] * 3]
    assert candidate_sums([ENTROPY], [3.0, 1.0])[1].weights == (3.0, 1.0)


@pytest.mark.parametrize("weights", [[], [1.0], [1.0, 2.0, 3.0]])
def test_weights_of_more_or_fewer_than_two_parts_are_refused(weights: list[float]) -> None:
    with pytest.raises(InputError, match=f"has {len(weights)} numbers, but anomaly.parts auto"):
        candidate_sums([ENTROPY], weights)


def test_the_sum_with_the_highest_mean_average_precision_is_chosen() -> None:
    frames = frames_with([(0.4, 0.5, 0.6, 0.5), (0.3, 0.4, 0.5, 0.4), (0.5, 0.6, 0.7, 0.6)])
    assert chosen(frames) == (ENERGY, "knn")


def test_a_draw_goes_to_the_cheaper_sum() -> None:
    frames = frames_with([(0.4, 0.5, 0.5, 0.5), (0.3, 0.4, 0.4, 0.4), (0.5, 0.6, 0.6, 0.6)])
    assert chosen(frames) == (ENTROPY, "knn")


def test_a_gain_within_the_standard_error_is_no_gain() -> None:
    frames = frames_with([(0.7, 0.4, 0, 0), (0.2, 0.4, 0, 0), (0.5, 0.4, 0, 0)])
    assert chosen(frames) == (ENTROPY, "knn")


def test_knn_alone_is_chosen_where_the_entropy_takes_from_it() -> None:
    frames = frames_with([(0.7, 0.4, 0, 0), (0.6, 0.4, 0, 0), (0.8, 0.4, 0, 0)])
    assert chosen(frames) == ("knn",)


def test_without_the_entropy_the_choice_begins_with_knn_alone() -> None:
    sums = candidate_sums([ENERGY])
    for few in ([], [PastedFrame("0", "0", 100, (0.4, 0.9), (0.2, 0.2))]):
        assert choose_parts(sums, few).chosen.parts == ("knn",)


def test_a_sum_that_calls_more_normal_pixels_strange_is_not_chosen() -> None:
    precision = [(0.4, 0.5, 0.9, 0.4)] * 3
    rise = 0.2 + 1.5 * MAX_FPR95_RISE
    assert chosen(frames_with(precision, (0.2, 0.2, rise, 0.2))) == (ENTROPY, "knn")
    assert chosen(frames_with(precision, (0.2, 0.2, 0.2, 0.2))) == (ENERGY, "knn")


def test_too_few_different_frames_keep_the_first_sum_and_say_so() -> None:
    frames = frames_with([(0.4, 0.5, 0.9, 0.9)] * MIN_FRAMES)
    alike = [frame._replace(content="same") for frame in frames]
    assert chosen(frames) == (ENERGY, "knn")
    for few in ([], frames[:-1], alike):
        choice = choose_parts(SUMS, few)
        assert choice.chosen.parts == (ENTROPY, "knn")
        assert f"fewer than 3, so {ENTROPY} + knn is taken" in choice.record["reason"]
        assert choice.record["reason"] in choice.line


def test_the_record_holds_every_candidate_and_the_line_its_precision() -> None:
    frames = frames_with([(0.4, 0.5, 0.6, 0.1), (0.3, 0.4, 0.5, 0.2), (0.5, 0.6, 0.7, 0.3)])
    choice = choose_parts(SUMS, frames, dropped=["msp"])
    candidates = choice.record["candidates"]
    assert [entry["average_precision"] for entry in candidates] == [0.4, 0.5, 0.6, 0.2]
    assert [entry["fpr95"] for entry in candidates] == [0.2] * 4
    assert candidates[choice.record["chosen"]]["parts"] == [ENERGY, "knn"]
    assert choice.record["frames"] == ["0", "1", "2"]
    assert choice.record["pasted_pixels"] == 300
    assert choice.record["dropped"] == ["msp"]
    assert "deterministic-energy + knn is chosen on 3 frames" in choice.line
    assert "knn 0.400, deterministic-entropy + knn 0.500" in choice.line


class GreenNetwork(nn.Module):
    """Two classes, and green frames. ``informed`` says which score finds what is not green:
    the entropy, the energy alone (both logits are alike) or none, as both take green for unknown.
    """

    def __init__(self, informed: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.features = nn.Conv2d(3, 4, 5, padding=2)
        self.norm = nn.BatchNorm2d(4)
        self.informed = informed

    def forward(self, images: Tensor) -> Tensor:
        features = self.norm(self.features(images))
        green = 30 * (images[:, 1:2] - images[:, :1]).relu()
        not_green = 30 * (0.4 - (images[:, 1:2] - images[:, :1])).relu()
        first = {"entropy": green, "energy": green, "nothing": not_green}[self.informed]
        second = first if self.informed == "energy" else torch.zeros_like(first)
        return torch.cat([first, second], 1) + 0 * features[:, :1]


def green_frames(number: int) -> list[Image]:
    random = np.random.default_rng(0)
    frames = []
    for _ in range(number):
        frame = random.integers(0, 60, (64, 96, 3), np.uint8)
        frame[..., 1] += 150
        frames.append(frame)
    return frames


FRAMES = green_frames(4)


def model_of(informed: str, *, bayesian: bool = False) -> Model:
    """A model with a bank of its own features of all frames."""
    normalisation = {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}
    base = segunc.wrap(GreenNetwork(informed), ("grass", "other"), **normalisation)
    if bayesian:
        base = segunc.ABNN(alpha=0.1).fit(base, device="cpu")
    return segunc.FeatureDensity(layers=["body.norm"]).fit(base, FRAMES, device="cpu")


@pytest.fixture(scope="module")
def of_entropy() -> Model:
    return model_of("entropy")


def fitted(model: Model, frames: Sequence[Image] = FRAMES, **settings: Any) -> Model:
    return segunc.Anomaly(**settings).fit(model, frames, device="cpu")


@pytest.mark.parametrize(
    ("informed", "parts"),
    [
        ("entropy", (ENTROPY, "knn")),
        ("energy", (ENERGY, "knn")),
        ("nothing", ("knn",)),
    ],
)
def test_a_network_gets_the_score_that_finds_pasted_objects(
    informed: str, parts: tuple[str, ...]
) -> None:
    made = fitted(model_of(informed))
    total = made.attachments["anomaly"]
    assert total.parts == parts
    assert total.weights == ((1.0, 2.0) if len(parts) == 2 else (1.0,))
    assert total.surprise.levels[-1] > total.surprise.levels[0]
    assert made(FRAMES[0], scores=["anomaly"]).anomaly.shape == (64, 96)


def test_a_score_that_is_the_same_everywhere_is_no_candidate() -> None:
    choice = fitted(model_of("energy")).attachments["anomaly"].choice
    assert choice["dropped"] == [ENTROPY]
    assert [entry["parts"] for entry in choice["candidates"]] == [["knn"], [ENERGY, "knn"]]


def test_the_entropy_of_draws_is_a_candidate_of_bayesian_models() -> None:
    made = fitted(model_of("entropy", bayesian=True), draws=2)
    total = made.attachments["anomaly"]
    last = total.choice["candidates"][-1]
    assert last["parts"] == ["entropy", "knn"]
    assert last["average_precision"] > 0.9
    assert total.parts == (ENTROPY, "knn")  # as good, and cheaper


def test_the_user_is_told_of_the_choice(of_entropy: Model) -> None:
    said: list[str] = []
    segunc.Anomaly().fit(of_entropy, FRAMES, device="cpu", say=said.append)
    (line,) = [line for line in said if line.startswith("anomaly.parts auto")]
    assert "deterministic-entropy + knn is chosen on 4 frames with pasted objects" in line


def test_the_frames_of_all_folds_are_one_progress(
    of_entropy: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[tuple[int, int | None]] = []

    def count(self: ConsoleProgress, done: int, total: int | None) -> None:
        counts.append((done, total))

    monkeypatch.setattr(ConsoleProgress, "count", count)
    fitted(of_entropy)
    passes = [(done, len(FRAMES)) for done in range(1, len(FRAMES) + 1)]
    assert counts[-2 * len(FRAMES) :] == 2 * passes


def test_two_frames_are_too_few_to_choose(of_entropy: Model) -> None:
    total = fitted(of_entropy, FRAMES[:2]).attachments["anomaly"]
    assert total.parts == (ENTROPY, "knn")
    assert total.choice["reason"].startswith("2 different frames with pasted objects are fewer")


def test_equal_frames_are_one(of_entropy: Model) -> None:
    batches = [(torch.zeros(4, 3, 64, 96), torch.zeros(4, 64, 96, dtype=torch.long))]
    batches[0][0][:, 1] = torch.rand(64, 96, generator=torch.Generator().manual_seed(0))
    total = fitted(of_entropy, batches).attachments["anomaly"]  # type: ignore[arg-type]
    assert total.parts == (ENTROPY, "knn")
    # A frame is no source of its own objects, so nothing is pasted.
    assert total.choice["reason"].startswith("0 different frames")


def test_named_parts_have_no_record_of_a_choice(of_entropy: Model) -> None:
    assert fitted(of_entropy, parts=[ENERGY, "knn"]).attachments["anomaly"].choice is None


def test_weights_are_those_of_the_score_and_of_knn(of_entropy: Model) -> None:
    total = fitted(of_entropy, weights=[3.0, 1.0]).attachments["anomaly"]
    assert total.weights == (3.0, 1.0)
    with pytest.raises(InputError, match="has 1 numbers, but"):
        fitted(of_entropy, weights=[3.0])


@pytest.mark.parametrize("parts", ["knn", "Auto", ""])
def test_a_text_other_than_auto_is_refused(parts: str) -> None:
    with pytest.raises(InputError, match="is neither a list of scores nor auto") as refused:
        segunc.Anomaly(parts=parts)
    assert refused.value.hint == f"write a list, as in [{parts}]"


def test_a_choice_comes_back_from_its_folder(of_entropy: Model, tmp_path: Path) -> None:
    made = fitted(of_entropy)
    made.save(tmp_path)
    again = ScoreSum.load(tmp_path, made)
    assert again == made.attachments["anomaly"]
    change_record(tmp_path / "anomaly.json", without=["choice"])  # as of earlier versions
    assert ScoreSum.load(tmp_path, made).choice is None


def test_pixels_outside_of_the_drivable_hull_do_not_count(of_entropy: Model) -> None:
    whole = fitted(of_entropy).attachments["anomaly"].choice
    grass = fitted(of_entropy, drivable=["grass"]).attachments["anomaly"].choice
    assert 0 < grass["pasted_pixels"] <= whole["pasted_pixels"]


def test_objects_are_pasted_into_evenly_spaced_frames(
    of_entropy: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("segunc.baselines.part_choice.MAX_PASTED_FRAMES", 3)
    choice = fitted(of_entropy).attachments["anomaly"].choice
    assert choice["frames"] == [content_name(FRAMES[index]) for index in (0, 1, 3)]


def test_a_choice_depends_on_the_frames_alone(of_entropy: Model) -> None:
    first = fitted(of_entropy).attachments["anomaly"].choice
    assert fitted(of_entropy).attachments["anomaly"].choice == first
