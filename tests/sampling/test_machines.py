"""The same frames on other threads, with the instructions of another CPU, without a compiler: within what docs/determinism.md promises."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from segunc.maps.encoding import encode_unit
from segunc.sampling import Sampler
from segunc.sampling import sampler as sampler_module
from segunc.sampling.tail_native import native_tail
from tests.sampling.test_sampler import IMAGES, SHARES, model

OTHERS = {
    "the same": {},
    "two threads": {"THREADS": "2"},
    "AVX2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"},
}


def write_maps(path: Path) -> None:
    """What another process is asked for: all maps of two frames."""
    import torch
    from safetensors.torch import save_file

    from segunc.core.device import threads
    from segunc.sampling import Sampler

    network, posterior = model(0.3)
    with threads(int(os.environ.get("THREADS", "1"))):
        result = Sampler(network, posterior, draws=6)(IMAGES[:2])
    save_file({**result.scores, "prediction": result.prediction.to(torch.uint8)}, path)


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    return made_by({}, tmp_path_factory.mktemp("first"))


def made_by(environment: dict[str, str], folder: Path) -> dict[str, np.ndarray]:
    code = "import sys; from pathlib import Path; from tests.sampling.test_machines import write_maps; write_maps(Path(sys.argv[1]))"
    path = folder / "maps.safetensors"
    subprocess.run([sys.executable, "-c", code, str(path)], check=True, env={**os.environ, **environment})
    return load_file(path)


@pytest.mark.parametrize("other", OTHERS)
def test_maps_of_another_process(first: dict[str, np.ndarray], other: str, tmp_path: Path) -> None:
    found = made_by(OTHERS[other], tmp_path)
    assert found.keys() == first.keys()
    for name, values in first.items():
        if other == "the same" or name == "prediction":
            np.testing.assert_array_equal(found[name], values, err_msg=name)
        elif name in SHARES:
            assert codes_apart(found[name], values) <= 1, name
        else:
            np.testing.assert_allclose(found[name], values, rtol=1e-4, atol=1e-4, err_msg=name)


@pytest.mark.skipif(native_tail().library is None, reason=f"no compiled tail: {native_tail().reason}")
def test_maps_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = Sampler(*model(0.3), draws=6)(IMAGES)
    monkeypatch.setattr(sampler_module, "choose_backend", lambda device: ("reference", "no compiler"))
    found = Sampler(*model(0.3), draws=6)(IMAGES)
    assert found.scores.keys() == compiled.scores.keys()
    for name in SHARES:
        assert codes_apart(found.scores[name].numpy(), compiled.scores[name].numpy()) <= 2, name


def codes_apart(first: np.ndarray, second: np.ndarray) -> int:
    """The largest difference of two maps in codes."""
    return int(np.abs(encode_unit(first).astype(int) - encode_unit(second)).max())
