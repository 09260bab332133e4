"""Laplace: the Fisher of the mean pixel against the exact matrix, at the base and after a fine-tuning."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from segunc.affine.convert import convert
from segunc.affine.draws import AffineDraws, AffineLayout
from segunc.baselines.laplace import FisherSum, Laplace, LaplaceConfig, Structure, finetune_laplace
from segunc.core.errors import InputError
from segunc.data.labels import IGNORE
from segunc.posteriors.model import load_model
from segunc.training.config import FinetuneConfig, parse_config
from tests.affine.networks import layout_of, randomise, small_network
from tests.conftest import Job


def tiny_network() -> nn.Module:
    """Two norm layers of two channels, a batch and a group one, from 3 channels to 3 classes; 8 parameters."""
    torch.manual_seed(0)
    head, stem, middle = nn.Conv2d(2, 3, 1), nn.Conv2d(3, 2, 3, padding=1), nn.Conv2d(2, 2, 3, padding=1)
    head.weight.data *= 3
    network = nn.Sequential(stem, nn.BatchNorm2d(2), nn.Tanh(), middle, nn.GroupNorm(1, 2), head)
    randomise(network.eval().requires_grad_(False))
    convert(network)
    return network


IMAGES = torch.rand(3, 3, 4, 5, generator=torch.Generator().manual_seed(1))
LABELS = torch.zeros(3, 4, 5, dtype=torch.int64)
LABELS[0, 0] = LABELS[2, :, 3:] = IGNORE
PIXELS = int((LABELS != IGNORE).sum())


def exact(network: nn.Module) -> Tensor:
    """``[2T, 2T]``: for every pixel and class the outer product of the gradient of its log-probability, by brute force."""
    layout = AffineLayout(network)
    total = torch.zeros(2 * layout.total, 2 * layout.total, dtype=torch.float64)
    gamma, beta = layout.weight.clone()[None].requires_grad_(), layout.bias.clone()[None].requires_grad_()
    for image, label in zip(IMAGES, LABELS, strict=True):
        with layout.active(AffineDraws(gamma, beta)):
            logs = network(image[None])[0].log_softmax(0)
        for y, x in (label != IGNORE).nonzero().tolist():
            for log in logs[:, y, x]:
                gradient = torch.cat(torch.autograd.grad(log, (gamma, beta), retain_graph=True), 1)[0].double()
                total += float(log.detach().exp()) * torch.outer(gradient, gradient)
    return total / PIXELS


def summed(structure: Structure, samples: int, batch: int = 3, scope: str = "all") -> FisherSum:
    network = tiny_network()
    fisher = FisherSum(network, AffineLayout(network).affine, structure, scope)
    for number, start in enumerate(range(0, 3, batch)):
        part = slice(start, start + batch)
        fisher.add(IMAGES[part], LABELS[part], number, samples)
    return fisher


def test_it_converges_to_the_exact_fisher_of_the_mean_pixel() -> None:
    samples = 1500
    full = exact(tiny_network())
    fisher = summed("block", samples)
    assert fisher.pixels == samples * PIXELS
    assert fisher.gradients == samples * 3
    # gamma with gamma, beta with beta, gamma with beta; F_ii, F_jj and F_ij of each entry.
    first, second, crossed = full.diagonal()[:4], full.diagonal()[4:], full[:4, 4:].diagonal()
    expected = torch.stack([first, second, crossed])
    products = torch.stack([first.square(), second.square(), first * second])
    # Three images' gradients, each nearly Gaussian: an entry ij has a variance of at most (F_ii F_jj + F_ij^2) / samples.
    bound = 5 * ((products + expected.square()) / samples).sqrt()
    difference = (fisher.mean().double() - expected).abs()
    assert bool((difference <= bound).all())
    # And the check can see: twice the matrix, as a lost factor would give, lies outside.
    assert bool(((2 * fisher.mean().double() - expected).abs() > bound)[:2].all())
    assert torch.equal(summed("diagonal", 3).mean(), summed("block", 3).mean()[:2])


def test_images_do_not_see_each_other_in_a_batch() -> None:
    network = tiny_network()
    affine = AffineLayout(network).affine
    alone, beside = FisherSum(network, affine, "block"), FisherSum(network, affine, "block")
    alone.add(IMAGES[:1], LABELS[:1], seed=0)
    ignored = torch.full_like(LABELS[:1], IGNORE)
    beside.add(IMAGES[:2], torch.cat([LABELS[:1], ignored]), seed=0)  # the first image meets the same random numbers
    assert torch.allclose(alone.total, beside.total)
    assert alone.pixels == beside.pixels
    assert float(alone.total[:2].min()) > 0


def test_a_scope_leaves_the_other_sites_at_zero() -> None:
    block = summed("block", 2, scope="last:1").mean()
    assert torch.equal(block[:, :2], torch.zeros(3, 2))
    assert float(block[:2, 2:].min()) > 0
    # Layers without beta have no entry for it.
    network = small_network(nn.LayerNorm([8, 4, 4], bias=False)).requires_grad_(False)
    fisher = FisherSum(network, layout_of(network).affine, "diagonal")
    fisher.add(torch.rand(2, 3, 4, 4), torch.zeros(2, 4, 4, dtype=torch.int64), 0)
    assert not (fisher.total[1] > 0)[8:].any()
    assert (fisher.total[0] > 0)[8:].any()


def test_networks_that_blow_up_are_refused() -> None:
    network = tiny_network()
    fisher = FisherSum(network, AffineLayout(network).affine * 1e38, "block")
    with pytest.raises(InputError, match="NaN or infinite"):
        fisher.add(IMAGES, LABELS, 0)


def run(job: Job, out: Path, settings: str = "") -> Laplace:
    """Twelve crops in three batches."""
    config = out.parent / "laplace.yaml"
    config.write_text(
        f"data: {{dataset: toy, root: {job.data}, crop: [64, 64], batch_size: 4}}\n"
        f"laplace: {{images: 12, samples: 1{settings}}}\ntrainer: {{precision: 32-true}}\n",
        encoding="utf-8",
    )
    parsed = parse_config(FinetuneConfig, config, [], LaplaceConfig)
    finetune_laplace(job.base, parsed, out, device="cpu", say=lambda text: None)
    posterior = load_model(out).posterior
    assert isinstance(posterior, Laplace)
    return posterior


def test_a_finetuning_before_moves_the_mean_and_the_fisher_is_of_the_tuned_network_and_its_scope(
    trained: Job, tmp_path: Path
) -> None:
    base, tuned = run(trained, tmp_path / "base"), run(trained, tmp_path / "tuned", ", epochs: 1, scope: 'last:1'")
    assert torch.equal(run(trained, tmp_path / "again").fisher, base.fisher)
    assert float((tuned.mean - base.mean).abs().max()) > 1e-4
    moved = tuned.fisher[0] > 0
    assert 0 < int(moved.sum()) < len(moved)
    assert not torch.allclose(tuned.fisher[:, moved], base.fisher[:, moved], rtol=1e-3)
