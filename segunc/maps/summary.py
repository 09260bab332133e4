"""The worst moments of maps on disk, and the frames that are worth a label, from the statistics of their lines."""

from __future__ import annotations

import csv
import heapq
import io
import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from segunc.core.errors import InputError
from segunc.core.files import write_atomically
from segunc.maps.manifest import MANIFEST_NAME, is_ours, read_manifest
from segunc.maps.shards import all_shards, iterate_records
from segunc.maps.statistics import STATISTICS


@dataclass(frozen=True)
class Moment:
    """A frame that stands out: its maps folder, name, time in seconds (None for images), and the statistic that chose it."""

    folder: Path
    name: str
    time: float | None
    value: float


def maps_folders(folder: Path) -> list[Path]:
    """The folder itself where it is a maps folder, else those directly below it, sorted; InputError where there is none."""
    if not folder.is_dir():
        raise InputError(f"maps folder {folder} does not exist", "a folder of maps", "check the path")
    if (folder / MANIFEST_NAME).exists():
        return [folder]
    found = sorted(path.parent for path in folder.glob(f"*/{MANIFEST_NAME}") if is_ours(path.parent))
    if not found:
        given = f"{folder} holds no {MANIFEST_NAME}, nor does a folder in it"
        raise InputError(given, "maps that segunc predict has written", "give its --out")
    return found


def worst_moments(
    folders: Sequence[Path], score: str, statistic: str = "mean", *, count: int = 10, apart: float = 5.0
) -> list[Moment]:
    """The frames with the highest statistic, worst first, in each video at least some seconds from one another.

    So a peak is named once, by its highest frame. Images have no times; each stands for itself. Mean epistemic ranks frames
    for labelling as BALD does (Houlsby et al. 2011, arXiv 1112.5745; Gal et al. 2017, arXiv 1703.02910).

    Args:
        folders: maps folders.
        score: a score of theirs.
        statistic: one of :data:`segunc.maps.statistics.STATISTICS`.
        count: how many at most.
        apart: seconds.

    Raises:
        InputError: an unknown statistic, or a folder whose lines do not hold it for this score.
    """
    if statistic not in STATISTICS:
        raise InputError(f"statistic '{statistic}'", f"one of {', '.join(STATISTICS)}", "check the spelling")
    if count < 1 or not apart >= 0:
        raise InputError(f"{count} moments {apart} s apart", "at least 1, and 0 s or more", "check the numbers")
    moments = [m for folder in folders for m in _worst_of_folder(folder, score, statistic, count, apart)]
    return heapq.nsmallest(count, moments, key=lambda moment: -moment.value)


def separated_peaks(values: Sequence[float], times: Sequence[float], count: int, apart: float) -> list[int]:
    """Places of the highest values, highest first, none closer than ``apart`` to a higher one that was taken.

    Of equal values the earlier comes first. A time of NaN is apart from everything, a value of NaN is left out.
    """
    order = sorted((p for p in range(len(values)) if not math.isnan(values[p])), key=lambda p: -values[p])
    chosen: list[int] = []
    for place in order:
        if len(chosen) == count:
            break
        if all(not abs(times[place] - times[other]) < apart for other in chosen):
            chosen.append(place)
    return chosen


def write_moments(path: Path, lists: dict[str, tuple[str, list[Moment]]]) -> None:
    """Write lists of moments as CSV: name of a list -> the statistic (``SCORE.STATISTIC``) and its moments in order."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["list", "rank", "maps", "frame", "time", "statistic", "value"])
    for name, (statistic, moments) in lists.items():
        for rank, m in enumerate(moments, start=1):
            rows.writerow([name, rank, m.folder.as_posix(), m.name, m.time, statistic, m.value])
    write_atomically(path, text.getvalue().encode())


def _worst_of_folder(folder: Path, score: str, statistic: str, count: int, apart: float) -> list[Moment]:
    manifest = read_manifest(folder)
    shards = all_shards(manifest)
    values, times = array("d"), array("d")
    for record in iterate_records(folder, shards):
        values.append(record.get(statistic, {}).get(score, math.nan))
        times.append(record.get("time", math.nan))
    if len(values) and all(map(math.isnan, values)):
        known = ", ".join(name for name in (manifest or {}).get("maps", {}) if name != "prediction")
        raise InputError(
            f"the frames of {folder} have no {statistic} of '{score}'", f"a score of {known}", "choose another one"
        )
    ranks = {place: rank for rank, place in enumerate(separated_peaks(values, times, count, apart))}
    chosen: list[Moment | None] = [None] * len(ranks)
    # A second pass for the names: those of all frames would take more memory than the numbers.
    for place, record in enumerate(iterate_records(folder, shards)):
        if place in ranks:
            chosen[ranks[place]] = Moment(folder, record["name"], record.get("time"), values[place])
    return [moment for moment in chosen if moment is not None]
