"""``segunc finetune``."""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path
from typing import Any, NamedTuple


class Method(NamedTuple):
    """Where a method's code lies, as ``module:name``; imported when it is asked for.

    Attributes:
        run: ``(base, config, out, *, device) -> what was measured``.
        options: the dataclass of its section in a configuration.
    """

    run: str
    options: str


METHODS = {
    "abnn": Method("segunc.training.finetune:finetune_abnn", "segunc.training.config:AbnnConfig"),
    "laplace": Method("segunc.training.laplace:finetune_laplace", "segunc.training.laplace:LaplaceConfig"),
    "mc-dropout": Method(
        "segunc.training.mc_dropout:finetune_mc_dropout", "segunc.training.mc_dropout:McDropoutConfig"
    ),
    "swag": Method("segunc.training.swag:finetune_swag", "segunc.training.swag:SwagConfig"),
    "variational": Method(
        "segunc.training.variational:finetune_variational", "segunc.training.variational:VariationalConfig"
    ),
}


def section(method: str) -> str:
    """The key of a method's settings in a configuration."""
    return method.replace("-", "_")


def load(place: str) -> Any:
    """What stands at ``module:name``."""
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)


def run(arguments: argparse.Namespace) -> None:
    """Turn a base network into a Bayesian one and write its model folder."""
    from segunc.commands.device import resolve_device
    from segunc.commands.quiet import quiet_lightning
    from segunc.training.config import parse_finetune_config
    from segunc.training.progress import is_first_process

    quiet_lightning()
    out = Path(arguments.out)
    resolve_device(arguments.device)
    method = METHODS[arguments.method]
    config = parse_finetune_config(
        Path(arguments.config), arguments.overrides, section(arguments.method), load(method.options)
    )
    measured = load(method.run)(Path(arguments.base), config, out, device=arguments.device)
    if not is_first_process():
        return
    selected = [key.removesuffix("_nll") for key in measured if key.endswith("_nll")]
    parts = [f", of which the selection of {name} {measured[f'{name}_seconds']:.0f} s" for name in selected]
    print(f"fine-tuning took {measured['seconds']:.0f} s{''.join(parts)}")
