"""What reviewers decided on frames and on regions of them: the files that the page exports, read back, checked, merged and counted."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import isfinite
from operator import index
from pathlib import Path
from typing import Any

from segunc.core.errors import InputError
from segunc.core.files import read_json, read_rows, reading
from segunc.core.terminal import visible
from segunc.data.layout import composed

# As they stand in files -> in words.
VERDICTS = {
    "nothing-wrong": "nothing wrong",
    "true-alarm": "true alarm",
    "false-alarm": "false alarm",
    "missed": "missed",
    "unsure": "unsure",
}
GRAVEST = ("missed", "true-alarm", "false-alarm", "unsure")
"""What a region can be; the gravest verdict on a frame's regions is the frame's where it has none of its own."""
FORMAT = "segunc-verdicts"
FORMAT_VERSION = 2
_QUOTED = re.compile(r"'+[=+\-@\t\r\n＝＋－＠]")
_TEXTS = ("frame", "verdict", "note", "time", "reviewer")
_LISTS, _NUMBERS = ("box", "size", "mask"), ("threshold", "value", "area")


@dataclass(frozen=True)
class Region:
    """A part of a frame: what a threshold flagged, or a box drawn by hand."""

    box: tuple[int, int, int, int]  # left, top, width, height in pixels of the maps
    area: int  # pixels
    size: tuple[int, int]  # height and width of the maps
    mask: tuple[int, ...]  # start and length of each run of pixels, row by row
    score: str | None = None  # what flagged it; None for a box drawn by hand
    threshold: float | None = None
    value: float | None = None  # the highest of the score


@dataclass(frozen=True)
class Verdict:
    """A verdict on one frame, or on a region of it."""

    frame: str  # its name
    verdict: str  # one of VERDICTS (of GRAVEST for a region), or empty for a note alone
    note: str = ""
    time: str = ""  # when it was given, ISO 8601 in UTC
    reviewer: str = ""  # the name of whoever gave it, or empty
    region: Region | None = None

    @property
    def subject(self) -> tuple[str, str, Any]:
        """What there is one verdict on: the reviewer, the frame, and a region's score and box."""
        return self.reviewer, self.frame, self.region and (self.region.score, self.region.box)


def read_verdicts(path: Path, run: str, frames: Sequence[str]) -> list[Verdict]:
    """The verdicts of a file exported by the page, JSON or CSV by its ending, on ``frames`` of the run of this id; InputError where
    it is damaged, of another version or run, or has two verdicts of a reviewer on one thing, a frame that is not there, a verdict that
    there is not or a region that does not lie in its frame."""
    if path.suffix.lower() not in (".json", ".csv"):
        raise InputError(f"verdicts {path}", "a .json or .csv file exported by the review page", "export again")
    known, names_of, seen = set(frames), {composed(name): name for name in frames}, set[Any]()
    rows = [
        verdict
        if verdict.frame in known
        else replace(verdict, frame=names_of.get(composed(verdict.frame), verdict.frame))
        for verdict in parse_verdicts(path, _entries(path, run))
    ]
    for verdict in rows:
        on = f"on {'a region of ' if verdict.region else ''}frame '{verdict.frame}'"
        if verdict.frame not in known:
            given = f"{path} has a verdict {on}, which the maps do not hold"
            raise InputError(given, "frames of these maps", "give the --maps that were reviewed")
        if verdict.subject in seen:
            raise InputError(f"{path} has two verdicts {on}", "one of each reviewer", "remove one of them")
        allowed = GRAVEST if verdict.region else VERDICTS
        if verdict.verdict not in allowed and not (verdict.verdict == "" and verdict.note):
            expected = f"one of {', '.join(allowed)}, or none with a note"
            raise InputError(f"{path} has the verdict '{verdict.verdict}' {on}", expected, "repair the file")
        seen.add(verdict.subject)
    return rows


def merge_verdicts(lists: Iterable[Sequence[Verdict]]) -> list[Verdict]:
    """All verdicts of several files, in the order of the first; of two by one reviewer on one thing the later."""
    found: dict[Any, Verdict] = {}
    for verdict in (one for verdicts in lists for one in verdicts):
        old = found.setdefault(verdict.subject, verdict)
        if old.time < verdict.time:
            found[verdict.subject] = verdict
    return list(found.values())


