"""``segunc.score``: arrays give the numbers that the command line gives of their files."""

from __future__ import annotations

import doctest
import json
import pickle
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn import metrics as sklearn_metrics

import segunc
import segunc.verbs.score as module
from segunc.core.errors import InputError
from segunc.evaluation.evaluator import Evaluator
from segunc.plots import precision_recall_line, roc_line
from segunc.posteriors.image_maps import BatchMaps, ImageMaps
from tests.evaluation.runs import CLASSES, SIZE, Run, decoded, make_run, write_run
from tests.maps.foreign import write_map
from tests.support.oracles import pixel_numbers

pytestmark = pytest.mark.usefixtures("few_units")
SCORES = ("deterministic-energy", "entropy", "epistemic", "msp")
ABOUT = ("run", "counts", "left_out", "record_sha256")
RUN = make_run()
NAMES = [*RUN]


def model_result(frame: Run) -> Any:
    return SimpleNamespace(scores=decoded(frame), prediction=frame.prediction)


MAPS = {name: model_result(frame) for name, frame in RUN.items()}
ANOMALY = {name: frame.anomaly for name, frame in RUN.items()}
LABELS = {name: frame.labels for name, frame in RUN.items()}
ENTROPY = [maps.scores["entropy"] for maps in MAPS.values()]
MASKS = [*ANOMALY.values()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("scored")
    write_run(root, RUN)
    return root


def of_command_line(folder: Path, **options: Any) -> dict[str, Any]:
    """Return the content of the file that the command line writes."""
    out = folder / "metrics.json"
    segunc.evaluate(maps=folder / "maps", out=out, replicates=60, **options)
    content: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    return content


def without_about(content: dict[str, Any]) -> dict[str, Any]:
    return {name: section for name, section in content.items() if name not in ABOUT}


def assert_same(content: dict[str, Any], expected: dict[str, Any]) -> None:
    """Every number, interval and reason is the same to the last digit."""
    assert without_about(content) == without_about(expected)
    for name, number in content["counts"].items():
        assert expected["counts"][name] == number


@pytest.fixture(scope="module")
def anomaly_file(folder: Path) -> dict[str, Any]:
    return of_command_line(
        folder,
        anomaly_labels=folder / "anomaly",
        protocols=["pooled", "smiyc"],
        components=["smiyc-anomaly", "smiyc-obstacle"],
        by=["size", "distance"],
    )


def score_all(maps: Any = MAPS, labels: Any = ANOMALY, **options: Any) -> segunc.AnomalyResult:
    return segunc.score(
        maps,
        labels,
        protocols=["pooled", "smiyc"],
        components=["smiyc-anomaly", "smiyc-obstacle"],
        by=["size", "distance"],
        replicates=60,
        **options,
    )


def test_maps_of_a_model_give_every_number_of_the_command_line(anomaly_file):
    content = score_all().to_dict()
    assert len(content["intervals"]) > 40
    assert_same(content, anomaly_file)


@pytest.mark.parametrize("kind", ["arrays by score", "tensors by score", "lists", "a batch"])
def test_decoded_arrays_give_every_number_of_the_command_line(kind, anomaly_file):
    by_score: dict[str, Any] = {}
    for score in SCORES:
        by_score[score] = [maps.scores[score] for maps in MAPS.values()]
        if kind == "tensors by score":
            by_score[score] = [torch.from_numpy(values) for values in by_score[score]]
        if kind == "a batch":
            by_score[score] = np.stack(by_score[score])
    maps: Any = by_score
    labels: Any = MASKS
    if kind == "lists":
        maps = [*MAPS.values()]
        labels = np.stack(MASKS)
    assert_same(score_all(maps, labels, names=NAMES).to_dict(), anomaly_file)


def test_fields_are_the_numbers_of_the_file(anomaly_file):
    result = score_all()
    assert result.score == "entropy"
    assert result.scores == (
        "entropy",
        *(name for name in RUN[NAMES[0]].stored if name != "entropy"),
    )
    for score in SCORES:
        fields = result[score]
        section = anomaly_file["scores"][score]
        for name in ("auroc", "aupr", "fpr95", "best_f1", "threshold"):
            assert getattr(fields, name) == section["pooled"][name]
            assert getattr(fields.protocols["smiyc"], name) == section["smiyc"][name]
        components = section["components"]["smiyc-anomaly"]
        assert fields.siou_gt == components["siou_gt"]
        assert fields.ppv == components["ppv"]
        assert fields.component_f1 == components["mean_f1"]
        assert (
            fields.components["smiyc-obstacle"].f1 == section["components"]["smiyc-obstacle"]["f1"]
        )
        low, high = fields.intervals["auroc"]
        assert [low, high] == anomaly_file["intervals"][f"scores.{score}.pooled.auroc"]
    assert result.frames == 4
    assert result.pixels == sum(int((mask < 2).sum()) for mask in MASKS)
    assert result.anomaly_pixels == sum(int((mask == 1).sum()) for mask in MASKS)
    assert result.ignored_pixels == sum(int((mask == 255).sum()) for mask in MASKS)


@pytest.mark.parametrize("kind", [str, Path])
def test_class_labels_give_every_number_of_the_command_line(folder, kind):
    expected = of_command_line(
        folder, labels=folder / "labels", label_map=kind(folder / "classes.csv")
    )
    result = segunc.score(MAPS, LABELS, classes=CLASSES, replicates=60)
    assert len(expected["intervals"]) > 10
    assert_same(result.to_dict(), expected)
    assert result.miou == expected["segmentation"]["miou"]
    assert result.class_iou == expected["segmentation"]["per_class"]
    assert result.ece == expected["calibration"]["ece"]
    assert result.aurc == expected["selective"]["entropy"]["aurc"]
    assert result["msp"].failure_auroc == expected["selective"]["msp"]["failure_auroc"]
    assert result.nll is None
    assert "evaluate with the model" in result.reasons["nll"]


def test_probabilities_give_every_number_of_a_model():
    """``evaluate --model`` counts the same fields by the same evaluator."""
    evaluator = Evaluator(("msp",), CLASSES, NAMES, anomalies=None)
    for name, frame in RUN.items():
        stored = {"msp": frame.stored["msp"]}
        evaluator.update(name, stored, frame.prediction, frame.probabilities, frame.labels)
    expected = evaluator.numbers()
    probabilities = np.stack([frame.probabilities for frame in RUN.values()])
    labels = np.stack([*LABELS.values()])
    result = segunc.score(probabilities, labels, classes=CLASSES, names=NAMES, replicates=0)
    content = result.to_dict()
    for section in ("segmentation", "calibration", "selective", "frames"):
        assert content[section] == expected[section]
    assert result.nll == expected["calibration"]["nll"]


def test_probabilities_give_the_numbers_of_scikit_learn():
    probabilities = np.stack([frame.probabilities for frame in RUN.values()])
    labels = np.stack([*LABELS.values()])
    result = segunc.score(torch.from_numpy(probabilities), labels, classes=4, replicates=0)
    counted = labels != 255
    flat = np.moveaxis(probabilities, 1, -1)[counted].astype(np.float64)
    flat /= flat.sum(1, keepdims=True)
    truth = labels[counted]
    assert result.accuracy == sklearn_metrics.accuracy_score(truth, flat.argmax(1))
    assert result.nll == pytest.approx(sklearn_metrics.log_loss(truth, flat), abs=2e-6)
    iou = sklearn_metrics.jaccard_score(truth, flat.argmax(1), average="macro")
    assert result.miou == pytest.approx(iou, abs=1e-12)


def test_numbers_of_untied_floats_are_those_of_scikit_learn():
    random = np.random.default_rng(3)
    maps = [random.normal(size=(30, 40)).astype(np.float32) for _ in range(3)]
    masks = [(m + random.normal(size=m.shape) > 1.5) for m in maps]
    result = segunc.score(maps, masks, components=None, replicates=0)
    truth = np.concatenate([mask.ravel() for mask in masks])
    expected = pixel_numbers(truth, np.concatenate([m.ravel() for m in maps]))
    for name, value in expected.items():
        assert getattr(result, name) == pytest.approx(value, abs=1e-12)


FLOATS_OF_OTHERS = [maps.scores["entropy"] + np.float32(0.25) for maps in MAPS.values()]


@pytest.mark.parametrize("in_a_list", [False, True])
def test_images_of_a_batch_may_differ_in_size(in_a_list):
    images = []
    masks = []
    for number, (name, maps) in enumerate(MAPS.items()):
        rows = slice(0, 24 - 5 * number)
        scores = {score: values[rows].astype(np.float32) for score, values in maps.scores.items()}
        images.append(ImageMaps(maps.prediction[rows], scores))
        masks.append(ANOMALY[name][rows])
    batch: Any = BatchMaps(images)
    if in_a_list:
        batch = [BatchMaps(images[:3]), images[3]]
    result = segunc.score(batch, masks, replicates=60)
    assert result.to_dict() == segunc.score(images, masks, replicates=60).to_dict()
    assert result.frames == 4


def test_scores_with_a_prediction_of_their_own():
    """``prediction`` says that the maps are scores."""
    predictions = [frame.prediction for frame in RUN.values()]
    labels = [*LABELS.values()]
    result = segunc.score(
        {"entropy": ENTROPY}, labels, classes=4, prediction=predictions, replicates=0
    )
    expected = segunc.score(MAPS, LABELS, classes=4, replicates=0)
    assert result.aurc == expected.aurc
    assert result.miou == expected.miou
    assert result.ece is None
    assert result.reasons["ece"] == "no labelled frame has a prediction and a map 'msp'"


def test_floats_of_another_tool_are_counted_as_the_command_line_counts_their_files(tmp_path):
    for name, values in zip(NAMES, FLOATS_OF_OTHERS, strict=True):
        write_map(tmp_path / "maps" / "mine" / f"{name}.npy", values)
        write_map(tmp_path / "anomaly" / f"{name}.png", ANOMALY[name])
    expected = of_command_line(
        tmp_path,
        anomaly_labels=tmp_path / "anomaly",
        protocols=["smiyc", "pooled"],
        components=["smiyc-obstacle"],
    )
    result = segunc.score(
        FLOATS_OF_OTHERS,
        MASKS,
        scores="mine",
        names=NAMES,
        protocols=["smiyc", "pooled"],
        components=["smiyc-obstacle"],
        replicates=60,
    )
    assert_same(result.to_dict(), expected)
    assert result.protocol == "smiyc"
    assert result.auroc == expected["scores"]["mine"]["smiyc"]["auroc"]


def test_a_batch_of_a_model_is_its_frames():
    scores: dict[str, np.ndarray] = {}
    for name in SCORES:
        scores[name] = np.stack([maps.scores[name] for maps in MAPS.values()])
    prediction = np.stack([maps.prediction for maps in MAPS.values()])
    batch = SimpleNamespace(scores=scores, prediction=prediction)
    result = segunc.score(batch, np.stack(MASKS), names=NAMES, replicates=60)
    assert (
        result.to_dict()
        == segunc.score([*MAPS.values()], MASKS, names=NAMES, replicates=60).to_dict()
    )
    of_classes = segunc.score(batch, [*LABELS.values()], classes=CLASSES, replicates=0)
    assert of_classes == segunc.score(MAPS, LABELS, classes=CLASSES, replicates=0)


def test_scores_of_a_model_are_rounded_as_they_are_stored():
    below_one_step = np.float32(1e-9)
    shifted = []
    for maps in MAPS.values():
        scores = {"entropy": maps.scores["entropy"] + below_one_step}
        shifted.append(SimpleNamespace(scores=scores, prediction=maps.prediction))
    result = segunc.score(shifted, MASKS, names=NAMES, replicates=60)
    stored = segunc.score({"entropy": ENTROPY}, MASKS, names=NAMES, replicates=60)
    assert result.to_dict() == stored.to_dict()


def test_another_seed_gives_other_intervals_of_the_same_numbers():
    first = segunc.score(ENTROPY, MASKS, replicates=60, components=None)
    second = segunc.score(ENTROPY, MASKS, replicates=60, components=None, seed=1)
    assert first.auroc == second.auroc
    assert first.intervals["auroc"] != second.intervals["auroc"]


def test_frames_of_different_sizes():
    maps = [ENTROPY[0], ENTROPY[1][:9, :7]]
    labels = [MASKS[0], MASKS[1][:9, :7]]
    result = segunc.score(maps, labels, components=None, replicates=0)
    truth = np.concatenate([label.ravel() for label in labels])
    flat = np.concatenate([m.ravel() for m in maps])
    expected = sklearn_metrics.roc_auc_score(truth[truth < 2], flat[truth < 2])
    assert result.auroc == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    "container", ["one array", "a list of batches", "channels of one", "a generator", "bfloat16"]
)
def test_containers_give_the_same_numbers(container):
    maps: Any = np.stack([(m * 64).round() for m in ENTROPY])
    labels: Any = np.stack(MASKS)
    expected = segunc.score(maps, labels, replicates=0).auroc
    if container == "one array":
        maps = maps.reshape(-1, maps.shape[-1])
        labels = labels.reshape(-1, labels.shape[-1])
    if container == "a list of batches":
        maps = [maps[:3], maps[3:]]
        labels = [labels[:1], labels[1:]]
    if container == "channels of one":
        maps = torch.from_numpy(maps)[:, None].requires_grad_()
        labels = torch.from_numpy(labels)[:, None].long()
    if container == "a generator":
        maps = (m for m in maps)
        labels = (label for label in labels)
    if container == "bfloat16":
        maps = torch.from_numpy(maps).bfloat16()
    assert segunc.score(maps, labels, replicates=0).auroc == expected


