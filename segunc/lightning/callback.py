"""The callback that looks at the uncertainty of a network while it is trained."""

from __future__ import annotations

import gc
import logging
import operator
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_only
from torch import nn
from torch.nn.parameter import is_lazy
from torch.utils.data import DistributedSampler, IterableDataset

from segunc.core.bounds import Settings
from segunc.core.errors import InputError, NoteWarning, nearest, one_line
from segunc.core.preserving import preserve_training
from segunc.data.labels import IGNORE
from segunc.lightning.counts import FrameCounts
from segunc.lightning.evaluation import (
    Findings,
    Fits,
    Recipe,
    evaluate_share,
    is_shared_out,
    same_buffers,
    together,
)
from segunc.lightning.loaders import (
    BatchForm,
    Frames,
    Share,
    TrainBatches,
    Unpack,
    is_indexed,
    one_loader,
)
from segunc.lightning.picture_logs import Picture, folder_of_run, log_picture
from segunc.lightning.sheet import DrawnFrame, draw_sheet
from segunc.scores import check_scores

SHARDED = ("FSDP", "DeepSpeed", "ModelParallel")
"""Parts of the names of strategies whose processes do not hold the whole network."""

LIGHTNING_LOGS = ("lightning.pytorch", "lightning.fabric", "lightning.pytorch.utilities.rank_zero")
"""Loggers of Python by which Lightning tells its user what it does."""


OTHER_FIT_DATA = (
    "each process has other batches to fit on, and so would have another model; let fit_data give "
    "every process all batches"
)


@dataclass(frozen=True)
class Evaluation:
    """What an evaluation found.

    Attributes:
        epoch: finished epochs of the training.
        step: optimiser steps of the training.
        frames: that were evaluated.
        numbers: by name, without the prefix of the loggers.
        picture: file of the picture; None where a logger took it, and in all processes but the
            first.
    """

    epoch: int
    step: int
    frames: int
    numbers: Mapping[str, float]
    picture: Path | None = None


