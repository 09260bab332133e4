"""How noisy are the gradients? Their variance at the same parameters for deterministic, ABNN and variational training.

    python -m tools.study_gradient_variance --base runs/toy --data demo/data --out gradients

All at the trained affine parameters theta, over whole frames without augmentation. Deterministic training has the noise of the
minibatch alone. ABNN multiplies gamma by 1 + alpha eps, one eps a channel and image. A mean-field Gaussian adds sigma eps to gamma
and beta: once with the sigma of ABNN's own noise (alpha |gamma|, beta fixed), once with one sigma for all of theta. The gradient
is that of the mean-pixel cross-entropy, of the means and, for the Gaussian, of the log standard deviations beside them.

For each: the total variance tr Cov(g) over minibatches and draws, over draws alone (the same minibatch), and the ratio
of the first to |E g|^2, the squared mean. Prints a table and writes gradients.md and gradients.json.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from segunc.affine.convert import convert
from segunc.affine.draws import AffineDraws, AffineLayout
from segunc.affine.noise import draw_noise, mix_seed
from segunc.core.files import write_json
from segunc.data.labels import IGNORE
from segunc.data.module import SegmentationDataModule
from segunc.networks.files import load_network
from segunc.training.data import Batch, Minibatches
from tools.measuring import provenance

Perturb = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""gamma, beta ``[T]`` and noise ``[N, 2, T]`` -> those of each image ``[N, T]``."""


def methods(alpha: float, sigma: float, gamma: Tensor) -> dict[str, tuple[Perturb, bool]]:
    """The noise of each method, and whether it has standard deviations with a gradient of their own."""
    matched = alpha * gamma.abs()
    return {
        "deterministic": (lambda g, b, e: (g.expand(len(e), -1), b.expand(len(e), -1)), False),
        f"ABNN, alpha {alpha:g}": (lambda g, b, e: (g * (1 + alpha * e[:, 0]), b.expand(len(e), -1)), False),
        f"variational, sigma {alpha:g} abs(gamma)": (
            lambda g, b, e: (g + matched * e[:, 0], b.expand(len(e), -1)),
            False,
        ),
        f"variational, sigma {sigma:g}": (lambda g, b, e: (g + sigma * e[:, 0], b + sigma * e[:, 1]), True),
    }


class Gradients:
    """Gradients of the mean-pixel cross-entropy of a network at its trained affine parameters."""

    def __init__(self, network: torch.nn.Module) -> None:
        convert(network)
        self.network = network.eval().requires_grad_(False)
        self.layout = AffineLayout(network)

    def __call__(self, perturb: Perturb, batch: Batch, seed: int) -> tuple[Tensor, Tensor]:
        """Gradient of (gamma, beta) ``[2T]``, and the noise times that of each image's affine ``[2T]``, for log sigma."""
        images, labels = batch
        total = self.layout.total
        noise = draw_noise(seed, range(len(images)), 2 * total).view(-1, 2, total)
        gamma, beta = self.layout.weight.clone().requires_grad_(), self.layout.bias.clone().requires_grad_()
        weight, bias = perturb(gamma, beta, noise)
        weight.retain_grad()
        bias.retain_grad()
        with self.layout.active(AffineDraws(weight, bias)):
            logits = self.network(images)
        F.cross_entropy(logits, labels, ignore_index=IGNORE).backward()  # type: ignore[no-untyped-call]
        assert gamma.grad is not None
        assert beta.grad is not None
        assert weight.grad is not None
        assert bias.grad is not None
        mean = torch.cat([gamma.grad, beta.grad * self.layout.has_bias])
        return mean, torch.cat([(weight.grad * noise[:, 0]).sum(0), (bias.grad * noise[:, 1]).sum(0)])


def spread(gradients: Tensor) -> float:
    """tr Cov of gradients ``[n, D]``, unbiased."""
    return float(gradients.double().var(0).sum())


def measure(
    gradients: Gradients, perturb: Perturb, batches: list[Batch], draws: int, sigma: float | None
) -> dict[str, float | None]:
    """The numbers of one method; see the module's text."""
    means, deviations, within = [], [], []
    for number, batch in enumerate(batches):
        drawn = [gradients(perturb, batch, mix_seed(number, draw)) for draw in range(draws)]
        same_batch = torch.stack([mean for mean, _ in drawn])
        within.append(spread(same_batch))
        means.append(same_batch[0])
        if sigma is not None:
            deviations.append(sigma * drawn[0][1])
    stacked = torch.stack(means).double()
    total = spread(stacked)
    # The squared norm of an average of n gradients is that of the mean plus tr Cov / n.
    square = float(stacked.mean(0).square().sum()) - total / len(stacked)
    return {
        "variance": total,
        "variance_of_draws": sum(within) / len(within),
        "squared_mean": square,
        "ratio": total / square if square > 0 else None,
        "log_sigma_variance": spread(torch.stack(deviations)) if sigma is not None else None,
    }


def markdown(result: dict[str, Any]) -> str:
    """The table of a result, with the circumstances of its making."""
    columns = ("variance", "variance_of_draws", "squared_mean", "ratio", "log_sigma_variance")
    lines = [f"| method | {' | '.join(c.replace('_', ' ') for c in columns)} |", "|" + "---|" * (len(columns) + 1)]
    for name, row in result["rows"].items():
        cells = ["-" if row[c] is None else f"{row[c]:.3g}" for c in columns]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    made = result["made"]
    lines += [
        "",
        f"Made {made['date']}, {made['hardware']}, commit {made['commit']}, torch {made['versions']['torch']}",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", type=Path, required=True, help="model folder of a deterministic network")
    parser.add_argument("--data", required=True, help="root of its data set")
    parser.add_argument("--dataset", default="toy")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--alpha", type=float, default=0.1, help="noise scale of ABNN (default 0.1)")
    parser.add_argument("--sigma", type=float, default=0.05, help="standard deviation of the Gaussian (default 0.05)")
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--batches", type=int, default=40, help="minibatches (default 40)")
    parser.add_argument("--draws", type=int, default=4, help="draws on each minibatch, at least 2 (default 4)")
    arguments = parser.parse_args()
    torch.set_flush_denormal(True)
    gradients = Gradients(load_network(arguments.base))
    data = SegmentationDataModule(arguments.dataset, arguments.data).dataset("train")
    minibatches = Minibatches(data, range(len(data)), arguments.batch_size, seed=0)
    batches = list(minibatches.between(0, arguments.batches))
    rows = {}
    for name, (perturb, sigmas) in methods(arguments.alpha, arguments.sigma, gradients.layout.weight).items():
        rows[name] = measure(gradients, perturb, batches, arguments.draws, arguments.sigma if sigmas else None)
        print(f"{name}: {rows[name]}", flush=True)
    result = {
        "rows": rows,
        "made": {
            **provenance(),
            "settings": {k: str(v) if isinstance(v, Path) else v for k, v in vars(arguments).items()},
        },
    }
    arguments.out.mkdir(parents=True, exist_ok=True)
    write_json(arguments.out / "gradients.json", result)
    (arguments.out / "gradients.md").write_text(markdown(result), encoding="utf-8")
    print(f"\n{markdown(result)}")


if __name__ == "__main__":
    main()
