"""Checks of settings: numbers and their bounds, and dataclasses that check themselves, in Python,
on the command line and from a configuration file.
"""

from __future__ import annotations

import inspect
import json
import math
import re
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
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
        """Return whether a number lies in the range; NaN lies in none."""
        if self.least is not None and not value >= self.least:
            return False
        if self.above is not None and not value > self.above:
            return False
        if self.most is not None and not value <= self.most:
            return False
        return self.below is None or value < self.below

    def __str__(self) -> str:
        text = "a number"
        if self.above is not None:
            text += f" above {self.above:g}"
        elif self.least is not None:
            text += f" of at least {self.least:.10g}"
        if self.below is not None:
            text += f" and below {self.below:g}"
        if self.most is not None:
            text += f" and at most {self.most:.10g}"
        return text


PositiveInt = Annotated[int, Bound(above=0)]
NonNegativeInt = Annotated[int, Bound(least=0)]
PositiveFloat = Annotated[float, Bound(above=0)]
NonNegativeFloat = Annotated[float, Bound(least=0)]
UnitInterval = Annotated[float, Bound(least=0, most=1)]
BelowOne = Annotated[float, Bound(least=0, below=1)]
Count = Annotated[int, Bound(least=1, most=4096)]
"""A number of draws, of frames in a batch or of processes.

A Latin hypercube of 4096 draws takes a gigabyte for 30,000 channels.
"""
Threads = Annotated[int, Bound(least=1, most=1024)]
"""A number of threads. OpenMP ends the process if it cannot start as many as it is told."""
Seed = Annotated[int, Bound(least=0, most=2**32 - 1)]
LARGEST_SIDE = 16_384
Side = Annotated[int, Bound(least=32, most=LARGEST_SIDE)]
"""Height or width in pixels of a frame that a network sees.

The deepest feature map of the usual encoders has a stride of 32.
"""


@dataclass(frozen=True)
class Settings:
    """Base of frozen dataclasses that check their fields by :func:`check_value`.

    ``section`` is their key in a configuration file.
    """

    section: ClassVar[str] = "settings"

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self), include_extras=True)
        for field in fields(self):
            check_value(field.name, getattr(self, field.name), hints[field.name])

    @classmethod
    def without_use(cls, values: Mapping[str, Any]) -> tuple[Collection[str], str]:
        """Return the names of settings that have no use with others, and why.

        Args:
            values: the settings that are given, by their names, as a file has them.
        """
        return (), ""


def check_value(name: str, value: Any, hint: Any, remedy: str = "give another value") -> None:
    """Check a value against its type, also within a list, a tuple or a mapping.

    Whatever the type is, no number is NaN or infinite, and no text holds a null character or half
    of a surrogate pair.

    Args:
        name: of the value in the message.
        value: what is checked.
        hint: its type, which may have a :class:`Bound`.
        remedy: the hint of the message.

    Raises:
        InputError: the value is out of a :class:`Bound`, or none of a Literal.
    """
    origin = get_origin(hint)
    inner = get_args(hint)
    if value is None and not _allows_none(hint):
        raise InputError(f"{name} is none", hint="leave it out for the default")
    if isinstance(value, float) and not math.isfinite(value):
        raise InputError(f"{name} {value} is not finite", hint=remedy)
    if isinstance(value, str):
        _check_text(name, value, hint, remedy)
    if origin in (Union, UnionType):
        if value is not None:
            _check_union(name, value, inner, remedy)
    elif origin is Literal:
        if value not in inner:
            raise InputError(f"{name} {value} is none of {', '.join(map(str, inner))}")
    elif origin is Annotated:
        _check_bounds(name, value, hint, remedy)
    else:
        _check_items(name, value, hint, remedy)


def _check_union(name: str, value: Any, kinds: Sequence[Any], remedy: str) -> None:
    """Check a value that may be of several types. A choice of one of them needs no other check."""
    choices = [kind for kind in kinds if get_origin(kind) is Literal]
    others = [kind for kind in kinds if kind not in choices and kind is not type(None)]
    if any(value in get_args(kind) for kind in choices):
        return
    for kind in others or choices:
        check_value(name, value, kind, remedy)


def _check_items(name: str, value: Any, hint: Any, remedy: str) -> None:
    """Check what a mapping, a list or a tuple holds; other values hold nothing."""
    if isinstance(value, Mapping):
        inner = get_args(hint)
        kind_of_items = inner[-1] if inner else Any
        for key, item in value.items():
            check_value(f"{name}.{key}".lstrip("."), item, kind_of_items, remedy)
    elif isinstance(value, list | tuple):
        kinds_of_elements = _kinds_of_elements(hint, len(value))
        for item, kind in zip(value, kinds_of_elements, strict=True):
            check_value(name, item, kind, remedy)


def _allows_none(hint: Any) -> bool:
    """Return whether None needs no error of its own; a Literal decides by its values."""
    return hint in (Any, None) or get_origin(hint) is Literal or type(None) in get_args(hint)


def _check_text(name: str, value: str, hint: Any, remedy: str) -> None:
    """Raise InputError for a text that no file can hold, or that stands for a tuple."""
    shown = f"{name} {ascii(value)[:80]}"
    is_utf8 = value == value.encode(errors="replace").decode()
    if "\0" in value or not is_utf8:
        raise InputError(f"{shown} is not a text in UTF-8 without null characters", hint=remedy)
    # From Python; the command line has made a tuple of such a text before.
    if get_origin(hint) is tuple:
        raise InputError(f"{shown} is not a tuple", hint=remedy)


