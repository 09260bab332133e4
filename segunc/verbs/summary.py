"""``segunc summary``: the worst moments of maps on disk, and the frames that are worth a label."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from segunc.core.errors import InputError
from segunc.maps.manifest import read_manifest
from segunc.maps.statistics import Moment, maps_folders, worst_moments, write_moments
from segunc.options import SummaryOptions


@dataclass(frozen=True)
class SummaryResult:
    """Moments, the worst first."""

    moments: tuple[Moment, ...]  # by ``statistic``
    statistic: str  # SCORE.STATISTIC
    label: tuple[Moment, ...]  # the frames that are worth a label, by ``label_statistic``
    label_statistic: str  # SCORE.mean
    notes: tuple[str, ...] = ()  # what a user should know
    path: Path | None = None  # of the table


def summary(options: SummaryOptions) -> SummaryResult:
    """The worst moments of one or several maps folders, and the frames to label first.

    Raises:
        InputError: there are no such maps or statistics.

    >>> len(summary(SummaryOptions(maps=maps, top=3)).moments)
    3
    """
    folders = maps_folders(Path(options.maps))
    notes = []
    for folder in folders:
        manifest = read_manifest(folder) or {}
        if manifest.get("status") != "finished":
            status = manifest.get("status", "unknown")
            notes.append(f"{folder} is not finished (status {status}); the list is of what is there")
        if manifest.get("run", {}).get("smooth") is not None:
            also = "its epistemic also holds how much successive frames disagree"
            notes.append(f"{folder} is smoothed along the video; {also}")
        if manifest.get("failed"):
            notes.append(f"{len(manifest['failed'])} frames of {folder} failed and are in no list")
    moments = worst_moments(folders, options.score, options.statistic, count=options.top, apart=options.apart)
    label = worst_moments(folders, options.label_score, "mean", count=options.top, apart=options.apart)
    if not moments:
        given = f"{options.maps} holds no finished frame"
        raise InputError(given, "at least one", "let the prediction finish one first")
    by, label_by = f"{options.score}.{options.statistic}", f"{options.label_score}.mean"
    out = Path(options.out) if options.out else None
    if out is not None:
        write_moments(out, {"moments": (by, moments), "label": (label_by, label)})
    return SummaryResult(tuple(moments), by, tuple(label), label_by, tuple(notes), out)
