"""Fits of all methods on models in memory: the data, the device, and what is left as it was."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch

from segunc.core.device import flushed_denormals, resolve_device
from segunc.core.errors import InputError
from segunc.core.modes import eval_mode
from segunc.core.preserving import (
    kept_random_numbers,
    plain_computation,
    restore_of_members,
)
from segunc.posteriors.fit_run import FitRun, Say, silent
from segunc.posteriors.methods import METHODS
from segunc.posteriors.model import Model
from segunc.training.config import FinetuneConfig, FitConfig, images_of
from segunc.training.fit_data import data_source

SEEDS_OF_LIGHTNING = ("PL_GLOBAL_SEED", "PL_SEED_WORKERS")
"""Variables of the environment that ``seed_everything`` of Lightning sets."""


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
    model = model.with_present_weights()
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
        stack.enter_context(plain_computation())
        stack.enter_context(kept_random_numbers())
        stack.enter_context(kept_seeds())
        if method.finished:
            stack.enter_context(placed(model, resolve_device(device)))
            stack.enter_context(eval_mode(model.networks))
            config = FitConfig(settings, source.settings)
            run = FitRun(model, config, source, say=say or silent, quiet=quiet)
            fitted: Model = method.fit(run)
            return fitted
        from segunc.core.progress import quiet_while_open
        from segunc.posteriors.finetune_run import FinetuneRun, Place
        from segunc.training.lightning_runs import no_half_folder, sole_run

        stack.enter_context(quiet_while_open())
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
        stack.enter_context(sole_run(out))
        finetune_run.claim_folder()
        finetuned: Model = method.fit(finetune_run)
        return finetuned


def fit_several(settings: Any, models: Sequence[Model]) -> Model:
    """Return the model that a method makes of several."""
    present = []
    for model in models:
        _check_model(model)
        present.append(model.with_present_weights())
    made: Model = METHODS[settings.method].fit(settings, present)
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
    if not getattr(settings, "uses_data", True) or images_of(settings):
        return None
    if not METHODS[settings.method].data:
        return None
    return model.folder


@contextmanager
def placed(model: Model, device: torch.device) -> Iterator[None]:
    """Put the networks of a model on a device while open. Then each tensor is where it was, in the
    same memory and with its gradient.
    """
    kept = []
    restores = []
    for network in model.networks:
        # A network that moves gets other buffers.
        restores += [restore_of_members(module) for module in network.modules()]
        for tensor in (*network.parameters(), *network.buffers()):
            kept.append((tensor, tensor.data, tensor.grad))
            tensor.grad = None
    try:
        model.place(device)
        yield
    finally:
        for restore in restores:
            restore()
        for tensor, memory, gradient in kept:
            tensor.data = memory
            tensor.grad = gradient


@contextmanager
def kept_seeds() -> Iterator[None]:
    """Give the seeds that Lightning sets in the environment back as they were."""
    before = {name: os.environ.get(name) for name in SEEDS_OF_LIGHTNING}
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
