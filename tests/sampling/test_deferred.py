"""Affines that wait for what follows them give the numbers of affines that do not."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from segunc.sampling import Sampler, deferred
from segunc.sampling.deferred import DeferredAffines, WaitingAffine, native_affine
from segunc.sampling.engine import Engine
from segunc.sampling.layouts import ArrangedWeights, ChannelsLast
from segunc.sampling.native import Library
from tests.affine.networks import randomise
from tests.sampling.plain import posterior_of

pytestmark = pytest.mark.skipif(
    native_affine().functions is None, reason="no C++ compiler was found"
)

Following = Callable[[Tensor, Tensor], Tensor]
FOLLOWING: dict[str, tuple[Following, list[bool]]] = {
    "nothing": (lambda y, other: y, [False]),
    "ReLU in place": (lambda y, other: F.relu(y, inplace=True), [True]),
    "relu_": (lambda y, other: y.relu_(), [True]),
    "torch.relu_": (lambda y, other: torch.relu_(y), [True]),
    "ReLU6 in place": (lambda y, other: nn.ReLU6(inplace=True)(y), [True]),
    "relu6 in place": (lambda y, other: F.relu6(y, inplace=True), [True]),
    "hardtanh in place": (lambda y, other: F.hardtanh(y, -0.3, 0.7, inplace=True), [True]),
    "a residual": (lambda y, other: y.add_(other), [False]),
    "a residual and ReLU": (lambda y, other: F.relu(_added(y, other), inplace=True), [True]),
    "two residuals": (lambda y, other: F.relu(y.add_(other).add_(other), inplace=True), [False]),
    "itself": (lambda y, other: y.add_(y), [False]),
    "a scaled residual": (lambda y, other: y.add_(other, alpha=2), [False]),
    "a number": (lambda y, other: y.add_(1.5), [False]),
    "a residual of one pixel": (lambda y, other: y.add_(other[..., :1, :1]), [False]),
    "a residual in another order": (lambda y, other: y.add_(other.contiguous()), [False]),
    "ReLU": (lambda y, other: F.relu(y) + y, [True, False]),
    "ReLU6": (lambda y, other: nn.ReLU6()(y) + y, [True, False]),
    "hardtanh": (lambda y, other: F.hardtanh(y, -0.3, 0.7) + y, [True, False]),
    "torch.relu": (lambda y, other: torch.relu(y) + y, [True, False]),
    "ReLU twice": (lambda y, other: y.relu() + y.relu(), [True, True, False]),
    "a residual and another ReLU": (lambda y, other: F.relu(_added(y, other)) * y, [True, False]),
    "a ReLU and a change": (lambda y, other: F.relu(y) + y.mul_(2), [True, False]),
    "ReLU of another": (lambda y, other: F.relu(other, inplace=True) + y, [False]),
    "a look and ReLU": (lambda y, other: y.sum() + F.relu(y, inplace=True), [False]),
    "an operator": (lambda y, other: torch.ops.aten.relu(y) + y, [False]),
    "an overload": (lambda y, other: torch.ops.aten.relu.default(y) + y, [False]),
    "NumPy": (lambda y, other: torch.from_numpy(y.float().numpy()).to(y.dtype), [False]),
}


def _added(y: Tensor, other: Tensor) -> Tensor:
    y += other
    return y


def feature_map(shape: Sequence[int], dtype: torch.dtype, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(list(shape), generator=generator).to(dtype)
    return values.contiguous(memory_format=torch.channels_last)


@pytest.fixture
def clamps(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Return a list that gets, for each affine that waited, whether a clamp was joined to it."""
    made: list[bool] = []
    compute = WaitingAffine.compute

    def noting(
        self: WaitingAffine, result: Tensor, bounds: tuple[float, float] | None = None
    ) -> None:
        made.append(bounds is not None)
        compute(self, result, bounds)

    monkeypatch.setattr(WaitingAffine, "compute", noting)
    return made


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("channels", [2, 19, 64])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", FOLLOWING)
@torch.inference_mode()
def test_what_follows_an_affine_gets_its_numbers(
    name: str, dtype: torch.dtype, channels: int, rows: int, clamps: list[bool]
) -> None:
    following, expected_clamps = FOLLOWING[name]
    maps = feature_map((3, channels, 5, 7), dtype, 0)
    other = feature_map((3, channels, 5, 7), dtype, 1)
    scale = feature_map((rows, channels, 1, 1), dtype, 2).contiguous()
    shift = feature_map((rows, channels, 1, 1), dtype, 3).contiguous()
    expected = following(torch.addcmul(shift, maps, scale), other.clone())
    other_copy = other.clone()
    with ChannelsLast(ArrangedWeights(), DeferredAffines()):
        found = following(torch.addcmul(shift, maps, scale), other_copy)
    assert clamps == expected_clamps
    if dtype == torch.bfloat16:
        assert torch.equal(found, expected)
    else:
        # Another compiler may round a product and a sum once or twice.
        torch.testing.assert_close(found, expected, atol=2e-6, rtol=2e-6)
    assert found.stride() == expected.stride()


