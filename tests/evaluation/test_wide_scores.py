"""Float scores of other tools, of any offset and scale: their numbers are scikit-learn's of the
stored numbers.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import ndimage
from sklearn import metrics as sklearn_metrics
from torch import from_numpy
from torchmetrics.functional.classification import binary_calibration_error

from segunc.data.labels import LabelMap
from segunc.decisions.flags import Threshold
from segunc.evaluation.evaluator import Evaluator, Measures
from segunc.evaluation.from_maps import MapsSource, evaluate_maps
from segunc.evaluation.resampling import Resampling
from segunc.maps.labelled import LabelSources
from segunc.metrics.objects import ObjectBins
from segunc.metrics.smiyc import TRACKS, component_result, match_components
from tests.evaluation.runs import CLASSES, Run, make_run
from tests.maps.foreign import write_map
from tests.support.oracles import pixel_numbers

LABELS = LabelMap(
    "city",
    CLASSES,
    palette=((0, 0, 0),) * 4,
    raw_to_train={0: 0, 1: 1, 2: 2, 3: 3, 255: 255},
)
RUN = make_run()
Scores = dict[str, np.ndarray]
Make = Callable[[np.ndarray], np.ndarray]


def both_zeros(s: np.ndarray) -> np.ndarray:
    zeros = s * np.float32(0)
    return np.where(abs(s) < 1, zeros, np.float32(0.0501) * s).astype(np.float32)


FORMS: dict[str, Make] = {
    "float16": lambda s: s.astype(np.float16),
    "an offset": lambda s: np.float32(98) + np.float32(0.05) * s.astype(np.float32),
    "near one, float64": lambda s: 1 - 1e-12 * np.exp(-s),
    "log-likelihoods": lambda s: (-1500 + 3 * s).astype(np.float32),
    "beyond float16": lambda s: (1e9 * s).astype(np.float32),
    "beyond float32": lambda s: 1e200 * s,
    "denormal": lambda s: (1e-42 * s).astype(np.float32),
    "whole numbers": lambda s: (2**25 + 1000 * s).astype(np.int32),
    "both zeros": both_zeros,
    "many ties": lambda s: (np.float32(0.1) * np.round(4 * s)).astype(np.float32),
}
ENDINGS = {"beyond float32": ".hdf5"}  # the other forms are .npy


def make_scores(make: Make) -> Scores:
    """Scores ``[H, W]`` by frame, higher on anomalies and on wrong predictions."""
    random = np.random.default_rng(5)
    scores = {}
    for name, frame in RUN.items():
        noise = random.normal(size=frame.anomaly.shape)
        anomalous = frame.anomaly == 1
        wrong = frame.labels != frame.prediction
        scores[name] = make(noise + anomalous + wrong)
    return scores


def evaluate(folder: Path, scores: Scores, ending: str, **measures: Any) -> dict[str, Any]:
    maps = folder / "maps"
    for name, values in scores.items():
        frame = RUN[name]
        write_map(maps / "other" / f"{name}{ending}", values)
        write_map(maps / "prediction" / f"{name}.png", frame.prediction)
        write_map(folder / "anomaly" / f"{name}.png", frame.anomaly)
        write_map(folder / "labels" / f"{name}.png", frame.labels)
    labels = LabelSources(folder / "anomaly", labels=folder / "labels", label_map=LABELS)
    result, _ = evaluate_maps(MapsSource(maps), labels, Measures(**measures))
    return result


@dataclass(frozen=True)
class FlatPixels:
    """The truth and the scores ``[P]`` of all counted pixels."""

    truth: np.ndarray
    scores: np.ndarray


def anomaly_pixels(scores: Scores) -> FlatPixels:
    """Return which pixels are anomalous, and their scores."""
    truth = []
    values = []
    for name, frame in RUN.items():
        counted = frame.anomaly != 255
        truth.append(frame.anomaly[counted])
        values.append(scores[name][counted])
    return FlatPixels(np.concatenate(truth), np.concatenate(values).astype(np.float64))


def failure_pixels(scores: Scores) -> FlatPixels:
    """Return which pixels are wrongly predicted, and their scores."""
    wrong = []
    values = []
    for name, frame in RUN.items():
        counted = frame.labels != 255
        wrong.append((frame.labels != frame.prediction)[counted])
        values.append(scores[name][counted])
    return FlatPixels(np.concatenate(wrong), np.concatenate(values).astype(np.float64))


@dataclass(frozen=True)
class Evaluated:
    """Scores of one form, a threshold that flags some, and the numbers of both."""

    scores: Scores
    threshold: float
    result: dict[str, Any]


@pytest.fixture(scope="module", params=FORMS)
def evaluated(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Evaluated:
    form = request.param
    scores = make_scores(FORMS[form])
    every_score = np.stack([*scores.values()]).astype(np.float64)
    threshold = float(np.quantile(every_score, 0.7))
    result = evaluate(
        tmp_path_factory.mktemp("form"),
        scores,
        ENDINGS.get(form, ".npy"),
        by=[ObjectBins.of("distance")],
        flag={"other": Threshold(threshold)},
    )
    return Evaluated(scores, threshold, result)


def test_no_form_of_a_score_is_left_out(evaluated: Evaluated) -> None:
    assert evaluated.result["left_out"] == []


def test_pooled_numbers_are_those_of_the_stored_scores(evaluated: Evaluated) -> None:
    pixels = anomaly_pixels(evaluated.scores)
    expected = pixel_numbers(pixels.truth, pixels.scores)
    pooled = evaluated.result["scores"]["other"]["pooled"]
    found = {key: pooled[key] for key in expected}
    assert found == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_thresholds_are_scores_as_stored(evaluated: Evaluated) -> None:
    """Applied to the maps they flag the same pixels."""
    pixels = anomaly_pixels(evaluated.scores)
    anomalous = pixels.scores[pixels.truth == 1]
    pooled = evaluated.result["scores"]["other"]["pooled"]
    assert pooled["threshold"] == pixel_numbers(pixels.truth, pixels.scores)["threshold"]
    assert np.mean(anomalous >= pooled["thresholds"]["0.8"]) >= 0.8
    assert np.mean(anomalous > pooled["thresholds"]["0.8"]) < 0.8


def test_flagged_pixels_are_those_of_the_stored_scores(evaluated: Evaluated) -> None:
    pixels = anomaly_pixels(evaluated.scores)
    anomalous = pixels.scores[pixels.truth == 1]
    expected = np.mean(anomalous >= evaluated.threshold)
    flagged = evaluated.result["flagged"]["other"]
    assert flagged["recall"] == pytest.approx(expected, abs=1e-12)


def test_numbers_of_failures_are_those_of_the_stored_scores(evaluated: Evaluated) -> None:
    pixels = failure_pixels(evaluated.scores)
    expected = pixel_numbers(pixels.truth, pixels.scores)
    selective = evaluated.result["selective"]["other"]
    for key in ("auroc", "aupr", "fpr95"):
        assert selective[f"failure_{key}"] == pytest.approx(expected[key], abs=1e-9)


def test_objects_of_each_distance_have_a_number(evaluated: Evaluated) -> None:
    rows = evaluated.result["scores"]["other"]["distance"].values()
    for row in rows:
        if row["objects"]:
            assert 0 < row["auroc"] < 1


def smiyc_by_hand(scores: Scores) -> dict[str, float]:
    """The benchmark's protocol on the values that the files hold, by NumPy's own quantiles and
    scikit-learn on the lower edges."""
    truth: list[np.ndarray] = []
    edges_of_pixels: list[np.ndarray] = []
    for name, frame in RUN.items():
        classes = [scores[name][frame.anomaly == label] for label in (0, 1)]
        quantiles = []
        for values in classes:
            if values.size:
                steps = np.linspace(0, 1, min(384, values.size))
                quantiles.append(np.quantile(values, steps))
        edges = np.unique(np.concatenate(quantiles).astype(np.float64))
        for label, values in enumerate(classes):
            indices = np.searchsorted(edges, values.astype(np.float64), side="right") - 1
            edges_of_pixels.append(edges[indices])
            truth.append(np.full(values.size, label))
    return pixel_numbers(np.concatenate(truth), np.concatenate(edges_of_pixels))


WIDE: dict[str, Make] = {
    "near one": lambda s: (1 - 1e-4 * np.exp(-s)).astype(np.float32),
    "tiny": lambda s: (1e-9 * s).astype(np.float32),
    "an offset": lambda s: (s + 1500).astype(np.float32),
    "beyond float16": lambda s: (1e6 * s).astype(np.float32),
    "near one, float64": lambda s: 1 - 1e-12 * np.exp(-s),
}


def to_codes(s: np.ndarray) -> np.ndarray:
    return np.rint(65500 + 3 * s).clip(0, 65535).astype(np.uint16)


def of_codes(codes: Scores) -> Scores:
    """Return the scores that 16-bit codes stand for."""
    return {frame: values / np.float32(65535) for frame, values in codes.items()}


def assert_benchmark_numbers(result: dict[str, Any], scores: Scores) -> None:
    found = result["scores"]["other"]["smiyc"]
    assert found == pytest.approx(smiyc_by_hand(scores), rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("name", WIDE)
def test_the_benchmark_bins_the_values_that_a_file_holds(tmp_path: Path, name: str) -> None:
    scores = make_scores(WIDE[name])
    result = evaluate(tmp_path, scores, ".npy", protocols=("smiyc",))
    assert_benchmark_numbers(result, scores)


def test_the_benchmark_bins_the_values_of_codes(tmp_path: Path) -> None:
    codes = make_scores(to_codes)
    result = evaluate(tmp_path, codes, ".png", protocols=("smiyc",))
    assert_benchmark_numbers(result, of_codes(codes))


def smooth(s: np.ndarray) -> np.ndarray:
    """Return scores that make large components."""
    return ndimage.gaussian_filter(5 * s, 3)


def assert_components(result: dict[str, Any], scores: Scores) -> None:
    """Check that components are those of the pixels above the threshold of the benchmark."""
    numbers = result["scores"]["other"]
    counts = []
    for frame, values in scores.items():
        anomaly = RUN[frame].anomaly
        threshold = values.dtype.type(numbers["smiyc"]["threshold"])
        predicted = (values > threshold) & (anomaly != 255)
        truth = anomaly == 1
        counts.append(match_components(predicted, truth, TRACKS["smiyc-obstacle"]))
    components = numbers["components"]["smiyc-obstacle"]
    assert components == component_result(np.sum(counts, axis=0))
    assert components["ppv"] is not None


@pytest.mark.parametrize("name", WIDE)
def test_components_are_those_above_the_threshold_in_the_type_of_the_file(
    tmp_path: Path, name: str
) -> None:
    scores = make_scores(lambda s: WIDE[name](smooth(s)))
    result = evaluate(tmp_path, scores, ".npy", tracks=("smiyc-obstacle",))
    assert_components(result, scores)


def test_components_of_codes_are_those_above_the_threshold(tmp_path: Path) -> None:
    codes = make_scores(lambda s: to_codes(smooth(s)))
    result = evaluate(tmp_path, codes, ".png", tracks=("smiyc-obstacle",))
    assert_components(result, of_codes(codes))


def many_units() -> dict[str, Run]:
    """Return each frame five times, under five names."""
    units = {}
    for number in range(5):
        for name, frame in RUN.items():
            units[f"{name}_{number}"] = frame
    return units


def interval_of_auroc(maps: Scores, units: dict[str, Run]) -> Any:
    """Return the interval of the benchmark's AUROC over the units."""
    names = list(units)
    evaluator = Evaluator(
        ("other",),
        None,
        names,
        anomalies=names,
        measures=Measures(protocols=("smiyc",), resampling=Resampling(200)),
    )

    def read(name: str) -> dict[str, Any]:
        return {"stored": {"other": maps[name]}, "anomaly": units[name].anomaly}

    evaluator.find_bins(names, read)
    evaluator.count(names, read)
    return evaluator.numbers()["intervals"]["scores.other.smiyc.auroc"]


