"""One noise scale for each job of an ABNN: none for its prediction, the others each selected on what they are for.

Probabilities take the scale with the lowest validation NLL, anomaly scores the one that finds pasted objects best. The prediction comes
from the members themselves, so that noise costs no accuracy.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from segunc.affine.draws import AffineLayout
from segunc.affine.files import save_posterior
from segunc.core.bounds import NonNegativeFloat, NonNegativeInt, PositiveInt, Settings
from segunc.core.device import flushed_denormals, resolve_device
from segunc.core.errors import InputError
from segunc.posteriors.abnn import ABNN, with_own_statistics
from segunc.posteriors.fitting import fitted_on, load_for_fitting
from segunc.posteriors.methods import Method
from segunc.posteriors.pasted import Frames, gather_pixels, mean_precision
from segunc.sampling.sampler import Sampler
from segunc.scores import BASE, FEATURES, SCORES, SUM, check_scores
from segunc.training.config import FitConfig, SelectConfig, save_config
from segunc.training.data import spaced, unpack_batch
from segunc.training.progress import Say, say
from segunc.training.selection import CorruptedFrames, select, validation_nll


@dataclass(frozen=True)
class AlphasConfig(Settings):
    """How a noise scale is found for each job.

    Args:
        prediction: of the draws whose mean decides the class; 0 are the members themselves.
        probabilities: of those that give probabilities and confidence, or none to select it on validation NLL.
        anomaly: of those that give all other scores, or none to select it by the average precision of ``score`` on what is pasted into
            the frames of ``select``.
        grid: the candidates.
        frames: validation frames for the NLL, evenly spaced (0: all).
        corruption: strength, 1 to 5, of the five corruptions under which these frames are looked at; 0 leaves them clean.
        draws: for each candidate.
        score: by which candidates for anomalies are ranked.
        statistics: reestimated: the running statistics of the members under each scale, from training frames; or kept, the model's own;
            auto: reestimated where those of the model were.
        seed: of draws and batches.
    """

    section = "alphas"
    prediction: NonNegativeFloat = 0.0
    probabilities: NonNegativeFloat | None = None
    anomaly: NonNegativeFloat | None = None
    grid: list[NonNegativeFloat] = field(default_factory=lambda: [0.0, 0.05, 0.1, 0.2, 0.3])
    frames: NonNegativeInt = 24
    corruption: Literal[0, 1, 2, 3, 4, 5] = 0
    draws: PositiveInt = 12
    score: str = "entropy"
    statistics: Literal["auto", "reestimated", "kept"] = "auto"
    seed: NonNegativeInt = 0


@flushed_denormals()
def select_alphas(
    base: Path, config: FitConfig[AlphasConfig], out: Path, *, device: str = "auto", say: Say = say
) -> dict[str, Any]:
    """Write the ABNN with a noise scale for each job; what was fitted on it with its former noise is left out.

    See :class:`segunc.posteriors.methods.Method`; InputError for another posterior, a score that no draw changes, a grid without a
    usable candidate, or frames without labels.
    """
    settings, start = config.settings, time.perf_counter()
    (score,) = check_scores([settings.score])
    if (BASE | FEATURES | {SUM}).issuperset(SCORES[score].needs):
        raise InputError(f"alphas.score {score}", "a score of draws, such as entropy", "noise does not change this one")
    model, data = load_for_fitting(base, config, resolve_device(device))
    members, network = model.posterior, model.network
    if not isinstance(members, ABNN) or model.report is None:
        given = f"--method alphas of a model of the method {model.posterior.method}"
        raise InputError(given, "an ABNN", "make one: segunc finetune --method abnn")
    if out.resolve() == base.resolve():
        raise InputError(f"--out {out} is the base", "a folder of its own", "give another --out")
    draws, found = max(settings.draws, members.members), dict[str, Any]()
    kept = members.rescale is None if settings.statistics == "auto" else settings.statistics == "kept"

    @cache
    def at(alpha: float) -> ABNN:
        single = members.of("probabilities").with_alpha(alpha)
        if kept:
            return single
        epoch = lambda: map(unpack_batch, data.train_dataloader())  # noqa: E731
        with torch.random.fork_rng([]):
            torch.manual_seed(settings.seed)  # the same batches for every scale
            return with_own_statistics(network, single, epoch, settings.seed)

    def sampler(alpha: float) -> Sampler:
        return Sampler(network, at(alpha), draws=draws, seed=settings.seed, scores=[score])

    probabilities, anomaly = settings.probabilities, settings.anomaly
    if probabilities is None:
        clean = data.dataset("val")
        frames = CorruptedFrames(clean, settings.corruption) if settings.corruption else clean
        chosen = spaced(len(frames), settings.frames)
        nll = lambda alpha: validation_nll(sampler(alpha), frames, chosen)  # noqa: E731
        probabilities, found["nll"] = select(nll, settings.grid, "alphas.")
        say(f"probabilities: alpha {probabilities:g} has the lowest validation NLL of {_listed(found['nll'])}")
    if anomaly is None:
        criterion = config.select or SelectConfig()
        if criterion.anomalies == "none":
            given = "alphas.anomaly is to be selected without anomalies"
            raise InputError(given, "select.anomalies cut-paste", "set it, or give alphas.anomaly")

        def of_fold(trained_on: Frames) -> Callable[[Tensor], Tensor]:
            samplers = [sampler(alpha) for alpha in settings.grid]
            return lambda image: torch.cat([one(image).scores[score].float() for one in samplers])

        pixels, _ = gather_pixels(model, data, criterion, settings.seed, of_fold)
        precision = {
            f"{a:g}": mean_precision(v, pixels.size) for a, v in zip(settings.grid, pixels.values, strict=True)
        }
        found["average_precision"] = precision
        anomaly = float(max(precision, key=lambda alpha: precision[alpha]))
        say(f"anomaly: alpha {anomaly:g} has the highest average precision of {_listed(precision)} ({score})")
    posterior = ABNN.by_job([at(alpha) for alpha in (settings.prediction, probabilities, anomaly)])
    record = {**fitted_on(config, "val"), **found, "seconds": round(time.perf_counter() - start, 1)}
    settings_used = {
        key: value for key, value in config.plain()["alphas"].items() if key not in ("probabilities", "anomaly")
    }
    provenance = {"of": base.name, "settings": settings_used, **record}
    layout = AffineLayout(network.cpu())
    save_posterior(posterior, layout, model.report, base, out, seed=settings.seed, provenance=provenance)
    save_config(config, out, METHOD.name)
    say(
        f"wrote {out}: alpha {settings.prediction:g} for the prediction, {probabilities:g} for probabilities, {anomaly:g} for anomalies"
    )
    return record


def _listed(found: dict[str, float]) -> str:
    return ", ".join(f"{alpha}: {value:.4f}" for alpha, value in found.items())


METHOD = Method("alphas", AlphasConfig, select_alphas, finished=True, selects=True)
