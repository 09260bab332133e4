"""Frames that the bank of features of a model seems to hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from segunc.core.terminal import agreeing, counted

KNOWN_BELOW = 0.1
"""Decades of anomaly that hardly any frame stays below in all of its pixels, unless the bank of
features holds it: one of the packaged bank had .05, and one had 0."""


def note_on_known_maps(
    manifest: Mapping[str, Any] | None, records: Mapping[str, Mapping[str, Any]]
) -> str:
    """Return :func:`note_on_known_frames` of maps; empty where no bank of features made them."""
    if not (manifest or {}).get("run", {}).get("features_sha256"):
        return ""
    return note_on_known_frames(records)


def note_on_known_frames(records: Mapping[str, Mapping[str, Any]]) -> str:
    """Return what to know of frames that the bank of features seems to hold; empty for nothing.

    Nothing in such a frame is strange to the bank, so ``anomaly`` is below
    :data:`KNOWN_BELOW` in each of its pixels.

    Args:
        records: of frames, by name, as ``frames.jsonl`` holds them.
    """
    names = []
    for name, record in records.items():
        if record.get("max", {}).get("anomaly", KNOWN_BELOW) < KNOWN_BELOW:
            names.append(name)
    if not names:
        return ""
    fact = (
        f"{len(names)} of {counted(len(records), 'frame')} "
        f"{agreeing('has', len(names))} no pixel of anomaly from {KNOWN_BELOW} on"
    )
    if len(names) == 1:
        return (
            f"{fact}, {names[0]}: the bank of features probably holds it, so its maps, and those "
            "of frames like it, say nothing of unknown objects"
        )
    return (
        f"{fact}, first {', '.join(names[:3])}: the bank of features probably holds them, so their "
        "maps, and those of frames like them, say nothing of unknown objects"
    )
