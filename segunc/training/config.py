"""Configurations of the training verbs: frozen dataclasses, from Python or from a file in which every unknown key is refused."""

from __future__ import annotations

import inspect
import json
import re
import textwrap
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import torch
import yaml

from segunc.affine.posterior import Prior
from segunc.core.bounds import (
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    Seed,
    Settings,
    UnitInterval,
    check_value,
    meanings,
)
from segunc.core.errors import InputError, words_of
from segunc.core.files import read_text, reading
from segunc.training.data import OwnData
from segunc.training.losses import Schedule

S = TypeVar("S", bound=Settings)
C = TypeVar("C", bound="Config")
MOST_VALUES = 100_000
MOST_DIGITS = 1000
"""Of a configuration in YAML."""
CLASS_PATH, HIDDEN = "class_path", "class path"
"""jsonargparse imports whatever stands under the first key, so it is given the second."""


@dataclass(frozen=True)
class NetworkConfig(Settings):
    """Which network is built.

    Args:
        architecture: an smp architecture.
        encoder: an smp encoder.
        options: further keyword arguments of the architecture.
        weights: path of a checkpoint to start from (state dict of the whole network), or none.
        encoder_weights: of the encoder alone: a name of smp's (imagenet), or a file of smp, timm or torchvision; or none. With ``weights``,
            which hold the encoder, they only say the normalisation.
        mean, std: input normalisation of images in 0..1; none for that of the encoder's weights, or ImageNet's.
        inference_size: (height, width) the network is meant for; none for each frame's own.
    """

    section = "network"
    architecture: str = "DeepLabV3Plus"
    encoder: str = "resnet18"
    options: dict[str, Any] = field(default_factory=dict)
    weights: str | None = None
    encoder_weights: str | None = None
    mean: tuple[float, float, float] | None = None
    std: tuple[float, float, float] | None = None
    inference_size: tuple[int, int] | None = None


@dataclass(frozen=True)
class OptimisationConfig(Settings):
    """How the base network is trained.

    Args:
        optimizer: adamw or sgd.
        lr: peak learning rate.
        weight_decay: of weights (not of normalisation parameters and biases).
        schedule: onecycle, poly or constant.
        class_weight_power: class weights are frequency ** -power; 0 is plain cross-entropy.
        dice: weight of the Dice term.
        label_smoothing: of the cross-entropy.
    """

    section = "optimisation"
    optimizer: Literal["adamw", "sgd"] = "adamw"
    lr: PositiveFloat = 1e-3
    weight_decay: NonNegativeFloat = 1e-4
    schedule: Schedule = "onecycle"
    class_weight_power: NonNegativeFloat = 0.0
    dice: NonNegativeFloat = 0.0
    label_smoothing: UnitInterval = 0.0


@dataclass(frozen=True)
class AffineTrainingConfig(Settings):
    """What the methods that train affine parameters have in common.

    Args:
        scope: norm sites that are stochastic: all, encoder, decoder, last:N, every:N or a regular expression.
        epochs: passes over the training set.
        max_steps: at most this many steps (0: no limit).
        lr: learning rate.
        prior_scale: s of the Gaussian prior N(theta; theta_prior, s^2) on the affine parameters.
        effective_pixels: N_eff, how many independent pixels the training set counts for.
        class_weight_power: weights of all classes as in the base's training; 0 for none.
        dice: weight of the Dice term.
        seed: of everything random, the noise and the shuffle for instance.
    """

    scope: str = "all"
    epochs: NonNegativeInt = 2
    max_steps: NonNegativeInt = 0
    lr: PositiveFloat = 0.005
    prior_scale: PositiveFloat = Prior.scale
    effective_pixels: PositiveFloat = Prior.effective_pixels
    class_weight_power: NonNegativeFloat = 0.0
    dice: NonNegativeFloat = 0.0
    seed: NonNegativeInt = 0

    def prior(self, **more: Any) -> Prior:
        """The prior of these settings; ``more`` are what only some methods let a user choose."""
        return Prior(self.prior_scale, self.effective_pixels, **more)


