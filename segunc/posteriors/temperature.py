"""Calibration of what a model predicts on validation NLL: a temperature, vector scaling or Dirichlet calibration.

Pool, then calibrate (Rahaman & Thiery, NeurIPS 2021, arXiv 2007.08792): a Bayesian model predicts the mean p over its draws, and a
:class:`segunc.uncertainty.Calibrator` acts on that mean, ``softmax(W ln p + b)``. So C numbers of a pixel are kept, whatever the
draws: those of a random sample of labelled pixels of each frame, chosen by (seed, frame) alone. A frame's pixels are weighted by how
many labelled ones they stand for, so the NLL is an unbiased estimate of the mean over all labelled pixels of the frames.

What is fitted minimises the NLL, with a penalty where it has more numbers than the temperature.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from segunc.affine.branches import branches_of, draws_of
from segunc.affine.noise import mix_seed
from segunc.core.bounds import NonNegativeInt, PositiveFloat, PositiveInt, Settings
from segunc.core.device import flushed_denormals, resolve_device
from segunc.core.errors import InputError
from segunc.core.registry import Registry
from segunc.data.labels import IGNORE
from segunc.posteriors.fitting import fitted_on, frames_as_seen, load_for_fitting
from segunc.posteriors.methods import Method
from segunc.posteriors.model import Attachment, Model
from segunc.sampling.engine import draw_logits
from segunc.training.config import FitConfig
from segunc.training.progress import Say, say
from segunc.uncertainty import Calibrator, calibrated

if TYPE_CHECKING:
    from segunc.data.module import SegmentationDataModule

LOWEST, HIGHEST = 0.05, 20.0
"""Temperatures between which the best is sought; networks in use lie in 0.5 to 5."""
GRID = 13
ALONE = "temperature alone"  # in the place of a penalty
Strengths = tuple[float, ...]
"""Of the penalty: none (a temperature), mu (vector scaling), or mu and lambda (Dirichlet calibration)."""


@dataclass(frozen=True)
class Calibration(Attachment):
    """A temperature, or weights and intercepts, and how they were found."""

    file: ClassVar[str] = "calibration.json"
    what: ClassVar[str] = "calibration"
    bound_by: ClassVar[tuple[str, ...]] = ("base_sha256", "posterior_sha256")
    temperature: float | None  # T > 0; None of a kind that is no scalar
    fitted_on: Mapping[str, Any]  # the data set, its split, the size that the network saw, and the date
    frames: int
    pixels: int  # of all frames together
    nll_before: float  # mean negative log-likelihood of these pixels in nats, not calibrated
    nll_after: float  # and calibrated
    seed: int  # of the draws and of the choice of pixels
    draws: int  # S, 1 for a deterministic network
    base_sha256: str
    posterior_sha256: str | None  # None for a deterministic network
    kind: str = "scalar"
    # To the logits of every draw and of the base network (of earlier versions, and of a deterministic network, where a temperature
    # of the two is the same), or to the mean over the draws.
    applies: Literal["logits", "mean"] = "logits"
    weight: tuple[float, ...] = ()  # W of a vector (its diagonal) or dirichlet (row after row)
    bias: tuple[float, ...] = ()  # b, likewise
    penalty: str = ALONE  # mu and lambda, as far as the kind has them
    # NLL by penalty on frames that were not fitted on; of the chosen one a little too good, as it was chosen by it.
    held_out: Mapping[str, float] = field(default_factory=dict)

    @property
    def calibrator(self) -> Calibrator | None:
        """Of the mean over the draws; None where logits are divided."""
        if self.applies == "logits":
            return None
        return Calibrator(self.weight, self.bias) if self.temperature is None else Calibrator((1 / self.temperature,))

    def __str__(self) -> str:
        return f"{self.calibrator or f'temperature {self.temperature:.4f}'}, of the {self.applies}"


@dataclass(frozen=True)
class TemperatureConfig(Settings):
    """How a calibration is fitted.

    Args:
        kind: scalar, one temperature; vector, a factor of each class's ln p and an intercept; dirichlet, a matrix of them. The last
            two may change which class is predicted, and so mIoU.
        split: of the data set; never the one that the network was trained on.
        frames: how many evenly spaced frames (0: all).
        pixels: labelled pixels kept of each frame.
        draws: S of a Bayesian model.
        folds: blocks of successive frames, each held out once (at most one for each frame). What is learnt of a frame holds for its
            neighbours, so single pixels or frames would not be held out.
        penalties: mu of a vector, mu and lambda of dirichlet (every pair), to choose from by the NLL of the frames held out.
        seed: of the draws and of the choice of pixels.
    """

    section = "temperature"
    kind: str = "scalar"
    split: str = "val"
    frames: NonNegativeInt = 100
    pixels: PositiveInt = 500
    draws: PositiveInt = 24
    folds: PositiveInt = 5
    penalties: list[PositiveFloat] = field(default_factory=lambda: [0.1, 10.0, 1000.0])
    seed: NonNegativeInt = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.strengths()

    def strengths(self) -> list[Strengths]:
        """Return all penalties that are fitted: the temperature's, then those to choose from."""
        count = KINDS[self.kind].strengths
        return [(), *(itertools.product(sorted(self.penalties, reverse=True), repeat=count) if count else ())]


