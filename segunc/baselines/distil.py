"""Students: a network that is taught to give in about one pass what a teacher gives in many (as
DUDES, Landgraf et al. 2023, 2303.09843). Its last layer makes the logits z and a head beside it
makes d; the draws are z + d and z - d, which share all that comes before.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from segunc.affine.convert import classify
from segunc.affine.posterior import Deterministic
from segunc.baselines.mixtures import Ensemble
from segunc.core.bounds import (
    Bound,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Seed,
    Settings,
)
from segunc.core.device import flushed_denormals, resolve_device
from segunc.core.errors import InputError, is_out_of_memory, one_line
from segunc.core.progress import ConsoleProgress
from segunc.data.corruptions import Corruption
from segunc.data.images import Image
from segunc.frames.sources import open_source
from segunc.networks.copies import check_copy
from segunc.networks.gradients import run_with_gradients
from segunc.networks.model_folder import WEIGHTS, load_network, save_network
from segunc.networks.network import SegmentationNetwork, inference_size
from segunc.networks.weights import load_state
from segunc.posteriors.methods import Method
from segunc.posteriors.model import MEMBERS, Model, load_base, load_model, posterior_hash
from segunc.posteriors.saving import TENSORS, save_posterior
from segunc.sampling.branches import Branch
from segunc.sampling.sampler import Sampler, network_input
from segunc.training.batches import open_data, spaced
from segunc.training.config import FitConfig, environment, record_data, save_config
from segunc.training.lightning_runs import Say, say
from segunc.training.losses import diverged, make_optimizer, make_schedule

PIXEL_STEP = (
    4  # of the rows and columns at which a student learns: last layers seldom have more places
)
CORRUPTIONS = "noise:1 fog:2 darkness:2 noise:3 fog:4 blur:3 jpeg:3"
# Learning rate of the head, which begins with random weights, as a multiple of that of the network.
HEAD_RATE = 5.0
# Nats that are added to epistemic before its logarithm: float32 tells no less from rounding.
FLOOR = 1e-5
HEAD, SIGN = "student_head", "student_sign"  # names beside the parameters of the last layer


class LogitLayer:
    """The last Conv2d or Linear with as many outputs as the network has that makes the logits;
    InputError where there is none, or what follows mixes frames. Auxiliary heads, which a network
    may call later, do not make them.
    """

    def __init__(self, network: SegmentationNetwork) -> None:
        self.network = network
        hint = "distil a network that ends in one"
        images = torch.zeros(1, 3, 64, 64, device=next(network.parameters()).device)
        called, expected = self._called_layers(images)
        name = type(network.body).__name__
        if not called:
            raise InputError(
                f"{name} has no convolution or linear layer that makes its logits", hint=hint
            )
        for layer in reversed(called):
            self.module: Any = layer
            if self._makes_logits(images, expected):
                return
        raise InputError(f"{name} does more with its logits than upsample them", hint=hint)

    def _called_layers(self, images: Tensor) -> tuple[list[nn.Module], Tensor]:
        """Return the layers that may be it, in the order of their calls, and the logits."""
        outputs = self.network.description.num_outputs
        called: list[nn.Module] = []
        handles = [
            module.register_forward_hook(lambda module, _, __: called.append(module))
            for module in self.network.modules()
            if isinstance(module, nn.Conv2d | nn.Linear) and len(module.weight) == outputs
        ]
        try:
            # Not in inference mode: what the network keeps from here is trained with.
            with torch.no_grad():
                logits = self.network(images)
        finally:
            for handle in handles:
                handle.remove()
        return called, logits

    def _makes_logits(self, images: Tensor, expected: Tensor) -> bool:
        """Return whether a second frame, put into the layer, comes out beside the first as logits
        of its own.
        """
        try:
            with torch.no_grad(), self.changed(lambda x: torch.cat([x, 2 * x + 1])):
                stacked = self.network(images)
        except RuntimeError as error:  # of another head, which is joined with what has one frame
            if is_out_of_memory(error):
                raise
            return False
        same_shape = stacked.shape == (2, *expected.shape[1:])
        return same_shape and torch.allclose(stacked[:1], expected, rtol=1e-3, atol=1e-4)

    @contextmanager
    def changed(self, change_input: Any = None, change_output: Any = None) -> Iterator[None]:
        """Pass the layer's input, and its output, through these functions while open."""
        handles = []
        if change_input:
            handles.append(
                self.module.register_forward_pre_hook(
                    lambda _, args: (change_input(args[0]), *args[1:])
                )
            )
        if change_output:
            handles.append(
                self.module.register_forward_hook(lambda _, __, output: change_output(output))
            )
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


