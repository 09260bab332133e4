"""Paired bootstrap statistics against SciPy and known cases; the sidecar's form."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy import stats

from segunc.core.errors import InputError
from segunc.evaluation.resampling import FEWEST, Replicates, paired_difference, why_not_paired


def test_the_interval_is_scipys_percentile_bootstrap() -> None:
    generator = np.random.default_rng(3)
    hard = generator.normal(0, 1, 60)  # what both share
    first, second = hard + generator.normal(0, 0.2, 60), hard + 0.1 + generator.normal(0, 0.2, 60)
    draws = generator.integers(0, 60, (2000, 60))
    replicates = first[draws].mean(1), second[draws].mean(1)
    found = paired_difference(*replicates)
    expected = stats.bootstrap(
        (first, second),
        lambda a, b, axis: b.mean(axis) - a.mean(axis),
        paired=True,
        method="percentile",
        n_resamples=0,
        bootstrap_result=type(
            "Drawn", (), {"bootstrap_distribution": replicates[1] - replicates[0], "confidence_interval": None}
        )(),
    )
    assert (found.low, found.high) == pytest.approx(tuple(expected.confidence_interval), abs=1e-12)
    # Unpaired, the spread of the hard frames would hide the difference.
    assert found.excludes_zero
    assert not paired_difference(generator.permutation(replicates[0]), replicates[1]).excludes_zero


def test_the_p_value_in_closed_form() -> None:
    shares = np.concatenate([np.full(90, 1.0), np.full(7, -1.0), np.zeros(2)])
    found = paired_difference(np.zeros(99), shares)
    assert found.p_value == pytest.approx(2 * (1 + 9) / 100)  # 9 of 99 are <= 0
    assert paired_difference(shares, np.zeros(99)).p_value == found.p_value
    assert paired_difference(np.zeros(99), np.ones(99)).p_value == pytest.approx(2 / 100)
    same = paired_difference(shares, shares)
    assert (same.low, same.high, same.p_value, same.excludes_zero) == (0.0, 0.0, 1.0, False)


def test_no_difference_is_rarely_called_one() -> None:
    generator = np.random.default_rng(1)
    called = 0
    for _ in range(400):
        first, second = generator.normal(0, 1, (2, 40))
        draws = generator.integers(0, 40, (200, 40))
        called += paired_difference(first[draws].mean(1), second[draws].mean(1)).excludes_zero
    # 5 % of 400 is 20; percentile intervals of 40 units are a little narrow. Beyond 40 is 4.5 deviations.
    assert 8 <= called <= 40


@settings(max_examples=60, deadline=None)
@given(arrays.arrays(np.float64, st.integers(FEWEST, 200), elements=st.floats(-5, 5)))
def test_order_sign_and_gaps(values: np.ndarray) -> None:
    zeros = np.zeros_like(values)
    found = paired_difference(zeros, values)
    assert found.low <= found.high
    assert 0 < found.p_value <= 1
    reverse = paired_difference(values, zeros)
    assert (reverse.low, reverse.high, reverse.p_value) == pytest.approx((-found.high, -found.low, found.p_value))
    shuffled = np.random.default_rng(0).permutation(values)
    assert paired_difference(zeros, shuffled) == found
    padded = np.concatenate([values, [np.nan, np.nan]])  # 2 of at least 42: fewer than 5 %
    assert paired_difference(np.zeros_like(padded), padded) == found
    assert paired_difference(zeros, 1 + np.abs(values)).excludes_zero


def test_too_few_or_unequal_replicates_are_refused() -> None:
    values = np.full(FEWEST + 2, np.nan)
    values[:FEWEST] = 1.0
    assert paired_difference(np.zeros_like(values), values).replicates == FEWEST
    values[0] = np.nan
    with pytest.raises(InputError, match="39 of 42 replicates have both numbers; expected at least 40"):
        paired_difference(np.zeros_like(values), values)
    many = np.ones(200)
    many[:11] = np.nan
    with pytest.raises(InputError, match=r"189 of 200 .* and 95% of them"):
        paired_difference(np.zeros(200), many)
    with pytest.raises(InputError, match="one length"):
        paired_difference(np.zeros(50), np.zeros(51))


def replicates(**changes: object) -> Replicates:
    fields = {"paths": ("a.b", "a.c"), "values": np.zeros((2, 50)), "seed": 7, "units": ("f1", "f2")} | changes
    return Replicates(**fields)  # type: ignore[arg-type]


def test_what_keeps_two_evaluations_from_being_paired() -> None:
    assert why_not_paired(replicates(), replicates(paths=("x",), values=np.ones((1, 50)))) is None
    assert why_not_paired(replicates(), replicates(seed=8)) == "resampled with the seeds 7 and 8"
    assert why_not_paired(replicates(), replicates(values=np.zeros((2, 60)))) == "50 and 60 replicates"
    why = why_not_paired(replicates(), replicates(units=("f1",)))
    assert why == "other units were resampled (2 and 1, f2 is in one only)"
    assert why_not_paired(replicates(units=("f1",)), replicates(units=("f1",))) == "a single unit was resampled"
    assert "in another order" in (why_not_paired(replicates(), replicates(units=("f2", "f1"))) or "")
