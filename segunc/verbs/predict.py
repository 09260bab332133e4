"""``segunc predict``: maps of images, folders, globs or videos, in this process or by the workers of a cluster.

On a cluster each shard is a task of Ray, which writes its maps itself, so that only names and numbers travel. Ray repeats a task whose
worker died: the operating system gave up the lock of the dead process, and the shard goes on behind its last finished frame. What is wrong
with the options or the folders is said before a cluster starts.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import socket
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from segunc.core.device import describe_device, resolve_device, threads
from segunc.core.errors import InputError, PartialFailure, one_line
from segunc.core.progress import ConsoleProgress
from segunc.frames.sources import ImageSource
from segunc.maps.folder import refuse_foreign
from segunc.maps.manifest import read_manifest, refuse_other_run
from segunc.maps.pipeline import Summary
from segunc.maps.shards import Shard
from segunc.options import PredictOptions, several, takes
from segunc.verbs.execution import (
    Execution,
    Job,
    execution_of,
    open_job,
    overlay_drawer,
    overlay_video,
    predict_shard,
    run_manifest,
)

CORES_PER_WORKER = 4
"""CPU cores of a worker unless --threads says otherwise."""
SHARDS_PER_WORKER = 4
"""For images, so that a slow machine holds up a quarter of its work at most; every shard of a video decodes it from its start."""
RETRIES = 3
"""Of a shard whose worker died: a frame that kills every worker must not go round for ever."""
OBJECT_STORE_BYTES = 128 << 20
"""Of a cluster that is started here; results are a few hundred bytes each."""


class InputResult(NamedTuple):
    """What became of one input."""

    out: Path  # its maps folder
    label: str  # how it is called where there are several
    summary: Summary  # of its frames
    how: str  # they were computed, in words
    video: Path | None = None  # of the overlays


@dataclass(frozen=True)
class PredictResult:
    """What a run did."""

    out: Path  # the maps folder, or the folder of one for each input
    inputs: tuple[InputResult, ...]  # those that came to their end
    notes: tuple[str, ...] = ()  # what a user should know
    failure: str = ""  # what went wrong meanwhile, in one line; empty where nothing did. What was finished is kept

    @property
    def frames(self) -> int:
        """Frames whose maps were written now."""
        return sum(part.summary.finished for part in self.inputs)

    @property
    def skipped(self) -> int:
        """Frames that were finished before."""
        return sum(part.summary.skipped for part in self.inputs)

    @property
    def failed(self) -> dict[str, str]:
        """Frame -> why it has no maps; with several inputs, behind the input's label."""
        failures = ((part.label, name, why) for part in self.inputs for name, why in part.summary.failed.items())
        return {f"{label}/{name}" if label else name: why for label, name, why in failures}


OnInput = Callable[[InputResult], None]


class ShardResult(NamedTuple):
    """How a shard of the input at a place of the run ended."""

    place: int
    shard: Shard
    summary: Summary = Summary()
    error: str = ""  # why the shard did not reach its end; empty where it did
    notes: tuple[str, ...] = ()  # what a user should know


Predict = Callable[[int, Shard], ShardResult]  # predicts a shard of the input at a place of the run; must be picklable
_jobs: dict[str, tuple[Any, Job]] = {}  # that this process, a worker, has open, by the run


