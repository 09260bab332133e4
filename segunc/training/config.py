"""Configurations of the training verbs: frozen dataclasses, from Python or from a file in which
every unknown key is refused.
"""

from __future__ import annotations

import contextlib
import json
import os
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar, cast, get_args, get_type_hints

import torch

from segunc.affine.posterior import Prior
from segunc.core.bounds import (
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    Seed,
    Settings,
    UnitInterval,
    check_value,
    from_plain,
)
from segunc.core.errors import InputError, NoteWarning, nearest, one_line
from segunc.core.files import (
    file_sha256,
    read_result,
    read_text,
    reading,
    unlinked,
    write_file,
    write_json,
)
from segunc.core.terminal import agreeing
from segunc.core.version import full_version, now
from segunc.core.yaml_text import VALUE_HINT, dump_yaml, looks_like_value, parse_yaml
from segunc.data.data_set_table import OWN_ENTRY
from segunc.data.datasets import without_none_words
from segunc.training.losses import Schedule

S = TypeVar("S", bound=Settings)
C = TypeVar("C", bound="Config")
DATA = "data.json"  # beside a model: the data that it was made with
HISTORY = "history.json"  # beside a model: the commands that made it


@dataclass(frozen=True)
class NetworkConfig(Settings):
    """Which network is built.

    Args:
        architecture: architecture of segmentation-models-pytorch (smp).
        encoder: encoder of smp.
        options: further keyword arguments of the architecture.
        weights: checkpoint to start from: a file with the state dict of the whole network; none
            starts without a checkpoint.
        encoder_weights: weights of the encoder: a name of smp (imagenet), or a file of smp, timm or
            torchvision; none for random weights. If ``weights`` is given, the encoder's weights
            come from that file, and this key only chooses the normalisation of the input.
        mean: mean of the input normalisation, for images in 0..1, a number for each channel; none
            takes the mean of the encoder's weights, or ImageNet's. As many numbers as are given are
            the channels of the network and of its frames.
        std: standard deviation of the input normalisation, for images in 0..1, a number for each
            channel; none takes that of the encoder's weights, or ImageNet's.
        inference_size: height and width to which frames are resized for the network; a frame of
            another aspect ratio keeps its ratio. none keeps each frame's own size.
    """

    section = "network"
    architecture: str = "DeepLabV3Plus"
    encoder: str = "resnet18"
    options: dict[str, Any] = field(default_factory=dict)
    weights: str | None = None
    encoder_weights: str | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    inference_size: tuple[int, int] | None = None


@dataclass(frozen=True)
class OptimisationConfig(Settings):
    """How the base network is trained.

    Args:
        optimizer: optimiser: adamw or sgd.
        lr: peak learning rate.
        weight_decay: weight decay of convolution and linear weights; normalisation parameters and
            biases get none.
        schedule: schedule of the learning rate: onecycle, poly or constant.
        class_weight_power: power of the class weights, which are frequency ** -power; 0 gives all
            classes the same weight.
    """

    section = "optimisation"
    optimizer: Literal["adamw", "sgd"] = "adamw"
    lr: PositiveFloat = 1e-3
    weight_decay: NonNegativeFloat = 1e-4
    schedule: Schedule = "onecycle"
    class_weight_power: UnitInterval = 0.0


@dataclass(frozen=True)
class AffineTrainingConfig(Settings):
    """What the methods that train affine parameters have in common.

    Args:
        scope: stochastic normalisation layers: all, encoder, decoder, last:N, every:N or a regular
            expression.
        epochs: number of passes over the training set.
        max_steps: largest number of training steps (0: no limit).
        lr: learning rate.
        prior_scale: standard deviation s of the Gaussian prior N(theta; theta_prior, s^2) on the
            affine parameters.
        effective_pixels: number N_eff of independent pixels that the whole training set counts as.
        class_weight_power: power of the class weights, which are frequency ** -power, as for the
            base; 0 gives all classes the same weight.
        seed: random seed of the noise. Together with data.seed it is also the seed of the shuffle
            and the augmentation.
    """

    scope: str = "all"
    epochs: NonNegativeInt = 2
    max_steps: NonNegativeInt = 0
    lr: PositiveFloat = 0.005
    prior_scale: PositiveFloat = Prior.scale
    effective_pixels: PositiveFloat = Prior.effective_pixels
    class_weight_power: UnitInterval = 0.0
    seed: Seed = 0

    def prior(self, **more: Any) -> Prior:
        return Prior(self.prior_scale, self.effective_pixels, **more)


