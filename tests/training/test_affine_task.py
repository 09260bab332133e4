"""What every fine-tuning of affine parameters shares: modes, checkpoints, resuming, divergence."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from segunc.affine.draws import AffineDraws, AffineLayout
from segunc.affine.noise import mix_seed
from segunc.core.errors import InputError, PartialFailure
from segunc.training.batches import unpack_batch
from tests.affine.networks import small_network
from tests.training.fitting import TASKS, abnn_task, fit, loader

EVERY = pytest.mark.parametrize("name", TASKS)


@EVERY
def test_same_seed_same_posterior_and_a_scope_is_kept(name: str, tmp_path: Path) -> None:
    results: list[AffineDraws] = []
    for seed in (0, 0, 1):
        network = small_network()
        task = TASKS[name](network, scope="decoder", seed=seed, lr=0.02)
        fit(task, tmp_path, 2)
        results.append(task.posterior().affine(AffineLayout(network), [0], 0))
    first, again, other = results
    assert torch.equal(first.weight, again.weight)
    # A point has no noise, and its loader here no shuffle.
    assert torch.equal(first.weight, other.weight) == (name in ("point", "swag"))
    layout = AffineLayout(network)
    assert torch.equal(first.weight[0, :8], layout.weight[:8])
    assert torch.equal(first.bias[0, :8], layout.bias[:8])
    assert not torch.allclose(first.weight[0, 8:], layout.weight[8:])


@pytest.mark.parametrize(
    "name", [name for name in TASKS if name != "point"]
)  # whose rate follows the number of epochs
def test_a_continued_training_ends_with_the_same_posterior(name: str, tmp_path: Path) -> None:
    # A rate that does not depend on the number of epochs, so that half a training is the first half
    # of a whole one.
    constant = {} if name == "swag" else {"schedule": "constant"}
    whole, half, rest = (TASKS[name](small_network(), **constant) for _ in range(3))
    fit(whole, tmp_path, 4)
    checkpoint = tmp_path / "half.ckpt"
    fit(half, tmp_path, 2).save_checkpoint(checkpoint)
    state = torch.load(checkpoint, weights_only=True)["state_dict"]
    assert not any(key.startswith("network.") for key in state)
    fit(rest, tmp_path, 4, ckpt_path=checkpoint)
    expected, actual = whole.posterior().tensors(), rest.posterior().tensors()
    assert all(torch.equal(expected[key], actual[key]) for key in expected)
    assert not all(torch.equal(expected[key], half.posterior().tensors()[key]) for key in expected)


@EVERY
def test_nan_stops_and_keeps_the_last_good_state(name: str, tmp_path: Path) -> None:
    task = TASKS[name](small_network(), lr=0.02)
    good = tmp_path / "good.ckpt"
    trainer = fit(task, tmp_path, 2)
    trainer.save_checkpoint(good)
    before = good.read_bytes()
    trainable = next(p for p in task.parameters() if p.requires_grad)
    trainable.data[..., 3] = float("nan")
    batch = next(iter(loader()))
    with pytest.raises(
        PartialFailure,
        match=r"the loss became NaN or infinite at step 8; .* lower the learning rate",
    ):
        task.training_step(batch, 0)
    with pytest.raises(PartialFailure, match=r"became NaN or infinite at step 8"):
        trainer.save_checkpoint(good)
    assert good.read_bytes() == before


def test_a_point_is_abnn_without_noise(tmp_path: Path) -> None:
    point = TASKS["point"](small_network(), lr=0.02)
    member = abnn_task(small_network(), members=1, alpha=0.0, lr=0.02)
    for task in (point, member):
        fit(task, tmp_path, 2)
    one, other = point.posterior(), member.posterior()
    assert torch.equal(one.gamma, other.gamma)
    assert torch.equal(one.beta, other.beta)
    assert one.alpha == 0.0


def test_a_batch_is_a_pair_or_a_dictionary() -> None:
    images, labels = torch.rand(2, 3, 4, 4), torch.zeros(2, 4, 4, dtype=torch.uint8)
    for batch in (
        (images, labels),
        [images, labels, "names"],
        {"image": images, "label": labels, "name": []},
    ):
        unpacked, ids = unpack_batch(batch)
        assert unpacked is images
        assert ids.dtype == torch.int64
    with pytest.raises(InputError, match="a batch of type Tensor"):
        unpack_batch(images)


@pytest.mark.parametrize(
    ("said", "settings"),
    [
        *(("members 0", {"members": 0}), ("5 random classes", {"random_classes": 5})),
        *(
            ("2 class weights for 4", {"class_weights": [1.0, 2.0]}),
            ("optimizer lion", {"optimizer": "lion"}),
        ),
    ],
)
def test_bad_settings(said: str, settings: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=said):
        abnn_task(small_network(), **settings)


@EVERY
def test_the_network_stays_as_it_was_and_nothing_is_kept_below_the_first_trained_site(
    name: str, tmp_path: Path
) -> None:
    kept: dict[str, bool] = {}
    for scope in ("all", "decoder"):
        network = small_network()
        before = {k: v.clone() for k, v in network.state_dict().items()}

        def note(module: nn.Module, inputs: Any, output: torch.Tensor, scope: str = scope) -> None:
            kept[scope] = kept.get(scope, False) or output.requires_grad

        network.encoder[-1].register_forward_hook(note)  # type: ignore[index, union-attr]
        task = TASKS[name](network, scope=scope)
        fit(task, tmp_path, 2)
        assert all(torch.equal(before[k], v) for k, v in network.state_dict().items())
        assert not any(module.training for module in task.train().network.modules())
    assert kept == {"all": True, "decoder": False}


def seeds_of_steps(accumulate: int, tmp_path: Path, monkeypatch: Any) -> list[tuple[int, ...]]:
    """Return of what the seed of each batch of two epochs of four batches is made, beside the seed
    of the run.
    """
    seeds: list[tuple[int, ...]] = []

    def noted(*parts: int) -> int:
        seeds.append(parts[1:])
        return mix_seed(*parts)

    monkeypatch.setattr("segunc.training.affine_tuner.mix_seed", noted)
    fit(abnn_task(small_network()), tmp_path, 2, accumulate_grad_batches=accumulate)
    return seeds


def test_batches_whose_gradients_are_added_have_noise_of_their_own(
    tmp_path: Path, monkeypatch: Any
) -> None:
    """Two steps an epoch, of three batches and of the last one."""
    first_epoch = [(0, 0), (0, 1), (0, 2), (1, 0)]
    second_epoch = [(2, 0), (2, 1), (2, 2), (3, 0)]
    assert seeds_of_steps(3, tmp_path, monkeypatch) == [*first_epoch, *second_epoch]


def test_without_accumulation_the_noise_is_that_of_step_and_process(
    tmp_path: Path, monkeypatch: Any
) -> None:
    assert seeds_of_steps(1, tmp_path, monkeypatch) == [(step, 0) for step in range(8)]


def test_noise_after_resuming_is_that_of_the_unbroken_run_with_added_gradients(
    tmp_path: Path, monkeypatch: Any
) -> None:
    """The posteriors are equal, too."""
    unbroken = [*seeds_of_steps(3, tmp_path, monkeypatch)]
    whole = abnn_task(small_network())
    fit(whole, tmp_path, 2, accumulate_grad_batches=3)
    begun = abnn_task(small_network())
    checkpoint = tmp_path / "last.ckpt"
    # The schedule spans both epochs, of two steps each.
    monkeypatch.setattr(begun, "optimizer", lambda steps: type(begun).optimizer(begun, 4))
    fit(begun, tmp_path, 1, accumulate_grad_batches=3).save_checkpoint(checkpoint)

    seeds: list[tuple[int, ...]] = []

    def noted(*parts: int) -> int:
        seeds.append(parts[1:])
        return mix_seed(*parts)

    monkeypatch.setattr("segunc.training.affine_tuner.mix_seed", noted)
    resumed = abnn_task(small_network())
    fit(resumed, tmp_path, 2, accumulate_grad_batches=3, ckpt_path=checkpoint)
    assert seeds == unbroken[4:]
    assert torch.equal(resumed.posterior().gamma, whole.posterior().gamma)
