"""Training of a base network: it goes on after a kill, stops at NaN, a configuration runs no code,
and losses have their closed forms.
"""

import json
import math
import shutil
import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any
from unittest.mock import Mock

import lightning as L
import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.optim import SGD

from segunc.baselines.dynamics import SgldConfig
from segunc.cli.main import main
from segunc.core.bounds import Settings
from segunc.core.errors import InputError, PartialFailure
from segunc.data.module import SegmentationDataModule
from segunc.posteriors.abnn import ABNN, finetune_abnn
from segunc.training.base import SegmentationTask, WholeCheckpoints, train_members, train_network
from segunc.training.config import (
    FinetuneConfig,
    OptimisationConfig,
    TrainConfig,
    dump_config,
    parse_config,
    read_config,
)
from segunc.training.lightning_runs import fit
from segunc.training.losses import balanced_weights, make_schedule, segmentation_loss
from tests.conftest import Job
from tests.verbs.processes import refuse


class PowerFailureError(RuntimeError):
    """Ends a training between two steps, as SIGKILL does: nothing is written after it."""


def broken_at(step: int, config: TrainConfig, out: Path) -> dict[str, torch.Tensor]:
    """The weights of a run that ends before a step (or does not), is moved, and is run again."""

    def end(self: L.LightningModule, *_: Any) -> None:
        if self.global_step == step:
            raise PowerFailureError

    if step:
        killed = out.with_name(f"killed-{out.name}")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(L.LightningModule, "on_train_batch_start", end)
            with pytest.raises(PowerFailureError):
                train_network(config, killed, device="cpu")
        assert not (killed / "network.safetensors").exists()
        killed.rename(out)
    train_network(config, out, device="cpu")
    return load_file(out / "network.safetensors")


def test_a_training_goes_on_from_its_last_epoch_and_says_so(trained: Job, tmp_path: Path) -> None:
    """Two steps an epoch, and one validation, after the fourth. Where it was killed decides the
    weights, the moment within the epoch does not; the best ones may lie in a checkpoint from
    before.
    """
    config = parse_config(
        TrainConfig,
        trained.train_config,
        ["--trainer.max_epochs=3", "--trainer.check_val_every_n_epoch=2"],
    )
    names = {"whole": 0, "second": 2, "third": 3, "fifth": 5}
    whole, second, third, fifth = (
        broken_at(step, config, tmp_path / name) for name, step in names.items()
    )
    assert all(torch.equal(fifth[name], values) for name, values in whole.items())
    assert all(torch.equal(third[name], values) for name, values in second.items())
    assert not all(torch.equal(third[name], values) for name, values in whole.items())
    for name, step in names.items():
        provenance = json.loads((tmp_path / name / "network.json").read_text())["provenance"]
        assert (provenance["resumed"], provenance["steps"], provenance["epochs"]) == (
            step > 0,
            6,
            3,
        )


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("verb", ["train", "finetune"])
def test_two_seeds_see_other_crops_in_another_order(
    trained: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str, workers: int
) -> None:
    batches: list[Any] = []

    def look(*_: Any, datamodule: Any = None, train_dataloaders: Any = None) -> None:
        batches.append(next(iter(train_dataloaders or datamodule.train_dataloader())))
        raise PowerFailureError

    monkeypatch.setattr(
        f"segunc.{'training.base' if verb == 'train' else 'posteriors.finetune_run'}.fit", look
    )
    for seed in (0, 1):
        config = parse_config(
            TrainConfig, trained.train_config, [f"--seed={seed}", f"--data.workers={workers}"]
        )
        tuned = FinetuneConfig(ABNN(epochs=1, seed=seed), config.data)
        run = (
            partial(train_network, config)
            if verb == "train"
            else partial(finetune_abnn, trained.base, tuned)
        )
        with pytest.raises(PowerFailureError):
            run(tmp_path, device="cpu")
    first, other = batches
    assert first["name"] != other["name"]
    assert not any(torch.equal(a, b) for a in first["image"] for b in other["image"])
    # It is added to data.seed, so that seed 0 changes nothing.
    for seed, seen in enumerate(batches):
        alone = next(
            iter(SegmentationDataModule(**{**config.data, "seed": seed}).train_dataloader())
        )
        assert alone["name"] == seen["name"]
        assert torch.equal(alone["image"], seen["image"]) or not workers


