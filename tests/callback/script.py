"""A training script of a user, on one process or on several: ``script.py FOLDER SETTINGS``, with
the settings as JSON. Its last checkpoint continues it.
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger

from tests.callback.training import (
    LitBlocks,
    blocks,
    make_callback,
    make_trainer,
    train_loader,
    val_loader,
)


class WaitToBeKilled(L.Callback):
    """Stand still in the middle of an epoch, and say so."""

    def __init__(self, folder: Path, epoch: int) -> None:
        self.folder = folder
        self.epoch = epoch

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        if trainer.current_epoch == self.epoch and trainer.is_global_zero:
            (self.folder / "waiting").touch()
            time.sleep(300)


class Frames(torch.utils.data.Dataset[Any]):
    """Validation frames, one of which cannot be read."""

    def __init__(self, damaged: int) -> None:
        self.blocks = blocks(4, 1)
        self.damaged = damaged

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        if index == self.damaged:
            raise OSError(f"frame {index} is damaged")
        return self.blocks[index]


class SharedOut(torch.utils.data.IterableDataset[Any]):
    """A stream that gives each process every so many of six blocks."""

    def __init__(self, processes: int) -> None:
        self.processes = processes

    def __iter__(self) -> Iterator[Any]:
        data = blocks(6, 1)
        for number in range(int(os.environ.get("LOCAL_RANK", "0")), 6, self.processes):
            yield data[number]


def main(folder: Path, settings: dict[str, Any]) -> None:
    L.seed_everything(1, verbose=False)
    # No dropout: the training itself draws no random number, so that a continued one is the same.
    module = LitBlocks(dropout=0.0, **settings.get("module", {}))
    if "weights" in settings:
        checkpoint = torch.load(settings["weights"], weights_only=True)
        module.load_state_dict(checkpoint["state_dict"])
    last = folder / "last.ckpt"
    callbacks: list[Any] = [ModelCheckpoint(folder, "last", save_on_train_epoch_end=True)]
    watcher = None
    if settings.get("callback") is not None:
        values = dict(settings["callback"])
        if "damaged" in values:
            values["frames"] = torch.utils.data.DataLoader(Frames(values.pop("damaged")))
        if "shares_out" in values:
            stream = torch.utils.data.DataLoader(SharedOut(settings["devices"]))
            values[values.pop("shares_out")] = stream
        elif not settings["validates"]:
            values["frames"] = val_loader()
        watcher = make_callback(pictures=2, **values)
        callbacks.append(watcher)
    if "wait_at" in settings:
        callbacks.append(WaitToBeKilled(folder, settings["wait_at"]))
    trainer = make_trainer(
        folder,
        callbacks,
        epochs=settings["epochs"],
        devices=settings["devices"],
        strategy="ddp" if settings["devices"] > 1 else "auto",
        logger=CSVLogger(folder),
        enable_checkpointing=True,
    )
    resume = str(last) if last.exists() else None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        frames = val_loader() if settings["validates"] else None
        trainer.fit(module, train_loader(), frames, ckpt_path=resume)
    result: dict[str, Any] = {"epoch": trainer.current_epoch}
    if watcher is not None:
        result["history"] = watcher.state_dict()["history"]
        result["warnings"] = [str(warning.message) for warning in caught]
    name = f"result-{os.environ.get('LOCAL_RANK', '0')}.json"
    (folder / name).write_text(json.dumps(result))


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
