"""ABNN fine-tuning: what is trained, what stays, and that it does what its settings say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from segunc.affine.convert import convert
from segunc.affine.draws import AffineLayout
from segunc.affine.noise import draw_noise, mix_seed
from segunc.core.errors import InputError
from segunc.posteriors.abnn import ABNN
from segunc.posteriors.abnn_task import ABNNTask
from segunc.training.selection import select
from tests.affine.networks import small_network
from tests.training.fitting import fit, loader


def test_only_affine_parameters_train_and_members_differ(tmp_path: Path) -> None:
    network = small_network()
    before = {k: v.clone() for k, v in network.state_dict().items()}
    task = ABNNTask(network, 4, members=2, alpha=0.1, random_classes=1)
    trainable = [name for name, p in task.named_parameters() if p.requires_grad]
    assert trainable == [f"trained.{name}" for name in ("gamma.0", "gamma.1", "beta.0", "beta.1")]
    fit(task, tmp_path)
    after = network.state_dict()
    assert all(torch.equal(before[k], after[k]) for k in before), "the base, statistics included, is frozen"
    posterior = task.posterior()
    layout = AffineLayout(network)
    moved = (posterior.gamma - layout.weight).abs().amax(1)
    assert float(moved.min()) > 1e-4, "every member moved"
    assert not torch.allclose(posterior.gamma[0], posterior.gamma[1])


def test_the_loss_falls(tmp_path: Path) -> None:
    network = small_network()
    task = ABNNTask(network, 4, members=1, alpha=0.05, random_classes=0, lr=0.05)

    def loss(posterior: ABNN) -> float:
        layout = AffineLayout(network)
        images, labels = loader(16).dataset.tensors  # type: ignore[attr-defined]
        with torch.no_grad(), layout.active(posterior.affine(layout, [0], 0)):
            return float(torch.nn.functional.cross_entropy(network(images), labels))

    before = loss(ABNN.around(AffineLayout(network), 0.0))
    fit(task, tmp_path, 10)
    assert loss(task.posterior().with_alpha(0.0)) < before - 0.02


def test_a_short_training_gives_the_pinned_members(tmp_path: Path) -> None:
    """Numbers of version 0.1.0, before ABNN shared its task with other methods; libraries may round their last digits."""
    task = ABNNTask(small_network(), 4, members=2, alpha=0.2, random_classes=1, lr=0.05)
    fit(task, tmp_path, 3)
    posterior = task.posterior()
    assert posterior.gamma.double().sum(1).tolist() == pytest.approx([15.034942090511322, 15.028231263160706], abs=2e-5)
    assert posterior.beta.double().sum(1).tolist() == pytest.approx(
        [-1.8035276904702187, -1.7814345536753535], abs=2e-5
    )
    assert posterior.gamma[:, 3].tolist() == pytest.approx([0.6320221424102783, 0.6323782205581665], abs=2e-6)
    assert posterior.beta[:, 11].tolist() == pytest.approx([-0.46684736013412476, -0.46684736013412476], abs=2e-6)


def test_the_images_of_a_batch_meet_independent_draws_of_one_member() -> None:
    """Image i meets the numbers of (seed, step, process) and i, whatever the number of members."""
    task = ABNNTask(small_network(), 4, alpha=0.2, members=2)
    with torch.no_grad():
        task.trained.gamma[1].fill_(7.0)
    noise = draw_noise(mix_seed(0, 0, 0), range(4), 16)
    torch.testing.assert_close(task.training_draws(4).weight, task.layout.weight * (1 + 0.2 * noise))
    assert not torch.allclose(noise[0], noise[1])


def test_a_tight_prior_holds_the_members(tmp_path: Path) -> None:
    distances = []
    for scale in (10.0, 0.001):
        network = small_network()
        task = ABNNTask(network, 4, members=1, alpha=0.0, prior_scale=scale, effective_pixels=1000.0, lr=0.0005)
        fit(task, tmp_path, 20)
        distances.append(float((task.posterior().gamma[0] - AffineLayout(network).weight).norm()))
    assert distances[1] < 0.5 * distances[0]


def test_random_classes_are_weighted_for_their_member_only() -> None:
    task = ABNNTask(small_network(), 4, members=3, random_classes=2, random_class_weight=5.0, seed=3)
    for member, chosen in enumerate(task.trained.random_classes):
        assert len(chosen) == 2
        expected = torch.ones(4)
        expected[chosen] = 5.0
        assert torch.equal(task.trained.class_weights(task.class_weights, member), expected)
    assert len({tuple(c) for c in task.trained.random_classes}) > 1


def test_checkpoints_hold_the_members_only(tmp_path: Path) -> None:
    task = ABNNTask(small_network(), 4, members=2)
    checkpoint = {"state_dict": task.state_dict()}
    task.on_save_checkpoint(checkpoint)
    assert sorted(checkpoint["state_dict"]) == ["beta.0", "beta.1", "gamma.0", "gamma.1"]


class Labelled:
    """A data set of one frame whose labels are what a noisy network with alpha 0.5 expects on average."""

    def __init__(self) -> None:
        self.image = torch.rand(3, 24, 24, generator=torch.Generator().manual_seed(1))

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> dict[str, Any]:
        network = small_network()
        with torch.no_grad():
            logits = network(self.image[None])[0]
        # Labels drawn from a much softer distribution: an overconfident network gains by noise.
        p = (logits / 4).softmax(0).flatten(1).T
        label = torch.multinomial(p, 1, generator=torch.Generator().manual_seed(0)).view(24, 24)
        return {"image": self.image, "label": label}


def test_alpha_is_the_one_with_the_lowest_nll() -> None:
    network = small_network()
    network.head.weight.data *= 20
    convert(network)
    posterior = ABNN.around(AffineLayout(network), 0.0)
    best, nll = select(network, posterior.with_alpha, Labelled(), [0.0, 0.3, 1e38], "alpha", frames=0, draws=8)  # type: ignore[arg-type]
    assert nll["1e+38"] == float("inf"), "a blown-up network is not chosen, and does not end the selection"
    assert nll[f"{best:g}"] == min(nll.values())
    assert nll["0"] != nll["0.3"]


def test_an_empty_grid_is_an_error() -> None:
    network = small_network()
    convert(network)
    with pytest.raises(InputError, match="alpha_grid"):
        select(network, ABNN.around(AffineLayout(network), 0.0).with_alpha, [], [], "alpha")