@dataclass(frozen=True)
class Config:
    """A resolved configuration."""

    def plain(self) -> dict[str, Any]:
        """As YAML and JSON know it; settings stand under the key of their section."""
        content: dict[str, Any] = {}
        names = [f.name for f in fields(self)]
        for name in sorted(names, key=lambda name: ("seed", "data", "trainer", *names).index(name)):
            if (value := getattr(self, name)) is None:
                continue
            if isinstance(value, Settings):
                content[value.section] = _plain(asdict(value))
            else:
                content[name] = "own loaders" if isinstance(value, OwnData) else _plain(value)
        return content


@dataclass(frozen=True)
class TrainConfig(Config):
    """Of ``segunc train``: arguments of :class:`segunc.data.module.SegmentationDataModule` and of Lightning's Trainer, the seed of
    everything random, and what is trained, and how."""

    data: Mapping[str, Any]
    seed: NonNegativeInt = 0
    trainer: Mapping[str, Any] = field(default_factory=dict)
    network: NetworkConfig = field(default_factory=NetworkConfig)
    optimisation: OptimisationConfig = field(default_factory=OptimisationConfig)


@dataclass(frozen=True)
class FitConfig(Config, Generic[S]):
    """Of a method that is fitted on a finished model: its settings, and arguments of
    :class:`segunc.data.module.SegmentationDataModule`, none where it looks at no data."""

    settings: S
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class FinetuneConfig(Config, Generic[S]):
    """Of a method that makes a posterior from a deterministic base: its settings, data as arguments of
    :class:`segunc.data.module.SegmentationDataModule`, none where the settings' ``uses_data`` is empty, or loaders of your own, and arguments of Lightning's Trainer. The seed stands
    in files for the sake of ``segunc train``; the method's own decides."""

    settings: S
    data: Mapping[str, Any] | OwnData
    trainer: Mapping[str, Any] = field(default_factory=dict)
    seed: NonNegativeInt = 0


def parse_config(
    kind: type[C],
    config: Path | None,
    overrides: list[str],
    settings: type[Settings] | None = None,
    *,
    data: bool | OwnData = True,
) -> C:
    """A resolved configuration from a YAML file and overrides.

    Args:
        config: the file, or None for the defaults.
        overrides: ``--data.root PATH``, ``--trainer.max_epochs 3`` and the like.
        settings: the method's, where the kind has any.
        data: whether it looks at data, or loaders in place of a data set.

    Raises:
        InputError: an unknown key, a value of the wrong type or out of its range, a missing file, or no data for what needs some.
    """
    from jsonargparse import ArgumentError

    from segunc.training.loggers import services

    with reading(f"configuration {config}", "a YAML file in UTF-8", "see configs/ for examples"):
        text = "" if config is None else read_text(config)
    if config is not None and not text.strip():
        given = f"configuration {config} is empty"
        raise InputError(given, "at least `data` with its dataset and root", "see configs/")
    named = any(word.startswith("--data") for word in overrides) or re.search(r"\bdata[\"']?\s*:", text) is not None
    sections = _sections(kind, settings, data=data is True and named)
    try:
        parsed = _parsed(config, overrides, {f.name for f in fields(kind)}, list(sections.values()))
        typed = any(re.match(r"--trainer(\.logger\+?)?(=|$)", word) for word in overrides)
        for service in [] if typed else services(parsed.get("trainer", {}).get("logger")):
            expected = "services on the command line alone"
            raise InputError(f"it sends numbers to {service}", expected, f"--logger {service}")
        for part in (parsed, *(parsed[section.section] for section in sections.values())):
            check_value("seed", part.get("seed", 0), Seed)
        made: dict[str, Any] = {name: _settings(part, parsed[part.section]) for name, part in sections.items()}
        if "data" in made:
            made["data"] = asdict(made["data"])
        elif isinstance(data, OwnData):
            made["data"] = data
        elif data:
            chosen, made["data"] = made.get("settings"), {}
            if uses := getattr(chosen, "uses_data", {"train": "what is trained or fitted"}):
                given, remedy = f"no data for {' and '.join(uses.values())}", getattr(chosen, "without_data", "")
                raise InputError(given, "data in --config, or --data.dataset NAME --data.root DIR", remedy)
        return kind(**{name: parsed[name] for name in ("seed", "trainer") if name in parsed}, **made)
    except (ArgumentError, ValueError, RecursionError) as error:
        said = re.sub(r"a typing\.Literal\[([^]]*)\]", r"one of \1", words_of(error))
        said = re.sub(r"(?:a )?<class '(\w+)'>", r"\1", said).replace("NoneType", "none")
        given = f"configuration{f' {config}' if config else ''}: {said}"
        verb = "train" if kind is TrainConfig else "finetune"
        raise InputError(given, "", f"see `segunc {verb} --help` and configs/ for the keys") from error


