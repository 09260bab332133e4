"""The static page."""

from __future__ import annotations

import html
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import Any

from segunc.core.errors import InputError
from segunc.core.files import expected_space, inside, parse_json, read_bytes, read_json, write_file, write_json
from segunc.data.entry import BINARY, AnomalyEncoding
from segunc.data.images import difference_hash
from segunc.data.labels import LabelMap
from segunc.frames.source import FrameSource
from segunc.gallery import frame_files as files
from segunc.gallery.colormap import DisplayRange, colour_table, page_ranges
from segunc.gallery.description import describe_classes, describe_model, metrics_tables, run_id
from segunc.gallery.overlay import score_unit
from segunc.gallery.video import shown_spans
from segunc.maps import labelled
from segunc.maps.folder import OVERLAY
from segunc.maps.manifest import tool_commit, tool_version
from segunc.maps.reader import MapsReader, check_classes
from segunc.maps.several import SeveralMaps
from segunc.maps.statistics import SAME_LOOK, recorded_look
from segunc.maps.verdicts import FORMAT, FORMAT_VERSION, Verdict, parse_verdicts
from segunc.scores import first_shown

ASSETS = "assets"
PAGE_NAME = "review.json"
PAGE_FORMAT = "segunc-review"
VERDICTS_NAME = "verdicts.json"
_SMALLER = "free it, or write fewer frames or scores (--limit, --scores) without --exact"
_VIDEOS = (f"{OVERLAY}.webm", f"{OVERLAY}.mp4")


def write_review(
    maps: Path,
    out: Path,
    *,
    labels: labelled.Labels | None = None,
    label_map: LabelMap | None = None,
    anomaly_labels: labelled.Labels | None = None,
    anomaly_encoding: AnomalyEncoding = BINARY,
    compare: Path | None = None,
    images: str | Path | None = None,
    metrics: Path | None = None,
    scores: Sequence[str] | None = None,
    limit: int | None = None,
    exact: bool = False,
    apart: float = 5.0,
    fps: float | None = None,
    on_frame: Callable[[int, int], None] | None = None,
    on_space: Callable[[str], None] | None = None,
) -> Path:
    """Write the review page of a maps folder and give the path of its ``index.html``; what cannot be shown is said there.

    An earlier page in ``out`` is replaced; its imported verdicts stay while the run is the same.

    The arguments are those of :class:`segunc.options.ReviewOptions`, but for the labels (``labels`` need ``label_map``), ``on_frame``, which
    is called after each frame with the number of frames done and their total, and ``on_space``, called after the first one with a line on
    the bytes that all take. ``scores`` None are those of :func:`shown_first`, ``["all"]`` all.

    InputError: no maps, an unknown score, a page that the disk has no room for, no compared map of any frame, no such images, a damaged metrics file, or an output folder that
    holds something else. PartialFailure: no label of any frame. ``review.json`` lists notices and the problems of frames.
    """
    reader = labelled.open_maps(maps, several=True)
    all_scores = labelled.choose_scores(reader, None if scores == ["all"] else scores)
    chosen = shown_first(all_scores) if scores is None else all_scores
    ranges = page_ranges(reader)
    rows = _choose_frames(reader, limit)
    names = [row.name for row in rows]
    found = labelled.find_review_labels(reader, names, anomaly_labels, anomaly_encoding, labels, label_map)
    other = labelled.open_maps(compare, several=True) if compare is not None else None
    for model in (reader, other):
        if model is not None and labels is not None and label_map is not None:
            check_classes(model, label_map)
    notices = list(_notices(reader, other, found, names))
    tables = _read_metrics(metrics)
    source, missing = labelled.open_images(reader, images, names)
    commit = tool_commit()
    run, tool = run_id(reader), f"segunc {tool_version()}" + (f" {commit[:12]}" if commit else "")
    paths = {"maps": maps, "labels": labels, "anomaly_labels": anomaly_labels, "compare": compare, "metrics": metrics}
    head = {
        "format": PAGE_FORMAT,
        "format_version": 1,
        "run": run,
        "tool": tool,
        **{name: None if isinstance(path, Mapping) or not path else str(path) for name, path in paths.items()},
        "scores": chosen,
        "frames": len(rows),
    }
    _prepare(out, reader, head)
    longest = None if exact else _longest_side(reader)
    writer = files.FrameFiles(out, reader, chosen, ranges, found, other, longest)
    _write_frames(writer, rows, source, on_frame, on_space)
    without = sum(files.IMAGE not in row.contents for row in rows)
    if missing or without:
        said = f"{without} of {len(rows)} frames have no image in the source; their maps are shown alone."
        notices.append(missing or said)
    if video := next((name for name in _VIDEOS if (maps / name).is_file()), None):
        shutil.copyfile(inside(maps, video), out / video)
    spans = [] if video is None else shown_spans(out / video)
    page = {
        "run": run,
        **_about(reader, chosen, longest),
        "compared": describe_model(other) if other is not None else None,
        "written": tool,
        "scores": {score: _about_score(reader, score, ranges[score]) for score in chosen},
        "ranking": first_shown(chosen) or None,
        "colours": [int(red) << 16 | int(green) << 8 | int(blue) for red, green, blue in colour_table()],
        "classes": describe_classes(reader, label_map),
        "objects": {"shares": files.SHARES, "smallest": files.SMALLEST_OBJECT},
        "fps": fps or (reader.manifest or {}).get("source", {}).get("fps"),
        "moments": {"apart": apart, "same_look": SAME_LOOK},
        "video": video,
        # From when to when it shows each frame of the page; unknown where it does not show every frame of the maps.
        "spans": [spans[row.place] for row in rows] if len(spans) == len(reader.frames) else None,
        "total": len(reader.frames),
        "runs": list(reader.runs) if isinstance(reader, SeveralMaps) else [],
        "notices": notices,
        "failed": list((reader.manifest or {}).get("failed", [])),
        "metrics": tables,
    }
    files.write_data(out / "data" / "page.js", "page", page)
    table = frame_table(rows, chosen, labelled.frame_times(reader, names, fps))
    files.write_data(out / "data" / "frames.js", "frames", table)
    problems = {row.name: row.problems for row in rows if row.problems}
    write_json(out / PAGE_NAME, head | {"status": "finished", "notices": notices, "problems": problems})
    write_verdicts(out, run, kept_verdicts(out, run))
    return _write_assets(out, str(page["title"]))  # last, so that a page that opens is whole


