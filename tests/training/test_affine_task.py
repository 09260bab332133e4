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
from tests.affine.networks import layout_of, small_network
from tests.training.fitting import TASKS, abnn_task, fit, loader

EVERY = pytest.mark.parametrize("name", TASKS)


def tuned_decoder(name: str, seed: int, folder: Path) -> AffineDraws:
    """Return the first draw of a posterior whose decoder alone was trained."""
    network = small_network()
    task = TASKS[name](network, scope="decoder", seed=seed, lr=0.02)
    fit(task, folder, 2)
    return task.posterior().affine(AffineLayout(network), [0], 0)


@EVERY
def test_the_same_seed_gives_the_same_posterior(name: str, tmp_path: Path) -> None:
    first = tuned_decoder(name, 0, tmp_path)
    again = tuned_decoder(name, 0, tmp_path)
    assert torch.equal(first.weight, again.weight)


@EVERY
def test_another_seed_gives_another_posterior_where_there_is_noise(
    name: str, tmp_path: Path
) -> None:
    first = tuned_decoder(name, 0, tmp_path)
    other = tuned_decoder(name, 1, tmp_path)
    # A point has no noise, and its loader here no shuffle.
    without_noise = name in ("point", "swag")
    assert torch.equal(first.weight, other.weight) == without_noise


@EVERY
def test_layers_outside_of_the_scope_stay(name: str, tmp_path: Path) -> None:
    trained = tuned_decoder(name, 0, tmp_path)
    layout = layout_of(small_network())
    assert torch.equal(trained.weight[0, :8], layout.weight[:8])
    assert torch.equal(trained.bias[0, :8], layout.bias[:8])
    assert not torch.allclose(trained.weight[0, 8:], layout.weight[8:])


def task_of_constant_rate(name: str) -> Any:
    """Return a task whose rate does not depend on the number of epochs, so that half a training
    is the first half of a whole one.
    """
    if name == "swag":
        return TASKS[name](small_network())
    return TASKS[name](small_network(), schedule="constant")


def equal_tensors(one: Any, other: Any) -> list[bool]:
    """Return which tensors of two posteriors are equal."""
    of_other = other.tensors()
    return [torch.equal(tensor, of_other[key]) for key, tensor in one.tensors().items()]


# The rate of a point follows the number of epochs.
@pytest.mark.parametrize("name", [name for name in TASKS if name != "point"])
def test_a_continued_training_ends_with_the_same_posterior(name: str, tmp_path: Path) -> None:
    whole = task_of_constant_rate(name)
    half = task_of_constant_rate(name)
    rest = task_of_constant_rate(name)
    checkpoint = tmp_path / "half.ckpt"
    fit(whole, tmp_path, 4)
    fit(half, tmp_path, 2).save_checkpoint(checkpoint)
    fit(rest, tmp_path, 4, ckpt_path=checkpoint)
    assert all(equal_tensors(whole.posterior(), rest.posterior()))
    assert not all(equal_tensors(whole.posterior(), half.posterior()))


@pytest.mark.parametrize("name", [name for name in TASKS if name != "point"])
def test_a_checkpoint_holds_no_network(name: str, tmp_path: Path) -> None:
    checkpoint = tmp_path / "half.ckpt"
    fit(task_of_constant_rate(name), tmp_path, 2).save_checkpoint(checkpoint)
    state = torch.load(checkpoint, weights_only=True)["state_dict"]
    assert not any(key.startswith("network.") for key in state)


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
    said = r"the loss became NaN or infinite at step 8; .* lower the learning rate"
    with pytest.raises(PartialFailure, match=said):
        task.training_step(batch, 0)
    with pytest.raises(PartialFailure, match=r"became NaN or infinite at step 8"):
        trainer.save_checkpoint(good)
    assert good.read_bytes() == before


def test_a_point_is_abnn_without_noise(tmp_path: Path) -> None:
    point = TASKS["point"](small_network(), lr=0.02)
    member = abnn_task(small_network(), members=1, alpha=0.0, lr=0.02)
    for task in (point, member):
        fit(task, tmp_path, 2)
    of_point = point.posterior()
    of_member = member.posterior()
    assert torch.equal(of_point.gamma, of_member.gamma)
    assert torch.equal(of_point.beta, of_member.beta)
    assert of_point.alpha == 0.0


BATCH_IMAGES = torch.rand(2, 3, 4, 4)
BATCH_LABELS = torch.zeros(2, 4, 4, dtype=torch.uint8)


@pytest.mark.parametrize(
    "batch",
    [
        (BATCH_IMAGES, BATCH_LABELS),
        [BATCH_IMAGES, BATCH_LABELS, "names"],
        {
            "image": BATCH_IMAGES,
            "label": BATCH_LABELS,
            "name": [],
        },
    ],
    ids=["pair", "list", "dictionary"],
)
def test_a_batch_is_a_pair_or_a_dictionary(batch: Any) -> None:
    images, labels = unpack_batch(batch)
    assert images is BATCH_IMAGES
    assert labels.dtype == torch.int64


def test_a_batch_without_labels_is_refused() -> None:
    with pytest.raises(InputError, match="a batch of type Tensor"):
        unpack_batch(BATCH_IMAGES)


@pytest.mark.parametrize(
    ("said", "settings"),
    [
        ("members 0", {"members": 0}),
        ("5 random classes", {"random_classes": 5}),
        ("2 class weights for 4", {"class_weights": [1.0, 2.0]}),
        ("optimizer lion", {"optimizer": "lion"}),
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
        for key, tensor in network.state_dict().items():
            assert torch.equal(before[key], tensor)
        for module in task.train().network.modules():
            assert not module.training
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
