"""Numbers of a run go to the loggers that a user names, and a configuration runs no code and sends nothing."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.loggers import CSVLogger

from segunc.cli.main import main
from segunc.core.errors import InputError
from segunc.training.base import make_trainer
from segunc.training.loggers import make_callback, named_logger, run_loggers
from tests.conftest import Job

STOPPING = {
    "class_path": "lightning.pytorch.callbacks.EarlyStopping",
    "init_args": {"monitor": "val/loss", "patience": 3},
}


def test_loggers_and_callbacks_are_objects_or_names(tmp_path: Path) -> None:
    mine = CSVLogger(tmp_path, name="mine")
    assert run_loggers(tmp_path, mine)[-1] is mine
    assert run_loggers(tmp_path, False) == []
    for name in ("EarlyStopping", "lightning.pytorch.callbacks.EarlyStopping"):
        made = make_callback({**STOPPING, "class_path": name})
        assert isinstance(made, EarlyStopping)
        assert made.patience == 3
    assert make_callback(made) is made
    trainer = make_trainer({"accelerator": "cpu", "callbacks": [STOPPING], "logger": mine}, tmp_path, "train")
    assert any(isinstance(callback, EarlyStopping) for callback in trainer.callbacks)
    assert mine in trainer.loggers


@pytest.mark.parametrize(
    "wanted",
    [
        *("NoSuch", "no.such.Module", "ModelCheckpoint", "EarlyStopping.x", {"x": 1}, 3),
        {"class_path": "EarlyStopping", "init_args": {"patience": 3}},
        {"class_path": "EarlyStopping", "init_args": [3]},
    ],
)
def test_what_is_no_callback_is_refused(wanted: Any) -> None:
    with pytest.raises(InputError, match=r"trainer\.callbacks"):
        make_callback(wanted)


@pytest.mark.parametrize(
    ("name", "pattern"), [("tensorboard", "events.out*"), ("wandb", "*.wandb"), ("mlflow", "mlflow.db")]
)
def test_numbers_are_logged_without_a_connection(
    name: str, pattern: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    pytest.importorskip(name)
    logger = named_logger(name, tmp_path)
    logger.log_metrics({"val/miou": 0.75})
    logger.finalize("success")
    if name == "wandb":
        __import__("wandb").finish()
    assert list(tmp_path.rglob(pattern))


THEIRS = """
from pathlib import Path

Path("ran").touch()


class Note:
    def __init__(self, *_, **__):
        Path("ran").touch()
"""
NOTE = "{class_path: their_callbacks.Note, init_args: {}}"


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working folder with a module that writes a file when it is imported and when its class is called."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "their_callbacks", raising=False)
    Path("their_callbacks.py").write_text(THEIRS)


def train(job: Job, trainer: str, *more: str, further: str = "") -> int:
    """The exit code of a training of one step with further settings, in YAML, in this process."""
    text = job.train_config.read_text().replace("max_epochs: 1,", f"max_epochs: 1, limit_train_batches: 1, {trainer}")
    Path("train.yaml").write_text(text + further)
    return main(["train", "--config", "train.yaml", "--out", "base", "--device", "cpu", *more])


@pytest.mark.usefixtures("theirs")
@pytest.mark.parametrize(
    ("trainer", "more", "further"),
    [
        *((f"{setting},", [], "") for setting in (f"callbacks: [{NOTE}]", f"callbacks: {NOTE}", f"logger: {NOTE}")),
        *((f"{key}: {NOTE},", [], "") for key in ("strategy", "plugins", "accelerator", "profiler")),
        *(("", [f"--trainer.{key}", NOTE], "") for key in ("callbacks", "strategy")),
        ("", ["--trainer.logger.class_path", "their_callbacks.Note"], ""),
        ("", ["--optimisation", "their_callbacks.Note"], ""),
        ("", [], "\noptimisation: their_callbacks.Note"),
        ("", [], f"\noptimisation: {NOTE}"),
        ("", [], f"\noptimisation: {{lr: {NOTE}}}"),
        ("callbacks: [{class_path: subprocess.Popen, init_args: {args: [touch, ran]}}],", [], ""),
        ("callbacks: [{class_path: LambdaCallback, init_args: {on_fit_start: their_callbacks.Note}}],", [], ""),
        *((f"{setting},", [], "") for setting in ("default_root_dir: elsewhere", "devices: 100000", "num_nodes: 2")),
        ("logger: mlflow,", [], ""),
    ],
)
def test_a_configuration_runs_no_code_and_starts_no_training(
    trainer: str, more: list[str], further: str, trained: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(trained, trainer, *more, further=further) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert not any(Path(name).exists() for name in ("ran", "base/network.json", "elsewhere"))


@pytest.mark.usefixtures("theirs")
def test_a_configuration_of_a_finetuning_runs_no_code(trained: Job) -> None:
    text = trained.finetune_config.read_text().replace("trainer: {", f"trainer: {{callbacks: [{NOTE}], ")
    assert NOTE in text
    Path("finetune.yaml").write_text(text)
    words = ["finetune", "--base", str(trained.base), "--config", "finetune.yaml", "--out", "model", "--device", "cpu"]
    assert main(words) == 2
    assert not any(Path(name).exists() for name in ("ran", "model/posterior.json"))
