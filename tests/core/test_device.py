"""The rule of the precision: by the device, what its CPU multiplies, and the network."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from segunc.core.device import DEPTHWISE, choose_precision, depthwise_share, threads
from segunc.core.errors import InputError
from segunc.options import SamplingOptions
from segunc.posteriors.files import load_model
from segunc.training.base import trainer_settings
from segunc.verbs.execution import make_sampler
from tests.conftest import Job

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


class Blocks(nn.Sequential):
    """3 x 3 from 3 to 16 channels, then so many depthwise 3 x 3 each followed by a 1 x 1; statistics and dropout besides."""

    def __init__(self, depthwise: int) -> None:
        pairs = (
            layer
            for _ in range(depthwise)
            for layer in (nn.Conv2d(16, 16, 3, padding=1, groups=16), nn.Conv2d(16, 16, 1))
        )
        super().__init__(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.Dropout(0.5), *pairs)


@pytest.fixture
def features(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A CPU that multiplies no bfloat16."""
    for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.setattr(torch.cpu, name, lambda: False)
    return monkeypatch


def test_the_share_is_that_of_the_multiply_adds() -> None:
    assert depthwise_share(Blocks(0)) == 0
    # For each pixel 3 * 9 * 16 in the first layer, then 9 * 16 and 16 * 16 in each pair.
    assert depthwise_share(Blocks(2)) == pytest.approx(2 * 144 / (432 + 2 * (144 + 256)))
    halved = nn.Sequential(nn.Conv2d(3, 8, 2, stride=2), nn.Conv2d(8, 16, 1, groups=8), nn.Conv2d(16, 4, 1, groups=2))
    assert depthwise_share(halved) == pytest.approx(
        16 / (96 + 16 + 32)
    )  # two of a channel; groups alone are no depthwise
    assert depthwise_share(nn.Sequential(nn.Conv2d(3, 1, 1), nn.Conv2d(1, 4, 3))) == 0  # one channel in is a plain one
    assert depthwise_share(nn.Sequential(Blocks(1), nn.Linear(128, 10))) < depthwise_share(Blocks(1))


def test_looking_at_a_network_leaves_it_as_it_is() -> None:
    network = Blocks(1).train()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    depthwise_share(network)
    assert all(module.training for module in network.modules())
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert not any(module._forward_hooks for module in network.modules())


@pytest.mark.parametrize(
    ("amx", "bf16", "depthwise", "training", "expected"),
    [
        (False, False, 0, False, "float32"),
        (False, False, 2, True, "float32"),
        (False, True, 0, True, "bfloat16"),
        (False, True, 2, False, "float32"),
        (False, True, 2, True, "float32"),
        (True, True, 0, True, "bfloat16"),
        (True, True, 2, False, "bfloat16"),
        (True, True, 2, True, "float32"),
    ],
)
def test_the_rule(
    features: pytest.MonkeyPatch, amx: bool, bf16: bool, depthwise: int, training: bool, expected: str
) -> None:
    features.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
    features.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: bf16)
    network = Blocks(depthwise)
    precision, why = choose_precision("auto", CPU, network, training=training)
    assert precision == expected
    # Said where the network decides, and with what it decides by.
    assert bool(why) == (expected == "float32" and (amx or bf16))
    if why:
        assert why.startswith(f"float32: {depthwise_share(network):.1%} of the multiply-adds are depthwise")
        assert ("without AMX" in why) == (not amx)
    for asked in ("float32", "bfloat16"):
        assert choose_precision(asked, CPU, network, training=training) == (asked, "")


def test_only_a_large_share_decides(features: pytest.MonkeyPatch) -> None:
    features.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    wide = nn.Sequential(nn.Conv2d(3, 128, 3), nn.Conv2d(128, 128, 3), nn.Conv2d(128, 128, 3, groups=128))
    assert 0 < depthwise_share(wide) < DEPTHWISE
    assert choose_precision("auto", CPU, wide) == ("bfloat16", "")


@pytest.mark.parametrize("capable", [True, False])
def test_a_gpu_is_asked_itself(monkeypatch: pytest.MonkeyPatch, capable: bool) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: capable)
    expected = "bfloat16" if capable else "float32"
    assert choose_precision("auto", CUDA, Blocks(2), training=True) == (expected, "")


def test_training_of_all_weights_and_of_the_affine_alone(
    features: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    features.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True)
    network = Blocks(2)
    assert trainer_settings({}, tmp_path, "cpu", network)["precision"] == "32-true"
    assert "note: float32: " in capsys.readouterr().out
    assert trainer_settings({}, tmp_path, "cpu", network, frozen=True)["precision"] == "bf16-mixed"
    assert trainer_settings({"precision": "bf16-mixed"}, tmp_path, "cpu", network)["precision"] == "bf16-mixed"
    assert capsys.readouterr().out == ""


def test_a_run_says_why_once(features: pytest.MonkeyPatch, trained: Job) -> None:
    features.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    model, options = load_model(trained.base), SamplingOptions(device="cpu")
    sampler = make_sampler(model, options)
    assert depthwise_share(model.network) > DEPTHWISE
    assert sampler.precision == "float32"
    assert [text for text in sampler.report.messages if text.startswith("float32: ")] == sampler.report.messages[-1:]
    asked = make_sampler(model, replace(options, precision="bfloat16"))
    assert asked.precision == "bfloat16"
    assert not any("depthwise" in text for text in asked.report.messages)


@pytest.mark.parametrize("count", [0, -1, 100_000, 1.5, "2", True])
def test_a_number_of_threads_that_would_end_the_process_is_refused(count: Any) -> None:
    """It may come from a manifest."""
    before = torch.get_num_threads()
    with (
        pytest.raises(InputError, match=r"`threads` .*; expected a number of at least 1 and at most 1024"),
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
