"""The engine against plain passes: shared prefix, early end, bfloat16, and what it does when they
fail.
"""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from segunc.affine.convert import convert
from segunc.affine.draws import AffineLayout
from segunc.core.device import flushed_denormals
from segunc.core.errors import InputError, NotFiniteError
from segunc.networks import NetworkDescription, SegmentationNetwork, build_network
from segunc.posteriors.abnn import ABNNPosterior
from segunc.sampling import Prediction, Sampler
from segunc.sampling.engine import Engine
from segunc.sampling.shortcuts import Prefix
from segunc.uncertainty import relative_difference
from tests.affine.networks import LAYERS, Pixelwise, randomise, small_network
from tests.sampling.plain import assert_maps_of_a_plain_loop, draw_logits, posterior_of
from tests.training.fitting import abnn_task
from tools.identity_table import VIT, architectures, randomise as randomise_real

IMAGES = torch.rand(2, 3, 64, 96, generator=torch.Generator().manual_seed(0))


class Headed(nn.Module):
    """An encoder and a decoder with a skip connection, and any end."""

    def __init__(self, end: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder = nn.Sequential(
            nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(inplace=True)
        )
        self.deep = nn.Sequential(
            nn.Conv2d(8, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(inplace=True)
        )
        self.head = nn.Conv2d(16, 4, 1)
        self.end = end
        randomise(self.eval())

    def forward(self, x: Tensor) -> Tensor:
        skip = self.encoder(x)
        deep = F.interpolate(self.deep(skip), skip.shape[-2:], mode="nearest")
        return self.end(x, 4 * self.head(torch.cat([skip, deep], 1)))


def upsampled(x: Tensor, logits: Tensor) -> Tensor:
    return F.interpolate(logits, x.shape[-2:], mode="bilinear", align_corners=False)


twice = partial(F.interpolate, scale_factor=2)
ENDS: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], bool]] = {
    "to the size of the input": (upsampled, True),
    "by a factor, corners aligned": (
        lambda x, z: twice(z, mode="bilinear", align_corners=True),
        True,
    ),
    "cropped": (
        lambda x, z: twice(z, mode="bilinear")[..., : x.shape[2] - 3, : x.shape[3] - 1],
        True,
    ),
    "cropped elsewhere": (lambda x, z: upsampled(x, z)[..., 3:, :], False),
    "scaled after": (lambda x, z: upsampled(x, z) * 2, False),
    "nearest": (lambda x, z: twice(z, mode="nearest"), False),
    "narrower": (lambda x, z: upsampled(x, twice(twice(z))), False),
    "none": (lambda x, z: z, False),
}


@pytest.mark.parametrize("end", ENDS)
def test_every_ending(end: str) -> None:
    function, taken = ENDS[end]
    network = Headed(function)
    sampler = Sampler(network, posterior_of(network), draws=5, chunk=2)
    assert_maps_of_a_plain_loop(sampler, IMAGES)
    assert sampler.report.upsampled is taken
    assert sampler.report.shared


def test_frames_of_several_sizes_end_each_in_its_own_way() -> None:
    # At 32 columns the network needs no upsampling at its end, so that another interpolation is the
    # last one.
    network = Headed(lambda x, z: z if x.shape[3] == 32 else upsampled(x, z))
    sampler = Sampler(network, posterior_of(network), draws=3)
    for columns, taken in ((96, True), (32, False), (96, True)):
        assert_maps_of_a_plain_loop(sampler, IMAGES[..., :columns])
        assert sampler.report.upsampled is taken


@pytest.mark.parametrize("name", LAYERS)
def test_every_kind_of_site_shares_its_prefix(name: str) -> None:
    torch.manual_seed(0)
    network = randomise(Pixelwise(LAYERS[name]()).eval())
    posterior = posterior_of(network)
    for chunk in (1, 3):
        sampler = Sampler(network, posterior, draws=4, chunk=chunk)
        assert_maps_of_a_plain_loop(sampler, torch.rand(3, 3, 6, 8))
        # Windows are cut with the batch size of a tensor before the site.
        assert sampler.report.shared is (name != "windows in the batch")


class ConvolutionRows(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.rows: list[int] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func.overloadpacket in (torch.ops.aten.convolution, torch.ops.aten.conv2d):
            self.rows.append(args[0].shape[0])
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("scope", "rows"), [("all", [2, 2, 2] + 3 * [4, 4]), ("deep", [2, 2, 2] + 3 * [4])]
)
def test_what_is_common_runs_once(scope: str, rows: list[int]) -> None:
    network = Headed(upsampled)
    sampler = Sampler(network, posterior_of(network), draws=6, chunk=2, scope=scope)
    sampler(IMAGES)
    with ConvolutionRows() as watch:
        sampler(IMAGES)
    # Two convolutions and the head for the base network, which comes first; then what is left for
    # each chunk.
    assert watch.rows == rows
    assert_maps_of_a_plain_loop(sampler, IMAGES, scope=scope)