class UncertaintyCallback(Callback):
    """Fit a method during a training, evaluate it on the validation frames, and log what it finds.

    The training of the user goes on bit for bit as without the callback: it works on a copy of the
    network, inside :func:`segunc.preserve_training`. It logs, each with the prefix ``segunc/``:

    - ``entropy_mean``, and so on for each score: the mean over the frames of its mean over the
      pixels;
    - with class labels ``miou``, ``accuracy``, ``ece``, ``adaptive_ece``, ``nll`` and ``brier``,
      and for each score how it finds wrong pixels: ``entropy_aurc``, ``entropy_ause``,
      ``entropy_failure_auroc``, ...;
    - with anomaly labels ``entropy_auroc``, ``entropy_aupr`` and ``entropy_fpr95`` for each score;
    - ``maps``, a picture of some frames: image, label, prediction, errors and scores side by side.
      It goes to every logger that takes images (TensorBoard, Weights & Biases, MLflow, Comet).
      Where none does, it is ``segunc/epoch_0005.png`` in the folder of the run.

    The numbers are logged through ``pl_module.log_dict``. So ``ModelCheckpoint(monitor=
    "segunc/entropy_aurc", every_n_epochs=5, save_on_train_epoch_end=True)`` can use them.

    Batches are tensors ``[N, K, H, W]`` of K channels, pairs ``(image, label)``, or dictionaries
    with ``image`` and, where there are any, ``label`` and ``anomaly``. Labels are class ids ``[N,
    H, W]``; anomaly labels are 0 (normal), 1 (anomaly) and 255 (ignored).

    It works with ``lightning.Trainer`` and ``pytorch_lightning.Trainer``, on one device or on
    several with DDP. There each process fits the same model and evaluates a share of the frames, so
    that the numbers are those of one process. A stream to evaluate may give all processes the same
    frames, or each its own; one to fit on must give all the same. Strategies that split a network
    over devices (FSDP, DeepSpeed) are refused.

    Args:
        method: what is fitted: the settings of a method, or a list of them that are fitted one
            after the other. None evaluates the network itself. A pair ``(settings, data)`` is
            fitted on data of its own, for example ``[segunc.ABNN(), (segunc.Temperature(),
            held_out_loader)]``.
        classes: the class names in the order of the logits.
        every: epochs between two evaluations, at least 1.
        network: the segmentation network in the LightningModule: the name of an attribute
            (``"net"``, ``"model.decoder"``), or a function of the module. It maps images to logits
            ``[N, C, H, W]``. None is the module itself, whose ``forward`` does so.
        mean, std: normalisation of the input, for images in 0..1: a number for each channel. None:
            the network takes images of three channels in 0..1 as they are. A network of K other
            channels needs K numbers, such as ``mean=[0] * 4, std=[1] * 4``.
        normalised: whether the loaders give images that are normalised by ``mean`` and ``std``
            already, as most do. Without, they give images in 0..1.
        fit_data: what the method is fitted on; None takes the training loader of the Trainer.
        frames: what is evaluated: a loader, or an iterable of batches; None takes the validation
            loader of the Trainer.
        unpack: a function from a batch to one of the forms above, where the loaders give another.
        scores: names of scores; None takes ``entropy``, of a Bayesian model ``epistemic``, and
            ``anomaly`` where it was fitted.
        draws: number of draws.
        seed: of the draws and of the fit, the same in every evaluation.
        pictures: number of frames in the picture, evenly spaced over the set; 0 draws none.
        limit: number of frames that are evaluated; None takes as many as the Trainer validates on.
        at_end: also evaluate at the end of the training, if its last epoch was not evaluated.
        ignore_index: value of class labels that are ignored, beside 255.
        palette: a colour (red, green, blue) for each class, for the picture.
        folder: of picture files; None is ``segunc`` in the folder of the run.
        name: prefix of all that is logged. Two callbacks of one training need two names.
        on_error: what happens if an evaluation fails, for example because the network returns NaN
            early in the training: ``warn`` says so and lets the training go on, ``raise`` ends it.

    Raises:
        InputError: an argument of a wrong value. At the start of the training: no such network, one
            that does not fit its classes, no data, or a strategy that splits the network.

    Attributes:
        history: every :class:`Evaluation`, also those before a training was continued.

    Example:
        >>> import lightning as L
        >>> import segunc
        >>> import segunc.lightning
        >>> callback = segunc.lightning.UncertaintyCallback(
        ...     method=segunc.ABNN(members=3, epochs=1),
        ...     classes=["road", "car", "sky"],
        ...     network="net",
        ...     every=5,
        ... )
        >>> trainer = L.Trainer(max_epochs=20, callbacks=[callback], logger=False)
    """

    def __init__(  # noqa: PLR0913  the settings of a public class, nearly all with defaults
        self,
        method: Fits | tuple[Fits, Any] | list[Any] | None,
        classes: Sequence[str],
        *,
        every: int = 1,
        network: str | Callable[[Any], nn.Module] | None = None,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        normalised: bool = False,
        fit_data: Any = None,
        frames: Iterable[Any] | None = None,
        unpack: Unpack | None = None,
        scores: Sequence[str] | None = None,
        draws: int = 8,
        seed: int = 0,
        pictures: int = 4,
        limit: int | None = None,
        at_end: bool = False,
        ignore_index: int = IGNORE,
        palette: Sequence[tuple[int, int, int]] = (),
        folder: str | Path | None = None,
        name: str = "segunc",
        on_error: Literal["warn", "raise"] = "warn",
    ) -> None:
        super().__init__()
        methods = _methods(method)
        self._own_data = [data for _, data in methods]  # None where a method has none
        _check_whole("every", every, 1)
        _check_whole("draws", draws, 1)
        _check_whole("pictures", pictures, 0)
        _check_whole("seed", seed, 0, 2**32 - 1)
        if limit is not None:
            _check_whole("limit", limit, 1)
        _check_whole("ignore_index", ignore_index, -(2**63))
        _check_batches(frames, unpack)
        if on_error not in ("warn", "raise"):
            raise InputError(f"on_error {on_error!r} is neither 'warn' nor 'raise'")
        if isinstance(classes, str):
            message = f"classes is the text '{classes}', not a list of class names"
            raise InputError(message, hint='classes=["road", "car", ...]')
        if (mean is None) != (std is None):
            raise InputError("mean and std belong together, and only one is given")
        if normalised and mean is None:
            raise InputError("normalised images need the mean and std of their normalisation")
        if isinstance(scores, str):
            raise InputError(f"scores is one text, '{scores}'", hint=f'scores=("{scores}",)')
        if scores is not None:
            scores = check_scores(scores)
        mean = _numbers("mean", mean, (0.0, 0.0, 0.0))
        std = _numbers("std", std, (1.0, 1.0, 1.0))
        self.every = every
        self.network = network
        self.fit_data = fit_data
        self.frames = frames
        self.pictures = pictures
        self.limit = limit
        self.at_end = at_end
        self.folder = None if folder is None else Path(folder)
        self.name = name
        self.on_error = on_error
        self.history: list[Evaluation] = []
        self._recipe = Recipe(
            [settings for settings, _ in methods],
            tuple(classes),
            mean,
            std,
            tuple(palette),
            draws,
            seed,
            scores,
        )
        self._form = BatchForm(
            unpack,
            mean if normalised else None,
            std if normalised else None,
            ignore_index,
        )
        self._finished = 0  # epochs
        self._noted: set[str] = set()  # the notes on the network that were given as warnings

    @property
    def state_key(self) -> str:
        """Name of its state in a checkpoint."""
        return self._generate_state_key(name=self.name)

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint keeps: the evaluations so far."""
        history = []
        for evaluation in self.history:
            picture = evaluation.picture
            history.append(
                {
                    "epoch": evaluation.epoch,
                    "step": evaluation.step,
                    "frames": evaluation.frames,
                    "numbers": dict(evaluation.numbers),
                    "picture": None if picture is None else str(picture),
                }
            )
        return {"history": history}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over the evaluations of the training that is continued."""
        self.history = []
        for values in state_dict["history"]:
            picture = values["picture"]
            path = None if picture is None else Path(picture)
            self.history.append(Evaluation(**{**values, "picture": path}))

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Begin a history; that of a training which is continued comes from its checkpoint."""
        if stage == "fit":
            self.history = []
            self._finished = 0

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Check the network before the first epoch: a wrong argument is to be known at once."""
        kind = type(trainer.strategy).__name__
        if any(word in kind for word in SHARDED):
            message = f"UncertaintyCallback needs the whole network in each process, and {kind}"
            raise InputError(f"{message} splits it", hint='take strategy="ddp"')
        network = network_of(pl_module, self.network)
        if any(is_lazy(tensor) for tensor in network.parameters()):
            return  # its layers take their sizes from the first batch
        with preserve_training(pl_module), self._notes(trainer):
            self._recipe.wrapped(network)

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Check that there is something to fit on and to evaluate."""
        self._data(trainer)
        self._frames(trainer)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Evaluate after every so many epochs."""
        self._finished = trainer.current_epoch + 1
        is_last = self.at_end and self._finished == trainer.max_epochs
        is_try = bool(getattr(trainer, "fast_dev_run", False))
        if self._finished % self.every and not is_last and not is_try:
            return
        evaluation = self._evaluate(trainer, pl_module)
        if evaluation is not None:
            pl_module.log_dict(
                self._named(evaluation.numbers),
                on_step=False,
                on_epoch=True,
                # All processes have the same numbers: the largest of them is exact.
                reduce_fx="max",
                sync_dist=trainer.world_size > 1,
                batch_size=1,
            )

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Evaluate what was trained, where an early stop left out the last evaluation."""
        evaluated = self.history[-1].epoch if self.history else 0
        if not self.at_end or evaluated == self._finished or not self._finished:
            return
        evaluation = self._evaluate(trainer, pl_module)
        if evaluation is not None and trainer.is_global_zero:
            # Lightning takes no numbers of the module any more.
            for logger in trainer.loggers:
                logger.log_metrics(self._named(evaluation.numbers), step=trainer.global_step)
                logger.save()

    def _named(self, numbers: Mapping[str, float]) -> dict[str, float]:
        """Return numbers under the names by which they are logged."""
        return {f"{self.name}/{key}": value for key, value in numbers.items()}

    def _evaluate(self, trainer: L.Trainer, pl_module: L.LightningModule) -> Evaluation | None:
        """Return what an evaluation of the network finds; None where it failed."""
        share = Share(trainer.global_rank, trainer.world_size)
        loaders = (trainer.train_dataloader, trainer.val_dataloaders)
        ours = (self.fit_data, self.frames, self._form, *self._own_data)
        with preserve_training(pl_module, *loaders, *ours), self._notes(trainer):
            parts = self._parts(trainer, pl_module, share)
            failure = next((part["failure"] for part in parts if part["failure"]), "")
            if not failure and any(part["fitted_on"] != parts[0]["fitted_on"] for part in parts):
                failure = OTHER_FIT_DATA
            counts = None if failure else self._counts_of(parts)
            if counts is not None and not counts.frames:
                failure = "there is no frame to evaluate"
            if failure or counts is None:
                self._fail(trainer, failure)
                return None
            picture = self._picture(trainer, parts)
        numbers = counts.numbers()
        evaluation = Evaluation(
            self._finished, trainer.global_step, counts.frames, numbers, picture
        )
        self.history.append(evaluation)
        return evaluation

    def _fail(self, trainer: L.Trainer, failure: str) -> None:
        """Say in the first process why an evaluation failed, or end the training."""
        text = failure.rstrip(".")
        message = f"{self.name}: no evaluation after epoch {self._finished}: {text}"
        if self.on_error == "raise":
            raise InputError(message)
        if trainer.is_global_zero:
            warnings.warn(f"{message}. The training goes on.", NoteWarning, stacklevel=2)

    def _parts(
        self, trainer: L.Trainer, pl_module: L.LightningModule, share: Share
    ) -> list[dict[str, Any]]:
        """Return what each process found, see :func:`together`."""
        try:
            network = network_of(pl_module, self.network)
            frames = self._frames(trainer)
        except InputError as error:  # what is gone, in all processes
            return [Findings(failure=one_line(error)).packed()]
        same_buffers(network, share)
        frames.is_shared_out = is_shared_out(frames, share)
        try:
            findings = self._share(trainer, network, pl_module.device, frames, share)
        except Exception as error:  # whatever the network or a data set of the user raises
            if self.on_error == "raise" and share.processes == 1:
                raise
            findings = Findings(failure=one_line(error))
        parts = together(findings, share)
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            # The memory of the copies goes back to the training.
            gc.collect()
            torch.cuda.empty_cache()
        return parts

    def _share(
        self,
        trainer: L.Trainer,
        network: nn.Module,
        device: torch.device,
        frames: Frames,
        share: Share,
    ) -> Findings:
        """Fit the methods, and evaluate the frames of this process."""
        if device.type not in ("cpu", "cuda"):
            device = torch.device("cpu")  # the only other one that the sampler knows
        data = self._data(trainer)
        model = self._recipe.fitted(network, data, device)
        findings = evaluate_share(model, self._recipe, frames, share)
        findings.fitted_on = [getattr(batches, "first_sum", "") for batches in data]
        return findings

    def _data(self, trainer: L.Trainer) -> list[Any]:
        """Return what each method is fitted on."""
        return [self._train_batches(trainer, own) for own in self._own_data]

    def _train_batches(self, trainer: L.Trainer, source: Any) -> Any:
        """Return what a method with data of its own, or None, is fitted on."""
        if source is None:
            source = self.fit_data
        if source is None:
            source = one_loader(trainer.train_dataloader, "training", "fit_data")
            if isinstance(getattr(source, "dataset", None), IterableDataset):
                message = "the training loader reads an IterableDataset, whose position is lost by"
                hint = "give UncertaintyCallback(fit_data=...) a loader of its own"
                raise InputError(f"{message} another pass", hint=hint)
        # Data sets by name, configurations and data modules are opened by the methods.
        if isinstance(source, str | Path | Mapping | Settings) or not hasattr(source, "__iter__"):
            return source
        return TrainBatches(source, self._form, self._recipe.seed)

    def _frames(self, trainer: L.Trainer) -> Frames:
        """Return the frames that are evaluated."""
        source: Any = self.frames
        batches = None
        if source is None:
            source = one_loader(trainer.val_dataloaders, "validation", "frames")
            if self.limit is None:
                batches = batches_of_validation(trainer, source)
        return Frames(source, self._form, self.limit, self.pictures, batches)

    def _counts_of(self, parts: Sequence[Mapping[str, Any]]) -> FrameCounts:
        """Return the counts of all processes; each process makes the same numbers of them."""
        counts = FrameCounts(tuple(parts[0]["counts"]["sums"]), self._recipe.classes)
        for part in parts:
            counts.merge(part["counts"])
        return counts

    def _picture(self, trainer: L.Trainer, parts: Sequence[Mapping[str, Any]]) -> Path | None:
        """Log the picture of some frames, and return its file, if it is one.

        Only the first process does, so whatever a logger raises must not keep it from what it does
        together with the others.
        """
        drawn: list[DrawnFrame] = []
        for part in parts:
            drawn += part["drawn"]
        is_try = bool(getattr(trainer, "fast_dev_run", False))
        if not trainer.is_global_zero or not drawn or is_try:
            return None
        drawn.sort(key=lambda frame: frame.number)
        try:
            return self._log_picture(trainer, drawn)
        except Exception as error:  # whatever a logger raises
            if self.on_error == "raise":
                raise
            message = f"{self.name}: no picture after epoch {self._finished}: {one_line(error)}"
            warnings.warn(
                f"{message.rstrip('.')}. The training goes on.", NoteWarning, stacklevel=2
            )
            return None

    def _log_picture(self, trainer: L.Trainer, drawn: Sequence[DrawnFrame]) -> Path | None:
        """Draw frames, and give the picture to the loggers."""
        step = trainer.global_step
        numbers = ", ".join(str(frame.number) for frame in drawn)
        title = f"{self.name} after epoch {self._finished} (step {step}): frames {numbers}"
        recipe = self._recipe
        pixels = draw_sheet(drawn, recipe.classes, recipe.palette, title=title)
        picture = Picture(f"{self.name}/maps", pixels, step, self._finished)
        folder = self.folder
        if folder is None:
            folder = folder_of_run(trainer.loggers, trainer.default_root_dir) / self.name
        return log_picture(picture, trainer.loggers, folder)

    @contextmanager
    def _notes(self, trainer: L.Trainer) -> Iterator[None]:
        """Give each note on the network once in a training, and from the first process."""
        with _kept_lightning(), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", NoteWarning)
            yield
        for warning in caught:
            text = str(warning.message)
            if issubclass(warning.category, NoteWarning):
                if text in self._noted or not trainer.is_global_zero:
                    continue
                self._noted.add(text)
            warnings.warn_explicit(
                warning.message, warning.category, warning.filename, warning.lineno
            )


@contextmanager
def _kept_lightning() -> Iterator[None]:
    """Give Lightning its own state of the process back: a method may train with a Trainer of its
    own, which is silent and believes to be alone.
    """
    levels = {name: logging.getLogger(name).level for name in LIGHTNING_LOGS}
    process: Any = rank_zero_only
    rank = getattr(process, "rank", 0)
    try:
        yield
    finally:
        process.rank = rank
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)


def network_of(module: nn.Module, network: str | Callable[[Any], nn.Module] | None) -> nn.Module:
    """Return the segmentation network of a LightningModule, see :class:`UncertaintyCallback`.

    Raises:
        InputError: there is none of this name, it is no module, or the LightningModule has no
            ``forward``.
    """
    kind = type(module).__name__
    children = [name for name, _ in module.named_children()]
    hint = f"network is one of {', '.join(children)}" if children else "give network=..."
    if network is None:
        found: Any = module
        if not _has_forward(module):
            message = f"{kind} has no forward, and network does not say what maps images to logits"
            raise InputError(message, hint=hint)
    elif callable(network):
        found = network(module)
    else:
        try:
            found = operator.attrgetter(network)(module)
        except AttributeError as error:
            message = f"{kind} has no attribute network='{network}'{nearest(network, children)}"
            raise InputError(message, hint=hint) from error
    found = getattr(found, "_orig_mod", found)  # of torch.compile
    if not isinstance(found, nn.Module):
        message = f"the network of {kind} is of type {type(found).__name__}, not a torch module"
        raise InputError(message, hint=hint)
    return found


def _has_forward(module: nn.Module) -> bool:
    """Return whether a module has a ``forward`` of its user's, not that of a base class."""
    for kind in type(module).__mro__:
        if "forward" in vars(kind):
            return kind is not nn.Module and kind.__name__ != "LightningModule"
    return False


