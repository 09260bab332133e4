"""Configuration files of the training verbs: typed, checked, every unknown key refused."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from jsonargparse import ArgumentError, ArgumentParser, Namespace
from jsonargparse.typing import ClosedUnitInterval, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from segunc.core.errors import InputError
from segunc.data.module import SegmentationDataModule
from segunc.training.losses import Schedule


@dataclass
class NetworkConfig:
    """Which network is built.

    Args:
        architecture: an smp architecture.
        encoder: an smp encoder.
        options: further keyword arguments of the architecture.
        weights: path of a checkpoint to start from (state dict of the whole network), or none.
        encoder_weights: path of a checkpoint of the encoder alone, or none.
        inference_size: (height, width) the network is meant for; none for each frame's own.
    """

    architecture: str = "DeepLabV3Plus"
    encoder: str = "resnet18"
    options: dict[str, Any] = field(default_factory=dict)
    weights: str | None = None
    encoder_weights: str | None = None
    inference_size: tuple[int, int] | None = None


@dataclass
class OptimisationConfig:
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

    optimizer: Literal["adamw", "sgd"] = "adamw"
    lr: PositiveFloat = 1e-3
    weight_decay: NonNegativeFloat = 1e-4
    schedule: Schedule = "onecycle"
    class_weight_power: NonNegativeFloat = 0.0
    dice: NonNegativeFloat = 0.0
    label_smoothing: ClosedUnitInterval = 0.0


@dataclass
class AffineTrainingConfig:
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
    prior_scale: PositiveFloat = 0.1
    effective_pixels: PositiveFloat = 100_000.0
    class_weight_power: NonNegativeFloat = 0.0
    dice: NonNegativeFloat = 0.0
    seed: NonNegativeInt = 0


@dataclass
class AbnnConfig(AffineTrainingConfig):
    """How ABNN members are made; epochs and steps are those of each member, and 0 epochs only select alpha.

    Args:
        members: M, the number of affine sets.
        alpha: noise scale, or none to select it from ``alpha_grid`` on validation NLL.
        alpha_grid: the candidates.
        alpha_frames: validation frames used for the selection, evenly spaced (0: all).
        alpha_corruption: strength, 1 to 5, of the five corruptions under which these frames are looked at; 0 leaves them clean.
        alpha_draws: draws for each candidate.
        noise: channel (the published formula) or element (what public code does).
        statistics: frozen, or reestimated: each member's running statistics are averaged again after training.
        optimizer: sgd (Nesterov momentum 0.9) or adamw.
        schedule: onecycle, poly or constant.
        prior_mean: base (the trained values) or zero (plain weight decay).
        random_classes: how many randomly chosen classes each member weights up.
        random_class_weight: their weight in its cross-entropy.
    """

    members: PositiveInt = 3
    alpha: NonNegativeFloat | None = None
    alpha_grid: list[NonNegativeFloat] = field(default_factory=lambda: [0.02, 0.05, 0.1, 0.2])
    alpha_frames: NonNegativeInt = 24
    alpha_corruption: Literal[0, 1, 2, 3, 4, 5] = 0
    alpha_draws: PositiveInt = 6
    noise: Literal["channel", "element"] = "channel"
    statistics: Literal["frozen", "reestimated"] = "frozen"
    optimizer: Literal["sgd", "adamw"] = "sgd"
    schedule: Schedule = "poly"
    prior_mean: Literal["base", "zero"] = "base"
    random_classes: NonNegativeInt = 3
    random_class_weight: NonNegativeFloat = 4.0


def _parse(parser: ArgumentParser, config: Path | None, overrides: list[str]) -> Namespace:
    if config is not None and not config.is_file():
        raise InputError(f"configuration {config} does not exist", "a YAML file", "see configs/ for examples")
    if config is not None and not config.read_bytes().strip():
        raise InputError(
            f"configuration {config} is empty", "at least `data` with its dataset and root", "see configs/"
        )
    try:
        given = [] if config is None else ["--config", str(config)]
        parsed = parser.parse_args([*given, *overrides])
    except ArgumentError as error:
        text = " ".join(str(error).split())
        raise InputError(
            f"configuration{f' {config}' if config else ''}: {text}",
            "",
            "see `segunc train --help` and configs/ for the keys",
        ) from error
    for key, value in list(parsed.items()):
        parsed[key] = _native(value)
    return parsed


def _native(value: Any) -> Any:
    """Bounded numbers as plain ones: checkpoints hold settings, and are read back without any class but Python's own."""
    if isinstance(value, list):
        return [_native(v) for v in value]
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    return int(value) if isinstance(value, int) else float(value)


