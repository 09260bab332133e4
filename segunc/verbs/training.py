"""``segunc train`` and ``segunc finetune``, of which each method is an entry of
:data:`segunc.posteriors.methods.METHODS`.
"""

from __future__ import annotations

import json
import shlex
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from segunc.core.bounds import Settings, from_plain
from segunc.core.errors import InputError, NoteWarning
from segunc.core.files import file_sha256, read_json
from segunc.core.results import VerbResult
from segunc.options import (
    FinetuneOptions,
    Overrules,
    TrainOptions,
    is_source,
    recorded_command,
    takes,
    words_of_settings,
)
from segunc.posteriors.methods import METHODS, Method
from segunc.verbs.model_cache import model_folder

if TYPE_CHECKING:
    from segunc.posteriors.model import Model
    from segunc.training.config import FinetuneConfig, FitConfig

C = TypeVar("C", bound="FitConfig[Any] | FinetuneConfig[Any]")

TOLD_SETTINGS = (
    "dataset",
    "frames",
    "labels",
    "anomaly_class",
    "validation",
    "sequence",
    "held_out",
    "size",
    "crop",
    "scale",
    "flip",
    "colour",
    "blur",
)
"""Settings of the data that decide which frames a run sees, and how. Others say where the files lie
and how many frames are read at once.
"""


AUGMENTATION = ("crop", "scale", "flip", "colour", "blur")
"""Those of them that only training frames of a training have."""