def _read_metrics(metrics: Path | None) -> list[dict[str, Any]]:
    try:
        return metrics_tables(read_json(metrics, "a metrics.json of `segunc evaluate`") if metrics else None)
    except (AttributeError, TypeError) as wrong:
        raise InputError(f"{metrics} holds no numbers of scores ({wrong})", "a result of segunc evaluate") from wrong


def _write_frames(
    writer: files.FrameFiles,
    rows: Sequence[files.FrameRow],
    source: FrameSource | labelled.JoinedSources | None,
    on_frame: Callable[[int, int], None] | None,
    on_space: Callable[[str], None] | None,
) -> None:
    """Write the files of all frames and fill in their rows; InputError where the disk has no room for them."""
    by_name, total = {row.name: row for row in rows}, len(rows)
    for done, (name, image, error) in enumerate(labelled.with_images(list(by_name), source), start=1):
        row = by_name[name]
        if error is not None:
            row.problems.append(error)
        look = recorded_look(writer.reader.records.get(name, {}))
        row.look = look or (0 if image is None else difference_hash(image))
        writer.write(row, image)
        if done == 1:
            line = expected_space(writer.out, "files of the page", writer.size(row), total, total - 1, _SMALLER)
            if on_space is not None:
                on_space(line)
        if on_frame is not None:
            on_frame(done, total)


def _about(reader: MapsReader, chosen: Sequence[str], longest: int | None) -> dict[str, Any]:
    """What the page says of the model, and of what it carries of the maps."""
    about = describe_model(reader)
    means = f"means of pixels, at most {longest} on a side, in 255 steps of each map's range (review --exact: whole)"
    about["facts"].append(("Maps on this page", "whole" if longest is None else means))
    if lost := [score for score in reader.scores if score not in chosen]:
        about["facts"].append(("Scores left out (review --scores all)", ", ".join(lost)))
    return about


def _about_score(reader: MapsReader, score: str, shown: DisplayRange) -> dict[str, Any]:
    region_from = (reader.manifest or {}).get("maps", {}).get(score, {}).get("component_threshold")
    ends = {"low": shown.low, "high": shown.high, "ticks": shown.ticks}
    return {"unit": score_unit(reader.manifest, score), **ends, "region_from": region_from}


def shown_first(scores: Sequence[str]) -> list[str]:
    """What a page carries unless it is asked for more: the score that is shown first, entropy and epistemic, where they are there."""
    wanted = {first_shown(scores), "entropy", "epistemic"}
    return [score for score in scores if score in wanted]


def _longest_side(reader: MapsReader) -> int:
    """Of condensed maps: no more than the network has seen."""
    size = (reader.manifest or {}).get("run", {}).get("size")
    return min(files.LONGEST_SIDE, max(size)) if size else files.LONGEST_SIDE


def _notices(
    reader: MapsReader, other: MapsReader | None, labels: labelled.ReviewLabels, names: Sequence[str]
) -> Iterator[str]:
    """What the page says above its frames; raises InputError where two models have no frame in common."""
    if reader.unfinished:
        yield f"This page shows what was finished: {reader.unfinished}."
    if len(names) < len(reader.frames):
        yield f"The page carries the worst {len(names)} of {len(reader.frames)} frames."
    if reader.region is not None:
        ignored = (
            "its pixels are 0 in every map and ignored in every label, and they count in shares of the whole frame"
        )
        yield f"A mask was left out of these maps: {ignored}."
    for folder, why in reader.skipped.items():
        yield f"The folder {folder} is not shown: {why}."
    yield from labels.gaps(len(names))
    if other is None:
        return
    both = set(names) & set(other.frames)
    if not both:
        given = f"{other.folder} and {reader.folder} have no frame in common"
        raise InputError(given, "maps of the same frames", "check --compare")
    if len(both) < len(names):
        yield f"The compared maps hold {len(both)} of {len(names)} frames; the others show one model only."
    more = len(set(other.frames) - set(reader.frames))
    if more:
        yield f"{more} frames stand only in the compared maps and are not shown."
    if other.unfinished:
        yield f"Compared maps: {other.unfinished}."