def _parsed(
    config: Path | None, overrides: list[str], names: set[str], sections: list[type[Settings]]
) -> dict[str, Any]:
    """Return the values of a file and of overrides, where jsonargparse imports nothing that they name.

    Args:
        names: the fields of the configuration, which may have ``seed`` and ``trainer``.
    """
    from jsonargparse import ArgumentParser, get_loader, set_loader

    # jsonargparse imports what stands for a whole section, too, where it is a text that is no file.
    whole = ("data", *(section.section for section in sections))
    for word, following in zip(overrides, [*overrides, ""][1:], strict=True):
        key, equals, value = word.removeprefix("--").partition("=")
        text = value if equals else following
        if not word.startswith("--"):
            continue  # a value, which may be called as a section is: --data.root data
        if CLASS_PATH in key.split(".") or (key in whole and not text.lstrip().startswith("{")):
            raise InputError(f"{word}", "one key after another", "--section.key VALUE, or --section '{key: VALUE}'")

    def load(content: str) -> Any:
        """What jsonargparse reads of a file, of another that it names, or of a word of the command line."""
        if claimed := _claimed(content):
            raise InputError(f"it has {claimed}", "the configuration of a run")
        value = get_loader("yaml")(content)
        if isinstance(value, dict):
            for key in [key for key in ("config", "trainer", *whole) if not isinstance(value.get(key), dict | None)]:
                raise InputError(f"{key} '{value[key]}'", "keys and values in this file", "write them out")
        return _renamed(value, CLASS_PATH, HIDDEN)

    set_loader("segunc", load, (yaml.YAMLError,))
    parser = ArgumentParser(exit_on_error=False, parser_mode="segunc")
    parser.add_argument("--config", action="config")
    if "seed" in names:
        parser.add_argument("--seed", type=int, default=0)
    if "trainer" in names:
        parser.add_argument("--trainer", type=dict[str, Any], default={})
    for section in sections:
        parser.add_class_arguments(section, section.section)
    words = [*([] if config is None else ["--config", str(config)]), *overrides]
    parsed: dict[str, Any] = _renamed(parser.parse_args(words).as_dict(), HIDDEN, CLASS_PATH)
    check_value("", parsed, Any)
    if empty := [section.section for section in sections if parsed[section.section] is None]:
        raise InputError(f"{empty[0]} without a key below it", "its settings, or no such key", "")
    return parsed


def _renamed(value: Any, old: str, new: str) -> Any:
    """A nested value with another name for one key of its mappings."""
    if isinstance(value, dict):
        return {new if key == old else key: _renamed(item, old, new) for key, item in value.items()}
    return type(value)(_renamed(item, old, new) for item in value) if isinstance(value, list | tuple) else value


