"""A user's program: nothing of the package but the public names of ``segunc``.

Type checkers read this file, too (``test_snippets.py``). A wrong call below has a comment that
strict checks refuse where the call is not wrong.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from torch import nn

import segunc

CLASSES = ("road", "car", "sky")
CPU = "cpu"


class Net(nn.Module):
    """A network as a user has one."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, kernel_size=3, padding=1), nn.BatchNorm2d(8), nn.ReLU()
        )
        self.head = nn.Conv2d(8, classes, kernel_size=1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.features(images))
        return logits


def wrapped(seed: int = 0) -> segunc.Model:
    torch.manual_seed(seed)
    return segunc.wrap(Net(len(CLASSES)).eval(), classes=CLASSES)


def test_a_wrapped_network_gives_maps() -> None:
    model = segunc.ABNN(alpha=0.2).fit(wrapped())
    image = np.random.default_rng(0).integers(0, 256, (48, 64, 3), dtype=np.uint8)
    maps = model(image, draws=4)
    assert maps.prediction.shape == (48, 64)
    assert set(np.unique(maps.prediction)) <= {0, 1, 2}
    assert 0 < maps.epistemic.mean() < maps.entropy.mean() <= 1
    again = model(image, draws=4)
    np.testing.assert_array_equal(again.entropy, maps.entropy)


def test_methods_are_fitted_and_a_model_without_a_factory_is_loaded(tmp_path: Path) -> None:
    torch.manual_seed(0)
    images = torch.rand(4, 3, 64, 64)
    labels = (images.mean(1) * 3).long().clamp(0, 2)
    batches = [(images[:2], labels[:2]), (images[2:], labels[2:])]
    net = Net(len(CLASSES)).eval()
    base = segunc.wrap(net, classes=CLASSES)
    fitted = segunc.ABNN(alpha=0.1).fit(base)
    fitted = segunc.Temperature(pixels=100).fit(fitted, batches)
    fitted = segunc.Anomaly(parts=["msp", "entropy"], weights=[1, 2]).fit(fitted, batches)
    fitted = segunc.PredictionSets(level=0.4).fit(fitted, batches)
    assert not base.bayesian
    image = np.random.default_rng(0).integers(0, 256, (48, 64, 3), dtype=np.uint8)
    maps = fitted(image, draws=2, scores=("entropy", "anomaly"))
    fitted.save(tmp_path / "model")
    loaded = segunc.load(tmp_path / "model", network=net)
    temperature: float = loaded.temperature
    assert temperature == fitted.temperature
    again = loaded(image, draws=2, scores=("entropy", "anomaly"))
    np.testing.assert_array_equal(again.anomaly, maps.anomaly)


def test_other_methods_are_fitted_without_data() -> None:
    base = wrapped()
    methods = (segunc.MCDropout(p=0.1), segunc.TTA(scales=[1.0], flip=True))
    assert [method.fit(base).posterior.method for method in methods] == ["mc-dropout", "tta"]
    ensemble = segunc.Ensemble().fit([base, wrapped(seed=1)])
    assert ensemble.posterior.members == 2


def test_arrays_become_numbers() -> None:
    anomaly = np.array([[0.1, 0.4], [0.35, 0.8]])
    labels = np.array([[0, 0], [1, 1]])
    result = segunc.score(anomaly, labels, components=None, replicates=0)
    assert result.auroc == 0.75
    metric = segunc.metrics.PixelAUROC()
    metric.update(torch.tensor(anomaly), torch.tensor(labels))
    assert float(metric.compute()) == 0.75
    classes = segunc.score(labels, labels, classes=["road", "car"], replicates=0)
    assert classes.accuracy == 1


