"""Recognise the folders that commands of this package write, by the record that each holds."""

from __future__ import annotations

import re
from pathlib import Path

from segunc.core.errors import InputError
from segunc.core.files import read_json
from segunc.core.removal import LEDGER

RECORDS = {
    "manifest.json": ("format", "segunc-maps"),
    "review.json": ("format", "segunc-review"),
    "report.json": ("kind", "segunc report"),
    "overlay.json": ("format", "segunc-overlay"),
}
"""The record of maps, of a review page, of a report and of overlays, with a key and its value in
it.
"""
OVERLAYS = re.compile(r"overlay-[a-z][a-z0-9-]*")
"""The names of folders of overlays, ``overlay-SCORE``. Earlier versions wrote no record there."""
NETWORK = "network.json"
"""The record of a model."""
# They are written out here, because the modules that define them import torch, which is slow.


def is_output_folder(folder: Path) -> bool:
    """Return whether a command made a folder: maps, a model, a report, a review page, or any other
    folder with a list of the files that runs wrote there; also the pictures of one score that
    ``segunc overlay`` writes, by their record or by the name of their folder.
    """
    if (folder / LEDGER).is_file() or OVERLAYS.fullmatch(folder.name):
        return True
    for name, (key, value) in RECORDS.items():
        if _content(folder / name).get(key) == value:
            return True
    return {"architecture", "classes"} <= _content(folder / NETWORK).keys()


def holds_pictures_of_maps(folder: Path) -> bool:
    """Return whether the record of a folder says that its pictures are maps or overlays."""
    for name in ("manifest.json", "overlay.json"):
        key, value = RECORDS[name]
        if _content(folder / name).get(key) == value:
            return True
    return False


def _content(path: Path) -> dict[str, object]:
    """Return the object in a JSON file; an empty one if there is no such file."""
    if not path.is_file():
        return {}
    try:
        return read_json(path, "a record")
    except InputError:
        return {}
