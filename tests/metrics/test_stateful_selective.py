"""The torchmetrics classes of selective prediction and patches: the core's numbers, merged by addition."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torchmetrics import Metric

from segunc.core.errors import InputError
from segunc.maps.encoding import encode_unit, score_keys
from segunc.metrics.counting import count_keys
from segunc.metrics.selective import count_patches, patch_summary, selective_numbers
from segunc.metrics.stateful import PatchAccuracyUncertainty, SelectivePrediction

DEVICES = [
    "cpu",
    pytest.param("cuda", marks=[pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA")]),
]


def frames(count: int = 4) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Uncertainty, predictions and labels ``[2, 13, 18]`` of batches, with ignored pixels of NaN uncertainty."""
    generator = torch.Generator().manual_seed(0)
    made = []
    for _ in range(count):
        uncertainty = torch.rand(2, 13, 18, generator=generator)
        labels = torch.randint(0, 5, (2, 13, 18), generator=generator)
        wrong = torch.rand(labels.shape, generator=generator) < 0.7 * uncertainty
        prediction = torch.where(wrong, (labels + 1) % 5, labels)
        ignored = torch.rand(labels.shape, generator=generator) < 0.2
        labels[ignored], uncertainty[ignored] = 255, torch.nan
        made.append((uncertainty, prediction, labels))
    return made


@pytest.mark.parametrize("device", DEVICES)
def test_numbers_are_those_of_the_core(device):
    pixel, patch = SelectivePrediction().to(device), PatchAccuracyUncertainty().to(device)
    pixel_counts, patch_counts = 0, 0
    for batch in frames():
        for metric in (pixel, patch):
            metric.update(*(tensor.to(device) for tensor in batch))
        for uncertainty, prediction, labels in zip(*(tensor.numpy() for tensor in batch), strict=True):
            counted = labels != 255
            pixel_counts += count_keys(score_keys(uncertainty[counted]), (prediction != labels)[counted])
            patch_counts += count_patches(uncertainty, prediction == labels, counted)
    np.testing.assert_array_equal(pixel.counts.cpu().numpy(), pixel_counts)
    np.testing.assert_array_equal(patch.counts.cpu().numpy(), patch_counts)
    assert {name: float(value) for name, value in pixel.compute().items()} == selective_numbers(pixel_counts)
    assert {name: float(value) for name, value in patch.compute().items()} == patch_summary(patch_counts)


@pytest.mark.parametrize("new", [SelectivePrediction, lambda: PatchAccuracyUncertainty(3, 0.7, 0.4)])
def test_shards_merge_to_the_whole_to_the_bit(new):
    whole, shards = new(), [new(), new()]
    for index, batch in enumerate(frames()):
        whole.update(*batch)
        shards[index % 2].update(*batch)
    merged = whole._reductions["counts"](torch.stack([shard.counts for shard in shards]))
    assert torch.equal(merged, whole.counts)


def test_settings_reach_the_core():
    metric = PatchAccuracyUncertainty(window=3, accuracy_threshold=0.75, threshold=0.25)
    uncertainty, prediction, labels = (tensor[0] for tensor in frames(1)[0])
    metric.update(uncertainty, prediction, labels)
    counts = count_patches(uncertainty.numpy(), (prediction == labels).numpy(), (labels != 255).numpy(), 3, 0.75)
    np.testing.assert_array_equal(metric.counts.numpy(), counts)
    assert {name: float(value) for name, value in metric.compute().items()} == patch_summary(counts, 0.25)


def test_codes_are_counted_as_they_are_stored():
    uncertainty, prediction, labels = frames(1)[0]
    codes = encode_unit(uncertainty.nan_to_num(0.5).numpy())
    metric = SelectivePrediction()
    metric.update(torch.from_numpy(codes), prediction, labels)
    counted = (labels != 255).numpy()
    np.testing.assert_array_equal(
        metric.counts.numpy(), count_keys(codes[counted], (prediction != labels).numpy()[counted])
    )


@pytest.mark.parametrize("metric", [SelectivePrediction(), PatchAccuracyUncertainty()], ids=["pixels", "patches"])
def test_nothing_counted_is_nan_not_zero(metric: Metric):
    metric.update(torch.rand(1, 8, 8), torch.zeros(1, 8, 8), torch.full((1, 8, 8), 255))
    assert all(torch.isnan(value) for value in metric.compute().values())


def test_bad_input_is_refused():
    ok = torch.zeros(4, 4)
    for metric in (SelectivePrediction(), PatchAccuracyUncertainty()):
        with pytest.raises(InputError, match="shape"):
            metric.update(ok, ok, torch.zeros(4, 5))
        with pytest.raises(InputError, match="NaN"):
            metric.update(ok * torch.nan, ok, ok)
    with pytest.raises(InputError, match="decode codes"):
        PatchAccuracyUncertainty().update(ok.to(torch.uint16), ok, ok)
    with pytest.raises(InputError, match="side of 0"):
        PatchAccuracyUncertainty(window=0)
