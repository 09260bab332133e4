"""``segunc predict``: maps of images, folders, globs or videos, in this process or by the workers of a cluster.

On a cluster each shard is a task of Ray, which writes its maps itself, so that only names and numbers travel. Ray repeats a task whose
worker died: the operating system gave up the lock of the dead process, and the shard goes on behind its last finished frame.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch

from segunc.core.device import resolve_device
from segunc.core.errors import InputError, PartialFailure, one_line
from segunc.core.progress import ConsoleProgress
from segunc.frames.sources import plan_inputs
from segunc.maps.manifest import read_manifest
from segunc.maps.pipeline import Summary
from segunc.options import PredictOptions, several, takes
from segunc.verbs.execution import InputResult, open_job, predict_input

T = TypeVar("T")
CORES_PER_WORKER = 4  # CPU cores of a worker unless --threads says otherwise
RETRIES = 3  # of a shard whose worker died: a frame that kills every worker must not go round for ever
OBJECT_STORE_BYTES = 128 << 20  # of a cluster that is started here; results are a few hundred bytes each


class PredictResult(NamedTuple):
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
    def failed(self) -> dict[str, str]:
        """Frame -> why it has no maps; with several inputs, behind the input's label."""
        failures = ((part.label, name, why) for part in self.inputs for name, why in part.summary.failed.items())
        return {f"{label}/{name}" if label else name: why for label, name, why in failures}


@takes(PredictOptions)
def predict(options: PredictOptions) -> PredictResult:
    """Write the maps of every input, or continue a run that was killed.

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
        return _predict_on_cluster(options)
    results, failures = [], []
    with open_job(options) as job:
        for place, target in enumerate(job.inputs):
            try:
                results.append(predict_input(job, place))
                failure = results[-1].summary.failure
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


def _predict_on_cluster(options: PredictOptions) -> PredictResult:
    """Do the work of :func:`predict` with the workers of a cluster, each of which predicts a shard of every input."""
    # Ray reports its usage to its makers unless told otherwise before it starts, and gives its workers the priority of background work,
    # so that a busy desktop would starve what is the whole point of the run.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")
    if importlib.util.find_spec("ray") is None:
        raise InputError("--engine ray needs Ray", hint="pip install 'segunc[ray]'")
    for name in ("shard", "overwrite"):
        if getattr(options, name):
            raise InputError(f"--{name} does not go with --engine ray", hint="leave it out, or remove the maps folder")
    # Paths and the device mean the same in the folder of a worker, to which Ray deals out a device.
    names = ("model", "out", *(["mask"] if options.mask else []))
    paths: dict[str, Any] = {name: os.path.abspath(Path(getattr(options, name)).expanduser()) for name in names}
    inputs = [os.path.abspath(Path(spec).expanduser()) for spec in several(options.input)]
    device = resolve_device(options.device).type
    begun = [read_manifest(target.out) for target in plan_inputs(inputs, Path(paths["out"]))]
    before = next(filter(None, begun), {})
    cores = options.threads or before.get("run", {}).get("threads") or min(CORES_PER_WORKER, os.cpu_count() or 1)
    workers = torch.cuda.device_count() if device == "cuda" else max(1, (os.cpu_count() or 1) // cores)
    workers = options.workers or workers
    count = int(before.get("shards", workers))
    asked = replace(options, **paths, input=inputs, device=device, engine="local", threads=cores)
    shards, results = [replace(asked, shard=f"{number}/{count}") for number in range(1, count + 1)], {}
    with _cluster(workers * cores), ConsoleProgress(unit="shard") as show:
        resources = {"num_cpus": cores, "num_gpus": int(device == "cuda")}
        for shard, result in run_shards(predict, shards, workers, **resources):
            results[str(shard.shard)] = result
            show.count(len(results), count)
    return _conclude(Path(options.out), results)


def run_shards(
    work: Callable[[T], Any], shards: Sequence[T], workers: int, **resources: int
) -> Iterator[tuple[T, Any]]:
    """Yield each shard and its result, or the error that ended it, as it ends, of at most so many at once; ``resources`` of each are
    Ray's."""
    import ray

    call = ray.remote(max_retries=RETRIES, **resources)(_call)
    waiting, calls = list(reversed(shards)), dict[Any, T]()
    while waiting or calls:
        while waiting and len(calls) < workers:
            shard = waiting.pop()
            calls[call.remote(work, shard)] = shard
        reference = ray.wait(list(calls))[0][0]
        shard = calls.pop(reference)
        try:
            yield shard, ray.get(reference)
        except ray.exceptions.RayError as error:
            yield shard, PartialFailure(one_line(error))


def _call(work: Callable[[T], Any], shard: T) -> Any:
    """Do the work of a worker; an error is returned, as one that can travel."""
    try:
        return work(shard)
    except InputError as error:
        return error
    except Exception as error:
        return PartialFailure(f"{one_line(error)}, on {socket.gethostname()}")


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


def _conclude(out: Path, results: Mapping[str, PredictResult | Exception]) -> PredictResult:
    """Sum up what the shards did; where none began, raise the error of the first."""
    done = [result for result in results.values() if isinstance(result, PredictResult)]
    errors = {shard: result for shard, result in results.items() if isinstance(result, Exception)}
    if not done:
        raise next(iter(errors.values()))
    inputs, by_folder = [], dict[Path, list[InputResult]]()
    for part in (part for result in done for part in result.inputs):
        by_folder.setdefault(part.out, []).append(part)
    for same in by_folder.values():
        parts = [part.summary for part in same]
        failed = {name: why for part in parts for name, why in part.failed.items()}
        finished, skipped = sum(part.finished for part in parts), sum(part.skipped for part in parts)
        whole = Summary(finished, skipped, failed, max(part.seconds for part in parts))
        video = next((part.video for part in same if part.video is not None), None)
        inputs.append(same[0]._replace(summary=whole, how=f"{len(results)} shards", video=video))
    problems = [f"shard {shard} did not reach its end ({one_line(error)})" for shard, error in errors.items()]
    problems += dict.fromkeys(result.failure for result in done if result.failure)
    notes = tuple(sorted({note for result in done for note in result.notes}))
    return PredictResult(out, tuple(inputs), notes, "; ".join(problems))
