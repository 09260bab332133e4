"""The rule of the precision, the number of threads, and float32 on a GPU."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from segunc.core.device import choose_precision, depthwise_share, resolve_device, threads
from segunc.core.errors import InputError
from segunc.training.base import trainer_settings

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def blocks(depthwise: int) -> nn.Sequential:
    """3 x 3 from 3 to 16 channels, then so many depthwise 3 x 3 each followed by a 1 x 1."""
    pairs = [
        (nn.Conv2d(16, 16, 3, padding=1, groups=16), nn.Conv2d(16, 16, 1)) for _ in range(depthwise)
    ]
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        *(layer for pair in pairs for layer in pair),
    )


def test_the_share_is_that_of_the_multiply_adds_and_the_network_stays_as_it_is() -> None:
    network = blocks(2).train()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    # For each pixel 3 * 9 * 16 in the first layer, then 9 * 16 and 16 * 16 in each pair.
    assert depthwise_share(network) == pytest.approx(2 * 144 / (432 + 2 * (144 + 256)))
    assert all(module.training and not module._forward_hooks for module in network.modules())
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert depthwise_share(blocks(0)) == 0
    halved = nn.Sequential(
        nn.Conv2d(3, 8, 2, stride=2), nn.Conv2d(8, 16, 1, groups=8), nn.Conv2d(16, 4, 1, groups=2)
    )
    assert depthwise_share(halved) == pytest.approx(
        16 / (96 + 16 + 32)
    )  # groups alone are no depthwise
    assert (
        depthwise_share(nn.Sequential(nn.Conv2d(3, 1, 1), nn.Conv2d(1, 4, 3))) == 0
    )  # one channel in is a plain one


@pytest.mark.parametrize("capable", [True, False])
def test_auto_is_bfloat16_where_hardware_and_network_allow_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capable: bool
) -> None:
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: capable)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: capable)
    expected = "bfloat16" if capable else "float32"
    assert (
        choose_precision("auto", CPU, blocks(0))
        == choose_precision("auto", CUDA, blocks(2))
        == expected
    )
    assert choose_precision("auto", CPU, blocks(2)) == "float32"
    with monkeypatch.context() as limited:
        limited.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
        assert choose_precision("auto", CPU, blocks(0)) == "float32"
        limited.setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_AMX")
        assert choose_precision("auto", CPU, blocks(0)) == expected
    for asked in ("float32", "bfloat16"):
        assert (
            choose_precision(asked, CPU, blocks(2))
            == choose_precision(asked, CUDA, blocks(0))
            == asked
        )
    assert trainer_settings({}, tmp_path, "cpu", blocks(2))["precision"] == "32-true"
    assert trainer_settings({}, tmp_path, "cpu", blocks(0))["precision"] == (
        "bf16-mixed" if capable else "32-true"
    )
    assert (
        trainer_settings({"precision": "bf16-mixed"}, tmp_path, "cpu", blocks(2))["precision"]
        == "bf16-mixed"
    )


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

for choice in (
    "allow_tf32",
    "allow_tf32 = False",
    "fp32_precision = 'tf32'",
    "conv.fp32_precision = 'ieee'",
):
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


@pytest.mark.skipif(
    not hasattr(torch.backends.cudnn, "conv"), reason="before PyTorch 2.9 there is one setting"
)
def test_convolutions_are_in_full_float32_meanwhile_whatever_a_user_chose() -> None:
    """In processes of their own: the settings are for all of one, and what was chosen cannot all be
    read back.
    """
    subprocess.run([sys.executable, "-W", "ignore", "-c", CHOICES], check=True)
