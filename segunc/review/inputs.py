"""What a page is made from: one maps folder, its images, and the times of its frames."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from segunc.core.errors import InputError
from segunc.data.images import Image
from segunc.frames.sources import FrameSource, open_source
from segunc.maps.manifest import MANIFEST_NAME, is_ours
from segunc.maps.reader import MapsReader
from segunc.review.frame_files import FrameRow


def open_maps(folder: Path) -> MapsReader:
    """The maps of one folder.

    Raises:
        InputError: there are none, or the folder holds several maps folders, whose codes must not be read as another
            tool's.
    """
    if not (folder / MANIFEST_NAME).exists():
        inner = sorted(path.parent for path in folder.glob(f"*/{MANIFEST_NAME}") if is_ours(path.parent))
        if inner:
            names = ", ".join(path.name for path in inner[:3])
            raise InputError(f"{folder} holds {len(inner)} maps folders ({names})", "one of them", f"--maps {inner[0]}")
    return MapsReader(folder)


def open_images(reader: MapsReader, images: str | Path | None) -> tuple[FrameSource | None, str | None]:
    """The source of images and, where it is gone, one line for the page. A source that was asked for must open."""
    if images is not None:
        return open_source(images), None
    recorded = (reader.manifest or {}).get("run", {}).get("input")
    if not recorded:
        return None, "The maps do not say where their images are, so only maps are shown; --images gives their place."
    try:
        return open_source(recorded), None
    except InputError as error:
        return None, f"The source images could not be opened, so only maps are shown: {error}."


def with_images(
    rows: Sequence[FrameRow], source: FrameSource | None
) -> Iterator[tuple[FrameRow, Image | None, str | None]]:
    """Each frame with its image, or with the reason why there is none, one image in memory at a time."""
    waiting = {row.name: row for row in rows}
    if source is not None:
        for frame in source.frames(lambda _, name: name not in waiting):
            row = waiting.pop(frame.name, None)
            if row is not None:
                yield row, frame.image, frame.error
            if not waiting:
                return
    for row in waiting.values():
        yield row, None, None


def frame_times(reader: MapsReader, names: Sequence[str]) -> list[float | None]:
    """Seconds of each frame in its video: as recorded, else of its number at the recorded rate."""
    source: dict[str, Any] = (reader.manifest or {}).get("source", {})
    fps = source.get("fps")
    # Maps of earlier versions hold no times; their frames are named by their numbers.
    recorded = [reader.records.get(name, {}).get("time") for name in names]
    return [
        float(time) if time is not None else int(name) / fps if fps and name.isdigit() else None
        for name, time in zip(names, recorded, strict=True)
    ]
