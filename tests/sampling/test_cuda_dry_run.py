"""What a GPU would be asked to do, without one: no tensor lies on the wrong device, and the host
waits where it is written here.
"""

import ast
import importlib.util
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from segunc.affine.convert import convert
from segunc.affine.draws import AffineLayout
from segunc.affine.posterior import Deterministic, Trainable
from segunc.baselines.anomaly import ScoreSum, Standard, Surprise
from segunc.baselines.class_sets import ClassSets
from segunc.baselines.density import FeatureDistances, Neighbours
from segunc.baselines.distil import StudentPosterior, make_head
from segunc.baselines.feature_extractor import FeatureExtractor
from segunc.baselines.mc_dropout import ChannelDropout, OwnDropout, convert_dropout
from segunc.baselines.mixtures import EnsemblePosterior, TestTimeAugmentation
from segunc.baselines.swag import SWAG, Point, Trajectory
from segunc.baselines.variational import MeanFieldTraining, Variational
from segunc.core.device import to_device
from segunc.frames.source import Frame
from segunc.networks import NetworkDescription, SegmentationNetwork
from segunc.posteriors.abnn import ABNN, ABNNPosterior, Members, reestimate
from segunc.processing import FrameMaps, FrameProcess
from segunc.sampling import Sampler, sampler as sampler_module
from segunc.sampling.branches import Branch
from segunc.sampling.sampler import Fitted
from segunc.sampling.shortcuts import Upsampling
from segunc.scores import SCORES
from segunc.training.affine_tuner import AffineTuner
from segunc.training.config import AffineTrainingConfig
from segunc.uncertainty import Calibrator
from tests.affine.networks import randomise
from tests.dry_run import CUDA, PACKAGE, Place, Waits, fake_gpu, on_gpu
from tests.support.sampled import random_frames

CLASSES = 4
SIZE = (40, 56)
FINITE = ("sampling/engine.py", "require_finite")
FRAME_LOOP: dict[Place, str] = {
    FINITE: (
        "one flag a frame, and one a network, right behind its first pass: the draws are queued "
        "behind it"
    )
}
"""Where the host waits for every frame, whatever is asked for."""
FIRST_USE: dict[Place, str] = {
    ("affine/draws.py", "AffineLayout._site_mask"): "the layout goes to the device",
    ("affine/draws.py", "AffineLayout._agreeing_sites"): "which sites all draws agree at",
    ("posteriors/abnn.py", "ABNNPosterior.affine"): "the draws go to the device",
    ("baselines/mc_dropout.py", "ChannelDropout.affine"): "the draws go to the device",
    ("uncertainty.py", "largest_logit"): "likewise",
    ("uncertainty.py", "relative_difference"): "likewise, once for each size of frames",
    (
        "networks/network.py",
        "softmax_output",
    ): "whether the network ends in a softmax, with the first frame",
    ("networks/network.py", "_kind_of"): "likewise, whether its outputs lie in 0..1",
    ("networks/copies.py", "frames_that_run"): "the frame that a copy is compared on goes there",
    ("sampling/engine.py", "check_common"): "likewise, of networks with parameters in common",
    ("sampling/engine.py", "_is_common"): "likewise: which buffers are the same",
    (
        "sampling/shortcuts.py",
        "InterpolationWatch.ending",
    ): "once for each size: whether the last upsampling made them",
}
"""Where it may wait once a run, or once for each size of frames."""
TRAINING: dict[Place, str] = {
    ("training/losses.py", "check_labels"): "a label that is no class would end the process",
    ("networks/network.py", "check_images"): "the range of the images, with the first batch",
    (
        "networks/network.py",
        "softmax_output",
    ): "whether the network ends in a softmax, with the first batch",
    ("networks/network.py", "_kind_of"): "likewise, whether its outputs lie in 0..1",
    ("training/losses.py", "segmentation_loss"): "a batch without a labelled pixel has no mean",
    (
        "training/affine_tuner.py",
        "AffineTuner.terms",
    ): "a loss that is not finite ends the training before it harms",
    (
        "posteriors/abnn.py",
        "ABNNPosterior.affine",
    ): "the noise of the step, made on the CPU: the same on every device",
    ("baselines/variational.py", "MeanField.affine"): "likewise",
    ("affine/posterior.py", "Prior.energy"): "which parameters lie in the scope",
    ("baselines/variational.py", "MeanField.__init__"): "whether a deviation is negative",
    (
        "baselines/variational.py",
        "MeanFieldTraining.regulariser",
    ): "how many parameters lie in the scope",
    ("baselines/swag.py", "Trajectory.after_step"): "whether this step's snapshot was taken",
}
"""Where it may wait in a step of a fine-tuning."""


