"""The evaluator: one result of a whole run, in which every null has its reason."""

import json
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from sklearn import metrics as sklearn_metrics
from torch import from_numpy
from torchmetrics.functional.classification import multiclass_calibration_error

from segunc.core.errors import InputError, PartialFailure
from segunc.evaluation.evaluator import Evaluator, Measures
from segunc.evaluation.parts import PROTOCOLS
from segunc.maps.encoding import decode_unit
from segunc.scores import stored_as_codes
from tests.evaluation.runs import CLASSES, Run, make_frame, make_run

SCORES = ("msp", "entropy", "epistemic", "deterministic-energy")


def nulls(value: Any, path: str = "") -> Iterator[str]:
    if value is None:
        yield path
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from nulls(inner, f"{path}.{key}" if path else key)


@pytest.fixture(scope="module")
def run() -> dict[str, Run]:
    return make_run()


@pytest.fixture(scope="module")
def result(run) -> dict[str, Any]:
    evaluator = Evaluator(SCORES, CLASSES, measures=Measures(protocols=PROTOCOLS))
    for name, frame in run.items():
        assert evaluator.update(
            name, frame.stored, frame.prediction, frame.probabilities, frame.labels, frame.anomaly
        )
    return evaluator.numbers()


def test_the_schema_is_complete(result):
    sections = ["scores", "segmentation", "calibration", "selective", "frames"]
    assert list(result) == [*sections, "intervals", "reasons", "counts", "forms", "left_out"]
    assert list(result["scores"]) == list(SCORES)
    for values in result["scores"].values():
        assert list(values) == ["pooled", "per-image", "smiyc"]
        assert list(values["smiyc"]) == ["auroc", "aupr", "fpr95", "best_f1", "threshold"]
        assert list(values["pooled"]) == [*values["smiyc"], "thresholds"]
        assert list(values["per-image"]) == ["auroc", "aupr", "fpr95", "best_f1"]
    assert list(result["segmentation"]) == ["miou", "accuracy", "per_class"]
    assert list(result["segmentation"]["per_class"]) == list(CLASSES)
    assert list(result["calibration"]) == [
        "ece",
        "adaptive_ece",
        "nll",
        "brier",
        "reliability",
    ]
    assert list(result["selective"]) == list(SCORES)
    assert set(result["reasons"].values()) == {
        "every frame with an anomaly label holds an anomaly, or none does"
    }
    assert list(nulls(result)) == list(result["reasons"])
    json.dumps(result, allow_nan=False)


def all_pixels(run: dict[str, Run], field: str) -> np.ndarray:
    """The pixels of all frames of an array ``[H, W]``."""
    return np.concatenate([getattr(frame, field).ravel() for frame in run.values()])


@pytest.mark.parametrize("score", SCORES)
def test_detection_numbers_are_those_of_all_pixels(run, result, score):
    values = result["scores"][score]["pooled"]
    anomaly = all_pixels(run, "anomaly")
    stored = np.concatenate([frame.stored[score].ravel() for frame in run.values()])
    truth = anomaly[anomaly != 255]
    stored = stored[anomaly != 255]
    auroc = sklearn_metrics.roc_auc_score(truth, stored)
    assert values["auroc"] == pytest.approx(auroc, rel=1e-12)
    # The threshold is in the units of the maps, and inclusive.
    shown = decode_unit(stored) if stored_as_codes(score) else stored.astype(np.float32)
    f1 = sklearn_metrics.f1_score(truth, shown >= values["threshold"])
    assert f1 == pytest.approx(values["best_f1"], rel=1e-12)


def test_miou_is_that_of_all_pixels(run, result):
    labels = all_pixels(run, "labels")
    counted = labels != 255
    prediction = all_pixels(run, "prediction")[counted]
    iou = sklearn_metrics.jaccard_score(labels[counted], prediction, average="macro")
    assert result["segmentation"]["miou"] == pytest.approx(iou, rel=1e-12)


def test_calibration_is_that_of_all_pixels(run, result):
    labels = all_pixels(run, "labels")
    probabilities = np.concatenate(
        [frame.probabilities.reshape(len(CLASSES), -1).T for frame in run.values()]
    )
    ece = multiclass_calibration_error(
        from_numpy(probabilities), from_numpy(labels).long(), len(CLASSES), ignore_index=255
    )
    # The stored code is within half a code of the msp: a confidence moves by at most 2e-5.
    assert result["calibration"]["ece"] == pytest.approx(float(ece), abs=1e-4)
    counted = labels != 255
    nll = -np.log(probabilities[counted, labels[counted]].astype(np.float64)).mean()
    assert result["calibration"]["nll"] == pytest.approx(nll, rel=1e-6)


