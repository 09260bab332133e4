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

from segunc.core.errors import InputError
from segunc.data.module import SegmentationDataModule
from segunc.frames.sources import open_source
from segunc.maps.manifest import read_manifest
from segunc.maps.shards import Shard, write_state
from segunc.metrics import MIoU
from segunc.options import PredictOptions
from segunc.posteriors.model import load_model
from segunc.verbs import execution
from segunc.verbs.execution import choose_chunk
from segunc.verbs.predict import predict
from tests.conftest import Job
from tests.maps.fakes import folder_bytes, write_pictures
from tests.support.sampled import small_sampler
from tests.verbs.processes import FAST, SMALL, Command, refuse, segunc, succeed


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


def count_lines(path: Path) -> int:
    """Return the number of lines of a file, 0 where it is not there yet."""
    return path.read_bytes().count(b"\n") if path.exists() else 0


def kill_after_three(out: Path, *command: object) -> int:
    """Kill a prediction into ``out`` that has finished three frames or more of twelve; how many."""
    lines = out / "frames.jsonl"
    running = Command(*command, "--out", out)
    kill_when(running, lambda: count_lines(lines) >= 3)
    finished = count_lines(lines)
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
    train = "train --trainer.max_epochs 12 --device cpu --config"
    command = (train, trained.train_config, "--out", out)
    running = Command(*command)
    wait_for(running, (out / "checkpoints" / "last.ckpt").exists)
    assert running.stop(signal.SIGTERM).code == 143
    assert not (out / "network.safetensors").exists()
    # Checkpoints of other settings are not continued: no configuration would describe the network.
    refusal = refuse(*command, "--optimisation.lr", 0.01)
    assert "optimisation.lr 0.001 there, 0.01 asked for" in refusal
    assert (out / "logs" / "metrics.csv").exists(), "what is refused moves no log"
    succeed(*command)
    measured = json.loads((out / "training.json").read_text())
    assert measured["resumed"] is True
    assert measured["steps"] == 24
    assert measured["epochs"] == 12
    assert not load_model(out).bayesian
    # The log goes on after the first epoch, whose validation was at step 1, and that of the killed
    # run stays.
    validated = validated_steps(out / "logs" / "metrics.csv")
    assert 1 < validated[0] < validated[-1] == 23
    assert (out / "logs" / "metrics-1.csv").exists()


def validated_steps(log: Path) -> list[int]:
    with log.open(newline="", encoding="utf-8") as file:
        return [int(row["step"]) for row in csv.DictReader(file) if row.get("val/miou")]


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_prediction_with_its_code_and_it_goes_on(
    finetuned: Job, tmp_path: Path, kind: signal.Signals
) -> None:
    out = tmp_path / "out"
    lines = out / "frames.jsonl"
    words = ("--model", finetuned.abnn, "--input", finetuned.video, "--out", out)
    command = ("predict --device cpu --draws 8", *words)
    running = Command(*command)
    wait_for(running, lambda: count_lines(lines) >= 1)
    done = running.stop(kind)
    assert done.code == 128 + kind, done.stderr
    assert done.error_lines == [
        "segunc predict: interrupted; what is finished is kept, and the same command goes on from"
        " there"
    ]
    finished = count_lines(lines)
    assert 1 <= finished < 12
    assert re.search(rf"\b{finished} (was|were) finished before", succeed(*command).stdout)


def test_a_finished_finetuning_is_not_trained_again(finetuned: Job) -> None:
    posterior = finetuned.abnn / "posterior.safetensors"
    before = posterior.read_bytes()
    words = ("--config", finetuned.finetune_config, "--out", finetuned.abnn, "--device cpu")
    succeed("finetune", "--base", finetuned.base, *words)
    assert posterior.read_bytes() == before


def test_finetuning_continues_only_from_the_same_base(finetuned: Job, tmp_path: Path) -> None:
    other = tmp_path / "other"
    succeed("train --seed 1 --device cpu --config", finetuned.train_config, "--out", other)
    words = ("--config", finetuned.finetune_config, "--out", finetuned.abnn, "--device cpu")
    assert "holds another network" in refuse("finetune", "--base", other, *words)
    # As of a killed run.
    description = finetuned.abnn / "network.json"
    hidden = tmp_path / "network.json"
    description.rename(hidden)
    assert "base_sha256" in refuse("finetune", "--base", other, *words)
    hidden.rename(description)


