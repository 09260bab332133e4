"""One score of several, for the score ``anomaly``: its parts are brought to one scale, weighted, added, and told as a surprise.

Scores have units of their own. Each is taken in standard deviations from its mean over the pixels of known scenes, or as its own
surprise (then the sum is Fisher's of tail probabilities), and the sum is weighted: what the network's own logits find and what the
features of a witness find are not the same things. In the end the sum, too, is told as a :class:`Surprise`, so that 3 means the same of
every model: one in a thousand pixels of known scenes scores as high.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Self, get_args

import numpy as np
import torch
from torch import Tensor

from segunc.core.bounds import NonNegativeInt, PositiveFloat, PositiveInt, Settings
from segunc.core.device import flushed_denormals, resolve_device, to_device
from segunc.core.errors import InputError
from segunc.posteriors.fitting import fitted_on, load_for_fitting
from segunc.posteriors.methods import Method
from segunc.posteriors.model import Attachment, Model
from segunc.posteriors.pasted import Frames, Pixels, gather_pixels, mean_precision
from segunc.sampling.sampler import Sampler
from segunc.scores import SCORES, SUM, check_scores
from segunc.training.config import FitConfig, SelectConfig
from segunc.training.progress import Say, say

STEPS, DECADES = 8, 3
"""Levels of a surprise: of each power of ten of the share of pixels, and how many powers; beyond them the tail is a straight line."""
MOST_PARTS = 4
"""Of a sum that is chosen."""
Normalisation = Literal["standard", "rank"]


@dataclass(frozen=True)
class Surprise:
    """How rare a value is in known scenes: ``-log10`` of the share of their pixels that reach it, 0 and more.

    Linear between levels, each an eighth of a power of ten; beyond the last (one pixel in a thousand) values are taken to exceed it by
    an exponential law of the mean excess seen (peaks over a threshold; Pickands 1975), which tells apart what no known pixel reached.
    """

    levels: tuple[float, ...]  # a share of 10 ** -(k / STEPS) of the pixels reaches level k; ascending
    excess: float  # mean excess over the last level, above 0

    @classmethod
    def of(cls, values: Tensor) -> Self:
        """Of the values ``[N]`` of pixels of known scenes, which are not all the same."""
        shares = 10.0 ** -(np.arange(STEPS * DECADES + 1) / STEPS)
        levels = np.quantile(values.double().numpy(), 1 - shares)
        beyond = values.double() - levels[-1]
        # Where many share the largest value there is no tail to measure; the range of all known pixels stands for it.
        excess = beyond[beyond > 0].mean() if (beyond > 0).any() else levels[-1] - levels[0]
        return cls(tuple(levels.tolist()), float(excess))

    def __call__(self, values: Tensor) -> Tensor:
        levels = to_device(torch.tensor(self.levels, dtype=values.dtype), values.device)
        above = torch.searchsorted(levels, values.contiguous()).clamp_(1, len(levels) - 1)
        low, high = levels[above - 1], levels[above]
        share = ((values - low) / (high - low).clamp_min(torch.finfo(values.dtype).tiny)).clamp_(0.0, 1.0)
        return (above - 1 + share) / STEPS + (values - levels[-1]).clamp_min(0.0) / (self.excess * math.log(10))


@dataclass(frozen=True)
class Standard:
    """Values in standard deviations from their mean over pixels of known scenes."""

    mean: float
    std: float  # above 0

    @classmethod
    def of(cls, values: Tensor) -> Self:
        """Of the values ``[N]`` of such pixels."""
        return cls(float(values.double().mean()), float(values.double().std(correction=0)))

    def __call__(self, values: Tensor) -> Tensor:
        return (values - self.mean) / self.std


SCALES: Mapping[Normalisation, type[Standard] | type[Surprise]] = {"standard": Standard, "rank": Surprise}


def weighted_sum(values: Tensor, weights: Sequence[float], scales: Sequence[Standard | Surprise]) -> Tensor:
    """The sum ``[...]`` of the values ``[P, ...]`` of P scores."""
    terms = zip(weights, scales, values, strict=True)
    return torch.stack([weight * scale(one) for weight, scale, one in terms]).sum(0)


@dataclass(frozen=True)
class ScoreSum(Attachment):
    """Parts, weights and scales of a sum of scores."""

    file: ClassVar[str] = "anomaly.json"
    what: ClassVar[str] = "sum of scores"
    bound_by: ClassVar[tuple[str, ...]] = ("base_sha256", "posterior_sha256", "temperature", "calibrator_sha256")
    of_others: ClassVar[bool] = True

    parts: tuple[str, ...]  # names of scores
    weights: tuple[float, ...]
    scales: tuple[Standard | Surprise, ...]  # of the parts
    surprise: Surprise  # of the sum
    selected: Mapping[str, float]  # what selection gave to each candidate, empty where nothing was selected
    fitted_on: Mapping[str, Any]  # the data set, its split, the size that the network saw, and the date
    frames: int
    draws: int
    temperature: float  # by which logits were divided
    base_sha256: str
    posterior_sha256: str | None
    features_sha256: str | None  # of what is behind scores of features, None where no part needs one
    calibrator_sha256: str | None = None  # of the mean over the draws, None where it was not calibrated

    gives = frozenset({SUM})

    def __call__(self, maps: Mapping[str, Tensor], *_: object) -> dict[str, Tensor]:
        """The surprise ``[n, H, W]`` of the sum of maps ``[n, H, W]`` by name."""
        values = torch.stack([maps[name].float() for name in self.parts])
        return {SUM: self.surprise(weighted_sum(values, self.weights, self.scales))}

    def record(self) -> dict[str, Any]:
        whole = asdict(self)
        return {"anomaly": {name: whole[name] for name in ("parts", "weights", "scales", "surprise")}}

    @classmethod
    def load(cls, folder: Path, model: Model) -> Self:
        content = cls.content(folder, **{name: model.hashes[name] for name in cls.bound_by})
        if content["features_sha256"] is not None:
            cls.content(folder, features_sha256=model.hashes["features_sha256"])
        scales = tuple(map(_scale, content["scales"]))
        surprise = Surprise(tuple(content["surprise"]["levels"]), content["surprise"]["excess"])
        return cls(**content | {"parts": _checked(content["parts"]), "scales": scales, "surprise": surprise})


def _scale(numbers: Mapping[str, Any]) -> Standard | Surprise:
    """Return a scale as it was stored."""
    return Standard(**numbers) if "mean" in numbers else Surprise(tuple(numbers["levels"]), numbers["excess"])


def _checked(parts: Sequence[str]) -> tuple[str, ...]:
    names = check_scores(parts)
    for name in names:
        if "scores" in SCORES[name].sources:
            raise InputError(f"a sum with the part '{name}'", "scores that are no sums", "leave it out")
    return names


@dataclass(frozen=True)
class AnomalyConfig(Settings):
    """How the sum is made, of frames of known scenes: ``val`` of each fold of the data, see ``select``. With leave-sequence-out these
    are frames that features were not taken of, but that a base which was trained on all sequences has seen.

    Args:
        parts: names of scores, none of them a sum; with select.anomalies those to choose from.
        weights: of the parts, in their order; none for 1 each, or for those that selection finds.
        normalisation: standard (deviations from the mean) or rank (surprise of each part); none for standard, or for the better one.
        draws: of the posterior, where a part needs them.
        seed: of the pixels that are looked at.
    """

    section = "anomaly"
    parts: list[str] = field(default_factory=lambda: ["deterministic-energy", "knn"])
    weights: list[PositiveFloat] | None = None
    normalisation: Normalisation | None = None
    draws: PositiveInt = 12
    seed: NonNegativeInt = 0


class Candidate(NamedTuple):
    """A sum of some of the parts."""

    places: tuple[int, ...]
    weights: tuple[float, ...]
    normalisation: Normalisation

    def words(self, parts: Sequence[str]) -> str:
        """``deterministic-energy + 2 knn, standard``."""
        terms = zip(self.weights, self.places, strict=True)
        return f"{' + '.join(f'{w:g} {parts[p]}' if w != 1 else parts[p] for w, p in terms)}, {self.normalisation}"


def candidates(parts: int, settings: AnomalyConfig) -> Iterator[Candidate]:
    """The sums to choose from, the simplest first: of at most :data:`MOST_PARTS` parts, each once or twice."""
    normalisations = (settings.normalisation,) if settings.normalisation else get_args(Normalisation)
    if settings.weights is not None:
        yield from (Candidate(tuple(range(parts)), tuple(settings.weights), form) for form in normalisations)
        return
    for count in range(1, min(parts, MOST_PARTS) + 1):
        for places in itertools.combinations(range(parts), count):
            for weights in itertools.product((1.0, 2.0), repeat=count):
                if min(weights) == 1 and (count > 1 or weights == (1,)):
                    yield from (Candidate(places, weights, form) for form in normalisations)


def choose(pixels: Pixels, parts: Sequence[str], settings: AnomalyConfig) -> tuple[Candidate, dict[str, float]]:
    """The sum that finds most of the pasted objects, of equals the simplest, and what each found."""
    known = pixels.values[:, (pixels.size == 0) & pixels.clean]
    scaled = {
        form: torch.stack([SCALES[form].of(of_known)(values) for of_known, values in zip(known, pixels.values, strict=True)])
        for form in get_args(Normalisation)
    }  # fmt: skip
    found = {
        candidate: mean_precision(
            torch.tensordot(torch.tensor(candidate.weights), scaled[candidate.normalisation][list(candidate.places)], 1),
            pixels.size,
        )
        for candidate in candidates(len(parts), settings)
    }  # fmt: skip
    return max(found, key=lambda candidate: found[candidate]), {
        c.words(parts): v for c, v in sorted(found.items(), key=lambda one: -one[1])
    }


@flushed_denormals()
def fit_sum(
    base: Path, config: FitConfig[AnomalyConfig], out: Path, *, device: str = "auto", say: Say = say
) -> ScoreSum:
    """Measure the parts on known scenes and write the same model with their sum; ``out`` may be ``base``. With pasted anomalies
    (``select.anomalies``) parts, weights and normalisation are chosen by what finds these.

    See :class:`segunc.posteriors.methods.Method`; InputError for a part without what it needs, or that is one number everywhere.
    """
    settings, select = config.settings, config.select or SelectConfig()
    names = _checked(settings.parts)
    if settings.weights is not None and len(settings.weights) != len(names):
        given = f"anomaly.weights {list(settings.weights)}"
        raise InputError(given, f"{len(names)}, one for each part", "repair it")
    model, data = load_for_fitting(base, config, resolve_device(device))
    draws = max(settings.draws, model.posterior.members)

    def of_fold(trained_on: Frames) -> Callable[[Tensor], Tensor]:
        posterior = model.posterior if model.bayesian else None
        fitted = model.fitted(names, trained_on)
        sampler = Sampler(model.network, posterior, draws=draws, scores=names, **fitted)

        def values(image: Tensor) -> Tensor:
            maps = sampler(image).scores
            return torch.cat([maps[name].float() for name in names])

        return values

    pixels, frames = gather_pixels(model, data, select, settings.seed, of_fold)
    of_known = pixels.values[:, (pixels.size == 0) & pixels.clean]
    for name, values in zip(names, of_known, strict=True):
        if not values.max() > values.min():
            given = f"score {name} is {float(values[0]):g} at every pixel of a known class"
            raise InputError(given, "a score that tells pixels apart", "leave it out")
    every = Candidate(
        tuple(range(len(names))), tuple(settings.weights or [1.0] * len(names)), settings.normalisation or "standard"
    )
    chosen, found = (every, {}) if select.anomalies == "none" else choose(pixels, names, settings)
    known = of_known[list(chosen.places)]
    parts = tuple(names[place] for place in chosen.places)
    scales = tuple(SCALES[chosen.normalisation].of(values) for values in known)
    hashes = model.hashes
    if model.attachments.get("features") not in model.used(parts):
        hashes["features_sha256"] = None
    surprise = Surprise.of(weighted_sum(known, chosen.weights, scales))
    fit: dict[str, Any] = {"fitted_on": fitted_on(config, "val"), "frames": frames, "draws": draws, **hashes}
    total = ScoreSum(parts, chosen.weights, scales, surprise, found, **fit)
    total.attach(base, config, out, METHOD.name, say)
    of = f", average precision {found[chosen.words(names)]:.3f} on pasted anomalies" if found else ""
    say(f"wrote {out}: anomaly is {chosen.words(names)} on {frames} frames{of}")
    return total


METHOD = Method("anomaly", AnomalyConfig, fit_sum, finished=True, selects=True)
