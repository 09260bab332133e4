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
    from segunc.posteriors.mixtures import train_members
    from segunc.training.base import train_network
    from segunc.training.config import TrainConfig, parse_config

    quiet_lightning()
    out = Path(options.out)
    resolve_device(options.device)
    config = parse_config(TrainConfig, Path(options.config), _words(options))
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

    say = say or (lambda line: None)
    resolve_device(options.device)  # before any work
    method, out, overrides = METHODS[options.method], Path(options.out), _words(options)
    bases = [Path(base) for base in several(options.base)]
    file, loaders = Path(options.config) if options.config else None, options.data
    if method.several:
        unused = [*([f"--config {options.config}"] if options.config else []), *overrides]
        if unused:
            raise InputError(f"--method {method.name} has no settings, so it does not take {' '.join(unused)}")
        method.fit(bases, out, say=say)
        return FinetuneResult(out, {})
    if len(bases) > 1:
        raise InputError(f"--method {method.name} takes one folder at --base, not {len(bases)}")
    if method.finished and loaders is not None:
        raise InputError(f"--method {method.name} needs a data set, not loaders", hint="leave data out")
    if file is None and loaders is None and not overrides and (method.data or not method.finished):
        hint = getattr(method.config, "without_data", "give a YAML file or its keys as --key VALUE; see configs/")
        raise InputError(f"--method {method.name} needs a configuration, but there is no --config", hint=hint)
    if method.finished:
        fitted = parse_config(FitConfig, file, overrides, method.config, data=method.data)
        method.fit(bases[0], fitted, out, device=options.device, say=say)
        return FinetuneResult(out, {})
    quiet_lightning()
    config = parse_config(FinetuneConfig, file, overrides, method.config, data=True if loaders is None else loaders)
    # Lightning, not the caller, places a fine-tuning on its devices.
    return FinetuneResult(out, method.fit(bases[0], config, out, device=options.device, say=say))


def keys_help(method: str | None) -> str:
    """Return the keys of a configuration for ``--help``: of a method, or None for those of ``train``."""
    from segunc.training.config import FinetuneConfig, FitConfig, TrainConfig, configuration_help

    if method is None:
        return configuration_help(TrainConfig, None, data=True)
    entry = METHODS[method]
    if entry.config is None:
        return f"method {method} has no configuration"
    others = "|".join(name for name in METHODS if name != method)
    kind = FitConfig if entry.finished else FinetuneConfig
    keys = configuration_help(kind, entry.config, data=entry.data or not entry.finished)
    return f"{keys}\n\nkeys of another method: segunc finetune --method {others} --help"


def _words(options: TrainingOptions) -> list[str]:
    """Return the settings as the command line has them: ``--key.subkey=VALUE``."""
    settings = options.settings
    if isinstance(settings, Mapping):
        settings = [f"--{key}={v if isinstance(v, str) else json.dumps(v)}" for key, v in settings.items()]
    further = {"data.labels": options.label_map, "trainer.logger": options.logger}
    return [*(f"--{key}={value}" for key, value in further.items() if value), *settings]
