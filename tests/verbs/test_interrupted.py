"""How a run computes is kept by every shard and after every kill: killed runs go on to the same
bytes.
"""

import csv
import json
import re
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from segunc.cli.main import main
from segunc.frames.sources import open_source
from segunc.maps.manifest import read_manifest
from segunc.maps.shards import Shard, write_state
from segunc.options import PredictOptions
from segunc.posteriors.model import load_model
from segunc.verbs.execution import choose_chunk
from tests.conftest import Job
from tests.maps.fakes import folder_bytes, write_pictures
from tests.support.sampled import small_sampler
from tests.verbs.processes import FAST, SMALL, Command, refuse, succeed


def wait_for(command: Command, moment: Callable[[], bool], seconds: float = 60.0) -> None:
    """Until ``moment`` is true; the command must still run then."""
    end = time.monotonic() + seconds
    while not moment():
        assert command.process.exitcode is None, "the command ended before it could be stopped"
        assert time.monotonic() < end, "the moment to stop it did not come"
        time.sleep(0.002)


def kill_when(command: Command, moment: Callable[[], bool]) -> None:
    wait_for(command, moment)
    assert command.kill().code == -9


def kill_after_three(out: Path, *command: object) -> int:
    """Kill a prediction into ``out`` that has finished three frames or more of twelve; how many."""
    lines = out / "frames.jsonl"
    kill_when(
        Command(*command, "--out", out),
        lambda: lines.exists() and lines.read_bytes().count(b"\n") >= 3,
    )
    finished = lines.read_bytes().count(b"\n")
    assert finished < 12
    return finished


def tree(folder: Path) -> dict[str, bytes]:
    return {
        name: content
        for name, content in folder_bytes(folder).items()
        if not name.endswith(".webm")
    }


def write_mask(folder: Path) -> Path:
    mask = np.full((64, 128), 255, np.uint8)
    mask[48:] = 0
    cv2.imwrite(str(folder / "mask.png"), mask)
    return folder / "mask.png"


