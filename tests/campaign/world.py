"""What faults happen to: the toy job of the tests, and what else is made of it when it is first asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torchvision
from safetensors.torch import load_file

from tests.conftest import Job
from tests.training.overconfident import save_overconfident
from tests.verbs.processes import FAST, succeed

SMALL = f"--draws 4 --threads 1 {FAST}"
NETWORK = "lraspp_mobilenet_v3_large"
LANGEVIN = "{cycles: 2, cycle_steps: 4, exploration: 0.25, states_per_cycle: 2, effective_pixels: 1000, scope: decoder}"
HMC = "{scope: decoder, frames: 2, effective_pixels: 300, chains: 2, warmup: 1, samples: 4, trajectory: 0.01, step_size: 0.003}"
SELECTION = "selection_frames: 1, selection_draws: 2"
SETTINGS = {
    "abnn": "abnn: {members: 2, alpha_grid: [0.05, 0.2], alpha_frames: 2, alpha_draws: 2, epochs: 2}",
    "deterministic": "deterministic: {epochs: 3}",
    "decoder-ensemble": "decoder_ensemble: {heads: 3, epochs: 2}",
    "laplace": f"laplace: {{images: 8, samples: 1, prior_scale_grid: [0.02, 0.05], {SELECTION}}}",
    "mc-dropout": f"mc_dropout: {{p_grid: [0.01, 0.05], {SELECTION}}}",
    "swag": "swag: {epochs: 3, burn_in: 0, collect_every: 1, rank: 4}",
    "variational": "variational: {epochs: 3}",
    "sgld": f"sgld: {LANGEVIN}",
    "sghmc": f"sghmc: {LANGEVIN}",
    "hmc": f"hmc: {HMC}",
    "temperature": "temperature: {pixels: 200, draws: 4}",
    "standardized-max-logit": "max_logit: {frames: 4}",
    "features": "features: {frames: 4, encoder: own}",
    "anomaly": "anomaly: {parts: [deterministic-energy, knn], draws: 2}\nselect: {frames: 4}",
}
"""A small run of each method of ``segunc finetune`` that takes a data set."""
FITTED = ("temperature", "standardized-max-logit", "features", "anomaly")
"""What is fitted on a finished model, in an order in which each finds what it needs."""
MIXTURES = {
    "tta": "finetune --device cpu --method tta --base {base} --config {tta}",
    "ensemble": "finetune --device cpu --method ensemble --base {base} {second}",
}
PREDICT = f"predict --model {{abnn}} {SMALL} --input"
COMMANDS = {
    "predict, folder": f"{PREDICT} {{frames}} --overlay --frames-at-once 2",
    "predict, compact": f"{PREDICT} {{frames}} --compact",
    "predict, video": f"{PREDICT} {{video}} --overlay",
    "train": "train --device cpu --trainer.max_epochs 3 --config {train}",
    **{f"finetune, {name}": f"finetune --device cpu --method {name} {{of_{name}}}" for name in SETTINGS},
    **{f"finetune, {name}": words for name, words in MIXTURES.items()},
    "evaluate, maps": "evaluate --replicates 40 --maps {maps} --anomaly-labels {masks}",
    "evaluate, model": f"evaluate --replicates 40 --dataset toy {SMALL} --model {{abnn}} --root {{data}}",
    "review": "review --maps {maps} --anomaly-labels {masks}",
    "import": f"import torchvision:{NETWORK} --weights {{torchvision}} --classes toy --size 64x128",
    "overlay": "overlay --panel --maps {maps}",
    "export": "export --to smiyc --method M --dataset D --score entropy --maps {maps}",
    "summary": "summary --maps {maps}",
}
"""Everything that writes, small enough for seconds; the folder, or the file, that it writes stands behind ``--out``."""
FILES = {"evaluate, maps": "metrics.json", "evaluate, model": "metrics.json", "summary": "moments.csv"}


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

    def words(self, command: str, out: Path) -> list[str]:
        """The words of one of :data:`COMMANDS`."""
        known = {"train": self.job.train_config, "frames": self.job.frames, "masks": self.job.masks}
        known |= {name: getattr(self.job, name) for name in ("base", "abnn", "maps", "data", "video")}
        words = [*COMMANDS[command].split(), "--out", str(out / FILES.get(command, ""))]
        parts = [self._part(word.strip("{}"), known).split() if word.startswith("{") else [word] for word in words]
        return [word for part in parts for word in part]

    def _part(self, name: str, known: dict[str, Path]) -> str:
        method = name.removeprefix("of_")
        if method in SETTINGS:
            base = self.fitted if method in FITTED else known["base"]
            return f"--base {base} --config {self.config(method)}"
        if name == "tta":
            text = "tta: {scales: [1.0, 0.75], flip: true}\n"
            return str(self.made("tta.yaml", lambda path: path.write_text(text, encoding="utf-8")))
        if name == "second":
            words = "train --seed 1 --device cpu --config"
            return str(self.made(name, lambda path: succeed(words, known["train"], "--out", path)))
        return str(self.made("torchvision.pth", save_torchvision) if name == "torchvision" else known[name])

    def config(self, method: str) -> Path:
        """A configuration of a method, with the toy set as its data."""
        text = f"data: {{dataset: toy, root: {self.job.data}, crop: [64, 64], batch_size: 4}}\n{SETTINGS[method]}\n"
        if method not in (*FITTED, "sgld", "sghmc", "hmc"):
            text += "trainer: {precision: 32-true}\n"
        return self.made(f"{method}.yaml", lambda path: path.write_text(text, encoding="utf-8"))

    @property
    def metrics(self) -> Path:
        """A result, with its replicates beside it."""
        words = ("evaluate --scores entropy,epistemic --replicates 40 --protocols pooled,smiyc --maps", self.job.maps)
        labels = ("--anomaly-labels", self.job.masks, "--out")
        return self.made("metrics.json", lambda path: succeed(*words, *labels, path))

    @property
    def fitted(self) -> Path:
        """An ABNN, whose logits have something to tell, with everything that is fitted on a model."""

        def make(path: Path) -> None:
            _, base = save_overconfident(self.job.base, self.job.data, path.with_name("overconfident"))
            for method in FITTED:
                words = (f"finetune --device cpu --method {method} --base", base, "--config", self.config(method))
                succeed(*words, "--out", path)
                base = path

        return self.made("fitted", make)

    @property
    def checkpoint(self) -> Path:
        """The base's weights as a PyTorch file."""
        weights = self.job.base / "network.safetensors"
        return self.made("weights.pth", lambda path: torch.save(load_file(weights), path))


def save_torchvision(path: Path) -> None:
    torch.manual_seed(0)
    network = torchvision.models.get_model(NETWORK, weights=None, weights_backbone=None, num_classes=9)
    torch.save(network.state_dict(), path)
