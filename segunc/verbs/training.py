"""``segunc train`` and ``segunc finetune``, of which each method is an entry of :data:`segunc.posteriors.methods.METHODS`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from segunc.core.errors import InputError
from segunc.options import FinetuneOptions, TrainingOptions, TrainOptions, several, takes
from segunc.posteriors.methods import METHODS


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


@takes(TrainOptions)
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
    from segunc.training.loggers import check_classes

    quiet_lightning()
    out = Path(options.out)
    resolve_device(options.device)
    config = parse_config(TrainConfig, Path(options.config), _words(options))
    if options.trust:
        check_classes(config.trainer, out, trust=True)
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


@dataclass(frozen=True)
class FinetuneResult:
    """What was made."""

    out: Path  # the model folder
    measured: Mapping[str, Any]  # seconds, steps and selections of a fine-tuning; empty for the other methods


@takes(FinetuneOptions)
def finetune(options: FinetuneOptions, say: Callable[[str], None] | None = None) -> FinetuneResult:
    """Make a model folder from another one, by the method that is asked for.

    ``say`` receives a line for each step.

    Raises:
        InputError: the base, the configuration and the output folder do not fit together.

    >>> result = finetune(FinetuneOptions(base=base, config=finetune_config, out=folder / "abnn", device="cpu"))
    >>> result.measured["steps"] > 0, segunc.load_model(result.out).posterior.method
    (True, 'abnn')
    """
    from segunc.core.device import resolve_device
    from segunc.core.progress import quiet_lightning
    from segunc.training.config import FinetuneConfig, FitConfig, parse_config
    from segunc.training.loggers import check_classes

    say = say or (lambda line: None)
    resolve_device(options.device)  # before any work
    method, out, overrides = METHODS[options.method], Path(options.out), _words(options)
    bases = [Path(base) for base in several(options.base)]
    given, own, asked = Path(options.config) if options.config else None, options.data, f"--method {method.name}"
    if method.several:
        unused = [*([f"--config {options.config}"] if options.config else []), *overrides]
        if unused:
            raise InputError(f"{asked} with {' '.join(unused)}", "--base and --out", "it has no settings")
        method.fit(bases, out, say=say)
        return FinetuneResult(out, {})
    if len(bases) > 1:
        raise InputError(f"{asked} with {len(bases)} folders at --base", "one", "only ensemble takes more")
    if method.finished and own is not None:
        raise InputError(f"method {method.name} with loaders of your own", "a data set", "leave data out")
    if given is None and own is None and not overrides and (method.data or not method.finished):
        without = getattr(method.config, "without_data", "see configs/ for examples")
        raise InputError(f"{asked} without --config", "a YAML file, or its keys as --key VALUE", without)
    if method.finished:
        fitted = parse_config(FitConfig, given, overrides, method.config, data=method.data)
        method.fit(bases[0], fitted, out, device=options.device, say=say)
        return FinetuneResult(out, {})
    quiet_lightning()
    config = parse_config(FinetuneConfig, given, overrides, method.config, data=True if own is None else own)
    if options.trust:
        check_classes(config.trainer, out, trust=True)
    # Lightning, not the caller, places a fine-tuning on its devices.
    return FinetuneResult(out, method.fit(bases[0], config, out, device=options.device, say=say))


def keys_help(method: str | None) -> str:
    """The keys of a configuration for ``--help``: of a method, or None for those of ``train``."""
    from segunc.training.config import FinetuneConfig, FitConfig, TrainConfig, configuration_help

    if method is None:
        return configuration_help(TrainConfig, None, data=True)
    entry = METHODS[method]
    if entry.config is None:
        return f"method {method} has no configuration"
    others = f"keys of another method: segunc finetune --method {'|'.join(name for name in METHODS if name != method)} --help"
    kind = FitConfig if entry.finished else FinetuneConfig
    data = entry.data or not entry.finished
    return f"{configuration_help(kind, entry.config, data=data)}\n\n{others}"


def _words(options: TrainingOptions) -> list[str]:
    """Settings as a configuration's parser takes them: ``--key.subkey=VALUE``."""
    given = options.settings
    if isinstance(given, Mapping):
        given = [f"--{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in given.items()]
    further = {"data.labels": options.label_map, "trainer.logger": options.logger}
    return [*(f"--{key}={value}" for key, value in further.items() if value), *given]
