"""Networks on disk: what is saved comes back, and what is wrong is refused without executing
anything.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from segunc.core.errors import InputError
from segunc.networks import (
    NetworkDescription,
    SegmentationNetwork,
    build_network,
    load_network,
    save_network,
)
from segunc.networks.model_folder import network_sha256, state_sha256
from segunc.networks.weights import load_foreign, load_weights, read_state

DESCRIPTION = NetworkDescription(
    "FPN",
    "mobilenet_v2",
    ("road", "car", "sky"),
    palette=((128, 64, 128), (0, 0, 142), (70, 130, 180)),
    options={"decoder_pyramid_channels": 32, "decoder_segmentation_channels": 32},
    mean=(0.4, 0.5, 0.6),
    std=(0.2, 0.25, 0.3),
    inference_size=(64, 96),
    provenance={"dataset": "none", "steps": 0},
)


@pytest.fixture(scope="module")
def network() -> SegmentationNetwork:
    torch.manual_seed(1)
    return build_network(DESCRIPTION).eval()


@pytest.fixture
def folder(network: SegmentationNetwork, tmp_path: Path) -> Path:
    save_network(network, tmp_path / "model")
    return tmp_path / "model"


def test_a_saved_network_comes_back_bit_for_bit(
    network: SegmentationNetwork, tmp_path: Path
) -> None:
    digest = save_network(network, tmp_path / "model")
    again = load_network(tmp_path / "model")
    assert again.description == DESCRIPTION
    assert not again.training
    assert again.sha256 == digest == network_sha256(again.body, again.description)
    images = torch.rand(1, 3, 64, 64)
    with torch.inference_mode():
        assert torch.equal(again(images), network(images))
    assert sorted(p.name for p in (tmp_path / "model").iterdir()) == [
        "network.json",
        "network.safetensors",
    ]


def edit_description(**changes: Any) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        path = folder / "network.json"
        content = {**json.loads(path.read_text()), **changes}
        path.write_text(json.dumps({k: v for k, v in content.items() if v != "REMOVE"}))

    return edit


def edit_weights(change: Callable[[dict[str, torch.Tensor]], Any]) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        state = load_file(folder / "network.safetensors")
        change(state)
        save_file(state, folder / "network.safetensors")

    return edit


def forged(edit: Callable[[Path], None]) -> Callable[[Path], None]:
    """An edit by somebody who writes the hash as well."""

    def edit_both(folder: Path) -> None:
        edit(folder)
        content = json.loads((folder / "network.json").read_text())
        described = NetworkDescription.from_json(
            {k: v for k, v in content.items() if k != "sha256"}, "forged"
        )
        edit_description(
            sha256=network_sha256(load_file(folder / "network.safetensors"), described)
        )(folder)

    return edit_both


BIAS = "segmentation_head.0.bias"


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (edit_description(classes="road"), "network.json: classes"),
        (edit_description(classes=[]), "1 to 255 classes"),
        (edit_description(palette=[[1, 2, 3]]), "a palette of 1 colours"),
        (
            edit_description(palette=[[128, 64, 256], [0, 0, 142], [70, 130, 180]]),
            "palette 256 is not a number",
        ),
        (edit_description(std=[0.2, 0.2, 0.0]), "std 0.0 is not a number above 0"),
        *((edit_description(inference_size=[size, 64]), "inference_size") for size in (0, 99999)),
        (edit_description(divisor=0), "divisor 0"),
        *(
            (edit_description(dropped_outputs=numbers), "dropped outputs")
            for numbers in ([4], [1, 1], [-1])
        ),
        (edit_description(format=1), "not of format"),
        # What decides how a network is used is bound as its weights are.
        (edit_description(palette=[[128, 64, 128], [0, 0, 142], [70, 130, 181]]), "has the hash"),
        (
            edit_description(options={"decoder_channels": 10**9}),
            "has the hash",
        ),  # before it is built
        (edit_description(sha256="REMOVE"), "records None"),
        (edit_weights(lambda state: state[BIAS].add_(1e-4)), "has the hash"),
        (
            forged(edit_description(classes=["road", "car"], palette=[])),
            "do not fit the network.*another shape",
        ),
        (forged(edit_description(options={"a": "b" * 9})), "has no option 'a'"),
        (forged(edit_weights(lambda state: state[BIAS].fill_(torch.nan))), f"{BIAS} holds NaN"),
        (forged(edit_weights(lambda state: state.pop(BIAS))), "1 missing"),
        (
            forged(edit_weights(lambda state: state.update(extra=torch.zeros(1)))),
            r"1 unknown \(e.g. extra\)",
        ),
        (
            lambda folder: (folder / "network.safetensors").write_bytes(b"\xff" * 8 + bytes(99)),
            "is damaged",
        ),
        (lambda folder: (folder / "network.safetensors").unlink(), "does not exist"),
        (lambda folder: (folder / "network.json").unlink(), "holds no model"),
        (lambda folder: (folder / "posterior.json").write_text("{}"), "holds a Bayesian model"),
    ],
)
def test_a_wrong_model_folder_is_refused(
    folder: Path, damage: Callable[[Path], Any], said: str
) -> None:
    damage(folder)
    with pytest.raises(InputError, match=said) as caught:
        load_network(folder)
    assert "\n" not in str(caught.value)


def test_a_description_asks_for_no_more_weights_than_its_file_holds(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hash fits, as a stranger's would. A real build of it would take some 30 GB."""
    forged(edit_description(options={"decoder_pyramid_channels": 30_000}))(folder)
    built: list[torch.device] = []

    def build(description: NetworkDescription) -> SegmentationNetwork:
        built.append(torch.get_default_device())
        return build_network(description)

    monkeypatch.setattr("segunc.networks.model_folder.build_network", build)
    with pytest.raises(InputError, match=r"describes a network of [\d,]+ weights, and network.saf"):
        load_network(folder)
    assert built == [torch.device("meta")]