def _claimed(text: str) -> str:
    """What of a YAML text is too large to be built: its values with every alias written out, each of which may stand for two of the last,
    or a number of so many digits that Python converts none. Empty where nothing is; what is no YAML is left to the parser."""
    sizes: dict[int, int] = {}
    long: list[int] = []

    def size(node: yaml.Node) -> int:
        if id(node) not in sizes:
            sizes[id(node)] = MOST_VALUES + 1  # of one that holds itself
            children = node.value if isinstance(node, yaml.CollectionNode) else ()
            if isinstance(node, yaml.ScalarNode) and node.tag.endswith((":int", ":float")):
                long.append(len(node.value))
            pairs = (child if isinstance(child, tuple) else (child,) for child in children)
            sizes[id(node)] = 1 + sum(size(one) for pair in pairs for one in pair)
        return sizes[id(node)]

    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        values = 0 if root is None else size(root)
    except (yaml.YAMLError, RecursionError):
        return ""
    if values > MOST_VALUES:
        return f"more than {MOST_VALUES} values, its aliases written out"
    return f"a number of {max(long)} digits" if max(long, default=0) > MOST_DIGITS else ""


def _sections(kind: type[Config], own: type[Settings] | None, *, data: bool) -> dict[str, type[Settings]]:
    """Return the settings in a configuration, by the field of its kind."""
    from segunc.data.module import DataConfig

    found: dict[str, type[Settings]] = {"data": DataConfig} if data else {}
    found |= {"settings": own} if own else {"network": NetworkConfig, "optimisation": OptimisationConfig}
    return {name: part for name, part in found.items() if name in kind.__dataclass_fields__}


def configuration_help(kind: type[Config], settings: type[Settings] | None, *, data: bool) -> str:
    """The keys of a configuration, what they mean and their defaults, as signatures and docstrings of the classes that take them say."""
    lines = ["keys of the configuration, in a YAML file (--config) or as --key VALUE:"]
    if "trainer" in {f.name for f in fields(kind)}:
        lines += ["  --trainer.KEY  any argument of lightning.Trainer, e.g. --trainer.max_epochs 3"]
    for section in _sections(kind, settings, data=data).values():
        name = section.section
        about, _, _ = inspect.cleandoc(section.__doc__ or "").partition("\n\n")
        lines += ["", *textwrap.wrap(_prose(f"{name}: {about}"), 108)]
        about_keys = meanings(section)
        for key in fields(section):
            default = key.default if key.default_factory is MISSING else key.default_factory()
            text = default if isinstance(default, str) else json.dumps(_plain(default)).replace("null", "none")
            value = "required" if default is MISSING else f"default {text}"
            said = _prose(f"{about_keys.get(key.name, ('', ''))[1]} ({value})")
            lines += [
                f"  --{name}.{key.name}",
                *textwrap.wrap(said, 100, initial_indent=" " * 8, subsequent_indent=" " * 8),
            ]
    return "\n".join(lines)


def _prose(text: str) -> str:
    """Without what only a page of documentation shows otherwise."""
    return re.sub(r":\w+:`([^`]*)`|``", r"\1", text).replace(". (", " (").strip()


def _settings(section: type[S], values: Mapping[str, Any]) -> S:
    try:
        return section(**values)
    except InputError as error:
        raise InputError(f"{section.section}.{error.given}", error.expected, error.remedy) from error


def save_config(config: Config, out: Path, verb: str) -> None:
    """Write the resolved configuration of a run beside its results, as ``<verb>.yaml``."""
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{verb}.yaml").write_text(yaml.safe_dump(config.plain(), sort_keys=False), encoding="utf-8")


def now() -> str:
    """The moment, to the second, for records."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def environment(precision: object) -> dict[str, Any]:
    """When and in what a training ran, for its record."""
    threads = torch.get_num_threads()
    return {"date": now(), "torch": torch.__version__, "precision": str(precision), "threads": threads}


def _plain(value: Any) -> Any:
    """Tuples and paths as YAML knows them."""
    if isinstance(value, Mapping):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return value if isinstance(value, (str, int, float, bool)) or value is None else str(value)
