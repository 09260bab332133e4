"""Bootstrap replicates: weights that depend on names alone, sums that merge, intervals that cover; paired tests against SciPy;
the sidecar of a result."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy import stats

from segunc.core.errors import InputError
from segunc.evaluation.evaluator import Evaluator, Gatherer, Tally
from segunc.evaluation.labelled_frame import LabelledFrame
from segunc.evaluation.parts import PROTOCOLS, ArrayPart, Pooled, coarse_keys, fine_keys
from segunc.evaluation.resampling import (
    FEWEST,
    Replicates,
    Resampling,
    load_replicates,
    paired_difference,
    resampled_units,
    save_replicates,
    sidecar_path,
    why_not_paired,
)
from segunc.metrics.selective import SELECTIVE_NUMBERS
from tests.evaluation.runs import CLASSES, make_frame

SCORES = ("entropy", "deterministic-energy")
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
    resampling = resampling or Resampling(60, seed=3)
    evaluator = Evaluator(SCORES, CLASSES, protocols=PROTOCOLS, resampling=resampling, **options)
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
    detection = [f"{protocol}.{n}" for protocol in PROTOCOLS for n in ("auroc", "aupr", "fpr95", "best_f1")]
    assert set(result["intervals"]) == {
        *(f"scores.{score}.{number}" for score in SCORES for number in detection),
        *(f"selective.{score}.{number}" for score in SCORES for number in (*SELECTIVE_NUMBERS, "pavpu", *CONDITIONAL)),
        *(f"segmentation.{number}" for number in ("miou", "accuracy", *(f"per_class.{name}" for name in CLASSES))),
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


def test_the_interval_is_scipys_percentile_bootstrap() -> None:
    generator = np.random.default_rng(3)
    hard = generator.normal(0, 1, 60)  # what both share
    first, second = hard + generator.normal(0, 0.2, 60), hard + 0.1 + generator.normal(0, 0.2, 60)
    draws = generator.integers(0, 60, (2000, 60))
    replicates = first[draws].mean(1), second[draws].mean(1)
    found = paired_difference(*replicates)
    drawn = SimpleNamespace(bootstrap_distribution=replicates[1] - replicates[0], confidence_interval=None)
    resampled = {"method": "percentile", "n_resamples": 0, "bootstrap_result": drawn}
    expected = stats.bootstrap((first, second), lambda a, b, axis: (b - a).mean(axis), paired=True, **resampled)
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


def test_what_keeps_two_evaluations_from_being_paired() -> None:
    first = Replicates(("a.b", "a.c"), np.zeros((2, 50)), 7, ("f1", "f2"))
    alone = replace(first, units=("f1",))
    assert why_not_paired(first, replace(first, paths=("x",), values=np.ones((1, 50)))) is None
    assert why_not_paired(first, replace(first, seed=8)) == "resampled with the seeds 7 and 8"
    assert why_not_paired(first, replace(first, values=np.zeros((2, 60)))) == "50 and 60 replicates"
    assert why_not_paired(first, alone) == "other units were resampled (2 and 1, f2 is in one only)"
    assert why_not_paired(alone, alone) == "a single unit was resampled"
    assert "in another order" in (why_not_paired(first, replace(first, units=("f2", "f1"))) or "")


def test_the_sidecar_keeps_everything(tmp_path: Path) -> None:
    values = np.random.default_rng(0).random((2, 50))
    values[1, 3] = np.nan
    path = sidecar_path(tmp_path / "my.run.json")
    assert path.name == "my.run.replicates.npz"
    save_replicates(path, Replicates(("a.b", "a.c"), values, 7, ("straße/1", "f2")))
    found = load_replicates(path)
    assert (found.paths, found.seed, found.units) == (("a.b", "a.c"), 7, ("straße/1", "f2"))
    np.testing.assert_array_equal(found.values, values)
    with np.load(path, allow_pickle=False) as arrays:
        assert set(arrays) == {"paths", "values", "seed", "clusters"}
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize(
    "change",
    [{"values": np.zeros((2, 9))}, {"paths": np.array([1])}, {"seed": 0.5}, {"paths": np.array(["a"], object)}, None],
)
def test_another_file_is_no_sidecar(tmp_path: Path, change: dict[str, Any] | None) -> None:
    right = {"paths": np.array(["a"]), "values": np.zeros((1, 9)), "seed": 1, "clusters": np.array(["f"])}
    path = tmp_path / "x.replicates.npz"
    np.savez(path, **({} if change is None else right | change))
    with pytest.raises(InputError, match=r"x\.replicates\.npz"):
        load_replicates(path)
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(InputError, match=r"x\.replicates\.npz holds no replicates"):
        load_replicates(path)
