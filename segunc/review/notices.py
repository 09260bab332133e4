"""What a page says about itself: what is missing, and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from segunc.errors import InputError
from segunc.maps.reader import MapsReader
from segunc.review.frame_files import IMAGE, FrameRow
from segunc.review.labels import ReviewLabels


def maps_notices(reader: MapsReader, names: Sequence[str]) -> Iterator[str]:
    """On a run under way, frames left out by a limit, folders that hold no score."""
    if reader.unfinished:
        yield f"This page shows what was finished: {reader.unfinished}."
    if len(names) < len(reader.frames):
        yield f"The page carries the worst {len(names)} of {len(reader.frames)} frames."
    if reader.region is not None:
        yield (
            "A mask was left out of these maps: its pixels are 0 in every map and ignored in every label, and they count "
            "in shares of the whole frame."
        )
    for folder, why in reader.skipped.items():
        yield f"The folder {folder} is not shown: {why}."


def label_notices(labels: ReviewLabels, names: Sequence[str]) -> Iterator[str]:
    """On frames without a label."""
    for kind, files in (("an anomaly label", labels.anomaly_files), ("a class label", labels.class_files)):
        if files and len(files) < len(names):
            yield f"{len(files)} of {len(names)} frames have {kind}; the others show none."


def compare_notices(reader: MapsReader, other: MapsReader | None, names: Sequence[str]) -> Iterator[str]:
    """On frames that only one of two models has.

    Raises:
        InputError: they have no frame in common.
    """
    if other is None:
        return
    both = [name for name in names if name in set(other.frames)]
    if not both:
        raise InputError(
            f"{other.folder} and {reader.folder} have no frame in common", "maps of the same frames", "check --compare"
        )
    if len(both) < len(names):
        yield f"The compared maps hold {len(both)} of {len(names)} frames; the others show one model only."
    more = len(set(other.frames) - set(reader.frames))
    if more:
        yield f"{more} frames stand only in the compared maps and are not shown."
    if other.unfinished:
        yield f"Compared maps: {other.unfinished}."


def image_notices(rows: Sequence[FrameRow]) -> list[str]:
    """On frames whose image the source lacks."""
    without = sum(IMAGE not in row.contents for row in rows)
    return (
        [f"{without} of {len(rows)} frames have no image in the source; their maps are shown alone."] if without else []
    )
