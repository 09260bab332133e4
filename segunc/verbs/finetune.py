"""``segunc finetune``: one entry a method; its code is imported when it is asked for."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from segunc.core.errors import InputError
from segunc.options import FinetuneOptions
from segunc.verbs.train import words


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


@dataclass(frozen=True)
class FinetuneResult:
    """What was made.

    Attributes:
        out: the model folder.
        measured: seconds, steps and selections of a fine-tuning; empty for the other methods.
    """

    out: Path
    measured: Mapping[str, Any]


def finetune(options: FinetuneOptions) -> FinetuneResult:
    """Make a model folder from another one, by the method that is asked for.

    Raises:
        InputError: the base, the configuration and the output folder do not fit together.

    >>> result = finetune(FinetuneOptions(base=base, config=finetune_config, out=folder / "abnn", device="cpu"))
    >>> result.measured["steps"] > 0, segunc.load_model(result.out).posterior.method
    (True, 'abnn')
    """
    from segunc.core.device import resolve_device
    from segunc.core.quiet import quiet_lightning
    from segunc.training.config import parse_finetune_config, parse_fit_config, parse_settings

    device = resolve_device(options.device)
    bases = [Path(base) for base in ([options.base] if isinstance(options.base, str | Path) else options.base)]
    out, overrides = Path(options.out), words(options.settings)
    given = Path(options.config) if options.config else None
    if options.method not in METHODS:
        raise InputError(f"--method {options.method}", f"one of {', '.join(METHODS)}", "check the spelling")
    method, key = METHODS[options.method], section(options.method)
    make = load(method.run)
    if options.data is not None:
        raise InputError("loaders of your own", "a data set in the configuration", "see configs/ for examples")
    if options.method == "ensemble":
        unused = [*([f"--config {options.config}"] if options.config else []), *overrides]
        if unused:
            raise InputError(f"--method ensemble with {' '.join(unused)}", "--base and --out", "it has no settings")
        make(bases, out)
        return FinetuneResult(out, {})
    if len(bases) > 1:
        raise InputError(
            f"--method {options.method} with {len(bases)} folders at --base", "one", "only ensemble takes more"
        )
    settings = load(method.options)
    if not method.data:
        make(bases[0], parse_settings(given, overrides, key, settings), out)
        return FinetuneResult(out, {})
    if given is None:
        raise InputError(f"--method {options.method} without --config", "a YAML file", "see configs/ for examples")
    if method.finished:
        make(bases[0], parse_fit_config(given, overrides, key, settings), out, device=device)
        return FinetuneResult(out, {})
    quiet_lightning()
    config = parse_finetune_config(given, overrides, key, settings)
    # Lightning, not the caller, places a fine-tuning on its devices.
    return FinetuneResult(out, make(bases[0], config, out, device=options.device))