class Mutating(nn.Module):
    """Changes in place what was taken before: results that were kept are other ones by then."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.head = nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        shared = self.stem(x)
        drawn = self.norm(shared)
        shared.add_(drawn)
        logits: Tensor = self.head(shared)
        return logits


def test_a_network_that_cannot_share_is_noticed() -> None:
    network = randomise(Mutating().eval())
    sampler = Sampler(network, posterior_of(network), draws=3)
    assert_maps_of_a_plain_loop(sampler, IMAGES)
    assert not sampler.report.shared
    assert sampler.report.batched
    # What was left out holds NaN, where memory would hold any number.
    assert any("cannot be shared" in m and "change by inf" in m for m in sampler.report.messages)


def network_of(architecture: str) -> SegmentationNetwork:
    """It pads odd sizes and crops the logits, so that the early end, the crop and the tail are
    checked together.
    """
    torch.manual_seed(0)
    encoder, options = (
        (VIT, {"dynamic_img_size": True}) if architecture == "DPT" else ("resnet18", {})
    )
    network = build_network(
        NetworkDescription(architecture, encoder, tuple("abcde"), options=options)
    )
    randomise_real(network.eval())
    convert(network.body)
    return network


def odd_images(architecture: str) -> Tensor:
    size = (
        (131, 135) if architecture == "PAN" else (67, 93)
    )  # its pyramid needs four cells of stride 32
    return torch.rand(1, 3, *size, generator=torch.Generator().manual_seed(1))


def assert_near(rounded: Prediction, exact: Prediction) -> None:
    for name in ("msp", "entropy", "aleatoric", "epistemic"):
        gap = (rounded.scores[name] - exact.scores[name]).abs()
        assert float(gap.mean()) < BFLOAT16_MEAN, name
        assert float(gap.max()) <= BFLOAT16_LARGEST, name


def rounding(network: nn.Module, posterior: ABNNPosterior, images: Tensor) -> float:
    """By how much the probabilities of three plain draws in float32 miss float64, at least EXACT by
    the half: another order of the sums misses it by as much, and how much that is depends on the
    CPU.
    """
    wide = (copy.deepcopy(network).double(), images.double())
    narrow, exact = (draw_logits(n, posterior, x, 3) for n, x in ((network, images), wide))
    missed = [
        float((a.softmax(1) - b.softmax(1)).abs().max()) for a, b in zip(narrow, exact, strict=True)
    ]
    return max(EXACT / 2, *missed)


@pytest.mark.parametrize("architecture", architectures())
@flushed_denormals()
def test_every_smp_architecture_equals_a_plain_loop(architecture: str) -> None:
    network, images = network_of(architecture), odd_images(architecture)
    layout = AffineLayout(network)
    posterior = ABNNPosterior.around(layout, 0.1)
    bound = 2 * rounding(network, posterior, images)
    exact = assert_maps_of_a_plain_loop(
        Sampler(network, posterior, draws=3, chunk=2), images, bound
    )
    trained = ABNNPosterior(layout.weight[None] * 1.1, layout.bias[None] + 0.1, 0.1)
    decoder = Sampler(network, trained, draws=3, chunk=2, scope="decoder")
    assert_maps_of_a_plain_loop(decoder, images, 2 * rounding(network, trained, images), "decoder")
    half = Sampler(network, posterior, draws=3, chunk=2, precision="bfloat16")
    assert_near(half(images), exact)
    assert not any("autocast" in message for message in half.report.messages)


EXACT = 2e-5  # largest difference of a map in 0..1 in float32: only the order of sums differs
BFLOAT16_MEAN, BFLOAT16_LARGEST = (
    0.02,
    0.35,
)  # for random networks, whose logits are close to each other


def test_a_bfloat16_copy_computes_in_bfloat16_and_leaves_the_network_alone() -> None:
    network = small_network()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    posterior = posterior_of(network)
    seen = []
    hook = nn.modules.module.register_module_forward_hook(
        lambda module, inputs, output: seen.append(output.dtype)
    )
    try:
        engine = Engine(network, "bfloat16")
        seen.clear()  # of the comparison of the copy, in float32
        folded = engine.layout.fold(
            posterior.affine(engine.layout, [0, 1], 0), engine.dtype, share=True
        )
        logits, _ = engine.logits(IMAGES, folded, None, Prefix())
    finally:
        hook.remove()
    assert set(seen) == {torch.bfloat16}
    assert logits.dtype == torch.bfloat16
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


class Float32(nn.Module):
    """Insists on float32 in the middle of a network, which bfloat16 weights do not take."""

    def forward(self, x: Tensor) -> Tensor:
        return x.float()


@pytest.mark.parametrize("replaced", [False, True])
def test_what_a_copy_cannot_do_runs_under_autocast(replaced: bool) -> None:
    inside = nn.Sequential(nn.BatchNorm2d(3), Float32(), nn.Conv2d(3, 4, 1))
    network = small_network() if replaced else randomise(inside.eval())
    if replaced:
        inner = network.forward
        network.forward = lambda x: inner(x)  # type: ignore[method-assign]
    posterior = posterior_of(network)
    sampler = Sampler(network, posterior, draws=3, precision="bfloat16")
    result = sampler(IMAGES)
    assert any("autocast" in message for message in sampler.report.messages)
    exact = Sampler(network, posterior, draws=3)(IMAGES)
    assert (
        float(result.scores["epistemic"].mean()) > 0.2 * float(exact.scores["epistemic"].mean()) > 0
    )
    assert float((result.scores["entropy"] - exact.scores["entropy"]).abs().mean()) < BFLOAT16_MEAN


def test_out_of_memory_halves_the_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    network = Headed(upsampled)
    sampler = Sampler(network, posterior_of(network), draws=7, chunk=4)
    plain = Engine.logits

    def limited(self: Engine, images: Tensor, draws: object, *rest: object) -> object:
        if draws is not None and len(draws) > 1:  # type: ignore[arg-type]
            raise torch.OutOfMemoryError("too much")
        return plain(self, images, draws, *rest)  # type: ignore[arg-type]

    sampler(IMAGES)
    monkeypatch.setattr(Engine, "logits", limited)
    assert_maps_of_a_plain_loop(sampler, IMAGES)
    assert sampler.chunk == 1
    halved = [m for m in sampler.report.messages if "halved" in m]
    assert halved == [f"out of memory: chunk halved to {chunk}" for chunk in (2, 1)]


QUIET = 0.01 * torch.rand(1, 3, 32, 48, generator=torch.Generator().manual_seed(0))
LOUD = 40 * torch.randn(1, 3, 32, 48, generator=torch.Generator().manual_seed(1))
End = Callable[[Tensor, Tensor], Tensor]
doubled = partial(twice, mode="bilinear", align_corners=False)


class Ended(nn.Module):
    """Logits at half of the size, and any end."""

    def __init__(self, end: End = lambda _, low: doubled(low)) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU())
        self.head, self.end = nn.Conv2d(8, 4, 1), end
        randomise(self.eval())

    def forward(self, images: Tensor) -> Tensor:
        return self.end(images, self.head(self.encoder(images)))


def masked(logits: Tensor) -> Tensor:
    logits[logits > 20] = 20.0
    return logits


UNSEEN: dict[str, End] = {
    "clamp in place": lambda _, low: doubled(low).clamp_(-20, 20),
    "clamp into it": lambda _, low: torch.clamp(y := doubled(low), -20, 20, out=y),
    "clamp of a view": lambda _, low: (y := doubled(low), y[..., :-2].clamp_(-20, 20))[0],
    "clamp of its data": lambda _, low: (y := doubled(low), y.data.clamp_(-20, 20))[0],
    "mask": lambda _, low: masked(doubled(low)),
    "branch on the frame": lambda x, low: (
        doubled(low) if x.abs().mean() < 1 else doubled(low).clamp(-20, 20)
    ),
    "branch on the logits": lambda _, low: doubled(
        low if float(low.abs().amax()) < 20 else 0.1 * low
    ),
}


@pytest.mark.parametrize("end", UNSEEN)
def test_an_end_that_the_first_frame_does_not_show(end: str) -> None:
    network = Ended(UNSEEN[end])
    with torch.no_grad():
        expected = [network(frame).softmax(1) for frame in (QUIET, LOUD)]
    convert(network)
    sampler = Sampler(network, ABNNPosterior.around(AffineLayout(network), 0.0), draws=1)
    for frame, probabilities in zip((QUIET, LOUD), expected, strict=True):
        result = sampler(frame, keep_probabilities=True).probabilities
        torch.testing.assert_close(result, probabilities, atol=1e-5, rtol=0)
    assert sampler.report.upsampled is False


def test_a_branch_is_taken_for_each_draw_and_for_each_frame_of_a_batch() -> None:
    network = Ended(lambda _, low: doubled(low if float(low.mean()) < 0.3 else -low))
    sampler = Sampler(network, posterior_of(network, 1.0), draws=8, chunk=8)
    assert_maps_of_a_plain_loop(sampler, LOUD)
    assert any("branch" in message for message in sampler.report.messages)
    network = Ended(lambda x, low: doubled(-low if float(x.max()) > 0.5 else low))
    frames = torch.cat([0.4 * LOUD.clamp(0, 1), LOUD.clamp(0, 1)])
    with torch.no_grad():
        expected = torch.cat([network(frame[None]).softmax(1) for frame in frames])
        assert not torch.allclose(network(frames).softmax(1), expected, atol=0.1)
    convert(network)
    sampler = Sampler(network, ABNNPosterior.around(AffineLayout(network), 0.0), draws=1)
    for _ in range(2):
        found = sampler(frames, keep_probabilities=True).probabilities
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


class Tiled(Ended):
    """Cuts frames wider than 64 pixels into tiles, which come before the frames in the batch."""

    def forward(self, images: Tensor) -> Tensor:
        if images.shape[-1] <= 64:
            return super().forward(images)
        tiles = super().forward(
            torch.cat(list(torch.stack(images.chunk(2, -1), 1).flatten(0, 1).split(1)))
        )
        return torch.cat(list(tiles.unflatten(0, (-1, 2)).unbind(1)), -1)


class TilesFirst(Ended):
    """The same with the tiles outermost: the draws are no more, as two draws of one frame are two
    tiles.
    """

    def forward(self, images: Tensor) -> Tensor:
        if images.shape[-1] <= 64:
            return super().forward(images)
        return torch.cat(list(super().forward(torch.cat(images.chunk(2, -1))).chunk(2)), -1)


@pytest.mark.parametrize(("kind", "said"), [(Tiled, False), (TilesFirst, True)])
def test_draws_are_checked_at_each_size(kind: type[Ended], said: bool) -> None:
    network = kind()
    sampler = Sampler(network, posterior_of(network), draws=4, chunk=2)
    for columns in (64, 96, 64, 128):
        assert_maps_of_a_plain_loop(sampler, torch.rand(1, 3, 32, columns))
    assert any("96 x 32" in message for message in sampler.report.messages) is said


@pytest.mark.parametrize("mask", [-1e9, torch.finfo(torch.float32).min])
def test_a_masked_class_does_not_make_other_differences_look_small(mask: float) -> None:
    logits = torch.zeros(1, 3, 2, 2)
    logits[:, 0] = mask
    logits[:, 1] = 8.0
    other = logits.clone()
    other[0, 1, 0, 0] = 6.0
    assert relative_difference(other, logits) == 2.0 / 8.0


def test_random_numbers_of_the_network_are_named_as_such() -> None:
    network = Ended(lambda _, low: F.dropout(doubled(low), 0.5, training=True))
    sampler = Sampler(network, posterior_of(network), draws=2)
    sampler(QUIET)
    assert "random numbers" in " ".join(sampler.report.messages)
    assert "as a batch" not in " ".join(sampler.report.messages)


def test_a_softmax_is_no_logit() -> None:
    network = Ended(lambda _, low: (doubled(low) / 50).softmax(1))
    with pytest.raises(InputError, match="softmax"):
        Sampler(network)(QUIET)
    with pytest.raises(InputError, match="softmax"):
        abnn_task(network).loss(QUIET, torch.zeros(1, 32, 48, dtype=torch.long), 0)
    said = Sampler(Ended(lambda _, low: doubled(low).log_softmax(1)))
    said(QUIET)
    assert "log-softmax" in " ".join(said.report.messages)
    Sampler(Ended(lambda x, low: 0.25 + doubled(low) * (x.abs() > 1).any()))(
        QUIET
    )  # sums to 1 at this frame alone


@pytest.mark.parametrize(
    ("images", "error", "said"),
    [
        (255 * torch.rand(1, 3, 32, 48), InputError, "255"),
        (torch.randn(1, 3, 32, 48), InputError, "normalisation"),
        (torch.zeros(1, 3, 32, 48, dtype=torch.uint8), InputError, "255"),
        (torch.full((1, 3, 32, 48), torch.nan), NotFiniteError, "NaN"),
    ],
)
def test_images_of_another_range(images: Tensor, error: type[Exception], said: str) -> None:
    network = SegmentationNetwork(Ended(), NetworkDescription("own", "", tuple("abcd")), 2).eval()
    with pytest.raises(error, match=said):
        Sampler(network)(images)
    with pytest.raises(error, match=said):
        abnn_task(network).loss(images, torch.zeros(1, 32, 48, dtype=torch.long), 0)