def test_one_name_stands_for_a_list_of_it():
    alone = segunc.score(
        ENTROPY, MASKS, protocols="smiyc", components="smiyc-obstacle", by="distance", replicates=0
    )
    listed = segunc.score(
        ENTROPY,
        MASKS,
        protocols=["smiyc"],
        components=["smiyc-obstacle"],
        by=["distance"],
        replicates=0,
    )
    assert alone.to_dict() == listed.to_dict()


def test_a_label_of_its_own_for_ignored_pixels():
    labels = [np.where(mask == 255, -1, mask.astype(np.int64)) for mask in MASKS]
    expected = segunc.score(ENTROPY, MASKS, replicates=0)
    assert segunc.score(ENTROPY, labels, ignore=-1, replicates=0) == expected


def test_nan_at_ignored_pixels_is_not_counted():
    maps = [
        np.where(mask == 255, np.nan, values) for values, mask in zip(ENTROPY, MASKS, strict=True)
    ]
    expected = segunc.score(ENTROPY, MASKS, replicates=0)
    assert segunc.score(maps, MASKS, replicates=0).auroc == expected.auroc


def test_one_kind_of_pixels_gives_no_number_but_a_reason():
    result = segunc.score(ENTROPY[0], np.zeros(SIZE, np.uint8), replicates=0)
    assert result.auroc is None
    assert result.threshold is None
    assert result.reasons["auroc"] == "no pixel is labelled as an anomaly"
    assert result.reasons["siou_gt"] == "it has no threshold: no pixel is labelled as an anomaly"
    assert "no pixel is labelled as an anomaly" in repr(result)
    with pytest.raises(InputError, match="no curve to plot: no pixel is labelled as an anomaly"):
        result.plot()


