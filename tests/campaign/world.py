"""What faults happen to: the toy job of the tests, and what else is made of it when it is first
asked for.

The campaign is short in ``make test``; ``SEGUNC_CASES=START:STOP`` chooses the cases of each
reader.
"""

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from safetensors.torch import load_file

from tests.conftest import Job
from tests.verbs.processes import FAST, succeed

CASES = range(*map(int, os.environ.get("SEGUNC_CASES", "0:8").split(":")))
SMALL = f"--draws 4 --threads 1 {FAST}"
COMMANDS = {
    "predict": f"predict --model {{abnn}} {SMALL} --input {{frames}} --overlay",
    "overlay": "overlay --score entropy --maps {maps}",
}


@dataclass(frozen=True)
class World:
    """A job of the toy set (its model is an ABNN), and a folder for what else is made."""

    job: Job
    folder: Path

    def words(self, command: str, out: Path) -> list[str]:
        places = {name: str(getattr(self.job, name)) for name in ("abnn", "frames", "maps")}
        return [*COMMANDS[command].format(**places).split(), "--out", str(out)]

    @cached_property
    def metrics(self) -> Path:
        words = (
            "evaluate --scores entropy,epistemic --replicates 40 --protocols pooled,smiyc --maps",
            self.job.maps,
        )
        succeed(*words, "--anomaly-labels", self.job.masks, "--out", self.folder / "metrics.json")
        return self.folder / "metrics.json"

    @cached_property
    def checkpoint(self) -> Path:
        torch.save(load_file(self.job.base / "network.safetensors"), self.folder / "weights.pth")
        return self.folder / "weights.pth"