def _methods(method: Any) -> list[tuple[Fits, Any]]:
    """Return each method with data of its own, or None; InputError where one has no ``fit``."""
    if method is None:
        return []
    pairs = []
    for entry in method if isinstance(method, list) else [method]:
        is_pair = isinstance(entry, tuple) and len(entry) == 2
        settings, data = entry if is_pair else (entry, None)
        if isinstance(settings, type) or not callable(getattr(settings, "fit", None)):
            shown = settings.__name__ if isinstance(settings, type) else repr(settings)
            message = f"method {shown} is not the settings of a method"
            raise InputError(message, hint="method=segunc.ABNN(members=3), for example")
        pairs.append((settings, data))
    return pairs


def _check_batches(frames: Any, unpack: Any) -> None:
    """Raise an InputError where batches cannot be had from ``frames``, or read by ``unpack``."""
    if frames is not None and not hasattr(frames, "__iter__"):
        message = f"frames is of type {type(frames).__name__}, not a loader of batches"
        raise InputError(message, hint="frames=DataLoader(...)")
    if unpack is not None and not callable(unpack):
        hint = "unpack=lambda batch: (images, labels)"
        raise InputError(f"unpack {unpack!r} is not a function of a batch", hint=hint)


def _numbers(name: str, value: Any, default: tuple[float, ...]) -> tuple[float, ...]:
    """Return a number for each channel; InputError where an argument is anything else."""
    if value is None:
        return default
    try:
        return tuple(float(number) for number in value)
    except (TypeError, ValueError) as error:
        message = f"{name} {value!r} is not a number for each channel"
        raise InputError(message, hint=f"{name}=(0.5, 0.5, 0.5)") from error


def _check_whole(name: str, value: Any, least: int, most: int | None = None) -> None:
    """Raise an InputError where an argument is not a whole number from ``least`` to ``most``."""
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if is_whole and value >= least and (most is None or value <= most):
        return
    bounds = f"of at least {least}" if most is None else f"from {least} to {most}"
    raise InputError(f"{name} {value!r} is not a whole number {bounds}")


def batches_of_validation(trainer: L.Trainer, loader: Any) -> int | None:
    """Return how many batches the Trainer validates on in all processes; None for all."""
    share = trainer.limit_val_batches
    sampler = getattr(getattr(loader, "batch_sampler", None), "sampler", None)
    # Without such a sampler, each process takes the same batches, or a user has shared them out.
    processes = trainer.world_size if isinstance(sampler, DistributedSampler) else 1
    if isinstance(share, int):
        return max(1, share * processes)
    # Of a loader without a length, the Trainer takes no other share than all.
    if share == 1.0 or not is_indexed(loader):
        return None
    return max(1, int(len(loader) * share) * processes)