def test_counts_are_those_of_all_pixels(run, result):
    counts = result["counts"]
    for frames in ("frames", "frames_scored", "anomaly_frames", "labelled_frames"):
        assert counts[frames] == 4
    labels = all_pixels(run, "labels")
    assert counts["labelled_pixels"] == (labels != 255).sum()
    assert counts["ignored_label_pixels"] == (labels == 255).sum()
    anomaly = all_pixels(run, "anomaly")
    assert counts["anomaly_pixels"] == (anomaly == 1).sum()
    assert counts["pixels"] == (anomaly != 255).sum()
    assert counts["ignored_pixels"] == (anomaly == 255).sum()


def test_classes_that_are_in_no_label_are_named(run, result):
    assert "unlabelled_classes" not in result["counts"]
    evaluator = Evaluator(SCORES, CLASSES, measures=Measures(protocols=PROTOCOLS))
    for name, frame in run.items():
        labels = np.where(frame.labels == CLASSES.index("sky"), 255, frame.labels)
        evaluator.update(
            name, frame.stored, frame.prediction, frame.probabilities, labels, frame.anomaly
        )
    numbers = evaluator.numbers()
    assert numbers["counts"]["unlabelled_classes"] == ["sky"]
    assert numbers["segmentation"]["per_class"]["sky"] == 0


def hashes_of_labels(run: dict[str, Run], labels_of: dict[str, str], folder: str = "") -> Any:
    """Hashes of the labels of a result in which frames have the labels of others."""
    evaluator = Evaluator(SCORES, CLASSES, measures=Measures(protocols=PROTOCOLS))
    for name, frame in run.items():
        given = run[labels_of.get(name, name)]
        evaluator.update(
            f"{folder}{name}",
            frame.stored,
            frame.prediction,
            frame.probabilities,
            given.labels,
            given.anomaly,
        )
    counts = evaluator.numbers()["counts"]
    return counts["class_labels"], counts["anomaly_labels"]


def test_labels_of_other_frames_have_other_hashes(run):
    first, second, *_ = run
    usual = hashes_of_labels(run, {})
    swapped = hashes_of_labels(run, {first: second, second: first})
    assert usual[0] != swapped[0]
    assert usual[1] != swapped[1]
    assert hashes_of_labels(dict(reversed(run.items())), {}) == usual
    assert hashes_of_labels(run, {}, folder="drive/") == usual


def test_labels_of_another_shape_have_other_hashes() -> None:
    """A frame of normal pixels alone has the same bytes upright and lying."""
    hashes = []
    for shape in ((4, 6), (6, 4)):
        evaluator = Evaluator(("msp",), CLASSES, anomalies=("a",))
        zeros = np.zeros(shape, np.uint8)
        stored = {"msp": zeros.astype(np.uint16)}
        assert evaluator.update("a", stored, zeros, labels=zeros, anomaly=zeros)
        counts = evaluator.numbers()["counts"]
        hashes.append((counts["class_label_sizes"], counts["anomaly_label_sizes"]))
    assert hashes[0][0] != hashes[1][0]
    assert hashes[0][1] != hashes[1][1]


FIELDS = {
    "anomaly labels": "anomaly",
    "class labels": "labels",
    "prediction": "prediction",
    "probabilities": "mean_probabilities",
}


def fields_of(frame: Run) -> dict[str, Any]:
    """The fields of a frame as the evaluator takes them."""
    return {
        "stored": dict(frame.stored),
        "prediction": frame.prediction,
        "mean_probabilities": frame.probabilities,
        "labels": frame.labels,
        "anomaly": frame.anomaly,
    }


@pytest.mark.parametrize(
    ("lacking", "expected"),
    [
        ("anomaly labels", "scores.deterministic-energy.pooled.auroc"),
        ("anomaly", "scores.deterministic-energy.pooled.fpr95"),
        ("class labels", "segmentation.miou"),
        ("prediction", "segmentation.miou"),
        ("probabilities", "calibration.nll"),
        ("msp", "calibration.ece"),
    ],
)
def test_every_null_has_a_reason_and_every_reason_a_null(run, lacking, expected):
    classes = None if lacking == "class labels" else CLASSES
    evaluator = Evaluator(("deterministic-energy",), classes)
    for name, frame in run.items():
        fields = fields_of(frame)
        if lacking == "msp":
            del fields["stored"]["msp"]
        elif lacking == "anomaly":
            fields["anomaly"] = np.where(frame.anomaly == 1, np.uint8(255), frame.anomaly)
        else:
            del fields[FIELDS[lacking]]
        evaluator.update(name, **fields)
    result = evaluator.numbers()
    assert set(nulls(result)) == set(result["reasons"])
    assert expected in result["reasons"]
    assert all(result["reasons"].values())


