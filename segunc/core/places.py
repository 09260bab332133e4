"""Take the places of this machine out of what is handed to others: an absolute path becomes its
last name.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
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


def names_apart(paths: Sequence[Path]) -> dict[str, Path]:
    """Return files by names that differ from each other and hold no place of the machine: of each
    the path below the folder that holds all files of its name.
    """
    return {_name_among(path, paths): path for path in paths}


def _name_among(path: Path, paths: Sequence[Path]) -> str:
    folders = [other.parent.resolve() for other in paths if other.name == path.name]
    common = os.path.commonpath(folders)
    return (path.parent.resolve() / path.name).relative_to(common).as_posix()


def _last_name(path: str) -> str:
    return path.rstrip("/\\").replace("\\", "/").rpartition("/")[2]
