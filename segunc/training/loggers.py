"""The loggers of a training, by Lightning's names: ``csv``, ``tensorboard``, ``wandb``, ``mlflow``.

A configuration may come from a stranger, and opens no connection. So a logger that it names writes
below the folder of the run, whatever server the logger would talk to by itself. Whoever trains can
let loggers connect, by :data:`ONLINE`: a configuration cannot set an environment variable.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import (
    CSVLogger,
    Logger,
    MLFlowLogger,
    TensorBoardLogger,
    WandbLogger,
)

from segunc.core.errors import InputError, nearest
from segunc.core.files import inside
from segunc.core.removal import move_own
from segunc.training.lightning_runs import is_first_process

ONLINE = "SEGUNC_ONLINE_LOGGERS"
"""Environment variable with the names of loggers that may connect, such as ``wandb,mlflow``."""
PROJECT = "segunc"
"""Project of Weights & Biases, and experiment of MLflow, unless the environment names one."""


def names_of_loggers(value: Any) -> list[str]:
    """Return the names of loggers in a setting ``trainer.logger``.

    Args:
        value: a name, a list of names, or true for a CSV log and TensorBoard where it is installed;
            false is none.

    Raises:
        InputError: a name that is not known, or something else.
    """
    if isinstance(value, bool) or value is None:
        return []
    names = [value] if isinstance(value, str) else value
    is_list = isinstance(names, list | tuple)
    if not is_list or not all(isinstance(name, str) for name in names):
        message = f"trainer.logger {value} names objects, which a configuration cannot make"
        raise InputError(message, hint=f"take names: {', '.join(LOGGERS)}; or true, or false")
    for name in names:
        if name not in LOGGERS:
            message = f"trainer.logger '{name}' is no logger{nearest(name, LOGGERS)}"
            raise InputError(message, hint=f"the names are {', '.join(LOGGERS)}")
    return list(dict.fromkeys(names))


def check_loggers(value: Any) -> None:
    """Raise an InputError where a setting ``trainer.logger`` names no logger, or one whose package
    is not installed.
    """
    for name in names_of_loggers(value):
        packages = PACKAGES.get(name, ())
        if packages and not any(importlib.util.find_spec(package) for package in packages):
            raise _not_installed(name)


def _not_installed(name: str) -> InputError:
    message = f"trainer.logger {name} needs the package {name}, which is not installed"
    return InputError(message, hint=f"pip install {name}")


def run_loggers(out: Path, value: Any = True) -> list[Logger]:
    """Return the loggers of a run, which write into its folder.

    Args:
        out: the folder of the run.
        value: the setting ``trainer.logger``, see :func:`names_of_loggers`.
    """
    if value is True or value is None:
        inside(out, "tensorboard")
        loggers = [_csv(out)]
        with suppress(ModuleNotFoundError):
            loggers.append(_tensorboard(out))
        return loggers
    chosen = []
    for name in names_of_loggers(value):
        try:
            chosen.append(LOGGERS[name](out))
        except ModuleNotFoundError as error:  # too old for Lightning
            raise _not_installed(name) from error
    return chosen


def may_connect(name: str) -> bool:
    """Return whether the user lets a logger connect, see :data:`ONLINE`."""
    return name in os.environ.get(ONLINE, "").replace(",", " ").split()


def _csv(out: Path) -> Logger:
    """Return a CSV log, whose file gets a number when the run is continued."""
    log = inside(out, "logs") / "metrics.csv"
    if is_first_process() and log.exists():  # Lightning would delete it
        move_own(log, _free_name(log))
    return CSVLogger(out, name="logs", version="")


def _free_name(log: Path) -> Path:
    """Return the first numbered name of a log under which nothing lies."""
    numbered = (log.with_name(f"metrics-{number}.csv") for number in count(1))
    return next(path for path in numbered if not os.path.lexists(path))


def _tensorboard(out: Path) -> Logger:
    inside(out, "tensorboard")
    return TensorBoardLogger(out, name="tensorboard", version="")


def _wandb(out: Path) -> Logger:
    """Return a log of Weights & Biases: offline, in ``wandb`` below the folder of the run."""
    folder = inside(out.absolute(), "wandb")
    settings: dict[str, Any] = {
        "name": out.name,
        "save_dir": str(folder.parent),
        "project": os.environ.get("WANDB_PROJECT", PROJECT),
    }
    if may_connect("wandb"):
        return WandbLogger(**settings)
    # Also offline, the client would report its own errors to its makers.
    os.environ["WANDB_ERROR_REPORTING"] = "false"
    # It takes other folders for its settings and caches from the home of the user.
    for name in ("CACHE", "CONFIG", "DATA"):
        os.environ.setdefault(f"WANDB_{name}_DIR", str(folder))
    return WandbLogger(**settings, mode="offline")


def _mlflow(out: Path) -> Logger:
    """Return a log of MLflow, in ``mlruns`` below the folder of the run."""
    folder = inside(out.absolute(), "mlruns")
    experiment = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
    server = os.environ.get("MLFLOW_TRACKING_URI")
    if may_connect("mlflow") and server:
        return MLFlowLogger(experiment, run_name=out.name, tracking_uri=server)
    # It would tell its makers that it is used.
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    # The default of Lightning is the server that the environment names.
    return MLFlowLogger(experiment, run_name=out.name, tracking_uri=folder.as_uri())


LOGGERS: Mapping[str, Callable[[Path], Logger]] = {
    "csv": _csv,
    "tensorboard": _tensorboard,
    "wandb": _wandb,
    "mlflow": _mlflow,
}
"""What ``trainer.logger`` can name."""
PACKAGES: Mapping[str, tuple[str, ...]] = {
    "tensorboard": ("tensorboard", "tensorboardX"),
    "wandb": ("wandb",),
    "mlflow": ("mlflow",),
}
"""The packages one of which a logger needs."""
