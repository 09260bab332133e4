"""Numbers of a run go to the loggers that a user names, and a configuration's callbacks are called beside ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch.callbacks import Callback, EarlyStopping
from lightning.pytorch.loggers import CSVLogger

from segunc.core.errors import InputError
from segunc.training.loggers import instance, log_numbers, run_loggers
from tests.conftest import Job
from tests.verbs.processes import segunc, succeed

STOPPING = {"class_path": "EarlyStopping", "init_args": {"monitor": "val/loss", "patience": 3}}
NUMBERS = {"scores": {"entropy": {"auroc": 0.75, "reason": None}}, "frames": 4, "scored": True}


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")


def test_a_configuration_s_loggers_and_callbacks_come_beside_ours(trained: Job, tmp_path: Path) -> None:
    (tmp_path / "train.yaml").write_text(
        trained.train_config.read_text().replace(
            "max_epochs: 1,",
            "max_epochs: 1, limit_train_batches: 1, limit_val_batches: 1,"
            f" callbacks: [{STOPPING}], logger: {{class_path: lightning.pytorch.loggers.CSVLogger,"
            f" init_args: {{save_dir: {tmp_path}, name: theirs, version: ''}}}},",
        )
    )
    succeed("train", "--config", tmp_path / "train.yaml", "--out", tmp_path / "base", "--device", "cpu")
    theirs, ours = (folder / "metrics.csv" for folder in (tmp_path / "theirs", tmp_path / "base" / "logs"))
    assert theirs.read_text().splitlines()[0] == ours.read_text().splitlines()[0]
    assert "val/loss" in ours.read_text()


def test_objects_and_classes_and_none_at_all(tmp_path: Path) -> None:
    mine = CSVLogger(tmp_path, name="mine")
    assert run_loggers(tmp_path, mine)[-1] is mine
    assert run_loggers(tmp_path, False) == []
    assert isinstance(
        run_loggers(tmp_path, [mine, {"class_path": "CSVLogger", "init_args": {"save_dir": "x"}}])[-1], CSVLogger
    )
    assert instance(STOPPING, "lightning.pytorch.callbacks", Callback).patience == 3
    assert isinstance(instance(EarlyStopping("val/loss"), "", Callback), EarlyStopping)


@pytest.mark.parametrize(
    "wanted",
    [
        "NoSuch",
        "no.such.Module",
        {"class_path": "EarlyStopping", "init_args": {"patience": 3}},
        {"x": 1},
        3,
        "LearningRateFinder.x",
    ],
)
def test_what_is_no_callback_is_one_line(wanted: Any) -> None:
    with pytest.raises(InputError, match="in the configuration's trainer") as caught:
        instance(wanted, "lightning.pytorch.callbacks", Callback)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "package", "pattern"),
    [
        ("tensorboard", "tensorboard", "events.out*"),
        ("wandb", "wandb", "*.wandb"),
        ("mlflow", "mlflow", "mlflow.db"),
    ],
)
def test_numbers_are_logged_without_a_connection(name: str, package: str, pattern: str, tmp_path: Path) -> None:
    pytest.importorskip(package)
    log_numbers(name, tmp_path, NUMBERS)
    if package == "wandb":
        __import__("wandb").finish()
    assert list(tmp_path.rglob(pattern))


def test_the_verbs_take_a_logger_or_say_what_to_install(predicted: Job, tmp_path: Path) -> None:
    words = ("evaluate", "--maps", predicted.maps, "--anomaly-labels", predicted.masks, "--out", tmp_path / "m.json")
    words += ("--replicates", 0, "--logger", "tensorboard")
    try:
        import tensorboard  # noqa: F401
    except ModuleNotFoundError:
        assert "pip install tensorboard" in segunc(*words).stderr
    else:
        succeed(*words)
        assert list(tmp_path.rglob("events.out*"))
