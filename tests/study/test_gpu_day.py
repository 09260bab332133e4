"""The rehearsal of what a GPU is to be asked, at toy sizes on a CPU. Times mean nothing here. What
is right has to be right, and what is wrong has to be seen.
"""

import json
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

import segunc
from segunc.baselines.density import Neighbours
from segunc.core.errors import NoteWarning, NotFiniteError
from segunc.sampling import Sampler
from tests.study.conftest import Run
from tests.support.small_network import CLASSES, SMALL, Small
from tools import bench_predict
from tools.float32_bounds import Array
from tools.gpu_day import (
    __main__ as gpu_day,
    bank,
    depthwise,
    fast,
    runtimes,
    studies,
    tail,
    timing,
    waits,
)
from tools.gpu_day.networks import TINY_NETWORKS, TINY_SIZES
from tools.gpu_day.steps import Day, NotMeasured, Row, Step
from tools.measuring import ROOT, program
from tools.study.plan import read_plan

BENCHMARKS = ROOT / "docs" / "benchmarks.md"


@pytest.fixture
def day(tmp_path: Path) -> Day:
    return Day(tmp_path, "cpu", tiny=True)


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs run as they were traced: inductor takes a minute on a CPU."""
    monkeypatch.setattr(torch, "compile", lambda graph, **settings: graph)


class Parts:
    """Steps that end in every way, and which of them ran."""

    def __init__(self) -> None:
        self.ran: list[str] = []

    def steps(self, day: Day) -> Iterator[Step]:
        yield Step("good", self.step("good", lambda: {"ms": 1.23456, "met": True}))
        yield Step("bad", self.step("bad", lambda: {"met": False}))
        yield Step("broken", self.step("broken", self.fail))
        yield Step("elsewhere", self.step("elsewhere", self.cannot))

    def step(self, name: str, run: Callable[[], Row]) -> Callable[[], Row]:
        def noted() -> Row:
            self.ran.append(name)
            return run()

        return noted

    def fail(self) -> Row:
        raise ValueError("no such\nlayer")

    def cannot(self) -> Row:
        raise NotMeasured("set BOARDS")


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> Parts:
    made = Parts()
    monkeypatch.setattr(gpu_day, "PARTS", {"fast": made.steps})
    return made


def call(run: Run, out: Path, *words: object) -> int:
    code: int = run(gpu_day, "--out", out, "--device", "cpu", "--tiny", *words)
    return code


def test_every_step_leaves_a_row_and_the_same_call_goes_on(
    run: Run, parts: Parts, tmp_path: Path
) -> None:
    assert call(run, tmp_path) == 1
    rows = json.loads((tmp_path / "gpu_day.json").read_text())["rows"]
    assert rows["broken"]["failed"] == "ValueError: no such layer"
    assert rows["elsewhere"]["not measured"] == "set BOARDS"
    assert all(row["seconds"] >= 0 and row["commit"] for row in rows.values())
    lines = (tmp_path / "gpu_day.md").read_text().splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert [[row[0], *row[2:]] for row in cells] == [
        ["good", "yes", "ms 1.235"],
        ["bad", "no", ""],
        ["broken", "no", "ValueError: no such layer"],
        ["elsewhere", "not measured", "set BOARDS"],
    ]
    parts.ran.clear()
    call(run, tmp_path)
    assert parts.ran == ["elsewhere"]


def test_what_is_not_measured_is_no_failure(run: Run, parts: Parts, tmp_path: Path) -> None:
    assert call(run, tmp_path, "--only", "good|else") == 0
    assert parts.ran == ["good", "elsewhere"]
    assert call(run, tmp_path, "--only", "bad") == 1


def test_after_its_seconds_no_step_begins(run: Run, parts: Parts, tmp_path: Path) -> None:
    assert call(run, tmp_path, "--seconds", "-1") == 0
    assert not parts.ran


def test_an_unknown_part_is_refused(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        call(run, tmp_path, "--parts", "tail,slow")
    assert "there is no part slow; choose from right, fast" in capsys.readouterr().err


def test_the_command_of_a_package_of_tools_is_its_name() -> None:
    assert program(ROOT / "tools" / "gpu_day" / "__main__.py") == ["-m", "tools.gpu_day"]
    assert program(ROOT / "tools" / "latency.py") == ["-m", "tools.latency"]


def test_a_network_has_a_time_for_each_row(
    day: Day, no_compiler: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("WARM_UP_RUNS", "FEWEST_RUNS", "MOST_RUNS"):
        monkeypatch.setattr(timing, name, 1)
    with torch._inductor.config.patch(freezing=False):  # which a pass on a CPU sets
        row = fast.measure_network(day, TINY_NETWORKS[0], (64, 128))
    limit = 2 * row["pass, ms"]
    assert row["compiled maps, over limit"] == row["compiled maps, ms"] / limit
    assert row["met"] == (row["compiled maps, over limit"] <= 1.15)
    assert not any("kernels" in name or "GiB" in name for name in row)  # of a GPU alone


def test_predict_is_timed_beside_the_sampler(day: Day, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast, "TINY_CLIP_FRAMES", 2)
    monkeypatch.setattr(fast, "CLIP_TURNS", 1)
    monkeypatch.setattr(bench_predict, "IN_MEMORY", 2)
    row = fast.measure_predict(day, compiled=False)
    assert row["predict over alone"] == row["predict"] / row["alone"]
    assert row["met"] == (row["predict over alone"] >= 0.95)


def test_the_float32_tails_keep_their_bounds(run: Run, tmp_path: Path) -> None:
    assert call(run, tmp_path, "--parts", "tail") == 0
    rows = json.loads((tmp_path / "gpu_day.json").read_text())["rows"]
    assert rows["float32 tail of a graph"]["backend"] == "traced"
    assert len(rows) == 2


def test_a_tail_of_rounded_logits_breaks_its_bounds(day: Day) -> None:
    def rough(logits: Tensor, temperature: float) -> dict[str, Array]:
        return tail.of_graph(logits.bfloat16().float(), temperature)

    row = tail.measure_tail(day, rough)
    assert row["met"] is False
    assert row["total entropy, share of the bound"] > 10


def test_the_neighbours_in_a_bank_are_exact(day: Day) -> None:
    row = bank.measure_bank(day, (64, 128))
    assert row["features of a layer"] == bank.TINY_BANK
    assert row["largest error of a distance"] < bank.DISTANCE_BOUND["cpu"]
    assert row["wrong neighbours"] == 0
    for name in ("plain pass", "second encoder", "search", "knn", "anomaly"):
        assert row[f"{name}, ms"] > 0


def test_a_wrong_neighbour_is_seen(day: Day, monkeypatch: pytest.MonkeyPatch) -> None:
    case = bank.Case(day, (64, 128))
    assert case.exactness().wrong_neighbours == 0
    last = str(bank.TINY_BANK - 1)
    monkeypatch.setattr(Neighbours, "nearest", lambda _, rows: [(0.0, last)] * len(rows))
    assert case.exactness().wrong_neighbours > 0
    monkeypatch.setattr(Neighbours, "__call__", lambda _, rows: torch.zeros(len(rows)))
    assert case.exactness().largest_error > bank.DISTANCE_BOUND["cpu"]


@pytest.mark.parametrize(
    ("kernel", "dilation", "bias", "replaced"),
    [
        (3, 2, True, True),
        (3, (9, 2), False, True),
        (5, (1, 2), True, True),
        (3, 1, True, False),
        (2, 2, True, False),
    ],
)
def test_a_dilated_depthwise_convolution_is_a_sum_of_products(
    kernel: int, dilation: Any, bias: bool, replaced: bool
) -> None:
    padding: Any = "same" if replaced else 1
    layer = nn.Conv2d(6, 6, kernel, padding=padding, dilation=dilation, groups=6, bias=bias)
    images = torch.rand(2, 6, 8, 12).contiguous(memory_format=torch.channels_last)
    counter = depthwise.Counter()
    with torch.inference_mode():
        graph = make_fx(layer, {depthwise.CONVOLUTION: counter})(images)
        assert counter.replaced == replaced
        torch.testing.assert_close(graph(images), layer(images))


def test_dilated_layers_of_a_network_are_right_both_ways(day: Day, no_compiler: None) -> None:
    row = depthwise.check_pass(day)
    assert row["met"]
    assert row["convolutions replaced"] == 3


def test_an_error_of_a_sum_is_seen() -> None:
    weight = torch.randn(4, 1, 3, 3)
    x = torch.randn(1, 4, 9, 9)
    layer = depthwise.Layer(weight, (2, 2), (2, 2), x.shape)
    assert depthwise.share_of_bound(layer, x, layer.products(x)) <= 1
    assert depthwise.share_of_bound(layer, x, layer.products(x) + 1e-4) > 1
    assert depthwise.share_of_bound(layer, x, layer.products(x).bfloat16()) <= 1
    assert depthwise.share_of_bound(layer, x, 1.02 * layer.products(x).bfloat16()) > 1


def test_a_pass_that_is_not_compiled_is_not_timed(
    day: Day, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_compiler(graph: Any, **settings: Any) -> Any:
        raise OSError("no compiler here")

    monkeypatch.setattr(torch, "compile", no_compiler)
    case = waits.Case(day, TINY_NETWORKS[0])
    with pytest.raises(NoteWarning, match=r"could not be compiled .* no compiler here"):
        timing.prepare(case.base, day.device)


def test_a_student_has_the_same_maps_however_the_host_asks(day: Day, no_compiler: None) -> None:
    row = waits.measure_waits(day, TINY_NETWORKS[0])
    assert row["maps have the same bits"]
    assert row["questions a frame"] == 2


class Broken(nn.Module):
    """A network whose logits are finite until it is told otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 4, 1)
        self.factor = 1.0

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.layer(images)
        return logits * self.factor


