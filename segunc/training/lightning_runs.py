"""Runs of Lightning, perhaps in several processes: printing, continuing after a kill, and failures
as one clear line.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from segunc.core import terminal
from segunc.core.errors import InputError, PartialFailure
from segunc.core.files import (
    Lock,
    differing_keys,
    file_sha256,
    flat,
    inside,
    json_sha256,
    make_output,
    read_json,
    recording,
    write_json,
)
from segunc.core.removal import files_below, is_listed, remove_checked, remove_empty
from segunc.data.training_frames import name_hashes
from segunc.networks.weights import read_checkpoint

if TYPE_CHECKING:
    import lightning as L

Say = Callable[[str], None]  # receives a line for each step of a run
FILES_OF_DATA = ("frames", "labels")  # keys of data that may name a CSV file of the user
INTERVAL = 20.0  # seconds between two lines of progress, and between two moments to save at
CHECKPOINTS = "checkpoints"
LAST = "last.ckpt"
LOCK = ".lock"
RECORD = "run.json"
PROCESSES = "processes"  # key of a checkpoint: how many processes have trained
LOG = re.compile(
    r"logs/(metrics\.csv|hparams\.yaml)|"
    rf"tensorboard/(hparams\.yaml|events\.out\.tfevents\.\d+\..+\.{os.getpid()}\.\d+)"
)
"""The files that the loggers of this process write below the folder of a run."""
FREE = {
    "data.root",
    "data.workers",
    "data.eval_batch_size",
    "trainer.accelerator",
    "trainer.devices",
    "trainer.strategy",
    "trainer.num_nodes",
    "trainer.log_every_n_steps",
    "trainer.logger",
    "trainer.enable_progress_bar",
    "trainer.enable_model_summary",
    "trainer.profiler",
    "data.frames_sha256",
    "data.labels_sha256",
    "data.names_sha256",
}
"""Settings that may differ when a run is continued: where it runs, not what it makes."""


def is_first_process() -> bool:
    """Return whether this is the process of a distributed run that prints and writes; True outside
    of one.
    """
    from lightning.pytorch.utilities import rank_zero_only

    return int(getattr(rank_zero_only, "rank", 0) or 0) == 0


def say(text: str) -> None:
    """Print a line, from the first process alone."""
    if is_first_process():
        terminal.say(text, flush=True)


def unlike(before: Mapping[str, Any], settings: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Return the dotted keys of settings in which what two runs make differs, with both values."""
    return [
        (key, value_before, value)
        for key, value_before, value in differing_keys(before, settings)
        if key not in FREE and value_before != value
    ]


