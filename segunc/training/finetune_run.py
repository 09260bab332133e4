"""What every fine-tuning does around its method. Lightning is imported when a run is opened: loading a posterior does without it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, cast

import torch

from segunc.affine.convert import ConversionReport, convert
from segunc.affine.draws import AffineLayout, in_scope
from segunc.affine.posterior import P, Posterior, Stored, Trainable, save_posterior
from segunc.core.device import Precision, resolve_device
from segunc.core.errors import InputError, NotFiniteError
from segunc.data.labels import IGNORE
from segunc.networks.files import load_network
from segunc.sampling.sampler import Sampler
from segunc.training.config import FinetuneConfig, S, environment, record_data, save_config
from segunc.training.data import Batch, OwnData, open_data, spaced, unpack_batch
from segunc.training.losses import balanced_weights, check_labels
from segunc.training.progress import Say, claim_checkpoints, fit, is_first_process, say

if TYPE_CHECKING:
    from segunc.data.module import SegmentationDataModule

SELECTION_FRAMES, SELECTION_DRAWS = 24, 6  # on which a hyper-parameter is selected


class FinetuneRun(Generic[S]):
    """A base network, converted, with the data and the output folder of a fine-tuning; opened before any work.

    A killed run continues from its last checkpoint when it is opened again with the same ``out``.

    Args:
        base, out: model folder of a deterministic network, and the new model folder.
        config: of the run. Of the settings ``scope`` and ``seed`` are read, and ``epochs``, ``max_steps`` and ``lr``
            where the method trains, each of ``members`` for so many epochs. Without a ``scope`` more is trained than affine
            parameters, and the network is not converted.
        partial: file beside the checkpoints in which the method keeps unfinished work of its own.

    ``settings`` are those of the Trainer, and ``measured`` is what the run finds out, for the record.
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
        record_data(out, config.data, base)
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
        if isinstance(self.config.data, OwnData):
            message = f"{self.options.section} needs frames by their number, which loaders do not give"
            raise InputError(message, hint="name a data set: dataset and root")
        return open_data(self.config.data, len(self.classes))

    @property
    def trained_on(self) -> SegmentationDataModule | OwnData:
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
        data: Any = source.validation(SELECTION_FRAMES) if isinstance(source, OwnData) else self.data.dataset("val")
        frames = spaced(len(data), SELECTION_FRAMES)
        same: dict[str, Any] = {"seed": self.options.seed, "precision": self.precision}

        def validation(value: float) -> float:
            posterior = candidate(value)
            sampler = Sampler(self.network, posterior, draws=max(SELECTION_DRAWS, posterior.members), **same)
            return validation_nll(sampler, (data[frame] for frame in frames))

        best, nll = select(validation, grid, name)
        self.measured[f"{name}_nll"] = {value: round(mean, 6) for value, mean in nll.items()}
        self.measured[f"{name}_seconds"] = round(time.perf_counter() - start, 1)
        candidates = ", ".join(f"{k}: {v:.4f}" for k, v in nll.items())
        self.say(f"{name} {best:g} has the lowest validation NLL of {candidates}")
        return best

    def train(self, trainable: Trainable[P]) -> P:
        """Train over this network with a checkpoint after each epoch, and return the posterior, on the CPU as the network then is; with 0
        epochs the initial one."""
        from segunc.training.affine_task import AffineTask
        from segunc.training.base import make_trainer

        count, network, weights = len(self.classes), self.network.cpu(), self.class_weights()
        task = AffineTask(network, count, lambda layout: trainable, self.options, class_weights=weights).cpu()
        if self.epochs:
            trainer, start = make_trainer(self.settings, self.out, "finetune"), time.perf_counter()
            fit(trainer, task, self.resume, train_dataloaders=self.trained_on.train_dataloader())
            seconds = round(time.perf_counter() - start, 1)
            self.measured |= {"steps": trainer.global_step, "train_seconds": seconds}
        return task.cpu().posterior()

    def class_weights(self) -> list[float] | None:
        """Return the weights of the classes that ``class_weight_power`` asks for; None where it is 0."""
        power = self.options.class_weight_power
        return balanced_weights(self.data.class_frequencies(), power) if power else None

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


def validation_nll(sampler: Sampler, items: Iterable[Mapping[str, Any]]) -> float:
    """Return the mean negative log-likelihood in nats of the mean prediction, over all labelled pixels of items with an ``image``
    ``[3, H, W]`` in 0..1 and an int64 ``label`` ``[H, W]``, 255 ignored."""
    total, pixels = 0.0, 0
    for item in items:
        label = item["label"].to(sampler.device)
        result = sampler(item["image"][None], keep_probabilities=True)
        assert result.probabilities is not None
        check_labels(label[None], result.probabilities.shape[1])
        valid = label != IGNORE
        chosen = result.probabilities[0].gather(0, label.masked_fill(~valid, 0)[None])[0][valid]
        # The smallest positive float32 bounds the loss of a pixel at 87 nats instead of infinity.
        total -= float(chosen.clamp_min(torch.finfo(torch.float32).tiny).log().sum(dtype=torch.float64))
        pixels += int(valid.sum())
    if pixels == 0:
        raise InputError("the validation frames hold no labelled pixel", hint="check the validation split")
    return total / pixels


def select(nll: Callable[[float], float], grid: Sequence[float], name: str) -> tuple[float, dict[str, float]]:
    """Return the value of ``grid`` with the lowest validation NLL, and the NLL of each; ``name`` is that of the setting."""
    if not grid:
        raise InputError(f"{name}_grid is empty", hint=f"give {name} or a grid")
    results: dict[str, float] = {}
    for value in grid:
        try:
            results[f"{value:g}"] = nll(value)
        except NotFiniteError:  # much noise can blow a network up: then it is not the one to choose
            results[f"{value:g}"] = math.inf
    best = min(results, key=lambda key: results[key])
    if not math.isfinite(results[best]):
        raise InputError(f"no {name} of {list(grid)} gives a finite validation NLL", hint=f"lower {name}_grid")
    return float(best), results
