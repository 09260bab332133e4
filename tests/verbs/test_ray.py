"""``predict --ray`` on a cluster of two nodes on this machine: the bytes of one process, whatever
happens to a node.
"""

import contextlib
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import segunc
from segunc.core.errors import InputError
from segunc.frames.source import Frame
from segunc.maps.store import EncodedFrame, FrameEncoder
from segunc.options import PredictOptions
from segunc.posteriors.model import model_files
from segunc.verbs import ray_workers
from segunc.verbs.frame_worker import FrameWorker, InputSetup, WorkerSetup, facts_of_node
from tests.conftest import Job
from tests.maps.fakes import folder_bytes
from tests.verbs.processes import FAST, Command, Finished, succeed

grpc = pytest.importorskip("grpc")
pytestmark = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")
SLOW = f"--draws 40 --scores entropy,epistemic --threads 1 --overlay {FAST}"
PATIENCE = 240.0  # seconds that a command may take where the cores of this machine are busy
STORE_BYTES = 100 << 20
DEADLY = "000004"


class TwoNodes:
    """A cluster of a head and a second node, each with room for one worker of one thread."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        self.settings = {"num_cpus": 1, "object_store_memory": STORE_BYTES}
        head = {**self.settings, "include_dashboard": False}
        self.cluster = Cluster(initialize_head=True, head_node_args=head)
        self.second = self.cluster.add_node(**self.settings)

    @property
    def address(self) -> str:
        return str(self.cluster.address)

    def kill_second(self) -> None:
        self.cluster.remove_node(self.second, allow_graceful=False)

    def restore(self) -> None:
        if self.second not in self.cluster.list_all_nodes():
            self.second = self.cluster.add_node(**self.settings)


@pytest.fixture(scope="module")
def started() -> Iterator[TwoNodes]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_worker_niceness", "0")
        nodes = TwoNodes()
        yield nodes
        nodes.cluster.shutdown()


@pytest.fixture
def nodes(started: TwoNodes) -> TwoNodes:
    started.restore()
    return started


@pytest.fixture(scope="module")
def one_process(finetuned: Job, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of a run without Ray."""
    out = tmp_path_factory.mktemp("one") / "maps"
    succeed(*command_of(finetuned), "--out", out)
    return maps_in(out)


def command_of(job: Job) -> list[object]:
    return ["predict --model", job.abnn, "--input", job.video, SLOW]


def maps_in(out: Path) -> dict[str, bytes]:
    """The files of a maps folder, without the two that hold times or commands."""
    files = folder_bytes(out)
    return {name: data for name, data in files.items() if name.endswith(("png", "jpg", "jsonl"))}


def wait_for_lines(running: Command, out: Path, number: int) -> int:
    """Wait for so many finished frames, and return how many there are."""
    log = out / "frames.jsonl"
    end = time.monotonic() + PATIENCE
    while True:
        finished = log.read_bytes().count(b"\n") if log.exists() else 0
        if finished >= number:
            return finished
        assert running.process.exitcode is None, running.kill().stderr
        assert time.monotonic() < end, running.kill().stderr
        time.sleep(0.01)


def test_a_run_whose_node_is_killed_writes_the_bytes_of_one_process(
    nodes: TwoNodes, finetuned: Job, one_process: dict[str, bytes], tmp_path: Path
) -> None:
    out = tmp_path / "maps"
    running = Command(*command_of(finetuned), "--out", out, "--ray", nodes.address)
    finished = wait_for_lines(running, out, 2)
    nodes.kill_second()
    assert finished < 10
    done = running.wait(PATIENCE)
    assert (done.code, done.error_lines) == (0, []), done.stderr
    assert "12 frames" in done.stdout
    assert done.stderr.splitlines()[:4] == [
        f"connecting to Ray at {nodes.address}",
        "starting 2 Ray workers",
        f"each worker loads {finetuned.abnn}",
        "2 of 2 Ray workers ready",
    ]
    assert "2 Ray workers" in done.stdout
    notes = [line for line in done.stdout.splitlines() if line.startswith("note: ")]
    assert len(notes) == 1
    assert notes[0].startswith("note: a Ray worker was lost, others made its frames (Actor")
    assert len(done.stdout.splitlines()) == 3, "Ray prints nothing"
    assert maps_in(out) == one_process


