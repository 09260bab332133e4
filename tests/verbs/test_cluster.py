"""``predict --engine ray`` on a cluster of this machine, and what it refuses before it starts one."""

from __future__ import annotations

import os
import signal
import sys
import time
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest

import segunc
from segunc.core.errors import InputError
from segunc.maps.pipeline import Summary
from segunc.maps.shards import Shard
from segunc.verbs.predict import ShardResult, _cluster, run_shards
from tests.conftest import Job
from tests.verbs import processes
from tests.verbs.processes import FAST, Command
from tests.verbs.test_interrupted import tree

succeed, refuse = partial(processes.succeed, apart=True), partial(processes.refuse, apart=True)  # a cluster of its own
FEW = f"--draws 2 --scores entropy,epistemic {FAST}"
PATIENCE = 900.0  # seconds: a cluster starts in ten, and in minutes where all cores are busy
needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed (extra 'ray')")


@needs_ray
def test_a_cluster_writes_the_bytes_of_one_process_though_a_worker_is_killed(finetuned: Job, tmp_path: Path) -> None:
    slow = f"--draws 80 --scores entropy,epistemic --threads 1 --overlay {FAST}"
    command = ("predict --model", finetuned.abnn, "--input", finetuned.video, slow)
    succeed(*command, "--out", tmp_path / "one")
    out = tmp_path / "many"
    running = Command(*command, "--engine ray --workers 2", "--out", out)
    killed = kill_worker(running, out, "2-of-2")
    done = running.wait(PATIENCE)
    assert (done.code, done.error_lines) == (0, []), done.stderr
    # What was on disk when its worker died was not computed again.
    assert f"12 frames in {out}: {12 - killed} in" in done.stdout
    assert "; 2 shards" in done.stdout
    assert "overlay video: " in done.stdout
    ours, theirs = tree(out), tree(tmp_path / "one")
    logs = [name for name in ours if name.startswith("frames.") and name.endswith(".jsonl")]
    assert logs == ["frames.1-of-2.jsonl", "frames.2-of-2.jsonl"]
    assert sorted(b"".join(ours.pop(n) for n in logs).splitlines()) == sorted(theirs.pop("frames.jsonl").splitlines())
    records = [ours.pop(name) for name in list(ours) if name.startswith("manifest.")]
    assert len(records) == 2
    assert ours == theirs
    # By hand it goes on as it was begun, and in no other way.
    assert "6 were finished before" in succeed(*command, "--out", out, "--shard", "1/2").stdout
    assert "begun in 2 shards" in refuse(*command, "--out", out)


def kill_worker(running: Command, out: Path, shard: str) -> int:
    """SIGKILL the worker of a shard after its first frame, by the process id in its lock; the frames it had finished."""
    lock, log, end = out / f".lock.{shard}", out / f"frames.{shard}.jsonl", time.monotonic() + PATIENCE
    while not (log.exists() and log.read_bytes().count(b"\n") >= 1):
        assert running.process.exitcode is None, running.kill().stderr
        assert time.monotonic() < end, running.kill().stderr
        time.sleep(0.002)
    os.kill(int(lock.read_text().split()[0]), signal.SIGKILL)
    time.sleep(0.2)  # its last line may be on its way; a new worker takes seconds to start
    finished = log.read_bytes().count(b"\n")
    assert finished < 6
    return finished


@needs_ray
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--shard 1/2", "--shard does not go with --engine ray"),
        ("--overwrite", "--overwrite does not go with --engine ray"),
        ("--overlay --overlay-score deterministic-energy", "--overlay-score deterministic-energy"),
    ],
)
def test_what_does_not_fit_is_refused_before_a_cluster_starts(
    finetuned: Job, tmp_path: Path, words: str, message: str
) -> None:
    out = tmp_path / "out"
    command = ("predict --model", finetuned.abnn, "--input", finetuned.video, "--out", out, FEW)
    begun = time.monotonic()
    assert message in refuse(*command, "--engine ray", words)
    assert time.monotonic() - begun < 60
    assert not out.exists()


@needs_ray
def test_maps_of_other_settings_and_foreign_folders_are_refused(finetuned: Job, tmp_path: Path) -> None:
    command = ("predict --model", finetuned.abnn, "--input", finetuned.frames, FEW, "--threads 1")
    succeed(*command, "--out", tmp_path / "maps")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "file").write_text("x")
    for folder, words, said in (
        ("maps", "--seed 1", "was written with seed = 0 (now 1)"),
        ("foreign", "", "holds files but no manifest.json"),
    ):
        assert said in refuse(*command, f"--engine ray --workers 1 {words}", "--out", tmp_path / folder)


def deadly(place: int, shard: Shard) -> ShardResult:
    """The first shard kills its worker, the second cannot be predicted."""
    if shard.number == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if shard.number == 2:
        raise InputError("a is no image", hint="give another")
    return ShardResult(place, shard, Summary(finished=shard.number))


@needs_ray
def test_a_deadly_shard_does_not_take_the_others_with_it() -> None:
    with _cluster(2):
        shards = [(0, Shard(number, 4)) for number in range(1, 5)]
        results = {result.shard.number: result for result in run_shards(deadly, shards, 2, num_cpus=1)}
    assert "WorkerCrashedError" in results[1].error
    assert results[2].error.startswith("a is no image. Hint: give another, on ")
    assert [results[number].summary.finished for number in (3, 4)] == [3, 4]


def test_without_ray_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"`engine` ray needs Ray.*pip install 'segunc\[ray\]'"):
        segunc.predict("model", "input", "out", engine="ray")
