"""The rule of the precision, the number of threads, and float32 on a GPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from segunc.core.device import choose_precision, resolve_device, threads
from segunc.core.errors import InputError
from segunc.training.base import trainer_settings

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize("capable", [True, False])
def test_auto_is_bfloat16_where_the_hardware_multiplies_it(monkeypatch: pytest.MonkeyPatch, capable: bool) -> None:
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: capable)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: capable)
    expected = "bfloat16" if capable else "float32"
    assert choose_precision("auto", CPU) == choose_precision("auto", CUDA, training=True) == expected
    assert choose_precision("auto", CPU, training=True) == "float32"
    for asked in ("float32", "bfloat16"):
        assert choose_precision(asked, CPU) == choose_precision(asked, CUDA, training=True) == asked


def test_training_of_all_weights_and_of_the_affine_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True)
    assert trainer_settings({}, tmp_path, "cpu")["precision"] == "32-true"
    assert trainer_settings({}, tmp_path, "cpu", frozen=True)["precision"] == "bf16-mixed"
    assert trainer_settings({"precision": "bf16-mixed"}, tmp_path, "cpu")["precision"] == "bf16-mixed"


@pytest.mark.parametrize("text", ["gpu", "cuda:x", "cuda:999", ""])
def test_what_is_no_device_here_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="`device`"):
        resolve_device(text)


@pytest.mark.parametrize("count", [0, 100_000, 1.5, "2", True])
def test_a_number_of_threads_that_would_end_the_process_is_refused(count: Any) -> None:
    """It may come from a manifest."""
    before = torch.get_num_threads()
    with (
        pytest.raises(InputError, match=r"`threads` .* of at least 1 and at most 1024"),
        threads(count),
    ):
        pass
    assert torch.get_num_threads() == before


CHOICES = """
import os, torch
from segunc.core.device import full_float32
cudnn = torch.backends.cudnn

def seen():
    try:
        older = cudnn.allow_tf32
    except RuntimeError:
        older = "mixed"
    return [older, cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision]

for choice in ("allow_tf32", "allow_tf32 = False", "fp32_precision = 'tf32'", "conv.fp32_precision = 'ieee'"):
    if child := os.fork():
        assert os.waitpid(child, 0)[1] == 0, choice
        continue
    exec("cudnn." + choice)
    before = seen()
    with full_float32():
        assert cudnn.conv.fp32_precision == "ieee", seen()
        if before[0] != "mixed":
            assert cudnn.allow_tf32 is False
            with cudnn.flags(enabled=False):  # as networks may, and which reads the older setting
                pass
    assert seen() == before, (before, seen())
    break
"""


@pytest.mark.skipif(not hasattr(torch.backends.cudnn, "conv"), reason="before PyTorch 2.9 there is one setting")
def test_convolutions_are_in_full_float32_meanwhile_whatever_a_user_chose() -> None:
    """In processes of their own: the settings are for all of one, and what was chosen cannot all be read back."""
    subprocess.run([sys.executable, "-W", "ignore", "-c", CHOICES], check=True)
