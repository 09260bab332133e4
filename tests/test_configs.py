"""Every configuration of the repository: it parses, its network builds, and it runs a step in its
layout.
"""

import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import torchvision
import yaml

from segunc.data.labels import label_map
from segunc.networks import NetworkDescription, build_network
from segunc.posteriors.methods import METHODS
from segunc.posteriors.model import load_model
from segunc.training.base import _build_to_train
from segunc.training.config import FinetuneConfig, FitConfig, TrainConfig, parse_config
from tests.conftest import Job
from tests.data import miniatures
from tests.verbs.processes import succeed

REPOSITORY = Path(__file__).resolve().parents[1]
FILES = sorted(
    [*(REPOSITORY / "configs").glob("*.yaml"), *(REPOSITORY / "segunc" / "verbs").glob("*.yaml")]
)


def method_of(path: Path) -> str | None:
    """The fine-tuning method whose section a configuration has, or None."""
    keys = yaml.safe_load(path.read_text(encoding="utf-8"))
    return next((name for name, method in METHODS.items() if method.key in keys), None)


def base_of(path: Path) -> Path:
    """The training configuration that a fine-tuning one belongs to: toy_swag.yaml to toy.yaml."""
    name = path.name.replace("finetune", "train")
    return path.with_name(name if name != path.name else f"{path.stem.partition('_')[0]}.yaml")


SMALL = {
    "abnn": ["--abnn.alpha", 0.1, "--abnn.max_steps", 1, "--abnn.epochs", 1],
    "hmc": ["--hmc.warmup", 1, "--hmc.samples", 2],
    "laplace": ["--laplace.images", 8],
    "mc-dropout": [],
    "mcbn": ["--mcbn.batches", 2, "--mcbn.batch_size", 1],
    "sghmc": ["--sghmc.cycle_steps", 2, "--sghmc.states_per_cycle", 1],
    "sgld": ["--sgld.cycle_steps", 2, "--sgld.states_per_cycle", 1],
    "swag": ["--swag.burn_in", 0, "--swag.collect_every", 1, "--swag.epochs", 3],
    "variational": ["--variational.max_steps", 1],
}
"""What makes a run of each method a matter of a few steps."""
CHAINS = ("hmc", "sghmc", "sgld")
"""They do not run in Lightning's Trainer, and refuse its settings."""


def parse(path: Path) -> FinetuneConfig[Any]:
    return parse_config(FinetuneConfig, path, [], METHODS[str(method_of(path))].config)


TRAIN = [path for path in FILES if method_of(path) is None]
FIT = [path for path in FILES if path not in TRAIN and METHODS[str(method_of(path))].finished]
FINETUNE = [path for path in FILES if path not in TRAIN + FIT]


def test_there_are_configurations_of_every_kind() -> None:
    made = {method_of(path) for path in FINETUNE + FIT}
    assert made == set(METHODS) - {"ensemble"}, "a configuration for each method that has settings"


@pytest.mark.parametrize("path", TRAIN, ids=lambda path: path.name)
def test_the_network_of_a_training_configuration_builds(path: Path) -> None:
    config = parse_config(TrainConfig, path, [])
    network = config.network
    more = {"options": dict(network.options), "inference_size": network.inference_size}
    classes = label_map(config.data["dataset"]).classes
    build_network(NetworkDescription(network.architecture, network.encoder, classes, **more))
    assert config.trainer["max_epochs"] > 0


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """The addresses that anything connects to or looks up, all of which fail."""
    asked = []

    def refuse(*address: Any, **_: Any) -> None:
        asked.append(address)  # whoever asks may catch the error
        raise OSError("no connection")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    return asked


@pytest.mark.parametrize("path", FINETUNE + FIT, ids=lambda path: path.name)
def test_reading_a_configuration_opens_no_connection(
    path: Path, connections: list[tuple[Any, ...]]
) -> None:
    kind = FitConfig if path in FIT else FinetuneConfig
    method = METHODS[str(method_of(path))]
    parse_config(kind, path, [], method.config, data=method.data)
    assert connections == []


@pytest.mark.parametrize("path", TRAIN, ids=lambda path: path.name)
def test_a_network_without_downloaded_weights_is_built_without_a_connection(
    path: Path, connections: list[tuple[Any, ...]]
) -> None:
    config = parse_config(TrainConfig, path, ["--network.encoder_weights", "none"])
    network = _build_to_train(config.network, label_map(config.data["dataset"]))
    assert network.description.num_classes > 1
    assert connections == []


@pytest.mark.parametrize("path", FINETUNE, ids=lambda path: path.name)
def test_a_finetuning_configuration_fits_the_one_of_its_base(path: Path) -> None:
    tune, train = parse(path).data, parse_config(TrainConfig, base_of(path), []).data
    assert isinstance(tune, Mapping)
    assert all(tune[key] == train[key] for key in ("dataset", "crop", "scale"))


