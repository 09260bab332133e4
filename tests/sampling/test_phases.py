"""A dilated depthwise convolution is computed by its phases, with torch's result."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from segunc.sampling import phases as phases_module
from segunc.sampling.layouts import ArrangedWeights, ChannelsLast
from segunc.sampling.phases import Phases, phases_of
from tests.sampling.test_layouts import NATIVE_BFLOAT16

PRECISIONS = [torch.float32]
if NATIVE_BFLOAT16:
    PRECISIONS.append(torch.bfloat16)


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[Phases | None]:
    """Every dilation counts as slow; a list gets the phases of each convolution."""
    monkeypatch.setattr(phases_module, "_slow_from", lambda: 2)
    found = []

    def note(*args: Any) -> Phases | None:
        found.append(phases_of(*args))
        return found[-1]

    monkeypatch.setattr("segunc.sampling.layouts.phases_of", note)
    return found


def inputs(size: tuple[int, ...], kernel: tuple[int, int], dtype: torch.dtype) -> Any:
    generator = torch.Generator().manual_seed(0)
    channels = size[1]
    x = torch.rand(size, generator=generator).to(dtype)
    weight = torch.rand(channels, 1, *kernel, generator=generator).to(dtype) - 0.5
    bias = torch.rand(channels, generator=generator).to(dtype)
    return x.contiguous(memory_format=torch.channels_last), nn.Parameter(weight), bias


@pytest.mark.parametrize("dtype", PRECISIONS, ids=str)
@pytest.mark.parametrize(
    ("size", "kernel", "padding", "dilation"),
    [
        ((2, 32, 24, 36), (3, 3), (12, 12), (12, 12)),
        ((1, 32, 25, 41), (3, 3), (12, 12), (12, 12)),  # no multiples
        ((3, 32, 25, 41), (3, 3), (4, 2), (4, 2)),  # another dilation along each axis
        ((2, 16, 31, 20), (5, 3), (6, 3), (3, 3)),
        ((1, 16, 20, 31), (3, 3), (22, 22), (22, 22)),  # a dilation beyond the height
        ((2, 16, 8, 6), (3, 3), (12, 12), (12, 12)),  # beyond both
    ],
)
@torch.inference_mode()
def test_phases_have_the_result_of_the_convolution(
    found: list[Phases | None],
    size: tuple[int, ...],
    kernel: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
    dtype: torch.dtype,
) -> None:
    x, weight, bias = inputs(size, kernel, dtype)
    expected = F.conv2d(x, weight, bias, 1, padding, dilation, size[1])
    with ChannelsLast(ArrangedWeights()):
        result = F.conv2d(x, weight, bias, 1, padding, dilation, size[1])
    assert found[0] is not None
    # Nine products are summed in another order, in bfloat16 before they are rounded.
    rounding = 8 * torch.finfo(dtype).eps if dtype == torch.float32 else torch.finfo(dtype).eps
    torch.testing.assert_close(result, expected, rtol=rounding, atol=rounding)
    assert result.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    "change",
    [
        {"stride": [2, 2]},
        {"padding": [0, 4]},  # the height changes
        {"dilation": [4, 1]},  # of columns no phases
        {"groups": 8},  # not depthwise
        {"weight": torch.zeros(16, 1, 2, 3), "padding": [2, 4]},  # an even kernel moves the map
    ],
    ids=lambda change: next(iter(change)),
)
def test_other_convolutions_have_no_phases(
    monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]
) -> None:
    monkeypatch.setattr(phases_module, "_slow_from", lambda: 2)
    call: dict[str, Any] = {
        "images": torch.zeros(1, 16, 12, 16),
        "weight": torch.zeros(16, 1, 3, 3),
        "padding": [4, 4],
        "stride": [1, 1],
        "dilation": [4, 4],
        "groups": 16,
    }
    assert phases_of(**call) is not None
    changed = call | change
    if "groups" in change:
        changed["weight"] = torch.zeros(16, 2, 3, 3)
    assert phases_of(**changed) is None


@pytest.mark.parametrize(("instructions", "least"), [("AVX2", 6), ("AVX512", 7)])
def test_small_dilations_stay_with_onednn(
    monkeypatch: pytest.MonkeyPatch, instructions: str, least: int
) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: instructions)
    images, weight = torch.zeros(1, 16, 64, 64), torch.zeros(16, 1, 3, 3)

    def has_phases(dilation: int) -> bool:
        pair = [dilation, dilation]
        return phases_of(images, weight, pair, [1, 1], pair, 16) is not None

    assert not has_phases(least - 1)
    assert has_phases(least)


def test_a_cpu_that_was_not_measured_has_no_phases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "SVE256")
    images: Tensor = torch.zeros(1, 16, 64, 64)
    pair = [12, 12]
    assert phases_of(images, torch.zeros(16, 1, 3, 3), pair, [1, 1], pair, 16) is None
