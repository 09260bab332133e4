"""Checksums of a maps folder: each file's in its frame's line, each line's and the manifest's in itself.

They find damage (a flipped bit, a cut file, a number edited by hand) and no forgery.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from segunc.core.errors import InputError
from segunc.core.files import json_sha256

Sum = tuple[int, str]
"""The bytes of a file, and the first 16 hex digits of their SHA-256."""
REPAIR = "make it again: `segunc doctor --maps DIR --repair`, or the same predict command with --verify"
_DIGITS = 16
_SEAL = re.compile(rb',"sum":"([0-9a-f]{16})"}\n\Z')
_LENGTH = len(',"sum":""}\n') + _DIGITS
_MANIFEST_KEY = "sha256"


class DamageError(InputError):
    """A file or line of a maps folder is not what was written."""


def file_sum(data: bytes) -> Sum:
    """Return what the line of a frame says of a file of these bytes."""
    return len(data), hashlib.sha256(data).hexdigest()[:_DIGITS]


def seal_line(content: Mapping[str, Any]) -> bytes:
    """Write a line of compact JSON whose last value, ``sum``, begins the SHA-256 of the object without it."""
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    return text[:-1] + f',"sum":"{hashlib.sha256(text).hexdigest()[:_DIGITS]}"}}\n'.encode()


def open_line(line: bytes, where: str) -> bytes:
    """Return the JSON of a line without its seal; DamageError where the seal does not fit, or is missing."""
    seal = _SEAL.search(line, max(0, len(line) - _LENGTH))
    text = b"" if seal is None else line[: seal.start()] + b"}"
    if seal is None or hashlib.sha256(text).hexdigest()[:_DIGITS].encode() != seal[1]:
        raise DamageError(f"{where}, was changed since it was written", hint=REPAIR)
    return text


def seal(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return a JSON object with the SHA-256 of its values, whatever their order and layout, as ``sha256``."""
    return {**content, _MANIFEST_KEY: _digest(content)}


def unseal(content: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return what :func:`seal` was given; DamageError where the sum does not fit, or is missing."""
    inner = {key: value for key, value in content.items() if key != _MANIFEST_KEY}
    if content.get(_MANIFEST_KEY) != _digest(inner):
        raise DamageError(f"{path} was changed since it was written", hint="restore it, or predict into a new folder")
    return inner


def _digest(content: Mapping[str, Any]) -> str:
    return json_sha256(json.loads(json.dumps(content)))  # as it is read back
