"""What faults happen to: the toy job of the tests, and what else is made of it when it is first asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file

from tests.conftest import Job
from tests.verbs.processes import FAST, succeed

SMALL = f"--draws 4 --threads 1 {FAST}"
COMMANDS = {
    "predict": f"predict --model {{abnn}} {SMALL} --input {{frames}} --overlay --frames-at-once 2",
    "export": "export --to smiyc --method M --dataset D --score entropy --maps {maps}",
}
"""What writes many files, small enough for seconds."""


@dataclass(frozen=True)
class World:
    """A job of the toy set (its model is an ABNN), and a folder for what else is made."""

    job: Job
    folder: Path

    def made(self, name: str, make: Callable[[Path], object]) -> Path:
        """A file or folder of a name, made by the first who asks."""
        path = self.folder / name
        if not path.exists():
            make(path)
        return path

    def words(self, command: str, out: Path) -> list[str]:
        """The words of one of :data:`COMMANDS`."""
        places = {name: str(getattr(self.job, name)) for name in ("abnn", "frames", "maps")}
        return [*COMMANDS[command].format(**places).split(), "--out", str(out)]

    @property
    def metrics(self) -> Path:
        """A result."""
        words = ("evaluate --scores entropy,epistemic --replicates 40 --protocols pooled,smiyc --maps", self.job.maps)
        labels = ("--anomaly-labels", self.job.masks, "--out")
        return self.made("metrics.json", lambda path: succeed(*words, *labels, path))

    @property
    def checkpoint(self) -> Path:
        """The base's weights as a PyTorch file."""
        weights = self.job.base / "network.safetensors"
        return self.made("weights.pth", lambda path: torch.save(load_file(weights), path))
