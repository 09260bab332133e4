"""The engine against plain passes: shared prefix, early end, bfloat16, and what it does when they
fail.
"""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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


def scaled_up(logits: Tensor, **settings: Any) -> Tensor:
    """Return the logits at twice their size."""
    return F.interpolate(logits, scale_factor=2, **settings)


def by_a_factor(x: Tensor, logits: Tensor) -> Tensor:
    return scaled_up(logits, mode="bilinear", align_corners=True)


def cropped(x: Tensor, logits: Tensor) -> Tensor:
    height, width = x.shape[2:]
    return scaled_up(logits, mode="bilinear")[..., : height - 3, : width - 1]


def cropped_above(x: Tensor, logits: Tensor) -> Tensor:
    return upsampled(x, logits)[..., 3:, :]


def narrower(x: Tensor, logits: Tensor) -> Tensor:
    return upsampled(x, scaled_up(scaled_up(logits)))


End = Callable[[Tensor, Tensor], Tensor]
TAKEN_ENDS: dict[str, End] = {
    "to the size of the input": upsampled,
    "by a factor, corners aligned": by_a_factor,
    "cropped": cropped,
}
OTHER_ENDS: dict[str, End] = {
    "cropped elsewhere": cropped_above,
    "scaled after": lambda x, logits: upsampled(x, logits) * 2,
    "nearest": lambda x, logits: scaled_up(logits, mode="nearest"),
    "narrower": narrower,
    "none": lambda x, logits: logits,
}


def assert_shared_and_upsampled(end: End, upsampled: bool) -> None:
    network = Headed(end)
    sampler = Sampler(network, posterior_of(network), draws=5, chunk=2)
    assert_maps_of_a_plain_loop(sampler, IMAGES)
    assert sampler.report.upsampled is upsampled
    assert sampler.report.shared


@pytest.mark.parametrize("end", TAKEN_ENDS)
def test_an_upsampling_at_the_end_is_taken(end: str) -> None:
    assert_shared_and_upsampled(TAKEN_ENDS[end], upsampled=True)


@pytest.mark.parametrize("end", OTHER_ENDS)
def test_another_end_is_run_as_it_is(end: str) -> None:
    assert_shared_and_upsampled(OTHER_ENDS[end], upsampled=False)


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


CONVOLUTIONS = (
    torch.ops.aten.convolution,
    torch.ops.aten.conv2d,
    torch.ops.mkldnn._convolution_pointwise,
)


class ConvolutionRows(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.rows: list[int] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func.overloadpacket in CONVOLUTIONS:
            self.rows.append(args[0].shape[0])
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("scope", "chunk_rows"),
    [
        ("all", [4, 4]),
        ("deep", [4]),
    ],
)
def test_what_is_common_runs_once(scope: str, chunk_rows: list[int]) -> None:
    network = Headed(upsampled)
    sampler = Sampler(network, posterior_of(network), draws=6, chunk=2, scope=scope)
    sampler(IMAGES)
    with ConvolutionRows() as watch:
        sampler(IMAGES)
    # Two convolutions and the head for the base network, which comes first; then what is left for
    # each of three chunks.
    assert watch.rows == [2, 2, 2] + 3 * chunk_rows
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
    encoder = "resnet18"
    options: dict[str, Any] = {}
    if architecture == "DPT":
        encoder = VIT
        options["dynamic_img_size"] = True
    network = build_network(
        NetworkDescription(architecture, encoder, tuple("abcde"), options=options)
    )
    randomise_real(network.eval())
    convert(network.body)
    return network


def odd_images(architecture: str) -> Tensor:
    """Return an image; the pyramid of PAN needs four cells of stride 32."""
    size = (131, 135) if architecture == "PAN" else (67, 93)
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
    wide = copy.deepcopy(network).double()
    rounded = draw_logits(network, posterior, images, 3)
    exact = draw_logits(wide, posterior, images.double(), 3)
    errors = [EXACT / 2]
    for rounded_draw, exact_draw in zip(rounded, exact, strict=True):
        error = rounded_draw.softmax(1) - exact_draw.softmax(1)
        errors.append(float(error.abs().max()))
    return max(errors)


