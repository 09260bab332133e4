"""What the fits of all methods share: the model that they begin with, the data, the device, and
what is left as it was.
"""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, cast

import numpy as np
import torch

from segunc.core.device import flushed_denormals, resolve_device
from segunc.core.errors import InputError
from segunc.core.modes import eval_mode
from segunc.posteriors.methods import METHODS
from segunc.posteriors.model import Attachment, Model, configuration_documents
from segunc.training.config import DATA, FinetuneConfig, FitConfig, S, now
from segunc.training.fit_data import DataSource, data_source

Say = Callable[[str], None]  # receives a line for each step of a fit
SEEDS_OF_LIGHTNING = ("PL_GLOBAL_SEED", "PL_SEED_WORKERS")
"""Variables of the environment that ``seed_everything`` of Lightning sets."""


class FitRun(Generic[S]):
    """A fit on a finished model, which stays as it is.

    Args:
        model: that it begins with, on the device of the fit.
        config: the settings, and those of the data set.
        source: of the data.
        say: receives a line for each step.
        quiet: whether no progress is shown.
    """

    def __init__(
        self,
        model: Model,
        config: FitConfig[S] | FinetuneConfig[S],
        source: DataSource,
        *,
        say: Say,
        quiet: bool = False,
    ) -> None:
        self.model = model
        self.config = config
        self.settings = config.settings
        self.source = source
        self.say = say
        self.quiet = quiet

    @property
    def method(self) -> str:
        """Its name."""
        name: str = cast(Any, self.settings).method
        return name

    @cached_property
    def data(self) -> Any:
        """The :class:`segunc.training.fit_data.FitData` that the method looks at.

        Raises:
            InputError: there are none.
        """
        if not self.source:
            needs = getattr(self.settings, "uses_data", {"": f"the method {self.method}"})
            raise InputError(
                f"{' and '.join(needs.values())} needs data",
                hint="give a loader, a data module or the settings of a data set",
            )
        return self.source.open(self.model.network.description.num_classes)

    @property
    def device(self) -> torch.device:
        """Where the network is."""
        return next(self.model.network.parameters()).device

    def fitted_on(self, split: str) -> dict[str, Any]:
        """Return a record of the frames, the date and the version of torch."""
        size = self.config.data.get("size")
        images = getattr(self.settings, "images", None)
        dataset = images or self.config.data.get("dataset")
        return {
            "dataset": dataset or "data of a program",
            "split": split,
            "size": None if size is None else list(size),
            "date": now(),
            "torch": torch.__version__,
        }

    def attach(
        self, attachment: Attachment, summary: str, beside: Mapping[str, bytes] | None = None
    ) -> Model:
        """Return the model with what was fitted on it.

        Args:
            attachment: what was fitted.
            summary: of it, for the user.
            beside: the contents of its further files by name.
        """
        attachment.keep(beside or {})
        documents = configuration_documents(self.config, self.method)
        if self.model.records_data:
            documents.pop(DATA, None)  # that of the training stays
        return self.model.with_attachment(attachment, documents, summary)


def silent(line: str) -> None:
    """Show nothing."""


@flushed_denormals()
def fit_model(
    settings: Any,
    model: Model,
    data: Any = None,
    *,
    device: str = "auto",
    trainer: Mapping[str, Any] | None = None,
    checkpoints: Path | str | None = None,
    say: Say | None = None,
    copies: bool = True,
) -> Model:
    """Return the model that a method makes of another one, see
    :meth:`segunc.posteriors.settings.MethodSettings.fit`.

    Args:
        copies: whether the network that gets a posterior is a copy; without, the model is lost.
    """
    method = METHODS[settings.method]
    _check_model(model)
    resolve_device(device)  # before any work
    source = data_source(
        data, _folder_of_data(settings, model), max_batches=getattr(settings, "max_steps", 0)
    )
    settings = settings.settled(has_data=bool(source))
    quiet = say is None
    if trainer and (method.finished or not getattr(settings, "uses_trainer", True)):
        raise InputError(
            f"the method {method.name} trains nothing with Lightning", hint="leave trainer out"
        )
    with ExitStack() as stack:
        stack.enter_context(kept_random_state())
        if method.finished:
            stack.enter_context(placed(model, resolve_device(device)))
            stack.enter_context(eval_mode(model.networks))
            config = FitConfig(settings, source.settings)
            run = FitRun(model, config, source, say=say or silent, quiet=quiet)
            fitted: Model = method.fit(run)
            return fitted
        from segunc.core.progress import quiet_lightning
        from segunc.posteriors.finetune_run import FinetuneRun, Place
        from segunc.training.lightning_runs import no_half_folder

        quiet_lightning()
        out = Path(checkpoints or stack.enter_context(tempfile.TemporaryDirectory()))
        stack.enter_context(no_half_folder(out))
        finetune_run = FinetuneRun(
            model,
            FinetuneConfig(settings, source.settings, trainer or {}),
            source,
            place=Place(out, device, copies=copies, stays=checkpoints is not None),
            say=say or silent,
            quiet=quiet,
        )
        finetuned: Model = method.fit(finetune_run)
        return finetuned


def fit_several(settings: Any, models: Sequence[Model]) -> Model:
    """Return the model that a method makes of several."""
    for model in models:
        _check_model(model)
    made: Model = METHODS[settings.method].fit(settings, models)
    return made


def _check_model(model: Any) -> None:
    """Raise InputError for what is not a model."""
    if not isinstance(model, Model):
        raise InputError(
            f"the model is of type {type(model).__name__}, not a segunc.Model",
            hint="segunc.wrap(module, classes=[...]) makes one of a torch module",
        )


def _folder_of_data(settings: Any, model: Model) -> Path | None:
    """Return the folder whose record says which data the model was made with, where the method
    looks at some.
    """
    if not getattr(settings, "uses_data", True) or getattr(settings, "images", None):
        return None
    if not METHODS[settings.method].data:
        return None
    return model.folder


@contextmanager
def placed(model: Model, device: torch.device) -> Iterator[None]:
    """Put the networks of a model on a device while open."""
    before = [next(network.parameters()).device for network in model.networks]
    model.place(device)
    try:
        yield
    finally:
        for network, home in zip(model.networks, before, strict=True):
            network.to(home)


@contextmanager
def kept_random_state() -> Iterator[None]:
    """Give the global random numbers of Python, NumPy and torch back as they were."""
    of_python = random.getstate()
    of_numpy = np.random.get_state()  # noqa: NPY002  the global one, which Lightning seeds
    of_lightning = {name: os.environ.get(name) for name in SEEDS_OF_LIGHTNING}
    with_cuda = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    devices = range(torch.cuda.device_count()) if with_cuda else ()
    try:
        with torch.random.fork_rng(devices=list(devices)):
            yield
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)  # noqa: NPY002
        for name, value in of_lightning.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
