"""Latency of an exported file, the sampler or a Triton server, at one and at several streams.

    python -m tools.latency EXPORTED [--model MODEL | --server URL] [--streams 1,8] [--frames 100]
        [--size HxW] > latency.json

EXPORTED is a folder of `segunc export --to onnx`, `triton` or `openvino`. Its file runs in ONNX
Runtime or OpenVINO, with as many threads for each stream as torch has (`OMP_NUM_THREADS`). With
`--model`, the sampler of that model folder runs instead. With `--server`, a Triton server runs the
folder, whose name is the name of the model; this needs `pip install "tritonclient[http]"`. The
server has to name the SHA-256 of the folder's file, as its `config.pbtxt` does. Where it names
none, as for the folder of an earlier version, a note and `what` say that the name alone is known.

A stream sends its next frame when the maps of the last one are back. Several streams are threads
that share a session, or clients of the server. Calls of the sampler take turns. A frame is random
texture. What is printed is the JSON file that `segunc report --latency` takes.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from segunc import InputError, Sampler, load
from segunc.core.files import read_json
from segunc.core.removal import is_listed
from segunc.decisions.guarantee import model_of
from segunc.exporting import graph
from segunc.exporting.check import check_inputs
from segunc.exporting.graph import TRITON_SHA256
from segunc.exporting.lower_precision import ONNX, XML
from segunc.exporting.placement import Placement
from segunc.options import image_size
from segunc.sampling.sampler import network_input
from segunc.verbs.export import DRAWS, RECORD, TRITON, is_export_record
from tools.measuring import peak_bytes, provenance

SIZE_OF_ANY = (512, 1024)
"""(height, width) of the frames for a file of any size."""
SERVER_SECONDS = 600.0
"""After which a call of the server fails."""
Inputs = Mapping[str, npt.NDArray[Any]]
"""Of one call, by name: what the exported file takes."""
Run = Callable[[Inputs], object]
"""Gives the maps of one call."""
OpenStream = Callable[[], Run]
"""Is called in the thread of each stream. Only this thread calls what it returns."""


@dataclass(frozen=True)
class StreamTimes:
    """What was measured at one number of streams.

    Attributes:
        streams: number of streams that send at the same time.
        frames: number of calls that were measured.
        p50, p95, p99: percentiles of the seconds from sending a frame to its maps.
        frames_per_second: of all streams together.
        peak_gib: largest memory of this process so far, in GiB; None for a server, which is another
            process.
    """

    streams: int
    frames: int
    p50: float
    p95: float
    p99: float
    frames_per_second: float
    peak_gib: float | None


def main(words: Sequence[str] | None = None) -> int:
    options = read_options(words)
    try:
        content = measure(options)
    except InputError as error:
        print(error, file=sys.stderr)
        return 1
    print(json.dumps(content, indent=2))
    return 0


def read_options(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tools.latency",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("exported", type=Path, metavar="EXPORTED")
    runtime = parser.add_mutually_exclusive_group()
    runtime.add_argument("--model", metavar="MODEL", help="its sampler runs")
    runtime.add_argument("--server", metavar="URL", help="which runs the file: localhost:8000")
    parser.add_argument("--streams", type=numbers, default=(1, 8), metavar="N,N", help="(1,8)")
    parser.add_argument("--frames", type=number, default=100, metavar="N", help="(100)")
    parser.add_argument("--size", type=image_size, metavar="HxW", help="for a file of any size")
    return parser.parse_args(words)


def number(text: str) -> int:
    """Return a number of at least 1."""
    value = int(text)
    if value < 1:
        raise ValueError(f"{text} is below 1")
    return value


def numbers(text: str) -> tuple[int, ...]:
    """Return different numbers of at least 1 in ascending order."""
    return tuple(sorted({number(part) for part in text.split(",")}))


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Return the content of the JSON file.

    Raises:
        InputError: the folder holds no exported file, or not that of its record, nothing here runs
            it, or it is of another model.
    """
    path = options.exported / RECORD
    if not is_export_record(path):
        raise InputError(
            f"{path} is not the record of an export",
            hint="segunc export --model MODEL --to onnx --out EXPORTED",
        )
    record = read_json(path, "the record of an export")
    if options.model is None:
        check_recorded(options.exported, record)
    placement = placement_of(record, options.size)
    inputs = inputs_of(options.exported, placement, record)

    start = time.perf_counter()
    what, open_stream = open_runtime(options, record, placement)
    open_stream()(inputs)
    first = time.perf_counter() - start

    rows: list[dict[str, Any]] = []
    for streams in options.streams:
        calls = calls_of(open_stream, inputs, streams, options.frames)
        peak = None if options.server else peak_bytes(torch.device("cpu")) / 2**30
        rows.append(asdict(stream_times(calls, streams, placement.batch, peak)))
    fewest = {key: rows[0][key] for key in ("frames", "p50", "p95", "p99", "peak_gib")}
    return {
        "kind": "segunc latency",
        "version": 1,
        "base_sha256": record["base_sha256"],
        "posterior_sha256": record["posterior_sha256"],
        "draws": record["draws"],
        "what": what,
        "threads": None if options.server else torch.get_num_threads(),
        "size": list(placement.frame_size or placement.network_size),
        "batch": placement.batch,
        "first": first,
        **fewest,
        "streams": rows,
        **provenance(),
    }


