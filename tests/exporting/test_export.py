"""`segunc export`: the file gives the maps that `segunc predict` writes, by itself; and what cannot be a file is refused."""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import segunc
from segunc.affine.convert import convert
from segunc.affine.draws import AffineLayout
from segunc.affine.posterior import AnyPosterior, Branch, Deterministic
from segunc.baselines.mc_dropout import OwnDropout, convert_dropout
from segunc.baselines.mixtures import Ensemble, TestTimeAugmentation
from segunc.core.errors import InputError
from segunc.exporting import check, graph
from segunc.exporting.check import check_frames, compare
from segunc.maps.encoding import encode_score
from segunc.posteriors.abnn import ABNNPosterior
from segunc.sampling import Sampler
from segunc.sampling.sampler import Fitted
from segunc.scores import DEFAULT_SCORES, SCORES
from segunc.uncertainty import Calibrator
from tests.affine.networks import randomise
from tests.conftest import Job
from tests.verbs.processes import refuse, succeed

pytest.importorskip("onnxscript", reason="the extra export is not installed")
onnx, onnxruntime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "onnx" / "main.cpp"
SIZE, SCORE_NAMES = (40, 56), [name for name, score in SCORES.items() if score.sources <= {"draws", "base"}]
BLOCKED = """
import sys
sys.modules["segunc"] = None  # an import of it fails
import numpy as np, torch
extra = {"classes": ""}
module = torch.export.load(sys.argv[1], extra_files=extra).module()
maps = module(torch.from_numpy(np.load(sys.argv[2])))
np.savez(sys.argv[3], classes=extra["classes"], **{name: of.detach().numpy() for name, of in maps.items()})
"""


