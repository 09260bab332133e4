"""The choice of the parts of ``anomaly``: the rule on numbers alone, and whole fits on networks whose
scores find pasted objects or do not.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import segunc
from segunc.baselines.part_choice import (
    MAX_FPR95_RISE,
    MAX_PASTED_FRAMES,
    MIN_FRAMES,
    PastedFrame,
    candidate_sums,
    choose_parts,
)
from segunc.core.errors import InputError
from segunc.data.images import Image
from segunc.posteriors.model import Model

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
    frames = frames_with([(0.4, 0.7, 0, 0), (0.4, 0.2, 0, 0), (0.4, 0.5, 0, 0)])
    assert chosen(frames) == ("knn",)


def test_a_sum_that_calls_more_normal_pixels_strange_is_not_chosen() -> None:
    precision = [(0.4, 0.9, 0.5, 0.4)] * 3
    rise = 0.2 + 1.5 * MAX_FPR95_RISE
    assert chosen(frames_with(precision, (0.2, rise, 0.2, 0.2))) == (ENERGY, "knn")
    assert chosen(frames_with(precision, (0.2, 0.2, 0.2, 0.2))) == (ENTROPY, "knn")


def test_too_few_different_frames_choose_knn_alone_and_say_so() -> None:
    frames = frames_with([(0.4, 0.9, 0.9, 0.9)] * MIN_FRAMES)
    alike = [frame._replace(content="same") for frame in frames]
    assert chosen(frames) == (ENTROPY, "knn")
    for few in ([], frames[:-1], alike):
        choice = choose_parts(SUMS, few)
        assert choice.chosen.parts == ("knn",)
        assert "fewer than 3, so knn is taken alone" in choice.record["reason"]
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
    """Two classes. Green pixels are surely the first one; what other pixels are is not known."""

    def __init__(self, *, informed: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.features = nn.Conv2d(3, 4, 5, padding=2)
        self.norm = nn.BatchNorm2d(4)
        self.informed = informed

    def forward(self, images: Tensor) -> Tensor:
        features = self.norm(self.features(images))
        green = images[:, 1:2] - images[:, :1]
        if not self.informed:  # no colour matters, only the texture
            green = images[:, 2:3] * (images[:, 2:3] * 997).sin()
        sure = 30 * green.relu() + 0 * features[:, :1]
        return torch.cat([sure, torch.zeros_like(sure)], 1)


def green_frames(number: int) -> list[Image]:
    random = np.random.default_rng(0)
    frames = []
    for _ in range(number):
        frame = random.integers(0, 60, (64, 96, 3), np.uint8)
        frame[..., 1] += 150
        frames.append(frame)
    return frames


def model_of(*, informed: bool, frames: list[Image], bayesian: bool = False) -> Model:
    mean = {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}
    base = segunc.wrap(GreenNetwork(informed=informed), ("grass", "other"), **mean)
    if bayesian:
        base = segunc.ABNN(alpha=0.1).fit(base, device="cpu")
    features = segunc.FeatureDensity(layers=["body.norm"])
    return features.fit(base, frames, device="cpu")


def fitted(model: Model, frames: list[Image], **settings: Any) -> tuple[Any, list[str]]:
    """The sum that a model gets, and what the user is told."""
    said: list[str] = []
    settings = {"draws": 2, **settings}
    made = segunc.Anomaly(**settings).fit(model, frames, device="cpu", say=said.append)
    return made.attachments["anomaly"], said


def test_tmp() -> None:
    frames = green_frames(4)
    for informed in (True, False):
        total, said = fitted(model_of(informed=informed, frames=frames), frames)
        print(total.choice, said)
    total, said = fitted(model_of(informed=True, frames=frames, bayesian=True), frames)
    print(total.choice, said)
