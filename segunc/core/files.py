"""Files that appear whole or not at all, and JSON objects from disk."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from segunc.core.errors import InputError

PARTIAL_SUFFIX = ".segunc-partial"
"""Ending of files that are being written; whoever finds one may remove it while no run is under way."""


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that it is either absent, as before, or whole: to a hidden neighbour, then renamed."""
    partial = path.with_name(f".{path.name}{PARTIAL_SUFFIX}")
    partial.write_bytes(data)
    os.replace(partial, path)


def write_json(path: Path, content: Any) -> None:
    """Write readable JSON atomically; NaN is refused."""
    write_atomically(path, (json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode())


def read_json(path: Path, what: str) -> dict[str, Any]:
    """A JSON object from a file.

    Args:
        path: the file.
        what: what it should hold, for the message.

    Raises:
        InputError: the file is missing or is not a JSON object.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror})", what, "check the path") from error
    except ValueError as error:
        raise InputError(f"{path} is not valid JSON ({error})", what, "write it again") from error
    if not isinstance(content, dict):
        raise InputError(f"{path} holds a {type(content).__name__}", what, "write it again")
    return content


def link_or_copy(source: Path, target: Path) -> None:
    """A hard link to a file in place of whatever is there, or a copy where the file system has none."""
    target.unlink(missing_ok=True)
    try:
        os.link(source.resolve(), target)
    except OSError:
        shutil.copy2(source, target)