def _relu_of_affine(maps: Tensor, values: Tensor) -> Tensor:
    """Return a ReLU whose input nobody holds afterwards, as networks write it."""
    normalised = torch.addcmul(values, maps, values)
    return F.relu(normalised)


@torch.inference_mode()
def test_an_affine_whose_result_nobody_holds_is_computed_with_its_clamp_alone(
    clamps: list[bool],
) -> None:
    maps = feature_map((2, 8, 4, 4), torch.float32, 0)
    values = torch.ones(1, 8, 1, 1)
    expected = _relu_of_affine(maps, values) * 2
    with ChannelsLast(ArrangedWeights(), DeferredAffines()):
        found = _relu_of_affine(maps, values) * 2
    assert torch.equal(found, expected)
    assert clamps == [True]


@torch.inference_mode()
def test_an_affine_whose_result_a_list_holds_is_computed(clamps: list[bool]) -> None:
    maps = feature_map((2, 8, 4, 4), torch.float32, 0)
    values = torch.ones(1, 8, 1, 1)
    expected = torch.addcmul(values, maps, values)
    held = []
    with ChannelsLast(ArrangedWeights(), DeferredAffines()):
        held.append(torch.addcmul(values, maps, values))
        F.relu(held[0])
        maps.zero_()
    assert torch.equal(held[0], expected)
    assert clamps == [True, False]


@torch.inference_mode()
def test_an_affine_reads_its_input_before_that_is_changed() -> None:
    maps = feature_map((2, 8, 4, 4), torch.float32, 0)
    values = torch.ones(1, 8, 1, 1)
    expected = maps + 1
    with ChannelsLast(ArrangedWeights(), DeferredAffines()):
        result = torch.addcmul(values, maps, values)
        maps.zero_()
    assert torch.equal(result, expected)


@torch.inference_mode()
def test_nan_and_infinity_stay_what_they_are() -> None:
    values = torch.tensor([float("nan"), float("inf"), -float("inf"), 3e38, -3e38, 0.0])
    maps = values.repeat(16, 1).T.reshape(1, 16, 2, 3)
    maps = maps.bfloat16().contiguous(memory_format=torch.channels_last)
    ones = torch.ones(1, 16, 1, 1, dtype=torch.bfloat16)
    for following, _ in FOLLOWING.values():
        expected = following(torch.addcmul(ones, maps, ones), maps.clone())
        other = maps.clone()
        with ChannelsLast(ArrangedWeights(), DeferredAffines()):
            found = following(torch.addcmul(ones, maps, ones), other)
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    "operands",
    [
        "other order",
        "strided",
        "float64",
        "three axes",
        "scale of pixels",
        "scale of another type",
        "fewer rows",
        "one channel",
        "empty",
    ],
)
@torch.inference_mode()
def test_other_operands_do_not_wait(operands: str, clamps: list[bool]) -> None:
    maps = feature_map((4, 8, 6, 6), torch.float32, 0)
    scale = torch.rand(1, 8, 1, 1)
    shift = torch.rand(1, 8, 1, 1)
    if operands == "other order":
        maps = maps.contiguous()
    elif operands == "strided":
        maps = maps[..., ::2]
    elif operands == "float64":
        maps, scale, shift = maps.double(), scale.double(), shift.double()
    elif operands == "three axes":
        maps, scale, shift = maps[..., 0], scale[..., 0], shift[..., 0]
    elif operands == "scale of pixels":
        scale = torch.rand(1, 1, 6, 6)
    elif operands == "scale of another type":
        scale, shift = scale.double(), shift.double()
    elif operands == "one channel":
        maps = feature_map((4, 1, 6, 6), torch.float32, 0)
        scale, shift = scale[:, :1], shift[:, :1]
    elif operands == "fewer rows":
        maps = maps.view(2, 2, 8, 6, 6)
        scale = scale[None]
    else:
        maps = maps[:0]
    expected = torch.addcmul(shift, maps, scale)
    with ChannelsLast(ArrangedWeights(), DeferredAffines()):
        found = torch.addcmul(shift, maps, scale)
    assert torch.equal(found, expected)
    assert clamps == []