class PixelSample(NamedTuple):
    """Labelled pixels of some frames, with the mean prediction of all draws.

    ``logs [P, C]`` float64 on the CPU, ln p; ``labels [P]`` int64 train ids; ``weights [P]`` float64, how many pixels each stands for;
    ``frames [P]`` int64, which of the frames, 0 and up in their order.
    """

    logs: Tensor
    labels: Tensor
    weights: Tensor
    frames: Tensor

    def where(self, chosen: Tensor) -> PixelSample:
        """Return the sample of the pixels ``[P]`` bool."""
        return PixelSample(*(part[chosen] for part in self))


Fit = tuple[Tensor, Tensor]
"""W ``[]``, ``[C]`` or ``[C, C]`` and b ``[]`` or ``[C]`` of :func:`segunc.uncertainty.calibrated`, float64."""
IDENTITY: Fit = (torch.ones((), dtype=torch.float64), torch.zeros((), dtype=torch.float64))


def sample_pixels(model: Model, data: SegmentationDataModule, settings: TemperatureConfig) -> PixelSample:
    """Return the mean prediction at randomly chosen labelled pixels of validation frames; InputError where there is none."""
    kept: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
    for index, image, truth in frames_as_seen(model, data, settings.split, settings.frames, "temperature"):
        labelled = np.flatnonzero(truth.ravel() != IGNORE)
        if labelled.size == 0:
            continue
        generator = np.random.Generator(np.random.Philox(key=mix_seed(settings.seed, index)))
        count = min(settings.pixels, labelled.size)
        chosen = np.sort(generator.choice(labelled, count, replace=False))
        places = torch.from_numpy(chosen).to(image.device)
        total = torch.tensor(-math.inf, dtype=torch.float64, device=image.device)
        for draw in draw_logits(model.network, model.posterior, image, settings.draws, settings.seed):
            total = torch.logaddexp(total, draw[0].flatten(1)[:, places].T.double().log_softmax(1))
        labels = torch.from_numpy(truth.ravel()[chosen].astype(np.int64))
        stands_for = torch.full((count,), labelled.size / count, dtype=torch.float64)
        kept.append((total.log_softmax(1).cpu(), labels, stands_for, torch.full((count,), len(kept))))
    if not kept:
        raise InputError(
            f"the {settings.split} frames hold no labelled pixel", hint="choose another --temperature.split"
        )
    return PixelSample(*(torch.cat(parts) for parts in zip(*kept, strict=True)))


def mean_nll(sample: PixelSample, fit: Fit) -> Tensor:
    """Return the weighted mean over pixels of ``-ln softmax(W ln p + b)[label]``, in nats."""
    likelihood = calibrated(sample.logs, *fit).gather(1, sample.labels[:, None])[:, 0]
    return -(likelihood * sample.weights).sum() / sample.weights.sum()


def minimise(loss: Callable[[], Tensor], *parameters: Tensor, tolerance: float = 1e-9) -> None:
    """Move leaves to where the loss is lowest, by L-BFGS with a strong-Wolfe line search, until no slope exceeds the tolerance."""
    stop: dict[str, Any] = {"tolerance_grad": tolerance, "tolerance_change": tolerance / 1000}
    search = torch.optim.LBFGS(parameters, max_iter=300, history_size=20, line_search_fn="strong_wolfe", **stop)

    def closure() -> Tensor:
        search.zero_grad()
        value = loss()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    search.step(closure)  # type: ignore[no-untyped-call]


def fit_temperature(sample: PixelSample) -> float:
    """Return the temperature with the lowest mean NLL in :data:`LOWEST` to :data:`HIGHEST`, sought over ln T from the best of a
    coarse grid."""
    grid = torch.linspace(math.log(LOWEST), math.log(HIGHEST), GRID, dtype=torch.float64)
    with torch.no_grad():
        coarse = torch.stack([mean_nll(sample, (torch.exp(-value), IDENTITY[1])) for value in grid])
    log_temperature = grid[coarse.argmin()].clone().requires_grad_()
    minimise(lambda: mean_nll(sample, (torch.exp(-log_temperature), IDENTITY[1])), log_temperature)
    return min(max(math.exp(log_temperature.item()), LOWEST), HIGHEST)


def fit_scalar(sample: PixelSample, temperature: float, strengths: Strengths = ()) -> Fit:
    """Return ``W = I / T`` of the best temperature."""
    return torch.tensor(1 / temperature, dtype=torch.float64), IDENTITY[1]


class Kind(NamedTuple):
    """A form of W and b, an entry of :data:`KINDS`."""

    strengths: int  # how many numbers its penalty has: none of the scalar
    fit: Callable[[PixelSample, float, Strengths], Fit]  # of the best temperature; without strengths ``W = I / T``


