"""What faults happen to: a tiny toy set, networks and posteriors of it, maps and results, each made when it is first asked for."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file

from segunc.core.files import PARTIAL_SUFFIX
from segunc.maps.shards import LOCK_STEM
from segunc.toyroads import generate_toy
from tests.conftest import FINETUNE, TOY, TRAIN, Job
from tests.training.overconfident import save_overconfident
from tests.verbs.processes import FAST, succeed

SMALL = f"--draws 4 --threads 1 {FAST}"
FITTED = {
    "temperature": "temperature: {pixels: 200, draws: 4}",
    "standardized-max-logit": "max_logit: {frames: 4}",
    "features": "features: {frames: 4, encoder: own}",
    "anomaly": "anomaly: {parts: [deterministic-energy, knn], draws: 2}\nselect: {frames: 4}",
}
"""What is fitted on a finished model, in an order in which each finds what it needs."""


@dataclass(frozen=True)
class World:
    """A job of the toy set (its model is an ABNN), and a folder for what else is made."""

    job: Job
    folder: Path

    def made(self, name: str, make: Callable[[Path], object]) -> Path:
        """A file or folder of a name, made by the first who asks."""
        path = self.folder / name
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            make(path)
        return path

    def config(self, name: str, section: str) -> Path:
        """A configuration with the toy set as its data."""
        data = f"data: {{dataset: toy, root: {self.job.data}, crop: [64, 64], batch_size: 4}}\n"
        return self.made(f"{name}.yaml", lambda path: path.write_text(data + section + "\n", encoding="utf-8"))

    @property
    def metrics(self) -> Path:
        """A result, with its replicates beside it."""

        def make(path: Path) -> None:
            words = (
                "--maps",
                self.job.maps,
                "--anomaly-labels",
                self.job.masks,
                "--replicates 40 --protocols pooled,smiyc",
            )
            succeed("evaluate --scores entropy,epistemic", *words, "--out", path)

        return self.made("metrics.json", make)

    @property
    def fitted(self) -> Path:
        """An ABNN, whose logits have something to tell, with everything that is fitted on a model."""

        def make(path: Path) -> None:
            _, base = save_overconfident(self.job.base, self.job.data, path.with_name("overconfident"))
            for method, section in FITTED.items():
                config = self.config(method, section)
                succeed(f"finetune --device cpu --method {method} --base", base, "--config", config, "--out", path)
                base = path

        return self.made("fitted", make)

    @property
    def checkpoint(self) -> Path:
        """The base's weights as a PyTorch file."""
        weights = self.job.base / "network.safetensors"
        return self.made("weights.pth", lambda path: torch.save(load_file(weights), path))


def build(folder: Path) -> World:
    """The world in a folder, as an earlier campaign may have left it."""
    job = Job(folder / "toy", *(folder / name for name in ("train.yaml", "tune.yaml", "base", "abnn", "maps")))
    folder.mkdir(parents=True, exist_ok=True)
    if not job.data.exists():
        generate_toy(job.data, TOY)
    job.train_config.write_text(TRAIN.format(root=job.data), encoding="utf-8")
    job.finetune_config.write_text(FINETUNE.format(root=job.data), encoding="utf-8")
    succeed("train --device cpu --config", job.train_config, "--out", job.base)
    succeed("finetune --device cpu --base", job.base, "--config", job.finetune_config, "--out", job.abnn)
    succeed("predict", "--model", job.abnn, "--input", job.frames, "--out", job.maps, SMALL, "--overlay")
    return World(job, folder)


def file_hashes(folder: Path, ignored: Callable[[str], bool] = lambda name: False) -> dict[str, str]:
    """SHA-256 of every file below a folder but those that are ignored, by relative path; links by their targets."""
    found = {}
    for path in sorted(folder.rglob("*")) if folder.is_dir() else [folder] if folder.exists() else []:
        name = path.relative_to(folder).as_posix()
        if path.is_file() and not ignored(name):
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def left_over(folder: Path) -> list[str]:
    """Temporary files and locks that no finished run leaves."""
    names = [path.relative_to(folder).as_posix() for path in folder.rglob("*")] if folder.is_dir() else []
    return [name for name in names if PARTIAL_SUFFIX in name or name.rpartition("/")[2].startswith(LOCK_STEM)]


def remove(path: Path) -> None:
    """A file or a folder, if it is there."""
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)
