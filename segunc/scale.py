"""Run shards through a pool of Ray actors; nothing here knows a model.

Each actor loads the model once, takes one shard at a time and writes its maps itself, so that only names and numbers travel. A shard
whose worker died is given to another one: the operating system gave up the lock of the dead process, and the shard continues behind
its last finished frame.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from segunc.core.errors import InputError, PartialFailure, one_line


@dataclass(frozen=True)
class ShardTask:
    """One shard of one input."""

    input: int  # its place in the run, from 0
    number: int  # from 1
    count: int


@dataclass(frozen=True)
class ShardResult:
    """How a shard ended, and lines for the user."""

    task: ShardTask
    finished: int = 0  # frames whose maps were written now
    skipped: int = 0  # frames that an earlier run, or a worker that died, had finished
    failed: int = 0  # frames that cannot be predicted; the shard's record names them
    error: str = ""  # why the shard did not reach its end; empty where it did
    host: str = ""  # empty where no worker lived to say it
    notes: tuple[str, ...] = ()


Work = Callable[[ShardTask], ShardResult]  # predicts a shard; everything that is large goes to disk
MakeWork = Callable[[], Work]  # loads what all shards need, in the worker's process; must be picklable

START_ATTEMPTS = 3
"""On a busy machine a new cluster may miss Ray's fixed 30 s; what it read is cached then."""
CONNECT_SECONDS = 10.0
OBJECT_STORE_BYTES = 128 << 20
"""Of a cluster that is started here; results are a few hundred bytes each."""
QUIET = {"log_to_driver": False, "logging_level": logging.CRITICAL}


@dataclass(frozen=True)
class Pool:
    """The worker processes of a run."""

    workers: int
    threads: int = 1  # CPU cores of each
    gpus: int = 0  # of each
    address: str | None = None  # of a running cluster, as Ray takes it; None starts one on this machine
    retries: int = 3  # of a shard: a frame that kills every worker must not go round for ever


def require_ray() -> None:
    """Raise InputError that says how Ray is installed where it is not."""
    # Ray reports its usage to its makers unless told otherwise before it starts, and gives its workers the priority of
    # background work, so that a busy desktop would starve what is the whole point of the run.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")
    try:
        import ray  # noqa: F401
    except ImportError as error:
        raise InputError(f"--engine ray needs Ray ({error})", hint="pip install 'segunc[ray]'") from error


def run_shards(make_work: MakeWork, tasks: Sequence[ShardTask], pool: Pool) -> Iterator[ShardResult]:
    """Yield the result of each shard as it ends.

    A shard whose worker died more than ``pool.retries`` times is given up; the others are not held up by it.

    Raises:
        InputError: there is no cluster at the address.
        PartialFailure: a worker could not start; what others finished is kept.
    """
    import ray

    waiting, deaths, unfinished = deque(tasks), Counter[ShardTask | None](), len(tasks)
    idle: list[Any] = []  # workers
    calls: dict[Any, tuple[Any, ShardTask | None]] = {}  # worker and its shard, None while it starts, by reference
    with _cluster(pool):
        actor = ray.remote(num_cpus=pool.threads, num_gpus=pool.gpus)(_Worker)
        while unfinished:
            while len(calls) + len(idle) < min(pool.workers, len(tasks)):
                worker = actor.remote(make_work)
                calls[worker.problem.remote()] = worker, None
            # Only a worker that has started gets a shard: one for which the cluster has no room may wait for ever.
            while waiting and idle:
                worker, shard = idle.pop(), waiting.popleft()
                calls[worker.predict.remote(shard, deaths[shard])] = worker, shard
            reference = ray.wait(list(calls))[0][0]
            worker, task = calls.pop(reference)
            try:
                result = ray.get(reference)
                idle.append(worker)
            except ray.exceptions.RayError as error:
                ray.kill(worker)  # it may only be out of reach
                deaths[task] += 1
                if task is None:
                    # The processes of a lost machine die together, so each worker may die when it starts.
                    gone = deaths[task] > pool.retries * pool.workers
                    result = f"a worker could not start: {one_line(error)}" if gone else None
                elif deaths[task] > pool.retries:
                    result = ShardResult(task, error=f"its worker died {deaths[task]} times")
                else:
                    result = None
                    waiting.appendleft(task)
            if isinstance(result, str):
                raise PartialFailure(result)
            if result is not None:
                unfinished -= 1
                yield result


class _Worker:
    """Holds the work of one process. What goes wrong is a returned text, so that one clear line reaches the user."""

    def __init__(self, make_work: MakeWork) -> None:
        self._host = socket.gethostname()
        self._problem: str | None = None
        try:
            self._work = make_work()
        except Exception as error:
            self._problem = f"a worker on {self._host} could not start: {one_line(error)}"

    def problem(self) -> str | None:
        return self._problem

    def predict(self, task: ShardTask, deaths: int) -> ShardResult:
        died = f"shard {task.number}/{task.count} was begun {deaths + 1} times, because its worker died"
        try:
            result = self._work(task)
            return replace(result, notes=(*result.notes, *([died] if deaths else [])))
        except Exception as error:
            return ShardResult(task, error=one_line(error), host=self._host)


@contextlib.contextmanager
def _cluster(pool: Pool) -> Iterator[None]:
    """Connect to the cluster, or start one of this process; a connection that the caller has already made is used."""
    import ray

    if ray.is_initialized():
        yield
        return
    try:
        if pool.address is None:
            _start_cluster(pool.workers * pool.threads)
        else:
            _connect(pool.address)
        yield
    finally:
        ray.shutdown()


def _start_cluster(cores: int) -> None:
    import ray

    for attempt in range(1, START_ATTEMPTS + 1):
        try:
            # Whoever asks for more workers than there are cores gets them.
            machine = {"num_cpus": max(os.cpu_count() or 1, cores), "object_store_memory": OBJECT_STORE_BYTES}
            ray.init(address="local", include_dashboard=False, **machine, **QUIET)
            return
        except Exception as error:  # Ray raises no narrower type where its processes do not answer in time
            ray.shutdown()
            if attempt == START_ATTEMPTS:
                raise PartialFailure(f"Ray could not start on this machine ({one_line(error)})") from error


def _connect(address: str) -> None:
    import ray

    try:
        # Ray itself tries an address where nothing listens for minutes.
        host, _, port = address.rpartition(":")
        if port.isdecimal() and "://" not in address:
            socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
        ray.init(address=address, **QUIET)
    except (OSError, ValueError, OverflowError, RuntimeError) as error:
        raise InputError(
            f"there is no Ray cluster at {address} ({one_line(error)})", hint="ray status shows that of a running head"
        ) from error
