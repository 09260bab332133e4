"""How near eager maps come to the limit of a compiled network, where a machine's speed wanders.

    python -m tools.bench_eager --network DeepLabV3Plus --encoder resnet18 --size 512x1024 \\
        --draws 16 --chunks 1,2,4 --seconds 150

Everything is measured in one process and in turns, with a pause before each run: a virtual machine
that has computed for long may be slowed down. The limit is as many compiled passes as there are
draws, two or four images in a batch, whichever is faster. It runs as long as the maps do: a short
run meets the machine at its fastest more often. ``tools.bench_sampler`` has all rows, each in a
process of its own.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from segunc.core.memory import keep_freed_memory
from segunc.options import image_size
from tools.bench_sampler import job
from tools.measuring import provenance

BATCHES = (2, 4)


def make_runs(arguments: argparse.Namespace) -> dict[str, Callable[[], object]]:
    """Return what is measured: compiled passes by their batch, and eager maps by their chunk."""
    runs = {}
    for batch in BATCHES:
        one_pass = job(f"pass compiled x{batch}", arguments)[0]
        passes = arguments.draws // batch
        runs[f"{passes} passes compiled x{batch}"] = partial(repeat, one_pass, passes)
    for chunk in arguments.chunks.split(","):
        settings = vars(arguments) | {"chunk": int(chunk), "compiled": False}
        runs[f"maps, {chunk} draws at once"] = job("maps", argparse.Namespace(**settings))[0]
    return runs


def repeat(run: Callable[[], object], times: int) -> None:
    for _ in range(times):
        run()


def is_limit(name: str) -> bool:
    return "passes" in name


def seconds_of(name: str, run: Callable[[], object]) -> float:
    """Return the seconds of one run; inference mode would compile a pass again."""
    mode: Any = torch.no_grad() if is_limit(name) else torch.inference_mode()
    with mode:
        start = time.perf_counter()
        run()
        return time.perf_counter() - start


def measure(arguments: argparse.Namespace) -> dict[str, list[float]]:
    """Return the seconds of each run, turn by turn."""
    runs = make_runs(arguments)
    for name, run in runs.items():
        seconds_of(name, run)
        seconds_of(name, run)
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    end = time.monotonic() + arguments.seconds
    while time.monotonic() < end:
        for name, run in runs.items():
            time.sleep(arguments.pause)
            seconds[name].append(seconds_of(name, run))
    return seconds


def by_turn(seconds: dict[str, list[float]]) -> dict[str, float]:
    """Return the median over the turns of maps over passes, for the batch that makes it largest.

    Both were measured in the same turn, while the machine had about one speed. The batch is chosen
    once, for all turns: the faster of two passes in each turn would mostly be the luckier one.
    """
    passes = [times for name, times in seconds.items() if is_limit(name)]
    maps = {name: times for name, times in seconds.items() if not is_limit(name)}
    return {
        name: max(median_ratio(times, pass_times) for pass_times in passes)
        for name, times in maps.items()
    }


def median_ratio(times: list[float], limits: list[float]) -> float:
    """Return the median of the ratios of two rows of seconds."""
    return statistics.median(time / limit for time, limit in zip(times, limits, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--network", default="DeepLabV3Plus")
    parser.add_argument("--encoder", default="resnet18")
    parser.add_argument("--size", type=image_size, default=(512, 1024), metavar="HxW")
    parser.add_argument("--classes", type=int, default=19)
    parser.add_argument("--draws", type=int, default=16, metavar="S")
    parser.add_argument("--chunks", default="1,2,4", metavar="N,N", help="draws in a batch")
    parser.add_argument("--precision", choices=("auto", "float32", "bfloat16"), default="auto")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seconds", type=float, default=150.0, help="about how long it measures")
    parser.add_argument("--pause", type=float, default=1.5, help="seconds before each run")
    arguments = parser.parse_args()
    if arguments.draws % max(BATCHES):
        parser.error(f"--draws must be a multiple of {max(BATCHES)}, so that passes divide them")
    torch.set_flush_denormal(True)
    keep_freed_memory()  # as the command line does
    seconds = measure(arguments)
    best = {name: min(times) for name, times in seconds.items()}
    limit = min(value for name, value in best.items() if is_limit(name))
    ratios = {name: best[name] / limit for name in best if not is_limit(name)}
    result = {
        **provenance(),
        "best": best,
        "limit": limit,
        "over the limit": ratios,
        "over the limit of its turn, median": by_turn(seconds),
    }
    print(json.dumps({**result, "seconds": seconds}, indent=1))


if __name__ == "__main__":
    main()
