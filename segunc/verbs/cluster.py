"""``segunc predict --engine ray``: everything that can be wrong is found here, before a cluster starts."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from segunc.core.device import resolve_device, threads
from segunc.core.errors import InputError, PartialFailure, failure_of
from segunc.core.locks import HeldError
from segunc.core.progress import ConsoleProgress, Progress
from segunc.maps.folder import refuse_foreign
from segunc.maps.manifest import read_manifest, refuse_other_run
from segunc.maps.pipeline import Summary
from segunc.maps.shards import Shard
from segunc.options import PredictOptions
from segunc.scale import Pool, ShardResult, ShardTask, require_ray, run_shards
from segunc.verbs.execution import Execution
from segunc.verbs.predict import (
    InputResult,
    Job,
    PredictResult,
    execution_of,
    overlay_drawer,
    overlay_video,
    predict_shard,
    read_options,
    run_manifest,
)

CORES_PER_WORKER = 4
"""CPU cores of a worker unless ``--threads`` says otherwise."""
SHARDS_PER_WORKER = 4
"""For images: more than one, so that a slow machine holds up a quarter of its work at most. Every shard of a video
decodes it from its start, so there it is one."""
PATIENCE_SECONDS = 120.0
"""How long a worker waits for the lock of its shard. The lock of a process that died is free at once. That of a machine that
died is freed by the file server when its lease ends: on NFS version 4 after 90 s, as Linux serves it. Where the file
system knows no locks, only the process ids of this host can be checked; a lock of another host is believed, for two
writers would be worse than a shard that a person has to set free."""
POLL_SECONDS = 5.0
WRITE_ATTEMPTS = 3
"""A shared file system may refuse for a moment."""


@dataclass(frozen=True)
class Plan:
    """What the workers get."""

    options: PredictOptions  # with absolute paths, a device without a number and the number of threads
    job: Job  # the inputs, opened here
    pool: Pool
    tasks: Sequence[ShardTask]  # the shards of all inputs
    executions: Sequence[Execution]  # for each input how it is computed, the same on every machine


def predict_on_cluster(options: PredictOptions) -> PredictResult:
    """:func:`segunc.verbs.predict.predict` by the workers of a cluster.

    Raises:
        InputError: what was given cannot be predicted, or not on a cluster.
        PartialFailure: a worker could not start; what others finished is kept.
    """
    require_ray()
    with make_plan(options) as plan:
        begun = time.monotonic()
        results = _collect(plan)
        return _conclude(plan, results, time.monotonic() - begun)


@contextlib.contextmanager
def make_plan(options: PredictOptions) -> Iterator[Plan]:
    """Open the inputs, load the model, and look at the maps folders."""
    _refuse_unfit(options)
    on_gpu = options.device == "cuda" or resolve_device(options.device).type == "cuda"
    given = [options.input] if isinstance(options.input, str | Path) else options.input

    def absolute(path: str | Path) -> str:
        return str(Path(path).expanduser().absolute())

    options = replace(
        options,
        # A worker runs in another folder.
        model=absolute(options.model),
        input=[absolute(spec) for spec in given],
        out=absolute(options.out),
        mask=absolute(options.mask) if options.mask else None,
        device="cuda" if on_gpu else "cpu",
    )
    # A head without a GPU can plan for workers that have one.
    here = "cuda" if on_gpu and torch.cuda.is_available() else "cpu"
    with read_options(replace(options, device=here)).open() as job:
        own = CORES_PER_WORKER if options.ray_address is not None else min(CORES_PER_WORKER, os.cpu_count() or 1)
        cores = options.threads or job.recorded_threads or own
        options = replace(options, threads=cores)
        with threads(cores):  # the manifest records them
            units = torch.cuda.device_count() if on_gpu else (os.cpu_count() or 1) // cores
            workers = options.workers or max(1, units)
            executions, shards = [], []
            for place in range(len(job.sources)):
                executions.append(_execution(options, job, place, on_gpu and here == "cpu"))
                shards.append(_shard_count(options, job, place, workers))
                _check_folder(options, job, place, executions[-1], same_device=here == options.device)
            tasks = [
                ShardTask(place, number, count)
                for number in range(1, max(shards) + 1)
                for place, count in enumerate(shards)
                if number <= count
            ]
            yield Plan(options, job, Pool(workers, cores, int(on_gpu), options.ray_address), tasks, executions)


def _refuse_unfit(options: PredictOptions) -> None:
    if options.shard:
        raise InputError(f"--shard {options.shard} with --engine ray", "one of the two", "--shards N cuts the work")
    if options.overwrite:
        remedy = f"remove {options.out} first"
        raise InputError("--overwrite with --engine ray", "a new folder, or one to continue", remedy)
    for option, value in (("--workers", options.workers), ("--shards", options.shards)):
        if value is not None and value < 1:
            raise InputError(f"{option} {value}", "at least 1", "leave it out for the default")
    if options.smooth is not None and (options.shards or 1) > 1:
        given = f"--smooth with --shards {options.shards}: each frame needs all before it"
        raise InputError(given, "one shard an input", "leave --shards out; several videos run at once")
    if ":" in options.device:
        raise InputError(f"--device {options.device} with --engine ray", "cuda", "Ray deals out the devices")
    if options.ray_address is not None and options.workers is None:
        raise InputError("--ray-address without --workers", "how many workers to start there", "one a GPU, for example")


def _shard_count(options: PredictOptions, job: Job, place: int, workers: int) -> int:
    """Shards of an input: as its maps folder was begun, else as asked for, else so that all workers have work."""
    out, source = job.request.inputs[place].out, job.sources[place]
    before = read_manifest(out)
    if before is not None:
        count = int(before.get("shards", 1))
        if options.shards not in (None, count):
            given = f"--shards {options.shards} for {out}, which was begun in {count}"
            raise InputError(given, f"--shards {count}", "leave --shards out")
        return count
    if options.smooth is not None:
        return 1
    wanted = options.shards or -(-workers * (1 if source.kind == "video" else SHARDS_PER_WORKER) // len(job.sources))
    return max(1, min(wanted, source.length or source.length_hint or wanted))


def _execution(options: PredictOptions, job: Job, place: int, gpu_elsewhere: bool) -> Execution:
    if gpu_elsewhere and options.chunk is None and read_manifest(job.request.inputs[place].out) is None:
        raise InputError(
            "--engine ray with --device cuda from a machine without CUDA",
            "--chunk, the draws in a batch",
            "it follows from the memory of a GPU that is not here; 8 is a fair beginning",
        )
    return execution_of(job, place)


def _check_folder(options: PredictOptions, job: Job, place: int, execution: Execution, *, same_device: bool) -> None:
    """Refuse here what every worker would refuse."""
    out, manifest = job.request.inputs[place].out, run_manifest(job, place, execution)
    if options.overlay:
        overlay_drawer(options.overlay_score, manifest)
    before = read_manifest(out)
    if before is None:
        refuse_foreign(out)
    elif same_device:  # else precision and device of the workers are not known here
        refuse_other_run(out, before.get("run", {}), manifest["run"])


class ShardWork:
    """What a worker holds: the model, the sampler and the opened inputs of a :class:`Plan`'s options."""

    def __init__(self, options: PredictOptions, executions: Sequence[Execution]) -> None:
        self._executions = executions
        self._open = read_options(options).open()  # for as long as the worker lives
        self._job = self._open.__enter__()

    def __call__(self, task: ShardTask) -> ShardResult:
        """Predict the shard, waiting for its lock and beginning again where a file could not be written."""
        execution, shard = self._executions[task.input], Shard(task.number, task.count)
        end, writes = time.monotonic() + PATIENCE_SECONDS, 0
        while True:
            try:
                summary = predict_shard(self._job, task.input, shard, execution)
                break
            except HeldError:
                if time.monotonic() > end:
                    raise
            except PartialFailure:
                writes += 1
                if writes == WRITE_ATTEMPTS:
                    raise
            time.sleep(POLL_SECONDS)
        host, notes = socket.gethostname(), (*execution.notes, *self._job.sampler.report.messages)
        return ShardResult(task, summary.finished, summary.skipped, len(summary.failed), host=host, notes=notes)


