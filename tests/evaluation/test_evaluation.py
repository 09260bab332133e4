"""Evaluation of maps on disk: the same numbers as in memory, from any tool's folder, with every gap
reported.
"""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import segunc
from segunc.core.errors import InputError, PartialFailure
from segunc.data.labels import LabelMap, label_map
from segunc.data.masks import ROAD_ANOMALY
from segunc.evaluation.comparison import format_number
from segunc.evaluation.evaluator import Evaluator, Measures
from segunc.evaluation.from_maps import MapsSource, evaluate_maps
from segunc.evaluation.resampling import Resampling
from segunc.evaluation.tables import format_metrics
from segunc.maps.labelled import LabelSources
from segunc.maps.manifest import build_manifest
from segunc.maps.regions import Region
from segunc.maps.store import MapsWriter
from segunc.metrics.smiyc import component_counts, component_result
from segunc.plots import write_plots
from tests.evaluation.runs import CLASSES, Run, make_run
from tests.maps.foreign import write_map
from tests.support.images import claiming

pytestmark = pytest.mark.usefixtures("few_units")
PALETTE = tuple((40 * i, 20, 90) for i in range(len(CLASSES)))
CITY = LabelMap("city", CLASSES, PALETTE, {7: 0, 26: 1, 23: 2, 21: 3, 0: 255})
"""The raw ids are none of the train ids, so labels that were not mapped cannot pass."""
SCORES = ("msp", "entropy", "epistemic", "deterministic-energy")


def write_labels(root: Path, run: dict[str, Run]) -> None:
    raw = np.zeros(256, np.uint8)
    raw[[0, 1, 2, 3, 255]] = (7, 26, 23, 21, 0)
    for name, frame in run.items():
        write_map(root / "anomaly" / f"{name}_anomaly.png", frame.anomaly)
        write_map(root / "labels" / f"{name}.png", raw[frame.labels])


def write_maps(root: Path, run: dict[str, Run]) -> None:
    """Maps of another tool: no manifest."""
    for name, frame in run.items():
        write_map(root / "maps" / "prediction" / f"{name}.png", frame.prediction)
        for score, stored in frame.stored.items():
            suffix = "npy" if stored.dtype == np.float16 else "png"
            write_map(root / "maps" / score / f"{name}.{suffix}", stored)


def in_memory(run: dict[str, Run], scores: tuple[str, ...], **options: Any) -> dict[str, Any]:
    evaluator = Evaluator(scores, CITY, **options)
    for name, frame in run.items():
        evaluator.update(
            name,
            frame.stored,
            frame.prediction,
            None,
            frame.labels,
            frame.anomaly,
        )
    return evaluator.numbers()


@pytest.fixture(scope="module")
def run() -> dict[str, Run]:
    return make_run()


@pytest.fixture
def folder(tmp_path: Path, run: dict[str, Run]) -> Path:
    write_maps(tmp_path, run)
    write_labels(tmp_path, run)
    return tmp_path


def evaluate(root: Path, **changes: Any) -> dict[str, Any]:
    """The result of a run folder.

    Args:
        root: of the run.
        changes: ``scores``, ``measures`` (keywords of :class:`Measures`), and those of
            :class:`LabelSources`.
    """
    labels = {
        "anomaly_labels": root / "anomaly",
        "labels": root / "labels",
        "label_map": CITY,
    } | changes
    measures = Measures(**labels.pop("measures", {}))
    source = MapsSource(root / "maps", labels.pop("scores", None))
    result, _ = evaluate_maps(source, LabelSources(**labels), measures)
    return result


def test_maps_of_any_tool_give_the_numbers_of_memory(folder, run):
    result = evaluate(folder)
    # Without a manifest of this tool whole numbers are linear, whatever the score is called.
    expected = in_memory(run, tuple(sorted(SCORES)), unit_codes=())
    for section in ("scores", "segmentation", "calibration", "selective", "reasons", "left_out"):
        assert result[section] == expected[section]
    assert result["counts"].items() >= expected["counts"].items()


def test_maps_without_probabilities_have_no_nll_and_a_reason(folder):
    result = evaluate(folder)
    assert result["calibration"]["nll"] is None
    assert "mean probabilities" in result["reasons"]["calibration.nll"]


def manifest_of_run() -> dict[str, Any]:
    """Return the manifest of maps that this tool wrote."""
    return build_manifest(
        {"draws": 5},
        SCORES,
        device="cpu",
        classes=CLASSES,
        palette=PALETTE,
    )


