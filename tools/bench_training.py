"""Seconds of a training step: the base network against ABNN fine-tuning, for the same batch.

    python -m tools.bench_training --network DeepLabV3Plus --encoder resnet18 --crop 256x256 \\
        --batch 8 --json training.json

Both run through the modules that `segunc train` and `segunc finetune` use, in Lightning's loop, in
the precision that these choose, over one batch in memory: nothing is read or written. Every row is
a process of its own, the median of --steps after a warm-up, with random weights, on which time and
memory do not depend. Rows:

base              all weights train, batch norms in training mode, AdamW
abnn              members' gamma and beta train over the frozen network, noise for every image
abnn SCOPE        the same with fewer stochastic sites

Seconds are split into forward (with the loss), backward, and the rest (optimiser, hooks). Ratio:
abnn_over_base, whole steps.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import lightning as L
import torch
from torch.utils.data import DataLoader

from segunc import NetworkDescription, build_network, convert
from segunc.core.device import resolve_device
from segunc.core.files import write_json
from segunc.options import image_size
from segunc.posteriors.abnn import ABNN, Members
from segunc.training.affine_task import AffineTask
from segunc.training.base import SegmentationTask, trainer_settings
from tools.measuring import in_own_process, peak_bytes, provenance

ROWS = ("base", "abnn", "abnn decoder")
WARM_UP = 3
"""Steps that are not counted; with three members each has had its turn."""


class StepTimes(L.Callback):
    """The moments of every step: its start, the end of the forward and of the backward pass, its
    end.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.steps: list[list[float]] = []

    def on_train_batch_start(self, *_: Any) -> None:
        self.steps.append([])
        self._note()

    def on_before_backward(self, *_: Any) -> None:
        self._note()

    def on_after_backward(self, *_: Any) -> None:
        self._note()

    def on_train_batch_end(self, *_: Any) -> None:
        self._note()

    def _note(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self.steps[-1].append(time.perf_counter())


def make_task(row: str, arguments: argparse.Namespace) -> SegmentationTask | AffineTask[Any]:
    """The module that a row trains."""
    torch.manual_seed(0)
    classes = tuple(f"class {i}" for i in range(arguments.classes))
    network = build_network(NetworkDescription(arguments.network, arguments.encoder, classes))
    network.to(memory_format=torch.channels_last)
    kind, _, scope = row.partition(" ")
    if kind == "base":
        return SegmentationTask(network, len(classes))
    convert(network.body)
    config = ABNN(members=3, scope=scope or "all")
    return AffineTask(
        network, len(classes), lambda layout: Members(layout, len(classes), config), config
    )


def measure(row: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Median seconds of a step and of its parts, and the peak memory of this process in bytes."""
    torch.set_flush_denormal(True)
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    device = resolve_device(arguments.device)
    height, width = arguments.crop
    generator = torch.Generator().manual_seed(0)
    batch = {
        "image": torch.rand(arguments.batch, 3, height, width, generator=generator),
        "label": torch.randint(
            arguments.classes, (arguments.batch, height, width), generator=generator
        ),
    }
    steps = WARM_UP + arguments.steps
    times = StepTimes(device)
    own = {
        "max_steps": steps,
        "max_epochs": -1,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
    }
    with tempfile.TemporaryDirectory() as folder:
        task = make_task(row, arguments)
        settings = trainer_settings(own, Path(folder), arguments.device, task.network)
        trainer = L.Trainer(**settings, callbacks=[times], logger=False)
        trainer.fit(task, DataLoader([batch] * steps, batch_size=None))  # type: ignore[arg-type]
    moments = torch.tensor(times.steps[WARM_UP:], dtype=torch.float64)
    parts = dict(zip(("forward", "backward", "rest"), moments.diff(dim=1).T.tolist(), strict=True))
    return {
        "seconds": statistics.median((moments[:, -1] - moments[:, 0]).tolist()),
        **{name: statistics.median(values) for name, values in parts.items()},
        "peak_bytes": peak_bytes(device),
        "precision": settings["precision"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--network", default="DeepLabV3Plus")
    parser.add_argument("--encoder", default="resnet18")
    parser.add_argument("--crop", type=image_size, default=(256, 256), metavar="HxW")
    parser.add_argument("--batch", type=int, default=8, metavar="N")
    parser.add_argument("--classes", type=int, default=19)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--row", choices=ROWS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.row:
        found = measure(arguments.row, arguments)
        print(f"\n{json.dumps(found)}")
        return
    rows = {}
    for row in ROWS:
        found = in_own_process(__file__, [*sys.argv[1:], "--row", row], row)
        if found:
            rows[row] = found
            parts = ", ".join(
                f"{name} {found[name]:.3f}" for name in ("forward", "backward", "rest")
            )
            print(
                f"{row:14s} {found['seconds']:7.3f} s a step ({parts})"
                f" {found['peak_bytes'] / 2**30:6.2f} GiB",
                flush=True,
            )
    ratios = {
        f"{row.replace(' ', '_')}_over_base": rows[row]["seconds"] / rows["base"]["seconds"]
        for row in ROWS[1:]
        if row in rows and "base" in rows
    }
    for name, value in ratios.items():
        print(f"{name} {value:.2f}")
    if arguments.json:
        device = resolve_device(arguments.device)
        about = {**provenance(device), "batch": arguments.batch, "crop": list(arguments.crop)}
        about |= {
            "network": f"{arguments.network} {arguments.encoder}",
            "threads": arguments.threads,
        }
        write_json(arguments.json, {"about": about, "rows": rows, "ratios": ratios})


if __name__ == "__main__":
    main()
