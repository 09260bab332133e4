"""``segunc finetune``: one entry of :data:`segunc.posteriors.methods.METHODS` a method."""

from __future__ import annotations

import argparse
from pathlib import Path

from segunc.core.errors import InputError
from segunc.posteriors.methods import METHODS


def run(arguments: argparse.Namespace) -> None:
    """Make a model folder from another one, by the method that was asked for."""
    from segunc.core.device import resolve_device
    from segunc.core.quiet import quiet_lightning
    from segunc.training.config import FinetuneConfig, FitConfig, parse_config
    from segunc.training.progress import is_first_process

    resolve_device(arguments.device)  # before any work
    method = METHODS[arguments.method]
    out = Path(arguments.out)
    if method.several:
        unused = [*([f"--config {arguments.config}"] if arguments.config else []), *arguments.overrides]
        if unused:
            raise InputError(
                f"--method {method.name} with {' '.join(unused)}", "--base and --out", "it has no settings"
            )
        method.fit([Path(base) for base in arguments.base], out)
        return
    if len(arguments.base) > 1:
        raise InputError(
            f"--method {method.name} with {len(arguments.base)} folders at --base",
            "one",
            "only ensemble takes more",
        )
    if method.data and arguments.config is None:
        raise InputError(f"--method {method.name} without --config", "a YAML file", "see configs/ for examples")
    base, given = Path(arguments.base[0]), Path(arguments.config) if arguments.config else None
    if method.finished:
        fitted = parse_config(FitConfig, given, arguments.overrides, method.config, data=method.data)
        method.fit(base, fitted, out, device=arguments.device)
        return
    quiet_lightning()
    config = parse_config(FinetuneConfig, given, arguments.overrides, method.config)
    # Lightning, not the caller, places a fine-tuning on its devices.
    measured = method.fit(base, config, out, device=arguments.device)
    if not is_first_process():
        return
    selected = [key.removesuffix("_nll") for key in measured if key.endswith("_nll")]
    parts = [f", of which the selection of {name} {measured[f'{name}_seconds']:.0f} s" for name in selected]
    print(f"fine-tuning took {measured['seconds']:.0f} s{''.join(parts)}")
