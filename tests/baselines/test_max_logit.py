"""Streaming moments by class against numpy, and what a class without pixels gets."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from segunc.baselines.max_logit import MIN_PIXELS, ClassMoments, usable_statistics
from segunc.core.errors import InputError


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(0, 60), min_size=1, max_size=6), st.integers(1, 5), st.floats(-1e6, 1e6), st.integers(0, 999)
)
def test_moments_of_parts_are_those_of_the_whole(parts: list[int], classes: int, offset: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    moments = ClassMoments(classes)
    values, ids = [], []
    for count in parts:
        values.append(rng.normal(size=count) * 2 + offset)
        ids.append(rng.integers(0, classes, count))
        moments.add(torch.from_numpy(values[-1]), torch.from_numpy(ids[-1]))
    every, labels = np.concatenate(values), np.concatenate(ids)
    for c in range(classes):
        chosen = every[labels == c]
        assert int(moments.count[c]) == len(chosen)
        if len(chosen):
            assert float(moments.mean[c]) == pytest.approx(chosen.mean(), rel=1e-12, abs=1e-9)
            assert float(moments.squares[c]) == pytest.approx(((chosen - chosen.mean()) ** 2).sum(), rel=1e-6, abs=1e-7)
    if len(every):
        assert moments.pooled() == pytest.approx((every.mean(), every.std()), rel=1e-6, abs=1e-7)


def test_classes_that_are_hardly_predicted_get_the_statistics_of_all() -> None:
    rng = np.random.default_rng(0)
    moments = ClassMoments(4)
    counts = (MIN_PIXELS, MIN_PIXELS - 1, 500, 0)
    values = np.concatenate([rng.normal(c, 1 + c, n) for c, n in enumerate(counts)])
    values[-500:] = 7.0  # a class of which every max logit is one number
    moments.add(torch.from_numpy(values), torch.from_numpy(np.repeat(np.arange(4), counts)))
    mean, deviation, replaced = usable_statistics(moments)
    assert replaced == [1, 2, 3]
    first = values[:MIN_PIXELS]
    assert mean == pytest.approx([first.mean(), *[values.mean()] * 3])
    assert deviation == pytest.approx([first.std(), *[values.std()] * 3])


def test_a_constant_network_is_refused() -> None:
    moments = ClassMoments(2)
    moments.add(torch.full((300,), 3.0), torch.zeros(300, dtype=torch.long))
    with pytest.raises(InputError, match="3 at every pixel"):
        usable_statistics(moments)