class Body(nn.Module):
    """Batch norm, group norm, dropout; logits at a quarter of the size, upsampled at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(3, 8, 5, 4, 2),
            nn.BatchNorm2d(8),
            nn.ReLU(),
        )
        self.decoder = nn.Sequential(
            nn.Conv2d(8, 8, 3, padding=1),
            nn.GroupNorm(2, 8),
            nn.ReLU(),
            nn.Dropout(0.2),
        )
        self.head = nn.Conv2d(8, CLASSES, 1)

    def forward(self, images: Tensor) -> Tensor:
        maps = self.head(self.decoder(self.encoder(images)))
        return F.interpolate(maps, scale_factor=4, mode="bilinear", align_corners=True)


def network(seed: int = 0) -> SegmentationNetwork:
    torch.manual_seed(seed)
    made = SegmentationNetwork(Body(), NetworkDescription("own", "", tuple("abcd")), 4).eval()
    randomise(made)
    return made


def abnn(network: nn.Module, members: int = 2) -> ABNNPosterior:
    convert(network)
    return ABNNPosterior.around(AffineLayout(network), 0.3, members)


def everything(network: SegmentationNetwork) -> Fitted:
    """What is fitted on a model, as it lies on a GPU; the network goes there."""
    on_gpu(network)
    extractor = FeatureExtractor(network, ["body.encoder"], [1.0, 0.5])
    bank = Neighbours(on_gpu(torch.rand(20, 8)))
    density = FeatureDistances(extractor, [bank, bank])
    total = ScoreSum(
        parts=("entropy", "knn"),
        weights=(1.0, 2.0),
        scales=(Standard(0.5, 0.25), Standard(0.5, 0.25)),
        surprise=Surprise((0.0, 0.5, 1.0), 0.1),
        fitted_on={},
        frames=1,
        draws=4,
        temperature=1.0,
        base_sha256="",
        posterior_sha256=None,
        features_sha256=None,
    )
    sets = ClassSets(0.9, 0.1, 20, 0.05, 2.0, "", "", 6, 0, {}, "", None, 1.3, None)
    return Fitted(1.3, Calibrator(0.7), [density, total, sets])


@pytest.fixture(autouse=True)
def reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fake tensors run no kernel of Triton's: see below, and :mod:`tests.sampling.test_tail`."""
    monkeypatch.setattr(sampler_module, "choose_backend", lambda device: ("reference", ""))


WAITING = [
    "x.sum().item()",
    "torch.equal(x, x)",
    "x.cpu()",
    "torch.ones(3).to(x.device)",
    "torch.tensor([1.0], device=x.device)",
    "x.copy_(torch.ones(3))",
    "x[x > 0]",
    "x.index_put_((x > 0,), x)",
    "torch.linalg.inv(x.diag())",
    "to_device(x, torch.device('cpu'))",
]
"""Code for which the host waits once."""
QUEUED = [
    "x.index_put_((x > 0,), torch.tensor(0.0))",
    "x.to('cpu', non_blocking=True)",
    "to_device(torch.ones(3), x.device)",
]
"""Code for which it does not wait."""
REFUSED = [
    "x + torch.ones(3)",
    "torch.cat([x, torch.ones(3)])",
    "x.nonzero()",
    "x.numpy()",
]
"""Code at which the dry run ends with an error: two devices, or a size that only numbers give."""
MODES = pytest.mark.parametrize("inference", [False, True], ids=["with gradients", "inference"])


def run_planted(planted: str, waits: Waits) -> None:
    """Run this code as if it stood in the package."""
    code = compile(planted, str(PACKAGE / "planted.py"), "eval")
    names = {
        "torch": torch,
        "to_device": to_device,
        "x": torch.rand(3, device=CUDA),
    }
    waits.taken()
    eval(code, names)


