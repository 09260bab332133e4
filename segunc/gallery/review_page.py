"""The static review page of a maps folder, and the verdicts that it shows.

``index.html`` loads the scripts in ``assets``, the tables in ``data``, and, when they are needed,
the files of each frame (:mod:`segunc.gallery.frame_files`).
"""

from __future__ import annotations

import contextlib
import hashlib
import html
import json
import math
import secrets
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from segunc.colours import DisplayRange
from segunc.core.errors import InputError
from segunc.core.files import json_bytes, parse_json, read_bytes
from segunc.core.removal import Ledger
from segunc.core.terminal import agreeing, counted
from segunc.core.version import tool_commit, tool_version
from segunc.decisions.flags import (
    Threshold,
    check_forms,
    check_promises,
    ranking_score,
    smallest_object_of,
)
from segunc.decisions.guarantee import source_of
from segunc.decisions.preparation import MAX_RARITY
from segunc.frames.source import FrameSource
from segunc.gallery.alarms import join_alarms
from segunc.gallery.colours import class_colours, page_ranges, usual_scores
from segunc.gallery.condensed import Values
from segunc.gallery.drawing import NO_LABELS
from segunc.gallery.frame_files import (
    FRAMES,
    IMAGE,
    THUMBNAILS,
    FrameFiles,
    FrameRow,
    flagged_map,
    region_threshold,
    strongest_sum,
)
from segunc.gallery.page_facts import facts_of, notices as page_notices, version_words
from segunc.maps import labelled
from segunc.maps.reader import MapsReader
from segunc.maps.shards import every_of, frame_times
from segunc.maps.verdicts import (
    FORMAT,
    FORMAT_VERSION,
    Verdict,
    parse_verdicts,
    verdicts_on_images,
)

PAGE_NAME = "review.json"
PAGE_FORMAT = "segunc-review"
TABLES = "data"
VERDICTS = "verdicts"  # the table of those that were imported
ASSETS = "assets"
INDEX = "index.html"
PARTS = (INDEX, FRAMES, THUMBNAILS, TABLES, ASSETS)  # of a page; the first opens it
LONGEST_SIDE = 960  # pixels of the longer side of a map on the page, at most
Strength = tuple[float, float]  # of the strongest region of a frame, and the highest value


def write_review(  # noqa: PLR0913  each is an option of `segunc review`
    maps: Path,
    out: Path,
    labels: labelled.LabelSources = NO_LABELS,
    on_frame: Callable[[int, int], None] = lambda done, total: None,
    *,
    images: str | None = None,
    scores: Sequence[str] | None = None,
    apart: float = 5.0,
    fps: float | None = None,
    limit: int | None = None,
    blind: str = "auto",
    flag: Mapping[str, Threshold] | None = None,
) -> Path:
    """Write the review page of a maps folder and return the path of its ``index.html``.

    An earlier page is replaced. ``review.json`` beside it lists notices and the problems of frames.
    The keyword settings are those of :class:`segunc.options.ReviewOptions`.

    Args:
        maps: a maps folder.
        out: the folder of the page.
        labels: where the labels of frames come from.
        on_frame: is called with the number of frames done and their total.
        flag: score -> threshold from which on pixels are flagged, in place of the recorded one.

    Raises:
        InputError: no maps, an unknown score, no images there or an output folder of another kind.
        NoLabelError: no label belongs to a frame.
    """
    reader = labelled.open_maps(maps)
    flag = flag or {}
    shown = choose_page_scores(reader, scores, flag)
    rows, unranked = _choose_rows(reader, limit, fps, flag)
    names = [row.name for row in rows]
    frame_labels = labels.find(reader, names)
    check_promises(flag, _run_of(reader))
    check_forms(flag, reader)
    # First, because a narrow window shows the first lines alone.
    notices = list(_calibration_notices(reader, flag, names))
    notices.extend(_promise_notices(flag, reader.sizes(names)))
    notices.extend(page_notices(reader, frame_labels, names))
    notices.extend(_unranked_notices(unranked))
    source, missing = labelled.open_images(reader, images, names)
    files = Ledger(out)
    record = _begin(reader, files)
    record["scores"] = shown
    record["frames"] = len(rows)
    ranges = _ranges(reader, shown, flag)
    longest = _longest_side(reader)
    _write_frames(
        FrameFiles(
            files, reader, shown, ranges, frame_labels, longest, flag, stamp=record["stamp"]
        ),
        rows,
        source,
        on_frame,
    )
    notices.extend(_image_notices(rows, missing))
    page = facts_of(reader, ranges, longest, flag)
    page |= {
        "run": record["run"],
        "stamp": record["stamp"],
        "written": record["tool"],
        "classes": class_colours(reader, labels.label_map),
        "fps": _shown_rate(reader, fps),
        "apart": apart,
        "blind": {"yes": True, "no": False}.get(blind),
        "notices": notices,
        "events": _events(reader, rows),
        "objects": {"smallest": smallest_object_of(flag)},
    }
    return _finish(files, record, page, rows)


