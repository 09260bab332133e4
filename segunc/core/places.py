"""Take the places of this machine out of what is handed to others: an absolute path becomes its
last name.
"""

from __future__ import annotations

import re
import shlex
from typing import Any

_ABSOLUTE = re.compile(r"file:/|/(?=.)|~[\w.-]*/|[A-Za-z]:[\\/]|\\\\")
"""The start of an absolute path: of this system, of a home folder, of Windows, or as an address."""
_WITHIN = re.compile(
    r"(?<![^\s\"'=:,;(\[])"  # at the start, or behind one of these
    r"(?:file:/+|/(?!/)|~[\w.-]*/|[A-Za-z]:[\\/])"
    r"[^\s\"',;)\]]+"
)
"""An absolute path within a text. An address such as https://example.org/a is none."""


def is_place(text: str) -> bool:
    """Return whether a text is or holds an absolute path."""
    return bool(_ABSOLUTE.match(text) or _WITHIN.search(text))


def without_place(text: str) -> str:
    """Return a text whose absolute paths are shortened to their last names."""
    if _ABSOLUTE.match(text):
        return _last_name(text)
    return _WITHIN.sub(lambda match: _last_name(match[0]), text)


def without_places(value: Any) -> Any:
    """Return a value as JSON knows it, without the places of the machine in its texts."""
    if isinstance(value, str):
        return without_place(value)
    if isinstance(value, dict):
        return {key: without_places(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_places(item) for item in value]
    return value


def shown_command(command: str) -> str:
    """Return a command whose absolute paths are shortened to their last names."""
    words = []
    for word in shlex.split(command):
        start, equals, value = word.rpartition("=")
        path = value if equals else word
        words.append(f"{start}{equals}{without_place(path)}")
    return shlex.join(words)


def _last_name(path: str) -> str:
    return path.rstrip("/\\").replace("\\", "/").rpartition("/")[2]