@dataclass(frozen=True)
class Config:
    """A resolved configuration."""

    def plain(self) -> dict[str, Any]:
        """Return it as YAML and JSON know it; settings stand under the key of their section."""
        names = [f.name for f in fields(self)]
        first = [name for name in ("seed", "data", "trainer") if name in names]
        others = [name for name in names if name not in first]
        content: dict[str, Any] = {}
        for name in (*first, *others):
            value = getattr(self, name)
            if isinstance(value, Settings):
                content[value.section] = plain_values(asdict(value))
            elif value is not None:
                content[name] = plain_values(value)
        return content


@dataclass(frozen=True)
class TrainConfig(Config):
    """Of ``segunc train``: arguments of :class:`segunc.data.module.SegmentationDataModule` and of
    Lightning's Trainer among them.
    """

    data: Mapping[str, Any]
    seed: Seed = 0
    trainer: Mapping[str, Any] = field(default_factory=dict)
    network: NetworkConfig = field(default_factory=NetworkConfig)
    optimisation: OptimisationConfig = field(default_factory=OptimisationConfig)


@dataclass(frozen=True)
class FitConfig(Config, Generic[S]):
    """Of a method that is fitted on a finished model; its ``data`` are empty where it looks at
    none.
    """

    settings: S
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class FinetuneConfig(Config, Generic[S]):
    """Of a method that makes a posterior from a deterministic base, with a data set. The seed is
    that of the settings.
    """

    settings: S
    data: Mapping[str, Any]
    trainer: Mapping[str, Any] = field(default_factory=dict)


def parse_config(
    kind: type[C],
    config: Path | None,
    overrides: Sequence[str] | Mapping[str, Any],
    settings: type[Settings] | None = None,
    *,
    data: bool = True,
    recorded: Mapping[str, Any] | None = None,
    others: Callable[[], Collection[str]] = tuple,
    own: bool = False,
) -> C:
    """Return the configuration in a YAML file, or the defaults, with ``overrides`` in the place of
    its own values. One file may serve every verb: sections of other verbs are left alone, and keys
    of the file that have no use with the other settings are left out, with a note. Nothing that a
    configuration names is imported.

    Args:
        overrides: words such as ``--data.root PATH``, or values by the names of their keys, such as
            ``{"data.root": PATH}``.
        settings: the class of the method's settings; None for ``segunc train``.
        data: whether the method looks at data, by default those that the base was made with,
            ``recorded`` (:func:`recorded_data`).
        own: the file is the caller's own, and may hold YAML aliases.
    """
    where = "configuration" if config is None else f"configuration {config}"
    with _named_in_errors(where):
        values = {} if config is None else _read_values(config, own=own)
        data_in_file = "data" in values
        sections = config_sections(settings, data=data)
        top_keys = _top_keys(kind, settings)
        keys = [*top_keys, *(section.section for section in sections.values())]
        if not values.keys() <= set(keys):
            values = _without_other_verbs(values, keys, others())
        in_file = {key: set(value) for key, value in values.items() if isinstance(value, dict)}
        typed = _override(values, overrides, list(sections.values()))
        dashes = "" if isinstance(overrides, Mapping) else "--"
        _check_typed(typed, in_file, list(sections.values()), dashes)
        _check_keys(values, keys)
        note = ""
        if settings is not None:
            named = in_file.get(settings.section, set())
            untyped = {name for name in named if f"{settings.section}.{name}" not in typed}
            note = _leave_out_unused(values, settings, untyped, where)
        made: dict[str, Any] = {name: values[name] for name in top_keys if name in values}
        made |= _parsed_sections(values, sections)
        if data:
            usable_record = None if data_in_file else recorded
            made["data"] = _data_values(values.get("data"), usable_record, made.get("settings"))
        parsed = kind(**made)
    if note:
        _note(note)
    return parsed


def _parsed_sections(
    values: Mapping[str, Any], sections: Mapping[str, type[Settings]]
) -> dict[str, Settings]:
    """Return the settings of each section but the data set's, by the names of the fields."""
    parsed: dict[str, Settings] = {}
    for name, section in sections.items():
        if name != "data":
            section_values = _with_none(section, values.get(section.section, {}))
            parsed[name] = from_plain(section, section_values, section.section)
    return parsed