def _collect(plan: Plan) -> list[ShardResult]:
    lengths = [source.length or source.length_hint for source in plan.job.sources]
    total = None if None in lengths else sum(filter(None, lengths))
    results: list[ShardResult] = []
    begun = time.monotonic()
    with ConsoleProgress(label=f"{len(plan.tasks)} shards, {plan.pool.workers} workers") as show:
        for result in run_shards(partial(ShardWork, plan.options, plan.executions), plan.tasks, plan.pool):
            results.append(result)
            finished, failed, skipped = (
                sum(getattr(r, name) for r in results) for name in ("finished", "failed", "skipped")
            )
            show(Progress(finished, failed, skipped, total, time.monotonic() - begun))
    return results


def _conclude(plan: Plan, results: Sequence[ShardResult], seconds: float) -> PredictResult:
    """What is there now, and what is not."""
    by_task = {result.task: result for result in results}
    inputs, problems = [], []
    for place, given in enumerate(plan.job.request.inputs):
        mine = [task for task in plan.tasks if task.input == place]
        done = [by_task[task] for task in mine if task in by_task]
        finished, skipped = sum(r.finished for r in done), sum(r.skipped for r in done)
        failed = {f["name"]: f["reason"] for f in (read_manifest(given.out) or {}).get("failed", [])}
        name = f"{given.label}: " if given.label else ""
        unfinished = [(task, by_task[task].error if task in by_task else "Ray lost it") for task in mine]
        unfinished = [(task, reason) for task, reason in unfinished if reason]
        if unfinished:
            task, reason = unfinished[0]
            problems.append(
                f"{name}{len(unfinished)} of {len(mine)} shards did not reach their end, first {task.number}/{task.count} "
                f"({reason}); what was finished is kept and the same command goes on"
            )
        if failure := failure_of(Summary(finished, skipped, failed).raise_failures):
            problems.append(f"{name}{failure}")
        how = f"{len(mine)} shards on {len({result.host for result in done})} machines"
        video = overlay_video(plan.job, place)
        inputs.append(InputResult(given.out, given.label, "", finished, skipped, failed, seconds, how, video))
    notes = tuple(sorted({note for result in results for note in result.notes}))
    return PredictResult(plan.job.request.out, tuple(inputs), notes, "; ".join(problems))
