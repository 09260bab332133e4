"""The frame of every fine-tuning run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor

from segunc.affine.convert import convert
from segunc.affine.draws import AffineLayout
from segunc.affine.files import save_posterior
from segunc.affine.posterior import Posterior
from segunc.affine.scope import in_scope
from segunc.affine.trainable import P, Trainable
from segunc.core.device import Precision, resolve_device
from segunc.core.errors import InputError
from segunc.data.module import SegmentationDataModule
from segunc.networks.files import load_network, state_sha256
from segunc.training.affine_task import AffineTask
from segunc.training.base import make_loggers, make_trainer, trainer_settings
from segunc.training.config import FinetuneConfig, save_config
from segunc.training.data import OwnData, open_data, unpack_batch
from segunc.training.losses import Schedule, balanced_weights
from segunc.training.progress import Say, is_first_process, say
from segunc.training.resume import CHECKPOINTS, claim_checkpoints, fit
from segunc.training.selection import CorruptedFrames, Frames, select


class FinetuneRun:
    """A base network, converted, with the data and the output folder of a fine-tuning; opened before any work.

    A killed run continues from its last checkpoint when it is opened again with the same ``out``.

    Args:
        base: model folder of a deterministic network.
        config: of the run. Of the settings ``scope`` and ``seed`` are read, and ``epochs``, ``max_steps``, ``lr``, ``dice`` and
            ``class_weight_power`` where the method trains.
        out: the new model folder.
        device: ``auto``, ``cpu`` or ``cuda[:N]``.
        say: receives a line for each step.
        members: networks that share the epochs in turn, each of which gets ``epochs``.
        partial: file beside the checkpoints in which the method keeps unfinished work of its own.

    Attributes:
        options: the method's settings.
        network: converted, in eval mode, on the CPU.
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
        config: FinetuneConfig[Any],
        out: Path,
        *,
        device: str = "auto",
        say: Say = say,
        members: int = 1,
        partial: str | None = None,
    ) -> None:
        self.base, self.config, self.out, self.device, self.say = base, config, out, device, say
        self.options: Any = config.settings
        self.seed_everything()
        self.network = load_network(base)
        self.classes = self.network.description.classes
        if not isinstance(config.data, OwnData):
            _ = self.data
        sha256 = state_sha256(self.network.body)
        self.conversion = convert(self.network.body)
        say(f"converted {base}: {self.conversion}")
        in_scope(self.options.scope, AffineLayout(self.network).names)  # a bad scope leaves no folder behind
        self.settings = trainer_settings(dict(config.trainer), out, device)
        self.epochs: int = getattr(self.options, "epochs", 0)
        self.settings["max_epochs"] = self.epochs * members
        if getattr(self.options, "max_steps", 0):
            self.settings["max_steps"] = self.options.max_steps * members
        self.precision: Precision = "bfloat16" if str(self.settings["precision"]).startswith("bf16") else "float32"
        # Before the minutes of a selection, so that wrong settings fail at once.
        if self.epochs:
            self.prepare_data()
        self.resume = claim_checkpoints(out, "finetune", config, partial, base_sha256=sha256)
        save_config(config, out, "finetune")
        self.measured: dict[str, Any] = {}
        self._start = time.perf_counter()

    def seed_everything(self) -> None:
        """Start the global random numbers, which shuffle and augmentation take, from the settings' seed."""
        L.seed_everything(self.options.seed, workers=True, verbose=False)

    @cached_property
    def data(self) -> SegmentationDataModule:
        """The data set of ours.

        Raises:
            InputError: the run has loaders of the user's own, or the data set does not fit the network.
        """
        if isinstance(self.config.data, OwnData):
            raise InputError(
                f"{self.options.section} with loaders of your own",
                "a data set of segunc (dataset, root)",
                "it goes through whole frames by their number",
            )
        return open_data(self.config.data, len(self.classes))

    def prepare_data(self) -> None:
        """Check that there is enough to train on."""
        if not isinstance(self.config.data, OwnData):
            self.data.prepare_data()

    @property
    def batch_size(self) -> int:
        """Images of a training batch; 1 where a loader does not say."""
        own = self.config.data
        return int(getattr(own.train, "batch_size", None) or 1) if isinstance(own, OwnData) else self.data.batch_size

    def train_batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """An epoch of training images ``[N, 3, H, W]`` in 0..1 and labels ``[N, H, W]``."""
        own = self.config.data
        return map(unpack_batch, own.train if isinstance(own, OwnData) else self.data.train_dataloader())

    def place(self) -> AffineLayout:
        """Put the network on the device, channels last, and return its layout there."""
        self.network.to(resolve_device(self.device)).to(memory_format=torch.channels_last)
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
        data: Frames
        if isinstance(self.config.data, OwnData) and not corruption:
            data = self.config.data.validation(frames)
        else:
            data = self.data.dataset("val")
            data = CorruptedFrames(data, corruption) if corruption else data
        best, nll = select(
            self.network,
            candidate,
            data,
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

    def _class_weights(self, power: float) -> list[float] | None:
        """Weights of all classes after ``class_weight_power``, or None for 1."""
        if not power:
            return None
        own = self.config.data
        found = own.class_frequencies(len(self.classes)) if isinstance(own, OwnData) else self.data.class_frequencies()
        return balanced_weights(found, power)

    def train(
        self,
        trainable: Trainable[P],
        *,
        optimizer: Literal["sgd", "adamw"] = "sgd",
        schedule: Schedule = "poly",
        draws_per_image: int = 1,
    ) -> P:
        """Train to the end of the epochs, with a checkpoint after each; leaves the network on the CPU.

        Args:
            trainable: over this network; its own state is that of the end.
            optimizer, schedule, draws_per_image: see :class:`segunc.training.affine_task.AffineTask`.

        Returns:
            the posterior, on the CPU; with 0 epochs the initial one.
        """
        task = AffineTask(
            self.network.cpu(),
            len(self.classes),
            lambda layout: trainable,
            self.options,
            optimizer=optimizer,
            schedule=schedule,
            class_weights=self._class_weights(self.options.class_weight_power),
            draws_per_image=draws_per_image,
        ).cpu()
        if not self.epochs:
            return task.posterior()
        last = ModelCheckpoint(
            self.out / CHECKPOINTS, "last", every_n_epochs=1, save_on_train_epoch_end=True, enable_version_counter=False
        )
        trainer = make_trainer(self.settings, [last], make_loggers(self.out), label="finetune")
        own = self.config.data
        loader = own.train if isinstance(own, OwnData) else self.data.train_dataloader()
        start = time.perf_counter()
        fit(trainer, task, self.resume, train_dataloaders=loader)
        self.measured["steps"] = trainer.global_step
        self.measured["train_seconds"] = round(time.perf_counter() - start, 1)
        return task.posterior()

    def provenance(self) -> dict[str, Any]:
        """How the result came to be, for its record; the clock of the run stops here."""
        self.measured["seconds"] = round(time.perf_counter() - self._start, 1)
        content = self.config.plain()
        return {
            "dataset": "own loaders" if isinstance(self.config.data, OwnData) else self.config.data["dataset"],
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "torch": torch.__version__,
            "precision": str(self.settings["precision"]),
            "threads": torch.get_num_threads(),
            "settings": {k: v for k, v in content[self.options.section].items() if k not in self.measured},
            "resumed": self.resume is not None,
            **self.measured,
        }

    def finish(self, posterior: Posterior, summary: str) -> dict[str, Any]:
        """Write the model folder and say so; returns what was measured."""
        provenance = self.provenance()
        if is_first_process():
            layout = AffineLayout(self.network.cpu())
            save_posterior(
                posterior, layout, self.conversion, self.base, self.out, seed=self.options.seed, provenance=provenance
            )
            self.say(f"wrote {self.out}: {summary}")
        return self.measured
