"""Dataclasses from the plain values of a JSON or YAML file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from segunc.core.errors import InputError

if TYPE_CHECKING:
    from pydantic import TypeAdapter

T = TypeVar("T")


@cache
def _adapter(kind: type) -> TypeAdapter[Any]:
    from pydantic import ConfigDict, TypeAdapter  # takes a tenth of a second

    # Of a list, as only so the configuration holds for a dataclass, and for those in it.
    return TypeAdapter(list[kind], config=ConfigDict(extra="forbid", strict=True))  # type: ignore[valid-type]


def from_plain(kind: type[T], values: Mapping[str, Any], where: str) -> T:
    """Return the dataclass that plain values describe; pydantic checks names and types, the dataclass itself ranges.

    Args:
        kind: a dataclass, whose fields may be dataclasses.
        values: by the names of its fields. A list may stand for a tuple and a whole number for any, but no number for a text or a truth
            value.
        where: the file or the section, for messages.

    Raises:
        InputError: an unknown or a missing name, a value of another type, or what the dataclass itself refuses.
    """
    from pydantic import ValidationError

    try:
        made: T = _adapter(kind).validate_json(json.dumps([values], default=str))[0]  # type: ignore[arg-type]
        return made
    except ValidationError as error:
        first = error.errors()[0]
        if isinstance(cause := first.get("ctx", {}).get("error"), InputError):
            raise cause.within(where) from error
        key = ".".join(str(part) for part in first["loc"][1:])
        if first["type"] == "unexpected_keyword_argument":
            names = ", ".join(f.name for f in fields(kind))  # type: ignore[arg-type]
            raise InputError(f"{where}: unknown key '{key}'", hint=f"the keys are {names}") from error
        value = "" if first["type"] == "missing" else f" {ascii(first['input'])[:80]}"
        raise InputError(f"{where}: {key}{value}: {first['msg'][0].lower()}{first['msg'][1:]}") from error
