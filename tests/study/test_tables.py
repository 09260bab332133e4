"""Means over seeds, paired differences and costs, against numpy and by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from segunc.core.errors import InputError
from segunc.evaluation.compare import EvaluationResult, format_number
from segunc.evaluation.resampling import Replicates, paired_difference
from tests.evaluation.evaluations import COUNTS
from tools.study.means import mean_over_seeds, spread_over_seeds
from tools.study.tables import Chosen, Entry, cost_table, difference_table, number_table


def result(name: str, nll: float, replicates: np.ndarray, **numbers: float | None) -> EvaluationResult:
    """A result with one number that has replicates, and others."""
    held = {("calibration", "nll"): nll, **{("calibration", key): value for key, value in numbers.items()}}
    content = {"counts": COUNTS, "reasons": {"calibration.ece": "no bins"}}
    drawn = Replicates(("calibration.nll",), replicates[None], 0, ("a", "b"))
    return EvaluationResult(name, Path(name), content, held, drawn)


def test_a_mean_over_seeds_is_the_mean_of_numbers_and_of_replicates() -> None:
    random = np.random.default_rng(0)
    rows = random.normal(1.0, 0.1, (3, 60))
    results = [result(str(seed), float(row.mean()), row, ece=0.1) for seed, row in enumerate(rows)]
    mean = mean_over_seeds(results, "mean")
    assert mean.numbers["calibration", "nll"] == pytest.approx(rows.mean())
    interval = np.percentile(rows.mean(0), [2.5, 97.5]).tolist()
    assert mean.cell(("calibration", "nll")).interval == pytest.approx(interval)
    assert mean.cell(("calibration", "ece")).interval is None
    spread = spread_over_seeds(results, ("calibration", "nll"))
    assert spread == pytest.approx(rows.mean(1).std(ddof=1))
    assert spread_over_seeds(results[:1], ("calibration", "nll")) is None
    lacking = mean_over_seeds([results[0], result("x", 1.0, rows[0], ece=None)], "mean")
    assert lacking.numbers["calibration", "ece"] is None
    assert lacking.cell(("calibration", "ece")).reason == "no bins"


def test_results_of_other_data_have_no_mean() -> None:
    row = np.ones(60)
    other = replace(result("1", 1.0, row), content={"counts": COUNTS | {"labelled_pixels": 10}})
    with pytest.raises(InputError, match="labelled_pixels"):
        mean_over_seeds([result("0", 1.0, row), other], "mean")


def test_a_difference_is_paired_with_the_seeds_it_names() -> None:
    random = np.random.default_rng(1)
    rows = random.normal(1.0, 0.1, (4, 60))
    base = Entry("base", {s: result(f"b{s}", 1.0 + s, rows[s]) for s in (0, 1)}, {0: [0], 1: [1]})
    ours = [rows[2] - 0.5, rows[3] - 0.5]
    other = Entry("other", {0: result("o0", 0.4, ours[0]), 1: result("o1", 2.3, ours[1])}, {0: [0], 1: [1]})
    chosen = Chosen(["calibration.nll"])
    line = difference_table([base, other], base, chosen).splitlines()[2]
    test = paired_difference(rows[:2].mean(0), np.mean(ours, 0))
    assert "other (2)" in line
    low, high = (format_number(bound, like=1.0, sign=True) for bound in (test.low, test.high))
    assert f"−.150 [{low}, {high}]" in line
    assert "1/2" in line
    ensemble = Entry("ensemble", {0: result("e", 0.5, ours[0])}, {0: [0, 1]})
    line = difference_table([base, ensemble], base, chosen).splitlines()[2]
    assert "−1.000" in line  # less the mean of both members


def test_the_best_is_bold_only_among_rows_of_the_same_seeds() -> None:
    row = np.random.default_rng(2).normal(0, 0.01, 60)
    better, worse = ({0: result(name, nll, nll + row)} for name, nll in (("better", 0.5), ("worse", 1.5)))
    same = [Entry("better", better, {0: [0]}), Entry("worse", worse, {0: [0]})]
    chosen = Chosen(["calibration.nll"])
    assert "| **.500 [" in number_table(same, chosen)
    assert "**" not in number_table([replace(same[0], partners={0: [1]}), same[1]], chosen)


def test_the_cost_of_an_unknown_training_is_a_dash() -> None:
    record = {"method_seconds": 3.0, "networks": {"a": 10.0, "b": 20.0}, "continued": True, "bytes": 2_000_000}
    record |= {"posterior_bytes": 5_000, "evaluations": {"test": {"seconds": 8.0, "frames": 4}}}
    unknown = {**record, "networks": {"a": None}, "continued": False, "evaluations": {}}
    lines = cost_table({"known": [record], "unknown": [unknown]}).splitlines()
    cells = [cell.strip() for cell in lines[2].strip("|").split("|")]
    assert cells == ["known (1) †", "3", "33", "2.00", "5", "2.0"]
    assert [cell.strip() for cell in lines[3].strip("|").split("|")] == ["unknown (1)", "3", "—", "—", "5", "2.0"]
