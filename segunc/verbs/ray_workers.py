"""Workers of a Ray cluster that make the files of frames for ``segunc predict --ray``.

This process reads the input, commits the lines in the order of the frames and owns the maps folder.
Workers get the files of the model and decoded frames, and return encoded files, all through Ray's
object store. So no worker needs model, input or output on a disk, a frame of a video is the same
whichever worker gets it, and a run goes on with or without Ray. The price: one process decodes all
frames and writes all files.

A worker is an actor with a GPU, or with as many CPU cores as the run has threads. A frame whose
worker is lost goes to another one, alone, so that a frame that ends workers is not mistaken for its
neighbour. Ray's own restarts are not used: a call to an actor that restarts waits for ever if no
node has room. Nor is Ray Data: ``map_batches`` reads its input on the workers, and in an earlier
version of this module it began the task of a dead worker again without an end.
"""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import CancelledError
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from segunc.core.errors import InputError, PartialFailure, one_line
from segunc.core.files import read_bytes
from segunc.core.progress import say_step
from segunc.core.terminal import counted
from segunc.frames.source import Frame
from segunc.maps.pipeline import Process
from segunc.maps.store import EncodedFrame, FrameEncoder
from segunc.options import RAY_ON_THIS_MACHINE
from segunc.posteriors.model import model_files
from segunc.verbs.execution import Job
from segunc.verbs.frame_worker import FrameWorker, InputSetup, WorkerSetup, facts_of_node

CONNECT_SECONDS = 10.0
HTTP2_SETTINGS = b"\0\0\0\4\0\0\0\0\0"  # a frame of no setting, whose fourth byte is its kind
HTTP2_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + HTTP2_SETTINGS
METHOD_WITH_TOKEN = "/ray.rpc.NodeInfoGcsService/GetClusterId"
START_SECONDS = 300.0  # in which the first worker must have loaded the model
GATHER_SECONDS = 30.0  # for which the other workers are waited for
ATTEMPTS = 3  # number of workers that a frame may end
FRAMES_OF_WORKER = 2  # one is computed while the files of the other are encoded and sent
KEPT = "finished frames are kept, and the same command continues after them"


@contextlib.contextmanager
def connected(address: str) -> Iterator[None]:
    """Be connected to a Ray cluster while open; a connection of this process is used if there is
    one.

    Args:
        address: ``HOST:PORT``, ``auto``, or ``local`` to start a cluster of this machine.

    Raises:
        InputError: Ray is not installed, no cluster answers, or it asks for a token.
    """
    # Ray sends usage statistics to its makers unless told otherwise, runs its workers at the
    # priority of background work, and hides GPUs from processes that ask for none.
    for variable in ("USAGE_STATS_ENABLED", "worker_niceness", "ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"):
        os.environ.setdefault(f"RAY_{variable}", "0")
    for package in ("ray", "grpc"):
        if importlib.util.find_spec(package) is None:
            raise InputError(
                f"--ray needs the package {package}, which is not installed",
                hint="pip install 'segunc[ray]'",
            )
    import ray

    if ray.is_initialized():
        yield
        return
    settings = {"include_dashboard": False} if address == RAY_ON_THIS_MACHINE else {}
    if address == RAY_ON_THIS_MACHINE:
        say_step("starting Ray on this machine")
    else:
        say_step(f"connecting to Ray at {address}")
    on_sigterm = signal.getsignal(signal.SIGTERM)
    try:
        _check_listening(address)
        _check_token(address)
        ray.init(address, log_to_driver=False, logging_level=logging.CRITICAL, **settings)
        # Whatever `log_to_driver` says, the logs of a node that dies would be printed.
        vars(ray._private.worker)["_worker_logs_enabled"] = False
    except InputError:
        raise
    except Exception as error:  # Ray raises no narrower type
        ray.shutdown()
        reason = getattr(error, "strerror", None) or one_line(error).partition(". ")[0]
        raise InputError(
            f"no Ray cluster answers at {address} ({reason})",
            hint="give the HOST:PORT that `ray start --head` prints, or --ray without an address",
        ) from error
    finally:
        # Ray has set a handler of its own, which would end this process with another exit code.
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, on_sigterm)
    try:
        yield
    finally:
        ray.shutdown()


