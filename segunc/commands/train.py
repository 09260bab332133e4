"""``segunc train``."""

from __future__ import annotations

import argparse
from pathlib import Path


def run(arguments: argparse.Namespace) -> None:
    """Train the network of a configuration and write its model folder."""
    from segunc.commands.device import resolve_device
    from segunc.commands.quiet import quiet_lightning
    from segunc.training.base import train_network
    from segunc.training.config import parse_train_config
    from segunc.training.progress import is_first_process

    quiet_lightning()
    out = Path(arguments.out)
    resolve_device(arguments.device)
    config = parse_train_config(Path(arguments.config), arguments.overrides)
    _, measured = train_network(config, out, device=arguments.device)
    if not is_first_process():
        return
    if measured["epochs"] == 0:
        print(f"took over the weights into {out}")
    else:
        miou = "not measured" if measured["val_miou"] is None else f"{measured['val_miou']:.4f}"
        print(
            f"trained {measured['epochs']} epochs ({measured['steps']} steps) in {measured['seconds']:.0f} s: validation mIoU {miou}; wrote {out}"
        )
