"""Tables of scores: every distinct score, or a rounding that no order changes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor

from segunc.metrics import counting, score_table
from segunc.metrics.counting import ScoreBins
from segunc.metrics.score_table import ScoreTable, keys_of_values, merged, values_of_keys

VALUES = torch.tensor(
    [-torch.inf, -1e300, -2.5, -1e-310, -0.0, 0.0, 5e-324, 0.1, 1.0, 65504.0, 1e300],
    dtype=torch.float64,
)


def random_pixels(seed: int, number: int = 4000) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(number, generator=generator)
    return scores, (scores + torch.randn(number, generator=generator)) > 1


def table_of(scores: Tensor, positive: Tensor) -> ScoreTable:
    return ScoreTable.empty().with_pixels(scores, positive)


def assert_equal(first: ScoreTable, second: ScoreTable) -> None:
    assert first.level == second.level
    assert torch.equal(first.keys, second.keys)
    assert torch.equal(first.counts(), second.counts())


def test_keys_have_the_order_of_the_values() -> None:
    keys = keys_of_values(VALUES)
    assert keys[4] == keys[5]  # both zeros
    distinct = torch.cat([keys[:4], keys[5:]])
    assert bool((distinct.diff() > 0).all())
    assert torch.equal(values_of_keys(keys), VALUES)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_table_counts_each_distinct_score(dtype: torch.dtype) -> None:
    scores, positive = random_pixels(1)
    scores = (scores * 20).round().div(20).to(dtype)
    table = table_of(scores, positive)
    values, places = np.unique(scores.double().numpy(), return_inverse=True)
    expected = [
        np.bincount(places[positive.numpy() == row], minlength=len(values)) for row in (False, True)
    ]
    np.testing.assert_array_equal(values_of_keys(table.keys).numpy(), values)
    np.testing.assert_array_equal(table.counts().numpy(), expected)
    assert table.level == 0


def test_half_and_full_precision_make_one_table() -> None:
    scores, positive = random_pixels(2)
    scores = scores.half()
    assert_equal(table_of(scores, positive), table_of(scores.double(), positive))
    both = table_of(scores, positive).with_pixels(scores.float(), positive)
    assert torch.equal(both.counts(), 2 * table_of(scores, positive).counts())


def test_strips_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    scores, positive = random_pixels(3)
    whole = table_of(scores, positive)
    monkeypatch.setattr(score_table, "STRIP", 7)
    assert_equal(table_of(scores, positive), whole)


@pytest.mark.parametrize("scale", [1.0, 1e-40])
@pytest.mark.parametrize("parts", [1, 2, 13])
def test_no_order_and_no_division_changes_a_bit_of_too_many_scores(
    scale: float, parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(score_table, "MAX_DISTINCT", 300)
    scores, positive = random_pixels(4)
    scores = scores.double() * scale
    whole = table_of(scores, positive)
    assert whole.level > 0
    assert 150 < len(whole.keys) <= 300
    order = torch.randperm(len(scores), generator=torch.Generator().manual_seed(parts))
    tables = [table_of(scores[part], positive[part]) for part in order.tensor_split(parts)]
    assert_equal(merged(tables), whole)
    one_by_one = ScoreTable.empty()
    for part in order.tensor_split(parts):
        one_by_one = one_by_one.with_pixels(scores[part], positive[part])
    assert_equal(one_by_one, whole)


def test_half_scores_join_a_table_of_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(score_table, "MAX_DISTINCT", 300)
    scores, positive = random_pixels(4)
    few = torch.arange(50).half()
    first = table_of(scores, positive).with_pixels(few, few > 7)
    second = table_of(few, few > 7).with_pixels(scores, positive)
    assert_equal(first, second)


def test_no_fewer_bits_would_have_been_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(score_table, "MAX_DISTINCT", 300)
    scores, positive = random_pixels(5)
    table = table_of(scores, positive)
    keys = keys_of_values(scores)
    assert len(torch.unique(keys >> table.level)) == len(table.keys)
    assert len(torch.unique(keys >> (table.level - 1))) > 300


def test_the_error_of_auroc_is_within_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    scores, positive = random_pixels(6, 20_000)
    exact = roc_auc_score(positive, scores)
    for most in (20, 300, 5000):
        monkeypatch.setattr(score_table, "MAX_DISTINCT", most)
        table = table_of(scores, positive)
        error = abs((counting.auroc(table.curve()) or 0) - exact)
        assert 0 < error <= table.auroc_error()
    assert table.auroc_error() < 1e-3


def test_an_exact_table_has_no_error() -> None:
    assert table_of(*random_pixels(7)).auroc_error() == 0


def test_a_table_is_the_bins_of_the_command_line() -> None:
    """The curves of both have the same points."""
    scores, positive = random_pixels(8)
    finder = counting.BinFinder()
    rows = positive.numpy().astype(np.uint8)
    finder.add(scores.numpy(), rows)
    bins = finder.bins()
    assert isinstance(bins, ScoreBins)
    expected = counting.detection_curve(bins.count(scores.numpy(), rows))
    curve = table_of(scores, positive).curve()
    np.testing.assert_array_equal(curve.true_positives, expected.true_positives)
    np.testing.assert_array_equal(curve.false_positives, expected.false_positives)
    values = bins.edges[expected.thresholds.astype(np.int64)]
    np.testing.assert_array_equal(curve.thresholds, values)


def test_an_empty_table() -> None:
    empty = ScoreTable.empty()
    assert merged([empty, empty]).keys.numel() == 0
    assert empty.curve().undefined == "no pixel is labelled as an anomaly"
    assert_equal(merged([empty, table_of(*random_pixels(9))]), table_of(*random_pixels(9)))
