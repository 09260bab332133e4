"""Mean-field variational inference: its objective against closed forms, and what training does to sigma."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.distributions import Normal, kl_divergence

from segunc.affine.convert import convert
from segunc.affine.posterior import Prior
from segunc.baselines.laplace import FisherSum
from segunc.baselines.variational import MeanFieldTraining, VariationalConfig
from tests.affine.networks import layout_of, small_network
from tests.training.fitting import variational_task

LAYOUT = layout_of(small_network())


@pytest.mark.parametrize("scope", ["all", "decoder"])
@pytest.mark.parametrize("prior_mean", ["base", "zero"])
def test_the_kl_is_that_of_torch(scope: str, prior_mean: Any) -> None:
    prior = Prior(0.3, mean=prior_mean)
    made = MeanFieldTraining(LAYOUT, VariationalConfig(initial_sigma=0.05, kl_weight=0.7, scope=scope), prior)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        made.mean.add_(0.1 * torch.randn(made.mean.shape, generator=generator))
        made.rho.add_(torch.randn(made.rho.shape, generator=generator))
    chosen = slice(8, 16) if scope == "decoder" else slice(0, 16)
    base = LAYOUT.affine[:, chosen]
    centre = base if prior_mean == "base" else torch.zeros_like(base)
    q = Normal(made.mean[:, chosen], torch.nn.functional.softplus(made.rho)[:, chosen])
    expected = 0.7 * kl_divergence(q, Normal(centre, torch.full_like(base, 0.3))).sum() / prior.effective_pixels
    torch.testing.assert_close(made.regulariser(LAYOUT, 0), expected, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("sigma", [1e-4, 0.02, 3.0])
def test_it_starts_at_the_trained_values_with_the_given_sigma(sigma: float) -> None:
    posterior = variational_task(small_network(), initial_sigma=sigma).posterior()
    assert torch.equal(posterior.mean, LAYOUT.affine)
    assert torch.allclose(posterior.sigma, torch.tensor(sigma), rtol=1e-4)


def test_draws_in_training_are_independent_for_images_and_seeds_and_gamma_and_beta() -> None:
    task = variational_task(small_network(), initial_sigma=0.1)
    draws = task.training_draws(3, 0)
    noise = (torch.cat([draws.weight, draws.bias], 1) - task.trained.mean.flatten()) / 0.1
    assert float(torch.corrcoef(noise.detach()).triu(1).abs().max()) < 0.5
    assert float(noise.detach().abs().max()) < 5
    assert not torch.allclose(noise[:, :16], noise[:, 16:])
    task.seed = 1
    assert not torch.allclose(draws.weight, task.training_draws(3, 0).weight)


EFFECTIVE_PIXELS = 3e5


def own_labels() -> tuple[torch.Tensor, torch.Tensor]:
    """Images with labels drawn from the network's own prediction: at the base their expected gradient is 0."""
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(16, 3, 16, 16, generator=generator)
    with torch.no_grad():
        probabilities = small_network()(images).softmax(1).movedim(1, -1).flatten(0, 2)
    return images, torch.multinomial(probabilities, 1, generator=generator).view(16, 16, 16)


def test_sigma_converges_to_that_of_laplace() -> None:
    """Where the posterior is nearly Gaussian the best mean-field sigma is 1 / sqrt(N_eff F_ii + 1 / s^2)."""
    images, labels = own_labels()
    batch = images.repeat_interleave(4, 0), labels.repeat_interleave(4, 0)  # four draws an image
    # A training of rho alone.
    task = variational_task(small_network(), initial_sigma=0.02, effective_pixels=EFFECTIVE_PIXELS, prior_scale=0.1)
    task.log_dict = lambda *a, **k: None  # type: ignore[method-assign]
    optimizer = torch.optim.Adam([task.trained.rho], 0.1)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, 120)
    for step in range(120):
        task.seed = step  # there is no trainer here that counts the steps of the noise
        optimizer.zero_grad()
        torch.autograd.backward(task.training_step(batch, 0))
        optimizer.step()
        schedule.step()
    network = small_network().requires_grad_(False)
    convert(network)
    fisher = FisherSum(network, LAYOUT.affine, "diagonal")
    fisher.add(images, labels, 0, samples=40)
    expected = (EFFECTIVE_PIXELS * fisher.mean() + 100.0).rsqrt()
    error = (task.posterior().sigma / expected).log().abs()
    # Most parameters of this network are the prior's; what the data say about some narrows them to a seventh. Between
    # the two lie some for which the loss is no parabola over one sigma.
    narrow = expected < 0.03
    assert float(expected.max()) == pytest.approx(0.1, rel=0.02)
    assert int(narrow.sum()) == 3
    assert float(error[narrow].max()) < 0.25
    assert float(error[expected > 0.09].median()) < 0.02
