"""``segunc predict --engine ray``: shards to the workers of a cluster, every worker doing what ``--shard i/n`` does."""

from __future__ import annotations

import argparse
import socket
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial

from segunc.commands.cluster_plan import Plan, make_plan
from segunc.commands.execution import Execution
from segunc.commands.predict import predict_shard, prepare
from segunc.commands.run_overlays import write_overlay_video
from segunc.errors import PartialFailure
from segunc.maps.inputs import Input
from segunc.maps.locks import HeldError
from segunc.maps.manifest import read_manifest
from segunc.maps.pipeline import Progress, Summary
from segunc.maps.progress import ConsoleProgress
from segunc.maps.shards import Shard
from segunc.maps.sources import FrameSource
from segunc.scale.ray_pool import require_ray, run_shards
from segunc.scale.shard_results import MakeWork, ShardResult, ShardTask

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