def test_a_member_is_finished_where_its_network_is_of_the_settings_asked_for(
    trained: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, other = (
        parse_config(TrainConfig, trained.train_config, [f"--optimisation.lr={lr}"])
        for lr in (0.001, 0.01)
    )

    def trainings(config: TrainConfig) -> int:
        return sum(1 for _ in train_members(config, [0], tmp_path, device="cpu"))

    assert [trainings(config), trainings(config)] == [1, 0]
    with pytest.raises(InputError, match=r"optimisation\.lr 0\.001 there, 0\.01 asked for"):
        trainings(other)
    shutil.rmtree(tmp_path / "seed-0" / "checkpoints")
    assert trainings(config) == 0
    with monkeypatch.context() as patch:
        patch.setattr("segunc.training.base.fit", Mock(side_effect=PowerFailureError))
        with pytest.raises(PowerFailureError):
            trainings(other)
    assert [trainings(other), trainings(other)] == [1, 0]


@pytest.mark.parametrize(
    ("settings", "word"), [(ABNN, "--seed=1"), (SgldConfig, "--trainer.max_epochs=3")]
)
def test_what_no_run_of_the_method_reads_is_left_alone_in_a_file_and_refused_where_it_is_typed(
    trained: Job, settings: type[Settings], word: str
) -> None:
    parse_config(FinetuneConfig, trained.train_config, [], settings)
    with pytest.raises(InputError, match=r"unknown key '(seed|trainer)'"):
        parse_config(FinetuneConfig, trained.train_config, [word], settings)


def test_a_checkpoint_is_whole_or_not_there_and_none_lies_in_a_folder_taken_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, written = tmp_path / "checkpoints", WholeCheckpoints(tmp_path / "checkpoints")
    folder.mkdir()
    written.save_checkpoint({"step": 1}, folder / "last.ckpt")

    def full(content: object, file: IO[bytes]) -> None:
        file.write(b"half")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", full)
        with pytest.raises(OSError, match="No space"):
            written.save_checkpoint({"step": 2}, folder / "last.ckpt")
    assert [path.name for path in folder.iterdir()] == ["last.ckpt"]
    assert torch.load(folder / "last.ckpt") == {"step": 1}
    shutil.rmtree(folder)
    with pytest.raises(FileNotFoundError):
        written.save_checkpoint({"step": 2}, folder / "last.ckpt")


BATCH = {"image": torch.rand(2, 3, 8, 8), "label": torch.zeros(2, 8, 8, dtype=torch.int64)}


@pytest.mark.parametrize(("step", "kind"), [(0, InputError), (7, PartialFailure)])
def test_a_loss_that_is_not_finite_stops_and_no_such_checkpoint_is_written(
    tmp_path: Path, step: int, kind: type[Exception]
) -> None:
    task = SegmentationTask(nn.Conv2d(3, 2, 1), 2)
    trainer = L.Trainer(
        accelerator="cpu", logger=False, enable_checkpointing=False, default_root_dir=tmp_path
    )
    trainer.fit_loop.epoch_loop.automatic_optimization.optim_progress.optimizer.step.total.completed = step
    task.trainer = trainer
    trainer.strategy.connect(task)
    task.on_save_checkpoint({"state_dict": task.state_dict()})
    task.network.bias.data[0] = float("nan")
    where = "before the first step" if step == 0 else f"at step {step}"
    with pytest.raises(kind, match=f"the loss .* NaN or infinite {where}.*lower the learning rate"):
        task.training_step(BATCH, 0)
    with pytest.raises(kind, match=f"network.bias .* NaN or infinite {where}"):
        task.on_save_checkpoint({"state_dict": task.state_dict()})


def test_a_training_that_breaks_ends_with_one_line_and_its_last_good_state(
    trained: Job, tmp_path: Path
) -> None:
    words = ("--config", trained.train_config, "--out", tmp_path / "out", "--device", "cpu")
    rate = (
        "--optimisation.lr",
        1e30,
        "--optimisation.optimizer",
        "sgd",
        "--optimisation.schedule",
        "constant",
    )
    line = refuse("train", *words, *rate, "--trainer.max_epochs", 3, code=1, apart=True)
    assert "NaN or infinite at step" in line
    assert not (tmp_path / "out" / "network.safetensors").exists()
    for path in (tmp_path / "out" / "checkpoints").glob("*.ckpt"):
        state = torch.load(path, weights_only=True)["state_dict"]
        assert all(bool(torch.isfinite(tensor).all()) for tensor in state.values())


@pytest.mark.parametrize(
    ("size", "crop", "refused"), [(1, (8, 8), True), (2, (8, 8), False), (1, (16, 8), False)]
)
def test_a_batch_of_one_before_a_batchnorm_of_one_value(
    size: int, crop: tuple[int, int], refused: bool
) -> None:
    network = nn.Sequential(nn.Conv2d(3, 4, 8, 8), nn.BatchNorm2d(4)).train()

    def step(*_: object, **__: object) -> None:
        network(torch.rand(size, 3, *crop))

    trainer: Any = SimpleNamespace(fit=step, interrupted=False, global_step=0)
    task: Any = None
    with pytest.raises(InputError, match=r"data\.batch_size` 2") if refused else nullcontext():
        fit(trainer, task, None)


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
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "their_callbacks", raising=False)
    Path("their_callbacks.py").write_text(THEIRS)


