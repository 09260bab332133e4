"""Peak memory of prediction: S draws against one deterministic pass, each in its own process.

    python -m tools.measure_memory --size 1024x2048 --classes 19 --draws 20

Prints the peak resident memory of both processes and their difference. The weights are random: memory does not
depend on them.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys

import torch

from segunc import ABNNPosterior, AffineLayout, NetworkDescription, Sampler, build_network, convert
from segunc.options import image_size


def peak_bytes() -> int:
    """Largest resident memory of this process so far (Linux counts it in KiB)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def predict(arguments: argparse.Namespace) -> int:
    """One frame through the sampler; the peak memory in bytes."""
    torch.manual_seed(0)
    torch.set_flush_denormal(True)
    classes = tuple(f"class {i}" for i in range(arguments.classes))
    network = build_network(NetworkDescription(arguments.network, arguments.encoder, classes))
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    posterior = None
    if arguments.draws > 1:
        convert(network.body)
        posterior = ABNNPosterior.around(AffineLayout(network), 0.1)
    sampler = Sampler(network, posterior, draws=arguments.draws, precision=arguments.precision)
    sampler(torch.rand(1, 3, *arguments.size))
    return peak_bytes()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", default="DeepLabV3Plus")
    parser.add_argument("--encoder", default="resnet18")
    parser.add_argument("--size", type=image_size, default=(1024, 2048), metavar="HxW")
    parser.add_argument("--classes", type=int, default=19)
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps({"peak_bytes": predict(arguments)}))
        return
    peaks = {}
    for draws in (1, arguments.draws):
        words = [
            "--network",
            arguments.network,
            "--encoder",
            arguments.encoder,
            "--size",
            f"{arguments.size[0]}x{arguments.size[1]}",
        ]
        words += [
            "--classes",
            str(arguments.classes),
            "--draws",
            str(draws),
            "--precision",
            arguments.precision,
            "--one",
        ]
        done = subprocess.run([sys.executable, __file__, *words], capture_output=True, text=True, check=True)
        peaks[draws] = json.loads(done.stdout.splitlines()[-1])["peak_bytes"]
        print(f"{draws:3d} draws: peak {peaks[draws] / 2**30:.2f} GiB", flush=True)
    print(f"above the deterministic pass: {(peaks[arguments.draws] - peaks[1]) / 2**30:.2f} GiB")


if __name__ == "__main__":
    main()