@pytest.fixture
def predicted(tmp_path: Path, run: dict[str, Run]) -> Path:
    """Maps of this tool, in whose run one frame failed."""
    write_labels(tmp_path, run)
    with MapsWriter(tmp_path / "maps", manifest_of_run()) as writer:
        for name, frame in run.items():
            writer.write(name, {"prediction": frame.prediction, **frame.stored})
        writer.failed["lund/frame_9"] = "the JPEG is truncated"
    return tmp_path


def test_maps_of_this_tool_give_the_numbers_of_memory(predicted, run):
    result = evaluate(predicted)
    expected = in_memory(run, SCORES)
    for section in ("scores", "segmentation", "calibration"):
        assert result[section] == expected[section]


def test_a_frame_that_failed_in_its_run_is_left_out(predicted):
    result = evaluate(predicted)
    reason = "failed when it was predicted: the JPEG is truncated"
    assert result["left_out"] == [{"frame": "lund/frame_9", "reason": reason}]
    assert result["counts"]["frames"] == 5


def test_a_label_map_of_other_classes_is_refused(predicted):
    with pytest.raises(InputError, match="label map 'camvid' does not fit"):
        evaluate(predicted, label_map=label_map("camvid"))


def test_a_label_map_in_another_order_is_refused(predicted):
    classes = ("car", "road", "sky", "tree")
    moved = LabelMap("moved", classes, PALETTE, CITY.raw_to_train)
    with pytest.raises(InputError, match="class 'road' has another number"):
        evaluate(predicted, label_map=moved)


def test_anomaly_labels_alone_give_the_numbers_of_scores(folder):
    anomaly_only = evaluate(folder, labels=None)
    assert anomaly_only["segmentation"]["miou"] is None
    assert anomaly_only["scores"] == evaluate(folder)["scores"]


def test_class_labels_alone_give_the_numbers_of_calibration(folder):
    labels_only = evaluate(folder, anomaly_labels=None)
    assert labels_only["scores"] == {}
    assert labels_only["calibration"] == evaluate(folder)["calibration"]
    assert labels_only["counts"]["pixels"] == 0


def test_some_scores_are_evaluated_alone(folder):
    names = ["deterministic-energy", "msp"]
    result = evaluate(folder, scores=names)
    assert list(result["scores"]) == names


@pytest.mark.parametrize(
    ("kind", "content", "message"),
    [
        ("entropy", np.zeros((24, 36, 3), np.uint8), "one channel"),
        ("entropy", claiming(".png", 30_000, 30_000), "claims 30000 x 30000 pixels"),
        ("prediction", None, "no map 'prediction'"),
        (
            "anomaly",
            np.full((24, 36), 3, np.uint8),
            r"bergen/frame_0_anomaly.png holds the values \[3\]",
        ),
        (
            "labels",
            np.full((24, 36), 99, np.uint8),
            r"labels/bergen/frame_0.png holds the values \[99\]",
        ),
        ("labels", np.full((12, 18), 7, np.uint8), "the class label is 12 x 18"),
        ("labels", b"", "label .*the file is empty"),
    ],
)
def test_a_bad_frame_is_left_out_and_the_others_counted(folder, run, kind, content, message):
    name = "bergen/frame_0"
    label_files = {
        "labels": folder / "labels" / f"{name}.png",
        "anomaly": folder / "anomaly" / f"{name}_anomaly.png",
    }
    path = label_files.get(kind, folder / "maps" / kind / f"{name}.png")
    path.unlink()
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        write_map(path, content)
    result = evaluate(folder)
    (entry,) = result["left_out"]
    assert entry["frame"] == name
    assert re.search(message, entry["reason"])
    others = {key: value for key, value in run.items() if key != name}
    expected = in_memory(others, tuple(sorted(SCORES)), unit_codes=())
    assert result["scores"] == expected["scores"]


