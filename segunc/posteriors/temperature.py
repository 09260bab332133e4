"""Temperature scaling: one number by which logits are divided, fitted on validation NLL (Guo et al., ICML 2017, arXiv 1706.04599).

A Bayesian model predicts the mean over draws of ``softmax(z_s / T)``, so that is whose likelihood is fitted: T goes inside of the
mean. Every evaluation of T needs the logits of all draws, so only a random sample of labelled pixels of each frame is kept, chosen
by (seed, frame) alone: 24 draws x 19 classes x 500 pixels of 100 frames are 91 MB. A frame's pixels are weighted by how many
labelled ones they stand for, so the NLL is an unbiased estimate of the mean over all labelled pixels of the frames.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from segunc.affine.noise import mix_seed
from segunc.core.bounds import NonNegativeInt, PositiveInt, Settings
from segunc.core.device import flushed_denormals, resolve_device
from segunc.core.errors import InputError
from segunc.data.labels import IGNORE
from segunc.posteriors.fitting import Attachment, are_finite, fitted_on, frames_as_seen, load_for_fitting
from segunc.posteriors.methods import Method
from segunc.sampling.runner import draw_logits
from segunc.training.config import FitConfig
from segunc.training.progress import Say, say

if TYPE_CHECKING:
    from segunc.data.module import SegmentationDataModule
    from segunc.posteriors.files import Model

LOWEST, HIGHEST = 0.05, 20.0
"""Temperatures between which the best is sought; networks in use lie in 0.5 to 5."""
GRID = 13
BLOCK_NUMBERS = 1 << 21
"""Logits that are worked on at a time, in float64."""


@dataclass(frozen=True)
class Calibration(Attachment):
    """A temperature, with how it was found."""

    file: ClassVar[str] = "calibration.json"
    what: ClassVar[str] = "calibration"
    outdates: ClassVar[tuple[str, ...]] = ("anomaly.json",)

    temperature: float  # T > 0, by which logits are divided before the softmax
    fitted_on: Mapping[str, Any]  # the data set, its split, the size that the network saw, and the date
    frames: int
    pixels: int  # of all frames together
    nll_before: float  # mean negative log-likelihood of these pixels in nats at T = 1
    nll_after: float  # and at T
    seed: int  # of the draws and of the choice of pixels
    draws: int  # S, 1 for a deterministic network
    base_sha256: str
    posterior_sha256: str | None  # None for a deterministic network

    @classmethod
    def read(cls, folder: Path, base_sha256: str, posterior_sha256: str | None) -> Self | None:
        """The calibration in the folder of a model with these hashes, None where there is none; InputError where it is damaged,
        or was fitted on other weights or another posterior."""
        content = cls.content(folder, base_sha256=base_sha256, posterior_sha256=posterior_sha256)
        if content is None:
            return None
        temperature = content["temperature"]
        if not (are_finite([temperature]) and temperature > 0):
            raise InputError(f"{folder / cls.file}: temperature {temperature}", "a positive number", "fit it again")
        return cls(**content)


@dataclass(frozen=True)
class TemperatureConfig(Settings):
    """How a temperature is fitted.

    Args:
        split: of the data set; never the one that the network was trained on.
        frames: how many evenly spaced frames (0: all).
        pixels: labelled pixels kept of each frame.
        draws: S of a Bayesian model.
        seed: of the draws and of the choice of pixels.
    """

    section = "temperature"
    split: str = "val"
    frames: NonNegativeInt = 100
    pixels: PositiveInt = 500
    draws: PositiveInt = 24
    seed: NonNegativeInt = 0


class PixelSample(NamedTuple):
    """Labelled pixels of some frames, with the logits that every draw gives them.

    ``logits [S, P, C]`` float32 on the CPU, ``labels [P]`` int64 train ids, ``weights [P]`` float64, how many pixels each
    stands for.
    """

    logits: Tensor
    labels: Tensor
    weights: Tensor
    frames: int


class TemperatureFit(NamedTuple):
    """A temperature, and the mean NLL in nats at T = 1 and at it."""

    temperature: float
    nll_before: float
    nll_after: float


def sample_pixels(model: Model, data: SegmentationDataModule, settings: TemperatureConfig) -> PixelSample:
    """The logits of all draws at randomly chosen labelled pixels of validation frames; an InputError where there is none."""
    kept: list[tuple[Tensor, Tensor, Tensor]] = []
    for index, image, truth in frames_as_seen(model, data, settings.split, settings.frames, "temperature"):
        labelled = np.flatnonzero(truth.ravel() != IGNORE)
        if labelled.size == 0:
            continue
        generator = np.random.Generator(np.random.Philox(key=mix_seed(settings.seed, index)))
        count = min(settings.pixels, labelled.size)
        chosen = np.sort(generator.choice(labelled, count, replace=False))
        places = torch.from_numpy(chosen).to(image.device)
        draws = draw_logits(model.network, model.posterior, image, settings.draws, settings.seed)
        logits = torch.stack([draw[0].flatten(1)[:, places].T.float().cpu() for draw in draws])
        labels = torch.from_numpy(truth.ravel()[chosen].astype(np.int64))
        kept.append((logits, labels, torch.full((count,), labelled.size / count, dtype=torch.float64)))
    if not kept:
        given = f"the {settings.split} frames hold no labelled pixel"
        raise InputError(given, "frames with labels", "choose another split")
    every_logits, every_label, weights = zip(*kept, strict=True)
    return PixelSample(torch.cat(every_logits, 1), torch.cat(every_label), torch.cat(weights), len(kept))


def mean_nll(logits: Tensor, labels: Tensor, weights: Tensor, log_temperature: Tensor) -> Tensor:
    """The weighted mean over pixels of ``-ln (1/S) sum_s softmax(z_s / T)[label]``, in nats, float64.

    Where ``log_temperature`` needs a gradient it is added to it block by block, and the value comes without one.

    Args:
        logits, labels, weights: see :class:`PixelSample`.
        log_temperature: scalar float64.
    """
    draws, pixels, classes = logits.shape
    block = max(1, BLOCK_NUMBERS // (draws * classes))
    total = torch.zeros((), dtype=torch.float64)
    for first in range(0, pixels, block):
        part = slice(first, first + block)
        scaled = logits[:, part].double() * torch.exp(-log_temperature)
        truth = labels[part].expand(draws, -1)[..., None]
        likelihood = scaled.gather(2, truth)[..., 0] - scaled.logsumexp(2)
        nll = math.log(draws) - likelihood.logsumexp(0)
        loss = (nll * weights[part]).sum() / weights.sum()
        if loss.requires_grad:
            loss.backward()  # type: ignore[no-untyped-call]
        total += loss.detach()
    return total


def fit_temperature(logits: Tensor, labels: Tensor, weights: Tensor | None = None) -> TemperatureFit:
    """The temperature with the lowest mean NLL, by L-BFGS with a strong-Wolfe line search over ln T in float64.

    It starts at the best of a coarse grid, because the likelihood of a mean over draws need not have one minimum only.

    The arguments are those of a :class:`PixelSample`, None for equal weights. InputError where the NLL is lowest at a bound: every
    sampled pixel is right (T towards 0), or logits say nothing about labels (T towards infinity).
    """
    weights = torch.ones(len(labels), dtype=torch.float64) if weights is None else weights
    grid = np.linspace(math.log(LOWEST), math.log(HIGHEST), GRID)
    with torch.no_grad():
        coarse = [float(mean_nll(logits, labels, weights, torch.tensor(value))) for value in grid]
        before = float(mean_nll(logits, labels, weights, torch.zeros((), dtype=torch.float64)))
    best = int(np.argmin(coarse))
    log_temperature = torch.tensor(float(grid[best]), dtype=torch.float64, requires_grad=True)
    search = torch.optim.LBFGS(
        [log_temperature], max_iter=50, tolerance_grad=1e-9, tolerance_change=1e-12, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        search.zero_grad()
        return mean_nll(logits, labels, weights, log_temperature)

    search.step(closure)  # type: ignore[no-untyped-call]
    temperature = math.exp(log_temperature.item())
    if best == 0 or temperature <= LOWEST:
        raise InputError(
            f"the validation NLL still falls at the lower bound of the search, T = {LOWEST:g}",
            "frames on which the network makes mistakes",
            "fit on a split that it was not trained on, and on more frames",
        )
    if best == GRID - 1 or temperature >= HIGHEST:
        raise InputError(
            f"the validation NLL still falls at the upper bound of the search, T = {HIGHEST:g}",
            "a network whose logits tell something about the labels",
            "train it further, or check that these labels are its classes",
        )
    with torch.no_grad():
        after = float(mean_nll(logits, labels, weights, log_temperature))
    return TemperatureFit(temperature, before, after)


@flushed_denormals()
def scale_temperature(
    base: Path, config: FitConfig[TemperatureConfig], out: Path, *, device: str = "auto", say: Say = say
) -> Calibration:
    """Fit the temperature of a model of either kind and write the same model with its calibration, in the place of one that is there
    already; ``out`` may be ``base``.

    See :class:`segunc.posteriors.methods.Method`; InputError for no labelled pixel, NaN logits, or a best temperature at a bound.
    """
    settings = config.settings
    model, data = load_for_fitting(base, config, resolve_device(device))
    sample = sample_pixels(model, data, settings)
    draws, pixels = sample.logits.shape[:2]
    say(f"logits of {pixels:,} pixels of {sample.frames} frames, {draws} draws")
    fitted = fit_temperature(sample.logits, sample.labels, sample.weights)
    calibration = Calibration(
        **fitted._asdict(),
        fitted_on=fitted_on(config, settings.split),
        frames=sample.frames,
        pixels=pixels,
        seed=settings.seed,
        draws=draws,
        base_sha256=model.sha256,
        posterior_sha256=model.posterior_sha256,
    )
    calibration.attach(base, config, out, METHOD.name, say)
    nll = f"NLL {fitted.nll_before:.4f} at 1, {fitted.nll_after:.4f} now"
    say(f"wrote {out}: temperature {fitted.temperature:.4f}, {nll}")
    return calibration


METHOD = Method("temperature", TemperatureConfig, scale_temperature, finished=True)
