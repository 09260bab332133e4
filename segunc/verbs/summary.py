"""``segunc summary``: the worst moments of maps, the frames to label first, and flagged events."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from segunc.core.errors import InputError
from segunc.core.files import csv_text, write_file
from segunc.decisions.events import (
    COCO,
    ENDINGS,
    MAX_FOLLOWED_REGIONS,
    Event,
    find_events,
    write_events,
)
from segunc.decisions.flags import check_promises, read_thresholds
from segunc.gallery.pictures import write_crops
from segunc.maps.folder import PREDICTION
from segunc.maps.labelled import open_maps
from segunc.maps.manifest import read_manifest, what_is_missing
from segunc.maps.moments import Moment, maps_folders, usual_statistic, worst_moments
from segunc.maps.shards import FrameRecords, all_shards, frame_times
from segunc.options import SummaryOptions, takes
from segunc.scores import first_shown


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
