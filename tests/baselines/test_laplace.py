"""Laplace: the Fisher of the mean pixel against the exact matrix, one that is interrupted, and one after a fine-tuning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from segunc.affine.convert import convert
from segunc.affine.draws import AffineDraws, AffineLayout
from segunc.baselines import laplace
from segunc.baselines.laplace import FisherSum, Laplace, LaplaceConfig, Structure, finetune_laplace
from segunc.core.errors import InputError
from segunc.data.labels import IGNORE
from segunc.posteriors.files import load_model
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
    expected = exact(tiny_network())
    fisher = summed("full", samples)
    assert fisher.pixels == samples * PIXELS
    assert fisher.gradients == samples * 3
    # Three images' gradients, each nearly Gaussian: an entry ij has a variance of at most (F_ii F_jj + F_ij^2) / samples.
    variance = expected.diagonal()
    bound = 5 * ((variance[:, None] * variance + expected.square()) / samples).sqrt()
    difference = (fisher.mean().double() - expected).abs()
    assert bool((difference <= bound).all())
    # And the check can see: twice the matrix, as a lost factor would give, lies outside.
    assert bool(((2 * fisher.mean().double() - expected).abs() > bound).diagonal().all())


def test_the_three_forms_hold_the_same_numbers() -> None:
    full, block, diagonal = (summed(s, 3).mean() for s in ("full", "block", "diagonal"))
    assert torch.allclose(full.diagonal(), block[:2].flatten())
    assert torch.allclose(full[:4, 4:].diagonal(), block[2])
    assert torch.equal(block[:2], diagonal)
    assert float(block[2].abs().min()) > 0


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
    full = summed("full", 2, scope="last:1")
    assert full.index is not None
    assert full.index.tolist() == [2, 3, 6, 7]
    assert torch.allclose(full.mean().diagonal(), block[:2, 2:].flatten())
    # Layers without beta have no row.
    network = small_network(nn.LayerNorm([8, 4, 4], bias=False)).requires_grad_(False)
    fisher = FisherSum(network, layout_of(network).affine, "full")
    fisher.add(torch.rand(2, 3, 4, 4), torch.zeros(2, 4, 4, dtype=torch.int64), 0)
    assert fisher.index is not None
    assert len(fisher.index) == 8 + 128 + 8  # gammas of both layers, betas of the BatchNorm alone


def test_too_many_parameters_for_the_full_form_and_networks_that_blow_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(laplace, "FULL_LIMIT", 7)
    with pytest.raises(InputError, match="full Fisher of 8 parameters; expected at most 7; choose a smaller scope"):
        summed("full", 1)
    network = tiny_network()
    fisher = FisherSum(network, AffineLayout(network).affine * 1e38, "block")
    with pytest.raises(InputError, match="NaN or infinite"):
        fisher.add(IMAGES, LABELS, 0)


def run(job: Job, out: Path, settings: str = "") -> Laplace:
    """Twelve crops in three batches."""
    config = out.parent / "laplace.yaml"
    config.write_text(
        f"data: {{dataset: toy, root: {job.data}, crop: [64, 64], batch_size: 4}}\n"
        f"laplace: {{images: 12, samples: 1, prior_scale_grid: []{settings}}}\ntrainer: {{precision: 32-true}}\n",
        encoding="utf-8",
    )
    parsed = parse_config(FinetuneConfig, config, [], LaplaceConfig)
    finetune_laplace(job.base, parsed, out, device="cpu", say=lambda text: None)
    posterior = load_model(out).posterior
    assert isinstance(posterior, Laplace)
    return posterior


@pytest.fixture(scope="module")
def whole(trained: Job, tmp_path_factory: pytest.TempPathFactory) -> Laplace:
    return run(trained, tmp_path_factory.mktemp("laplace") / "whole")


def test_an_interrupted_fisher_is_continued_to_the_same_numbers(
    trained: Job, whole: Laplace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    added: list[int] = []
    stops = [2]
    add = FisherSum.add

    def counted(self: FisherSum, *arguments: Any) -> None:
        if len(added) in stops:
            raise KeyboardInterrupt
        add(self, *arguments)
        added.append(self.pixels)

    monkeypatch.setattr(laplace, "INTERVAL", 0.0)
    monkeypatch.setattr(FisherSum, "add", counted)
    with pytest.raises(KeyboardInterrupt):
        run(trained, tmp_path / "stopped")
    assert len(added) == 2
    with pytest.raises(InputError, match=r"laplace.samples 1 there, 3 asked for"):
        run(trained, tmp_path / "stopped", ", samples: 3")
    stops.clear()
    continued = run(trained, tmp_path / "stopped")
    assert len(added) == 3, "what was summed before is not summed again"
    assert torch.equal(continued.fisher, whole.fisher)
    assert torch.equal(run(trained, tmp_path / "stopped").fisher, whole.fisher)
    assert len(added) == 3, "nor is anything of a finished run"


def test_a_finetuning_before_moves_the_mean_and_a_full_fisher_is_of_its_scope(
    trained: Job, whole: Laplace, tmp_path: Path
) -> None:
    posterior = run(trained, tmp_path / "full", ", epochs: 1, structure: full, scope: 'last:1'")
    assert float((posterior.mean - whole.mean).abs().max()) > 1e-4
    assert posterior.index is not None
    before = whole.fisher[:2].flatten()[posterior.index]
    assert not torch.allclose(posterior.fisher.diagonal(), before, rtol=1e-3), "it is that of the tuned network"
    assert posterior.fisher.shape == (len(posterior.index), len(posterior.index))
    assert float(torch.linalg.eigvalsh(posterior.fisher.double())[-1]) > 0