def make_head(layer: Any, channels: int) -> nn.Sequential:
    """Return a head with random weights, from the input of a last layer to as many values as it
    has, at each place of its output.
    """
    outputs = len(layer.weight)
    if isinstance(layer, nn.Conv2d):
        geometry: dict[str, Any] = {
            "kernel_size": layer.kernel_size,
            "stride": layer.stride,
            "padding": layer.padding,
            "dilation": layer.dilation,
        }
        first = nn.Conv2d(layer.in_channels, channels, **geometry)
        return nn.Sequential(first, nn.ReLU(), nn.Conv2d(channels, outputs, 1))
    return nn.Sequential(
        nn.Linear(layer.in_features, channels), nn.ReLU(), nn.Linear(channels, outputs)
    )


def add_head(layer: Any, inputs: tuple[Tensor, ...], logits: Tensor) -> Tensor:
    """Add what the head makes of the input of a last layer to its output, as a forward
    hook of it.
    """
    return cast(Tensor, logits + getattr(layer, SIGN) * getattr(layer, HEAD)(inputs[0]))


def with_head(
    network: SegmentationNetwork, layer: nn.Module, head: nn.Module, sign: int
) -> SegmentationNetwork:
    """Return a network of the very modules of another, but for its last layer, which holds a head,
    and adds what it makes times ``sign``, 1 or -1. The sign is all in which such networks differ,
    so that all else runs once for all of them.
    """
    place = next(name for name, module in network.named_modules() if module is layer)
    above = {"", *(place[:end] for end, letter in enumerate(place) if letter == "."), place}
    memo = {id(module): module for name, module in network.named_modules() if name not in above}
    memo |= {id(tensor): tensor for tensor in (*network.parameters(), *network.buffers())}
    copied = copy.deepcopy(network, memo)
    check_copy(network, copied)
    last = copied.get_submodule(place)
    last.add_module(HEAD, head)
    last.register_buffer(SIGN, torch.tensor(float(sign)), persistent=False)
    last.register_forward_hook(add_head)
    return copied


class Student(Ensemble):
    """Draws z + d and z - d of a network whose last layer makes z. ``network`` is the first draw,
    so base scores are those of z + d.
    """

    method: ClassVar[str] = "distil"

    def __init__(self, network: SegmentationNetwork, head: nn.Sequential, layer: nn.Module) -> None:
        self.head = head
        draws = [with_head(network, layer, head, sign) for sign in (1, -1)]
        self.network = draws[
            0
        ]  # a network of its own would be one more pass of what lies behind the last layer
        super().__init__([Branch(draw, Deterministic()) for draw in draws])

    def tensors(self) -> dict[str, Tensor]:
        return self.head.state_dict()

    def settings(self) -> dict[str, Any]:
        return {"head_channels": len(cast(Tensor, self.head[0].weight))}


