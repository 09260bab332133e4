"""The static review page of a maps folder."""

from __future__ import annotations

import html
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from segunc.core.errors import InputError
from segunc.core.files import parse_json, read_bytes, write_file, write_json
from segunc.frames.source import FrameSource
from segunc.gallery import frame_files as files
from segunc.gallery.colormap import DisplayRange, colour_table, page_ranges
from segunc.gallery.description import describe_classes, describe_model, run_id
from segunc.gallery.overlay import score_unit
from segunc.maps import labelled
from segunc.maps.manifest import tool_commit, tool_version
from segunc.maps.reader import MapsReader, check_classes
from segunc.maps.verdicts import FORMAT, FORMAT_VERSION, Verdict
from segunc.scores import first_shown

ASSETS = "assets"
PAGE_NAME = "review.json"
PAGE_FORMAT = "segunc-review"


@dataclass(frozen=True)
class PageSettings:
    """What a page carries; the fields are those of :class:`segunc.options.ReviewOptions`."""

    compare: str | Path | None = None
    images: str | None = None
    scores: Sequence[str] | None = None  # None: those of shown_first; ("all",): all
    exact: bool = False
    apart: float = 5.0
    fps: float | None = None
    limit: int | None = None


EVERYTHING = PageSettings()
NO_LABELS = labelled.LabelSources()


def write_review(
    maps: Path,
    out: Path,
    settings: PageSettings = EVERYTHING,
    labels: labelled.LabelSources = NO_LABELS,
    on_frame: Callable[[int, int], None] | None = None,
) -> Path:
    """Write the review page of a maps folder and return the path of its ``index.html``; an earlier page is replaced.

    Args:
        maps: a maps folder.
        out: folder of the page; ``review.json`` in it lists notices and the problems of frames.
        settings: what the page carries.
        labels: anomaly masks and class labels.
        on_frame: called after each frame with the number of frames done and their total.

    Raises:
        InputError: there are no maps, an unknown score, compared maps without a frame
            in common, no images at the place given, or an output folder that holds something else.
        PartialFailure: no label belongs to a frame.
    """
    reader = labelled.open_maps(maps)
    other = labelled.open_maps(Path(settings.compare)) if settings.compare else None
    scores = _choose_scores(reader, settings.scores)
    rows = _choose_frames(reader, settings.limit)
    names = [row.name for row in rows]
    frame_labels = labels.find(reader, names)
    if labels.label_map is not None:
        for model in filter(None, (reader, other)):
            check_classes(model, labels.label_map)
    notices = list(_notices(reader, other, frame_labels, names))
    source, missing = labelled.open_images(reader, settings.images, names)
    record = _begin(reader, out, settings, labels) | {"scores": scores, "frames": len(rows)}
    longest = None if settings.exact else _longest_side(reader)
    ranges = page_ranges(reader)
    writer = files.FrameFiles(out, reader, scores, ranges, frame_labels, other, longest)
    _write_frames(writer, rows, source, on_frame)
    without = sum(files.IMAGE not in row.contents for row in rows)
    if missing or without:
        notices.append(missing or f"{without} of {len(rows)} frames have no image; their maps are shown alone.")
    page = {
        "run": record["run"],
        "written": record["tool"],
        **_about(reader, scores, longest),
        "compared": describe_model(other) if other is not None else None,
        "scores": {score: _about_score(reader, score, ranges[score]) for score in scores},
        "classes": describe_classes(reader, labels.label_map),
        "fps": settings.fps or (reader.manifest or {}).get("source", {}).get("fps"),
        "apart": settings.apart,
        "notices": notices,
    }
    files.write_data(out / "data" / "page.js", "page", page)
    table = frame_table(rows, scores, labelled.frame_times(reader, names, settings.fps))
    files.write_data(out / "data" / "frames.js", "frames", table)
    write_verdicts(out, record["run"], [])
    problems = {row.name: row.problems for row in rows if row.problems}
    write_json(out / PAGE_NAME, record | {"status": "finished", "notices": notices, "problems": problems})
    return _write_assets(out, str(page["title"]))  # last, so that a page that opens is whole