def _entries(path: Path, run: str) -> list[Any]:
    """The verdicts as they stand in a file, which must be of the run."""
    entries: Any
    if path.suffix.lower() == ".json":
        content = read_json(path, "verdicts exported by the review page")
        if content.get("format") != FORMAT or content.get("version") != FORMAT_VERSION:
            given = f'{path} has the format "{content.get("format")}", version {content.get("version")}'
            raise InputError(given, f'"{FORMAT}", version {FORMAT_VERSION}', "export the verdicts again")
        entries, runs = content.get("verdicts"), {str(content.get("run"))}
    else:
        with reading(str(path), "a CSV file in UTF-8", "save it so"):
            header, *rows = read_rows(path) or [[]]
        # Before what would be a formula the page writes an apostrophe.
        plain = ([cell[1:] if _QUOTED.match(cell) else cell for cell in row] for row in rows)
        entries = [dict(zip(header, row, strict=False)) for row in plain]
        runs = {str(row.get("run")) for row in entries}
        entries = [row | {"region": _region_of_row(path, row) if row.get("box") else None} for row in entries]
    for other in sorted(runs - {run}):
        given = f"{path} holds verdicts on the run {other}"
        raise InputError(given, f"verdicts on {run}", "give the --maps that were reviewed")
    if not isinstance(entries, list):
        raise InputError(f"{path} has no list of verdicts", '"verdicts": [...]', "export the verdicts again")
    return entries


def _region_of_row(path: Path, row: Mapping[str, Any]) -> dict[str, Any]:
    try:
        lists = {name: [int(number) for number in (row.get(name) or "").split()] for name in _LISTS}
        numbers = {name: float(row[name]) if row.get(name) else None for name in _NUMBERS}
    except ValueError as error:
        raise InputError(f"{path} has a damaged region ({error})", "whole numbers", "export again") from error
    return {**lists, **numbers, "score": row.get("score") or None}


def parse_verdicts(path: Path, entries: Sequence[Any]) -> list[Verdict]:
    """Return the verdicts of a file's entries; InputError where one is damaged."""
    found = []
    for number, entry in enumerate(entries, start=1):
        values = {"reviewer": ""} | (dict(entry) if isinstance(entry, Mapping) else {})
        if not all(isinstance(values.get(name), str) for name in _TEXTS):
            given = f"{path}, verdict {number}, is incomplete"
            raise InputError(given, f"text for {', '.join(_TEXTS)}", "export again")
        region = values.get("region")
        found.append(
            Verdict(
                **{name: values[name] for name in _TEXTS},
                region=None if region is None else _region(path, number, region),
            )
        )
    return found


def _region(path: Path, number: int, given: Any) -> Region:
    """A region that lies in its frame: a box inside, and runs of pixels one after the other."""
    try:
        lists = {name: tuple(map(index, given[name])) for name in _LISTS}
        region = Region(
            **lists,  # type: ignore[arg-type]
            area=int(given["area"]),
            score=given.get("score"),
            threshold=given.get("threshold"),
            value=given.get("value"),
        )
        left, top, width, height = region.box
        rows, columns = region.size
        numbers = (value for value in (region.threshold, region.value) if value is not None)
        if not isinstance(region.score, str | None) or not all(
            type(n) in (int, float) and isfinite(n) for n in numbers
        ):
            raise ValueError("no text or number")
    except (TypeError, ValueError, OverflowError, KeyError, AttributeError) as error:
        problem = f"{path}, verdict {number}, has a damaged region"
        raise InputError(problem, "box, area, size and mask in whole numbers", "export again") from error
    starts, lengths = region.mask[::2], region.mask[1::2]
    ends = [start + length for start, length in zip(starts, lengths, strict=False)]
    inside = min(left, top, *lengths, *starts, 0) >= 0 and left + width <= columns and top + height <= rows
    ordered = all(end <= start for end, start in zip(ends, (*starts[1:], rows * columns), strict=False))
    if not inside or not ordered or len(starts) != len(lengths):
        problem = f"{path}, verdict {number}: its box or mask lies outside of the frame of {columns} x {rows} pixels"
        raise InputError(problem, "a region of the frame", "export again")
    return region


