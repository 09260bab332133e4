"""Calibration of what a model predicts on validation NLL: a temperature.

A Bayesian model predicts the mean p over its draws, so the temperature acts on that mean,
``softmax(ln p / T)``: pool, then calibrate (Rahaman & Thiery, NeurIPS 2021, arXiv 2007.08792).
The temperature is fitted on a random sample of labelled pixels of each frame, chosen by (seed,
frame) alone. Pixels are weighted by how many labelled ones they stand for, so the NLL is an
unbiased estimate of the mean over all labelled pixels of the frames.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from segunc.affine.noise import mix_seed
from segunc.baselines.fitted import frames_as_seen
from segunc.core.bounds import NonNegativeInt, PositiveInt
from segunc.core.errors import InputError, NoteWarning
from segunc.core.terminal import counted
from segunc.data.labels import IGNORE
from segunc.posteriors.fit_run import FitRun
from segunc.posteriors.methods import Method
from segunc.posteriors.model import Attachment, Model
from segunc.posteriors.settings import MethodSettings
from segunc.sampling import Sampler
from segunc.sampling.branches import branches_of, draws_of
from segunc.sampling.sampler import caller_level
from segunc.uncertainty import Calibrator

# Temperatures between which the best is sought; those of networks in use lie in 0.5 to 5.
LOWEST = 0.05
HIGHEST = 20.0
GRID = 13  # temperatures that are tried before the search


@dataclass(frozen=True)
class Calibration(Attachment):
    """A temperature, and how it was found."""

    file: ClassVar[str] = "calibration.json"
    what: ClassVar[str] = "calibration"
    bound_by: ClassVar[tuple[str, ...]] = ("base_sha256", "posterior_sha256")
    temperature: float  # T > 0
    # The data set, its split, the size that the network saw, and the date.
    fitted_on: Mapping[str, Any]
    frames: int
    pixels: int  # of all frames together
    nll_before: float  # mean negative log-likelihood of these pixels in nats, not calibrated
    nll_after: float  # and calibrated
    seed: int  # of the draws and of the choice of pixels
    draws: int  # S, 1 for a deterministic network
    base_sha256: str
    posterior_sha256: str | None  # None for a deterministic network
    kind: str = "scalar"  # earlier versions had others
    # To the logits of every draw and of the base network, or to the mean over the draws.
    applies: Literal["logits", "mean"] = "logits"

    @classmethod
    def load(cls, folder: Path, model: Model) -> Self:
        calibration = super().load(folder, model)
        if calibration.kind != "scalar":
            raise InputError(
                f"{folder / cls.file} is a calibration of the kind {calibration.kind}, and this "
                "version knows a temperature alone",
                hint="remove the file, or fit the temperature again: --method temperature",
            )
        return calibration

    @property
    def calibrator(self) -> Calibrator | None:
        """What calibrates the mean over the draws; None where logits are divided."""
        return None if self.applies == "logits" else Calibrator(self.temperature)

    def __str__(self) -> str:
        return f"{self.calibrator or f'temperature {self.temperature:.4f}'}, of the {self.applies}"


@dataclass(frozen=True)
class Temperature(MethodSettings):
    """How a calibration is fitted.

    Args:
        split: split of the data set to calibrate on; never the one that the network was trained on.
        frames: number of evenly spaced frames (0: all).
        pixels: number of labelled pixels that are kept of each frame.
        draws: number of draws of a Bayesian model.
        seed: random seed of the draws and of the choice of pixels.

    >>> import torch
    >>> import segunc
    >>> _ = torch.manual_seed(0)
    >>> first = torch.nn.Conv2d(3, 4, 3, padding=1)
    >>> net = torch.nn.Sequential(first, torch.nn.BatchNorm2d(4), torch.nn.Conv2d(4, 2, 1))
    >>> base = segunc.wrap(net, ("road", "other"))
    >>> images = torch.rand(4, 3, 64, 64)
    >>> labels = base.network(images).argmax(1)
    >>> labels[:, :16] = 1 - labels[:, :16]
    >>> batches = [(images[:2], labels[:2]), (images[2:], labels[2:])]
    >>> model = segunc.Temperature(pixels=100).fit(base, batches)
    >>> model.temperature > 0
    True
    """

    section = "temperature"
    method = "temperature"
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


def sample_pixels(run: FitRun[Temperature]) -> PixelSample:
    """Return the mean prediction at randomly chosen labelled pixels of validation frames.

    Raises:
        InputError: no frame has a labelled pixel.
    """
    model = run.model
    settings = run.settings
    samples: list[PixelSample] = []
    sampler = Sampler(
        model.network, model.posterior, draws=settings.draws, seed=settings.seed, scores=("msp",)
    )
    for frame in frames_as_seen(run, run.data, settings.split, settings.frames):
        truth = frame.labels.ravel()
        labelled = np.flatnonzero(truth != IGNORE)
        if labelled.size == 0:
            continue
        generator = np.random.Generator(np.random.Philox(key=mix_seed(settings.seed, frame.number)))
        count = min(settings.pixels, labelled.size)
        chosen = np.sort(generator.choice(labelled, count, replace=False))
        probabilities = sampler(frame.image, keep_probabilities=True).probabilities
        assert probabilities is not None
        pixels = torch.from_numpy(chosen).to(probabilities.device)
        of_chosen = probabilities[0].flatten(1)[:, pixels].T.double()
        samples.append(
            PixelSample(
                logs=of_chosen.clamp_min(torch.finfo(torch.float32).tiny).log().cpu(),
                labels=torch.from_numpy(truth[chosen].astype(np.int64)),
                weights=torch.full((count,), labelled.size / count, dtype=torch.float64),
                frames=torch.full((count,), len(samples)),
            )
        )
    if not samples:
        raise InputError(
            f"the {settings.split} frames hold no labelled pixel",
            hint="choose another --temperature.split",
        )
    return PixelSample(
        logs=torch.cat([sample.logs for sample in samples]),
        labels=torch.cat([sample.labels for sample in samples]),
        weights=torch.cat([sample.weights for sample in samples]),
        frames=torch.cat([sample.frames for sample in samples]),
    )


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
    search = torch.optim.LBFGS(
        [log_temperature],
        line_search_fn="strong_wolfe",
        max_iter=300,
        history_size=20,
        tolerance_grad=1e-9,
        tolerance_change=1e-12,
    )

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
            raise InputError(
                f"the validation NLL still falls at a bound of the search, T = {bound:g}: {reason}",
                hint="fit on other frames, and check that these labels are its classes",
            )


def scale_temperature(run: FitRun[Temperature]) -> Model:
    """Return the model with a calibration, in the place of one that it has already.

    Raises:
        InputError: no pixel is labelled, logits are NaN, or the best temperature lies at a bound.
    """
    settings = run.settings
    model = run.model
    run.check_labels()
    if "weights" in run.chosen_on(settings.split):
        note = (
            f"the network was trained on the split {settings.split}, where it may make fewer "
            "mistakes than on other frames, and so this temperature may be too low for them"
        )
        warnings.warn(note, NoteWarning, stacklevel=caller_level())
    sample = sample_pixels(run)
    frames = int(sample.frames[-1]) + 1
    pixels = len(sample.labels)
    draws = draws_of(branches_of(model.network, model.posterior), model.posterior, settings.draws)
    run.say(f"mean of {counted(draws, 'draw')} at {pixels:,} pixels of {counted(frames, 'frame')}")
    temperature = fit_temperature(sample)
    check_temperature(temperature)
    calibration = Calibration(
        temperature=temperature,
        fitted_on=run.fitted_on(settings.split),
        frames=frames,
        pixels=pixels,
        nll_before=float(mean_nll(sample)),
        nll_after=float(mean_nll(sample, 1 / temperature)),
        seed=settings.seed,
        draws=draws,
        base_sha256=model.sha256,
        posterior_sha256=model.posterior_sha256,
        # Of one draw both are the same up to the rounding of small p.
        applies="mean" if model.bayesian else "logits",
    )
    nll = f"NLL {calibration.nll_before:.4f} before, {calibration.nll_after:.4f} now"
    return run.attach(calibration, f"{calibration}, {nll}")


METHOD = Method("temperature", Temperature, scale_temperature, finished=True)
