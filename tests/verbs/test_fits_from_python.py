"""Every method by ``fit`` and by the command line: the same model, to the byte."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import segunc
from segunc.posteriors.methods import METHODS
from segunc.posteriors.settings import MethodSettings
from tests.conftest import Job
from tests.verbs.processes import succeed

SETTINGS: dict[str, dict[str, Any]] = {
    "abnn": {"members": 2, "epochs": 1, "random_classes": 2},
    "anomaly": {"parts": ["msp", "entropy"], "weights": [1, 2], "frames": 2, "draws": 2},
    "class-sets": {"frames": 2, "draws": 2, "level": 0.4},
    "distil": {"frames": 2, "epochs": 1, "head_channels": 8, "draws": 2},
    "features": {"frames": 2, "layers": ["body.encoder.features.3"]},
    "hmc": {"frames": 1, "chains": 1, "samples": 2, "warmup": 1, "trajectory": 0.001},
    "laplace": {"images": 8, "samples": 2},
    "mc-dropout": {"p": 0.1},
    "mcbn": {"batches": 2, "batch_size": 3},
    "sghmc": {"frames": 4, "cycles": 1, "cycle_steps": 4, "states_per_cycle": 2},
    "sgld": {"frames": 4, "cycles": 1, "cycle_steps": 4, "states_per_cycle": 2},
    "swag": {"epochs": 2, "burn_in": 0, "collect_every": 1, "rank": 2},
    "temperature": {"frames": 2, "pixels": 50, "draws": 2},
    "tta": {"scales": [1.0], "flip": True},
    "variational": {"epochs": 1},
}
"""A small run of each method."""
OF_TRAINING = ("checkpoints/", "logs/", "tensorboard/")
"""Folders of a training, which a fit in memory does not keep."""
SHORT = (",", ":")  # a word of the command line has no spaces here
TIMES = {"date", "seconds", "train_seconds", "teacher_seconds", "record_sha256", "history.json"}
"""What differs between two equal runs."""


def without_times(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: without_times(inner) for key, inner in value.items() if key not in TIMES}
    if isinstance(value, list):
        return [without_times(inner) for inner in value]
    return value


def contents(folder: Path) -> dict[str, Any]:
    """What a model folder holds: bytes of tensors, records without their times."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.suffix == ".safetensors":
            found[name] = path.read_bytes()
        elif path.name == "history.json" or name.startswith(OF_TRAINING):
            continue
        elif path.suffix == ".json":
            found[name] = without_times(json.loads(path.read_text()))
        elif path.suffix == ".yaml":
            found[name] = yaml.safe_load(path.read_text())
    return found


def data_of(job: Job) -> dict[str, Any]:
    return {
        "dataset": "toy",
        "root": str(job.data),
        "crop": [64, 64],
        "batch_size": 4,
    }


def words_of(method: str, settings: Mapping[str, Any], job: Job) -> list[str]:
    values = {f"{METHODS[method].key}.{name}": value for name, value in settings.items()}
    if METHODS[method].data:
        values |= {f"data.{name}": value for name, value in data_of(job).items()}
    if trains_with_lightning(method):
        values["trainer.precision"] = "32-true"
    words = []
    for name, value in values.items():
        text = value if isinstance(value, str) else json.dumps(value, separators=SHORT)
        words.append(f"--{name}={text}")
    return words


def trains_with_lightning(method: str) -> bool:
    config = METHODS[method].config
    return not METHODS[method].finished and getattr(config, "uses_trainer", True)


@pytest.mark.parametrize("method", sorted(SETTINGS))
def test_a_fit_and_the_command_make_the_same_model(
    overconfident: Job, tmp_path: Path, method: str
) -> None:
    assert_the_same_model(overconfident, tmp_path, method, SETTINGS[method])


def test_scales_of_layers_are_those_of_the_command(overconfident: Job, tmp_path: Path) -> None:
    settings = {"alpha_by": "layer", "alpha_frames": 2, "alpha_steps": 2}
    assert_the_same_model(overconfident, tmp_path, "abnn", settings)


