"""The torchmetrics classes: the functional core's numbers, merged by addition."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchmetrics import Metric

from segunc.core.errors import InputError
from segunc.maps.encoding import encode_unit, score_keys
from segunc.metrics.anomaly_metrics import PooledAnomaly
from segunc.metrics.counting import auroc, average_precision, count_keys, detection_curve, fpr_at_recall
from segunc.metrics.segmentation import class_iou, confusion_matrix, mean_iou
from segunc.metrics.stateful import SegmentationIoU, tensor_keys

DEVICES = [
    "cpu",
    pytest.param("cuda", marks=[pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA")]),
]


def frames(seed: int = 0, count: int = 6) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    made = []
    for index in range(count):
        logits = 3 * torch.randn(1, 5, 12, 14, generator=generator)
        labels = torch.randint(0, 5, (1, 12, 14), generator=generator)
        labels = torch.where(torch.rand(labels.shape, generator=generator) < 0.6, logits.argmax(1), labels)
        labels[torch.rand(labels.shape, generator=generator) < 0.1] = 255
        # Frames differ in their share of anomalies and in the level of their scores: means over frames are wrong.
        anomaly = (torch.rand(labels.shape, generator=generator) < 0.05 * (index + 1)).to(torch.uint8)
        anomaly[torch.rand(labels.shape, generator=generator) < 0.1] = 255
        scores = torch.randn(labels.shape, generator=generator) + (anomaly == 1) + 4.0 * index
        made.append({"logits": logits, "labels": labels, "anomaly": anomaly, "scores": scores})
    return made


def feed(metrics: dict[str, Metric], frame: dict[str, torch.Tensor]) -> None:
    metrics["anomaly"].update(frame["scores"], frame["anomaly"])
    metrics["segmentation"].update(frame["logits"].argmax(1), frame["labels"])


def new_metrics(device: str = "cpu") -> dict[str, Metric]:
    made = {"anomaly": PooledAnomaly(), "segmentation": SegmentationIoU(5)}
    return {name: metric.to(device) for name, metric in made.items()}


@pytest.mark.parametrize("device", DEVICES)
def test_numbers_are_those_of_the_core_over_the_whole_set(device):
    metrics = new_metrics(device)
    for frame in frames():
        feed(metrics, {name: values.to(device) for name, values in frame.items()})
    whole = {name: torch.cat([frame[name] for frame in frames()]) for name in frames()[0]}
    counted = whole["anomaly"] != 255
    keys = score_keys(whole["scores"][counted].numpy())
    curve = detection_curve(count_keys(keys, whole["anomaly"][counted].numpy()))
    anomaly = {name: float(value) for name, value in metrics["anomaly"].compute().items()}
    assert anomaly["auroc"] == auroc(curve)
    assert anomaly["aupr"] == average_precision(curve)
    assert anomaly["fpr95"] == fpr_at_recall(curve)
    matrix = confusion_matrix(whole["labels"].numpy(), whole["logits"].argmax(1).numpy(), 5)
    segmentation = metrics["segmentation"].compute()
    assert float(segmentation["miou"]) == mean_iou(matrix)
    np.testing.assert_array_equal(segmentation["per_class"].cpu().numpy(), class_iou(matrix))


def test_pooling_is_not_the_mean_over_batches():
    metric, single = PooledAnomaly(), []
    for frame in frames():
        metric.update(frame["scores"], frame["anomaly"])
        alone = PooledAnomaly()
        alone.update(frame["scores"], frame["anomaly"])
        single.append(float(alone.compute()["auroc"]))
    assert abs(float(metric.compute()["auroc"]) - np.mean(single)) > 0.05


@settings(max_examples=15, deadline=None)
@given(st.permutations(range(6)), st.integers(0, 6))
def test_shards_merge_to_the_whole_in_any_order(order, cut):
    given_frames = frames()
    whole, shards = new_metrics(), [new_metrics(), new_metrics()]
    for frame in given_frames:
        feed(whole, frame)
    for place, index in enumerate(order):
        feed(shards[int(place >= cut)], given_frames[index])
    merged = copy.deepcopy(shards[0])
    for name, metric in merged.items():
        for state in metric._defaults:
            assert metric._reductions[state] is not None
            setattr(metric, state, metric._reductions[state](torch.stack([getattr(s[name], state) for s in shards])))
    assert torch.equal(merged["anomaly"].counts, whole["anomaly"].counts)
    assert torch.equal(merged["segmentation"].matrix, whole["segmentation"].matrix)


def test_empty_metrics_are_nan_not_zero():
    metrics = new_metrics()
    for name, keys in (("anomaly", ("auroc", "aupr", "fpr95", "best_f1")), ("segmentation", ("miou", "accuracy"))):
        metrics[name]._update_count = 1  # silences torchmetrics' warning, nothing else
        values = metrics[name].compute()
        assert all(torch.isnan(values[key]) for key in keys)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.floats(-65000, 65000, width=32), min_size=1, max_size=30))
def test_tensor_keys_equal_the_keys_of_files(values):
    scores = np.array([0.0, -0.0, *values], np.float32)
    np.testing.assert_array_equal(tensor_keys(torch.from_numpy(scores)).numpy(), score_keys(scores))
    codes = encode_unit(np.abs(scores) / 65535)
    np.testing.assert_array_equal(tensor_keys(torch.from_numpy(codes)).numpy(), codes)


def test_codes_are_counted_as_they_are_stored():
    frame = frames()[0]
    codes = encode_unit(frame["scores"].sigmoid().numpy())
    metric = PooledAnomaly()
    metric.update(torch.from_numpy(codes), frame["anomaly"])
    counted = frame["anomaly"].numpy() != 255
    np.testing.assert_array_equal(metric.counts.numpy(), count_keys(codes[counted], frame["anomaly"].numpy()[counted]))


def test_forward_gives_the_batch_and_keeps_the_whole():
    first, second = frames(count=2)
    metric, alone, whole = PooledAnomaly(), PooledAnomaly(), PooledAnomaly()
    metric(first["scores"], first["anomaly"])
    batch = metric(second["scores"], second["anomaly"])
    alone.update(second["scores"], second["anomaly"])
    for frame in (first, second):
        whole.update(frame["scores"], frame["anomaly"])
    assert batch == alone.compute()
    assert torch.equal(metric.counts, whole.counts)


def test_bad_input_is_refused():
    metrics, ok = new_metrics(), torch.zeros(2, 2)
    with pytest.raises(InputError, match="255 ignored"):
        metrics["anomaly"].update(ok, torch.full((2, 2), 2))
    with pytest.raises(InputError, match="NaN"):
        metrics["anomaly"].update(ok * torch.nan, torch.zeros(2, 2))
    with pytest.raises(InputError, match="shape"):
        metrics["anomaly"].update(ok, torch.zeros(2))
    with pytest.raises(InputError, match="type"):
        metrics["anomaly"].update(ok.long(), torch.zeros(2, 2))
    with pytest.raises(InputError, match="class id"):
        metrics["segmentation"].update(ok.long() + 5, ok.long())


def test_scores_of_ignored_pixels_may_be_anything():
    metric = PooledAnomaly()
    metric.update(torch.tensor([0.1, 0.9, torch.nan]), torch.tensor([0, 1, 255]))
    assert float(metric.compute()["auroc"]) == 1.0