def test_ctrl_c_ends_a_run_at_once_and_it_goes_on_without_ray(
    nodes: TwoNodes, finetuned: Job, one_process: dict[str, bytes], tmp_path: Path
) -> None:
    out = tmp_path / "maps"
    running = Command(*command_of(finetuned), "--out", out, "--ray", nodes.address)
    wait_for_lines(running, out, 2)
    begun = time.monotonic()
    done = running.stop(signal.SIGINT)
    assert time.monotonic() - begun < 20
    assert done.code == 130
    assert len(done.error_lines) == 1
    assert "interrupted" in done.error_lines[0]
    again = succeed(*command_of(finetuned), "--out", out)
    assert " 0 were finished before" not in again.stdout
    assert maps_in(out) == one_process


def patch_worker() -> None:
    """Let one frame end each worker that takes it. A class in a function travels as a whole."""

    class Deadly(FrameWorker):
        def make(self, frame: Any, setup: Any) -> Any:
            if frame.name == "000004":
                os._exit(1)
            return super().make(frame, setup)

    ray_workers.FrameWorker = Deadly  # type: ignore[misc]


def test_a_frame_that_ends_three_workers_ends_the_run_with_its_name(
    nodes: TwoNodes, finetuned: Job, one_process: dict[str, bytes], tmp_path: Path
) -> None:
    out = tmp_path / "maps"
    words = (*command_of(finetuned), "--out", out)
    done = Command(*words, "--ray", nodes.address, prepare=patch_worker).wait(PATIENCE)
    assert done.code == 1, done.stderr
    assert len(done.error_lines) == 1
    assert f"frame {DEADLY} has ended 3 Ray workers" in done.error_lines[0]
    assert "continues after them" in done.error_lines[0]
    # The frames before it are finished, and none after it.
    assert (out / "frames.jsonl").read_bytes().count(b"\n") == int(DEADLY)
    assert re.search(rf"\b{int(DEADLY)} (was|were) finished before", succeed(*words).stdout)
    assert maps_in(out) == one_process


def patch_version() -> None:
    """Let this process, and so no worker, be of another version."""
    ours = ray_workers.facts_of_node

    def others(on_gpu: bool) -> dict[str, str]:
        return ours(on_gpu) | {"segunc": "9.9"}

    ray_workers.facts_of_node = others


def test_a_node_with_another_version_is_refused_before_anything_is_written(
    nodes: TwoNodes, finetuned: Job, tmp_path: Path
) -> None:
    words = (*command_of(finetuned), "--out", tmp_path / "maps", "--ray", nodes.address)
    done = Command(*words, prepare=patch_version).wait(PATIENCE)
    assert_one_refusal(done, "has segunc ", ", and this machine has 9.9. Hint: ")
    assert not (tmp_path / "maps").exists()


def test_a_cluster_without_enough_cores_is_refused(
    nodes: TwoNodes, finetuned: Job, tmp_path: Path
) -> None:
    words = ("predict --model", finetuned.abnn, "--input", finetuned.video, "--threads 2", FAST)
    done = Command(*words, "--out", tmp_path / "maps", "--ray", nodes.address).wait(PATIENCE)
    assert_one_refusal(done, "no node of the Ray cluster has the 2 CPU cores of --threads")
    assert not (tmp_path / "maps").exists()


def assert_one_refusal(done: Finished, *parts: str) -> None:
    assert done.code == 2, done.stderr
    assert len(done.error_lines) == 1, done.stderr
    for part in parts:
        assert part in done.error_lines[0]


def start_worker(folder: Path, score: str, monkeypatch: pytest.MonkeyPatch) -> FrameWorker:
    """Return a worker in this process, without a cluster, that has opened the model of a folder."""
    monkeypatch.setattr("ray.get", lambda setup: setup)
    options = PredictOptions(
        model="not read", input="not read", out="out", draws=2, device="cpu", precision="float32"
    )
    setup = WorkerSetup(
        files={str(file.relative_to(folder)): file.read_bytes() for file in model_files(folder)},
        options=options,
        scores=(score,),
        thread_count=1,
        overlay=None,
        flag={},
    )
    worker = FrameWorker()
    assert worker.open(facts_of_node(on_gpu=False), [setup]) is None
    return worker


@pytest.fixture
def worker(finetuned: Job, monkeypatch: pytest.MonkeyPatch) -> Iterator[FrameWorker]:
    """A worker in this process, and no cluster."""
    worker = start_worker(finetuned.abnn, "entropy", monkeypatch)
    yield worker
    worker._computing.shutdown()


