"""The plan of ``segunc predict --engine ray``: everything that can be wrong is found here, before a cluster starts."""

from __future__ import annotations

import argparse
import os
import socket
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from segunc.core.device import resolve_device
from segunc.core.errors import InputError, PartialFailure
from segunc.core.locks import HeldError
from segunc.core.progress import ConsoleProgress, Progress
from segunc.frames.sources import FrameSource, Input
from segunc.maps.folder import refuse_foreign
from segunc.maps.manifest import read_manifest, refuse_other_run
from segunc.maps.pipeline import Summary
from segunc.maps.shards import Shard
from segunc.scale.ray_pool import MakeWork, Pool, ShardResult, ShardTask, require_ray, run_shards
from segunc.verbs.execution import Execution
from segunc.verbs.predict import (
    Job,
    execution_of,
    overlay_drawer,
    predict_shard,
    prepare,
    run_manifest,
    write_overlay_video,
)

CORES_PER_WORKER = 4
"""CPU cores of a worker unless ``--threads`` says otherwise."""
SHARDS_PER_WORKER = 4
"""For images: more than one, so that a slow machine holds up a quarter of its work at most. Every shard of a video
decodes it from its start, so there it is one."""


@dataclass(frozen=True)
class Plan:
    """What the workers get.

    Attributes:
        arguments: of the verb, with absolute paths, a device without a number and the number of threads.
        job: the inputs, opened here.
        pool: the workers.
        tasks: the shards of all inputs.
        executions: for each input how it is computed, the same on every machine.
    """

    arguments: argparse.Namespace
    job: Job
    pool: Pool
    tasks: Sequence[ShardTask]
    executions: Sequence[Execution]


def make_plan(arguments: argparse.Namespace) -> Plan:
    """Open the inputs, load the model, and look at the maps folders.

    Raises:
        InputError: what was given cannot be predicted, or not on a cluster.
    """
    _refuse_unfit(arguments)
    arguments = _with_absolute_paths(arguments)
    on_gpu = arguments.device == "cuda" or resolve_device(arguments.device).type == "cuda"
    arguments.device = "cuda" if on_gpu else "cpu"
    # A head without a GPU can plan for workers that have one.
    here = argparse.Namespace(**vars(arguments))
    here.device = "cuda" if on_gpu and torch.cuda.is_available() else "cpu"
    job = prepare(here, Shard())
    arguments.threads = here.threads or _default_threads(arguments.ray_address)
    torch.set_num_threads(arguments.threads)  # the manifest records them
    workers = arguments.workers or _default_workers(arguments)
    executions, shards = [], []
    for given, source in job.inputs:
        executions.append(_execution(here, job, given, source, on_gpu))
        shards.append(_shard_count(arguments, given, source, workers, len(job.inputs)))
        _check_folder(arguments, here.device, job, given, source, executions[-1])
    tasks = [
        ShardTask(place, number, count)
        for number in range(1, max(shards) + 1)
        for place, count in enumerate(shards)
        if number <= count
    ]
    pool = Pool(workers, arguments.threads, int(on_gpu), arguments.ray_address)
    return Plan(arguments, job, pool, tasks, executions)


def _with_absolute_paths(arguments: argparse.Namespace) -> argparse.Namespace:
    """A copy whose paths mean the same in a worker, which runs in another folder."""
    copy = argparse.Namespace(**vars(arguments))
    for name in ("model", "out", "mask"):
        path = getattr(copy, name)
        setattr(copy, name, None if path is None else _absolute(path))
    copy.input = [_absolute(spec) for spec in copy.input]
    return copy


def _absolute(path: str) -> str:
    return str(Path(path).expanduser().absolute())