@contextlib.contextmanager
def _named_in_errors(where: str) -> Iterator[None]:
    """Begin every error with the configuration that it is in, except where it was typed."""
    try:
        yield
    except _TypedError:
        raise
    except InputError as error:
        raise error.within(where) from error
    # Numbers of thousands of digits, keys that are not texts.
    except (ValueError, TypeError, RecursionError) as error:
        raise InputError(f"{where}: {one_line(error)}", hint="see configs/ for examples") from error


def _read_values(config: Path, *, own: bool) -> dict[str, Any]:
    """Return the keys and values of a file, its paths of data as seen from the current folder."""
    values = read_config(config, own=own)
    if isinstance(values.get("data"), dict):
        values["data"] = with_own_paths(values["data"], config)
    return values


def _top_keys(kind: type[Config], settings: type[Settings] | None) -> list[str]:
    """Return which of ``seed`` and ``trainer`` a configuration has beside its sections."""
    return [
        name
        for name in ("seed", "trainer")
        if name in kind.__dataclass_fields__ and getattr(settings, f"uses_{name}", True)
    ]


def _without_other_verbs(
    values: Mapping[str, Any], keys: Collection[str], sections_of_methods: Collection[str]
) -> dict[str, Any]:
    """Return the values without the sections that only other verbs or methods read."""
    every_verb = {
        "seed",
        "data",
        "trainer",
        NetworkConfig.section,
        OptimisationConfig.section,
        *sections_of_methods,
    }
    elsewhere = every_verb.difference(keys)
    return {key: value for key, value in values.items() if key not in elsewhere}


def _check_keys(values: Mapping[str, Any], keys: Collection[str]) -> None:
    """Raise InputError for a key that is not known, or a value of another form than its key has."""
    for key, value in values.items():
        if key not in keys:
            message = f"unknown key '{key}'{nearest(str(key), keys)}"
            raise InputError(message, hint=f"the keys are {', '.join(keys)}")
        if key != "seed" and not isinstance(value, dict):
            message = f"{key} is {value!r}, not keys with values"
            raise InputError(message, hint=f"write {key}: {{KEY: VALUE}}")
    check_value("seed", values.get("seed", 0), Seed)
    check_value("trainer", values.get("trainer", {}), Any)
    _check_untyped("trainer", values.get("trainer"))
    network = values.get(NetworkConfig.section) or {}
    _check_untyped(f"{NetworkConfig.section}.options", network.get("options"))


def _check_untyped(name: str, value: Any) -> None:
    """Raise InputError for a text, also within a mapping or a list, that may be meant as a number
    or a truth value. These values have no types here, and a text such as no would be true.
    """
    if isinstance(value, Mapping):
        for key, item in value.items():
            _check_untyped(f"{name}.{key}", item)
    elif isinstance(value, list | tuple):
        for item in value:
            _check_untyped(name, item)
    elif looks_like_value(value):
        raise InputError(
            f"{name} {value} is a text, but may be meant as a number, or as true or false",
            hint=VALUE_HINT,
        )


class _TypedError(InputError):
    """What was typed is wrong, so the message does not begin with the file."""


def _check_typed(
    typed: Collection[str],
    in_file: Mapping[str, Collection[str]],
    sections: Sequence[type[Settings]],
    dashes: str,
) -> None:
    """Raise an error for the first typed setting that its section does not have, named as it was
    typed.

    Args:
        typed: names of settings, ``section.name``.
        in_file: the names in each section of the file, whose error names the file.
        sections: the classes of the settings.
        dashes: what stands before a name where it was typed.
    """
    names_of = {section.section: list(get_type_hints(section)) for section in sections}
    for name in sorted(typed):
        section, _, key = name.partition(".")
        names = names_of.get(section, [])
        is_known = not names or key.partition(".")[0] in names or key in in_file.get(section, ())
        if not is_known:
            near = nearest(key, names)
            hint = f"the keys of {section} are {', '.join(names)}"
            if near:
                near = near.replace("did you mean ", f"did you mean {dashes}{section}.")
                hint = ""
            raise _TypedError(f"{dashes}{name} is no setting{near}", hint=hint)


def images_of(settings: Any) -> str | None:
    """Return the folder or glob of images on which a method is fitted instead of a data set; None
    if its settings name none.

    ``images`` of Laplace is a number of crops, so only a text is a folder.
    """
    images = getattr(settings, "images", None)
    return images if isinstance(images, str) and images else None


