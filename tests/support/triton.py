"""A real Triton Inference Server on this machine, for the tests that ask one.

``SEGUNC_TRITONSERVER`` names the program, or it lies in ``PATH``. Without the backend of ONNX
Runtime, models run in the Python backend by ``docs/examples/triton/model.py``. Its Python is the
first one in ``PATH``, and needs onnxruntime and a NumPy below 2. The package nvidia-pytriton of
PyPI has such a server::

    python -m venv triton
    triton/bin/pip install nvidia-pytriton onnxruntime
    cd triton/lib/python3.11/site-packages/pytriton/tritonserver
    cp python_backend_stubs/3.11/triton_python_backend_stub backends/python

and then ``PATH=triton/bin:$PATH`` for the tests, which need ``tritonclient[http]`` themselves.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

MODEL = Path(__file__).parents[2] / "docs" / "examples" / "triton" / "model.py"
PLATFORM = 'platform: "onnxruntime_onnx"'
START_SECONDS = 60.0
STOP_SECONDS = 60.0


@dataclass(frozen=True)
class Server:
    """A running server.

    Attributes:
        url: host and port.
        log: what it prints.
    """

    url: str
    log: Path


def program() -> Path:
    """Return the program of the server; skip the test where there is none."""
    found = os.environ.get("SEGUNC_TRITONSERVER") or shutil.which("tritonserver")
    if not found:
        reason = "SEGUNC_TRITONSERVER names no tritonserver, and PATH has none"
        pytest.skip(reason, allow_module_level=True)
    return Path(found).resolve()


def has_onnx_runtime() -> bool:
    """Return whether the server has the backend of ONNX Runtime."""
    return (_backends() / "onnxruntime").is_dir()


def to_python_backend(folder: Path) -> None:
    """Change a model folder of ``segunc export --to triton`` so that the Python backend runs it."""
    shutil.copy(MODEL, folder / "1" / MODEL.name)
    config = folder / "config.pbtxt"
    text = config.read_text()
    assert text.count(PLATFORM) == 1
    config.write_text(text.replace(PLATFORM, 'backend: "python"'))


@contextmanager
def serving(repository: Path, log: Path) -> Iterator[Server]:
    """Yield a server of the models in a folder, once it answers; it stops at the end of the block.

    Args:
        repository: holds a folder for each model.
        log: file for what the server prints.
    """
    port = _free_port()
    command = [
        str(program()),
        f"--model-repository={repository}",
        f"--backend-directory={_backends()}",
        "--http-address=127.0.0.1",
        f"--http-port={port}",
        "--allow-grpc=false",
        "--allow-metrics=false",
        "--exit-on-error=false",  # a model that it cannot load is one test's matter
    ]
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)
    try:
        _wait_for(process, port, log)
        yield Server(f"127.0.0.1:{port}", log)
    finally:
        process.terminate()
        process.wait(STOP_SECONDS)


def _backends() -> Path:
    return program().parents[1] / "backends"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_for(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    """Return once the server takes connections, which it does after all models are loaded."""
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        if process.poll() is not None:
            pytest.fail(f"tritonserver ended: {log.read_text()[-2000:]}")
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    pytest.fail(f"tritonserver does not answer: {log.read_text()[-2000:]}")