def test_the_demo_runs_with_the_toy_configurations() -> None:
    configs, commands = REPOSITORY / "configs", REPOSITORY / "segunc" / "verbs"
    named = {
        "train": "toy",
        "finetune": "toy_abnn",
        "features": "toy_features",
        "anomaly": "toy_anomaly",
    }
    assert {path.name for path in commands.glob("*.yaml")} == {
        f"demo_{shipped}.yaml" for shipped in named
    }
    for shipped, ours in named.items():
        assert (configs / f"{ours}.yaml").read_bytes() == (
            commands / f"demo_{shipped}.yaml"
        ).read_bytes()


@pytest.mark.parametrize("name", ["camvid", "cityscapes", "toy"])
def test_the_configurations_of_a_base_run_a_step(name: str, tmp_path: Path) -> None:
    data = tmp_path / "data"
    splits = {"train": 2, "val": 1}
    (
        miniatures.camvid(data, splits)
        if name == "camvid"
        else miniatures.cityscapes(data, splits, name)
    )
    small = [
        "--data.root",
        data,
        "--data.crop [64,64] --data.batch_size 2 --data.workers 0 --device cpu",
    ]
    one_batch = ["--trainer.limit_train_batches 1"]
    train = [
        "--config",
        REPOSITORY / "configs" / f"{name}.yaml",
        "--out",
        tmp_path / "base",
        *small,
        *one_batch,
    ]
    if name == "cityscapes":  # the file that everybody has, with its classifier
        torch.save(
            torchvision.models.resnet50(weights=None).state_dict(), tmp_path / "resnet50.pth"
        )
        train += ["--network.encoder_weights", tmp_path / "resnet50.pth"]
    succeed(
        "train",
        *train,
        "--trainer.max_epochs",
        1,
        "--trainer.check_val_every_n_epoch",
        1,
        apart=True,
    )
    for path in FINETUNE:
        if base_of(path) != REPOSITORY / "configs" / f"{name}.yaml":
            continue
        method, out = str(method_of(path)), tmp_path / path.stem
        tune = ["--base", tmp_path / "base", "--config", path, "--out", out, *small, *SMALL[method]]
        tune += [] if method in CHAINS else one_batch
        succeed("finetune", "--method", method, *tune, apart=True)
        model = load_model(out)
        assert model.posterior.method == method
        options = parse(path).settings
        counts = [
            getattr(options, name)
            for name in ("members", "chains", "heads")
            if hasattr(options, name)
        ]
        assert model.posterior.members == (counts[0] if counts else 1)
        assert model.network.description.num_classes == label_map(name).num_classes


@pytest.mark.parametrize(
    "path", [path for path in FIT if path.parent.name == "configs"], ids=lambda path: path.name
)
def test_a_configuration_for_finished_models_runs(
    path: Path, overconfident: Job, tmp_path: Path
) -> None:
    method = method_of(path)
    words = ["--base", overconfident.abnn, "--config", path, "--out", tmp_path / "out"]
    words += (
        ["--data.dataset", "toy", "--data.root", overconfident.data]
        if METHODS[str(method)].data
        else []
    )
    if (
        method == "features" and "weights" in yaml.safe_load(path.read_text())[method]
    ):  # from the hub: random here
        torch.save(
            timm.create_model("tf_efficientnet_lite0").state_dict(), tmp_path / "encoder.pth"
        )
        words += ["--features.weights", tmp_path / "encoder.pth"]
    if method == "anomaly":  # a model without features
        words += ["--anomaly.parts", "[deterministic-energy,entropy]"]
    if method == "class-sets":  # four frames of val
        words += ["--class_sets.level", 0.2]
    if method == "distil":
        words += ["--distil.frames 1 --distil.epochs 1 --distil.draws 2"]
    succeed("finetune", "--method", method, *words, "--device", "cpu", apart=True)
    model = load_model(tmp_path / "out")
    if method in ("tta", "distil"):
        assert model.posterior.members == {"tta": 6, "distil": 2}[method]
    else:
        names = {
            "temperature": "calibration",
            "features": "features",
            "anomaly": "anomaly",
            "class-sets": "class_sets",
        }
        assert names[str(method)] in model.attachments


def test_a_folder_may_be_called_as_a_section_is_and_the_word_none_is_none(tmp_path: Path) -> None:
    for words in (["--data.root", "data"], ["--data.root=data"]):
        assert (
            parse_config(TrainConfig, None, ["--data.dataset", "toy", *words]).data["root"]
            == "data"
        )
    (tmp_path / "a.yaml").write_text(
        "data: {dataset: toy, root: data}\nnetwork: {encoder_weights: none}\n"
    )
    written = parse_config(TrainConfig, tmp_path / "a.yaml", [])
    typed = parse_config(
        TrainConfig, REPOSITORY / "configs/camvid.yaml", ["--network.encoder_weights", "none"]
    )
    assert written.network.encoder_weights is typed.network.encoder_weights is None
