"""What this package does on a GPU, right and fast: every step beside the CPU or a bound, one JSON
and one table.

    python -m tools.gpu_day --out gpu-day --parts fast,waits --seconds 500
    python -m tools.gpu_day --out rehearsal --device cpu --tiny    # the same steps at toy sizes

The parts, of which --parts names some:

right      toy scenes and a small network: train, every method of finetune, each model's maps in
           float32 and bfloat16 against the CPU's in float32, the schemes of draws, evaluate,
           doctor, a killed and continued predict, two processes at once
fast       networks of random weights: the best pass (eager or compiled, channels last, bfloat16) to
           low-resolution logits, maps of 24 draws over 24 such passes, memory above that of a plain
           pass, and a loop over deep copies with torch-uncertainty's layer; a student beside its
           network; predict beside the sampler alone
waits      a student in the package as it is, and with a host that asks later whether logits are
           finite, in turns
depthwise  DeepLabV3+'s dilated convolutions of single channels, and the same as sums of shifted
           products: each layer, a compiled pass, compiled maps; both against float64
bank       knn and anomaly with 100,000 features for each layer, beside a plain pass; distances and
           neighbours against float64
tail       the sums over draws in float32 against float64, beside the bounds of docs/float32.md
runtimes   an exported file of four draws in ONNX Runtime and TensorRT, float32 and float16
studies    the bases and boards of configs/study/boards-large-idd.yaml and boards-full-size.yaml

A step that fails is a row with its reason, and the others run. Every finished step is on disk at
once, in gpu_day.json: the same command goes on behind it, and tries a failed step again once its
row is removed there. A step that cannot run here is a row "not measured", and the next call tries
it again. After --seconds no step begins. The exit code is 1 where a step failed or missed its
bound.

On a machine for 15 minutes these calls fit, in this order, each below 10 minutes. The seconds are
guesses of how long they take; nobody has timed them.

    120   --parts tail,bank --seconds 150
    150   --parts depthwise,waits --seconds 200
    200   --parts fast --only 'Unet resnet34 1024|predict' --seconds 250
    150   --parts runtimes --seconds 200

The rest needs a machine of its own: `--parts fast` about 500 s, `--parts right` about 900 s in two
calls of --seconds 500, and `--parts studies`, with the variables of the headers of the plans, as
many calls of --seconds 560 as it takes: a training or study stops after --study-seconds, and the
same call goes on with it.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from segunc.core.device import resolve_device
from segunc.core.errors import InputError
from tools.gpu_day import bank, depthwise, fast, right, runtimes, studies, tail, waits
from tools.gpu_day.steps import Day, Results, Step
from tools.gpu_day.timing import Turns
from tools.measuring import provenance

PARTS: dict[str, Callable[[Day], Iterator[Step]]] = {
    "right": right.steps,
    "fast": fast.steps,
    "waits": waits.steps,
    "depthwise": depthwise.steps,
    "bank": bank.steps,
    "tail": tail.steps,
    "runtimes": runtimes.steps,
    "studies": studies.steps,
}


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tools.gpu_day",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--device", default="cuda")
    parser.add_argument(
        "--parts",
        type=part_names,
        default=list(PARTS),
        metavar="A,B",
        help="parts to run, in this order (default: all)",
    )
    parser.add_argument("--only", default="", metavar="PATTERN", help="steps whose names match it")
    parser.add_argument(
        "--seconds", type=float, default=1500, help="after so many, no step begins (1500)"
    )
    parser.add_argument(
        "--study-seconds",
        type=float,
        default=480,
        help="after so many, a training or study stops, to be continued (480)",
    )
    parser.add_argument(
        "--model",
        type=Path,
        metavar="DIR",
        help="model of the part runtimes, one for each --out (random weights)",
    )
    parser.add_argument("--tiny", action="store_true", help="toy sizes, for a rehearsal")
    parser.add_argument(
        "--turns",
        type=Path,
        metavar="DIR",
        help="networks are timed in turns with the other processes of this folder",
    )
    parser.add_argument(
        "--beside", type=int, default=1, metavar="N", help="processes of the folder"
    )
    return parser


def part_names(text: str) -> list[str]:
    """Return the parts that a word of the command line names."""
    names = text.split(",")
    unknown = [name for name in names if name not in PARTS]
    if unknown:
        raise argparse.ArgumentTypeError(
            f"there is no part {unknown[0]}; choose from {', '.join(PARTS)}"
        )
    return names


def chosen_steps(day: Day, parts: list[str], only: str) -> Iterator[Step]:
    """Give the steps of parts whose names match a pattern."""
    for part in parts:
        for step in PARTS[part](day):
            if re.search(only, step.name):
                yield step


def main() -> int:
    asked = make_parser().parse_args()
    if asked.device.startswith("cuda") and not torch.cuda.is_available():
        print("no CUDA device: nothing was measured", file=sys.stderr)
        return 2
    asked.out.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    end = began + asked.seconds
    day = Day(
        out=asked.out.resolve(),
        device_name=asked.device,
        tiny=asked.tiny,
        end=end,
        study_seconds=asked.study_seconds,
        model=asked.model,
        turns=Turns(asked.turns, asked.beside, end),
    )
    results = Results(day.out, provenance(resolve_device(asked.device)))
    try:
        steps = list(chosen_steps(day, asked.parts, asked.only))
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    for step in steps:
        if results.is_finished(step.name) or time.monotonic() > end:
            continue
        row = results.run(step)
        torch._dynamo.reset()
        print(f"{time.monotonic() - began:6.0f} s  {step.name}: {row}", flush=True)
    print(results.write_table())
    return 0 if results.all_met else 1


if __name__ == "__main__":
    sys.exit(main())