def test_frames_without_a_label_and_labels_without_a_frame_are_counted(folder):
    (folder / "anomaly" / "bergen" / "frame_0_anomaly.png").unlink()
    (folder / "anomaly" / "lund" / "frame_3_anomaly.png").unlink()
    (folder / "labels" / "lund" / "frame_3.png").unlink()
    without_frame = (
        "anomaly/oslo/frame_7.png",
        "anomaly/oslo/frame_8.png",
        "labels/oslo/frame_7.png",
    )
    for name in without_frame:
        write_map(folder / name, np.zeros((24, 36), np.uint8))
    result = evaluate(folder)
    expected = {
        "frames_without_anomaly_label": 2,
        "frames_without_class_label": 1,
        "anomaly_frames": 2,
        "anomaly_labels_without_frame": 2,
        "class_labels_without_frame": 1,
        "labelled_frames": 3,
    }
    assert result["counts"].items() >= expected.items()
    assert result["left_out"] == [{"frame": "lund/frame_3", "reason": "no label carries its name"}]


@pytest.fixture
def with_gap(folder: Path) -> dict[str, Any]:
    """The result of a run that has no readable label for one frame."""
    unknown = np.full((24, 36), 99, np.uint8)
    write_map(folder / "labels" / "lund" / "frame_3.png", unknown)
    return evaluate(folder)


@pytest.mark.parametrize("score", SCORES)
def test_the_table_shows_the_numbers_of_every_score(with_gap, score):
    lines = format_metrics(with_gap).splitlines()
    row = next(line for line in lines if line.startswith(f"| {score} "))
    pooled = with_gap["scores"][score]["pooled"]
    keys = ("auroc", "aupr", "fpr95", "best_f1")
    assert row.split()[3:10:2] == [format_number(pooled[key]) for key in keys]


def test_the_table_shows_segmentation_and_calibration(with_gap):
    text = format_metrics(with_gap)
    for name in CLASSES:
        iou = with_gap["segmentation"]["per_class"][name]
        assert format_number(iou) in text
    assert format_number(with_gap["calibration"]["ece"]) in text


def test_the_table_shows_every_gap(with_gap):
    text = format_metrics(with_gap)
    assert "calibration.nll, calibration.brier: needs the mean probabilities" in text
    assert "Left out: 1 of 4 frames" in text
    assert "lund/frame_3" in text


def test_the_table_leaves_out_what_was_not_measured(folder):
    without_labels = evaluate(folder, labels=None)
    assert "Segmentation" not in format_metrics(without_labels)


ONE_ANOMALY = np.zeros((60, 80), np.uint8)
ONE_ANOMALY[10:30, 20:50] = 1
RAMP = np.linspace(0, 0.05, 80, dtype=np.float16)
FOUND = np.where(ONE_ANOMALY == 1, 0.9, 0.1).astype(np.float16) + RAMP
MISSED = np.full((60, 80), 0.1, np.float16) + RAMP
MISSED[40:, 40:] = 0.7  # 800 pixels of false alarm


@pytest.fixture
def half_found(tmp_path: Path) -> dict[str, Any]:
    """The result of frames with one anomaly each, found in one half and missed in the other."""
    for name, score in (("a", FOUND), ("b", MISSED), ("c", FOUND), ("d", MISSED)):
        write_map(tmp_path / "anomaly" / f"{name}.png", ONE_ANOMALY)
        write_map(tmp_path / "maps" / "own" / f"{name}.npy", score)
    measures = {"tracks": ("smiyc-anomaly", "smiyc-obstacle"), "resampling": Resampling(60)}
    return evaluate(tmp_path, labels=None, measures=measures)


def test_components_take_their_threshold_from_the_pixels_of_the_whole_set(half_found):
    values = half_found["scores"]["own"]
    threshold = values["smiyc"]["threshold"]
    assert 0.7 < threshold <= 0.95
    of_found = component_counts(FOUND, ONE_ANOMALY, threshold, "smiyc-anomaly")
    of_missed = component_counts(MISSED, ONE_ANOMALY, threshold, "smiyc-anomaly")
    counts = of_found + of_missed
    assert values["components"]["smiyc-anomaly"] == component_result(2 * counts)
    assert component_result(counts)["siou_gt"] == pytest.approx(0.5, abs=0.02)


def test_components_are_written_beside_the_pixels(half_found):
    assert set(half_found["scores"]["own"]) == {"pooled", "smiyc", "components"}


def test_components_have_intervals(half_found):
    assert "scores.own.components.smiyc-anomaly.mean_f1" in half_found["intervals"]


def test_components_are_in_the_table(half_found):
    assert "Components, smiyc-obstacle" in format_metrics(half_found)