def _check_bounds(name: str, value: Any, hint: Any, remedy: str) -> None:
    """Raise InputError for a value that is out of a :class:`Bound` of an annotated type."""
    kind, *annotations = get_args(hint)
    is_of_kind = isinstance(value, Integral if kind is int else Real)
    is_number = is_of_kind and not isinstance(value, bool)
    for bound in annotations:
        if isinstance(bound, Bound) and not (is_number and bound.holds(value)):
            raise InputError(f"{name} {ascii(value)[:80]} is not {bound}", hint=remedy)
    if kind not in (int, float):
        check_value(name, value, kind, remedy)


def _kinds_of_elements(hint: Any, count: int) -> Sequence[Any]:
    """Return the type of each element of a list or tuple of ``count`` elements.

    The elements of a list have one type; each element of a tuple may have its own.
    """
    inner = get_args(hint)
    if get_origin(hint) is tuple and ... not in inner and len(inner) == count:
        return inner
    kind = inner[0] if inner else Any
    return [kind] * count


def first_equal_names(names: Iterable[str]) -> tuple[int, int] | None:
    """Return the places of the first two equal names, None if all differ.

    Names are equal however their accents are written.
    """
    place_of: dict[str, int] = {}
    for place, name in enumerate(names):
        first = place_of.setdefault(unicodedata.normalize("NFC", name), place)
        if first != place:
            return first, place
    return None


def check_device(text: str) -> None:
    """Raise InputError for a text that names no device, whatever devices there are."""
    if not re.fullmatch(r"auto|cpu|cuda(:\d{1,6})?", text, re.ASCII):
        raise InputError(
            f"--device {text} is not a device", hint="choose auto, cpu, cuda or cuda:N"
        )


def meanings(section: type, heading: str = "Args") -> dict[str, tuple[str, str]]:
    """Return placeholder and text of each argument of a class.

    They stand in the docstrings of the class and its bases as ``NAME (PLACEHOLDER): TEXT``.

    Args:
        section: the class.
        heading: of the part of the docstrings, ``Args`` or ``Attributes``.
    """
    texts: dict[str, tuple[str, str]] = {}
    for base in reversed(section.__mro__):
        names: list[str] = []
        docstring = inspect.cleandoc(base.__dict__.get("__doc__") or "")
        arguments = docstring.partition(f"\n{heading}:\n")[2].partition("\n\n")[0]
        for line in arguments.splitlines():
            entry = re.fullmatch(r"    (\w+(?:, \w+)*)(?: \(([^)]*)\))?: (.*)", line)
            if entry is not None:
                names = entry[1].split(", ")
                texts |= dict.fromkeys(names, (entry[2] or "", entry[3]))
                continue
            for name in names:
                placeholder, text = texts[name]
                texts[name] = placeholder, f"{text} {line.strip()}"
    return texts


def _missing_value(key: str, holder: Any) -> str:
    """Return what is wrong where a value is missing.

    Args:
        key: where it should be, such as ``root``, or ``crop.1`` for the second value of a list.
        holder: the values that do not hold it.
    """
    name, _, position = key.rpartition(".")
    if name and position.isdecimal():
        values = ascii(holder)[:80]
        return f"{name} {values} has too few values; expected at least {int(position) + 1}"
    return f"{key} is missing"


def from_plain(kind: type[T], values: Mapping[str, Any], where: str) -> T:
    """Return the dataclass that plain values by the names of its fields describe.

    Pydantic checks names and types, the dataclass itself ranges. A list may stand for a tuple and a
    whole number for any number. No number stands for a text or a truth value.

    Raises:
        InputError: the values describe no such dataclass; the message begins with ``where``.
    """
    from pydantic import ConfigDict, TypeAdapter, ValidationError  # takes a tenth of a second

    from segunc.core.yaml_text import VALUE_HINT, looks_like_value

    # Within a list the configuration holds for a dataclass and for the dataclasses in it.
    adapter = TypeAdapter(list[kind], config=ConfigDict(extra="forbid", strict=True))  # type: ignore[valid-type]
    try:
        made: T = adapter.validate_json(json.dumps([values], default=str))[0]
        return made
    except ValidationError as error:
        first = error.errors()[0]
        cause = first.get("ctx", {}).get("error")
        if isinstance(cause, InputError):
            raise cause.within(where) from error
        key = ".".join(str(part) for part in first["loc"][1:])
        if first["type"] == "unexpected_keyword_argument":
            names = [field.name for field in fields(kind)]  # type: ignore[arg-type]
            near = nearest(key, names)
            hint = "" if near else f"the keys are {', '.join(names)}"
            raise InputError(f"{where}: unknown key '{key}'{near}", hint=hint) from error
        if first["type"] == "missing":
            raise InputError(f"{where}: {_missing_value(key, first['input'])}") from error
        value = f" {ascii(first['input'])[:80]}"
        reason = first["msg"][0].lower() + first["msg"][1:]
        hint = VALUE_HINT if looks_like_value(first["input"]) else ""
        raise InputError(f"{where}: {key}{value}: {reason}", hint=hint) from error