def _data_values(
    named: Mapping[str, Any] | None, recorded: Mapping[str, Any] | None, settings: Settings | None
) -> dict[str, Any]:
    """Return the settings of the data of a run, empty where it looks at none.

    Args:
        named: what file and command line say of the data; None where they say nothing.
        recorded: the data that stand in for what is not named, if the data set is the same.
        settings: those of the method; None for a training.

    Raises:
        InputError: the run needs data and nothing names them, or a wrong key or value.
    """
    from segunc.data.module import DataConfig

    # A training always needs some.
    needs = getattr(settings, "uses_data", {"train": "what is trained or fitted"})
    if images_of(settings):
        needs = {}
    if recorded and (named or needs):
        partly = named or {}
        if partly.get("dataset") in (None, recorded["dataset"]):
            named = {**recorded, **partly}
    if named is not None:
        return asdict(from_plain(DataConfig, without_none_words(named), DataConfig.section))
    if needs and getattr(settings, "needs_data", True):
        hint = "give --data.dataset NAME --data.root DIR, or data in --config"
        without_data = getattr(settings, "without_data", "")
        if without_data:
            hint = f"{hint}; or {without_data}"
        raise InputError(f"there are no data for {' and '.join(needs.values())}", hint=hint)
    return {}


def data_to_record(data: Mapping[str, Any], base: Path | None = None) -> dict[str, Any] | None:
    """Return what a model folder records of the data that the model was made with; without data
    what the folder of its base records, if anything.
    """
    if not data:
        return None if base is None else recorded_data(base)
    values = dict(data)
    for name in ("root", "frames"):
        if data.get(name):
            values[name] = str(Path(data[name]).resolve())
    labels = str(data.get("labels") or "")
    if labels.endswith(".csv"):  # a file of the user's own, not the name of a label map
        values["labels"] = str(Path(labels).resolve())
    own_entry = OWN_ENTRY.fullmatch(str(data.get("dataset")))
    if own_entry is not None:
        values["dataset"] = f"{Path(own_entry['file']).resolve()}:{own_entry['name']}"
    plain: dict[str, Any] = plain_values(values)
    return plain


