"""What the records of a model folder say that is not for others: the places of this machine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from segunc.core.errors import InputError, shortened
from segunc.core.files import read_json, read_record, write_json, write_record
from segunc.core.places import is_place, shown_command, without_places
from segunc.training.config import DATA, HISTORY, recorded_commands

_DROPPED_DATA = ("root", "frames")
"""Settings of data that name places of the machine."""
_TEXTS = ("provenance", "fitted_on")
"""Keys of records that say how something came to be, and decide no map."""


def strip_places(folder: Path) -> None:
    """Take the places of this machine out of the JSON files of a model folder.

    In what says how a model came to be, an absolute path becomes its last name. ``data.json`` loses
    ``root``, ``frames`` and the file of ``labels``. A record is sealed again.

    Raises:
        InputError: a path stands where it decides what the model is, so that it cannot be left out.
    """
    for path in sorted(folder.rglob("*.json")):
        content = read_json(path, "a record")
        if path.name == DATA:
            plain = without_folders(content)
        elif path.name == HISTORY:
            plain = {**content, "commands": _shown_commands(path.parent)}
        else:
            plain = _without_places_in_texts(content)
            _check_no_place(path.relative_to(folder), plain)
        if plain == content:
            continue
        if "record_sha256" in content:
            read_record(path, "a record")  # whole, before it is sealed again
            plain.pop("record_sha256")
            plain.pop("format")
            write_record(path, plain)
        else:
            write_json(path, plain)


def without_folders(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings of data without the folders and files that they name."""
    kept = {key: value for key, value in data.items() if key not in _DROPPED_DATA}
    labels = str(kept.get("labels") or "")
    if labels.endswith(".csv") or is_place(labels):
        del kept["labels"]
    return dict(without_places(kept))


def _shown_commands(folder: Path) -> list[dict[str, str]]:
    """Return the commands that made a model without the places of the machine."""
    commands = []
    for entry in recorded_commands(folder):
        try:
            command = shown_command(entry["command"])
        except ValueError:  # no command that a shell would read
            command = ""
        commands.append({**without_places(entry), "command": command})
    return commands


def _without_places_in_texts(value: Any) -> Any:
    """Return JSON whose :data:`_TEXTS`, at any depth, name no place of the machine."""
    if isinstance(value, list):
        return [_without_places_in_texts(item) for item in value]
    if not isinstance(value, dict):
        return value
    plain = {}
    for key, item in value.items():
        clean = without_places if key in _TEXTS else _without_places_in_texts
        plain[key] = clean(item)
    return plain


def _check_no_place(name: Path, content: Any) -> None:
    """Raise InputError where a record still names a place of the machine."""
    pending = [content]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            pending.extend(value.values())
        elif isinstance(value, list):
            pending.extend(value)
        elif isinstance(value, str) and is_place(value):
            raise InputError(
                f"{name} names '{shortened(value)}', a place of this machine, and cannot do "
                "without it",
                hint="make the model without this path, e.g. let the factory find the file itself",
            )