def test_the_hash_sees_every_weight_and_all_of_a_description_but_where_it_came_from(
    network: SegmentationNetwork,
) -> None:
    def digest(**changes: Any) -> str:
        return network_sha256(network.body, replace(DESCRIPTION, **changes))

    assert digest(provenance={"date": "today"}) == digest()
    for change in ({"mean": (0.4, 0.5, 0.7)}, {"classes": ("road", "van", "sky")}, {"palette": ()}):
        assert digest(**change) != digest(), change
    layers = [torch.nn.BatchNorm2d(3) for _ in range(3)]
    layers[1].running_var[1] += 1e-6
    layers[2].double()
    assert len({state_sha256(layer) for layer in (*layers, torch.nn.Sequential(layers[0]))}) == 4


def test_nan_is_not_saved(network: SegmentationNetwork, tmp_path: Path) -> None:
    damaged = build_network(DESCRIPTION)
    with torch.no_grad():
        next(damaged.parameters()).view(-1)[0] = float("inf")
    with pytest.raises(InputError, match="NaN or infinite"):
        save_network(damaged, tmp_path / "model")
    assert not (tmp_path / "model" / "network.safetensors").exists()


def test_a_checkpoint_of_lightning_in_half_precision_loads(
    network: SegmentationNetwork, tmp_path: Path
) -> None:
    state = {
        f"network.body.{k}": v.half() if v.is_floating_point() else v
        for k, v in network.body.state_dict().items()
    }
    torch.save(
        {"state_dict": state | {"loss.weight": torch.ones(3)}, "global_step": 7},
        tmp_path / "foreign.ckpt",
    )
    torch.manual_seed(9)
    other = build_network(DESCRIPTION)
    load_weights(other.body, tmp_path / "foreign.ckpt")
    for name, value in network.body.state_dict().items():
        torch.testing.assert_close(other.body.state_dict()[name], value, rtol=1e-3, atol=1e-4)


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


def net(seed: int, classes: int = 3) -> nn.Module:
    torch.manual_seed(seed)
    return Net(classes).eval()


