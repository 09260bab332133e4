"""What ``segunc train`` does: a deterministic network trained from a configuration, and its
LightningModule.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import lightning as L
import torch
from lightning.fabric.plugins import TorchCheckpointIO
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import Callback, LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor, nn
from torch.utils.data import DistributedSampler
from torchmetrics.classification import MulticlassConfusionMatrix

from segunc.core.device import choose_precision, flushed_denormals, resolve_device
from segunc.core.errors import InputError
from segunc.core.files import inside, read_json, replacing, write_json
from segunc.core.progress import ConsoleProgress
from segunc.core.removal import check_result, remove_checked, remove_result
from segunc.data.labels import IGNORE, LabelMap
from segunc.data.module import SegmentationDataModule
from segunc.data.training_frames import EPOCH_FRAMES, RECORD, name_hashes
from segunc.networks import NetworkDescription, SegmentationNetwork, build_network, save_network
from segunc.networks.description import IMAGENET_MEAN, IMAGENET_STD
from segunc.networks.network import channels_of
from segunc.networks.smp import encoder_normalisation, load_encoder_weights, normalisation_note
from segunc.networks.weights import load_weights, read_checkpoint
from segunc.training import losses
from segunc.training.config import (
    NetworkConfig,
    OptimisationConfig,
    TrainConfig,
    environment,
    list_of_frames,
    read_config,
    record_data,
    save_config,
    settings_of_training,
)
from segunc.training.fit_data import fit_to_network, size_note
from segunc.training.lightning_runs import (
    CHECKPOINTS,
    INTERVAL,
    PROCESSES,
    Say,
    claim_checkpoints,
    fit,
    is_first_process,
    no_half_folder,
    processes_of,
    say,
    sole_run,
    unlike,
)
from segunc.training.loggers import check_loggers, run_loggers

CHECKPOINT_NAME = re.compile(r"(best|last)(-v\d+)?\.ckpt")
MEASURED = "training.json"  # beside a network that was trained to the end
WHOLE_NUMBERS = (
    "max_epochs",
    "max_steps",
    "check_val_every_n_epoch",
    "accumulate_grad_batches",
    "num_nodes",
)
"""Settings of Lightning's Trainer that are whole numbers."""


def check_trainer(config: Mapping[str, Any]) -> None:
    """Raise InputError for settings of Lightning's Trainer that fail late and obscurely, write
    elsewhere than ``out``, or name code.
    """
    for key in WHOLE_NUMBERS:
        if not isinstance(config.get(key, 1), int):
            raise InputError(f"trainer.{key} {config[key]} is not a whole number")
    for key in {"default_root_dir", "model_registry"} & config.keys():
        message = f"trainer.{key} {config[key]} is not the folder of the run"
        raise InputError(message, hint="leave it out: --out names it")
    for key, value in config.items():
        if key == "logger":
            check_loggers(value)
        elif _names_objects(key, value):
            message = f"trainer.{key} {value} names objects, which a configuration cannot make"
            hint = "give them to a lightning.Trainer in a script of your own"
            raise InputError(message, hint=hint)


def _names_objects(key: str, value: Any) -> bool:
    """Return whether a setting of the Trainer stands for objects, which only code can make."""
    if key in ("callbacks", "plugins"):
        return True
    return isinstance(value, Mapping) and key != "max_time"


def trainer_settings(
    config: dict[str, Any], out: Path, device: str, network: nn.Module
) -> dict[str, Any]:
    """Return settings of Lightning's Trainer for a network: ours, overruled by ``config``."""
    check_trainer(config)
    settings: dict[str, Any] = {
        "default_root_dir": str(out),
        "log_every_n_steps": 10,
        "num_sanity_val_steps": 0,
        "enable_model_summary": False,
        "enable_progress_bar": False,  # our own bar is shown
    }
    if device == "cpu":
        settings["accelerator"] = "cpu"
    elif device.startswith("cuda"):
        number = device.partition(":")[2] or 0
        settings["accelerator"] = "gpu"
        settings["devices"] = [int(number)]
    if "precision" not in config:
        precision = choose_precision("auto", resolve_device(device), network, channels_of(network))
        settings["precision"] = "bf16-mixed" if precision == "bfloat16" else "32-true"
    return {**settings, **config}