GOOD = ENTROPY[0]
MASK = MASKS[0]
WRONG_PROBABILITIES = np.full((4, *SIZE), 0.4, np.float32)
BAD: dict[str, tuple[Any, Any, dict[str, Any], str]] = {
    "another size": (GOOD, MASK[:5], {}, "score 'score' is 24 x 36, and its label 5 x 36"),
    "another number": ([GOOD], MASKS, {}, "has 1 frame, and labels has 4"),
    "unknown values": (GOOD, MASK + 2, {}, r"holds the values \[2, 3\].*ignored.*classes=19"),
    "float labels": (GOOD, MASK.astype(float), {}, "label of frame '000000' is of type float64"),
    "NaN": (GOOD * np.nan, MASK, {}, "holds NaN or infinite values at 8\\d\\d labelled pixels"),
    "infinite": (GOOD + np.inf, MASK, {}, "NaN or infinite"),
    "integers": (MASK, MASK, {}, "is of type uint8, and scores are floats.*decode_unit"),
    "booleans": (MASK == 1, MASK, {}, "is of type bool, and scores are floats"),
    "text": ("entropy", MASK, {}, "maps is str, and not an array of numbers"),
    "nothing": ([], MASK, {}, "maps holds no frame"),
    "no axes": (np.ones(4), MASK, {}, r"maps has the shape \(4,\)"),
    "four axes": (np.ones((2, 3, 4, 5)), MASK, {}, r"maps has the shape \(2, 3, 4, 5\)"),
    "an unknown score": (
        MAPS,
        ANOMALY,
        {"scores": ["entrpy"]},
        "'entrpy', and maps hold .*mean entropy",
    ),
    "other names": ({"a": MAPS[NAMES[0]]}, ANOMALY, {}, "maps has 'a', and no label is named so"),
    "a missing name": (dict([*MAPS.items()][1:]), ANOMALY, {}, "named 'bergen/frame_0', and maps"),
    "names of labels alone": (ENTROPY, ANOMALY, {}, "labels is a mapping .* and maps is not"),
    "names twice": (MAPS, ANOMALY, {"names": NAMES}, "names are given twice"),
    "few names": (ENTROPY, MASKS, {"names": ["a"]}, "1 names are given for 4 labels"),
    "same names": (ENTROPY, MASKS, {"names": [*"aabc"]}, "two frames are named 'a'"),
    "a track": (GOOD, MASK, {"components": ["x"]}, "there is no component track 'x'"),
    "a protocol": (
        GOOD,
        MASK,
        {"protocols": ["x"]},
        "`protocols` x is none of pooled, per-image, smiyc",
    ),
    "no protocol": (GOOD, MASK, {"protocols": []}, "`protocols` names none"),
    "text of replicates": (GOOD, MASK, {"replicates": "a"}, "`replicates` 'a' is not a number"),
    "a text as seed": (GOOD, MASK, {"seed": "s"}, "`seed` 's' is not a number"),
    "a negative seed": (GOOD, MASK, {"seed": -4}, "`seed` -4 is not a number of at least 0"),
    "a negative size": (GOOD, MASK, {"smallest_object": -1}, "`smallest_object` -1 is not"),
    "a text to ignore": (GOOD, MASK, {"ignore": "x"}, "`ignore` 'x' is not a number"),
    "a broken number of classes": (MASK, MASK, {"classes": 2.0}, "classes is 2.0"),
    "one class": (MASK, MASK, {"classes": 1}, "classes says 1 classes"),
    "replicates": (GOOD, MASK, {"replicates": 3}, "`replicates` 3: use 0"),
    "class ids": (GOOD, MASK, {"prediction": MASK}, "prediction and probabilities go with labels"),
    "floats as ids": (GOOD, MASK, {"classes": 4}, "floats .* neither class ids nor prob"),
    "a text of classes": (GOOD, MASK, {"classes": "road"}, "classes is the text 'road'"),
    "unknown ids": (MASK, np.full(SIZE, 7), {"classes": 4}, r"class ids \[7\].*in 0\.\.3 nor 255"),
    "other classes": (
        WRONG_PROBABILITIES,
        MASK,
        {"classes": 5},
        "of 4 classes, and classes says 5",
    ),
    "sums": (WRONG_PROBABILITIES, MASK, {"classes": 4}, "frame '000000'.*do not sum to 1"),
    "float ids": (GOOD, MASK, {"classes": 4, "prediction": GOOD}, "prediction of frame .* float32"),
    "scores alone": ({"entropy": ENTROPY}, MASKS, {"classes": 4}, "need a prediction"),
}


