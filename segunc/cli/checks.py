"""What is looked at before a verb begins, because verbs import torch, which takes seconds: paths that are read, and names of tables."""

from __future__ import annotations

import dataclasses
import glob
import re
from itertools import pairwise
from pathlib import Path
from typing import Any, get_type_hints

from segunc.cli.parser import flags_of
from segunc.core.errors import InputError
from segunc.options import parts_of, several

PATHS_TO_READ = (
    *("model", "base", "maps", "root", "config", "weights", "image", "mask", "verdicts", "compare", "results", "input"),
)
"""Options that name files or folders to read."""


def check_options(options: Any) -> None:
    """Raise InputError where a path of a verb's options does not exist, or a name is in no table. Verbs check again what they use."""
    hints = get_type_hints(type(options), include_extras=True)
    values = {field.name: getattr(options, field.name) for field in dataclasses.fields(options)}
    for field in dataclasses.fields(options):
        if field.name in PATHS_TO_READ:
            for name in several(values[field.name] or ()):
                if field.name != "input" or not glob.has_magic(str(name)):
                    _check_path(flags_of(field)[0], str(name), folder="folder" in parts_of(hints[field.name]))
    words = [
        part for word in values.get("settings") or () for part in (word.split("=", 1) if word[:2] == "--" else [word])
    ]
    datasets = [value for word, value in pairwise(words) if word == "--data.dataset"]
    for word, value in pairwise(words):
        if word == "--data.root":
            _check_path(word, value, folder=True)
    if not re.fullmatch(r"auto|cpu|cuda(:\d{1,6})?", device := values.get("device", "auto"), re.ASCII):
        raise InputError(f"--device {device} is no device", hint="choose auto, cpu, cuda or cuda:N")
    if values.get("to") != "smiyc" and values.get("dataset"):  # whose data sets have names of their own
        datasets.append(values["dataset"])
    _check_names(datasets, values)


def _check_path(flag: str, name: str, *, folder: bool) -> None:
    path = Path(name).expanduser()
    if not path.exists():
        raise InputError(f"{flag} {path} does not exist", hint="check the path")
    if folder and not path.is_dir():
        raise InputError(f"{flag} {path} is no folder", hint="check the path")


def _check_names(datasets: list[str], values: dict[str, Any]) -> None:
    labels, anomaly_classes = values.get("label_map"), values.get("anomaly_class") or ()
    if datasets or labels or anomaly_classes:
        from segunc.data.datasets import entry_of_labels

        names: list[str | None] = [*datasets]
        for name in names or [None]:
            entry = entry_of_labels(name, labels, anomaly_classes)
            if labels and entry is not None:
                entry.label_map()
    if values.get("scores") and values.get("model"):
        from segunc.scores import check_scores

        check_scores(values["scores"])
