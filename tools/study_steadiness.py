"""Does ABNN train more steadily than a mean-field Gaussian over all weights? Gradients and training itself, from the same bases.

    python -m tools.study_steadiness --out steadiness

Makes the toy scenes and the small network of `tools.study_posterior` once for each seed. At each base it measures the rows of
`tools.study_gradient_variance`, and then trains each of its own rows for ``--steps`` steps with AdamW and a poly schedule on the same
minibatches: the affine parameters plainly and as ABNN, all weights plainly, under a Gaussian of fixed standard deviations (as ABNN's
alpha is), one draw a minibatch or by the local reparameterisation, and under one whose standard deviations are learned by the evidence
lower bound, N_eff the number of training pixels. All have the prior N(base, 0.1^2) on what they train.

Of each training: ``noise``, the standard deviation of the loss from step to step over the second half, from the differences of
neighbours, over the mean there, which minibatches make as well; NLL in nats, of the mean of ``--predictions`` draws and of the means alone
(``point``), on val, which chooses the learning rate of a row by its mean over seeds, and on test. Writes gradients.json.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from segunc.affine.draws import AffineDraws
from segunc.affine.noise import draw_noise, mix_seed
from segunc.core.files import write_json
from segunc.data.labels import IGNORE
from segunc.data.module import SegmentationDataModule
from segunc.networks.files import load_network
from segunc.toyroads import generate_toy
from segunc.training.data import Batch, Minibatches, load_batches
from segunc.training.losses import make_optimizer, make_schedule
from tools.measuring import provenance
from tools.study_gradient_variance import AffineGradients, LocalGradients, WeightGradients, measure, rows
from tools.study_posterior import SCENES, SIZE, build_base

BATCH, PRIOR_SCALE = 4, 0.1
EFFECTIVE_PIXELS = float(SCENES.train * SIZE[0] * SIZE[1])
Logits = Callable[[Tensor, Tensor | None, Tensor, int | None], Tensor]
"""Of means ``[D]``, log standard deviations or None, images and a seed; None draws nothing."""


@dataclass
class Trained:
    """What a row trains, and how.

    Attributes:
        start: the means ``[D]`` at the base.
        rates: learning rates to choose from.
        logits: in training.
        predict: afterwards.
        log_sigma: ``[D]`` where standard deviations are learned.
    """

    start: Tensor
    rates: tuple[float, ...]
    logits: Logits
    predict: Logits
    log_sigma: Tensor | None = None


def of_affine(base: Path, alpha: float) -> Trained:
    """Gamma and beta, with ABNN's noise for each image."""
    held = AffineGradients(load_network(base), lambda gamma, beta, noise: (gamma, beta))
    layout = held.layout

    def logits(mean: Tensor, log_sigma: Tensor | None, images: Tensor, seed: int | None) -> Tensor:
        gamma, beta = (values.expand(len(images), -1) for values in mean.view(2, -1))
        if seed is not None:
            gamma = gamma * (1 + alpha * draw_noise(seed, range(len(images)), layout.total))
        with layout.active(AffineDraws(gamma, beta)):
            return held.network(images)

    return Trained(layout.affine.flatten(), (1e-3, 3e-3, 1e-2), logits, logits)


def of_weights(base: Path, share: float, *, local: bool = False, learned: bool = False) -> Trained:
    """All weights, with standard deviations that start, or stay, at a share of their absolute values."""
    held = LocalGradients(load_network(base), share) if local else WeightGradients(load_network(base), share)

    def logits(mean: Tensor, log_sigma: Tensor | None, images: Tensor, seed: int | None) -> Tensor:
        assert seed is not None
        return held.drawn(mean, held.sigma if log_sigma is None else log_sigma.exp(), images, seed)

    def predict(mean: Tensor, log_sigma: Tensor | None, images: Tensor, seed: int | None) -> Tensor:
        if seed is None or not share:
            return WeightGradients.logits(held, mean, images)
        sigma = held.sigma if log_sigma is None else log_sigma.exp()
        return WeightGradients.drawn(held, mean, sigma, images, seed)  # however it was trained, a draw is one network

    # A weight of 0 has no share of its own.
    log_sigma = held.sigma.clamp_min(1e-6).log() if learned else None
    return Trained(held.mean, (1e-4, 3e-4, 1e-3), logits if local else predict, predict, log_sigma)


