"""The frames of maps folders that stand out by a statistic of a score."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from segunc.core.errors import InputError
from segunc.core.periods import whole_periods
from segunc.maps.manifest import Manifest, is_ours, read_manifest
from segunc.maps.shards import MANIFEST_NAME, FrameRecords, all_shards, frame_times


@dataclass(frozen=True)
class Moment:
    """A frame that stands out."""

    folder: Path  # of its maps
    name: str
    time: float | None  # seconds in its video; None where unknown
    value: float  # the statistic that chose it
    flagged: bool = False  # whether a region is known to be flagged; decides among equal values


def maps_folders(folder: Path) -> list[Path]:
    """Return the folder itself if it is a maps folder, else the maps folders directly below it,
    sorted.

    Raises:
        InputError: there is none.
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
    for folder in folders:
        records = FrameRecords(folder, all_shards(read_manifest(folder) or {}))
        for record in records.values():
            if score not in record.get("region", {}):
                return "mean"
    return "region"


def worst_moments(
    folders: Sequence[Path],
    score: str,
    statistic: str = "mean",
    *,
    count: int = 10,
    apart: float = 5.0,
    fps: float | None = None,
    values: Mapping[Path, Mapping[str, float]] | None = None,
) -> list[Moment]:
    """Return the frames of maps folders with the highest statistic of a score, worst first.

    Mean epistemic ranks frames for labelling as BALD does (Houlsby et al. 2011, arXiv 1112.5745;
    Gal et al. 2017, arXiv 1703.02910).

    Args:
        folders: of the maps.
        score: whose statistic counts.
        statistic: one of :data:`segunc.maps.shards.STATISTICS`.
        count: number of frames at most.
        apart: seconds between two of them at least, within a video.
        fps: frame rate of images that are a video; it gives them their times, in each folder of
            theirs.
        values: folder -> frame with a flagged region -> the statistic, in place of the recorded
            one; a frame that is missing there has 0, and comes after those that are not.

    Raises:
        InputError: no frame of a folder has the statistic.
    """
    moments: list[Moment] = []
    for folder in folders:
        manifest = read_manifest(folder) or {}
        moments_of_folder = _moments_of(folder, manifest, score, statistic, fps)
        if values is not None:
            values_of_folder = values.get(folder, {})
            moments_of_folder = [
                replace(
                    moment,
                    value=values_of_folder.get(moment.name, 0.0),
                    flagged=moment.name in values_of_folder,
                )
                for moment in moments_of_folder
            ]
        if moments_of_folder and all(math.isnan(moment.value) for moment in moments_of_folder):
            scores = ", ".join(name for name in manifest.get("maps", {}) if name != "prediction")
            raise InputError(
                f"the frames of {folder} have no {statistic} of '{score}'; "
                f"their scores are {scores}"
            )
        moments += moments_of_folder
    return separated_peaks(moments, apart, count)


def _moments_of(
    folder: Path, manifest: Manifest, score: str, statistic: str, fps: float | None
) -> list[Moment]:
    """Return all frames of a maps folder with their statistic, NaN where a frame has none."""
    records = FrameRecords(folder, all_shards(manifest))
    times = frame_times(records, records, manifest, fps)
    moments = []
    for (name, record), time in zip(records.items(), times, strict=True):
        value = record.get(statistic, {}).get(score, math.nan)
        moments.append(Moment(folder=folder, name=name, time=time, value=value))
    return moments


def separated_peaks(moments: Iterable[Moment], apart: float, count: int) -> list[Moment]:
    """Return the moments of the highest values, highest first, without those near a higher one.

    Of equal values a flagged one comes first, then the earlier, and a value of NaN is left out. A
    moment without a time is near no other.

    Args:
        moments: of any number of videos.
        apart: seconds below which two moments of the same video are near each other.
        count: number of moments at most.
    """
    ranked = [moment for moment in moments if not math.isnan(moment.value)]
    ranked.sort(key=lambda moment: (-moment.value, not moment.flagged))
    peaks: list[Moment] = []
    times_of: dict[tuple[Path, str], list[float]] = defaultdict(list)  # of the peaks, by video
    for moment in ranked:
        if len(peaks) == count:
            break
        video = moment.name.rpartition("/")[0]
        times = times_of[moment.folder, video]
        if moment.time is not None:
            gaps = [abs(moment.time - other) for other in times]
            if apart and any(whole_periods(gap, apart) == 0 for gap in gaps):
                continue
            times.append(moment.time)
        peaks.append(moment)
    return peaks
