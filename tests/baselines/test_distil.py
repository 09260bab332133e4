"""Students: one pass, the draws z + d and z - d, what is trained, what is refused."""

import copy
import gc
import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from segunc.affine.convert import ORIGIN
from segunc.affine.posterior import Deterministic
from segunc.baselines.distil import (
    DistilConfig,
    Learner,
    Lesson,
    LogitLayer,
    Student,
    distillation_loss,
)
from segunc.baselines.mixtures import Ensemble
from segunc.core.errors import InputError
from segunc.data.labels import label_map
from segunc.networks import NetworkDescription, build_network, load_network, save_network
from segunc.networks.network import SegmentationNetwork
from segunc.options import DoctorOptions, FinetuneOptions
from segunc.posteriors.model import load_model
from segunc.sampling import Sampler
from segunc.sampling.branches import Branch
from segunc.sampling.engine import own_tensors
from segunc.sampling.shortcuts import Prefix
from segunc.uncertainty import energy, entropy_share, entropy_share_of_logits
from segunc.verbs.doctor import doctor
from segunc.verbs.training import finetune

TOY = label_map("toy")
SCORES = ("epistemic", "entropy", "aleatoric", "mean-energy", "deterministic-energy")


def network(seed: int) -> SegmentationNetwork:
    torch.manual_seed(seed)
    options = {"decoder_channels": 16, "decoder_atrous_rates": [2, 3, 4]}
    return build_network(
        NetworkDescription("DeepLabV3Plus", "mobilenet_v2", TOY.classes, TOY.palette, options)
    ).eval()


def flops(work: Any) -> int:
    with FlopCounterMode(display=False) as counter, torch.inference_mode():
        work()
    return int(counter.get_total_flops())


def frames(height: int, width: int, count: int = 1) -> Tensor:
    return torch.rand(count, 3, height, width, generator=torch.Generator().manual_seed(height))


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_networks_that_share_their_encoder_run_it_once_a_frame(precision: Any) -> None:
    """Another decoder on the very encoder of the first network, beside two networks with nothing in
    common.
    """
    base, other = network(0), network(1)
    encoder: Any = base.body.encoder
    shared = [base, copy.deepcopy(base, {id(module): module for module in encoder.modules()})]
    state = other.body.state_dict() | {
        f"encoder.{name}": tensor for name, tensor in encoder.state_dict().items()
    }
    shared[1].body.load_state_dict(state)
    both = (shared, [copy.deepcopy(part) for part in shared])
    samplers = [
        Sampler(
            parts[0],
            Ensemble([Branch(part, Deterministic()) for part in parts]),
            precision=precision,
        )
        for parts in both
    ]
    # Several frames, another size between, and other frames of the same size.
    for images in (
        frames(64, 96, 2),
        frames(96, 64),
        frames(50, 70),
        frames(64, 96, 2).flip(0, -1),
    ):
        made, expected = (sampler(images, keep_probabilities=True) for sampler in samplers)
        assert torch.equal(made.probabilities, expected.probabilities)  # type: ignore[arg-type]
        assert float(made.scores["epistemic"].mean()) > 1e-6
    one, common = flops(lambda: base(images)), flops(lambda: encoder(images))
    assert [flops(lambda run=run: run(images)) for run in samplers] == [2 * one - common, 2 * one]
    gc.collect()
    assert not [held for held in gc.get_objects() if type(held) is Prefix], (
        "features go with their frame"
    )
    assert not any(hasattr(tensor, ORIGIN) for part in shared for tensor in part.parameters())
    assert (names := own_tensors(shared))
    assert not any("encoder" in name or name in ("mean", "std") for name in names)
    assert own_tensors([base, other]) == frozenset()
    if precision == "bfloat16":
        copies = {id(engine._run.body.encoder) for engine in samplers[0]._engines.values()}  # type: ignore[union-attr]
        assert len(copies) == 1, "one copy of the encoder"


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_student_is_two_draws_in_one_pass(precision: Any) -> None:
    learner = Learner(network(0), DistilConfig(head_channels=8))
    base = copy.deepcopy(learner.network)
    student = Student(learner.network, learner.head, learner.logit_layer.module)
    sampler = Sampler(student.network, student, scores=SCORES, precision=precision)
    close = partial(
        torch.testing.assert_close, atol=1e-4 if precision == "float32" else 0.1, rtol=0
    )
    for images in (frames(64, 96, 2), frames(50, 70), frames(64, 96, 2).flip(0, -1)):
        made = sampler(images, keep_probabilities=True)
        with torch.inference_mode():
            plus, minus = learner.logits(images).chunk(2)
            mean = (plus.softmax(1) + minus.softmax(1)) / 2
            expected = (entropy_share_of_logits(plus) + entropy_share_of_logits(minus)) / 2
        close(made.scores["deterministic-energy"], energy(plus))
        close(made.probabilities, mean)
        close(made.scores["epistemic"], entropy_share(mean) - expected)
        close(made.scores["mean-energy"], (energy(plus) + energy(minus)) / 2)
        assert float(made.scores["epistemic"].mean()) > 1e-6
    head = flops(lambda: learner.head(torch.zeros(2, 16, 16, 24)))
    assert 0 < head == flops(lambda: sampler(images)) - flops(lambda: base(images)), (
        "one pass and the head"
    )


