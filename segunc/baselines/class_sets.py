"""Sets of classes with a promise, whose size is the score ``set-size``. The set of a pixel holds
the classes whose mean probability p over the draws is at least 1 - lambda, and always the predicted
class (split conformal prediction, Sadinle et al. 2019, arXiv 1609.00451). Pixels of a frame are not
exchangeable, so the frame is the unit: lambda is the smallest at which conformal risk control
(Angelopoulos et al. 2022, arXiv 2208.02814) bounds the expected share of a frame's labelled pixels
whose true class is outside of their set.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from segunc.affine.noise import DEFAULT_SCHEME
from segunc.baselines.fitted import fitted_on, frames_as_seen, load_for_fitting
from segunc.core.bounds import Bound, NonNegativeInt, PositiveInt, Settings
from segunc.core.device import flushed_denormals, resolve_device
from segunc.core.errors import InputError
from segunc.data.labels import UNKNOWN
from segunc.decisions.risks import LossSums, Method as Guarantee
from segunc.posteriors.methods import Method
from segunc.posteriors.model import Attachment
from segunc.sampling.sampler import Sampler
from segunc.scores import SET_THRESHOLD
from segunc.training.config import FitConfig
from segunc.training.lightning_runs import Say, say

STEPS = 1 << 16  # lambda is k / STEPS, which float32 holds exactly


@dataclass(frozen=True)
class ClassSets(Attachment):
    """The threshold of the sets, and what is promised of it."""

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
    level: float  # 0..1
    frames: int  # that it was calibrated on
    risk: float  # mean loss of these frames
    mean_size: float  # classes in the sets of their labelled pixels
    promise: str  # one sentence
    condition: str  # one sentence on what the promise needs, and what voids it
    draws: int
    seed: int
    fitted_on: Mapping[
        str, Any
    ]  # the data set, its split, the size that the network saw, and the date
    base_sha256: str
    posterior_sha256: str | None
    temperature: float
    calibrator_sha256: str | None

    gives = frozenset({SET_THRESHOLD})

    def __call__(self, *_: object) -> dict[str, float]:
        return {SET_THRESHOLD: self.threshold}

    def check_sampler(self, sampler: Sampler) -> None:
        asked = (sampler.draws, sampler.seed, sampler.scope, sampler.noise.scheme)
        if asked != (self.draws, self.seed, None, DEFAULT_SCHEME):
            message = f"{self.file} promises something of {self.draws} {DEFAULT_SCHEME} draws of seed {self.seed} in the whole scope alone"
            raise InputError(
                message,
                hint=f"--draws {self.draws} --seed {self.seed}, without --scope and --scheme",
            )

    def record(self) -> dict[str, Any]:
        names = ("threshold", "level", "frames", "draws", "seed", "promise")
        return {"class_sets": {name: getattr(self, name) for name in names}}


@dataclass(frozen=True)
class ClassSetsConfig(Settings):
    """How the sets of classes are calibrated, on frames that nothing else was trained or chosen on.

    Args:
        level: the bound of the expected share of a frame's labelled pixels whose true class is
            outside of their set.
        split: of the data set; its frames must be like those to come.
        frames: how many evenly spaced frames (0: all).
        draws: S of a Bayesian model; predict with as many.
        seed: of the draws; predict with the same.
    """

    section = "class_sets"
    level: Annotated[float, Bound(above=0, below=1)] = 0.1
    split: str = "val"
    frames: NonNegativeInt = 0
    draws: PositiveInt = 8
    seed: NonNegativeInt = 0


def class_keys(probabilities: Tensor, prediction: Tensor) -> Tensor:
    """Return the smallest k with which each class is in the set of each pixel, int64 ``[C, ...]``,
    of probabilities ``[C, ...]`` and class ids ``[...]``; 0 of the predicted class.
    """
    return (
        ((1.0 - probabilities.float()) * STEPS)
        .ceil()
        .long()
        .scatter_(0, prediction[None].long(), 0)
    )


def shares_up_to(keys: Tensor) -> npt.NDArray[np.float64]:
    """Return the share of keys that are at most each k, float64 ``[STEPS + 1]``."""
    counts = torch.bincount(keys.flatten(), minlength=STEPS + 1).cumsum(0).double()
    return np.asarray((counts / keys.numel()).cpu().numpy())


@flushed_denormals()
def fit_class_sets(
    base: Path,
    config: FitConfig[ClassSetsConfig],
    out: Path,
    *,
    device: str = "auto",
    say: Say = say,
) -> ClassSets:
    """Calibrate lambda on frames at their own size, where predict decides, and write the same model
    with it; InputError for fewer frames than the level needs.
    """
    settings, guarantee, level = config.settings, Guarantee("conformal"), config.settings.level
    model, data = load_for_fitting(base, config, resolve_device(device))
    how: dict[str, Any] = {
        "draws": settings.draws,
        "seed": settings.seed,
        "scores": ("msp",),
        "fitted": model.fitted(("msp",)),
    }
    sampler, losses, sizes = (
        Sampler(model.network, model.posterior, **how),
        LossSums("class-sets", STEPS + 1),
        np.zeros(STEPS + 1),
    )
    for _, image, _, _, labels in frames_as_seen(
        model, data, settings.split, settings.frames, METHOD.name
    ):
        if (labelled := labels < UNKNOWN).any():
            found = sampler(image, size=(labels.shape[0], labels.shape[1]), keep_probabilities=True)
            assert found.probabilities is not None
            keys = class_keys(found.probabilities[0], found.prediction[0])[
                :, torch.from_numpy(labelled).to(image.device)
            ]
            true = torch.from_numpy(labels[labelled]).to(image.device).long()
            losses.add(1.0 - shares_up_to(keys.gather(0, true[None])))
            sizes += len(keys) * shares_up_to(keys)
    if not (frames := losses.units):
        raise InputError(
            f"the {settings.split} frames hold no labelled pixel",
            hint="choose another --class_sets.split",
        )
    guarantee.check_units(
        losses, level, f"labelled frames of {settings.split}", "--class_sets.level"
    )
    place = guarantee.certified(losses, level)
    assert place is not None  # at lambda 1 every set holds all classes
    promise = f"On average, at most {100 * level:.3g} % of the labelled pixels of a frame have their true class outside of their set."
    seen = f"the {frames} of the calibration did, with {sampler.draws} draws of seed {settings.seed} at the same size"
    condition = f"It holds where frames come as {seen}; another domain or corrupted images void it."
    facts: dict[str, Any] = {
        "threshold": place / STEPS,
        "level": level,
        "frames": frames,
        "risk": guarantee.risk(losses, place),
    }
    facts |= {
        "mean_size": float(sizes[place]) / frames,
        "draws": sampler.draws,
        "seed": settings.seed,
        "promise": promise,
    }
    facts |= {"fitted_on": fitted_on(config, settings.split)} | {
        name: model.hashes[name] for name in ClassSets.bound_by
    }
    sets = ClassSets(**facts, condition=condition)
    sets.attach(base, config, out, METHOD.name, say)
    size = f"{sets.mean_size:.2f} of {model.network.description.num_classes} classes on average"
    say(
        f"wrote {out}: sets of {size}, lambda {sets.threshold:.4f}, on {frames} frames. {sets.promise}"
    )
    return sets


METHOD = Method("class-sets", ClassSetsConfig, fit_class_sets, finished=True)
