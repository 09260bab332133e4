"""A real Triton Inference Server takes what `segunc export --to triton` writes, and gives the bytes
of ONNX Runtime; :mod:`tests.support.triton` says which server."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import segunc
from segunc.exporting.check import check_inputs
from segunc.exporting.placement import Placement
from tests.conftest import Job
from tests.support import triton
from tools import latency

pytest.importorskip("onnxscript", reason="the extra export is not installed")
onnxruntime = pytest.importorskip("onnxruntime")
client = pytest.importorskip("tritonclient.http", reason="tritonclient[http] is not installed")

triton.program()  # skips all tests before their fixtures work
pytestmark = pytest.mark.slow
SIZE = (64, 128)
LARGER = (96, 192)
DRAWS = {"draws": 2, "scores": ["entropy", "epistemic"]}
MODELS: dict[str, dict[str, Any]] = {
    "float32": {"size": SIZE},
    "batch": {"size": SIZE, "batch": 3},
    "uint8": {"size": SIZE, "input": "uint8", "frame_size": LARGER},
    "dynamic": {"size": "dynamic"},
    "draws": {"size": SIZE, "draws_as_input": True},
}
FLAGGED = "flagged"
INPUTS = {
    "float32": Placement(SIZE),
    "batch": Placement(SIZE, batch=3),
    "uint8": Placement(SIZE, frame_size=LARGER),
    "dynamic": Placement((70, 90)),
    "draws": Placement(SIZE),
    FLAGGED: Placement(SIZE),
}
TYPES = {"float32": "FP32", "uint8": "UINT8"}
THREADS = 'parameters { key: "intra_op_thread_count" value { string_value: "1" } }\n'


@pytest.fixture(scope="module")
def repository(predicted: Job, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model of each kind, as they are exported."""
    folder = tmp_path_factory.mktemp("triton")
    out = folder / "models"
    for name, options in MODELS.items():
        segunc.export(model=predicted.abnn, to="triton", out=out / name, **DRAWS, **options)
    threshold = folder / "threshold.json"
    segunc.threshold(
        maps=predicted.maps,
        anomaly_labels=predicted.masks,
        out=threshold,
        control="flagged-pixels",
        level=0.5,
        score="entropy",
    )
    segunc.export(
        model=predicted.abnn,
        to="triton",
        out=out / FLAGGED,
        size=SIZE,
        draws=4,  # of the maps of the threshold
        scores=["entropy"],
        threshold=threshold,
    )
    return out


def test_the_server_reads_each_configuration(repository: Path, tmp_path: Path) -> None:
    """Where the backend of ONNX Runtime is missing, nothing else is in the way."""
    with triton.serving(repository, tmp_path / "log") as server:
        ready = client.InferenceServerClient(server.url).get_model_repository_index()
    states = {model["name"]: model.get("reason", model["state"]) for model in ready}
    expected = "READY"
    if not triton.has_onnx_runtime():
        expected = "unable to find backend library for backend 'onnxruntime'"
    assert states.keys() == INPUTS.keys()
    for name, state in states.items():
        assert expected in state, name


@pytest.fixture(scope="module")
def server(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[triton.Server]:
    """A server of the models, on one thread as the sessions that it is compared with."""
    for folder in repository.iterdir():
        if not triton.has_onnx_runtime():
            triton.to_python_backend(folder)
        with (folder / "config.pbtxt").open("a") as file:
            file.write(THREADS)
    with triton.serving(repository, tmp_path_factory.mktemp("log") / "log") as running:
        yield running


def from_onnx_runtime(folder: Path, inputs: dict[str, Any]) -> dict[str, Any]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        folder / "1" / "model.onnx", options, providers=["CPUExecutionProvider"]
    )
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, inputs), strict=True))


def from_server(server: triton.Server, name: str, inputs: dict[str, Any]) -> dict[str, Any]:
    """Return every output of a model."""
    tensors = []
    for key, values in inputs.items():
        tensor = client.InferInput(key, values.shape, TYPES[str(values.dtype)])
        tensor.set_data_from_numpy(values)
        tensors.append(tensor)
    answer = client.InferenceServerClient(server.url).infer(name, tensors)
    outputs = [output["name"] for output in answer.get_response()["outputs"]]
    return {output: answer.as_numpy(output) for output in outputs}


@pytest.mark.parametrize("name", INPUTS)
def test_the_server_gives_the_bytes_of_onnx_runtime(
    server: triton.Server, repository: Path, name: str
) -> None:
    inputs = {"image": check_inputs(INPUTS[name])[0].numpy()}
    if name == "draws":
        inputs["draws"] = np.load(repository / name / "draws.npy")
    expected = from_onnx_runtime(repository / name, inputs)
    maps = from_server(server, name, inputs)
    record = json.loads((repository / name / "model.json").read_text())
    assert maps.keys() == expected.keys()
    assert maps.keys() >= {"prediction", *record["scores"]}
    for key, values in expected.items():
        assert maps[key].dtype == values.dtype, key
        assert np.array_equal(maps[key], values), key
    assert maps["entropy"].std() > 0
    if name == FLAGGED:
        assert 0 < maps["flagged"].mean() < 1


def test_the_server_refuses_a_frame_of_another_size(server: triton.Server) -> None:
    frame = check_inputs(Placement((32, 64)))[0].numpy()
    refusal = r"Expected \[1,3,64,128\], got \[1,3,32,64\]"
    with pytest.raises(client.InferenceServerException, match=refusal):
        from_server(server, "float32", {"image": frame})


def test_the_latency_of_a_server_is_measured(
    server: triton.Server, repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = repository / "draws"
    words = [str(folder), "--server", server.url, "--frames", "2", "--streams", "1,2"]
    assert latency.main(words) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["what"].startswith("Triton server 2.")
    assert "name alone" not in content["what"], "the server tells the SHA-256 of the file"
    assert [row["streams"] for row in content["streams"]] == [1, 2]
    assert content["peak_gib"] is None
    assert content["threads"] is None


def test_another_file_of_the_same_name_is_not_measured(
    server: triton.Server, repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "float32"
    shutil.copytree(repository / "batch", folder)
    assert latency.main([str(folder), "--server", server.url]) == 1
    assert "runs another file as float32" in capsys.readouterr().err


def test_a_model_that_the_server_does_not_have_is_one_sentence(
    server: triton.Server, repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(repository / "float32", tmp_path / "nobody")
    for url, message in ((server.url, "has no model nobody"), ("127.0.0.1:1", "no server answers")):
        assert latency.main([str(tmp_path / "nobody"), "--server", url]) == 1
        assert message in capsys.readouterr().err