def _refuse_unfit(arguments: argparse.Namespace) -> None:
    if arguments.shard:
        raise InputError(f"--shard {arguments.shard} with --engine ray", "one of the two", "--shards N cuts the work")
    if arguments.overwrite:
        raise InputError(
            "--overwrite with --engine ray", "a new folder, or one to continue", f"remove {arguments.out} first"
        )
    for option, value in (("--workers", arguments.workers), ("--shards", arguments.shards)):
        if value is not None and value < 1:
            raise InputError(f"{option} {value}", "at least 1", "leave it out for the default")
    if arguments.smooth is not None and (arguments.shards or 1) > 1:
        raise InputError(
            f"--smooth with --shards {arguments.shards}: each frame needs all before it",
            "one shard an input",
            "leave --shards out; several videos run at once",
        )
    if ":" in arguments.device:
        raise InputError(f"--device {arguments.device} with --engine ray", "cuda", "Ray deals out the devices")
    if arguments.ray_address is not None and arguments.workers is None:
        raise InputError("--ray-address without --workers", "how many workers to start there", "one a GPU, for example")


def _default_threads(address: str | None) -> int:
    return CORES_PER_WORKER if address is not None else min(CORES_PER_WORKER, os.cpu_count() or 1)


def _default_workers(arguments: argparse.Namespace) -> int:
    if arguments.device == "cuda":
        return max(1, torch.cuda.device_count())
    return max(1, (os.cpu_count() or 1) // int(arguments.threads))


def _shard_count(arguments: argparse.Namespace, given: Input, source: FrameSource, workers: int, inputs: int) -> int:
    """Shards of an input: as its maps folder was begun, else as asked for, else so that all workers have work."""
    before = read_manifest(given.out)
    if before is not None:
        count = int(before.get("shards", 1))
        if arguments.shards not in (None, count):
            raise InputError(
                f"--shards {arguments.shards} for {given.out}, which was begun in {count}",
                f"--shards {count}",
                "leave --shards out",
            )
        return count
    if arguments.smooth is not None:
        return 1
    wanted = arguments.shards or -(-workers * (1 if source.kind == "video" else SHARDS_PER_WORKER) // inputs)
    return max(1, min(wanted, source.length or source.length_hint or wanted))


def _execution(here: argparse.Namespace, job: Job, given: Input, source: FrameSource, on_gpu: bool) -> Execution:
    if on_gpu and here.device == "cpu" and here.chunk is None and read_manifest(given.out) is None:
        raise InputError(
            "--engine ray with --device cuda from a machine without CUDA",
            "--chunk, the draws in a batch",
            "it follows from the memory of a GPU that is not here; 8 is a fair beginning",
        )
    return execution_of(here, job, given, source)


def _check_folder(
    arguments: argparse.Namespace,
    device_here: str,
    job: Job,
    given: Input,
    source: FrameSource,
    execution: Execution,
) -> None:
    """Refuse here what every worker would refuse."""
    manifest = run_manifest(arguments, job, source, execution)
    if arguments.overlay:
        overlay_drawer(arguments.overlay_score, manifest)
    before = read_manifest(given.out)
    if before is None:
        refuse_foreign(given.out)
    elif device_here == arguments.device:  # else precision and device of the workers are not known here
        refuse_other_run(given.out, before.get("run", {}), manifest["run"])


PATIENCE_SECONDS = 120.0
"""How long a worker waits for the lock of its shard. The lock of a process that died is free at once. That of a machine that
died is freed by the file server when its lease ends: on NFS version 4 after 90 s, as Linux serves it. Where the file
system knows no locks, only the process ids of this host can be checked; a lock of another host is believed, for two
writers would be worse than a shard that a person has to set free."""
POLL_SECONDS = 5.0
WRITE_ATTEMPTS = 3
"""A shared file system may refuse for a moment."""


def run(arguments: argparse.Namespace) -> None:
    """Check everything here, start the workers, and say what came of it."""
    require_ray()
    plan = make_plan(arguments)
    begun = time.monotonic()
    results = _collect(partial(ShardWork, plan.arguments, plan.executions), plan)
    seconds = time.monotonic() - begun
    for note in sorted({note for result in results for note in result.notes}):
        print(f"note: {note}")
    _conclude(plan, results, seconds)


class ShardWork:
    """What a worker holds: the model, the sampler and the opened inputs.

    Args:
        arguments: of the verb, with absolute paths and with the number of threads.
        executions: for each input how it is computed, the same on every machine.
    """

    def __init__(self, arguments: argparse.Namespace, executions: Sequence[Execution]) -> None:
        self._arguments, self._executions = arguments, executions
        self._job = prepare(argparse.Namespace(**vars(arguments)), Shard())

    def __call__(self, task: ShardTask) -> ShardResult:
        given, source = self._job.inputs[task.input]
        summary = self._predict(given, source, Shard(task.number, task.count), self._executions[task.input])
        notes = tuple(self._job.sampler.report.messages)
        return ShardResult(
            task, summary.finished, summary.skipped, len(summary.failed), host=socket.gethostname(), notes=notes
        )

    def _predict(self, given: Input, source: FrameSource, shard: Shard, execution: Execution) -> Summary:
        """The shard, waiting for its lock and beginning again where a file could not be written."""
        end, writes = time.monotonic() + PATIENCE_SECONDS, 0
        while True:
            try:
                return predict_shard(self._arguments, self._job, given, source, shard, execution)
            except HeldError:
                if time.monotonic() > end:
                    raise
            except PartialFailure:
                writes += 1
                if writes == WRITE_ATTEMPTS:
                    raise
            time.sleep(POLL_SECONDS)


def _collect(make_work: MakeWork, plan: Plan) -> list[ShardResult]:
    lengths = [source.length or source.length_hint for _, source in plan.job.inputs]
    total = None if None in lengths else sum(filter(None, lengths))
    results: list[ShardResult] = []
    begun = time.monotonic()
    with ConsoleProgress(label=f"{len(plan.tasks)} shards, {plan.pool.workers} workers") as show:
        for result in run_shards(make_work, plan.tasks, plan.pool):
            results.append(result)
            finished, failed, skipped = (
                sum(getattr(r, name) for r in results) for name in ("finished", "failed", "skipped")
            )
            show(Progress(finished, failed, skipped, total, time.monotonic() - begun))
    return results


def _conclude(plan: Plan, results: Sequence[ShardResult], seconds: float) -> None:
    """Say what is there now, and raise what is not."""
    by_task = {result.task: result for result in results}
    problems = []
    for place, (given, source) in enumerate(plan.job.inputs):
        mine = [task for task in plan.tasks if task.input == place]
        done = [by_task[task] for task in mine if task in by_task]
        finished, skipped = sum(r.finished for r in done), sum(r.skipped for r in done)
        hosts = Counter(result.host for result in done)
        print(
            f"{finished + skipped} frames in {given.out}: {finished} in {seconds:.1f} s, {skipped} were finished before; "
            f"{len(mine)} shards on {len(hosts)} machines"
        )
        name = f"{given.label}: " if given.label else ""
        problems += [f"{name}{problem}" for problem in _problems(mine, by_task)]
        manifest = read_manifest(given.out) or {}
        failures = {failure["name"]: failure["reason"] for failure in manifest.get("failed", [])}
        try:
            Summary(finished, skipped, failures).raise_failures()
        except PartialFailure as failure:
            problems.append(f"{name}{failure}")
        if plan.arguments.overlay and source.kind == "video" and manifest.get("status") == "finished":
            print(f"overlay video: {write_overlay_video(given.out, source)}")
    if problems:
        raise PartialFailure("; ".join(problems))


def _problems(tasks: Sequence[ShardTask], by_task: dict[ShardTask, ShardResult]) -> list[str]:
    reasons = {
        task: by_task[task].error if task in by_task else "Ray lost it"
        for task in tasks
        if task not in by_task or by_task[task].error
    }
    if not reasons:
        return []
    task, reason = next(iter(reasons.items()))
    return [
        f"{len(reasons)} of {len(tasks)} shards did not reach their end, first {task.number}/{task.count} ({reason}); "
        "what was finished is kept and the same command goes on"
    ]
