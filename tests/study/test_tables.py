"""Means over seeds, paired differences and costs, against numpy and by hand."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from segunc.core.errors import InputError
from segunc.evaluation.compare import format_number
from segunc.evaluation.resampling import EvaluationResult, Replicates, Resampling, paired_difference
from tests.evaluation.runs import COUNTS
from tools.study.endpoints import endpoint_table, holm
from tools.study.means import mean_over_seeds, mean_replicates, spread_over_seeds
from tools.study.plan import Endpoint, Plan, Protocol, Row
from tools.study.tables import Chosen, Entry, cost_table, difference_table


def result(
    name: str, nll: float, replicates: np.ndarray, **numbers: float | None
) -> EvaluationResult:
    held = {
        ("calibration", "nll"): nll,
        **{("calibration", key): value for key, value in numbers.items()},
    }
    content = {"counts": COUNTS, "reasons": {"calibration.ece": "no bins"}}
    drawn = Replicates(("calibration.nll",), replicates[None], 0, tuple(map(str, range(15))))
    return EvaluationResult(name, Path(name), content, held, drawn)


def test_a_mean_over_seeds_is_the_mean_of_numbers_and_of_replicates() -> None:
    random = np.random.default_rng(0)
    rows = random.normal(1.0, 0.1, (3, 60))
    results = [result(str(seed), float(row.mean()), row, ece=0.1) for seed, row in enumerate(rows)]
    mean = mean_over_seeds(results, "mean")
    assert mean.numbers["calibration", "nll"] == pytest.approx(rows.mean())
    units = replace(results[0].replicates, values=rows.mean(0)[None])
    found = units.chance(rows.mean(0))
    assert mean.cell(("calibration", "nll")).interval == (found.low, found.high)
    assert mean.replicates.seeds == ()
    assert mean.cell(("calibration", "ece")).interval is None
    spread = spread_over_seeds(results, ("calibration", "nll"))
    assert spread == pytest.approx(rows.mean(1).std(ddof=1))
    assert spread_over_seeds(results[:1], ("calibration", "nll")) is None
    lacking = mean_over_seeds([results[0], result("x", 1.0, rows[0], ece=None)], "mean")
    assert lacking.numbers["calibration", "ece"] is None
    assert lacking.cell(("calibration", "ece")).reason == "no bins"
    other = replace(results[1], content={"counts": COUNTS | {"labelled_pixels": 10}})
    with pytest.raises(InputError, match="labelled_pixels"):
        mean_over_seeds([results[0], other], "mean")


def test_a_difference_is_paired_with_the_seeds_it_names() -> None:
    random = np.random.default_rng(1)
    rows = random.normal(1.0, 0.1, (4, 60))
    base = Entry("base", {s: result(f"b{s}", 1.0 + s, rows[s]) for s in (0, 1)}, {0: [0], 1: [1]})
    ours = [rows[2] - 0.5, rows[3] - 0.5]
    other = Entry(
        "other", {0: result("o0", 0.4, ours[0]), 1: result("o1", 2.3, ours[1])}, {0: [0], 1: [1]}
    )
    chosen = Chosen(["calibration.nll"])
    line = difference_table([base, other], base, chosen).splitlines()[2]
    means = [
        mean_replicates([one.results[seed].replicates for seed in (0, 1)], ["0", "1"])
        for one in (base, other)
    ]
    test = paired_difference(*means, ("calibration", "nll"))
    assert "other (2)" in line
    low, high = (format_number(bound, like=1.0, sign=True) for bound in (test.low, test.high))
    assert f"−.150 [{low}, {high}]" in line
    assert "1/2" in line
    ensemble = Entry("ensemble", {0: result("e", 0.5, ours[0])}, {0: [0, 1]})
    line = difference_table([base, ensemble], base, chosen).splitlines()[2]
    assert "ensemble (1, units alone)" in line
    assert "−1.000" in line  # less the mean of both members


def test_seeds_are_resampled_in_pairs_with_the_variance_of_a_mean_of_few() -> None:
    units = tuple(f"u{i}" for i in range(30))
    random = np.random.default_rng(3)
    weights = np.stack([Resampling(2000).weights(unit) for unit in units]) - 1
    of_units = random.normal(0, 0.01, 30) @ weights
    seeds = random.normal(0, 0.3, 4)
    rows = [Replicates(("n",), (1 + of_units + shift)[None], 0, units) for shift in seeds]
    alone, both = mean_replicates(rows), mean_replicates(rows, list("0123"))
    assert both.seeds == ("0", "1", "2", "3")
    added = both.values[0].var() - alone.values[0].var()
    assert added == pytest.approx(seeds.var(ddof=1) / 4, rel=0.1)
    # Three degrees of freedom, for the seeds are all there is.
    found, halves = both.chance(both.values[0]), stats.t.ppf(0.975, 3.2) * seeds.std(ddof=1) / 2
    assert (found.high - found.low) / 2 == pytest.approx(halves, rel=0.15)
    # What a seed does to both rows is in no difference of the two.
    shifted = [replace(row, values=row.values + 0.05) for row in rows]
    pair = paired_difference(both, mean_replicates(shifted, list("0123")), ("n",))
    assert (pair.low, pair.high) == pytest.approx((0.05, 0.05))
    assert (
        paired_difference(both, mean_replicates(shifted[:3], list("012")), ("n",))
        == "means over other seeds"
    )
    assert mean_replicates(rows[:1], ["0"]).seeds == ()


def test_the_cost_of_an_unknown_training_is_a_dash() -> None:
    record = {
        "method_seconds": 3.0,
        "networks": {"a": 10.0, "b": 20.0},
        "continued": True,
        "bytes": 2_000_000,
    }
    record |= {"posterior_bytes": 5_000, "evaluations": {"test": {"seconds": 8.0, "frames": 4}}}
    unknown = {**record, "networks": {"a": None}, "continued": False, "evaluations": {}}
    lines = cost_table({"known": [record], "unknown": [unknown]}).splitlines()
    cells = [cell.strip() for cell in lines[2].strip("|").split("|")]
    assert cells == ["known (1) †", "3", "33", "2.00", "5", "2.0"]
    assert [cell.strip() for cell in lines[3].strip("|").split("|")] == [
        "unknown (1)",
        "3",
        "—",
        "—",
        "5",
        "2.0",
    ]


NLL = "calibration.nll"
ENDPOINTS = {
    "better": Endpoint("p/test", NLL, "better", "base"),
    "same": Endpoint("p/test", NLL, "same", "base"),
    "wide margin": Endpoint("p/test", NLL, "same", "base", margin=0.1),
    "narrow margin": Endpoint("p/test", NLL, "same", "base", margin=0.002),
    "wrong direction": Endpoint("p/test", NLL, "better", "base", direction="higher"),
    "missing": Endpoint("p/test", NLL, "missing", "base"),
}


def entries_of_three() -> dict[str, list[Entry]]:
    """Return results of a base, a row of a lower NLL and one of nearly the same, on 15 frames."""
    random = np.random.default_rng(4)
    weights = np.stack([Resampling(2000).weights(str(i)) for i in range(15)]) - 1
    hard = random.normal(0, 0.02, 15) @ weights

    def entry(label: str, nll: float, deviation: float) -> Entry:
        row = nll + hard + random.normal(0, deviation, 15) @ weights
        return Entry(label, {0: result(label, nll, row)}, {0: [0]})

    base = entry("base", 1.0, 0.0)
    better = entry("better", 0.9, 0.004)
    same = entry("same", 1.001, 0.004)
    return {"p/test": [base, better, same]}


def plan_with(*endpoints: Endpoint, seeds: Sequence[int] = (0,)) -> Plan:
    return Plan(
        {"p": Protocol("", {}, {"test": {}})},
        [Row(label) for label in ("base", "better", "same", "missing")],
        "base",
        seeds=list(seeds),
        endpoints=list(endpoints),
    )


def rows_of_endpoints(plan: Plan) -> list[list[str]]:
    lines = endpoint_table(plan, entries_of_three()).splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


@pytest.fixture(scope="module")
def decided() -> dict[str, list[str]]:
    """The rows of all endpoints of one plan."""
    rows = rows_of_endpoints(plan_with(*ENDPOINTS.values()))
    return dict(zip(ENDPOINTS, rows, strict=True))


def test_an_endpoint_is_decided_by_its_difference_and_margin(decided: Any) -> None:
    verdicts = {name: row[-1] for name, row in decided.items()}
    assert verdicts == {
        "better": "yes",
        "same": "no",
        "wide margin": "yes",
        "narrow margin": "no",
        "wrong direction": "no",
        "missing": "no",
    }


def test_an_endpoint_says_what_it_claims(decided: Any) -> None:
    assert decided["better"][0] == "p/test, calibration.nll: better lower than base"
    claim = "p/test, calibration.nll: same not higher by 0.1 than base"
    assert decided["wide margin"][0] == claim


def test_an_endpoint_shows_the_difference_and_its_interval(decided: Any) -> None:
    assert decided["better"][1].startswith("−.100 [−.1")


def test_a_margin_moves_no_interval(decided: Any) -> None:
    assert decided["same"][1] == decided["wide margin"][1]


def test_an_endpoint_whose_row_is_missing_says_so(decided: Any) -> None:
    assert decided["missing"][1] == "— missing is not finished"


def test_a_single_endpoint_keeps_its_p_value() -> None:
    row = rows_of_endpoints(plan_with(ENDPOINTS["better"]))[0]
    assert row[3] == row[4]


def test_nothing_is_decided_by_the_seeds_that_came_first() -> None:
    one_seed = rows_of_endpoints(plan_with(ENDPOINTS["better"]))[0]
    three_seeds = rows_of_endpoints(plan_with(ENDPOINTS["better"], seeds=[0, 1, 2]))[0]
    assert three_seeds[:-1] == one_seed[:-1]
    assert three_seeds[-1] == "waits for seed 1, 2"


@pytest.mark.parametrize(
    ("p_values", "adjusted"),
    [
        # Of .01, .02, .03, .2 with m = 4: .04, .06, .06 (not .06 then .06 = 2 x .03), .2.
        ([0.03, 0.01, 0.2, 0.02], [0.06, 0.04, 0.2, 0.06]),
        ([0.6, 0.7], [1.0, 1.0]),
        ([0.04], [0.04]),
        ([], []),
    ],
)
def test_p_values_are_adjusted_by_holm(p_values: list[float], adjusted: list[float]) -> None:
    assert holm(p_values) == pytest.approx(adjusted)
