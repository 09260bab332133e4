"""Bootstrap replicates: weights that depend on names alone, sums that merge, intervals that cover;
paired tests against SciPy; the sidecar of a result.
"""

from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as arrays
from scipy import stats

from segunc.core.errors import InputError
from segunc.evaluation.evaluator import Evaluator, Measures, Tally
from segunc.evaluation.parts import PROTOCOLS, ArrayPart, ByObject, ManyCounts, Pooled
from segunc.evaluation.patches import Patches
from segunc.evaluation.resampling import (
    MIN_REPLICATES,
    MIN_UNITS,
    Chance,
    Replicates,
    Resampling,
    load_replicates,
    paired_difference,
    resampled_units,
    save_replicates,
    sidecar_path,
    why_not_paired,
)
from segunc.metrics.counting import count_scores
from segunc.metrics.objects import ObjectBins
from segunc.metrics.patches import PATCH_NUMBERS
from segunc.metrics.prediction import SELECTIVE_NUMBERS
from tests.evaluation.runs import CLASSES, make_frame

SCORES = ("entropy", "deterministic-energy")


class Ones(ArrayPart):
    """A part as another package would write it: the share of pixels labelled 1."""

    section = ("ones",)
    names = (("share",),)
    needs = "class"
    lacks = "no frame has class labels"

    def count(self, frame):
        if frame.labels is None:
            return None
        return np.bincount(frame.labels.ravel(), minlength=256)[:2]

    def numbers(self, counts, forms):
        return {("share",): counts[1] / counts.sum() if counts.sum() else None}


def fill(
    frames: dict[str, int], resampling: Resampling | None = None, **options: object
) -> Evaluator:
    measures = Measures(
        protocols=PROTOCOLS, resampling=resampling or Resampling(60, seed=3), **options
    )
    evaluator = Evaluator(SCORES, CLASSES, measures=measures)
    for name, seed in frames.items():
        frame = make_frame(seed)
        assert evaluator.update(
            name, frame.stored, frame.prediction, frame.probabilities, frame.labels, frame.anomaly
        )
    return evaluator


def test_weights_are_poisson_and_depend_on_seed_and_name_alone():
    weights = np.stack([Resampling(200, seed=5).weights(f"frame_{i}") for i in range(200)])
    assert weights.mean() == pytest.approx(1.0, abs=0.02)
    assert weights.var() == pytest.approx(1.0, abs=0.04)
    np.testing.assert_array_equal(weights[7], Resampling(200, seed=5).weights("frame_7"))
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
    np.testing.assert_array_equal(np.concatenate([*tally.replicates(7)]), weights.T @ counts)
    np.testing.assert_array_equal(tally.total, counts.sum(0))
    # Sums that floats cannot hold are as exact.
    large = Tally(Ones(), resampling)
    for row, unit in zip(counts, units, strict=True):
        large.add(row + (1 << 55) + 1, unit)
    np.testing.assert_array_equal(
        np.concatenate([*large.replicates()]), weights.T @ (counts + (1 << 55) + 1)
    )


def test_many_replicates_at_once_have_the_numbers_of_one_by_one():
    """Of curves with and without anomalies, normal pixels and empty keys; sums are added in another
    order.
    """
    generator = np.random.default_rng(3)
    counts = generator.poisson(0.4, (40, 13, 200)) * (generator.random((40, 13, 1)) < 0.8)
    counts[0] = 0
    counts[1, 0] = 0
    counts[2, 1:] = 0
    forms = {"entropy": "unit-code"}
    parts = (
        (Pooled("entropy"), 2),
        (ByObject("entropy", ObjectBins.of("size")), 13),
        (Patches("entropy"), 2),
    )
    for part, rows in parts:
        many = part.numbers_of_many(ManyCounts(counts[:, :rows].astype(np.float64)), forms)
        assert {name for name in part.names if name not in part.point} <= set(many)
        for place, of_one in enumerate(counts[:, :rows]):
            for name, value in part.numbers(of_one, forms).items():
                if name in many:
                    expected = np.nan if value is None else value
                    np.testing.assert_allclose(many[name][place], expected, rtol=1e-12, atol=1e-15)


