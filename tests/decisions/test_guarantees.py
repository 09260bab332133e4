"""Bounds and thresholds, against MAPIE, closed forms and a simulation whose risk is known."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
from scipy import stats

from segunc.decisions.guarantee import MAX_ALARMS, MethodName, promise_of
from segunc.decisions.risks import (
    LARGEST_LOSS,
    RISING,
    LossSums,
    Method,
    bentkus_bound,
    hoeffding_bentkus,
)
from tools.simulate_guarantees import CONFIDENCE, CONTROLS, LEVEL, population, simulate


def sums_of(rows: np.ndarray, control: str) -> LossSums:
    sums = LossSums(control, rows.shape[1])
    for row in rows:
        sums.add(row)
    return sums


def rising_losses(units: int, seed: int = 0) -> np.ndarray:
    """Monotone losses [n, 201] of units, 0 at the safe end and 1 at the other."""
    starts = np.random.default_rng(seed).random((units, 1))
    return np.clip(np.linspace(0, 1.5, 201) - starts / 2, 0, 1)


@pytest.mark.parametrize("units", [20, 57, 400])
def test_p_values_and_conformal_thresholds_are_those_of_mapie(units: int) -> None:
    methods = pytest.importorskip(
        "mapie.risk_control.methods", reason="MAPIE is not installed (extra dev)"
    )
    risks = np.linspace(0, 1, 101)
    for level in (0.05, 0.1, 0.5):
        theirs = methods.compute_hoeffding_bentkus_p_value(risks, units, level)[:, 0]
        np.testing.assert_allclose(
            hoeffding_bentkus(risks, units, level), theirs, rtol=1e-12, atol=0
        )
        rows = rising_losses(units)
        _, bounds = methods.get_r_hat_plus(rows, np.arange(201), "crc", None, None, None)
        for values, control in ((rows, "missed-pixels"), (rows[:, ::-1], "flagged-pixels")):
            ordered = bounds if control in RISING else bounds[::-1]
            best = int(
                methods.find_best_predict_param(np.arange(201), ordered, np.array([level]))[0]
            )
            assert Method("conformal").certified(sums_of(values, control), level) == best


def test_fixed_sequences_are_those_of_mapie() -> None:
    fwer = pytest.importorskip(
        "mapie.risk_control.fwer_control", reason="MAPIE is not installed (extra dev)"
    )
    rows, method = rising_losses(60), Method("ltt", 0.9)
    p_values = hoeffding_bentkus(rows.mean(0), 60, 0.2)
    valid = fwer.control_fwer(p_values, 0.1, fwer_method=fwer.FWERFixedSequenceTesting(n_starts=1))
    assert method.certified(sums_of(rows, "missed-objects"), 0.2) == max(valid)
    assert method.certified(sums_of(rows[:, ::-1], "false-alarms"), 1.0) is not None


@pytest.mark.parametrize("control", ["missed-objects", "false-alarms"])
@pytest.mark.parametrize(
    ("name", "confidence"),
    [
        ("conformal", None),
        ("ltt", 0.9),
        ("clopper-pearson", 0.95),
    ],
)
def test_the_fewest_units_are_those_that_can_have_the_level(
    name: str, confidence: float | None, control: str
) -> None:
    method = Method(name, confidence)
    for level in (0.01, 0.1, 1 / 3):
        fewest = method.minimum_units(control, level)
        for units, holds in ((fewest, True), (fewest - 1, False)):
            sums = sums_of(np.zeros((units, 3)), control)
            assert (method.certified(sums, level) is not None) is holds
            bound = method.upper_bound(sums, 0) if units else method.largest(control)
            assert (bound <= level + 1e-9) is holds, (
                "the bound where nothing is lost is the smallest level"
            )


def test_bounds_have_their_closed_forms() -> None:
    method, rows = Method("clopper-pearson", 0.95), np.zeros((100, 1))
    assert method.upper_bound(sums_of(rows, "missed-objects"), 0) == pytest.approx(
        3 / 100, rel=0.02
    )
    rows[:7] = 0.2
    exact = stats.binomtest(7, 100).proportion_ci(0.9, method="exact").high
    assert method.upper_bound(sums_of(rows, "missed-objects"), 0) == pytest.approx(exact)
    for risk, units, doubt in ((0.07, 100, 0.1), (0.0, 20, 0.05), (0.4, 3, 0.3), (0.97, 50, 0.1)):
        bound = bentkus_bound(risk, units, doubt)
        assert hoeffding_bentkus(risk, units, bound) == pytest.approx(doubt)
        assert risk < bound < 1
    assert bentkus_bound(1.0, 5, 0.1) == 1
    conformal = Method("conformal").upper_bound(sums_of(rows, "false-alarms"), 0)
    assert conformal == pytest.approx((rows.sum() + LARGEST_LOSS["false-alarms"]) / 101)


@pytest.fixture(scope="module")
def units() -> dict[str, np.ndarray]:
    return population(400)


@pytest.mark.parametrize("control", CONTROLS)
def test_promises_hold_and_conformal_is_tight(control: str, units: dict[str, np.ndarray]) -> None:
    """The loss has jumps where frames share one threshold, of at most the largest difference
    between neighbouring ones.
    """
    n, draws, rows = 40, 300, units[control]
    for name in get_args(MethodName):
        risks = simulate(
            rows, control, Method(name, None if name == "conformal" else CONFIDENCE), n, draws
        )
        error = 3 * risks.std() / np.sqrt(draws)
        if name == "conformal":
            jump = float(np.abs(np.diff(rows.mean(0))).max()) / LARGEST_LOSS[control]
            most = float(rows.mean(0).max()) / LARGEST_LOSS[control]
            assert risks.mean() <= LEVEL + error
            assert risks.mean() >= min(LEVEL, most) - 2 / (n + 1) - jump - error
        else:
            doubt = 1 - CONFIDENCE
            assert np.mean(risks > LEVEL) <= doubt + 3 * np.sqrt(doubt * (1 - doubt) / draws)
        assert risks.std() > 0, "another calibration gives another threshold"


def test_two_units_can_have_a_level_of_one_half() -> None:
    # Of two units without a loss the bound at 75 % confidence is 1 - sqrt(0.25).
    assert Method("clopper-pearson", 0.75).smallest_level("missed-objects", 2) == 0.5


def test_a_smallest_level_is_a_share_of_the_largest_loss() -> None:
    assert Method("ltt", 0.75).smallest_level("false-alarms", 2) == 0.5 * MAX_ALARMS


@pytest.mark.parametrize(
    ("smallest_object", "specks"),
    [
        (1, ""),
        (2, ", and labelled regions below 2 pixels are specks beside larger ones"),
    ],
)
def test_a_promise_speaks_of_specks_where_there_can_be_any(
    smallest_object: int, specks: str
) -> None:
    promise = promise_of(
        "missed-objects",
        0.1,
        method="conformal",
        confidence=None,
        unit="frame",
        found_share=0.5,
        smallest=50,
        smallest_object=smallest_object,
    )
    assert promise == (
        "On average, at most 10 % of the anomalous objects of a frame are missed; "
        f"an object is found where 50 % of its pixels are flagged{specks}."
    )


@pytest.mark.parametrize(
    ("unit", "rate", "blocks"), [("1s", "60", "20"), ("10s", "6", "20"), ("frame", None, None)]
)
def test_a_promise_a_minute_says_in_how_many_blocks(
    unit: str, rate: str | None, blocks: str | None
) -> None:
    """In a block of at most 12 s, the first alarm reaches the largest number that is counted."""
    promise = promise_of(
        "false-alarms",
        1,
        method="conformal",
        confidence=None,
        unit=unit,
        found_share=0.5,
        smallest=50,
        smallest_object=10,
    )
    said = (
        f"; one alarm in a block of {unit} is {rate} a minute and counts as 5, so this says that "
        f"at most {blocks} % of the blocks have an alarm."
    )
    assert promise.endswith(said) == (rate is not None)
    assert ("a block of" in promise) == (rate is not None)