def test_a_later_question_still_finds_what_is_not_finite() -> None:
    network = Broken().eval()
    images = torch.rand(1, 3, 8, 8)
    sampler = Sampler(network, scores=("deterministic-entropy",))
    with waits.LaterChecks() as checks:
        checks.on = True
        sampler(images)
        network.factor = float("nan")
        with pytest.raises(NotFiniteError, match="the network returns NaN or infinite logits"):
            sampler(images)
        assert checks.asked == 2
        network.factor = 1.0
        sampler(images)


def test_a_plan_whose_variables_are_not_set_is_not_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NETWORKS", "BOARDS", "WITNESS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SEGUNC_DATA", str(tmp_path))
    on_cpu = Day(tmp_path, "cpu")
    with pytest.raises(NotMeasured, match=r"^set BOARDS and NETWORKS$"):
        studies.study_full_size(on_cpu)
    with pytest.raises(NotMeasured, match=r"^set BOARDS and NETWORKS and WITNESS$"):
        studies.study_idd(on_cpu)
    monkeypatch.setenv("BOARDS", str(tmp_path))
    monkeypatch.setenv("NETWORKS", str(tmp_path))
    with pytest.raises(NotMeasured, match=r"^the network crop1024-0 is not there$"):
        studies.study_full_size(on_cpu)


