"""The rule of the precision, the number of threads, and float32 on a GPU."""

import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from segunc.core import device
from segunc.core.device import choose_precision, depthwise_share, resolve_device, threads
from segunc.core.errors import InputError
from segunc.training.base import trainer_settings

Processor = Callable[[str, bool], None]
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


def test_the_share_is_that_of_the_multiply_adds() -> None:
    # For each pixel 3 * 9 * 16 in the first layer, then 9 * 16 and 16 * 16 in each pair.
    expected = 2 * 144 / (432 + 2 * (144 + 256))
    assert depthwise_share(blocks(2)) == pytest.approx(expected)
    assert depthwise_share(blocks(0)) == 0


def test_measuring_the_share_leaves_the_network_as_it_is() -> None:
    network = blocks(2).train()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    depthwise_share(network)
    for module in network.modules():
        assert module.training
        assert not module._forward_hooks
    for name, value in network.state_dict().items():
        assert torch.equal(value, before[name])


def test_groups_alone_are_no_depthwise_convolution() -> None:
    network = nn.Sequential(
        nn.Conv2d(3, 8, 2, stride=2),
        nn.Conv2d(8, 16, 1, groups=8),
        nn.Conv2d(16, 4, 1, groups=2),
    )
    assert depthwise_share(network) == pytest.approx(16 / (96 + 16 + 32))


def test_a_convolution_of_one_channel_is_a_plain_one() -> None:
    network = nn.Sequential(nn.Conv2d(3, 1, 1), nn.Conv2d(1, 4, 3))
    assert depthwise_share(network) == 0


@pytest.fixture(params=[True, False], ids=["bfloat16", "no bfloat16"])
def capable(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether CPU and GPU compute in bfloat16."""
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: request.param)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: request.param)
    return request.param


def test_auto_is_bfloat16_where_hardware_and_network_allow_it(capable: bool) -> None:
    expected = "bfloat16" if capable else "float32"
    assert choose_precision("auto", CPU, blocks(0)) == expected
    assert choose_precision("auto", CUDA, blocks(2)) == expected
    assert choose_precision("auto", CPU, blocks(2)) == "float32"


def test_auto_follows_the_limit_of_onednn(capable: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    assert choose_precision("auto", CPU, blocks(0)) == "float32"
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_AMX")
    expected = "bfloat16" if capable else "float32"
    assert choose_precision("auto", CPU, blocks(0)) == expected


@pytest.fixture
def processor(monkeypatch: pytest.MonkeyPatch) -> Processor:
    """Make this CPU one of a vendor, with the bfloat16 of AVX-512 and with or without AMX."""

    def become(vendor: str, has_amx: bool) -> None:
        monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: has_amx)
        monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
        monkeypatch.setattr(device, "processor_lines", lambda: [f"vendor_id : {vendor}"])

    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    return become


@pytest.mark.parametrize(
    ("vendor", "has_amx", "expected"),
    [
        ("AuthenticAMD", False, "bfloat16"),
        ("GenuineIntel", True, "bfloat16"),
        ("GenuineIntel", False, "float32"),
    ],
)
def test_auto_is_bfloat16_where_it_is_faster(
    processor: Processor, vendor: str, has_amx: bool, expected: str
) -> None:
    # On Intel's cores without AMX, DeepLabV3+ took 1.6 times as long: docs/guides/exporting.md.
    processor(vendor, has_amx)
    assert choose_precision("auto", CPU, blocks(0)) == expected


def test_auto_is_float32_where_onednn_may_not_use_amx(
    processor: Processor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
    processor("GenuineIntel", True)
    assert choose_precision("auto", CPU, blocks(0)) == "float32"
    processor("AuthenticAMD", False)
    assert choose_precision("auto", CPU, blocks(0)) == "bfloat16"


def test_lines_of_the_processor_name_it_without_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*words: str) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", missing)
    monkeypatch.setattr(platform, "machine", lambda: "AMD64")
    monkeypatch.setattr(platform, "processor", lambda: "Family 25, AuthenticAMD")
    assert device.processor_lines() == ["model name : AMD64 Family 25, AuthenticAMD"]


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_precision_that_is_asked_for_is_taken(capable: bool, precision: str) -> None:
    assert choose_precision(precision, CPU, blocks(2)) == precision
    assert choose_precision(precision, CUDA, blocks(0)) == precision


def test_a_training_has_the_same_precision(capable: bool, tmp_path: Path) -> None:
    depthwise = trainer_settings({}, tmp_path, "cpu", blocks(2))
    assert depthwise["precision"] == "32-true"
    plain = trainer_settings({}, tmp_path, "cpu", blocks(0))
    assert plain["precision"] == ("bf16-mixed" if capable else "32-true")


def test_a_training_takes_the_precision_that_is_asked_for(capable: bool, tmp_path: Path) -> None:
    settings = trainer_settings({"precision": "bf16-mixed"}, tmp_path, "cpu", blocks(2))
    assert settings["precision"] == "bf16-mixed"


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