@pytest.mark.slow
def test_finetuning_with_two_processes_gives_one_loadable_model(
    trained: Job, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    words = ("--base", trained.base, "--config", trained.finetune_config, "--out", out)
    # The first process is forked here, the second is a fresh interpreter that Lightning starts.
    trainer = "--trainer.accelerator cpu --trainer.devices 2 --trainer.strategy ddp"
    command = "finetune --abnn.alpha 0.1 --data.batch_size 2"
    done = succeed(command, *words, trainer, apart=True)
    # Eight frames in batches of two on two processes are two steps an epoch, and two members have
    # an epoch each.
    model = load_model(out)
    assert model.record["provenance"]["steps"] == 4
    assert model.posterior.members == 2
    assert done.stdout.count("converted ") == 1
    assert done.stdout.count("wrote ") == 1


@pytest.mark.slow
def test_training_with_three_processes_gives_one_network(trained: Job, tmp_path: Path) -> None:
    """And the score of the four validation frames, of which two of the processes take one twice."""
    out = tmp_path / "out"
    trainer = "--trainer.accelerator cpu --trainer.devices 3 --trainer.strategy ddp"
    command = "train --data.batch_size 2 --config"
    done = succeed(command, trained.train_config, "--out", out, trainer, apart=True)
    # Eight frames in batches of two on three processes are one step.
    measured = json.loads((out / "training.json").read_text())
    assert measured["steps"] == 1
    assert measured["processes"] == 3
    network = load_model(out).network
    assert done.stdout.count("trained 1 epoch (1 step)") == 1
    miou = MIoU(network.description.num_classes)
    data = SegmentationDataModule("toy", str(trained.data), eval_batch_size=1)
    for batch in data.val_dataloader():
        miou.update(network.eval()(batch["image"]), batch["label"])
    assert measured["val_miou"] == pytest.approx(float(miou.compute()))


@pytest.mark.parametrize("verb", ["train", "finetune"])
def test_too_few_frames_for_all_processes_are_refused(
    trained: Job, tmp_path: Path, verb: str
) -> None:
    """Lightning would train nothing, and the network or the members would pass for trained ones."""
    config = {"train": trained.train_config, "finetune": trained.finetune_config}[verb]
    words = [verb, "--config", config, "--out", tmp_path / "out", "--data.batch_size 5"]
    if verb == "finetune":
        words += ["--base", trained.base]
    trainer = "--trainer.accelerator cpu --trainer.devices 2 --trainer.strategy ddp"
    message = refuse(*words, trainer, apart=True)
    assert "8 training frames for 2 processes are fewer than a batch of 5 for each" in message
    assert not (tmp_path / "out").exists()


PLAIN = PredictOptions("model", "input", "out")


def test_what_was_recorded_is_continued_and_what_is_given_wins(tmp_path: Path) -> None:
    write_pictures(tmp_path, 4)
    source = open_source(tmp_path)
    assert choose_chunk(PLAIN, small_sampler(), source, None) == 4
    recorded: dict[str, Any] = {"chunk": 2}
    assert choose_chunk(PLAIN, small_sampler(), source, recorded) == 2
    assert choose_chunk(replace(PLAIN, chunk=1), small_sampler(), source, recorded) == 1


def masked_prediction(job: Job, folder: Path) -> list[object]:
    mask = write_mask(folder)
    return ["predict --model", job.abnn, "--input", job.video, SMALL, "--mask", mask]


def test_masked_frames_killed_and_continued_give_the_same_bytes(
    finetuned: Job, tmp_path: Path
) -> None:
    command = masked_prediction(finetuned, tmp_path)
    whole = tmp_path / "whole"
    killed = tmp_path / "killed"
    succeed(*command, "--chunk 1 --out", whole)
    before = kill_after_three(killed, *command, "--chunk 1")
    done = succeed(*command, "--out", killed)  # the chunk comes from the manifest
    assert re.search(rf"\b{before} (was|were) finished before", done.stdout)
    assert tree(killed) == tree(whole)
    assert len(tree(whole)) == 12 * 4 + 2  # frames.jsonl and the mask


def test_finished_maps_refuse_another_chunk_and_frames_in_batches(
    finetuned: Job, tmp_path: Path
) -> None:
    command = masked_prediction(finetuned, tmp_path)
    out = tmp_path / "maps"
    succeed(*command, "--chunk 1 --out", out)
    assert json.loads((out / "manifest.json").read_text())["run"]["chunk"] == 1
    assert "chunk = 1 (now 2)" in refuse(*command, "--chunk 2 --out", out)
    grouped = read_manifest(out) or {}
    grouped["run"]["group"] = 5  # as an earlier version recorded frames in batches
    write_state(out, Shard(), grouped)
    assert "group = 5 (now 1)" in refuse(*command, "--out", out)


def test_another_machine_goes_on_in_the_recorded_precision(
    finetuned: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = PredictOptions(
        model=finetuned.abnn,
        input=finetuned.video,
        out=tmp_path / "maps",
        draws=2,
        scores=["entropy"],
        device="cpu",
        threads=1,
    )
    recorded = replace(options, precision="bfloat16")
    predict(recorded)
    lost = tmp_path / "maps" / "entropy" / "000003.png"
    before = lost.read_bytes()
    lost.unlink()
    # As a machine chooses that does not multiply in bfloat16.
    monkeypatch.setattr(
        execution, "choose_precision", lambda text, *_: "float32" if text == "auto" else text
    )
    assert predict(options).frames == 1
    assert lost.read_bytes() == before
    with pytest.raises(InputError, match="Hint: with `precision` bfloat16 the run goes on; or"):
        predict(replace(options, precision="float32"))


def test_what_a_mask_hides_has_no_entropy(finetuned: Job, tmp_path: Path) -> None:
    out = tmp_path / "maps"
    succeed(*masked_prediction(finetuned, tmp_path), "--out", out)
    paths = list((out / "entropy").glob("*.png"))
    assert len(paths) == 12
    for path in paths:
        assert not cv2.imread(str(path), cv2.IMREAD_UNCHANGED)[48:].any()


@pytest.mark.parametrize(
    "parts",
    [
        ["--seed 3 --size 64x128 --overlay"],
        ["--shard 1/2", "--shard 2/2"],
    ],
)
def test_a_flipped_bit_is_found_and_made_again(
    finetuned: Job, tmp_path: Path, parts: list[str]
) -> None:
    out = tmp_path / "maps"
    words = ("--model", finetuned.abnn, "--input", finetuned.frames, "--out", out)
    for part in parts:
        predict_part(*words, part)
    before = tree(out)
    victim = sorted((out / "entropy").rglob("*.png"))[1]
    flip_a_bit(victim)
    overlays = tmp_path / "overlays"
    refusal = refuse("overlay --score entropy --maps", out, "--out", overlays, code=1)
    assert f"{victim} was changed since it was written" in refusal
    assert "make it again" in refusal
    for part in parts:
        predict_part(*words, part, "--verify")
    assert tree(out) == before


def predict_part(*words: object) -> None:
    done = segunc("predict --device cpu --draws 4", *words)
    assert done.code == 0, done.stderr


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def test_shards_at_once_write_the_bytes_of_one_process(finetuned: Job, tmp_path: Path) -> None:
    slow = f"--draws 40 --scores entropy,epistemic --threads 1 {FAST}"
    command = ("predict --model", finetuned.abnn, "--input", finetuned.video, slow)
    whole = tmp_path / "one"
    succeed(*command, "--out", whole, apart=True)
    out = tmp_path / "many"
    shard = (*command, "--out", out, "--shard")
    first = Command(*shard, "1/2")
    second = Command(*shard, "2/2")
    log = out / "frames.2-of-2.jsonl"
    end = time.monotonic() + 120
    while count_lines(log) < 1:
        assert time.monotonic() < end, second.kill().stderr
        time.sleep(0.002)
    second.kill()
    assert first.wait().code == 0
    again = succeed(*shard, "2/2", apart=True).stdout
    assert not re.search(r"\b0 were finished before", again), "a finished frame is made again"
    assert_bytes_of_one_process(tree(out), tree(whole))
    assert "finished before" in succeed(*command, "--out", out).stdout
    assert tree(out) == tree(whole), "shards that have all ended are one run"


def assert_bytes_of_one_process(sharded: dict[str, bytes], whole: dict[str, bytes]) -> None:
    """Maps are equal; lines are in two logs, and each of the shards has a manifest."""
    lines = []
    for name in ("frames.1-of-2.jsonl", "frames.2-of-2.jsonl"):
        lines += sharded.pop(name).splitlines()
    assert sorted(lines) == sorted(whole.pop("frames.jsonl").splitlines())
    manifests = [name for name in sharded if name.startswith("manifest.")]
    assert len(manifests) == 2
    for name in manifests:
        del sharded[name]
    assert sharded == whole