def test_replicates_of_patches_are_exact_where_scores_lie_close_together():
    """Energies of -2.34 to -2.3 are 20 values of float16; a share cannot leave 0..1."""
    generator = np.random.default_rng(5)
    form = "float16"
    tally = Tally(Patches("energy"), Resampling(50))
    counts = []
    for index in range(20):
        means = generator.normal(-2.32, 0.008, 200).astype(np.float16)
        wrong = generator.random(200) < 0.3 + 20 * (means.astype(np.float64) + 2.32)
        counts.append(count_scores(means, wrong.astype(np.uint8)))
        tally.add(counts[-1], str(index))
    forms = {"energy": form}
    replicates = tally.replicate_numbers(forms)
    weights = tally.resampling.weights_of(tuple(str(index) for index in range(20)))
    for place, of_one in enumerate(weights.T):
        whole = sum(int(weight) * count for weight, count in zip(of_one, counts, strict=True))
        numbers = tally.part.numbers(whole, forms)
        for name, column in replicates.items():
            np.testing.assert_allclose(column[place], numbers[name], rtol=1e-12)


def test_intervals_are_those_of_a_bootstrap_over_frames():
    """The share of ones over 60 frames of 100 pixels, against an ordinary bootstrap and its
    standard error.
    """
    generator = np.random.default_rng(1)
    ones = generator.binomial(100, generator.beta(4, 6, 60))
    tally = Tally(Ones(), Resampling(2000))
    for index, number in enumerate(ones):
        tally.add(np.array([100 - number, number]), str(index))
    column = tally.replicate_numbers({})[("share",)]
    units = tuple(str(index) for index in range(60))
    found = Replicates(("share",), column[None], 0, units).chances()["share"]
    drawn = ones[generator.integers(0, 60, (4000, 60))].mean(1) / 100
    assert isinstance(found, Chance)
    expected = stats.norm.cdf(-np.sqrt(60 / 59) * stats.t.ppf(0.975, found.effective - 1))
    np.testing.assert_allclose(
        (found.low, found.high), np.quantile(drawn, [expected, 1 - expected]), atol=0.007
    )
    assert found.high - found.low == pytest.approx(
        2 * 2.02 * ones.std() / 100 / np.sqrt(59), rel=0.1
    )


@pytest.fixture(scope="module")
def of_few_units() -> dict[str, Any]:
    """The result of as many frames as an interval needs."""
    frames = {f"frame_{i}": i for i in range(MIN_UNITS)}
    return fill(frames, Resampling(400, seed=3)).numbers()


def test_every_number_except_thresholds_has_an_interval(of_few_units):
    detection = [
        f"{protocol}.{n}" for protocol in PROTOCOLS for n in ("auroc", "aupr", "fpr95", "best_f1")
    ]
    patches = [name for name in PATCH_NUMBERS if name != "pavpu_threshold"]
    selective = [*SELECTIVE_NUMBERS, *patches]
    assert set(of_few_units["intervals"]) == {
        *(f"scores.{score}.{number}" for score in SCORES for number in detection),
        *(f"selective.{score}.{number}" for score in SCORES for number in selective),
        *(
            f"segmentation.{number}"
            for number in ("miou", "accuracy", *(f"per_class.{name}" for name in CLASSES))
        ),
        *(f"calibration.{number}" for number in ("ece", "adaptive_ece", "nll", "brier")),
    }


def test_each_number_lies_in_its_interval(of_few_units):
    for path, (low, high) in of_few_units["intervals"].items():
        assert low < reduce(getitem, path.split("."), of_few_units) < high, path


def test_each_interval_has_its_effective_number_of_units(of_few_units):
    assert of_few_units["counts"]["resampled_units"] == MIN_UNITS
    effective = of_few_units["bootstrap"]["effective_units"]
    assert effective.keys() == of_few_units["intervals"].keys()
    assert all(4 < number <= MIN_UNITS for number in effective.values())


def test_effective_units_are_units_that_say_something_of_the_number():
    """Frames with anomaly labels alone say nothing of a calibration error, whose influences are so
    small here that the estimate alone would be all units.
    """
    evaluator = fill({f"frame_{i}": i for i in range(MIN_UNITS + 2)}, Resampling(400, seed=3))
    for number in range(15):
        frame = make_frame(100 + number)
        assert evaluator.update(
            f"anomaly_{number}", frame.stored, frame.prediction, None, None, frame.anomaly
        )
    result = evaluator.numbers()
    effective = result["bootstrap"]["effective_units"]
    assert result["counts"]["resampled_units"] == MIN_UNITS + 17
    assert effective["calibration.ece"] == MIN_UNITS + 2
    assert max(effective[f"scores.{score}.pooled.auroc"] for score in SCORES) > MIN_UNITS + 2


