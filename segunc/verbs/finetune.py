"""``segunc finetune``: one entry a method; its code is imported when it is asked for."""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path
from typing import Any, NamedTuple

from segunc.core.errors import InputError


class Method(NamedTuple):
    """Where a method's code lies, as ``module:name``.

    Attributes:
        run: ``(base, config, out, *, device) -> what was measured``.
        options: the dataclass of its section in a configuration.
        key: of that section; empty for the method's own name.
        finished: whether it is made of a finished model of any kind; the others make one from a deterministic base.
        data: whether it looks at data; without, a configuration need not be given.
    """

    run: str
    options: str
    key: str = ""
    finished: bool = False
    data: bool = True


METHODS = {
    "abnn": Method("segunc.training.finetune_abnn:finetune_abnn", "segunc.training.config:AbnnConfig"),
    "deterministic": Method(
        "segunc.training.finetune_point:finetune_deterministic", "segunc.training.finetune_point:DeterministicConfig"
    ),
    "ensemble": Method("segunc.training.make_mixture:make_ensemble", "", finished=True, data=False),
    "hmc": Method("segunc.training.finetune_chain:finetune_hmc", "segunc.training.finetune_chain:HmcConfig"),
    "laplace": Method(
        "segunc.training.finetune_laplace:finetune_laplace", "segunc.training.finetune_laplace:LaplaceConfig"
    ),
    "mc-dropout": Method(
        "segunc.training.finetune_mc_dropout:finetune_mc_dropout", "segunc.training.finetune_mc_dropout:McDropoutConfig"
    ),
    "sghmc": Method("segunc.training.finetune_chain:finetune_sghmc", "segunc.training.finetune_chain:SghmcConfig"),
    "sgld": Method("segunc.training.finetune_chain:finetune_sgld", "segunc.training.finetune_chain:SgldConfig"),
    "swag": Method("segunc.training.finetune_swag:finetune_swag", "segunc.training.finetune_swag:SwagConfig"),
    "tta": Method(
        "segunc.training.make_mixture:augment_model",
        "segunc.training.make_mixture:TtaConfig",
        finished=True,
        data=False,
    ),
    "variational": Method(
        "segunc.training.finetune_variational:finetune_variational",
        "segunc.training.finetune_variational:VariationalConfig",
    ),
    "temperature": Method(
        "segunc.training.fit_temperature:scale_temperature",
        "segunc.training.fit_temperature:TemperatureConfig",
        finished=True,
    ),
    "standardized-max-logit": Method(
        "segunc.training.fit_max_logit:standardize_max_logit",
        "segunc.training.fit_max_logit:MaxLogitConfig",
        key="max_logit",
        finished=True,
    ),
}
"""What ``--method`` can name."""


def section(method: str) -> str:
    """The key of a method's settings in a configuration."""
    return METHODS[method].key or method.replace("-", "_")


def load(place: str) -> Any:
    """What stands at ``module:name``."""
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)


def run(arguments: argparse.Namespace) -> None:
    """Make a model folder from another one, by the method that was asked for."""
    from segunc.core.device import resolve_device
    from segunc.training.config import parse_fit_config, parse_settings

    device = resolve_device(arguments.device)
    method = METHODS[arguments.method]
    if arguments.method == "ensemble":
        _ensemble(arguments)
        return
    if len(arguments.base) > 1:
        raise InputError(
            f"--method {arguments.method} with {len(arguments.base)} folders at --base",
            "one",
            "only ensemble takes more",
        )
    arguments.base = arguments.base[0]
    if not method.data:
        given = Path(arguments.config) if arguments.config else None
        settings = parse_settings(given, arguments.overrides, section(arguments.method), load(method.options))
        load(method.run)(Path(arguments.base), settings, Path(arguments.out))
        return
    if arguments.config is None:
        raise InputError(f"--method {arguments.method} without --config", "a YAML file", "see configs/ for examples")
    if not method.finished:
        _finetune(arguments)
        return
    options = load(method.options)
    config = parse_fit_config(Path(arguments.config), arguments.overrides, section(arguments.method), options)
    load(method.run)(Path(arguments.base), config, Path(arguments.out), device=device)


def _ensemble(arguments: argparse.Namespace) -> None:
    unused = [*([f"--config {arguments.config}"] if arguments.config else []), *arguments.overrides]
    if unused:
        raise InputError(f"--method ensemble with {' '.join(unused)}", "--base and --out", "it has no settings")
    load(METHODS["ensemble"].run)([Path(base) for base in arguments.base], Path(arguments.out))


def _finetune(arguments: argparse.Namespace) -> None:
    from segunc.core.quiet import quiet_lightning
    from segunc.training.config import parse_finetune_config
    from segunc.training.progress import is_first_process

    quiet_lightning()
    method = METHODS[arguments.method]
    options = load(method.options)
    config = parse_finetune_config(Path(arguments.config), arguments.overrides, section(arguments.method), options)
    # Lightning, not the caller, places a fine-tuning on its devices.
    measured = load(method.run)(Path(arguments.base), config, Path(arguments.out), device=arguments.device)
    if not is_first_process():
        return
    selected = [key.removesuffix("_nll") for key in measured if key.endswith("_nll")]
    parts = [f", of which the selection of {name} {measured[f'{name}_seconds']:.0f} s" for name in selected]
    print(f"fine-tuning took {measured['seconds']:.0f} s{''.join(parts)}")
