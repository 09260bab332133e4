"""Where numbers of a run are written beside its folder, and the callbacks and loggers that a configuration names."""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any, TypeVar

from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import CSVLogger, Logger, MLFlowLogger, TensorBoardLogger, WandbLogger
from torch.utils._pytree import tree_leaves

from segunc.core.errors import InputError, one_line
from segunc.core.trust import Code, agree, check_agreed, find_code, imported
from segunc.training.progress import is_first_process

T = TypeVar("T", Callback, Logger)

CALLBACKS = (
    *("DeviceStatsMonitor", "EMAWeightAveraging", "EarlyStopping", "GradientAccumulationScheduler"),
    *("LearningRateMonitor", "ModelCheckpoint", "ModelPruning", "ModelSummary", "OnExceptionCheckpoint"),
    *("RichModelSummary", "RichProgressBar", "StochasticWeightAveraging", "TQDMProgressBar", "Timer"),
)
"""Of Lightning, that a configuration may name: they call no function that it names and write into no folder but one that it names."""
LOGGERS = ("CSVLogger", "TensorBoardLogger")
"""Likewise; those of a service would send numbers to wherever a configuration says."""
FOLDERS = ("dirpath", "save_dir")
"""Arguments of both that are folders."""
_LEADS_AWAY = re.compile(r"(^|/)\.\.(/|$)|\$|://|::|\\|\0")
"""What a path may not hold: Lightning writes variables out, and takes addresses of other file systems."""


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
    with suppress(ModuleNotFoundError):
        loggers.append(NAMED["tensorboard"](out))
    return [*loggers, *(named_logger(item, out) for item in several(wanted) if item != "tensorboard")]


def several(wanted: Any) -> list[Any]:
    """The loggers or callbacks of a setting, which may be one, a list of them, or none."""
    if isinstance(wanted, list | tuple):
        return list(wanted)
    return [] if wanted is None or isinstance(wanted, bool) else [wanted]


def services(wanted: Any) -> list[str]:
    """The loggers of a setting that open connections, by their names in :data:`NAMED`."""
    return [item for item in several(wanted) if isinstance(item, str) and item in NAMED and item != "tensorboard"]


def named_logger(wanted: Any, out: Path) -> Logger:
    """A logger by its name in :data:`NAMED`, or as :func:`instance` makes it.

    Raises:
        InputError: its package is not installed, or the class does not take the arguments.
    """
    if not isinstance(wanted, str) or wanted not in NAMED:
        return instance(wanted, Logger, out)  # type: ignore[type-abstract]
    try:
        return NAMED[wanted](out)
    except ModuleNotFoundError as error:
        raise InputError(f"logger {wanted} ({error})", "its package", f"pip install {wanted}") from error


def resolve(wanted: Any, kind: type[Callback | Logger], out: Path) -> tuple[str, dict[str, Any], Code | None]:
    """Return the class that a configuration of Lightning names, ``{class_path: ..., init_args: {...}}`` or the path alone; nothing runs.

    Returns:
        its path; its arguments, of Lightning's classes with folders in that of the run; and the code that the user has to agree to.

    Raises:
        InputError: no such class, or an argument that leads out of the folder of the run.
    """
    home, names = ("callbacks", CALLBACKS) if issubclass(kind, Callback) else ("loggers", LOGGERS)
    home, what = f"lightning.pytorch.{home}", "in the configuration's trainer"
    named = wanted if isinstance(wanted, Mapping) else {"class_path": wanted}
    path, arguments = named.get("class_path"), named.get("init_args") or {}
    if not isinstance(path, str) or not isinstance(arguments, Mapping):
        raise InputError(f"{wanted!r} {what}", "class_path and init_args", f"e.g. class_path: {names[0]}")
    module, _, name = (path if "." in path else f"{home}.{path}").rpartition(".")
    lightning = f"{module}.".startswith(f"{home}.")
    if name not in names or not lightning:
        expected = f"one of {', '.join(names)}, or the path of a class of your own"
        if lightning and not hasattr(importlib.import_module(home), name):
            raise InputError(f"{path} {what}", expected)
        try:
            return path, dict(arguments), find_code(f"{module}:{name}")
        except InputError as error:
            raise InputError(f"{path} {what} ({error.given})", expected) from error
    root = os.path.realpath(out)
    for text in (leaf for leaf in tree_leaves(arguments) if isinstance(leaf, str)):
        if _LEADS_AWAY.search(text) or not Path(os.path.realpath(os.path.join(root, text))).is_relative_to(root):
            given = f"{path} {what} with {text!r}, which leads out of {out}"
            raise InputError(given, "a place in the folder of the run", "name a relative one, or leave it out")
    inside = {key: os.path.join(root, arguments[key]) for key in FOLDERS if isinstance(arguments.get(key), str)}
    return f"{home}.{name}", {**arguments, **inside}, None


def check_classes(trainer: Mapping[str, Any], out: Path, *, trust: bool = False) -> None:
    """Raise InputError where the settings of a Trainer name callbacks or loggers that :func:`resolve` refuses, or code that the user did not
    agree to; with ``trust`` they agree now."""
    for setting, kind in (("callbacks", Callback), ("logger", Logger)):
        for item in several(trainer.get(setting)):
            named = isinstance(item, kind) or (isinstance(item, str) and kind is Logger and item in NAMED)
            code = None if named else resolve(item, kind, out)[2]
            if code is not None and trust:
                agree(code)
            elif code is not None:
                check_agreed(code, "--trust")


def instance(wanted: Any, kind: type[T], out: Path) -> T:
    """Make what :func:`resolve` returns; an object is returned as it is.

    Raises:
        InputError: as :func:`check_classes`, an object of another kind, or arguments that the class does not take.
    """
    if isinstance(wanted, kind):
        return wanted
    path, arguments, code = resolve(wanted, kind, out)
    if code is not None:
        check_agreed(code, "--trust")
    module, _, name = path.rpartition(".")
    try:
        with imported(code) if code else nullcontext(getattr(importlib.import_module(module), name)) as make:
            made = make(**arguments)
    except Exception as error:  # whatever its module or its constructor raises
        given = f"{path} in the configuration's trainer ({one_line(error)})"
        raise InputError(given, "a class and the arguments that it takes") from error
    if not isinstance(made, kind):
        expected = f"a {kind.__name__} of Lightning"
        raise InputError(f"{path} in the configuration's trainer", expected, "check class_path")
    return made


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
