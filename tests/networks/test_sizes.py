"""Networks of one's own: the sizes that they take are found at import, and outputs that are no class are left out of the logits."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from segunc import ImportOptions, InputError, Sampler, import_network, load_model, load_network
from segunc.data.labels import label_map
from segunc.posteriors.tta import METHOD, TtaConfig
from segunc.training.config import FitConfig

IMAGES = torch.rand(2, 3, 100, 168, generator=torch.Generator().manual_seed(0))
MODULE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, depth, fixed, outputs, softmax):
        super().__init__()
        self.down = nn.Sequential(*[nn.Sequential(nn.Conv2d(3 if i == 0 else 4, 4, 3, 2, 1), nn.BatchNorm2d(4), nn.ReLU()) for i in range(depth)])
        self.skip, self.up, self.head = nn.Conv2d(3, 4, 1), nn.Upsample(scale_factor=2 ** depth), nn.Conv2d(4, outputs, 1)
        self.fixed, self.softmax = fixed, softmax

    def forward(self, x):
        assert not self.fixed or x.shape[-2:] == (96, 160)
        logits = self.head(self.skip(x) + self.up(self.down(x)))  # fails where the sides are no multiples of 2 ** depth
        return logits.softmax(1) if self.softmax else logits

def build(depth=1, fixed=False, outputs=4, softmax=False):
    torch.manual_seed(0)
    return Net(depth, fixed, outputs, softmax)
"""
NAMES = "road,void,car,sky"


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delitem(sys.modules, "net_of_theirs", raising=False)
    (tmp_path / "net_of_theirs.py").write_text(MODULE)
    return tmp_path


def imported(
    folder: Path, size: Any = (100, 168), classes: str = NAMES, drop: str | None = None, **arguments: Any
) -> tuple[nn.Module, Any]:
    """Their network, and the one that was imported."""
    import net_of_theirs

    options = ImportOptions(
        source="python:net_of_theirs:build",
        **{"classes": classes, "drop_classes": drop, "mean": (0, 0, 0), "std": (1, 1, 1), "size": size, "trust": True},
        **{"arguments": arguments, "out": folder / "model"},
    )
    import_network(options)
    return net_of_theirs.build(**arguments).eval(), load_network(folder / "model")


def padded(network: nn.Module, images: torch.Tensor, divisor: int) -> Any:
    height, width = images.shape[-2:]
    whole = nn.functional.pad(images, (0, -width % divisor, 0, -height % divisor), mode="replicate")
    return network(whole)[..., :height, :width]


@pytest.mark.parametrize("depth", [1, 4, 6])
@torch.no_grad()
def test_the_divisor_is_found_and_frames_are_padded_to_it(theirs: Path, depth: int) -> None:
    network, ours = imported(theirs, depth=depth)
    assert (ours.description.divisor, ours.stride) == (2**depth, 2**depth)
    torch.testing.assert_close(ours(IMAGES), padded(network, IMAGES, 2**depth), rtol=1e-5, atol=1e-6)


def test_augmentation_at_a_scale_that_does_not_fit_the_stride(theirs: Path) -> None:
    network, _ = imported(theirs, (64, 96), depth=5)
    METHOD.fit(theirs / "model", FitConfig(TtaConfig(flip=False)), theirs / "tta")
    model, images = load_model(theirs / "tta"), IMAGES[:1, :, :64, :96]
    with torch.no_grad():
        small = nn.functional.interpolate(images, (48, 72), mode="bilinear", antialias=True)
        logits = nn.functional.interpolate(padded(network, small, 32), (64, 96), mode="bilinear")
        expected = (network(images).softmax(1) + logits.softmax(1)) / 2
    result = Sampler(model.network, model.posterior)(images, keep_probabilities=True)
    torch.testing.assert_close(result.probabilities, expected, rtol=0, atol=1e-5)


def test_a_network_of_one_size_is_imported_and_not_augmented_by_scales(theirs: Path) -> None:
    assert imported(theirs, (96, 160), fixed=True)[1].description.divisor is None
    with pytest.raises(InputError, match="one size alone"):
        METHOD.fit(theirs / "model", FitConfig(TtaConfig()), theirs / "tta")
    assert not (theirs / "tta").exists()


@pytest.mark.parametrize(
    ("classes", "drop", "outputs", "left"),
    [(NAMES, "void", 4, [0, 2, 3]), ("cityscapes", "19", 20, [*range(19)]), ("road,car", "0,2", 4, [1, 3])],
)
@torch.no_grad()
def test_what_is_left_is_the_network_without_the_outputs(
    theirs: Path, classes: str, drop: str, outputs: int, left: list[int]
) -> None:
    network, ours = imported(theirs, classes=classes, drop=drop, outputs=outputs)
    torch.testing.assert_close(ours(IMAGES), network(IMAGES)[:, left], rtol=1e-5, atol=1e-6)
    recorded = json.loads((theirs / "model/network.json").read_text())["dropped_outputs"]
    assert sorted([*recorded, *left]) == [*range(outputs)]
    if classes == "cityscapes":
        labels = label_map("cityscapes")
        assert (ours.description.classes, ours.description.palette) == (labels.classes, tuple(labels.palette))
    result = Sampler(ours)(IMAGES[:1], keep_probabilities=True)
    torch.testing.assert_close(result.probabilities, network(IMAGES)[:1, left].softmax(1), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("drop", "classes", "softmax", "said"),
    [
        ("void", NAMES, True, "probabilities"),  # seen although an output of them is dropped
        *((drop, NAMES, False, r"drop.classes") for drop in ("viod", "7", NAMES)),
        ("4", "road,void,car", False, r"drop.classes"),
    ],
)
def test_outputs_that_cannot_be_dropped_are_refused(
    theirs: Path, drop: str, classes: str, softmax: bool, said: str
) -> None:
    with pytest.raises(InputError, match=said):
        imported(theirs, classes=classes, drop=drop, softmax=softmax)
    assert not (theirs / "model").exists()