def test_a_number_that_no_draw_changes_has_no_effective_units():
    evaluator = fill({f"frame_{i}": 3 for i in range(MIN_UNITS)}, Resampling(100, seed=3))
    result = evaluator.numbers()
    assert "segmentation.miou" in result["intervals"]
    assert "segmentation.miou" not in result["bootstrap"].get("effective_units", {})


def test_neighbours_are_resampled_together():
    names = {f"seq{i // 2:02d}/frame_{i}": i % 2 for i in range(30)}
    together = fill(names, Resampling(200), resample="folder")
    assert together.replicates().units == tuple(f"seq{i:02d}" for i in range(15))
    # All sequences hold the same two frames, so every mixture of sequences has the same numbers.
    low, high = together.numbers()["intervals"]["segmentation.miou"]
    assert high - low < 1e-12


@pytest.mark.parametrize(
    ("how", "unit"),
    [
        ("frame", "a/Seq05_f10"),
        ("folder", "a"),
        ("^[^_]+", "a/Seq05"),
        (r"^(.*f\d)", "a/Seq05_f1"),
    ],
)
def test_units_by_name(how, unit):
    assert resampled_units(how)("a/Seq05_f10") == unit


def test_units_by_time():
    times = {
        "drive/000000": 0.0,
        "drive/000299": 9.97,
        "drive/000300": 10.01,
    }
    assert [*map(resampled_units("10s", times.get), times)] == ["drive/0", "drive/0", "drive/1"]


def test_frames_a_period_apart_are_units_of_their_own():
    times = {f"drive/{number}": number * 0.8 for number in range(12)}
    units = [*map(resampled_units("0.8s", times.get), times)]
    assert units == [f"drive/{number}" for number in range(12)]


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (r"\d", "nothing in the frame name a"),
        ("(", "expression"),
        ("0s", "0 seconds"),
        ("10s", "video"),
    ],
)
def test_units_that_do_not_fit_are_refused(how, message):
    with pytest.raises(InputError, match=message):
        resampled_units(how)("a")


def chance_of(values: np.ndarray, units: int = 30) -> Chance | str:
    names = tuple(f"u{i}" for i in range(units))
    return Replicates(("n",), values[None], 0, names).chances()["n"]


def mean_of(influence: np.ndarray, replicates: int = 2000) -> np.ndarray:
    weights = np.stack([Resampling(replicates).weights(f"u{i}") for i in range(len(influence))])
    return influence @ (weights - 1)


TOO_FEW = "too few resampled units: 14, of at least 15"


def test_no_interval_from_few_units():
    result = fill({f"frame_{i}": i for i in range(MIN_UNITS - 1)}).numbers()
    assert result["intervals"] == {}
    assert result["bootstrap"]["no_interval"]["segmentation.miou"] == TOO_FEW
    values = mean_of(np.random.default_rng(0).normal(size=30), 400)
    assert chance_of(values, 14) == TOO_FEW


def test_no_interval_from_too_few_defined_replicates():
    values = mean_of(np.random.default_rng(0).normal(size=30), 400)
    assert isinstance(chance_of(values), Chance)
    values[:21] = np.nan
    assert chance_of(values) == (
        "21 of 400 replicates drew no unit that the number needs; an interval allows 20"
    )


def test_no_replicates_without_resampling():
    assert Evaluator(SCORES, CLASSES).replicates().paths == ()


def test_no_replicates_show_no_progress(capsys: pytest.CaptureFixture[str]) -> None:
    evaluator = Evaluator(SCORES, CLASSES)
    evaluator.replicates()
    assert capsys.readouterr().err == ""


def test_too_few_replicates_are_refused():
    with pytest.raises(InputError, match=r"replicates. 10: use 0 \(no intervals\), or 40 to 20000"):
        Resampling(10)


def test_normal_influences_make_about_as_many_effective_units():
    generator = np.random.default_rng(4)
    normal = np.array(
        [chance_of(mean_of(generator.normal(size=60)), 60).effective for _ in range(20)]
    )
    assert 40 < np.median(normal) <= 60


def test_two_units_that_count_make_four_effective_ones():
    # Two of sixty units that count make four effective ones, 2 / (1 / 2 - 1 / 60), but for what 400
    # replicates leave of noise.
    few = np.zeros(60)
    few[:2] = [1, -1]
    found = chance_of(mean_of(few, 400) + 9, 60)
    assert found.effective == pytest.approx(4, abs=0.2)
    # 400 replicates do not reach as far as t with three degrees of freedom: the ends are the
    # outermost, and nothing is decided.
    values = mean_of(few, 400) + 9
    assert found.low == values.min() > 0
    assert found.high == values.max()
    assert not found.excludes_zero
    assert found.p_value > 0.05


