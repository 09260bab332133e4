"""Streaming sums against closed forms and stacked draws."""

from __future__ import annotations

import math

import pytest
import torch

from segunc.sampling.accumulate import DrawAccumulator
from segunc.sampling.tail import finish
from segunc.scores import DEFAULT_SCORES, SCORES
from segunc.uncertainty import entropy_from_logits, entropy_from_probabilities
from tests.scores.stacked import decompose_draws


def scores_of(accumulator: DrawAccumulator) -> dict[str, torch.Tensor]:
    """The scores of the draws' mean, each ``[H, W]``."""
    evidence = finish(accumulator, "reference")[1]
    return {name: SCORES[name](evidence)[0].float() for name in DEFAULT_SCORES[:4]}


def test_two_certain_draws_that_disagree_are_all_epistemic() -> None:
    accumulator = DrawAccumulator(2, (1, 1), torch.device("cpu"))
    for winner in (0, 1):
        logits = torch.full((2, 1, 1), -50.0)
        logits[winner] = 50.0
        accumulator.add(logits)
    scores = {name: float(value) for name, value in scores_of(accumulator).items()}
    assert scores == pytest.approx({"msp": 0.5, "entropy": 1.0, "aleatoric": 0.0, "epistemic": 1.0}, abs=1e-6)


def test_uniform_draws_are_all_aleatoric() -> None:
    accumulator = DrawAccumulator(19, (2, 3), torch.device("cpu"))
    for _ in range(4):
        accumulator.add(torch.zeros(19, 2, 3))
    scores = scores_of(accumulator)
    assert torch.allclose(scores["entropy"], torch.ones(2, 3), atol=1e-6)
    assert torch.allclose(scores["epistemic"], torch.zeros(2, 3), atol=1e-6)
    assert torch.allclose(scores["msp"], torch.full((2, 3), 18 / 19), atol=1e-6)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("width", [7, 3000])
def test_strips_and_layouts_do_not_matter(layout: torch.memory_format, width: int) -> None:
    # 3000 columns of 11 classes make strips of a few rows.
    logits = torch.randn(5, 11, 23, width, generator=torch.Generator().manual_seed(0)) * 4
    accumulator = DrawAccumulator(11, (23, width), torch.device("cpu"))
    for draw in logits.contiguous(memory_format=layout):
        accumulator.add(draw)
    expected = decompose_draws(logits.softmax(1).unsqueeze(1))
    found = scores_of(accumulator)
    for name in ("entropy", "aleatoric", "epistemic"):
        torch.testing.assert_close(found[name], getattr(expected, name)[0], atol=3e-6, rtol=1e-4)


def test_input_is_not_changed_and_bfloat16_is_widened() -> None:
    logits = torch.randn(4, 5, 6).bfloat16()
    before = logits.clone()
    accumulator = DrawAccumulator(4, (5, 6), torch.device("cpu"))
    accumulator.add(logits)
    assert torch.equal(logits, before)
    torch.testing.assert_close(accumulator.entropy.float(), entropy_from_logits(before.float(), 0))


def test_entropy_of_huge_logits_is_finite() -> None:
    logits = torch.tensor([1e4, -1e4, 0.0]).view(1, 3, 1)
    assert float(entropy_from_logits(logits)) == 0.0
    assert float(entropy_from_logits(torch.zeros(1, 3, 1) + 1e4)) == pytest.approx(math.log(3))
    p = torch.tensor([0.25, 0.25, 0.5]).view(1, 3, 1)
    assert float(entropy_from_probabilities(p)) == pytest.approx(1.5 * math.log(2))
