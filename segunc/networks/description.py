"""What a segmentation network is, beside its weights: the content of ``network.json``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from segunc.core.bounds import LARGEST_SIDE
from segunc.core.errors import InputError

FORMAT = 2
"""Of ``network.json``: its hash is of the weights and of what is described."""
SMP = "smp"
"""The kind of network that :mod:`segmentation_models_pytorch` builds."""
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class NetworkDescription:
    """Architecture, classes and input of a segmentation network.

    Attributes:
        architecture: of the network's kind by name, e.g. ``DeepLabV3Plus`` of smp.
        encoder: e.g. ``resnet18`` or ``tu-convnext_tiny`` of smp; empty for kinds without a choice of encoders.
        classes: the C class names in the order of the logits.
        palette: one (red, green, blue) in 0..255 a class.
        options: further keyword arguments of the architecture, e.g. ``{"decoder_channels": 128}``.
        mean, std: input normalisation of images in 0..1, per channel.
        inference_size: (height, width) of the frames that the network was made for, or None for any. A frame of the
            same aspect ratio is resized to it; another keeps its aspect ratio and gets about the same number of pixels.
        provenance: how the weights came to be: free text and numbers.
        kind: what builds it, a name of :data:`segunc.networks.build.KINDS`.
        divisor: what height and width of a frame must be divisible by, if that was tried (see :mod:`segunc.networks.network`).
        dropped_outputs: numbers from 0 of the outputs of the network as it is built that are no class, such as *void*.
    """

    architecture: str
    encoder: str
    classes: tuple[str, ...]
    palette: tuple[tuple[int, int, int], ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    mean: tuple[float, float, float] = IMAGENET_MEAN
    std: tuple[float, float, float] = IMAGENET_STD
    inference_size: tuple[int, int] | None = None
    provenance: dict[str, Any] = field(default_factory=dict)
    kind: str = SMP
    divisor: int | None = None
    dropped_outputs: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.classes or len(self.classes) > 255:
            raise InputError(f"a network with {len(self.classes)} classes", "1 to 255 class names", "name the classes")
        if self.palette and len(self.palette) != len(self.classes):
            raise InputError(
                f"a palette of {len(self.palette)} colours", f"one for each of {len(self.classes)} classes", ""
            )
        finite = all(map(math.isfinite, (*self.mean, *self.std)))
        if len(self.mean) != 3 or len(self.std) != 3 or not finite or not all(s > 0 for s in self.std):
            raise InputError(
                f"input mean {self.mean} and std {self.std}",
                "three finite numbers each, those of std positive",
                "repair the input normalisation",
            )
        if (
            self.inference_size is not None
            and not 1 <= min(self.inference_size) <= max(self.inference_size) <= LARGEST_SIDE
        ):
            expected = f"a (height, width) of 1 to {LARGEST_SIDE}"
            raise InputError(f"inference size {self.inference_size}", expected, "repair it")
        if self.divisor is not None and not 1 <= self.divisor <= LARGEST_SIDE:
            raise InputError(f"divisor {self.divisor}", f"1 to {LARGEST_SIDE}", "repair it")
        if len(self.kept_outputs) != len(self.classes):
            raise InputError(f"dropped outputs {self.dropped_outputs}", "different ones that exist", "repair them")

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    @property
    def kept_outputs(self) -> tuple[int, ...]:
        """The number of each class's output of the network as it is built."""
        outputs = range(len(self.classes) + len(self.dropped_outputs))
        return tuple(number for number in outputs if number not in self.dropped_outputs)

    def with_all_outputs(self) -> NetworkDescription:
        """Return the description of the network as it is built, with a class for each output."""
        names = dict(zip(self.kept_outputs, self.classes, strict=True)) | dict.fromkeys(self.dropped_outputs, "dropped")
        return replace(self, classes=tuple(names[n] for n in sorted(names)), palette=(), dropped_outputs=())

    def without(self, names: Sequence[str]) -> NetworkDescription:
        """Return the description without some outputs: classes by name, or numbers from 0 of outputs that have no class.

        Raises:
            InputError: a name that is no class, a number beyond the outputs, or no class is left.
        """
        unnamed = {int(name) for name in names if name not in self.classes and name.isdecimal()}
        unknown = [name for name in names if name not in self.classes and not name.isdecimal()]
        outputs = len(self.classes) + len(unnamed)
        kept = [c for c, name in enumerate(self.classes) if name not in names]
        if unknown or not kept or max(unnamed, default=0) >= outputs:
            raise InputError(
                f"--drop-classes {','.join(names)} of {outputs} outputs",
                "names of classes, or numbers from 0 of outputs that --classes does not name",
                "leave at least one class",
            )
        numbers = [number for number in range(outputs) if number not in unnamed]
        return replace(
            self,
            classes=tuple(self.classes[c] for c in kept),
            palette=tuple(self.palette[c] for c in kept) if self.palette else (),
            dropped_outputs=tuple(sorted({*range(outputs)} - {numbers[c] for c in kept})),
        )

    def to_json(self) -> dict[str, Any]:
        content = {"format": FORMAT, **asdict(self)}
        if self.kind == SMP:  # files of the first version know no other
            del content["kind"]
        if self.divisor is None:  # nor these
            del content["divisor"]
        if not self.dropped_outputs:
            del content["dropped_outputs"]
        return content

    @classmethod
    def from_json(cls, content: dict[str, Any], source: str) -> NetworkDescription:
        """The description in the parsed ``network.json``.

        Raises:
            InputError: another format version, an unknown or a missing key.
        """
        content = dict(content)
        if content.pop("format", None) != FORMAT:
            raise InputError(
                f"{source} is not of format {FORMAT}", "a network.json that this version wrote", "save it again"
            )
        unknown = set(content) - {f.name for f in fields(cls)}
        missing = {"architecture", "encoder", "classes"} - set(content)
        if unknown or missing:
            raise InputError(
                f"{source} has unknown keys {sorted(unknown)}, lacks {sorted(missing)}",
                "the keys of NetworkDescription",
            )
        try:
            for key in ("architecture", "encoder", "kind"):
                if not isinstance(content.get(key, ""), str):
                    raise TypeError(f"{key}: {content[key]!r}")
            content["classes"] = tuple(str(name) for name in _sequence(content["classes"]))
            content["palette"] = tuple((int(r), int(g), int(b)) for r, g, b in content.get("palette", ()))
            if not all(0 <= channel <= 255 for colour in content["palette"] for channel in colour):
                raise ValueError("a colour of the palette is not in 0..255")
            if content.get("inference_size") is not None:
                height, width = content["inference_size"]
                content["inference_size"] = (int(height), int(width))
            for key in ("mean", "std"):
                if key in content:
                    content[key] = tuple(float(v) for v in content[key])
            if content.get("divisor") is not None:
                content["divisor"] = int(content["divisor"])
            content["dropped_outputs"] = tuple(int(number) for number in content.get("dropped_outputs", ()))
            for key in ("options", "provenance"):
                content[key] = dict(content.get(key, {}))
        except (TypeError, ValueError, OverflowError) as error:
            raise InputError(
                f"{source} has a value of the wrong type ({error})", "the values that segunc wrote", "save it again"
            ) from error
        return cls(**content)


def _sequence(value: Any) -> list[Any]:
    """A JSON array; a string would pass as the sequence of its letters."""
    if not isinstance(value, list | tuple):
        raise TypeError(f"classes: {value!r}")
    return [*value]
