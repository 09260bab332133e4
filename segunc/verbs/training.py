"""``segunc train`` and ``segunc finetune``, of which each method is an entry of
:data:`segunc.posteriors.methods.METHODS`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from segunc.core.bounds import Settings
from segunc.core.errors import InputError
from segunc.core.files import read_json
from segunc.core.results import VerbResult
from segunc.options import (
    FinetuneOptions,
    Overrules,
    TrainOptions,
    recorded_command,
    several,
    takes,
)
from segunc.posteriors.methods import METHODS, Method

if TYPE_CHECKING:
    from segunc.training.config import FinetuneConfig, FitConfig

C = TypeVar("C", bound="FitConfig[Any] | FinetuneConfig[Any]")


@dataclass(frozen=True, repr=False)
class TrainedNetwork(VerbResult):
    """One network of a training.

    Attributes:
        path: its model folder.
        measured: its epochs (0 where weights were taken over), steps, seconds and val_miou, which
            may be None.
    """

    path: Path
    measured: Mapping[str, Any]


@dataclass(frozen=True, repr=False)
class TrainResult(VerbResult):
    """What was trained.

    Attributes:
        out: the model folder, or the folder of one for each seed.
        networks: the networks that were trained now.
    """

    out: Path
    networks: tuple[TrainedNetwork, ...]


@takes(TrainOptions)
def train(options: TrainOptions) -> TrainResult:
    """Train the network of a configuration, once or for several seeds, and write its model folder.

    Raises:
        InputError: the configuration, the data and the output folder do not fit together.

    >>> short = {"trainer.max_epochs": 1}
    >>> options = TrainOptions(train_config, folder / "base", device="cpu", settings=short)
    >>> result = train(options)
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
    trained: Iterable[tuple[Path, Any]]
    if options.seeds is None:
        _, measured = train_network(config, out, device=options.device)
        trained = [(out, measured)]
    else:
        trained = train_members(config, options.seeds, out, device=options.device)
    networks = []
    for path, measured in trained:
        if is_first_process():
            record_command(path, recorded_command("train", options))
        networks.append(TrainedNetwork(path, measured))
    return TrainResult(out, tuple(networks))


@dataclass(frozen=True, repr=False)
class FinetuneResult(VerbResult):
    """What was made.

    Attributes:
        out: the model folder.
        measured: the seconds and steps of a fine-tuning; empty for the other methods.
    """

    out: Path
    measured: Mapping[str, Any]