def _listed_files(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the SHA-256 of the files of the user that say what the data of a run are: the list of
    frames and the label map. Keys are such as ``data.frames_sha256``.
    """
    data = config.get("data") or {}
    hashes: dict[str, str] = {}
    for key in FILES_OF_DATA:
        named = str(data.get(key) or "")
        if named.endswith(".csv") and Path(named).is_file():
            hashes[f"data.{key}_sha256"] = file_sha256(Path(named))
    return hashes


def _check_files(out: Path, before: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """Raise InputError if a list of frames or a label map has changed since a run was begun. A run
    of an earlier version has no record of them.
    """
    for key in FILES_OF_DATA:
        recorded = before.get(f"data.{key}_sha256")
        now = settings.get(f"data.{key}_sha256")
        if recorded is not None and now is not None and recorded != now:
            raise InputError(
                f"{settings[f'data.{key}']} has changed since {out} was trained with it, so that "
                "run cannot be continued",
                hint=f"give another --out, or remove {inside(out, CHECKPOINTS)}",
            )


def _check_names(out: Path, before: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """Raise InputError if a run was begun with other frames. Its schedule is laid out over them. A
    run of an earlier version has no record of them.
    """
    recorded = before.get("data.names_sha256")
    now = settings.get("data.names_sha256")
    if recorded is not None and now is not None and recorded != now:
        raise InputError(
            f"frames have come or gone in {settings['data.root']} since {out} was trained with "
            "them, so that run cannot be continued",
            hint=f"give another --out, or remove {inside(out, CHECKPOINTS)}",
        )


def claim_checkpoints(
    out: Path,
    verb: str,
    config: Mapping[str, Any],
    frames: Iterable[str] | None = None,
    **bound: str,
) -> Path | None:
    """Return the checkpoint from which a killed run of the same settings continues, or None; note
    the settings beside the checkpoints.

    Args:
        out: the folder of the run.
        verb: ``train`` or ``finetune``.
        config: the configuration, as plain values.
        frames: names of the frames of a data set that the run sees; None where they are not known.
        bound: what else the run depends on by name, such as the hash of a base network.

    Raises:
        InputError: the checkpoints there are of other settings or of other frames or of another
            list of frames or label map, or damaged.
    """
    folder = inside(out, CHECKPOINTS)
    # max_epochs is not in FREE: the learning rate's schedule is laid out over them.
    all_settings = flat({"verb": verb, **bound, **config})
    settings = {key: value for key, value in all_settings.items() if value != {}}
    settings |= _listed_files(config)
    if frames is not None:
        settings["data.names_sha256"] = json_sha256(name_hashes(frames))
    last = folder / LAST
    if not last.exists():
        write_json(folder / RECORD, settings)
        return None
    before = read_json(folder / RECORD, "the settings that the checkpoints beside it belong to")
    _check_files(out, before, settings)
    _check_names(out, before, settings)
    differing = unlike(before, settings)
    if differing:
        # Continuing it would give a network that no configuration describes.
        differences = [
            f"{key} {there} there, {asked} asked for" for key, there, asked in differing[:4]
        ]
        message = (
            f"{out} holds a run of other settings, which cannot be continued: "
            f"{', '.join(differences)}"
        )
        raise InputError(message, hint=f"give another --out, or remove {folder}")
    try:
        read_checkpoint(last)
    except InputError as error:
        raise InputError(error.message, hint=f"remove {folder} to begin anew") from error
    return last


@contextlib.contextmanager
def sole_run(out: Path) -> Iterator[None]:
    """Keep other runs out of a folder while open: each would take the checkpoints of the other for
    its own. All processes of one distributed run may be there.

    Raises:
        InputError: another run is at work there.
    """
    if not is_first_process():
        yield
        return
    make_output(out)
    with Lock(out / LOCK, f"output {out}"):
        yield


@contextlib.contextmanager
def no_half_folder(out: Path) -> Iterator[None]:
    """Remove what a run wrote into its new folder where it fails before there is a checkpoint or a
    network to keep. The folder goes, too, if nobody has put anything else there meanwhile."""
    new = not out.exists() or not any(out.iterdir())
    with recording() as written:
        try:
            yield
        except BaseException:
            if new and is_first_process() and not _has_results(out):
                _remove_begun(out, written)
            raise


def _has_results(out: Path) -> bool:
    """Return whether a folder holds a network or a checkpoint."""
    for path in out.rglob("*"):
        checkpoint = path.parent.name == CHECKPOINTS and path.name != RECORD
        if checkpoint or path.suffix == ".safetensors":
            return True
    return False


def _remove_begun(out: Path, written: Mapping[Path, tuple[int, str]]) -> None:
    """Remove the settings that a run wrote, as long as they are as it wrote them, its logs, and the
    folders that this leaves empty."""
    removable = []
    for file in files_below(out):
        content = written.get((out / file).absolute())
        if LOG.fullmatch(file) or (content and is_listed(out / file, [content])):
            removable.append(file)
    folders = [path for path in out.rglob("*") if path.is_dir() and not path.is_symlink()]
    remove_checked(out, removable)
    for folder in sorted(folders, reverse=True):
        remove_empty(folder)
    remove_empty(out)


def processes_of(trainer: L.Trainer) -> int:
    """Return how many processes train with a Trainer. Each step takes a batch from each of them."""
    return int(trainer.num_devices) * int(trainer.num_nodes)


def _check_processes(trainer: L.Trainer, resume: Path, checkpoint: Mapping[str, Any]) -> None:
    """Raise InputError if a run was begun by another number of processes. An epoch has other steps
    then, and its schedule is laid out over them. A checkpoint of an earlier version does not say
    the number.
    """
    processes = processes_of(trainer)
    before = checkpoint.get(PROCESSES, processes)
    if before != processes:
        folder = resume.parent
        words = "1 process" if before == 1 else f"{before} processes"
        raise InputError(
            f"{folder.parent} was begun by {words}, so it cannot be continued by {processes}: "
            "an epoch has another number of steps",
            hint=f"--trainer.devices {before}, give another --out, or remove {folder}",
        )


def _check_share(trainer: L.Trainer, data: Mapping[str, Any]) -> None:
    """Raise InputError if the training frames are too few for a batch in each process. Lightning
    would train nothing then, and end as after a training.

    Args:
        trainer: of the run.
        data: ``datamodule`` or ``train_dataloaders``, as ``trainer.fit`` takes them.
    """
    processes = processes_of(trainer)
    if processes == 1 or trainer.max_epochs == 0:
        return
    module = data.get("datamodule")
    loader: Any = data["train_dataloaders"] if module is None else module.train_dataloader()
    if not getattr(loader, "drop_last", False):
        return
    frames = len(loader.sampler)
    if -(-frames // processes) < loader.batch_size:
        raise InputError(
            f"{terminal.counted(frames, 'training frame')} for {processes} processes "
            f"{terminal.agreeing('is', frames)} fewer than a batch of {loader.batch_size} for each",
            hint="lower data.batch_size, or take fewer processes with --trainer.devices",
        )


def fit(
    trainer: L.Trainer,
    task: L.LightningModule,
    resume: Path | None,
    *,
    continues: bool = True,
    **data: Any,
) -> int | None:
    """Call ``trainer.fit`` on ``datamodule`` or ``train_dataloaders``, from a checkpoint or from
    the start, and return by how many processes was trained: None where the checkpoint of an earlier
    version does not say it.

    A frame that cannot be read is an InputError before the first step, and a PartialFailure after
    it; the checkpoints stay. Where nothing ``continues`` from them, it is always an InputError. So
    are too few frames for the processes, and another number of processes than the run began with.
    """
    _check_share(trainer, data)
    trained_by: int | None = processes_of(trainer)
    if resume is not None:
        checkpoint = read_checkpoint(resume)
        trained_by = checkpoint.get(PROCESSES)
        finished = int(checkpoint.get("epoch", -1)) + 1
        limit = trainer.max_epochs
        if limit is not None and 0 <= limit <= finished:
            say(f"the run in {resume.parent.parent} is finished; nothing is trained again")
        else:
            _check_processes(trainer, resume, checkpoint)
            say(f"continues a run that was stopped, after its epoch {finished}")
    try:
        trainer.fit(
            task, ckpt_path=None if resume is None else str(resume), weights_only=True, **data
        )
    except InputError as error:
        # A loader process hands an error over with its whole traceback.
        text = str(error).strip().rpartition("InputError: ")[2]
        if trainer.global_step == 0 or not continues:
            raise InputError(text) from error
        message = (
            f"stopped at step {trainer.global_step}: {text}; "
            "the same command continues from the last finished epoch"
        )
        raise PartialFailure(message) from error
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            raise
        message = (
            "one crop in a batch is too few for a BatchNorm of one value for each channel "
            f"({error})"
        )
        raise InputError(message, hint="give --data.batch_size 2 or more") from error
    except SystemExit:  # how Lightning ends a process that was interrupted
        if not trainer.interrupted:
            raise
    if trainer.interrupted:
        raise KeyboardInterrupt
    return trained_by
