"""Outputs that are no class are left out of the logits, and what is left is the network without them."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from segunc import (
    ABNNPosterior,
    AffineLayout,
    ImportOptions,
    InputError,
    Sampler,
    convert,
    import_network,
    load_network,
)
from segunc.data.labels import label_map
from segunc.networks.files import network_sha256

IMAGES = torch.rand(2, 3, 64, 96, generator=torch.Generator().manual_seed(0))
MODULE = """
import torch.nn.functional as F
from torch import nn

class Net(nn.Module):
    def __init__(self, outputs, softmax):
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(3, 8, 3, 4, 1), nn.BatchNorm2d(8), nn.ReLU())
        self.head, self.softmax = nn.Conv2d(8, outputs, 1), softmax

    def forward(self, x):
        y = F.interpolate(self.head(self.encoder(x)), x.shape[-2:], mode="bilinear")
        return y.softmax(1) if self.softmax else y

def build(outputs=4, softmax=False):
    return Net(outputs, softmax)
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


def test_what_is_left_is_the_network_without_the_outputs(theirs: Path) -> None:
    network, ours = imported(theirs)
    assert ours.description.classes == ("road", "car", "sky")
    with torch.no_grad():
        expected = network(IMAGES)[:, [0, 2, 3]]
        torch.testing.assert_close(ours(IMAGES), expected, rtol=1e-5, atol=1e-6)
    convert(ours)
    result = Sampler(ours, ABNNPosterior.around(AffineLayout(ours), alpha=0.0), draws=2)(
        IMAGES[:1], keep_probabilities=True
    )
    torch.testing.assert_close(result.probabilities, expected[:1].softmax(1), rtol=0, atol=1e-5)
    noisy = Sampler(ours, ABNNPosterior.around(AffineLayout(ours), alpha=0.1), draws=2)(IMAGES[:1])
    assert noisy.scores["epistemic"].max() > 0


def test_numbers_name_outputs_that_a_label_map_has_not(theirs: Path) -> None:
    network, ours = imported(theirs, "19", "cityscapes", outputs=20)
    cityscapes = label_map("cityscapes")
    assert (ours.description.classes, ours.description.palette) == (cityscapes.classes, tuple(cityscapes.palette))
    with torch.no_grad():
        assert torch.equal(ours(IMAGES).argmax(1), network(IMAGES)[:, :19].argmax(1))
    assert json.loads((theirs / "model/network.json").read_text())["dropped_outputs"] == [19]


def test_a_first_output_that_has_no_name(theirs: Path) -> None:
    network, ours = imported(theirs, "0,2", "road,car")
    with torch.no_grad():
        torch.testing.assert_close(ours(IMAGES), network(IMAGES)[:, [1, 3]], rtol=1e-5, atol=1e-6)


def test_probabilities_are_seen_although_an_output_of_them_is_dropped(theirs: Path) -> None:
    with pytest.raises(InputError, match="probabilities"):
        imported(theirs, softmax=True)


@pytest.mark.parametrize(
    ("drop", "classes"),
    [("viod", NAMES), ("7", NAMES), (NAMES, NAMES), ("4", "road,void,car")],
)
def test_outputs_that_are_not_there_are_refused(theirs: Path, drop: str, classes: str) -> None:
    with pytest.raises(InputError, match=r"drop.classes"):
        imported(theirs, drop, classes)
    assert not (theirs / "model").exists()


@pytest.mark.parametrize("dropped", [[4], [1, 1], [-1]])
def test_a_damaged_record_is_refused(theirs: Path, dropped: list[int]) -> None:
    _, ours = imported(theirs)
    place = theirs / "model/network.json"
    digest = network_sha256(ours.body, replace(ours.description, dropped_outputs=(1,)))
    content = json.loads(place.read_text()) | {"dropped_outputs": dropped, "sha256": digest}
    place.write_text(json.dumps(content))
    with pytest.raises(InputError, match="dropped outputs"):
        load_network(theirs / "model")