def test_the_loss_is_nothing_for_the_teacher_itself_and_crops_keep_pixels_in_place() -> None:
    """Two draws of (.9, .1) and (.5, .5): a mean of (.7, .3), .6109 - (.3251 + .6931) / 2 = .1018
    nats of epistemic, energies of 0.
    """
    draws = torch.tensor([[0.9, 0.1], [0.5, 0.5]]).log()[:, :, None, None].expand(2, 2, 96, 128)
    image: Any = np.arange(96 * 128).reshape(96, 128, 1).repeat(3, 2)
    numbers = torch.from_numpy(image[3::4, 1::4, 0])
    means, zero = torch.tensor([0.7, 0.3])[:, None, None].expand(2, 24, 32), torch.zeros(24, 32)
    settings = DistilConfig(epistemic_weight=1.0, energy_weight=0.5)
    parts = distillation_loss(draws, Lesson(image, (3, 1), means, zero + 0.10175, zero), settings)
    assert all(abs(float(part)) < 1e-3 for part in parts.values())
    parts = distillation_loss(
        draws, Lesson(image, (3, 1), means, zero + 0.10175 * math.e, zero + 3), settings
    )
    assert (float(parts["epistemic"]), float(parts["energy"])) == pytest.approx(
        (0.5, 0.5 * 2.5), abs=1e-2
    )
    random, lesson = np.random.default_rng(0), Lesson(image, (3, 1), means, zero, numbers)
    for share, shape in (*[(0.7, (68, 88))] * 20, (1.0, (96, 128))):
        part = lesson.part(share, random)
        assert part.image.shape[:2] == shape
        assert np.array_equal(part.image[3::4, 1::4, 0], part.energy.numpy())


@pytest.fixture(scope="module")
def made(toy_set: Path, tmp_path_factory: pytest.TempPathFactory) -> FinetuneOptions:
    """The options of a small run; ``base`` and ``teacher`` lie beside its student."""
    folder = tmp_path_factory.mktemp("distil")
    save_network(network(0), folder / "base")
    finetune(FinetuneOptions(base=folder / "base", out=folder / "teacher", method="tta"))
    small = {"frames": 4, "epochs": 2, "head_channels": 8, "corruptions": ["noise:2", "fog:3"]}
    settings = {
        "data.dataset": "toy",
        "data.root": str(toy_set),
        **{f"distil.{k}": v for k, v in small.items()},
    }
    paths = {"base": folder / "teacher", "out": folder / "student"}
    options = FinetuneOptions(**paths, method="distil", device="cpu", settings=settings)
    finetune(options)
    return options


