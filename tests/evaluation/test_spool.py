"""Sums of kept counts are those of plain matrices, however they are cut, and memory does not grow
with the frames."""

from __future__ import annotations

import tracemalloc
from dataclasses import dataclass

import numpy as np
import pytest

from segunc.core.errors import PartialFailure
from segunc.evaluation import resampling, spool
from segunc.evaluation.resampling import Replicates, Resampling
from segunc.evaluation.spool import CountSpool

EVERY = np.ones(40, bool)


@pytest.fixture
def small_stretches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut all that is done in one piece with few frames."""
    monkeypatch.setattr(spool, "IN_MEMORY", 100)
    monkeypatch.setattr(spool, "SUMS_AT_ONCE", 40 * 8)
    monkeypatch.setattr(spool, "units_at_once", lambda replicates: 7)
    monkeypatch.setattr(resampling, "units_at_once", lambda replicates: 7)


RESAMPLING = Resampling(50)


@dataclass(frozen=True)
class Counted:
    """Counts of 50 frames in a spool, and their sums ``[50, 40]`` by plain matrices."""

    kept: CountSpool
    sums: np.ndarray
    some_columns: np.ndarray


@pytest.fixture(params=[0.02, 0.9])
def counted(request: pytest.FixtureRequest, small_stretches: None) -> Counted:
    random = np.random.default_rng(0)
    counts = random.integers(1, 9, (50, 40))
    counts *= random.random((50, 40)) < request.param
    units = [f"u{number}" for number in random.integers(0, 20, 50)]
    kept = CountSpool()
    for row, unit in zip(counts, units, strict=True):
        kept.add(row, unit)
    weights = np.stack([RESAMPLING.weights(unit) for unit in units])
    some_columns = random.random(40) < 0.5
    return Counted(kept, weights.T @ counts, some_columns)


def test_sums_are_those_of_whole_matrices(counted: Counted) -> None:
    parts = list(counted.kept.sums(RESAMPLING, EVERY, 4))
    assert max(len(part) for part in parts) == 4
    np.testing.assert_array_equal(np.concatenate(parts), counted.sums)


def test_sums_of_some_columns_are_those_of_whole_matrices(counted: Counted) -> None:
    columns = counted.some_columns | counted.kept.used()
    parts = list(counted.kept.sums(RESAMPLING, columns, 4))
    np.testing.assert_array_equal(np.concatenate(parts), counted.sums[:, columns])


@pytest.mark.usefixtures("small_stretches")
def test_influences_in_stretches_are_those_of_all_units() -> None:
    units = tuple(f"u{number:02d}" for number in range(30))
    resampled = Resampling(400)
    weights = np.stack([resampled.weights(unit) for unit in units])
    influence = np.random.default_rng(1).gamma(0.5, size=30)
    values = (influence @ weights) / weights.sum(0)
    chance = Replicates(("a",), values[None], 0, units).chance(values)
    assert not isinstance(chance, str)
    centred = (values - values.mean()) / values.std()
    influences = weights @ centred / 400
    second = (influences**2).sum()
    fourth = (influences**4).sum() - 6 * second / 400 + 90 / 400**2
    spread = fourth / (second - 30 / 400) ** 2 - 1 / 30
    assert chance.effective == pytest.approx(2 / max(spread, 2 / 30), rel=1e-9)


def peak_of_sums(frames: int, random: np.random.Generator) -> int:
    """Return the most bytes that counting and summing these frames took."""
    kept = CountSpool()
    tracemalloc.start()
    for number in range(frames):
        counts = np.zeros(8192, np.int64)
        counts[random.integers(0, 8192, 60)] = 1
        kept.add(counts, f"u{number}")
    for _ in kept.sums(Resampling(40), np.ones(8192, bool), 4):
        pass
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak


def test_memory_is_that_of_the_sums_whatever_the_number_of_frames(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Dense, the counts of these frames would take 250 MB."""
    monkeypatch.setattr(spool, "units_at_once", lambda replicates: 100)
    random = np.random.default_rng(0)
    few = peak_of_sums(500, random)
    many = peak_of_sums(4000, random)
    assert many < 1.5 * few
    assert 1.5 * few < 30e6


def test_a_full_disk_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = CountSpool()

    def full(data: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(kept._file, "write", full)
    with pytest.raises(PartialFailure, match=r"do not fit into .*No space left.*--replicates 0"):
        kept.add(np.ones(4, np.int64), "a")
