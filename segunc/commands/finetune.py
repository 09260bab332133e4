"""``segunc finetune``."""

from __future__ import annotations

import argparse
from pathlib import Path


def run(arguments: argparse.Namespace) -> None:
    """Turn a base network into a Bayesian one and write its model folder."""
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
