"""A configuration runs no code, starts nothing that never ends, and writes into the folder of the run alone."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from segunc.cli.main import main
from tests.conftest import Job

THEIRS = """
from pathlib import Path

Path("ran").touch()


class Note:
    def __init__(self, *_, **__):
        Path("ran").touch()
"""
NOTE = "{class_path: their_callbacks.Note, init_args: {}}"


@pytest.fixture(autouse=True)
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working folder with a module that writes a file when it is imported and when its class is called."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "their_callbacks", raising=False)
    Path("their_callbacks.py").write_text(THEIRS)


@pytest.mark.parametrize(
    ("trainer", "more", "further"),
    [
        *((f"{setting},", [], "") for setting in (f"callbacks: [{NOTE}]", f"callbacks: {NOTE}", f"logger: {NOTE}")),
        *((f"{key}: {NOTE},", [], "") for key in ("strategy", "plugins", "accelerator", "profiler")),
        *(("", [f"--trainer.{key}", NOTE], "") for key in ("callbacks", "strategy")),
        ("", ["--trainer.logger.class_path", "their_callbacks.Note"], ""),
        ("", ["--optimisation", "their_callbacks.Note"], ""),
        ("", [], f"\noptimisation: {{lr: {NOTE}}}"),
        ("callbacks: EarlyStopping,", [], ""),
        *((f"{setting},", [], "") for setting in ("default_root_dir: elsewhere", "devices: 100000", "num_nodes: 2")),
        ("logger: mlflow,", [], ""),
    ],
)
def test_a_configuration_runs_no_code_and_starts_no_training(
    trainer: str, more: list[str], further: str, trained: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    text = trained.train_config.read_text().replace("max_epochs: 1,", f"max_epochs: 1, {trainer}")
    Path("train.yaml").write_text(text + further)
    assert main(["train", "--config", "train.yaml", "--out", "base", "--device", "cpu", *more]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert not any(Path(name).exists() for name in ("ran", "base/network.json", "elsewhere"))


def test_a_configuration_of_a_finetuning_runs_no_code(trained: Job) -> None:
    text = trained.finetune_config.read_text().replace("trainer: {", f"trainer: {{callbacks: [{NOTE}], ")
    assert NOTE in text
    Path("finetune.yaml").write_text(text)
    words = ["finetune", "--base", str(trained.base), "--config", "finetune.yaml", "--out", "model", "--device", "cpu"]
    assert main(words) == 2
    assert not any(Path(name).exists() for name in ("ran", "model/posterior.json"))