@dataclass(frozen=True)
class EarlierVerdicts:
    """The verdicts that a page holds from earlier imports."""

    kept: list[Verdict]
    note: str  # what a user should know if the page is made again; empty for nothing
    note_on_images: str = ""  # that verdicts are left out, on other images; empty for none


def earlier_verdicts(out: Path, reader: MapsReader) -> EarlierVerdicts:
    """Return the verdicts that were imported into the page in a folder, if it is of the same
    run.
    """
    page = page_of(out)
    path = out / TABLES / f"{VERDICTS}.js"
    if page is None or not path.is_file():
        return EarlierVerdicts([], "")
    try:
        content = _read_data(out, VERDICTS)
        count = len(parse_json(content.encode())["verdicts"])
        if page.get("run") != run_id(reader):
            verdicts = []
        else:
            verdicts = parse_verdicts(content, str(path), run_id(reader), reader.frames)
    except (InputError, ValueError, KeyError, TypeError, AttributeError):
        return EarlierVerdicts([], f"The verdicts of the earlier page in {out} cannot be read.")
    if not count:
        return EarlierVerdicts([], "")
    if not verdicts:
        are = f"{counted(count, 'verdict')} that {agreeing('was', count)}"
        note = f"The page leaves out {are} imported into the earlier one, on another run."
        return EarlierVerdicts([], note)
    on_images = verdicts_on_images([verdicts], reader)
    (kept,) = on_images.lists
    note = ""
    if kept:
        are = f"{counted(len(kept), 'verdict')} that {agreeing('was', len(kept))}"
        note = f"The page keeps {are} imported into the earlier one."
    note_on_images = ""
    if on_images.left_out:
        left_out = len(on_images.left_out)
        are = f"{counted(left_out, 'verdict')} that {agreeing('was', left_out)}"
        note_on_images = (
            f"The page leaves out {are} imported into the earlier one, because their frames have "
            "other images now."
        )
    return EarlierVerdicts(kept, note, note_on_images)


def _read_data(out: Path, key: str) -> str:
    """Return the JSON of a table that :func:`write_data` wrote: a call with JSON in a string.

    Raises:
        ValueError: it is no such table.
    """
    text = read_bytes(out / TABLES / f"{key}.js").decode()
    content = json.loads(text[text.index("JSON.parse(") + len("JSON.parse(") : -len("));\n")])
    if not isinstance(content, str):
        raise ValueError(f"table {key} holds no text")
    return content


def frames_of_other_images(out: Path, reader: MapsReader) -> list[str]:
    """Return the names of the frames on a page whose maps are of another image than those in the
    maps folder. A page of an earlier version does not say of which images it is.
    """
    changed = []
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        for row in parse_json(_read_data(out, "frames").encode()):
            shown = row.get("image_hash")
            recorded = reader.image_hash(row["name"])
            if None not in (shown, recorded) and shown != recorded:
                changed.append(str(row["name"]))
    return changed


