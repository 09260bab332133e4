"""A review page: a folder with an index.html that opens from disk, without a network, anywhere it is copied."""

from __future__ import annotations

import html
import shutil
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from segunc.data.anomaly_labels import BINARY, AnomalyEncoding
from segunc.data.labels import LabelMap
from segunc.errors import InputError
from segunc.files import inside, read_json, write_json
from segunc.maps.class_check import check_classes
from segunc.maps.folder import OVERLAY
from segunc.maps.reader import MapsReader
from segunc.review.chunks import write_data, write_new
from segunc.review.description import (
    describe_classes,
    describe_colours,
    describe_model,
    describe_scores,
    describe_shares,
    describe_tool,
    metrics_tables,
    run_id,
)
from segunc.review.frame_files import FRAMES, THUMBNAILS, FrameFiles, FrameRow
from segunc.review.inputs import frame_times, open_images, open_maps, with_images
from segunc.review.labels import find_review_labels
from segunc.review.notices import compare_notices, image_notices, label_notices, maps_notices
from segunc.review.ranges import page_ranges
from segunc.review.table import frame_table
from segunc.review.verdicts import PAGE_FORMAT, PAGE_NAME, kept_verdicts, page_of, write_verdicts

ASSETS = "assets"
RANKING_SCORE = "entropy"
_VIDEOS = (f"{OVERLAY}.webm", f"{OVERLAY}.mp4")


def write_review(
    maps: Path,
    out: Path,
    *,
    labels: Path | None = None,
    label_map: LabelMap | None = None,
    anomaly_labels: Path | None = None,
    anomaly_encoding: AnomalyEncoding = BINARY,
    compare: Path | None = None,
    images: str | Path | None = None,
    metrics: Path | None = None,
    scores: Sequence[str] | None = None,
    ranges: dict[str, tuple[float, float]] | None = None,
    limit: int | None = None,
    on_frame: Callable[[int, int], None] | None = None,
) -> Path:
    """Write the review page of a maps folder; what cannot be shown is said on the page.

    The page carries every map as it is stored, so it can tell the value of each pixel. An earlier page in ``out`` is
    replaced; its imported verdicts stay while the run is the same.

    Args:
        maps: the maps folder, of this tool or any other, finished or not.
        out: the folder of the page; made if missing.
        labels: folder of class labels, for ground truth and errors; needs ``label_map``.
        label_map: what their values mean.
        anomaly_labels: folder of anomaly masks.
        anomaly_encoding: what their values mean.
        compare: maps of a second model on the same frames.
        images: the source images; where not given, the recorded ones, see :func:`segunc.review.inputs.open_images`.
        metrics: a metrics.json to show.
        scores: the scores to carry; None is all.
        ranges: display ranges of your own, score -> (low, high).
        limit: carry only the frames with the highest mean entropy, as many as this.
        on_frame: called after each frame with the number of frames done and their total.

    Returns:
        The path of ``index.html``.

    Raises:
        InputError: no maps, an unknown score, no label or compared map of any frame, no such images, a damaged metrics
            file, or an output folder that holds something else.
    """
    reader = open_maps(maps)
    chosen = _choose_scores(reader, scores)
    shown_ranges = page_ranges(reader, ranges)
    rows = _choose_frames(reader, limit)
    names = [row.name for row in rows]
    found = find_review_labels(
        names,
        anomaly=anomaly_labels,
        classes=labels,
        anomaly_encoding=anomaly_encoding,
        label_map=label_map,
        region=reader.region,
    )
    other = open_maps(compare) if compare is not None else None
    for model in (reader, other):
        if model is not None and labels is not None and label_map is not None:
            check_classes(model, label_map)
    notices = [*maps_notices(reader, names), *label_notices(found, names), *compare_notices(reader, other, names)]
    tables = metrics_tables(read_json(metrics, "a metrics.json of `segunc evaluate`") if metrics is not None else None)
    source, missing = open_images(reader, images, names)
    run, tool = run_id(reader), describe_tool()
    head = {
        "format": PAGE_FORMAT,
        "format_version": 1,
        "run": run,
        "tool": tool,
        "maps": str(maps),
        "labels": str(labels) if labels else None,
        "anomaly_labels": str(anomaly_labels) if anomaly_labels else None,
        "compare": str(compare) if compare else None,
        "metrics": str(metrics) if metrics else None,
        "scores": chosen,
        "frames": len(rows),
    }
    _prepare(out, reader, head)
    files = FrameFiles(out, reader, chosen, shown_ranges, found, other)
    for done, (row, image, error) in enumerate(with_images(rows, source), start=1):
        if error is not None:
            row.problems.append(error)
        files.write(row, image)
        if on_frame is not None:
            on_frame(done, len(rows))
    notices += [missing] if missing else image_notices(rows)
    video = next((name for name in _VIDEOS if (maps / name).is_file()), None)
    if video is not None:
        shutil.copyfile(inside(maps, video), out / video)
    page = {
        "run": run,
        **describe_model(reader),
        "compared": describe_model(other) if other is not None else None,
        "written": tool,
        "scores": describe_scores(reader, shown_ranges, chosen),
        "ranking": RANKING_SCORE if RANKING_SCORE in chosen else next(iter(chosen), None),
        "colours": describe_colours(),
        "classes": describe_classes(reader, label_map),
        "objects": describe_shares(),
        "fps": (reader.manifest or {}).get("source", {}).get("fps"),
        "video": video,
        "total": len(reader.frames),
        "notices": notices,
        "failed": list((reader.manifest or {}).get("failed", [])),
        "metrics": tables,
    }
    write_data(out / "data" / "page.js", "page", page)
    write_data(out / "data" / "frames.js", "frames", frame_table(rows, chosen, frame_times(reader, names)))
    write_json(out / PAGE_NAME, head | {"status": "finished"})
    write_verdicts(out, run, kept_verdicts(out, run))
    # Last, so that a page that opens is whole.
    return _write_assets(out, str(page["title"]))


