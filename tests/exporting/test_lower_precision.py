"""`segunc export --precision`: files of float16 and INT8 by the tools of the runtimes, and what
they cost in every score.
"""

import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import segunc
from segunc.core.errors import InputError
from segunc.exporting import calibration, graph, lower_precision
from segunc.exporting.operators import tensorrt_check
from segunc.exporting.placement import Placement
from segunc.exporting.price import measure_price
from segunc.frames.sources import open_source
from segunc.networks.description import NetworkDescription
from segunc.sampling.sampler import network_input
from tests.support.small_network import CLASSES, SMALL, Small

pytest.importorskip("onnxscript", reason="the extra export is not installed")
onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

SIZE = (32, 64)
SCORES = ["entropy", "epistemic"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("small")
    base = segunc.wrap(Small(), CLASSES, inference_size=SIZE, factory=SMALL)
    base.save(folder / "base")
    settings = {"abnn.statistics": "frozen"}
    segunc.finetune(base=folder / "base", settings=settings, out=folder / "abnn")
    return folder / "abnn"


@pytest.fixture(scope="module")
def frames(toy_set: Path) -> Path:
    """A folder with 18 frames below it."""
    return toy_set / "leftImg8bit"


def exported(model: Path, out: Path, **options: Any) -> dict[str, Any]:
    """Export a model, and return the record."""
    given = {"to": "onnx", "draws": 3, "scores": SCORES, "max_changed": 1.0, **options}
    segunc.export(model=model, out=out, **given)
    record: dict[str, Any] = json.loads((out / "model.json").read_text())
    return record


@pytest.fixture(scope="module")
def int8(model: Path, frames: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("int8") / "out"
    exported(model, out, precision="int8", calibration=frames)
    return out


def input_form(frame_size: tuple[int, int] | None = None) -> calibration.InputForm:
    description = NetworkDescription("x", "", tuple("abcd"))
    return calibration.InputForm(description, Placement(SIZE, 1, frame_size))


def maps_of(entropy: list[float], prediction: list[int]) -> graph.Maps:
    return {
        "prediction": np.array(prediction, np.uint8).reshape(1, 2, 2),
        "entropy": np.array(entropy, np.float32).reshape(1, 2, 2),
    }


def test_the_price_of_two_maps_by_hand() -> None:
    # The codes of .25 and .2601 are .5 and .51 times 65535, rounded: 32768 and 33423.
    parent = maps_of([0.0, 0.25, 0.25, 1.0], [0, 1, 2, 3])
    lower = maps_of([0.0, 0.25, 0.2601, 1.0], [0, 1, 2, 0])
    price = measure_price(lambda _: lower, lambda _: parent, [torch.zeros(1)], 1)
    assert price.changed == 0.25
    entropy = price.scores["entropy"]
    assert entropy.mean == pytest.approx(0.375)
    assert entropy.mean_difference == pytest.approx(0.0101 / 4, rel=1e-5)
    assert entropy.over_next_code == 0.25
    assert entropy.over_many_codes == 0.25
    # Ranks less their mean: -1.5, 0, 0, 1.5 and -1.5, -.5, .5, 1.5.
    assert entropy.rank_correlation == pytest.approx(4.5 / np.sqrt(4.5 * 5.0), abs=1e-6)
    assert price.sentence("int8") == (
        "int8 changes the predicted class of 25 % of the pixels of 1 frame; the score that keeps "
        "its order least is entropy, rank correlation 0.949"
    )


def test_a_difference_of_one_code_is_not_counted() -> None:
    step = 2 * 0.5 / 65535  # from .25, whose code is half of the largest
    parent = maps_of([0.25] * 4, [0] * 4)
    lower = maps_of([0.25, 0.25, 0.25, 0.25 + step], [0] * 4)
    entropy = measure_price(lambda _: lower, lambda _: parent, [torch.zeros(1)], 1).scores[
        "entropy"
    ]
    assert entropy.mean_difference > 0
    assert entropy.over_next_code == 0
    assert entropy.rank_correlation is None  # one of the maps is constant


def test_a_map_that_is_not_finite_is_refused() -> None:
    parent = maps_of([0.25] * 4, [0] * 4)
    lower = maps_of([0.25, 0.25, np.nan, 0.25], [0] * 4)
    with pytest.raises(InputError, match="entropy: a map holds NaN"):
        measure_price(lambda _: lower, lambda _: parent, [torch.zeros(1)], 1)


def test_the_network_is_float16_and_the_formulas_are_float32(
    model: Path, frames: Path, tmp_path: Path
) -> None:
    record = exported(model, tmp_path, precision="float16", check_frames=frames)
    file = onnx.shape_inference.infer_shapes(onnx.load(tmp_path / "model.onnx"), strict_mode=True)
    types = {value.name: value.type.tensor_type.elem_type for value in file.graph.value_info}
    for value in (*file.graph.input, *file.graph.output):
        types[value.name] = value.type.tensor_type.elem_type
    for node in file.graph.node:
        if node.op_type == "Conv":
            assert types[node.output[0]] == onnx.TensorProto.FLOAT16
        if node.op_type in ("Log", "Softmax", "Exp"):
            assert types[node.output[0]] == onnx.TensorProto.FLOAT
    assert types["image"] == onnx.TensorProto.FLOAT
    lower = record["lower_precision"]
    assert lower["calibration_frames"] == {}
    assert lower["price"]["frames"] == 18
    assert lower["price"]["scores"]["entropy"]["mean_difference"] < 1e-3
    assert lower["price"]["scores"]["entropy"]["over_many_codes"] < 0.1


def test_frames_of_uint8_that_grow_stay_finite_in_float16(
    model: Path, frames: Path, tmp_path: Path
) -> None:
    """ONNX Runtime computes float16 in float32 on a CPU. The evaluator of ONNX does not: it rounds
    each result to float16, as a GPU does."""
    from onnx.reference import ReferenceEvaluator

    options: dict[str, Any] = {"precision": "float16", "check_frames": frames, "size": (160, 320)}
    exported(model, tmp_path, input="uint8", frame_size=(64, 128), **options)
    evaluator = ReferenceEvaluator(str(tmp_path / "model.onnx"))
    white = np.full((1, 64, 128, 3), 255, np.uint8)
    (entropy,) = evaluator.run(["entropy"], {"image": white})
    run = lower_precision.open_onnx((tmp_path / "model.onnx").read_bytes())
    expected = run(torch.from_numpy(white))["entropy"]
    np.testing.assert_allclose(entropy, expected, rtol=0, atol=0.01)


def test_values_that_float16_does_not_hold_are_noted(
    model: Path, frames: Path, tmp_path: Path
) -> None:
    """On a CPU the price does not show them."""
    from onnx.reference import ReferenceEvaluator

    folder = tmp_path / "large"
    network = Small()
    with torch.no_grad():
        # Feature maps of 1e6, which the last convolution makes small again.
        network.layers[4].weight.mul_(1e6)
        network.layers[4].bias.mul_(1e6)
        network.layers[6].weight.mul_(1e-6)
    segunc.wrap(network, CLASSES, inference_size=SIZE, factory=SMALL).save(folder)
    options: dict[str, Any] = {"to": "onnx", "precision": "float16", "scores": SCORES}
    made = segunc.export(model=folder, out=tmp_path / "out", check_frames=frames, **options)
    assert made.price is not None
    assert made.price.changed <= 0.05
    (note,) = [text for text in made.notes if "float16 holds" in text]
    assert note.startswith("the network reaches ")
    assert note.endswith(
        " on these frames, and float16 holds at most 65,504: on a device that computes in float16 "
        "its maps may be NaN"
    )
    (frame, *_) = open_source(frames).frames()
    image = network_input([frame.image], SIZE).numpy()
    evaluator = ReferenceEvaluator(str(tmp_path / "out" / "model.onnx"))
    assert np.isnan(evaluator.run(["entropy"], {"image": image})[0]).any()
    made = segunc.export(model=model, out=tmp_path / "same", check_frames=frames, **options)
    assert not any("float16 holds" in note for note in made.notes)
    record = json.loads(made.record.read_text())["lower_precision"]
    assert 0 < record["largest_value"] < 100


class Masked(Small):
    """All but the strongest features are masked by -inf before a softmax."""

    def forward(self, x: Tensor) -> Tensor:
        features = self.layers[:-1](x)
        features = features.masked_fill(features < features.amax(1, keepdim=True), -torch.inf)
        logits = self.layers[-1](features.softmax(1))
        return F.interpolate(logits, x.shape[-2:], mode="nearest")


MASKED = f"{__name__}:Masked"


def test_a_mask_is_no_value_that_float16_does_not_hold(frames: Path, tmp_path: Path) -> None:
    segunc.wrap(Masked(), CLASSES, inference_size=SIZE, factory=MASKED).save(tmp_path / "masked")
    options: dict[str, Any] = {"to": "onnx", "precision": "float16", "max_changed": 1.0}
    out = tmp_path / "out"
    made = segunc.export(model=tmp_path / "masked", out=out, check_frames=frames, **options)
    assert not any("float16 holds" in note for note in made.notes)
    record = json.loads(made.record.read_text())["lower_precision"]
    assert 0 < record["largest_value"] < 100


def test_int8_quantises_convolutions_alone(int8: Path) -> None:
    nodes = onnx.load(int8 / "model.onnx").graph.node
    readers: dict[str, list[str]] = {}
    for node in nodes:
        for name in node.input:
            readers.setdefault(name, []).append(node.op_type)
    producers = {name: node.op_type for node in nodes for name in node.output}
    for node in nodes:
        if node.op_type == "QuantizeLinear":
            (dequantised,) = [other for other in nodes if node.output[0] in other.input]
            into = readers[dequantised.output[0]]
            assert "Conv" in into or producers[node.input[0]] == "Conv"


def test_depthwise_convolutions_stay_float32(int8: Path) -> None:
    file = onnx.load(int8 / "model.onnx")
    producers = {name: node.op_type for node in file.graph.node for name in node.output}
    weights: dict[bool, set[str]] = {True: set(), False: set()}
    for node in file.graph.node:
        if node.op_type == "Conv":
            is_depthwise = any(a.name == "group" and a.i == 8 for a in node.attribute)
            weights[is_depthwise].add(producers.get(node.input[1], "constant"))
    assert weights == {True: {"constant"}, False: {"DequantizeLinear"}}


def test_the_record_holds_tool_frames_and_price(int8: Path) -> None:
    record = json.loads((int8 / "model.json").read_text())
    assert record["precision"] == "int8"
    lower = record["lower_precision"]
    assert lower["tool"] == "onnxruntime.quantization.quantize_static"
    assert lower["settings"]["per_channel"] is True
    ranges = lower["calibration_frames"]
    held_out = lower["check_frames"]
    assert len(ranges) == len(held_out) == 9
    assert not set(ranges.values()) & set(held_out.values())
    assert lower["price"]["scores"].keys() == set(SCORES)
    metadata = {entry.key: entry.value for entry in onnx.load(int8 / "model.onnx").metadata_props}
    assert metadata["precision"] == "int8"
    assert metadata["base_sha256"] == record["base_sha256"]


def test_the_price_says_which_maps_the_file_gives(int8: Path, model: Path, frames: Path) -> None:
    record = json.loads((int8 / "model.json").read_text())
    sampler = segunc.Sampler(
        segunc.load(model).network, segunc.load(model).posterior, draws=3, scores=SCORES
    )
    run = graph.open_onnx(int8 / "model.onnx")
    differences: list[float] = []
    for frame in open_source(frames).frames():
        if frame.name in record["lower_precision"]["check_frames"]:
            assert frame.image is not None
            image = network_input([frame.image], SIZE)
            difference = run(image)["entropy"] - sampler(image).scores["entropy"].numpy()
            differences.append(float(np.abs(difference).mean()))
    assert len(differences) == 9
    price = record["lower_precision"]["price"]["scores"]["entropy"]
    assert np.mean(differences) == pytest.approx(price["mean_difference"], rel=0.01, abs=1e-6)


@pytest.mark.parametrize("precision", ["float16", "int8"])
def test_a_graph_of_openvino(model: Path, frames: Path, tmp_path: Path, precision: str) -> None:
    openvino = pytest.importorskip("openvino")
    options: dict[str, Any] = {"check_frames": frames}
    if precision == "int8":
        pytest.importorskip("nncf")
        options = {"calibration": frames}
    record = exported(model, tmp_path, to="openvino", precision=precision, **options)
    assert "INFERENCE_PRECISION_HINT f32" in record["lower_precision"]["measured"]
    assert record["files"].keys() == {"model.xml", "model.bin"}
    graph_of_file = openvino.Core().read_model(tmp_path / "model.xml")
    assert graph_of_file.get_rt_info(["segunc", "base_sha256"]).value == record["base_sha256"]
    quantised = 0
    for operator in graph_of_file.get_ops():
        if operator.get_type_name() == "FakeQuantize":
            quantised += 1
            (output,) = operator.outputs()
            into = {target.get_node().get_type_name() for target in output.get_target_inputs()}
            assert into <= lower_precision.CONVOLUTIONS | {"Reshape"}
    assert (quantised > 0) == (precision == "int8")


def test_a_file_that_changes_too_much_is_not_written(
    model: Path, frames: Path, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=r"^int8 changes .* and `max_changed` allows 0 %"):
        exported(model, tmp_path / "out", precision="int8", calibration=frames, max_changed=0.0)
    assert not (tmp_path / "out").exists()


def test_each_long_step_is_said(
    model: Path, frames: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exported(model, tmp_path, precision="int8", calibration=frames, calibration_frames=8)
    lines = capsys.readouterr().err.splitlines()
    steps = [
        "tracing the model with 3 draws for 32x64",
        "writing model.onnx in float32",
        "comparing model.onnx in float32 with the sampler on 2 frames",
        "making the file of int8, with ranges from 8 frames",
        "measuring what it costs on 8 frames",
    ]
    assert [line for line in lines if line in steps] == steps
    assert lines[-1].startswith("8 of 8 frames")


def test_triton_gets_a_file_of_int8(model: Path, frames: Path, tmp_path: Path) -> None:
    record = exported(model, tmp_path, to="triton", precision="int8", calibration=frames)
    assert record["files"].keys() == {"1/model.onnx", "config.pbtxt"}
    assert "QuantizeLinear" in {
        node.op_type for node in onnx.load(tmp_path / "1" / "model.onnx").graph.node
    }


@pytest.fixture(scope="module")
def few_frames(frames: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one frame."""
    folder = tmp_path_factory.mktemp("few")
    shutil.copy(min(frames.rglob("*.png")), folder / "one.png")
    return folder


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"precision": "int8"}, "needs frames on which the range of each layer is measured"),
        ({"precision": "float16"}, "needs frames on which its price is measured"),
        (
            {"precision": "float16", "check_frames": "F", "calibration": "F"},
            "float16 has no ranges",
        ),
        ({"calibration": "F"}, "`calibration` is of a lower precision"),
        ({"max_changed": 0.1}, "`max_changed` is of a lower precision"),
        ({"to": "openvino"}, "`to` openvino writes float16 or int8"),
        ({"to": "pt2", "precision": "int8", "calibration": "F"}, "is of ONNX and OpenVINO files"),
        (
            {"precision": "int8", "calibration": "F", "threshold": "t.json"},
            "t.json was calibrated on maps of float32, and its promise does not hold",
        ),
        (
            {"precision": "int8", "calibration": "F", "draws_as_input": True},
            "the ranges of a lower precision are those of the draws of the file",
        ),
        (
            {"precision": "int8", "calibration": "F", "check_frames": "F"},
            r"frame .* of `check_frames` is frame .* of `calibration`",
        ),
        (
            {"precision": "int8", "calibration": "ONE"},
            "gives 1 frame, and 16 are the fewest: 8 for the ranges, and 8 others for the price",
        ),
        (
            {"precision": "int8", "calibration": "F", "check_frames": "ONE"},
            "gives 1 frame, and 8 are the fewest",
        ),
        (
            {"precision": "int8", "calibration": "F", "check_in": "openvino"},
            "`check_in` openvino compares a float32 file with the sampler, and the file is int8",
        ),
        (
            {"precision": "int8", "calibration": "F", "batch": 5},
            "of 9 frames for the ranges, 5 fill a `batch` of 5, and 8 are the fewest",
        ),
        (
            {"precision": "int8", "calibration": "F", "calibration_frames": 4},
            "gives 8 frames, and 16 are the fewest",
        ),
    ],
)
def test_a_refusal_comes_before_anything_is_written(
    options: dict[str, Any],
    message: str,
    model: Path,
    frames: Path,
    few_frames: Path,
    tmp_path: Path,
) -> None:
    places = {"F": frames, "ONE": few_frames}
    given = {"to": "onnx"}
    for name, value in options.items():
        given[name] = places.get(value, value) if isinstance(value, str) else value
    with pytest.raises(InputError, match=message):
        segunc.export(model=model, out=tmp_path / "out", **given)
    assert not (tmp_path / "out").exists()


def test_a_missing_tool_is_named(
    model: Path, frames: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_spec = importlib.util.find_spec

    def without_nncf(name: str, *package: str) -> Any:
        return None if name == "nncf" else find_spec(name, *package)

    pytest.importorskip("openvino")
    monkeypatch.setattr(importlib.util, "find_spec", without_nncf)
    message = r'needs the package nncf, .* Hint: pip install "segunc\[openvino\]"'
    with pytest.raises(InputError, match=message):
        exported(model, tmp_path, to="openvino", precision="int8", calibration=frames)


def test_frames_are_spread_evenly_and_read_as_predict_reads_them(frames: Path) -> None:
    chosen = calibration.read_frames(frames, 9, input_form(), "--calibration")
    source = open_source(frames)
    every_second = [source.name_of(index) for index in range(0, 18, 2)]
    assert list(chosen.hashes) == every_second
    first = next(source.frames())
    assert first.image is not None
    assert torch.equal(next(iter(chosen)), network_input([first.image], (32, 64)))


def test_a_damaged_frame_is_named(frames: Path, tmp_path: Path) -> None:
    for number, path in enumerate(sorted(frames.rglob("*.png"))[:8]):
        shutil.copy(path, tmp_path / f"{number}.png")
    (tmp_path / "3.png").write_bytes(b"no image")
    with pytest.raises(InputError, match=r"frame 3 of .* cannot be read"):
        calibration.read_frames(tmp_path, 8, input_form(), "--check-frames")


def test_batches_of_uint8_frames(model: Path, frames: Path, tmp_path: Path) -> None:
    options = {"batch": 2, "input": "uint8", "frame_size": (64, 128)}
    record = exported(model, tmp_path, precision="int8", calibration=frames, **options)
    # Of nine frames in each half the last one fills no batch.
    assert record["lower_precision"]["price"]["frames"] == 8


def test_uint8_frames_of_another_size_are_refused(frames: Path) -> None:
    form = input_form(frame_size=(50, 100))
    with pytest.raises(InputError, match="has 64x128 pixels, and the file takes 50x100"):
        calibration.read_frames(frames, 9, form, "--calibration")


def test_a_score_that_becomes_constant_keeps_no_order() -> None:
    parent = maps_of([0.1, 0.2, 0.3, 0.4], [0] * 4)
    lower = maps_of([0.25] * 4, [0] * 4)
    price = measure_price(lambda _: lower, lambda _: parent, [torch.zeros(1)], 1)
    assert price.scores["entropy"].rank_correlation == 0.0
    assert price.sentence("int8").endswith("is entropy, rank correlation 0.000")


def test_the_record_names_the_frames_that_were_used(
    model: Path, frames: Path, tmp_path: Path
) -> None:
    record = exported(model, tmp_path, precision="int8", calibration=frames, batch=2)
    lower = record["lower_precision"]
    assert lower["price"]["frames"] == 8
    assert len(lower["check_frames"]) == len(lower["calibration_frames"]) == 8


def test_the_check_of_a_lower_precision_says_of_which_file_it_is(int8: Path) -> None:
    check = json.loads((int8 / "model.json").read_text())["check"]
    assert check["precision"] == "float32"
    lacks = tensorrt_check(onnx.load(int8 / "model.onnx"))["lacks"]
    assert check["tensorrt"]["lacks"] == lacks
    assert "TensorRT 10.1 has no DequantizeLinear of UINT8" in lacks


def test_what_tensorrt_lacks_is_said_of_the_written_file(
    model: Path, frames: Path, tmp_path: Path
) -> None:
    made = segunc.export(
        model=model,
        out=tmp_path,
        to="onnx",
        draws=3,
        scores=["entropy"],
        precision="int8",
        calibration=frames,
        max_changed=1.0,
    )
    assert "TensorRT 10.1 has no DequantizeLinear of UINT8" in made.notes
    assert any(note.startswith("the price is that of ONNX Runtime on this") for note in made.notes)


def test_the_record_says_how_many_convolutions_are_int8(int8: Path) -> None:
    lower = json.loads((int8 / "model.json").read_text())["lower_precision"]
    assert lower["convolutions"] == 3
    assert lower["quantised"] == 2, "not the depthwise one"


class Pointwise(nn.Module):
    """A network without convolutions."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(3, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 4))
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.layers(x.permute(0, 2, 3, 1))
        return logits.permute(0, 3, 1, 2)


@pytest.mark.parametrize(("to", "tool"), [("onnx", "ONNX Runtime"), ("openvino", "NNCF")])
def test_a_file_of_int8_in_which_nothing_is_int8_is_refused(
    to: str, tool: str, frames: Path, tmp_path: Path
) -> None:
    if to == "openvino":
        pytest.importorskip("openvino")
        pytest.importorskip("nncf")
    factory = f"{__name__}:Pointwise"
    base = segunc.wrap(Pointwise(), CLASSES, inference_size=SIZE, factory=factory)
    base.save(tmp_path / "model")
    with pytest.raises(InputError, match=f"{tool} found no convolution that it makes INT8"):
        segunc.export(
            model=tmp_path / "model",
            out=tmp_path / "out",
            to=to,
            scores=["entropy"],
            precision="int8",
            calibration=frames,
        )
    assert not (tmp_path / "out").exists()


def test_copies_in_both_halves_are_called_so(model: Path, frames: Path, tmp_path: Path) -> None:
    paths = sorted(frames.rglob("*.png"))
    paths[3] = paths[2]
    for number, path in enumerate(paths):
        shutil.copy(path, tmp_path / f"{number:02}.png")
    message = "frames 02 and 03 of `calibration` have the same pixels"
    with pytest.raises(InputError, match=message):
        exported(model, tmp_path / "out", precision="int8", calibration=tmp_path)


def test_frames_of_four_channels_keep_their_floats(tmp_path: Path) -> None:
    values = np.random.default_rng(0).random((8, *SIZE, 4), np.float32)
    for number, frame in enumerate(values):
        np.save(tmp_path / f"{number}.npy", frame)
    description = NetworkDescription("x", "", tuple("abcd"), mean=(0.0,) * 4, std=(1.0,) * 4)
    form = calibration.InputForm(description, Placement(SIZE, 1, channels=4))
    chosen = calibration.read_frames(tmp_path, 8, form, "--check-frames")
    assert np.array_equal(next(iter(chosen))[0].numpy(), values[0].transpose(2, 0, 1))
    of_bytes = calibration.InputForm(description, Placement(SIZE, 1, SIZE, channels=4))
    with pytest.raises(InputError, match="frame 0 holds more than bytes"):
        calibration.read_frames(tmp_path, 8, of_bytes, "--check-frames")


def test_the_hint_for_float16_names_no_float16(model: Path, frames: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(InputError, match="float16 changes") as error:
        exported(model, out, precision="float16", check_frames=frames, max_changed=0.0)
    assert "precision` float16" not in str(error.value)


def test_copies_of_one_frame_are_one_frame(frames: Path, tmp_path: Path) -> None:
    for number in range(8):
        shutil.copy(min(frames.rglob("*.png")), tmp_path / f"{number}.png")
    with pytest.raises(InputError, match="gives 8 frames, 1 without copies, and 8 are the fewest"):
        calibration.read_frames(tmp_path, 8, input_form(), "--check-frames")
