"""Shards through a pool of Ray actors, by Ray Data; knows rows and results, no model.

Rows of a data set are the shards; each actor loads the model once, takes one shard at a time and writes its maps itself, so that only
rows of names and numbers pass the object store. An actor whose process dies is started again, and its shard with it: the operating
system gave up the lock of the dead process, and the shard continues behind its last finished frame.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from segunc.core.errors import InputError, PartialFailure, one_line
from segunc.core.progress import quiet_stderr


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
    host: str = ""
    unusable: bool = False  # the worker could not start, so whatever it is given fails
    notes: tuple[str, ...] = ()

    def to_row(self) -> dict[str, Any]:
        return {**asdict(self), "task": asdict(self.task), "notes": "\n".join(self.notes)}

    @classmethod
    def from_row(cls, row: dict[str, Any]) -> ShardResult:
        return cls(**{**row, "task": ShardTask(**row["task"]), "notes": tuple(filter(None, row["notes"].split("\n")))})


Work = Callable[[ShardTask], ShardResult]  # predicts a shard; everything that is large goes to disk
MakeWork = Callable[[], Work]  # loads what all shards need, in the worker's process; must be picklable

START_ATTEMPTS = 3  # on a busy machine a new cluster may miss Ray's fixed 30 s; what it read is cached then
CONNECT_SECONDS = 10.0
OBJECT_STORE_BYTES = 128 << 20  # of a cluster that is started here; results are a few hundred bytes each


@dataclass(frozen=True)
class Pool:
    """The worker processes of a run."""

    workers: int
    threads: int = 1  # CPU cores of each
    gpus: int = 0  # of each
    address: str | None = None  # of a running cluster, as Ray takes it; None starts one on this machine
    retries: int = 3  # of a shard: a frame that kills every worker must not go round for ever


def require_ray() -> None:
    """Say how Ray is installed where it is not."""
    # Ray reports its usage to its makers unless told otherwise before it starts, and gives its workers the priority of
    # background work, so that a busy desktop would starve what is the whole point of the run.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")
    # Ray Data keeps the arguments of its actors in the object store, and Ray's core calls that an error on every run.
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    try:
        import ray.data  # noqa: F401
    except ImportError as error:
        given = f"--engine ray without Ray Data ({error})"
        raise InputError(given, "the extra 'ray'", "pip install 'segunc[ray]'") from error


def run_shards(make_work: MakeWork, tasks: Sequence[ShardTask], pool: Pool) -> Iterator[ShardResult]:
    """The results of shards, as they come.

    A shard that is begun again ``pool.retries`` times because its worker died is given up; the others are not held up by it.
    InputError: there is no cluster at the address. PartialFailure: a worker could not start; what others finished is kept.
    """
    import ray.data

    with _cluster(pool):
        context = ray.data.DataContext.get_current()
        context.max_errored_blocks = -1  # a shard that Ray loses is missing among the results, and the caller says so
        context.enable_progress_bars = False
        context.print_on_execution_start = False
        attempts = ray.remote(num_cpus=0)(_Attempts).remote()
        rows = ray.data.from_items([asdict(task) for task in tasks], override_num_blocks=len(tasks))
        results = rows.map(
            _Actor,
            fn_constructor_args=(make_work, attempts, pool.retries),
            # One task in flight: a shard that waits for a busy worker cannot be taken by an idle one.
            compute=ray.data.ActorPoolStrategy(size=min(pool.workers, len(tasks)), max_tasks_in_flight_per_actor=1),
            num_cpus=pool.threads,
            num_gpus=pool.gpus,
        )
        for row in results.iter_rows():
            result = ShardResult.from_row(row)
            if result.unusable:
                raise PartialFailure(f"a worker on {result.host} could not start: {result.error}")
            yield result


class _Attempts:
    """Counts, for all workers, how often each shard was begun: Ray Data begins the task of a dead worker again for ever."""

    def __init__(self) -> None:
        self._begun: Counter[ShardTask] = Counter()

    def begin(self, task: ShardTask) -> int:
        self._begun[task] += 1
        return self._begun[task]


class _Actor:
    """Holds the work of one worker process. What goes wrong is a result, so that one clear line reaches the user."""

    def __init__(self, make_work: MakeWork, attempts: Any, retries: int) -> None:
        self._attempts, self._retries = attempts, retries
        self._work: Work | str  # or why it could not be made
        try:
            self._work = make_work()
        except Exception as error:
            self._work = one_line(error)

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        import ray

        task, host = ShardTask(**row), socket.gethostname()
        if isinstance(self._work, str):
            return ShardResult(task, error=self._work, host=host, unusable=True).to_row()
        begun = ray.get(self._attempts.begin.remote(task))
        if begun > 1 + self._retries:
            return ShardResult(task, error=f"its worker died {begun - 1} times", host=host).to_row()
        died = f"shard {task.number}/{task.count} was begun {begun} times, because its worker died"
        try:
            result = self._work(task)
            return replace(result, notes=(*result.notes, *([died] if begun > 1 else []))).to_row()
        except Exception as error:
            return ShardResult(task, error=one_line(error), host=host).to_row()


@contextlib.contextmanager
def _cluster(pool: Pool) -> Iterator[None]:
    """Connect to the cluster, or start one of this process; a connection that the caller has already made is used."""
    import ray

    if ray.is_initialized():
        yield
        return
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    try:
        if pool.address is None:
            _start_cluster(pool)
        else:
            _connect(pool.address)
        yield
    finally:
        ray.shutdown()


def _start_cluster(pool: Pool) -> None:
    import ray

    for attempt in range(1, START_ATTEMPTS + 1):
        try:
            with quiet_stderr():  # Ray's core says that it has found its log level
                ray.init(
                    address="local",
                    # Whoever asks for more workers than there are cores gets them.
                    num_cpus=max(os.cpu_count() or 1, pool.workers * pool.threads),
                    include_dashboard=False,
                    object_store_memory=OBJECT_STORE_BYTES,
                    log_to_driver=False,
                    logging_level=logging.CRITICAL,
                )
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
        with quiet_stderr():
            ray.init(address=address, log_to_driver=False, logging_level=logging.CRITICAL)
    except (OSError, ValueError, OverflowError, RuntimeError) as error:
        given = f"no Ray cluster at {address} ({one_line(error)})"
        raise InputError(given, "the address of a running head", "see ray status") from error