def _check_listening(address: str) -> None:
    """Raise an error where nothing that is like the head of a cluster listens at ``HOST:PORT``,
    which Ray would try for minutes. A head speaks HTTP/2."""
    host, _, port = address.rpartition(":")
    if not port.isdecimal():
        return
    with socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS) as stream:
        stream.sendall(HTTP2_GREETING)
        answer = stream.recv(len(HTTP2_SETTINGS))
    if answer[3:4] != HTTP2_SETTINGS[3:4]:
        raise ConnectionError(errno.EPROTO, "another program listens there")


def _check_token(address: str) -> None:
    """Raise InputError where the head at ``HOST:PORT`` asks for a token that would not be sent:
    Ray itself would try again for 20 seconds, and print a line for each.

    Ray sends its token to an address only if told so by ``RAY_AUTH_MODE``.
    """
    if not address.rpartition(":")[2].isdecimal() or "RAY_AUTH_MODE" in os.environ:
        return
    import grpc

    with grpc.insecure_channel(address) as channel:
        try:
            channel.unary_unary(METHOD_WITH_TOKEN)(b"", timeout=CONNECT_SECONDS)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.UNAUTHENTICATED:
                raise InputError(
                    f"the Ray cluster at {address} asks for a token",
                    hint="export RAY_AUTH_MODE=token, here and on every node; the token is the "
                    "file ~/.ray/auth_token of the machine on which the cluster was started, and "
                    "belongs in the same place on each machine",
                ) from error


@dataclass(eq=False)
class _Worker:
    """An actor, and how many frames it has."""

    actor: Any
    frames: int = 0


