"""``segunc finetune``: one function a method; each imports what it needs when it runs."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path


def run(arguments: argparse.Namespace) -> None:
    """Make a model folder from another one, by the method that was asked for."""
    METHODS[arguments.method](arguments)


def _abnn(arguments: argparse.Namespace) -> None:
    from segunc.commands.device import resolve_device
    from segunc.commands.quiet import quiet_lightning
    from segunc.training.config import parse_finetune_config
    from segunc.training.finetune import finetune_abnn
    from segunc.training.progress import is_first_process

    quiet_lightning()
    out = Path(arguments.out)
    resolve_device(arguments.device)
    config = parse_finetune_config(Path(arguments.config), arguments.overrides)
    measured = finetune_abnn(Path(arguments.base), config, out, device=arguments.device)
    if not is_first_process():
        return
    print(
        f"fine-tuning took {measured['seconds']:.0f} s, of which the selection of alpha {measured['alpha_seconds']:.0f} s"
    )


def _temperature(arguments: argparse.Namespace) -> None:
    from segunc.commands.device import resolve_device
    from segunc.training.config import parse_fit_config
    from segunc.training.temperature import TemperatureConfig, scale_temperature

    device = resolve_device(arguments.device)
    config = parse_fit_config(Path(arguments.config), arguments.overrides, "temperature", TemperatureConfig)
    scale_temperature(Path(arguments.base), config, Path(arguments.out), device=device)


def _standardized_max_logit(arguments: argparse.Namespace) -> None:
    from segunc.commands.device import resolve_device
    from segunc.training.config import parse_fit_config
    from segunc.training.max_logit import MaxLogitConfig, standardize_max_logit

    device = resolve_device(arguments.device)
    config = parse_fit_config(Path(arguments.config), arguments.overrides, "max_logit", MaxLogitConfig)
    standardize_max_logit(Path(arguments.base), config, Path(arguments.out), device=device)


METHODS: dict[str, Callable[[argparse.Namespace], None]] = {
    "abnn": _abnn,
    "temperature": _temperature,
    "standardized-max-logit": _standardized_max_logit,
}
"""What ``--method`` can name."""