@MODES
@pytest.mark.parametrize("planted", WAITING)
def test_a_planted_wait_is_found(planted: str, inference: bool) -> None:
    with fake_gpu() as waits, torch.inference_mode(inference):
        run_planted(planted, waits)
        assert len(waits.taken()) == 1


@MODES
@pytest.mark.parametrize("planted", QUEUED)
def test_what_is_queued_is_no_wait(planted: str, inference: bool) -> None:
    with fake_gpu() as waits, torch.inference_mode(inference):
        run_planted(planted, waits)
        assert not waits.taken()


@MODES
@pytest.mark.parametrize("planted", REFUSED)
def test_two_devices_and_unknown_sizes_end_the_dry_run(planted: str, inference: bool) -> None:
    with fake_gpu() as waits, torch.inference_mode(inference):
        with pytest.raises((RuntimeError, NotImplementedError)):
            run_planted(planted, waits)
        assert not waits.taken()


def waits_of_a_frame(process: FrameProcess, frame: Frame, waits: Waits) -> set[Place]:
    """Process a frame; return where the host waited before its maps are on their way."""
    with pytest.MonkeyPatch.context() as patch:
        # A fake tensor has no values.
        patch.setattr(torch.Tensor, "numpy", lambda tensor: tensor)
        coming = process(frame)
        places = set(waits.taken())
        assert callable(coming)  # what waits, in a writing thread
        maps = coming()
    assert isinstance(maps, FrameMaps)
    devices = {cast(Any, values).device.type for values in maps.values()}
    assert devices == {"cpu"}
    return places


def assert_waits(process: FrameProcess, waits: Waits) -> None:
    """The first frame may wait for what is done once, the second only where it is written."""
    first, second = random_frames(2, SIZE)
    places = waits_of_a_frame(process, first, waits)
    assert places <= {*FIRST_USE, *FRAME_LOOP}, places
    places = waits_of_a_frame(process, second, waits)
    assert places == {*FRAME_LOOP}, places


OF_PIXELS = [name for name in SCORES if name != "rba"]
"""Scores of a network that gives logits of pixels."""


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_every_score(precision: Any) -> None:
    own = network()
    posterior = abnn(own)
    with fake_gpu() as waits:
        sampler = Sampler(
            own,
            posterior,
            draws=6,
            scores=OF_PIXELS,
            precision=precision,
            fitted=everything(own),
        )
        process = FrameProcess(sampler, OF_PIXELS, size=(36, 48))
        waits.taken()
        assert_waits(process, waits)
    report = sampler.report
    assert report.batched
    assert report.shared
    assert report.upsampled
    assert report.messages == []


def own_dropout(own: SegmentationNetwork) -> OwnDropout:
    convert(own)
    return OwnDropout(convert_dropout(own))


def channel_dropout(own: SegmentationNetwork) -> ChannelDropout:
    convert(own)
    return ChannelDropout(AffineLayout(own).affine, 0.1)


def ensemble(own: SegmentationNetwork) -> EnsemblePosterior:
    other = network(1)
    return EnsemblePosterior([Branch(own, Deterministic()), Branch(other, Deterministic())])


def student(own: SegmentationNetwork) -> StudentPosterior:
    head = own.body.head
    return StudentPosterior(own, make_head(head, 8), head)


POSTERIORS: dict[str, Callable[[SegmentationNetwork], Any]] = {
    "deterministic": lambda own: None,
    "ensemble": ensemble,
    "student": student,
    "own dropout": own_dropout,
    "channel dropout": channel_dropout,
    "tta": lambda own: TestTimeAugmentation(abnn(own), (1.0, 0.75)),
}