def test_bases_of_idd_are_trained_as_the_header_of_the_plan_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("SEGUNC_DATA", "NETWORKS", "LITE2"):
        monkeypatch.setenv(name, f"${name}")
    header = studies.BOARDS_IDD.read_text(encoding="utf-8").partition("study:")[0]
    command = header.partition("segunc train ")[2].partition("#   python")[0]
    words = shlex.split(command.replace("\\\n#", " "))
    device = words.index("--device")
    seed = words.index("--seed")
    assert words[seed + 1] == "N"
    del words[seed : seed + 2]
    del words[device : device + 2]
    expected = [word.replace("idd-N", "idd-3") for word in words]
    assert studies.idd_training(3) == expected


def test_the_plan_at_full_size_has_eight_seeds_of_noise(tmp_path: Path) -> None:
    content = yaml.safe_load(studies.FULL_SIZE.read_text(encoding="utf-8"))
    path = tmp_path / "plan.yaml"
    path.write_text(yaml.safe_dump(studies.with_noise_seeds(content, 8)), encoding="utf-8")
    plan = read_plan(path)
    seeds = [row.evaluate["seed"] for row in plan.rows if row.of == "noise"]
    assert seeds == [1, 2, 3, 4, 5, 6, 7]
    assert len(plan.means["noise, 8 seeds"]) == 8
    assert "noise, 8 seeds: entropy" in plan.tables[0].lines


