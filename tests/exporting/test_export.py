"""`segunc export`: the file gives the maps that `segunc predict` writes, by itself; and what cannot
be a file is refused.
"""

import errno
import hashlib
import importlib.util
import io
import json
import logging
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal
from unittest.mock import Mock

import cv2
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from google.protobuf.message import EncodeError
from torch import Tensor, nn

import segunc
from segunc.affine.convert import convert
from segunc.affine.draws import AffineLayout
from segunc.baselines.anomaly import ScoreSum, Standard, Surprise
from segunc.baselines.density import PLACE_GRID, FeatureDistances, Neighbours
from segunc.baselines.feature_extractor import FeatureExtractor
from segunc.baselines.mc_dropout import OwnDropout, convert_dropout
from segunc.baselines.mixtures import EnsemblePosterior, TestTimeAugmentation
from segunc.cli.run import SHOWN
from segunc.core.errors import InputError
from segunc.core.files import without_seal, write_result
from segunc.decisions.guarantee import read_threshold
from segunc.exporting import check, graph
from segunc.exporting.check import check_frames, check_inputs, compare
from segunc.exporting.operators import operators_of, tensorrt_check
from segunc.exporting.placement import Flag, Placement
from segunc.maps.encoding import encode_score
from segunc.networks import NetworkDescription
from segunc.networks.network import SegmentationNetwork
from segunc.options import ExportOptions
from segunc.posteriors.abnn import ABNNPosterior
from segunc.sampling import Sampler
from segunc.sampling.branches import AnyPosterior, Branch
from segunc.sampling.sampler import Fitted, Prediction
from segunc.scores import DEFAULT_SCORES, SCORES
from segunc.uncertainty import Calibrator
from segunc.verbs.export import _notes, _run_size, _sizes_seen
from tests.affine.networks import randomise
from tests.conftest import Job
from tests.exporting.test_operators import model_of
from tests.verbs.processes import refuse, succeed

