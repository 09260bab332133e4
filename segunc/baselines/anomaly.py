"""The score ``anomaly``: a weighted sum of other scores, each in standard deviations from its mean
over pixels of normal scenes, told as a :class:`Surprise`: for every model one in a thousand pixels
of normal scenes scores 3.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import cv2
import numpy as np
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from segunc.baselines.fitted import fitted_on, frames_as_seen, load_for_fitting
from segunc.core.bounds import NonNegativeInt, PositiveFloat, PositiveInt, Settings
from segunc.core.device import flushed_denormals, resolve_device, to_device
from segunc.core.errors import InputError
from segunc.data.labels import UNKNOWN
from segunc.posteriors.methods import Method
from segunc.posteriors.model import Attachment, Model
from segunc.sampling.sampler import Sampler
from segunc.scores import SCORES, SUM, check_scores
from segunc.training.config import FitConfig
from segunc.training.lightning_runs import Say, say

if TYPE_CHECKING:
    from segunc.data.module import SegmentationDataModule

STEPS, DECADES = 8, 3
"""Levels of a surprise: of each power of ten of the share of pixels, and how many powers; beyond
them the tail is a straight line.
"""
LEAST_SEEN = 10  # pixels that reach a value up to which a surprise is called measured
FRAME_PIXELS = (
    20_000  # that are looked at: neighbours say the same, and a thousand frames fit into memory
)
LEAST_SURFACE = (
    0.01  # share of a frame that a connected piece of drivable surface covers, to be one
)


@dataclass(frozen=True)
class Surprise:
    """How rare a value is in normal scenes: ``-log10`` of the share of their pixels that reach it,
    0 and more. Linear between levels; beyond the last, one pixel in a thousand, by an exponential
    law of the mean excess seen (peaks over a threshold; Pickands 1975).
    """

    levels: tuple[
        float, ...
    ]  # a share of 10 ** -(k / STEPS) of the pixels reaches level k; ascending
    excess: float  # mean excess over the last level, above 0

    @classmethod
    def of(cls, values: Tensor) -> Self:
        """Measure the values ``[N]`` of pixels of normal scenes."""
        shares = 10.0 ** -(np.arange(STEPS * DECADES + 1) / STEPS)
        levels = np.quantile(values.double().numpy(), 1 - shares)
        beyond = values.double() - levels[-1]
        # Where many share the largest value there is no tail to measure; the range of all known
        # pixels stands for it.
        excess = beyond[beyond > 0].mean() if (beyond > 0).any() else levels[-1] - levels[0]
        return cls(tuple(levels.tolist()), float(excess))

    def __call__(self, values: Tensor) -> Tensor:
        levels = to_device(torch.tensor(self.levels, dtype=values.dtype), values.device)
        above = torch.searchsorted(levels, values.contiguous()).clamp_(1, len(levels) - 1)
        low, high = levels[above - 1], levels[above]
        share = ((values - low) / (high - low).clamp_min(torch.finfo(values.dtype).tiny)).clamp_(
            0.0, 1.0
        )
        return (above - 1 + share) / STEPS + (values - levels[-1]).clamp_min(0.0) / (
            self.excess * math.log(10)
        )


@dataclass(frozen=True)
class Standard:
    """Values in standard deviations from their mean over pixels of normal scenes."""

    mean: float
    std: float  # above 0

    @classmethod
    def of(cls, values: Tensor) -> Self:
        return cls(float(values.double().mean()), float(values.double().std(correction=0)))

    def __call__(self, values: Tensor) -> Tensor:
        return (values - self.mean) / self.std


def weighted_sum(values: Tensor, weights: Sequence[float], scales: Sequence[Standard]) -> Tensor:
    """Return the sum ``[...]`` of the values ``[P, ...]`` of P scores."""
    terms = zip(weights, scales, values, strict=True)
    return torch.stack([weight * scale(of_score) for weight, scale, of_score in terms]).sum(0)


def drivable_hull(prediction: Tensor, classes: Sequence[int]) -> Tensor:
    """Return the convex hull, bool ``[H, W]``, of large connected pieces of classes in a prediction
    ``[H, W]``; all if there is none.
    """
    surface = np.isin(prediction.cpu().numpy(), classes).astype(np.uint8)
    _, pieces, statistics, _ = cv2.connectedComponentsWithStats(surface, connectivity=8)
    large = np.flatnonzero(statistics[1:, cv2.CC_STAT_AREA] >= LEAST_SURFACE * surface.size) + 1
    hull = np.full_like(surface, not len(large))
    if len(large):
        cv2.fillConvexPoly(
            hull, cv2.convexHull(cv2.findNonZero(np.isin(pieces, large).astype(np.uint8))), 1
        )
    return to_device(torch.from_numpy(hull > 0), prediction.device)


@dataclass(frozen=True)
class ScoreSum(Attachment):
    """A weighted sum of scores, and the numbers that make it a surprise."""

    file: ClassVar[str] = "anomaly.json"
    what: ClassVar[str] = "sum of scores"
    bound_by: ClassVar[tuple[str, ...]] = (
        "base_sha256",
        "posterior_sha256",
        "temperature",
        "calibrator_sha256",
    )
    of_others: ClassVar[bool] = True

    parts: tuple[str, ...]  # names of scores
    weights: tuple[float, ...]
    scales: tuple[Standard, ...]  # of the parts
    surprise: Surprise  # of the sum
    fitted_on: Mapping[
        str, Any
    ]  # the data set, its split, the size that the network saw, and the date
    frames: int
    draws: int
    temperature: float  # by which logits were divided
    base_sha256: str
    posterior_sha256: str | None
    features_sha256: (
        str | None
    )  # of the features that scores were made of; None if no part needs features
    calibrator_sha256: str | None = None  # None if the mean over the draws was not calibrated
    part_surprises: tuple[
        Surprise, ...
    ] = ()  # of each part; none in files of earlier versions, as the next two
    pixels: int | None = None  # of normal scenes, that all this was fitted on
    measured_to: float | None = (
        None  # decades that at least ten of these pixels reach, a multiple of 0.1
    )
    drivable: Sequence[
        int
    ] = ()  # classes outside of whose hull the sum is 0; none: the whole frame

    gives = frozenset({SUM})

    def __call__(self, maps: Mapping[str, Tensor], *_: object) -> dict[str, Tensor]:
        values = torch.stack([maps[name].float() for name in self.parts])
        total = self.surprise(weighted_sum(values, self.weights, self.scales))
        if self.drivable:
            if get_proxy_mode() is not None:
                raise InputError(
                    "the hull of the drivable surface (anomaly.drivable) is no operator of a graph",
                    hint="--scores entropy",
                )
            total *= torch.stack(
                [drivable_hull(prediction, self.drivable) for prediction in maps["prediction"]]
            )
        return {SUM: total}

    def decades(self, values: Mapping[str, float]) -> dict[str, float]:
        """Return how rare the value of each part is by itself, as a :class:`Surprise`; empty where
        that was not measured.
        """
        surprises = zip(self.parts, self.part_surprises, strict=False)
        return {
            name: round(float(surprise(torch.tensor([values[name]]))), 3)
            for name, surprise in surprises
        }

    def record(self) -> dict[str, Any]:
        whole, names = asdict(self), ["parts", "weights", "scales", "surprise"]
        return {
            "anomaly": {
                name: whole[name] for name in (*names, "part_surprises", "drivable") if whole[name]
            }
        }

    @classmethod
    def load(cls, folder: Path, model: Model) -> Self:
        content = cls.content(folder, model)
        if content["features_sha256"] not in (None, model.hashes["features_sha256"]):
            raise InputError(
                f"{folder / cls.file} was fitted with other features", hint="fit it again"
            )
        if not all("mean" in numbers for numbers in content["scales"]):
            raise InputError(
                f"{folder / cls.file} was fitted by an earlier version", hint="fit it again"
            )
        scales = tuple(Standard(**numbers) for numbers in content["scales"])
        recorded = (content["surprise"], *content.get("part_surprises", ()))
        surprise, *parts = (
            Surprise(tuple(numbers["levels"]), numbers["excess"]) for numbers in recorded
        )
        return cls(
            **content | {"scales": scales, "surprise": surprise, "part_surprises": tuple(parts)}
        )


@dataclass(frozen=True)
class AnomalyConfig(Settings):
    """What is added up, and which frames of normal scenes say how high is high: the split val, or
    with data.validation leave-sequence-out each sequence of the training frames, compared with
    features of the others alone. A base that was trained on all sequences has seen them.

    Args:
        parts: names of scores, none of them a sum.
        weights: of the parts, in their order; none for 1 each.
        frames: how many evenly spaced frames of val or of each sequence (0: all).
        draws: of the posterior, where a part needs them.
        seed: of the pixels that are looked at.
        images ([DATASET:]FOLDER): frames of your own road in the place of the data set, each
            compared with features of the others alone.
        drivable: classes, outside of the convex hull of whose prediction the sum is 0. It finds
            obstacles on the road, and nothing beside it.
    """

    section = "anomaly"
    without_data: ClassVar[str] = "--anomaly.images FOLDER"
    parts: list[str] = field(default_factory=lambda: ["deterministic-energy", "knn"])
    weights: list[PositiveFloat] | None = None
    frames: NonNegativeInt = 0
    draws: PositiveInt = 12
    seed: NonNegativeInt = 0
    images: str | None = None
    drivable: list[str] = field(default_factory=list)


def known_pixels(
    model: Model,
    data: SegmentationDataModule,
    parts: Sequence[str],
    settings: AnomalyConfig,
    draws: int,
) -> tuple[Tensor, int]:
    """Return the values ``[P, N]`` float32 of P scores at random labelled pixels of normal scenes,
    and the number of frames. A frame is never compared with features of its own sequence, which
    would make it look too familiar.
    """
    generator, values = torch.Generator().manual_seed(settings.seed), list[Tensor]()
    features, trained_on = model.attachments.get("features"), None
    drivable = [model.network.description.classes.index(name) for name in settings.drivable]
    for fold in data.folds():
        if fold.validation != "val":
            train, val = (
                {sample.name for sample in fold.dataset(split).samples}
                for split in ("train", "val")
            )
            trained_on = train.union(features.frames if features else ()) - val
        posterior = model.posterior if model.bayesian else None
        sampler = Sampler(
            model.network,
            posterior,
            draws=draws,
            scores=parts,
            fitted=model.fitted(parts, trained_on),
        )
        for _, image, labels, frame, _ in frames_as_seen(
            model, fold, "val", settings.frames, METHOD.name
        ):
            found = sampler(image, whole=[frame])
            looked_at = (
                torch.from_numpy(labels < UNKNOWN)
                & drivable_hull(found.prediction[0], drivable).cpu()
            )
            labelled = looked_at.flatten().nonzero().flatten()
            chosen = labelled[torch.randperm(len(labelled), generator=generator)[:FRAME_PIXELS]]
            values.append(
                torch.cat([found.scores[name].float() for name in parts])
                .flatten(1)
                .cpu()[:, chosen]
            )
    known_values = torch.cat(values, 1)
    if not known_values.numel():
        raise InputError(
            f"{len(values)} validation frames hold no labelled pixel",
            hint="check the labels of val",
        )
    for name, of_part in zip(parts, known_values, strict=True):
        if not of_part.max() > of_part.min():
            message = (
                f"score {name} is {float(of_part[0]):g} at every pixel of the validation frames"
            )
            raise InputError(message, hint="leave it out of anomaly.parts")
    return known_values, len(values)


@flushed_denormals()
def fit_sum(
    base: Path, config: FitConfig[AnomalyConfig], out: Path, *, device: str = "auto", say: Say = say
) -> ScoreSum:
    """Measure the parts on normal scenes and write the same model with their sum; InputError for a
    part that is one number everywhere.
    """
    settings = config.settings
    parts = check_scores(settings.parts)
    if sums := [name for name in parts if "scores" in SCORES[name].sources]:
        raise InputError(
            f"'{sums[0]}' is a sum of scores itself and cannot be a part of one",
            hint="leave it out",
        )
    weights = tuple([1.0] * len(parts) if settings.weights is None else settings.weights)
    if len(weights) != len(parts):
        message = f"anomaly.weights has {len(weights)} numbers for {len(parts)} parts"
        raise InputError(message, hint="give one weight a part")
    model, data = load_for_fitting(base, config, resolve_device(device))
    draws = max(settings.draws, model.posterior.members)
    classes = model.network.description.classes
    if unknown := set(settings.drivable).difference(classes):
        raise InputError(
            f"{base} has no class '{min(unknown)}'",
            hint=f"anomaly.drivable is of {', '.join(classes)}",
        )
    values, frames = known_pixels(model, data, parts, settings, draws)
    scales = tuple(map(Standard.of, values))
    hashes = model.hashes
    if model.attachments.get("features") not in model.used(parts):
        hashes["features_sha256"] = None
    surprise = Surprise.of(weighted_sum(values, weights, scales))
    fit: dict[str, Any] = {
        "fitted_on": fitted_on(config, "val"),
        "frames": frames,
        "draws": draws,
        **hashes,
    }
    decades = surprise(weighted_sum(values, weights, scales)).sort(descending=True).values
    measured_to = (
        math.floor(10 * float(decades[:LEAST_SEEN][-1])) / 10
        if len(decades) >= LEAST_SEEN
        else None
    )
    fit |= {
        "part_surprises": tuple(map(Surprise.of, values)),
        "pixels": len(decades),
        "measured_to": measured_to,
    }
    total = ScoreSum(
        parts,
        weights,
        scales,
        surprise,
        **fit,
        drivable=tuple(map(classes.index, settings.drivable)),
    )
    total.attach(base, config, out, METHOD.name, say)
    terms = [
        name if weight == 1 else f"{weight:g} {name}"
        for weight, name in zip(weights, parts, strict=True)
    ]
    say(f"wrote {out}: anomaly is {' + '.join(terms)} on {frames} frames")
    return total


METHOD = Method("anomaly", AnomalyConfig, fit_sum, finished=True)