class Residual(nn.Module):
    """A block with a residual, as torchvision and smp write it, before a decoder."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU(True))
        self.convolution = nn.Conv2d(16, 16, 3, padding=1)
        self.norm = nn.BatchNorm2d(16)
        self.act = nn.ReLU(inplace=True)
        self.head = nn.Conv2d(16, 4, 1)
        self.last = nn.BatchNorm2d(4)
        randomise(self.eval())

    def forward(self, x: Tensor) -> Tensor:
        identity = self.stem(x)
        out = self.norm(self.convolution(identity))
        out += identity
        logits = self.last(self.head(self.act(out)))
        return F.interpolate(logits, x.shape[-2:], mode="bilinear", align_corners=False)


def maps_of(network: nn.Module, precision: Any, chunk: int) -> tuple[Any, Any]:
    """Return a sampler's maps of two frames, and those of a sampler in which nothing waits."""
    posterior = posterior_of(network.to(memory_format=torch.channels_last))
    frames = torch.rand(2, 3, 32, 64, generator=torch.Generator().manual_seed(0))
    found = []
    for waits in (True, False):
        sampler = Sampler(network, posterior, draws=4, precision=precision, chunk=chunk)
        if not waits:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(Engine, "_deferred", lambda self, images: None)
                found.append(sampler(frames))
        else:
            found.append(sampler(frames))
    return found[0], found[1]


@pytest.mark.parametrize("chunk", [1, 4])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_maps_are_those_of_affines_that_do_not_wait(
    precision: str, chunk: int, clamps: list[bool]
) -> None:
    found, expected = maps_of(Residual(), precision, chunk)
    # The last layer's affine is what the pass ends with.
    assert clamps.count(True) >= 2
    assert clamps.count(False) >= 1
    assert torch.equal(found.prediction, expected.prediction)
    tolerance = 0 if precision == "bfloat16" else 1e-6
    for name, expected_map in expected.scores.items():
        torch.testing.assert_close(found.scores[name], expected_map, atol=tolerance, rtol=0)


def test_nothing_waits_where_code_runs_that_is_not_seen(clamps: list[bool]) -> None:
    network = Residual()
    scripted: Any = torch.jit.script(nn.ReLU(inplace=True))
    network.act = scripted
    maps_of(network, "float32", 4)
    assert clamps == []


class Threaded(Residual):
    """Reads a feature map in a thread of its own, which no mode of this thread follows."""

    def __init__(self) -> None:
        super().__init__()
        self.threads = ThreadPoolExecutor(1)

    def forward(self, x: Tensor) -> Tensor:
        normalised = self.norm(self.convolution(self.stem(x)))
        activated = self.threads.submit(torch.sigmoid, normalised).result()
        logits = self.last(self.head(activated))
        return F.interpolate(logits, x.shape[-2:], mode="bilinear", align_corners=False)


@pytest.mark.parametrize("chunk", [1, 4])
def test_nothing_waits_where_a_thread_of_the_network_reads(chunk: int, clamps: list[bool]) -> None:
    maps_of(Threaded(), "float32", chunk)
    assert clamps == []


def test_without_a_compiler_torch_computes(
    monkeypatch: pytest.MonkeyPatch, clamps: list[bool]
) -> None:
    monkeypatch.setattr(deferred, "native_affine", lambda: Library(None))
    found, expected = maps_of(Residual(), "float32", 4)
    assert clamps == []
    assert torch.equal(found.scores["epistemic"], expected.scores["epistemic"])