@pytest.mark.parametrize("fault", BAD)
def test_bad_input_is_one_sentence_that_names_the_argument(fault):
    maps, labels, options, message = BAD[fault]
    with pytest.raises(InputError, match=message) as caught:
        segunc.score(maps, labels, **options)
    assert "\n" not in str(caught.value)


def test_a_table_for_terminals_and_notebooks():
    result = segunc.score(MAPS, ANOMALY, replicates=60)
    first, auroc, *_ = repr(result).splitlines()
    assert first.startswith(f"Entropy: {result.anomaly_pixels:,} anomalous of ")
    low, high = result.intervals["auroc"]
    assert auroc.split() == ["AUROC", f"{result.auroc:.4f}", f"[{low:.4f},", f"{high:.4f}]"]
    assert f"<td>{result.auroc:.4f}</td><td>{low:.4f} .. {high:.4f}</td>" in result._repr_html_()


def test_a_name_is_escaped_in_html():
    html = segunc.score(GOOD, MASK, scores="<b>", replicates=0)._repr_html_()
    assert "&lt;b&gt;" in html
    assert "<b>" not in html.lower()


def test_figures_show_the_curves_of_all_scores():
    result = segunc.score(MAPS, ANOMALY, scores=["entropy", "msp"], replicates=0)
    axes = result.plot("roc").axes[0]
    assert [line.get_label() for line in axes.lines][:2] == [
        f"Entropy  {result.auroc:.3f}",
        f"1 − confidence  {result['msp'].auroc:.3f}",
    ]
    assert result._curve is not None
    np.testing.assert_array_equal(
        axes.lines[0].get_xdata(), roc_line("entropy", result._curve, 0).x
    )
    axes = result.plot("precision-recall").axes[0]
    np.testing.assert_array_equal(
        axes.lines[0].get_ydata(), precision_recall_line("entropy", result._curve, 0).y
    )


