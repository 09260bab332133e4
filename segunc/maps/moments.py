"""The frames of maps folders that stand out by a statistic of a score."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from segunc.core.errors import InputError
from segunc.maps.manifest import is_ours, read_manifest
from segunc.maps.shards import MANIFEST_NAME, FrameRecords, all_shards, frame_times


@dataclass(frozen=True)
class Moment:
    """A frame that stands out: its maps folder, name, time in seconds (None where unknown), and the
    statistic that chose it.
    """

    folder: Path
    name: str
    time: float | None
    value: float


def maps_folders(folder: Path) -> list[Path]:
    """Return the folder itself where it is a maps folder, else those directly below it, sorted;
    raise InputError for none.
    """
    if not folder.is_dir():
        raise InputError(f"maps folder {folder} does not exist")
    if (folder / MANIFEST_NAME).exists():
        return [folder]
    inner = sorted(
        path.parent for path in folder.glob(f"*/{MANIFEST_NAME}") if is_ours(path.parent)
    )
    if not inner:
        message = f"{folder} holds no {MANIFEST_NAME}, nor does a folder in it"
        raise InputError(message, hint="give the --out of predict")
    return inner


def usual_statistic(folders: Sequence[Path], score: str) -> str:
    """Return the statistic that ranks the frames of some maps folders: ``region`` where every frame
    has it, else ``mean``.
    """
    logs = (FrameRecords(folder, all_shards(read_manifest(folder) or {})) for folder in folders)
    return (
        "region"
        if all(score in record.get("region", {}) for log in logs for record in log.values())
        else "mean"
    )


def worst_moments(
    folders: Sequence[Path],
    score: str,
    statistic: str = "mean",
    *,
    count: int = 10,
    apart: float = 5.0,
    fps: float | None = None,
) -> list[Moment]:
    """Return at most ``count`` frames of maps folders with the highest statistic of a score, worst
    first, ``apart`` seconds from one another. ``fps`` gives images of a video their times, in each
    of their folders. Mean epistemic ranks frames for labelling as BALD does (Houlsby et al. 2011,
    arXiv 1112.5745; Gal et al. 2017, arXiv 1703.02910).
    """
    moments: list[Moment] = []
    for folder in folders:
        manifest, before = read_manifest(folder) or {}, len(moments)
        records = FrameRecords(folder, all_shards(manifest))
        for (name, record), time in zip(
            records.items(), frame_times(records, records, manifest, fps), strict=True
        ):
            moments.append(
                Moment(folder, name, time, record.get(statistic, {}).get(score, math.nan))
            )
        if moments[before:] and all(math.isnan(moment.value) for moment in moments[before:]):
            scores = ", ".join(name for name in manifest.get("maps", {}) if name != "prediction")
            raise InputError(
                f"the frames of {folder} have no {statistic} of '{score}'; their scores are {scores}"
            )
    return separated_peaks(moments, apart, count)


def separated_peaks(moments: Iterable[Moment], apart: float, count: int) -> list[Moment]:
    """Return the moments of the highest values, highest first, without those near a higher one of
    the same video. Of equal values the earlier comes first; a value of NaN is left out. A frame
    without a time is near no other.
    """
    peaks: list[Moment] = []
    times: dict[tuple[Path, str], list[float]] = defaultdict(list)  # of the peaks, by video
    for moment in sorted((m for m in moments if not math.isnan(m.value)), key=lambda m: -m.value):
        if len(peaks) == count:
            break
        near = times[moment.folder, moment.name.rpartition("/")[0]]
        if moment.time is not None:
            if any(abs(moment.time - other) < apart for other in near):
                continue
            near.append(moment.time)
        peaks.append(moment)
    return peaks