def test_ten_units_that_count_and_equal_values():
    ten = np.zeros(60)
    ten[:10] = [1, -1] * 5
    exact = 2 / (1 / 10 - 1 / 60)
    assert chance_of(mean_of(ten), 60).effective == pytest.approx(exact, rel=0.1)
    assert chance_of(np.ones(400)).effective == 30


def pair_of(
    first: np.ndarray, second: np.ndarray, units: int = 60
) -> tuple[Replicates, Replicates]:
    names = tuple(f"u{i}" for i in range(units))
    return (
        Replicates(("n",), first[None], 0, names),
        Replicates(("n",), second[None], 0, names),
    )


def test_a_paired_difference_leaves_out_what_both_share() -> None:
    generator = np.random.default_rng(3)
    hard = generator.normal(0, 1, 60)
    first, second = (mean_of((hard + generator.normal(0, 0.2, 60)) / 60) for _ in range(2))
    found = paired_difference(*pair_of(first, second + 0.1), ("n",))
    assert isinstance(found, Chance)
    assert found.excludes_zero
    assert 0 < found.low < 0.1 < found.high < 0.2
    # Unpaired, the spread of the hard frames would hide the difference.
    lone = paired_difference(*pair_of(generator.permutation(first), second + 0.1), ("n",))
    assert isinstance(lone, Chance)
    assert not lone.excludes_zero


def test_fewer_replicates_are_the_first_ones_of_more() -> None:
    hard = np.random.default_rng(3).normal(0, 1, 60)
    few = pair_of(mean_of(hard / 60, 400), np.zeros(2000))
    assert isinstance(paired_difference(*few, ("n",)), Chance)
    np.testing.assert_array_equal(mean_of(hard, 400), mean_of(hard)[:400])


@settings(max_examples=60, deadline=None)
@given(
    arrays.arrays(np.float64, st.integers(MIN_REPLICATES, 200), elements=st.floats(-5, 5)),
    st.floats(-4, 4),
)
def test_the_p_value_is_below_5_per_cent_where_the_interval_excludes_zero(
    values: np.ndarray, shift: float
) -> None:
    found = chance_of(values + shift)
    assert isinstance(found, Chance)
    assert found.low <= found.high
    assert 0 < found.p_value <= 1
    outside = found.low > 0 or found.high < 0
    assert outside or found.p_value >= 0.05
    assert outside == (found.p_value < 0.05) or (found.low, found.high) == (
        min(values + shift),
        max(values + shift),
    )
    reverse = chance_of(-values - shift)
    assert isinstance(reverse, Chance)
    assert (reverse.low, reverse.high, reverse.p_value) == pytest.approx(
        (-found.high, -found.low, found.p_value)
    )


def test_the_p_value_in_closed_form() -> None:
    influence = np.random.default_rng(5).normal(size=30)
    values = mean_of(influence) / np.sqrt((influence**2).sum())
    found = chance_of(values + 2.5)
    assert isinstance(found, Chance)
    share = (1 + np.count_nonzero(values + 2.5 <= 0)) / 2001
    exact = 2 * stats.t.cdf(stats.norm.ppf(share) / np.sqrt(30 / 29), found.effective - 1)
    assert found.p_value == pytest.approx(exact)
    same = chance_of(np.zeros(200))
    assert isinstance(same, Chance)
    assert same.low == same.high == 0.0
    assert same.p_value == 1.0
    assert not same.excludes_zero


def test_the_interval_covers() -> None:
    """Means of 15 heavy-tailed ratios: percentiles cover .87 of the time
    (tools/simulate_intervals.py of a2e48dd).
    """
    generator = np.random.default_rng(6)
    hits = []
    weights = np.stack([Resampling(1000).weights(f"u{i}") for i in range(15)])
    for _ in range(300):
        size = generator.lognormal(0, 1, 15)
        share = generator.beta(0.7, 0.5, 15)
        found = chance_of((size * share) @ weights / (size @ weights), 15)
        hits.append(found.low <= 0.7 / 1.2 <= found.high)
    assert np.mean(hits) > 0.92


