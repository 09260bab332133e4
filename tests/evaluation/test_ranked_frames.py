"""Numbers of whole frames, beside aggrigator and a plain computation, and how they find anomalous
and failed frames, beside scikit-learn.
"""

from collections.abc import Iterable
from typing import Any

import cv2
import numpy as np
import pytest
from sklearn.metrics import average_precision_score, roc_auc_score

from segunc.evaluation.evaluator import Evaluator, Measures
from segunc.evaluation.ranked_frames import MAX_WINDOW_PIXELS, RankedFrames, aggregates, mass_ratios
from segunc.evaluation.resampling import Resampling
from segunc.evaluation.tables import format_metrics
from segunc.maps.encoding import encode_unit
from tests.evaluation.runs import make_frame

MASSES = "edge-mass", "moran-mass", "entropy-mass"
GENERATOR = np.random.default_rng(0)
NOISE = GENERATOR.random((23, 31))
MAPS = NOISE, cv2.GaussianBlur(NOISE, (9, 9), 2), np.where(NOISE > 0.8, NOISE.round(1), 0.0)


@pytest.mark.parametrize("values", MAPS, ids=["noise", "blobs", "few values"])
def test_numbers_are_those_of_aggrigator(values: np.ndarray[Any, Any]) -> None:
    pytest.importorskip("aggrigator", reason="aggrigator is not installed")
    from aggrigator.methods import AggregationMethods
    from aggrigator.spatial_decomposition import spatial_decomposition
    from aggrigator.uncertainty_maps import UncertaintyMap

    theirs = UncertaintyMap(values)
    found = aggregates(values, 0.5, masses=True)
    assert found["mean"] == pytest.approx(
        AggregationMethods.mean(theirs), rel=5e-9
    )  # nine digits, as of frames.jsonl
    assert found["above"] == pytest.approx(
        AggregationMethods.above_threshold_mean(theirs, 0.5), rel=1e-12
    )
    for name, measure in zip(MASSES, ("eds", "moran", "entropy"), strict=True):
        # Their map of Moran's I is float32, and their entropies have 1e-12 added to each share.
        assert found[name] == pytest.approx(spatial_decomposition(theirs, 3, measure)[3], abs=2e-8)


def test_numbers_of_small_maps_are_those_by_hand() -> None:
    values = np.zeros((10, 10))
    values[4:6, 4:8] = 0.75
    values[0, 0] = np.nan
    found = aggregates(values, 0.5)
    assert found == {
        "mean": pytest.approx(6 / 99, rel=1e-15),
        "p99": 0.75,
        "above": 0.75,
        "component": 8,
        "region": 2.0,
    }
    assert aggregates(np.zeros((4, 4)), 0.5, masses=True) == dict.fromkeys([*found, *MASSES], 0.0)
    assert mass_ratios(np.full((6, 6), 0.3)) == pytest.approx(
        {"edge-mass": 0, "moran-mass": 1, "entropy-mass": 0}
    )
    coarse = GENERATOR.random((128, 160))
    assert mass_ratios(coarse.repeat(2, 0).repeat(2, 1)) == pytest.approx(mass_ratios(coarse))
    assert coarse.size < MAX_WINDOW_PIXELS < 4 * coarse.size


def test_pixels_that_a_mask_leaves_out_count_for_no_frame() -> None:
    """Maps hold zeros there, which are the highest values of a score below zero."""
    kept = np.zeros((10, 10), bool)
    kept[:5] = True
    evaluator = Evaluator(["deterministic-energy"], None, anomalies=["a", "b", "c", "d"])
    for frame, highest in (("a", -9.0), ("b", -2.0), ("c", -8.0), ("d", -3.0)):
        values = np.full((10, 10), -10.0, np.float16)
        values[0] = highest
        values[~kept] = 0
        anomaly = np.zeros((10, 10), np.uint8)
        anomaly[0, 0] = int(highest > -5)
        anomaly[~kept] = 255
        evaluator.update(frame, {"deterministic-energy": values}, anomaly=anomaly, kept=kept)
    assert evaluator.numbers()["frames"]["deterministic-energy"]["p99"]["auroc"] == 1
    values = np.linspace(0, 1, 100).reshape(10, 10)
    assert aggregates(values, 0.4, masses=True, kept=kept) == pytest.approx(
        aggregates(np.where(kept, values, np.nan), 0.4, masses=True)
    )


