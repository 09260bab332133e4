"""How noisy are the gradients? Their variance at the same parameters for deterministic, ABNN and variational training.

    python -m tools.study_gradient_variance --base runs/toy --data demo/data --out gradients

All at the trained parameters, over whole frames without augmentation, with frozen statistics. Of the affine parameters alone: deterministic
training has the noise of the minibatch alone; ABNN multiplies gamma by 1 + alpha eps, one eps a channel and image; a mean-field Gaussian
adds sigma eps to gamma and beta, once with the sigma of ABNN's own noise (alpha |gamma|, beta fixed), once with one sigma for all.

Of all weights (Blundell et al. 2015, 1505.05424): w + sigma eps with sigma = share |w|, for each of ``--shares``; one eps a minibatch, as is
usual, or one an image, as ABNN's; and by the local reparameterisation (Kingma et al. 2015, 1506.02557), where what a convolution gives is
drawn, each element by itself, from the Gaussian that its weights' noise makes of it, and gamma and beta an image.

For each: the total variance tr Cov(g) over minibatches and draws, over draws alone (the same minibatch), by the number of trained
parameters too, and relative to |E g|^2, the squared mean: of g scaled by any number the ratio is the same. The gradient is that of the
mean-pixel cross-entropy, of the means and, for a Gaussian, of the log standard deviations beside them (``log_sigma_variance``,
total). ``affine``: the same for the coordinates gamma and beta alone, which all rows have. ``loss``: the mean of the loss that is
differentiated, which says how much noise there is. Prints a table and writes gradients.md and gradients.json.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from segunc.affine.convert import convert
from segunc.affine.draws import AffineDraws, AffineLayout
from segunc.affine.noise import draw_noise, mix_seed
from segunc.core.files import write_json
from segunc.data.labels import IGNORE
from segunc.data.module import SegmentationDataModule
from segunc.networks.files import load_network
from segunc.training.data import Batch, Minibatches
from tools.measuring import provenance

TINY = 1e-12
"""Of a variance, whose root has a derivative everywhere."""
Perturb = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""gamma, beta ``[T]`` and noise ``[N, 2, T]`` -> those of each image ``[N, T]``."""


class Gradient(NamedTuple):
    """Of one minibatch and draw, at the trained parameters."""

    loss: float  # nats
    mean: Tensor  # [D] of the means; gamma and beta come last
    log_sigma: Tensor | None  # of the log standard deviations


Estimate = Callable[[Batch, int], Gradient]
"""The gradient of a minibatch; the seed decides the noise."""


class AffineGradients:
    """Gradients with respect to gamma and beta ``[2T]``, each image with noise of its own."""

    def __init__(self, network: nn.Module, perturb: Perturb, sigma: float | None = None) -> None:
        convert(network)
        self.network = network.eval().requires_grad_(False)
        self.layout, self.perturb, self.sigma = AffineLayout(network), perturb, sigma

    def __call__(self, batch: Batch, seed: int) -> Gradient:
        images, labels = batch
        total = self.layout.total
        noise = draw_noise(seed, range(len(images)), 2 * total).view(-1, 2, total)
        gamma, beta = self.layout.weight.clone().requires_grad_(), self.layout.bias.clone().requires_grad_()
        weight, bias = self.perturb(gamma, beta, noise)
        with self.layout.active(AffineDraws(weight, bias)):
            loss = F.cross_entropy(self.network(images), labels, ignore_index=IGNORE)
        asked = (gamma, beta, weight, bias)
        of_gamma, of_beta, of_weight, of_bias = torch.autograd.grad(loss, asked)
        mean = torch.cat([of_gamma, of_beta * self.layout.has_bias])
        if self.sigma is None:
            return Gradient(loss.item(), mean, None)
        drawn = torch.cat([(of_weight * noise[:, 0]).sum(0), (of_bias * noise[:, 1]).sum(0)])
        return Gradient(loss.item(), mean, self.sigma * drawn)