pytest.importorskip("onnxscript", reason="the extra export is not installed")
onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "onnx" / "main.cpp"
SIZE = (40, 56)
SCORE_NAMES = [
    name
    for name, score in SCORES.items()
    if score.sources <= {"draws", "base"} and name != "rba"  # of networks that classify masks
]
BLOCKED = """
import sys
sys.modules["segunc"] = None  # an import of it fails
import numpy as np, torch
maps = torch.export.load(sys.argv[1]).module()(torch.from_numpy(np.load(sys.argv[2])))
np.savez(sys.argv[3], **{name: values.detach().numpy() for name, values in maps.items()})
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
        self.norm = nn.LayerNorm(8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.drop = nn.Dropout(0.2)
        self.last = nn.Sequential(
            nn.InstanceNorm2d(8, affine=True), nn.ReLU(inplace=True), nn.Conv2d(8, 4, 1)
        )
        randomise(self)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        features = self.stem(x)
        tokens = self.norm(features.flatten(2).transpose(1, 2))
        attended, _ = self.attention(tokens, tokens, tokens, need_weights=False)
        mixed = attended.transpose(1, 2).reshape(features.shape)
        logits = self.last(self.drop(features + mixed))
        return F.interpolate(logits, x.shape[-2:], mode="bilinear", align_corners=False)


def bayesian(seed: int = 0, members: int = 1) -> tuple[nn.Module, ABNNPosterior]:
    network = Attentive(seed)
    convert(network)
    return network, ABNNPosterior.around(AffineLayout(network), 0.2, members)


def write_graph(path: Path, program: torch.export.ExportedProgram) -> None:
    with path.open("wb") as file:
        if path.suffix == ".onnx":
            graph.write_onnx(program, file, {})
        else:
            graph.write_pt2(program, file, {})


def open_graph(path: Path) -> Callable[..., graph.Maps]:
    return graph.open_onnx(path) if path.suffix == ".onnx" else graph.open_pt2(path)


def posterior_of(kind: str) -> tuple[nn.Module, AnyPosterior | None]:
    network, abnn = bayesian(members=2 if kind == "calibrated" else 1)
    if kind == "deterministic":
        return network, None
    if kind == "augmented":
        return network, TestTimeAugmentation(abnn, (1.0, 1.25))
    if kind == "ensemble":
        other_network, other_abnn = bayesian(1)
        branches = [
            Branch(network, abnn, networks=2, index=0),
            Branch(other_network, other_abnn, networks=2, index=1),
        ]
        return network, EnsemblePosterior(branches)
    if kind == "layers":
        return network, abnn.with_alpha(torch.linspace(0.1, 0.3, len(AffineLayout(network).names)))
    if kind == "dropout":
        return network, OwnDropout(convert_dropout(network))
    return network, abnn


@pytest.mark.parametrize(
    "kind", ["deterministic", "calibrated", "layers", "augmented", "ensemble", "dropout"]
)
def test_every_posterior_is_one_graph(kind: str) -> None:
    network, posterior = posterior_of(kind)
    fitted = Fitted(1.7, Calibrator(0.6)) if kind == "calibrated" else Fitted()
    sampler = Sampler(network, posterior, draws=5, scores=SCORE_NAMES, fitted=fitted)
    frames = check_frames(SIZE)
    sampler(frames[0])
    module: Any = graph.trace(sampler, frames[0]).module()

    def run(frame: Tensor) -> graph.Maps:
        return {name: maps.numpy() for name, maps in module(frame).items()}

    with torch.no_grad():
        differences = compare(run, sampler, frames, kind)["scores"]
    stored_in_16_bits = [name for name in SCORE_NAMES if SCORES[name].stored == "unit16"]
    assert max(differences[name]["codes"] for name in stored_in_16_bits) <= 2


def test_onnx_runs_what_all_draws_share_once(tmp_path: Path) -> None:
    network, posterior = bayesian()
    sampler = Sampler(network, posterior, draws=5, scores=["entropy", "epistemic", "mean-energy"])
    frames = check_frames(SIZE)
    sampler(frames[0])
    path = tmp_path / "model.onnx"
    write_graph(path, graph.trace(sampler, frames[0]))
    differences = compare(graph.open_onnx(path), sampler, frames, path.name)["scores"]
    assert max(score["codes"] for score in differences.values()) <= 2
    inferred = onnx.shape_inference.infer_shapes(onnx.load(path), data_prop=True).graph
    rows_of: dict[str, int] = {}
    for value in inferred.value_info:
        sides = value.type.tensor_type.shape.dim
        rows_of[value.name] = sides[0].dim_value if sides else 0
    convolutions = [node for node in inferred.node if node.op_type == "Conv"]
    # The first one comes before the first noisy layer. There is no convolution of the base network
    # alone, which no score needs.
    assert [rows_of[node.output[0]] for node in convolutions] == [1, 5, 5]


@pytest.mark.parametrize("any_size", [False, True])
def test_no_tensor_of_a_file_is_float64(any_size: bool, tmp_path: Path) -> None:
    network, posterior = bayesian()
    fitted = Fitted(1.7, Calibrator(0.6))
    sampler = Sampler(network, posterior, draws=3, scores=SCORE_NAMES, fitted=fitted)
    frame = check_frames(SIZE)[0]
    sampler(frame)
    path = tmp_path / "model.onnx"
    write_graph(path, graph.trace(sampler, frame, any_size=any_size))
    operators = operators_of(onnx.load(path))
    assert {"Conv", "Log", "Cast"} <= {operator.name for operator in operators}
    types = {name for operator in operators for name in operator.types}
    assert types <= {"FLOAT", "UINT8", "BOOL", "INT64", "INT32"}


class Placed(nn.Module):
    """Values that are put at indices, at which the exporter warns of its own guess."""

    def forward(self, image: Tensor) -> dict[str, Tensor]:
        values = image.flatten()
        return {"prediction": torch.zeros(4).index_put((torch.tensor([2]),), values[:1])}


def test_libraries_tell_users_nothing_of_their_guesses(caplog: pytest.LogCaptureFixture) -> None:
    level = logging.getLogger("onnx_ir").level
    program = torch.export.export(Placed(), (torch.rand(1, 3, 8, 8),))
    graph.write_onnx(program, io.BytesIO(), {})
    warned = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert [record.getMessage() for record in warned] == []
    assert logging.getLogger("onnx_ir").level == level


def test_openvino_gives_the_maps_of_the_sampler(tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    network, posterior = bayesian()
    sampler = Sampler(network, posterior, draws=5, scores=SCORE_NAMES)
    frames = check_frames(SIZE)
    sampler(frames[0])
    path = tmp_path / "model.onnx"
    write_graph(path, graph.trace(sampler, frames[0]))
    run = graph.open_openvino(path)
    differences = compare(run, sampler, frames, path.name)["scores"]
    assert differences.keys() == set(SCORE_NAMES)


def test_the_last_upsampling_is_one_resize_of_onnx(tmp_path: Path) -> None:
    network, posterior = bayesian()
    sampler = Sampler(network, posterior, draws=5, scores=["entropy", "epistemic", "mean-energy"])
    frame = check_frames(SIZE)[0]
    sampler(frame)
    path = tmp_path / "model.onnx"
    write_graph(path, graph.trace(sampler, frame))
    operators = {node.op_type for node in onnx.load(path).graph.node}
    assert "Resize" in operators
    assert "GatherND" not in operators


def test_an_operator_that_openvino_lacks_is_named(tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    onnx.save(model_of("Relu", "com.mine.Gelu"), tmp_path / "model.onnx")
    with pytest.raises(InputError, match=r"OpenVINO .* file: it lacks com\.mine\.Gelu"):
        graph.open_openvino(tmp_path / "model.onnx")


@pytest.mark.parametrize(
    "placement",
    [
        Placement(SIZE, batch=3),
        Placement(SIZE, frame_size=(80, 112)),  # means of 2 x 2 pixels
        Placement(SIZE, batch=2, frame_size=(61, 83), flag=Flag("entropy", 0.8)),
        Placement(SIZE, frame_size=(33, 50), flag=Flag("mean-energy", -2.0)),  # they grow
    ],
    ids=["batch", "uint8", "batch of uint8", "small uint8"],
)
def test_placed_files_give_the_maps_of_each_frame_alone(
    placement: Placement, tmp_path: Path
) -> None:
    body, _ = bayesian()
    network = SegmentationNetwork(body, NetworkDescription("x", "", tuple("abcd")), stride=8)
    posterior = ABNNPosterior.around(AffineLayout(network), 0.2)
    scores = ["msp", "entropy", "epistemic", "mean-energy", "deterministic-entropy"]
    sampler = Sampler(network, posterior, draws=3, scores=scores)
    frames = check_inputs(placement)
    placement.prepare(sampler, frames[0])
    path = tmp_path / "model.onnx"
    write_graph(path, graph.trace(sampler, frames[0], placement=placement))
    model = onnx.load(path)
    (image,) = model.graph.input
    assert [side.dim_value for side in image.type.tensor_type.shape.dim] == list(placement.shape)
    assert tensorrt_check(model)["lacks"] == []
    differences = compare(graph.open_onnx(path), sampler, frames, path.name, placement)
    assert differences["scores"]["entropy"]["codes"] <= 2
    if importlib.util.find_spec("openvino") is not None:
        compare(graph.open_openvino(path), sampler, frames, path.name, placement)


def test_a_wrong_mask_is_refused() -> None:
    network, posterior = bayesian()
    sampler = Sampler(network, posterior, draws=3, scores=["entropy"])
    entropy = sampler(check_frames(SIZE)[0]).scores["entropy"]
    lower, upper = entropy.quantile(torch.tensor([0.3, 0.7])).tolist()
    placement = Placement(SIZE, flag=Flag("entropy", lower))

    def run(frame: Tensor) -> graph.Maps:
        maps = sampler(frame)
        written = {name: values.numpy() for name, values in maps.scores.items()}
        written["prediction"] = maps.prediction.numpy()
        written["flagged"] = (written["entropy"] >= upper).astype(np.uint8)
        return written

    with pytest.raises(InputError, match="the flagged mask of m differs from the sampler where"):
        compare(run, sampler, check_frames(SIZE), "m", placement)


@dataclass
class AnySizeFile:
    """A file for frames of any size whose draws are an input, and two samplers of its network."""

    run: Callable[..., graph.Maps]
    frames: tuple[Tensor, ...]
    samplers: list[Sampler]  # the first one was traced
    draws: list[Tensor]  # of each sampler


@pytest.fixture(params=["onnx", "pt2"])
def any_size_file(request: pytest.FixtureRequest, tmp_path: Path) -> AnySizeFile:
    body, _ = bayesian()
    network = SegmentationNetwork(body, NetworkDescription("x", "", tuple("abcd")), stride=8)
    posterior = ABNNPosterior.around(AffineLayout(network), 0.2)
    frames = (*check_frames((36, 52)), *check_frames((40, 56)), *check_frames((33, 91)))
    samplers: list[Sampler] = []
    draws: list[Tensor] = []
    for seed in (0, 1):
        sampler = Sampler(network, posterior, draws=5, seed=seed, scores=["entropy", "epistemic"])
        sampler(frames[0])
        drawn = sampler.drawn()
        assert drawn is not None
        samplers.append(sampler)
        draws.append(drawn)
    path = tmp_path / f"model.{request.param}"
    write_graph(path, graph.trace(samplers[0], frames[0], draws[0], any_size=True))
    return AnySizeFile(open_graph(path), frames, samplers, draws)


@pytest.mark.parametrize("seed", [0, 1])
def test_one_file_takes_frames_of_any_size_and_draws_of_any_seed(
    any_size_file: AnySizeFile, seed: int
) -> None:
    def run(frame: Tensor) -> graph.Maps:
        return any_size_file.run(frame, any_size_file.draws[seed])

    compare(run, any_size_file.samplers[seed], any_size_file.frames, "model")


def test_a_file_given_other_draws_differs_from_the_sampler(any_size_file: AnySizeFile) -> None:
    def run(frame: Tensor) -> graph.Maps:
        return any_size_file.run(frame, any_size_file.draws[0])

    with pytest.raises(InputError, match="differs from the sampler"):
        compare(run, any_size_file.samplers[1], any_size_file.frames, "model")


def test_a_file_that_lacks_its_draws_does_not_run(any_size_file: AnySizeFile) -> None:
    frame = torch.rand(1, 3, *SIZE)
    with pytest.raises(InputError, match="model does not run for a frame of 40x56"):
        compare(any_size_file.run, any_size_file.samplers[0], (frame,), "model")


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
        ("a", "b", "c", "d"),
        factory=f"{__name__}:BranchOnSize",
        arguments={"factor": factor},
    )
    model.save(folder / "model")
    return segunc.export(
        model=folder / "model", to="pt2", out=folder / "out", size="dynamic", scores=["entropy"]
    )


def test_a_branch_on_the_size_is_refused_by_its_condition(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"where W <= 500 is false .*test_export\.py, line \d+"):
        exported_for_any_size(2.0, tmp_path)
    assert not (tmp_path / "out").exists()


def test_a_condition_on_the_size_whose_branches_agree_is_no_refusal(tmp_path: Path) -> None:
    made = exported_for_any_size(1.0, tmp_path)
    frame = check_frames((40, 520))[0]
    expected = Sampler(segunc.load(tmp_path / "model").network, scores=["entropy"])(frame).scores
    found = graph.open_pt2(made.path)(frame)
    np.testing.assert_allclose(found["entropy"], expected["entropy"].numpy(), atol=1e-5)


def test_the_number_of_channels_is_no_condition_on_the_size() -> None:
    body, _ = bayesian()
    network = SegmentationNetwork(body, NetworkDescription("x", "", tuple("abcd")), stride=8)
    sampler = Sampler(network, scores=["entropy"])
    frame = check_frames((36, 52))[0]
    sampler(frame)
    _, guards = graph.trace_with_guards(sampler, frame, any_size=True)
    assert guards == []


def test_scripted_code_may_look_at_sizes_and_is_refused_for_any_size() -> None:
    network = nn.Sequential(torch.jit.script(nn.Conv2d(3, 4, 1)), nn.BatchNorm2d(4)).eval()
    sampler = Sampler(network, scores=["entropy"])
    frame = check_frames(SIZE)[0]
    sampler(frame)
    with pytest.raises(InputError, match="cannot be followed"):
        graph.trace(sampler, frame, any_size=True)


def feature_sampler(drivable: list[int] | None) -> Sampler:
    """Return a sampler of distances of features and of a sum of scores; with drivable classes the
    sum holds only within the hull of their surface."""
    network, posterior = bayesian()
    # So that some probabilities are 0, whose part of an entropy is 0.
    network.get_parameter("last.2.weight").data.mul_(3e3)
    density = FeatureDistances(
        FeatureExtractor(network, ["stem"]),
        [Neighbours(torch.rand(40, 8))],
        levels=[0.1 * torch.randn(PLACE_GRID, PLACE_GRID)],
        smoothing=1.5,
    )
    scales = (Standard(-1.0, 1.0), Standard(0.1, 0.1))
    surprise = Surprise.of(torch.randn(10_000))
    total = ScoreSum(
        ("entropy", "knn"), (1.0, 2.0), scales, surprise, {}, 1, 4, 1.0, "", None, None
    )
    if drivable is not None:
        total = replace(total, drivable=drivable)
    fitted = Fitted(providers=[density, total])
    scores = ["entropy", "knn", "anomaly"]
    return Sampler(network, posterior, draws=4, scores=scores, fitted=fitted)


def test_distances_of_features_and_their_sum_are_in_the_graph(tmp_path: Path) -> None:
    sampler = feature_sampler(drivable=None)
    frames = check_frames(SIZE)
    sampler(frames[0])
    path = tmp_path / "model.onnx"
    write_graph(path, graph.trace(sampler, frames[0]))
    differences = compare(graph.open_onnx(path), sampler, frames, path.name)["scores"]
    assert differences.keys() == {"entropy", "knn", "anomaly"}
    assert tensorrt_check(onnx.load(path))["lacks"] == []


def test_the_hull_of_a_surface_is_refused() -> None:
    sampler = feature_sampler(drivable=[0])
    frame = check_frames(SIZE)[0]
    sampler(frame)
    with pytest.raises(InputError, match="hull of the drivable surface"):
        graph.trace(sampler, frame)


def compare_changed(score: str, change: float) -> dict[str, Any]:
    """Compare a sampler with its own maps, of which one is changed at a pixel."""
    network, posterior = bayesian()
    sampler = Sampler(network, posterior, draws=4, scores=["entropy", "deterministic-energy"])

    def run(frame: Tensor) -> graph.Maps:
        maps = sampler(frame)
        written = {name: values.numpy().copy() for name, values in maps.scores.items()}
        written["prediction"] = maps.prediction.numpy()
        written[score][0, 3, 4] += change
        return written

    return compare(run, sampler, check_frames(SIZE), "m")


def test_rounding_is_no_difference() -> None:
    assert compare_changed("entropy", 1e-6)["prediction_pixels"] == 0


@pytest.mark.parametrize(
    ("score", "change"),
    [
        ("entropy", 0.01),
        ("deterministic-energy", 0.1),
        ("prediction", 1),
    ],
)
def test_a_file_whose_maps_are_wrong_is_refused(score: str, change: float) -> None:
    with pytest.raises(InputError, match=f"{score} of m differs from the sampler"):
        compare_changed(score, change)


@pytest.fixture(scope="module")
def exported(predicted: Job, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("exported")
    threshold = out / "threshold.json"
    segunc.threshold(
        maps=predicted.maps,
        anomaly_labels=predicted.masks,
        out=threshold,
        control="flagged-pixels",
        level=0.5,
        score="entropy",
    )
    words = ("--size", "64x128", "--draws", 4, "--threshold", threshold, "--out", out)
    printed = succeed("export", "--model", predicted.abnn, "--to", "onnx", *words).stdout
    assert "checked against the sampler: at most" in printed
    return out


def test_a_threshold_of_frames_of_another_size_is_noted(
    exported: Path, predicted: Job, tmp_path: Path
) -> None:
    same = exported / "threshold.json"
    content = without_seal(json.loads(same.read_text()), same)
    path = tmp_path / "other.json"
    write_result(path, content | {"sizes": ["640x480"]})
    how: dict[str, Any] = {"to": "pt2", "draws": 4, "scores": ["entropy"], "size": (64, 128)}
    out = tmp_path / "other"
    made = segunc.export(model=predicted.abnn, out=out, threshold=path, **how)
    assert made.notes[0].startswith(
        f"{path} was calibrated on frames of 640x480 pixels, and these have 128x64: "
    )
    made = segunc.export(model=predicted.abnn, out=tmp_path / "same", threshold=same, **how)
    assert not any("these have" in note for note in made.notes)


def read_input(path: Path) -> np.ndarray[Any, Any]:
    """Return an image file as ``[1, 3, H, W]`` float32 RGB in 0..1."""
    rgb = cv2.imread(str(path))[..., ::-1]
    return rgb.transpose(2, 0, 1)[None].astype(np.float32) / 255


def test_onnx_runtime_gives_the_maps_on_the_disk(exported: Path, predicted: Job) -> None:
    session = onnxruntime.InferenceSession(
        exported / "model.onnx", providers=["CPUExecutionProvider"]
    )
    names = [output.name for output in session.get_outputs()]
    assert set(names) == {"prediction", "flagged", *DEFAULT_SCORES}
    for path in sorted(predicted.frames.rglob("*.png")):
        outputs = session.run(names, {"image": read_input(path)})
        maps = dict(zip(names, outputs, strict=True))
        for name in ("entropy", "aleatoric", "epistemic", "msp"):
            (file,) = (predicted.maps / name).rglob(f"{path.stem}.png")
            codes = cv2.imread(str(file), cv2.IMREAD_UNCHANGED).astype(int)
            written_codes = encode_score(name, maps[name][0]).astype(int)
            assert np.abs(written_codes - codes).max() <= 2, name


def test_the_mask_flags_the_stored_codes_of_its_threshold(exported: Path, predicted: Job) -> None:
    value = json.loads((exported / "threshold.json").read_text())["value"]
    session = onnxruntime.InferenceSession(
        exported / "model.onnx", providers=["CPUExecutionProvider"]
    )
    shares = []
    for path in sorted(predicted.frames.rglob("*.png")):
        entropy, flagged = session.run(["entropy", "flagged"], {"image": read_input(path)})
        expected = segunc.decode_unit(encode_score("entropy", entropy)) >= np.float64(value)
        assert flagged.dtype == np.uint8
        assert np.array_equal(flagged, expected)
        shares.append(flagged.mean())
    assert 0 < np.mean(shares) < 1


@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino"])
def test_the_blocks_of_the_guide_flag_the_pixels_of_an_image(
    exported: Path, predicted: Job, tmp_path: Path, runtime: str
) -> None:
    pytest.importorskip(runtime)
    guide = (Path(__file__).parents[2] / "docs/guides/exporting.md").read_text("utf-8")
    blocks = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    (block,) = [block for block in blocks if f"import {runtime}\n" in block]
    (tmp_path / "exported").symlink_to(exported)
    path = min(predicted.frames.rglob("*.png"))
    large = cv2.resize(cv2.imread(str(path)), (256, 128), interpolation=cv2.INTER_NEAREST)
    cv2.imwrite(str(tmp_path / "frame.png"), large)  # the mean of 2 x 2 pixels is the frame
    subprocess.run([sys.executable, "-c", block], cwd=tmp_path, check=True, timeout=300)
    session = onnxruntime.InferenceSession(
        exported / "model.onnx", providers=["CPUExecutionProvider"]
    )
    (expected,) = session.run(["flagged"], {"image": read_input(path)})
    flagged = cv2.imread(str(tmp_path / "flagged.png"), cv2.IMREAD_UNCHANGED)
    assert set(np.unique(flagged)) == {0, 255}
    # Rounding of another runtime may move a value across the threshold.
    assert np.mean(flagged != 255 * expected[0]) <= (0.001 if runtime == "openvino" else 0)


@pytest.mark.parametrize(
    "key",
    ["classes", "palette", "mean", "std", "scores", "seed", "draws", "alpha", "threshold"],
)
def test_the_file_holds_what_its_record_says(exported: Path, key: str) -> None:
    record = json.loads((exported / "model.json").read_text())
    metadata = onnx.load(exported / "model.onnx").metadata_props
    inside = {entry.key: entry.value for entry in metadata}
    assert json.loads(inside[key]) == record[key]


def test_a_file_names_its_network_its_threshold_and_its_check(
    exported: Path, predicted: Job
) -> None:
    record = json.loads((exported / "model.json").read_text())
    metadata = onnx.load(exported / "model.onnx").metadata_props
    inside = {entry.key: entry.value for entry in metadata}
    sha256 = segunc.load(predicted.abnn).sha256
    assert inside["base_sha256"] == sha256
    assert record["base_sha256"] == sha256
    promise = "On average, at most 50 % of the normal pixels"
    assert record["threshold"]["promise"].startswith(promise)
    assert record["threshold"]["score"] == "entropy"
    assert "condition" in record["threshold"]
    digest = hashlib.sha256((exported / "threshold.json").read_bytes()).hexdigest()
    assert record["threshold"]["file_sha256"] == digest
    assert record["check"]["scores"]["entropy"]["codes"] <= 2


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("small") / "model"
    segunc.wrap(
        Attentive(), ("a", "b", "c", "d"), inference_size=SIZE, factory=f"{__name__}:Attentive"
    ).save(folder)
    return folder


def test_a_program_runs_where_this_package_is_not(small: Path, tmp_path: Path) -> None:
    made = segunc.export(model=small, to="pt2", out=tmp_path / "out")
    frame = check_frames(SIZE)[1]
    out = tmp_path / "maps.npz"
    np.save(tmp_path / "frame.npy", frame.numpy())
    words = [sys.executable, "-W", "ignore", "-c", BLOCKED, made.path, tmp_path / "frame.npy", out]
    subprocess.run(words, check=True, cwd=tmp_path, timeout=120)
    expected = Sampler(segunc.load(small).network, scores=[*made.codes])(frame).scores
    maps = np.load(out)
    for name, values in expected.items():
        np.testing.assert_allclose(maps[name], values, atol=1e-4, err_msg=name)


@pytest.mark.parametrize("resolution", ["frame", "network"])
def test_a_score_of_frames_at_their_own_size_says_that_it_is_not_that_of_predict(
    small: Path, tmp_path: Path, resolution: Literal["frame", "network"]
) -> None:
    settings = segunc.FeatureDensity(layers=["body.stem"], bank=50, resolution=resolution)
    batches = [(torch.rand(2, 3, *SIZE), torch.zeros(2, *SIZE, dtype=torch.long))]
    settings.fit(segunc.load(small), batches).save(tmp_path / "model")
    options = ExportOptions(
        model=tmp_path / "model", to="pt2", out=tmp_path / "out", scores=["entropy", "knn"]
    )
    made = segunc.export(options)
    records = json.loads(made.record.read_text())["scores"]
    assert "condition" not in records["entropy"]
    *_, last = SHOWN["export"](made, options)
    if resolution == "network":
        assert "condition" not in records["knn"]
        assert last == f"wrote {made.path} and {made.record}"
    else:
        assert "shows it their own size, at which it was fitted" in records["knn"]["condition"]
        assert last == f"knn is not predict's: {records['knn']['condition']}"
        assert last.endswith("so thresholds of predict do not hold for the file")


THRESHOLD = "--threshold THRESHOLD"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            "--to onnx --size 64x128 --scores knn",
            "score knn of a model without features of its training set cannot be made",
        ),
        ("--to pt2", "has no size of its own"),
        ("--to pt2 --size 8x128", "--size 8 is not"),
        ("--to pt2 --size 64x128 --draws 1", "1 draw is too few for 2 members"),
        (
            f"--to pt2 --size 64x128 --draws 6 {THRESHOLD}",
            "was calibrated on maps with draws 4, and these have 6. Hint: calibrate on maps of "
            "segunc predict --precision float32",
        ),
        (
            f"--to pt2 --size 64x128 --scores msp {THRESHOLD}",
            "is a threshold of entropy, which is not exported",
        ),
        ("--to onnx --batch 0", "--batch 0"),
        ("--to onnx --size 64x128 --frame-size 96x192", "--frame-size is for uint8 frames"),
        ("--to onnx --size dynamic --batch 2", "takes one float32 image in a call"),
        (
            "--to onnx --size 64x128 --input uint8 --frame-size 96x100",
            "a frame of 96x100 would be lower and wider at the network's 64x128",
        ),
        ("--to pt2 --size 64x128 --check-in openvino", "--check-in openvino checks ONNX files"),
    ],
)
def test_a_refusal_comes_before_anything_is_written(
    options: str, message: str, exported: Path, predicted: Job, tmp_path: Path
) -> None:
    words = options.replace("THRESHOLD", str(exported / "threshold.json")).split()
    out = tmp_path / "out"
    assert message in refuse("export", "--model", predicted.abnn, *words, "--out", out)
    assert not out.exists()


def test_a_folder_for_triton_says_what_its_file_takes_and_gives(
    predicted: Job, tmp_path: Path
) -> None:
    made = segunc.export(
        model=predicted.abnn,
        out=tmp_path,
        to="triton",
        draws=4,
        scores=["entropy"],
        draws_as_input=True,
        size=(64, 128),
    )
    draws = np.load(made.path.parents[1] / "draws.npy")
    digest = hashlib.sha256(made.path.read_bytes()).hexdigest()
    assert (tmp_path / "config.pbtxt").read_text().splitlines()[2:] == [
        'input { name: "image" data_type: TYPE_FP32 dims: [1, 3, 64, 128] }',
        f'input {{ name: "draws" data_type: TYPE_FP32 dims: {list(draws.shape)} }}',
        'output { name: "prediction" data_type: TYPE_UINT8 dims: [1, 64, 128] }',
        'output { name: "entropy" data_type: TYPE_FP32 dims: [1, 64, 128] }',
        f'parameters {{ key: "segunc_sha256" value {{ string_value: "{digest}" }} }}',
    ]
    record = json.loads((tmp_path / "model.json").read_text())
    assert record["sha256"] == digest
    assert record["draws_input"]["shape"] == list(draws.shape)


def test_draws_of_a_deterministic_model_cannot_be_an_input(small: Path, tmp_path: Path) -> None:
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


class Strange(nn.Conv2d):
    """A convolution that ``does`` what no graph, or no ONNX, holds."""

    def __init__(self, does: str) -> None:
        super().__init__(3, 4, 1)
        self.does = does

    def forward(self, x: Tensor) -> Tensor:
        logits = super().forward(x)
        if self.does == "reads":
            return logits if x.mean() < 2 else -logits
        if self.does == "airy":
            return torch.special.airy_ai(logits)
        return logits + 1e-9 * torch.rand(1)


@pytest.mark.parametrize(
    ("does", "message"),
    [
        ("reads", "reads values"),
        ("random", "itself .aten.rand"),
        ("airy", "operator aten.+airy.+which ONNX"),
    ],
)
def test_a_network_that_no_graph_holds_is_refused(does: str, message: str, tmp_path: Path) -> None:
    sampler = Sampler(Strange(does), scores=["entropy"])
    frame = check_frames(SIZE)[0]
    sampler(frame)
    with pytest.raises(InputError, match=message):
        write_graph(tmp_path / "model.onnx", graph.trace(sampler, frame))


def test_a_program_on_a_full_disk_is_an_error_that_can_be_told() -> None:
    program = torch.export.export(nn.Conv2d(3, 4, 1).eval(), (torch.zeros(1, 3, 8, 8),))
    disk = Path("/dev/full").open("wb", buffering=0)  # noqa: SIM115
    with disk, pytest.raises(OSError, match="No space left on device"):
        graph.write_pt2(program, disk, {})


class Entropy(nn.Module):
    """A graph with one output."""

    def forward(self, image: Tensor) -> dict[str, Tensor]:
        return {"entropy": image.mean(1)}


def test_a_network_of_more_weights_than_one_file_holds_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program = torch.export.export(Entropy(), (torch.zeros(1, 3, 8, 8),))
    made = Mock()
    made.model_proto.SerializeToString.side_effect = EncodeError("Failed to serialize proto")
    monkeypatch.setattr(torch.onnx, "export", Mock(return_value=made))
    with pytest.raises(
        InputError, match=r"more weights than one ONNX file holds, .* Hint: `to` pt2"
    ):
        graph.write_onnx(program, io.BytesIO(), {})


def test_a_full_disk_leaves_both_files_of_an_earlier_export(
    small: Path, tmp_path: Path, toy_set: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OpenVINO reads model.xml with any model.bin, also with the weights of another model."""
    pytest.importorskip("openvino")
    options: dict[str, Any] = {
        "model": small,
        "to": "openvino",
        "out": tmp_path,
        "scores": ["entropy"],
        "precision": "float16",
        "check_frames": toy_set / "leftImg8bit",
        "max_changed": 1.0,
    }
    segunc.export(**options)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert before.keys() == {"model.xml", "model.bin", "model.json"}
    name_while_written = hashlib.blake2b(b"model.bin", digest_size=16).hexdigest()
    open_file = Path.open

    def open_where_there_is_room(path: Path, *how: Any, **named: Any) -> Any:
        if name_while_written in path.name:
            raise OSError(errno.ENOSPC, "No space left on device")
        return open_file(path, *how, **named)

    monkeypatch.setattr(Path, "open", open_where_there_is_room)
    with pytest.raises(OSError, match="No space left on device"):
        segunc.export(seed=1, **options)
    monkeypatch.undo()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_wrong_file_replaces_nothing(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    segunc.export(model=small, to="pt2", out=tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert before.keys() == {"model.pt2", "model.json"}
    monkeypatch.setattr(check, "ROUNDING", -1.0)
    monkeypatch.setattr(check, "MAX_CODES", -1)
    with pytest.raises(InputError, match="differs from the sampler"):
        segunc.export(model=small, to="pt2", out=tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_missing_package_is_named(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_spec = importlib.util.find_spec

    def without_onnxscript(name: str, *package: str) -> Any:
        return None if name == "onnxscript" else find_spec(name, *package)

    monkeypatch.setattr(importlib.util, "find_spec", without_onnxscript)
    message = r'needs the package onnxscript, .* Hint: pip install "segunc\[export\]"'
    with pytest.raises(InputError, match=message):
        segunc.export(model=small, to="onnx", out=tmp_path)


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no C++ compiler")
def test_the_example_in_cpp_writes_the_codes_of_our_maps(
    exported: Path, predicted: Job, tmp_path: Path
) -> None:
    """ONNXRUNTIME_ROOT holds include/ and lib/ of its release archive; a package's headers and
    library are found without it.
    """
    root = os.environ.get("ONNXRUNTIME_ROOT")
    program = tmp_path / "entropy"
    out = tmp_path / "entropy.png"
    paths = ["-I/usr/include/onnxruntime"]
    if root:
        paths = [f"-I{root}/include", f"-L{root}/lib", f"-Wl,-rpath,{root}/lib"]
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
        written = cv2.imread(str(out), cv2.IMREAD_UNCHANGED)
        expected = cv2.imread(str(file), cv2.IMREAD_UNCHANGED)
        assert np.abs(written.astype(int) - expected).max() <= 2
    refused = subprocess.run(
        [program, exported / "model.onnx", EXAMPLE, tmp_path / "no.png"],
        capture_output=True,
        text=True,
    )
    assert refused.returncode == 1
    assert not (tmp_path / "no.png").exists()
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
    path = tmp_path / f"model.{form}"
    write_graph(path, graph.trace(sampler, frames[0], any_size=any_size))
    run = open_graph(path)
    compare(run, sampler, frames, path.name)
    maps = run(frames[0])
    p = body((frames[0] - network.mean) / network.std).double().sigmoid()
    entropy = -(torch.special.xlogy(p, p) + torch.special.xlogy(1 - p, 1 - p)) / np.log(2)
    np.testing.assert_allclose(maps["deterministic-entropy"], entropy[:, 0], rtol=0, atol=1e-5)
    assert float(maps["epistemic"].max()) > 1e-4


def test_a_third_class_is_no_tie() -> None:
    probabilities = torch.tensor([0.45, 0.45, 0.1]).reshape(1, 3, 1, 1)
    expected = Prediction(
        prediction=torch.zeros(1, 1, 1, dtype=torch.uint8), scores={}, probabilities=probabilities
    )

    def differing(written: int) -> int:
        return check._differing_predictions(np.full((1, 1, 1), written, np.uint8), expected, "m")

    assert differing(0) == 0
    assert differing(1) == 1, "two classes are equally probable"
    for class_id in (2, 200):
        with pytest.raises(InputError, match="prediction of m differs from the sampler by a class"):
            differing(class_id)


def test_a_threshold_is_not_that_of_frames_that_the_file_shrinks(
    exported: Path, predicted: Job, tmp_path: Path
) -> None:
    """The network saw the frames of the calibration at their own size."""
    out = tmp_path / "out"
    with pytest.raises(InputError, match=r"of the model, and these have \[32, 64\]"):
        segunc.export(
            model=predicted.abnn,
            out=out,
            to="pt2",
            draws=4,
            scores=["entropy"],
            threshold=exported / "threshold.json",
            input="uint8",
            frame_size=(64, 128),
            size=(32, 64),
        )
    assert not out.exists()


@pytest.mark.parametrize("frame_size", [None, (1080, 1920)], ids=["float32", "uint8"])
@pytest.mark.parametrize(
    ("size", "expected"), [((512, 1024), [512, 1024]), ((544, 960), None)], ids=["wide", "same"]
)
def test_predict_keeps_the_shape_of_the_frames_of_a_calibration(
    exported: Path,
    frame_size: tuple[int, int] | None,
    size: tuple[int, int],
    expected: list[int] | None,
) -> None:
    """Frames of 1080 x 1920 are seen at 544 x 960, and not at the inference size."""
    threshold = replace(read_threshold(exported / "threshold.json"), sizes=("1920x1080",))
    description = NetworkDescription("x", "", tuple("abcd"), inference_size=(512, 1024))
    options = ExportOptions(to="pt2", out="out", size=size)
    placement = Placement(size, frame_size=frame_size)
    assert _run_size(options, description, placement, threshold) == expected
    assert _sizes_seen(threshold, description) == {(544, 960)}


def test_a_mask_says_what_its_promise_does_not_hold_for(
    exported: Path, predicted: Job, tmp_path: Path
) -> None:
    same = exported / "threshold.json"
    content = without_seal(json.loads(same.read_text()), same)
    path = tmp_path / "alarms.json"
    write_result(path, content | {"control": "false-alarms", "smallest": 20})
    how: dict[str, Any] = {"to": "pt2", "draws": 4, "scores": ["entropy"], "size": (64, 128)}
    model = predicted.abnn
    made = segunc.export(
        model=model, out=tmp_path / "draws", threshold=path, draws_as_input=True, **how
    )
    regions, draws = made.notes[-2:]
    assert regions.startswith("flagged holds smaller regions, too: a false alarm of the promise")
    assert "at least 20 pixels" in regions
    assert draws == "the promise holds for the draws of draws.npy alone, not for other draws"
    record = json.loads(made.record.read_text())
    digest = hashlib.sha256((tmp_path / "draws" / "draws.npy").read_bytes()).hexdigest()
    assert record["draws_input"]["sha256"] == digest
    made = segunc.export(model=model, out=tmp_path / "same", threshold=same, **how)
    assert not any("smaller regions" in note or "draws.npy" in note for note in made.notes)


def test_a_file_of_another_format_does_not_stay_beside_a_new_record(
    small: Path, tmp_path: Path
) -> None:
    segunc.export(model=small, to="pt2", out=tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(InputError, match=r"holds model\.pt2 of an earlier export"):
        segunc.export(model=small, to="onnx", out=tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_the_frames_of_a_batch_are_counted(
    small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    segunc.export(model=small, to="pt2", out=tmp_path, batch=3, scores=["entropy"])
    assert "comparing model.pt2 with the sampler on 3 frames" in capsys.readouterr().err


def test_a_file_of_any_size_says_for_which_size_its_promise_holds(
    exported: Path, predicted: Job
) -> None:
    threshold = read_threshold(exported / "threshold.json")
    model = segunc.load(predicted.abnn)
    sampler = Sampler(model.network, scores=["entropy"])
    options = ExportOptions(to="pt2", out="out", size="dynamic")
    notes = _notes(options, sampler, Placement(SIZE), threshold, model.network.description)
    note = "the promise holds for images of 64x128 alone, and the file takes any size"
    assert note in notes


@pytest.fixture(scope="module")
def with_sets(small: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with class sets, whose inference size is SIZE."""
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(40, 3, *SIZE, generator=generator)
    labels = torch.randint(0, 4, (40, *SIZE), generator=generator)
    batches = [(images[first : first + 2], labels[first : first + 2]) for first in range(0, 40, 2)]
    folder = tmp_path_factory.mktemp("sets") / "model"
    segunc.PredictionSets(level=0.3).fit(segunc.load(small), batches).save(folder)
    return folder


@pytest.mark.parametrize(
    ("options", "note"),
    [
        ({}, None),
        (
            {"size": (56, 40)},
            "the class sets were calibrated on frames at 40x56, and the network sees these at "
            "56x40, so their promise does not hold here",
        ),
        (
            {"size": "dynamic"},
            "the class sets were calibrated on frames at 40x56, and the file takes any size: their "
            "promise holds for the former alone",
        ),
    ],
    ids=["same", "other", "any"],
)
def test_class_sets_say_for_which_size_their_promise_holds(
    with_sets: Path, tmp_path: Path, options: dict[str, Any], note: str | None
) -> None:
    made = segunc.export(model=with_sets, to="pt2", out=tmp_path, scores=["set-size"], **options)
    assert [text for text in made.notes if "class sets" in text] == ([note] if note else [])
    record = json.loads(made.record.read_text())["class_sets"]
    assert record["condition"].startswith("It holds where frames come as the 40 of the calibration")


def test_class_sets_of_a_lower_precision_have_no_promise(
    with_sets: Path, toy_set: Path, tmp_path: Path
) -> None:
    made = segunc.export(
        model=with_sets,
        to="onnx",
        out=tmp_path,
        scores=["set-size"],
        precision="float16",
        check_frames=toy_set / "leftImg8bit",
        max_changed=1.0,
    )
    note = (
        "the class sets were calibrated on maps of the model itself, and their promise does not "
        "hold for maps of a file of float16"
    )
    assert note in made.notes
    metadata = onnx.load(tmp_path / "model.onnx").metadata_props
    inside = {entry.key: entry.value for entry in metadata}
    assert json.loads(inside["class_sets"])["condition"] == note
