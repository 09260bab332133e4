"""Samplers between the epochs of somebody's training: modes, changed weights, threads, and what a
Python user is told."""

import copy
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import segunc
from segunc.affine.convert import convert
from segunc.affine.draws import AffineLayout
from segunc.affine.posterior import Deterministic
from segunc.baselines.feature_extractor import FeatureExtractor
from segunc.baselines.mixtures import EnsemblePosterior
from segunc.core.errors import InputError, NoteWarning, NotFiniteError
from segunc.options import SamplingOptions
from segunc.posteriors.abnn import ABNNPosterior
from segunc.posteriors.model import Model
from segunc.sampling import Sampler
from segunc.sampling.branches import Branch
from segunc.sampling.sampler import Fitted
from segunc.verbs.execution import make_sampler
from tests.affine.networks import randomise
from tests.sampling.plain import assert_maps_of_a_plain_loop

IMAGES = torch.rand(1, 3, 32, 48, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    """A batch norm and a dropout, both of which training mode changes."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.encoder = nn.Sequential(
            nn.Conv2d(3, 8, 3, 2, 1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
        )
        self.drop = nn.Dropout(0.5)
        self.head = nn.Conv2d(8, 4, 1)
        randomise(self.eval())

    def forward(self, images: Tensor) -> Tensor:
        features = self.drop(self.encoder(images))
        low = self.head(features)
        return F.interpolate(low, images.shape[-2:], mode="bilinear", align_corners=False)


def around(network: nn.Module, alpha: float = 0.3) -> ABNNPosterior:
    convert(network)
    return ABNNPosterior.around(AffineLayout(network), alpha)


def deterministic() -> Sampler:
    return Sampler(Net())


def drawn(**settings: Any) -> Sampler:
    network = Net()
    return Sampler(network, around(network), draws=4, chunk=2, **settings)


def ensemble() -> Sampler:
    first = Net()
    second = Net(1)
    branches = [Branch(first, Deterministic()), Branch(second, Deterministic())]
    return Sampler(first, EnsemblePosterior(branches))


KINDS: dict[str, Callable[[], Sampler]] = {
    "deterministic": deterministic,
    "drawn": drawn,
    "in bfloat16": lambda: drawn(precision="bfloat16"),
    "ensemble": ensemble,
}


def networks_of(sampler: Sampler) -> list[nn.Module]:
    return [branch.network for branch in sampler._branches]


@dataclass
class TrainingCall:
    """A call of a sampler whose networks are in training mode.

    Args:
        networks: These networks.
        before: Their states before the call.
        scores: What the call returned.
        expected: What a call in eval mode returns.
    """

    networks: list[nn.Module]
    before: list[dict[str, Tensor]]
    scores: Mapping[str, Tensor]
    expected: Mapping[str, Tensor]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["eval", "train"])
def training_call(kind: str, request: pytest.FixtureRequest) -> TrainingCall:
    """The call comes first, or after one in eval mode."""
    expected = KINDS[kind]()(IMAGES).scores
    sampler = KINDS[kind]()
    if request.param == "eval":
        sampler(IMAGES)
    networks = networks_of(sampler)
    for network in networks:
        network.train()
    before = [copy.deepcopy(network.state_dict()) for network in networks]
    return TrainingCall(networks, before, sampler(IMAGES).scores, expected)


def test_a_call_in_training_mode_gives_the_maps_of_eval_mode(training_call: TrainingCall) -> None:
    for name, values in training_call.expected.items():
        assert torch.equal(training_call.scores[name], values), name


def test_a_call_in_training_mode_changes_no_network(training_call: TrainingCall) -> None:
    for network, before in zip(training_call.networks, training_call.before, strict=True):
        for name, value in network.state_dict().items():
            assert torch.equal(value, before[name]), name


def test_a_call_in_training_mode_leaves_that_mode(training_call: TrainingCall) -> None:
    for network in training_call.networks:
        for module in network.modules():
            assert module.training


def test_modules_get_their_own_modes_back() -> None:
    sampler = drawn()
    sampler.network.train()
    sampler.network.get_submodule("encoder.1").eval()  # frozen statistics, as in many fine-tunings
    before = [module.training for module in sampler.network.modules()]
    sampler(IMAGES)
    assert [module.training for module in sampler.network.modules()] == before
    assert before.count(False) == 1


def test_modes_come_back_after_an_error() -> None:
    sampler = drawn()
    sampler.network.train()
    with pytest.raises(RuntimeError):
        sampler(IMAGES[:, :2])
    assert all(module.training for module in sampler.network.modules())


def test_a_sampler_goes_on_after_an_error() -> None:
    sampler = drawn()
    sampler.network.train()
    for _ in range(2):
        with pytest.raises(RuntimeError):
            sampler(IMAGES[:, :2])
        sampler(IMAGES)
    assert sampler.report.messages == []


class Merging(nn.Conv2d):
    """Adds its adapter to the weight in eval mode and takes it away in training mode, as layers of
    low-rank adapters do."""

    merged = False

    def train(self, mode: bool = True) -> "Merging":
        if self.merged == mode:
            with torch.no_grad():
                self.weight += -1.0 if mode else 1.0
            self.merged = not mode
        super().train(mode)
        return self


def test_a_module_with_a_mode_of_its_own_is_asked_to_change_back() -> None:
    network = nn.Sequential(Merging(3, 4, 1)).train()
    before = network[0].weight.clone()
    with torch.no_grad():
        expected = F.conv2d(IMAGES, before + 1.0, network[0].bias).softmax(1)
    found = Sampler(network)(IMAGES, keep_probabilities=True).probabilities
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(network[0].weight, before)
    assert network[0].training


def test_an_extractor_of_a_provider_runs_in_eval_mode() -> None:
    class Provided:
        gives = frozenset({"feature distance"})

        def __init__(self, network: nn.Module) -> None:
            self.extractor = FeatureExtractor(network, ["encoder"])
            self.modes: list[bool] = []

        def __call__(self, images: Tensor, needs: Any, *_: Any) -> dict[str, Tensor]:
            self.modes.append(self.extractor.network.training)
            return {name: images.mean(1) for name in needs}

    other = Net(1)
    provider = Provided(other)
    other.train()
    sampler = Sampler(Net(), scores=["knn"], fitted=Fitted(providers=[provider]))
    sampler(IMAGES)
    assert provider.modes == [False]
    assert other.training


class AlwaysTraining(nn.Dropout):
    def train(self, mode: bool = True) -> "AlwaysTraining":
        super().train(True)
        return self


class FunctionalDropout(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x, 0.5, training=True)


class SwitchedInForward(nn.Dropout):
    def forward(self, x: Tensor) -> Tensor:
        self.training = True
        return super().forward(x)


@pytest.mark.parametrize(
    ("layer", "said"),
    [
        (AlwaysTraining(0.5), "1 modules stay in training mode.*drop"),
        (FunctionalDropout(), "computes as in training.*FunctionalDropout, aten.dropout"),
        (SwitchedInForward(0.5), "computes as in training.*SwitchedInForward, aten.dropout"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_stays_in_training_mode_is_a_warning(layer: nn.Module, said: str) -> None:
    network = Net()
    network.drop = layer  # type: ignore[assignment]
    network.train()
    with pytest.warns(NoteWarning, match=said):
        Sampler(network)(IMAGES)


def test_what_a_norm_does_in_eval_mode_is_no_warning() -> None:
    network = nn.Sequential(
        nn.Conv2d(3, 4, 1),
        nn.InstanceNorm2d(4),
        nn.Dropout(0.5),
    )
    sampler = Sampler(network.eval())
    sampler(IMAGES)
    assert sampler.report.messages == []


NAMES = ("a", "b", "c", "d")


def random_frame(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (32, 48, 3), np.uint8)


FRAMES = [random_frame(0), random_frame(1)]


def unreached() -> Model:
    network = Net()
    network.add_module("unused", nn.BatchNorm2d(4))
    return segunc.ABNN(alpha=0.1).fit(segunc.wrap(network, NAMES))


NEVER_CALLED = "1 normalisation layer is never called.*unused"


def test_a_note_of_the_sampler_is_a_warning_at_the_line_of_the_caller() -> None:
    model = unreached()
    with pytest.warns(NoteWarning, match=NEVER_CALLED) as notes:
        model(FRAMES[0], draws=2)
    files = [note.filename for note in notes if "unused" in str(note.message)]
    assert files == [__file__]


def test_a_note_of_the_sampler_is_a_warning_of_the_model_once() -> None:
    model = unreached()
    with pytest.warns(NoteWarning, match=NEVER_CALLED):
        model(FRAMES[0], draws=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model(FRAMES[1], draws=2)
        model(FRAMES[1], draws=3)  # by another sampler


def test_verbs_show_notes_themselves() -> None:
    model = unreached()
    sampler = make_sampler(model, SamplingOptions(draws=2, device="cpu", precision="float32"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sampler(IMAGES)
    assert any("never called" in message for message in sampler.report.messages)


def change_weights(sampler: Sampler) -> None:
    for network in networks_of(sampler):
        with torch.no_grad():
            network.get_parameter("head.weight").mul_(2.0)
            network.get_buffer("encoder.1.running_mean").add_(0.5)


def test_weights_that_change_between_two_calls_count(kind: str) -> None:
    sampler = KINDS[kind]()
    before = sampler(IMAGES).scores["entropy"]
    change_weights(sampler)
    fresh = Sampler(
        sampler.network,
        sampler.posterior,
        draws=4,
        chunk=2,
        precision=sampler.precision,
    )
    expected = fresh(IMAGES).scores["entropy"]
    found = sampler(IMAGES).scores["entropy"]
    assert torch.equal(found, expected)
    assert not torch.allclose(found, before, atol=1e-3)


def test_changed_weights_are_said_of_a_posterior_around_them(kind: str) -> None:
    sampler = KINDS[kind]()
    sampler(IMAGES)
    change_weights(sampler)
    sampler(IMAGES)
    reported = any("has changed" in message for message in sampler.report.messages)
    assert reported is isinstance(sampler.posterior, ABNNPosterior)


class Coded(nn.Module):
    """A network whose code has settings of several kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3, padding=1)
        self.head = nn.Conv2d(4, 3, 3, padding=1)
        self.factors = (2.0, 1.0)
        self.activation: Callable[[Tensor], Tensor] = torch.relu

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.activation(self.first(images)) * self.factors[0])
        return logits


