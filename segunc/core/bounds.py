"""Numbers and their bounds: dataclasses that check themselves, in Python, on the command line and
from a configuration file.
"""

from __future__ import annotations

import inspect
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from numbers import Integral, Real
from types import UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from segunc.core.errors import InputError, nearest

T = TypeVar("T")


@dataclass(frozen=True)
class Bound:
    """A range of numbers: from ``least`` or above ``above``, up to ``most`` or below ``below``."""

    least: float | None = None
    above: float | None = None
    most: float | None = None
    below: float | None = None

    def holds(self, value: float) -> bool:
        low = (self.least is None or value >= self.least) and (
            self.above is None or value > self.above
        )
        return (
            low
            and (self.most is None or value <= self.most)
            and (self.below is None or value < self.below)
        )

    def __str__(self) -> str:
        low = f"of at least {self.least:.10g}" if self.above is None else f"above {self.above:g}"
        high = "" if self.below is None else f" and below {self.below:g}"
        return f"a number {low}{high}" + (
            "" if self.most is None else f" and at most {self.most:.10g}"
        )


PositiveInt = Annotated[int, Bound(above=0)]
NonNegativeInt = Annotated[int, Bound(least=0)]
PositiveFloat = Annotated[float, Bound(above=0)]
NonNegativeFloat = Annotated[float, Bound(least=0)]
UnitInterval = Annotated[float, Bound(least=0, most=1)]
BelowOne = Annotated[float, Bound(least=0, below=1)]
Count = Annotated[int, Bound(least=1, most=4096)]
"""Of draws, frames in a batch or processes. A Latin hypercube of so many draws takes a gigabyte for
30,000 channels.
"""
Threads = Annotated[int, Bound(least=1, most=1024)]
"""OpenMP ends the process where it cannot start as many as it is told."""
Seed = Annotated[int, Bound(least=0, most=2**32 - 1)]
LARGEST_SIDE = 16_384
Side = Annotated[int, Bound(least=32, most=LARGEST_SIDE)]
"""Of a frame that a network sees, in pixels; the deepest feature map of the usual encoders has a
stride of 32.
"""


@dataclass(frozen=True)
class Settings:
    """Base of frozen dataclasses that check their fields by :func:`check_value`; ``section`` is
    their key in a configuration file.
    """

    section: ClassVar[str] = "settings"

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self), include_extras=True)
        for field in fields(self):
            check_value(field.name, getattr(self, field.name), hints[field.name])


def check_value(name: str, value: Any, hint: Any, remedy: str = "repair the configuration") -> None:
    """Raise InputError for a value that its type does not allow: out of a :class:`Bound`, or none
    of a Literal, also within a list, a tuple or a mapping. Whatever the type is, no number is NaN
    or infinite, and no text holds a null character or half of a surrogate pair.
    """
    origin, inner = get_origin(hint), get_args(hint)
    shown = f"{name} {ascii(value)[:80]}"
    if (
        value is None
        and hint not in (Any, None)
        and origin is not Literal
        and type(None) not in inner
    ):
        raise InputError(f"{name} is none", hint="leave it out for the default")
    if isinstance(value, float) and not math.isfinite(value):
        raise InputError(f"{name} {value} is not finite", hint=remedy)
    if isinstance(value, str) and (
        "\0" in value or value != value.encode(errors="replace").decode()
    ):
        raise InputError(f"{shown} is no text in UTF-8 without null characters", hint=remedy)
    if (
        isinstance(value, str) and origin is tuple
    ):  # from Python; the command line has read it before
        raise InputError(f"{shown} is no tuple", hint=remedy)
    if origin in (Union, UnionType) and value is not None:
        for kind in inner:
            check_value(name, value, kind, remedy)
    elif origin is Literal and value not in inner:
        raise InputError(f"{name} {value} is none of {', '.join(map(str, inner))}")
    elif origin is Annotated:
        number = isinstance(value, Integral if inner[0] is int else Real) and not isinstance(
            value, bool
        )
        for bound in inner[1:]:
            if isinstance(bound, Bound) and not (number and bound.holds(value)):
                raise InputError(f"{shown} is not {bound}", hint=remedy)
        if inner[0] not in (int, float):
            check_value(name, value, inner[0], remedy)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            check_value(f"{name}.{key}".lstrip("."), item, inner[-1] if inner else Any, remedy)
    elif isinstance(value, list | tuple):
        # Of a list all are of one type; of a tuple each may have its own.
        each = origin is tuple and ... not in inner and len(inner) == len(value)
        for item, kind in zip(
            value, inner if each else (inner or (Any,))[:1] * len(value), strict=True
        ):
            check_value(name, item, kind, remedy)


def check_device(text: str) -> None:
    """Raise InputError where a text names no device, whatever devices there are."""
    if not re.fullmatch(r"auto|cpu|cuda(:\d{1,6})?", text, re.ASCII):
        raise InputError(f"--device {text} is no device", hint="choose auto, cpu, cuda or cuda:N")


def meanings(section: type) -> dict[str, tuple[str, str]]:
    """Return placeholder and text of each argument, as the docstrings of a class and its bases have
    them: ``NAME (PLACEHOLDER): TEXT``.
    """
    texts: dict[str, tuple[str, str]] = {}
    for base in reversed(section.__mro__):
        names: list[str] = []
        arguments = (
            inspect.cleandoc(base.__dict__.get("__doc__") or "")
            .partition("\nArgs:\n")[2]
            .partition("\n\n")[0]
        )
        for line in arguments.splitlines():
            if entry := re.fullmatch(r"    (\w+(?:, \w+)*)(?: \(([^)]*)\))?: (.*)", line):
                names = entry[1].split(", ")
                texts |= dict.fromkeys(names, (entry[2] or "", entry[3]))
            else:
                texts |= {
                    name: (texts[name][0], f"{texts[name][1]} {line.strip()}") for name in names
                }
    return texts


def from_plain(kind: type[T], values: Mapping[str, Any], where: str) -> T:
    """Return the dataclass that plain values by the names of its fields describe; pydantic checks
    names and types, the dataclass itself ranges. A list may stand for a tuple and a whole number
    for any, but no number for a text or a truth value. InputError, which says ``where``, for
    anything else.
    """
    from pydantic import ConfigDict, TypeAdapter, ValidationError  # takes a tenth of a second

    # Of a list, as only so the configuration holds for a dataclass, and for those in it.
    adapter = TypeAdapter(list[kind], config=ConfigDict(extra="forbid", strict=True))  # type: ignore[valid-type]
    try:
        made: T = adapter.validate_json(json.dumps([values], default=str))[0]
        return made
    except ValidationError as error:
        first = error.errors()[0]
        if isinstance(cause := first.get("ctx", {}).get("error"), InputError):
            raise cause.within(where) from error
        key = ".".join(str(part) for part in first["loc"][1:])
        if first["type"] == "unexpected_keyword_argument":
            names = [f.name for f in fields(kind)]  # type: ignore[arg-type]
            near = nearest(key, names)
            hint = "" if near else f"the keys are {', '.join(names)}"
            raise InputError(f"{where}: unknown key '{key}'{near}", hint=hint) from error
        value = "" if first["type"] == "missing" else f" {ascii(first['input'])[:80]}"
        raise InputError(
            f"{where}: {key}{value}: {first['msg'][0].lower()}{first['msg'][1:]}"
        ) from error