def by_reviewer(verdicts: Sequence[Verdict]) -> dict[str, dict[str, str]]:
    """The verdict of each reviewer on each frame: their own, else the gravest on its regions; frames with notes alone are left out."""
    own: dict[str, dict[str, str]] = {}
    regions: dict[str, dict[str, list[str]]] = {}
    for one in verdicts:
        if not one.verdict:
            continue
        if one.region is None:
            own.setdefault(one.reviewer, {})[one.frame] = one.verdict
        else:
            regions.setdefault(one.reviewer, {}).setdefault(one.frame, []).append(one.verdict)
    found: dict[str, dict[str, str]] = {}
    for reviewer in dict.fromkeys([*own, *regions]):
        derived = {frame: min(given, key=GRAVEST.index) for frame, given in regions.get(reviewer, {}).items()}
        found[reviewer] = derived | own.get(reviewer, {})
    return found


def summary_table(verdicts: Sequence[Verdict], frames: int) -> str:
    """Numbers and shares of frames by verdict, of each reviewer, and of regions, as Markdown tables."""
    opinions, lines = by_reviewer(verdicts), []
    for reviewer in dict.fromkeys(one.reviewer for one in verdicts):
        counts = Counter(opinions.get(reviewer, {}).values())
        mine = [one for one in verdicts if one.reviewer == reviewer]
        noted = Counter(opinions.get(reviewer, {}).get(one.frame, "") for one in mine if one.note and not one.region)
        alone = {one.frame for one in mine} - set(opinions.get(reviewer, {}))
        regions = Counter(one.verdict for one in mine if one.region)
        rows = [(words, counts[key], noted[key], regions[key]) for key, words in VERDICTS.items()]
        rows.append(("note alone", len(alone), noted[""], 0))
        rows.append(("not reviewed", frames - sum(counts.values()) - len(alone), 0, 0))
        lines += [
            f"| {visible(reviewer or 'verdict')} | frames | share | with a note | regions |",
            "|---|---:|---:|---:|---:|",
        ]
        lines += [
            f"| {words} | {count} | {count / frames:.1%} | {notes} | {pieces} |" for words, count, notes, pieces in rows
        ]
        lines.append("")
    return "\n".join(lines).rstrip()


def agreement_table(verdicts: Sequence[Verdict]) -> str:
    """For each two reviewers, on the frames that both judged: how often they agree, Cohen's kappa, and where they differ; empty for one.

    Kappa is (p_o - p_e) / (1 - p_e) with the share of agreement p_o and the one p_e that their verdicts' frequencies alone would give
    (Cohen 1960); without meaning, and a dash, where both gave one and the same verdict throughout.
    """
    opinions, lines = by_reviewer(verdicts), []
    for first, second in combinations(opinions, 2):
        one, other = opinions[first], opinions[second]
        first, second = visible(first or "no name"), visible(second or "no name")
        both = [frame for frame in one if frame in other]
        if not both:
            lines.append(f"{first} and {second} judged no frame in common.\n")
            continue
        agreed = sum(one[frame] == other[frame] for frame in both) / len(both)
        ours, theirs = Counter(one[frame] for frame in both), Counter(other[frame] for frame in both)
        chance = sum(ours[kind] * theirs[kind] for kind in ours) / len(both) ** 2
        kappa = "–" if chance == 1 else f"{(agreed - chance) / (1 - chance):.2f}"
        kinds = [kind for kind in VERDICTS if ours[kind] or theirs[kind]]
        lines.append(f"{len(both)} frames judged by both: {agreed:.1%} agree, Cohen's kappa {kappa}\n")
        lines.append(f"| {first} \\ {second} | {' | '.join(VERDICTS[k] for k in kinds)} |")
        lines.append("|---" + "|---:" * len(kinds) + "|")
        pairs = Counter((one[frame], other[frame]) for frame in both)
        lines += [f"| {VERDICTS[a]} | {' | '.join(str(pairs[a, b]) for b in kinds)} |" for a in kinds]
        differ = [
            f"- {frame}: {VERDICTS[one[frame]]}, {VERDICTS[other[frame]]}"
            for frame in both
            if one[frame] != other[frame]
        ]
        lines += ["", *differ, ""] if differ else [""]
    return "\n".join(lines).rstrip()
