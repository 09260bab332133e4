"""Where numbers of a run are written beside its folder, and the callbacks of Lightning that a configuration names."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from lightning.pytorch import callbacks
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import CSVLogger, Logger, MLFlowLogger, TensorBoardLogger, WandbLogger

from segunc.core.errors import InputError, one_line
from segunc.training.progress import is_first_process

CALLBACKS = (
    *("DeviceStatsMonitor", "EMAWeightAveraging", "EarlyStopping", "GradientAccumulationScheduler"),
    *("StochasticWeightAveraging", "Timer"),
)
"""Of Lightning, that a configuration may name: they call no function that it names, and write no file."""
HINT = "others are arguments of a lightning.Trainer in a script of your own"


def run_loggers(out: Path, wanted: Any = True) -> list[Logger]:
    """Return the loggers of a run: a CSV log always, whose file gets a number when the run is continued, TensorBoard where it is
    installed, and those of ``trainer.logger``: False for none at all, a name of :data:`NAMED`, a logger, or several."""
    if wanted is False:
        return []
    log = out / "logs" / "metrics.csv"
    if is_first_process() and log.exists():  # Lightning would delete it
        number = 1 + len(list(log.parent.glob("metrics-*.csv")))
        log.rename(log.with_name(f"metrics-{number}.csv"))
    loggers: list[Logger] = [CSVLogger(out, name="logs", version="")]
    with suppress(ModuleNotFoundError):
        loggers.append(NAMED["tensorboard"](out))
    named = [item for item in several(wanted) if item != "tensorboard"]
    return [*loggers, *(item if isinstance(item, Logger) else named_logger(item, out) for item in named)]


def several(wanted: Any) -> list[Any]:
    """Return the loggers or callbacks of a setting, which may be one, a list of them, or none."""
    if isinstance(wanted, list | tuple):
        return list(wanted)
    return [] if wanted is None or isinstance(wanted, bool) else [wanted]


def check_no_service(trainer: Any) -> None:
    """Raise InputError where the ``trainer`` of a file names a logger that opens connections: a stranger may have written the file."""
    for name in several(trainer.get("logger")) if isinstance(trainer, Mapping) else ():
        if name != "tensorboard" and isinstance(name, str) and name in NAMED:
            raise InputError(
                f"the file sends numbers to {name}", hint=f"choose a service as you start: --trainer.logger {name}"
            )


def named_logger(name: str, out: Path) -> Logger:
    """Return the logger of a name in :data:`NAMED`; InputError where its package is not installed."""
    try:
        return NAMED[name](out)
    except ModuleNotFoundError as error:
        raise InputError(f"logger {name} cannot be imported ({error})", hint=f"pip install {name}") from error


def check_plugins(trainer: Mapping[str, Any]) -> None:
    """Raise InputError where the settings of a Trainer name other loggers than :data:`NAMED` or other callbacks than :data:`CALLBACKS`:
    whatever else a file names would be code that its author chose. Nothing is imported."""
    for item in several(trainer.get("logger")):
        if not isinstance(item, Logger) and not (isinstance(item, str) and item in NAMED):
            raise InputError(f"trainer.logger {item!r} is none of {', '.join(NAMED)}", hint=HINT)
    for item in several(trainer.get("callbacks")):
        if not isinstance(item, Callback):
            _named_callback(item)


def _named_callback(wanted: Any) -> tuple[str, Mapping[str, Any]]:
    """Return the name and the arguments of a callback that is written ``{class_path: ..., init_args: {...}}``, or by its name alone."""
    named = wanted if isinstance(wanted, Mapping) else {"class_path": wanted}
    name, arguments = str(named.get("class_path")), named.get("init_args") or {}
    name = name.removeprefix("lightning.pytorch.callbacks.")
    if name not in CALLBACKS or not isinstance(arguments, Mapping):
        message = f"{wanted!r} in trainer.callbacks is no class_path with init_args of one of {', '.join(CALLBACKS)}"
        raise InputError(message, hint=HINT)
    return name, arguments


def make_callback(wanted: Any) -> Callback:
    """Return the callback that a configuration names, or the object itself.

    Raises:
        InputError: none of :data:`CALLBACKS`, or arguments that it does not take.
    """
    if isinstance(wanted, Callback):
        return wanted
    name, arguments = _named_callback(wanted)
    try:
        made: Callback = getattr(callbacks, name)(**arguments)
    except Exception as error:  # whatever its constructor raises
        raise InputError(f"{name} in trainer.callbacks cannot be made ({one_line(error)})") from error
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
"""What ``--trainer.logger`` can name; the services' own environment variables say where to and whether offline."""