def change_factors(network: Coded) -> None:
    network.factors = (0.1, 1.0)


def change_function(network: Coded) -> None:
    network.activation = torch.tanh


def change_dilation(network: Coded) -> None:
    network.head.dilation = (2, 2)
    network.head.padding = (2, 2)


@pytest.mark.parametrize("change", [change_factors, change_function, change_dilation])
def test_settings_that_change_count_in_a_copy(change: Callable[[Coded], None]) -> None:
    network = Coded()
    sampler = Sampler(network, precision="bfloat16")  # which runs a copy
    before = sampler(IMAGES).scores["entropy"]
    change(network)
    expected = Sampler(network, precision="bfloat16")(IMAGES).scores["entropy"]
    assert torch.equal(sampler(IMAGES).scores["entropy"], expected)
    assert not torch.allclose(before, expected, atol=1e-3)


def in_two_threads(model: Model, frames: list[np.ndarray]) -> list[np.ndarray]:
    """Return the entropy of each frame."""
    with ThreadPoolExecutor(2) as pool:
        calls = [pool.submit(model, frame, draws=4) for frame in frames]
        return [call.result().entropy for call in calls]


def test_two_threads_get_the_maps_of_one() -> None:
    model = segunc.ABNN(alpha=0.3).fit(segunc.wrap(Net(), NAMES))
    expected = [model(frame, draws=4).entropy for frame in FRAMES]
    model.network.train()
    found = in_two_threads(model, 6 * FRAMES)
    for entropy, expected_entropy in zip(found, 6 * expected, strict=True):
        np.testing.assert_array_equal(entropy, expected_entropy)