def test_intervals_of_the_benchmark_are_those_of_the_scores_before_a_shift() -> None:
    """Quantiles are invariant under a linear change; replicates are kept in 4096 bins, and rounding
    moves an edge to the next one."""
    units = many_units()
    random = np.random.default_rng(7)
    maps: Scores = {}
    near_one: Scores = {}
    for name, frame in units.items():
        score = random.normal(size=frame.anomaly.shape) + (frame.anomaly == 1)
        score = np.round(score * 4096) / 4096  # both forms hold it exactly
        maps[name] = score.astype(np.float64)
        near_one[name] = 1 - 2.0**-30 * (8 - score)
    interval = interval_of_auroc(maps, units)
    assert interval_of_auroc(near_one, units) == pytest.approx(interval, abs=1e-3)


@pytest.fixture
def halves() -> Scores:
    """Scores in half precision."""
    return make_scores(lambda s: s.astype(np.float16))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_float16_scores_in_wider_files_keep_their_numbers(
    halves: Scores, tmp_path: Path, dtype: type
) -> None:
    expected = evaluate(tmp_path / "halves", halves, ".npy")
    wider = {name: values.astype(dtype) for name, values in halves.items()}
    result = evaluate(tmp_path / "wider", wider, ".npy")
    assert result["scores"] == expected["scores"]
    assert result["selective"] == expected["selective"]