def test_components_without_a_threshold_are_null_with_the_reason(folder, run):
    for name in run:
        write_map(folder / "anomaly" / f"{name}_anomaly.png", np.zeros((24, 36), np.uint8))
    result = evaluate(folder, measures={"tracks": ("smiyc-anomaly",)})
    assert result["scores"]["entropy"]["components"] == {"smiyc-anomaly": None}
    reason = result["reasons"]["scores.entropy.components.smiyc-anomaly"]
    assert "no pixel is labelled as an anomaly" in reason


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"label_map": None}, "without the label map"),
        (
            {"labels": None, "anomaly_encoding": ROAD_ANOMALY},
            "no frame of 4 could be scored .*encoding 'road-anomaly'",
        ),
        ({"measures": {"tracks": ("board",)}}, "no component track 'board'"),
        ({"measures": {"resample": r"oslo_\d"}}, "finds nothing in the frame name bergen/frame_0"),
        (
            {"scores": ["sharpness"]},
            r"score 'sharpness' has no maps .* deterministic-energy, entropy, epistemic, msp",
        ),
    ],
)
def test_options_that_fit_nothing_are_refused(folder, asked, message):
    with pytest.raises((InputError, PartialFailure), match=message):
        evaluate(folder, **asked)


def test_every_figure_of_an_evaluation_is_written(folder, tmp_path):
    labels = LabelSources(folder / "anomaly", labels=folder / "labels", label_map=CITY)
    result, evaluator = evaluate_maps(MapsSource(folder / "maps"), labels)
    files = write_plots(evaluator, result, tmp_path / "plots", "network")
    stems = {"precision-recall-pooled", "roc-pooled", "reliability", "risk-coverage"}
    names = set()
    for stem in stems:
        names |= {f"{stem}.pdf", f"{stem}.svg", f"{stem}.png"}
    assert {path.name for path in files} == names
    for path in files:
        assert path.stat().st_size > 2000
    curves = json.loads((tmp_path / "plots" / "curves.json").read_text())
    assert set(curves) == stems
    roc = curves["roc-pooled"]["entropy"]
    area = float(np.trapezoid(roc["y"], roc["x"]))
    assert area == pytest.approx(result["scores"]["entropy"]["pooled"]["auroc"], abs=2e-3)


def test_pixels_outside_the_mask_of_a_run_are_not_counted(tmp_path, run):
    write_labels(tmp_path, run)
    kept = np.zeros((24, 36), np.uint8)
    kept[:, :20] = 255
    write_map(tmp_path / "mask.png", kept)
    region = Region(tmp_path / "mask.png")
    with MapsWriter(tmp_path / "maps", manifest_of_run(), region=region) as writer:
        for name, frame in run.items():
            writer.write(name, {"prediction": frame.prediction, **frame.stored})
    evaluator = Evaluator(SCORES, CITY)
    for name, frame in run.items():
        anomaly = np.where(kept > 0, frame.anomaly, 255).astype(np.uint8)
        labels = np.where(kept > 0, frame.labels, 255).astype(np.uint8)
        evaluator.update(name, frame.stored, frame.prediction, None, labels, anomaly)
    result = evaluate(tmp_path)
    expected = evaluator.numbers()
    for section in ("scores", "segmentation", "calibration", "selective"):
        assert result[section] == expected[section]
    assert result["counts"]["pixels"] + result["counts"]["ignored_pixels"] == 4 * kept.size


def test_a_result_of_other_frames_is_replaced_with_a_note(folder: Path) -> None:
    out = folder / "metrics.json"
    options = {
        "maps": folder / "maps",
        "anomaly_labels": folder / "anomaly",
        "out": out,
        "replicates": 0,
    }
    first = segunc.evaluate(**options)
    again = segunc.evaluate(**options)
    fewer = segunc.evaluate(**options, frames="lund")
    assert not [note for note in (*first.notes, *again.notes) if "replaces" in note]
    replaced = [note for note in fewer.notes if "replaces" in note]
    assert len(replaced) == 1
    assert replaced[0].startswith(f"replaces {out}, which was a result of: ")


def test_a_file_that_is_no_result_is_replaced_with_a_note(folder: Path) -> None:
    out = folder / "metrics.json"
    out.write_text("{}")
    result = segunc.evaluate(
        maps=folder / "maps", anomaly_labels=folder / "anomaly", out=out, replicates=0
    )
    assert f"replaces {out}, which was no result that can be read" in result.notes