def test_the_sampler_gives_the_maps_of_a_model() -> None:
    network = Net(len(CLASSES)).eval()
    report = segunc.convert(network)
    assert [site.channels for site in report.sites] == [8]
    posterior = segunc.ABNNPosterior.around(segunc.AffineLayout(network), alpha=0.1)
    sampler = segunc.Sampler(network, posterior, draws=4, scores=["entropy"])
    prediction = sampler(torch.rand(2, 3, 32, 32))
    assert prediction.scores["entropy"].shape == (2, 32, 32)


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Bayesian model of random weights with the classes of the toy scenes."""
    folder = tmp_path_factory.mktemp("models")
    classes = ("road", "walk", "building", "vegetation", "sky", "pole", "person", "vehicle")
    description = segunc.NetworkDescription(
        "FPN",
        "mobilenet_v2",
        classes,
        options={"decoder_pyramid_channels": 32, "decoder_segmentation_channels": 32},
    )
    torch.manual_seed(0)
    sha256 = segunc.save_network(segunc.build_network(description), folder / "base")
    assert segunc.load_network(folder / "base").sha256 == sha256
    model = segunc.ABNN(alpha=0.1).fit(segunc.load(folder / "base"))
    model.save(folder / "abnn")
    return folder / "abnn"


@pytest.fixture(scope="module")
def predicted(
    model_folder: Path, toy_set: Path, tmp_path_factory: pytest.TempPathFactory
) -> segunc.options.PredictOptions:
    """What wrote maps of the toy scenes with anomalies."""
    options = segunc.options.PredictOptions(
        model_folder,
        toy_set / "leftImg8bit" / "anomaly",
        tmp_path_factory.mktemp("maps"),
        draws=2,
        precision="float32",
        device=CPU,
    )
    result = segunc.predict(options)
    assert result.frames == 4
    assert result.failed == {}
    assert str(result).splitlines()[0] == "PredictResult"
    assert f"  out: {options.out}" in str(result).splitlines()
    assert "  frames: 4" in str(result).splitlines()
    return options


def test_a_second_run_has_nothing_to_do(predicted: segunc.options.PredictOptions) -> None:
    result = segunc.predict(
        predicted.model,
        predicted.input,
        predicted.out,
        draws=2,
        precision="float32",
        device=CPU,
    )
    assert result.frames == 0
    skipped: int = result.inputs[0].summary.skipped
    assert skipped == 4


def test_maps_become_numbers_and_a_threshold(
    predicted: segunc.options.PredictOptions, toy_set: Path, tmp_path: Path
) -> None:
    labels = toy_set / "gtAnomaly" / "anomaly"
    metrics = segunc.evaluate(
        predicted.out, anomaly_labels=labels, replicates=0, out=tmp_path / "metrics.json"
    )
    assert 0 <= metrics["entropy"].auroc <= 1
    path = metrics.path
    assert path is not None
    compared = segunc.compare([path], out=tmp_path / "table.md", scores=["entropy"])
    assert compared.paths == (tmp_path / "table.md",)
    assert "entropy" in compared.text
    made = segunc.threshold(
        maps=predicted.out,
        anomaly_labels=labels,
        out=tmp_path / "threshold.json",
        control="flagged-pixels",
        level=0.5,
        score="entropy",
        frames="_00000[01]_",
    )
    value: float = made.threshold.value
    assert 0 < value < 1
    watched = segunc.monitor(
        threshold=made.path, maps=predicted.out, reference=predicted.out, level=0.9
    )
    assert watched.state["frames"] == 2
    report = segunc.report(model=predicted.model, runs=[path], out=tmp_path / "report")
    assert report.page.name == "index.html"


def test_maps_are_looked_at(predicted: segunc.options.PredictOptions, tmp_path: Path) -> None:
    summary = segunc.summary(predicted.out, top=2)
    names: list[str] = [moment.name for moment in summary.moments]
    assert len(names) == 2
    overlay = segunc.overlay(predicted.out, tmp_path / "figures", score=["entropy"], frames=names)
    (pictures,) = overlay.pictures.values()
    assert len(pictures) == 2
    page = segunc.review(predicted.out, out=tmp_path / "review").page
    assert page is not None
    assert page.is_file()


def test_a_model_is_checked(model_folder: Path) -> None:
    found = segunc.doctor(model_folder, draws=2, size=(64, 96), device=CPU)
    statuses = {finding.check: finding.status for finding in found.findings}
    assert statuses["conversion"] == "ok"


def test_a_code_becomes_a_value() -> None:
    values = segunc.decode_unit(np.array([0, 65535], np.uint16))
    np.testing.assert_array_equal(values, np.array([0, 1], np.float32))


def test_bad_input_is_one_sentence_with_a_hint() -> None:
    with pytest.raises(segunc.InputError, match=r"^model folder nowhere does not exist\. Hint: "):
        segunc.load("nowhere")


if TYPE_CHECKING:  # what editors underline
    segunc.predict("runs/abnn", "a.png", out="maps", drws=8)  # type: ignore[call-overload]
    segunc.predict("runs/abnn", "a.png", out="maps", draws="8")  # type: ignore[call-overload]
    segunc.predict("runs/abnn", "a.png")  # type: ignore[call-overload]
    segunc.init()  # type: ignore[call-overload]
    segunc.compare()  # type: ignore[call-overload]
    segunc.export(model="m", to="tflite", out="o")  # type: ignore[call-overload]
    segunc.export(model="m", to="onnx", out="o", size="512x1024")  # type: ignore[call-overload]
    segunc.export(model="m", to="onnx", out="o", size="dynamic")
    segunc.evaluate(segunc.options.CompareOptions(["a.json"]))  # type: ignore[call-overload]
    print(segunc.predict("runs/abnn", "a.png", out="maps").frame)  # type: ignore[attr-defined]
    segunc.predct("runs/abnn", "a.png", out="maps")  # type: ignore[attr-defined]
    segunc.ABNN(alpa=0.1)  # type: ignore[call-arg]
    segunc.finetune(base=wrapped(), out="runs/abnn", settings=segunc.ABNN(members=3))
    segunc.finetune(base=wrapped(), out="runs/abnn", settings=3)  # type: ignore[call-overload]
    segunc.wrap(Net(2), classes=3)  # type: ignore[arg-type]
    print(wrapped()(np.zeros((8, 8, 3), np.uint8)).entropi)  # type: ignore[attr-defined]
    print(segunc.metrics.PixelAUORC)  # type: ignore[attr-defined]
    print(segunc.lightning.UncertaintyCalback)  # type: ignore[attr-defined]
