"""What ``resumed`` in a record means: the run went on from its last finished epoch, and its weights are not those of an unbroken one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import IO, Any

import lightning as L
import pytest
import torch
from safetensors.torch import load_file

from segunc.training.base import WholeCheckpoints, train_network
from segunc.training.config import TrainConfig, parse_config
from tests.conftest import Job


class PowerFailureError(RuntimeError):
    """Ends a training between two steps, as SIGKILL does: nothing is written after it."""


def broken_at(step: int, config: TrainConfig, out: Path) -> dict[str, torch.Tensor]:
    """The weights of a run that ends before a step (or does not), and is run again."""

    def end(self: L.LightningModule, *_: Any) -> None:
        if self.global_step == step:
            raise PowerFailureError

    if step:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(L.LightningModule, "on_train_batch_start", end)
            with pytest.raises(PowerFailureError):
                train_network(config, out, device="cpu")
        assert not (out / "network.safetensors").exists()
    train_network(config, out, device="cpu")
    return load_file(out / "network.safetensors")


def test_a_training_goes_on_from_its_last_epoch_and_says_so(trained: Job, tmp_path: Path) -> None:
    """Two steps an epoch. Where it was killed decides the weights, the moment within the epoch does not."""
    config = parse_config(TrainConfig, trained.train_config, ["--trainer.max_epochs", "3"])
    names = {"whole": 0, "again": 0, "second": 2, "third": 3}
    whole, again, second, third = (broken_at(step, config, tmp_path / name) for name, step in names.items())
    assert all(torch.equal(again[name], values) for name, values in whole.items())
    assert all(torch.equal(third[name], values) for name, values in second.items())
    assert not all(torch.equal(third[name], values) for name, values in whole.items())
    for name, step in names.items():
        measured = json.loads((tmp_path / name / "training.json").read_text())
        provenance = json.loads((tmp_path / name / "network.json").read_text())["provenance"]
        assert (measured["resumed"], measured["steps"], measured["epochs"]) == (step > 0, 6, 3)
        assert provenance["resumed"] is (step > 0)


def test_a_checkpoint_is_whole_or_not_there_and_none_lies_in_a_folder_taken_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, written = tmp_path / "checkpoints", WholeCheckpoints()
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
