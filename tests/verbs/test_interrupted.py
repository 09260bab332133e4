"""Killed runs that are continued, and fine-tuning with two processes."""

from __future__ import annotations

import csv
import json
import time
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest

from segunc.posteriors.model import load_model
from tests.conftest import Job
from tests.verbs.processes import Command, refuse, succeed


def wait_for(command: Command, moment: Callable[[], bool], seconds: float = 60.0) -> None:
    """Until ``moment`` is true; the command must still run then."""
    end = time.monotonic() + seconds
    while not moment():
        assert command.process.exitcode is None, "the command ended before it could be stopped"
        assert time.monotonic() < end, "the moment to stop it did not come"
        time.sleep(0.002)


def kill_when(command: Command, moment: Callable[[], bool]) -> None:
    """SIGKILL as soon as ``moment`` is true."""
    wait_for(command, moment)
    assert command.kill().code == -9


def kill_after_three(out: Path, *command: object) -> int:
    """Kill a prediction into ``out`` that has finished three frames or more of twelve; how many."""
    lines = out / "frames.jsonl"
    kill_when(Command(*command, "--out", out), lambda: lines.exists() and lines.read_bytes().count(b"\n") >= 3)
    finished = lines.read_bytes().count(b"\n")
    assert finished < 12
    return finished


def tree(folder: Path) -> dict[str, bytes]:
    """The bytes of all maps and of ``frames.jsonl``."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "manifest.json" and path.suffix != ".webm"
    }


def write_mask(folder: Path) -> Path:
    """A mask whose lower quarter counts for nothing."""
    mask = np.full((64, 128), 255, np.uint8)
    mask[48:] = 0
    cv2.imwrite(str(folder / "mask.png"), mask)
    return folder / "mask.png"


def test_training_killed_and_continued_ends_where_it_should(trained: Job, tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = ("train --trainer.max_epochs 12 --device cpu --config", trained.train_config, "--out", out)
    kill_when(Command(*command), (out / "checkpoints" / "last.ckpt").exists)
    assert not (out / "network.safetensors").exists()
    # Checkpoints of other settings are not continued: no configuration would describe the network.
    assert "optimisation.lr 0.001 there, 0.01 asked for" in refuse(*command, "--optimisation.lr", 0.01)
    succeed(*command)
    measured = json.loads((out / "training.json").read_text())
    assert (measured["resumed"], measured["steps"], measured["epochs"]) == (True, 24, 12)
    # The log goes on after the first epoch, whose validation was at step 1, and that of the killed run stays.
    with (out / "logs" / "metrics.csv").open(newline="", encoding="utf-8") as file:
        logged = [int(row["step"]) for row in csv.DictReader(file) if row.get("val/miou")]
    assert 1 < logged[0] < logged[-1] == 23
    assert (out / "logs" / "metrics-1.csv").exists()
    assert not load_model(out).bayesian


def test_ctrl_c_ends_a_training_with_130_and_it_goes_on(trained: Job, tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = ("train --trainer.max_epochs 30 --device cpu --config", trained.train_config, "--out", out)
    running = Command(*command)
    wait_for(running, (out / "checkpoints" / "last.ckpt").exists)
    done = running.interrupt()
    assert done.code == 130, done.stderr
    said = "segunc train: interrupted; what is finished is kept, and the same command goes on from there"
    assert done.error_lines == [said]
    succeed(*command)
    assert json.loads((out / "training.json").read_text())["resumed"] is True


def test_ctrl_c_ends_a_prediction_with_130_and_it_goes_on(finetuned: Job, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ("predict --device cpu --draws 8 --model", finetuned.abnn, "--input", finetuned.video, "--out", out)
    running, lines = Command(*words), out / "frames.jsonl"
    wait_for(running, lambda: lines.exists() and lines.read_bytes().count(b"\n") >= 1)
    done = running.interrupt()
    assert (done.code, len(done.error_lines)) == (130, 1), done.stderr
    finished = lines.read_bytes().count(b"\n")
    assert 1 <= finished < 12
    assert f"{finished} were finished before" in succeed(*words).stdout


def test_finetuning_continues_only_from_the_same_base(finetuned: Job, tmp_path: Path) -> None:
    common = ("--config", finetuned.finetune_config, "--out", finetuned.abnn, "--device cpu")
    before = (finetuned.abnn / "posterior.safetensors").read_bytes()
    succeed("finetune", "--base", finetuned.base, *common)  # a finished run: nothing is trained again
    assert (finetuned.abnn / "posterior.safetensors").read_bytes() == before
    other = tmp_path / "other"
    succeed("train --seed 1 --device cpu --config", finetuned.train_config, "--out", other)
    assert "base_sha256" in refuse("finetune", "--base", other, *common)


@pytest.mark.slow
def test_finetuning_with_two_processes_gives_one_loadable_model(trained: Job, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ("--base", trained.base, "--config", trained.finetune_config, "--out", out, "--data.batch_size 2")
    # The first process is forked here, the second is a fresh interpreter that Lightning starts.
    trainer = "--trainer.accelerator cpu --trainer.devices 2 --trainer.strategy ddp"
    done = succeed("finetune --abnn.alpha 0.1", *words, trainer, apart=True)
    # Eight frames in batches of two on two processes are two steps an epoch, and two members have an epoch each.
    model = load_model(out)
    assert model.record["provenance"]["steps"] == 4
    assert model.posterior.members == 2
    assert done.stdout.count("converted ") == 1
    assert done.stdout.count("wrote ") == 1
