"""Losses and schedules against closed forms."""

from __future__ import annotations

import math

import pytest
import torch
from torch.optim import SGD

from segunc.core.errors import InputError
from segunc.training.losses import balanced_weights, make_schedule, segmentation_loss


def test_cross_entropy_with_weights_and_ignored_pixels() -> None:
    logits = torch.tensor([[[[2.0, 0.0, 9.0]], [[0.0, 1.0, -9.0]]]], requires_grad=True)
    labels = torch.tensor([[[0, 1, 255]]])
    first, second = math.log1p(math.exp(-2.0)), math.log1p(math.exp(-1.0))
    assert segmentation_loss(logits, labels).item() == pytest.approx((first + second) / 2)
    weighted = segmentation_loss(logits, labels, torch.tensor([1.0, 3.0]))
    assert weighted.item() == pytest.approx((first + 3 * second) / 4)
    nothing = segmentation_loss(logits, torch.full((1, 1, 3), 255))
    nothing.backward()
    assert nothing.item() == 0.0
    assert logits.grad is not None
    assert float(logits.grad.abs().max()) == 0.0


@pytest.mark.parametrize("value", [-1, 3, 254])
def test_a_label_that_is_no_class_is_named(value: int) -> None:
    with pytest.raises(InputError, match=f"label {value} in frame 1"):
        segmentation_loss(torch.randn(2, 3, 1, 2), torch.tensor([[[0, 2]], [[value, 255]]]))


def test_balanced_weights() -> None:
    frequencies = [0.64, 0.32, 0.04, 0.0]
    assert balanced_weights(frequencies, 0.0) == [1.0, 1.0, 1.0, 1.0]
    half = balanced_weights(frequencies, 0.5, limit=100)
    assert sum(f * w for f, w in zip(frequencies, half, strict=True)) == pytest.approx(1.0)
    assert half[2] / half[0] == pytest.approx(4.0)
    assert max(balanced_weights(frequencies, 1.0, limit=2.0)) == 2.0
    with pytest.raises(InputError, match="power"):
        balanced_weights(frequencies, 2.0)


@pytest.mark.parametrize("name", ["onecycle", "poly", "constant"])
@pytest.mark.parametrize("steps", [1, 3, 50])
def test_schedules_last_for_their_steps(name: str, steps: int) -> None:
    optimizer = SGD([torch.nn.Parameter(torch.zeros(1))], 0.1)
    schedule = make_schedule(optimizer, name, steps, 0.1)
    rates = []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert max(rates) <= 0.1 + 1e-9
    if name == "poly":
        assert rates[-1] == pytest.approx(0.1 * (1 / steps) ** 0.9)
    if name == "constant":
        assert set(rates) == {0.1}