@pytest.mark.parametrize("method", POSTERIORS)
def test_every_kind_of_posterior(method: str) -> None:
    own = network()
    posterior = POSTERIORS[method](own)
    with fake_gpu() as waits:
        on_gpu([own, *(part.network for part in getattr(posterior, "parts", ()))])
        sampler = Sampler(own, posterior, draws=4)
        assert_waits(FrameProcess(sampler, sampler.scores), waits)


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_what_the_triton_kernel_is_given_lies_on_the_device_and_is_queued(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from segunc.sampling import tail_triton

    arguments: list[Any] = []

    class Kernel:
        def __getitem__(self, grid: Any) -> Callable[..., None]:
            return lambda *args, **flags: arguments.extend(args)

    monkeypatch.setattr(tail_triton, "_add_draws", Kernel())
    with fake_gpu() as waits:
        tail_triton.add_draws_triton(
            torch.empty(3, CLASSES, 10, 14, device=CUDA, dtype=torch.bfloat16),
            Upsampling((10, 14), SIZE, SIZE, True),
            torch.zeros(SIZE, device=CUDA, dtype=torch.float64),
            torch.zeros(CLASSES, *SIZE, device=CUDA),
        )
        assert waits.taken() == {}
        tensors = [argument for argument in arguments if isinstance(argument, Tensor)]
        assert len(tensors) == 3 + 6
        for tensor in tensors:
            assert tensor.device == CUDA
        for tensor in tensors[1:]:
            assert tensor.is_contiguous()


ABNN_CONFIG = ABNN(members=2, random_classes=2)


def abnn_members(layout: AffineLayout) -> Trainable[Any]:
    return Members(layout, CLASSES, ABNN_CONFIG)


def trajectory(layout: AffineLayout) -> Trainable[Any]:
    return Trajectory(layout, SWAG(burn_in=0, collect_every=1))


def mean_field(layout: AffineLayout) -> Trainable[Any]:
    return MeanFieldTraining(layout, Variational())


TRAINED: dict[str, tuple[AffineTrainingConfig, Callable[[AffineLayout], Trainable[Any]]]] = {
    "abnn": (ABNN_CONFIG, abnn_members),
    "deterministic": (AffineTrainingConfig(), Point),
    "swag": (SWAG(), trajectory),
    "variational": (Variational(), mean_field),
}


@pytest.mark.parametrize("method", TRAINED)
def test_the_losses_of_a_training_step(method: str) -> None:
    """Forward: PyTorch asks the driver for the device's context before it goes backward."""
    config, make = TRAINED[method]
    tuner = AffineTuner(network(), CLASSES, make, config, class_weights=[1.0, 2.0, 3.0, 4.0])
    with fake_gpu() as waits:
        on_gpu(tuner)
        images = torch.rand(2, 3, *SIZE, device=CUDA)
        labels = torch.zeros(2, *SIZE, device=CUDA, dtype=torch.uint8)
        for step in range(2):
            waits.taken()
            loss = tuner.loss(images, labels, step)
            assert loss.is_cuda
            assert loss.requires_grad
            tuner.trained.after_step(tuner.layout, step + 1)
        places = set(waits.taken())
        assert places <= set(TRAINING), places


REESTIMATION: set[Place] = {
    ("affine/draws.py", "AffineLayout._site_mask"),
    ("posteriors/abnn.py", "ABNNPosterior.affine"),
}
"""Where it may wait while statistics are estimated again."""
COPY_CHECK: set[Place] = {
    ("networks/copies.py", "frames_that_run"),
    ("uncertainty.py", "largest_logit"),
    ("uncertainty.py", "relative_difference"),
}
"""Where it may wait while a copy is compared with its network."""


def test_statistics_are_estimated_again() -> None:
    own = network()
    posterior = abnn(own)
    with fake_gpu() as waits:
        on_gpu(own)
        AffineLayout(own)
        waits.taken()
        batches = (torch.rand(2, 3, *SIZE, device=CUDA) for _ in range(2))
        rescale, reshift = reestimate(own, posterior, 1, batches)
        assert rescale.device == CUDA
        assert reshift.device == CUDA
        assert set(waits.taken()) <= REESTIMATION | COPY_CHECK


def definition(tree: ast.AST, name: str) -> ast.AST:
    """Return the only definition of this name."""
    (found,) = [node for node in ast.walk(tree) if getattr(node, "name", None) == name]
    return found


def test_places_that_are_written_down_are_there() -> None:
    for file, name in {*FRAME_LOOP, *FIRST_USE, *TRAINING}:
        node: ast.AST = ast.parse((PACKAGE / file).read_text(encoding="utf-8"))
        for part in name.split("."):
            node = definition(node, part)
