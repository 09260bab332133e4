"""Float scores of other tools, of any offset and scale: their numbers are scikit-learn's of the
stored numbers.
"""

from collections.abc import Callable
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
from tests.evaluation.runs import CLASSES, make_run
from tests.maps.foreign import write_map

LABELS = LabelMap("city", CLASSES, ((0, 0, 0),) * 4, {i: i for i in range(4)} | {255: 255})
RUN = make_run()
Scores = dict[str, np.ndarray]
Make = Callable[[np.ndarray], np.ndarray]
FORMS: dict[str, tuple[str, Make]] = {
    "float16": (".npy", lambda s: s.astype(np.float16)),
    "an offset": (".npy", lambda s: np.float32(98) + np.float32(0.05) * s.astype(np.float32)),
    "near one, float64": (".npy", lambda s: 1 - 1e-12 * np.exp(-s)),
    "log-likelihoods": (".npy", lambda s: (-1500 + 3 * s).astype(np.float32)),
    "beyond float16": (".npy", lambda s: (1e9 * s).astype(np.float32)),
    "beyond float32": (".hdf5", lambda s: 1e200 * s),
    "denormal": (".npy", lambda s: (1e-42 * s).astype(np.float32)),
    "whole numbers": (".npy", lambda s: (2**25 + 1000 * s).astype(np.int32)),
    "both zeros": (
        ".npy",
        lambda s: np.where(abs(s) < 1, s * np.float32(0), np.float32(0.0501) * s).astype(
            np.float32
        ),
    ),
    "many ties": (".npy", lambda s: (np.float32(0.1) * np.round(4 * s)).astype(np.float32)),
}


def make_scores(make: Make) -> Scores:
    """Scores ``[H, W]`` by frame, higher on anomalies and on wrong predictions."""
    random = np.random.default_rng(5)
    return {
        name: make(
            random.normal(size=frame.anomaly.shape)
            + (frame.anomaly == 1)
            + (frame.labels != frame.prediction)
        )
        for name, frame in RUN.items()
    }


def evaluate(folder: Path, scores: Scores, ending: str, **measures: Any) -> dict[str, Any]:
    for name, values in scores.items():
        write_map(folder / "maps" / "other" / f"{name}{ending}", values)
        write_map(folder / "maps" / "prediction" / f"{name}.png", RUN[name].prediction)
        write_map(folder / "anomaly" / f"{name}.png", RUN[name].anomaly)
        write_map(folder / "labels" / f"{name}.png", RUN[name].labels)
    labels = LabelSources(folder / "anomaly", labels=folder / "labels", label_map=LABELS)
    result, _ = evaluate_maps(MapsSource(folder / "maps"), labels, Measures(**measures))
    return result


def pixel_numbers(truth: np.ndarray, scores: np.ndarray) -> dict[str, Any]:
    false, true, _ = sklearn_metrics.roc_curve(truth, scores, drop_intermediate=False)
    precision, recall, thresholds = sklearn_metrics.precision_recall_curve(truth, scores)
    f1 = 2 * precision * recall / np.maximum(precision + recall, 1e-30)
    best = np.flatnonzero(f1[:-1] >= f1.max() * (1 - 1e-12))[-1]
    return {
        "auroc": sklearn_metrics.roc_auc_score(truth, scores),
        "aupr": sklearn_metrics.average_precision_score(truth, scores),
        "fpr95": false[np.argmax(true >= 0.95)],
        "best_f1": f1[best],
        "threshold": thresholds[best],
    }


def flat(
    scores: Scores, truth: Callable[[Any], np.ndarray], counted: Callable[[Any], np.ndarray]
) -> tuple[Any, Any]:
    """The truth and the scores of all counted pixels."""
    parts = [
        (truth(frame)[counted(frame)], scores[name][counted(frame)]) for name, frame in RUN.items()
    ]
    return np.concatenate([part for part, _ in parts]), np.concatenate(
        [part for _, part in parts]
    ).astype(np.float64)


