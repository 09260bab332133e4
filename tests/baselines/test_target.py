"""The log posterior against scikit-learn, finite differences and quadrature."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from sklearn.metrics import log_loss
from torch import Tensor, nn

from segunc.affine.convert import convert
from segunc.affine.posterior import Prior, PriorMean
from segunc.baselines.convergence import effective_sample_size
from segunc.baselines.dynamics import HamiltonianChain, HmcConfig
from segunc.baselines.target import LogPosterior, load_batches, minibatches
from segunc.core.errors import InputError
from segunc.data.module import SegmentationDataModule
from segunc.data.samples import SegmentationDataset
from tests.affine.networks import randomise, small_network, with_affine

S, N_EFF = 0.2, 500.0


def data(frames: int = 6, size: int = 8) -> tuple[Tensor, Tensor]:
    """Frames whose shares of ignored pixels differ."""
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(frames, 3, size, size, generator=generator)
    labels = (images.mean(1) * 4).long().clamp(0, 3)
    for i in range(frames):
        labels[i, : i % size] = 255
    return images, labels


def target(scope: str = "all", temperature: float = 1.0, network: nn.Module | None = None) -> LogPosterior:
    network = (small_network() if network is None else network).double()
    convert(network)
    return LogPosterior(network, Prior(S, N_EFF, temperature=temperature), scope)


def moved(posterior: LogPosterior, scale: float = 0.1, seed: int = 0) -> Tensor:
    noise = torch.randn(len(posterior.base), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return posterior.base + scale * noise


def test_the_value_is_scikit_learns_log_loss_and_the_prior() -> None:
    posterior = target(temperature=0.5)
    images, labels = data()
    theta = moved(posterior)
    layout = posterior.layout
    gamma, beta = posterior.expand(theta)
    with torch.no_grad():
        p = with_affine(small_network().double(), gamma, beta)(images.double()).softmax(1).movedim(1, -1)
    valid = labels != 255
    mean = -log_loss(labels[valid].numpy(), p[valid].numpy(), labels=[0, 1, 2, 3])
    offset = torch.cat([gamma - layout.weight, beta - layout.bias])
    expected = (N_EFF * mean - float(offset.square().sum()) / (2 * S**2)) / 0.5
    value, gradient = posterior.on([(images, labels)])(theta)
    assert value == pytest.approx(expected, rel=1e-9)
    # Streaming in batches of several sizes changes nothing.
    parts = posterior.on([(images[i:k], labels[i:k]) for i, k in ((0, 1), (1, 4), (4, 6))])(theta)
    assert parts[0] == pytest.approx(value, rel=1e-12)
    torch.testing.assert_close(parts[1], gradient, rtol=1e-10, atol=1e-10)


def test_the_gradient_is_that_of_the_value() -> None:
    posterior = target(temperature=0.7)
    density = posterior.on([data()])
    theta = moved(posterior)
    _, gradient = density(theta)
    for index in (0, 5, 9, 20, 31):
        step = torch.zeros_like(theta)
        step[index] = 1e-5
        slope = (density(theta + step)[0] - density(theta - step)[0]) / 2e-5
        assert float(gradient[index]) == pytest.approx(slope, rel=1e-5, abs=1e-5)


def test_minibatch_gradients_are_unbiased_though_labels_are_unequal() -> None:
    posterior = target(temperature=0.5)
    images, labels = data()
    theta = moved(posterior)
    _, exact = posterior.on([(images, labels)])(theta)
    pixels = float((labels != 255).sum()) / len(images)
    mean, ratio = (
        torch.stack(
            [posterior.energy_gradient(theta, images[i : i + 1], labels[i : i + 1], counts[i]) for i in range(6)]
        ).mean(0)
        for counts in ([pixels] * 6, (labels != 255).sum((1, 2)).tolist())
    )
    torch.testing.assert_close(mean, -0.5 * exact, rtol=1e-10, atol=1e-10)
    assert not torch.allclose(ratio, mean, rtol=1e-3), "dividing by the pixels of each batch is another estimate"


@pytest.mark.parametrize("mean", ["base", "zero"])
def test_a_batch_without_labels_leaves_the_prior(mean: PriorMean) -> None:
    network = small_network()
    convert(network)
    posterior = LogPosterior(network, Prior(S, N_EFF, mean))
    images, labels = data()
    theta = moved(posterior)
    gradient = posterior.energy_gradient(theta, images, torch.full_like(labels, 255), 64.0)
    torch.testing.assert_close(gradient, (theta - (posterior.base if mean == "base" else 0)) / S**2)
    with pytest.raises(InputError, match="no labelled pixel"):
        posterior.on([(images, torch.full_like(labels, 255))])


def test_the_scope_and_missing_betas_decide_the_dimension() -> None:
    network = small_network(nn.LayerNorm([8, 8, 8], bias=False))
    posterior = target(network=network)
    layout = posterior.layout
    assert len(posterior.base) == layout.total + int(layout.has_bias.sum()) < 2 * layout.total
    decoder = target("decoder")
    layout = decoder.layout
    assert len(decoder.base) == 16
    theta = decoder.base + torch.arange(1.0, 17.0)
    gamma, beta = decoder.expand(theta.expand(3, -1))
    assert gamma.shape == beta.shape == (3, layout.total)
    assert torch.equal(gamma[1, :8].float(), layout.weight[:8])
    torch.testing.assert_close(gamma[1, 8:].float(), layout.weight[8:] + torch.arange(1.0, 9.0))
    torch.testing.assert_close(beta[1, 8:].float(), layout.bias[8:] + torch.arange(9.0, 17.0))


def frames(root: Path, *, augment: bool) -> SegmentationDataset:
    return SegmentationDataModule("toy", str(root), crop=(32, 32)).dataset("train", augment=augment)


def test_each_pass_shows_every_frame_once_in_an_order_that_the_seed_decides(toy_set: Path) -> None:
    class Numbers:
        def __getitem__(self, index: int) -> dict[str, Any]:
            return {"image": torch.tensor(float(index)), "label": torch.rand(())}

    def shown(seed: int, steps: int = 12) -> list[Tensor]:
        return [torch.stack(batch) for batch in minibatches(Numbers(), range(6), 2, seed, steps)]  # type: ignore[arg-type]

    torch.manual_seed(123)
    state = torch.get_rng_state()
    batches = shown(1)
    assert torch.equal(torch.get_rng_state(), state), "the global generator is left alone"
    passes = [torch.cat(batches[i : i + 3], 1)[0].int().tolist() for i in range(0, 12, 3)]
    assert all(sorted(numbers) == list(range(6)) for numbers in passes)
    assert len({tuple(numbers) for numbers in passes}) > 1
    assert all(map(torch.equal, batches[:5], shown(1, 5)))
    assert not all(map(torch.equal, batches, shown(2)))
    assert not torch.equal(batches[0][1], batches[1][1]), "augmentation differs from step to step"
    with pytest.raises(InputError, match="do not fill a batch of 9"):
        minibatches(frames(toy_set, augment=False), range(8), 9, 0, 1)


def test_frames_in_memory_are_those_of_the_set(toy_set: Path) -> None:
    data = frames(toy_set, augment=False)
    held = load_batches(data, [1, 3, 6], 2)
    assert [len(images) for images, _ in held] == [2, 1]
    assert torch.equal(held[1][0][0], data[6]["image"])
    assert torch.equal(held[0][1][1], data[3]["label"])
    ((images, labels),) = minibatches(frames(toy_set, augment=True), range(8), 3, 0, 1)
    assert images.shape == (3, 3, 32, 32)
    assert labels.shape == (3, 32, 32)


def test_hmc_samples_the_posterior_of_a_network_of_one_channel() -> None:
    """Two parameters: the whole posterior lies on a grid, and gives the moments that the chain must have."""
    torch.manual_seed(2)
    network = randomise(nn.Sequential(nn.Conv2d(3, 1, 1), nn.BatchNorm2d(1), nn.Conv2d(1, 2, 1)).eval())
    network[2].weight.data.mul_(3)  # type: ignore[index]
    images, _ = data(1, 6)
    with torch.no_grad():
        # Labels drawn from the network itself: 36 of them move the posterior a little from its trained values.
        p = network(images).softmax(1)
    labels = torch.multinomial(p[0].flatten(1).T, 1, generator=torch.Generator().manual_seed(0)).view(1, 6, 6)
    temperature = 0.6
    posterior = target(temperature=temperature, network=network)
    density = posterior.on([(images, labels)])
    offsets = torch.linspace(-1.0, 1.0, 41, dtype=torch.float64)
    grid = torch.cartesian_prod(offsets, offsets)
    log_p = np.array([density(posterior.base + offset)[0] for offset in grid])
    p_grid = np.exp(log_p - logsumexp(log_p))
    mean = p_grid @ grid.numpy()
    deviation = np.sqrt(p_grid @ (grid.numpy() - mean) ** 2)
    border = np.abs(grid.numpy()).max(1) > 0.99
    assert p_grid[border].sum() < 1e-6, "the grid holds the posterior"
    assert (np.abs(mean) > 0.3 * deviation).any(), "the data move it"
    assert (deviation < 0.8 * S).any(), "and narrow it"
    settings = HmcConfig(prior_scale=S, temperature=temperature, warmup=60, samples=500)
    chain = HamiltonianChain(density, posterior.base, settings, seed=0)
    x = chain.sample().numpy() - posterior.base.numpy()
    for i in range(2):
        # Each moment by the effective size of its own series: trajectories of half a period mix means, not spreads.
        for power, expected in ((1, mean[i]), (2, p_grid @ grid.numpy()[:, i] ** 2)):
            series = x[:, i] ** power
            size = effective_sample_size(series[None])
            assert size > 60
            assert series.mean() == pytest.approx(expected, abs=4 * series.std() / math.sqrt(size))
