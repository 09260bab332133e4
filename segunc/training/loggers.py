"""Where numbers of a run are written beside its folder, and the callbacks and loggers that a configuration names."""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import CSVLogger, Logger, MLFlowLogger, TensorBoardLogger, WandbLogger

from segunc.core.errors import InputError
from segunc.core.files import flat
from segunc.training.progress import is_first_process


def run_loggers(out: Path, wanted: Any = True) -> list[Logger]:
    """The loggers of a run: a CSV log always, whose file gets a number when the run is continued, TensorBoard where it is installed,
    and those of ``trainer.logger``: False for none at all, a name of :data:`NAMED`, a class with its arguments, or several."""
    if wanted is False:
        return []
    log = out / "logs" / "metrics.csv"
    if is_first_process() and log.exists():  # Lightning would delete it
        number = 1 + len(list(log.parent.glob("metrics-*.csv")))
        log.rename(log.with_name(f"metrics-{number}.csv"))
    loggers: list[Logger] = [CSVLogger(out, name="logs", version="")]
    with contextlib.suppress(ModuleNotFoundError):
        loggers.append(NAMED["tensorboard"](out))
    asked = [] if wanted is True or wanted is None else wanted if isinstance(wanted, list) else [wanted]
    return [*loggers, *(named_logger(one, out) for one in asked if one != "tensorboard")]


def named_logger(wanted: Any, out: Path) -> Logger:
    """A logger by its name in :data:`NAMED`, or as :func:`instance` makes it.

    Raises:
        InputError: its package is not installed, or the class does not take the arguments.
    """
    if not isinstance(wanted, str) or wanted not in NAMED:
        made: Logger = instance(wanted, "lightning.pytorch.loggers", Logger)
        return made
    try:
        return NAMED[wanted](out)
    except ModuleNotFoundError as error:
        raise InputError(f"logger {wanted} ({error})", "its package", f"pip install {wanted}") from error


def instance(wanted: Any, home: str, kind: type) -> Any:
    """An object as a configuration of Lightning names it: ``{class_path: ..., init_args: {...}}``, or the path alone.

    Args:
        wanted: that, or the object itself.
        home: the module of classes that are named without one.
        kind: what it must be.

    Raises:
        InputError: no such class, another kind, or arguments that it does not take.
    """
    if isinstance(wanted, kind):
        return wanted
    path = wanted.get("class_path") if isinstance(wanted, Mapping) else wanted
    if not isinstance(path, str):
        raise InputError(
            f"{wanted!r} in the configuration's trainer", "class_path and init_args", f"e.g. class_path: {home}.X"
        )
    module, _, name = (path if "." in path else f"{home}.{path}").rpartition(".")
    try:
        made = getattr(importlib.import_module(module), name)(
            **(wanted.get("init_args", {}) if path is not wanted else {})
        )
    except Exception as error:  # whatever its module or its constructor raises
        raise InputError(
            f"{path} in the configuration's trainer ({error})", "a class and the arguments that it takes"
        ) from error
    if not isinstance(made, kind):
        raise InputError(
            f"{path} in the configuration's trainer", f"a {kind.__name__} of Lightning", "check class_path"
        )
    return made


def log_numbers(wanted: str, out: Path, numbers: Mapping[str, Any]) -> None:
    """Write all numbers of nested objects to a logger, under dotted names."""
    logger = named_logger(wanted, out)
    values = flat(numbers).items()
    logger.log_metrics({name: float(v) for name, v in values if isinstance(v, int | float) and not isinstance(v, bool)})
    logger.finalize("success")


def _mlflow(out: Path) -> Logger:
    # MLflow's store in plain files takes no new runs; a data base in the folder of the run does, where no server is named.
    place = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{(out / 'mlflow.db').resolve()}"
    return MLFlowLogger(experiment_name="segunc", run_name=out.name, tracking_uri=place)


NAMED = {
    "tensorboard": lambda out: TensorBoardLogger(out, name="tensorboard", version=""),
    "wandb": lambda out: WandbLogger(project="segunc", name=out.name, save_dir=out),
    "mlflow": _mlflow,
}
"""What ``--logger`` can name; the services' own environment variables say where to and whether offline."""
