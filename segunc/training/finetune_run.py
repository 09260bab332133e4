"""What every fine-tuning does around its method. Lightning is imported when a run is opened: loading a posterior does without it."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, cast

import torch

from segunc.affine.convert import ConversionReport, convert
from segunc.affine.draws import AffineLayout, in_scope
from segunc.affine.posterior import P, Posterior, Stored, Trainable, save_posterior
from segunc.core.device import Precision, resolve_device
from segunc.core.errors import InputError
from segunc.networks.files import load_network
from segunc.sampling.sampler import Sampler
from segunc.training.config import FinetuneConfig, S, environment, save_config
from segunc.training.data import Batch, OwnData, open_data, spaced, unpack_batch
from segunc.training.losses import balanced_weights
from segunc.training.progress import Say, claim_checkpoints, fit, is_first_process, say
from segunc.training.selection import Frames, select, validation_nll

if TYPE_CHECKING:
    from segunc.data.module import SegmentationDataModule
    from segunc.training.affine_task import AffineTask

SELECTION_FRAMES, SELECTION_DRAWS = 24, 6
"""On which a hyper-parameter is selected."""


class FinetuneRun(Generic[S]):
    """A base network, converted, with the data and the output folder of a fine-tuning; opened before any work.

    A killed run continues from its last checkpoint when it is opened again with the same ``out``.

    Args:
        base, out: model folder of a deterministic network, and the new model folder.
        config: of the run. Of the settings ``scope`` and ``seed`` are read, and ``epochs``, ``max_steps``, ``lr`` and
            ``class_weight_power`` where the method trains, each of ``members`` for so many epochs. Without a ``scope`` more is
            trained than affine parameters, and the network is not converted.
        device: ``auto``, ``cpu`` or ``cuda[:N]``.
        say: receives a line for each step.
        partial: file beside the checkpoints in which the method keeps unfinished work of its own.

    Attributes:
        network: converted, if the settings have a scope, in eval mode, on the CPU.
        settings: of the Lightning Trainer.
        precision: of predictions, as the Trainer's.
        resume: the checkpoint from which the run continues, or None.
        measured: what the run finds out, for the record; seconds, steps, selections.
    """

    def __init__(
        self,
        base: Path,
        config: FinetuneConfig[S],
        out: Path,
        *,
        device: str = "auto",
        say: Say = say,
        partial: str | None = None,
    ) -> None:
        from segunc.training.base import trainer_settings

        self.base, self.config, self.out, self.device, self.say = base, config, out, device, say
        self.options = cast(Any, config.settings)
        self.seed_everything()
        self.network = load_network(base)
        self.classes = self.network.description.classes
        self._check_data()
        sha256 = self.network.sha256
        self.conversion: ConversionReport | None = None
        if hasattr(self.options, "scope"):
            self.conversion = convert(self.network.body)
            say(f"converted {base}: {self.conversion}")
            in_scope(self.options.scope, AffineLayout(self.network).names)  # a bad scope leaves no folder behind
        self.settings = trainer_settings(dict(config.trainer), out, device, self.network)
        self.epochs: int = getattr(self.options, "epochs", 0)
        members: int = getattr(self.options, "members", 1)  # share the epochs in turn
        self.settings["max_epochs"] = self.epochs * members
        if getattr(self.options, "max_steps", 0):
            self.settings["max_steps"] = self.options.max_steps * members
        self.precision: Precision = "bfloat16" if str(self.settings["precision"]).startswith("bf16") else "float32"
        # Before the minutes of a selection, so that wrong settings fail at once.
        if self.epochs:
            self.trained_on.prepare_data()
        self.resume = claim_checkpoints(out, "finetune", config.plain(), partial, base_sha256=sha256)
        save_config(config, out, "finetune")
        self.measured: dict[str, Any] = {}
        self._start = time.perf_counter()

    def seed_everything(self) -> None:
        """Start the global random numbers, which shuffle and augmentation take, from the settings' seed."""
        import lightning as L

        L.seed_everything(self.options.seed, workers=True, verbose=False)

    def _check_data(self) -> None:
        """Raise InputError where the data set does not fit, or lacks a split that a method without training looks at."""
        if self.config.data:
            _ = self.trained_on
        uses = {} if getattr(self.options, "epochs", 1) else getattr(self.options, "uses_data", {})
        for split, why in {} if isinstance(self.config.data, OwnData) else uses.items():
            try:
                self.data.dataset(split)
            except InputError as error:
                raise InputError(f"{why} needs data: {error.message}", hint=self.options.without_data) from error

    @cached_property
    def data(self) -> SegmentationDataModule:
        """The data set; InputError for loaders of the user's own."""
        if isinstance(self.config.data, OwnData):
            message = f"{self.options.section} needs frames by their number, which loaders do not give"
            raise InputError(message, hint="name a data set: dataset and root")
        return open_data(self.config.data, len(self.classes))

    @property
    def trained_on(self) -> SegmentationDataModule | OwnData:
        """The data set, or the loaders of the user's own."""
        return self.config.data if isinstance(self.config.data, OwnData) else self.data

    def train_batches(self) -> Iterator[Batch]:
        """Yield an epoch of training images ``[N, 3, H, W]`` in 0..1 and labels ``[N, H, W]``."""
        return map(unpack_batch, self.trained_on.train_dataloader())

    def place(self) -> AffineLayout:
        """Put the network on the device, channels last, and return its layout there."""
        self.network.to(resolve_device(self.device)).to(memory_format=torch.channels_last)
        return AffineLayout(self.network)

    def select(self, candidate: Callable[[float], Posterior], grid: Sequence[float], name: str) -> float:
        """Return the value of a grid with the lowest NLL on validation frames, with the same noise for every candidate; record each NLL.

        Args:
            candidate: makes the posterior of a value.
            grid, name: the values, and what messages call the setting.
        """
        start, source = time.perf_counter(), self.config.data
        data: Frames = source.validation(SELECTION_FRAMES) if isinstance(source, OwnData) else self.data.dataset("val")
        chosen = spaced(len(data), SELECTION_FRAMES)
        same: dict[str, Any] = {"seed": self.options.seed, "precision": self.precision}

        def validation(value: float) -> float:
            posterior = candidate(value)
            sampler = Sampler(self.network, posterior, draws=max(SELECTION_DRAWS, posterior.members), **same)
            return validation_nll(sampler, data, chosen)

        best, nll = select(validation, grid, name)
        self.measured[f"{name}_nll"] = {k: round(v, 6) for k, v in nll.items()}
        self.measured[f"{name}_seconds"] = round(time.perf_counter() - start, 1)
        candidates = ", ".join(f"{k}: {v:.4f}" for k, v in nll.items())
        self.say(f"{name} {best:g} has the lowest validation NLL of {candidates}")
        if len(grid) > 1 and best in (min(grid), max(grid)):
            self.say(f"{name} {best:g} is at the end of {name}_grid: a value beyond it may be better")
        return best

    def train(self, trainable: Trainable[P]) -> P:
        """Train over this network with a checkpoint after each epoch, and return the posterior, on the CPU as the network then is; with 0
        epochs the initial one."""
        from segunc.training.affine_task import AffineTask
        from segunc.training.base import make_trainer

        count, network, weights = len(self.classes), self.network.cpu(), self.class_weights()
        task = AffineTask(network, count, lambda layout: trainable, self.options, class_weights=weights).cpu()
        if not self.epochs:
            return task.posterior()
        trainer = make_trainer(self.settings, self.out, "finetune")
        loader, start = self.trained_on.train_dataloader(), time.perf_counter()
        initial = copy.deepcopy(trainable.state_dict())
        fit(trainer, task, self.resume, train_dataloaders=loader)
        self.measured["steps"] = trainer.global_step
        self.measured["train_seconds"] = round(time.perf_counter() - start, 1)
        self._compare_losses(task.cpu(), initial)
        return task.posterior()

    @torch.no_grad()
    def _compare_losses(self, task: AffineTask[Any], initial: dict[str, Any]) -> None:
        """Record the loss of two training frames before and after the training, under the same draws, and say so where it rose."""
        from lightning.pytorch.utilities.seed import isolate_rng

        final = copy.deepcopy(task.trained.state_dict())
        with isolate_rng():  # what follows shuffles as if this had not been
            images, labels = unpack_batch(next(iter(self.trained_on.train_dataloader())))
        losses = []
        for state in (initial, final):
            task.trained.load_state_dict(state)
            terms = [task.terms(images[:2], labels[:2], m)[0] for m in range(getattr(self.options, "members", 1))]
            losses.append(round(float(torch.stack(terms).mean()), 4))
        self.measured["loss_before"], self.measured["loss_after"] = losses
        if losses[1] > 1.1 * losses[0]:
            rise = f"the loss of two training frames rose from {losses[0]:g} to {losses[1]:g}"
            self.say(f"note: {rise}: the training did harm; lower {self.options.section}.lr")

    def class_weights(self) -> list[float] | None:
        """Return the weights of the classes that ``class_weight_power`` asks for; None where it is 0."""
        data, power = self.trained_on, self.options.class_weight_power
        if not power:
            return None
        shares = data.class_frequencies(len(self.classes)) if isinstance(data, OwnData) else data.class_frequencies()
        return balanced_weights(shares, power)

    def provenance(self) -> dict[str, Any]:
        """Return how the result came to be, for its record; the clock of the run stops here."""
        self.measured["seconds"] = round(time.perf_counter() - self._start, 1)
        content = self.config.plain()
        return {
            "dataset": "own loaders" if isinstance(self.config.data, OwnData) else self.config.data.get("dataset"),
            **environment(self.settings["precision"]),
            "settings": {k: v for k, v in content[self.options.section].items() if k not in self.measured},
            "resumed": self.resume is not None,
            **self.measured,
        }

    def finish(self, posterior: Stored, summary: str) -> dict[str, Any]:
        """Write the model folder, say so, and return what was measured."""
        more = {"seed": self.options.seed, "provenance": self.provenance()}
        if is_first_process():
            save_posterior(posterior, self.conversion, self.base, self.out, **more)
            self.say(f"wrote {self.out}: {summary}")
        return self.measured