def _ranges(
    reader: MapsReader, scores: Sequence[str], flag: Mapping[str, Threshold]
) -> dict[str, DisplayRange]:
    """Return the range of the colours of each score."""
    ranges = page_ranges(reader, scores)
    for score, threshold in flag.items():
        if threshold.preparation.level == "frame":
            ranges[score] = DisplayRange(0, MAX_RARITY)
    return ranges


def _unranked_notices(unranked: Sequence[str]) -> Iterator[str]:
    """Yield a line where frames could not be ranked."""
    if unranked:
        frames = counted(len(unranked), "frame")
        yield f"{frames} could not be ranked, because a map cannot be read, first {unranked[0]}."


def _write_frames(
    writer: FrameFiles,
    rows: Sequence[FrameRow],
    source: FrameSource | None,
    on_frame: Callable[[int, int], None],
) -> None:
    """Write the files of all frames and fill in their rows."""
    by_name = {row.name: row for row in rows}
    files = labelled.image_files(source) or labelled.video_files(writer.reader, list(by_name))
    for name, file in files.items():
        if name in by_name:
            by_name[name].file = file
    frames = labelled.with_images(list(by_name), source)
    for done, (name, image, error) in enumerate(frames, start=1):
        row = by_name[name]
        if error is not None:
            row.problems.append(error)
        writer.write(row, image)
        on_frame(done, len(rows))


def _image_notices(rows: Sequence[FrameRow], missing: str | None) -> list[str]:
    """Return a line where frames have no image; ``missing`` is what opening the images said."""
    if missing:
        return [f"{missing}. Without an image, only maps are shown."]
    without = sum(IMAGE not in row.contents for row in rows)
    if not without:
        return []
    have = agreeing("has", without)
    frames = counted(len(rows), "frame")
    return [f"{without} of {frames} {have} no image; the maps are shown alone."]


def _calibration_notices(
    reader: MapsReader, flag: Mapping[str, Threshold], names: Sequence[str]
) -> Iterator[str]:
    """Yield a line on each threshold that was calibrated on frames of the page: whatever they show
    is no evidence for its promise.
    """
    source = source_of(_run_of(reader))
    for score, threshold in flag.items():
        promised = threshold.guarantee
        if promised is None:
            continue
        calibrated = [
            name
            for name in names
            if name in promised.frames
            and promised.holds(name, reader.identity(name, score), source)
        ]
        if calibrated:
            yield (
                f"{len(calibrated)} of the {len(names)} frames here are frames of the calibration "
                f"of {threshold.source}. They cannot test its promise."
            )


def _promise_notices(flag: Mapping[str, Threshold], sizes: Sequence[str]) -> Iterator[str]:
    """Yield what each threshold promises, and where the frames have another size than those that it
    was calibrated on.
    """
    for threshold in flag.values():
        if threshold.promise:
            yield threshold.statement
        if threshold.guarantee is not None:
            note = threshold.guarantee.size_note(sizes, threshold.source)
            if note:
                yield f"{note}."


def _events(reader: MapsReader, rows: Sequence[FrameRow]) -> list[dict[str, int]]:
    """Return the alarms that are followed over frames; none where frames are no sequence, because
    some are left out or have no time.
    """
    if len(rows) < len(reader.frames) or any(row.time is None for row in rows):
        return []
    return join_alarms(rows)


def _finish(
    files: Ledger, record: dict[str, Any], page: Mapping[str, Any], rows: Sequence[FrameRow]
) -> Path:
    """Write the tables, the record and, so that a page that opens is whole, ``index.html`` last;
    return its path.
    """
    write_data(files, "page", page)
    write_data(files, "frames", [asdict(row) for row in rows])
    record["status"] = "finished"
    record["notices"] = [*page["notices"], *record["notices"]]
    record["problems"] = {row.name: row.problems for row in rows if row.problems}
    files.write(PAGE_NAME, json_bytes(record))
    return _write_assets(files, str(page["title"]))