def test_one_frame_in_more_bits_than_the_others_decides_for_all(
    halves: Scores, tmp_path: Path
) -> None:
    first = next(iter(halves))
    mixed = halves | {first: halves[first] + np.float32(1e-4)}
    pixels = anomaly_pixels(mixed)
    expected = sklearn_metrics.roc_auc_score(pixels.truth, pixels.scores)
    pooled = evaluate(tmp_path / "mixed", mixed, ".npy")["scores"]["other"]["pooled"]
    assert pooled["auroc"] == pytest.approx(expected, abs=1e-12)


def test_calibration_reads_confidences_of_any_precision(tmp_path: Path) -> None:
    confidences = []
    right = []
    for name, frame in RUN.items():
        confidence = frame.probabilities.max(0)
        doubt = (1 - confidence).astype(np.float32)
        write_map(tmp_path / "maps" / "msp" / f"{name}.npy", doubt)
        counted = frame.labels != 255
        confidences.append(confidence[counted])
        right.append((frame.labels == frame.prediction)[counted])
    result = evaluate(tmp_path, make_scores(lambda s: s), ".npy")
    ece = binary_calibration_error(
        from_numpy(np.concatenate(confidences)),
        from_numpy(np.concatenate(right)).int(),
        n_bins=15,
        norm="l1",
    )
    assert result["calibration"]["ece"] == pytest.approx(float(ece), abs=1e-5)