class WeightGradients:
    """Gradients with respect to the means of a Gaussian over all weights, convolutions, gamma, beta and biases ``[D]``.

    Args:
        network: as it is loaded.
        share: sigma of each weight as a share of its absolute value; 0 is the network itself.
        by_image: each image of a minibatch meets noise of its own.
    """

    def __init__(self, network: nn.Module, share: float, by_image: bool = False) -> None:
        self.network, self.by_image = network.eval().requires_grad_(False), by_image
        twin = copy.deepcopy(network)
        convert(twin)
        sites = AffineLayout(twin).names
        affine = {id(p) for site in sites for p in network.get_submodule(site).parameters(recurse=False)}
        named = sorted(network.named_parameters(), key=lambda item: id(item[1]) in affine)  # stable: the affine last
        self.names, self.shapes = [name for name, _ in named], [p.shape for _, p in named]
        self.mean = torch.cat([p.flatten() for _, p in named])
        self.sigma = share * self.mean.abs()
        self.affine = sum(p.numel() for _, p in named if id(p) in affine)

    def named(self, values: Tensor) -> dict[str, Tensor]:
        """Values ``[D]`` by the names and in the shapes of the weights."""
        parts = torch.split(values, [shape.numel() for shape in self.shapes])
        return {name: part.view(shape) for name, part, shape in zip(self.names, parts, self.shapes, strict=True)}

    def logits(self, weights: Tensor, images: Tensor) -> Tensor:
        """Of the network with these weights ``[D]``, differentiable in them."""
        return cast(Tensor, functional_call(self.network, self.named(weights), (images,)))

    def drawn(self, mean: Tensor, sigma: Tensor, images: Tensor, seed: int) -> Tensor:
        """Logits of images under the noise of a seed, differentiable in both."""
        count = len(images) if self.by_image else 1
        noise = draw_noise(seed, range(count), len(mean))
        parts = images.split(1) if self.by_image else (images,)
        return torch.cat([self.logits(mean + sigma * e, part) for e, part in zip(noise, parts, strict=True)])

    def __call__(self, batch: Batch, seed: int) -> Gradient:
        images, labels = batch
        mean, sigma = self.mean.clone().requires_grad_(), self.sigma.clone().requires_grad_()
        loss = F.cross_entropy(self.drawn(mean, sigma, images, seed), labels, ignore_index=IGNORE)
        of_mean, of_sigma = torch.autograd.grad(loss, (mean, sigma))
        return Gradient(loss.item(), of_mean, of_sigma * self.sigma if bool(self.sigma.any()) else None)