@takes(FinetuneOptions)
def finetune(options: FinetuneOptions, say: Callable[[str], None] | None = None) -> FinetuneResult:
    """Make a model folder from another one, by the method that is asked for.

    ``say`` receives a line for each step.

    Raises:
        InputError: the base, the configuration and the output folder do not fit together.

    >>> options = FinetuneOptions(
    ...     base=base, config=finetune_config, out=folder / "abnn", device="cpu"
    ... )
    >>> result = finetune(options)
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
        # A model of several bases has none whose history it could go on with.
        one_base = len(bases) == 1 and not METHODS[options.method].several
        base = Path(bases[0]) if one_base else None
        record_command(Path(options.out), recorded_command("finetune", options), base)
    return FinetuneResult(Path(options.out), measured)


def _finetune(options: FinetuneOptions, say: Callable[[str], None]) -> Mapping[str, Any]:
    """Write the model folder of a method, and return what was measured."""
    from segunc.core.progress import quiet_lightning
    from segunc.training.config import FinetuneConfig, FitConfig

    method = METHODS[options.method]
    out = Path(options.out)
    bases = [Path(base) for base in several(options.base)]
    if method.several:
        _refuse_settings(method, options)
        method.fit(bases, out, say=say)
        return {}
    if len(bases) > 1:
        raise InputError(f"--method {method.name} takes one folder at --base, not {len(bases)}")
    _refuse_other_network(method, bases[0], out)
    if method.finished:
        fit_config = _read_settings(FitConfig, method, options, say)
        method.fit(bases[0], fit_config, out, device=options.device, say=say)
        return {}
    quiet_lightning()
    config = _read_settings(FinetuneConfig, method, options, say)
    # Lightning, not the caller, places a fine-tuning on its devices.
    measured: Mapping[str, Any] = method.fit(bases[0], config, out, device=options.device, say=say)
    return measured


def _refuse_settings(method: Method, options: FinetuneOptions) -> None:
    """Raise InputError for settings of a method that has none."""
    unused = _words(options.settings)
    if options.config:
        unused.insert(0, f"--config {options.config}")
    if unused:
        raise InputError(
            f"--method {method.name} has no settings, so it does not take {' '.join(unused)}"
        )


def _read_settings(
    kind: type[C], method: Method, options: FinetuneOptions, say: Callable[[str], None]
) -> C:
    """Return the configuration of a method on one base, and say which data of the base it takes.

    Raises:
        InputError: there is none and the method needs one, or it is wrong.
    """
    from segunc.training.config import parse_config, recorded_data

    base = Path(several(options.base)[0])
    file = Path(options.config) if options.config else None
    overrides = _words(options.settings)
    looks_at_data = method.data or not method.finished
    recorded = recorded_data(base) if looks_at_data else None
    if file is None and not overrides and not recorded and looks_at_data:
        hint = "give a YAML file or its keys as --key VALUE; see configs/"
        raise InputError(
            f"--method {method.name} needs a configuration or data, but there is neither",
            hint=getattr(method.config, "without_data", hint),
        )
    config = parse_config(
        kind,
        file,
        overrides,
        method.config,
        data=looks_at_data,
        recorded=recorded,
        others=sections_of_methods,
    )
    _tell_data(config.data, recorded, base, say)
    return config


def _refuse_other_network(method: Method, base: Path, out: Path) -> None:
    """Raise InputError where the output folder holds a network that the method would replace by
    another one.
    """
    from segunc.networks.model_folder import DESCRIPTION

    if out.resolve() == base.resolve() or not (out / DESCRIPTION).exists():
        return
    if method.own_network:
        same = _method_of(out) == method.name
    else:
        same = _recorded_sha256(out) == _recorded_sha256(base)
    if not same:
        message = f"{out} holds another network than this run would write"
        raise InputError(message, hint="give another --out")


def _method_of(folder: Path) -> str | None:
    """Return the method of the posterior in a model folder; None where it has none."""
    from segunc.networks.model_folder import POSTERIOR

    if not (folder / POSTERIOR).exists():
        return None
    method: str | None = read_json(folder / POSTERIOR, "a record").get("method")
    return method


def _recorded_sha256(folder: Path) -> str | None:
    """Return the hash that a model folder records of its network; empty where it has none."""
    from segunc.networks.model_folder import DESCRIPTION

    path = folder / DESCRIPTION
    if not path.exists():
        return ""
    sha256: str | None = read_json(path, "a record").get("sha256")
    return sha256


def _tell_data(
    named: Mapping[str, Any],
    recorded: Mapping[str, Any] | None,
    base: Path,
    say: Callable[[str], None],
) -> None:
    """Say where the data come from if nobody named them; InputError where they are gone.

    Args:
        named: the settings of the data that the run takes.
        recorded: those that the base was made with, or None.
        base: the model folder of the base.
        say: receives the line.
    """
    if not recorded:
        return
    # As JSON, because a record has lists where a setting has tuples.
    for key, value in recorded.items():
        if json.dumps(named.get(key)) != json.dumps(value):
            return
    say(f"data: {named['dataset']} in {named['root']}, which {base} was made with")
    if not Path(named["root"]).is_dir():
        message = f"{base} was made with data in {named['root']}, which is not there"
        raise InputError(message, hint="--data.root DIR says where they are now")


def sections_of_methods() -> set[str]:
    """Return the sections of a configuration that methods read."""
    return {METHODS[name].key for name in METHODS}


def settings_of(method: str | None) -> list[type[Settings]]:
    """Return the classes of the settings in a configuration of a method, or of ``train`` where that
    is None.
    """
    from segunc.training.config import config_sections

    if method is None:
        return list(config_sections(None, data=True).values())
    entry = METHODS[method]
    if not entry.config:
        return []
    return list(config_sections(entry.config, data=entry.data or not entry.finished).values())


def _words(settings: Overrules) -> list[str]:
    """Return settings as the command line has them: ``--key.subkey=VALUE``."""
    if isinstance(settings, Mapping):
        words: list[str] = []
        for key, value in settings.items():
            text = value if isinstance(value, str) else json.dumps(value)
            words.append(f"--{key}={text}")
        return words
    return [*settings]
