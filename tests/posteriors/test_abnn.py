"""ABNN fine-tuning: what is trained, what stays, and that it does what its settings say."""

from pathlib import Path

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from segunc.affine.convert import convert
from segunc.affine.draws import AffineLayout
from segunc.affine.noise import draw_noise, mix_seed
from segunc.core.errors import InputError
from segunc.posteriors.abnn import ABNN, ABNNPosterior, reestimate
from tests.affine.networks import small_network
from tests.training.fitting import abnn_task, fit


def test_a_short_training_gives_the_pinned_members(tmp_path: Path) -> None:
    """Numbers of version 0.1.0, before ABNN shared its task with other methods; libraries may round
    their last digits.
    """
    task = abnn_task(small_network(), members=2, alpha=0.2, random_classes=1, lr=0.05)
    trainable = [name for name, p in task.named_parameters() if p.requires_grad]
    assert trainable == [f"trained.{name}" for name in ("gamma.0", "gamma.1", "beta.0", "beta.1")]
    fit(task, tmp_path, 3)
    posterior = task.posterior()
    assert float((posterior.gamma - task.layout.weight).abs().amax(1).min()) > 1e-4, (
        "every member moved"
    )
    assert posterior.gamma.double().sum(1).tolist() == pytest.approx(
        [15.034942090511322, 15.028231263160706], abs=2e-5
    )
    assert posterior.beta.double().sum(1).tolist() == pytest.approx(
        [-1.80352769047022, -1.78143455367535], abs=2e-5
    )
    assert posterior.gamma[:, 3].tolist() == pytest.approx(
        [0.6320221424102783, 0.6323782205581665], abs=2e-6
    )
    assert posterior.beta[:, 11].tolist() == pytest.approx(
        [-0.46684736013412476, -0.46684736013412476], abs=2e-6
    )


def test_the_images_of_a_batch_meet_independent_draws_of_one_member() -> None:
    """Image i meets the numbers of (seed, step, process) and i, whatever the number of members."""
    task = abnn_task(small_network(), alpha=0.2, members=2)
    with torch.no_grad():
        task.trained.gamma[1].fill_(7.0)
    noise = draw_noise(mix_seed(0, 0, 0), range(4), 16)
    torch.testing.assert_close(
        task.training_draws(4, 0).weight, task.layout.weight * (1 + 0.2 * noise)
    )
    assert not torch.allclose(noise[0], noise[1])


def test_the_regulariser_is_the_log_prior_of_a_member_over_n_eff() -> None:
    task = abnn_task(
        small_network(), members=2, prior_scale=0.2, effective_pixels=50.0, scope="decoder"
    )
    with torch.no_grad():
        task.trained.gamma[1].add_(torch.linspace(-0.5, 0.5, 16))
    offsets = torch.linspace(-0.5, 0.5, 16)[8:]
    prior = torch.distributions.Normal(0.0, 0.2)
    expected = (prior.log_prob(torch.zeros(8)) - prior.log_prob(offsets)).sum() / 50.0
    torch.testing.assert_close(task.trained.regulariser(task.layout, 1), expected)
    assert float(task.trained.regulariser(task.layout, 0)) == 0.0


def test_random_classes_are_weighted_for_their_member_only() -> None:
    task = abnn_task(small_network(), members=3, random_classes=2, random_class_weight=5.0, seed=3)
    for member, chosen in enumerate(task.trained.random_classes):
        assert len(chosen) == 2
        expected = torch.ones(4)
        expected[chosen] = 5.0
        assert torch.equal(task.trained.class_weights(task.class_weights, member), expected)
    assert len({tuple(classes) for classes in task.trained.random_classes}) > 1


def test_trained_members_keep_their_statistics() -> None:
    assert ABNN().reestimates
    assert ABNN(epochs=1, statistics="reestimated").reestimates
    assert not ABNN(epochs=1).reestimates
    assert not ABNN(statistics="frozen").reestimates


class Pooled(torch.nn.Module):
    """A BatchNorm behind a pooling to 1 x 1, as in an ASPP, that sees the features and, if it is
    called more often, multiples of them.
    """

    def __init__(self, calls: int) -> None:
        super().__init__()
        self.calls = calls
        self.stem = torch.nn.Conv2d(3, 8, 3, 2, 1)
        self.pool = torch.nn.Sequential(
            torch.nn.AdaptiveAvgPool2d(1), torch.nn.BatchNorm2d(8), torch.nn.ReLU()
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features = self.stem(images)
        return features + sum(self.pool(call * features) for call in range(1, self.calls + 1))


@pytest.mark.parametrize(
    ("sizes", "calls"),
    [
        ([4, 4, 1], 1),
        ([1, 1, 1], 1),
        ([4, 4, 1], 3),
    ],
)
def test_statistics_of_batches_of_one_are_those_of_all_frames_and_calls(
    sizes: list[int], calls: int
) -> None:
    torch.manual_seed(0)
    network = Pooled(calls).eval()
    batches = [torch.rand(size, 3, 8, 8) for size in sizes]
    inputs = []
    for images in batches:
        features = network.stem(images).mean((2, 3))
        inputs += [call * features for call in range(1, calls + 1)]
    pooled = torch.cat(inputs)
    mean = pooled.mean(0)
    square = pooled.square().mean(0)
    convert(network)
    posterior = ABNNPosterior.around(AffineLayout(network), 0.0)
    rescale, reshift = reestimate(network, posterior, 0, batches)
    deviation = (square - mean.square() + 1e-5).sqrt()
    torch.testing.assert_close(rescale, (1 + 1e-5) ** 0.5 / deviation, rtol=1e-3, atol=0)
    torch.testing.assert_close(reshift, -mean / deviation, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("batches", "said"),
    [
        ([torch.rand(1, 3, 8, 8)], "of one frame, and needs two"),
        ([], "there is no batch"),
    ],
)
def test_too_few_frames_for_statistics_are_refused(batches: list[torch.Tensor], said: str) -> None:
    network = Pooled(1).eval()
    convert(network)
    posterior = ABNNPosterior.around(AffineLayout(network), 0.0)
    with pytest.raises(InputError, match=said):
        reestimate(network, posterior, 0, batches)


class Checkpointed(torch.nn.Sequential):
    """Layers whose activations are computed again in backward."""

    reentrant: bool | None = None

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if self.reentrant is None:
            return super().forward(images)
        return checkpoint(super().forward, images, use_reentrant=self.reentrant)


@pytest.mark.parametrize("reentrant", [True, False])
def test_gradient_checkpointing_is_refused_because_the_draw_is_gone_in_backward(
    reentrant: bool,
) -> None:
    layers = Checkpointed(
        torch.nn.Conv2d(3, 4, 1), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.Conv2d(4, 4, 1)
    )
    tuner = abnn_task(layers.eval(), members=1)
    images = torch.rand(2, 3, 8, 8, requires_grad=True)
    labels = torch.zeros(2, 8, 8, dtype=torch.long)
    layers.reentrant = reentrant
    with pytest.raises(InputError, match="checkpointing"):
        tuner.loss(images, labels, 0).backward()
    layers.reentrant = None
    tuner.loss(images, labels, 0).backward()
    assert all(
        float(p.grad.abs().max()) > 0
        for p in tuner.parameters()
        if p.requires_grad and p.grad is not None
    )