def make_rows(base: Path, alpha: float, share: float) -> Iterable[tuple[str, Trained]]:
    """The rows of the training, each from the base anew."""
    yield "affine: deterministic", of_affine(base, 0.0)
    yield f"affine: ABNN, alpha {alpha:g}", of_affine(base, alpha)
    yield "all weights: deterministic", of_weights(base, 0.0)
    for one in (share, alpha):
        yield f"all weights: variational, sigma {one:g} abs(w)", of_weights(base, one)
        yield f"all weights: variational, sigma {one:g} abs(w), local", of_weights(base, one, local=True)
    yield f"all weights: variational, sigma learned from {share:g} abs(w)", of_weights(base, share, learned=True)


def regulariser(row: Trained, mean: Tensor, log_sigma: Tensor | None) -> Tensor:
    """KL(N(mean, sigma^2) || N(base, s^2)) / N_eff, or without sigma the negative log prior / N_eff."""
    energy = 0.5 * ((mean - row.start) / PRIOR_SCALE).square().sum()
    if log_sigma is not None:
        log_ratio = log_sigma - torch.tensor(PRIOR_SCALE).log()
        energy = energy + (0.5 * ((2 * log_ratio).exp() - 1) - log_ratio).sum()
    return energy / EFFECTIVE_PIXELS


def train(row: Trained, batches: list[Batch], rate: float) -> tuple[Tensor, Tensor | None, list[float]]:
    """Means and log standard deviations after one step for each batch, and the NLL that each step saw."""
    mean = row.start.clone().requires_grad_()
    log_sigma = None if row.log_sigma is None else row.log_sigma.clone().requires_grad_()
    parameters = [mean] if log_sigma is None else [mean, log_sigma]
    optimizer = make_optimizer("adamw", parameters, rate)
    schedule = make_schedule(optimizer, "poly", len(batches), rate)
    losses = []
    for step, (images, labels) in enumerate(batches):
        logits = row.logits(mean, log_sigma, images, mix_seed(step))
        nll = F.cross_entropy(logits, labels, ignore_index=IGNORE)
        losses.append(nll.item())
        optimizer.zero_grad()
        (nll + regulariser(row, mean, log_sigma)).backward()
        optimizer.step()
        schedule.step()
    return mean.detach(), None if log_sigma is None else log_sigma.detach(), losses


@torch.no_grad()
def nll(row: Trained, mean: Tensor, log_sigma: Tensor | None, batches: list[Batch], draws: int) -> float:
    """Of the mean probabilities of so many draws, the same networks for all batches; 0 draws: of the means. In nats."""
    total, pixels = 0.0, 0
    for images, labels in batches:
        seeds = [mix_seed(10**6, draw) for draw in range(draws)] or [None]
        # Frames come one by one, so that the noise of an image is that of the draw.
        p = sum(row.predict(mean, log_sigma, images, seed).softmax(1) for seed in seeds) / len(seeds)
        valid = labels != IGNORE
        total += F.nll_loss(p.clamp_min(1e-30).log(), labels, ignore_index=IGNORE, reduction="sum").item()
        pixels += int(valid.sum())
    return total / pixels


