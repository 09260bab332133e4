"""Numbers of a run go to the loggers that a user names, and a configuration's callbacks are called beside ours."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch.callbacks import Callback, EarlyStopping
from lightning.pytorch.loggers import CSVLogger

from segunc.cli.main import main
from segunc.core.errors import InputError
from segunc.core.trust import TRUST
from segunc.training.loggers import instance, named_logger, run_loggers
from tests.conftest import Job
from tests.verbs.processes import succeed

ELSEWHERE = ("/elsewhere", "a/../../b", "$HOME", "s3://bucket/a", "a::http://localhost/")
STOPPING = {"class_path": "EarlyStopping", "init_args": {"monitor": "val/loss", "patience": 3}}


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
            " init_args: {save_dir: ., name: theirs, version: ''}},",
        )
    )
    succeed("train", "--config", tmp_path / "train.yaml", "--out", tmp_path / "base", "--device", "cpu", apart=True)
    theirs, ours = (tmp_path / "base" / folder / "metrics.csv" for folder in ("theirs", "logs"))
    assert theirs.read_text().splitlines()[0] == ours.read_text().splitlines()[0]
    assert "val/loss" in ours.read_text()


def test_objects_and_classes_and_none_at_all(tmp_path: Path) -> None:
    mine = CSVLogger(tmp_path, name="mine")
    assert run_loggers(tmp_path, mine)[-1] is mine
    assert run_loggers(tmp_path, False) == []
    assert isinstance(
        run_loggers(tmp_path, [mine, {"class_path": "CSVLogger", "init_args": {"save_dir": "x"}}])[-1], CSVLogger
    )
    for path in ("EarlyStopping", "lightning.pytorch.callbacks.EarlyStopping"):
        made = instance({**STOPPING, "class_path": path}, Callback, tmp_path)
        assert isinstance(made, EarlyStopping)
        assert made.patience == 3
    assert instance(made, Callback, tmp_path) is made


@pytest.mark.parametrize(
    "wanted",
    [
        "NoSuch",
        "no.such.Module",
        {"class_path": "EarlyStopping", "init_args": {"patience": 3}},
        {"x": 1},
        3,
        "LearningRateFinder.x",
        *({"class_path": "OnExceptionCheckpoint", "init_args": {"dirpath": place}} for place in ELSEWHERE),
        {"class_path": "ModelCheckpoint", "init_args": {"filename": "../../best"}},
    ],
)
def test_what_is_no_callback_is_one_line(wanted: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="in the configuration's trainer") as caught:
        instance(wanted, Callback, tmp_path)
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
    logger = named_logger(name, tmp_path)
    logger.log_metrics({"val/miou": 0.75})
    logger.finalize("success")
    if package == "wandb":
        __import__("wandb").finish()
    assert list(tmp_path.rglob(pattern))


THEIRS = """
from pathlib import Path

from lightning.pytorch.callbacks import Callback

from their_callbacks.words import WORD

Path("imported").touch()


class Note(Callback):
    def __init__(self, name="called"):
        Path(name).write_text(WORD)
"""


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working folder with a package that writes files when it is imported and when its class is called."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv(TRUST, raising=False)
    package = tmp_path / "their_callbacks"
    package.mkdir()
    (package / "__init__.py").write_text(THEIRS)
    (package / "words.py").write_text("WORD = 'first'\n")
    yield tmp_path
    for name in ("their_callbacks", "their_callbacks.words"):
        sys.modules.pop(name, None)


def train(job: Job, trainer: str, *more: str, further: str = "") -> int:
    """The exit code of a training of one step with further settings, in YAML, in this process."""
    text = job.train_config.read_text().replace("max_epochs: 1,", f"max_epochs: 1, limit_train_batches: 1, {trainer}")
    Path("train.yaml").write_text(text + further)
    return main(["train", "--config", "train.yaml", "--out", "base", "--device", "cpu", *more])


NOTE = "{class_path: their_callbacks.Note, init_args: {}}"


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
        ("callbacks: [{class_path: subprocess.Popen, init_args: {args: [touch, called]}}],", [], ""),
        ("logger: {class_path: shutil.rmtree, init_args: {path: their_callbacks}},", [], ""),
        ("callbacks: [{class_path: LambdaCallback, init_args: {on_fit_start: their_callbacks.Note}}],", [], ""),
        ("default_root_dir: elsewhere,", [], ""),
        ("devices: 100000,", [], ""),
        ("num_nodes: 2,", [], ""),
        ("logger: mlflow,", [], ""),
    ],
)
def test_a_configuration_runs_no_code_and_starts_no_training(
    trainer: str, more: list[str], further: str, trained: Job, theirs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sys.path.insert(0, str(theirs))  # as PYTHONPATH would
    try:
        assert train(trained, trainer, *more, further=further) == 2
    finally:
        sys.path.remove(str(theirs))
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert not any(Path(name).exists() for name in ("imported", "called", "base/network.json"))
    assert Path("their_callbacks").is_dir()


@pytest.mark.parametrize("setting", [f"callbacks: [{NOTE}]", f"logger: {NOTE}", f"strategy: {NOTE}"])
def test_a_configuration_of_a_finetuning_runs_no_code(
    setting: str, trained: Job, theirs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(theirs)  # as PYTHONPATH would
    text = trained.finetune_config.read_text().replace("trainer: {", f"trainer: {{{setting}, ")
    assert setting in text
    Path("finetune.yaml").write_text(text)
    words = ["finetune", "--base", str(trained.base), "--config", "finetune.yaml", "--out", "model", "--device", "cpu"]
    assert main(words) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert not any(Path(name).exists() for name in ("imported", "called", "model/posterior.json"))


def test_a_class_of_ones_own_runs_where_its_user_agreed(
    trained: Job, theirs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(trained, f"callbacks: [{NOTE}],", "--trust", "--out", "first") == 0
    assert Path("called").read_text() == "first"
    sys.modules.pop("their_callbacks")
    assert (
        train(trained, "callbacks: [{class_path: their_callbacks.Note, init_args: {name: again}}],", "--out", "2") == 0
    )
    assert Path("again").read_text() == "first"
    (theirs / "their_callbacks" / "words.py").write_text("WORD = 'second'\n")
    assert train(trained, f"callbacks: [{NOTE}],", "--out", "third") == 2
    assert "not what you agreed to" in capsys.readouterr().err
    assert Path("called").read_text() == "first"