def test_training_ended_by_sigterm_and_continued_ends_where_it_should(
    trained: Job, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    command = (
        "train --trainer.max_epochs 12 --device cpu --config",
        trained.train_config,
        "--out",
        out,
    )
    wait_for(running := Command(*command), (out / "checkpoints" / "last.ckpt").exists)
    assert running.stop(signal.SIGTERM).code == 143
    assert not (out / "network.safetensors").exists()
    # Checkpoints of other settings are not continued: no configuration would describe the network.
    assert "optimisation.lr 0.001 there, 0.01 asked for" in refuse(
        *command, "--optimisation.lr", 0.01
    )
    assert (out / "logs" / "metrics.csv").exists(), "what is refused moves no log"
    succeed(*command)
    measured = json.loads((out / "training.json").read_text())
    assert (measured["resumed"], measured["steps"], measured["epochs"]) == (True, 24, 12)
    # The log goes on after the first epoch, whose validation was at step 1, and that of the killed
    # run stays.
    with (out / "logs" / "metrics.csv").open(newline="", encoding="utf-8") as file:
        logged = [int(row["step"]) for row in csv.DictReader(file) if row.get("val/miou")]
    assert 1 < logged[0] < logged[-1] == 23
    assert (out / "logs" / "metrics-1.csv").exists()
    assert not load_model(out).bayesian


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_prediction_with_its_code_and_it_goes_on(
    finetuned: Job, tmp_path: Path, kind: signal.Signals
) -> None:
    out = tmp_path / "out"
    words = (
        "predict --device cpu --draws 8 --model",
        finetuned.abnn,
        "--input",
        finetuned.video,
        "--out",
        out,
    )
    running, lines = Command(*words), out / "frames.jsonl"
    wait_for(running, lambda: lines.exists() and lines.read_bytes().count(b"\n") >= 1)
    done = running.stop(kind)
    said = (
        "segunc predict: interrupted; what is finished is kept, and the same command goes on from"
        " there"
    )
    assert (done.code, done.error_lines) == (128 + kind, [said]), done.stderr
    finished = lines.read_bytes().count(b"\n")
    assert 1 <= finished < 12
    assert f"{finished} were finished before" in succeed(*words).stdout


def test_finetuning_continues_only_from_the_same_base(finetuned: Job, tmp_path: Path) -> None:
    common = ("--config", finetuned.finetune_config, "--out", finetuned.abnn, "--device cpu")
    before = (finetuned.abnn / "posterior.safetensors").read_bytes()
    succeed(
        "finetune", "--base", finetuned.base, *common
    )  # a finished run: nothing is trained again
    assert (finetuned.abnn / "posterior.safetensors").read_bytes() == before
    other = tmp_path / "other"
    succeed("train --seed 1 --device cpu --config", finetuned.train_config, "--out", other)
    assert "holds another network" in refuse("finetune", "--base", other, *common)
    (finetuned.abnn / "network.json").rename(
        hidden := tmp_path / "network.json"
    )  # as of a killed run
    assert "base_sha256" in refuse("finetune", "--base", other, *common)
    hidden.rename(finetuned.abnn / "network.json")


@pytest.mark.slow
def test_finetuning_with_two_processes_gives_one_loadable_model(
    trained: Job, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    words = (
        "--base",
        trained.base,
        "--config",
        trained.finetune_config,
        "--out",
        out,
        "--data.batch_size 2",
    )
    # The first process is forked here, the second is a fresh interpreter that Lightning starts.
    trainer = "--trainer.accelerator cpu --trainer.devices 2 --trainer.strategy ddp"
    done = succeed("finetune --abnn.alpha 0.1", *words, trainer, apart=True)
    # Eight frames in batches of two on two processes are two steps an epoch, and two members have
    # an epoch each.
    model = load_model(out)
    assert model.record["provenance"]["steps"] == 4
    assert model.posterior.members == 2
    assert done.stdout.count("converted ") == 1
    assert done.stdout.count("wrote ") == 1


PLAIN = PredictOptions("model", "input", "out")


def test_what_was_recorded_is_continued_and_what_is_given_wins(tmp_path: Path) -> None:
    write_pictures(tmp_path, 4)
    source = open_source(tmp_path)
    assert choose_chunk(PLAIN, small_sampler(), source, None) == 4
    recorded: dict[str, Any] = {"chunk": 2}
    assert choose_chunk(PLAIN, small_sampler(), source, recorded) == 2
    assert choose_chunk(replace(PLAIN, chunk=1), small_sampler(), source, recorded) == 1


def test_masked_frames_killed_and_continued_give_the_same_bytes(
    finetuned: Job, tmp_path: Path
) -> None:
    base = (
        "predict --model",
        finetuned.abnn,
        "--input",
        finetuned.video,
        SMALL,
        "--mask",
        write_mask(tmp_path),
    )
    whole, killed = (tmp_path / name for name in ("whole", "killed"))
    succeed(*base, "--chunk 1 --out", whole)
    before = kill_after_three(killed, *base, "--chunk 1")
    done = succeed(*base, "--out", killed)  # the chunk comes from the manifest
    assert f"{before} were finished before" in done.stdout
    assert tree(killed) == tree(whole)
    assert len(tree(whole)) == 12 * 4 + 2  # frames.jsonl and the mask
    assert json.loads((whole / "manifest.json").read_text())["run"]["chunk"] == 1
    assert "chunk = 1 (now 2)" in refuse(*base, "--chunk 2 --out", whole)
    grouped = read_manifest(whole) or {}
    grouped["run"]["group"] = 5  # as an earlier version recorded frames in batches
    write_state(whole, Shard(), grouped)
    assert "group = 5 (now 1)" in refuse(*base, "--out", whole)
    for path in sorted((whole / "entropy").glob("*.png")):
        assert not cv2.imread(str(path), cv2.IMREAD_UNCHANGED)[48:].any()


@pytest.mark.parametrize(
    "parts", [["--seed 3 --size 64x128 --overlay"], ["--shard 1/2", "--shard 2/2"]]
)
def test_a_flipped_bit_is_found_and_made_again(
    finetuned: Job, tmp_path: Path, capsys: pytest.CaptureFixture[str], parts: list[str]
) -> None:
    out = tmp_path / "maps"
    for more in parts:
        words = (
            f"predict --model {finetuned.abnn} --input {finetuned.frames} --out {out} --device cpu"
            f" --draws 4 {more}"
        )
        assert main(words.split()) == 0
    before = tree(out)
    victim = sorted((out / "entropy").rglob("*.png"))[1]
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 4
    victim.write_bytes(data)
    capsys.readouterr()
    assert (
        main(
            [
                "overlay",
                "--maps",
                str(out),
                "--score",
                "entropy",
                "--out",
                str(tmp_path / "overlays"),
            ]
        )
        == 1
    )
    assert f"{victim} was changed since it was written" in (said := capsys.readouterr()).err, said
    assert "make it again" in said.err
    for more in parts:
        words = (
            f"predict --model {finetuned.abnn} --input {finetuned.frames} --out {out} --device cpu"
            f" --draws 4 {more}"
        )
        assert main([*words.split(), "--verify"]) == 0
    assert tree(out) == before


def test_shards_at_once_write_the_bytes_of_one_process(finetuned: Job, tmp_path: Path) -> None:
    slow = f"--draws 40 --scores entropy,epistemic --threads 1 {FAST}"
    command = ("predict --model", finetuned.abnn, "--input", finetuned.video, slow)
    succeed(*command, "--out", tmp_path / "one", apart=True)
    out = tmp_path / "many"
    first, second = (Command(*command, "--out", out, "--shard", shard) for shard in ("1/2", "2/2"))
    log, end = out / "frames.2-of-2.jsonl", time.monotonic() + 120
    while not (log.exists() and log.read_bytes().count(b"\n") >= 1):
        assert time.monotonic() < end, second.kill().stderr
        time.sleep(0.002)
    second.kill()
    assert first.wait().code == 0
    again = succeed(*command, "--out", out, "--shard", "2/2", apart=True).stdout
    assert not re.search(r"\b0 were finished before", again), (
        "what was on disk is not computed again"
    )
    ours, theirs = tree(out), tree(tmp_path / "one")
    logs = [name for name in ours if name.startswith("frames.") and name.endswith(".jsonl")]
    assert logs == ["frames.1-of-2.jsonl", "frames.2-of-2.jsonl"]
    assert sorted(b"".join(ours.pop(n) for n in logs).splitlines()) == sorted(
        theirs.pop("frames.jsonl").splitlines()
    )
    assert len([ours.pop(name) for name in list(ours) if name.startswith("manifest.")]) == 2
    assert ours == theirs
    assert "begun in 2 shards" in refuse(*command, "--out", out)