def _parser() -> ArgumentParser:
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--config", action="config")
    parser.add_argument("--seed", type=NonNegativeInt, default=0)
    parser.add_class_arguments(SegmentationDataModule, "data")
    parser.add_argument("--trainer", type=dict[str, Any], default={})
    return parser


def parse_train_config(config: Path, overrides: list[str]) -> Namespace:
    """The resolved configuration of ``segunc train``: seed, network, data, optimisation, trainer.

    Args:
        config: a YAML file.
        overrides: ``--data.root PATH``, ``--trainer.max_epochs 3`` and the like.

    Raises:
        InputError: an unknown key, a value of the wrong type, a missing file.
    """
    parser = _parser()
    parser.add_class_arguments(NetworkConfig, "network")
    parser.add_class_arguments(OptimisationConfig, "optimisation")
    return _parse(parser, config, overrides)


def parse_finetune_config(
    config: Path, overrides: list[str], section: str = "abnn", options: type = AbnnConfig
) -> Namespace:
    """The resolved configuration of ``segunc finetune``: seed, data, the method's section, trainer.

    Args:
        config, overrides: see :func:`parse_train_config`.
        section: the key that the method's settings stand under.
        options: the dataclass of these settings.
    """
    parser = _parser()
    parser.add_class_arguments(options, section)
    return _parse(parser, config, overrides)


def parse_fit_config(config: Path, overrides: list[str], name: str, settings: type[Any]) -> Namespace:
    """The resolved configuration of what is fitted on a finished model: ``data`` and one group of settings.

    Args:
        config, overrides: see :func:`parse_train_config`.
        name: of the group.
        settings: its dataclass.

    Raises:
        InputError: an unknown key, a value of the wrong type, a missing file.
    """
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--config", action="config")
    parser.add_class_arguments(SegmentationDataModule, "data")
    parser.add_class_arguments(settings, name)
    return _parse(parser, config, overrides)


def parse_settings(config: Path | None, overrides: list[str], name: str, settings: type[Any]) -> Namespace:
    """The resolved configuration of what needs no data: one group of settings, each with a default.

    Args:
        config: a YAML file, or None for the defaults.
        overrides, name, settings: see :func:`parse_fit_config`.

    Raises:
        InputError: an unknown key, a value of the wrong type, a missing file.
    """
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--config", action="config")
    parser.add_class_arguments(settings, name)
    return _parse(parser, config, overrides)


def save_config(config: Namespace, out: Path, verb: str) -> None:
    """Write the resolved configuration of a run beside its results, as ``<verb>.yaml``."""
    import yaml

    out.mkdir(parents=True, exist_ok=True)
    (out / f"{verb}.yaml").write_text(yaml.safe_dump(plain_config(config), sort_keys=False), encoding="utf-8")


def plain_config(config: Namespace) -> dict[str, Any]:
    """A resolved configuration as YAML and JSON know it, without the path it was read from."""
    content: dict[str, Any] = _plain({key: value for key, value in config.as_dict().items() if key != "config"})
    return content


def _plain(value: Any) -> Any:
    """Tuples and paths as YAML knows them."""
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return value if isinstance(value, (str, int, float, bool)) or value is None else str(value)