@pytest.mark.usefixtures("theirs")
@pytest.mark.parametrize(
    ("trainer", "more", "further"),
    [
        *(
            (f"{setting},", [], "")
            for setting in (f"callbacks: [{NOTE}]", f"callbacks: {NOTE}", f"logger: {NOTE}")
        ),
        *(
            (f"{key}: {NOTE},", [], "")
            for key in ("strategy", "plugins", "accelerator", "profiler")
        ),
        *(("", [f"--trainer.{key}", NOTE], "") for key in ("callbacks", "strategy")),
        ("", ["--trainer.logger.class_path", "their_callbacks.Note"], ""),
        ("", ["--optimisation", "their_callbacks.Note"], ""),
        ("", [], f"\noptimisation: {{lr: {NOTE}}}"),
        ("callbacks: EarlyStopping,", [], ""),
        ("default_root_dir: elsewhere,", [], ""),
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


def test_cross_entropy_with_weights_and_ignored_pixels_names_a_label_that_is_no_class() -> None:
    logits = torch.tensor([[[[2.0, 0.0, 9.0]], [[0.0, 1.0, -9.0]]]], requires_grad=True)
    labels = torch.tensor([[[0, 1, 255]]])
    first, second = math.log1p(math.exp(-2.0)), math.log1p(math.exp(-1.0))
    assert segmentation_loss(logits, labels).item() == pytest.approx((first + second) / 2)
    weighted = segmentation_loss(logits, labels, torch.tensor([1.0, 3.0]))
    assert weighted.item() == pytest.approx((first + 3 * second) / 4)
    nothing = segmentation_loss(logits, torch.full((1, 1, 3), 255))
    nothing.backward()
    assert nothing.item() == 0.0
    assert logits.grad is not None
    assert float(logits.grad.abs().max()) == 0.0
    for value in (-1, 3, 254):
        with pytest.raises(InputError, match=f"label {value} in frame 1"):
            segmentation_loss(torch.randn(2, 3, 1, 2), torch.tensor([[[0, 2]], [[value, 255]]]))


def test_balanced_weights() -> None:
    frequencies = [0.64, 0.32, 0.04, 0.0]
    assert balanced_weights(frequencies, 0.0) == [1.0, 1.0, 1.0, 1.0]
    half = balanced_weights(frequencies, 0.5, limit=100)
    assert sum(f * w for f, w in zip(frequencies, half, strict=True)) == pytest.approx(1.0)
    assert half[2] / half[0] == pytest.approx(4.0)
    assert max(balanced_weights(frequencies, 1.0, limit=2.0)) == 2.0
    with pytest.raises(InputError, match="power"):
        OptimisationConfig(class_weight_power=2.0)


@pytest.mark.parametrize("name", ["onecycle", "poly", "constant"])
@pytest.mark.parametrize("steps", [1, 3, 50])
def test_schedules_last_for_their_steps(name: str, steps: int) -> None:
    optimizer = SGD([torch.nn.Parameter(torch.zeros(1))], 0.1)
    schedule = make_schedule(optimizer, name, steps, 0.1)
    rates = []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert max(rates) <= 0.1 + 1e-9
    if name == "poly":
        assert rates[-1] == pytest.approx(0.1 * (1 / steps) ** 0.9)
    if name == "constant":
        assert set(rates) == {0.1}


def test_a_configuration_that_is_written_is_read_again(tmp_path: Path) -> None:
    """Values that stand in two places of a plan are written out in both."""
    size = [64, 96]
    path = tmp_path / "c.yaml"
    path.write_text(dump_config({"data": {"size": size, "crop": size}}))
    assert read_config(path) == {"data": {"size": size, "crop": size}}
