"""Where pictures go: to every logger that takes images, and to files where none does.

Loggers are told by the names of their classes, so that those of ``lightning`` and of
``pytorch_lightning`` and their subclasses are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from segunc.core.files import write_file
from segunc.data.images import Image
from segunc.maps.encoding import encode_png


@dataclass(frozen=True)
class Picture:
    """A picture of an evaluation.

    Attributes:
        tag: its name in the loggers, such as ``segunc/maps``.
        pixels: RGB uint8 ``[H, W, 3]``.
        step: optimiser steps so far.
        epoch: finished epochs.
    """

    tag: str
    pixels: Image
    step: int
    epoch: int

    @property
    def file_name(self) -> str:
        return f"epoch_{self.epoch:04}.png"


def _to_tensorboard(logger: Any, picture: Picture) -> None:
    logger.experiment.add_image(picture.tag, picture.pixels, picture.step, dataformats="HWC")


def _to_wandb(logger: Any, picture: Picture) -> None:
    logger.log_image(
        key=picture.tag,
        images=[picture.pixels],
        step=picture.step,
        caption=[f"after epoch {picture.epoch}"],
    )


def _to_mlflow(logger: Any, picture: Picture) -> None:
    file = f"{picture.tag}/{picture.file_name}"
    logger.experiment.log_image(logger.run_id, picture.pixels, file)


def _to_comet(logger: Any, picture: Picture) -> None:
    logger.experiment.log_image(picture.pixels, name=picture.tag, step=picture.step)


TAKERS: Mapping[str, Callable[[Any, Picture], None]] = {
    "TensorBoardLogger": _to_tensorboard,
    "WandbLogger": _to_wandb,
    "MLFlowLogger": _to_mlflow,
    "CometLogger": _to_comet,
}
"""How each logger that takes images takes one."""


def taker_of(logger: Any) -> Callable[[Any, Picture], None] | None:
    """Return how a logger takes images; None where it takes none. A logger of another kind takes
    them if it has a ``log_image(key, images, step, caption)``, as that of Weights & Biases does.
    """
    for kind in type(logger).__mro__:
        if kind.__name__ in TAKERS:
            return TAKERS[kind.__name__]
    return _to_wandb if callable(getattr(logger, "log_image", None)) else None


def log_picture(picture: Picture, loggers: Iterable[Any], folder: Path) -> Path | None:
    """Give a picture to every logger that takes images. Where none does, write it as a PNG file and
    return its path.

    Args:
        picture: that is logged.
        loggers: of the Trainer.
        folder: of the files.
    """
    takes_one = False
    for logger in loggers:
        take = taker_of(logger)
        if take is not None:
            take(logger, picture)
            takes_one = True
    if takes_one:
        return None
    path = folder / picture.file_name
    write_file(path, encode_png(picture.pixels))
    return path


def folder_of_run(loggers: Iterable[Any], root: str) -> Path:
    """Return the folder of a run: that of the first logger that has one, else the root folder of
    the Trainer.
    """
    for logger in loggers:
        for attribute in ("log_dir", "save_dir"):
            folder = getattr(logger, attribute, None)
            if isinstance(folder, str):
                return Path(folder)
    return Path(root)