def test_a_study_stops_at_its_time_and_goes_on(tmp_path: Path) -> None:
    stopping = Day(tmp_path, "cpu", tiny=True, study_seconds=-1)
    with pytest.raises(NotMeasured, match="0 of 2 results are there; the same command goes on"):
        studies.study_idd(stopping)
    row = studies.study_idd(Day(tmp_path, "cpu", tiny=True))
    assert row["results"] == 2
    table = (tmp_path / "study-boards-idd" / "study.md").read_text()
    assert "noise (1, units alone): entropy" in table


def test_a_training_stops_at_its_time() -> None:
    with pytest.raises(NotMeasured, match="not finished after 0 s; the same command goes on"):
        studies.run_within([sys.executable, "-c", "import time; time.sleep(60)"], 0.2)
    with pytest.raises(RuntimeError, match=r"ended with 3 \(why\)"):
        studies.run_within(
            [sys.executable, "-c", "import sys; print('why', file=sys.stderr); exit(3)"], 60
        )


TRTEXEC = """#!{python}
import json, sys
import numpy as np
import onnxruntime
words = dict(word.lstrip("-").partition("=")[::2] for word in sys.argv[1:])
if "onnx" in words:
    assert "noTF32" in words and "stronglyTyped" in words
    open(words["saveEngine"], "wb").write(open(words["onnx"], "rb").read())
elif "exportTimes" in words:
    json.dump([{{"latencyMs": 3.0}}, {{"latencyMs": 5.0}}, {{"latencyMs": 4.0}}],
              open(words["exportTimes"], "w"))
else:
    session = onnxruntime.InferenceSession(words["loadEngine"])
    given = session.get_inputs()[0]
    name, path = words["loadInputs"].split(":")
    frame = np.fromfile(path, np.float32).reshape(given.shape)
    names = [output.name for output in session.get_outputs()]
    maps = []
    for name, values in zip(names, session.run(None, {{name: frame}})):
        dimensions = "x".join(map(str, values.shape))
        maps.append({{"name": name, "dimensions": dimensions, "values": values.ravel().tolist()}})
    json.dump(maps, open(words["exportOutput"], "w"))
"""
"""What trtexec is asked, answered by ONNX Runtime."""


def write_small_file(path: Path) -> None:
    """Write an ONNX file with the outputs of an export; its scores are the mean of the channels."""
    onnx = pytest.importorskip("onnx")
    given = onnx.helper.make_tensor_value_info("image", onnx.TensorProto.FLOAT, [1, 3, 64, 128])
    nodes = [onnx.helper.make_node("ReduceMean", ["image", "axes"], ["entropy"], keepdims=0)]
    outputs = []
    for name in ("msp", "entropy", "epistemic"):
        if name != "entropy":
            nodes.append(onnx.helper.make_node("Identity", ["entropy"], [name]))
        shape = [1, 64, 128]
        outputs.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape))
    nodes.append(onnx.helper.make_node("Round", ["entropy"], ["rounded"]))
    cast = onnx.helper.make_node("Cast", ["rounded"], ["prediction"], to=onnx.TensorProto.UINT8)
    nodes.append(cast)
    prediction = onnx.helper.make_tensor_value_info("prediction", onnx.TensorProto.UINT8, shape)
    axes = onnx.helper.make_tensor("axes", onnx.TensorProto.INT64, [1], [1])
    graph = onnx.helper.make_graph(nodes, "small", [given], [prediction, *outputs], [axes])
    opset = onnx.helper.make_opsetid("", 18)
    model = onnx.helper.make_model(graph, opset_imports=[opset], ir_version=10)
    path.parent.mkdir(parents=True)
    path.write_bytes(model.SerializeToString())


