"""One score of several: a sum of standardised scores, for the score ``anomaly``.

Scores have units of their own. Each is taken in standard deviations from its mean over frames of known scenes, no anomaly among them,
and the sum is weighted: what the network's own logits find and what the features of a witness find are not the same things.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from segunc.core.bounds import NonNegativeInt, PositiveFloat, PositiveInt, Settings
from segunc.core.device import flushed_denormals, resolve_device
from segunc.core.errors import InputError
from segunc.posteriors.fitting import Attachment, fitted_on, frames_as_seen, load_for_fitting
from segunc.posteriors.max_logit import ClassMoments
from segunc.posteriors.methods import Method
from segunc.sampling.sampler import Sampler
from segunc.scores import FEATURES, SCORES, SUM, check_scores
from segunc.training.config import FitConfig
from segunc.training.progress import Say, say


@dataclass(frozen=True)
class ScoreSum(Attachment):
    """Parts, weights and constants of a sum of standardised scores."""

    file: ClassVar[str] = "anomaly.json"
    what: ClassVar[str] = "sum of scores"

    parts: tuple[str, ...]  # names of scores
    weights: tuple[float, ...]
    mean: tuple[float, ...]  # of each part over the pixels of the frames, and its standard deviation, above 0
    std: tuple[float, ...]
    fitted_on: Mapping[str, Any]  # the data set, its split, the size that the network saw, and the date
    frames: int
    draws: int
    base_sha256: str
    posterior_sha256: str | None
    features_sha256: str | None  # of what is behind scores of features, None where no part needs one

    def __call__(self, maps: Mapping[str, Tensor]) -> Tensor:
        """The sum ``[n, H, W]`` of maps ``[n, H, W]`` by name."""
        terms = zip(self.parts, self.weights, self.mean, self.std, strict=True)
        parts = [weight * (maps[name].float() - mean) / std for name, weight, mean, std in terms]
        return torch.stack(parts).sum(0)

    def numbers(self) -> dict[str, list[Any]]:
        """What decides its values."""
        return {name: list(getattr(self, name)) for name in ("parts", "weights", "mean", "std")}

    @classmethod
    def read(cls, folder: Path, base_sha256: str, posterior_sha256: str | None, features: str | None) -> Self | None:
        """The sum in the folder of a model with these hashes, None where there is none; InputError where it is damaged, or was
        fitted on another model or bank."""
        content = cls.content(folder, base_sha256=base_sha256, posterior_sha256=posterior_sha256)
        if content is None:
            return None
        if content["features_sha256"] is not None:
            cls.content(folder, features_sha256=features)
        cls.take_numbers(content, folder / cls.file, len(content["parts"]), "weights", "mean", "std")
        return cls(**content | {"parts": _checked(content["parts"])})


@dataclass(frozen=True)
class AnomalyConfig(Settings):
    """How the sum is made.

    Args:
        parts: names of scores, none of them a sum.
        weights: of the parts, in their order; none for 1 each.
        split: of the data set whose frames of known scenes the parts are standardised on; not the one that was trained on.
        frames: how many evenly spaced frames (0: all).
        draws: of the posterior, where a part needs them.
    """

    section = "anomaly"
    parts: list[str] = field(default_factory=lambda: ["deterministic-energy", "knn"])
    weights: list[PositiveFloat] | None = None
    split: str = "val"
    frames: NonNegativeInt = 50
    draws: PositiveInt = 12


def _checked(parts: list[str]) -> tuple[str, ...]:
    names = check_scores(parts)
    for name in names:
        if SUM in SCORES[name].needs:
            raise InputError(f"a sum with the part '{name}'", "scores that are no sums", "leave it out")
    return names


@flushed_denormals()
def fit_sum(
    base: Path, config: FitConfig[AnomalyConfig], out: Path, *, device: str = "auto", say: Say = say
) -> ScoreSum:
    """Measure the parts on known scenes and write the same model with their sum; ``out`` may be ``base``.

    See :class:`segunc.posteriors.methods.Method`; InputError for a part without what it needs, or that is one number everywhere.
    """
    settings = config.settings
    parts = _checked(settings.parts)
    weights = tuple(settings.weights or [1.0] * len(parts))
    if len(weights) != len(parts):
        raise InputError(f"anomaly.weights {list(weights)}", f"{len(parts)}, one for each part", "repair it")
    model, data = load_for_fitting(base, config, resolve_device(device))
    sampler = Sampler(
        model.network,
        model.posterior if model.bayesian else None,
        draws=max(settings.draws, model.posterior.members),
        scores=parts,
        **model.fitted(parts),
    )
    moments, frames = {name: ClassMoments(1) for name in parts}, 0
    for _, image, _ in frames_as_seen(model, data, settings.split, settings.frames, METHOD.name):
        for name, maps in sampler(image).scores.items():
            values = maps.flatten()
            moments[name].add(values, torch.zeros_like(values, dtype=torch.long))
        frames += 1
    means, deviations = zip(*(moments[name].pooled() for name in parts), strict=True)
    for name, mean, deviation in zip(parts, means, deviations, strict=True):
        if not deviation > 0:
            raise InputError(
                f"score {name} is {mean:g} at every pixel", "a score that tells pixels apart", "leave it out"
            )
    by_features = any(FEATURES.intersection(SCORES[name].needs) for name in parts)
    bank = model.features.bank.tensors_sha256 if model.features and by_features else None
    found = ScoreSum(
        parts, weights, means, deviations, fitted_on(config, settings.split), frames, sampler.draws,
        model.sha256, model.posterior_sha256, bank,
    )  # fmt: skip
    found.attach(base, config, out, METHOD.name)
    terms = ", ".join(f"{n} {m:.3g} +- {s:.3g}" for n, m, s in zip(parts, means, deviations, strict=True))
    say(f"wrote {out}: anomaly is the sum of {terms} on {frames} frames of {settings.split}")
    return found


METHOD = Method("anomaly", AnomalyConfig, fit_sum, finished=True)
