"""Loggers of a configuration, by their names; none of them connects. The packages of Weights &
Biases and MLflow are modules of these tests.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from lightning.pytorch.loggers import CSVLogger, MLFlowLogger, TensorBoardLogger, WandbLogger

from segunc.cli.main import main
from segunc.core.errors import InputError
from segunc.training.loggers import ONLINE, check_loggers, run_loggers
from tests.conftest import Job


@pytest.mark.parametrize(
    ("value", "kinds"),
    [
        ("csv", [CSVLogger]),
        ("tensorboard", [TensorBoardLogger]),
        (["tensorboard", "csv", "csv"], [TensorBoardLogger, CSVLogger]),
        (True, [CSVLogger, TensorBoardLogger]),
        (None, [CSVLogger, TensorBoardLogger]),
        (False, []),
        ([], []),
    ],
)
def test_loggers_are_taken_by_their_names(tmp_path: Path, value: Any, kinds: list[type]) -> None:
    check_loggers(value)
    loggers = run_loggers(tmp_path, value)
    assert [type(logger) for logger in loggers] == kinds
    for logger in loggers:
        assert Path(str(logger.log_dir)).is_relative_to(tmp_path)


WRONG = [
    (
        "tensorbord",
        r"'tensorbord' is no logger \(did you mean tensorboard\?\). Hint: the names are",
    ),
    (["csv", "comet"], "'comet' is no logger"),
    ({"class_path": "os.system"}, "names objects, which a configuration cannot make"),
    ([{"class_path": "os.system"}], "names objects"),
    (["csv", True], "names objects"),
    (3, "names objects"),
    ("lightning.pytorch.loggers.CSVLogger", "is no logger"),
]


@pytest.mark.parametrize(("value", "message"), WRONG)
def test_what_is_no_name_of_a_logger_is_refused(value: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_loggers(value)


@pytest.mark.parametrize("name", ["wandb", "mlflow", "tensorboard"])
def test_a_logger_whose_package_is_missing_names_the_command(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda package: None)
    with pytest.raises(InputError, match=f"needs the package {name}, .*Hint: pip install {name}$"):
        check_loggers(["csv", name])


def test_a_package_that_is_too_old_for_lightning_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lightning.pytorch.loggers.wandb._WANDB_AVAILABLE", False)
    with pytest.raises(InputError, match="pip install wandb"):
        run_loggers(tmp_path, "wandb")


def fake_module(monkeypatch: pytest.MonkeyPatch, name: str, **content: Any) -> None:
    module = ModuleType(name)
    module.__spec__ = ModuleSpec(name, None)
    module.__path__ = []
    for key, value in content.items():
        setattr(module, key, value)
    monkeypatch.setitem(sys.modules, name, module)


class Run:
    """A run of Weights & Biases."""


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The settings of each run that is begun."""
    begun: list[dict[str, Any]] = []

    def init(**settings: Any) -> Run:
        begun.append(settings)
        return Run()

    monkeypatch.setattr("lightning.pytorch.loggers.wandb._WANDB_AVAILABLE", True)
    fake_module(monkeypatch, "wandb", init=init, run=None)
    fake_module(monkeypatch, "wandb.sdk")
    fake_module(monkeypatch, "wandb.sdk.lib", RunDisabled=Run)
    fake_module(monkeypatch, "wandb.wandb_run", Run=Run)
    for name in ("MODE", "PROJECT", "ERROR_REPORTING", "CACHE_DIR", "CONFIG_DIR", "DATA_DIR"):
        # So that it is removed at the end, whatever the logger sets.
        monkeypatch.setenv(f"WANDB_{name}", "")
        monkeypatch.delenv(f"WANDB_{name}")
    return begun


def test_wandb_is_offline_below_the_folder_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wandb: list[dict[str, Any]]
) -> None:
    monkeypatch.setenv("WANDB_MODE", "online")
    (logger,) = run_loggers(tmp_path / "base", "wandb")
    assert isinstance(logger, WandbLogger)
    _ = logger.experiment
    assert wandb[0]["mode"] == "offline"
    assert wandb[0]["dir"] == str(tmp_path / "base")
    assert wandb[0]["name"] == "base"


def test_wandb_connects_where_its_user_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wandb: list[dict[str, Any]]
) -> None:
    monkeypatch.setenv(ONLINE, "mlflow, wandb")
    monkeypatch.setenv("WANDB_PROJECT", "roads")
    (logger,) = run_loggers(tmp_path, "wandb")
    _ = logger.experiment
    assert "mode" not in wandb[0]
    assert wandb[0]["project"] == "roads"


@pytest.fixture
def mlflow(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses of the servers that are asked for."""
    servers: list[str] = []

    def client(address: str) -> SimpleNamespace:
        servers.append(address)
        return SimpleNamespace()

    monkeypatch.setattr("lightning.pytorch.loggers.mlflow._MLFLOW_AVAILABLE", True)
    fake_module(monkeypatch, "mlflow")
    fake_module(monkeypatch, "mlflow.tracking", MlflowClient=client)
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://server.invalid")
    return servers


def test_mlflow_writes_below_the_folder_of_the_run(tmp_path: Path, mlflow: list[str]) -> None:
    (logger,) = run_loggers(tmp_path, "mlflow")
    assert isinstance(logger, MLFlowLogger)
    assert mlflow == [f"file://{tmp_path}/mlruns"]


def test_mlflow_connects_where_its_user_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mlflow: list[str]
) -> None:
    monkeypatch.setenv(ONLINE, "mlflow")
    run_loggers(tmp_path, "mlflow")
    assert mlflow == ["http://server.invalid"]


@pytest.mark.parametrize("name", ["wandb", "mlruns"])
def test_a_logger_writes_behind_no_link(
    tmp_path: Path, wandb: list[dict[str, Any]], mlflow: list[str], name: str
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name).symlink_to(tmp_path)
    with pytest.raises(InputError, match=f"{name} leads out of"):
        run_loggers(tmp_path / "out", ["wandb", "mlflow"])


@pytest.mark.parametrize(
    ("value", "logs", "tensorboard"),
    [("csv", True, False), ("[tensorboard]", False, True), ("false", False, False)],
)
def test_a_training_and_a_fine_tuning_log_where_they_are_told(
    trained: Job, tmp_path: Path, value: str, logs: bool, tensorboard: bool
) -> None:
    words = ["--device", "cpu", "--trainer.log_every_n_steps", "1", "--trainer.logger", value]
    train = ["train", "--config", str(trained.train_config)]
    assert main([*train, *words, "--out", str(tmp_path / "base")]) == 0
    tune = ["finetune", "--base", str(trained.base), "--config", str(trained.finetune_config)]
    assert main([*tune, *words, "--out", str(tmp_path / "abnn")]) == 0
    for folder in ("base", "abnn"):
        assert (tmp_path / folder / "logs/metrics.csv").exists() == logs
        assert (tmp_path / folder / "tensorboard").exists() == tensorboard


def test_a_run_goes_on_with_other_loggers(
    trained: Job, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", "--config", str(trained.train_config), "--out", str(tmp_path / "base")]
    words += ["--device", "cpu", "--trainer.logger"]
    assert main([*words, "csv"]) == 0
    (tmp_path / "base/training.json").unlink()
    assert main([*words, "[csv, tensorboard]"]) == 0
    assert (tmp_path / "base/tensorboard").exists()
