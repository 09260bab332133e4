"""Did a change make the sampler slower? Two checkouts, frame by frame in turn, so that a busy machine slows both.

    git worktree add ../before COMMIT
    python -m tools.compare_speed ../before . --frames 12

Untrained networks with random statistics, 19 classes, all cores. For each row the median of seconds a frame of both, the ratio
of their fastest frames, the median of the ratios of neighbouring frames (below 1: the second is faster), and whether the sums of
the maps are equal to the bit. Nothing else may run meanwhile; even so ratios vary by a few per cent.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

from tools.measuring import provenance

ROWS = (
    ("DeepLabV3Plus", "resnet18", 512, 1024, 8, "bfloat16", "all"),
    ("DeepLabV3Plus", "resnet18", 512, 1024, 8, "bfloat16", "decoder"),
    ("Unet", "resnet34", 256, 512, 4, "bfloat16", "all"),
    ("FPN", "tu-mobilenetv3_large_100", 256, 512, 8, "float32", "all"),
)
"""Architecture, encoder, height, width, draws, precision, scope."""
SERVER = """
import json, sys, time
sys.path.insert(0, sys.argv[1])
import torch
import segunc
from segunc import AffineLayout, NetworkDescription, Sampler, build_network, convert
architecture, encoder, height, width, draws, precision, scope = json.loads(sys.argv[2])
torch.manual_seed(0)
torch.set_flush_denormal(True)
network = build_network(NetworkDescription(architecture, encoder, tuple(map(str, range(19))))).eval()
generator = torch.Generator().manual_seed(1)
for module in network.modules():
    if isinstance(module, torch.nn.BatchNorm2d):
        module.running_mean.normal_(0, 0.1, generator=generator)
        module.running_var.uniform_(0.5, 1.5, generator=generator)
network.to(memory_format=torch.channels_last)
frame = torch.rand(1, 3, height, width, generator=generator)
convert(network)
posterior = getattr(segunc, "ABNNPosterior", segunc.ABNN).around(AffineLayout(network), 0.1, 3)
sampler = Sampler(network, posterior, draws=draws, precision=precision, scope=None if scope == "all" else scope)
scores = sampler(frame).scores
print(json.dumps({name: float(values.double().sum()) for name, values in scores.items()}), flush=True)
for _ in sys.stdin:
    start = time.perf_counter()
    sampler(frame)
    print(time.perf_counter() - start, flush=True)
"""


def measure(checkouts: list[Path], row: tuple[str | int, ...], frames: int) -> dict[str, object]:
    """The numbers of one row."""
    servers = [
        subprocess.Popen(
            [sys.executable, "-c", SERVER, str(checkout.resolve()), json.dumps(row)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd="/",
        )
        for checkout in checkouts
    ]
    sums = [_line(server) for server in servers]
    seconds: list[list[float]] = [[], []]
    for frame in range(frames + 1):
        for which in (0, 1) if frame % 2 else (1, 0):
            stdin = servers[which].stdin
            assert stdin is not None
            stdin.write("\n")
            stdin.flush()
            seconds[which].append(float(_line(servers[which])))
    for server in servers:
        server.communicate()
    before, after = (times[1:] for times in seconds)
    return {
        "row": " ".join(map(str, row)),
        "seconds": [round(statistics.median(times), 3) for times in (before, after)],
        "fastest": round(min(after) / min(before), 3),
        "median ratio": round(statistics.median(b / a for a, b in zip(before, after, strict=True)), 3),
        "equal": sums[0] == sums[1],
    }


def _line(server: subprocess.Popen[str]) -> str:
    assert server.stdout is not None
    line = server.stdout.readline()
    if not line:
        raise SystemExit(f"{server.args[3]} ended with {server.wait()}")  # type: ignore[index]
    return line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkouts", nargs=2, type=Path, metavar="CHECKOUT")
    parser.add_argument("--frames", type=int, default=12, metavar="N")
    options = parser.parse_args()
    print(json.dumps(provenance()))
    for row in ROWS:
        print(json.dumps(measure(options.checkouts, row, options.frames)), flush=True)


if __name__ == "__main__":
    main()
