"""The data sets by name: road scenes with class labels, and with masks of anomalies.

They stand in the table ``data_sets.yaml``; docs/data-sets.md explains it. Benchmarks keep the
labels of their test frames: write maps of those frames.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from segunc.core.errors import InputError
from segunc.core.places import without_place
from segunc.core.registry import Registry
from segunc.data.data_set_table import OWN_ENTRY, own_entry, read_table
from segunc.data.entries import DatasetEntry
from segunc.data.masks import WHITE_ANOMALIES

TABLE = Path(__file__).with_name("data_sets.yaml")
"""The table of the package."""
NONE = "none"
"""What a user writes for a setting without a value."""
NONE_BY_DEFAULT = ("size", "labels", "frames", "anomaly_class", "sequence", "held_out")
"""Settings of :class:`segunc.data.module.DataConfig` that are None unless a user gives a value."""
DATA_OF_PROGRAM = "data of a program"
"""What records say in place of a data set where a program gave the frames."""
DATASETS: Registry[DatasetEntry] = Registry("data set", "segunc.datasets", read_table(TABLE))
"""What configurations and commands can name. Another package adds its own
:class:`DatasetEntry`; a user writes a table of their own, see :func:`dataset_entry`.
"""


OWN_FOLDERS = ("folder", WHITE_ANOMALIES)
"""The entries of the table that stand for a user's own folders: readers do not know their names."""


def data_words(
    name: str | None,
    split: str | None = None,
    folder: str = "",
    values: str | None = "",
    *,
    is_judged: bool = False,
) -> str:
    """Return what a reader calls labelled data: ``camvid test``, or of a user's own data
    ``labels in the folder masks (0 = normal, 255 = anomaly)``.

    Args:
        name: of the data set, ``mine.yaml:NAME``, or None where none is named.
        split: of the data set.
        folder: of the labels, without the place on this machine; empty where it is not known.
        values: what the values of masks mean; empty for those of the data set, None to leave them
            out.
        is_judged: whether reviewers judged the frames of maps, which then need no labels.
    """
    if name is not None and name not in OWN_FOLDERS:
        return f"{without_place(name)} {split or ''}".rstrip()
    if name is None and not folder:
        return f"{'judged' if is_judged else 'labelled'} frames of maps"
    if values == "" and name == WHITE_ANOMALIES:
        values = str(DATASETS[name].anomaly_masks)
    words = f"labels in the folder {folder}" if folder else "labels in a folder"
    if values:
        words += f" ({values})"
    if split:
        words += f", split {split}"
    return words


def name_and_folder(text: str) -> tuple[str, str] | None:
    """Return data set and folder of ``NAME:FOLDER`` or ``mine.yaml:NAME:FOLDER``.

    None if a text has no such form.
    """
    own_entry = OWN_ENTRY.match(text)
    if own_entry is not None and text[own_entry.end() :].startswith(":"):
        return own_entry[0], text[own_entry.end() + 1 :]
    name, colon, folder = text.partition(":")
    return (name, folder) if colon else None


def is_data_set(name: str) -> bool:
    """Return whether a text is the name of a data set, or ``mine.yaml:NAME``."""
    return OWN_ENTRY.fullmatch(name) is not None or name in DATASETS


def dataset_entry(
    name: str,
    *,
    labels: str | Path | None = None,
    anomaly_classes: Iterable[str] = (),
    frames: str | Path | None = None,
) -> DatasetEntry:
    """Return the entry of a data set by name.

    Args:
        name: that of an entry of the table, or ``mine.yaml:NAME`` for the entry NAME of a table of
            one's own.
        labels: name or CSV path of a label map instead of the set's own: its label files are then
            class labels.
        frames: a CSV with the columns split,image,label, in the place of the set's own layouts.
        anomaly_classes: names of its label map's classes that are anomalies, beside those it has.

    Raises:
        InputError: the name or an anomaly class is unknown, or fewer than two classes are left.
    """
    entry = own_entry(name) or DATASETS[name]
    if labels is not None:
        layouts = tuple(layout.with_labels(str(labels)) for layout in entry.layouts)
        entry = replace(entry, labels=str(labels), anomaly_masks=None, layouts=layouts)
    if frames is not None:
        entry = replace(entry, listed=Path(frames))
    declared = tuple(anomaly_classes)
    if declared:
        entry = replace(entry, declared=declared)
        entry.label_map()  # unknown names are an error here and not after an hour
    return entry


def without_none_words(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings of a data set with None for the word none, which YAML takes for a text, where
    a setting may be None. Where the label map has a class called none, the anomaly class of that
    word is the class.
    """
    resolved = dict(data)
    for key in NONE_BY_DEFAULT:
        if resolved.get(key) == NONE:
            resolved[key] = None
    if data.get("anomaly_class") == NONE and _has_class(resolved, NONE):
        resolved["anomaly_class"] = NONE
    return resolved


def _has_class(data: Mapping[str, Any], name: str) -> bool:
    """Return whether the label map of a data set has a class; False where there is no such map."""
    try:
        entry = dataset_entry(str(data.get("dataset")), labels=data.get("labels"))
        return name in entry.label_map().classes
    except InputError:
        return False  # whoever opens the data set says why


def entry_of_labels(
    name: str | None,
    labels: str | Path | None,
    anomaly_classes: Collection[str] = (),
    frames: str | None = None,
) -> DatasetEntry | None:
    """Return the data set that folders of labels belong to, None if there is nothing to tell it.

    It is the set of the name, that set with other ``labels``, or these alone. The arguments are
    those of :func:`dataset_entry`.
    """
    if not name and not labels:
        if anomaly_classes:
            raise InputError(
                "--anomaly-class needs the data set that the classes belong to",
                hint="e.g. --dataset camvid",
            )
        return None
    return dataset_entry(
        name or "folder", labels=labels, anomaly_classes=anomaly_classes, frames=frames
    )
