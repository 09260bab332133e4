"""What a segmentation network is, beside its weights: the content of ``network.json``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any

from segunc.core.bounds import (
    LARGEST_SIDE,
    Bound,
    PositiveFloat,
    Settings,
    first_equal_names,
    from_plain,
)
from segunc.core.errors import InputError

FORMAT = 2  # of ``network.json``: its hash is of the weights and of what is described
SMP = "smp"  # the kind of network that :mod:`segmentation_models_pytorch` builds
LIBRARIES = (SMP, "torchvision")
BACKGROUND = "background"  # the other class of a network of one output that has one name
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
COLOUR = 3  # input channels of a network of colour images
MAX_CHANNELS = 256  # input channels of a network
MAX_CLASSES = 255  # ids have 8 bits, and one of them is that of ignored pixels
Byte = Annotated[int, Bound(least=0, most=255)]
Pixels = Annotated[int, Bound(least=1, most=LARGEST_SIDE)]


@dataclass(frozen=True)
class NetworkDescription(Settings):
    """Architecture, classes and input of a segmentation network.

    Attributes:
        architecture: of the network's kind by name, e.g. ``DeepLabV3Plus`` of smp.
        encoder: e.g. ``resnet18`` or ``tu-convnext_tiny`` of smp; empty for kinds without a choice
            of encoders.
        classes: the C class names in the order of the logits.
        palette: one (red, green, blue) in 0..255 a class.
        options: further keyword arguments of the architecture, e.g. ``{"decoder_channels": 128}``.
        mean, std: input normalisation of images in 0..1, a number for each input channel, in the
            order of the channels. There are as many channels as numbers.
        inference_size: (height, width) of the frames that the network was made for, or None for
            any. A frame of the same aspect ratio is resized to it; another keeps its aspect ratio
            and gets about the same number of pixels.
        provenance: how the weights came to be: free text and numbers.
        kind: what builds it, a name of :data:`segunc.networks.model_folder.KINDS`.
        divisor: what height and width of a frame must be divisible by, if that was tried (see
            :mod:`segunc.networks.network`).
        dropped_outputs: numbers from 0 of the outputs of the network as it is built that are no
            class, such as *void*.
        binary: whether the network as it is built has one output z, which is read as the logits (0,
            z) of two classes.

    >>> import segunc
    >>> description = segunc.NetworkDescription(
    ...     "DeepLabV3Plus", "resnet18", ("road", "car", "sky"), inference_size=(512, 1024)
    ... )
    >>> description.num_classes
    3
    """

    architecture: str
    encoder: str
    classes: tuple[str, ...]
    palette: tuple[tuple[Byte, Byte, Byte], ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[PositiveFloat, ...] = IMAGENET_STD
    inference_size: tuple[Pixels, Pixels] | None = None
    provenance: dict[str, Any] = field(default_factory=dict)
    kind: str = SMP
    divisor: Pixels | None = None
    dropped_outputs: tuple[int, ...] = ()
    binary: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_classes()
        self._check_normalisation()
        if len(self.kept_outputs) != len(self.classes):
            raise InputError(
                f"dropped outputs {self.dropped_outputs} are not different ones that exist"
            )
        if self.binary and (len(self.classes) != 2 or self.dropped_outputs):
            raise InputError(
                f"a network of one output has two classes, not {len(self.classes)}, and drops none"
            )

    def _check_classes(self) -> None:
        if not 1 <= len(self.classes) <= MAX_CLASSES:
            raise InputError(f"a network has 1 to {MAX_CLASSES} classes, not {len(self.classes)}")
        names: Sequence[Any] = self.classes  # of a program, perhaps no texts
        for number, name in enumerate(names):
            if not isinstance(name, str):
                message = f"class {number} is {name!r}, which is not a name"
                raise InputError(message, hint=f'give texts: "{name}"')
            if not name.strip():
                message = f"class {number} of {self.classes} has no name"
                hint = "name each output of the network, without a comma at the end"
                raise InputError(message, hint=hint)
        if self.palette and len(self.palette) != len(self.classes):
            raise InputError(
                f"a palette of {len(self.palette)} colours does not fit {len(self.classes)} classes"
            )

    def _check_normalisation(self) -> None:
        if len(self.mean) != len(self.std):
            raise InputError(
                f"the input mean has {len(self.mean)} numbers and the std {len(self.std)}",
                hint="give both a number for each channel",
            )
        if not 1 <= len(self.mean) <= MAX_CHANNELS:
            message = f"a network has 1 to {MAX_CHANNELS} input channels, not {len(self.mean)}"
            raise InputError(message, hint="give mean and std a number for each channel")
        if max(self.mean) > 1:
            message = f"input mean {self.mean} is of images in 0..255, not 0..1"
            raise InputError(message, hint="divide mean and std by 255")

    def check_names(self) -> None:
        """Raise InputError if two classes have one name.

        Results are by name, so they would hold one number for both.
        """
        equal = first_equal_names(self.classes)
        if equal is not None:
            first, second = equal
            raise InputError(
                f"classes {first} and {second} of the network both have the name "
                f"'{self.classes[second]}'",
                hint="give each class a name of its own",
            )

    @property
    def channels(self) -> int:
        """The number K of input channels: 3 of colour images, 1 of grey ones."""
        return len(self.mean)

    def check_colour(self, what: str, hint: str = "leave it out") -> None:
        """Raise InputError if the network takes other images than those of three channels.

        Args:
            what: needs colour images, the beginning of the message.
            hint: of the message.
        """
        if self.channels != COLOUR:
            raise InputError(
                f"{what} needs images of three channels, and the network takes {self.channels}",
                hint=hint,
            )

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    @property
    def num_outputs(self) -> int:
        """The number of outputs of the network as it is built."""
        return 1 if self.binary else len(self.classes) + len(self.dropped_outputs)

    @property
    def kept_outputs(self) -> tuple[int, ...]:
        """The number of each class's output of the network as it is built."""
        outputs = range(len(self.classes) + len(self.dropped_outputs))
        return tuple(number for number in outputs if number not in self.dropped_outputs)

    def with_all_outputs(self) -> NetworkDescription:
        """Return the description of the network as it is built, with a class for each output."""
        if self.binary:
            return replace(self, classes=self.classes[1:], palette=(), binary=False)
        names = dict.fromkeys(self.dropped_outputs, "dropped")
        names |= dict(zip(self.kept_outputs, self.classes, strict=True))
        classes = tuple(names[output] for output in sorted(names))
        return replace(self, classes=classes, palette=(), dropped_outputs=())

    def as_binary(self) -> NetworkDescription:
        """Return the description of a network of one output. "background" is its first class where
        only one is named.
        """
        if len(self.classes) == 2:
            return replace(self, binary=True)
        if self.classes == (BACKGROUND,):
            hint = f"name what a large output means, or both classes: {BACKGROUND},road"
            raise InputError(f"the only output of the network is named '{BACKGROUND}'", hint=hint)
        palette = ((0, 0, 0), *self.palette) if self.palette else ()
        return replace(self, classes=(BACKGROUND, *self.classes), palette=palette, binary=True)

    def without(self, names: Sequence[str]) -> NetworkDescription:
        """Return the description without some outputs.

        Args:
            names: of classes, or numbers from 0 of outputs that no class names.

        Raises:
            InputError: an output is not known, or fewer than two classes are left.
        """
        others = [name for name in names if name not in self.classes]
        unknown = [name for name in others if not name.isdecimal()]
        unnamed = {int(name) for name in others if name.isdecimal()}
        outputs = len(self.classes) + len(unnamed)
        kept = [number for number, name in enumerate(self.classes) if name not in names]
        if unknown or len(kept) < 2 or max(unnamed, default=0) >= outputs:
            message = (
                f"--drop-classes {','.join(names)} does not leave two classes of {outputs} outputs"
            )
            hint = "give names of --classes, or numbers from 0 of outputs that it does not name"
            raise InputError(message, hint=hint)
        output_of_class = [output for output in range(outputs) if output not in unnamed]
        kept_outputs = {output_of_class[number] for number in kept}
        dropped = tuple(output for output in range(outputs) if output not in kept_outputs)
        classes = tuple(self.classes[number] for number in kept)
        palette = tuple(self.palette[number] for number in kept) if self.palette else ()
        return replace(self, classes=classes, palette=palette, dropped_outputs=dropped)

    def to_json(self) -> dict[str, Any]:
        """Return the content of ``network.json``, without what is usual: the hashes of networks are
        of this content.
        """
        usual = {"kind": SMP, "divisor": None, "dropped_outputs": (), "binary": False}
        content = {
            name: value
            for name, value in asdict(self).items()
            if name not in usual or value != usual[name]
        }
        return {"format": FORMAT, **content}

    @classmethod
    def from_json(cls, content: dict[str, Any], source: str) -> NetworkDescription:
        """Return the description in the parsed ``network.json``.

        Args:
            content: of the file.
            source: the path of the file, for messages.

        Raises:
            InputError: another format, a wrong key, or a value out of range.
        """
        content = dict(content)
        if content.pop("format", None) != FORMAT:
            raise InputError(
                f"{source} is not of format {FORMAT}, the one of this version", hint="save it again"
            )
        return from_plain(cls, content, source)