@dataclass(frozen=True)
class DistilConfig(Settings):
    """How a student is trained: the affine parameters of its normalisation layers, its last layer
    and its head, all else stays.

    Args:
        input: a folder, a pattern or a video of frames without labels, in the place of the training
            frames of the data set.
        frames: how many evenly spaced frames (0: all). They stay in memory with the maps of the
            teacher: with 19 classes 12 bytes a pixel.
        corruptions: each frame is learnt clean and under one of these in turn, NAME:STRENGTH as of
            ``evaluate --corruption``.
        epochs: how often each of these is learnt; the teacher sees it once.
        crop: share of both sides of a frame that a step sees, at a random place; the teacher has
            seen the whole.
        batch_size: crops in a step.
        lr: peak learning rate, of a one-cycle schedule.
        epistemic_weight: of the loss of the logarithm of epistemic, beside the divergence of the
            mean probabilities.
        energy_weight: of the loss of the mean energy.
        head_channels: hidden channels of the head.
        draws: of a teacher with noise.
        start: model folder whose network the student begins as; by default the teacher's own, of an
            ensemble the first.
        seed: of the draws, the head and the order of the frames.
    """

    section = "distil"
    input: str = ""
    frames: NonNegativeInt = 100
    corruptions: list[str] = field(default_factory=CORRUPTIONS.split)
    epochs: PositiveInt = 4
    crop: Annotated[float, Bound(above=0, most=1)] = 1.0
    batch_size: PositiveInt = 2
    lr: PositiveFloat = 3e-3
    epistemic_weight: NonNegativeFloat = 0.03
    energy_weight: NonNegativeFloat = 0.03
    head_channels: PositiveInt = 64
    draws: PositiveInt = 24
    start: str = ""
    seed: Seed = 0
    without_data: ClassVar[str] = "--distil.input FOLDER of frames without labels"

    @property
    def uses_data(self) -> dict[str, str]:
        return {} if self.input else {"train": "what the student learns from"}