def _choose_frames(reader: MapsReader, limit: int | None) -> list[files.FrameRow]:
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
    """The columns of the page's table, each with one entry a frame, in source order, and null where there is none.

    ``times`` are seconds from the start of a video.
    """
    kinds = sorted({tuple(row.contents) for row in rows})
    kind_of = {kind: index for index, kind in enumerate(kinds)}
    return {
        "names": [row.name for row in rows],
        "places": [row.place for row in rows],
        "times": list(times) if any(time is not None for time in times) else None,
        # Two halves: a whole number of JavaScript has 53 bits.
        "looks": [[row.look >> 32, row.look & 0xFFFFFFFF] if row.look else None for row in rows],
        "sizes": [list(row.size) if row.size else None for row in rows],
        "kinds": [list(kind) for kind in kinds],
        "kind": [kind_of[tuple(row.contents)] for row in rows],
        "objects": [row.objects for row in rows],
        "statistics": _columns([row.statistics for row in rows], scores),
        "other": _columns([row.other for row in rows], scores),
        "found": {
            score: {share: [row.found.get(score, {}).get(share) for row in rows] for share in files.SHARES}
            for score in scores
            if any(score in row.found for row in rows)
        },
        "problems": {str(index): row.problems for index, row in enumerate(rows) if row.problems},
    }


def _columns(
    statistics: Sequence[Mapping[str, Mapping[str, float]]], scores: Sequence[str]
) -> dict[str, dict[str, list[float | None]]]:
    """Score -> statistic -> column, of the statistics of each frame."""
    found = {}
    for score in scores:
        entries = [of_frame.get(score, {}) for of_frame in statistics]
        # The order in which they first occur: mean, p99, max, then what the record of a frame adds.
        names = dict.fromkeys(name for entry in entries for name in entry)
        if names:
            found[score] = {name: [entry.get(name) for entry in entries] for name in names}
    return found


def _prepare(out: Path, reader: MapsReader, head: dict[str, Any]) -> None:
    """Make the folder and say what is written there, without what an earlier page left."""
    if out.resolve() == reader.folder.resolve():
        raise InputError(f"output {out} is the maps folder", "a folder of its own for the page", "give another --out")
    if reader.manifest is None and out.resolve().is_relative_to(reader.folder.resolve()):
        # The pictures of the page would be taken for maps the next time.
        raise InputError(f"output {out} lies inside {reader.folder}", "a folder outside it", "give another --out")
    ours = page_of(out) is not None
    if out.is_dir() and any(out.iterdir()) and not ours:
        raise InputError(f"output {out} holds other files", "an empty or new folder", "give another --out")
    out.mkdir(parents=True, exist_ok=True)
    (out / "index.html").unlink(missing_ok=True)
    for folder in (files.FRAMES, files.THUMBNAILS) if ours else ():
        shutil.rmtree(out / folder, ignore_errors=True)
    write_json(out / PAGE_NAME, head | {"status": "being written"})


def _write_assets(out: Path, title: str) -> Path:
    assets = resources.files("segunc.gallery") / ASSETS
    for asset in assets.iterdir():
        if asset.name.endswith((".js", ".css")):
            write_file(out / ASSETS / asset.name, asset.read_bytes())
    index = out / "index.html"
    template = (assets / "index.html").read_text(encoding="utf-8")
    write_file(index, template.replace("{{title}}", html.escape(title)).encode())
    return index


def write_verdicts(out: Path, run: str, verdicts: Sequence[Verdict]) -> None:
    """Lay verdicts beside a page, which shows them: ``verdicts.json`` and the script that the page loads."""
    entries = [asdict(verdict) for verdict in verdicts]
    content = {"format": FORMAT, "version": FORMAT_VERSION, "run": run, "verdicts": entries}
    if verdicts:
        write_json(out / VERDICTS_NAME, content)
    files.write_data(out / "data" / "verdicts.js", "verdicts", content)


def kept_verdicts(out: Path, run: str) -> list[Verdict]:
    """The verdicts that were imported into an earlier page of the same run; none where there is no such page."""
    content = _object(out / VERDICTS_NAME)
    entries = content.get("verdicts") if content.get("run") == run else None
    return parse_verdicts(out / VERDICTS_NAME, entries) if isinstance(entries, list) else []


def page_of(out: Path) -> dict[str, Any] | None:
    """What a page's folder says of itself; None for any other folder."""
    content = _object(out / PAGE_NAME)
    return content if content.get("format") == PAGE_FORMAT else None


def _object(path: Path) -> dict[str, Any]:
    """The JSON object of a file; empty where there is none."""
    try:
        content = parse_json(read_bytes(path))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
