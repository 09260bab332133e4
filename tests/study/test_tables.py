"""Means over seeds, paired differences and costs, against numpy and by hand."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from segunc.core.errors import InputError
from segunc.evaluation.comparison import format_number
from segunc.evaluation.resampling import EvaluationResult, Replicates, Resampling, paired_difference
from tests.evaluation.runs import COUNTS
from tools.study.endpoints import endpoint_table, holm
from tools.study.means import mean_over_seeds, mean_replicates, spread_over_seeds
from tools.study.plan import Endpoint, Plan, Protocol, Row
from tools.study.tables import Chosen, Entry, cost_table, difference_table, mean_entry


def result(
    name: str, nll: float, replicates: np.ndarray, **numbers: float | None
) -> EvaluationResult:
    of_calibration: dict[tuple[str, ...], float | None] = {("calibration", "nll"): nll}
    for key, value in numbers.items():
        of_calibration["calibration", key] = value
    content = {"counts": COUNTS, "reasons": {"calibration.ece": "no bins"}}
    units = tuple(str(number) for number in range(15))
    drawn = Replicates(("calibration.nll",), replicates[None], 0, units)
    return EvaluationResult(name, Path(name), content, of_calibration, drawn)


NLL_KEY = ("calibration", "nll")
ECE_KEY = ("calibration", "ece")
ROWS = np.random.default_rng(0).normal(1.0, 0.1, (3, 60))


@pytest.fixture
def results() -> list[EvaluationResult]:
    """The results of three seeds."""
    results = []
    for seed, row in enumerate(ROWS):
        results.append(result(str(seed), float(row.mean()), row, ece=0.1))
    return results


def test_a_mean_over_seeds_is_the_mean_of_numbers(results: list[EvaluationResult]) -> None:
    mean = mean_over_seeds(results, "mean")
    assert mean.numbers[NLL_KEY] == pytest.approx(ROWS.mean())


def test_a_mean_over_seeds_has_the_interval_of_mean_replicates(
    results: list[EvaluationResult],
) -> None:
    mean = mean_over_seeds(results, "mean")
    mean_row = ROWS.mean(0)
    units = replace(results[0].replicates, values=mean_row[None])
    expected = units.chance(mean_row)
    assert mean.cell(NLL_KEY).interval == (expected.low, expected.high)
    assert mean.replicates.seeds == ()


def test_a_mean_without_replicates_has_no_interval(results: list[EvaluationResult]) -> None:
    mean = mean_over_seeds(results, "mean")
    assert mean.cell(ECE_KEY).interval is None


def test_the_spread_over_seeds_is_their_deviation(results: list[EvaluationResult]) -> None:
    expected = ROWS.mean(1).std(ddof=1)
    assert spread_over_seeds(results, NLL_KEY) == pytest.approx(expected)


def test_one_seed_has_no_spread(results: list[EvaluationResult]) -> None:
    assert spread_over_seeds(results[:1], NLL_KEY) is None


def test_a_number_that_a_seed_lacks_has_no_mean(results: list[EvaluationResult]) -> None:
    without_ece = result("x", 1.0, ROWS[0], ece=None)
    mean = mean_over_seeds([results[0], without_ece], "mean")
    assert mean.numbers[ECE_KEY] is None
    assert mean.cell(ECE_KEY).reason == "no bins"


def test_results_of_other_counts_have_no_mean(results: list[EvaluationResult]) -> None:
    counts = COUNTS | {"labelled_pixels": 10}
    other = replace(results[1], content={"counts": counts})
    with pytest.raises(InputError, match="labelled_pixels"):
        mean_over_seeds([results[0], other], "mean")


OF_BOTH_SEEDS = np.random.default_rng(1).normal(1.0, 0.1, (4, 60))
BASE_ROWS = OF_BOTH_SEEDS[:2]
OTHER_ROWS = OF_BOTH_SEEDS[2:] - 0.5


def entry_of_two_seeds(label: str, nll: Sequence[float], rows: np.ndarray) -> Entry:
    results = {}
    for seed in (0, 1):
        results[seed] = result(f"{label}{seed}", nll[seed], rows[seed])
    return Entry(label, results, {0: [0], 1: [1]})


def mean_of_two_seeds(entry: Entry) -> Replicates:
    replicates = [entry.results[seed].replicates for seed in (0, 1)]
    return mean_replicates(replicates, ["0", "1"])


@pytest.fixture
def base() -> Entry:
    return entry_of_two_seeds("base", (1.0, 2.0), BASE_ROWS)


def difference_line(base: Entry, other: Entry) -> str:
    """Return the line of the other entry in the table of differences."""
    table = difference_table([base, other], base, Chosen(["calibration.nll"]))
    return table.splitlines()[2]


def test_a_difference_is_paired_with_the_seeds_it_names(base: Entry) -> None:
    other = entry_of_two_seeds("other", (0.4, 2.3), OTHER_ROWS)
    line = difference_line(base, other)
    test = paired_difference(mean_of_two_seeds(base), mean_of_two_seeds(other), NLL_KEY)
    low = format_number(test.low, like=1.0, sign=True)
    high = format_number(test.high, like=1.0, sign=True)
    assert "other (2)" in line
    assert f"−.150 [{low}, {high}]" in line
    assert "1/2" in line


def test_a_mean_of_rows_is_taken_for_each_seed(base: Entry) -> None:
    other = entry_of_two_seeds("other", (0.4, 2.3), OTHER_ROWS)
    mean = mean_entry("mean", [base, other])
    assert mean.results[0].numbers[NLL_KEY] == pytest.approx((1.0 + 0.4) / 2)
    assert mean.results[1].numbers[NLL_KEY] == pytest.approx((2.0 + 2.3) / 2)
    expected = (BASE_ROWS[1] + OTHER_ROWS[1]) / 2
    assert mean.results[1].replicates.values[0] == pytest.approx(expected)


def test_a_mean_of_rows_has_the_seeds_that_all_have(base: Entry) -> None:
    first = Entry("first", {0: base.results[0]}, {0: [0]})
    mean = mean_entry("mean", [base, first])
    assert list(mean.results) == [0]


def test_a_mean_of_rows_without_a_common_seed_is_none(base: Entry) -> None:
    first = Entry("first", {7: base.results[0]}, {7: [7]})
    assert mean_entry("mean", [base, first]) is None


def test_a_difference_of_an_ensemble_is_less_the_mean_of_its_members(base: Entry) -> None:
    of_ensemble = result("e", 0.5, OTHER_ROWS[0])
    ensemble = Entry("ensemble", {0: of_ensemble}, {0: [0, 1]})
    line = difference_line(base, ensemble)
    assert "ensemble (1, units alone)" in line
    assert "−1.000" in line


@dataclass(frozen=True)
class SeededRows:
    """The shifts of four seeds, and the replicates of each seed over the same units."""

    shifts: np.ndarray
    rows: list[Replicates]

    def mean(self) -> Replicates:
        return mean_replicates(self.rows, list("0123"))

    def shifted(self) -> list[Replicates]:
        """Return the replicates of another row, which is 0.05 higher for each seed."""
        return [replace(row, values=row.values + 0.05) for row in self.rows]


@pytest.fixture(scope="module")
def seeded() -> SeededRows:
    units = tuple(f"u{i}" for i in range(30))
    random = np.random.default_rng(3)
    weights = np.stack([Resampling(2000).weights(unit) for unit in units]) - 1
    of_units = random.normal(0, 0.01, 30) @ weights
    shifts = random.normal(0, 0.3, 4)
    rows = []
    for shift in shifts:
        values = 1 + of_units + shift
        rows.append(Replicates(("n",), values[None], 0, units))
    return SeededRows(shifts, rows)


def test_seeds_add_the_variance_of_a_mean_of_few(seeded: SeededRows) -> None:
    units_alone = mean_replicates(seeded.rows)
    both = seeded.mean()
    assert both.seeds == ("0", "1", "2", "3")
    added = both.values[0].var() - units_alone.values[0].var()
    assert added == pytest.approx(seeded.shifts.var(ddof=1) / 4, rel=0.1)


def test_an_interval_over_seeds_has_their_degrees_of_freedom(seeded: SeededRows) -> None:
    both = seeded.mean()
    interval = both.chance(both.values[0])
    # Three degrees of freedom, for the seeds are all there is.
    half_width = stats.t.ppf(0.975, 3.2) * seeded.shifts.std(ddof=1) / 2
    assert (interval.high - interval.low) / 2 == pytest.approx(half_width, rel=0.15)


def test_what_a_seed_does_to_both_rows_is_in_no_difference(seeded: SeededRows) -> None:
    other = mean_replicates(seeded.shifted(), list("0123"))
    difference = paired_difference(seeded.mean(), other, ("n",))
    assert difference.low == pytest.approx(0.05)
    assert difference.high == pytest.approx(0.05)


def test_means_over_other_seeds_have_no_difference(seeded: SeededRows) -> None:
    of_three = mean_replicates(seeded.shifted()[:3], list("012"))
    difference = paired_difference(seeded.mean(), of_three, ("n",))
    assert difference == "means over other seeds"


def test_a_single_seed_is_not_resampled(seeded: SeededRows) -> None:
    assert mean_replicates(seeded.rows[:1], ["0"]).seeds == ()


def cells_of(line: str) -> list[str]:
    """Return the cells of a line of a Markdown table."""
    return [cell.strip() for cell in line.strip("|").split("|")]


COST_RECORD: dict[str, Any] = {
    "method_seconds": 3.0,
    "networks": {"a": 10.0, "b": 20.0},
    "continued": True,
    "bytes": 2_000_000,
    "posterior_bytes": 5_000,
    "evaluations": {"test": {"seconds": 8.0, "frames": 4}},
}
UNKNOWN_RECORD = {
    **COST_RECORD,
    "networks": {"a": None},
    "continued": False,
    "evaluations": {},
}


@pytest.fixture
def cost_lines() -> list[str]:
    table = cost_table({"known": [COST_RECORD], "unknown": [UNKNOWN_RECORD]})
    return table.splitlines()[2:]


def test_costs_of_a_training(cost_lines: list[str]) -> None:
    assert cells_of(cost_lines[0]) == ["known (1) †", "3", "33", "2.00", "5", "2.0"]


def test_the_cost_of_an_unknown_training_is_a_dash(cost_lines: list[str]) -> None:
    assert cells_of(cost_lines[1]) == ["unknown (1)", "3", "—", "—", "5", "2.0"]


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
    resampling = Resampling(2000)
    weights = np.stack([resampling.weights(str(i)) for i in range(15)]) - 1
    hard = random.normal(0, 0.02, 15) @ weights

    def entry(label: str, nll: float, deviation: float) -> Entry:
        row = nll + hard + random.normal(0, deviation, 15) @ weights
        return Entry(label, {0: result(label, nll, row)}, {0: [0]})

    base = entry("base", 1.0, 0.0)
    better = entry("better", 0.9, 0.004)
    same = entry("same", 1.001, 0.004)
    return {"p/test": [base, better, same]}


def plan_with(*endpoints: Endpoint, seeds: Sequence[int] = (0,)) -> Plan:
    rows = [Row(label) for label in ("base", "better", "same", "missing")]
    return Plan(
        {"p": Protocol("", {}, {"test": {}})},
        rows,
        "base",
        seeds=list(seeds),
        endpoints=list(endpoints),
    )


def rows_of_endpoints(plan: Plan) -> list[list[str]]:
    lines = endpoint_table(plan, entries_of_three()).splitlines()[2:]
    return [cells_of(line) for line in lines]


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
