"""Outputs that are no class are left out where they are made, and what is left is the network without them."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from segunc import ABNN, AffineLayout, ImportOptions, InputError, Sampler, convert, import_network, load_network
from segunc.data.labels import label_map
from segunc.networks.files import network_sha256

IMAGES = torch.rand(2, 3, 64, 96, generator=torch.Generator().manual_seed(0))
MODULE = """
import torch.nn.functional as F
from torch import nn

class Net(nn.Module):
    def __init__(self, head, after, outputs):
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(3, 8, 3, 4, 1), nn.BatchNorm2d(8), nn.ReLU())
        self.aux = nn.Conv2d(8, outputs, 1)  # as many outputs, for training alone
        self.head = {
            "conv": nn.Conv2d(8, outputs, 1), "transposed": nn.ConvTranspose2d(8, outputs, 2, 2), "linear": nn.Linear(8, outputs),
        }[head]
        self.unused = nn.Conv2d(8, outputs, 1)
        self.after = {"nothing": nn.Identity(), "norm": nn.BatchNorm2d(outputs), "mixed": nn.Conv2d(outputs, outputs, 1, groups=outputs)}[after]

    def forward(self, x):
        y = self.encoder(x)
        y = self.head(y.movedim(1, -1)).movedim(-1, 1) if isinstance(self.head, nn.Linear) else self.head(y)
        return F.interpolate(self.after(y), x.shape[-2:], mode="bilinear")

def build(head="conv", after="nothing", outputs=4):
    return Net(head, after, outputs)
"""
NAMES = "road,void,car,sky"


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delitem(sys.modules, "net_with_void", raising=False)
    (tmp_path / "net_with_void.py").write_text(MODULE)
    return tmp_path


def imported(folder: Path, drop: str = "void", classes: str = NAMES, **arguments: Any) -> tuple[nn.Module, Any]:
    """Their network with random weights, and the one imported from its file."""
    import net_with_void

    torch.manual_seed(3)
    network = net_with_void.build(**arguments)
    network.encoder[1].running_var.uniform_(0.5, 2)
    torch.save(network.state_dict(), folder / "weights.pt")
    options = ImportOptions(
        source="python:net_with_void:build",
        **{"weights": folder / "weights.pt", "classes": classes, "drop_classes": drop, "arguments": arguments},
        **{"mean": (0, 0, 0), "std": (1, 1, 1), "size": (64, 96), "trust": True, "out": folder / "model"},
    )
    import_network(options)
    return network.eval(), load_network(folder / "model")


@pytest.mark.parametrize(
    ("arguments", "layer"),
    [
        ({}, "head"),
        ({"head": "transposed"}, "head"),
        ({"head": "linear"}, ""),
        ({"after": "norm"}, ""),  # what follows the layer needs all of its outputs
        ({"after": "mixed"}, ""),
    ],
)
def test_what_is_left_is_the_network_without_the_outputs(theirs: Path, arguments: dict[str, str], layer: str) -> None:
    network, ours = imported(theirs, **arguments)
    assert (ours.description.classes, ours.description.last_layer) == (("road", "car", "sky"), layer)
    with torch.no_grad():
        expected = network(IMAGES)[:, [0, 2, 3]]
        torch.testing.assert_close(ours(IMAGES), expected, rtol=1e-5, atol=1e-6)
    convert(ours)
    sampler = Sampler(ours, ABNN.around(AffineLayout(ours), alpha=0.0), draws=1)
    result = sampler(IMAGES[:1], keep_probabilities=True)
    torch.testing.assert_close(result.probabilities, expected[:1].softmax(1), rtol=0, atol=1e-5)
    endings = [ending for engine in sampler._engines.values() for ending in engine._endings.values()]
    assert [ending is not None for ending in endings] == [bool(layer)]  # the tail does the last upsampling


def test_numbers_name_outputs_that_a_label_map_has_not(theirs: Path) -> None:
    network, ours = imported(theirs, "19", "cityscapes", outputs=20)
    assert (ours.description.classes, ours.description.palette) == (
        label_map("cityscapes").classes,
        tuple(label_map("cityscapes").palette),
    )
    with torch.no_grad():
        assert torch.equal(ours(IMAGES).argmax(1), network(IMAGES)[:, :19].argmax(1))
    assert json.loads((theirs / "model/network.json").read_text())["dropped_outputs"] == [19]


@pytest.mark.parametrize(
    ("drop", "classes"), [("viod", NAMES), ("7", NAMES), ("road,void,car,sky", NAMES), ("void", "road,void")]
)
def test_outputs_that_are_not_there_are_refused(theirs: Path, drop: str, classes: str) -> None:
    with pytest.raises(InputError, match="drop-classes"):
        imported(theirs, drop, classes)
    assert not (theirs / "model").exists()


def test_a_damaged_record_is_refused(theirs: Path) -> None:
    _, ours = imported(theirs)
    place = theirs / "model/network.json"
    changed = replace(ours.description, last_layer="encoder.1")
    place.write_text(json.dumps({**changed.to_json(), "sha256": network_sha256(ours.body, changed)}))
    with pytest.raises(InputError, match=r"encoder\.1"):
        load_network(theirs / "model")