def _choose_scores(reader: MapsReader, scores: Sequence[str] | None) -> list[str]:
    """Return the scores of a page: all, those that are given, or the first to show, entropy and epistemic."""
    if scores is None:
        meaningful = labelled.choose_scores(reader, None)
        usual = {first_shown(meaningful), "entropy", "epistemic"}
        return [score for score in meaningful if score in usual]
    return labelled.choose_scores(reader, None if list(scores) == ["all"] else scores)


def _write_frames(
    writer: files.FrameFiles,
    rows: Sequence[files.FrameRow],
    source: FrameSource | None,
    on_frame: Callable[[int, int], None] | None,
) -> None:
    """Write the files of all frames and fill in their rows."""
    by_name = {row.name: row for row in rows}
    for done, (name, image, error) in enumerate(labelled.with_images(list(by_name), source), start=1):
        row = by_name[name]
        if error is not None:
            row.problems.append(error)
        writer.write(row, image)
        if on_frame is not None:
            on_frame(done, len(rows))


def _about(reader: MapsReader, scores: Sequence[str], longest: int | None) -> dict[str, Any]:
    """Describe the model, the run, and what the page carries of the maps."""
    about = describe_model(reader)
    means = f"means of pixels, at most {longest} on a side, in 255 steps of each map's range (review --exact: whole)"
    about["facts"].append(("Maps on this page", "whole" if longest is None else means))
    if left_out := [score for score in reader.scores if score not in scores]:
        about["facts"].append(("Scores left out (review --scores all)", ", ".join(left_out)))
    return about | {
        "ranking": first_shown(scores) or None,
        "colours": [int(red) << 16 | int(green) << 8 | int(blue) for red, green, blue in colour_table()],
        "objects": {"share": files.FOUND_SHARE, "smallest": files.SMALLEST_OBJECT},
        "total": len(reader.frames),
        "failed": list((reader.manifest or {}).get("failed", [])),
    }


def _about_score(reader: MapsReader, score: str, shown: DisplayRange) -> dict[str, Any]:
    threshold = (reader.manifest or {}).get("maps", {}).get(score, {}).get("component_threshold")
    ends = {"low": shown.low, "high": shown.high, "ticks": shown.ticks}
    return {"unit": score_unit(reader.manifest, score), **ends, "region_from": threshold}


def _longest_side(reader: MapsReader) -> int:
    """Return the pixels of a condensed map's longer side: no more than the network has seen."""
    size = (reader.manifest or {}).get("run", {}).get("size")
    return min(files.LONGEST_SIDE, max(size)) if size else files.LONGEST_SIDE


def _notices(
    reader: MapsReader, other: MapsReader | None, labels: labelled.ReviewLabels, names: Sequence[str]
) -> Iterator[str]:
    """Yield what the page says above its frames; raises InputError where two models have no frame in common."""
    if reader.unfinished:
        yield f"This page shows what was finished: {reader.unfinished}."
    if len(names) < len(reader.frames):
        yield f"The page carries the worst {len(names)} of {len(reader.frames)} frames."
    if reader.region is not None:
        yield "A mask was left out of these maps: its pixels are 0 in every map and ignored in every label."
    yield from labels.gaps(len(names))
    if other is None:
        return
    both = set(names) & set(other.frames)
    if not both:
        raise InputError(f"{other.folder} and {reader.folder} have no frame in common", hint="check --compare")
    if len(both) < len(names):
        yield f"The compared maps hold {len(both)} of {len(names)} frames; the others show one model only."


def _choose_frames(reader: MapsReader, limit: int | None) -> list[files.FrameRow]:
    """Return rows for all frames, or for the ``limit`` frames of the highest mean, in source order."""
    rows = [files.FrameRow(name, place) for place, name in enumerate(reader.frames)]
    if limit is None:
        return rows
    score = first_shown(reader.scores)

    def mean(row: files.FrameRow) -> float:
        recorded = reader.records.get(row.name, {}).get("mean", {}).get(score)
        if recorded is None and reader.has(row.name, score):
            recorded = reader.read(row.name, score).mean(dtype="float64")
        return float("-inf") if recorded is None else float(recorded)

    worst = sorted(rows, key=mean, reverse=True)[:limit]
    return sorted(worst, key=lambda row: row.place)