def check_recorded(folder: Path, record: Mapping[str, Any]) -> None:
    """Raise InputError where a file is not the one of the record, whose model is reported.

    An export writes the record first, so a killed one leaves it beside earlier files. The
    configuration of a server is for the user to change.
    """
    for name, (size, digest) in record["files"].items():
        if name != TRITON and not is_listed(folder / name, [(size, digest)]):
            raise InputError(
                f"{folder / name} is not the file that {folder / RECORD} describes",
                hint="export again",
            )


def placement_of(record: Mapping[str, Any], size: tuple[int, int] | None) -> Placement:
    """Return how frames come into an exported file.

    Args:
        record: of the export.
        size: (height, width) of the frames for a file of any size; None is :data:`SIZE_OF_ANY`.

    Raises:
        InputError: a size is given, and the file has its own.
    """
    about = record["input"]
    if None in about["shape"]:
        batch, channels, _, _ = about["shape"]
        return Placement(size or SIZE_OF_ANY, batch, channels=channels)
    if size is not None:
        message = f"the file takes inputs of {about['shape']}, and no other size"
        raise InputError(message, hint="leave out --size")
    if about["type"] == "uint8":
        batch, height, width, channels = about["shape"]
        network_size = tuple(about["network_size"])
        return Placement(network_size, batch, (height, width), channels=channels)
    batch, channels, height, width = about["shape"]
    return Placement((height, width), batch, channels=channels)


def inputs_of(folder: Path, placement: Placement, record: Mapping[str, Any]) -> Inputs:
    """Return random textured frames for one call, and the draws where these are an input."""
    inputs = {"image": check_inputs(placement)[0].numpy()}
    if "draws_input" in record:
        inputs["draws"] = np.load(folder / DRAWS)
    return inputs


def open_runtime(
    options: argparse.Namespace, record: Mapping[str, Any], placement: Placement
) -> tuple[str, OpenStream]:
    """Return what runs, in words, and what opens a stream of it.

    Raises:
        InputError: nothing here runs the file.
    """
    precision = record["precision"]
    suffix = "" if precision == "float32" else f", {precision}"
    file = options.exported / record["file"]
    if options.server is not None:
        name = options.exported.resolve().name
        what, open_stream = open_server(options.server, name, record["sha256"])
        return what + suffix, open_stream
    if options.model is not None:
        return "sampler", open_sampler(options.model, record, placement)
    if file.name == ONNX:
        graph.require_packages()
        return f"ONNX Runtime {version('onnxruntime')}{suffix}", open_onnx(file)
    if file.name == XML:
        graph.require_openvino()
        open_stream = open_openvino(file, max(options.streams))
        return f"OpenVINO {version('openvino')}{suffix}", open_stream
    raise InputError(
        f"{file} is no file of ONNX or OpenVINO, and no other is measured",
        hint="segunc export --to onnx, or --model MODEL",
    )


def open_onnx(path: Path) -> OpenStream:
    """Return what opens a stream of one session of ONNX Runtime."""
    run = graph.open_onnx(path)

    def call(inputs: Inputs) -> object:
        return run(*(torch.from_numpy(values) for values in inputs.values()))

    return lambda: call


def open_openvino(path: Path, streams: int) -> OpenStream:
    """Return what opens a stream of one compiled graph of OpenVINO, in float32 outside of INT8.

    Args:
        path: of the graph.
        streams: that run at the same time at most, each on as many threads as torch.
    """
    import openvino

    settings = {
        "INFERENCE_PRECISION_HINT": "f32",
        "NUM_STREAMS": streams,
        "INFERENCE_NUM_THREADS": streams * torch.get_num_threads(),
    }
    compiled = openvino.Core().compile_model(path, "CPU", settings)

    def open_stream() -> Run:
        request = compiled.create_infer_request()
        return lambda inputs: request.infer(dict(inputs))

    return open_stream


def open_sampler(folder: str, record: Mapping[str, Any], placement: Placement) -> OpenStream:
    """Return what opens a stream of a sampler with the settings of an export.

    Raises:
        InputError: the folder holds another model than that of the export.
    """
    model = load(folder)
    found = {"base_sha256": model.sha256, "posterior_sha256": model.posterior_sha256}
    if model_of(found) != model_of(record):
        raise InputError(f"{folder} holds another model than that of the exported file")
    scores = list(record["scores"])
    sampler = Sampler(
        model.network,
        model.posterior,
        draws=record["draws"],
        seed=record["seed"],
        scores=scores,
        fitted=model.fitted(scores),
    )

    def call(inputs: Inputs) -> object:
        frames = inputs["image"]
        if placement.frame_size is None:
            return sampler(torch.from_numpy(frames))
        images = network_input(list(frames), placement.network_size)
        return sampler(images, size=placement.frame_size)

    return lambda: call


