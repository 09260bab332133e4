"""Lines and progress of a run that Lightning may have spread over several processes, and continuing it after it was killed: whose
checkpoints a folder holds, and a fit whose failures are one clear line. Lightning itself is imported only to ask for the process."""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tqdm import tqdm

from segunc.core import terminal
from segunc.core.errors import InputError, PartialFailure
from segunc.core.files import read_json, write_json
from segunc.networks.weights import read_checkpoint

if TYPE_CHECKING:
    import lightning as L

    from segunc.training.config import Config

T = TypeVar("T")
Say = Callable[[str], None]
"""Receives a line for each step of a run."""
INTERVAL = 20.0
"""Seconds between two lines of progress, and between two moments to save at."""
CHECKPOINTS = "checkpoints"
LAST = "last.ckpt"
RECORD = "run.json"
FREE = {
    *("data.root", "data.workers", "data.eval_batch_size"),
    *(f"trainer.{key}" for key in ("accelerator", "devices", "strategy", "num_nodes", "log_every_n_steps")),
    *(f"trainer.{key}" for key in ("enable_progress_bar", "enable_model_summary", "profiler")),
}
"""Settings that may differ when a run is continued: where it runs, not what it makes."""


def interactive() -> bool:
    """Whether standard error is a terminal."""
    return sys.stderr.isatty()


def is_first_process() -> bool:
    """Whether this is the one process of a distributed run that prints and writes; True outside of one."""
    from lightning.pytorch.utilities import rank_zero_only

    return int(getattr(rank_zero_only, "rank", 0) or 0) == 0


def say(text: str) -> None:
    """Print a line, from the first process alone."""
    if is_first_process():
        terminal.say(text, flush=True)


class StepProgress:
    """Progress of work that Lightning does not run: a bar on a terminal, else a labelled line at most every ``every`` seconds.

    Args:
        done: steps of the total that were done before.
    """

    def __init__(self, label: str, total: int, done: int = 0, every: float = INTERVAL) -> None:
        self.label, self.total, self.done, self.every = label, total, done, every
        self._start = self._last = time.monotonic()
        self._first = done
        self._bar = (
            tqdm(total=total, initial=done, desc=terminal.visible(label))
            if interactive() and is_first_process()
            else None
        )

    def step(self, text: str = "") -> bool:
        """Count a step, with a few words on the work's state; True where it is time to save what was done."""
        self.done += 1
        if self._bar is not None:
            self._bar.set_postfix_str(terminal.visible(text), refresh=False)
            self._bar.update()
        now = time.monotonic()
        if now - self._last < self.every:
            return False
        self._last = now
        if self._bar is None and is_first_process():
            rate = (self.done - self._first) / (now - self._start)
            left = (self.total - self.done) / rate
            line = f"{self.label}: step {self.done}/{self.total}, {rate:.2f} steps/s, {left:.0f} s left"
            terminal.say(f"{line}, {text}" if text else line, stream=sys.stderr, flush=True)
        return True

    def close(self) -> None:
        """Leave the bar as it stands."""
        if self._bar is not None:
            self._bar.close()


def follow(items: Sequence[T], label: str) -> Iterator[T]:
    """The items one by one, with a bar on a terminal or a line on standard error now and then."""
    if interactive():
        yield from tqdm(items, desc=terminal.visible(label), unit="frame")
        return
    last = time.monotonic()
    for done, item in enumerate(items):
        if time.monotonic() - last >= INTERVAL:
            last = time.monotonic()
            terminal.say(f"{label}: {done}/{len(items)} frames", stream=sys.stderr, flush=True)
        yield item


def claim_checkpoints(out: Path, verb: str, config: Config, partial: str | None = None, **bound: str) -> Path | None:
    """The checkpoint in an output folder from which a killed run of the same settings continues, or None; notes whose they will be.

    Args:
        partial: another file beside the checkpoints that is unfinished work of the run.
        bound: what else the checkpoints depend on, the hash of a base network for instance.

    Raises:
        InputError: the folder holds checkpoints of a run with other settings (continuing them would give a network
            that no configuration describes), or that are damaged.
    """
    folder = out / CHECKPOINTS
    # Without max_epochs in the list of what may differ: the learning rate's schedule is laid out over them.
    settings = _flat({"verb": verb, **bound, **config.plain()})
    last = folder / LAST
    if not last.exists() and not (partial and (folder / partial).exists()):
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / RECORD, settings)
        return None
    before = read_json(folder / RECORD, "the settings that the checkpoints beside it belong to")
    other = [
        f"{key} {before.get(key)} there, {settings.get(key)} asked for"
        for key in sorted({*before, *settings} - FREE)
        if before.get(key) != settings.get(key)
    ]
    if other:
        given = f"{out} holds a run of other settings: {', '.join(other[:4])}"
        raise InputError(given, "the same settings, to continue it", f"give another --out, or remove {folder}")
    if not last.exists():
        return None
    try:
        read_checkpoint(last)
    except InputError as error:
        raise InputError(error.given, error.expected, f"remove {folder} to begin anew") from error
    return last


@contextlib.contextmanager
def no_half_folder(out: Path) -> Iterator[None]:
    """Take away the new folder of a run that fails before there is a checkpoint or a network to keep."""
    new = not out.exists() or not any(out.iterdir())
    try:
        yield
    except BaseException:
        kept = (path for path in out.rglob("*") if path.suffix == ".safetensors" or path.parent.name == CHECKPOINTS)
        if new and is_first_process() and all(path.name == RECORD for path in kept):
            shutil.rmtree(out, ignore_errors=True)
        raise


def fit(trainer: L.Trainer, task: L.LightningModule, resume: Path | None, **data: Any) -> None:
    """``trainer.fit`` on ``datamodule`` or ``train_dataloaders``, from a checkpoint or from the start.

    Raises:
        InputError: a frame cannot be read, before the first step.
        PartialFailure: the same after it; the checkpoints stay.
    """
    try:
        trainer.fit(task, ckpt_path=None if resume is None else str(resume), weights_only=True, **data)
    except InputError as error:
        text = worker_message(str(error))
        if trainer.global_step == 0:
            raise InputError(text) from error
        raise PartialFailure(
            f"stopped at step {trainer.global_step}: {text}; the same command continues from the last finished epoch"
        ) from error
    except SystemExit:  # how Lightning ends a process that was interrupted
        if not trainer.interrupted:
            raise
    if trainer.interrupted:
        raise KeyboardInterrupt


def worker_message(text: str) -> str:
    """The message of an error alone; a loader process hands it over with its whole traceback as the message."""
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].partition("InputError: ")[2] or text if len(lines) > 1 else text


def _flat(value: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """``{"a": {"b": 1}}`` as ``{"a.b": 1}``."""
    flat: dict[str, Any] = {}
    for key, inner in value.items():
        flat |= _flat(inner, f"{prefix}{key}.") if isinstance(inner, dict) else {f"{prefix}{key}": inner}
    return flat
