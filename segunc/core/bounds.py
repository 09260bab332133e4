"""Numbers and their bounds: dataclasses that check themselves, in Python, on the command line and from a configuration file alike."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from numbers import Integral, Real
from types import UnionType
from typing import Annotated, Any, ClassVar, Literal, Union, get_args, get_origin, get_type_hints

from segunc.core.errors import InputError


@dataclass(frozen=True)
class Bound:
    """A range of numbers: from ``least`` or above ``above``, up to ``most`` or below ``below``."""

    least: float | None = None
    above: float | None = None
    most: float | None = None
    below: float | None = None

    def holds(self, value: float) -> bool:
        low = (self.least is None or value >= self.least) and (self.above is None or value > self.above)
        return low and (self.most is None or value <= self.most) and (self.below is None or value < self.below)

    def __str__(self) -> str:
        low = f"of at least {self.least:.10g}" if self.above is None else f"above {self.above:g}"
        high = f" and below {self.below:g}" if self.below is not None else ""
        return f"a number {low}{high}" + ("" if self.most is None else f" and at most {self.most:.10g}")


PositiveInt = Annotated[int, Bound(above=0)]
NonNegativeInt = Annotated[int, Bound(least=0)]
PositiveFloat = Annotated[float, Bound(above=0)]
NonNegativeFloat = Annotated[float, Bound(least=0)]
UnitInterval = Annotated[float, Bound(least=0, most=1)]
BelowOne = Annotated[float, Bound(least=0, below=1)]
Count = Annotated[int, Bound(least=1, most=4096)]
"""Of draws, frames in a batch or processes. A Latin hypercube of so many draws takes a gigabyte for 30,000 channels."""
Threads = Annotated[int, Bound(least=1, most=1024)]
"""OpenMP ends the process where it cannot start as many as it is told."""
Bits = Annotated[int, Bound(least=8, most=16)]
Seed = Annotated[int, Bound(least=0, most=2**32 - 1)]
LARGEST_SIDE = 16_384
Side = Annotated[int, Bound(least=32, most=LARGEST_SIDE)]
"""Of a frame that a network sees, in pixels: 32 is the stride of the deepest feature map of the usual encoders, a smaller input leaves it
nothing."""


@dataclass(frozen=True)
class Settings:
    """Base of frozen dataclasses whose fields are typed with the names above, alone, in a list or beside None, or as
    Literals. InputError where a value is out of its range. ``section`` is their key in a configuration file."""

    section: ClassVar[str] = "settings"

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self), include_extras=True)
        for field in fields(self):
            check_value(field.name, getattr(self, field.name), hints[field.name])


def check_device_name(text: str) -> None:
    """Raise InputError for anything but ``auto``, ``cpu`` or ``cuda[:N]``; whether the device is there is known later."""
    if not re.fullmatch(r"auto|cpu|cuda(:\d{1,6})?", text, re.ASCII):
        raise InputError(f"--device {text}", "auto, cpu, cuda or cuda:N", "check the spelling")


def check_value(name: str, value: Any, hint: Any, remedy: str = "repair the configuration") -> None:
    """Raise InputError where a value, or one inside it, is out of the range of its type, or no value of a Literal; and, whatever its type
    is, where it is NaN or infinite, or a text that holds a null character, which no name of a file can,
    or other bytes than UTF-8, which no record can."""
    origin, inner = get_origin(hint), get_args(hint)
    if value is None and hint not in (Any, None) and origin is not Literal and type(None) not in inner:
        raise InputError(f"{name} none", "a value, or no such key for the default", remedy)
    if isinstance(value, float) and not math.isfinite(value):
        raise InputError(f"{name} {value}", "a finite number", remedy)
    if isinstance(value, str) and ("\0" in value or value != value.encode(errors="replace").decode()):
        raise InputError(f"{name} {ascii(value)[:80]}", "a text without null characters, in UTF-8", remedy)
    if origin in (Union, UnionType) and value is not None:
        for each in inner:
            check_value(name, value, each, remedy)
    elif origin is Literal and value not in inner:
        raise InputError(f"{name} {value}", f"one of {', '.join(map(str, inner))}")
    elif origin is Annotated:
        right = isinstance(value, Integral if inner[0] is int else Real) and not isinstance(value, bool)
        for bound in inner[1:]:
            if isinstance(bound, Bound) and not (right and bound.holds(value)):
                raise InputError(f"{name} {ascii(value)[:80]}", str(bound), remedy)
        if inner[0] not in (int, float):
            check_value(name, value, inner[0], remedy)
    elif isinstance(value, Mapping | list | tuple):
        # Of a list or a mapping all are of one type; of a tuple each may have its own.
        items = (
            {f"{name}.{k}".lstrip("."): v for k, v in value.items()}.items()
            if isinstance(value, Mapping)
            else [(name, v) for v in value]
        )
        kinds = inner if origin is tuple and len(inner) == len(items) else [inner[-1] if inner else Any] * len(items)
        for (place, item), kind in zip(items, kinds, strict=True):
            check_value(place, item, kind, remedy)


def meanings(section: type) -> dict[str, tuple[str, str]]:
    """Return what the docstrings of a class and its bases say of its arguments, ``NAME (PLACEHOLDER): TEXT``: placeholder and text."""
    found: dict[str, tuple[str, str]] = {}
    for base in reversed(section.__mro__):
        names: list[str] = []
        said = inspect.cleandoc(base.__dict__.get("__doc__") or "").partition("\nArgs:\n")[2].partition("\n\n")[0]
        for line in said.splitlines():
            if entry := re.fullmatch(r"    (\w+(?:, \w+)*)(?: \(([^)]*)\))?: (.*)", line):
                names = entry[1].split(", ")
                found |= dict.fromkeys(names, (entry[2] or "", entry[3]))
            else:
                found |= {name: (found[name][0], f"{found[name][1]} {line.strip()}") for name in names}
    return found