def open_server(url: str, name: str, sha256: str) -> tuple[str, OpenStream]:
    """Return name and version of a Triton server, and what opens a stream of its model over HTTP.

    Args:
        url: host and port.
        name: of the model.
        sha256: of the file that the record describes.

    Raises:
        InputError: tritonclient is not installed, or the server does not have the model, or runs
            another file under its name.
    """
    if importlib.util.find_spec("tritonclient") is None:
        raise InputError(
            "--server needs the package tritonclient, which is not installed",
            hint='pip install "tritonclient[http]"',
        )
    from tritonclient import http

    address = url.removeprefix("http://").rstrip("/")

    def connect() -> Any:
        return http.InferenceServerClient(address, network_timeout=SERVER_SECONDS)

    try:
        ready = connect().is_model_ready(name)
        server = connect().get_server_metadata()
    except OSError as error:
        raise InputError(f"no server answers at {url} ({error})") from error
    if not ready:
        raise InputError(
            f"the server at {url} has no model {name}",
            hint="its name is that of the folder EXPORTED",
        )
    what = f"Triton server {server['version']}"
    parameters = connect().get_model_config(name).get("parameters", {})
    served = parameters.get(TRITON_SHA256, {}).get("string_value")
    if served is None:
        note = (
            f"the server at {url} does not say which file it runs as {name}, so only the name is "
            f"known to be that of the folder; export again, and config.pbtxt says it"
        )
        print(f"note: {note}", file=sys.stderr)
        what += ", model known by its name alone"
    elif served != sha256:
        raise InputError(
            f"the server at {url} runs another file as {name} than that of the folder (SHA-256 "
            f"{served[:12]}, not {sha256[:12]})",
            hint="give the folder that the server has loaded, or load the model again",
        )

    def open_stream() -> Run:
        client = connect()  # by its documentation, one for each thread

        def call(inputs: Inputs) -> object:
            answer = client.infer(name, [tensor_of(*item) for item in inputs.items()])
            outputs = [output["name"] for output in answer.get_response()["outputs"]]
            return {output: answer.as_numpy(output) for output in outputs}

        return call

    return what, open_stream


def tensor_of(name: str, values: npt.NDArray[Any]) -> Any:
    """Return an input as tritonclient sends it."""
    from tritonclient import http, utils

    tensor = http.InferInput(name, values.shape, utils.np_to_triton_dtype(values.dtype))
    tensor.set_data_from_numpy(values)
    return tensor


def calls_of(
    open_stream: OpenStream, inputs: Inputs, streams: int, frames: int
) -> list[tuple[float, float]]:
    """Return start and end of the calls whose maps came back first, in seconds.

    All streams send until these calls are back, so that none of them runs with fewer beside it.

    Args:
        open_stream: is called by each stream.
        inputs: of each call.
        streams: number of threads.
        frames: number of calls that are returned.
    """
    calls: list[tuple[float, float]] = []
    all_open = threading.Barrier(streams)

    def send() -> None:
        try:
            run = open_stream()
            run(inputs)  # a stream's first call takes memory and connects
        except BaseException:
            all_open.abort()
            raise
        all_open.wait()
        while len(calls) < frames:
            start = time.perf_counter()
            run(inputs)
            calls.append((start, time.perf_counter()))

    with ThreadPoolExecutor(streams) as pool:
        sending = [pool.submit(send) for _ in range(streams)]
    errors = [stream.exception() for stream in sending]
    for error in errors:
        if error is not None and not isinstance(error, threading.BrokenBarrierError):
            raise error
    return sorted(calls, key=lambda call: call[1])[:frames]


def stream_times(
    calls: Sequence[tuple[float, float]], streams: int, batch: int, peak_gib: float | None
) -> StreamTimes:
    """Return the percentiles of calls, and frames a second.

    Args:
        calls: start and end of each, in seconds.
        streams: number of streams.
        batch: number of frames in a call.
        peak_gib: largest memory in GiB.
    """
    seconds = [end - start for start, end in calls]
    p50, p95, p99 = np.percentile(seconds, (50, 95, 99)).tolist()
    elapsed = max(end for _, end in calls) - min(start for start, _ in calls)
    return StreamTimes(
        streams=streams,
        frames=len(calls),
        p50=p50,
        p95=p95,
        p99=p99,
        frames_per_second=batch * len(calls) / elapsed,
        peak_gib=peak_gib,
    )


if __name__ == "__main__":
    sys.exit(main())
