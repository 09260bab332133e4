"""Data sets by name, as configurations and commands name them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from segunc.core.errors import InputError
from segunc.data.anomaly_class import HOLDOUT, declare_anomalies
from segunc.data.entries import anomalies as course
from segunc.data.entries import anomalies as fishyscapes
from segunc.data.entries import anomalies as lost_and_found
from segunc.data.entries import anomalies as road_anomaly
from segunc.data.entries import anomalies as smiyc
from segunc.data.entries import driving as bdd100k
from segunc.data.entries import driving as camvid
from segunc.data.entries import driving as cityscapes
from segunc.data.entries import driving as muad
from segunc.data.entries import driving as streethazards
from segunc.data.entries import own as folder
from segunc.data.entries import own as toy
from segunc.data.entry import DatasetEntry

__all__ = ["ENTRIES", "DatasetEntry", "dataset_entry"]

FAMILIES = (
    cityscapes,
    camvid,
    bdd100k,
    muad,
    streethazards,
    road_anomaly,
    smiyc,
    lost_and_found,
    fishyscapes,
    course,
    toy,
    folder,
)
ENTRIES: dict[str, DatasetEntry] = {entry.name: entry for family in FAMILIES for entry in family.ENTRIES}
"""The data sets that can be named in configurations and commands."""


def dataset_entry(
    name: str, *, labels: str | None = None, anomaly_classes: Iterable[str] = (), holdout: int = HOLDOUT
) -> DatasetEntry:
    """The entry of a data set by name.

    Args:
        name: one of :data:`ENTRIES`.
        labels: name or CSV path of a label map instead of the set's own: its label files are then class labels.
        anomaly_classes: classes that are anomalies; see :func:`segunc.data.anomaly_class.declare_anomalies`.
        holdout: frames held out of ``train`` where every frame of ``val`` holds an anomaly.

    Raises:
        InputError: an unknown name, or anomaly classes that the set does not have.
    """
    if name not in ENTRIES:
        raise InputError(f"data set '{name}'", f"one of {', '.join(sorted(ENTRIES))}", "check the name")
    entry = ENTRIES[name]
    if labels is not None:
        entry = replace(entry, labels=labels, anomaly_masks=None)
    classes = tuple(anomaly_classes)
    return declare_anomalies(entry, classes, holdout) if classes else entry
