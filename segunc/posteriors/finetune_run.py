"""What every fine-tuning does around its method. Lightning is imported when a run is opened:
loading a posterior does without it.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch

from segunc.affine.convert import convert
from segunc.affine.draws import AffineLayout, in_scope
from segunc.affine.posterior import P, Posterior, Trainable
from segunc.core.device import Precision, resolve_device
from segunc.core.errors import InputError, NoteWarning
from segunc.networks.copies import copy_network
from segunc.posteriors.fit_run import FitRun, Say, silent
from segunc.posteriors.model import Model, configuration_documents, restored
from segunc.posteriors.saving import posterior_record
from segunc.sampling.sampler import caller_level
from segunc.training.batches import Batch, unpack_batch
from segunc.training.config import (
    FinetuneConfig,
    S,
    environment,
)
from segunc.training.fit_data import DataSource, note_on_processes
from segunc.training.lightning_runs import claim_checkpoints, fit, processes_of
from segunc.training.losses import balanced_weights


@dataclass(frozen=True)
class Place:
    """Where a fine-tuning runs.

    Args:
        out: folder of checkpoints and logs.
        device: ``auto``, ``cpu`` or ``cuda[:N]``.
        copies: whether the network is copied; without, that of the model is converted.
        stays: whether ``out`` stays, so that a later run continues from it.
    """

    out: Path
    device: str = "auto"
    copies: bool = True
    stays: bool = True


class FinetuneRun(FitRun[S]):
    """A base network, converted, with the data and the folder of a fine-tuning; opened before any
    work. A killed run continues from its last checkpoint when it is opened again with the same
    ``out``.

    Args:
        model: the deterministic base.
        config: of the run. Of the settings ``scope`` and ``seed`` are read, and ``epochs``,
            ``max_steps`` and ``lr`` where the method trains, each of ``members`` for so many
            epochs.
        source: of the data.
        place: where it runs.

    ``trainer`` are the settings of the Trainer, and ``measured`` is what the run finds out, for the
    record.
    """

    def __init__(
        self,
        model: Model,
        config: FinetuneConfig[S],
        source: DataSource,
        *,
        place: Place,
        say: Say = silent,
        quiet: bool = False,
    ) -> None:
        from segunc.training.base import trainer_settings

        super().__init__(model, config, source, say=say, quiet=quiet)
        out = place.out
        device = place.device
        if model.bayesian:
            raise InputError(
                "the base is Bayesian already",
                hint="load its deterministic base with segunc.load",
            )
        self.options = cast(Any, config.settings)
        self.out = out
        self.keeps_checkpoints = place.stays
        self.device_name = place.device
        self.seed_everything()
        self.network = copy_network(model.network) if place.copies else model.network
        self.classes = self.network.description.classes
        self._check_data()
        self.conversion = convert(self.network.body)
        base = model.folder or "the network"
        say(f"converted {base}: {self.conversion}")
        # Now, because a bad scope must leave no folder behind.
        in_scope(self.options.scope, AffineLayout(self.network).names)
        self.trainer = trainer_settings(dict(config.trainer), out, device, self.network)
        self.epochs: int = getattr(self.options, "epochs", 0)
        members: int = getattr(self.options, "members", 1)  # share the epochs in turn
        self.trainer["max_epochs"] = self.epochs * members
        if getattr(self.options, "max_steps", 0):
            self.trainer["max_steps"] = self.options.max_steps * members
        is_bfloat16 = str(self.trainer["precision"]).startswith("bf16")
        self.precision: Precision = "bfloat16" if is_bfloat16 else "float32"
        if self.epochs:
            self.data.prepare_data(selects=False)
            if self.source.settings:
                self.note_epoch_frames(self.data.frame_names("train"))
        self.resume: Path | None = None
        self.measured: dict[str, Any] = {}
        self._has_told_crops = False
        self._start = time.perf_counter()

    def claim_folder(self) -> None:
        """Find the checkpoint from which the run continues, if a killed one left any.

        Raises:
            InputError: the checkpoints in the folder are of another run.
        """
        self.resume = claim_checkpoints(
            self.out,
            "finetune",
            self.config.plain(),
            self._seen_frames(),
            base_sha256=self.model.sha256,
        )
        if self.resume is not None and not self.source.settings and self.source:
            note = f"continues from {self.resume}; whether it saw the same data is not known"
            warnings.warn(note, NoteWarning, stacklevel=caller_level())

    def seed_everything(self) -> None:
        """Start the global random numbers, which the augmentation takes without workers, from the
        settings' seed.
        """
        import lightning as L

        L.seed_everything(self.options.seed, workers=True, verbose=False)

    def _check_data(self) -> None:
        """Raise InputError where the data set does not fit, or lacks a split that a method without
        training looks at.
        """
        needs = getattr(self.options, "uses_data", {"train": "what is trained"})
        if self.source:
            if needs and getattr(self.options, "needs_labels", True):
                self.check_labels()
            self.data.seed += self.options.seed
        elif needs:
            _ = self.data
        trains = getattr(self.options, "epochs", 1)
        for split, setting in needs.items():
            if trains and split == "train":
                continue  # see prepare_data
            try:
                self.data.dataset(split)
            except InputError as error:
                message = f"{setting} needs data: {error.message}"
                hint = getattr(self.options, "without_data", error.hint)
                raise InputError(message, hint=hint) from error

    def _seen_frames(self) -> list[str] | None:
        """Return the names of the training frames of a data set; None where none are looked at, or
        a program hands over the data.
        """
        needs = getattr(self.options, "uses_data", {"train": "what is trained"})
        if "train" not in needs or not self.source.settings:
            return None
        names: list[str] = self.data.frame_names("train")
        return names

    def train_batches(self) -> Iterator[Batch]:
        """Yield an epoch of training images ``[N, 3, H, W]`` in 0..1 and labels ``[N, H, W]``."""
        self._tell_crops()
        return map(unpack_batch, self.data.train_dataloader())

    def _tell_crops(self) -> None:
        """Say once where crops are of frames at another size than ``predict`` shows them."""
        # Of frames with a size of the data set it is said when they are opened.
        if not self._has_told_crops and self.data.size is None:
            self.tell_size(self.data, crops=True)
        self._has_told_crops = True

    def place(self) -> AffineLayout:
        """Put the network on the device, channels last, and return its layout there."""
        self.network.to(resolve_device(self.device_name)).to(memory_format=torch.channels_last)
        return AffineLayout(self.network)

    def train(self, trainable: Trainable[P]) -> P:
        """Train with a checkpoint after each epoch, and return the posterior; it and the network
        are on the CPU then.
        """
        from segunc.training.affine_task import AffineTask
        from segunc.training.base import make_trainer

        power = self.options.class_weight_power
        weights = balanced_weights(self.data.class_frequencies(), power) if power else None
        task = AffineTask(
            self.network.cpu(),
            len(self.classes),
            lambda layout: trainable,
            self.options,
            class_weights=weights,
        ).cpu()
        if self.epochs:
            self._tell_crops()
            trainer = make_trainer(self.trainer, self.out, "finetune", quiet=self.quiet)
            start = time.perf_counter()
            batches = self.data.train_dataloader()
            note = note_on_processes(batches, processes_of(trainer))
            if note:
                warnings.warn(note, NoteWarning, stacklevel=caller_level())
            processes = fit(
                trainer,
                task,
                self.resume,
                continues=self.keeps_checkpoints,
                train_dataloaders=batches,
            )
            self.measured["steps"] = trainer.global_step
            self.measured["processes"] = processes
            self.measured["train_seconds"] = round(time.perf_counter() - start, 1)
        return task.cpu().posterior()

    def provenance(self) -> dict[str, Any]:
        """Return how the result came to be, for its record; the clock of the run stops here."""
        self.measured["seconds"] = round(time.perf_counter() - self._start, 1)
        settings = dict(self.config.plain()[self.options.section])
        for name in self.measured:
            settings.pop(name, None)
        return {
            **self.data_record(),
            **environment(self.trainer["precision"]),
            "settings": settings,
            "resumed": self.resume is not None,
            **self.measured,
        }

    def finish(self, posterior: Posterior, summary: str) -> Model:
        """Return the network with its posterior, on the device of the fit.

        Args:
            posterior: over the converted network.
            summary: of it, for the user.
        """
        record = posterior_record(
            posterior,
            self.conversion,
            base_sha256=self.model.sha256,
            seed=self.options.seed,
            provenance=self.provenance(),
        )
        made = restored(self.network, posterior, self.conversion, record)
        made.base_folder = self.model.base_folder
        made.documents = configuration_documents(self.config, "finetune", self.model.folder)
        made.measured = self.measured
        made.summary = summary
        made.place(resolve_device(self.device_name))
        return made
