"""The torchmetrics class of calibration: torchmetrics' and the core's numbers, whole numbers in every state."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torchmetrics.functional.classification import multiclass_calibration_error

from segunc.core.errors import InputError
from segunc.maps.encoding import decode_unit, encode_unit
from segunc.metrics.calibration import (
    bin_confidences,
    bin_counts_by_mass,
    classwise_bins,
    expected_calibration_error,
    probability_scores,
)
from segunc.metrics.counting import count_keys, from_fixed_point
from segunc.metrics.stateful import Calibration

DEVICES = [
    "cpu",
    pytest.param("cuda", marks=[pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA")]),
]
STATES = ("bins", "codes", "classwise", "sums")


def frames(count: int = 5) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Probabilities ``[1, 5, 12, 14]`` and labels with ignored pixels."""
    generator = torch.Generator().manual_seed(0)
    made = []
    for _ in range(count):
        logits = 3 * torch.randn(1, 5, 12, 14, generator=generator)
        labels = torch.randint(0, 5, (1, 12, 14), generator=generator)
        labels = torch.where(torch.rand(labels.shape, generator=generator) < 0.6, logits.argmax(1), labels)
        labels[torch.rand(labels.shape, generator=generator) < 0.1] = 255
        made.append((logits.softmax(1), labels))
    return made


@pytest.mark.parametrize("device", DEVICES)
def test_numbers_are_those_of_torchmetrics_and_of_the_core(device):
    metric = Calibration(5).to(device)
    for probabilities, labels in frames():
        metric.update(probabilities.to(device), labels.to(device))
    values = {name: float(value) for name, value in metric.compute().items()}
    probabilities, labels = (torch.cat(parts) for parts in zip(*frames(), strict=True))
    for name, norm in (("ece", "l1"), ("mce", "max")):
        expected = multiclass_calibration_error(probabilities, labels, 5, norm=norm, ignore_index=255)
        assert values[name] == pytest.approx(float(expected), abs=1e-6)
    counted = labels != 255
    log_loss = torch.nn.functional.nll_loss(probabilities.log(), labels, ignore_index=255)
    assert values["nll"] == pytest.approx(float(log_loss), rel=1e-6)
    one_hot = torch.nn.functional.one_hot(labels[counted], 5)
    brier = (probabilities.movedim(1, -1)[counted] - one_hot).square().sum(-1).mean()
    assert values["brier"] == pytest.approx(float(brier), rel=1e-6)
    confidence, predicted = probabilities.max(1)
    codes = encode_unit((1 - confidence[counted]).numpy())
    counts = count_keys(codes, (predicted != labels)[counted].numpy())
    by_mass = bin_counts_by_mass(counts, 1 - decode_unit(np.arange(65536, dtype=np.uint16)))
    assert values["adaptive_ece"] == expected_calibration_error(by_mass)
    if device == "cpu":
        np.testing.assert_array_equal(metric.codes.numpy(), counts)
    for frame, frame_labels in zip(probabilities, labels, strict=True):
        metric.classwise -= torch.from_numpy(classwise_bins(frame.numpy(), frame_labels.numpy())).to(device)
        metric.sums -= torch.from_numpy(probability_scores(frame.numpy(), frame_labels.numpy())).to(device)
    # The same counts as the core; of the real sums, each frame may round its last step the other way.
    assert not metric.classwise[..., :2].any()
    assert metric.classwise[..., 2].abs().max() <= 5
    assert metric.sums[0] == 0
    assert metric.sums[1:].abs().max() <= 5


def test_shards_merge_to_the_whole_to_the_bit():
    given = frames()
    whole, shards = Calibration(5), [Calibration(5), Calibration(5)]
    for index, frame in enumerate(given):
        whole.update(*frame)
        shards[index % 2].update(*frame)
    for state in STATES:
        merged = whole._reductions[state](torch.stack([getattr(shard, state) for shard in shards]))
        assert torch.equal(merged, getattr(whole, state))


def test_states_stay_whole_numbers_when_the_model_goes_to_half():
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calibration = Calibration(5)

    model = Model().half()
    model.calibration.update(*frames(1)[0])
    assert all(getattr(model.calibration, state).dtype == torch.int64 for state in STATES)


def test_confidences_on_an_edge_fall_into_the_bin_of_the_core():
    confidence = np.linspace(0, 1, 16).astype(np.float32)[8:]
    probabilities = torch.from_numpy(np.stack([confidence, 1 - confidence], axis=1))
    metric = Calibration(2)
    metric.update(probabilities, torch.zeros(8, dtype=torch.int64))
    expected = bin_confidences(confidence, np.ones(8, bool))
    np.testing.assert_array_equal(metric.bins[:2].numpy(), expected[:2])
    np.testing.assert_allclose(from_fixed_point(metric.bins[2].numpy()), expected[2], atol=2**-19)
    core = classwise_bins(probabilities.T.numpy(), np.zeros(8, np.uint8))
    np.testing.assert_array_equal(metric.classwise[..., :2].numpy(), core[..., :2])


def test_nothing_counted_is_nan_not_zero():
    metric = Calibration(2)
    metric.update(torch.full((1, 2, 3, 3), 0.5), torch.full((1, 3, 3), 255))
    assert all(torch.isnan(value) for value in metric.compute().values())


def test_bad_input_is_refused():
    metric, labels = Calibration(5), torch.zeros(1, 2, 2, dtype=torch.int64)
    with pytest.raises(InputError, match="class id"):
        metric.update(torch.full((1, 5, 2, 2), 0.2), labels + 9)
    with pytest.raises(InputError, match="softmax"):
        metric.update(torch.full((1, 5, 2, 2), 7.0), labels)
    with pytest.raises(InputError, match=r"\[N, 5"):
        metric.update(torch.full((1, 4, 2, 2), 0.25), labels)
