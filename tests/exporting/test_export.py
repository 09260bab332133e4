"""`segunc export`: the file gives the maps that `segunc predict` writes, by itself; and what cannot
be a file is refused.
"""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import cv2
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import segunc
from segunc.affine.convert import convert
from segunc.affine.draws import AffineLayout
from segunc.baselines.anomaly import ScoreSum, Standard, Surprise
from segunc.baselines.density import FeatureDensity, Neighbours
from segunc.baselines.feature_extractor import FeatureExtractor
from segunc.baselines.mc_dropout import OwnDropout, convert_dropout
from segunc.baselines.mixtures import Ensemble, TestTimeAugmentation
from segunc.core.errors import InputError
from segunc.exporting import check, graph
from segunc.exporting.check import check_frames, compare
from segunc.maps.encoding import encode_score
from segunc.networks import NetworkDescription
from segunc.networks.network import SegmentationNetwork
from segunc.posteriors.abnn import ABNNPosterior
from segunc.sampling import Sampler
from segunc.sampling.branches import AnyPosterior, Branch
from segunc.sampling.sampler import Fitted
from segunc.scores import DEFAULT_SCORES, SCORES
from segunc.uncertainty import Calibrator
from tests.affine.networks import randomise
from tests.conftest import Job
from tests.verbs.processes import refuse, succeed

pytest.importorskip("onnxscript", reason="the extra export is not installed")
onnx, onnxruntime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "onnx" / "main.cpp"
SIZE, SCORE_NAMES = (
    (40, 56),
    [name for name, score in SCORES.items() if score.sources <= {"draws", "base"}],
)
BLOCKED = """
import sys
sys.modules["segunc"] = None  # an import of it fails
import numpy as np, torch
maps = torch.export.load(sys.argv[1]).module()(torch.from_numpy(np.load(sys.argv[2])))
np.savez(sys.argv[3], **{name: of.detach().numpy() for name, of in maps.items()})
"""


class Attentive(nn.Module):
    """Convolutions, every kind of normalisation, attention, dropout and a last upsampling, to 4
    classes.
    """

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.stem = nn.Sequential(
            nn.Conv2d(3, 8, 3, 4, 1),
            nn.BatchNorm2d(8),
            nn.GELU(),
            nn.Conv2d(8, 8, 3, padding=1),
            nn.GroupNorm(2, 8),
        )
        self.norm, self.attention, self.drop = (
            nn.LayerNorm(8),
            nn.MultiheadAttention(8, 2, batch_first=True),
            nn.Dropout(0.2),
        )
        self.last = nn.Sequential(
            nn.InstanceNorm2d(8, affine=True), nn.ReLU(inplace=True), nn.Conv2d(8, 4, 1)
        )
        randomise(self)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        features = self.stem(x)
        tokens = self.norm(features.flatten(2).transpose(1, 2))
        mixed = (
            self.attention(tokens, tokens, tokens, need_weights=False)[0]
            .transpose(1, 2)
            .reshape(features.shape)
        )
        return F.interpolate(
            self.last(self.drop(features + mixed)),
            x.shape[-2:],
            mode="bilinear",
            align_corners=False,
        )


def bayesian(seed: int = 0, members: int = 1) -> tuple[nn.Module, ABNNPosterior]:
    network = Attentive(seed)
    convert(network)
    return network, ABNNPosterior.around(AffineLayout(network), 0.2, members)