SCALAR = Kind(0, fit_scalar)
KINDS: Registry[Kind] = Registry("kind of calibration", "segunc.calibrators", {"scalar": SCALAR})


def held_out_nll(
    sample: PixelSample, strengths: Sequence[Strengths], folds: int, kind: Kind = SCALAR
) -> dict[Strengths, float]:
    """Return the mean NLL of each penalty on blocks of successive frames, each fitted on all others; empty with a single frame or fold."""
    frames = int(sample.frames[-1]) + 1
    blocks = torch.arange(frames).tensor_split(min(folds, frames))
    found = dict.fromkeys(strengths, 0.0) if len(blocks) > 1 else {}
    for block in blocks if found else ():
        held = torch.isin(sample.frames, block)
        rest, out = sample.where(~held), sample.where(held)
        share = float(out.weights.sum() / sample.weights.sum())
        temperature = fit_temperature(rest)
        for strength in found:
            found[strength] += share * float(mean_nll(out, kind.fit(rest, temperature, strength)))
    return found


def check_temperature(temperature: float) -> None:
    """Raise an InputError where the NLL is lowest at a bound of the search."""
    if temperature <= LOWEST * 1.001:
        raise InputError(
            f"the validation NLL still falls at the lower bound of the search, T = {LOWEST:g}: the network makes no mistake on "
            "these frames",
            hint="fit on a split that it was not trained on, and on more frames",
        )
    if temperature >= HIGHEST / 1.001:
        raise InputError(
            f"the validation NLL still falls at the upper bound of the search, T = {HIGHEST:g}: the logits say nothing about "
            "these labels",
            hint="train the network further, or check that these labels are its classes",
        )


def words(strengths: Strengths) -> str:
    """Return ``mu 1, lambda 100``."""
    parts = [f"{name} {value:g}" for name, value in zip(("mu", "lambda"), strengths, strict=False)]
    return ", ".join(parts) or ALONE


@flushed_denormals()
def scale_temperature(
    base: Path, config: FitConfig[TemperatureConfig], out: Path, *, device: str = "auto", say: Say = say
) -> Calibration:
    """Fit the calibration of a model of either kind and write the same model with it, in the place of one that is there already;
    ``out`` may be ``base``.

    See :class:`segunc.posteriors.methods.Method`; InputError for no labelled pixel, NaN logits, a best temperature at a bound, or a
    penalty to choose and a single frame or fold.
    """
    settings = config.settings
    model, data = load_for_fitting(base, config, resolve_device(device))
    sample = sample_pixels(model, data, settings)
    # A temperature of the one draw's logits is one of its mean, but for what float32 makes of small p.
    kind = KINDS[settings.kind]
    of_logits = kind is SCALAR and not model.bayesian
    if not of_logits:
        sample = sample._replace(logs=sample.logs.clamp_min(math.log(torch.finfo(torch.float32).tiny)))
    frames, pixels = int(sample.frames[-1]) + 1, len(sample.labels)
    draws = draws_of(branches_of(model.network, model.posterior), model.posterior, settings.draws)
    say(f"mean of {draws} draws at {pixels:,} pixels of {frames} frames")
    check_temperature(temperature := fit_temperature(sample))
    strengths = settings.strengths()
    held_out = held_out_nll(sample, strengths, settings.folds, kind)
    if kind is not SCALAR and not (held_out and settings.penalties):
        raise InputError(
            f"temperature.kind {settings.kind} needs a penalty and two folds, and has {len(settings.penalties)} penalties and "
            f"{min(settings.folds, frames)} folds",
            hint="choose --temperature.kind scalar, or give more frames",
        )
    chosen = min(strengths[1:], key=lambda each: held_out[each], default=())
    weight, bias = fit = kind.fit(sample, temperature, chosen)
    calibration = Calibration(
        temperature=temperature if kind is SCALAR else None,
        fitted_on=fitted_on(config, settings.split),
        frames=frames,
        pixels=pixels,
        nll_before=float(mean_nll(sample, IDENTITY)),
        nll_after=float(mean_nll(sample, fit)),
        seed=settings.seed,
        draws=draws,
        base_sha256=model.sha256,
        posterior_sha256=model.posterior_sha256,
        kind=settings.kind,
        applies="logits" if of_logits else "mean",
        weight=tuple(weight.flatten().tolist()) if chosen else (),
        bias=tuple(bias.tolist()) if chosen else (),
        penalty=words(chosen),
        held_out={words(each): nll for each, nll in held_out.items()},
    )
    calibration.attach(base, config, out, METHOD.name, say)
    found = [f"NLL {calibration.nll_before:.4f} before, {calibration.nll_after:.4f} now"]
    tried = dict.fromkeys((chosen, ())) if held_out else ()
    found += [f"{held_out[each]:.4f} on frames held out ({words(each)})" for each in tried]
    say(f"wrote {out}: {calibration}, {', '.join(found)}")
    return calibration


METHOD = Method("temperature", TemperatureConfig, scale_temperature, finished=True)
