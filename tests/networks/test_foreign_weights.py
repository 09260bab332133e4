"""Weights as other versions of a network, and other ways of saving, name them."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_model
from torch import Tensor, nn
from torch.nn.utils import parametrizations, weight_norm

from segunc.core.errors import InputError, NoteWarning
from segunc.networks import NetworkDescription
from segunc.networks.model_folder import KINDS, load_network, save_network
from segunc.networks.network import SegmentationNetwork
from segunc.networks.weights import load_foreign, read_state

IMAGES = torch.rand(1, 3, 4, 4, generator=torch.Generator().manual_seed(0))


class Tied(nn.Sequential):
    """Two layers with one weight."""

    def __init__(self) -> None:
        super().__init__(nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1))
        self[1].weight = self[0].weight


def test_a_file_that_names_tied_weights_in_its_metadata_loads(tmp_path: Path) -> None:
    theirs = Tied()
    ours = Tied()
    save_model(theirs, str(tmp_path / "tied.safetensors"))
    load_foreign(ours, read_state(tmp_path / "tied.safetensors"), "the file")
    assert torch.equal(ours(IMAGES), theirs(IMAGES))


def normed(norm: Any) -> nn.Module:
    network = nn.Sequential(nn.Conv2d(3, 4, 1))
    norm(network[0])
    return network


@pytest.mark.filterwarnings("ignore:.*weight_norm. is deprecated")
@pytest.mark.parametrize("prefix", ["", "module.", "state.net."])
@pytest.mark.parametrize(
    ("their_norm", "our_norm"),
    [
        (parametrizations.weight_norm, weight_norm),
        (weight_norm, parametrizations.weight_norm),
    ],
    ids=["theirs", "ours"],
)
def test_weight_norm_has_two_spellings(their_norm: Any, our_norm: Any, prefix: str) -> None:
    theirs = normed(their_norm)
    ours = normed(our_norm)
    state = {prefix + name: tensor for name, tensor in theirs.state_dict().items()}
    load_foreign(ours, state, "the file")
    torch.testing.assert_close(ours(IMAGES), theirs(IMAGES))


class Indexed(nn.Module):
    """Makes an index of its size, which it no longer stores."""

    def __init__(self, size: int = 9) -> None:
        super().__init__()
        self.block = nn.Module()
        self.block.weight = nn.Parameter(torch.rand(3))
        self.block.register_buffer("index", torch.arange(size), persistent=False)


def test_a_buffer_that_the_network_makes_itself_is_left_out() -> None:
    ours = Indexed()
    state = {"block.weight": torch.ones(3), "block.index": torch.arange(9)}
    notes = load_foreign(ours, state, "the file")
    assert "left out 1 tensor, e.g. block.index" in notes[0]
    assert torch.equal(ours.block.weight, torch.ones(3))


@pytest.mark.parametrize("index", [torch.arange(9).flip(0), torch.arange(4)])
def test_a_buffer_with_other_values_is_of_another_network(index: Tensor) -> None:
    state = {"block.weight": torch.ones(3), "block.index": index}
    with pytest.raises(InputError, match=r"block\.index differs from the one that the network"):
        load_foreign(Indexed(), state, "the file")


def test_an_index_that_the_network_does_not_know_is_left_out() -> None:
    ours = nn.ModuleDict({"block": nn.LayerNorm(3)})
    state = {**ours.state_dict(), "block.relative_position_index": torch.arange(9)}
    notes = load_foreign(ours, state, "the file")
    assert "left out 1 tensor" in notes[0]


class Extra(nn.Sequential):
    """Stores a version beside its weights."""

    def __init__(self) -> None:
        super().__init__(nn.Conv2d(3, 2, 1))
        self.version = 1

    def get_extra_state(self) -> dict[str, int]:
        return {"version": self.version}

    def set_extra_state(self, state: dict[str, int]) -> None:
        self.version = state["version"]


def test_a_module_with_extra_state_is_saved_and_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(KINDS._entries, "extra", lambda description: (Extra(), 1))
    description = NetworkDescription("extra", "", ("a", "b"), kind="extra")
    network = SegmentationNetwork(Extra(), description, stride=1)
    with pytest.warns(NoteWarning, match=r"more than tensors \(_extra_state\)"):
        save_network(network, tmp_path)
    again = load_network(tmp_path)
    assert torch.equal(again(IMAGES), network(IMAGES))
    assert again.body.version == 1


def test_extra_state_in_a_file_is_left_out() -> None:
    theirs = Extra()
    torch_file = {"0.weight": theirs[0].weight, "0.bias": theirs[0].bias}
    state = {**torch_file, "_extra_state.scale": torch.ones(2)}
    notes = load_foreign(Extra(), state, "the file")
    assert "left out 1 tensor" in notes[0]
