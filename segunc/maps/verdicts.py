"""Verdicts of reviewers on frames and regions: read from the files that the page exports, merged,
counted and compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import combinations
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import FiniteFloat, NonNegativeInt, TypeAdapter, ValidationError, model_validator
from pydantic.dataclasses import dataclass

from segunc.core.errors import InputError
from segunc.core.files import read_bytes
from segunc.core.terminal import visible
from segunc.data.frame_names import composed

KINDS = ("nothing-wrong", "true-alarm", "false-alarm", "missed", "unsure")
VERDICTS = {kind: kind.replace("-", " ") for kind in KINDS}  # as they stand in files -> in words
GRAVEST = ("missed", "true-alarm", "false-alarm", "unsure")
"""What a region can be; the gravest verdict on a frame's regions is the frame's where it has none
of its own.
"""
FORMAT, FORMAT_VERSION = "segunc-verdicts", 2
CLOCK_TOLERANCE = timedelta(days=1)
"""How far a date may lie after now: a clock that runs on local time is wrong by 14 hours at
most."""


@dataclass(frozen=True)
class JudgedRegion:
    """A part of a frame: pixels that a threshold flagged, or a box drawn by hand."""

    box: tuple[
        NonNegativeInt, NonNegativeInt, NonNegativeInt, NonNegativeInt
    ]  # left, top, width, height in pixels
    area: NonNegativeInt  # pixels
    size: tuple[NonNegativeInt, NonNegativeInt]  # height and width of the frame
    mask: tuple[NonNegativeInt, ...]  # start and length of each run of pixels, row by row
    score: str | None = None  # what flagged it; None for a box drawn by hand
    threshold: FiniteFloat | None = None
    value: FiniteFloat | None = None  # the highest of the score


@dataclass(frozen=True)
class Verdict:
    """A verdict on one frame, or on a region of it."""

    frame: str  # its name
    verdict: str  # one of VERDICTS (of GRAVEST for a region), or empty for a note alone
    note: str = ""
    time: str = ""  # when it was given, ISO 8601 in UTC
    reviewer: str = ""  # the name of whoever gave it, or empty
    region: JudgedRegion | None = None

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        allowed = GRAVEST if self.region else VERDICTS
        if self.verdict not in allowed and (self.verdict or not self.note):
            raise ValueError(f"'{self.verdict}' is none of {', '.join(allowed)}, nor a note alone")
        return self

    @property
    def subject(self) -> tuple[str, str, Any]:
        """What there is one verdict on: the reviewer, the frame, and a region's score and box."""
        return self.reviewer, self.frame, self.region and (self.region.score, self.region.box)


@dataclass(frozen=True)
class _VerdictFile:
    format: Literal["segunc-verdicts"]
    version: Literal[2]
    run: str
    verdicts: list[Verdict]


_FILE = TypeAdapter(_VerdictFile)