def units_and_seeds(units: int, seeds: tuple[str, ...]) -> Replicates:
    names = tuple(f"u{i}" for i in range(units))
    return Replicates(("n",), np.zeros((1, 100)), 0, names, seeds)


def test_a_number_of_too_few_units_has_no_chance() -> None:
    assert units_and_seeds(14, ()).chance(np.arange(100.0)) == TOO_FEW


def test_seed_weights_are_standard_normal() -> None:
    weights = Resampling(20_000).seed_weights("1")
    assert weights.mean() == pytest.approx(0, abs=0.02)
    assert weights.var() == pytest.approx(1, abs=0.03)


def test_the_weights_of_a_seed_are_not_those_of_another() -> None:
    first, second = (Resampling(2000).seed_weights(name) for name in ("1", "2"))
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.1


def test_units_and_seeds_share_the_degrees_of_freedom() -> None:
    """Four equal units have 3 degrees of freedom, and two seeds 1; with equal parts of the
    variance, these make (1 + 1)^2 / (1 / 3 + 1 / 1) = 3.
    """
    noise = 0.01  # of 100 replicates, which is taken out of the sums
    second = 1 + 4 * noise
    fourth = 0.25 + 6 * noise * second - 3 * 4 * noise**2
    of_seeds = np.sqrt([0.5 + noise, 0.5 + noise])
    found = units_and_seeds(4, ("1", "2"))._freedom(second, fourth, 100, of_seeds)
    assert found == pytest.approx((4, 3))


def test_seeds_alone_leave_their_degrees_of_freedom() -> None:
    # Units of less influence than the noise have no part of the variance.
    of_seeds = np.sqrt([0.5 + 0.01, 0.5 + 0.01])
    _, freedom = units_and_seeds(4, ("1", "2"))._freedom(0.0, 0.0, 100, of_seeds)
    assert freedom == pytest.approx(1)


def test_an_interval_of_two_seeds_reaches_to_the_outermost_replicates() -> None:
    # One degree of freedom asks for 12.7 standard errors, which no replicate reaches.
    values = Resampling(2000).seed_weights("1")
    found = units_and_seeds(30, ("1", "2")).chance(values)
    assert isinstance(found, Chance)
    assert (found.low, found.high) == (values.min(), values.max())


def test_means_over_other_seeds_are_not_paired() -> None:
    first = units_and_seeds(30, ("1", "2"))
    second = units_and_seeds(30, ("3", "4"))
    assert why_not_paired(first, second) == "means over other seeds"


def test_the_sidecar_lies_beside_the_result() -> None:
    assert sidecar_path(Path("my.run.json")).name == "my.run.replicates.npz"
    assert sidecar_path(Path("alpha_0.1")).name == "alpha_0.1.replicates.npz"


IMAGES = {"straße/1": "0123456789ab", "f2": "ba9876543210"}


def test_the_sidecar_keeps_everything(tmp_path: Path) -> None:
    values = np.random.default_rng(0).random((2, 50))
    values[1, 3] = np.nan
    path = sidecar_path(tmp_path / "my.run.json")
    units = ("straße/1", "f2", "f3")
    save_replicates(path, Replicates(("a.b", "a.c"), values, 7, units, (), IMAGES, units))
    stored = load_replicates(path)
    assert stored.paths == ("a.b", "a.c")
    assert stored.seed == 7
    assert stored.units == stored.frames == units
    assert stored.images == IMAGES, "that of f3 is not known"
    np.testing.assert_array_equal(stored.values, values.astype(np.float32))


@pytest.mark.parametrize(
    "change",
    [
        {"values": np.zeros((2, 9))},
        {"paths": np.array("a")},
        {"paths": np.array([1])},
        {"seed": 0.5},
        {"frames": np.array(["f"]), "images": np.array([1])},
        {"frames": np.array(["f"]), "images": np.array([["0"]])},
        {"frames": np.array(["f"]), "images": np.array(["0", "1"])},
        None,
    ],
)
def test_another_file_is_no_sidecar(tmp_path: Path, change: dict[str, Any] | None) -> None:
    right = {
        "paths": np.array(["a"]),
        "values": np.zeros((1, 9)),
        "seed": 1,
        "clusters": np.array(["f"]),
    }
    path = tmp_path / "x.replicates.npz"
    np.savez(path, **({} if change is None else right | change))
    with pytest.raises(InputError, match=r"x\.replicates\.npz"):
        load_replicates(path)
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(InputError, match=r"x\.replicates\.npz holds no replicates"):
        load_replicates(path)