def test_a_worker_makes_scores_of_what_was_fitted_on_the_model(
    finetuned: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = segunc.FeatureDensity(layers=["body.encoder.features.3"], bank=50)
    data = f"toy:{finetuned.data}"
    settings.fit(segunc.load(finetuned.abnn), data, device="cpu").save(tmp_path / "model")
    worker = start_worker(tmp_path / "model", "knn", monkeypatch)
    encoder = FrameEncoder({"prediction": {}, "knn": {}})
    setup = InputSetup(number=1, chunk=2, manifest={}, encoder=encoder)
    made, _ = worker.make(Frame("good", 0, np.zeros((64, 128, 3), np.uint8)), setup)
    worker._computing.shutdown()
    assert isinstance(made, EncodedFrame)
    assert "knn/good.npy" in [file for file, _ in made.files.values()]


@pytest.mark.parametrize("fact", ["torch", "code of segunc"])
def test_a_worker_of_another_version_does_not_read_the_setup(fact: str) -> None:
    facts = facts_of_node(on_gpu=False) | {fact: "1.0"}
    difference = FrameWorker().open(facts, [None])
    assert isinstance(difference, InputError)
    assert re.search(rf"has {fact} \S*\d\S*, and this machine has 1\.0$", difference.message)


def test_a_frame_that_the_network_refuses_has_an_error_in_place_of_files(
    worker: FrameWorker,
) -> None:
    encoder = FrameEncoder({"prediction": {}, "entropy": {}})
    setup = InputSetup(number=1, chunk=2, manifest={}, encoder=encoder)
    good = Frame("good", 0, np.zeros((64, 128, 3), np.uint8), stamp="of the file")
    made, _ = worker.make(good, setup)
    assert isinstance(made, EncodedFrame)
    assert made.record["stamp"] == "of the file"
    assert [file for file, _ in made.files.values()] == ["prediction/good.png", "entropy/good.png"]
    with torch.no_grad():
        for parameter in worker._sampler.network.parameters():
            parameter.fill_(torch.nan)
    refused, _ = worker.make(replace(good, name="bad"), setup)
    assert isinstance(refused, InputError)
    assert "NaN" in refused.message


def test_an_address_where_nothing_listens_is_refused() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(InputError, match=f"no Ray cluster answers at {address} .Connection"):
            ray_workers.connected(address).__enter__()


def test_an_address_where_another_program_listens_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            stream, _ = server.accept()
            with stream:
                stream.recv(100)
                stream.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        threading.Thread(target=answer, daemon=True).start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(InputError, match=r"\(another program listens there\)"):
            ray_workers.connected(address).__enter__()


@pytest.mark.parametrize("mode", [None, "token"])
def test_a_cluster_that_asks_for_a_token_is_named(
    mode: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray would print a line a second for twenty seconds, none of which says what to do."""
    tried: list[str] = []

    def refuse(*_: Any, **__: Any) -> None:
        tried.append("by Ray")
        raise ConnectionError("the token is wrong")

    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    if mode is not None:  # Ray sends the token itself
        monkeypatch.setenv("RAY_AUTH_MODE", mode)
    monkeypatch.setattr("ray.init", refuse)
    said = "asks for a token" if mode is None else "the token is wrong"
    with head_with_token() as address, pytest.raises(InputError) as refused:
        ray_workers.connected(address).__enter__()
    assert said in refused.value.message
    assert ("export RAY_AUTH_MODE=token" in str(refused.value.hint)) == (mode is None)
    assert bool(tried) == (mode is not None)


@contextlib.contextmanager
def head_with_token() -> Iterator[str]:
    """Yield the address of a server that refuses every call, as the head of a cluster refuses one
    without its token.
    """

    class Refusing(grpc.GenericRpcHandler):
        def service(self, handler_call_details: Any) -> Any:
            def abort(_: bytes, context: Any) -> None:
                context.abort(grpc.StatusCode.UNAUTHENTICATED, "InvalidAuthToken")

            assert handler_call_details.method == ray_workers.METHOD_WITH_TOKEN
            return grpc.unary_unary_rpc_method_handler(abort)

    server = grpc.server(ThreadPoolExecutor(1), handlers=[Refusing()])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None)


def test_without_ray_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"needs the package ray.*pip install 'segunc\[ray\]'"):
        ray_workers.connected("local").__enter__()
