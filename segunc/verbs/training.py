"""``segunc train`` and ``segunc finetune``, of which each method is an entry of
:data:`segunc.posteriors.methods.METHODS`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

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

if TYPE_CHECKING:
    from segunc.posteriors.model import Model
    from segunc.training.config import FinetuneConfig, FitConfig

C = TypeVar("C", bound="FitConfig[Any] | FinetuneConfig[Any]")


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
    out = Path(options.out)
    model = _finetune(options, say)
    if is_first_process():
        model.save(out)
        say(f"wrote {out}: {model.summary}")
        bases = several(options.base)
        # A model of several bases has none whose history it could go on with.
        one_base = len(bases) == 1 and not METHODS[options.method].several
        base = Path(bases[0]) if one_base else None
        record_command(out, recorded_command("finetune", options), base)
    return FinetuneResult(out, model.measured)


def _finetune(options: FinetuneOptions, say: Callable[[str], None]) -> Model:
    """Return the model of a method."""
    from segunc.posteriors.fitting import fit_model, fit_several
    from segunc.posteriors.model import load_model
    from segunc.training.config import FinetuneConfig, FitConfig
    from segunc.training.fit_data import DataSource

    method = METHODS[options.method]
    out = Path(options.out)
    bases = [Path(base) for base in several(options.base)]
    if method.several:
        _refuse_settings(method, options)
        folders = member_folders(bases)
        return fit_several(method.config(), [load_model(folder) for folder in folders])
    if len(bases) > 1:
        raise InputError(f"--method {method.name} takes one folder at --base, not {len(bases)}")
    (base,) = bases
    _refuse_other_network(method, base, out)
    if method.finished:
        fit_config = _read_settings(FitConfig, method, options, say)
        return fit_model(
            fit_config.settings,
            load_model(base),
            DataSource(fit_config.data),
            device=options.device,
            say=say,
        )
    config = _read_settings(FinetuneConfig, method, options, say)
    # Lightning, not the caller, places a fine-tuning on its devices.
    return fit_model(
        config.settings,
        load_base_model(base),
        DataSource(config.data),
        device=options.device,
        trainer=config.trainer,
        checkpoints=out,
        say=say,
        copies=False,
    )


def load_base_model(folder: Path) -> Model:
    """Return the deterministic model in a folder, without what was fitted on it.

    Raises:
        InputError: the folder holds a Bayesian model.
    """
    from segunc.networks.model_folder import load_network
    from segunc.posteriors.model import load_posterior

    if _method_of(folder) is not None:
        load_network(folder)  # it says so
    return load_posterior(folder)


def member_folders(bases: Sequence[Path]) -> list[Path]:
    """Return the model folders of the members of an ensemble; of one base, those in its ``seed-*``
    if it has any, seed-10 after seed-9.
    """
    if len(bases) != 1:
        return list(bases)
    members = [path for path in bases[0].glob("seed-*") if path.is_dir()]
    members.sort(key=lambda path: (len(path.name), path.name))
    return members or list(bases)


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

    if method.own_network and out.resolve() == base.resolve():
        message = f"--out {out} is the base, whose network this method would replace"
        raise InputError(message, hint="give another --out")
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
    if entry.several:
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