def frame_table(rows: Sequence[files.FrameRow], scores: Sequence[str], times: Sequence[float | None]) -> dict[str, Any]:
    """Return the columns of the page's table, each with one entry a frame in source order, None where there is none.

    ``times`` are seconds from the start of a video.
    """
    kinds = sorted({tuple(row.contents) for row in rows})
    kind_of = {kind: index for index, kind in enumerate(kinds)}
    return {
        "names": [row.name for row in rows],
        "places": [row.place for row in rows],
        "times": list(times) if any(time is not None for time in times) else None,
        "sizes": [list(row.size) if row.size else None for row in rows],
        "kinds": [list(kind) for kind in kinds],
        "kind": [kind_of[tuple(row.contents)] for row in rows],
        "objects": [row.objects for row in rows],
        "statistics": _columns([row.statistics for row in rows], scores),
        "other": _columns([row.other for row in rows], scores),
        "found": {
            score: [row.found.get(score) for row in rows] for score in scores if any(score in row.found for row in rows)
        },
        "problems": {str(index): row.problems for index, row in enumerate(rows) if row.problems},
    }


def _columns(
    statistics: Sequence[Mapping[str, Mapping[str, float]]], scores: Sequence[str]
) -> dict[str, dict[str, list[float | None]]]:
    """Return the columns of each statistic of each score, from the statistics of each frame."""
    columns = {}
    for score in scores:
        entries = [of_frame.get(score, {}) for of_frame in statistics]
        # The order in which they first occur: mean, p99, max, then what the record of a frame adds.
        names = dict.fromkeys(name for entry in entries for name in entry)
        if names:
            columns[score] = {name: [entry.get(name) for entry in entries] for name in names}
    return columns


def _begin(reader: MapsReader, out: Path, settings: PageSettings, labels: labelled.LabelSources) -> dict[str, Any]:
    """Make the folder without what an earlier page left, and return the record of the page, written there.

    Raises:
        InputError: the folder is, or lies in, the maps folder, or holds anything but an earlier page.
    """
    foreign = reader.manifest is None
    if out.resolve() == reader.folder.resolve() or (foreign and out.resolve().is_relative_to(reader.folder.resolve())):
        # Pictures of a page inside of another tool's maps would be taken for maps the next time.
        raise InputError(f"output {out} is or lies inside the maps folder {reader.folder}", hint="give another --out")
    ours = page_of(out) is not None
    if out.is_dir() and any(out.iterdir()) and not ours:
        raise InputError(f"output {out} holds other files", hint="give an empty or new folder as --out")
    out.mkdir(parents=True, exist_ok=True)
    (out / "index.html").unlink(missing_ok=True)
    for folder in (files.FRAMES, files.THUMBNAILS) if ours else ():
        shutil.rmtree(out / folder, ignore_errors=True)
    tool = " ".join(filter(None, ("segunc", tool_version(), (tool_commit() or "")[:12])))
    record = {
        "format": PAGE_FORMAT,
        "format_version": 1,
        "run": run_id(reader),
        "tool": tool,
        "maps": str(reader.folder),
    }
    for name, labels_of in (("labels", labels.labels), ("anomaly_labels", labels.anomaly_labels)):
        record[name] = None if labels_of is None or isinstance(labels_of, Mapping) else str(labels_of)
    record["compare"] = str(settings.compare) if settings.compare else None
    write_json(out / PAGE_NAME, record | {"status": "being written"})
    return record


def _write_assets(out: Path, title: str) -> Path:
    assets = resources.files("segunc.gallery") / ASSETS
    for asset in assets.iterdir():
        if asset.name.endswith((".js", ".css")):
            write_file(out / ASSETS / asset.name, asset.read_bytes())
    index = out / "index.html"
    template = (assets / "index.html").read_text(encoding="utf-8")
    write_file(index, template.replace("{{title}}", html.escape(title)).encode())
    return index


def write_verdicts(out: Path, run: str, verdicts: Sequence[Verdict]) -> Path:
    """Write the script through which a page shows imported verdicts, and return its path."""
    entries = [asdict(verdict) for verdict in verdicts]
    content = {"format": FORMAT, "version": FORMAT_VERSION, "run": run, "verdicts": entries}
    path = out / "data" / "verdicts.js"
    files.write_data(path, "verdicts", content)
    return path


def page_of(out: Path) -> dict[str, Any] | None:
    """Return the record of a page's folder; None for any other folder."""
    try:
        content = parse_json(read_bytes(out / PAGE_NAME))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) and content.get("format") == PAGE_FORMAT else None
