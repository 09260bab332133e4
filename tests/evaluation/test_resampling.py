"""Bootstrap replicates: weights that depend on names alone, sums that merge, intervals that cover."""

from __future__ import annotations

import numpy as np
import pytest

from segunc.core.errors import InputError
from segunc.evaluation.evaluator import Evaluator, Gatherer, Tally
from segunc.evaluation.labelled_frame import LabelledFrame
from segunc.evaluation.parts import PROTOCOLS, ArrayPart, Pooled, coarse_keys, fine_keys
from segunc.evaluation.resampling import Replicates, Resampling, resampled_units
from segunc.metrics.selective import SELECTIVE_NUMBERS
from tests.evaluation.runs import CLASSES, make_frame

SCORES = ("entropy", "energy")
CONDITIONAL = ("accurate_if_certain", "uncertain_if_inaccurate")


class Ones(ArrayPart):
    """A part as another package would write it: the share of pixels labelled 1."""

    section, names = ("ones",), (("share",),)
    needs, lacks = "class", "no frame has class labels"

    def count(self, frame):
        return None if frame.labels is None else np.bincount(frame.labels.ravel(), minlength=256)[:2]

    def numbers(self, counts, forms):
        return {("share",): counts[1] / counts.sum() if counts.sum() else None}


def fill(frames: dict[str, int], resampling: Resampling | None = None, **options: object) -> Evaluator:
    evaluator = Evaluator(
        SCORES, CLASSES, protocols=PROTOCOLS, resampling=resampling or Resampling(60, seed=3), **options
    )
    for name, seed in frames.items():
        frame = make_frame(seed)
        assert evaluator.update(name, frame.stored, frame.prediction, frame.probabilities, frame.labels, frame.anomaly)
    return evaluator


def test_weights_are_poisson_and_depend_on_seed_and_name_alone():
    resampling = Resampling(200, seed=5)
    weights = np.stack([resampling.weights(f"frame_{i}") for i in range(200)])
    assert weights.mean() == pytest.approx(1.0, abs=0.02)
    assert weights.var() == pytest.approx(1.0, abs=0.04)
    np.testing.assert_array_equal(weights[7], Resampling(200, seed=5).weights("frame_7"))
    assert (weights[7] != weights[8]).any()
    assert (weights[7] != Resampling(200, seed=6).weights("frame_7")).any()
    # Two frames are resampled independently of each other.
    assert abs(np.corrcoef(weights[0], weights[1])[0, 1]) < 0.25


def test_a_replicate_is_the_weighted_sum_of_its_units():
    resampling = Resampling(50)
    tally = Tally(Ones(), resampling)
    counts = np.random.default_rng(0).integers(0, 9, (6, 4))
    units = ["a", "a", "b", "c", "b", "c"]
    for row, unit in zip(counts, units, strict=True):
        tally.add(row, unit)
    weights = np.stack([resampling.weights(unit) for unit in units])
    np.testing.assert_array_equal(tally.replicates, weights.T @ counts)
    np.testing.assert_array_equal(tally.total, counts.sum(0))


def test_intervals_are_those_of_a_bootstrap_over_frames():
    """The share of ones over 60 frames of 100 pixels, against an ordinary bootstrap and its standard error."""
    generator = np.random.default_rng(1)
    ones = generator.binomial(100, generator.beta(4, 6, 60))
    tally = Tally(Ones(), Resampling(2000))
    for index, number in enumerate(ones):
        tally.add(np.array([100 - number, number]), str(index))
    column = tally.replicate_numbers({})[("share",)]
    (low, high) = Replicates(("share",), column[None], 0, ("0", "1")).intervals()["share"]
    drawn = ones[generator.integers(0, 60, (4000, 60))].mean(1) / 100
    np.testing.assert_allclose((low, high), np.percentile(drawn, [2.5, 97.5]), atol=0.006)
    assert high - low == pytest.approx(2 * 1.96 * ones.std() / 100 / np.sqrt(60), rel=0.1)


