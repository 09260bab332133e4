"""What is looked at before a verb begins, because verbs import torch, which takes seconds: paths that are read, and names of tables."""

from __future__ import annotations

import glob
import os
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from typing import Any, get_type_hints

from segunc.cli.parser import flags_of
from segunc.core.bounds import check_device_name
from segunc.core.errors import InputError
from segunc.options import parts_of, several

READ = (
    *("model", "base", "maps", "root", "config", "weights", "image", "mask"),
    *("verdicts", "compare", "results"),
)
"""Options that name files or folders to read."""


def check_asked(options: Any) -> None:
    """Raise InputError where a path of a verb's options does not exist, or a name is in no table. Verbs check again what they use."""
    asked = {field.name: getattr(options, field.name) for field in fields(options)}
    hints = get_type_hints(type(options), include_extras=True)
    for field in fields(options):
        if field.name in READ:
            for path in several(asked[field.name] or ()):
                check_path(flags_of(field)[0], Path(path), folder="folder" in parts_of(hints[field.name]))
    for spec in map(str, several(asked.get("input") or ())):
        if not glob.has_magic(spec):
            check_path("--input", Path(spec).expanduser(), folder=False)
    settings = asked.get("settings") or ()
    words = [part for word in settings for part in (word.split("=", 1) if word.startswith("--") else [word])]
    for word, value in pairwise(words):
        if word == "--data.root":
            check_path(word, Path(value), folder=True)
    datasets = [value for word, value in pairwise(words) if word == "--data.dataset"]
    check_device_name(asked.get("device", "auto"))
    labels, anomaly_classes = asked.get("label_map"), asked.get("anomaly_class") or ()
    if asked.get("to") != "smiyc":  # whose data sets have names of their own
        datasets += [asked["dataset"]] if asked.get("dataset") else []
    if datasets or labels or anomaly_classes:
        from segunc.data.datasets import entry_of_labels

        for name in datasets or [None]:
            entry = entry_of_labels(name, labels, anomaly_classes)
            if labels and entry is not None:
                entry.label_map()
    if asked.get("scores") and asked.get("model"):
        from segunc.scores import check_scores

        check_scores(asked["scores"])


def check_path(flag: str, path: Path, *, folder: bool) -> None:
    """Raise InputError where nothing is at a path, or a file in the place of a folder."""
    if not os.path.exists(path):
        raise InputError(f"{flag} {path} does not exist", "a folder" if folder else "a file", "check the path")
    if folder and not path.is_dir():
        raise InputError(f"{flag} {path} is no folder", "a folder", "check the path")