def test_a_student_is_trained_stored_and_read_by_the_verbs(
    made: FinetuneOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = Path(made.out)
    model, base = load_model(out), load_network(out.parent / "base").body
    assert (model.posterior.method, model.posterior.members) == ("distil", 2)
    made_of = model.record["provenance"]
    assert (made_of["teacher"], made_of["frames"], made_of["settings"]["corruptions"][1]) == (
        "tta",
        8,
        "fog:3",
    )
    trained, before = load_network(out, ignore_posterior=True).body.state_dict(), base.state_dict()
    changed = {name for name, tensor in trained.items() if not torch.equal(tensor, before[name])}
    norms = {name for name, module in base.named_modules() if isinstance(module, nn.BatchNorm2d)}
    assert (last := {"segmentation_head.0.weight", "segmentation_head.0.bias"}) <= changed
    assert all(
        name.rpartition(".")[0] in norms and "running" not in name for name in changed - last
    )
    maps = model(np.full((64, 96, 3), 99, np.uint8), scores=SCORES)
    assert 0 < maps.epistemic.mean() < maps.entropy.mean()
    monkeypatch.setattr(torch, "compile", None)
    checked = doctor(DoctorOptions(model=out, size=(64, 96), device="cpu", compile=True))
    assert (checked.failure, ["could not be compiled" in note for note in checked.notes]) == (
        "",
        [True],
    )
    finetune(replace(made, out=tmp_path / "again"))
    assert (tmp_path / "again" / "posterior.safetensors").read_bytes() == (
        out / "posterior.safetensors"
    ).read_bytes()


def test_training_on_frames_without_labels_brings_the_student_nearer(
    made: FinetuneOptions, tmp_path: Path
) -> None:
    (tmp_path / "images").mkdir()
    for number in range(3):
        frame = np.random.default_rng(number).integers(0, 256, (16, 24, 3), np.uint8)
        cv2.imwrite(str(tmp_path / "images" / f"{number}.png"), cv2.resize(frame, (96, 64)))
    save_network(network(1), tmp_path / "start")
    losses = []
    for epochs in (1, 12):
        paths = {"distil.input": str(tmp_path / "images"), "distil.start": str(tmp_path / "start")}
        settings = {**paths, "distil.epochs": epochs, "distil.batch_size": 4, "distil.lr": 0.01}
        finetune(replace(made, out=tmp_path / f"{epochs}", settings=settings))
        made_of = load_model(tmp_path / f"{epochs}").record["provenance"]
        assert (made_of["dataset"], made_of["frames"]) == (None, 6)
        losses.append(made_of["loss"])
    assert all(
        losses[1][part] < 0.7 * losses[0][part] for part in ("divergence", "epistemic", "energy")
    )


def test_what_cannot_be_a_student_is_one_sentence(
    made: FinetuneOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, settings, augmented = tmp_path / "out", dict(made.settings), tmp_path / "augmented"  # type: ignore[call-overload]
    (tmp_path / "empty").mkdir()
    turned = network(1)
    turned.description = replace(turned.description, classes=turned.description.classes[::-1])
    save_network(turned, tmp_path / "classes")
    finetune(FinetuneOptions(base=made.out, out=augmented, method="tta"))

    def refused(said: str, more: dict[str, Any], **changed: Any) -> None:
        with pytest.raises(InputError, match=said):
            finetune(replace(made, **{"out": out, **changed}, settings={**settings, **more}))
        assert not out.exists()

    refused("is the teacher", {}, out=made.base)
    refused("is a student, which cannot be a teacher", {}, base=made.out)
    refused("is a student, which cannot be a teacher", {}, base=augmented)
    refused("has the classes", {"distil.start": str(tmp_path / "classes")})
    refused("holds no image", {"distil.input": str(tmp_path / "empty")})
    refused("corruption 'rain'", {"distil.corruptions": ["rain:3"]})

    whole = SegmentationNetwork.forward  # LogitLayer looks at it with 64 x 64 pixels
    monkeypatch.setattr(
        SegmentationNetwork,
        "forward",
        lambda net, x: whole(net, x if x.shape[-1] == 64 else x.view(7)),
    )
    refused("the teacher takes no frames of 128 x 64 pixels", {})

    def full(*_: Any, **__: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("segunc.baselines.distil.Sampler.__call__", full)
    with pytest.raises(torch.OutOfMemoryError):  # which the command line calls what it is
        finetune(replace(made, out=out))


class TwoHeads(nn.Module):
    """Calls an auxiliary head after its main one; ``joined`` also adds it to the logits,
    stacked.
    """

    def __init__(self, classes: int, *, joined: bool = False) -> None:
        super().__init__()
        self.main = nn.Conv2d(3, classes, 1)
        self.auxiliary = nn.Conv2d(3, classes, 1)
        self.joined = joined

    def forward(self, images: Tensor) -> Tensor:
        logits = self.main(images)
        auxiliary = self.auxiliary(images)
        return torch.stack([logits, auxiliary]).mean(0) if self.joined else logits


def of_two_heads(*, dropped: tuple[int, ...] = (), joined: bool = False) -> SegmentationNetwork:
    torch.manual_seed(0)
    description = NetworkDescription("two", "", ("a", "b", "c"), dropped_outputs=dropped)
    body = TwoHeads(3 + len(dropped), joined=joined)
    return SegmentationNetwork(body, description, stride=1).eval()


def test_an_auxiliary_head_that_is_called_last_makes_no_logits() -> None:
    made = of_two_heads()
    assert LogitLayer(made).module is made.body.main


def test_logits_that_two_heads_make_are_refused() -> None:
    with pytest.raises(InputError, match="does more with its logits"):
        LogitLayer(of_two_heads(joined=True))


def test_a_student_of_a_network_with_dropped_outputs() -> None:
    """Its draws are z + d and z - d of the outputs that are kept."""
    learner = Learner(of_two_heads(dropped=(1,)), DistilConfig(head_channels=8))
    student = Student(learner.network, learner.head, learner.logit_layer.module)
    images = frames(16, 24)
    with torch.no_grad():
        logits = learner.network(images)
        difference = learner.head(
            (images - learner.network.mean) / learner.network.std  # which the heads see
        )[:, [0, 2, 3]]
        mean = ((logits + difference).softmax(1) + (logits - difference).softmax(1)) / 2
    made = Sampler(student.network, student, scores=SCORES)(images, keep_probabilities=True)
    torch.testing.assert_close(made.probabilities, mean, atol=1e-5, rtol=0)


def test_network_and_head_learn_where_their_rates_are_equal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("segunc.baselines.distil.HEAD_RATE", 1.0)
    learner = Learner(of_two_heads(), DistilConfig(head_channels=8, epochs=1))
    before = [p.detach().clone() for p in (learner.parameters[0], learner.head[0].weight)]
    image = np.full((16, 16, 3), 128, np.uint8)
    maps = torch.full((4, 4), 0.5)
    learner.train([Lesson(image, (0, 0), torch.full((3, 4, 4), 1 / 3).half(), maps, maps)])
    assert not torch.equal(learner.parameters[0], before[0])
    assert not torch.equal(learner.head[0].weight, before[1])


class OneOutput(nn.Module):
    """A convolution, BatchNorm and a last layer that makes one output z."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.ReLU())
        self.last = nn.Conv2d(4, 1, 1)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.last(self.features(images))
        return logits


def of_one_output() -> SegmentationNetwork:
    torch.manual_seed(0)
    description = NetworkDescription("one", "", ("background", "road"), binary=True)
    return SegmentationNetwork(OneOutput(), description, stride=1).eval()


def test_a_student_of_a_network_of_one_output() -> None:
    """Its draws are (0, z + d) and (0, z - d), so the probability of the road is a mean of
    sigmoids."""
    learner = Learner(of_one_output(), DistilConfig(head_channels=8))
    student = Student(learner.network, learner.head, learner.logit_layer.module)
    images = frames(16, 24)
    with torch.no_grad():
        body: Any = learner.network.body
        features = body.features((images - learner.network.mean) / learner.network.std)
        logit = body.last(features).double()
        difference = learner.head(features).double()
        road = ((logit + difference).sigmoid() + (logit - difference).sigmoid()) / 2
    made = Sampler(student.network, student, scores=SCORES)(images, keep_probabilities=True)
    assert made.probabilities is not None
    torch.testing.assert_close(made.probabilities[:, 1:].double(), road, atol=1e-6, rtol=0)


def test_a_student_of_one_output_learns_from_two_probabilities() -> None:
    settings = DistilConfig(
        head_channels=8, epochs=200, lr=0.05, epistemic_weight=0.0, energy_weight=0.0
    )
    learner = Learner(of_one_output(), settings)
    image = np.full((16, 16, 3), 128, np.uint8)
    road = torch.full((2, 4, 4), 0.5)
    road[0] = 0.1
    road[1] = 0.9
    epistemic = torch.zeros(4, 4)
    energy = torch.full((4, 4), -math.log(1 + 9))  # of the logits (0, ln 9)
    learner.train([Lesson(image, (0, 0), road.half(), epistemic, energy)])
    logits = learner.logits(torch.full((1, 3, 16, 16), 128 / 255))
    assert logits.shape == (2, 2, 16, 16)
    assert float(logits.softmax(1)[:, 1].mean()) == pytest.approx(0.9, abs=0.02)
