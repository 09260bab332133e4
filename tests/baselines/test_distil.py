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
from torch.utils.flop_counter import FlopCounterMode, conv_flop_count

import segunc
from segunc.affine.convert import ORIGIN
from segunc.affine.posterior import Deterministic
from segunc.baselines.distil import (
    Learner,
    Lesson,
    LogitLayer,
    Student,
    StudentPosterior,
    distillation_loss,
)
from segunc.baselines.mixtures import EnsemblePosterior
from segunc.core.errors import InputError
from segunc.data.labels import label_map
from segunc.data.training_frames import note_on_epoch_frames
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
    description = NetworkDescription(
        "DeepLabV3Plus",
        "mobilenet_v2",
        TOY.classes,
        TOY.palette,
        options,
    )
    return build_network(description).eval()


def of_arranged_weights(
    images: tuple[int, ...],
    weight: tuple[int, ...],
    bias: Any,
    padding: Any,
    stride: Any,
    dilation: Any,
    groups: int,
    *_: Any,
    out_shape: tuple[int, ...],
) -> int:
    """Operations of a convolution whose weight is arranged for the CPU; torch knows none for it."""
    return int(conv_flop_count(images, weight, out_shape, transposed=False))


def flops(work: Any) -> int:
    formulas = {torch.ops.mkldnn._convolution_pointwise: of_arranged_weights}
    counter = FlopCounterMode(display=False, custom_mapping=formulas)
    with counter, torch.inference_mode():
        work()
    return int(counter.get_total_flops())


