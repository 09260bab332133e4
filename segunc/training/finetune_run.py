"""The frame of every fine-tuning run, and of what is fitted on a finished model."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import cv2
import lightning as L
import numpy as np
import numpy.typing as npt
import torch
from jsonargparse import Namespace
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor

from segunc.affine.convert import convert
from segunc.affine.draws import AffineLayout
from segunc.affine.posterior import Posterior
from segunc.affine.scope import in_scope
from segunc.core.errors import InputError
from segunc.data.module import SegmentationDataModule
from segunc.networks.files import load_network, state_sha256
from segunc.networks.network import inference_size
from segunc.posteriors.files import Model, load_model, save_posterior
from segunc.sampling.frames import network_input
from segunc.sampling.sampler import Precision
from segunc.training.affine_task import AffineTask
from segunc.training.base import make_loggers, make_trainer, trainer_settings
from segunc.training.config import save_config
from segunc.training.losses import balanced_weights
from segunc.training.progress import follow, is_first_process
from segunc.training.resume import CHECKPOINTS, claim_checkpoints, fit
from segunc.training.selection import CorruptedFrames, select, spaced

Task = TypeVar("Task", bound=AffineTask)


class FinetuneRun:
    """A base network, converted, with the data and the output folder of a fine-tuning; opened before any work.

    A killed run continues from its last checkpoint when it is opened again with the same ``out``.

    Args:
        base: model folder of a deterministic network.
        config: resolved, with ``data``, ``trainer`` and the section of the method.
        section: name of the method's section in the configuration. Its ``scope`` and ``seed`` are read, and
            ``epochs``, ``max_steps``, ``class_weight_power`` where it has them.
        out: the new model folder.
        device: ``auto``, ``cpu`` or ``cuda[:N]``.
        say: receives a line for each step.
        members: networks that share the epochs in turn, each of which gets ``epochs``.
        partial: file beside the checkpoints in which the method keeps unfinished work of its own.

    Attributes:
        options: the method's section.
        network: converted, in eval mode, on the CPU.
        data: the data module.
        settings: of the Lightning Trainer.
        precision: of predictions, as the Trainer's.
        resume: the checkpoint from which the run continues, or None.
        measured: what the run finds out, for the record; seconds, steps, selections.

    Raises:
        InputError: the base, the data, the configuration and the output folder do not fit together.
    """

    def __init__(
        self,
        base: Path,
        config: Namespace,
        section: str,
        out: Path,
        device: str,
        say: Callable[[str], None],
        members: int = 1,
        partial: str | None = None,
    ) -> None:
        self.base, self.config, self.out, self.device, self.say = base, config, out, device, say
        self.options: Namespace = config[section]
        L.seed_everything(self.options.seed, workers=True, verbose=False)
        torch.set_flush_denormal(True)
        self.network = load_network(base)
        self.data = SegmentationDataModule(**config.data.as_dict())
        known, given = self.network.description.num_classes, self.data.label_map.num_classes
        if given != known:
            raise InputError(
                f"data set {config.data.dataset} has {given} classes, the network {known}",
                "the classes that the network was trained on",
                "choose the data set or the base again",
            )
        sha256 = state_sha256(self.network.body)
        self.conversion = convert(self.network.body)
        say(f"converted {base}: {self.conversion}")
        in_scope(self.options.scope, AffineLayout(self.network).names)  # a bad scope leaves no folder behind
        self.settings = trainer_settings(dict(config.trainer), out, device)
        self.epochs: int = self.options.get("epochs", 0)
        self.settings["max_epochs"] = self.epochs * members
        if self.options.get("max_steps", 0):
            self.settings["max_steps"] = self.options.max_steps * members
        self.precision: Precision = "bfloat16" if str(self.settings["precision"]).startswith("bf16") else "float32"
        # Before the minutes of a selection, so that wrong settings fail at once.
        if self.epochs:
            self.data.prepare_data()
        self.resume = claim_checkpoints(out, "finetune", config, partial, base_sha256=sha256)
        save_config(config, out, "finetune")
        self.measured: dict[str, Any] = {}
        self._start = time.perf_counter()

    def place(self) -> AffineLayout:
        """Put the network on the device, channels last, and return its layout there."""
        device = self.device
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        self.network.to(device).to(memory_format=torch.channels_last)
        return AffineLayout(self.network)

    def select(
        self,
        candidate: Callable[[float], Posterior],
        grid: Sequence[float],
        name: str,
        frames: int,
        draws: int,
        corruption: int = 0,
    ) -> float:
        """:func:`segunc.training.selection.select` on the validation split, clean or under corruptions of a strength; notes
        the NLL of every candidate."""
        start = time.perf_counter()
        data = self.data.dataset("val")
        best, nll = select(
            self.network,
            candidate,
            CorruptedFrames(data, corruption) if corruption else data,
            grid,
            name,
            frames=frames,
            draws=draws,
            seed=self.options.seed,
            precision=self.precision,
        )
        self.measured[f"{name}_nll"] = {k: round(v, 6) for k, v in nll.items()}
        self.measured[f"{name}_seconds"] = round(time.perf_counter() - start, 1)
        candidates = ", ".join(f"{k}: {v:.4f}" for k, v in nll.items())
        self.say(f"{name} {best:g} has the lowest validation NLL of {candidates}")
        if len(grid) > 1 and best in (min(grid), max(grid)):
            self.say(f"{name} {best:g} is at the end of {name}_grid: a value beyond it may be better")
        return best

    def class_weights(self) -> list[float] | None:
        """Weights of all classes after ``class_weight_power``, or None for 1."""
        power: float = self.options.class_weight_power
        return balanced_weights(self.data.class_frequencies(), power) if power else None

    def shared_options(self) -> dict[str, Any]:
        """The settings of :class:`AffineTask` that every section of ``AffineTrainingConfig`` has."""
        names = ("scope", "lr", "prior_scale", "effective_pixels", "dice", "seed")
        return {**{name: self.options[name] for name in names}, "class_weights": self.class_weights()}

    def train(self, task: Task) -> Task:
        """Fit a task to its end, with a checkpoint after every epoch; the network is on the CPU before."""
        last = ModelCheckpoint(
            self.out / CHECKPOINTS, "last", every_n_epochs=1, save_on_train_epoch_end=True, enable_version_counter=False
        )
        trainer = make_trainer(self.settings, [last], make_loggers(self.out), label="finetune")
        start = time.perf_counter()
        fit(trainer, task, self.resume, train_dataloaders=self.data.train_dataloader())
        self.measured["steps"] = trainer.global_step
        self.measured["train_seconds"] = round(time.perf_counter() - start, 1)
        return task

    def provenance(self) -> dict[str, Any]:
        """How the result came to be, for its record; the clock of the run stops here."""
        self.measured["seconds"] = round(time.perf_counter() - self._start, 1)
        return {
            "dataset": self.config.data.dataset,
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "torch": torch.__version__,
            "precision": str(self.settings["precision"]),
            "threads": torch.get_num_threads(),
            "settings": {k: v for k, v in self.options.as_dict().items() if k not in self.measured},
            "resumed": self.resume is not None,
            **self.measured,
        }

    def finish(self, posterior: Posterior, summary: str) -> dict[str, Any]:
        """Write the model folder and say so; returns what was measured."""
        provenance = self.provenance()
        if is_first_process():
            layout = AffineLayout(self.network.cpu())
            save_posterior(
                posterior,
                layout,
                self.conversion,
                self.base,
                self.out,
                seed=self.options.seed,
                provenance=provenance,
            )
            self.say(f"wrote {self.out}: {summary}")
        return self.measured


def load_for_fitting(base: Path, config: Namespace, device: torch.device) -> tuple[Model, SegmentationDataModule]:
    """A model of either kind on its device, and the data set that something is to be fitted on.

    Raises:
        InputError: the model cannot be loaded, or the data set has another number of classes.
    """
    torch.set_flush_denormal(True)  # dead channels make denormal numbers, which CPUs multiply very slowly
    model = load_model(base)
    data = SegmentationDataModule(**config.data.as_dict())
    classes = model.network.description.num_classes
    if data.label_map.num_classes != classes:
        raise InputError(
            f"data set {config.data.dataset} has {data.label_map.num_classes} classes, the network {classes}",
            "the classes that the network was trained on",
            "choose the data set or the base again",
        )
    model.place(device)
    return model, data


def frames_as_seen(
    model: Model, data: SegmentationDataModule, split: str, limit: int, label: str
) -> Iterator[tuple[int, Tensor, npt.NDArray[np.uint8]]]:
    """Evenly spaced frames of a split as ``segunc predict`` would show them to the network.

    Args:
        model: its network decides the size, unless ``data.size`` is given.
        data: the data set.
        split: of it.
        limit: how many frames (0: all).
        label: what is done with them, for the progress.

    Yields:
        the frame's index, its image ``[1, 3, h, w]`` in 0..1 on the network's device, and its train ids uint8 ``[h, w]``
        (255 ignored), brought to the network's size by the nearest pixel.
    """
    frames = data.dataset(split)
    device = next(model.network.parameters()).device
    override = None if data.size is None else (data.size[0], data.size[1])
    for index in follow(spaced(len(frames), limit), label):
        image, labels = frames.read(index)
        size = inference_size(model.network.description, (image.shape[0], image.shape[1]), override)
        if labels.shape != size:
            resized = cv2.resize(labels, (size[1], size[0]), interpolation=cv2.INTER_NEAREST)
            labels = np.asarray(resized, np.uint8)
        seen = network_input([image], size).to(device)
        yield index, seen.contiguous(memory_format=torch.channels_last), labels


def fitted_on(config: Namespace, split: str) -> dict[str, Any]:
    """On what, when and with which library something was fitted."""
    return {
        "dataset": config.data.dataset,
        "split": split,
        "size": None if config.data.size is None else list(config.data.size),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "torch": torch.__version__,
    }
