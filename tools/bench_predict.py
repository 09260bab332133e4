"""How near `segunc predict` comes to its model alone: frames per second.

    python -m tools.bench_predict --model runs/camvid-abnn --input drive.mp4 --draws 20 \\
        --json predict.json

Entropy, epistemic and prediction are written, unless --scores says otherwise; every other option of
`segunc predict` may be given too (--size, --device, --end, ...). Rows, in frames per second, the
best of --repeats:

alone      the sampler over frames that lie in memory as the network takes them; its maps stay on
           the device
predict    the pipeline of `segunc predict` with the same, warm sampler: decoding, resizing,
           transfer, maps, statistics, encoding, writing
decode     reading the input and nothing else, one thread
store      encoding, statistics and writing of a frame's maps and nothing else, one thread of those
           that a run has
command    the whole command as a user types it: start of Python, loading, self-check, compilation

Ratio: predict_over_alone. Both are measured in turns in one process, so that neither has the warmer
machine.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from segunc.cli.main import build_parser
from segunc.cli.parser import parsed
from segunc.core.errors import InputError
from segunc.core.files import write_json
from segunc.core.memory import keep_freed_memory
from segunc.frames.source import Frame
from segunc.maps.encoding import PNG_LEVEL
from segunc.maps.manifest import build_manifest
from segunc.maps.pipeline import run_pipeline
from segunc.maps.store import MapsWriter
from segunc.networks import SegmentationNetwork
from segunc.networks.network import inference_size
from segunc.options import PredictOptions
from segunc.processing import FrameProcess
from segunc.sampling.sampler import Sampler, network_input
from segunc.verbs.execution import Job, choose_chunk, open_job, writer_threads
from tools.measuring import provenance

SCORES = ("entropy", "epistemic")
IN_MEMORY = 32
"""Frames that are held in memory and taken in turns."""


class Bench:
    """A model over an input, as `segunc predict` would run it.

    Args:
        job: of `segunc predict`, opened.
    """

    def __init__(self, job: Job) -> None:
        self.options = options = job.options
        if job.region is not None:
            raise InputError("--mask is not measured", hint="leave it out")
        self.scores, self.model, self.source = job.scores, job.model, job.sources[0]
        self.chunk = choose_chunk(options, job.sampler, self.source, None)
        self.sampler: Sampler = job.sampler.with_chunk(self.chunk)
        self.process = FrameProcess(self.sampler, self.scores, size=options.size)
        readable = (frame for frame in self.source.frames() if frame.image is not None)
        self.frames: list[Frame] = list(islice(readable, IN_MEMORY))
        self.length = 0

    def decode(self) -> float:
        """Frames per second; counts them too."""
        start = time.perf_counter()
        self.length = sum(1 for _ in self.source.frames())
        return self.length / (time.perf_counter() - start)

    def inputs(self) -> list[tuple[Tensor, tuple[int, int]]]:
        """Frames as the network takes them, on the device, and the size of their maps."""
        found = []
        network = self.sampler.network
        assert isinstance(network, SegmentationNetwork)
        for frame in self.frames:
            assert frame.image is not None
            own = (frame.image.shape[0], frame.image.shape[1])
            seen = inference_size(network.description, own, self.options.size)
            found.append((network_input([frame.image], seen).to(self.sampler.device), own))
        return found

    def alone(self, inputs: Sequence[tuple[Tensor, tuple[int, int]]]) -> float:
        """Frames per second of the sampler over as many frames as the input has."""
        done = 0
        self._wait()
        start = time.perf_counter()
        for images, size in cycle(inputs):
            self.sampler(images, size=size)
            done += len(images)
            if done >= self.length:
                break
        self._wait()
        return done / (time.perf_counter() - start)

    def predict(self) -> float:
        """Frames per second of the pipeline."""
        with tempfile.TemporaryDirectory(prefix="segunc-bench-") as folder:
            writer = self._writer(Path(folder) / "maps")
            summary = run_pipeline(
                self.source, self.process, writer, writers=writer_threads(self.sampler.device)
            )
        assert not summary.failure, summary.failure
        return summary.finished / summary.seconds

    def store(self) -> float:
        """Frames per second of one writing thread."""
        maps = self.process(self.frames[0])
        maps = maps() if callable(maps) else maps
        assert not isinstance(maps, Exception), maps
        with tempfile.TemporaryDirectory(prefix="segunc-bench-") as folder:
            writer = self._writer(Path(folder) / "maps")
            writer.begin()
            self._wait()
            start = time.perf_counter()
            for place in range(IN_MEMORY):
                writer.store(f"{place:06d}", maps, place=place)
            seconds = time.perf_counter() - start
            writer.close("interrupted")
        return IN_MEMORY / seconds

    def _writer(self, out: Path) -> MapsWriter:
        description = self.model.network.description
        manifest = build_manifest(
            {},
            self.scores,
            device=str(self.sampler.device),
            classes=description.classes,
            palette=description.palette,
        )
        return MapsWriter(out, manifest)

    def _wait(self) -> None:
        if self.sampler.device.type == "cuda":
            torch.cuda.synchronize(self.sampler.device)


def whole_command(words: Sequence[str], frames: int) -> float | None:
    """Frames per second of `segunc predict` in a process of its own, None where it fails."""
    out = Path(tempfile.mkdtemp(prefix="segunc-bench-"))
    try:
        command = [sys.executable, "-m", "segunc", "predict", *words, "--out", str(out / "maps")]
        start = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        seconds = time.perf_counter() - start
        if done.returncode:
            print(
                f"command: {(done.stderr.strip().splitlines() or ['failed'])[-1]}", file=sys.stderr
            )
            return None
        return frames / seconds
    finally:
        shutil.rmtree(out)


def measure(bench: Bench, words: Sequence[str], repeats: int) -> dict[str, float | None]:
    """All rows, in frames per second."""
    rows: dict[str, float | None] = {"decode": bench.decode()}
    inputs = bench.inputs()
    for _ in range(2):  # the self-check, compilation and the first allocations
        bench.process(bench.frames[0])
    alone, predict = [], []
    for _ in range(repeats):
        alone.append(bench.alone(inputs))
        predict.append(bench.predict())
    rows |= {"alone": max(alone), "predict": max(predict), "store": bench.store()}
    rows["command"] = whole_command(words, bench.length)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--json", type=Path, metavar="FILE")
    own, words = parser.parse_known_args()
    if "--scores" not in words:
        words += ["--scores", ",".join(SCORES)]
    keep_freed_memory()  # as the command line does
    arguments = build_parser().parse_args(["predict", *words, "--out", "unused"])
    with open_job(parsed(PredictOptions, arguments)) as job:
        compare(Bench(job), words, own)


def compare(bench: Bench, words: Sequence[str], own: argparse.Namespace) -> None:
    """Measure, print and write the rows."""
    rows = measure(bench, words, own.repeats)
    device = bench.sampler.device
    about: dict[str, Any] = {
        **provenance(device),
        "frames": bench.length,
        "frame_size": (
            list(bench.frames[0].image.shape[:2]) if bench.frames[0].image is not None else None
        ),
        "scores": list(bench.scores),
        "draws": bench.sampler.draws,
        "precision": bench.sampler.precision,
        "chunk": bench.chunk,
        "threads": torch.get_num_threads(),
        "writer_threads": writer_threads(device),
        "compression": f"PNG level {PNG_LEVEL}, run lengths",
    }
    ratio = (rows["predict"] or 0.0) / (rows["alone"] or 1.0)
    for name, value in rows.items():
        print(f"{name:10s} {'failed' if value is None else f'{value:9.2f} frames/s'}")
    print(f"predict over alone {ratio:.2f}; {about['frames']} frames, {about['hardware']}")
    for message in bench.sampler.report.messages:
        print(f"note: {message}")
    if own.json:
        write_json(
            own.json, {"about": about, "rows": rows, "ratios": {"predict_over_alone": ratio}}
        )


if __name__ == "__main__":
    main()
