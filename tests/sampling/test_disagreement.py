"""Streaming sums of disagreement against the pure functions of stacked draws, in float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from segunc.sampling.ending import Upsampling
from segunc.sampling.tail import DisagreementSums, DrawAccumulator
from segunc.scores import MEANS, SCORES
from tests.scores.stacked import decompose_draws, draw_variance, expected_pairwise_kl, variation_ratio

SAMPLED_SCORES = ("msp", "entropy", "aleatoric", "epistemic")
PURE = {"variance": draw_variance, "variation-ratio": variation_ratio, "expected-pairwise-kl": expected_pairwise_kl}


def streamed(logits: Tensor, names: tuple[str, ...] = tuple(PURE), temperature: float = 1.0) -> dict[str, Tensor]:
    """The scores of the draws' mean and those named of draws ``[S, C, H, W]``, added one by one."""
    size = (logits.shape[2], logits.shape[3])
    needs = {need for name in names for need in SCORES[name].needs}
    accumulator = DrawAccumulator(logits.shape[1], size, logits.device, needs=needs, temperature=temperature)
    accumulator.add(logits, Upsampling.none(size))
    evidence = accumulator.finish()[1]
    assert set(evidence) == MEANS | needs
    return {name: SCORES[name](evidence)[0] for name in (*SAMPLED_SCORES, *names)}


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 9), st.integers(1, 12), st.floats(0.01, 12), st.floats(0, 4), st.integers(0, 10_000))
def test_streamed_equals_stacked(draws: int, classes: int, scale: float, spread: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    shared = torch.randn(classes, 3, 4, generator=generator) * scale
    logits = shared + torch.randn(draws, classes, 3, 4, generator=generator) * spread
    found = streamed(logits)
    stacked = logits.double().softmax(1)[:, None]
    for name, pure in PURE.items():
        expected = pure(stacked)[0].float()
        torch.testing.assert_close(found[name], expected, rtol=1e-4, atol=1e-7 * max(1.0, scale + spread), msg=name)


def test_agreement_to_six_digits_still_has_digits() -> None:
    """Where draws nearly agree a difference of two sums in float32 would be noise (1e-8 against a variance of 1e-12)."""
    generator = torch.Generator().manual_seed(0)
    shared = torch.randn(19, 20, 30, generator=generator).double() * 3
    # Rounded to float32 before both ways, so that they see the same logits.
    logits = (shared + 1e-4 * torch.randn(8, 19, 20, 30, generator=generator)).float()
    found = streamed(logits)
    stacked = logits.double().softmax(1)[:, None]
    for name in ("variance", "expected-pairwise-kl"):
        expected = PURE[name](stacked)[0].float()
        assert 1e-11 < float(expected.median()) < 1e-8
        torch.testing.assert_close(found[name], expected, rtol=0.02, atol=1e-12)


def test_certain_draws_that_exclude_each_other_have_their_finite_divergence() -> None:
    """Probabilities of exp(-300) underflow in float32; their logarithms are never taken."""
    logits = torch.tensor([[150.0, -150.0], [-150.0, 150.0]]).view(2, 2, 1, 1)
    found = streamed(logits)
    assert float(found["expected-pairwise-kl"]) == pytest.approx(300)
    assert float(found["variance"]) == pytest.approx(0.25)
    assert float(found["variation-ratio"]) == 0.5


def test_a_constant_added_to_a_draw_changes_nothing() -> None:
    logits = torch.randn(5, 7, 2, 3, generator=torch.Generator().manual_seed(1)) * 3
    shifted = logits + torch.tensor([0.0, 30.0, -7.0, 2.0, 100.0]).view(-1, 1, 1, 1)
    before, after = streamed(logits), streamed(shifted)
    for name in PURE:
        torch.testing.assert_close(after[name], before[name], rtol=1e-4, atol=1e-5)


def test_of_equal_classes_the_first_has_the_vote() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0], [0.0, 3.0, 3.0], [0.0, 0.0, 3.0]]).view(3, 3, 1, 1)
    assert float(streamed(logits)["variation-ratio"]) == pytest.approx(1 / 3)
    assert float(variation_ratio(logits.softmax(1)[:, None])) == pytest.approx(1 / 3)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("width", [7, 3000])
def test_strips_of_rows_and_layouts_do_not_matter(layout: torch.memory_format, width: int) -> None:
    # 3000 columns of 11 classes make strips of a few rows.
    logits = torch.randn(4, 11, 23, width, generator=torch.Generator().manual_seed(2)) * 3
    before = logits.clone()
    found = streamed(logits.contiguous(memory_format=layout))
    assert torch.equal(logits, before)
    stacked = logits.double().softmax(1)[:, None]
    means = decompose_draws(stacked)
    expected = {name: getattr(means, name) for name in ("entropy", "aleatoric", "epistemic")}
    for name, values in (expected | {name: pure(stacked) for name, pure in PURE.items()}).items():
        torch.testing.assert_close(found[name].float(), values[0].float(), rtol=1e-4, atol=3e-6)


def test_a_temperature_divides_the_logits() -> None:
    logits = torch.randn(4, 5, 3, 3, generator=torch.Generator().manual_seed(3)) * 3
    warm, divided, plain = streamed(logits, temperature=2.5), streamed(logits / 2.5), streamed(logits)
    for name, values in warm.items():
        torch.testing.assert_close(values, divided[name], rtol=1e-5, atol=1e-6)
    assert not torch.allclose(warm["entropy"], plain["entropy"], atol=0.01)


@pytest.mark.parametrize("name", PURE)
def test_only_what_is_asked_for_is_kept(name: str) -> None:
    logits = torch.randn(3, 4, 2, 2, generator=torch.Generator().manual_seed(4))
    alone, together = streamed(logits, (name,)), streamed(logits)
    assert torch.equal(alone[name], together[name])


def test_more_votes_than_a_small_integer_holds() -> None:
    draws = torch.iinfo(torch.int16).max + 3
    sums = DisagreementSums(("votes",), 2, (1, 1), torch.device("cpu"))
    logits, half = torch.tensor([0.0, -1.0]).view(2, 1, 1), torch.full((2, 1, 1), 0.5)
    for draw in range(draws):
        sums.add(slice(0, 1), logits, half, half, draw)
    assert sums.evidence(draws)["votes"].flatten().tolist() == [1.0, 0.0]