def test_two_threads_leave_training_mode() -> None:
    model = segunc.ABNN(alpha=0.3).fit(segunc.wrap(Net(), NAMES))
    model.network.train()
    in_two_threads(model, 6 * FRAMES)
    assert model.network.training


class Overflowing(ABNNPosterior):
    """Its draw 5 has infinite gammas."""

    def affine(self, layout: AffineLayout, draws: Any, seed: Any, scope: Any = None) -> Any:
        made = super().affine(layout, draws, seed, scope)
        for row, draw in enumerate(draws):
            if draw == 5:
                made.weight[row] = torch.inf
        return made


@pytest.mark.parametrize("chunk", [1, 2, 8])
@pytest.mark.parametrize("backend", ["native", "reference"])
def test_a_later_draw_that_overflows_is_an_error(
    chunk: int, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("segunc.sampling.sampler.choose_backend", lambda device: (backend, ""))
    network = Net()
    convert(network)
    layout = AffineLayout(network)
    posterior = Overflowing(layout.weight[None], layout.bias[None], 0.1)
    sampler = Sampler(network, posterior, draws=8, chunk=chunk)
    with pytest.raises(NotFiniteError, match="a draw gives NaN or infinite logits"):
        sampler(IMAGES)
    before_it = Sampler(network, posterior, draws=5, chunk=chunk)
    assert_maps_of_a_plain_loop(before_it, IMAGES)


@contextmanager
def default_type(dtype: torch.dtype) -> Iterator[None]:
    """Let tensors whose type nobody says have another one, as an imported program may ask for."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def test_a_default_type_of_torch_changes_no_map() -> None:
    # A size of its own, because positions of an upsampling are kept by size.
    images = IMAGES[..., :30, :42]
    network = Net()
    with torch.no_grad():
        expected = network(images).softmax(1)
    with default_type(torch.float64):
        sampler = Sampler(network)
        found = sampler(images, keep_probabilities=True).probabilities
    torch.testing.assert_close(found, expected)


def test_draws_do_not_depend_on_the_default_type_of_torch() -> None:
    expected = drawn()(IMAGES).scores
    sampler = drawn()
    with default_type(torch.float64):
        found = sampler(IMAGES).scores
    for name, values in expected.items():
        torch.testing.assert_close(found[name], values)


@pytest.mark.parametrize("default", [torch.float32, torch.float64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_network_is_wrapped_in_the_type_of_its_parameters(
    default: torch.dtype, dtype: torch.dtype
) -> None:
    network = Net().to(dtype)
    images = torch.from_numpy(FRAMES[0]).permute(2, 0, 1)[None].to(dtype) / 255
    with torch.no_grad():
        probabilities = network(images).double().softmax(1)
    expected = 1.0 - probabilities.amax(1)[0]
    with default_type(default):
        model = segunc.wrap(network, NAMES, mean=(0, 0, 0), std=(1, 1, 1))
        found = model(FRAMES[0], scores=("msp",)).msp
    torch.testing.assert_close(torch.from_numpy(found).double(), expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_model_whose_parameters_become_16_bits_is_refused(dtype: torch.dtype) -> None:
    model = segunc.wrap(Net(), NAMES)
    model(FRAMES[0])
    model.network.to(dtype)
    with pytest.raises(InputError, match=r"parameters of SegmentationNetwork are b?float16"):
        model(FRAMES[0])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_network_of_16_bits_is_not_wrapped(dtype: torch.dtype) -> None:
    network = Net().to(dtype)
    with pytest.raises(InputError, match=r"parameters of Net are b?float16"):
        segunc.wrap(network, NAMES)


def add_hook(network: Net) -> None:
    network.register_forward_hook(lambda module, inputs, output: 3.0 * output)


def add_hook_before(network: Net) -> None:
    network.head.register_forward_pre_hook(lambda module, inputs: (3.0 * inputs[0],))


def replace_forward(network: Net) -> None:
    forward = network.forward
    network.forward = lambda images: 3.0 * forward(images)  # type: ignore[method-assign]


def replace_data(network: Net) -> None:
    for parameter in network.head.parameters():
        parameter.data = 3.0 * parameter.data


def set_attribute(network: Net) -> None:
    network.factor = 3.0


class Scaled(Net):
    factor = 1.0

    def forward(self, images: Tensor) -> Tensor:
        logits = super().forward(images)
        return logits if self.factor == 1.0 else self.factor * logits


CHANGES: list[Callable[[Net], None]] = [
    add_hook,
    add_hook_before,
    replace_forward,
    replace_data,
    set_attribute,
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_code_that_changes_between_two_calls_counts(change: Callable[[Net], None]) -> None:
    network = Scaled()
    sampler = Sampler(network)
    before = sampler(IMAGES, keep_probabilities=True).probabilities
    change(network)
    with torch.no_grad():
        expected = network(IMAGES).softmax(1)
    found = sampler(IMAGES, keep_probabilities=True).probabilities
    torch.testing.assert_close(found, expected)
    assert before is not None
    assert not torch.allclose(before, expected, atol=1e-3)


def test_a_copy_of_a_model_does_not_take_itself_for_a_changed_one() -> None:
    model = segunc.ABNN(alpha=0.1).fit(segunc.wrap(Net(), NAMES))
    expected = model(FRAMES[0], draws=2).entropy
    copied = copy.deepcopy(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = copied(FRAMES[0], draws=2).entropy
    np.testing.assert_array_equal(found, expected)