ODD = make_frame(9)
NAN = np.where(ODD.anomaly == 0, np.float16(np.nan), ODD.stored["deterministic-energy"])
NO_EPISTEMIC = {name: values for name, values in ODD.stored.items() if name != "epistemic"}
ENTROPY = ODD.stored["entropy"]
FAULTS: list[tuple[dict[str, Any], str]] = [
    (
        {"stored": ODD.stored | {"entropy": ENTROPY[:-1]}},
        "odd: the map 'entropy' is 23 x 36, and the label is 24 x 36",
    ),
    ({"prediction": ODD.prediction[:, :-1]}, "frame odd: the prediction is 24 x 35"),
    (
        {"stored": ODD.stored | {"deterministic-energy": NAN}},
        "the map 'deterministic-energy': a score is NaN",
    ),
    ({"stored": NO_EPISTEMIC}, "there is no map 'epistemic'"),
    (
        {"stored": ODD.stored | {"entropy": decode_unit(ENTROPY)}},
        "'entropy' is stored as float, and as unit-code",
    ),
    ({"prediction": ODD.prediction + np.uint8(9)}, "the prediction holds the class ids"),
    ({"anomaly": ODD.anomaly * np.uint8(2)}, r"an anomaly label holds the values \[2, 254\]"),
    ({"mean_probabilities": ODD.probabilities * 3}, "do not sum to 1"),
    ({"labels": None, "anomaly": None}, "neither an anomaly label nor a class label"),
]


@pytest.mark.parametrize(("fault", "message"), FAULTS, ids=[message for _, message in FAULTS])
def test_a_bad_frame_is_named_left_out_and_leaves_no_trace(run, fault, message):
    evaluator = Evaluator(SCORES, CLASSES)
    for name, frame in run.items():
        evaluator.update(
            name, frame.stored, frame.prediction, frame.probabilities, frame.labels, frame.anomaly
        )
    before = evaluator.numbers()
    assert evaluator.update("odd", **fields_of(ODD) | fault) is False
    after = evaluator.numbers()
    assert [entry["frame"] for entry in after["left_out"]] == ["odd"]
    assert after["counts"]["frames_left_out"] == 1
    assert re.search(message, after["left_out"][0]["reason"])
    for section in ("scores", "segmentation", "calibration"):
        assert after[section] == before[section]


def test_the_reason_of_a_frame_names_options_as_they_are_typed(run):
    """Reasons stand in files and on the terminal."""
    evaluator = Evaluator(SCORES, CLASSES)

    def read(name):
        raise InputError("it is damaged", hint="the same with --verify")

    evaluator.count(["odd"], read)
    for name, frame in run.items():
        evaluator.update(name, **fields_of(frame))
    (entry,) = evaluator.numbers()["left_out"]
    assert entry["reason"] == "it is damaged. Hint: the same with --verify"


def test_frames_of_equal_images_are_counted_as_copies(run):
    names = list(run)
    stamp_of = {names[0]: "a", names[1]: "b", names[-1]: "a"}
    evaluator = Evaluator(SCORES, CLASSES, stamp_of=stamp_of.get)
    for name in stamp_of:
        evaluator.update(name, **fields_of(run[name]))
    assert evaluator.copies == 1


def test_results_tell_other_images_of_the_same_names(run):
    sums = []
    for image in ("a", "b", None):
        evaluator = Evaluator(SCORES, CLASSES, stamp_of=dict.fromkeys(run, image).get)
        for name, frame in run.items():
            evaluator.update(name, **fields_of(frame))
        sums.append(evaluator.numbers()["counts"])
    first, other, unknown = sums
    assert first["frame_names"] == other["frame_names"]
    assert first["images"] != other["images"]
    assert "images" not in unknown


def test_no_frame_is_an_error():
    evaluator = Evaluator(("msp",), None)
    with pytest.raises(PartialFailure, match="no frame of 0"):
        evaluator.numbers()


def test_no_frame_that_can_be_counted_is_an_error():
    evaluator = Evaluator(("msp",), None)
    evaluator.leave_out("a", "it cannot be read")
    message = r"no frame of 1 could be scored \(first a: it cannot be read"
    with pytest.raises(PartialFailure, match=message):
        evaluator.numbers()


def test_nothing_to_evaluate_is_refused():
    with pytest.raises(InputError, match="neither a score nor a class"):
        Evaluator((), None)