class RayWorkers:
    """The workers of a job, a :class:`segunc.verbs.execution.Cluster`. Threads of the pipeline wait
    here for the files of their frames."""

    def __init__(self, job: Job) -> None:
        """Count the workers that the cluster has room for; :meth:`begin` starts them.

        Raises:
            InputError: it has room for none.
        """
        import ray

        self._ray: Any = ray
        on_gpu = job.sampler.device.type == "cuda"
        thread_count = torch.get_num_threads()
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        if on_gpu:
            self.workers = sum(int(node.get("GPU", 0)) for node in nodes)
        else:
            self.workers = sum(int(node.get("CPU", 0)) // thread_count for node in nodes)
        if not self.workers:
            needed = "a GPU" if on_gpu else f"the {thread_count} CPU cores of --threads"
            raise InputError(f"no node of the Ray cluster has {needed}", hint="see ray status")
        self.frames_at_once = self.workers * FRAMES_OF_WORKER
        self.notes: list[str] = []
        self._model = job.options.model
        self._facts = facts_of_node(on_gpu)
        folder = job.model.folder or Path(job.options.model)
        options = replace(
            job.options, device=job.sampler.device.type, precision=job.sampler.precision
        )
        setup = WorkerSetup(
            files={str(file.relative_to(folder)): read_bytes(file) for file in model_files(folder)},
            options=options,
            scores=job.scores,
            thread_count=thread_count,
            overlay=job.overlay,
            flag=job.flag,
        )
        self._setups = [ray.put(setup)]
        self._actors = ray.remote(
            num_cpus=1 if on_gpu else thread_count,
            num_gpus=int(on_gpu),
            max_concurrency=FRAMES_OF_WORKER,
        )(FrameWorker)
        self._inputs = 0
        self._changed = threading.Condition()
        self._free: list[_Worker] = []
        self._starting: dict[Any, _Worker] = {}
        self._end: Exception | None = CancelledError()  # what those who wait for a frame raise

    def begin(self) -> None:
        """Start the workers, unless they are at work.

        Raises:
            InputError: a node differs from this machine, or no worker starts.
        """
        with self._changed:
            if self._end is None:
                return
            self._end = None
            say_step(f"starting {counted(self.workers, 'Ray worker')}")
            for _ in range(self.workers):
                self._start()
            say_step(f"each worker loads {self._model}")
            try:
                self._welcome(START_SECONDS, number=1)
                self._welcome(GATHER_SECONDS)
                if not self._free:
                    reason = self.notes.pop() if self.notes else "all nodes are busy"
                    raise InputError(f"no Ray worker is ready: {reason}", hint="see ray status")
                say_step(f"{len(self._free)} of {counted(self.workers, 'Ray worker')} ready")
            except InputError:
                self.stop()
                raise

    def process(self, chunk: int, manifest: Mapping[str, Any], encoder: FrameEncoder) -> Process:
        """Return what hands the frames of one input to the workers."""
        self._inputs += 1
        setup = self._ray.put(InputSetup(self._inputs, chunk, manifest, encoder))
        return lambda frame: partial(self._make, frame, setup)

    def stop(self, reason: Exception | None = None) -> None:
        """End the work on all frames: what waits for one raises the reason, or CancelledError."""
        with self._changed:
            self._end = self._end or reason or CancelledError()
            for worker in (*self._free, *self._starting.values()):
                self._ray.kill(worker.actor)
            self._free.clear()
            self._starting.clear()
            self._changed.notify_all()

    def _start(self) -> None:
        worker = _Worker(self._actors.remote())
        self._starting[worker.actor.open.remote(self._facts, self._setups)] = worker

    def _welcome(self, seconds: float, number: int | None = None) -> None:
        """Take up workers that have loaded the model.

        Args:
            seconds: for which they are waited for.
            number: of workers that are waited for; None is all that have been started.

        Raises:
            InputError: the node of one differs from this machine.
        """
        waiting = list(self._starting)
        ready, _ = self._ray.wait(waiting, num_returns=number or len(waiting), timeout=seconds)
        for reference in ready:
            worker = self._starting.pop(reference)
            try:
                difference = self._ray.get(reference)
            except self._ray.exceptions.RayError as error:
                # One that ends while it starts is not replaced: that could go on without an end.
                self.notes.append(f"a Ray worker has not started ({_reason(error)})")
                continue
            if difference is not None:
                raise difference
            self._free.append(worker)

    def _make(self, frame: Frame, setup: Any) -> EncodedFrame:
        """Wait for the files of a frame.

        Raises:
            InputError: the frame has none.
            PartialFailure: the run cannot go on.
            CancelledError: the run ends.
        """
        reason = ""
        for attempt in range(ATTEMPTS):
            load = FRAMES_OF_WORKER if attempt else 1
            worker = self._take(load)
            try:
                made, notes = self._ray.get(worker.actor.make.remote(frame, setup))
            except self._ray.exceptions.RayTaskError as error:
                message = f"frame {frame.name} fails ({_reason(error)}); {KEPT}"
                raise PartialFailure(message) from error
            except self._ray.exceptions.RayError as error:
                reason = type(error).__name__
                self._replace(worker, reason)
                continue
            finally:
                self._give_back(worker, load)
            self.notes += [note for note in notes if note not in self.notes]
            if isinstance(made, InputError):
                raise made
            encoded: EncodedFrame = made
            return encoded
        # The run ends when the turn of this frame comes, so that those before it are finished.
        raise PartialFailure(
            f"frame {frame.name} has ended {ATTEMPTS} Ray workers ({reason}); {KEPT}"
        )

    def _take(self, load: int) -> _Worker:
        """Wait for a worker that has room for so many frames more."""
        with self._changed:
            while self._end is None:
                try:
                    self._welcome(seconds=0)
                except InputError as error:
                    raise self._fail(one_line(error)) from error
                worker = min(self._free, key=lambda worker: worker.frames, default=None)
                if worker is not None and worker.frames + load <= FRAMES_OF_WORKER:
                    worker.frames += load
                    return worker
                if worker is None and not self._starting:
                    raise self._fail("no Ray worker is left")
                self._changed.wait(1.0)
            raise self._end

    def _give_back(self, worker: _Worker, load: int) -> None:
        with self._changed:
            worker.frames -= load
            self._changed.notify_all()

    def _replace(self, worker: _Worker, reason: str) -> None:
        """Start a worker for one that was lost, once."""
        with self._changed:
            if self._end is None and worker in self._free:
                self.notes.append(f"a Ray worker was lost, others made its frames ({reason})")
                self._free.remove(worker)
                self._ray.kill(worker.actor)
                self._start()

    def _fail(self, reason: str) -> Exception:
        """Stop the run, and return the error that ends it."""
        self.stop(PartialFailure(f"{reason}; {KEPT}"))
        assert self._end is not None
        return self._end


def _reason(error: Exception) -> str:
    """Return in one line why a worker did not do its work: the last line of Ray's text is that of
    the error on the node."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, Exception):
        return one_line(cause)
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[-1].strip()[:200]}"