@pytest.mark.parametrize("architecture", architectures())
@flushed_denormals()
def test_every_smp_architecture_equals_a_plain_loop(architecture: str) -> None:
    network = network_of(architecture)
    images = odd_images(architecture)
    layout = AffineLayout(network)
    posterior = ABNNPosterior.around(layout, 0.1)
    bound = 2 * rounding(network, posterior, images)
    sampler = Sampler(network, posterior, draws=3, chunk=2)
    exact = assert_maps_of_a_plain_loop(sampler, images, bound)
    trained = ABNNPosterior(layout.weight[None] * 1.1, layout.bias[None] + 0.1, 0.1)
    decoder = Sampler(network, trained, draws=3, chunk=2, scope="decoder")
    bound = 2 * rounding(network, trained, images)
    assert_maps_of_a_plain_loop(decoder, images, bound, "decoder")
    half = Sampler(network, posterior, draws=3, chunk=2, precision="bfloat16")
    assert_near(half(images), exact)
    assert not any("autocast" in message for message in half.report.messages)


# The largest difference of a map in 0..1 in float32: only the order of sums differs.
EXACT = 2e-5
# For random networks, whose logits are close to each other.
BFLOAT16_MEAN = 0.02
BFLOAT16_LARGEST = 0.35


@contextmanager
def output_types() -> Iterator[list[torch.dtype]]:
    """Collect the type of the output of every module that runs."""
    types: list[torch.dtype] = []
    hook = nn.modules.module.register_module_forward_hook(
        lambda module, inputs, output: types.append(output.dtype)
    )
    try:
        yield types
    finally:
        hook.remove()


def pass_in_bfloat16(network: nn.Module, types: list[torch.dtype]) -> Tensor:
    """Return the logits of two draws; ``types`` forgets the comparison of the copy in float32."""
    posterior = posterior_of(network)
    engine = Engine(network, "bfloat16")
    types.clear()
    affine = posterior.affine(engine.layout, [0, 1], 0)
    folded = engine.layout.fold(affine, engine.dtype, share=True)
    logits, _ = engine.logits(IMAGES, folded, None, Prefix())
    return logits


def test_a_bfloat16_copy_computes_in_bfloat16() -> None:
    with output_types() as types:
        logits = pass_in_bfloat16(small_network(), types)
    assert set(types) == {torch.bfloat16}
    assert logits.dtype == torch.bfloat16


def test_a_bfloat16_copy_leaves_the_network_alone() -> None:
    network = small_network()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    pass_in_bfloat16(network, [])
    for name, value in network.state_dict().items():
        assert torch.equal(value, before[name]), name


class Float32(nn.Module):
    """Insists on float32 in the middle of a network, which bfloat16 weights do not take."""

    def forward(self, x: Tensor) -> Tensor:
        return x.float()


def insisting_on_float32() -> nn.Module:
    return randomise(nn.Sequential(nn.BatchNorm2d(3), Float32(), nn.Conv2d(3, 4, 1)).eval())


def with_a_replaced_forward() -> nn.Module:
    network = small_network()
    forward = network.forward
    network.forward = lambda x: forward(x)  # type: ignore[method-assign]
    return network


@pytest.mark.parametrize("make", [insisting_on_float32, with_a_replaced_forward])
def test_what_a_copy_cannot_do_runs_under_autocast(make: Callable[[], nn.Module]) -> None:
    network = make()
    posterior = posterior_of(network)
    sampler = Sampler(network, posterior, draws=3, precision="bfloat16")
    rounded = sampler(IMAGES).scores
    assert any("autocast" in message for message in sampler.report.messages)
    exact = Sampler(network, posterior, draws=3)(IMAGES).scores
    epistemic = float(exact["epistemic"].mean())
    assert epistemic > 0
    assert float(rounded["epistemic"].mean()) > 0.2 * epistemic
    error = (rounded["entropy"] - exact["entropy"]).abs()
    assert float(error.mean()) < BFLOAT16_MEAN


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