@pytest.mark.parametrize(
    "kind", ["deterministic", "calibrated", "augmented", "ensemble", "dropout"]
)
def test_every_posterior_is_one_graph(kind: str) -> None:
    network, abnn = bayesian(members=2 if kind == "calibrated" else 1)
    posterior: AnyPosterior = abnn
    if kind == "augmented":
        posterior = TestTimeAugmentation(abnn, (1.0, 1.25))
    elif kind == "ensemble":
        posterior = Ensemble(
            [
                Branch(*of, networks=2, index=i)
                for i, of in enumerate([(network, abnn), bayesian(1)])
            ]
        )
    elif kind == "dropout":
        posterior = OwnDropout(convert_dropout(network))
    fitted = Fitted(1.7, Calibrator(0.6)) if kind == "calibrated" else Fitted()
    drawn = None if kind == "deterministic" else posterior
    sampler, frames = (
        Sampler(network, drawn, draws=5, scores=SCORE_NAMES, fitted=fitted),
        check_frames(SIZE),
    )
    sampler(frames[0])
    module: Any = graph.trace(sampler, frames[0]).module()
    with torch.no_grad():
        found = compare(
            lambda frame: {name: maps.numpy() for name, maps in module(frame).items()},
            sampler,
            frames,
            kind,
        )["scores"]
    assert max(found[name]["codes"] for name in SCORE_NAMES if SCORES[name].stored == "unit16") <= 2


def test_onnx_has_convolutions_before_the_first_noisy_layer_once_for_all_draws(
    tmp_path: Path,
) -> None:
    network, posterior = bayesian()
    sampler = Sampler(network, posterior, draws=5, scores=["entropy", "epistemic", "mean-energy"])
    path, frames = tmp_path / "model.onnx", check_frames(SIZE)
    sampler(frames[0])
    with path.open("wb") as file:
        graph.write_onnx(graph.trace(sampler, frames[0]), file, {})
    found = compare(graph.open_onnx(path), sampler, frames, path.name)
    assert max(score["codes"] for score in found["scores"].values()) <= 2
    inferred = onnx.shape_inference.infer_shapes(onnx.load(path), data_prop=True)
    shapes = {
        value.name: [d.dim_value for d in value.type.tensor_type.shape.dim]
        for value in inferred.graph.value_info
    }
    rows = [shapes[node.output[0]][0] for node in inferred.graph.node if node.op_type == "Conv"]
    assert rows == [1, 5, 5]  # and no convolution of the base network alone, which no score needs
    assert {node.op_type for node in inferred.graph.node} & {"Resize", "GatherND"} == {"Resize"}


@pytest.mark.parametrize("form", ["onnx", "pt2"])
def test_one_file_takes_frames_of_any_size_and_the_draws_of_any_seed(
    form: str, tmp_path: Path
) -> None:
    body, _ = bayesian()
    network = SegmentationNetwork(body, NetworkDescription("x", "", tuple("abcd")), stride=8)
    posterior = ABNNPosterior.around(AffineLayout(network), 0.2)
    path, frames = (
        tmp_path / "model",
        tuple(of for size in [(36, 52), (40, 56), (33, 91)] for of in check_frames(size)),
    )
    samplers = [
        Sampler(network, posterior, draws=5, seed=seed, scores=["entropy", "epistemic"])
        for seed in (0, 1)
    ]
    draws = [
        drawn
        for sampler in samplers
        if sampler(frames[0]) and (drawn := sampler.drawn()) is not None
    ]
    write, read = (
        (graph.write_onnx, graph.open_onnx) if form == "onnx" else (graph.write_pt2, graph.open_pt2)
    )
    with path.open("wb") as file:
        write(graph.trace(samplers[0], frames[0], draws[0], any_size=True), file, {})
    run = read(path)
    for sampler, own in zip(samplers, draws, strict=True):
        compare(lambda frame, own=own: run(frame, own), sampler, frames, path.name)  # type: ignore[misc]
    with pytest.raises(InputError, match="differs from the sampler"):
        compare(lambda frame: run(frame, draws[0]), samplers[1], frames, path.name)
    with pytest.raises(InputError, match="model does not run for a frame of 40x56"):
        compare(lambda frame: run(frame), samplers[0], (torch.rand(1, 3, *SIZE),), path.name)