def test_every_number_but_thresholds_has_an_interval_around_it():
    result = fill({f"frame_{i}": i for i in range(8)}).result()
    assert set(result["intervals"]) == {
        *(
            f"scores.{score}.{protocol}.{number}"
            for score in SCORES
            for protocol in PROTOCOLS
            for number in ("auroc", "aupr", "fpr95", "best_f1")
        ),
        *(f"selective.{score}.{number}" for score in SCORES for number in (*SELECTIVE_NUMBERS, "pavpu", *CONDITIONAL)),
        *(f"segmentation.{number}" for number in ("miou", "accuracy")),
        *(f"segmentation.per_class.{name}" for name in CLASSES),
        *(f"calibration.{number}" for number in ("ece", "adaptive_ece", "classwise_ece", "nll", "brier")),
    }
    for path, (low, high) in result["intervals"].items():
        value = result
        for key in path.split("."):
            value = value[key]
        assert low < value < high, path
    assert result["counts"]["resampled_units"] == 8


def test_the_order_of_units_changes_no_bit_of_the_replicates():
    frames = {f"frame_{i}": i for i in range(6)}
    whole, backwards = fill(frames), fill(dict(reversed(frames.items())))
    assert whole.result() == backwards.result()
    np.testing.assert_array_equal(whole.replicates().values, backwards.replicates().values)
    assert whole.replicates().units == backwards.replicates().units


def test_a_part_of_another_package_has_its_section_intervals_and_reasons():
    gatherer = Gatherer([Ones()], Resampling(200))
    result, reasons = {}, {}
    gatherer.place_numbers(result, reasons)
    assert (result, reasons) == ({"ones": {"share": None}}, {"ones.share": "no frame has class labels"})
    ignored = np.full((2, 3), 255, np.uint8)
    gatherer.add(LabelledFrame("a", {}, labels=ignored))
    gatherer.place_numbers(result, reasons)
    assert reasons == {"ones.share": "its counts define no number"}
    for i in range(9):
        gatherer.add(LabelledFrame(str(i), {}, labels=np.array([[0] * i + [1] * 9], np.uint8)))
    gatherer.place_numbers(result, reasons)
    (low, high) = gatherer.replicates().intervals()["ones.share"]
    assert low < result["ones"]["share"] == 81 / (36 + 81) < high


def test_neighbours_are_resampled_together():
    names = {f"seq{i // 2}/frame_{i}": i % 2 for i in range(10)}
    together = fill(names, unit=resampled_units("folder"))
    assert together.replicates().units == tuple(f"seq{i}" for i in range(5))
    # All sequences hold the same two frames, so every mixture of sequences has the same numbers.
    low, high = together.result()["intervals"]["segmentation.miou"]
    assert high - low < 1e-12
    low, high = fill(names).result()["intervals"]["segmentation.miou"]
    assert high - low > 1e-4


def test_units_by_name():
    assert resampled_units("frame")("a/b_1") == "a/b_1"
    assert resampled_units("folder")("a/b_1") == "a"
    assert resampled_units(r"^[^_]+")("Seq05VD_f00030") == "Seq05VD"
    assert resampled_units(r"^(.*f\d\d)")("Seq05VD_f00030") == "Seq05VD_f00"
    with pytest.raises(InputError, match="finds nothing in the frame name a"):
        resampled_units(r"\d")("a")
    with pytest.raises(InputError, match="frame, folder or a regular expression"):
        resampled_units("(")


def test_no_interval_from_one_unit_or_from_too_few_defined_replicates():
    assert fill({"frame_0": 0}).result()["intervals"] == {}
    values = np.linspace(0, 1, 100)
    assert Replicates(("n",), values[None], 0, ("a", "b")).intervals() == {"n": pytest.approx([0.025, 0.975])}
    values[:6] = np.nan
    assert Replicates(("n",), values[None], 0, ("a", "b")).intervals() == {}
    assert Evaluator(SCORES, CLASSES).replicates().paths == ()
    with pytest.raises(InputError, match="at least 40"):
        Resampling(10)


def test_coarser_keys_keep_every_pixel_and_the_order():
    counts = np.random.default_rng(2).integers(0, 5, (2, 65536))
    coarse = coarse_keys(counts, 4096)
    np.testing.assert_array_equal(coarse.cumsum(1), counts.cumsum(1)[:, 15::16])
    np.testing.assert_array_equal(coarse_keys(fine_keys(coarse), 4096), coarse)
    assert Pooled("msp").refine(coarse).sum() == counts.sum()