def test_a_file_is_built_run_and_timed_by_trtexec(
    day: Day, monkeypatch: pytest.MonkeyPatch
) -> None:
    program_file = day.out / "bin" / "trtexec"
    program_file.parent.mkdir()
    program_file.write_text(TRTEXEC.format(python=sys.executable))
    program_file.chmod(0o755)
    monkeypatch.setenv("PATH", str(program_file.parent))
    pytest.importorskip("onnxruntime")
    exported = day.out / "small" / "model.onnx"
    write_small_file(exported)
    monkeypatch.setattr(runtimes.Runtimes, "file", lambda self, precision: exported)
    rows = {step.name: step.run for step in runtimes.steps(day)}
    row = rows["TensorRT, float32"]()
    assert row["ms"] == 4.0
    assert row["predictions changed"] == "0 %"
    assert row["met"]


def test_a_file_of_another_model_is_not_measured(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnxscript", reason="the extra export is not installed")
    pytest.importorskip("onnxruntime")
    size = TINY_SIZES[0]
    base = segunc.wrap(Small(), CLASSES, inference_size=size, factory=SMALL)
    base.save(tmp_path / "base")
    segunc.ABNN(alpha=0.1).fit(base).save(tmp_path / "abnn")
    out = tmp_path / "out"
    exported = runtimes.Runtimes(Day(out, "cpu", tiny=True, model=tmp_path / "abnn"))
    path = exported.file("float32")
    assert exported.file("float32") == path
    words = ("--parts", "runtimes", "--only", "no step", "--model")
    assert call(run, out, *words, tmp_path / "abnn") == 0
    assert call(run, out, *words, tmp_path / "base") == 2
    assert "model.onnx is of another model than" in capsys.readouterr().err
    path.with_name("model.json").unlink()
    assert call(run, out, *words, tmp_path / "abnn") == 2
    assert "model.onnx has no record of its model" in capsys.readouterr().err


def test_a_file_of_float16_is_made_of_the_float32_file_beside_it(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript", reason="the extra export is not installed")
    pytest.importorskip("onnxruntime")
    base = segunc.wrap(Small(), CLASSES, inference_size=TINY_SIZES[0], factory=SMALL)
    out = tmp_path / "out"
    contents: list[bytes] = []
    for alpha in (0.1, 0.3):
        model = tmp_path / f"abnn-{alpha}"
        segunc.ABNN(alpha=alpha).fit(base).save(model)
        exported = runtimes.Runtimes(Day(out, "cpu", tiny=True, model=model))
        exported.file("float32")
        contents.append(exported.file("float16").read_bytes())
        shutil.rmtree(out / "runtimes" / "float32")
    assert contents[0] != contents[1], "the file of another model stays"


def test_runtimes_that_are_not_here_are_not_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(runtimes.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(NotMeasured, match="TensorRT is not here"):
        runtimes.open_in_tensorrt(tmp_path / "model.onnx")
    with pytest.raises(NotMeasured, match="ONNX Runtime has no provider for CUDA here"):
        runtimes.open_in_onnxruntime("CUDA", tmp_path / "model.onnx")


def waiting_commands() -> list[str]:
    """Return the commands of the table "What waits for a GPU"."""
    text = BENCHMARKS.read_text(encoding="utf-8")
    table = text.partition("### What waits for a GPU")[2].partition("\n## ")[0]
    return re.findall(r"`(--parts [^`]*)`", table)


def test_every_command_of_the_documents_names_steps_of_the_tool() -> None:
    on_gpu = Day(Path("unused"), "cuda")
    named: set[str] = set()
    for command in waiting_commands():
        words = shlex.split(command.replace("\\|", "|"))
        asked = gpu_day.make_parser().parse_args(["--out", "unused", *words])
        steps = [step.name for step in gpu_day.chosen_steps(on_gpu, asked.parts, asked.only)]
        assert steps, command
        named.update(steps)
    for part in ("waits", "depthwise", "bank", "tail", "runtimes", "studies"):
        for step in gpu_day.PARTS[part](on_gpu):
            assert step.name in named
