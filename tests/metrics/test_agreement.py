"""Agreement and total variation of predictive distributions against SciPy and by hand."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import wasserstein_distance
from torch import Tensor

from segunc.core.errors import InputError
from segunc.metrics.segmentation import predictive_agreement, total_variation


def random(seed: int, classes: int = 4) -> Tensor:
    logits = torch.randn(3, classes, 2, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (2 * logits).softmax(1)


def test_by_hand() -> None:
    p = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]])
    q = torch.tensor([[0.2, 0.6, 0.2], [0.1, 0.2, 0.7]])
    assert predictive_agreement(p, q) == 0.5
    assert total_variation(p, q) == pytest.approx((0.3 + 0.1) / 2)


@given(st.integers(0, 1000), st.integers(0, 1000))
def test_of_two_classes_total_variation_is_scipys_wasserstein_distance(one: int, two: int) -> None:
    p, q = random(one, 2), random(two, 2)
    pairs = zip(p.movedim(1, -1).reshape(-1, 2), q.movedim(1, -1).reshape(-1, 2), strict=True)
    expected = [wasserstein_distance([0, 1], [0, 1], a.numpy(), b.numpy()) for a, b in pairs]
    assert total_variation(p, q) == pytest.approx(sum(expected) / len(expected), abs=1e-12)


@given(st.integers(0, 1000), st.integers(0, 1000), st.integers(0, 1000))
def test_total_variation_is_a_distance_in_0_to_1(one: int, two: int, three: int) -> None:
    p, q, r = random(one), random(two), random(three)
    assert total_variation(p, p) == 0.0
    assert total_variation(p, q) == pytest.approx(total_variation(q, p))
    assert total_variation(p, r) <= total_variation(p, q) + total_variation(q, r) + 1e-12
    assert 0.0 <= total_variation(p, q) <= 1.0


def test_the_extremes() -> None:
    p = torch.tensor([[1.0, 0.0]])
    assert (predictive_agreement(p, p), predictive_agreement(p, 1 - p), total_variation(p, 1 - p)) == (1.0, 0.0, 1.0)
    with pytest.raises(InputError, match="same pixels"):
        total_variation(p, p[:, :1])
