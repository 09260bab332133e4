"""``segunc train``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def run(arguments: argparse.Namespace) -> None:
    """Train the network of a configuration, once or for several seeds, and write its model folder."""
    from segunc.core.device import resolve_device
    from segunc.core.quiet import quiet_lightning
    from segunc.posteriors.ensemble import train_members
    from segunc.training.base import train_network
    from segunc.training.config import TrainConfig, parse_config
    from segunc.training.progress import is_first_process

    quiet_lightning()
    out = Path(arguments.out)
    resolve_device(arguments.device)
    config = parse_config(TrainConfig, Path(arguments.config), arguments.overrides)
    if arguments.seeds is None:
        _report(out, train_network(config, out, device=arguments.device)[1])
        return
    for folder, measured in train_members(config, arguments.seeds, out, device=arguments.device):
        _report(folder, measured)
    if is_first_process():
        print(f"{len(arguments.seeds)} networks in {out}; as one model: segunc finetune --method ensemble --base {out}")


def _report(out: Path, measured: dict[str, Any]) -> None:
    from segunc.training.progress import is_first_process

    if not is_first_process():
        return
    if measured["epochs"] == 0:
        print(f"took over the weights into {out}")
    else:
        miou = "not measured" if measured["val_miou"] is None else f"{measured['val_miou']:.4f}"
        print(
            f"trained {measured['epochs']} epochs ({measured['steps']} steps) in {measured['seconds']:.0f} s: validation mIoU {miou}; wrote {out}"
        )