def run_id(reader: MapsReader) -> str:
    """Return sixteen hexadecimal digits that name the run under review, also when it goes on: of
    its settings and model, or of folder, scores, frames and content of another tool's maps.
    """
    content: list[Any]
    if reader.manifest is not None:
        content = [reader.manifest.get(key) for key in ("run", "model", "source")]
    else:
        content = [
            reader.folder.resolve().name,
            reader.scores,
            reader.frames,
            list(_sampled_hashes(reader)),
        ]
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _sampled_hashes(reader: MapsReader) -> Iterator[str]:
    """Yield the hashes of the first, a middle and the last map of each score of another tool's
    maps. Those of two models may have equal names, and differ everywhere.
    """
    for score in reader.scores:
        names = [name for name in reader.frames if reader.has(name, score)]
        for place in sorted({0, len(names) // 2, len(names) - 1}):
            yield reader.identity(names[place], score)


def choose_page_scores(
    reader: MapsReader, scores: Sequence[str] | None, flag: Collection[str]
) -> list[str]:
    """Return the scores to show.

    Args:
        reader: of the maps.
        scores: that are asked for, or ``["all"]``; None stands for the usual ones.
        flag: scores that have a threshold, which is nothing without its score.

    Raises:
        InputError: a score has no maps, or has a threshold and is not among those asked for.
    """
    if scores == ["all"]:
        shown = labelled.choose_scores(reader, None)
    elif scores:
        shown = labelled.choose_scores(reader, scores)
        hidden = [score for score in flag if score not in shown]
        if hidden:
            raise InputError(
                f"'{hidden[0]}' has a threshold but is not shown",
                hint=f"--scores {','.join((*shown, *hidden))}",
            )
    else:
        shown = usual_scores(reader)
    return labelled.choose_scores(reader, [*shown, *flag])


def _run_of(reader: MapsReader) -> dict[str, Any]:
    """Return what the maps record of their run; empty for maps of another tool."""
    run: dict[str, Any] = (reader.manifest or {}).get("run", {})
    return run


def _longest_side(reader: MapsReader) -> int:
    """Return the longer side of the maps on the page in pixels: no more than the network saw."""
    size = _run_of(reader).get("size")
    return min(LONGEST_SIDE, max(size)) if size else LONGEST_SIDE


def _shown_rate(reader: MapsReader, fps: float | None) -> float | None:
    """Return the frames a second of the frames on the page, None where no rate is known."""
    rate = fps or (reader.manifest or {}).get("source", {}).get("fps")
    return rate and rate / every_of(reader.manifest)


def _choose_rows(
    reader: MapsReader, limit: int | None, fps: float | None, flag: Mapping[str, Threshold]
) -> tuple[list[FrameRow], list[str]]:
    """Return rows for all frames, or for the ``limit`` worst frames, in source order; and the
    frames that could not be ranked, because their map cannot be read. These count as the best.
    """
    times = frame_times(reader.frames, reader.records, reader.manifest, fps)
    rows = []
    for place, (name, time) in enumerate(zip(reader.frames, times, strict=True)):
        rows.append(FrameRow(name, place, time, image_hash=reader.image_hash(name)))
    unranked: list[str] = []
    if limit is None:
        return rows, unranked
    score = ranking_score(reader.scores, flag)
    given = flag.get(score)
    threshold = region_threshold(reader, score) if score else None

    def strength(row: FrameRow) -> Strength:
        try:
            if given is not None:
                return _strength_at(reader, row.name, score, given)
            return _strength(reader, row.name, score, threshold)
        except InputError:
            unranked.append(row.name)
            return -math.inf, -math.inf

    def largest_strength(row: FrameRow) -> Strength:
        if given is not None:
            return math.inf, math.inf
        return _largest_strength(reader, row.name, score)

    worst = _worst_rows(rows, limit, largest_strength, strength)
    return sorted(worst, key=lambda row: row.place), unranked


def _worst_rows(
    rows: Sequence[FrameRow],
    limit: int,
    largest_strength: Callable[[FrameRow], Strength],
    strength: Callable[[FrameRow], Strength],
) -> list[FrameRow]:
    """Return the ``limit`` rows of the largest strength, the first of equal ones.

    Args:
        rows: of all frames.
        limit: number of rows, at most.
        largest_strength: what the strength of a row is at most, as far as it is recorded.
        strength: the strength of a row, which may need its map: it is asked of no row whose largest
            one is too small.
    """
    bounds = {row.place: largest_strength(row) for row in rows}
    worst: list[tuple[Strength, FrameRow]] = []
    for row in sorted(rows, key=lambda row: bounds[row.place], reverse=True):
        if len(worst) == limit and bounds[row.place] < worst[-1][0]:
            break
        worst.append((strength(row), row))
        worst.sort(key=lambda entry: entry[1].place)
        worst.sort(key=lambda entry: entry[0], reverse=True)
        del worst[limit:]
    return [row for _, row in worst]


def _strength_at(reader: MapsReader, name: str, score: str, threshold: Threshold) -> Strength:
    """Return the same as :func:`_strength` for a threshold that the maps do not record."""
    if not reader.has(name, score):
        return -math.inf, -math.inf
    values = flagged_map(reader, name, reader.read(name, score), threshold)
    return strongest_sum(values, threshold.value, threshold.smallest), _highest(values)


def _highest(values: Values) -> float:
    """Return the highest value of a map ``[H, W]``, -inf where none is finite."""
    return float(np.max(values, where=np.isfinite(values), initial=-np.inf))


def _largest_strength(reader: MapsReader, name: str, score: str) -> Strength:
    """Return what :func:`_strength` is at most, as the line of a frame says: it holds the strongest
    region of any size. Infinite where it does not say.
    """
    record = reader.records.get(name, {})
    region = record.get("region", {}).get(score)
    highest = record.get("max", {}).get(score)
    if region is None or highest is None:
        return math.inf, math.inf
    return float(region), float(highest)


def _strength(reader: MapsReader, name: str, score: str, threshold: float | None) -> Strength:
    """Return how strong the strongest region of a frame is that is large enough to be listed, and
    the highest value of its map, as the page sorts frames. The mean stands for the strength where
    regions are not known.
    """
    record = reader.records.get(name, {})
    mean = record.get("mean", {}).get(score)
    highest = record.get("max", {}).get(score)
    largest_region = record.get("component", {}).get(score)  # pixels
    strength = mean
    if threshold is not None:
        is_small = largest_region is not None and largest_region < Threshold.smallest
        strength = 0.0 if is_small else None
    if (strength is None or highest is None) and reader.has(name, score):
        values = reader.read(name, score)
        finite = values[np.isfinite(values)]
        if highest is None:
            highest = _highest(values)
        if threshold is not None:
            strength = strongest_sum(values, threshold, Threshold.smallest)
        elif finite.size:
            strength = finite.mean(dtype="float64")
    highest = -math.inf if highest is None else float(highest)
    return (-math.inf if strength is None else float(strength)), highest


def _begin(reader: MapsReader, files: Ledger) -> dict[str, Any]:
    """Make the folder without what an earlier page left but its verdicts, and return the record of
    the page, written there.
    """
    out = files.folder
    _check_folder(reader, files)
    earlier = earlier_verdicts(out, reader)
    out.mkdir(parents=True, exist_ok=True)
    files.check([*PARTS, PAGE_NAME])
    files.clear(PARTS)
    files.forget(but=[PAGE_NAME])
    record: dict[str, Any] = {
        "format": PAGE_FORMAT,
        "format_version": 1,
        "run": run_id(reader),
        "stamp": secrets.token_hex(4),  # of this writing of the page
        "tool": f"segunc {version_words(tool_version(), tool_commit())}".strip(),
        "maps": reader.place,
        "notices": [note for note in (earlier.note, earlier.note_on_images) if note],
    }
    files.write(PAGE_NAME, json_bytes(record | {"status": "being written"}))
    # Before the frames, because an interrupted page would lose them.
    write_verdicts(out, record["run"], earlier.kept, files)
    return record


def _check_folder(reader: MapsReader, files: Ledger) -> None:
    """Raise InputError where a page may not be written to a folder."""
    out = files.folder
    folder = out.resolve()
    maps = reader.folder.resolve()
    # Pictures of a page inside of another tool's maps would be taken for maps the next time.
    among_foreign_maps = reader.manifest is None and folder.is_relative_to(maps)
    if folder == maps or among_foreign_maps:
        raise InputError(
            f"output {out} is or lies inside the maps folder {reader.place}",
            hint="give another --out",
        )
    is_page = page_of(out) is not None
    if not is_page and out.is_dir() and any(out.iterdir()):
        raise InputError(
            f"output {out} holds other files", hint="give an empty or new folder as --out"
        )
    if is_page and not files.listed:
        raise InputError(
            f"{out} holds a review page of an earlier version, which lists none of its files",
            hint=f"give another --out, or remove {out} yourself",
        )


def _write_assets(files: Ledger, title: str) -> Path:
    """Write scripts, styles and ``index.html``; return the path of the last."""
    for name, content in _program().items():
        files.write(f"{ASSETS}/{name}", content)
    assets = resources.files("segunc.gallery") / "assets"
    template = (assets / INDEX).read_text(encoding="utf-8")
    files.write(INDEX, template.replace("{{title}}", html.escape(title)).encode())
    return files.folder / INDEX


def _program() -> dict[str, bytes]:
    """Return the scripts and styles of a page: name -> content."""
    program = {}
    for asset in (resources.files("segunc.gallery") / "assets").iterdir():
        if asset.name.endswith((".js", ".css")):
            program[asset.name] = asset.read_bytes()
    return program


def note_on_program(out: Path) -> str:
    """Return a line on a page whose scripts or styles are not those of this version; empty where
    they are.

    They cannot be renewed alone, because scripts read tables of their own version, and a page does
    not record all options that its tables were made with.
    """
    folder = out / ASSETS
    there = {}
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.is_file():
            there[path.name] = read_bytes(path)
    if there == _program():
        return ""
    maker = (page_of(out) or {}).get("tool", "another version")
    return (
        f"the verdicts are in {out}, but the page keeps the program of {maker}, not of this "
        "version; to renew it, run segunc review with the options that it was made with; it "
        "keeps the verdicts"
    )


def verdict_file(run: str, verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """Return the content of a file of verdicts on a run, as pages export it."""
    return {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "run": run,
        "verdicts": [asdict(verdict) for verdict in verdicts],
    }


def write_verdicts(
    out: Path, run: str, verdicts: Sequence[Verdict], files: Ledger | None = None
) -> Path:
    """Write the script through which a page shows imported verdicts, and return its path; ``files``
    lists those of the page in ``out``.
    """
    content = verdict_file(run, verdicts)
    files = files or Ledger(out)
    # A page of an earlier version lists no files, and still takes verdicts.
    return write_data(files, VERDICTS, content, replace=not files.listed)


def page_of(out: Path) -> dict[str, Any] | None:
    """Return the record of a page's folder; None for any other folder."""
    try:
        content = parse_json(read_bytes(out / PAGE_NAME))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) and content.get("format") == PAGE_FORMAT else None


def write_data(files: Ledger, key: str, content: Any, *, replace: bool = False) -> Path:
    """Write a table as a script that hands it to the page under ``key``, and return its path.

    A browser parses JSON in a string several times faster than the same text as an expression.
    ``replace`` is that of :meth:`segunc.core.removal.Ledger.write`.
    """
    text = json.dumps(content, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    script = f"segunc.receive({json.dumps(key)}, JSON.parse({json.dumps(text)}));\n"
    name = f"{TABLES}/{key}.js"
    files.write(name, script.encode(), replace=replace)
    return files.folder / name