class Lesson(NamedTuple):
    """A frame and what the teacher says of some of its pixels, those of every fourth row and column
    from ``first`` on.
    """

    image: Image  # as it is shown, at the size that the network sees
    first: tuple[int, int]
    probabilities: Tensor  # float16 [C, h, w]
    epistemic: Tensor  # float32 [h, w], nats
    energy: Tensor  # float32 [h, w]

    def part(self, share: float, random: np.random.Generator) -> Lesson:
        """Return a crop of so large a share of both sides, at a random place."""
        whole = [side // PIXEL_STEP for side in self.image.shape[:2]]
        sides = [min(side, max(16, round(share * side))) for side in whole]
        first = [
            int(random.integers(most - side + 1)) for most, side in zip(whole, sides, strict=True)
        ]
        rows, columns = (
            slice(start, start + side) for start, side in zip(first, sides, strict=True)
        )
        top, left, bottom, right = (PIXEL_STEP * n for n in (*first, rows.stop, columns.stop))
        image = np.ascontiguousarray(self.image[top:bottom, left:right])
        return Lesson(image, self.first, *(values[..., rows, columns] for values in self[2:]))


def distillation_loss(logits: Tensor, lesson: Lesson, settings: DistilConfig) -> dict[str, Tensor]:
    """Return the parts of the loss of logits ``[2, C, H, W]`` of both draws of a frame, each a
    scalar and the mean over pixels: divergence of their mean probabilities from the teacher's in
    nats, and smooth L1 losses of the logarithm of epistemic and of the mean energy.
    """
    logits = logits[:, :, lesson.first[0] :: PIXEL_STEP, lesson.first[1] :: PIXEL_STEP].float()
    taught = lesson.probabilities.to(logits.device).float()
    logs = logits.log_softmax(1)
    mean = logs.logsumexp(0) - math.log(2)
    epistemic = (logs.exp() * (logs - mean)).sum(1).mean(0).clamp_min(0.0)
    ours, theirs = (
        (values + FLOOR).log() for values in (epistemic, lesson.epistemic.to(logits.device))
    )
    energy = -logits.logsumexp(1).mean(0)
    return {
        "divergence": (torch.special.xlogy(taught, taught) - taught * mean).sum(0).mean(),
        "epistemic": settings.epistemic_weight * F.smooth_l1_loss(ours, theirs),
        "energy": settings.energy_weight
        * F.smooth_l1_loss(energy, lesson.energy.to(logits.device)),
    }


class Learner:
    """A network, its last layer and a head while they are trained; statistics of normalisation
    layers stay.
    """

    def __init__(self, network: SegmentationNetwork, settings: DistilConfig) -> None:
        self.network, self.settings = network.eval().requires_grad_(False), settings
        self.place = LogitLayer(network)
        self.head = make_head(self.place.module, settings.head_channels)
        self.head.to(network.mean.device)
        layers = [module for module in network.modules() if classify(module)[0] is not None]
        trained = [p for layer in (*layers, self.place.module) for p in layer.parameters()]
        self.parameters = [p.requires_grad_(True) for p in trained if p.is_floating_point()]

    def logits(self, images: Tensor) -> Tensor:
        """Return the logits ``[2 n, C, H, W]`` of both draws of images ``[n, 3, H, W]``, in one
        pass of all before the last layer.
        """
        seen: list[Tensor] = []

        def both(logits: Tensor) -> Tensor:
            difference = self.head(seen.pop())
            return torch.cat([logits + difference, logits - difference])

        with self.place.changed(lambda x: seen.append(x) or x, both):  # type: ignore[func-returns-value]
            images = images.contiguous(memory_format=torch.channels_last)
            return run_with_gradients(self.network, images)

    def train(self, lessons: Sequence[Lesson]) -> dict[str, float]:
        """Learn each lesson once an epoch, and return the mean parts of the loss over the last
        epoch.
        """
        settings, random = (
            self.settings,
            np.random.Generator(np.random.Philox(key=self.settings.seed)),
        )
        each = -(-len(lessons) // settings.batch_size)
        shuffled = (random.permutation(len(lessons)) for _ in range(settings.epochs))
        order = [part for numbers in shuffled for part in np.array_split(numbers, each)]
        head_lr = HEAD_RATE * settings.lr
        groups = [
            {"params": self.parameters, "lr": settings.lr},
            {"params": list(self.head.parameters()), "lr": head_lr},
        ]
        optimizer = make_optimizer("adamw", groups, settings.lr)
        schedule = make_schedule(optimizer, "onecycle", len(order), [settings.lr, head_lr])
        losses: list[dict[str, float]] = []
        for step, numbers in enumerate(ConsoleProgress(label="student", unit="step").follow(order)):
            for lesson in (lessons[number].part(settings.crop, random) for number in numbers):
                image = network_input([lesson.image], lesson.image.shape[:2]).to(
                    self.network.mean.device
                )
                parts = distillation_loss(self.logits(image), lesson, settings)
                loss = torch.stack([*parts.values()])
                if not bool(torch.isfinite(loss).all()):
                    raise diverged("the loss", step)
                (loss.sum() / len(numbers)).backward()  # type: ignore[no-untyped-call]
                losses.append(dict(zip(parts, loss.tolist(), strict=True)))
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        last = losses[-len(lessons) :]
        return {name: round(float(np.mean([parts[name] for parts in last])), 6) for name in last[0]}


def frames_to_learn(config: FitConfig[DistilConfig], classes: int) -> Iterator[tuple[str, Image]]:
    """Yield names and images RGB uint8 ``[H, W, 3]`` of the frames that a student learns from;
    InputError where there is none.
    """
    if not config.settings.input:
        data = open_data(config.data, classes).dataset("train")
        for index in ConsoleProgress(label="teacher").follow(
            spaced(len(data), config.settings.frames)
        ):
            yield data.samples[index].name, data.read(index)[0]
        return
    source = open_source(config.settings.input, all_images=False)
    chosen = spaced(source.length or source.length_hint or 0, config.settings.frames)
    for frame in source.frames(lambda index, _: index not in chosen):
        if frame.image is None:
            raise InputError(f"a frame cannot be read: {frame.error}")
        yield frame.name, frame.image


def make_lessons(
    teacher: Model, network: SegmentationNetwork, config: FitConfig[DistilConfig]
) -> Iterator[Lesson]:
    """Yield each frame clean and under one of the corruptions, at the size at which the network
    will see it, with what the teacher says.
    """
    settings, scores = config.settings, ("epistemic", "mean-energy")
    corruptions = [Corruption.parse(text) for text in settings.corruptions]
    options: Any = {
        "draws": settings.draws,
        "seed": settings.seed,
        "scores": scores,
        "fitted": teacher.fitted(scores),
    }
    sampler, size = Sampler(teacher.network, teacher.posterior, **options), config.data.get("size")
    random = np.random.Generator(np.random.Philox(key=settings.seed))
    nats = math.log(network.description.num_classes)
    for number, (name, image) in enumerate(
        frames_to_learn(config, network.description.num_classes)
    ):
        seen = inference_size(
            network.description, (image.shape[0], image.shape[1]), size and (size[0], size[1])
        )
        for corruption in (None, *corruptions[number % max(1, len(corruptions)) :][:1]):
            inputs = network_input([corruption(image, name) if corruption else image], seen)
            try:
                result = sampler(inputs, keep_probabilities=True)
            except RuntimeError as error:
                if is_out_of_memory(error):
                    raise
                message = f"the teacher takes no frames of {seen[1]} x {seen[0]} pixels ({one_line(error)})"
                raise InputError(message, hint="give another --data.size H,W") from error
            top, left = random.integers(PIXEL_STEP, size=2).tolist()
            kept = (..., slice(top, None, PIXEL_STEP), slice(left, None, PIXEL_STEP))
            maps = (cast(Tensor, result.probabilities), *result.scores.values())
            probabilities, epistemic, energy = (values[0][kept].clone().cpu() for values in maps)
            pixels = (inputs[0] * 255).round().byte().permute(1, 2, 0).numpy()
            yield Lesson(pixels, (top, left), probabilities.half(), epistemic * nats, energy)


@flushed_denormals()
def distil(
    base: Path, config: FitConfig[DistilConfig], out: Path, *, device: str = "auto", say: Say = say
) -> None:
    """Train a student of the teacher in ``base``, and write its model folder; a run that was killed
    while it trained begins anew.
    """
    settings, start = config.settings, time.perf_counter()
    if out.resolve() == base.resolve():
        raise InputError(f"--out {out} is the teacher", hint="give another --out")
    teacher = load_model(base)
    if isinstance(getattr(teacher.posterior, "inner", teacher.posterior), Student):
        raise InputError(
            f"{base} is a student, which cannot be a teacher",
            hint="name the teacher of this student",
        )
    begin = Path(settings.start or base)
    begin = begin if (begin / WEIGHTS).exists() else begin / MEMBERS / "0"  # of an ensemble
    network = load_network(begin, ignore_posterior=True)
    theirs, ours = teacher.network.description.classes, network.description.classes
    if theirs != ours:
        message = f"{base} has the classes {', '.join(theirs[:4])}, ..., and {begin} {', '.join(ours[:4])}, ..."
        raise InputError(message, hint="both need the same")
    place = resolve_device(device)
    teacher.place(place)
    torch.manual_seed(settings.seed)
    learner = Learner(network.to(place).to(memory_format=torch.channels_last), settings)
    lessons = list(make_lessons(teacher, network, config))
    taught = time.perf_counter() - start
    say(f"the teacher has seen {len(lessons)} frames, clean and corrupted, in {taught:.0f} s")
    loss = learner.train(lessons)
    made_of: dict[str, Any] = {
        "teacher": teacher.posterior.method,
        "teacher_sha256": teacher.posterior_sha256,
    }
    made_of |= {"dataset": config.data.get("dataset"), "settings": config.plain()[settings.section]}
    made_of |= {"frames": len(lessons), "loss": loss, "teacher_seconds": round(taught, 1)}
    provenance = {
        **made_of,
        **environment("32-true"),
        "seconds": round(time.perf_counter() - start, 1),
    }
    save_network(network, out)
    student = Student(network, learner.head, learner.place.module)
    save_posterior(student, None, out, out, seed=settings.seed, provenance=provenance)
    save_config(config, out, METHOD.name)
    record_data(out, config.data, base)
    nats = loss["divergence"]
    say(
        f"wrote {out}: a student of {teacher.posterior.method}, {nats:.4f} nats from it in the last epoch"
    )


def load_student(folder: Path, record: Mapping[str, Any]) -> Model:
    """Return the student that a record describes."""
    network, tensors, tensors_sha256 = load_base(folder, record)
    layer = LogitLayer(network).module
    head = make_head(layer, record["head_channels"])
    load_state(head, tensors, str(folder / TENSORS))
    student = Student(network, head.eval(), layer)
    digest = posterior_hash(tensors_sha256, student)
    return Model(student.network, student, network.sha256, digest, None, record)


METHOD = Method("distil", DistilConfig, distil, load=load_student, finished=True, own_network=True)