def state(seed: int = 0, prefix: str = "", **changes: Callable[[Tensor], Tensor]) -> State:
    """Their weights; ``changes`` by the last part of a name."""
    items = net(seed).state_dict().items()
    return {
        prefix + name: changes.get(name.rpartition(".")[2], lambda t: t)(value)
        for name, value in items
    }


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
        {"state_dict": state(prefix="model._orig_mod.module.")},
        {
            name.replace(".", ".module.", 1): value
            for name, value in state(prefix="_orig_mod.").items()
        },
        {"model": state(), "state_dict": state()},  # the same twice
        {"student": state(), "teacher": net(1, classes=5).state_dict()},  # of another size
        {
            name: value
            for name, value in state().items()
            if not name.endswith("num_batches_tracked")
        },
        state(num_batches_tracked=lambda t: t.float()),
        {"net": state(), "seen": torch.zeros(1).expand(9)},  # a view, which the file holds once
    ],
)
def test_what_fits_is_taken(content: Any, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "weights.pt")
    ours = net(9)
    load_weights(ours, tmp_path / "weights.pt")
    with torch.no_grad():
        assert torch.equal(ours(IMAGES), net(0)(IMAGES))


@pytest.mark.parametrize(
    ("content", "keys"),
    [
        ({"state_dict": state(0), "state_dict_ema": state(1)}, ("state_dict", "state_dict_ema")),
        ({**state(0), **state(1, "teacher.")}, ("", "teacher")),
    ],
)
def test_one_of_several_is_chosen_by_its_key(
    content: Any, keys: tuple[str, ...], tmp_path: Path
) -> None:
    torch.save(content, tmp_path / "weights.pt")
    weights = read_state(tmp_path / "weights.pt")
    with pytest.raises(InputError, match="`weights_key`") as caught:
        load_foreign(net(9), weights, "weights.pt")
    assert all(f"'{key}'" in str(caught.value) for key in keys)
    for seed, key in enumerate(keys):
        ours = net(9)
        load_foreign(ours, weights, "weights.pt", key)
        with torch.no_grad():
            assert torch.equal(ours(IMAGES), net(seed)(IMAGES))
    with pytest.raises(InputError, match="nothing_here"):
        load_foreign(net(9), weights, "weights.pt", "nothing_here")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"weight": lambda t: (t * 50).round().to(torch.int8)},
            "stage_0.0.weight is of type torch.int8",
        ),
        ({"weight": lambda t: t.to(torch.float8_e4m3fn)}, "float8"),
        ({"weight": lambda t: t.to_sparse()}, "sparse"),
        ({"running_var": lambda t: t * float("nan")}, "running_var holds NaN"),
    ],
)
def test_numbers_that_are_no_weights_are_refused_by_name(change: Any, said: str) -> None:
    ours = net(9)
    before = {name: value.clone() for name, value in ours.state_dict().items()}
    with pytest.raises(InputError, match=said):
        load_foreign(ours, state(**change), "weights.pt")
    assert all(torch.equal(value, before[name]) for name, value in ours.state_dict().items())


def test_what_is_left_out_is_counted_and_another_network_is_refused_by_its_names() -> None:
    weights = state(prefix="net.") | {"net.aux.0.bias": torch.ones(2), "loss.weight": torch.ones(3)}
    (note,) = load_foreign(net(9), weights, "weights.pt")
    assert note == (
        "weights.pt: took the weights under 'net'; left out 2 tensors, e.g. aux.0.bias, loss.weight"
    )
    with pytest.raises(
        InputError,
        match=r"head.weight: \(4, 20, 2, 2\) instead of \(4, 3, 2, 2\).*number of classes",
    ):
        load_foreign(net(9), net(0, classes=20).state_dict(), "weights.pt")
    for name in ("stage.1.0.weight", "head.more"):  # more layers in a part that the network has
        with pytest.raises(InputError, match=f"1 unknown .*{name}"):
            load_foreign(net(9), state() | {name: torch.ones(4)}, "weights.pt")


def test_files_of_other_kinds_say_what_they_are_and_one_that_holds_itself_ends(
    tmp_path: Path,
) -> None:
    path = tmp_path / "weights.pth"
    torch.save(net(0), path)  # the whole pickled module
    with pytest.raises(InputError, match=r"Net.*weights_only=False"):
        read_state(path)
    torch.jit.trace(net(0), IMAGES).save(str(path))
    with pytest.raises(InputError, match="TorchScript"):
        read_state(path)
    content: dict[str, Any] = {"state_dict": state()}
    content["again"] = content
    torch.save(content, tmp_path / "weights.pt")
    assert set(read_state(tmp_path / "weights.pt")) == {f"state_dict.{name}" for name in state()}