@takes(PredictOptions)
def predict(options: PredictOptions, on_input: OnInput | None = None) -> PredictResult:
    """Write the maps of every input, or continue a run that was killed. ``on_input`` hears of each input as it ends.

    Raises:
        InputError: what was given cannot be predicted.
        PartialFailure: the only input came to no end; what was finished is kept.

    >>> result = predict(PredictOptions(model=abnn, input=frames, out=folder / "maps", draws=4, device="cpu"))
    >>> result.frames, result.failed
    (2, {})
    >>> len(list((result.out / "epistemic").glob("*.png")))
    2
    """
    if options.engine != "local":
        return _predict_on_cluster(options, on_input)
    results, failures = [], []
    with open_job(options) as job:
        for place, target in enumerate(job.inputs):
            try:
                execution = execution_of(job, place)
                summary = predict_shard(job, place, job.shard, execution)
                if isinstance(source := job.sources[place], ImageSource):
                    source.depth.warn(source.path)
                sampler, compiled = job.sampler, ", compiled" if execution.compiled else ""
                how = f"{sampler.draws} draws, chunk {execution.chunk}, {sampler.precision}{compiled}"
                how = f"{how}, {describe_device(sampler.device)}"
                results.append(InputResult(target.out, target.label, summary, how, overlay_video(job, place)))
                if on_input is not None:
                    on_input(results[-1])
                failure = summary.failure
            except (InputError, PartialFailure) as error:
                if len(job.inputs) == 1:
                    raise
                failure = str(error)
            if failure:
                failures.append(f"{target.label}: {failure}" if target.label else failure)
    failure = failures[0] if failures else ""
    if failures and len(job.inputs) > 1:
        failure = f"{len(failures)} of {len(job.inputs)} inputs failed; {'; '.join(failures)}"
    return PredictResult(Path(options.out), tuple(results), tuple(job.sampler.report.messages), failure)


