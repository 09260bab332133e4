"""The torchmetrics classes of the anomaly protocols: the core's numbers, and shards that merge to the bit."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed
import torch.multiprocessing
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torchmetrics import Metric

from segunc.core.errors import InputError
from segunc.maps.encoding import encode_unit
from segunc.metrics.anomaly_metrics import ComponentAnomaly, PerImageAnomaly, PooledAnomaly, SmiycAnomaly
from segunc.metrics.components import component_counts, component_result
from segunc.metrics.counting import auroc, count_scores, detection_curve
from segunc.metrics.per_image import per_image_result, per_image_sums
from segunc.metrics.smiyc import VALUES_OF_FLOAT_KEYS, VALUES_OF_UNIT_CODES, merge_bins, smiyc_bins, smiyc_result
from segunc.metrics.stateful import wide_tensor_keys
from segunc.metrics.wide_keys import wide_keys

MAKERS: dict[str, Callable[[], Metric]] = {
    "pooled": PooledAnomaly,
    "pooled-20": lambda: PooledAnomaly(key_bits=20),
    "per-image": PerImageAnomaly,
    "smiyc": SmiycAnomaly,
    "components": lambda: ComponentAnomaly(0.6, "smiyc-obstacle"),
}


def frames(count: int = 5) -> tuple[Tensor, Tensor]:
    """Scores ``[N, 40, 50]`` and labels with blocks of anomalies; the last frame has none."""
    generator = torch.Generator().manual_seed(0)
    anomaly = torch.zeros(count, 40, 50, dtype=torch.uint8)
    for index in range(count - 1):
        anomaly[index, 3 * index : 3 * index + 14, 5 : 20 + index] = 1
    anomaly[:, :, -4:] = 255
    scores = (
        0.35 * torch.rand(anomaly.shape, generator=generator)
        + 0.5 * (anomaly == 1)
        + 0.02 * torch.arange(count)[:, None, None]
    )
    return scores.half(), anomaly


def same(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    return left.keys() == right.keys() and all(
        torch.equal(left[key].nan_to_num(-1), right[key].nan_to_num(-1)) for key in left
    )


def whole(kind: str) -> Metric:
    metric = MAKERS[kind]()
    metric.update(*frames())
    return metric


def test_numbers_are_those_of_the_core():
    scores, anomaly = frames()
    pairs = [(score.numpy(), label.numpy()) for score, label in zip(scores, anomaly, strict=True)]
    counts = [count_scores(*pair) for pair in pairs]
    expected = {
        "per-image": per_image_result(np.sum([per_image_sums(one) for one in counts], axis=0)),
        "smiyc": smiyc_result(merge_bins(smiyc_bins(one, VALUES_OF_FLOAT_KEYS) for one in counts)),
    }
    for kind, numbers in expected.items():
        computed = whole(kind).compute()
        assert {name: float(value) for name, value in computed.items()} == numbers
    components = component_result(np.sum([component_counts(*pair, 0.6, "smiyc-obstacle") for pair in pairs], axis=0))
    computed = whole("components").compute()
    assert float(computed["siou_gt"]) == components["siou_gt"] > 0.5
    assert float(computed["f1_0.50"]) == components["f1"]["0.50"] > 0.5
    assert len(computed) == 14
    pooled, wide = whole("pooled"), whole("pooled-20")
    assert isinstance(pooled, PooledAnomaly)
    assert isinstance(wide, PooledAnomaly)
    assert float(pooled.compute()["auroc"]) == auroc(detection_curve(np.sum(counts, axis=0)))
    # float16 has 10 mantissa bits, and 20-bit keys keep 11.
    assert same(pooled.compute(), wide.compute())
    np.testing.assert_array_equal(pooled.curve().true_positives, wide.curve().true_positives)


@settings(max_examples=12, deadline=None)
@given(st.permutations(range(5)), st.integers(0, 5))
def test_shards_merge_to_the_whole_to_the_bit(order, cut):
    scores, anomaly = frames()
    for kind, make in MAKERS.items():
        shards = make(), make()
        for place, index in enumerate(order):
            shards[int(place >= cut)].update(scores[index], anomaly[index])
        merged = copy.deepcopy(shards[0])
        merged.merge_state(shards[1])
        merged._update_count = 1
        assert same(merged.compute(), whole(kind).compute()), kind


def distributed_process(rank: int, folder: str) -> None:
    torch.set_num_threads(1)  # OpenMP's threads do not survive a fork
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    scores, anomaly = frames()
    for kind, make in MAKERS.items():
        metric = make()
        if rank == 0 or kind != "smiyc":  # one process without a frame
            metric.update(scores[rank::2], anomaly[rank::2])
        metric._update_count = 1
        torch.save(metric.compute(), f"{folder}/{kind}-{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch without distributed")
def test_two_processes_give_the_numbers_of_one(tmp_path: Path):
    torch.multiprocessing.start_processes(distributed_process, (str(tmp_path),), nprocs=2, start_method="fork")
    scores, anomaly = frames()
    for kind, make in MAKERS.items():
        alone = make()
        chosen = slice(0, None, 2 if kind == "smiyc" else 1)
        alone.update(scores[chosen], anomaly[chosen])
        for rank in range(2):
            assert same(torch.load(tmp_path / f"{kind}-{rank}.pt"), alone.compute()), kind


@pytest.mark.parametrize("kind", MAKERS)
def test_forward_gives_the_batch_and_keeps_the_whole(kind):
    scores, anomaly = frames()
    metric, alone = MAKERS[kind](), MAKERS[kind]()
    metric(scores[:3], anomaly[:3])
    batch = metric(scores[3:], anomaly[3:])
    alone.update(scores[3:], anomaly[3:])
    assert same(batch, alone.compute())
    assert same(metric.compute(), whole(kind).compute())
    metric.reset()
    metric.update(scores[3:], anomaly[3:])
    assert same(metric.compute(), alone.compute())


@pytest.mark.parametrize("kind", MAKERS)
def test_what_no_frame_defines_is_nan(kind):
    scores, anomaly = frames()
    metric = MAKERS[kind]()
    metric.update(scores, torch.full_like(anomaly, 255))
    assert all(bool(torch.isnan(value)) for value in metric.compute().values())


def test_smiyc_state_survives_half_precision_and_a_state_dict():
    metric = torch.nn.ModuleList([whole("smiyc")]).half()[0]
    assert same(metric.compute(), whole("smiyc").compute())
    metric.persistent(True)
    other = SmiycAnomaly()
    other.persistent(True)
    other.load_state_dict(metric.state_dict())
    other._update_count = 1
    assert same(other.compute(), metric.compute())


def test_codes_are_taken_as_values_in_0_to_1():
    scores, anomaly = frames(2)
    codes = encode_unit(scores.float().numpy())
    metric = SmiycAnomaly()
    metric.update(torch.from_numpy(codes), anomaly)
    bins = [smiyc_bins(count_scores(*pair), VALUES_OF_UNIT_CODES) for pair in zip(codes, anomaly.numpy(), strict=True)]
    assert {name: float(value) for name, value in metric.compute().items()} == smiyc_result(merge_bins(bins))
    assert metric.curve().positives == int((anomaly == 1).sum())


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=30))
def test_wide_tensor_keys_equal_those_of_the_core(values):
    scores = np.array([0.0, -0.0, *values], np.float32)
    np.testing.assert_array_equal(wide_tensor_keys(torch.from_numpy(scores)).numpy(), wide_keys(scores))


def test_bad_input_is_refused():
    scores, anomaly = frames(2)
    with pytest.raises(InputError, match="16 or 20"):
        PooledAnomaly(key_bits=12)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="smiyc-anomaly"):
        ComponentAnomaly(0.5, "anomaly")
    with pytest.raises(InputError, match=r"\[N, H, W\]"):
        PerImageAnomaly().update(scores.flatten(), anomaly.flatten())
    with pytest.raises(InputError, match=r"\[N, H, W\]"):
        SmiycAnomaly().update(scores, anomaly[0])
    with pytest.raises(InputError, match="uint8"):
        SmiycAnomaly().update(anomaly, anomaly)
    with pytest.raises(InputError, match="decode"):
        ComponentAnomaly(0.5).update(anomaly, anomaly)
    with pytest.raises(InputError, match="16-bit"):
        PooledAnomaly(key_bits=20).update(torch.from_numpy(encode_unit(scores.numpy())), anomaly)
    with pytest.raises(InputError, match="float32"):
        PooledAnomaly(key_bits=20).update(scores * torch.inf, anomaly)
