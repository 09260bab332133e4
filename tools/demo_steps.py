"""Seconds of each step of `segunc demo`.

    OMP_NUM_THREADS=1 python -m tools.demo_steps --out DIR [--device cpu] [--processes 1] > JSON

The steps are those of the command, in its order. The drawing of the scenes, by so many processes,
is the first row. The training of the base imports most of what the others need, and its row holds
these seconds. A line on standard error tells each step that is done.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from segunc.core.device import resolve_device
from segunc.core.errors import InputError, PartialFailure
from segunc.options import DemoOptions
from segunc.verbs.demo import demo
from tools.measuring import provenance

DRAWING = "scenes and video are drawn"


@dataclass(frozen=True)
class StepTime:
    """A step of the demo, and how long it took."""

    title: str
    seconds: float


class Stopwatch:
    """Does the steps of the demo, and takes the time of each; what comes before the first is the
    drawing of the scenes.
    """

    def __init__(self) -> None:
        self.rows: list[StepTime] = []
        self._last_end = time.monotonic()

    def step(self, title: str, verb: Callable[[Any], Any], options: Any) -> None:
        """Do a step, as :data:`segunc.verbs.demo.Step`.

        Raises:
            PartialFailure: the step failed.
        """
        if not self.rows:
            self._end(DRAWING)
        failure = getattr(verb(options), "failure", "")
        if failure:
            raise PartialFailure(f"{title}: {failure}")
        self._end(title)

    def _end(self, title: str) -> None:
        now = time.monotonic()
        self.rows.append(StepTime(title, now - self._last_end))
        self._last_end = now
        print(f"{self.rows[-1].seconds:7.1f} s  {title}", file=sys.stderr, flush=True)


def measure(out: Path, device: str, processes: int) -> dict[str, Any]:
    """Run the demo, and return the seconds of all of it and of each step.

    Args:
        out: folder of all that the demo makes.
        device: on which the steps run.
        processes: that draw scenes at once.

    Raises:
        PartialFailure: a step failed.
    """
    stopwatch = Stopwatch()
    options = DemoOptions(out=out, device=device)
    verb: Any = demo  # whose signature is that of its options alone
    result = verb(options, stopwatch.step, None, processes)
    return {
        "seconds": result.seconds,
        "steps": [asdict(row) for row in stopwatch.rows],
        "auroc": dict(result.auroc),
        "threads": torch.get_num_threads(),
        "processes": processes,
        **provenance(resolve_device(device)),
    }


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.demo_steps",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--device", default="cpu", help="(cpu)")
    parser.add_argument(
        "--processes", type=int, default=1, metavar="N", help="that draw the scenes (1)"
    )
    asked = parser.parse_args(words)
    try:
        content = measure(asked.out, asked.device, asked.processes)
    except (InputError, PartialFailure) as error:
        print(error, file=sys.stderr)
        return 1
    print(json.dumps(content, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
