"""The decomposition against closed forms and its invariants."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import entropy as scipy_entropy

from segunc.uncertainty import Calibrator, energy, entropy_from_probabilities, max_softmax
from tests.scores.stacked import decompose_draws, draw_variance, expected_pairwise_kl, variation_ratio


def test_entropy_equals_scipy() -> None:
    probabilities = (torch.randn(4, 7, 5, generator=torch.Generator().manual_seed(0)) * 3).double().softmax(1)
    probabilities[0, :, 0] = torch.eye(7)[2]  # certain
    expected = torch.from_numpy(scipy_entropy(probabilities.numpy(), axis=1)).float()
    torch.testing.assert_close(entropy_from_probabilities(probabilities.float()), expected, atol=1e-6, rtol=1e-5)


def test_scores_of_known_values() -> None:
    logits = torch.tensor([[math.log(0.7), math.log(0.2), math.log(0.1)]])
    assert float(max_softmax(logits.softmax(1))) == pytest.approx(0.3)
    assert float(energy(logits)) == pytest.approx(0.0, abs=1e-6)
    assert float(energy(2 * logits, temperature=2.0)) == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("classes", [1, 3])
def test_a_calibrator_of_probabilities_that_underflowed(classes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """0 and denormal numbers count as the smallest normal one; strips of any height are the whole; the identity changes nothing."""
    logits = torch.randn(2, classes, 9, 5, generator=torch.Generator().manual_seed(0)) * 60
    given = logits.softmax(1)
    assert classes == 1 or bool((given == 0).any())
    weight = torch.eye(classes).mul(0.7).add(0.1)
    calibrator = Calibrator(tuple(weight.flatten().tolist()), (0.5,) * classes)
    found, entropy = calibrator(given)
    logs = given.double().clamp_min(torch.finfo(torch.float32).tiny).log()
    expected = (torch.einsum("ij,njhw->nihw", weight.double(), logs) + 0.5).softmax(1)
    torch.testing.assert_close(found, expected.float(), rtol=1e-4, atol=1e-7)
    share = torch.from_numpy(scipy_entropy(expected.numpy(), axis=1)) / max(math.log(classes), 1e-9)
    torch.testing.assert_close(entropy, share.float(), rtol=1e-4, atol=1e-6)
    monkeypatch.setattr("segunc.uncertainty.STRIP_NUMBERS", 2 * 5 * classes)
    for part, whole in zip(calibrator(given), (found, entropy), strict=True):
        torch.testing.assert_close(part, whole, rtol=1e-5, atol=1e-7)
    for identity in (Calibrator((1.0,)), Calibrator((1.0,) * classes, (0.0,) * classes)):
        torch.testing.assert_close(identity(given)[0], given, rtol=1e-5, atol=1e-7)


def test_mutual_information_of_known_draws() -> None:
    # Two draws (0.9, 0.1) and (0.1, 0.9): H(mean) = ln 2, mean H = H(0.1).
    draws = torch.tensor([[[0.9, 0.1]], [[0.1, 0.9]]])
    parts = decompose_draws(draws, normalised=False)
    expected = -(0.1 * math.log(0.1) + 0.9 * math.log(0.9))
    assert float(parts.entropy) == pytest.approx(math.log(2))
    assert float(parts.aleatoric) == pytest.approx(expected)
    assert float(parts.epistemic) == pytest.approx(math.log(2) - expected)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 6), st.integers(2, 20), st.floats(0.01, 30), st.integers(0, 10_000))
def test_invariants(draws: int, classes: int, scale: float, seed: int) -> None:
    logits = torch.randn(draws, 3, classes, 4, generator=torch.Generator().manual_seed(seed)) * scale
    parts = decompose_draws(logits.softmax(2))
    for values in parts:
        assert float(values.min()) >= 0
        assert float(values.max()) <= 1 + 1e-5
    torch.testing.assert_close(parts.epistemic, (parts.entropy - parts.aleatoric).clamp_min(0))
    if draws == 1:
        assert float(parts.epistemic.max()) < 1e-6
    # Renaming classes and reordering draws changes nothing.
    order, renaming = torch.randperm(draws), torch.randperm(classes)
    shuffled = decompose_draws(logits[order][:, :, renaming].softmax(2))
    torch.testing.assert_close(shuffled.entropy, parts.entropy, atol=1e-5, rtol=1e-4)


def test_disagreement_of_known_draws() -> None:
    # Draws (0.9, 0.1), (0.1, 0.9), (0.9, 0.1): the variance of 0.9, 0.1, 0.9 is 2/9 * 0.8^2; one of three votes otherwise.
    draws = torch.tensor([[[0.9, 0.1]], [[0.1, 0.9]], [[0.9, 0.1]]], dtype=torch.float64)
    assert float(draw_variance(draws)) == pytest.approx(2 / 9 * 0.64)
    assert float(variation_ratio(draws)) == pytest.approx(1 / 3)
    # Four of the six ordered pairs differ; each has KL = 0.8 ln 9.
    assert float(expected_pairwise_kl(draws)) == pytest.approx(4 / 6 * 0.8 * math.log(9))


def test_expected_pairwise_kl_equals_scipy() -> None:
    p = torch.randn(4, 3, 6, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64).mul(3).softmax(2)
    pairs = [scipy_entropy(p[i].numpy(), p[j].numpy(), axis=1) for i in range(4) for j in range(4) if i != j]
    torch.testing.assert_close(expected_pairwise_kl(p), torch.from_numpy(np.mean(pairs, 0)))