def test_both_tasks_are_scored_as_scikit_learn_and_the_definition_do() -> None:
    truth, risk = GENERATOR.integers(0, 2, 40), GENERATOR.random(40)
    values = (truth + risk + GENERATOR.random(40)).round(1)  # with ties
    rows = np.column_stack([truth, *[values] * 5, *[np.zeros(40)] * 3])
    found = RankedFrames("entropy").numbers(np.vstack([rows, [np.nan] * 9]), {})
    assert found["mean", "auroc"] == pytest.approx(roc_auc_score(truth, values))
    assert found["p99", "aupr"] == pytest.approx(average_precision_score(truth, values))
    assert found["edge-mass", "auroc"] == 0.5
    rows[:, 0] = risk
    orders = (np.lexsort((GENERATOR.random(40), values)) for _ in range(4000))
    curve = np.mean([(risk[order].cumsum() / np.arange(1, 41)).mean() for order in orders])
    best = (np.sort(risk).cumsum() / np.arange(1, 41)).mean()
    found = RankedFrames("entropy", 3).numbers(rows, {})
    assert found["mean", "aurc"] == pytest.approx(curve, abs=1e-3)
    assert found["mean", "aurc"] - found["mean", "eaurc"] == pytest.approx(best, abs=1e-9)
    rows[:, 1] = risk
    assert RankedFrames("entropy", 3).numbers(rows, {})["mean", "eaurc"] == pytest.approx(
        0, abs=1e-9
    )


def evaluate(numbers: Iterable[int]) -> dict[str, Any]:
    """The result of frames by their numbers, of which the odd ones hold no anomaly."""
    scores = ("entropy", "deterministic-energy")
    measures = Measures(resampling=Resampling(40))
    evaluator = Evaluator(scores, ("road", "car", "tree", "sky"), measures=measures)
    for number in numbers:
        frame = make_frame(number)
        anomaly = frame.anomaly
        if number % 2:
            anomaly = np.where(anomaly == 1, 0, anomaly)
        assert evaluator.update(
            f"f{number}", frame.stored, frame.prediction, labels=frame.labels, anomaly=anomaly
        )
    return evaluator.numbers()


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    return evaluate(range(20))


def test_numbers_are_the_same_in_any_order_of_frames(result) -> None:
    assert evaluate(reversed(range(20)))["frames"] == result["frames"]


def test_one_score_alone_is_ranked(result) -> None:
    # It takes longer than all other counts.
    assert [*result["frames"]] == ["entropy"]


def test_numbers_of_frames_have_no_interval(result) -> None:
    sections = {path.partition(".")[0] for path in result["intervals"]}
    assert "scores" in sections
    assert "frames" not in sections


def test_numbers_of_frames_are_a_table(result) -> None:
    assert "moran-mass of entropy" in format_metrics(result)


def test_a_frame_without_a_label_or_a_second_kind_counts_for_nothing() -> None:
    evaluator = Evaluator(("entropy",), ("road", "car"))
    code = encode_unit(np.full((4, 4), 0.5, np.float32))
    for name, anomaly, label in (("a", 1, 0), ("b", 255, 255), ("c", 1, 1)):
        full = [np.full((4, 4), value, np.uint8) for value in (0, label, anomaly)]
        evaluator.update(name, {"entropy": code, "msp": code}, full[0], None, full[1], full[2])
    result = evaluator.numbers()
    assert result["frames"]["entropy"]["mean"] == {
        "auroc": None,
        "aupr": None,
        "aurc": 0.5,
        "eaurc": 0.25,
    }
    assert (
        result["reasons"]["frames.entropy.mean.auroc"]
        == "every frame with an anomaly label holds an anomaly, or none does"
    )