def read_verdicts(path: Path, run: str, frames: Sequence[str]) -> list[Verdict]:
    """Read the verdicts that the page exported as JSON of the run with this id and these frames."""
    try:
        content = _FILE.validate_json(read_bytes(path), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        where = "".join(f", {part}" for part in first["loc"])
        raise InputError(
            f"{path}{where}: {first['msg']}", hint="export the verdicts from the page as JSON"
        ) from error
    if content.run != run:
        raise InputError(
            f"{path} holds verdicts on the run {content.run}, not on {run}", hint="give its --maps"
        )
    names_of = {composed(name): name for name in frames} | {name: name for name in frames}
    verdicts: dict[Any, Verdict] = {}
    for read in content.verdicts:
        name = names_of.get(read.frame, names_of.get(composed(read.frame)))
        if name is None:
            raise InputError(
                f"{path} has a verdict on frame '{read.frame}', which the maps do not hold"
            )
        verdict = Verdict(name, read.verdict, read.note, read.time, read.reviewer, read.region)
        if verdict.subject in verdicts:
            on = f"{'a region of ' if verdict.region else ''}frame '{name}'"
            raise InputError(f"{path} has two verdicts on {on}", hint="remove one of them")
        verdicts[verdict.subject] = verdict
    return list(verdicts.values())


def merge_verdicts(
    lists: Iterable[Sequence[Verdict]], now: datetime | None = None
) -> list[Verdict]:
    """Return all verdicts of several files, in the order of the first; of two by one reviewer on
    one thing the later.

    A verdict without a date that can be true loses against one with such a date. A wrong clock
    would otherwise beat every later correction. Among themselves such verdicts keep the order of
    their dates.

    Args:
        lists: the verdicts of each file.
        now: the time that no date may lie after, but for :data:`CLOCK_TOLERANCE`; None is the
            present.
    """
    latest = (now or datetime.now(UTC)) + CLOCK_TOLERANCE
    merged: dict[Any, Verdict] = {}
    for verdicts in lists:
        for verdict in verdicts:
            kept = merged.setdefault(verdict.subject, verdict)
            if _order(kept, latest) < _order(verdict, latest):
                merged[verdict.subject] = verdict
    return list(merged.values())


def _order(verdict: Verdict, latest: datetime) -> tuple[bool, datetime, str]:
    """Return what verdicts on one thing are sorted by: whether the date can be true, and the
    date."""
    date = date_of(verdict)
    if date is None:
        return False, datetime.min.replace(tzinfo=UTC), verdict.time
    return date <= latest, date, verdict.time


def date_of(verdict: Verdict) -> datetime | None:
    """Return when a verdict was given, in UTC where it names no zone; None where that is no
    date."""
    try:
        date = datetime.fromisoformat(verdict.time)
    except ValueError:
        return None
    return date.replace(tzinfo=date.tzinfo or UTC)


def note_on_dates(verdicts: Sequence[Verdict], now: datetime | None = None) -> str:
    """Return a line on verdicts that are dated after ``now``; empty where there is none."""
    latest = (now or datetime.now(UTC)) + CLOCK_TOLERANCE
    future = []
    for verdict in verdicts:
        date = date_of(verdict)
        if date is not None and date > latest:
            future.append(verdict)
    if not future:
        return ""
    number = len(future)
    many = f"{number} verdicts are" if number > 1 else "1 verdict is"
    return (
        f"{many} dated after now, first {future[0].time} on frame {future[0].frame}: a clock was "
        "wrong, so a verdict with a true date takes its place"
    )


def by_reviewer(verdicts: Sequence[Verdict]) -> dict[str, dict[str, str]]:
    """Return the verdict of each reviewer on each frame: their own, else the gravest on its
    regions; no notes alone.
    """
    opinions: dict[str, dict[str, str]] = {
        verdict.reviewer: {} for verdict in verdicts if verdict.verdict
    }
    for verdict in sorted(
        (v for v in verdicts if v.verdict), key=lambda v: v.region is None
    ):  # frames' own come last
        frames = opinions[verdict.reviewer]
        gravest = min(
            frames.get(verdict.frame, verdict.verdict),
            verdict.verdict,
            key=[*GRAVEST, *VERDICTS].index,
        )
        frames[verdict.frame] = gravest if verdict.region else verdict.verdict
    return opinions


def summary_table(verdicts: Sequence[Verdict], frames: int) -> str:
    """Count frames and regions by verdict, of each reviewer, as Markdown tables."""
    opinions, tables = by_reviewer(verdicts), []
    for reviewer in dict.fromkeys(verdict.reviewer for verdict in verdicts):
        counts = Counter(opinions.get(reviewer, {}).values())
        regions = Counter(
            verdict.verdict
            for verdict in verdicts
            if verdict.reviewer == reviewer and verdict.region
        )
        rows = [
            (words, counts[key], f"{counts[key] / frames:.1%}", regions[key])
            for key, words in VERDICTS.items()
        ]
        left = frames - sum(counts.values())
        heads = (visible(reviewer or "verdict"), "frames", "share", "regions")
        lines = [
            heads,
            ("---", "---:", "---:", "---:"),
            *rows,
            ("no verdict", left, f"{left / frames:.1%}", 0),
        ]
        tables.append("\n".join(f"| {' | '.join(map(str, line))} |" for line in lines))
    return "\n\n".join(tables)


@dataclass(frozen=True)
class Agreement:
    """How far two reviewers agree on the frames that both judged."""

    reviewers: tuple[str, str]  # their names
    frames: int
    agreed: float  # share of the frames, 0 where there is none
    kappa: (
        float | None
    )  # None where both gave one verdict throughout, or no frame is judged by both


def agreements(verdicts: Sequence[Verdict]) -> list[Agreement]:
    """Compare each two reviewers on the frames that both judged: agreement p_o and Cohen's kappa
    (p_o - p_e) / (1 - p_e), p_e being the share that their verdicts' frequencies alone would give
    (Cohen 1960)."""
    opinions = by_reviewer(verdicts)
    compared = []
    for names in combinations(opinions, 2):
        first, second = (opinions[name] for name in names)
        frames = first.keys() & second.keys()
        agreed = sum(first[frame] == second[frame] for frame in frames) / max(1, len(frames))
        firsts, seconds = (Counter(by[frame] for frame in frames) for by in (first, second))
        chance = sum(firsts[kind] * seconds[kind] for kind in firsts) / max(1, len(frames)) ** 2
        kappa = None if chance == 1 or not frames else (agreed - chance) / (1 - chance)
        compared.append(Agreement(names, len(frames), agreed, kappa))
    return compared


def agreement_table(verdicts: Sequence[Verdict]) -> str:
    """Say how far each two reviewers agree, a line each; a dash where there is no kappa."""
    lines = []
    for pair in agreements(verdicts):
        kappa = "–" if pair.kappa is None else f"{pair.kappa:.2f}"
        who = " and ".join(visible(name or "no name") for name in pair.reviewers)
        judged = f"{pair.frames} frames judged by both"
        lines.append(f"{who}, {judged}: {pair.agreed:.1%} agree, Cohen's kappa {kappa}")
    return "\n\n".join(lines)
