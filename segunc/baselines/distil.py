"""Students: a network that learns to give in about one pass what a teacher gives in many (as DUDES,
Landgraf et al. 2023, 2303.09843). Its last layer makes the logits z and a head beside it makes d;
the draws are z + d and z - d, which share all layers before.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, cast

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from segunc.affine.convert import classify
from segunc.affine.posterior import Deterministic
from segunc.baselines.fitted import as_8_bits
from segunc.baselines.mixtures import EnsemblePosterior
from segunc.core.bounds import (
    Bound,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Seed,
)
from segunc.core.errors import InputError, is_out_of_memory, one_line
from segunc.core.files import plain_record
from segunc.core.progress import ConsoleProgress
from segunc.core.terminal import counted
from segunc.data.channels import shown_colours
from segunc.data.corruptions import Corruption
from segunc.data.images import Image
from segunc.data.training_frames import START, VAL_MIOU
from segunc.frames.sources import open_source
from segunc.networks.copies import check_copy, copy_network
from segunc.networks.description import NetworkDescription
from segunc.networks.gradients import run_with_gradients
from segunc.networks.model_folder import (
    DESCRIPTION,
    WEIGHTS,
    load_network,
    network_sha256,
    save_network,
)
from segunc.networks.network import SegmentationNetwork, inference_size
from segunc.networks.weights import load_state
from segunc.posteriors.fit_run import FitRun
from segunc.posteriors.methods import Method
from segunc.posteriors.model import (
    GivenNetworks,
    Model,
    configuration_documents,
    load_base,
    posterior_hash,
    posterior_method,
)
from segunc.posteriors.saving import TENSORS, posterior_record, save_posterior
from segunc.posteriors.settings import MethodSettings
from segunc.sampling.branches import Branch
from segunc.sampling.sampler import Sampler, network_input
from segunc.training.batches import spaced
from segunc.training.config import environment
from segunc.training.fit_data import content_name
from segunc.training.losses import diverged, make_optimizer, make_schedule

# Every how many rows and columns a student learns: last layers seldom have more places.
PIXEL_STEP = 4
MIN_CROP = 16  # places of a crop along each side, where the frame has as many
CORRUPTIONS = "noise:1 fog:2 darkness:2 noise:3 fog:4 blur:3 jpeg:3"
# Learning rate of the head, which begins with random weights, as a multiple of that of the network.
HEAD_RATE = 5.0
# Nats that are added to epistemic before its logarithm: float32 tells no less from rounding.
FLOOR = 1e-5
# Names beside the parameters of the last layer.
HEAD = "student_head"
SIGN = "student_sign"
TAUGHT_SCORES = ("epistemic", "mean-energy")

ChangeTensor = Callable[[Tensor], Tensor]


class LogitLayer:
    """The layer of a network that makes its logits: the last such Conv2d or Linear, with as many
    outputs as the network has. Auxiliary heads, which a network may call later, do not make them.

    Raises:
        InputError: there is no such layer, or what follows it mixes frames.
    """

    def __init__(self, network: SegmentationNetwork) -> None:
        self.network = network
        hint = "distil a network that ends in one"
        device = next(network.parameters()).device
        images = torch.zeros(1, network.description.channels, 64, 64, device=device)
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
        """Return the layers that may make the logits, in the order of their calls, and the
        logits.
        """
        outputs = self.network.description.num_outputs
        called: list[nn.Module] = []

        def keep(module: nn.Module, inputs: Any, output: Any) -> None:
            called.append(module)

        layers = [m for m in self.network.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
        may_make_logits = [layer for layer in layers if len(layer.weight) == outputs]
        handles = [layer.register_forward_hook(keep) for layer in may_make_logits]
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

        def add_frame(features: Tensor) -> Tensor:
            return torch.cat([features, 2 * features + 1])

        try:
            with torch.no_grad(), self.changed(add_frame):
                stacked = self.network(images)
        except RuntimeError as error:  # of another head, which is joined with what has one frame
            if is_out_of_memory(error):
                raise
            return False
        same_shape = stacked.shape == (2, *expected.shape[1:])
        return same_shape and torch.allclose(stacked[:1], expected, rtol=1e-3, atol=1e-4)

    @contextmanager
    def changed(
        self, change_input: ChangeTensor | None = None, change_output: ChangeTensor | None = None
    ) -> Iterator[None]:
        """Pass the layer's input, and its output, through these functions while open."""
        handles = []
        if change_input is not None:

            def before(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
                return (change_input(inputs[0]), *inputs[1:])

            handles.append(self.module.register_forward_pre_hook(before))
        if change_output is not None:

            def after(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
                return change_output(output)

            handles.append(self.module.register_forward_hook(after))
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
    first_linear = nn.Linear(layer.in_features, channels)
    return nn.Sequential(first_linear, nn.ReLU(), nn.Linear(channels, outputs))


def add_head(layer: Any, inputs: tuple[Tensor, ...], logits: Tensor) -> Tensor:
    """Add what the head makes of the input of a last layer to its output; a forward hook of it."""
    return cast(Tensor, logits + getattr(layer, SIGN) * getattr(layer, HEAD)(inputs[0]))


def with_head(
    network: SegmentationNetwork, layer: nn.Module, head: nn.Module, sign: int
) -> SegmentationNetwork:
    """Return a network that adds ``sign``, 1 or -1, times the output of a head to its logits.

    It shares all modules with ``network`` except the last layer and the modules that hold it. Such
    networks differ in the sign alone, so all else runs once for all of them.
    """
    layer_name = next(name for name, module in network.named_modules() if module is layer)
    words = layer_name.split(".")
    copied_names = {".".join(words[:depth]) for depth in range(len(words) + 1)}
    shared: dict[int, Any] = {}
    for name, module in network.named_modules():
        if name not in copied_names:
            shared[id(module)] = module
    for tensor in (*network.parameters(), *network.buffers()):
        shared[id(tensor)] = tensor
    copied = copy.deepcopy(network, shared)
    check_copy(network, copied)
    last = copied.get_submodule(layer_name)
    last.add_module(HEAD, head)
    last.register_buffer(SIGN, torch.tensor(float(sign)), persistent=False)
    last.register_forward_hook(add_head)
    return copied


class StudentPosterior(EnsemblePosterior):
    """Draws z + d and z - d of a network whose last layer makes z. ``network`` is the first draw,
    so base scores are those of z + d.
    """

    method: ClassVar[str] = "distil"

    def __init__(self, network: SegmentationNetwork, head: nn.Sequential, layer: nn.Module) -> None:
        self.head = head
        self.plain = network
        draws = [with_head(network, layer, head, sign) for sign in (1, -1)]
        # A third network, for the base scores, would be one more pass of all behind the last layer.
        self.network = draws[0]
        super().__init__([Branch(draw, Deterministic()) for draw in draws])

    def tensors(self) -> dict[str, Tensor]:
        return self.head.state_dict()

    def settings(self) -> dict[str, Any]:
        return {"head_channels": len(cast(Tensor, self.head[0].weight))}


@dataclass(frozen=True)
class Student(MethodSettings):
    """How a student is trained.

    It learns the affine parameters of its normalisation layers, its last layer and its head. All
    other weights stay as they are.

    Args:
        input: folder, pattern or video of frames without labels, instead of the training frames of
            the data set.
        frames: number of evenly spaced frames (0: all). The frames and the teacher's maps of them
            stay in memory: 12 bytes for each pixel with 19 classes.
        corruptions: corruptions NAME:STRENGTH as in ``evaluate --corruption``; each frame is learnt
            clean and under one of these in turn.
        epochs: number of times that the student sees each frame; the teacher sees it once.
        crop: share of the height and width of a frame that a step sees, at a random place; the
            teacher has seen the whole frame.
        batch_size: number of crops in a step.
        lr: peak learning rate of a one-cycle schedule.
        epistemic_weight: weight of the loss of the logarithm of epistemic, beside the divergence of
            the mean probabilities.
        energy_weight: weight of the loss of the mean energy.
        head_channels: number of hidden channels of the head.
        draws: number of draws of a teacher with noise.
        start: model folder of the network that the student starts from; by default the teacher's
            network, or the first one of an ensemble.
        seed: random seed of the draws, the head and the order of the frames.

    >>> import torch
    >>> import segunc
    >>> _ = torch.manual_seed(0)
    >>> first = torch.nn.Conv2d(3, 4, 3, padding=1)
    >>> net = torch.nn.Sequential(first, torch.nn.BatchNorm2d(4), torch.nn.Conv2d(4, 2, 1))
    >>> base = segunc.wrap(net, ("road", "other"))
    >>> images = torch.rand(4, 3, 64, 64)
    >>> labels = (images.mean(1) > 0.5).long()
    >>> batches = [(images[:2], labels[:2]), (images[2:], labels[2:])]
    >>> model = segunc.Student(epochs=1, corruptions=[]).fit(base, batches)
    >>> model.posterior.method
    'distil'
    """

    section = "distil"
    method = "distil"
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


@dataclass(frozen=True)
class Lesson:
    """A frame and what the teacher says of some of its pixels: those of every fourth row and column
    from ``first`` on.
    """

    image: Image  # RGB uint8, as it is shown, at the size that the network sees
    first: tuple[int, int]  # row and column
    probabilities: Tensor  # float16 [C, h, w]
    epistemic: Tensor  # float32 [h, w], nats
    energy: Tensor  # float32 [h, w]

    def part(self, share: float, random: np.random.Generator) -> Lesson:
        """Return a crop at a random place, whose sides are a share, 0..1, of the whole sides."""
        height, width = self.image.shape[:2]
        rows = _random_part(height // PIXEL_STEP, share, random)
        columns = _random_part(width // PIXEL_STEP, share, random)
        image = self.image[_in_pixels(rows), _in_pixels(columns)]
        return Lesson(
            image=np.ascontiguousarray(image),
            first=self.first,
            probabilities=self.probabilities[:, rows, columns],
            epistemic=self.epistemic[rows, columns],
            energy=self.energy[rows, columns],
        )


def _random_part(whole: int, share: float, random: np.random.Generator) -> slice:
    """Return a part at a random place of a side of so many places."""
    length = min(whole, max(MIN_CROP, round(share * whole)))
    start = int(random.integers(whole - length + 1))
    return slice(start, start + length)


def _in_pixels(places: slice) -> slice:
    return slice(PIXEL_STEP * places.start, PIXEL_STEP * places.stop)


def distillation_loss(logits: Tensor, lesson: Lesson, settings: Student) -> dict[str, Tensor]:
    """Return the parts of the loss of both draws of a frame.

    Args:
        logits: of the draws, ``[2, C, H, W]``.

    Returns:
        Scalars, means over pixels: ``divergence`` of the draws' mean probabilities from the
        teacher's in nats; and smooth L1 losses of the logarithm of ``epistemic`` and of the mean
        ``energy``.
    """
    first_row, first_column = lesson.first
    logits = logits[:, :, first_row::PIXEL_STEP, first_column::PIXEL_STEP].float()
    taught = lesson.probabilities.to(logits.device).float()
    taught_epistemic = lesson.epistemic.to(logits.device)
    taught_energy = lesson.energy.to(logits.device)

    logs = logits.log_softmax(1)
    mean = logs.logsumexp(0) - math.log(2)
    epistemic = (logs.exp() * (logs - mean)).sum(1).mean(0).clamp_min(0.0)
    log_epistemic = (epistemic + FLOOR).log()
    log_taught_epistemic = (taught_epistemic + FLOOR).log()
    energy = -logits.logsumexp(1).mean(0)
    divergence = (torch.special.xlogy(taught, taught) - taught * mean).sum(0).mean()
    epistemic_loss = F.smooth_l1_loss(log_epistemic, log_taught_epistemic)
    return {
        "divergence": divergence,
        "epistemic": settings.epistemic_weight * epistemic_loss,
        "energy": settings.energy_weight * F.smooth_l1_loss(energy, taught_energy),
    }


class Learner:
    """A network, its last layer and a head while they are trained; statistics of normalisation
    layers stay.
    """

    def __init__(
        self, network: SegmentationNetwork, settings: Student, *, quiet: bool = False
    ) -> None:
        self.quiet = quiet
        self.network = network.eval().requires_grad_(False)
        self.settings = settings
        self.logit_layer = LogitLayer(network)
        self.head = make_head(self.logit_layer.module, settings.head_channels)
        self.head.to(self.logit_layer.module.weight)
        trained = [module for module in network.modules() if classify(module)[0] is not None]
        trained.append(self.logit_layer.module)
        self.parameters = []
        for layer in trained:
            for parameter in layer.parameters():
                if parameter.is_floating_point():
                    self.parameters.append(parameter.requires_grad_(True))

    def logits(self, images: Tensor) -> Tensor:
        """Return the logits ``[2 n, C, H, W]`` of both draws of images ``[n, 3, H, W]``, in one
        pass of all before the last layer.
        """
        inputs: list[Tensor] = []

        def keep(features: Tensor) -> Tensor:
            inputs.append(features)
            return features

        def make_draws(logits: Tensor) -> Tensor:
            difference = self.head(inputs.pop())
            return torch.cat([logits + difference, logits - difference])

        with self.logit_layer.changed(keep, make_draws):
            images = images.contiguous(memory_format=torch.channels_last)
            return run_with_gradients(self.network, images)

    def train(self, lessons: Sequence[Lesson]) -> dict[str, float]:
        """Learn each lesson once an epoch, and return the mean parts of the loss over the last
        epoch.
        """
        settings = self.settings
        random = np.random.Generator(np.random.Philox(key=settings.seed))
        batches = self._batches(len(lessons), random)
        head_lr = HEAD_RATE * settings.lr
        groups = [
            {"params": self.parameters, "lr": settings.lr},
            {"params": list(self.head.parameters()), "lr": head_lr},
        ]
        optimizer = make_optimizer("adamw", groups, settings.lr)
        schedule = make_schedule(optimizer, "onecycle", len(batches), [settings.lr, head_lr])
        losses: list[dict[str, float]] = []
        progress = ConsoleProgress(label="student", unit="step", quiet=self.quiet)
        for step, batch in enumerate(progress.follow(batches)):
            for number in batch:
                crop = lessons[number].part(settings.crop, random)
                losses.append(self._add_gradients(crop, len(batch), step))
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        last_epoch = losses[-len(lessons) :]
        means = {}
        for name in last_epoch[0]:
            means[name] = round(float(np.mean([parts[name] for parts in last_epoch])), 6)
        return means

    def _batches(self, lessons: int, random: np.random.Generator) -> list[npt.NDArray[np.int64]]:
        """Return the numbers of the lessons of each step, of all epochs."""
        steps = math.ceil(lessons / self.settings.batch_size)
        batches = []
        for _ in range(self.settings.epochs):
            batches += np.array_split(random.permutation(lessons), steps)
        return batches

    def _add_gradients(self, lesson: Lesson, batch_size: int, step: int) -> dict[str, float]:
        """Add the gradients of a lesson, one of its batch, and return the parts of its loss."""
        image = network_input([lesson.image], lesson.image.shape[:2]).to(self.network.mean.device)
        parts = distillation_loss(self.logits(image), lesson, self.settings)
        loss = torch.stack(list(parts.values()))
        if not bool(torch.isfinite(loss).all()):
            raise diverged("the loss", step)
        (loss.sum() / batch_size).backward()  # type: ignore[no-untyped-call]
        return dict(zip(parts, loss.tolist(), strict=True))


def frames_to_learn(run: FitRun[Student]) -> Iterator[tuple[str, Image]]:
    """Yield names and images RGB uint8 ``[H, W, 3]`` of the frames that a student learns from;
    InputError where there is none.
    """
    settings = run.settings
    if not settings.input:
        data = run.data.dataset("train")
        chosen = spaced(len(data), settings.frames)
        if run.source.settings:
            run.note_epoch_frames(data.samples[index].name for index in chosen)
        progress = ConsoleProgress(label="teacher", quiet=run.quiet)
        for index in progress.follow(chosen):
            image = as_8_bits(data.read(index)[0])
            has_names = hasattr(data, "samples")
            yield data.samples[index].name if has_names else content_name(image), image
        return
    source = open_source(settings.input, all_images=False)
    count = source.length or source.length_hint
    if settings.frames and not count:
        raise InputError(
            f"{settings.input} does not say how many frames it has, so {settings.frames} evenly "
            "spaced ones cannot be chosen",
            hint="--distil.frames 0 takes all of them, or give a folder of its frames",
        )
    some = set(spaced(count or 0, settings.frames)) if settings.frames else None
    for frame in source.frames(lambda index, _: some is not None and index not in some):
        if frame.image is None:
            raise InputError(f"a frame cannot be read: {frame.error}")
        yield frame.name, shown_colours(frame.image)


class Teacher:
    """A model that says what its draws make of a frame, at random rows and columns."""

    def __init__(self, model: Model, settings: Student) -> None:
        self.sampler = Sampler(
            model.network,
            model.posterior,
            draws=settings.draws,
            seed=settings.seed,
            scores=TAUGHT_SCORES,
            fitted=model.fitted(TAUGHT_SCORES),
        )
        self.random = np.random.Generator(np.random.Philox(key=settings.seed))
        self.nats = math.log(model.network.description.num_classes)  # of an epistemic of 1

    def lesson(self, image: Image, size: tuple[int, int]) -> Lesson:
        """Return the lesson of an image RGB uint8 ``[H, W, 3]``, at the (height, width) that the
        network sees.

        Raises:
            InputError: the teacher takes no frames of this size.
        """
        inputs = network_input([image], size)
        try:
            sampled = self.sampler(inputs, keep_probabilities=True)
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise
            height, width = size
            raise InputError(
                f"the teacher takes no frames of {width} x {height} pixels ({one_line(error)})",
                hint="give another --data.size H,W",
            ) from error
        top, left = self.random.integers(PIXEL_STEP, size=2).tolist()

        def taught(values: Any) -> Tensor:
            chosen: Tensor = values[0][..., top::PIXEL_STEP, left::PIXEL_STEP]
            return chosen.clone().cpu()

        return Lesson(
            image=(inputs[0] * 255).round().byte().permute(1, 2, 0).numpy(),
            first=(top, left),
            probabilities=taught(sampled.probabilities).half(),
            epistemic=taught(sampled.scores["epistemic"]) * self.nats,
            energy=taught(sampled.scores["mean-energy"]),
        )


def make_lessons(run: FitRun[Student], network: SegmentationNetwork) -> Iterator[Lesson]:
    """Yield the lesson of each frame clean and under one of the corruptions, at the size at which
    the network of the student sees it.
    """
    corruptions = [Corruption.parse(text) for text in run.settings.corruptions]
    taught = Teacher(run.model, run.settings)
    description = network.description
    override = run.config.data.get("size")
    if override:
        override = (override[0], override[1])
    for number, (name, image) in enumerate(frames_to_learn(run)):
        height, width = image.shape[:2]
        size = inference_size(description, (height, width), override)
        yield taught.lesson(image, size)
        if corruptions:
            corruption = corruptions[number % len(corruptions)]
            yield taught.lesson(corruption(image, name), size)


def _first_network(run: FitRun[Student]) -> SegmentationNetwork:
    """Return the network that the student begins as; InputError where its classes are not the
    teacher's.
    """
    teacher = run.model
    first = teacher
    while first.parts:
        first = first.parts[0]
    folder = Path(run.settings.start) if run.settings.start else first.base_folder
    if folder is None or not (folder / WEIGHTS).exists():
        return copy_network(first.network)
    network = load_network(folder, ignore_posterior=True)
    theirs = teacher.network.description.classes
    ours = network.description.classes
    if theirs != ours:
        raise InputError(
            f"the teacher has the classes {', '.join(theirs[:4])}, ..., and {folder} "
            f"{', '.join(ours[:4])}, ...",
            hint="both need the same",
        )
    return network


def _description_of_student(network: SegmentationNetwork) -> NetworkDescription:
    """Return the description of a network whose weights were trained on: what was measured of those
    before belongs to the network that it started from, whose hash it still has.
    """
    provenance = dict(network.description.provenance)
    start: dict[str, Any] = {"sha256": network.sha256}
    if VAL_MIOU in provenance:
        start[VAL_MIOU] = provenance.pop(VAL_MIOU)
    provenance[START] = start
    return replace(network.description, provenance=provenance)


def distil(run: FitRun[Student]) -> Model:
    """Return a student of the model, which is its teacher."""
    settings = run.settings
    teacher = run.model
    start = time.perf_counter()
    teacher.network.description.check_colour("a student", hint="take the model itself")
    if isinstance(getattr(teacher.posterior, "inner", teacher.posterior), StudentPosterior):
        raise InputError(
            "the model is a student, which cannot be a teacher",
            hint="take the teacher of this student",
        )
    network = _first_network(run)
    torch.manual_seed(settings.seed)
    network = network.to(run.device).to(memory_format=torch.channels_last)
    learner = Learner(network, settings, quiet=run.quiet)
    lessons = list(make_lessons(run, network))
    teacher_seconds = time.perf_counter() - start
    run.say(
        f"the teacher has seen {counted(len(lessons), 'frame')}, clean and corrupted, "
        f"in {teacher_seconds:.0f} s"
    )
    loss = learner.train(lessons)
    provenance = {
        "teacher": teacher.posterior.method,
        "teacher_sha256": teacher.posterior_sha256,
        **run.data_record(),
        "settings": run.config.plain()[settings.section],
        "frames": len(lessons),
        "loss": loss,
        "teacher_seconds": round(teacher_seconds, 1),
        **environment("32-true"),
        "seconds": round(time.perf_counter() - start, 1),
    }
    network.description = _description_of_student(network)
    network.sha256 = network_sha256(network.body, network.description)
    head = learner.head.eval()
    student = StudentPosterior(network, head, learner.logit_layer.module)
    record = posterior_record(
        student, None, base_sha256=network.sha256, seed=settings.seed, provenance=provenance
    )
    made = _student_model(student, plain_record(record))
    made.documents = configuration_documents(run.config, run.method, teacher.folder)
    made.summary = (
        f"a student of {teacher.posterior.method}, {loss['divergence']:.4f} nats "
        "from it in the last epoch"
    )
    return made


def _student_model(student: StudentPosterior, record: Mapping[str, Any]) -> Model:
    """Return the model of a student."""
    sha256: str = record["base_sha256"]
    digest = posterior_hash(record["tensors_sha256"], student)
    return Model(student.network, student, sha256, digest, None, record)


def store_student(model: Model, out: Path) -> None:
    """Write the folder of a student."""
    student = cast(StudentPosterior, model.posterior)
    if (out / DESCRIPTION).exists() and posterior_method(out) != student.method:
        raise InputError(f"{out} holds another model", hint="give another folder")
    save_network(student.plain, out, keeps_weights=True)
    save_posterior(student, dict(model.record), out)


def load_student(folder: Path, record: Mapping[str, Any], networks: GivenNetworks) -> Model:
    """Return the student that a record describes."""
    network, tensors, _ = load_base(folder, record, networks)
    layer = LogitLayer(network).module
    head = make_head(layer, record["head_channels"])
    load_state(head, tensors, str(folder / TENSORS))
    return _student_model(StudentPosterior(network, head.eval(), layer), record)


METHOD = Method(
    name="distil",
    config=Student,
    fit=distil,
    load=load_student,
    store=store_student,
    finished=True,
    own_network=True,
)
