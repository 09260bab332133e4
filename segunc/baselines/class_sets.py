"""Prediction sets of classes with a guarantee; the score ``set-size`` is the number of classes in
the set of a pixel.

The prediction set of a pixel holds the classes whose mean probability p over the draws is at least
1 - lambda, and always the predicted class (split conformal prediction, Sadinle et al. 2019, arXiv
1609.00451). Pixels of one frame are not exchangeable, so the unit is the frame: lambda is the
smallest value at which conformal risk control (Angelopoulos et al. 2022, arXiv 2208.02814) bounds
the expected share of a frame's labelled pixels whose true class is outside of their set.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from segunc.affine.noise import DEFAULT_SCHEME
from segunc.baselines.fitted import SeenFrame, frames_as_seen
from segunc.core.bounds import Bound, NonNegativeInt, PositiveInt
from segunc.core.errors import InputError, NoteWarning
from segunc.core.terminal import counted
from segunc.data.labels import UNKNOWN
from segunc.decisions.risks import LossSums, Method as Guarantee
from segunc.posteriors.fit_run import FitRun
from segunc.posteriors.methods import Method
from segunc.posteriors.model import Attachment, Model, SeenSize
from segunc.posteriors.settings import MethodSettings
from segunc.sampling.sampler import Sampler, caller_level
from segunc.scores import SET_THRESHOLD

LAMBDA_STEPS = 1 << 16  # lambda is k / LAMBDA_STEPS, which float32 holds exactly


@dataclass(frozen=True)
class ClassSets(Attachment):
    """The threshold lambda of the prediction sets and its guarantee, as stored with the model."""

    file: ClassVar[str] = "class_sets.json"
    what: ClassVar[str] = "threshold of class sets"
    bound_by: ClassVar[tuple[str, ...]] = (
        "base_sha256",
        "posterior_sha256",
        "temperature",
        "calibrator_sha256",
    )
    of_others: ClassVar[bool] = True

    threshold: float  # lambda, 0..1
    level: float  # bound of the risk, 0..1
    frames: int  # number of calibration frames
    risk: float  # mean loss of the calibration frames
    mean_size: float  # mean number of classes in the sets of their labelled pixels
    promise: str  # one sentence
    condition: str  # one sentence: what the promise needs, and what voids it
    draws: int
    seed: int
    # The data set, its split, the size that the network saw, and the date.
    fitted_on: Mapping[str, Any]
    base_sha256: str
    posterior_sha256: str | None
    temperature: float
    calibrator_sha256: str | None

    gives = frozenset({SET_THRESHOLD})

    def __call__(self, *_: object) -> dict[str, float]:
        return {SET_THRESHOLD: self.threshold}

    def check_sampler(self, sampler: Sampler) -> None:
        calibrated = (self.draws, self.seed, None, DEFAULT_SCHEME)
        if (sampler.draws, sampler.seed, sampler.scope, sampler.noise.scheme) == calibrated:
            return
        raise InputError(
            f"{self.file} holds a guarantee of {self.draws} {DEFAULT_SCHEME} draws of seed "
            f"{self.seed} in the whole scope alone",
            hint=f"--draws {self.draws} --seed {self.seed}, without --scope and --scheme",
        )

    def size_note(self, size: SeenSize, network_size: tuple[int, int] | None) -> str:
        calibrated = self.fitted_on.get("size") or network_size
        if size == "dynamic":
            return (
                f"the class sets were calibrated on frames at {_size_words(calibrated)}, and the "
                "file takes any size: their promise holds for the former alone"
            )
        seen = size or network_size
        if _size_words(calibrated) == _size_words(seen):
            return ""
        return (
            f"the class sets were calibrated on frames at {_size_words(calibrated)}, and the "
            f"network sees these at {_size_words(seen)}, so their promise does not hold here"
        )

    def record(self) -> dict[str, Any]:
        names = ("threshold", "level", "frames", "draws", "seed", "promise")
        return {"class_sets": {name: getattr(self, name) for name in names}}

    def exported_record(self) -> dict[str, Any]:
        record = self.record()["class_sets"]
        size = self.fitted_on.get("size")
        return {"class_sets": {**record, "condition": self.condition, "size": size}}


@dataclass(frozen=True)
class PredictionSets(MethodSettings):
    """How prediction sets are calibrated. Use frames on which nothing else was trained or chosen.

    Args:
        level: bound of the expected share of labelled pixels of a frame whose true class is outside
            their set.
        split: split of the data set to calibrate on; its frames must be like the frames to come.
        frames: number of evenly spaced frames (0: all).
        draws: number of draws of a Bayesian model; predict must use as many.
        seed: random seed of the draws; predict must use the same.

    >>> import torch
    >>> import segunc
    >>> _ = torch.manual_seed(0)
    >>> first = torch.nn.Conv2d(3, 4, 3, padding=1)
    >>> net = torch.nn.Sequential(first, torch.nn.BatchNorm2d(4), torch.nn.Conv2d(4, 2, 1))
    >>> base = segunc.wrap(net, ("road", "other"))
    >>> images = torch.rand(4, 3, 64, 64)
    >>> labels = (images.mean(1) > 0.5).long()
    >>> batches = [(images[:2], labels[:2]), (images[2:], labels[2:])]
    >>> model = segunc.PredictionSets(level=0.4).fit(base, batches)
    >>> model.attachments["class_sets"].level
    0.4
    """

    section = "class_sets"
    method = "class-sets"
    level: Annotated[float, Bound(above=0, below=1)] = 0.1
    split: str = "val"
    frames: NonNegativeInt = 0
    draws: PositiveInt = 8
    seed: NonNegativeInt = 0


def _size_words(size: Sequence[int] | None) -> str:
    """Return (height, width) as options write it; None is the size of each frame."""
    return "their own size" if size is None else "x".join(str(side) for side in size)


def class_keys(probabilities: Tensor, prediction: Tensor) -> Tensor:
    """Return for each class the smallest k at which it is in the set of each pixel.

    Args:
        probabilities: ``[C, ...]``, 0..1.
        prediction: predicted class ids ``[...]``; their key is 0.

    Returns:
        int64 ``[C, ...]``, 0..LAMBDA_STEPS; lambda is k / LAMBDA_STEPS.
    """
    keys = ((1.0 - probabilities.float()) * LAMBDA_STEPS).ceil().long()
    return keys.scatter_(0, prediction[None].long(), 0)


def shares_up_to(keys: Tensor) -> npt.NDArray[np.float64]:
    """Return the share of keys that are at most k, for each k: float64 ``[LAMBDA_STEPS + 1]``."""
    counts = torch.bincount(keys.flatten(), minlength=LAMBDA_STEPS + 1).cumsum(0).double()
    return np.asarray((counts / keys.numel()).cpu().numpy())


class CalibrationSums:
    """Sums over the calibration frames at each lambda, k / LAMBDA_STEPS.

    Attributes:
        losses: of a frame, the share of its labelled pixels whose true class is outside of their
            set.
        set_sizes: float64 ``[LAMBDA_STEPS + 1]``; of a frame, the mean number of classes in the
            sets of its labelled pixels.
    """

    def __init__(self) -> None:
        self.losses = LossSums("class-sets", LAMBDA_STEPS + 1)
        self.set_sizes = np.zeros(LAMBDA_STEPS + 1)

    def add(self, sampler: Sampler, frame: SeenFrame) -> None:
        """Add a frame at its own size, where predict decides; one without labels adds nothing."""
        labels = frame.original_labels
        labelled = labels < UNKNOWN
        if not labelled.any():
            return
        height, width = labels.shape
        sampled = sampler(frame.image, size=(height, width), keep_probabilities=True)
        assert sampled.probabilities is not None
        device = frame.image.device
        keys = class_keys(sampled.probabilities[0], sampled.prediction[0])
        keys = keys[:, torch.from_numpy(labelled).to(device)]
        true_classes = torch.from_numpy(labels[labelled]).to(device).long()
        self.losses.add(1.0 - shares_up_to(keys.gather(0, true_classes[None])))
        self.set_sizes += len(keys) * shares_up_to(keys)


CHOSEN_WORDS = {
    "weights": "its weights",
    "epoch": "its best epoch",
    "posterior": "its posterior",
    "calibration": "its temperature",
}
"""What of a model decides its class probabilities, and is chosen or fitted on frames."""


def chosen_words(run: FitRun[PredictionSets]) -> str:
    """Return what the model owes to the frames of the calibration, or may owe to frames of a
    program, in the beginning of a sentence; empty where no record says so.
    """
    split = run.settings.split
    is_data_set = bool(run.source.settings)
    chosen = run.chosen_on(split if is_data_set else None)
    words = " and ".join(CHOSEN_WORDS[name] for name in chosen if name in CHOSEN_WORDS)
    if not words:
        return ""
    needed = "the promise needs frames that nothing was chosen on"
    if not is_data_set:
        return f"whether the model got {words} on these frames is not recorded, and {needed}"
    return f"these frames are of the split {split}, on which the model got {words}, and {needed}"


def fit_class_sets(run: FitRun[PredictionSets]) -> Model:
    """Return the model with a lambda that was calibrated on labelled frames.

    Raises:
        InputError: no frame has a labelled pixel, or the level needs more frames.
    """
    settings = run.settings
    model = run.model
    run.check_labels()
    chosen = chosen_words(run)
    if chosen:
        warnings.warn(chosen, NoteWarning, stacklevel=caller_level())
    sampler = Sampler(
        model.network,
        model.posterior,
        draws=settings.draws,
        seed=settings.seed,
        scores=("msp",),
        fitted=model.fitted(("msp",)),
    )
    sums = CalibrationSums()
    for frame in frames_as_seen(run, run.data, settings.split, settings.frames):
        sums.add(sampler, frame)

    losses = sums.losses
    if not losses.units:
        raise InputError(
            f"the {settings.split} frames hold no labelled pixel",
            hint="choose another --class_sets.split",
        )
    guarantee = Guarantee("conformal")
    units = f"labelled frames of {settings.split}"
    guarantee.check_units(losses, settings.level, units, "--class_sets.level")
    step = guarantee.certified(losses, settings.level)
    assert step is not None  # at lambda 1 every set holds all classes
    condition = (
        f"It holds where frames come as the {losses.units} of the calibration did, with "
        f"{sampler.draws} draws of seed {settings.seed} at the same size; another domain or "
        "corrupted images void it."
    )
    if chosen:
        condition = f"{condition[:-1]}; {chosen}."
    sets = ClassSets(
        threshold=step / LAMBDA_STEPS,
        level=settings.level,
        frames=losses.units,
        risk=guarantee.risk(losses, step),
        mean_size=float(sums.set_sizes[step]) / losses.units,
        promise=(
            f"On average, at most {100 * settings.level:.3g} % of the labelled pixels of a frame "
            "have their true class outside of their set."
        ),
        condition=condition,
        draws=sampler.draws,
        seed=settings.seed,
        fitted_on=run.fitted_on(settings.split),
        **{name: model.hashes[name] for name in ClassSets.bound_by},
    )
    classes = model.network.description.num_classes
    return run.attach(
        sets,
        f"sets of {sets.mean_size:.2f} of {classes} classes on average, "
        f"lambda {sets.threshold:.4f}, on {counted(sets.frames, 'frame')}. {sets.promise}",
    )


METHOD = Method("class-sets", PredictionSets, fit_class_sets, finished=True)
