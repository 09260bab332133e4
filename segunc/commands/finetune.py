"""``segunc finetune``."""

from __future__ import annotations

import argparse
from pathlib import Path


def run(arguments: argparse.Namespace) -> None:
    """Turn a base network into a Bayesian one and write its model folder."""
    from segunc.commands.quiet import quiet_lightning
    from segunc.training.config import parse_finetune_config, save_config
    from segunc.training.finetune import finetune_abnn

    quiet_lightning()
    out = Path(arguments.out)
    config = parse_finetune_config(Path(arguments.config), arguments.overrides)
    save_config(config, out, "finetune")
    measured = finetune_abnn(Path(arguments.base), config, out, device=arguments.device)
    print(
        f"fine-tuning took {measured['seconds']:.0f} s, of which the selection of alpha {measured['alpha_seconds']:.0f} s"
    )
