"""``segunc summary``: the worst moments of maps, the frames to label first, and flagged events."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from segunc.core.errors import InputError
from segunc.core.files import csv_text, write_file
from segunc.core.results import VerbResult
from segunc.core.terminal import agreeing, counted
from segunc.core.urls import local_folder, place_of
from segunc.decisions.events import (
    COCO,
    ENDINGS,
    MAX_FOLLOWED_REGIONS,
    Event,
    find_events,
    write_events,
)
from segunc.decisions.flags import Threshold, check_promises, ranking_score, read_thresholds
from segunc.decisions.guarantee import model_of
from segunc.evaluation.resampling import resampled_units
from segunc.gallery.pictures import write_crops
from segunc.maps.encoding import threshold_text
from segunc.maps.folder import PREDICTION
from segunc.maps.known_frames import note_on_known_maps
from segunc.maps.labelled import image_files, input_name, open_images, open_maps, video_files
from segunc.maps.manifest import Manifest, read_manifest, what_is_missing
from segunc.maps.moments import Moment, maps_folders, usual_statistic, worst_moments
from segunc.maps.reader import MapsReader
from segunc.maps.shards import FrameRecords, all_shards, frame_times
from segunc.options import SummaryOptions, takes


@dataclass(frozen=True, repr=False)
class SummaryResult(VerbResult):
    """Moments, the worst first.

    Attributes:
        moments: the worst moments by ``statistic``.
        statistic: how moments are ranked, as SCORE.STATISTIC.
        label: the frames that are worth a label, by ``label_statistic``.
        label_statistic: how frames to label are ranked, as SCORE.mean.
        apart: how far two moments of a list are apart, in words.
        notes: what a user should know.
        path: the table; None if none was asked for.
        failure: which frames have no maps, in one line; empty if all have.
        events: flagged regions over time, in the order in which they begin.
        percentile: median over the frames of the 99th percentile of the score, in its unit; None if
            the maps do not record it.
    """

    moments: tuple[Moment, ...]
    statistic: str
    label: tuple[Moment, ...]
    label_statistic: str
    apart: str
    notes: tuple[str, ...] = ()
    path: Path | None = None
    failure: str = ""
    events: tuple[Event, ...] = ()
    percentile: float | None = None


@takes(SummaryOptions)
def summary(options: SummaryOptions) -> SummaryResult:
    """List the worst moments of one or several maps folders, and the frames to label first.

    Raises:
        InputError: there are no such maps or statistics.

    >>> len(summary(SummaryOptions(maps=maps, top=3)).moments)
    3
    """
    root = local_folder(options.maps)
    folders = maps_folders(root)
    manifests = {folder: read_manifest(folder) or {} for folder in folders}
    notes = _gaps(manifests)
    notes += _known_frames(manifests)
    notes += _models(manifests)
    ranking = _choose_ranking(options, manifests, notes)
    events, regions = _follow(options, folders, notes)

    settings: dict[str, Any] = {"count": options.top, "apart": options.apart, "fps": options.fps}
    flagged = _flagged_values(regions, ranking)
    moments = worst_moments(folders, ranking.score, ranking.statistic, values=flagged, **settings)
    label = worst_moments(folders, ranking.label_score, "mean", **settings)
    if not moments:
        raise InputError(
            f"{place_of(root)} holds no finished frame", hint="let the prediction finish one first"
        )
    untimed = [moment.name for moment in moments if moment.time is None]
    if untimed:
        notes.append(
            f"no time is recorded of frame {untimed[0]}, so neighbours may be listed; "
            "--fps gives images their times"
        )
    if ranking.statistic == "region" and not any(moment.value for moment in moments):
        notes.append(_note_on_no_region(ranking.score, moments, flagged))
    result = SummaryResult(
        moments=tuple(moments),
        statistic=f"{ranking.score}.{ranking.statistic}",
        label=tuple(label),
        label_statistic=f"{ranking.label_score}.mean",
        apart=f"at least {options.apart:g} s apart" if len(untimed) < len(moments) else "",
        notes=tuple(notes),
        path=Path(options.out) if options.out else None,
        failure=_failure(manifests),
        events=tuple(events),
        percentile=_typical_percentile(folders, ranking.score),
    )
    if result.path:
        write_file(result.path, _table(result))
    return result


def _note_on_no_region(
    score: str, moments: Sequence[Moment], flagged: Mapping[Path, Mapping[str, float]] | None
) -> str:
    """Return a note on moments whose regions all have the strength 0.

    Args:
        score: whose regions they are.
        moments: the worst ones.
        flagged: strengths at the threshold of --flag; None at the threshold that the maps record.
    """
    if any(moment.flagged for moment in moments):
        return (
            f"no flagged region lies above the threshold of --flag for {score}, only at it, so all "
            f"values are 0; frames with such a region come first; --statistic component ranks "
            "frames by the pixels of their largest region"
        )
    threshold = "that the maps record" if flagged is None else "of --flag"
    return (
        f"no frame has a region above the threshold {threshold} for {score}, so all values are 0 "
        "and their order means nothing; --statistic max ranks frames by their largest value"
    )


@dataclass(frozen=True)
class Ranking:
    """By what frames are ranked."""

    score: str
    statistic: str  # of the score: the worst frames have its highest values
    label_score: str  # frames with a high mean of it are worth a label


def _choose_ranking(
    options: SummaryOptions, manifests: Mapping[Path, Manifest], notes: list[str]
) -> Ranking:
    """Choose by what frames are ranked, and add ``notes`` where that is not the usual choice."""
    shared_scores = _shared_scores(manifests)
    flag = read_thresholds(options.flag)
    score = options.score or ranking_score(shared_scores or ["entropy"], flag)
    label_score = "epistemic" if "epistemic" in shared_scores else score
    if label_score != "epistemic":
        notes.append(f"no map of epistemic, so frames to label are ranked by {label_score}")
    if options.statistic:
        return Ranking(score, options.statistic, label_score)
    statistic = usual_statistic(list(manifests), score)
    if statistic != "region":
        notes.append(
            f"the maps record no regions of {score}, so frames are ranked by its {statistic}"
        )
    return Ranking(score, statistic, label_score)


def _typical_percentile(folders: Sequence[Path], score: str) -> float | None:
    """Return the median over all frames of the 99th percentile of a score, None where the maps do
    not record it.
    """
    percentiles = []
    for folder in folders:
        manifest = read_manifest(folder) or {}
        for record in FrameRecords(folder, all_shards(manifest)).values():
            percentile = record.get("p99", {}).get(score)
            if percentile is not None and math.isfinite(percentile):
                percentiles.append(float(percentile))
    return statistics.median(percentiles) if percentiles else None


def _gaps(manifests: Mapping[Path, Manifest]) -> list[str]:
    """Return a line on each maps folder that lacks frames."""
    lines = []
    for folder, manifest in manifests.items():
        finished = len(FrameRecords(folder, all_shards(manifest)))
        missing = what_is_missing(place_of(folder), manifest, finished)
        if missing:
            lines.append(f"{missing}; the list is of what is there")
    return lines


def _known_frames(manifests: Mapping[Path, Manifest]) -> list[str]:
    """Return a line on each maps folder with frames that the bank of features seems to hold."""
    lines = []
    for folder, manifest in manifests.items():
        note = note_on_known_maps(manifest, FrameRecords(folder, all_shards(manifest)))
        if note and len(manifests) > 1:
            note = f"{place_of(folder)}: {note}"
        if note:
            lines.append(note)
    return lines


def _models(manifests: Mapping[Path, Manifest]) -> list[str]:
    """Return a line on maps folders of several models, which one list ranks."""
    models = {model_of(manifest.get("run", {})) for manifest in manifests.values()}
    models.discard("")
    if len(models) < 2:
        return []
    return [
        f"these maps are of {len(models)} models, whose scores may have other scales, so one list "
        "does not rank them; --maps with one folder of these ranks its frames alone"
    ]


def _shared_scores(manifests: Mapping[Path, Manifest]) -> list[str]:
    """Return the scores that all maps folders have, sorted."""
    scores = [set(manifest.get("maps", {})) - {PREDICTION} for manifest in manifests.values()]
    return sorted(set.intersection(*scores))


def _failure(manifests: Mapping[Path, Manifest]) -> str:
    """Return which frames have no maps, in one line; empty where all have."""
    lost: list[tuple[Path, dict[str, Any]]] = []
    for folder, manifest in manifests.items():
        lost.extend((folder, frame) for frame in manifest.get("failed", []))
    if not lost:
        return ""
    folder, frame = lost[0]
    first = f"{frame['name']} of {place_of(folder)} ({frame['reason']})"
    return (
        f"{counted(len(lost), 'frame', 'has')} no maps and "
        f"{agreeing('is', len(lost))} in no list, first {first}; "
        "the same predict tries again"
    )


def _table(result: SummaryResult) -> bytes:
    """Return both lists of a summary as CSV."""
    header = ("list", "rank", "maps", "frame", "time", "statistic", "value")
    rows: list[tuple[object, ...]] = [header]
    lists = (
        ("moments", result.statistic, result.moments),
        ("label", result.label_statistic, result.label),
    )
    for name, statistic, moments in lists:
        for rank, moment in enumerate(moments, start=1):
            maps = place_of(moment.folder)
            rows.append((name, rank, maps, moment.name, moment.time, statistic, moment.value))
    return csv_text(rows).encode()


@dataclass
class FlaggedRegions:
    """What a threshold flags in maps folders."""

    events: list[Event] = field(default_factory=list)  # of one folder whose frames have times
    frames: int = 0
    flagged: int = 0  # frames with a region
    # statistic -> folder of the maps -> frame -> value, of frames with a region
    values: dict[str, dict[Path, dict[str, float]]] = field(default_factory=dict)
    crowded: int = 0  # frames with more regions than are followed
    density: str = ""  # a note on frames that come too densely for the promise; empty for none


def _flagged_values(
    regions: Mapping[str, FlaggedRegions], ranking: Ranking
) -> dict[Path, dict[str, float]] | None:
    """Return the statistic of regions that ranks frames, by folder and frame, at the threshold of
    --flag; None for other statistics, and where no threshold of the score is given.
    """
    if ranking.score not in regions:
        return None
    return regions[ranking.score].values.get(ranking.statistic)


def _follow(
    options: SummaryOptions, folders: Sequence[Path], notes: list[str]
) -> tuple[list[Event], dict[str, FlaggedRegions]]:
    """Follow what each threshold flags in maps folders, and write the events, of one folder; add
    ``notes`` on what is flagged.

    Returns:
        The events, and what is flagged by score.
    """
    if options.events:
        _check_events(options, folders)
    events: list[Event] = []
    regions_of: dict[str, FlaggedRegions] = {}
    thresholds = read_thresholds(options.flag)
    for score, threshold in thresholds.items():
        regions = _follow_score(options, folders, score, threshold, first=len(events) + 1)
        regions_of[score] = regions
        events += regions.events
        name = threshold.preparation.name_of(score)
        value = threshold_text(threshold.value)
        flagged = f"at least {threshold.smallest} pixels with {name} >= {value}"
        frames = counted(regions.frames, "frame")
        have = agreeing("has", regions.flagged)
        notes.append(f"{regions.flagged} of {frames} {have} a region of {flagged}")
        if threshold.promise:
            notes.append(f"{threshold.source}: {threshold.statement}")
        if regions.density:
            notes.append(regions.density)
        if regions.crowded:
            notes.append(
                f"{counted(regions.crowded, 'frame', 'has')} more than {MAX_FOLLOWED_REGIONS}; the "
                "strongest of them are followed"
            )
    if options.events:
        notes += _write_events(Path(options.events), folders[0], events, thresholds)
    return events, regions_of


def _write_events(
    path: Path, folder: Path, events: Sequence[Event], thresholds: Mapping[str, Threshold]
) -> list[str]:
    """Write the events of a maps folder, and return notes on images that are missing."""
    reader = open_maps(folder)
    if path.name.endswith(COCO):
        seen = {name for event in events for name in event.boxes}
        frames = [name for name in reader.frames if name in seen]
        files = _files_of(reader, frames)
        write_events(path, events, files, video=input_name(reader))
        unknown = [name for name in frames if name not in files]
        if not unknown:
            return []
        images = counted(len(unknown), "image", "was")
        return [
            f"{path}: {images} not found at the recorded place, so file_name is the name of the "
            f"frame there, such as {unknown[0]}"
        ]
    missing_images = write_crops(reader, events, path.with_name(f"{path.stem}_crops"), thresholds)
    write_events(path, events)
    return [missing_images] if missing_images else []


def _files_of(reader: MapsReader, frames: Sequence[str]) -> dict[str, str]:
    """Return the file names of frames: those of their images, or made from the name of a video.
    Frames whose image is not found are left out.
    """
    files = video_files(reader, frames)
    if files:
        return files
    source, _ = open_images(reader, None, frames)
    return image_files(source)


def _check_events(options: SummaryOptions, folders: Sequence[Path]) -> None:
    """Raise InputError where no events can be written as they are asked for."""
    if not options.flag:
        raise InputError(
            "--events needs a threshold that says which regions are flagged",
            hint="--flag entropy=0.5",
        )
    if len(folders) > 1:
        raise InputError(
            f"{place_of(local_folder(options.maps))} holds {len(folders)} maps folders",
            hint=f"--maps {place_of(folders[0])}",
        )
    if not Path(str(options.events)).name.endswith(ENDINGS):
        raise InputError(
            f"--events {options.events} ends in none of {', '.join(ENDINGS)}",
            hint="--events events.json",
        )


def _density_note(reader: MapsReader, threshold: Threshold, times: Sequence[float | None]) -> str:
    """Return a note on frames that come more densely than those of a promise; empty for none.

    Args:
        reader: of the maps.
        threshold: of a score.
        times: seconds of each frame in its video.
    """
    guarantee = threshold.guarantee
    if guarantee is None or guarantee.frames_per_block is None or None in times:
        return ""
    time_of = dict(zip(reader.frames, times, strict=True)).get
    unit_of = resampled_units(guarantee.unit, time_of, "the unit of the threshold", of_file=True)
    blocks = {unit_of(name) for name in reader.frames}
    return threshold.density_note(len(reader.frames) // len(blocks))


def _follow_score(
    options: SummaryOptions,
    folders: Sequence[Path],
    score: str,
    threshold: Threshold,
    first: int,
) -> FlaggedRegions:
    """Follow what a threshold flags in maps folders; events are numbered from ``first`` on."""
    regions = FlaggedRegions(values={"region": {}, "component": {}})
    masks = bool(options.events) and Path(str(options.events)).name.endswith(COCO)
    for folder in folders:
        reader = open_maps(folder)
        run = (reader.manifest or {}).get("run", {})
        check_promises({score: threshold}, run, reader.sizes())
        times = list(frame_times(reader.frames, reader.records, reader.manifest, options.fps))
        if options.events and None in times:
            untimed = reader.frames[times.index(None)]
            raise InputError(
                f"no time is known of the frame {untimed} of {reader.place}, "
                "so events have no order",
                hint="--fps 25 for images that are a video in the order of their names",
            )
        regions.density = regions.density or _density_note(reader, threshold, times)
        events, crowded = find_events(
            reader,
            score,
            threshold,
            times,
            masks=masks,
            first=first,
        )
        strengths: dict[str, float] = {}
        sizes: dict[str, float] = {}
        for event in events:
            for name, (strength, pixels) in event.extents.items():
                strengths[name] = max(strength, strengths.get(name, 0.0))
                sizes[name] = max(pixels, sizes.get(name, 0.0))
        regions.values["region"][folder] = strengths
        regions.values["component"][folder] = sizes
        frames = {name for event in events for name in event.boxes}
        regions.frames += len(times)
        regions.flagged += len(frames)
        regions.crowded += crowded
        # Images without times need be no sequence, and numbers are those of one folder.
        if len(folders) == 1 and None not in times:
            regions.events = events
    return regions
