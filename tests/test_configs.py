"""Every configuration of the repository: it parses, its network builds, and it runs a step in its layout."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from segunc.bayes.files import load_model
from segunc.data.labels import label_map
from segunc.networks import NetworkDescription, build_network
from segunc.training.config import parse_finetune_config, parse_train_config
from tests.commands.processes import succeed
from tests.conftest import Job
from tests.data import miniatures

REPOSITORY = Path(__file__).resolve().parents[1]
FILES = sorted([*(REPOSITORY / "configs").glob("*.yaml"), *(REPOSITORY / "segunc" / "commands").glob("*.yaml")])


METHODS = {"temperature": "temperature", "max_logit": "standardized-max-logit"}
"""Group of settings -> method, for what is fitted on a finished model."""


def groups(path: Path) -> set[str]:
    return set(yaml.safe_load(path.read_text(encoding="utf-8")))


FINETUNE = [path for path in FILES if "abnn" in groups(path)]
FIT = [path for path in FILES if groups(path) & set(METHODS)]
TRAIN = [path for path in FILES if path not in FINETUNE + FIT]


def test_there_are_configurations_of_every_kind() -> None:
    assert {"camvid.yaml", "cityscapes.yaml", "toy.yaml"} <= {path.name for path in TRAIN}
    assert {"camvid_abnn.yaml", "cityscapes_abnn.yaml", "toy_abnn.yaml"} <= {path.name for path in FINETUNE}
    assert {group for path in FIT for group in groups(path)} >= set(METHODS)


@pytest.mark.parametrize("path", TRAIN, ids=lambda path: path.name)
def test_the_network_of_a_training_configuration_builds(path: Path) -> None:
    config = parse_train_config(path, [])
    network = config.network
    build_network(
        NetworkDescription(
            network.architecture,
            network.encoder,
            label_map(config.data.dataset).classes,
            options=dict(network.options),
            inference_size=network.inference_size,
        )
    )
    assert config.trainer["max_epochs"] > 0


@pytest.mark.parametrize("path", FINETUNE, ids=lambda path: path.name)
def test_a_finetuning_configuration_fits_the_one_of_its_base(path: Path) -> None:
    tune = parse_finetune_config(path, [])
    base = path.with_name(path.name.replace("_abnn", "").replace("finetune", "train"))
    train = parse_train_config(base, [])
    assert (tune.data.dataset, tune.data.crop, tune.data.scale) == (
        train.data.dataset,
        train.data.crop,
        train.data.scale,
    )


@pytest.mark.parametrize(
    ("ours", "shipped"), [("toy.yaml", "demo_train.yaml"), ("toy_abnn.yaml", "demo_finetune.yaml")]
)
def test_the_demo_runs_with_the_toy_configurations(ours: str, shipped: str) -> None:
    configs, commands = REPOSITORY / "configs", REPOSITORY / "segunc" / "commands"
    assert (configs / ours).read_bytes() == (commands / shipped).read_bytes()


@pytest.mark.parametrize("name", ["camvid", "cityscapes", "toy"])
def test_the_pair_of_configurations_runs_a_step(name: str, tmp_path: Path) -> None:
    data = tmp_path / "data"
    splits = {"train": 2, "val": 1}
    miniatures.camvid(data, splits) if name == "camvid" else miniatures.cityscapes(data, splits, name)
    small = ["--data.root", data, "--data.crop", "[64,64]", "--data.batch_size", 2, "--data.workers", 0]
    small += ["--device", "cpu", "--trainer.limit_train_batches", 1]
    train = ["--config", REPOSITORY / "configs" / f"{name}.yaml", "--out", tmp_path / "base", *small]
    succeed("train", *train, "--trainer.max_epochs", 1, "--trainer.check_val_every_n_epoch", 1)
    tune = ["--base", tmp_path / "base", "--config", REPOSITORY / "configs" / f"{name}_abnn.yaml"]
    tune += ["--out", tmp_path / "abnn", *small]
    succeed("finetune", *tune, "--abnn.alpha", 0.1, "--abnn.max_steps", 1, "--abnn.epochs", 1)
    model = load_model(tmp_path / "abnn")
    assert model.posterior.members == 3
    assert model.network.description.num_classes == label_map(name).num_classes


@pytest.mark.parametrize("path", FIT, ids=lambda path: path.name)
def test_a_configuration_for_finished_models_runs(path: Path, overconfident: Job, tmp_path: Path) -> None:
    (method,) = (METHODS[group] for group in groups(path) & set(METHODS))
    words = (
        "--base",
        overconfident.abnn,
        "--config",
        path,
        "--data.root",
        overconfident.data,
        "--out",
        tmp_path / "out",
    )
    succeed("finetune", "--method", method, *words, "--device", "cpu")
    model = load_model(tmp_path / "out")
    assert (model.calibration if method == "temperature" else model.max_logit_statistics) is not None
