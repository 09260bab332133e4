"""Did a change make the sampler slower? Two checkouts compute frames in turn.

    git worktree add ../before COMMIT
    python -m tools.compare_speed ../before . --frames 12

The networks are untrained, with random statistics and 19 classes. Each row has the median of the
seconds a frame of both checkouts, the ratio of their fastest frames and the median ratio of
neighbouring frames: below 1, the second checkout is faster. It also says whether the sums of the
maps are equal to the bit. A busy machine slows both checkouts alike, but nothing else should run
meanwhile; even so the ratios vary by a few per cent.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from tools.measuring import provenance


@dataclass(frozen=True)
class Case:
    """A network, the size of its frames and how it is sampled."""

    architecture: str
    encoder: str
    height: int
    width: int
    draws: int
    precision: str
    scope: str


CASES = (
    Case("DeepLabV3Plus", "resnet18", 512, 1024, draws=8, precision="bfloat16", scope="all"),
    Case("DeepLabV3Plus", "resnet18", 512, 1024, draws=8, precision="bfloat16", scope="decoder"),
    Case("Unet", "resnet34", 256, 512, draws=4, precision="bfloat16", scope="all"),
    Case("FPN", "tu-mobilenetv3_large_100", 256, 512, draws=8, precision="float32", scope="all"),
)

SERVER = """
import json
import sys
import time

sys.path.insert(0, sys.argv[1])

import torch
from segunc import (
    ABNNPosterior,
    AffineLayout,
    NetworkDescription,
    Sampler,
    build_network,
    convert,
)

case = json.loads(sys.argv[2])
torch.manual_seed(0)
torch.set_flush_denormal(True)
classes = tuple(str(number) for number in range(19))
description = NetworkDescription(case["architecture"], case["encoder"], classes)
network = build_network(description).eval()
generator = torch.Generator().manual_seed(1)
for module in network.modules():
    if isinstance(module, torch.nn.BatchNorm2d):
        module.running_mean.normal_(0, 0.1, generator=generator)
        module.running_var.uniform_(0.5, 1.5, generator=generator)
network.to(memory_format=torch.channels_last)
frame = torch.rand(1, 3, case["height"], case["width"], generator=generator)
convert(network)
posterior = ABNNPosterior.around(AffineLayout(network), 0.1, 3)
sampler = Sampler(
    network,
    posterior,
    draws=case["draws"],
    precision=case["precision"],
    scope=None if case["scope"] == "all" else case["scope"],
)
scores = sampler(frame).scores
sums = {name: float(values.double().sum()) for name, values in scores.items()}
print(json.dumps(sums), flush=True)
for _ in sys.stdin:
    start = time.perf_counter()
    sampler(frame)
    print(time.perf_counter() - start, flush=True)
"""
"""Prints the sums of the maps, and then the seconds of a frame for each line that it reads."""


class Server:
    """A process that samples with the package of one checkout."""

    def __init__(self, checkout: Path, case: Case) -> None:
        self.checkout = checkout
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVER, str(checkout.resolve()), json.dumps(asdict(case))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd="/",
        )
        self.sums = json.loads(self._read())

    def seconds_of_a_frame(self) -> float:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return float(self._read())

    def stop(self) -> None:
        self.process.communicate()

    def _read(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"the process of {self.checkout} ended with {self.process.wait()}")
        return line


def measure(first: Path, second: Path, case: Case, frames: int) -> dict[str, object]:
    """Return the row of one case; the first frame of each checkout is not counted."""
    before = Server(first, case)
    after = Server(second, case)
    before_seconds: list[float] = []
    after_seconds: list[float] = []
    for frame in range(frames + 1):
        if frame % 2:
            before_seconds.append(before.seconds_of_a_frame())
            after_seconds.append(after.seconds_of_a_frame())
        else:
            after_seconds.append(after.seconds_of_a_frame())
            before_seconds.append(before.seconds_of_a_frame())
    before.stop()
    after.stop()
    del before_seconds[0], after_seconds[0]
    ratios = [new / old for old, new in zip(before_seconds, after_seconds, strict=True)]
    return {
        **asdict(case),
        "seconds before": round(statistics.median(before_seconds), 3),
        "seconds after": round(statistics.median(after_seconds), 3),
        "ratio of the fastest": round(min(after_seconds) / min(before_seconds), 3),
        "median ratio": round(statistics.median(ratios), 3),
        "equal maps": before.sums == after.sums,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("before", type=Path, help="checkout of the earlier code")
    parser.add_argument("after", type=Path, help="checkout of the later code")
    parser.add_argument("--frames", type=int, default=12, help="frames of each checkout and row")
    options = parser.parse_args()
    print(json.dumps(provenance()))
    for case in CASES:
        row = measure(options.before, options.after, case, options.frames)
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