def is_measured(path: Path) -> bool:
    """Return whether a file says what a training measured."""
    with suppress(InputError):
        content = read_json(path, "what a training measured")
        # Those of an earlier version do not have these.
        return content.keys() - {"best_epoch", "processes"} == {
            "val_miou",
            "epochs",
            "steps",
            "seconds",
            "resumed",
        }
    return False


class WholeCheckpoints(TorchCheckpointIO):
    """Writes checkpoints whole or not at all; none into a folder of checkpoints that was taken
    away, without their settings.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = Path(os.path.realpath(folder))

    def remove_checkpoint(self, path: str | Path) -> None:
        """Remove a checkpoint of the run's own folder. A checkpoint names others, and may come from
        a stranger: nothing else is removed."""
        name = os.path.basename(path)
        in_own_folder = Path(os.path.realpath(Path(path).parent)) == self.folder
        if in_own_folder and CHECKPOINT_NAME.fullmatch(name) and not Path(path).is_symlink():
            remove_checked(self.folder, [name])

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None
    ) -> None:
        with replacing(Path(path)) as file:
            torch.save(checkpoint, file)

    def load_checkpoint(self, path: str | Path, *arguments: Any, **named: Any) -> dict[str, Any]:
        """Return a checkpoint whose records of other checkpoints name the folder where it lies now:
        a run may be moved before it goes on.
        """
        checkpoint: dict[str, Any] = super().load_checkpoint(path, *arguments, **named)
        folder = os.path.realpath(Path(path).parent)
        for state in checkpoint.get("callbacks", {}).values():
            if "dirpath" in state:
                _move_paths(state, folder)
        return checkpoint


def _move_paths(state: dict[str, Any], folder: str) -> None:
    """Let the paths of a checkpoint's record of others lie in a folder, in place of the folder of
    which it is.
    """
    before = state["dirpath"]
    best: dict[str, Any] = {}
    for path, score in state["best_k_models"].items():
        best[path.replace(before, folder)] = score
    state["best_k_models"] = best
    for key, value in state.items():
        if isinstance(value, str):
            state[key] = value.replace(before, folder)


def make_trainer(
    settings: dict[str, Any], out: Path, label: str, *callbacks: Callback, quiet: bool = False
) -> L.Trainer:
    """Return a Trainer that writes its logs and, after each epoch, its last checkpoint into
    ``out``; ``quiet`` shows no progress.
    """
    last = ModelCheckpoint(
        out / CHECKPOINTS,
        "last",
        every_n_epochs=1,
        save_on_train_epoch_end=True,
        enable_version_counter=False,
    )
    all_callbacks = [*callbacks, last, ProcessRecord()]
    if not quiet and not settings.get("enable_progress_bar"):
        all_callbacks.append(TrainingProgress(label))
    ours = {
        "callbacks": all_callbacks,
        "plugins": [WholeCheckpoints(out / CHECKPOINTS)],
        "logger": run_loggers(out, settings.get("logger", True)),
    }
    try:
        trainer = L.Trainer(**{**settings, **ours})
    except (TypeError, ValueError, MisconfigurationException) as error:
        raise InputError(
            f"trainer: lightning.Trainer does not take these settings ({error})"
        ) from error
    (out / CHECKPOINTS).mkdir(parents=True, exist_ok=True)
    return trainer


class ProcessRecord(Callback):
    """Write into each checkpoint how many processes have trained."""

    def on_save_checkpoint(
        self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        checkpoint[PROCESSES] = processes_of(trainer)


class TrainingProgress(Callback):
    """Show steps, epoch and numbers: as a bar on a terminal, elsewhere as a line at times and after
    every validation.
    """

    def __init__(self, label: str) -> None:
        self._label = label
        self._next = 0.0  # time before which no number is read
        self._skipped = 0  # steps of an earlier run that this one continues
        self._show = ConsoleProgress(quiet=True)

    def on_train_start(self, trainer: L.Trainer, *_: Any) -> None:
        self._skipped = trainer.global_step
        self._show = ConsoleProgress(
            label=self._label, unit="step", interval=INTERVAL, quiet=not trainer.is_global_zero
        )

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        if time.monotonic() < self._next:  # reading a number waits for the GPU
            return
        self._next = time.monotonic() + 1.0
        numbers = (f"{name} {float(value):.4f}" for name, value in trainer.callback_metrics.items())
        state = ", ".join((f"epoch {trainer.current_epoch + 1}", *numbers))
        self._show.count(
            trainer.global_step, int(trainer.estimated_stepping_batches), state, self._skipped
        )

    def on_validation_end(self, trainer: L.Trainer, *_: Any) -> None:
        self._next = 0.0
        self.on_train_batch_end(trainer)
        self._show.flush()

    def on_train_end(self, *_: Any) -> None:
        self._show.flush()

    on_exception = on_train_end  # type: ignore[assignment]


class LastEpochValidation(Callback):
    """Validate after the last epoch, too, where ``check_val_every_n_epoch`` would pass over it.

    Schedules end with the smallest learning rate, so the last epoch is often the best.
    """

    def on_train_epoch_start(self, trainer: L.Trainer, *_: Any) -> None:
        every = trainer.check_val_every_n_epoch
        if every and trainer.max_epochs and trainer.current_epoch + 1 == trainer.max_epochs:
            trainer.check_val_every_n_epoch = 1


def repeated_frames(loader: Any, batch: int) -> int:
    """Return how many frames at the end of a batch are repeats.

    A ``DistributedSampler`` gives all processes equally many frames. Where their number does not
    divide the frames, the last places hold frames from the beginning once more.

    Args:
        loader: the loader of this process.
        batch: number of the batch, from 0.
    """
    sampler = getattr(loader, "sampler", None)
    if not isinstance(sampler, DistributedSampler):
        return 0
    end = min((batch + 1) * int(loader.batch_size), len(sampler))  # of the places of this process
    frames = len(sampler.dataset)  # type: ignore[arg-type]
    # The place n of process r is frame n * processes + r of all.
    frames_of_process = -(-(frames - sampler.rank) // sampler.num_replicas)
    return max(0, end - frames_of_process)


class SegmentationTask(L.LightningModule):
    """Train any network from images ``[N, K, H, W]`` in 0..1 to logits ``[N, C, H, W]``, on
    dictionaries with ``image`` and ``label`` (int64, 255 ignored), with C ``class_weights`` or
    None. It logs ``train/loss``, and ``val/miou`` and ``val/loss`` of the validation set. A loss or
    a parameter that becomes NaN or infinite ends the training, and no checkpoint is written after.
    """

    class_weights: Tensor | None

    def __init__(
        self,
        network: nn.Module,
        num_classes: int,
        settings: OptimisationConfig | None = None,
        class_weights: Sequence[float] | None = None,
    ) -> None:
        super().__init__()
        self.network = network
        self.settings = OptimisationConfig() if settings is None else settings
        weights = None if class_weights is None else torch.tensor(class_weights)
        self.register_buffer("class_weights", weights, persistent=False)
        self.val_confusion = MulticlassConfusionMatrix(num_classes, ignore_index=IGNORE)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.network(images.contiguous(memory_format=torch.channels_last))
        return logits

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> Tensor:
        loss = losses.segmentation_loss(self(batch["image"]), batch["label"], self.class_weights)
        if not bool(torch.isfinite(loss)):
            raise losses.diverged("the loss", self.global_step)
        self.log("train/loss", loss, prog_bar=True, batch_size=len(batch["image"]))
        return loss

    def validation_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        logits = self(batch["image"])
        # Processes run the network equally often, so some take frames that others have taken.
        repeats = repeated_frames(self.trainer.val_dataloaders, batch_idx)
        frames = max(0, len(logits) - repeats)
        logits = logits[:frames]
        labels = batch["label"][:frames]
        # The loss comes first, because it checks the labels.
        loss = losses.segmentation_loss(logits, labels, self.class_weights)
        self.val_confusion.update(logits.argmax(1), labels)
        self.log("val/loss", loss, sync_dist=True, batch_size=frames)

    def on_validation_epoch_end(self) -> None:
        # The metric adds its confusion matrices over processes itself.
        confusion = self.val_confusion.compute().double()
        hits = confusion.diag()
        union = confusion.sum(0) + confusion.sum(1) - hits
        miou = (hits / union)[union > 0].mean().float()
        # It is equal on all processes; without sync_dist Lightning would warn that it is not.
        self.log("val/miou", miou, prog_bar=True, sync_dist=True)
        self.val_confusion.reset()

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        trained = [p for p in self.network.parameters() if p.requires_grad]
        decayed = [p for p in trained if p.ndim > 1]
        plain = [p for p in trained if p.ndim <= 1]
        settings = self.settings
        groups = [
            {"params": decayed, "weight_decay": settings.weight_decay},
            {"params": plain, "weight_decay": 0.0},
        ]
        optimizer = losses.make_optimizer(settings.optimizer, groups, settings.lr)
        steps = int(self.trainer.estimated_stepping_batches)
        schedule = losses.make_schedule(optimizer, settings.schedule, steps, settings.lr)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        losses.require_finite_state(checkpoint["state_dict"], self.global_step)


def _build_to_train(config: NetworkConfig, classes: LabelMap) -> SegmentationNetwork:
    """Return the network of a configuration, with the weights that it starts from and the
    normalisation that these expect.
    """
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD
    if config.encoder_weights:
        mean, std = encoder_normalisation(config.encoder)
    description = NetworkDescription(
        architecture=config.architecture,
        encoder=config.encoder,
        classes=classes.classes,
        palette=classes.palette,
        options=dict(config.options),
        mean=config.mean or mean,
        std=config.std or std,
        inference_size=config.inference_size,
    )
    network = build_network(description)
    for note in _load_first_weights(network, config):
        say(f"note: {note}")
    return network


def _load_first_weights(network: SegmentationNetwork, config: NetworkConfig) -> list[str]:
    """Load the weights from which a training starts, if any, and return what a user should know."""
    if config.weights:
        notes = load_weights(network.body, Path(config.weights))
        if config.encoder_weights:
            unread = f"network.encoder_weights {config.encoder_weights} not read"
            notes.append(f"{unread}: {config.weights} holds the encoder")
        elif not (config.mean or config.std):
            description = network.description
            note = normalisation_note(config.encoder, description.mean, description.std)
            if note:
                notes.append(note)
        return notes
    if config.encoder_weights:
        encoder = cast(nn.Module, network.body.encoder)
        channels = network.description.channels
        return load_encoder_weights(encoder, config.encoder, config.encoder_weights, channels)
    return []


def train_network(
    config: TrainConfig, out: Path, *, device: str = "auto"
) -> tuple[SegmentationNetwork, dict[str, Any]]:
    """Train, keep the checkpoint with the best validation mIoU, and write the model folder; return
    the network in eval mode and what was measured. A killed run continues from its last checkpoint
    when called again with the same ``out``.
    """
    with flushed_denormals(), no_half_folder(out):
        L.seed_everything(config.seed, workers=True, verbose=False)
        data = SegmentationDataModule(**config.data)
        data.seed += config.seed
        network = _build_to_train(config.network, data.label_map)
        fit_to_network(data, network.description)
        settings = trainer_settings(dict(config.trainer), out, device, network)
        if settings.get("max_epochs") == 0 and not config.network.weights:
            raise InputError(
                "trainer.max_epochs is 0, so nothing would be trained, "
                "and network.weights is not set",
                hint="--trainer.max_epochs 1, or --network.weights FILE",
            )
        check_result(out / MEASURED, is_measured, "what a training measured")
        frames = data.training_frames()
        for note in (frames.note(), frames.warning(data.batch_size)):
            if note:
                say(f"note: {note}")
        data.prepare_data()
        note = size_note(data, network.description, crops=True, trains_network=True)
        if note:
            say(f"note: {note}")
        task = _make_task(config.optimisation, network, data)
        with sole_run(out):
            measured = _fit_best(config, task, data, settings, out)
        network = network.cpu()
        provenance = {
            "trained": measured["steps"] > 0,
            "dataset": config.data["dataset"],
            "data": settings_of_training(config.data),
            **list_of_frames(config.data),
            "seed": config.seed,
            **environment(settings["precision"]),
            **measured,
        }
        if measured["val_miou"] is not None:
            provenance["validation"] = data.validation
            provenance[EPOCH_FRAMES] = name_hashes(data.frame_names("val"))
        if measured["steps"]:
            selected = measured["val_miou"] is not None
            provenance[RECORD] = frames.record(selected=selected)
        network.description = replace(network.description, provenance=provenance)
        if is_first_process():
            # With the network: until now, the folder may hold an earlier one and its records.
            save_config(config, out, "train")
            record_data(out, config.data)
            save_network(network, out)
            write_json(out / MEASURED, measured)  # last: it says that the network is finished
        return network.eval(), measured


def _make_task(
    config: OptimisationConfig, network: SegmentationNetwork, data: SegmentationDataModule
) -> SegmentationTask:
    """Return the task of a network, which it puts into channels-last memory."""
    power = config.class_weight_power
    weights = losses.balanced_weights(data.class_frequencies(), power) if power else None
    network.to(memory_format=torch.channels_last)
    return SegmentationTask(network, network.description.num_classes, config, weights)


def _fit_best(
    config: TrainConfig,
    task: SegmentationTask,
    data: SegmentationDataModule,
    settings: dict[str, Any],
    out: Path,
) -> dict[str, Any]:
    """Train a task, give its network the weights of the best checkpoint, and return what was
    measured.
    """
    best = ModelCheckpoint(
        out / CHECKPOINTS, "best", monitor="val/miou", mode="max", enable_version_counter=False
    )
    resume = claim_checkpoints(out, "train", config.plain(), _seen_frames(data))
    callbacks: list[Callback] = [best, LastEpochValidation()]
    if settings.get("logger", True):  # the monitor refuses a run without a logger
        callbacks.append(LearningRateMonitor("step"))
    trainer = make_trainer(settings, out, "train", *callbacks)
    # Of a network that was finished before.
    remove_result(out / MEASURED, is_measured, "what a training measured")
    start = time.perf_counter()
    processes = fit(trainer, task, resume, datamodule=data)
    seconds = time.perf_counter() - start
    best_epoch = None
    score = None
    if best.best_model_path:
        best_epoch, states = _load_network_of(task, Path(best.best_model_path))
        # A run that was killed between its two checkpoints may have left a better one than it
        # remembers.
        score = states.get(best.state_key, best.state_dict())["best_model_score"]
    return {
        "val_miou": None if score is None else float(score),
        "best_epoch": best_epoch,
        "epochs": trainer.current_epoch,
        "steps": trainer.global_step,
        "processes": processes,
        "seconds": round(seconds, 1),
        "resumed": resume is not None,
    }


def _seen_frames(data: SegmentationDataModule) -> list[str]:
    """Return the names of the frames that a training learns from and chooses its epoch on."""
    return [*data.frame_names("train"), *data.frame_names("val")]


def _load_network_of(task: SegmentationTask, checkpoint: Path) -> tuple[int, dict[str, Any]]:
    """Give the network of a task the weights in a checkpoint of that task, and return its epoch,
    from 1, and the states of its callbacks.
    """
    content = read_checkpoint(checkpoint)
    weights: dict[str, Any] = {}
    for name, value in content["state_dict"].items():
        if name.startswith("network."):
            weights[name.removeprefix("network.")] = value
    task.network.load_state_dict(weights)
    return int(content["epoch"]) + 1, content["callbacks"]


def train_members(
    config: TrainConfig,
    seeds: Sequence[int],
    out: Path,
    *,
    device: str = "auto",
    say: Say = say,
) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Train one network for each seed, in the place of the configuration's, into ``seed-N`` below
    ``out``; finished ones are skipped. Yields the folder and what was measured, after each
    training.
    """
    if len(set(seeds)) < len(seeds) or not seeds or min(seeds) < 0:
        shown = ",".join(map(str, seeds))
        message = f"--seeds {shown} are not different numbers of at least 0"
        raise InputError(message, hint="e.g. 0,1,2,3")
    for number, seed in enumerate(seeds, start=1):
        member = replace(config, seed=seed)
        folder = inside(out, f"seed-{seed}")
        if _is_finished(folder, member):
            say(f"member {number} of {len(seeds)}: {folder} is finished")
            continue
        say(f"member {number} of {len(seeds)}: {folder}")
        _, measured = train_network(member, folder, device=device)
        yield folder, measured


def _is_finished(folder: Path, config: TrainConfig) -> bool:
    """Return whether a folder holds a network that was trained to the end with a configuration.

    Raises:
        InputError: the checkpoints there are of other settings, or damaged.
    """
    if not (folder / MEASURED).exists():
        return False
    data = SegmentationDataModule(**config.data)
    frames = _seen_frames(data) if data.root.is_dir() else None
    if claim_checkpoints(folder, "train", config.plain(), frames):
        return True
    # Where the checkpoints were removed, the configuration of the network says of which settings
    # it is.
    return not unlike(read_config(folder / "train.yaml"), config.plain())