def frames(height: int, width: int, count: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(height)
    return torch.rand(count, 3, height, width, generator=generator)


# Several frames, another size between, and other frames of the same size.
SOME_FRAMES = (
    frames(64, 96, 2),
    frames(96, 64),
    frames(50, 70),
    frames(64, 96, 2).flip(0, -1),
)


def with_shared_encoder(base: SegmentationNetwork) -> list[SegmentationNetwork]:
    """A network, and one with another decoder on its very encoder."""
    encoder: Any = base.body.encoder
    second = copy.deepcopy(base, {id(module): module for module in encoder.modules()})
    state = network(1).body.state_dict()
    for name, tensor in encoder.state_dict().items():
        state[f"encoder.{name}"] = tensor
    second.body.load_state_dict(state)
    return [base, second]


def sampler_of(networks: list[SegmentationNetwork], precision: Any) -> Sampler:
    ensemble = EnsemblePosterior([Branch(part, Deterministic()) for part in networks])
    return Sampler(networks[0], ensemble, precision=precision)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_networks_that_share_their_encoder_run_it_once_a_frame(precision: Any) -> None:
    """They are compared with two networks that have nothing in common."""
    base = network(0)
    shared = with_shared_encoder(base)
    sampler = sampler_of(shared, precision)
    apart = sampler_of([copy.deepcopy(part) for part in shared], precision)
    for images in SOME_FRAMES:
        made = sampler(images, keep_probabilities=True)
        expected = apart(images, keep_probabilities=True)
        assert torch.equal(made.probabilities, expected.probabilities)  # type: ignore[arg-type]
        assert float(made.scores["epistemic"].mean()) > 1e-6
    whole = flops(lambda: base(images))
    encoder: Any = base.body.encoder
    common = flops(lambda: encoder(images))
    assert flops(lambda: sampler(images)) == 2 * whole - common
    assert flops(lambda: apart(images)) == 2 * whole


def test_networks_that_share_their_encoder_share_its_copy() -> None:
    sampler = sampler_of(with_shared_encoder(network(0)), "bfloat16")
    for images in SOME_FRAMES:
        sampler(images)
    engines: Any = sampler._engines
    copies = {id(engine._run.body.encoder) for engine in engines.values()}
    assert len(copies) == 1


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_what_was_shared_goes_with_its_frame(precision: Any) -> None:
    shared = with_shared_encoder(network(0))
    sampler = sampler_of(shared, precision)
    sampler(frames(64, 96, 2))
    gc.collect()
    assert not [kept for kept in gc.get_objects() if type(kept) is Prefix]
    for part in shared:
        assert not any(hasattr(tensor, ORIGIN) for tensor in part.parameters())


def test_tensors_of_a_shared_encoder_are_not_own() -> None:
    base = network(0)
    names = own_tensors(with_shared_encoder(base))
    assert names
    assert not any("encoder" in name for name in names)
    assert not names & {"mean", "std"}
    assert own_tensors([base, network(1)]) == frozenset()


def student_sampler(learner: Learner, precision: Any = "float32") -> Sampler:
    """Return a sampler of the student that a learner trains."""
    student = StudentPosterior(learner.network, learner.head, learner.logit_layer.module)
    return Sampler(student.network, student, scores=SCORES, precision=precision)


@pytest.mark.parametrize(
    ("precision", "tolerance"),
    [
        ("float32", 1e-4),
        ("bfloat16", 0.1),
    ],
)
def test_a_student_has_the_scores_of_two_draws(precision: str, tolerance: float) -> None:
    learner = Learner(network(0), Student(head_channels=8))
    sampler = student_sampler(learner, precision)
    close = partial(torch.testing.assert_close, atol=tolerance, rtol=0)
    for images in (frames(64, 96, 2), frames(50, 70), frames(64, 96, 2).flip(0, -1)):
        made = sampler(images, keep_probabilities=True)
        with torch.inference_mode():
            plus, minus = learner.logits(images).chunk(2)
            mean = (plus.softmax(1) + minus.softmax(1)) / 2
            aleatoric = (entropy_share_of_logits(plus) + entropy_share_of_logits(minus)) / 2
        close(made.scores["deterministic-energy"], energy(plus))
        close(made.probabilities, mean)
        close(made.scores["epistemic"], entropy_share(mean) - aleatoric)
        close(made.scores["mean-energy"], (energy(plus) + energy(minus)) / 2)
        assert float(made.scores["epistemic"].mean()) > 1e-6


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_student_runs_one_pass_and_its_head(precision: str) -> None:
    learner = Learner(network(0), Student(head_channels=8))
    base = copy.deepcopy(learner.network)
    sampler = student_sampler(learner, precision)
    images = frames(64, 96, 2)
    features = torch.zeros(2, 16, 16, 24)
    sampler(images)
    head = flops(lambda: learner.head(features))
    assert head > 0
    one_pass = flops(lambda: base(images))
    assert flops(lambda: sampler(images)) == one_pass + head


# Two draws of (.9, .1) and (.5, .5): a mean of (.7, .3), .6109 - (.3251 + .6931) / 2 = .1018 nats
# of epistemic, energies of 0.
LOGITS_OF_DRAWS = torch.tensor([[0.9, 0.1], [0.5, 0.5]]).log()
TWO_DRAWS = LOGITS_OF_DRAWS[:, :, None, None].expand(2, 2, 96, 128)
MEANS = torch.tensor([0.7, 0.3])[:, None, None].expand(2, 24, 32)
EPISTEMIC = torch.full((24, 32), 0.10175)
# The value of a pixel is its number.
NUMBERED: Any = np.arange(96 * 128).reshape(96, 128, 1).repeat(3, 2)


def test_the_loss_is_0_for_the_teacher_itself() -> None:
    settings = Student(epistemic_weight=1.0, energy_weight=0.5)
    lesson = Lesson(NUMBERED, (3, 1), MEANS, EPISTEMIC, energy=torch.zeros(24, 32))
    for part in distillation_loss(TWO_DRAWS, lesson, settings).values():
        assert abs(float(part)) < 1e-3


def test_the_loss_of_other_epistemic_and_energy() -> None:
    settings = Student(epistemic_weight=1.0, energy_weight=0.5)
    lesson = Lesson(NUMBERED, (3, 1), MEANS, EPISTEMIC * math.e, energy=torch.full((24, 32), 3.0))
    parts = distillation_loss(TWO_DRAWS, lesson, settings)
    assert float(parts["epistemic"]) == pytest.approx(0.5, abs=1e-2)
    assert float(parts["energy"]) == pytest.approx(0.5 * 2.5, abs=1e-2)


@pytest.mark.parametrize(
    ("share", "shape"),
    [
        (0.7, (68, 88)),
        (1.0, (96, 128)),
    ],
)
def test_crops_keep_pixels_in_place(share: float, shape: tuple[int, int]) -> None:
    random = np.random.default_rng(0)
    numbers = torch.from_numpy(NUMBERED[3::4, 1::4, 0])
    lesson = Lesson(NUMBERED, (3, 1), MEANS, EPISTEMIC, energy=numbers)
    for _ in range(20):
        crop = lesson.part(share, random)
        assert crop.image.shape[:2] == shape
        assert np.array_equal(crop.image[3::4, 1::4, 0], crop.energy.numpy())


@pytest.fixture(scope="module")
def made(toy_set: Path, tmp_path_factory: pytest.TempPathFactory) -> FinetuneOptions:
    """The options of a small run; ``base`` and ``teacher`` lie beside its student."""
    folder = tmp_path_factory.mktemp("distil")
    base = network(0)
    trained = {"val_miou": 0.75, "epochs": 9}
    base.description = replace(base.description, provenance=trained)
    save_network(base, folder / "base")
    finetune(FinetuneOptions(base=folder / "base", out=folder / "teacher", method="tta"))
    settings = {
        "data.dataset": "toy",
        "data.root": str(toy_set),
        "distil.frames": 4,
        "distil.epochs": 2,
        "distil.head_channels": 8,
        "distil.corruptions": ["noise:2", "fog:3"],
    }
    options = FinetuneOptions(
        base=folder / "teacher",
        out=folder / "student",
        method="distil",
        device="cpu",
        settings=settings,
    )
    finetune(options)
    return options


def test_a_student_records_what_it_was_made_of(made: FinetuneOptions) -> None:
    model = load_model(Path(made.out))
    assert model.posterior.method == "distil"
    assert model.posterior.members == 2
    provenance = model.record["provenance"]
    assert provenance["teacher"] == "tta"
    assert provenance["frames"] == 8
    assert provenance["settings"]["corruptions"][1] == "fog:3"


def test_what_was_measured_of_a_base_is_not_recorded_of_its_student(made: FinetuneOptions) -> None:
    start = load_network(Path(made.out).parent / "base")
    of_student = load_network(Path(made.out), ignore_posterior=True).description.provenance
    assert "val_miou" not in of_student
    assert of_student["epochs"] == 9, "the history of its weights"
    assert of_student["started_from"] == {"sha256": start.sha256, "val_miou": 0.75}
    # A base of an earlier version, whose frames are not recorded.
    assert "cannot be known" in note_on_epoch_frames(of_student, ["a"], "it", is_same_split=False)


def test_the_frames_of_a_student_are_no_test_of_it(made: FinetuneOptions, toy_set: Path) -> None:
    assert load_model(Path(made.out)).record["provenance"]["seen_splits"] == [
        {"dataset": "toy", "split": "train"}
    ]
    data: dict[str, Any] = {"dataset": "toy", "root": toy_set, "draws": 2, "replicates": 0}
    words = "of the split train of the data set toy, on which the model got its posterior"
    for split, is_told in (("train", True), ("val", False)):
        notes = segunc.evaluate(model=Path(made.out), split=split, device="cpu", **data).notes
        assert any(words in note for note in notes) == is_told


def test_last_layer_and_affine_parameters_are_trained(made: FinetuneOptions) -> None:
    out = Path(made.out)
    base = load_network(out.parent / "base").body
    before = base.state_dict()
    trained = load_network(out, ignore_posterior=True).body.state_dict()
    changed = {name for name, tensor in trained.items() if not torch.equal(tensor, before[name])}
    norms = set()
    for name, module in base.named_modules():
        if isinstance(module, nn.BatchNorm2d):
            norms.add(name)
    last = {"segmentation_head.0.weight", "segmentation_head.0.bias"}
    assert last <= changed
    for name in changed - last:
        assert name.rpartition(".")[0] in norms
        assert "running" not in name


def test_a_student_gives_maps(made: FinetuneOptions) -> None:
    image = np.full((64, 96, 3), 99, np.uint8)
    maps = load_model(Path(made.out))(image, scores=SCORES)
    assert 0 < maps.epistemic.mean() < maps.entropy.mean()


def test_a_student_is_checked_by_the_doctor(
    made: FinetuneOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "compile", None)
    options = DoctorOptions(model=made.out, size=(64, 96), device="cpu", compile=True)
    checked = doctor(options)
    assert checked.failure == ""
    (note,) = checked.notes
    assert "could not be compiled" in note


def test_a_second_training_gives_the_same_bytes(made: FinetuneOptions, tmp_path: Path) -> None:
    finetune(replace(made, out=tmp_path / "again"))
    again = (tmp_path / "again" / "posterior.safetensors").read_bytes()
    assert again == (Path(made.out) / "posterior.safetensors").read_bytes()


def test_training_on_frames_without_labels_brings_the_student_nearer(
    made: FinetuneOptions, tmp_path: Path
) -> None:
    images = tmp_path / "images"
    images.mkdir()
    for number in range(3):
        frame = np.random.default_rng(number).integers(0, 256, (16, 24, 3), np.uint8)
        large = cv2.resize(frame, (96, 64))
        cv2.imwrite(str(images / f"{number}.png"), large)
    save_network(network(1), tmp_path / "start")
    losses = []
    for epochs in (1, 12):
        out = tmp_path / str(epochs)
        settings = {
            "distil.input": str(images),
            "distil.start": str(tmp_path / "start"),
            "distil.epochs": epochs,
            "distil.batch_size": 4,
            "distil.lr": 0.01,
        }
        finetune(replace(made, out=out, settings=settings))
        made_of = load_model(out).record["provenance"]
        assert made_of["dataset"] is None
        assert made_of["frames"] == 6
        losses.append(made_of["loss"])
    short, long = losses
    for part in ("divergence", "epistemic", "energy"):
        assert long[part] < 0.7 * short[part]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def refused(made: FinetuneOptions, said: str, **changed: Any) -> None:
    """``changed`` are options, or settings in the place of those of the small run."""
    small: Any = made.settings
    settings = {**small, **changed.pop("settings", {})}
    with pytest.raises(InputError, match=said):
        finetune(replace(made, settings=settings, **changed))


def test_a_student_in_the_folder_of_its_teacher_is_refused(made: FinetuneOptions) -> None:
    refused(made, "is the base, whose network", out=made.base)


def test_a_student_of_a_student_is_refused(
    made: FinetuneOptions, tmp_path: Path, out: Path
) -> None:
    refused(made, "is a student, which cannot be a teacher", base=made.out, out=out)
    augmented = tmp_path / "augmented"
    finetune(FinetuneOptions(base=made.out, out=augmented, method="tta"))
    refused(made, "is a student, which cannot be a teacher", base=augmented, out=out)
    assert not out.exists()


def test_a_start_of_other_classes_is_refused(
    made: FinetuneOptions, tmp_path: Path, out: Path
) -> None:
    turned = network(1)
    classes = turned.description.classes[::-1]
    turned.description = replace(turned.description, classes=classes)
    save_network(turned, tmp_path / "classes")
    settings = {"distil.start": str(tmp_path / "classes")}
    refused(made, "has the classes", out=out, settings=settings)
    assert not out.exists()


def test_a_folder_without_images_is_refused(
    made: FinetuneOptions, tmp_path: Path, out: Path
) -> None:
    (tmp_path / "empty").mkdir()
    settings = {"distil.input": str(tmp_path / "empty")}
    refused(made, "holds no image", out=out, settings=settings)
    assert not out.exists()


def test_a_video_that_does_not_say_its_number_of_frames(
    made: FinetuneOptions, tmp_path: Path, out: Path
) -> None:
    """Bare images one after the other, as a raw stream holds them."""
    video = tmp_path / "raw.mpg"
    for shade in (20, 90, 200):
        _, image = cv2.imencode(".jpg", np.full((64, 96, 3), shade, np.uint8))
        with video.open("ab") as file:
            file.write(image.tobytes())
    settings = {"distil.input": str(video), "distil.corruptions": []}
    refused(made, "does not say how many frames it has", out=out, settings=settings)
    settings = {**settings, "distil.frames": 0, "distil.epochs": 1}
    finetune(replace(made, out=out, settings=settings))
    assert load_model(out).record["provenance"]["frames"] == 3


def test_an_unknown_corruption_is_refused(made: FinetuneOptions, out: Path) -> None:
    settings = {"distil.corruptions": ["rain:3"]}
    refused(made, "corruption 'rain'", out=out, settings=settings)
    assert not out.exists()


def test_a_teacher_of_other_sizes_is_refused(
    made: FinetuneOptions, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = SegmentationNetwork.forward

    def of_64_columns(network: SegmentationNetwork, images: Tensor) -> Tensor:
        # LogitLayer looks at the network with 64 x 64 pixels.
        if images.shape[-1] != 64:
            images = images.view(7)
        return whole(network, images)

    monkeypatch.setattr(SegmentationNetwork, "forward", of_64_columns)
    refused(made, "the teacher takes no frames of 128 x 64 pixels", out=out)
    assert not out.exists()


def test_a_lack_of_memory_is_not_called_a_wrong_size(
    made: FinetuneOptions, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("segunc.baselines.distil.Sampler.__call__", full)
    with pytest.raises(torch.OutOfMemoryError):  # which the command line calls what it is
        finetune(replace(made, out=out))


class TwoHeads(nn.Module):
    """Calls an auxiliary head after its main one; ``joined`` also adds it to the logits."""

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
    learner = Learner(of_two_heads(dropped=(1,)), Student(head_channels=8))
    images = frames(16, 24)
    # What the heads see.
    standardised = (images - learner.network.mean) / learner.network.std
    with torch.no_grad():
        logits = learner.network(images)
        difference = learner.head(standardised)[:, [0, 2, 3]]
        plus = (logits + difference).softmax(1)
        minus = (logits - difference).softmax(1)
    mean = (plus + minus) / 2
    made = student_sampler(learner)(images, keep_probabilities=True)
    torch.testing.assert_close(made.probabilities, mean, atol=1e-5, rtol=0)


def test_network_and_head_learn_where_their_rates_are_equal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("segunc.baselines.distil.HEAD_RATE", 1.0)
    learner = Learner(of_two_heads(), Student(head_channels=8, epochs=1))
    network_before = learner.parameters[0].detach().clone()
    head_before = learner.head[0].weight.detach().clone()
    image = np.full((16, 16, 3), 128, np.uint8)
    maps = torch.full((4, 4), 0.5)
    probabilities = torch.full((3, 4, 4), 1 / 3).half()
    learner.train([Lesson(image, (0, 0), probabilities, maps, maps)])
    assert not torch.equal(learner.parameters[0], network_before)
    assert not torch.equal(learner.head[0].weight, head_before)


class OneOutput(nn.Module):
    """A convolution, BatchNorm and a last layer that makes one output z."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 4, 1),
            nn.BatchNorm2d(4),
            nn.ReLU(),
        )
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
    learner = Learner(of_one_output(), Student(head_channels=8))
    images = frames(16, 24)
    body: Any = learner.network.body
    standardised = (images - learner.network.mean) / learner.network.std
    with torch.no_grad():
        features = body.features(standardised)
        logit = body.last(features).double()
        difference = learner.head(features).double()
        plus = (logit + difference).sigmoid()
        minus = (logit - difference).sigmoid()
    road = (plus + minus) / 2
    made = student_sampler(learner)(images, keep_probabilities=True)
    assert made.probabilities is not None
    of_road = made.probabilities[:, 1:].double()
    torch.testing.assert_close(of_road, road, atol=1e-6, rtol=0)


def test_a_student_of_one_output_learns_from_two_probabilities() -> None:
    settings = Student(
        head_channels=8,
        epochs=200,
        lr=0.05,
        epistemic_weight=0.0,
        energy_weight=0.0,
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
