"""``segunc predict --engine ray``: everything that can be wrong is found here, before a cluster starts."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from segunc.core.device import resolve_device, threads
from segunc.core.errors import InputError
from segunc.core.locks import HeldError
from segunc.core.progress import ConsoleProgress, Progress
from segunc.maps.folder import refuse_foreign
from segunc.maps.manifest import read_manifest, refuse_other_run
from segunc.maps.pipeline import Summary
from segunc.maps.shards import Shard
from segunc.options import PredictOptions, several
from segunc.scale import MakeWork, Pool, ShardResult, ShardTask, require_ray, run_shards
from segunc.verbs import predict as local
from segunc.verbs.execution import Execution

CORES_PER_WORKER = 4
"""CPU cores of a worker unless --threads says otherwise."""
SHARDS_PER_WORKER = 4
"""For images, so that a slow machine holds up a quarter of its work at most; every shard of a video decodes it from its start."""
PATIENCE_SECONDS = 120.0
"""How long a worker waits for the lock of its shard. That of a process that died is free at once, that of a machine when the file server
ends its lease (on NFS version 4 after 90 s, as Linux serves it). Without locks in the file system, that of another host is believed: two
writers would be worse than a shard that a person has to set free."""
POLL_SECONDS = 5.0


def predict_on_cluster(
    options: PredictOptions, on_input: local.OnInput | None, on_note: local.OnNote | None
) -> local.PredictResult:
    """Do the work of :func:`segunc.verbs.predict.predict` with the workers of a cluster.

    Raises:
        InputError: it cannot be done on one.
        PartialFailure: a worker could not start; what others finished is kept.
    """
    require_ray()
    _refuse_unfit(options)
    options = _anywhere(options)
    on_gpu = options.device == "cuda"
    # A head without a GPU can plan for workers that have one.
    here = "cuda" if on_gpu and torch.cuda.is_available() else "cpu"
    with local.open_job(replace(options, device=here)) as job:
        job.say_left_out(on_note)
        usual = CORES_PER_WORKER if options.ray_address is not None else min(CORES_PER_WORKER, os.cpu_count() or 1)
        cores = options.threads or job.recorded_threads or usual
        options = replace(options, threads=cores)
        with threads(cores):  # the manifest records them
            units = torch.cuda.device_count() if on_gpu else (os.cpu_count() or 1) // cores
            workers = options.workers or max(1, units)
            executions, tasks = [], list[ShardTask]()
            for place, target in enumerate(job.inputs):
                if here != options.device and options.chunk is None and read_manifest(target.out) is None:
                    raise InputError(
                        "without --chunk, the draws in a batch follow from the memory of a GPU, and this machine has none",
                        hint="add --chunk 8",
                    )
                executions.append(local.execution_of(job, place))
                count = _shard_count(options, job, place, workers)
                tasks += [ShardTask(place, number, count) for number in range(1, count + 1)]
                _check_folder(job, place, executions[-1], same_device=here == options.device)
            tasks.sort(key=lambda task: task.number)
            begun, work = time.monotonic(), partial(ShardWork, options, executions)
            results = _collect(job, work, tasks, Pool(workers, cores, int(on_gpu), options.ray_address))
            return _conclude(job, results, time.monotonic() - begun)


def _anywhere(options: PredictOptions) -> PredictOptions:
    """Return options that mean the same in the folder and on the device of a worker."""

    def absolute(path: str | Path) -> str:
        return str(Path(path).expanduser().absolute())

    on_gpu = options.device == "cuda" or resolve_device(options.device).type == "cuda"
    return replace(
        options,
        model=absolute(options.model),
        input=[absolute(spec) for spec in several(options.input)],
        out=absolute(options.out),
        mask=absolute(options.mask) if options.mask else None,
        device="cuda" if on_gpu else "cpu",
    )


def _refuse_unfit(options: PredictOptions) -> None:
    if options.shard:
        raise InputError(f"--shard {options.shard} does not go with --engine ray", hint="--shards N cuts the work")
    if options.overwrite:
        raise InputError("--overwrite does not go with --engine ray", hint=f"remove {options.out} first")
    if ":" in options.device:
        raise InputError(
            f"--device {options.device} with --engine ray: Ray deals out the devices", hint="--device cuda"
        )
    if options.ray_address is not None and options.workers is None:
        raise InputError(
            "--ray-address without --workers: how many to start there is not known", hint="add --workers, one a GPU"
        )


def _shard_count(options: PredictOptions, job: local.Job, place: int, workers: int) -> int:
    """Return the shards of an input: as its maps folder was begun, else as asked for, else so that all workers have work."""
    out, source = job.inputs[place].out, job.sources[place]
    manifest = read_manifest(out)
    if manifest is not None:
        count = int(manifest.get("shards", 1))
        if options.shards not in (None, count):
            raise InputError(
                f"--shards {options.shards} for {out}, which was begun in {count}", hint="leave --shards out"
            )
        return count
    wanted = options.shards or -(-workers * (1 if source.kind == "video" else SHARDS_PER_WORKER) // len(job.sources))
    return max(1, min(wanted, source.length or source.length_hint or wanted))


def _check_folder(job: local.Job, place: int, execution: Execution, *, same_device: bool) -> None:
    """Refuse here what every worker would refuse."""
    out, manifest = job.inputs[place].out, local.run_manifest(job, place, execution)
    if job.overlay:
        local.overlay_drawer(job.overlay, manifest)
    before = read_manifest(out)
    if before is None:
        refuse_foreign(out)
    elif same_device:  # else precision and device of the workers are not known here
        refuse_other_run(out, before.get("run", {}), manifest["run"])


class ShardWork:
    """What a worker holds: the model, the sampler and the opened inputs; each input is computed the same on every machine."""

    def __init__(self, options: PredictOptions, executions: Sequence[Execution]) -> None:
        self._executions = executions
        self._open = local.open_job(options)  # for as long as the worker lives
        self._job = self._open.__enter__()

    def __call__(self, task: ShardTask) -> ShardResult:
        """Predict the shard, waiting for its lock."""
        execution, shard = self._executions[task.input], Shard(task.number, task.count)
        end = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                summary = local.predict_shard(self._job, task.input, shard, execution)
                break
            except HeldError:
                if time.monotonic() > end:
                    raise
            time.sleep(POLL_SECONDS)
        host, notes = socket.gethostname(), (*execution.notes, *self._job.sampler.report.messages)
        return ShardResult(task, summary.finished, summary.skipped, len(summary.failed), host=host, notes=notes)


def _collect(job: local.Job, make_work: MakeWork, tasks: Sequence[ShardTask], pool: Pool) -> list[ShardResult]:
    lengths = [source.length or source.length_hint for source in job.sources]
    total = None if None in lengths else sum(filter(None, lengths))
    results: list[ShardResult] = []
    begun = time.monotonic()
    with ConsoleProgress(label=f"{len(tasks)} shards, {pool.workers} workers") as show:
        for result in run_shards(make_work, tasks, pool):
            results.append(result)
            finished, failed, skipped = (sum(getattr(r, n) for r in results) for n in ("finished", "failed", "skipped"))
            show(Progress(finished, failed, skipped, total, time.monotonic() - begun))
    return results


def _conclude(job: local.Job, results: Sequence[ShardResult], seconds: float) -> local.PredictResult:
    """Sum up what is there now, and what is not."""
    inputs, problems = [], []
    for place, target in enumerate(job.inputs):
        done = sorted((r for r in results if r.task.input == place), key=lambda r: r.task.number)
        finished, skipped = sum(r.finished for r in done), sum(r.skipped for r in done)
        failed = {f["name"]: f["reason"] for f in (read_manifest(target.out) or {}).get("failed", [])}
        label = f"{target.label}: " if target.label else ""
        if unfinished := [r for r in done if r.error]:
            first = f"first {unfinished[0].task.number}/{unfinished[0].task.count} ({unfinished[0].error})"
            count = f"{label}{len(unfinished)} of {len(done)} shards did not reach their end"
            problems.append(f"{count}, {first}; what was finished is kept and the same command goes on")
        if failure := Summary(finished, skipped, failed).failure:
            problems.append(f"{label}{failure}")
        how = f"{len(done)} shards on {len({r.host for r in done if r.host})} machines"
        video = local.overlay_video(job, place)
        inputs.append(local.InputResult(target.out, target.label, "", finished, skipped, failed, seconds, how, video))
    notes = tuple(sorted({note for result in results for note in result.notes}))
    return local.PredictResult(Path(job.options.out), tuple(inputs), notes, "; ".join(problems), job.left_out)
