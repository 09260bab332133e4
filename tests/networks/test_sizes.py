"""Networks whose forward takes only some sizes: found by trial at import, and padded from then on."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from segunc import ImportOptions, InputError, Sampler, import_network, load_model, load_network
from segunc.posteriors.mixtures import TTA, TtaConfig
from segunc.training.config import FitConfig

MODULE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, depth, fixed):
        super().__init__()
        self.down = nn.Sequential(*[nn.Sequential(nn.Conv2d(3 if i == 0 else 4, 4, 3, 2, 1), nn.BatchNorm2d(4), nn.ReLU()) for i in range(depth)])
        self.skip, self.up, self.head = nn.Conv2d(3, 4, 1), nn.Upsample(scale_factor=2 ** depth), nn.Conv2d(4, 3, 1)
        self.fixed = fixed

    def forward(self, x):
        assert not self.fixed or x.shape[-2:] == (96, 160)
        return self.head(self.skip(x) + self.up(self.down(x)))  # fails where the sides are no multiples of 2 ** depth

def build(depth=4, fixed=False):
    torch.manual_seed(0)
    return Net(depth, fixed)
"""


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delitem(sys.modules, "net_with_stride", raising=False)
    (tmp_path / "net_with_stride.py").write_text(MODULE)
    return tmp_path


def imported(folder: Path, size: tuple[int, int] | None = (100, 168), **arguments: Any) -> Any:
    options = ImportOptions(
        source="python:net_with_stride:build",
        **{"classes": "road,car,sky", "mean": (0, 0, 0), "std": (1, 1, 1), "size": size, "trust": True},
        **{"arguments": arguments, "out": folder / "model"},
    )
    import_network(options)
    return load_network(folder / "model")


def padded(network: nn.Module, images: torch.Tensor, divisor: int) -> torch.Tensor:
    height, width = images.shape[-2:]
    whole = nn.functional.pad(images, (0, -width % divisor, 0, -height % divisor), mode="replicate")
    logits: torch.Tensor = network(whole)[..., :height, :width]
    return logits


@pytest.mark.parametrize("depth", [1, 4, 6])
def test_the_divisor_is_found_and_frames_are_padded_to_it(theirs: Path, depth: int) -> None:
    import net_with_stride

    ours = imported(theirs, depth=depth)
    assert (ours.description.divisor, ours.stride) == (2**depth, 2**depth)
    images = torch.rand(1, 3, 100, 168, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = padded(net_with_stride.build(depth).eval(), images, 2**depth)
        torch.testing.assert_close(ours(images), expected, rtol=1e-5, atol=1e-6)


def test_augmentation_at_a_scale_that_does_not_fit_the_stride(theirs: Path) -> None:
    import net_with_stride

    imported(theirs, (64, 96), depth=5)
    TTA.fit(theirs / "model", FitConfig(TtaConfig(flip=False)), theirs / "tta")
    model = load_model(theirs / "tta")
    images = torch.rand(1, 3, 64, 96, generator=torch.Generator().manual_seed(0))
    network = net_with_stride.build(5).eval()
    with torch.no_grad():
        small = nn.functional.interpolate(images, (48, 72), mode="bilinear", antialias=True)
        logits = nn.functional.interpolate(padded(network, small, 32), (64, 96), mode="bilinear")
        expected = (network(images).softmax(1) + logits.softmax(1)) / 2
    result = Sampler(model.network, model.posterior)(images, keep_probabilities=True)
    torch.testing.assert_close(result.probabilities, expected, rtol=0, atol=1e-5)


def test_a_network_of_one_size_is_imported_and_not_augmented_by_scales(theirs: Path) -> None:
    assert imported(theirs, (96, 160), fixed=True).description.divisor is None
    with pytest.raises(InputError, match="one size alone"):
        TTA.fit(theirs / "model", FitConfig(TtaConfig()), theirs / "tta")
    assert not (theirs / "tta").exists()
