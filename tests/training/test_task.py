"""Training of a base network: NaN stops it, says where, and leaves the last good checkpoint."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning as L
import pytest
import torch
from torch import nn

from segunc.core.errors import InputError, PartialFailure
from segunc.training.base import SegmentationTask
from segunc.training.progress import fit
from tests.conftest import Job
from tests.verbs.processes import refuse

BATCH = {"image": torch.rand(2, 3, 8, 8), "label": torch.zeros(2, 8, 8, dtype=torch.int64)}


def attached(step: int, folder: Path) -> SegmentationTask:
    """A task that believes to have made some steps."""
    task = SegmentationTask(nn.Conv2d(3, 2, 1), 2)
    trainer = L.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, default_root_dir=folder)
    trainer.fit_loop.epoch_loop.automatic_optimization.optim_progress.optimizer.step.total.completed = step
    task.trainer = trainer
    trainer.strategy.connect(task)
    return task


@pytest.mark.parametrize(("step", "kind"), [(0, InputError), (7, PartialFailure)])
def test_a_loss_that_is_not_finite_stops(tmp_path: Path, step: int, kind: type[Exception]) -> None:
    task = attached(step, tmp_path)
    task.network.bias.data[0] = float("nan")
    where = "before the first step" if step == 0 else f"at step {step}"
    with pytest.raises(kind, match=f"the loss .* NaN or infinite {where}.*lower the learning rate"):
        task.training_step(BATCH, 0)


def test_no_checkpoint_is_written_that_is_not_finite(tmp_path: Path) -> None:
    task = attached(7, tmp_path)
    task.on_save_checkpoint({"state_dict": task.state_dict()})
    task.network.weight.data[1] = float("inf")
    with pytest.raises(PartialFailure, match=r"network.weight became NaN or infinite at step 7"):
        task.on_save_checkpoint({"state_dict": task.state_dict()})


def test_a_training_that_breaks_ends_with_one_line_and_its_last_good_state(trained: Job, tmp_path: Path) -> None:
    words = ("--config", trained.train_config, "--out", tmp_path / "out", "--device", "cpu")
    rate = ("--optimisation.lr", 1e30, "--optimisation.optimizer", "sgd", "--optimisation.schedule", "constant")
    line = refuse("train", *words, *rate, "--trainer.max_epochs", 3, code=1, apart=True)
    assert "NaN or infinite at step" in line
    assert not (tmp_path / "out" / "network.safetensors").exists()
    for path in (tmp_path / "out" / "checkpoints").glob("*.ckpt"):
        state = torch.load(path, weights_only=True)["state_dict"]
        assert all(bool(torch.isfinite(tensor).all()) for tensor in state.values())


@pytest.mark.parametrize(("size", "crop", "refused"), [(1, (8, 8), True), (2, (8, 8), False), (1, (16, 8), False)])
def test_a_batch_of_one_before_a_batchnorm_of_one_value(size: int, crop: tuple[int, int], refused: bool) -> None:
    network = nn.Sequential(nn.Conv2d(3, 4, 8, 8), nn.BatchNorm2d(4)).train()

    def step(*_: object, **__: object) -> None:
        network(torch.rand(size, 3, *crop))

    trainer: Any = SimpleNamespace(fit=step, interrupted=False, global_step=0)
    task: Any = None
    with pytest.raises(InputError, match=r"data\.batch_size` 2") if refused else nullcontext():
        fit(trainer, task, None)