class BranchOnSize(nn.Module):
    """Computes wide frames by another branch, whose logits are ``factor`` times those of the
    first."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4))
        self.factor = factor
        randomise(self)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.layers(x)
        return self.factor * logits if x.shape[-1] > 500 else logits


def exported_for_any_size(factor: float, folder: Path) -> Any:
    model = segunc.wrap(
        BranchOnSize(factor),
        "abcd",
        factory=f"{__name__}:BranchOnSize",
        arguments={"factor": factor},
    )
    model.save(folder / "model")
    return segunc.export(
        model=folder / "model", to="pt2", out=folder / "out", size="dynamic", scores=["entropy"]
    )


def test_a_branch_on_the_size_that_no_checked_size_takes_is_refused_by_its_condition(
    tmp_path: Path,
) -> None:
    with pytest.raises(InputError, match=r"where W <= 500 is false .*test_export\.py, line \d+"):
        exported_for_any_size(2.0, tmp_path)
    assert not (tmp_path / "out").exists()


def test_a_condition_on_the_size_whose_branches_agree_is_no_refusal(tmp_path: Path) -> None:
    made = exported_for_any_size(1.0, tmp_path)
    frame = check_frames((40, 520))[0]
    expected = Sampler(segunc.load(tmp_path / "model").network, scores=["entropy"])(frame).scores
    found = graph.open_pt2(made.path)(frame)
    np.testing.assert_allclose(found["entropy"], expected["entropy"].numpy(), atol=1e-5)


def test_scripted_code_may_look_at_sizes_and_is_refused_for_any_size() -> None:
    network = nn.Sequential(torch.jit.script(nn.Conv2d(3, 4, 1)), nn.BatchNorm2d(4)).eval()
    sampler, frame = Sampler(network, scores=["entropy"]), check_frames(SIZE)[0]
    sampler(frame)
    with pytest.raises(InputError, match="cannot be followed"):
        graph.trace(sampler, frame, any_size=True)


def test_distances_of_features_and_their_sum_are_in_the_graph(tmp_path: Path) -> None:
    network, posterior = bayesian()
    network.get_parameter("last.2.weight").data.mul_(
        3e3
    )  # some probabilities are 0, whose part of an entropy is 0
    places = FeatureDensity(FeatureExtractor(network, ["stem"]), [Neighbours(torch.rand(40, 8))])
    scales, surprise = (Standard(-1.0, 1.0), Standard(0.1, 0.1)), Surprise.of(torch.randn(10_000))
    total = ScoreSum(
        ("entropy", "knn"), (1.0, 2.0), scales, surprise, {}, 1, 4, 1.0, "", None, None
    )
    scores, frames, path = (
        ["entropy", "knn", "anomaly"],
        check_frames(SIZE),
        tmp_path / "model.onnx",
    )
    sampler = Sampler(
        network, posterior, draws=4, scores=scores, fitted=Fitted(providers=[places, total])
    )
    sampler(frames[0])
    with path.open("wb") as file:
        graph.write_onnx(graph.trace(sampler, frames[0]), file, {})
    assert compare(graph.open_onnx(path), sampler, frames, path.name)["scores"].keys() == set(
        scores
    )
    hull = Sampler(
        network,
        posterior,
        draws=4,
        scores=scores,
        fitted=Fitted(providers=[places, replace(total, drivable=[0])]),
    )
    hull(frames[0])
    with pytest.raises(InputError, match="hull of the drivable surface"):
        graph.trace(hull, frames[0])


def test_a_file_whose_maps_are_wrong_is_refused() -> None:
    network, posterior = bayesian()
    sampler, frames = (
        Sampler(network, posterior, draws=4, scores=["entropy", "deterministic-energy"]),
        check_frames(SIZE),
    )

    def changed(score: str, by: float, image: Tensor) -> graph.Maps:
        maps = sampler(image)
        written = {
            "prediction": maps.prediction.numpy(),
            **{name: of.numpy().copy() for name, of in maps.scores.items()},
        }
        written[score][0, 3, 4] += by
        return written

    assert (
        compare(partial(changed, "entropy", 1e-6), sampler, frames, "m")["prediction_pixels"] == 0
    )
    for score, by in (("entropy", 0.01), ("deterministic-energy", 0.1), ("prediction", 1)):
        with pytest.raises(InputError, match=f"{score} of m differs from the sampler"):
            compare(partial(changed, score, by), sampler, frames, "m")


@pytest.fixture(scope="module")
def exported(predicted: Job, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("exported")
    asked: dict[str, Any] = {"control": "flagged-pixels", "level": 0.5, "score": "entropy"}
    segunc.threshold(
        maps=predicted.maps, anomaly_labels=predicted.masks, out=out / "threshold.json", **asked
    )
    words = ("--size", "64x128", "--draws", 4, "--threshold", out / "threshold.json", "--out", out)
    assert (
        "checked against the sampler: at most"
        in succeed("export", "--model", predicted.abnn, "--to", "onnx", *words).stdout
    )
    return out


def test_onnx_runtime_gives_the_maps_on_the_disk_and_the_file_says_what_they_are(
    exported: Path, predicted: Job
) -> None:
    session = onnxruntime.InferenceSession(
        exported / "model.onnx", providers=["CPUExecutionProvider"]
    )
    names = [output.name for output in session.get_outputs()]
    assert set(names) == {"prediction", *DEFAULT_SCORES}
    for path in sorted(predicted.frames.rglob("*.png")):
        image = cv2.imread(str(path))[..., ::-1].transpose(2, 0, 1)[None].astype(np.float32) / 255
        maps = dict(zip(names, session.run(names, {"image": image}), strict=True))
        for name in ("entropy", "aleatoric", "epistemic", "msp"):
            (file,) = (predicted.maps / name).rglob(f"{path.stem}.png")
            codes = cv2.imread(str(file), cv2.IMREAD_UNCHANGED).astype(int)
            assert np.abs(encode_score(name, maps[name][0]).astype(int) - codes).max() <= 2, name
    record = json.loads((exported / "model.json").read_text())
    inside = {prop.key: prop.value for prop in onnx.load(exported / "model.onnx").metadata_props}
    for key in (
        "classes",
        "palette",
        "mean",
        "std",
        "scores",
        "seed",
        "draws",
        "alpha",
        "threshold",
    ):
        assert json.loads(inside[key]) == record[key]
    assert inside["base_sha256"] == record["base_sha256"] == segunc.load(predicted.abnn).sha256
    assert record["threshold"]["promise"].startswith(
        "On average, at most 50 % of the normal pixels"
    )
    assert record["check"]["scores"]["entropy"]["codes"] <= 2


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("small") / "model"
    segunc.wrap(Attentive(), "abcd", inference_size=SIZE, factory=f"{__name__}:Attentive").save(
        folder
    )
    return folder


def test_a_program_runs_where_this_package_is_not(small: Path, tmp_path: Path) -> None:
    made = segunc.export(model=small, to="pt2", out=tmp_path / "out")
    frame, out = check_frames(SIZE)[1], tmp_path / "maps.npz"
    np.save(tmp_path / "frame.npy", frame.numpy())
    words = [sys.executable, "-W", "ignore", "-c", BLOCKED, made.path, tmp_path / "frame.npy", out]
    subprocess.run(words, check=True, cwd=tmp_path, timeout=120)
    expected = Sampler(segunc.load(small).network, scores=[*made.codes])(frame).scores
    maps = np.load(out)
    for name, values in expected.items():
        np.testing.assert_allclose(maps[name], values, atol=1e-4, err_msg=name)


def test_what_is_asked_for_is_refused_before_anything_is_written(
    exported: Path, predicted: Job, tmp_path: Path
) -> None:
    of = f"--threshold {exported / 'threshold.json'}"
    for words, said in (
        (
            "--to onnx --size 64x128 --scores knn",
            "score knn of a model without features of its training set cannot be made",
        ),
        ("--to pt2", "has no size of its own"),
        ("--to pt2 --size 8x128", "--size 8 is not"),
        ("--to pt2 --size 64x128 --draws 1", "1 draw is too few for 2 members"),
        (
            f"--to pt2 --size 64x128 --draws 6 {of}",
            "threshold of maps with draws 4, and these have 6",
        ),
        (
            f"--to pt2 --size 64x128 --scores msp {of}",
            "is a threshold of entropy, which is not exported",
        ),
    ):
        assert said in refuse(
            "export", "--model", predicted.abnn, *words.split(), "--out", tmp_path / "out"
        )
        assert not (tmp_path / "out").exists()


def test_a_folder_for_triton_says_what_its_file_takes_and_gives(
    predicted: Job, small: Path, tmp_path: Path
) -> None:
    words: dict[str, Any] = {
        "to": "triton",
        "draws": 4,
        "scores": ["entropy"],
        "draws_as_input": True,
        "size": (64, 128),
    }
    made = segunc.export(model=predicted.abnn, out=tmp_path, **words)
    draws = np.load(made.path.parents[1] / "draws.npy")
    assert (tmp_path / "config.pbtxt").read_text().splitlines()[2:] == [
        'input { name: "image" data_type: TYPE_FP32 dims: [1, 3, 64, 128] }',
        f'input {{ name: "draws" data_type: TYPE_FP32 dims: {list(draws.shape)} }}',
        'output { name: "prediction" data_type: TYPE_UINT8 dims: [1, 64, 128] }',
        'output { name: "entropy" data_type: TYPE_FP32 dims: [1, 64, 128] }',
    ]
    assert json.loads((tmp_path / "model.json").read_text())["draws_input"]["shape"] == list(
        draws.shape
    )
    with pytest.raises(InputError, match="is not one network whose normalisation layers are drawn"):
        segunc.export(model=small, out=tmp_path / "no", to="pt2", draws_as_input=True)


def test_a_refused_file_leaves_no_folder(
    predicted: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It is traced, also where nothing is shared and one draw fills a batch.
    monkeypatch.setattr("segunc.sampling.engine.Engine.shares", False)
    monkeypatch.setattr("segunc.sampling.sampler.CHUNK_PIXELS", 1)
    monkeypatch.setattr("segunc.verbs.export.compare", Mock(side_effect=InputError("other maps")))
    with pytest.raises(InputError, match="other maps"):
        segunc.export(model=predicted.abnn, to="pt2", out=tmp_path / "out", draws=2, size=(64, 128))
    assert not (tmp_path / "out").exists()


def test_networks_that_no_graph_holds_are_refused_by_what_they_do(tmp_path: Path) -> None:
    class Strange(nn.Conv2d):
        def forward(self, x: Tensor) -> Tensor:
            logits = super().forward(x)
            if self.does == "reads":
                return logits if x.mean() < 2 else -logits
            return (
                torch.special.airy_ai(logits)
                if self.does == "airy"
                else logits + 1e-9 * torch.rand(1)
            )

    frame, network = check_frames(SIZE)[0], Strange(3, 4, 1)
    for does, said in (
        ("reads", "reads values"),
        ("random", "itself .aten.rand"),
        ("airy", "operator aten.+airy.+which ONNX"),
    ):
        network.does, sampler = does, Sampler(network, scores=["entropy"])
        sampler(frame)
        with pytest.raises(InputError, match=said), (tmp_path / "model.onnx").open("wb") as file:
            graph.write_onnx(graph.trace(sampler, frame), file, {})


def test_a_program_on_a_full_disk_is_an_error_that_can_be_told() -> None:
    program = torch.export.export(nn.Conv2d(3, 4, 1).eval(), (torch.zeros(1, 3, 8, 8),))
    disk = Path("/dev/full").open("wb", buffering=0)  # noqa: SIM115
    with disk, pytest.raises(OSError, match="No space left on device"):
        graph.write_pt2(program, disk, {})


def test_nothing_half_written_is_left_and_a_missing_package_is_named(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words: dict[str, Any] = {"model": small, "out": tmp_path}
    segunc.export(to="pt2", **words)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert before.keys() == {"model.pt2", "model.json"}
    monkeypatch.setattr(check, "ROUNDING", -1.0)
    monkeypatch.setattr(check, "MAX_CODES", -1)
    with pytest.raises(InputError, match="differs from the sampler"):
        segunc.export(to="pt2", **words)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *of: None if name == "onnxscript" else found(name, *of),
    )
    with pytest.raises(
        InputError, match=r'needs the package onnxscript, .* Hint: pip install "segunc\[export\]"'
    ):
        segunc.export(to="onnx", **words)


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no C++ compiler")
def test_the_example_in_cpp_writes_the_codes_of_our_maps(
    exported: Path, predicted: Job, tmp_path: Path
) -> None:
    """ONNXRUNTIME_ROOT holds include/ and lib/ of its release archive; a package's headers and
    library are found without it.
    """
    root, program, out = (
        os.environ.get("ONNXRUNTIME_ROOT"),
        tmp_path / "entropy",
        tmp_path / "entropy.png",
    )
    paths = (
        [f"-I{root}/include", f"-L{root}/lib", f"-Wl,-rpath,{root}/lib"]
        if root
        else ["-I/usr/include/onnxruntime"]
    )
    probe = subprocess.run(
        ["g++", "-std=c++17", *paths, "-E", EXAMPLE], capture_output=True, text=True
    )
    if probe.returncode:
        pytest.skip(f"a header is missing: {probe.stderr.splitlines()[0]}")
    subprocess.run(
        ["g++", "-std=c++17", "-O1", *paths, EXAMPLE, "-lonnxruntime", "-lpng", "-o", program],
        check=True,
        timeout=120,
    )
    for path in sorted(predicted.frames.rglob("*.png"))[:2]:
        subprocess.run([program, exported / "model.onnx", path, out], check=True, timeout=60)
        (file,) = (predicted.maps / "entropy").rglob(f"{path.stem}.png")
        written, expected = (cv2.imread(str(of), cv2.IMREAD_UNCHANGED) for of in (out, file))
        assert np.abs(written.astype(int) - expected).max() <= 2
    refused = subprocess.run(
        [program, exported / "model.onnx", EXAMPLE, tmp_path / "no.png"],
        capture_output=True,
        text=True,
    )
    assert (refused.returncode, (tmp_path / "no.png").exists()) == (1, False)
    assert refused.stderr.startswith(f"error: {EXAMPLE}")


@pytest.mark.parametrize("any_size", [False, True])
@pytest.mark.parametrize("form", ["onnx", "pt2"])
@torch.no_grad()
def test_a_network_of_one_output_is_exported(form: str, any_size: bool, tmp_path: Path) -> None:
    """Its entropy is that of a sigmoid."""
    torch.manual_seed(0)
    body = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.GELU(), nn.Conv2d(4, 1, 1)
    )
    randomise(body)
    description = NetworkDescription("x", "", ("background", "road"), binary=True)
    network = SegmentationNetwork(body.eval(), description, stride=8).eval()
    convert(network)
    posterior = ABNNPosterior.around(AffineLayout(network), 0.2)
    sampler = Sampler(network, posterior, draws=4, scores=["epistemic", "deterministic-entropy"])
    frames = check_frames(SIZE)
    sampler(frames[0])
    path = tmp_path / "model"
    write = graph.write_onnx if form == "onnx" else graph.write_pt2
    read = graph.open_onnx if form == "onnx" else graph.open_pt2
    with path.open("wb") as file:
        write(graph.trace(sampler, frames[0], any_size=any_size), file, {})
    run = read(path)
    compare(run, sampler, frames, path.name)
    maps = run(frames[0])
    p = body((frames[0] - network.mean) / network.std).double().sigmoid()
    entropy = -(torch.special.xlogy(p, p) + torch.special.xlogy(1 - p, 1 - p)) / np.log(2)
    np.testing.assert_allclose(maps["deterministic-entropy"], entropy[:, 0], rtol=0, atol=1e-5)
    assert float(maps["epistemic"].max()) > 1e-4
