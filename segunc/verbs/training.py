"""``segunc train`` and ``segunc finetune``, of which each method is an entry of
:data:`segunc.posteriors.methods.METHODS`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from segunc.core.bounds import Settings
from segunc.core.errors import InputError
from segunc.core.files import read_json
from segunc.options import (
    FinetuneOptions,
    Overrules,
    TrainOptions,
    recorded_command,
    several,
    takes,
)
from segunc.posteriors.methods import METHODS, Method


class TrainedNetwork(NamedTuple):
    """One network: its model folder, and the epochs (0 where weights were taken over), steps,
    seconds and val_miou, which may be None.
    """

    path: Path
    measured: Mapping[str, Any]


class TrainResult(NamedTuple):
    """What was trained."""

    out: Path  # the model folder, or the folder of one for each seed
    networks: tuple[TrainedNetwork, ...]  # those that were trained now


@takes(TrainOptions)
def train(options: TrainOptions) -> TrainResult:
    """Train the network of a configuration, once or for several seeds, and write its model folder.

    Raises:
        InputError: the configuration, the data and the output folder do not fit together.

    >>> result = train(TrainOptions(train_config, folder / "base", device="cpu", settings={"trainer.max_epochs": 1}))
    >>> result.networks[0].measured["epochs"]
    1
    """
    from segunc.core.device import resolve_device
    from segunc.core.progress import quiet_lightning
    from segunc.training.base import train_members, train_network
    from segunc.training.config import TrainConfig, parse_config, record_command
    from segunc.training.lightning_runs import is_first_process

    quiet_lightning()
    out = Path(options.out)
    resolve_device(options.device)
    config = parse_config(
        TrainConfig, Path(options.config), _words(options.settings), others=sections_of_methods
    )
    if options.seeds is None:
        trained: Iterable[tuple[Path, Any]] = [
            (out, train_network(config, out, device=options.device)[1])
        ]
    else:
        trained = train_members(config, options.seeds, out, device=options.device)
    networks = []
    for path, measured in trained:
        if is_first_process():
            record_command(path, recorded_command("train", options))
        networks.append(TrainedNetwork(path, measured))
    return TrainResult(out, tuple(networks))


class FinetuneResult(NamedTuple):
    """What was made."""

    out: Path  # the model folder
    measured: Mapping[str, Any]  # seconds and steps of a fine-tuning; empty for the other methods


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
    from segunc.training.config import record_command
    from segunc.training.lightning_runs import is_first_process

    say = say or (lambda line: None)
    resolve_device(options.device)  # before any work
    measured = _finetune(options, say)
    if is_first_process():
        bases = several(options.base)
        base = Path(bases[0]) if len(bases) == 1 and not METHODS[options.method].several else None
        record_command(Path(options.out), recorded_command("finetune", options), base)
    return FinetuneResult(Path(options.out), measured)


def _finetune(options: FinetuneOptions, say: Callable[[str], None]) -> Mapping[str, Any]:
    """Write the model folder of a method, and return what was measured."""
    from segunc.core.progress import quiet_lightning
    from segunc.training.config import FinetuneConfig, FitConfig, parse_config, recorded_data

    method, out, overrides = METHODS[options.method], Path(options.out), _words(options.settings)
    bases = [Path(base) for base in several(options.base)]
    file = Path(options.config) if options.config else None
    if method.several:
        unused = [*([f"--config {options.config}"] if options.config else []), *overrides]
        if unused:
            raise InputError(
                f"--method {method.name} has no settings, so it does not take {' '.join(unused)}"
            )
        method.fit(bases, out, say=say)
        return {}
    if len(bases) > 1:
        raise InputError(f"--method {method.name} takes one folder at --base, not {len(bases)}")
    _refuse_other_network(method, bases[0], out)
    recorded = recorded_data(bases[0]) if method.data or not method.finished else None
    if file is None and not overrides and not recorded and (method.data or not method.finished):
        hint = getattr(
            method.config,
            "without_data",
            "give a YAML file or its keys as --key VALUE; see configs/",
        )
        raise InputError(
            f"--method {method.name} needs a configuration, but there is no --config", hint=hint
        )
    how: dict[str, Any] = {"recorded": recorded, "others": sections_of_methods}
    if method.finished:
        fitted = parse_config(FitConfig, file, overrides, method.config, data=method.data, **how)
        _tell_data(fitted.data, recorded, bases[0], say)
        method.fit(bases[0], fitted, out, device=options.device, say=say)
        return {}
    quiet_lightning()
    config = parse_config(FinetuneConfig, file, overrides, method.config, **how)
    _tell_data(config.data, recorded, bases[0], say)
    # Lightning, not the caller, places a fine-tuning on its devices.
    measured: Mapping[str, Any] = method.fit(bases[0], config, out, device=options.device, say=say)
    return measured


def _refuse_other_network(method: Method, base: Path, out: Path) -> None:
    """Raise InputError where the output folder holds a network that the method would replace by
    another one.
    """
    from segunc.networks.model_folder import DESCRIPTION, POSTERIOR

    if out.resolve() == base.resolve() or not (out / DESCRIPTION).exists():
        return
    if method.own_network:
        same = (out / POSTERIOR).exists() and read_json(out / POSTERIOR, "a record").get(
            "method"
        ) == method.name
    else:
        hashes = {
            read_json(path, "a record").get("sha256") if path.exists() else ""
            for path in (out / DESCRIPTION, base / DESCRIPTION)
        }
        same = len(hashes) == 1
    if not same:
        raise InputError(
            f"{out} holds another network than this run would write", hint="give another --out"
        )


def _tell_data(
    named: Mapping[str, Any],
    recorded: Mapping[str, Any] | None,
    base: Path,
    say: Callable[[str], None],
) -> None:
    """Say where the data come from if nobody named them; InputError where they are gone."""
    if recorded and all(json.dumps(named.get(k)) == json.dumps(v) for k, v in recorded.items()):
        say(f"data: {named['dataset']} in {named['root']}, which {base} was made with")
        if not Path(named["root"]).is_dir():
            lack = f"{base} was made with data in {named['root']}, which is not there"
            raise InputError(lack, hint="--data.root DIR says where they are now")


def sections_of_methods() -> set[str]:
    """Return the sections of a configuration that methods read."""
    return {METHODS[name].key for name in METHODS}


def settings_of(method: str | None) -> list[type[Settings]]:
    """Return the classes of the settings in a configuration of a method, or where that is None of
    ``train``.
    """
    from segunc.training.config import config_sections

    if method is None:
        return [*config_sections(None, data=True).values()]
    entry = METHODS[method]
    sections = (
        config_sections(entry.config, data=entry.data or not entry.finished) if entry.config else {}
    )
    return [*sections.values()]


def _words(settings: Overrules) -> list[str]:
    """Return settings as the command line has them: ``--key.subkey=VALUE``."""
    if isinstance(settings, Mapping):
        return [
            f"--{key}={v if isinstance(v, str) else json.dumps(v)}" for key, v in settings.items()
        ]
    return [*settings]