def test_figures_of_classes():
    result = segunc.score(MAPS, LABELS, classes=CLASSES, replicates=0)
    confidence = np.transpose(result.to_dict()["calibration"]["reliability"])[0]
    line = result.plot("reliability").axes[0].lines[0]
    np.testing.assert_array_equal(line.get_xdata(), confidence)
    risk = result.plot("risk-coverage").axes[0].lines[0]
    error = 1 - (result.accuracy or 0)
    assert risk.get_ydata()[-1] == pytest.approx(error, abs=1e-12)


def test_a_result_is_pickled_and_written_as_json():
    result = segunc.score(MAPS, ANOMALY, replicates=60)
    assert pickle.loads(pickle.dumps(result)) == result
    assert json.loads(json.dumps(result.to_dict())) == result.to_dict()


def test_nothing_is_printed(capsys):
    segunc.score(MAPS, ANOMALY, replicates=60)
    assert capsys.readouterr() == ("", "")


def test_examples():
    assert doctest.testmod(module).failed == 0


def test_a_number_of_classes_of_numpy_is_a_number():
    labels = np.array([[0, 1, 1]])
    result = segunc.score(np.array([[0, 0, 1]]), labels, classes=labels.max() + 1)
    assert result.class_iou == {"0": 0.5, "1": 0.5}