def doubled(low: Tensor) -> Tensor:
    return scaled_up(low, mode="bilinear", align_corners=False)


class Ended(nn.Module):
    """Logits at half of the size, and any end."""

    def __init__(self, end: End = lambda _, low: doubled(low)) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder = nn.Sequential(
            nn.Conv2d(3, 8, 3, 2, 1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
        )
        self.head = nn.Conv2d(8, 4, 1)
        self.end = end
        randomise(self.eval())

    def forward(self, images: Tensor) -> Tensor:
        low = self.head(self.encoder(images))
        return self.end(images, low)


def clamped_into_itself(_: Tensor, low: Tensor) -> Tensor:
    logits = doubled(low)
    return torch.clamp(logits, -20, 20, out=logits)


def clamped_view(_: Tensor, low: Tensor) -> Tensor:
    logits = doubled(low)
    logits[..., :-2].clamp_(-20, 20)
    return logits


def clamped_data(_: Tensor, low: Tensor) -> Tensor:
    logits = doubled(low)
    logits.data.clamp_(-20, 20)
    return logits


def masked(_: Tensor, low: Tensor) -> Tensor:
    logits = doubled(low)
    logits[logits > 20] = 20.0
    return logits


def clamped_if_loud(images: Tensor, low: Tensor) -> Tensor:
    logits = doubled(low)
    return logits if images.abs().mean() < 1 else logits.clamp(-20, 20)


def scaled_if_large(_: Tensor, low: Tensor) -> Tensor:
    return doubled(low if float(low.abs().amax()) < 20 else 0.1 * low)


UNSEEN: dict[str, End] = {
    "clamp in place": lambda _, low: doubled(low).clamp_(-20, 20),
    "clamp into it": clamped_into_itself,
    "clamp of a view": clamped_view,
    "clamp of its data": clamped_data,
    "mask": masked,
    "branch on the frame": clamped_if_loud,
    "branch on the logits": scaled_if_large,
}


def without_noise(network: nn.Module) -> Sampler:
    """Return a sampler of one draw, which is the network itself."""
    convert(network)
    return Sampler(network, ABNNPosterior.around(AffineLayout(network), 0.0), draws=1)


def assert_probabilities(sampler: Sampler, images: Tensor, expected: Tensor) -> None:
    probabilities = sampler(images, keep_probabilities=True).probabilities
    torch.testing.assert_close(probabilities, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("end", UNSEEN)
def test_an_end_that_the_first_frame_does_not_show(end: str) -> None:
    network = Ended(UNSEEN[end])
    with torch.no_grad():
        quiet = network(QUIET).softmax(1)
        loud = network(LOUD).softmax(1)
    sampler = without_noise(network)
    assert_probabilities(sampler, QUIET, quiet)
    assert_probabilities(sampler, LOUD, loud)
    assert sampler.report.upsampled is False


def test_a_branch_is_taken_for_each_draw() -> None:
    network = Ended(lambda _, low: doubled(low if float(low.mean()) < 0.3 else -low))
    sampler = Sampler(network, posterior_of(network, 1.0), draws=8, chunk=8)
    assert_maps_of_a_plain_loop(sampler, LOUD)
    assert any("branch" in message for message in sampler.report.messages)


def test_a_branch_is_taken_for_each_frame_of_a_batch() -> None:
    network = Ended(lambda images, low: doubled(-low if float(images.max()) > 0.5 else low))
    frame = LOUD.clamp(0, 1)
    frames = torch.cat([0.4 * frame, frame])
    with torch.no_grad():
        expected = torch.cat([network(frame[None]).softmax(1) for frame in frames])
        as_a_batch = network(frames).softmax(1)
    assert not torch.allclose(as_a_batch, expected, atol=0.1)
    sampler = without_noise(network)
    for _ in range(2):
        assert_probabilities(sampler, frames, expected)


class Tiled(Ended):
    """Cuts frames wider than 64 pixels into tiles, which come before the frames in the batch."""

    def forward(self, images: Tensor) -> Tensor:
        if images.shape[-1] <= 64:
            return super().forward(images)
        halves = torch.stack(images.chunk(2, -1), 1)
        tiles = halves.flatten(0, 1)
        logits = super().forward(torch.cat(list(tiles.split(1))))
        left, right = logits.unflatten(0, (-1, 2)).unbind(1)
        return torch.cat([left, right], -1)


class TilesFirst(Ended):
    """The same with the tiles outermost: the draws are no more, as two draws of one frame are two
    tiles.
    """

    def forward(self, images: Tensor) -> Tensor:
        if images.shape[-1] <= 64:
            return super().forward(images)
        tiles = torch.cat(images.chunk(2, -1))
        left, right = super().forward(tiles).chunk(2)
        return torch.cat([left, right], -1)


@pytest.mark.parametrize(
    ("kind", "reported"),
    [
        (Tiled, False),
        (TilesFirst, True),
    ],
)
def test_draws_are_checked_at_each_size(kind: type[Ended], reported: bool) -> None:
    network = kind()
    sampler = Sampler(network, posterior_of(network), draws=4, chunk=2)
    for columns in (64, 96, 64, 128):
        assert_maps_of_a_plain_loop(sampler, torch.rand(1, 3, 32, columns))
    assert any("96 x 32" in message for message in sampler.report.messages) is reported


@pytest.mark.parametrize("mask", [-1e9, torch.finfo(torch.float32).min])
def test_a_masked_class_does_not_make_other_differences_look_small(mask: float) -> None:
    logits = torch.zeros(1, 3, 2, 2)
    logits[:, 0] = mask
    logits[:, 1] = 8.0
    other = logits.clone()
    other[0, 1, 0, 0] = 6.0
    assert relative_difference(other, logits) == 2.0 / 8.0


class Adapting(Ended):
    """A network that takes the mean of each batch for the running mean of a layer."""

    def __init__(self) -> None:
        super().__init__(doubled_end)
        self.first = nn.BatchNorm2d(3)

    def forward(self, images: Tensor) -> Tensor:
        self.first.running_mean = images.mean((0, 2, 3))
        return super().forward(self.first(images))


def test_a_network_that_changes_its_normalisation_layers_in_each_pass_is_said() -> None:
    network = Adapting().eval()
    sampler = Sampler(network, posterior_of(network), draws=2)
    sampler(IMAGES)
    assert "without noise differs from the network itself" in " ".join(sampler.report.messages)


def test_random_numbers_of_the_network_are_named_as_such() -> None:
    network = Ended(lambda _, low: F.dropout(doubled(low), 0.5, training=True))
    sampler = Sampler(network, posterior_of(network), draws=2)
    sampler(QUIET)
    assert "random numbers" in " ".join(sampler.report.messages)
    assert "as a batch" not in " ".join(sampler.report.messages)


def doubled_end(_: Tensor, low: Tensor) -> Tensor:
    return doubled(low)


def softmax_end(_: Tensor, low: Tensor) -> Tensor:
    return (doubled(low) / 50).softmax(1)


def test_a_sampler_refuses_a_network_that_ends_in_a_softmax() -> None:
    with pytest.raises(InputError, match="softmax"):
        Sampler(Ended(softmax_end))(QUIET)


def test_a_sampler_refuses_a_network_that_ends_in_a_softmax_since_the_last_call() -> None:
    network = Ended(doubled_end)
    sampler = Sampler(network)
    sampler(QUIET)
    network.register_forward_hook(lambda _module, _images, logits: (logits / 50).softmax(1))
    with pytest.raises(InputError, match="softmax"):
        sampler(QUIET)


def test_a_sampler_refuses_more_classes_than_a_map_has_ids() -> None:
    with pytest.raises(InputError, match=r"returns 256 outputs.*enough for 255 classes"):
        Sampler(nn.Conv2d(3, 256, 1))(QUIET)


def test_training_refuses_a_network_that_ends_in_a_softmax() -> None:
    labels = torch.zeros(1, 32, 48, dtype=torch.long)
    with pytest.raises(InputError, match="softmax"):
        abnn_task(Ended(softmax_end)).loss(QUIET, labels, 0)


def test_a_log_softmax_at_the_end_is_said() -> None:
    sampler = Sampler(Ended(lambda _, low: doubled(low).log_softmax(1)))
    sampler(QUIET)
    assert "log-softmax" in " ".join(sampler.report.messages)


def test_logits_that_sum_to_1_at_one_frame_alone_are_no_softmax() -> None:
    network = Ended(lambda images, low: 0.25 + doubled(low) * (images.abs() > 1).any())
    Sampler(network)(QUIET)


OTHER_RANGES = pytest.mark.parametrize(
    ("images", "error", "reason"),
    [
        (255 * torch.rand(1, 3, 32, 48), InputError, "255"),
        (torch.randn(1, 3, 32, 48), InputError, "normalisation"),
        (torch.zeros(1, 3, 32, 48, dtype=torch.uint8), InputError, "255"),
        (torch.full((1, 3, 32, 48), torch.nan), NotFiniteError, "NaN"),
    ],
)


def of_the_package() -> SegmentationNetwork:
    description = NetworkDescription("own", "", tuple("abcd"))
    return SegmentationNetwork(Ended(), description, 2).eval()


@OTHER_RANGES
def test_a_sampler_refuses_images_of_another_range(
    images: Tensor, error: type[Exception], reason: str
) -> None:
    with pytest.raises(error, match=reason):
        Sampler(of_the_package())(images)


@OTHER_RANGES
def test_training_refuses_images_of_another_range(
    images: Tensor, error: type[Exception], reason: str
) -> None:
    labels = torch.zeros(1, 32, 48, dtype=torch.long)
    with pytest.raises(error, match=reason):
        abnn_task(of_the_package()).loss(images, labels, 0)


class Sampling(nn.Module):
    """Samples features whose memory is not contiguous at points, as deformable attention does."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv2d(3, 16, 3, padding=1)
        self.norm = nn.BatchNorm2d(16)
        self.head = nn.Conv2d(16, 4, 1)

    def forward(self, images: Tensor) -> Tensor:
        features = self.norm(self.first(images))
        height, width = features.shape[-2:]
        rows = torch.linspace(-0.9, 0.9, height)
        columns = torch.linspace(-0.9, 0.9, width)
        grid = torch.stack(torch.meshgrid(columns, rows, indexing="xy"), -1)
        points = grid.expand(len(images), -1, -1, -1).to(features.dtype)
        tokens = features.flatten(2).transpose(1, 2).contiguous()
        view = tokens.transpose(1, 2).view(features.shape)
        return self.head(F.grid_sample(view, points, align_corners=False))


def test_features_are_not_sampled_at_points_in_bfloat16() -> None:
    network = Sampling().eval()
    with torch.no_grad():
        expected = network(IMAGES).softmax(1)
    sampler = Sampler(network, draws=1, precision="bfloat16", scores=("entropy",))
    prediction = sampler(IMAGES, keep_probabilities=True)
    assert "grid_sample reads wrong memory in bfloat16" in " ".join(sampler.report.messages)
    assert prediction.probabilities is not None
    torch.testing.assert_close(prediction.probabilities, expected, rtol=0, atol=0.02)
