"""A review page: one folder with an index.html that opens from disk, without a network, anywhere it is copied."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from segunc.data.pairing import find_labels
from segunc.errors import InputError
from segunc.files import write_atomically
from segunc.maps.folder import OVERLAY
from segunc.maps.reader import MapsReader
from segunc.maps.sources import FrameSource, open_source
from segunc.maps.store import encode_jpeg
from segunc.review.drawing import resize
from segunc.review.html import Page, PageFrame, render
from segunc.review.pictures import FramePictures, ReadAnomaly, read_anomaly_mask

THUMBNAIL_WIDTH = 960
RANKING_SCORE = "entropy"


def write_review(
    maps: Path,
    out: Path,
    *,
    anomaly_labels: Path | None = None,
    read_anomaly: ReadAnomaly = read_anomaly_mask,
    images: str | Path | None = None,
    metrics: Path | None = None,
    ranges: dict[str, tuple[float, float]] | None = None,
    limit: int | None = None,
    redraw: bool = False,
) -> Path:
    """Write the review page of a maps folder.

    Frames are sorted worst first by mean entropy (by the first score where there is no entropy); the reader of the
    page can sort by any other score or by name. Each shows its overlay where the prediction made one, else a panel
    drawn over the source image, else the maps alone; the page says where images were missing.

    Args:
        maps: the maps folder, of this tool or any other.
        out: the folder of the page; made if missing.
        anomaly_labels: folder of anomaly masks; labelled frames are drawn anew with outlines.
        read_anomaly: reads one mask; another encoding than 0, 1, 255 needs another reader.
        images: the source images; the input that the manifest records when not given.
        metrics: a metrics.json to show as a table.
        ranges: display ranges of your own, score -> (low, high); unbounded scores are shown only with one.
        limit: show only the worst frames, as many as this.
        redraw: draw panels even where overlays exist.

    Returns:
        The path of ``index.html``.

    Raises:
        InputError: no maps, no such images or labels, a damaged metrics file.
    """
    reader = MapsReader(maps)
    if reader.manifest is None and out.resolve().is_relative_to(maps.resolve()):
        raise InputError(f"output {out} lies inside {maps}", "a folder outside the maps", "give another --out")
    if limit is not None and limit < 1:
        raise InputError(f"a limit of {limit} frames", "at least 1", "give another --limit")
    pictures = FramePictures(reader, ranges)
    frames = _ranked(reader)[:limit]
    names = [frame.name for frame in frames]
    labels = find_labels(anomaly_labels, names) if anomaly_labels is not None else {}
    if anomaly_labels is not None and not labels:
        raise InputError(
            f"no label in {anomaly_labels} belongs to a frame", "labels named like frames", "check the path"
        )
    source, missing = _open_images(reader, images, needed=redraw or bool(labels) or _lacks_overlay(reader, names))
    shown = set()
    for name, picture in pictures.iterate(names, source, labels, read_anomaly, redraw=redraw):
        _write_picture(out / "frames" / f"{name}.jpg", encode_jpeg(picture))
        width = min(THUMBNAIL_WIDTH, picture.shape[1])
        small = resize(picture, width, round(picture.shape[0] * width / picture.shape[1]))
        _write_picture(out / "thumbnails" / f"{name}.jpg", encode_jpeg(small))
        shown.add(name)
    video = maps / f"{OVERLAY}.webm"
    if video.is_file():
        out.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(video, out / video.name)
    page = Page(
        title=maps.resolve().name,
        manifest=reader.manifest or {},
        legends=list(pictures.legends.values()),
        scores=[score for score in reader.scores if any(score in frame.mean for frame in frames)],
        frames=[frame for frame in frames if frame.name in shown],
        total=len(reader.frames),
        labelled=sorted(labels),
        video=video.name if video.is_file() else None,
        metrics=_read_metrics(metrics) if metrics is not None else None,
        notice=missing,
    )
    index = out / "index.html"
    _write_picture(index, render(page).encode())
    return index


def _ranked(reader: MapsReader) -> list[PageFrame]:
    """All frames with mean and max of each score, worst first; read from the maps where no record holds them."""
    frames = []
    for place, name in enumerate(reader.frames):
        record = reader.records.get(name, {})
        mean, peak = dict(record.get("mean", {})), dict(record.get("max", {}))
        for score in reader.scores:
            if score not in mean and reader.has(name, score):
                values = reader.read(name, score)
                mean[score], peak[score] = float(values.mean()), float(values.max())
        frames.append(PageFrame(name, place, mean, peak))
    score = RANKING_SCORE if RANKING_SCORE in reader.scores else next(iter(reader.scores), "")
    return sorted(frames, key=lambda frame: -frame.mean.get(score, float("-inf")))


def _lacks_overlay(reader: MapsReader, names: list[str]) -> bool:
    return any(reader.overlay(name) is None for name in names)


def _open_images(
    reader: MapsReader, images: str | Path | None, *, needed: bool
) -> tuple[FrameSource | None, str | None]:
    """The source of images and, where it is gone, one line for the page. A source that was asked for must open."""
    if images is not None:
        return open_source(images), None
    recorded = (reader.manifest or {}).get("run", {}).get("input")
    if not needed:
        return None, None
    if not recorded:
        return None, "The maps do not say where their images are, so only maps are shown."
    try:
        return open_source(recorded), None
    except InputError as error:
        return None, f"The source images could not be opened, so only maps are shown: {error}."


def _read_metrics(path: Path) -> dict[str, Any]:
    try:
        loaded = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(
            f"metrics {path} cannot be read ({error.strerror})", "a metrics.json", "check the path"
        ) from error
    except ValueError as error:
        raise InputError(f"metrics {path} is no JSON ({error})", "a metrics.json", "evaluate again") from error
    if not isinstance(loaded, dict):
        raise InputError(f"metrics {path} holds no object", "a metrics.json", "evaluate again")
    return loaded


def _write_picture(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, data)
