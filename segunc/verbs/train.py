"""``segunc train``."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from segunc.options import Settings, TrainOptions


@dataclass(frozen=True)
class TrainedNetwork:
    """One network. ``measured``: epochs, steps, seconds and val_miou (None where it was not measured); 0 epochs where weights
    were taken over."""

    path: Path  # its model folder
    measured: Mapping[str, Any]


@dataclass(frozen=True)
class TrainResult:
    """What was trained."""

    out: Path  # the model folder, or the folder of one for each seed
    networks: tuple[TrainedNetwork, ...]  # those that were trained now


def train(options: TrainOptions, on_network: Callable[[TrainedNetwork], None] | None = None) -> TrainResult:
    """Train the network of a configuration, once or for several seeds, and write its model folder.

    ``on_network`` hears of each network as it is finished.

    Raises:
        InputError: the configuration, the data and the output folder do not fit together.

    >>> result = train(TrainOptions(train_config, folder / "base", device="cpu", settings={"trainer.max_epochs": 1}))
    >>> result.networks[0].measured["epochs"]
    1
    """
    from segunc.core.device import resolve_device
    from segunc.core.progress import quiet_lightning
    from segunc.posteriors.ensemble import train_members
    from segunc.training.base import train_network
    from segunc.training.config import TrainConfig, parse_config

    quiet_lightning()
    out = Path(options.out)
    resolve_device(options.device)
    config = parse_config(TrainConfig, Path(options.config), words(options.settings))
    networks = []
    trained = (
        [(out, train_network(config, out, device=options.device)[1])]
        if options.seeds is None
        else train_members(config, options.seeds, out, device=options.device)
    )
    for folder, measured in trained:
        networks.append(TrainedNetwork(folder, measured))
        if on_network is not None:
            on_network(networks[-1])
    return TrainResult(out, tuple(networks))


def words(settings: Settings) -> list[str]:
    """Settings as a configuration's parser takes them: ``--key.subkey=VALUE``."""
    if not isinstance(settings, Mapping):
        return list(settings)
    return [f"--{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in settings.items()]