@pytest.mark.parametrize("name", FORMS)
def test_every_number_is_that_of_the_stored_scores(tmp_path: Path, name: str) -> None:
    ending, make = FORMS[name]
    scores = make_scores(make)
    value = float(np.quantile(np.stack([*scores.values()]).astype(np.float64), 0.7))
    result = evaluate(
        tmp_path, scores, ending, by=[ObjectBins.of("distance")], flag={"other": Threshold(value)}
    )
    assert result["left_out"] == []
    truth, values = flat(scores, lambda frame: frame.anomaly, lambda frame: frame.anomaly != 255)
    expected, pooled = pixel_numbers(truth, values), result["scores"]["other"]["pooled"]
    assert {key: pooled[key] for key in expected} == pytest.approx(expected, rel=1e-9, abs=1e-9)
    # Thresholds are scores as stored: applied to the maps they flag the same pixels.
    assert pooled["threshold"] == expected["threshold"]
    assert np.mean(values[truth == 1] >= pooled["thresholds"]["0.8"]) >= 0.8
    assert np.mean(values[truth == 1] > pooled["thresholds"]["0.8"]) < 0.8
    hits = result["flagged"]["other"]
    assert hits["recall"] == pytest.approx(np.mean(values[truth == 1] >= value), abs=1e-12)
    wrong, uncertain = flat(
        scores, lambda frame: frame.labels != frame.prediction, lambda frame: frame.labels != 255
    )
    failure, selective = pixel_numbers(wrong, uncertain), result["selective"]["other"]
    for key in ("auroc", "aupr", "fpr95"):
        assert selective[f"failure_{key}"] == pytest.approx(failure[key], abs=1e-9)
    far = [key for key, row in result["scores"]["other"]["distance"].items() if row["objects"]]
    assert all(0 < result["scores"]["other"]["distance"][key]["auroc"] < 1 for key in far)


def smiyc_by_hand(scores: Scores) -> dict[str, float]:
    """The benchmark's protocol on the values that the files hold, by NumPy's own quantiles and
    scikit-learn on the lower edges."""
    truth: list[np.ndarray] = []
    edges_of_pixels: list[np.ndarray] = []
    for name, frame in RUN.items():
        kinds = [scores[name][frame.anomaly == label] for label in (0, 1)]
        quantiles = [np.quantile(k, np.linspace(0, 1, min(384, k.size))) for k in kinds if k.size]
        edges = np.unique(np.concatenate(quantiles).astype(np.float64))
        for label, kind in enumerate(kinds):
            places = np.searchsorted(edges, kind.astype(np.float64), side="right") - 1
            edges_of_pixels.append(edges[places])
            truth.append(np.full(kind.size, label))
    return pixel_numbers(np.concatenate(truth), np.concatenate(edges_of_pixels))


WIDE: dict[str, Make] = {
    "near one": lambda s: (1 - 1e-4 * np.exp(-s)).astype(np.float32),
    "tiny": lambda s: (1e-9 * s).astype(np.float32),
    "an offset": lambda s: (s + 1500).astype(np.float32),
    "beyond float16": lambda s: (1e6 * s).astype(np.float32),
    "near one, float64": lambda s: 1 - 1e-12 * np.exp(-s),
    "codes of 16 bits": lambda s: np.rint(65500 + 3 * s).clip(0, 65535).astype(np.uint16),
}