def _predict_on_cluster(options: PredictOptions, on_input: OnInput | None = None) -> PredictResult:
    """Do the work of :func:`segunc.verbs.predict.predict` with the workers of a cluster; InputError where it cannot be done on one."""
    # Ray reports its usage to its makers unless told otherwise before it starts, and gives its workers the priority of background work,
    # so that a busy desktop would starve what is the whole point of the run.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")
    if importlib.util.find_spec("ray") is None:
        raise InputError("--engine ray needs Ray", hint="pip install 'segunc[ray]'")
    for name in ("shard", "overwrite"):
        if getattr(options, name):
            raise InputError(f"--{name} does not go with --engine ray", hint="leave it out, or remove the maps folder")
    options = _anywhere(options)
    with open_job(options) as job:
        usual = min(CORES_PER_WORKER, os.cpu_count() or 1)
        options = replace(options, threads=options.threads or job.recorded_threads or usual)
        cores, gpus = options.threads or usual, int(job.sampler.device.type == "cuda")
        workers = options.workers or (torch.cuda.device_count() if gpus else max(1, (os.cpu_count() or 1) // cores))
        with threads(cores):  # the manifest records them
            executions = [_checked_execution(job, place) for place in range(len(job.inputs))]
        tasks = [(place, shard) for place in range(len(job.inputs)) for shard in _shards(job, place, workers)]
        predict, begun = partial(_predict, uuid.uuid4().hex, options, executions), time.monotonic()
        with _cluster(workers * cores), ConsoleProgress(unit="shard") as show:
            results: list[ShardResult] = []
            for result in run_shards(predict, tasks, workers, num_cpus=cores, num_gpus=gpus):
                results.append(result)
                show.count(len(results), len(tasks))
        return _conclude(job, results, time.monotonic() - begun, on_input)


def _anywhere(options: PredictOptions) -> PredictOptions:
    """Return options that mean the same in the folder and on the device of a worker, which Ray deals out."""
    names = ("model", "out", *(["mask"] if options.mask else []))
    paths: dict[str, Any] = {name: os.path.abspath(Path(getattr(options, name)).expanduser()) for name in names}
    inputs = [os.path.abspath(Path(spec).expanduser()) for spec in several(options.input)]
    return replace(options, **paths, input=inputs, device=resolve_device(options.device).type)


def _checked_execution(job: Job, place: int) -> Execution:
    """Return how an input is computed, and refuse here what every worker would refuse."""
    out, execution = job.inputs[place].out, execution_of(job, place)
    manifest, before = run_manifest(job, place, execution), read_manifest(out)
    if job.overlay:
        overlay_drawer(job.overlay, manifest)
    if before is None:
        refuse_foreign(out)
    else:
        refuse_other_run(out, before.get("run", {}), manifest["run"])
    return execution


def _shards(job: Job, place: int, workers: int) -> list[Shard]:
    """Return the shards of an input: as its maps folder was begun, else so many that all workers have work."""
    source, before = job.sources[place], read_manifest(job.inputs[place].out)
    usual = -(-workers * (1 if source.kind == "video" else SHARDS_PER_WORKER) // len(job.sources))
    count = max(1, min(usual, source.length or source.length_hint or usual))
    if before is not None:
        count = int(before.get("shards", 1))
    return [Shard(number, count) for number in range(1, count + 1)]


def run_shards(
    predict: Predict, tasks: Sequence[tuple[int, Shard]], workers: int, **resources: int
) -> Iterator[ShardResult]:
    """Yield the result of each shard as it ends, of at most so many at once; ``resources`` of each are Ray's."""
    import ray

    call = ray.remote(max_retries=RETRIES, **resources)(_call)
    waiting, calls = list(reversed(tasks)), dict[Any, tuple[int, Shard]]()
    while waiting or calls:
        while waiting and len(calls) < workers:
            task = waiting.pop()
            calls[call.remote(predict, *task)] = task
        reference = ray.wait(list(calls))[0][0]
        place, shard = calls.pop(reference)
        try:
            yield ray.get(reference)
        except ray.exceptions.RayError as error:
            yield ShardResult(place, shard, error=one_line(error))


def _call(predict: Predict, place: int, shard: Shard) -> ShardResult:
    """Predict a shard in a worker. What goes wrong is a returned text of one line."""
    try:
        return predict(place, shard)
    except Exception as error:
        return ShardResult(place, shard, error=f"{one_line(error)}, on {socket.gethostname()}")


def _predict(
    run: str, options: PredictOptions, executions: Sequence[Execution], place: int, shard: Shard
) -> ShardResult:
    """Predict a shard. The process loads the model and opens the inputs for its first one, for as long as it lives."""
    if run not in _jobs:
        opened = open_job(options)
        _jobs[run] = opened, opened.__enter__()
    job = _jobs[run][1]
    summary = predict_shard(job, place, shard, executions[place])
    return ShardResult(place, shard, summary, notes=tuple(job.sampler.report.messages))


@contextlib.contextmanager
def _cluster(cores: int) -> Iterator[None]:
    """Connect to the cluster that the environment names, or start one of this process; a connection that there is already is used."""
    import ray

    if ray.is_initialized():
        yield
        return
    address = os.environ.get("RAY_ADDRESS", "local")
    memory = {"object_store_memory": OBJECT_STORE_BYTES, "num_cpus": cores, "include_dashboard": False}
    try:
        ray.init(address, log_to_driver=False, logging_level=logging.CRITICAL, **(memory if address == "local" else {}))
    except Exception as error:  # Ray raises no narrower type where its processes do not answer in time
        ray.shutdown()
        raise PartialFailure(f"there is no Ray cluster at '{address}' ({one_line(error)})") from error
    try:
        yield
    finally:
        ray.shutdown()


def _conclude(job: Job, results: Sequence[ShardResult], seconds: float, on_input: OnInput | None) -> PredictResult:
    """Sum up what is there now, and what is not."""
    inputs, problems = [], []
    for place, target in enumerate(job.inputs):
        done = sorted((result for result in results if result.place == place), key=lambda result: result.shard.number)
        parts, label = [result.summary for result in done], f"{target.label}: " if target.label else ""
        failed = {name: why for part in parts for name, why in part.failed.items()}
        whole = Summary(sum(part.finished for part in parts), sum(part.skipped for part in parts), failed, seconds)
        if broken := [result for result in done if result.error]:
            count = f"{label}{len(broken)} of {len(done)} shards did not reach their end"
            first = f"first {broken[0].shard} ({broken[0].error})"
            problems.append(f"{count}, {first}; what was finished is kept and the same command goes on")
        if whole.failure:
            problems.append(f"{label}{whole.failure}")
        video = overlay_video(job, place)
        inputs.append(InputResult(target.out, target.label, whole, f"{len(done)} shards", video))
        if on_input is not None:
            on_input(inputs[-1])
    notes = tuple(sorted({note for result in results for note in result.notes}))
    return PredictResult(Path(job.options.out), tuple(inputs), notes, "; ".join(problems))
