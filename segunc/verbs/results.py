"""The verbs on maps and results on disk, which load no network: ``compare``, ``overlay``,
``review``, ``summary``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from segunc.core.errors import InputError
from segunc.core.files import csv_text, write_file
from segunc.core.progress import ConsoleProgress
from segunc.decisions.events import (
    COCO,
    ENDINGS,
    MAX_FOLLOWED_REGIONS,
    Event,
    find_events,
    write_events,
)
from segunc.decisions.flags import check_promises, read_thresholds
from segunc.evaluation.compare import Comparison, compare as compare_results, format_comparison
from segunc.evaluation.resampling import load_results
from segunc.gallery.page import page_of, run_id, write_review, write_verdicts
from segunc.gallery.pictures import (
    VIDEO_SUFFIX,
    frame_rate,
    write_crops,
    write_pictures,
    write_video,
)
from segunc.maps.folder import PREDICTION
from segunc.maps.labelled import open_maps
from segunc.maps.manifest import read_manifest, what_is_missing
from segunc.maps.moments import Moment, maps_folders, usual_statistic, worst_moments
from segunc.maps.shards import FrameRecords, all_shards, frame_times
from segunc.maps.verdicts import (
    agreement_table,
    merge_verdicts,
    note_on_dates,
    read_verdicts,
    summary_table,
)
from segunc.options import CompareOptions, OverlayOptions, ReviewOptions, SummaryOptions, takes
from segunc.scores import first_shown
from segunc.verbs.evaluate import label_sources


class CompareResult(NamedTuple):
    """Results side by side."""

    comparison: Comparison
    text: str  # its tables as Markdown
    paths: tuple[Path, ...] = ()  # of the files that were written


@takes(CompareOptions)
def compare(options: CompareOptions) -> CompareResult:
    """Compare results of evaluate, and write the tables.

    Raises:
        InputError: a result cannot be read, or holds nothing that is asked for.

    >>> compared = compare(CompareOptions(results=[metrics], scores=["entropy", "epistemic"], keys=["pooled.auroc"]))
    >>> compared.comparison.columns
    ('entropy', 'epistemic')
    """
    if options.out and Path(options.out).suffix.lower() != ".md":
        raise InputError(
            f"--out {options.out} is no path of a Markdown file", hint="--out table.md"
        )
    results = load_results([Path(path) for path in options.results], options.names)
    comparison = compare_results(
        results, scores=options.scores, keys=options.keys, baseline=options.baseline
    )
    text = format_comparison(comparison)
    if options.out:
        write_file(Path(options.out), f"{text}\n".encode())
    return CompareResult(comparison, text, (Path(options.out),) if options.out else ())


class OverlayResult(NamedTuple):
    """What was drawn."""

    pictures: Mapping[Path, Sequence[Path]]  # by their folder, in the order of the frames
    videos: Mapping[Path, Path]  # of these pictures, where one was asked for
    notes: tuple[str, ...] = ()  # what a user should know
    failure: str = ""  # which frames failed, in one line; empty where none did


@takes(OverlayOptions)
def overlay(options: OverlayOptions) -> OverlayResult:
    """Draw the pictures, then the video from them.

    Raises:
        InputError: the maps cannot be drawn as asked for.

    >>> result = overlay(OverlayOptions(maps=maps, out=folder / "figures", score=["epistemic"], format="png"))
    >>> [(place.name, len(pictures)) for place, pictures in result.pictures.items()]
    [('overlay-epistemic', 4)]
    """
    if options.fps is not None and not options.video:
        raise InputError(
            f"--fps {options.fps:g} is the rate of a video, which was not asked for",
            hint="add --video",
        )
    maps, out = Path(options.maps), Path(options.out)
    rate = (options.fps or frame_rate(maps)) if options.video else None
    asked = ("score", "frames", "images", "ranges", "format")
    settings: dict[str, Any] = {name: getattr(options, name) for name in asked}
    flag = read_thresholds(options.flag)
    promises = [f"flagged by {of.source}: {of.statement}" for of in flag.values() if of.promise]
    with ConsoleProgress() as show:
        written = write_pictures(
            maps, out, label_sources(options), show.count, flag=flag, **settings
        )
    pictures = {out / name: paths for name, paths in written.pictures.items()}
    times = written.times if options.fps is None else []
    videos = {
        folder: write_video(paths, out / f"{folder.name}{VIDEO_SUFFIX}", rate, times)
        for folder, paths in pictures.items()
        if rate is not None
    }
    return OverlayResult(pictures, videos, (*written.notes, *promises), written.failure)


class ReviewResult(NamedTuple):
    """A page, or verdicts that were read back."""

    page: Path | None = None  # to open in a browser
    verdicts: str = ""  # how many of which kind, as a table
    path: Path | None = None  # of the file through which the page shows these verdicts
    notes: tuple[str, ...] = ()  # what a user should know
    failure: str = ""  # how many frames could not be shown whole, in one line; empty where all were


@takes(ReviewOptions)
def review(options: ReviewOptions) -> ReviewResult:
    """Write the page, or import verdicts.

    Raises:
        InputError: the maps, the labels or the verdicts do not fit.

    >>> review(ReviewOptions(maps=maps, out=folder / "review")).page.name
    'index.html'
    """
    if options.verdicts:
        return _import([Path(path) for path in options.verdicts], options)
    if not options.out:
        raise InputError("the page has no place", hint="--out review")
    asked = ("images", "scores", "apart", "fps", "limit", "blind")
    settings: dict[str, Any] = {name: getattr(options, name) for name in asked}
    with ConsoleProgress() as show:
        flag = read_thresholds(options.flag)
        page = write_review(
            Path(options.maps),
            Path(options.out),
            label_sources(options),
            show.count,
            flag=flag,
            **settings,
        )
    record, failure = page_of(Path(options.out)) or {}, ""
    if problems := record.get("problems"):
        frame, (first, *_) = next(iter(problems.items()))
        failure = f"{len(problems)} of {record['frames']} frames could not be shown whole, first {frame} ({first})"
        failure += "; the page shows the rest, and says so of each"
    return ReviewResult(page.resolve(), notes=tuple(record.get("notices", ())), failure=failure)


def _import(paths: Sequence[Path], options: ReviewOptions) -> ReviewResult:
    """Merge and count verdicts and, where there is a page of the same run, let it show them."""
    reader = open_maps(Path(options.maps))
    run = run_id(reader)
    lists = [read_verdicts(path, run, reader.frames) for path in paths]
    verdicts = merge_verdicts(lists)
    dates = note_on_dates([verdict for of_file in lists for verdict in of_file])
    notes = (dates,) if dates else ()
    table = "\n\n".join(
        filter(None, (summary_table(verdicts, len(reader.frames)), agreement_table(verdicts)))
    )
    if not options.out:
        return ReviewResult(verdicts=table, notes=notes)
    out = Path(options.out)
    if (page_of(out) or {}).get("run") != run:
        raise InputError(
            f"{out} is no review page of the maps in {reader.folder}",
            hint="give the --out of that page",
        )
    path = write_verdicts(out, run, verdicts)
    return ReviewResult(verdicts=table, path=path, notes=notes)


class SummaryResult(NamedTuple):
    """Moments, the worst first."""

    moments: tuple[Moment, ...]  # by ``statistic``
    statistic: str  # SCORE.STATISTIC
    label: tuple[Moment, ...]  # the frames that are worth a label, by ``label_statistic``
    label_statistic: str  # SCORE.mean
    apart: str  # how two of one list differ, in words
    notes: tuple[str, ...] = ()  # what a user should know
    path: Path | None = None  # of the table
    failure: str = ""  # which frames have no maps, in one line; empty where all have
    events: tuple[Event, ...] = ()  # flagged regions over time, in the order in which they begin


@takes(SummaryOptions)
def summary(options: SummaryOptions) -> SummaryResult:
    """List the worst moments of one or several maps folders, and the frames to label first.

    Raises:
        InputError: there are no such maps or statistics.

    >>> len(summary(SummaryOptions(maps=maps, top=3)).moments)
    3
    """
    folders = maps_folders(Path(options.maps))
    manifests = {folder: read_manifest(folder) or {} for folder in folders}
    notes = []
    for folder, manifest in manifests.items():
        lines = len(FrameRecords(folder, all_shards(manifest)))
        if missing := what_is_missing(folder, manifest, lines):
            notes.append(f"{missing}; the list is of what is there")
    shared = set.intersection(
        *(set(manifest.get("maps", {})) - {PREDICTION} for manifest in manifests.values())
    )
    score = options.score or first_shown(sorted(shared) or ["entropy"])
    label_score = "epistemic" if "epistemic" in shared else score
    notes += (
        []
        if label_score == "epistemic"
        else [f"no map of epistemic, so frames to label are ranked by {label_score}"]
    )
    settings: dict[str, Any] = {"count": options.top, "apart": options.apart, "fps": options.fps}
    statistic = options.statistic or usual_statistic(folders, score)
    if not options.statistic and statistic != "region":
        notes.append(
            f"the maps record no regions of {score}, so frames are ranked by its {statistic}"
        )
    events = _follow(options, folders, notes)
    moments = worst_moments(folders, score, statistic, **settings)
    label = worst_moments(folders, label_score, "mean", **settings)
    if not moments:
        raise InputError(
            f"{options.maps} holds no finished frame", hint="let the prediction finish one first"
        )
    untimed = [moment.name for moment in moments if moment.time is None]
    if untimed:
        notes += [
            f"no time is recorded of {untimed[0]}, so neighbours may be listed; --fps gives images their times"
        ]
    by, label_by = f"{score}.{statistic}", f"{label_score}.mean"
    if options.out:
        rows: list[tuple[object, ...]] = [
            ("list", "rank", "maps", "frame", "time", "statistic", "value")
        ]
        for name, by_score, ranked in (("moments", by, moments), ("label", label_by, label)):
            for rank, m in enumerate(ranked, start=1):
                rows.append((name, rank, m.folder.as_posix(), m.name, m.time, by_score, m.value))
        write_file(Path(options.out), csv_text(rows).encode())
    words = f"at least {options.apart:g} s apart" if len(untimed) < len(moments) else ""
    lost = [
        (folder, failure)
        for folder, manifest in manifests.items()
        for failure in manifest.get("failed", [])
    ]
    failure = ""
    if lost:
        folder, first = lost[0]
        which = f"first {first['name']} of {folder} ({first['reason']})"
        failure = f"{len(lost)} frames have no maps and are in no list, {which}; the same predict tries them again"
    out = Path(options.out) if options.out else None
    return SummaryResult(
        tuple(moments), by, tuple(label), label_by, words, tuple(notes), out, failure, tuple(events)
    )


def _follow(options: SummaryOptions, folders: Sequence[Path], notes: list[str]) -> list[Event]:
    """Follow what each threshold flags in maps folders, write the events, of one folder, and return
    them; add ``notes`` on what is flagged.
    """
    events, path = list[Event](), Path(options.events or "")
    if options.events:
        if not options.flag:
            raise InputError(
                "--events needs a threshold from which on regions are flagged",
                hint="--flag entropy=0.5",
            )
        if len(folders) > 1:
            raise InputError(
                f"{options.maps} holds {len(folders)} maps folders", hint=f"--maps {folders[0]}"
            )
        if not path.name.endswith(ENDINGS):
            raise InputError(
                f"--events {path} ends in none of {', '.join(ENDINGS)}", hint="--events events.json"
            )
    for score, threshold in read_thresholds(options.flag).items():
        frames = flagged = crowded = 0
        for folder in folders:
            reader = open_maps(folder)
            check_promises({score: threshold}, (reader.manifest or {}).get("run", {}))
            times = [*frame_times(reader.frames, reader.records, reader.manifest, options.fps)]
            if options.events and None in times:
                message = f"no time is known of the frame {reader.frames[times.index(None)]} of {folder}, so events have no order"
                raise InputError(
                    message, hint="--fps 25 for images that are a video in the order of their names"
                )
            how = threshold.smallest, path.name.endswith(COCO), len(events) + 1
            found, more = find_events(reader, score, threshold.value, times, *how)
            flagged += len({name for event in found for name in event.boxes})
            frames, crowded = frames + len(times), crowded + more
            events += (
                found if len(folders) == 1 and None not in times else []
            )  # images without times need be no sequence
        what = (
            f"a region of at least {threshold.smallest} pixels with {score} >= {threshold.value:g}"
        )
        notes.append(f"{flagged} of {frames} frames have {what}")
        if threshold.promise:
            notes.append(f"{threshold.source}: {threshold.statement}")
        if crowded:
            notes.append(
                f"{crowded} frames have more than {MAX_FOLLOWED_REGIONS}; the strongest of them are followed"
            )
    if options.events:
        if not path.name.endswith(COCO):
            notes += filter(
                None,
                [write_crops(open_maps(folders[0]), events, path.with_name(f"{path.stem}_crops"))],
            )
        write_events(path, events)
    return events