@pytest.mark.parametrize("name", WIDE)
def test_the_benchmark_bins_the_values_that_a_file_holds(tmp_path: Path, name: str) -> None:
    scores = make_scores(WIDE[name])
    ending = ".png" if name.startswith("codes") else ".npy"
    result = evaluate(tmp_path, scores, ending, protocols=("smiyc",))
    if ending == ".png":
        scores = {frame: codes / np.float32(65535) for frame, codes in scores.items()}
    found = result["scores"]["other"]["smiyc"]
    assert found == pytest.approx(smiyc_by_hand(scores), rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("name", WIDE)
def test_components_are_those_above_the_threshold_in_the_type_of_the_file(
    tmp_path: Path, name: str
) -> None:
    scores = make_scores(lambda s: WIDE[name](ndimage.gaussian_filter(5 * s, 3)))
    ending = ".png" if name.startswith("codes") else ".npy"
    result = evaluate(tmp_path, scores, ending, tracks=("smiyc-obstacle",))["scores"]["other"]
    if ending == ".png":
        scores = {frame: codes / np.float32(65535) for frame, codes in scores.items()}
    counts = 0
    for frame, values in scores.items():
        anomaly = RUN[frame].anomaly
        predicted = (values > values.dtype.type(result["smiyc"]["threshold"])) & (anomaly != 255)
        counts = counts + match_components(predicted, anomaly == 1, TRACKS["smiyc-obstacle"])
    assert result["components"]["smiyc-obstacle"] == component_result(np.asarray(counts))
    assert result["components"]["smiyc-obstacle"]["ppv"] is not None


def test_intervals_of_the_benchmark_are_those_of_the_scores_before_a_shift(tmp_path: Path) -> None:
    """Quantiles are invariant under a linear change; replicates are kept in 4096 bins, and rounding
    moves an edge to the next one."""
    units = {f"{name}_{number}": frame for number in range(5) for name, frame in RUN.items()}
    intervals = {}
    for near_one in (False, True):
        random = np.random.default_rng(7)
        maps: Scores = {}
        for name, frame in units.items():
            score = random.normal(size=frame.anomaly.shape) + (frame.anomaly == 1)
            score = np.round(score * 4096) / 4096  # both forms hold it exactly
            maps[name] = 1 - 2.0**-30 * (8 - score) if near_one else score.astype(np.float64)
        evaluator = Evaluator(
            ("other",),
            None,
            list(units),
            anomalies=list(units),
            measures=Measures(protocols=("smiyc",), resampling=Resampling(200)),
        )

        def read(name: str, maps: Scores = maps) -> dict[str, Any]:
            return {"stored": {"other": maps[name]}, "anomaly": units[name].anomaly}

        evaluator.find_bins(list(units), read)
        evaluator.count(list(units), read)
        intervals[near_one] = evaluator.numbers()["intervals"]["scores.other.smiyc.auroc"]
    assert intervals[True] == pytest.approx(intervals[False], abs=1e-3)


def test_float16_scores_keep_their_keys_and_wide_ones_do_not_pass_for_them(tmp_path: Path) -> None:
    halves = make_scores(lambda s: s.astype(np.float16))
    of_halves = evaluate(tmp_path / "a", halves, ".npy")
    for number, dtype in enumerate((np.float32, np.float64)):
        same = {name: values.astype(dtype) for name, values in halves.items()}
        result = evaluate(tmp_path / str(number), same, ".npy")
        assert (result["scores"], result["selective"]) == (
            of_halves["scores"],
            of_halves["selective"],
        )
    # One frame in more bits than the others decides for all.
    mixed = {
        name: values if n else values + np.float32(1e-4)
        for n, (name, values) in enumerate(halves.items())
    }
    truth, values = flat(mixed, lambda frame: frame.anomaly, lambda frame: frame.anomaly != 255)
    pooled = evaluate(tmp_path / "mixed", mixed, ".npy")["scores"]["other"]["pooled"]
    assert pooled["auroc"] == pytest.approx(sklearn_metrics.roc_auc_score(truth, values), abs=1e-12)


def test_calibration_reads_confidences_of_any_precision(tmp_path: Path) -> None:
    for name, frame in RUN.items():
        write_map(
            tmp_path / "maps" / "msp" / f"{name}.npy",
            (1 - frame.probabilities.max(0)).astype(np.float32),
        )
    result = evaluate(tmp_path, make_scores(lambda s: s), ".npy")
    pairs = [
        (f.probabilities.max(0)[f.labels != 255], (f.labels == f.prediction)[f.labels != 255])
        for f in RUN.values()
    ]
    confidence, right = (from_numpy(np.concatenate(part)) for part in zip(*pairs, strict=True))
    ece = binary_calibration_error(confidence, right.int(), n_bins=15, norm="l1")
    assert result["calibration"]["ece"] == pytest.approx(float(ece), abs=1e-5)
