"""What a page is made from: one maps folder, its images, and the times of its frames."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from segunc.data.images import Image
from segunc.errors import InputError
from segunc.maps.manifest import MANIFEST_NAME, is_ours
from segunc.maps.reader import MapsReader
from segunc.maps.sources import VIDEO_SUFFIXES, FrameSource, open_source, recorded_images
from segunc.maps.video import video_hash
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


def open_images(
    reader: MapsReader, images: str | Path | None, names: Sequence[str]
) -> tuple[FrameSource | None, str | None]:
    """The source of images and, where some are missing, one line for the page.

    A source that was asked for must open, and is shown as it is. The one that the manifest records is shown only where it
    has the recorded bytes (the stamp of an image, the hash of a video): the maps of a stranger name any place of this disk.

    Args:
        reader: the maps.
        images: what was asked for, None for the recorded source.
        names: the frames to show.
    """
    if images is not None:
        return open_source(images), None
    run = (reader.manifest or {}).get("run", {})
    recorded = run.get("input")
    if not isinstance(recorded, str) or not recorded or "\0" in recorded:
        return None, "The maps do not say where their images are, so only maps are shown; --images gives their place."
    try:
        if Path(recorded).suffix.lower() in VIDEO_SUFFIXES:
            same = Path(recorded).is_file() and video_hash(Path(recorded)) == run.get("input_hash")
            source: FrameSource | None = open_source(recorded) if same else None
        else:
            source = recorded_images(recorded, {name: reader.records[name].get("stamp") for name in names})
    except (InputError, OSError) as error:
        return None, f"The source images could not be opened, so only maps are shown: {error}; see --images."
    found = 0 if source is None else len(names) if source.length is None else source.length
    if found == len(names):
        return source, None
    return source, (
        f"{len(names) - found} of {len(names)} frames have no image at the recorded place with the bytes that were "
        "predicted, so only maps are shown of them; --images gives their place."
    )


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
