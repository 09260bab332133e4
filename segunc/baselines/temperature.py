"""Calibration of what a model predicts on validation NLL: a temperature. A Bayesian model predicts
the mean p over its draws, so the temperature acts on that mean, ``softmax(ln p / T)``: pool, then
calibrate (Rahaman & Thiery, NeurIPS 2021, arXiv 2007.08792). It is fitted on a random sample of
labelled pixels of each frame, chosen by (seed, frame) alone and weighted by how many labelled ones
they stand for, so the NLL is an unbiased estimate of the mean over all labelled pixels of the
frames.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from segunc.affine.noise import mix_seed
from segunc.baselines.fitted import fitted_on, frames_as_seen, load_for_fitting
from segunc.core.bounds import NonNegativeInt, PositiveInt, Settings
from segunc.core.device import flushed_denormals, resolve_device
from segunc.core.errors import InputError
from segunc.data.labels import IGNORE
from segunc.posteriors.methods import Method
from segunc.posteriors.model import Attachment, Model
from segunc.sampling import Sampler
from segunc.sampling.branches import branches_of, draws_of
from segunc.training.config import FitConfig
from segunc.training.lightning_runs import Say, say
from segunc.uncertainty import Calibrator

if TYPE_CHECKING:
    from segunc.data.module import SegmentationDataModule

LOWEST, HIGHEST, GRID = 0.05, 20.0, 13
"""Temperatures between which the best is sought, first at so many; networks in use lie in 0.5 to 5.
"""


@dataclass(frozen=True)
class Calibration(Attachment):
    """A temperature, and how it was found."""

    file: ClassVar[str] = "calibration.json"
    what: ClassVar[str] = "calibration"
    bound_by: ClassVar[tuple[str, ...]] = ("base_sha256", "posterior_sha256")
    temperature: float  # T > 0
    fitted_on: Mapping[
        str, Any
    ]  # the data set, its split, the size that the network saw, and the date
    frames: int
    pixels: int  # of all frames together
    nll_before: float  # mean negative log-likelihood of these pixels in nats, not calibrated
    nll_after: float  # and calibrated
    seed: int  # of the draws and of the choice of pixels
    draws: int  # S, 1 for a deterministic network
    base_sha256: str
    posterior_sha256: str | None  # None for a deterministic network
    kind: str = "scalar"  # earlier versions had others
    applies: Literal["logits", "mean"] = (
        "logits"  # of every draw and of the base network, or the mean over the draws
    )

    @classmethod
    def load(cls, folder: Path, model: Model) -> Self:
        found = super().load(folder, model)
        if found.kind != "scalar":
            message = f"{folder / cls.file} is a calibration of the kind {found.kind}, and this version knows a temperature alone"
            raise InputError(
                message, hint="remove the file, or fit the temperature again: --method temperature"
            )
        return found

    @property
    def calibrator(self) -> Calibrator | None:
        """Of the mean over the draws; None where logits are divided."""
        return None if self.applies == "logits" else Calibrator(self.temperature)

    def __str__(self) -> str:
        return f"{self.calibrator or f'temperature {self.temperature:.4f}'}, of the {self.applies}"


@dataclass(frozen=True)
class TemperatureConfig(Settings):
    """How a calibration is fitted.

    Args:
        split: split of the data set to calibrate on; never the one that the network was trained on.
        frames: number of evenly spaced frames (0: all).
        pixels: number of labelled pixels that are kept of each frame.
        draws: number of draws of a Bayesian model.
        seed: random seed of the draws and of the choice of pixels.
    """

    section = "temperature"
    split: str = "val"
    frames: NonNegativeInt = 100
    pixels: PositiveInt = 500
    draws: PositiveInt = 24
    seed: NonNegativeInt = 0


class PixelSample(NamedTuple):
    """Labelled pixels of some frames, with the mean prediction of all draws; on the CPU."""

    logs: Tensor  # [P, C] float64, ln p, at least that of the smallest float32
    labels: Tensor  # [P] int64 train ids
    weights: Tensor  # [P] float64, how many pixels each stands for
    frames: Tensor  # [P] int64, which of the frames, 0 and up in their order


def sample_pixels(
    model: Model, data: SegmentationDataModule, settings: TemperatureConfig
) -> PixelSample:
    """Return the mean prediction at randomly chosen labelled pixels of validation frames;
    InputError where there is none.
    """
    kept: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
    sampler = Sampler(
        model.network, model.posterior, draws=settings.draws, seed=settings.seed, scores=("msp",)
    )
    for index, image, truth, *_ in frames_as_seen(
        model, data, settings.split, settings.frames, "temperature"
    ):
        labelled = np.flatnonzero(truth.ravel() != IGNORE)
        if labelled.size == 0:
            continue
        generator = np.random.Generator(np.random.Philox(key=mix_seed(settings.seed, index)))
        count = min(settings.pixels, labelled.size)
        chosen = np.sort(generator.choice(labelled, count, replace=False))
        places = torch.from_numpy(chosen).to(image.device)
        probabilities = sampler(image, keep_probabilities=True).probabilities
        assert probabilities is not None
        logs = (
            probabilities[0]
            .flatten(1)[:, places]
            .T.double()
            .clamp_min(torch.finfo(torch.float32).tiny)
            .log()
        )
        labels = torch.from_numpy(truth.ravel()[chosen].astype(np.int64))
        stands_for = torch.full((count,), labelled.size / count, dtype=torch.float64)
        kept.append((logs.cpu(), labels, stands_for, torch.full((count,), len(kept))))
    if not kept:
        message = f"the {settings.split} frames hold no labelled pixel"
        raise InputError(message, hint="choose another --temperature.split")
    return PixelSample(*(torch.cat(parts) for parts in zip(*kept, strict=True)))


def mean_nll(sample: PixelSample, scale: Tensor | float = 1.0) -> Tensor:
    """Return the weighted mean over pixels of ``-ln softmax(scale ln p)[label]``, in nats; the
    scale is 1 / T.
    """
    likelihood = (sample.logs * scale).log_softmax(1).gather(1, sample.labels[:, None])[:, 0]
    return -(likelihood * sample.weights).sum() / sample.weights.sum()


def fit_temperature(sample: PixelSample) -> float:
    """Return the temperature with the lowest mean NLL, by L-BFGS over ln T from the best of a
    coarse grid.
    """
    grid = torch.linspace(math.log(LOWEST), math.log(HIGHEST), GRID, dtype=torch.float64)
    with torch.no_grad():
        coarse = torch.stack([mean_nll(sample, torch.exp(-value)) for value in grid])
    log_temperature = grid[coarse.argmin()].clone().requires_grad_()
    limits: dict[str, Any] = {
        "max_iter": 300,
        "history_size": 20,
        "tolerance_grad": 1e-9,
        "tolerance_change": 1e-12,
    }
    search = torch.optim.LBFGS([log_temperature], line_search_fn="strong_wolfe", **limits)

    def closure() -> Tensor:
        search.zero_grad()
        value = mean_nll(sample, torch.exp(-log_temperature))
        value.backward()  # type: ignore[no-untyped-call]
        return value

    search.step(closure)  # type: ignore[no-untyped-call]
    return min(max(math.exp(log_temperature.item()), LOWEST), HIGHEST)


def check_temperature(temperature: float) -> None:
    """Raise an InputError where the NLL is lowest at a bound of the search."""
    reasons = {
        LOWEST: "the network makes no mistake on these frames",
        HIGHEST: "the logits say nothing about these labels",
    }
    for bound, reason in reasons.items():
        if max(temperature / bound, bound / temperature) <= 1.001:
            message = (
                f"the validation NLL still falls at a bound of the search, T = {bound:g}: {reason}"
            )
            raise InputError(
                message, hint="fit on other frames, and check that these labels are its classes"
            )


@flushed_denormals()
def scale_temperature(
    base: Path,
    config: FitConfig[TemperatureConfig],
    out: Path,
    *,
    device: str = "auto",
    say: Say = say,
) -> Calibration:
    """Fit the calibration of a model of either kind and write the same model with it, in the place
    of one that is there already; ``out`` may be ``base``. InputError for no labelled pixel, NaN
    logits, or a best temperature at a bound.
    """
    settings = config.settings
    model, data = load_for_fitting(base, config, resolve_device(device))
    sample = sample_pixels(model, data, settings)
    frames, pixels = int(sample.frames[-1]) + 1, len(sample.labels)
    draws = draws_of(branches_of(model.network, model.posterior), model.posterior, settings.draws)
    say(f"mean of {draws} draws at {pixels:,} pixels of {frames} frames")
    check_temperature(temperature := fit_temperature(sample))
    calibration = Calibration(
        temperature=temperature,
        fitted_on=fitted_on(config, settings.split),
        frames=frames,
        pixels=pixels,
        nll_before=float(mean_nll(sample)),
        nll_after=float(mean_nll(sample, 1 / temperature)),
        seed=settings.seed,
        draws=draws,
        base_sha256=model.sha256,
        posterior_sha256=model.posterior_sha256,
        applies="mean"
        if model.bayesian
        else "logits",  # of one draw the same, but for the rounding of small p
    )
    calibration.attach(base, config, out, METHOD.name, say)
    nll = f"NLL {calibration.nll_before:.4f} before, {calibration.nll_after:.4f} now"
    say(f"wrote {out}: {calibration}, {nll}")
    return calibration


METHOD = Method("temperature", TemperatureConfig, scale_temperature, finished=True)
