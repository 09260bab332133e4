"""Weights of checkpoints as people have them: those that fit are taken, several are a question, and what is no weight is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from segunc import InputError
from segunc.networks.weights import load_foreign, load_weights, read_state

State = dict[str, Tensor]


class Net(nn.Module):
    """Has the names ``stage_0`` and ``stage.0``, which differ by a dot alone."""

    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.stage_0 = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4))
        self.stage = nn.ModuleList([nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4))])
        self.head = nn.ConvTranspose2d(4, classes, 2, 2)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.stage[0](self.stage_0(images)))
        return logits


def network(seed: int, classes: int = 3) -> nn.Module:
    torch.manual_seed(seed)
    return Net(classes).eval()


def state(seed: int = 0, prefix: str = "", **changes: Callable[[Tensor], Tensor]) -> State:
    """Their weights; ``changes`` by the last part of a name."""
    items = network(seed).state_dict().items()
    return {prefix + name: changes.get(name.rpartition(".")[2], lambda t: t)(value) for name, value in items}


IMAGES = torch.rand(1, 3, 8, 8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    "content",
    [
        state(),
        {"net": state()},
        {
            "epoch": 3,
            "params": {"model": state(prefix="module.")},
            "optimizer": {"state": {0: {"exp_avg": torch.ones(4)}}},
        },
        [{"weights": state()}, 5],
        {"state_dict": state(prefix="model._orig_mod.module.")},
        {name.replace(".", ".module.", 1): value for name, value in state(prefix="_orig_mod.").items()},
        {"model": state(), "state_dict": state()},  # the same twice
        {"student": state(), "teacher": network(1, classes=5).state_dict()},  # of another size
        {name: value for name, value in state().items() if not name.endswith("num_batches_tracked")},
        state(num_batches_tracked=lambda t: t.float()),
    ],
    ids=[
        "plain",
        "net",
        "nested",
        "list",
        "compiled",
        "in between",
        "twice",
        "teacher",
        "no counters",
        "counters as floats",
    ],
)
def test_what_fits_is_taken(content: Any, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "weights.pt")
    ours = network(9)
    load_weights(ours, tmp_path / "weights.pt")
    with torch.no_grad():
        assert torch.equal(ours(IMAGES), network(0)(IMAGES))


@pytest.mark.parametrize(
    ("content", "keys"),
    [
        ({"state_dict": state(0), "state_dict_ema": state(1)}, ("state_dict", "state_dict_ema")),
        (
            {"state_dict": {**state(0, "model."), **state(1, "ema_model.")}},
            ("state_dict.model", "state_dict.ema_model"),
        ),
        ({**state(0), **state(1, "teacher.")}, ("", "teacher")),
        ({"nets": [state(0), state(1)]}, ("nets.0", "nets.1")),
    ],
    ids=["ema", "prefixes", "one without prefix", "list"],
)
def test_one_of_several_is_chosen_by_its_key(content: Any, keys: tuple[str, ...], tmp_path: Path) -> None:
    torch.save(content, tmp_path / "weights.pt")
    weights = read_state(tmp_path / "weights.pt")
    with pytest.raises(InputError, match="`weights_key`") as caught:
        load_foreign(network(9), weights, "weights.pt")
    assert all(f"'{key}'" in str(caught.value) for key in keys)
    for seed, key in enumerate(keys):
        ours = network(9)
        load_foreign(ours, weights, "weights.pt", key)
        with torch.no_grad():
            assert torch.equal(ours(IMAGES), network(seed)(IMAGES))
    with pytest.raises(InputError, match="nothing_here"):
        load_foreign(network(9), weights, "weights.pt", "nothing_here")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"weight": lambda t: (t * 50).round().to(torch.int8)}, "stage_0.0.weight is of type torch.int8"),
        ({"weight": lambda t: t.to(torch.float8_e4m3fn)}, "float8"),
        ({"weight": lambda t: t.to_sparse()}, "sparse"),
        ({"running_var": lambda t: t * float("nan")}, "running_var holds NaN"),
        ({"bias": lambda t: t > 0}, "bias is of type torch.bool"),
    ],
)
def test_numbers_that_are_no_weights_are_refused_by_name(change: Any, said: str) -> None:
    ours = network(9)
    before = {name: value.clone() for name, value in ours.state_dict().items()}
    with pytest.raises(InputError, match=said):
        load_foreign(ours, state(**change), "weights.pt")
    assert all(torch.equal(value, before[name]) for name, value in ours.state_dict().items())


def test_what_is_left_out_is_counted() -> None:
    weights = state(prefix="net.") | {"net.aux.0.bias": torch.ones(2), "loss.weight": torch.ones(3)}
    (note,) = load_foreign(network(9), weights, "weights.pt")
    assert note == "weights.pt: took the weights under 'net'; left out 2 tensors, e.g. aux.0.bias, loss.weight"


@pytest.mark.parametrize("name", ["stage.1.0.weight", "head.more"])
def test_more_layers_in_a_part_that_the_network_has_are_another_network(name: str) -> None:
    with pytest.raises(InputError, match=f"1 unknown .*{name}"):
        load_foreign(network(9), state() | {name: torch.ones(4)}, "weights.pt")


def test_other_classes_are_named_with_both_numbers() -> None:
    with pytest.raises(InputError, match=r"head.weight: \(4, 20, 2, 2\) instead of \(4, 3, 2, 2\).*number of classes"):
        load_foreign(network(9), network(0, classes=20).state_dict(), "weights.pt")


def test_files_of_other_kinds_say_what_they_are(tmp_path: Path) -> None:
    path = tmp_path / "weights.pth"
    torch.save(network(0), path)  # the whole pickled module
    with pytest.raises(InputError, match=r"Net.*weights_only=False"):
        read_state(path)
    torch.jit.trace(network(0), IMAGES).save(str(path))
    with pytest.raises(InputError, match="TorchScript"):
        read_state(path)


def test_a_file_that_holds_itself_ends(tmp_path: Path) -> None:
    content: dict[str, Any] = {"state_dict": state()}
    content["again"] = content
    torch.save(content, tmp_path / "weights.pt")
    assert set(read_state(tmp_path / "weights.pt")) == {f"state_dict.{name}" for name in state()}
