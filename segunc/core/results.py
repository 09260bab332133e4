"""What the functions of the verbs return: frozen dataclasses that print as lines to read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from typing import Any, ClassVar

from segunc.core.errors import shortened

MAX_SHOWN = 4  # entries of a list or a mapping
MAX_LENGTH = 80  # characters of a value


class VerbResult:
    """Base of the results, which prints one field a line.

    Fields that hold their default are left out. The properties named in ``shown_properties`` are
    printed, too.
    """

    shown_properties: ClassVar[tuple[str, ...]] = ()

    def __repr__(self) -> str:
        return "\n  ".join([type(self).__name__, *self._lines()])

    def _lines(self) -> Iterator[str]:
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if not _is_default(field, value):
                yield f"{field.name}: {value_in_words(value)}"
        for name in self.shown_properties:
            value = getattr(self, name)
            if value or value == 0:
                yield f"{name}: {value_in_words(value)}"


def _is_default(field: Field[Any], value: Any) -> bool:
    return field.default is not MISSING and value is not MISSING and value == field.default


def value_in_words(value: Any) -> str:
    """Return a value of a result in one short line."""
    if isinstance(value, str | Path):
        return shortened(" ".join(str(value).split()), MAX_LENGTH)
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, Mapping):
        return _mapping_in_words(value)
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return _sequence_in_words(value)
    if is_dataclass(value) or hasattr(value, "_fields"):
        return type(value).__name__
    return shortened(" ".join(repr(value).split()), MAX_LENGTH)


def _mapping_in_words(values: Mapping[Any, Any]) -> str:
    """Return the first keys of a mapping, with their values where these are plain."""
    entries = []
    for key, value in list(values.items())[:MAX_SHOWN]:
        is_plain = isinstance(value, str | Path | int | float | None)
        entries.append(f"{key}={value_in_words(value)}" if is_plain else str(key))
    return _with_rest(entries, len(values)) or "empty"


def _sequence_in_words(values: Sequence[Any]) -> str:
    """Return the first items of a sequence; of objects, their type and how many they are."""
    if values and (is_dataclass(values[0]) or hasattr(values[0], "_fields")):
        return f"{len(values)} of {type(values[0]).__name__}"
    items = [value_in_words(value) for value in values[:MAX_SHOWN]]
    return _with_rest(items, len(values)) or "none"


def _with_rest(items: Sequence[str], count: int) -> str:
    """Return items in one line, with how many of all are not among them."""
    text = ", ".join(items)
    return text if count == len(items) else f"{text} and {count - len(items)} more"