class LocalGradients(WeightGradients):
    """The same by the local reparameterisation, for networks of plain convolutions and norm layers.

    A convolution gives ``conv(x, mu) + sqrt(conv(x^2, sigma^2)) eps`` with eps for each element, which takes places of one channel for
    independent, though they share their weights; gamma and beta are drawn for each image.
    """

    def __init__(self, network: nn.Module, share: float) -> None:
        super().__init__(network, share)
        convert(network)
        self.layout = AffineLayout(network)

    def drawn(self, mean: Tensor, sigma: Tensor, images: Tensor, seed: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        means, sigmas = self.named(mean), self.named(sigma)
        inside = False  # a layer that its own hook calls

        def convolved(name: str, layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor | None:
            nonlocal inside
            if inside:
                return None
            inside = True
            own = {key: sigmas[f"{name}.{key}"].square() for key, _ in layer.named_parameters(recurse=False)}
            variance = functional_call(layer, own, (inputs[0].square(),))
            inside = False
            return output + (variance + TINY).sqrt() * torch.randn(output.shape, generator=generator)

        affine = [
            torch.cat(
                [
                    means[f"{name}.{key}"] + sigmas[f"{name}.{key}"] * torch.randn(len(images), c, generator=generator)
                    for name, c in zip(self.layout.names, self.layout.channels, strict=True)
                ],
                1,
            )
            for key in ("weight", "bias")
        ]
        with ExitStack() as stack:
            for name, layer in self.network.named_modules():
                if isinstance(layer, nn.Conv2d):
                    stack.callback(layer.register_forward_hook(partial(convolved, name)).remove)
            stack.enter_context(self.layout.active(AffineDraws(*affine)))
            return self.logits(mean, images)


def spread(gradients: Tensor) -> float:
    """tr Cov of gradients ``[n, D]``, unbiased."""
    return float(gradients.double().var(0).sum())


def nested(gradients: Tensor) -> dict[str, float | None]:
    """The variances of gradients ``[B, K, D]`` of B minibatches with K draws each: of both, of draws alone, and to the squared mean."""
    batches, draws, size = gradients.shape
    within = sum(map(spread, gradients)) / batches
    means = gradients.double().mean(1)
    # The variance of a minibatch's mean is that over minibatches and within / K; what is left of the squared norm is the mean's.
    total = spread(means) + within * (1 - 1 / draws)
    square = float(means.mean(0).square().sum()) - spread(means) / batches
    return {
        "parameters": size,
        "variance": total,
        "variance_of_draws": within,
        "variance_a_parameter": total / size,
        "squared_mean": square,
        "ratio": total / square if square > 0 else None,
        "ratio_of_draws": within / square if square > 0 else None,
    }


def measure(estimate: Estimate, batches: list[Batch], draws: int, affine: int) -> dict[str, Any]:
    """The numbers of one row, whose last ``affine`` coordinates are gamma and beta; see the module's text."""
    found = [[estimate(batch, mix_seed(number, k)) for k in range(draws)] for number, batch in enumerate(batches)]
    means = torch.stack([torch.stack([one.mean for one in row]) for row in found])
    deviations = [one.log_sigma for row in found for one in row if one.log_sigma is not None]
    return {
        **nested(means),
        "affine": nested(means[..., -affine:]),
        "log_sigma_variance": spread(torch.stack(deviations)) if deviations else None,
        "loss": sum(one.loss for row in found for one in row) / (len(batches) * draws),
    }


def rows(base: Path, alpha: float, sigma: float, shares: Sequence[float]) -> Iterator[tuple[str, Estimate, int]]:
    """Each row's name, its gradients at a base, and how many of its last coordinates are gamma and beta."""

    def scaled(gamma: Tensor, beta: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        return gamma * (1 + alpha * noise[:, 0]), beta.expand(len(noise), -1)

    def matched(gamma: Tensor, beta: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        return gamma + alpha * gamma.detach().abs() * noise[:, 0], beta.expand(len(noise), -1)

    def added(gamma: Tensor, beta: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        return gamma + sigma * noise[:, 0], beta + sigma * noise[:, 1]

    def plain(gamma: Tensor, beta: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        return gamma.expand(len(noise), -1), beta.expand(len(noise), -1)

    of_affine: tuple[tuple[str, Perturb, float | None], ...] = (
        ("deterministic", plain, None),
        (f"ABNN, alpha {alpha:g}", scaled, None),
        (f"variational, sigma {alpha:g} abs(gamma)", matched, None),
        (f"variational, sigma {sigma:g}", added, sigma),
    )
    for name, perturb, own in of_affine:
        estimate = AffineGradients(load_network(base), perturb, own)
        yield name, estimate, 2 * estimate.layout.total
    of_all: list[tuple[str, WeightGradients]] = [("deterministic", WeightGradients(load_network(base), 0.0))]
    for share in shares:
        name = f"variational, sigma {share:g} abs(w)"
        of_all += [
            (name, WeightGradients(load_network(base), share)),
            (f"{name}, by image", WeightGradients(load_network(base), share, by_image=True)),
            (f"{name}, local", LocalGradients(load_network(base), share)),
        ]
    for name, weights in of_all:
        yield f"all weights: {name}", weights, weights.affine


def markdown(result: dict[str, Any]) -> str:
    """The table of a result, with the circumstances of its making."""
    columns = (
        "parameters",
        "loss",
        "variance",
        "variance_of_draws",
        "variance_a_parameter",
        "squared_mean",
        "ratio",
        "ratio_of_draws",
        "log_sigma_variance",
    )
    heads = [*(c.replace("_", " ") for c in columns), "ratio of gamma and beta"]
    lines = [f"| method | {' | '.join(heads)} |", "|" + "---|" * (len(heads) + 1)]
    for name, row in result["rows"].items():
        values = [*(row[c] for c in columns), row["affine"]["ratio"]]
        lines.append(f"| {name} | {' | '.join('-' if v is None else f'{v:.4g}' for v in values)} |")
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
    parser.add_argument(
        "--shares", type=float, nargs="*", default=[0.1], help="sigma over abs(w) of all weights (default 0.1)"
    )
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--batches", type=int, default=40, help="minibatches (default 40)")
    parser.add_argument("--draws", type=int, default=4, help="draws on each minibatch, at least 2 (default 4)")
    parser.add_argument("--seed", type=int, default=0, help="of the minibatches (default 0)")
    arguments = parser.parse_args()
    torch.set_flush_denormal(True)
    data = SegmentationDataModule(arguments.dataset, arguments.data).dataset("train")
    minibatches = Minibatches(data, range(len(data)), arguments.batch_size, seed=arguments.seed)
    batches = list(minibatches.between(0, arguments.batches))
    found = {}
    for name, estimate, affine in rows(arguments.base, arguments.alpha, arguments.sigma, arguments.shares):
        found[name] = measure(estimate, batches, arguments.draws, affine)
        print(f"{name}: {found[name]}", flush=True)
    result = {
        "rows": found,
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