@dataclass(frozen=True, repr=False)
class TrainedNetwork(VerbResult):
    """One network of a training.

    Attributes:
        path: its model folder.
        measured: its epochs (0 where weights were taken over), steps, seconds, val_miou and
            best_epoch, from 1, whose weights it has. The last two may be None.
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
        TrainConfig, Path(options.config), options.settings, others=sections_of_methods
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

    ``base`` may also be a model in memory, and ``settings`` the settings of a method, which then
    need no ``method``. ``say`` receives a line for each step.

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
    method = _asked_method(options)
    options = replace(options, method=method.name, settings=_values_of(options))
    typed = options
    options = replace(options, base=_resolved_bases(options, method))
    model = _finetune(options, method, say)
    if is_first_process():
        for removed in model.write(out):
            say(removed)
        say(f"wrote {out}: {model.summary}")
        bases = _bases(options)
        # A model of several bases has none whose history it could go on with.
        base = None if method.several else _folder_of(bases[0])
        record_command(out, recorded_command("finetune", _as_typed(typed)), base)
    return FinetuneResult(out, model.measured)


def _asked_method(options: FinetuneOptions) -> Method:
    """Return the method that is asked for: by its settings, or by its name."""
    name = getattr(options.settings, "method", None)
    if name is None:
        return METHODS[options.method]
    if options.method not in (name, "abnn"):
        raise InputError(
            f"the settings are of the method {name}, and --method is {options.method}",
            hint="leave --method out",
        )
    return METHODS[name]


def _bases(options: FinetuneOptions) -> list[Any]:
    """Return the bases: folders, or models in memory."""
    base: Any = options.base
    if isinstance(base, str | Path) or not isinstance(base, Sequence):
        return [base]
    return [*base]


def _resolved_bases(options: FinetuneOptions, method: Method) -> Any:
    """Return the bases with a model folder of the cache for each that is named by its source: with
    noise for a method that is fitted on a finished model, else without.
    """
    resolved = []
    for base in _bases(options):
        if is_source(base):
            base = model_folder(base, trust=options.trust, deterministic=not method.finished)
        resolved.append(base)
    return resolved if len(resolved) > 1 else resolved[0]


def _folder_of(base: Any) -> Path | None:
    """Return the folder of a base; None of a model that is in memory only."""
    if isinstance(base, str | Path):
        return Path(base)
    folder: Path | None = base.folder
    return folder


def _values_of(options: FinetuneOptions) -> Overrules:
    """Return the settings of a method by the names of their keys; what stands for settings
    otherwise is returned as it is.

    Values that are the defaults are left out where no file could say something else.
    """
    settings = options.settings
    if not isinstance(settings, Settings):
        return settings
    defaults = type(settings)()
    values = {}
    for field_of_method in fields(settings):
        value = getattr(settings, field_of_method.name)
        if options.config or value != getattr(defaults, field_of_method.name):
            values[f"{settings.section}.{field_of_method.name}"] = value
    return values


def _as_typed(options: FinetuneOptions) -> FinetuneOptions:
    """Return options as the command line has them, for the record: a model in memory is MODEL."""
    bases = [_folder_of(base) or "MODEL" for base in _bases(options)]
    return replace(options, base=bases if len(bases) > 1 else bases[0])


def _finetune(options: FinetuneOptions, method: Method, say: Callable[[str], None]) -> Model:
    """Return the model of a method."""
    from segunc.posteriors.fitting import fit_model, fit_several
    from segunc.training.config import FinetuneConfig, FitConfig
    from segunc.training.fit_data import DataSource

    bases = _bases(options)
    if method.several:
        _refuse_settings(method, options)
        members = member_folders(bases)
        if len(members) < 2:
            raise InputError(
                "an ensemble needs at least two model folders, or one with several seed-*, and "
                f"--base has {len(members)}",
                hint="train more: segunc train --seeds 0,1,2,3",
            )
        return fit_several(method.config(), [_loaded(member) for member in members])
    if len(bases) > 1:
        raise InputError(f"--method {method.name} takes one folder at --base, not {len(bases)}")
    (base,) = bases
    _refuse_other_network(method, base, Path(options.out))
    if method.finished:
        fit_config = _read_settings(FitConfig, method, options, say)
        model = _loaded(base)
        source = DataSource(fit_config.data)
        return fit_model(fit_config.settings, model, source, device=options.device, say=say)
    config = _read_settings(FinetuneConfig, method, options, say)
    in_memory = not isinstance(base, str | Path)
    # Lightning, not the caller, places a fine-tuning on its devices.
    return fit_model(
        config.settings,
        base if in_memory else load_base_model(Path(base)),
        DataSource(config.data),
        device=options.device,
        trainer=config.trainer,
        checkpoints=options.out,
        say=say,
        copies=in_memory,
    )


def _loaded(base: Any) -> Model:
    """Return a base as a model, loaded if it is a folder."""
    from segunc.posteriors.model import load_model

    return load_model(base) if isinstance(base, str | Path) else cast("Model", base)


def load_base_model(folder: Path) -> Model:
    """Return the deterministic model in a folder, without what was fitted on it.

    Raises:
        InputError: the folder holds a Bayesian model.
    """
    from segunc.networks.model_folder import load_network
    from segunc.posteriors.model import load_posterior, posterior_method

    if posterior_method(folder) is not None:
        load_network(folder)  # it says so
    return load_posterior(folder)


def member_folders(bases: Sequence[Any]) -> list[Any]:
    """Return the model folders of the members of an ensemble; of one base, those in its ``seed-*``
    if it has any, seed-10 after seed-9.
    """
    if len(bases) != 1 or not isinstance(bases[0], str | Path):
        return list(bases)
    members = [path for path in Path(bases[0]).glob("seed-*") if path.is_dir()]
    members.sort(key=lambda path: (len(path.name), path.name))
    return members or list(bases)


def _refuse_settings(method: Method, options: FinetuneOptions) -> None:
    """Raise InputError for settings of a method that has none."""
    unused = words_of_settings(_values_of(options))
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

    folder = _folder_of(_bases(options)[0])
    file = Path(options.config) if options.config else None
    looks_at_data = method.data or not method.finished
    recorded = recorded_data(folder) if looks_at_data and folder is not None else None
    needs_data = looks_at_data and getattr(method.config, "needs_data", True)
    if file is None and not options.settings and not recorded and needs_data:
        hint = "give a YAML file or its keys as --key VALUE; see configs/"
        raise InputError(
            f"--method {method.name} needs a configuration or data, but there is neither",
            hint=getattr(method.config(), "without_data", hint),
        )
    config = parse_config(
        kind,
        file,
        _values_of(options),
        method.config,
        data=looks_at_data,
        recorded=recorded,
        others=sections_of_methods,
    )
    if folder is not None:
        _tell_data(config.data, recorded, folder, say, augments=not method.finished)
        _note_changed_list(config.data, folder)
    return config


def _note_changed_list(data: Mapping[str, Any], folder: Path) -> None:
    """Note a list of frames that has changed since the network in a folder was trained with it
    (:class:`NoteWarning`): ``evaluate`` notes the same.
    """
    from segunc.networks.model_folder import DESCRIPTION
    from segunc.sampling.sampler import caller_level
    from segunc.training.config import list_of_frames

    if not (folder / DESCRIPTION).is_file():
        return  # of an ensemble, whose members are trained networks
    description = read_json(folder / DESCRIPTION, "the description of a network")
    trained = description.get("provenance", {}).get("frames_sha256")
    now = list_of_frames(data).get("frames_sha256")
    if trained and now and trained != now:
        warnings.warn(
            f"{data['frames']} has changed since the network was trained: frames of this split may "
            "be frames that it was trained on",
            NoteWarning,
            stacklevel=caller_level(),
        )


def _refuse_other_network(method: Method, base: Any, out: Path) -> None:
    """Raise InputError where the output folder holds a network that the method would replace by
    another one.
    """
    from segunc.networks.model_folder import DESCRIPTION
    from segunc.posteriors.model import posterior_method

    folder = _folder_of(base)
    in_place = folder is not None and out.resolve() == folder.resolve()
    if method.own_network and in_place:
        message = f"--out {out} is the base, whose network this method would replace"
        raise InputError(message, hint="give another --out")
    if in_place or not (out / DESCRIPTION).exists():
        return
    if method.own_network:
        same = posterior_method(out) == method.name
    else:
        sha256 = _recorded_sha256(Path(base)) if isinstance(base, str | Path) else base.sha256
        same = _recorded_sha256(out) == sha256
    if not same:
        message = f"{out} holds another network than this run would write"
        raise InputError(message, hint="give another --out")


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
    *,
    augments: bool,
) -> None:
    """Say where the data come from if nobody named them; InputError where they are gone. If others
    are named, note the settings that differ.

    Args:
        named: the settings of the data that the run takes.
        recorded: those that the base was made with, or None.
        base: the model folder of the base.
        say: receives the line.
        augments: whether the run sees crops of training frames; others see whole frames.
    """
    if not recorded:
        return
    _note_other_data(named, recorded, base, augments=augments)
    # As JSON, because a record has lists where a setting has tuples.
    for key, value in recorded.items():
        if json.dumps(named.get(key)) != json.dumps(value):
            return
    say(f"data: {named['dataset']} in {named['root']}, which {base} was made with")
    if not Path(named["root"]).is_dir():
        message = f"{base} was made with data in {named['root']}, which is not there"
        raise InputError(message, hint="--data.root DIR says where they are now")


def _note_other_data(
    named: Mapping[str, Any], recorded: Mapping[str, Any], base: Path, *, augments: bool
) -> None:
    """Note the settings of the data that decide what frames a run sees, and how, where they differ
    from those that the base was made with (:class:`NoteWarning`).
    """
    from segunc.data.module import DataConfig
    from segunc.sampling.sampler import caller_level
    from segunc.training.config import data_to_record

    if not named:
        return
    # A record is without the settings that are None, and that of a model of a hub without a root.
    whole = {"root": named.get("root", "."), **recorded}
    before = asdict(from_plain(DataConfig, whole, DataConfig.section))
    now = data_to_record(named) or {}
    differences: list[str] = []
    options: list[str] = []
    for key in TOLD_SETTINGS:
        if key in AUGMENTATION and not augments:
            continue
        if not _is_equal_setting(before[key], now[key]):
            words = _setting_words(before[key])
            differences.append(f"data.{key} is {_setting_words(now[key])}, there {words}")
            options.append(f"--data.{key} {shlex.quote(words)}")
    if differences:
        note = (
            f"other data settings than those that {base} was made with: {'; '.join(differences)}. "
            f"To take those of the base: {' '.join(options)}"
        )
        warnings.warn(note, NoteWarning, stacklevel=caller_level())


def _is_equal_setting(before: Any, now: Any) -> bool:
    """Return whether two values of a setting are the same, or name files of the same content. A
    file that is not there any more may have been moved, so it counts as the same.
    """
    if json.dumps(before) == json.dumps(now):
        return True
    if not (_is_file_name(before) and _is_file_name(now)):
        return False
    there = Path(before).is_file() and Path(now).is_file()
    return not there or file_sha256(Path(before)) == file_sha256(Path(now))


def _is_file_name(value: Any) -> bool:
    return isinstance(value, str) and value.endswith(".csv")


def _setting_words(value: Any) -> str:
    """Return a value as the command line takes it."""
    if value is None:
        return "none"
    return value if isinstance(value, str) else json.dumps(value)


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
