"""What every fine-tuning does around its method. Lightning is imported when a run is opened:
loading a posterior does without it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, cast

import torch

from segunc.affine.convert import convert
from segunc.affine.draws import AffineLayout, in_scope
from segunc.affine.posterior import P, Stored, Trainable
from segunc.core.device import Precision, resolve_device
from segunc.core.errors import InputError
from segunc.networks.model_folder import load_network
from segunc.posteriors.saving import save_posterior
from segunc.training.batches import Batch, open_data, unpack_batch
from segunc.training.config import FinetuneConfig, S, environment, record_data, save_config
from segunc.training.lightning_runs import Say, claim_checkpoints, fit, is_first_process, say
from segunc.training.losses import balanced_weights

if TYPE_CHECKING:
    from segunc.data.module import SegmentationDataModule


class FinetuneRun(Generic[S]):
    """A base network, converted, with the data and the output folder of a fine-tuning; opened
    before any work. A killed run continues from its last checkpoint when it is opened again with
    the same ``out``.

    Args:
        config: of the run. Of the settings ``scope`` and ``seed`` are read, and ``epochs``,
            ``max_steps`` and ``lr`` where the method trains, each of ``members`` for so many
            epochs.

    ``settings`` are those of the Trainer, and ``measured`` is what the run finds out, for the
    record.
    """

    def __init__(
        self,
        base: Path,
        config: FinetuneConfig[S],
        out: Path,
        *,
        device: str = "auto",
        say: Say = say,
    ) -> None:
        from segunc.training.base import trainer_settings

        self.options = cast(Any, config.settings)
        if getattr(self.options, "epochs", 0) is None:
            self.options = replace(self.options, epochs=0)
            config = replace(config, settings=self.options)
        self.base = base
        self.config = config
        self.out = out
        self.device = device
        self.say = say
        self.seed_everything()
        self.network = load_network(base)
        self.classes = self.network.description.classes
        self._check_data()
        base_sha256 = self.network.sha256
        self.conversion = convert(self.network.body)
        say(f"converted {base}: {self.conversion}")
        # Now, because a bad scope must leave no folder behind.
        in_scope(self.options.scope, AffineLayout(self.network).names)
        self.settings = trainer_settings(dict(config.trainer), out, device, self.network)
        self.epochs: int = getattr(self.options, "epochs", 0)
        members: int = getattr(self.options, "members", 1)  # share the epochs in turn
        self.settings["max_epochs"] = self.epochs * members
        if getattr(self.options, "max_steps", 0):
            self.settings["max_steps"] = self.options.max_steps * members
        is_bfloat16 = str(self.settings["precision"]).startswith("bf16")
        self.precision: Precision = "bfloat16" if is_bfloat16 else "float32"
        if self.epochs:
            self.data.prepare_data(selects=False)
        self.resume = claim_checkpoints(out, "finetune", config.plain(), base_sha256=base_sha256)
        save_config(config, out, "finetune")
        record_data(out, config.data, base)
        self.measured: dict[str, Any] = {}
        self._start = time.perf_counter()

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
        if self.config.data:
            _ = self.data
        if getattr(self.options, "epochs", 1):
            return
        for split, setting in getattr(self.options, "uses_data", {}).items():
            try:
                self.data.dataset(split)
            except InputError as error:
                message = f"{setting} needs data: {error.message}"
                raise InputError(message, hint=self.options.without_data) from error

    @cached_property
    def data(self) -> SegmentationDataModule:
        data = open_data(self.config.data, len(self.classes))
        data.seed += self.options.seed
        return data

    def train_batches(self) -> Iterator[Batch]:
        """Yield an epoch of training images ``[N, 3, H, W]`` in 0..1 and labels ``[N, H, W]``."""
        return map(unpack_batch, self.data.train_dataloader())

    def place(self) -> AffineLayout:
        """Put the network on the device, channels last, and return its layout there."""
        self.network.to(resolve_device(self.device)).to(memory_format=torch.channels_last)
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
            trainer = make_trainer(self.settings, self.out, "finetune")
            start = time.perf_counter()
            fit(trainer, task, self.resume, train_dataloaders=self.data.train_dataloader())
            self.measured["steps"] = trainer.global_step
            self.measured["train_seconds"] = round(time.perf_counter() - start, 1)
        return task.cpu().posterior()

    def provenance(self) -> dict[str, Any]:
        """Return how the result came to be, for its record; the clock of the run stops here."""
        self.measured["seconds"] = round(time.perf_counter() - self._start, 1)
        settings = dict(self.config.plain()[self.options.section])
        for name in self.measured:
            settings.pop(name, None)
        return {
            "dataset": self.config.data.get("dataset"),
            **environment(self.settings["precision"]),
            "settings": settings,
            "resumed": self.resume is not None,
            **self.measured,
        }

    def finish(self, posterior: Stored, summary: str) -> dict[str, Any]:
        """Write the model folder, say so, and return what was measured."""
        provenance = self.provenance()
        if is_first_process():
            save_posterior(
                posterior,
                self.conversion,
                self.base,
                self.out,
                seed=self.options.seed,
                provenance=provenance,
            )
            self.say(f"wrote {self.out}: {summary}")
        return self.measured
