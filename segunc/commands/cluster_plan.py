"""The plan of ``segunc predict --engine ray``: everything that can be wrong is found here, before a cluster starts."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from segunc.commands.device import resolve_device
from segunc.commands.execution import Execution
from segunc.commands.predict import Job, execution_of, prepare, run_manifest
from segunc.commands.run_overlays import overlay_drawer
from segunc.errors import InputError
from segunc.maps.folder import refuse_foreign
from segunc.maps.inputs import Input
from segunc.maps.manifest import read_manifest, refuse_other_run
from segunc.maps.shards import Shard
from segunc.maps.sources import FrameSource
from segunc.scale.ray_pool import Pool
from segunc.scale.shard_results import ShardTask

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