def assert_the_same_model(
    job: Job, tmp_path: Path, method: str, settings: Mapping[str, Any]
) -> None:
    succeed(
        f"finetune --device cpu --method {method} --base",
        job.base,
        "--out",
        tmp_path / "command",
        *words_of(method, settings, job),
    )
    options: dict[str, Any] = {"device": "cpu"}
    if trains_with_lightning(method):
        options["trainer"] = {"precision": "32-true"}
    before = torch.random.get_rng_state()
    data = data_of(job) if METHODS[method].data else None
    made: MethodSettings = METHODS[method].config(**settings)
    fitted = made.fit(segunc.load(job.base), data, **options)
    assert torch.equal(torch.random.get_rng_state(), before), "the caller's random numbers stay"
    fitted.save(tmp_path / "python")
    by_command = contents(tmp_path / "command")
    assert contents(tmp_path / "python") == by_command
    again = segunc.load(tmp_path / "python")
    assert again.posterior_sha256 == fitted.posterior_sha256
    assert again.sha256 == fitted.sha256
    assert again.attachments == fitted.attachments


def test_every_method_is_compared() -> None:
    assert {*SETTINGS, "ensemble"} == {*METHODS} & {*SETTINGS, "ensemble"}
    own = {name for name in METHODS if METHODS[name].fit.__module__.startswith("segunc.")}
    assert own == {*SETTINGS, "ensemble"}


def test_an_ensemble_of_models_is_that_of_their_folders(
    trained: Job, finetuned: Job, tmp_path: Path
) -> None:
    folders = [trained.base, finetuned.abnn]
    succeed("finetune --method ensemble --out", tmp_path / "command", "--base", *folders)
    models = [segunc.load(folder) for folder in folders]
    ensemble = METHODS["ensemble"].config().fit(models)
    ensemble.save(tmp_path / "python")
    assert contents(tmp_path / "python") == contents(tmp_path / "command")
    assert segunc.load(tmp_path / "python").posterior_sha256 == ensemble.posterior_sha256


def test_finetune_takes_a_model_and_settings(trained: Job, tmp_path: Path) -> None:
    settings = segunc.ABNN(members=2, statistics="frozen", alpha=0.2)
    result = segunc.finetune(
        base=segunc.load(trained.base), settings=settings, out=tmp_path / "python", device="cpu"
    )
    succeed(
        "finetune --device cpu --abnn.members 2 --abnn.statistics frozen --abnn.alpha 0.2 --base",
        trained.base,
        "--out",
        tmp_path / "command",
    )
    assert contents(result.out) == contents(tmp_path / "command")
    (command,) = [
        entry["command"]
        for entry in json.loads((result.out / "history.json").read_text())["commands"][-1:]
    ]
    assert "--abnn.members 2 --abnn.alpha 0.2 --abnn.statistics frozen" in command


def test_settings_count_before_a_file_also_where_they_are_the_defaults(
    trained: Job, tmp_path: Path
) -> None:
    segunc.ABNN(members=3, statistics="frozen").save(tmp_path / "abnn.yaml")
    settings = segunc.ABNN(statistics="frozen")
    result = segunc.finetune(
        base=trained.base,
        settings=settings,
        config=tmp_path / "abnn.yaml",
        out=tmp_path / "out",
        device="cpu",
    )
    assert segunc.load(result.out).posterior.members == 1


def test_settings_of_one_method_under_the_name_of_another_are_refused(
    trained: Job, tmp_path: Path
) -> None:
    with pytest.raises(segunc.InputError, match="are of the method abnn, and `method` is swag"):
        segunc.finetune(
            base=trained.base, settings=segunc.ABNN(), method="swag", out=tmp_path / "out"
        )


@pytest.mark.parametrize("method", sorted(SETTINGS))
def test_settings_are_saved_and_loaded(tmp_path: Path, method: str) -> None:
    settings: MethodSettings = METHODS[method].config(**SETTINGS[method])
    settings.save(tmp_path / "settings.yaml")
    assert type(settings).load(tmp_path / "settings.yaml") == settings


def test_saved_settings_are_a_configuration(trained: Job, tmp_path: Path) -> None:
    segunc.ABNN(members=3, statistics="frozen").save(tmp_path / "abnn.yaml")
    succeed(
        "finetune --device cpu --base",
        trained.base,
        "--config",
        tmp_path / "abnn.yaml",
        "--out",
        tmp_path / "out",
    )
    assert segunc.load(tmp_path / "out").posterior.members == 3


def test_settings_of_another_kind_are_refused(tmp_path: Path) -> None:
    segunc.ABNN().save(tmp_path / "abnn.yaml")
    with pytest.raises(segunc.InputError, match="has no section swag"):
        METHODS["swag"].config.load(tmp_path / "abnn.yaml")