def test_one_name_of_a_protocol_or_a_track_is_a_list_of_one():
    alone = segunc.score(GOOD, MASK, protocols="smiyc", components="smiyc-obstacle", by="size")
    listed = segunc.score(GOOD, MASK, protocols=["smiyc"], components=["smiyc-obstacle"])
    assert alone == listed
    assert [*alone.components] == ["smiyc-obstacle"]


def test_names_may_come_from_a_generator():
    named = segunc.score(ENTROPY, MASKS, names=(f"f{number}" for number in range(4)))
    assert named == segunc.score(ENTROPY, MASKS, names=["f0", "f1", "f2", "f3"])


def test_no_file_is_left_open():
    code = "import numpy, segunc; segunc.score(numpy.eye(4), numpy.eye(4, dtype=int))"
    command = [sys.executable, "-W", "always::ResourceWarning", "-c", code]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "Unclosed" not in run.stderr


def test_the_mean_over_frames_is_a_protocol() -> None:
    maps = np.array([[[0.1, 0.4], [0.35, 0.8]], [[0.1, 0.2], [0.3, 0.4]]])
    labels = np.array([[[0, 0], [1, 1]]] * 2)
    result = segunc.score(maps, labels, protocols="per-image", components=None, replicates=0)
    assert result.auroc == pytest.approx(0.875)
    assert result.aupr == pytest.approx(11 / 12)
    assert result.threshold is None


TWO_MAPS = {"a": np.array([[0.1, 0.9]]), "b": np.array([[0.8, 0.2]])}
TWO_LABELS = {"b": np.array([[1, 0]]), "a": np.array([[0, 1]])}


def test_a_prediction_is_taken_by_the_names_of_the_labels():
    prediction = {"a": TWO_LABELS["a"], "b": TWO_LABELS["b"]}
    result = segunc.score(TWO_MAPS, TWO_LABELS, classes=2, prediction=prediction, replicates=0)
    assert result.accuracy == 1
    numbered = segunc.score(
        {1: TWO_MAPS["a"]}, {1: TWO_LABELS["a"]}, classes=2, prediction={1: TWO_LABELS["a"]}
    )
    assert numbered.accuracy == 1


@pytest.mark.parametrize(
    ("prediction", "message"),
    [
        ([*TWO_LABELS.values()], "labels is a mapping from .* and prediction is not"),
        ({**TWO_LABELS, "c": TWO_LABELS["a"]}, "prediction has 'c', and no label is named so"),
        ({"a": TWO_LABELS["a"]}, "a label is named 'b', and prediction has no such name"),
    ],
)
def test_a_prediction_in_an_order_that_nobody_knows_is_refused(prediction, message):
    with pytest.raises(InputError, match=message):
        segunc.score(TWO_MAPS, TWO_LABELS, classes=2, prediction=prediction, replicates=0)


def test_probabilities_in_an_order_that_nobody_knows_are_refused():
    probabilities = np.full((2, 2, 1, 2), 0.5)
    with pytest.raises(InputError, match=r"labels is a mapping from .* and probabilities is not"):
        segunc.score(TWO_MAPS, TWO_LABELS, classes=2, probabilities=probabilities)


def test_two_names_of_one_text_are_refused():
    with pytest.raises(InputError, match="two frames are named '1'"):
        segunc.score({1: GOOD, "1": GOOD}, {1: MASK, "1": MASK})
    with pytest.raises(InputError, match="two frames are named '1'"):
        segunc.score([GOOD, GOOD], [MASK, MASK], names=[1, "1"])