def _choose_scores(reader: MapsReader, scores: Sequence[str] | None) -> list[str]:
    unknown = [score for score in scores or () if score not in reader.scores]
    if unknown:
        raise InputError(
            f"score '{unknown[0]}' has no maps in {reader.folder}",
            f"one of {', '.join(reader.scores) or '(there is none)'}",
            "check the name",
        )
    return list(reader.scores if scores is None else scores)


def _choose_frames(reader: MapsReader, limit: int | None) -> list[FrameRow]:
    rows = [FrameRow(name, place) for place, name in enumerate(reader.frames)]
    if limit is None:
        return rows
    if limit < 1:
        raise InputError(f"a limit of {limit} frames", "at least 1", "give another --limit")
    score = RANKING_SCORE if RANKING_SCORE in reader.scores else next(iter(reader.scores), "")

    def mean(row: FrameRow) -> float:
        recorded = reader.records.get(row.name, {}).get("mean", {}).get(score)
        if recorded is None and reader.has(row.name, score):
            recorded = reader.read(row.name, score).mean(dtype="float64")
        return float("-inf") if recorded is None else float(recorded)

    worst = sorted(rows, key=mean, reverse=True)[:limit]
    return sorted(worst, key=lambda row: row.place)


def _prepare(out: Path, reader: MapsReader, head: dict[str, Any]) -> None:
    """Make the folder and say what is written there, without what an earlier page left."""
    if out.resolve() == reader.folder.resolve():
        raise InputError(f"output {out} is the maps folder", "a folder of its own for the page", "give another --out")
    if reader.manifest is None and out.resolve().is_relative_to(reader.folder.resolve()):
        # The pictures of the page would be taken for maps the next time.
        raise InputError(f"output {out} lies inside {reader.folder}", "a folder outside it", "give another --out")
    ours = page_of(out) is not None
    if out.is_dir() and any(out.iterdir()) and not ours and not (out / "index.html").exists():
        raise InputError(f"output {out} holds other files", "an empty or new folder", "give another --out")
    out.mkdir(parents=True, exist_ok=True)
    (out / "index.html").unlink(missing_ok=True)
    for folder in (FRAMES, THUMBNAILS) if ours else ():
        shutil.rmtree(out / folder, ignore_errors=True)
    write_json(out / PAGE_NAME, head | {"status": "being written"})


def _write_assets(out: Path, title: str) -> Path:
    assets = resources.files("segunc.review") / ASSETS
    for asset in assets.iterdir():
        if asset.name.endswith((".js", ".css")):
            write_new(out / ASSETS / asset.name, asset.read_bytes())
    index = out / "index.html"
    template = (assets / "index.html").read_text(encoding="utf-8")
    write_new(index, template.replace("{{title}}", html.escape(title)).encode())
    return index
