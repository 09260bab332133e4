"""The tool that measures latencies: a small network, a few frames, one and two streams.

A server is measured in :mod:`tests.exporting.test_server`.
"""

import json
import re
import shutil
import sys
import threading
import time
from importlib.machinery import ModuleSpec
from itertools import pairwise
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import segunc
from segunc.reporting.inputs import read_latency
from tests.exporting.test_lower_precision import SIZE
from tests.support.small_network import CLASSES, SMALL, Small
from tools import latency

FEW = ("--frames", "2", "--streams", "1,2")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("latency")
    base = segunc.wrap(Small(), CLASSES, inference_size=SIZE, factory=SMALL)
    base.save(folder / "base")
    settings = {"abnn.statistics": "frozen"}
    segunc.finetune(base=folder / "base", settings=settings, out=folder / "abnn")
    return folder / "abnn"


@pytest.fixture(scope="module")
def exported(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export(model, tmp_path_factory.mktemp("exported") / "file")


def export(model: Path, out: Path, **options: Any) -> Path:
    given = {"to": "onnx", "draws": 3, "scores": ["entropy"], **options}
    segunc.export(model=model, out=out, **given)
    return out


def measured(capsys: pytest.CaptureFixture[str], *words: str | Path) -> dict[str, Any]:
    """Run the tool, and return the JSON file that it prints."""
    assert latency.main([*map(str, words), *FEW]) == 0
    content: dict[str, Any] = json.loads(capsys.readouterr().out)
    return content


def refused(capsys: pytest.CaptureFixture[str], *words: str | Path) -> str:
    assert latency.main([*map(str, words), *FEW]) == 1
    return capsys.readouterr().err


def assert_complete(content: dict[str, Any], model: Path) -> None:
    loaded = segunc.load(model)
    assert content["base_sha256"] == loaded.sha256
    assert content["posterior_sha256"] == loaded.posterior_sha256
    assert content["draws"] == 3
    assert content["size"] == list(SIZE)
    assert [row["streams"] for row in content["streams"]] == [1, 2]
    assert [row["frames"] for row in content["streams"]] == [2, 2]
    for row in content["streams"]:
        assert 0 < row["p50"] <= row["p95"] <= row["p99"]
        assert row["frames_per_second"] > 0
        assert row["peak_gib"] > 0
    for key in ("frames", "p50", "p95", "p99", "peak_gib"):
        assert content[key] == content["streams"][0][key]
    assert content["first"] > 0


def test_a_file_runs_in_onnx_runtime(
    exported: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = measured(capsys, exported)
    assert_complete(content, model)
    assert content["what"].startswith("ONNX Runtime 1.")
    path = tmp_path / "latency.json"
    path.write_text(json.dumps(content))
    assert read_latency(path) == content, "the report takes the file"


def test_the_sampler_runs_with_the_settings_of_the_file(
    exported: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = measured(capsys, exported, "--model", model)
    assert_complete(content, model)
    assert content["what"] == "sampler"


def test_a_graph_runs_in_openvino(
    model: Path, toy_set: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("openvino")
    frames = toy_set / "leftImg8bit"
    lower = {"precision": "float16", "check_frames": frames, "max_changed": 1.0}
    out = export(model, tmp_path / "out", to="openvino", **lower)
    content = measured(capsys, out)
    assert_complete(content, model)
    assert content["what"].startswith("OpenVINO 20")
    assert content["what"].endswith(", float16")


def test_frames_of_uint8_come_in_batches_and_at_their_own_size(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = export(model, tmp_path / "out", input="uint8", frame_size=(64, 128), batch=2)
    for words in ((out,), (out, "--model", model)):
        content = measured(capsys, *words)
        assert content["size"] == [64, 128]
        assert content["batch"] == 2


def test_a_file_of_any_size_gets_its_draws_and_the_given_size(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = export(model, tmp_path / "out", size="dynamic", draws_as_input=True)
    assert measured(capsys, out, "--size", "40x56")["size"] == [40, 56]


def test_what_is_not_measured_is_one_sentence(
    exported: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = export(model, tmp_path / "pt2", to="pt2")
    assert "model.pt2 is no file of ONNX or OpenVINO" in refused(capsys, program)
    assert "model.json is not the record of an export" in refused(capsys, tmp_path)
    assert "takes inputs of [1, 3, 32, 64]" in refused(capsys, exported, "--size", "64x64")
    other = model.parent / "base"
    assert "holds another model than" in refused(capsys, exported, "--model", other)


def test_a_server_that_is_not_there_is_one_sentence(
    exported: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    find_spec = latency.importlib.util.find_spec
    missing = {"tritonclient": None}
    monkeypatch.setattr(
        latency.importlib.util, "find_spec", lambda name: missing.get(name, find_spec(name))
    )
    error = refused(capsys, exported, "--server", "127.0.0.1:1")
    assert "needs the package tritonclient" in error
    assert 'pip install "tritonclient[http]"' in error


@pytest.mark.parametrize("words", ["--streams 0", "--frames -1", "--streams one", "--size 4"])
def test_options_have_their_form(words: str) -> None:
    with pytest.raises(SystemExit):
        latency.read_options(["exported", *words.split()])


def test_all_streams_send_until_the_frames_are_back() -> None:
    """Every call waits for another one: with fewer streams than two it would wait for ever."""
    together = threading.Barrier(2, timeout=10)
    opened: list[threading.Thread] = []

    def open_stream() -> latency.Run:
        opened.append(threading.current_thread())
        return lambda inputs: together.wait()

    calls = latency.calls_of(open_stream, {}, streams=2, frames=6)
    assert len(calls) == 6
    assert len(set(opened)) == 2
    ends = [end for _, end in calls]
    assert ends == sorted(ends)


def test_a_stream_waits_for_its_maps_before_it_sends_again() -> None:
    def call(inputs: latency.Inputs) -> None:
        time.sleep(0.01)

    calls = latency.calls_of(lambda: call, {}, streams=1, frames=3)
    for (_, end), (start, _) in pairwise(calls):
        assert start >= end


def test_what_fails_in_a_stream_is_raised() -> None:
    number = iter(range(100))

    def open_stream() -> latency.Run:
        if next(number) == 1:
            raise segunc.InputError("the second stream")
        return lambda inputs: None

    with pytest.raises(segunc.InputError, match="the second stream"):
        latency.calls_of(open_stream, {}, streams=3, frames=5)


def test_the_numbers_of_calls_by_hand() -> None:
    # Two streams: calls of 1, 2, 1 and 2 seconds, which are back within 4 seconds.
    calls = [(0.0, 1.0), (0.0, 2.0), (1.0, 2.0), (2.0, 4.0)]
    times = latency.stream_times(calls, streams=2, batch=3, peak_gib=None)
    assert times.p50 == 1.5
    assert times.p99 == 2.0
    assert times.frames_per_second == 3 * 4 / 4
    assert np.percentile([1, 2, 1, 2], 95) == times.p95


def test_a_file_of_another_export_is_not_measured(
    exported: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a killed export leaves it, or a copy: the record is that of another model."""
    folder = tmp_path / "folder"
    shutil.copytree(exported, folder)
    other = export(model, tmp_path / "other", draws=2)
    shutil.copy(other / "model.onnx", folder / "model.onnx")
    assert "model.onnx is not the file that" in refused(capsys, folder)
    assert measured(capsys, folder, "--model", model)["what"] == "sampler"


def test_the_configuration_of_a_server_may_be_changed(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = export(model, tmp_path / "out", to="triton")
    with (out / "config.pbtxt").open("a") as file:
        file.write("instance_group { count: 2 kind: KIND_CPU }\n")
    assert_complete(measured(capsys, out), model)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """The folder that a Triton server has loaded, by the name of its model. The server runs
    nothing, and says of a model what its configuration says.
    """
    folders: dict[str, Path] = {}

    def config_of(name: str) -> dict[str, Any]:
        text = (folders[name] / "config.pbtxt").read_text()
        lines = re.findall(r'parameters { key: "(.*?)" value { string_value: "(.*?)" } }', text)
        return {"parameters": {key: {"string_value": value} for key, value in lines}}

    def answer(name: str, inputs: object) -> SimpleNamespace:
        return SimpleNamespace(get_response=lambda: {"outputs": []})

    client = SimpleNamespace(
        is_model_ready=folders.__contains__,
        get_server_metadata=lambda: {"version": "2.51.0"},
        get_model_config=config_of,
        infer=answer,
    )
    package = ModuleType("tritonclient")
    package.__spec__ = ModuleSpec("tritonclient", None)
    http = ModuleType("tritonclient.http")
    vars(http)["InferenceServerClient"] = lambda *args, **options: client
    vars(package)["http"] = http
    monkeypatch.setitem(sys.modules, "tritonclient", package)
    monkeypatch.setitem(sys.modules, "tritonclient.http", http)
    monkeypatch.setattr(latency, "tensor_of", lambda name, values: name)
    return folders


def test_a_server_that_runs_another_file_is_not_measured(
    served: dict[str, Path], model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both folders have one name: that of the model in the server."""
    given = export(model, tmp_path / "given" / "abnn", to="triton")
    served["abnn"] = given
    assert measured(capsys, given, "--server", "here:1")["what"] == "Triton server 2.51.0"
    served["abnn"] = export(model, tmp_path / "other" / "abnn", to="triton", seed=7)
    assert "runs another file as abnn" in refused(capsys, given, "--server", "here:1")


def test_a_server_that_does_not_say_what_it_runs_is_known_by_the_name_alone(
    served: dict[str, Path], model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As one whose folder an earlier version exported."""
    folder = export(model, tmp_path / "abnn", to="triton")
    config = folder / "config.pbtxt"
    lines = [line for line in config.read_text().splitlines() if "sha256" not in line]
    config.write_text("\n".join(lines))
    served["abnn"] = folder
    assert latency.main([str(folder), "--server", "here:1", *FEW]) == 0
    printed = capsys.readouterr()
    what = json.loads(printed.out)["what"]
    assert what == "Triton server 2.51.0, model known by its name alone"
    assert "does not say which file it runs as abnn" in printed.err