def noise(losses: list[float]) -> float:
    """The standard deviation from step to step over the mean, in the second half: half the mean squared difference of neighbours."""
    late = torch.tensor(losses[len(losses) // 2 :], dtype=torch.float64)
    return float((late.diff().square().mean() / 2).sqrt() / late.mean())


def trainings(base: Path, data: Path, seed: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Each row's numbers at each learning rate."""
    module = SegmentationDataModule("toy", str(data))
    train_set = module.dataset("train")
    batches = list(Minibatches(train_set, range(len(train_set)), BATCH, seed).between(0, arguments.steps))
    splits = {name: module.dataset(name) for name in ("val", "test")}
    frames = {name: load_batches(split, range(len(split)), 1) for name, split in splits.items()}
    found: dict[str, Any] = {}
    for name, row in make_rows(base, arguments.alpha, arguments.share):
        found[name] = {}
        for rate in row.rates:
            mean, log_sigma, losses = train(row, batches, rate)
            numbers = {"noise": noise(losses), "last_losses": statistics.fmean(losses[-50:])}
            for split, held in frames.items():
                numbers[f"{split}_nll"] = nll(row, mean, log_sigma, held, arguments.predictions)
                numbers[f"{split}_point"] = nll(row, mean, log_sigma, held, 0)
            found[name][f"{rate:g}"] = numbers
            print(f"seed {seed}, {name}, lr {rate:g}: {numbers}", flush=True)
    return found


def over_seeds(values: list[Any]) -> Any:
    """Of like nested dictionaries of numbers the mean, least and largest; null where one of them is."""
    if isinstance(values[0], dict):
        return {key: over_seeds([value[key] for value in values]) for key in values[0]}
    if any(value is None for value in values):
        return None
    return [float(f"{number:.4g}") for number in (statistics.fmean(values), min(values), max(values))]


def chosen(found: dict[str, Any]) -> dict[str, Any]:
    """Each row at the learning rate whose NLL on val is the lowest in the mean over seeds."""
    best = {name: min(rates, key=lambda rate: rates[rate]["val_nll"][0]) for name, rates in found.items()}
    return {name: {"lr": float(best[name]), **rates[best[name]]} for name, rates in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for everything")
    parser.add_argument("--seeds", type=int, default=4, help="bases, each trained from scratch (default 4)")
    parser.add_argument("--steps", type=int, default=200, help="of each training (default 200)")
    parser.add_argument("--alpha", type=float, default=0.2, help="noise scale of ABNN (default 0.2)")
    parser.add_argument("--share", type=float, default=0.12, help="sigma over abs(w) of all weights (default 0.12)")
    parser.add_argument("--batches", type=int, default=16, help="minibatches for the variance (default 16)")
    parser.add_argument("--draws", type=int, default=4, help="on each of them, at least 2 (default 4)")
    parser.add_argument("--predictions", type=int, default=12, help="draws of a prediction (default 12)")
    arguments = parser.parse_args()
    torch.set_flush_denormal(True)
    data = arguments.out / "data"
    generate_toy(data, SCENES)
    gradients, trained = [], []
    for seed in range(arguments.seeds):
        base = arguments.out / f"base-s{seed}"
        build_base(base, data, "cpu", seed)
        train_set = SegmentationDataModule("toy", str(data)).dataset("train")
        batches = list(Minibatches(train_set, range(len(train_set)), BATCH, seed).between(0, arguments.batches))
        shares = (0.05, arguments.share, arguments.alpha)
        gradients.append(
            {
                name: measure(estimate, batches, arguments.draws, affine)
                for name, estimate, affine in rows(base, arguments.alpha, 0.05, shares)
            }
        )
        print(f"seed {seed}: gradients measured", flush=True)
        trained.append(trainings(base, data, seed, arguments))
        by_rate = over_seeds(trained)
        made = {**provenance(), "seeds": seed + 1}
        numbers = {"gradients": over_seeds(gradients), "training": chosen(by_rate), "val_nll_of_rates": by_rate}
        for name, rates in by_rate.items():
            numbers["val_nll_of_rates"][name] = {rate: values["val_nll"][0] for rate, values in rates.items()}
        write_json(
            arguments.out / "gradients.json", {"of": "mean, least and largest over seeds", **numbers, "made": made}
        )


if __name__ == "__main__":
    main()
