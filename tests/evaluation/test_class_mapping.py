"""A network scored on classes that are not its own, against numbers made from names by scikit-learn, torchmetrics and numpy."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, jaccard_score, roc_auc_score
from torchmetrics.functional.classification import binary_calibration_error

from segunc.cli.main import main
from segunc.core.errors import InputError, PartialFailure
from segunc.data.class_mapping import ClassMapping
from segunc.data.datasets import dataset_entry
from segunc.data.images import read_label_image
from segunc.data.labels import LabelMap, label_map
from segunc.evaluation.evaluator import EvaluationOptions, Evaluator
from segunc.evaluation.maps import evaluate_maps
from segunc.maps.encoding import decode_unit, encode_score
from segunc.maps.manifest import build_manifest
from segunc.maps.store import MapsWriter
from segunc.options import class_pairs
from tests.data.published import draw_miniature
from tests.evaluation.runs import CLASSES, make_run
from tests.maps.foreign import write_map
from tests.verbs.test_datasets import evaluate, model

NETWORK = ("road", "sidewalk", "car", "truck", "train")
PAIRS = {"truck": "vehicle", "car": "vehicle", "road": "road"}
GREYS = tuple((i, i, i) for i in range(4))
LABELS = LabelMap("labels", ("sign", "vehicle", "bicyclist", "road"), GREYS, {9: 0, 4: 1, 11: 2, 7: 3, 0: 255})
RAW = {9: "sign", 4: "vehicle", 11: "bicyclist", 7: "road", 0: "void"}


def make_frames() -> list[dict[str, np.ndarray]]:
    """Two frames: probabilities ``[5, 20, 30]`` of the network, raw labels that agree with it on about half of the pixels."""
    generator = torch.Generator().manual_seed(5)
    frames = []
    for _ in range(2):
        probabilities = (2 * torch.randn(5, 20, 30, generator=generator)).softmax(0)
        right = torch.tensor([7, 9, 4, 4, 0])[probabilities.argmax(0)]
        random = torch.tensor([*RAW])[torch.randint(0, 5, (20, 30), generator=generator)]
        raw = torch.where(torch.rand(20, 30, generator=generator) < 0.5, right, random)
        msp = encode_score("msp", (1 - probabilities.max(0).values).numpy())
        prediction = probabilities.argmax(0).byte().numpy()
        frames.append({"p": probabilities.numpy(), "raw": raw.byte().numpy(), "msp": msp, "prediction": prediction})
    return frames


def result_of(frames: list[dict[str, np.ndarray]], mapping: ClassMapping) -> dict[str, Any]:
    evaluator = Evaluator(("msp",), mapping, protocols=())
    for number, frame in enumerate(frames):
        labels = mapping.encode(frame["raw"])
        assert evaluator.update(str(number), {"msp": frame["msp"]}, frame["prediction"], frame["p"], labels)
    return evaluator.result()


def test_numbers_of_mapped_classes_are_those_of_their_names() -> None:
    frames = make_frames()
    result = result_of(frames, ClassMapping.of(LABELS, NETWORK, PAIRS))
    p = np.concatenate([frame["p"].reshape(5, -1) for frame in frames], 1)
    raw, msp = (np.concatenate([frame[key].ravel() for frame in frames]) for key in ("raw", "msp"))
    truth = np.array([RAW[value] for value in raw])
    predicted = np.array([PAIRS.get(name, "none of them") for name in np.array(NETWORK)[p.argmax(0)]])
    counted = np.isin(truth, ["vehicle", "road"])
    p, truth, predicted, msp = p[:, counted], truth[counted], predicted[counted], msp[counted]
    iou = jaccard_score(truth, predicted, labels=["vehicle", "road"], average=None)
    assert result["segmentation"]["per_class"] == pytest.approx({"vehicle": iou[0], "road": iou[1]}, rel=1e-12)
    assert result["segmentation"]["miou"] == pytest.approx(iou.mean(), rel=1e-12)
    assert result["segmentation"]["accuracy"] == pytest.approx(accuracy_score(truth, predicted), rel=1e-12)
    assert 0 < (predicted == "none of them").mean() < 1  # the oracle has seen such pixels
    assert result["counts"]["labelled_pixels"] == counted.sum() < raw.size
    merged = {"vehicle": p[2].astype(float) + p[3], "road": p[0].astype(float)}
    own = np.where(truth == "vehicle", merged["vehicle"], merged["road"])
    assert result["calibration"]["nll"] == pytest.approx(-np.log(own).mean(), rel=1e-5)
    brier = sum(np.square(value - (truth == name)) for name, value in merged.items())
    assert result["calibration"]["brier"] == pytest.approx(brier.mean(), rel=1e-5)
    errors = [ece(value, truth == name) for name, value in merged.items()]
    assert result["calibration"]["classwise_ece"] == pytest.approx(np.mean(errors), abs=1e-5)
    assert result["calibration"]["ece"] == pytest.approx(ece(1 - decode_unit(msp), truth == predicted), abs=1e-5)
    auroc = roc_auc_score(truth != predicted, msp)
    assert result["selective"]["msp"]["failure_auroc"] == pytest.approx(auroc, rel=1e-12)


def ece(confidence: np.ndarray, correct: np.ndarray) -> float:
    given = torch.from_numpy(confidence.astype(np.float32)), torch.from_numpy(correct.astype(int))
    return float(binary_calibration_error(*given, n_bins=15, norm="l1"))


def test_maps_of_the_network_give_the_numbers_of_memory(tmp_path: Path) -> None:
    frames = make_frames()
    manifest = build_manifest({"draws": 1}, ("msp",), device="cpu", classes=NETWORK, palette=())
    with MapsWriter(tmp_path / "maps", manifest) as writer:
        for number, frame in enumerate(frames):
            writer.write(str(number), {"prediction": frame["prediction"], "msp": frame["msp"]})
            write_map(tmp_path / "labels" / f"{number}.png", frame["raw"])
    options = EvaluationOptions(map_classes=PAIRS)
    given = {"labels": tmp_path / "labels", "label_map": LABELS}
    result = evaluate_maps(tmp_path / "maps", **given, options=options).result
    expected = result_of(frames, ClassMapping.of(LABELS, NETWORK, PAIRS))
    assert result["segmentation"] == expected["segmentation"]
    assert result["calibration"]["ece"] == expected["calibration"]["ece"]
    assert result["selective"] == expected["selective"]
    with pytest.raises(InputError, match=r"label map 'labels' does not fit .* with `map_classes`"):
        evaluate_maps(tmp_path / "maps", **given)
    (tmp_path / "maps" / "manifest.json").unlink()
    (tmp_path / "maps" / "frames.jsonl").unlink()
    with pytest.raises(InputError, match="names the network's classes"):
        evaluate_maps(tmp_path / "maps", **given, options=options)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (2, 0, 3, 1)])
def test_the_same_classes_in_any_order_give_exactly_the_numbers_without_a_mapping(order: tuple[int, ...]) -> None:
    labels = LabelMap("city", CLASSES, GREYS, {0: 0, 1: 1, 2: 2, 3: 3, 255: 255})
    network = tuple(CLASSES[i] for i in order)
    mapping = ClassMapping.of(labels, network, {name: name for name in CLASSES})
    plain, mapped = Evaluator(("msp", "entropy"), labels), Evaluator(("msp", "entropy"), mapping)
    for name, frame in make_run().items():
        plain.update(name, frame.stored, frame.prediction, frame.probabilities, frame.labels, frame.anomaly)
        own = np.argsort(order).astype(np.uint8)[frame.prediction]
        mapped.update(name, frame.stored, own, frame.probabilities[[*order]], frame.labels, frame.anomaly)
    assert mapped.result() == plain.result()


def test_an_id_that_the_network_does_not_have_is_refused_where_it_counts() -> None:
    frame, mapping = make_frames()[0], ClassMapping.of(LABELS, NETWORK, PAIRS)
    ignored = mapping.encode(frame["raw"]) == 255
    result_of([frame | {"prediction": np.where(ignored, 200, frame["prediction"]).astype(np.uint8)}], mapping)
    evaluator = Evaluator(("msp",), mapping, protocols=())
    labels, wrong = mapping.encode(frame["raw"]), np.full((20, 30), 5, np.uint8)
    assert not evaluator.update("a", {"msp": frame["msp"]}, wrong, None, labels)
    with pytest.raises(PartialFailure, match=r"prediction holds the values \[5\]"):
        evaluator.result()


TOY_IN_CAMVID = "road=road,sidewalk=pavement,building=building,vegetation=tree,car=car,person=pedestrian"


def test_a_network_on_another_data_set_with_an_anomaly(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root, network = draw_miniature("camvid", tmp_path / "data"), model(tmp_path / "net", "toy")
    data = ("--dataset", "camvid", "--root", root, "--anomaly-class", "bicyclist", "--replicates", 0)
    run = ("--size", "64x64", "--precision", "float32", "--device", "cpu")
    assert main([*map(str, ("evaluate", "--model", network, *data, *run, "--out", tmp_path / "no.json"))]) == 2
    assert "--map-classes" in capsys.readouterr().err
    pairs = tmp_path / "pairs.csv"
    names = TOY_IN_CAMVID.split(",")
    pairs.write_text("\n".join(["network,dataset", *(pair.replace("=", ",") for pair in names), ""]))
    one_pass = evaluate(tmp_path / "pass.json", "--model", network, *data, *run, "--map-classes", pairs)
    said = capsys.readouterr().out
    assert "without a partner, an error wherever they are predicted: sky, pole, traffic sign" in said
    assert "label map 'camvid without bicyclist' without a partner, ignored: sky, pole, sign, fence" in said
    about = one_pass["run"]["map_classes"]
    assert about["partners"] == dict(pair.split("=") for pair in names)
    assert about["dataset_classes_without_partner"] == ["sky", "pole", "sign", "fence"]
    # What is counted follows from the raw ids of the files: one test frame holds the anomaly (10), one does not.
    samples = dataset_entry("camvid", anomaly_classes=["bicyclist"]).samples(root, "test")
    (known,) = [read_label_image(sample.label) for sample in samples if sample.label is not None]
    (other,) = [read_label_image(sample.anomaly) for sample in samples if sample.anomaly is not None]
    assert one_pass["counts"]["labelled_pixels"] == np.isin(known, [1, 3, 4, 5, 8, 9]).sum()
    assert one_pass["counts"]["anomaly_pixels"] == (other == 10).sum() > 0
    assert one_pass["counts"]["normal_pixels"] == (other < 10).sum()
    assert list(one_pass["segmentation"]["per_class"]) == ["building", "road", "pavement", "tree", "car", "pedestrian"]
    assert one_pass["calibration"]["nll"] > 0
    maps = tmp_path / "maps"
    words = ("predict", "--model", network, "--input", root / "test", "--out", maps, *run, "--scores", "msp,entropy")
    assert main([*map(str, words)]) == 0
    two = evaluate(tmp_path / "maps.json", "--maps", maps, *data, "--scores", "entropy", "--map-classes", TOY_IN_CAMVID)
    for section in ("scores", "segmentation", "selective"):
        assert two[section] == one_pass[section]
    assert two["calibration"]["ece"] == one_pass["calibration"]["ece"]
    assert two["run"]["map_classes"] == about
    predictions = np.unique([read_label_image(path) for path in sorted((maps / "prediction").rglob("*.png"))])
    assert len(predictions) > 1


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ("road=road,sidewlk=pavement", "the network has no class 'sidewlk'"),
        ("sidewalk=pavment", "label map 'camvid' has no class 'pavment'"),
        ("road=road,road=pavement", "'road' is given twice"),
        ("road=road,car", "'car' is not NETWORK_CLASS=DATASET_CLASS"),
        ("nowhere.csv", "nowhere.csv cannot be read"),
    ],
)
def test_pairs_that_say_nothing_are_refused(pairs: str, message: str) -> None:
    with pytest.raises((ArgumentTypeError, InputError), match=re.escape(message)):
        ClassMapping.of(label_map("camvid"), label_map("toy").classes, class_pairs(pairs))