def settings_of_training(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of the data of a training for the record of its network. Models that are
    made of the network later have data of their own beside them, so this record tells which crops
    and sizes the network itself was trained on. Folders and files of this machine are left out.
    """
    recorded = data_to_record(data) or {}
    settings = {}
    for key, value in recorded.items():
        if value is None or key in ("root", "frames"):
            continue
        if key == "labels" and str(value).endswith(".csv"):
            continue
        settings[key] = value
    return settings


def data_of_network(
    provenance: Mapping[str, Any], recorded: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return the settings of the data that a network was trained on, without those of a posterior.

    Args:
        provenance: of the network.
        recorded: what stands beside the model, see :func:`recorded_data`. It is returned for a
            network whose own record has no settings.
    """
    return dict(provenance.get("data") or recorded or {})


def list_of_frames(data: Mapping[str, Any]) -> dict[str, str]:
    """Return the SHA-256 of the list of frames that the data of a training name, as
    ``frames_sha256``; nothing for data without such a list. Later verbs see by it that the splits
    may have changed since.
    """
    named = data.get("frames")
    if not named or not Path(named).is_file():
        return {}
    return {"frames_sha256": file_sha256(Path(named))}


def record_data(folder: Path, data: Mapping[str, Any], base: Path | None = None) -> None:
    """Write beside a model which data it was made with, so that later verbs need not be told
    again.
    """
    values = data_to_record(data, base)
    if values:
        write_json(folder / DATA, values)


def recorded_data(folder: Path) -> dict[str, Any] | None:
    """Return the settings of the data that a model was made with (of an ensemble: its first
    member), or None where it has no record.
    """
    for name in (DATA, f"members/0/{DATA}"):
        path = unlinked(folder, name)
        if path.exists():
            values = read_config(path)
            if "dataset" in values:
                # A setting that is None was never used. It may be of an earlier version, whose name
                # would be refused.
                return {key: value for key, value in values.items() if value is not None}
    return None


def record_command(folder: Path, command: str, base: Path | None = None) -> None:
    """Write beside a model which commands made it: those of its base, then this one.

    Args:
        folder: the model folder.
        command: as it would be typed.
        base: the model folder that the command began with, or None.
    """
    commands = [] if base is None else recorded_commands(base)
    commands.append({"command": command, "date": now(), "segunc": full_version()})
    write_json(folder / HISTORY, {"kind": "segunc history", "version": 1, "commands": commands})


def recorded_commands(folder: Path) -> list[dict[str, str]]:
    """Return ``command``, ``date`` (UTC) and ``segunc`` (version) of each command that made the
    model in a folder, in their order; nothing for a folder of an earlier version.

    Raises:
        InputError: the file is damaged.
    """
    path = unlinked(folder, HISTORY)
    if not path.exists():
        return []
    commands: list[dict[str, str]] = []
    for entry in read_result(path, "history", ("commands",), "segunc")["commands"]:
        if not isinstance(entry, dict) or not isinstance(entry.get("command"), str):
            raise InputError(
                f"{path} does not hold a list of commands", hint="restore it, or remove it"
            )
        commands.append({key: str(value) for key, value in entry.items()})
    return commands


def read_config(path: Path, *, own: bool = False) -> dict[str, Any]:
    """Return the keys and values of a YAML file, which may hold aliases where it is the package's
    ``own``."""
    with reading(f"configuration {path}", "a YAML file in UTF-8", "see configs/ for examples"):
        text = read_text(path)
    values = parse_yaml(text, own=own)
    if not isinstance(values, dict) or not values:
        raise InputError(
            "it holds no keys with values, such as `data` with its dataset and root",
            hint="see configs/",
        )
    return values


def with_own_paths(data: Mapping[str, Any], config: Path) -> dict[str, Any]:
    """Return the section ``data`` of a configuration with whole paths in the place of those that
    begin with ``./`` or ``../``. These are relative to the folder of the configuration, so that
    both can be moved together; where nothing lies there, and for other paths, the current folder
    counts.
    """
    resolved = dict(data)
    for name in ("root", "frames", "labels"):
        if isinstance(data.get(name), str):
            resolved[name] = _own_path(data[name], config)
    own_entry = OWN_ENTRY.fullmatch(str(data.get("dataset")))
    if own_entry is not None:
        resolved["dataset"] = f"{_own_path(own_entry['file'], config)}:{own_entry['name']}"
    return resolved


def _own_path(path: str, config: Path) -> str:
    """Return a path of a configuration as :func:`with_own_paths` explains."""
    if path in (".", "..") or path.startswith(("./", "../")):
        beside_config = Path(os.path.abspath(config.parent / path))
        if beside_config.exists() or not Path(path).exists():
            return str(beside_config)
    return path


def _override(
    values: dict[str, Any],
    overrides: Sequence[str] | Mapping[str, Any],
    sections: list[type[Settings]],
) -> set[str]:
    """Put what ``--key.subkey VALUE`` or ``--key.subkey=VALUE`` say, or the values of a mapping by
    ``key.subkey``, into nested values. Return their names, ``key.subkey``.
    """
    if isinstance(overrides, Mapping):
        for name, value in overrides.items():
            _put(values, name, value)
        return set(overrides)
    typed: dict[str, str] = {}
    types = {section.section: get_type_hints(section, include_extras=True) for section in sections}
    for name, text in _named_texts(overrides, types):
        keys = name.removeprefix("--").split(".")
        hint = types.get(keys[0], {}).get(keys[1]) if len(keys) == 2 else Any
        _put(values, name, _value_of(text, hint))
        setting = name.removeprefix("--")
        earlier = typed.get(setting, text)
        if earlier != text:
            _note(f"{name} is given twice; {text} counts, {earlier} does not")
        typed[setting] = text
    return set(typed)


def _note(text: str) -> None:
    """Give a note to whoever reads a configuration."""
    from segunc.sampling.sampler import caller_level

    warnings.warn(text, NoteWarning, stacklevel=caller_level())


def _leave_out_unused(
    values: dict[str, Any], settings: type[Settings], untyped: Collection[str], where: str
) -> str:
    """Remove the settings of a file that have no use with the others, because the file may serve
    several runs. Return a note on them, empty if there are none.

    Args:
        values: of all sections; that of the settings is replaced.
        settings: their class.
        untyped: names of settings that stand in the file and were not typed, too.
        where: the file, in words.
    """
    section = values.get(settings.section, {})
    unused, reason = settings.without_use(section)
    left_out = [name for name in section if name in unused and name in untyped]
    if not left_out:
        return ""
    values[settings.section] = {
        name: value for name, value in section.items() if name not in left_out
    }
    names = [f"{settings.section}.{name}" for name in left_out]
    have = agreeing("has", len(names))
    return f"{where} gives {', '.join(names)}, which {have} no use here: {reason}"


def _put(values: dict[str, Any], name: str, value: Any) -> None:
    """Put a value into nested values, under ``key.subkey``."""
    keys = name.removeprefix("--").split(".")
    section = values
    for key in keys[:-1]:
        section[key] = section.get(key) or {}
        section = section[key]
        if not isinstance(section, dict):
            raise InputError(f"{name} is below a key with a value of its own")
    section[keys[-1]] = plain_values(value)


def _named_texts(
    words: Sequence[str], sections: Mapping[str, Mapping[str, Any]]
) -> Iterator[tuple[str, str]]:
    """Yield the name, with its dashes, and the text of each setting among words.

    Args:
        words: of the command line.
        sections: section -> its settings by their names, of which hints take their names.

    Raises:
        InputError: a word names no setting, or has no text.
    """
    rest = iter(words)
    before = ""  # the setting before, and its text
    for word in rest:
        name, equals, text = word.partition("=")
        value = text if equals else next(rest, None)
        key = name.removeprefix("--")
        names_setting = name.startswith("--") and ("." in key or key in ("seed", "trainer"))
        if not names_setting or value is None:
            message = f"{word} is not a key with a value"
            hint = _key_like(key, sections) or "write --section.key VALUE"
            if before and not word.startswith("-"):
                hint = f"several values of one key have commas between them: {before},{word}"
            raise InputError(message, hint=hint)
        before = f"{name} {value}"
        yield name, value


def _key_like(word: str, sections: Mapping[str, Mapping[str, Any]]) -> str:
    """Return which settings a word without a section may mean; empty if there is none."""
    name = word.replace("-", "_")
    keys = [f"--{section}.{name} VALUE" for section, keys in sections.items() if name in keys]
    if name in ("epochs", "max_epochs") and not keys:
        keys.append("--trainer.max_epochs VALUE")
    return f"did you mean {' or '.join(keys)}?" if keys else ""


def _value_of(text: str, hint: Any) -> Any:
    """Return the value of a word for a setting with a type hint: the word is YAML, or the text
    itself where the setting takes one."""
    choices = get_args(hint)
    if hint is str or text in choices:
        return text
    value = parse_yaml(text)
    if str in choices and isinstance(value, int | float):
        return text
    return value


def _with_none(section: type[Settings], values: dict[str, Any]) -> dict[str, Any]:
    """Return values with None for the word none, which YAML takes for a text, where a setting may
    be None.
    """
    types = get_type_hints(section)
    resolved = dict(values)
    for key, value in values.items():
        if value == "none" and type(None) in get_args(types.get(key)):
            resolved[key] = None
    return resolved


def config_sections(settings: type[Settings] | None, *, data: bool) -> dict[str, type[Settings]]:
    """Return the classes of the settings in a configuration, by the field of its kind; without
    ``settings`` those of a training.
    """
    from segunc.data.module import DataConfig

    sections: dict[str, type[Settings]] = {}
    if data:
        sections["data"] = DataConfig
    if settings is not None:
        sections["settings"] = settings
    else:
        sections["network"] = NetworkConfig
        sections["optimisation"] = OptimisationConfig
    return sections


def save_config(config: Config, out: Path, verb: str) -> None:
    """Write the resolved configuration of a run beside its results, as ``<verb>.yaml``."""
    write_file(out / f"{verb}.yaml", dump_config(config.plain()).encode())


def save_settings(settings: Settings, path: Path) -> None:
    """Write settings as a YAML file with their section."""
    content = {settings.section: plain_values(asdict(cast(Any, settings)))}
    write_file(path, dump_config(content).encode())


def load_settings(kind: type[S], path: Path) -> S:
    """Return the settings in the section of their kind of a YAML file."""
    values = read_config(path)
    if kind.section not in values:
        raise InputError(
            f"configuration {path} has no section {kind.section}",
            hint=f"write {kind.section}: {{KEY: VALUE}}",
        )
    section = values[kind.section]
    if not isinstance(section, dict):
        raise InputError(f"configuration {path}: {kind.section} is {section!r}, not keys")
    return from_plain(kind, _with_none(kind, section), f"configuration {path}: {kind.section}")


def dump_config(content: Mapping[str, Any]) -> str:
    """Return a configuration as YAML that :func:`read_config` reads."""
    return dump_yaml(content)


def environment(precision: object) -> dict[str, Any]:
    """Return when and in what a training ran, for its record."""
    return {
        "date": now(),
        "torch": torch.__version__,
        "precision": str(precision),
        "threads": torch.get_num_threads(),
    }


def plain_values(value: Any) -> Any:
    """Return tuples and paths as YAML knows them."""
    return json.loads(json.dumps(value, default=str))