class Attentive(nn.Module):
    """Convolutions, every kind of normalisation, attention, dropout and a last upsampling, to 4 classes."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 4, 1), nn.BatchNorm2d(8), nn.GELU(), nn.Conv2d(8, 8, 3, padding=1), nn.GroupNorm(2, 8))
        self.norm, self.attention, self.drop = nn.LayerNorm(8), nn.MultiheadAttention(8, 2, batch_first=True), nn.Dropout(0.2)
        self.last = nn.Sequential(nn.InstanceNorm2d(8, affine=True), nn.ReLU(inplace=True), nn.Conv2d(8, 4, 1))
        randomise(self)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        features = self.stem(x)
        tokens = self.norm(features.flatten(2).transpose(1, 2))
        mixed = self.attention(tokens, tokens, tokens, need_weights=False)[0].transpose(1, 2).reshape(features.shape)
        return F.interpolate(self.last(self.drop(features + mixed)), x.shape[-2:], mode="bilinear", align_corners=False)


def bayesian(seed: int = 0, members: int = 1) -> tuple[nn.Module, ABNNPosterior]:
    network = Attentive(seed)
    convert(network)
    return network, ABNNPosterior.around(AffineLayout(network), 0.2, members)


def many(kind: str) -> tuple[nn.Module, AnyPosterior | None]:
    network, posterior = bayesian(members=2 if kind == "members" else 1)
    if kind == "deterministic":
        return Attentive(), None
    if kind == "augmented":
        return network, TestTimeAugmentation(posterior, (1.0, 1.25))
    if kind == "ensemble":
        return network, Ensemble([Branch(of, own, networks=2, index=i) for i, (of, own) in enumerate([(network, posterior), bayesian(1)])])
    if kind == "networks":
        networks = [Attentive(seed) for seed in (0, 1)]
        return networks[0], Ensemble([Branch(of, Deterministic(), networks=2, index=i) for i, of in enumerate(networks)])
    return (network, OwnDropout(convert_dropout(network))) if kind == "dropout" else (network, posterior)


def checked(write: Callable[..., None], run: Callable[[Path], Any], sampler: Sampler, path: Path) -> dict[str, Any]:
    frames = check_frames(SIZE)
    sampler(frames[0])
    with path.open("wb") as file:
        write(graph.trace(sampler, frames[0]), file, {})
    return compare(run(path), sampler, frames, path.name)


@pytest.mark.parametrize("kind", ["deterministic", "members", "augmented", "ensemble", "networks", "dropout", "calibrated"])
def test_every_posterior_is_one_graph(kind: str, tmp_path: Path) -> None:
    network, posterior = many(kind)
    fitted = Fitted(1.7, Calibrator(0.6)) if kind == "calibrated" else Fitted()
    sampler = Sampler(network, posterior, draws=8, scores=SCORE_NAMES, fitted=fitted)
    found = checked(graph.write_pt2, graph.open_pt2, sampler, tmp_path / "model.pt2")
    assert max(found["scores"][name]["codes"] for name in SCORE_NAMES if SCORES[name].stored == "unit16") <= 2


def test_onnx_has_convolutions_before_the_first_noisy_layer_once_for_all_draws(tmp_path: Path) -> None:
    network, posterior = bayesian()
    sampler = Sampler(network, posterior, draws=5, scores=["entropy", "epistemic", "mean-energy"])
    path = tmp_path / "model.onnx"
    found = checked(graph.write_onnx, graph.open_onnx, sampler, path)
    assert max(score["codes"] for score in found["scores"].values()) <= 2
    inferred = onnx.shape_inference.infer_shapes(onnx.load(path), data_prop=True)
    shapes = {value.name: [d.dim_value for d in value.type.tensor_type.shape.dim] for value in inferred.graph.value_info}
    rows = [shapes[node.output[0]][0] for node in inferred.graph.node if node.op_type == "Conv"]
    assert rows == [1, 5, 5]  # and no convolution of the base network alone, which no score needs


def test_a_file_whose_maps_are_wrong_is_refused() -> None:
    network, posterior = bayesian()
    sampler, frames = Sampler(network, posterior, draws=4, scores=["entropy", "deterministic-energy"]), check_frames(SIZE)

    def changed(score: str, by: float) -> Callable[[Tensor], graph.Maps]:
        def run(image: Tensor) -> graph.Maps:
            maps = sampler(image)
            written = {"prediction": maps.prediction.numpy(), **{name: of.numpy().copy() for name, of in maps.scores.items()}}
            written[score][0, 3, 4] += by
            return written

        return run

    assert compare(changed("entropy", 1e-6), sampler, frames, "m")["prediction_pixels"] == 0
    for score, by, said in (
        ("entropy", 0.001, "entropy of m"),
        ("deterministic-energy", 0.1, "energy of m"),
        ("prediction", 1, "prediction of m"),
    ):
        with pytest.raises(InputError, match=f"{said} differs from the sampler"):
            compare(changed(score, by), sampler, frames, "m")


@pytest.fixture(scope="module")
def exported(predicted: Job, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("exported")
    asked: dict[str, Any] = {"control": "flagged-pixels", "level": 0.5, "score": "entropy"}
    segunc.threshold(maps=predicted.maps, anomaly_labels=predicted.masks, out=out / "threshold.json", **asked)
    words = ("--size", "64x128", "--draws", 4, "--threshold", out / "threshold.json", "--out", out)
    assert "checked against the sampler: at most" in succeed("export", "--model", predicted.abnn, "--to", "onnx", *words).stdout
    return out


def test_onnx_runtime_gives_the_maps_on_the_disk_and_the_file_says_what_they_are(exported: Path, predicted: Job) -> None:
    session = onnxruntime.InferenceSession(exported / "model.onnx", providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    assert set(names) == {"prediction", *DEFAULT_SCORES}
    frames = sorted(predicted.frames.rglob("*.png"))
    for path in frames:
        image = cv2.imread(str(path))[..., ::-1].transpose(2, 0, 1)[None].astype(np.float32) / 255
        maps = dict(zip(names, session.run(names, {"image": image}), strict=True))
        for name in ("entropy", "aleatoric", "epistemic", "msp"):
            (file,) = (predicted.maps / name).rglob(f"{path.stem}.png")
            codes = cv2.imread(str(file), cv2.IMREAD_UNCHANGED).astype(int)
            assert np.abs(encode_score(name, maps[name][0]).astype(int) - codes).max() <= 2, name
    record = json.loads((exported / "model.json").read_text())
    inside = {prop.key: prop.value for prop in onnx.load(exported / "model.onnx").metadata_props}
    for key in ("classes", "palette", "mean", "std", "scores", "seed", "draws", "alpha", "base_sha256", "threshold"):
        text = record[key] if isinstance(record[key], str) else json.dumps(record[key], ensure_ascii=False)
        assert inside[key] == text
    assert record["threshold"]["promise"].startswith("On average, at most 50 % of the normal pixels")
    assert record["check"]["scores"]["entropy"]["codes"] <= 2


def test_a_program_runs_where_this_package_is_not(exported: Path, predicted: Job, tmp_path: Path) -> None:
    made = segunc.export(model=predicted.abnn, to="pt2", out=tmp_path / "out", size=(64, 128), draws=4)
    frame, out = check_frames((64, 128))[0], tmp_path / "maps.npz"
    np.save(tmp_path / "frame.npy", frame.numpy())
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    words = [sys.executable, "-W", "ignore", "-c", BLOCKED, made.path, tmp_path / "frame.npy", out]
    subprocess.run(words, check=True, cwd=tmp_path, env=environment, timeout=120)
    expected = graph.open_onnx(exported / "model.onnx")(frame)
    with np.load(out) as maps:
        assert json.loads(str(maps["classes"])) == list(segunc.load(predicted.abnn).network.description.classes)
        for name, values in expected.items():
            np.testing.assert_allclose(maps[name], values, atol=1e-4, err_msg=name)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--to onnx --size 64x128 --scores knn", "score knn needs feature distance, which a graph does not have"),
        ("--to pt2", "has no size of its own, and a graph has one fixed size"),
        ("--to pt2 --size 64x128 --draws 1", "1 draw is too few for 2 members"),
        ("--to pt2 --size 64x128 --draws 6 --threshold THRESHOLD", "threshold of maps with draws 4, and these have 6"),
        ("--to pt2 --size 32x64 --draws 4 --threshold THRESHOLD", "threshold of maps with size None, and these have [32, 64]"),
        ("--to pt2 --size 64x128 --scores msp --threshold THRESHOLD", "is a threshold of entropy, which is not exported"),
    ],
)
def test_what_is_asked_for_is_refused_before_anything_is_written(
    words: str, said: str, exported: Path, predicted: Job, tmp_path: Path
) -> None:
    asked = words.replace("THRESHOLD", str(exported / "threshold.json")).split()
    assert said in refuse("export", "--model", predicted.abnn, *asked, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_networks_that_no_graph_holds_are_refused_by_what_they_do(tmp_path: Path) -> None:
    class Strange(nn.Module):
        def __init__(self, kind: str) -> None:
            super().__init__()
            self.kind, self.head = kind, nn.Conv2d(3, 4, 1)

        def forward(self, x: Tensor) -> Tensor:
            if self.kind == "reads" and x.mean() > 2:
                return -self.head(x)
            logits = self.head(x)
            return (
                logits + 1e-9 * torch.rand(1) if self.kind == "random" else torch.special.airy_ai(logits) if self.kind == "airy" else logits
            )

    for kind, said in (
        ("reads", "reads values"),
        ("random", "draws random numbers itself .aten.rand"),
        ("airy", "operator aten.+airy.+which ONNX"),
    ):
        with pytest.raises(InputError, match=said):
            checked(graph.write_onnx, graph.open_onnx, Sampler(Strange(kind), scores=["entropy"]), tmp_path / "model.onnx")


def test_nothing_half_written_is_left_and_a_missing_package_is_named(
    exported: Path, predicted: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words: dict[str, Any] = {"model": predicted.base, "out": tmp_path, "size": (64, 128)}
    made = segunc.export(to="pt2", **words)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert before.keys() == {"model.pt2", "model.json"}
    assert made.codes.keys() == {*json.loads(before["model.json"])["scores"]}
    monkeypatch.setattr(check, "ROUNDING", -1.0)
    monkeypatch.setattr(check, "MAX_CODES", -1)
    with pytest.raises(InputError, match="differs from the sampler"):
        segunc.export(to="pt2", **words)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *of: None if name == "onnxscript" else found(name, *of))
    with pytest.raises(InputError, match=r'needs the package onnxscript, .* Hint: pip install "segunc\[export\]"'):
        segunc.export(to="onnx", **words)
