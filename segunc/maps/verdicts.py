"""Verdicts of reviewers on frames and regions: read from the files that the page exports, merged,
counted and compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import combinations
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from pydantic import FiniteFloat, NonNegativeInt, TypeAdapter, ValidationError, model_validator
from pydantic.dataclasses import dataclass

from segunc.core.errors import InputError
from segunc.core.files import read_bytes
from segunc.core.terminal import counted, visible
from segunc.data.frame_names import composed
from segunc.maps.encoding import threshold_text
from segunc.maps.reader import MapsReader

KINDS = ("nothing-wrong", "true-alarm", "false-alarm", "missed", "unsure")
VERDICTS = {kind: kind.replace("-", " ") for kind in KINDS}
"""Verdicts as they stand in files -> in words."""
GRAVEST = ("missed", "true-alarm", "false-alarm", "unsure")
"""Verdicts on a region, the gravest first. The gravest verdict on a frame's regions is the frame's
where it has none of its own.
"""
FORMAT = "segunc-verdicts"
FORMAT_VERSION = 2
CLOCK_TOLERANCE = timedelta(days=1)
"""How far a date may lie after now: a clock that runs on local time is wrong by 14 hours at
most."""


MAX_NAMED_THRESHOLDS = 3
"""Thresholds of verdicts that :func:`note_on_thresholds` names."""


@dataclass(frozen=True)
class JudgedRegion:
    """A part of a frame: pixels that a threshold flagged, or a box drawn by hand."""

    # left, top, width and height in pixels
    box: tuple[NonNegativeInt, NonNegativeInt, NonNegativeInt, NonNegativeInt]
    area: NonNegativeInt  # pixels
    size: tuple[NonNegativeInt, NonNegativeInt]  # height and width of the frame
    mask: tuple[NonNegativeInt, ...]  # start and length of each run of pixels, row by row
    score: str | None = None  # what flagged it; None for a box drawn by hand
    threshold: FiniteFloat | None = None
    value: FiniteFloat | None = None  # the highest of the score
    # what was done with the map before, see Preparation.options; empty for nothing, None for a box
    # drawn by hand and in files of earlier versions
    preparation: str | None = None


@dataclass(frozen=True)
class Verdict:
    """A verdict on one frame, or on a region of it."""

    frame: str  # its name
    verdict: str  # one of VERDICTS (of GRAVEST for a region), or empty for a note alone
    note: str = ""
    time: str = ""  # when it was given, ISO 8601 in UTC
    reviewer: str = ""  # the name of whoever gave it, or empty
    region: JudgedRegion | None = None
    # of a frame: the score, its threshold and its preparation that the page had when it was judged;
    # None where it had none, in files of earlier versions, and for a region, which has its own
    score: str | None = None
    threshold: FiniteFloat | None = None
    preparation: str | None = None
    # of the image that was judged, see MapsReader.image_hash; None where the maps record none, as
    # of a video, and in files of earlier versions
    image_hash: str | None = None

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        allowed = GRAVEST if self.region else VERDICTS
        is_note_alone = not self.verdict and bool(self.note)
        if self.verdict not in allowed and not is_note_alone:
            raise ValueError(f"'{self.verdict}' is none of {', '.join(allowed)}, nor a note alone")
        return self

    @property
    def subject(self) -> tuple[str, str, Any]:
        """What there is one verdict on: the reviewer, the frame, and a region's score and box."""
        region = None
        if self.region is not None:
            region = (self.region.score, self.region.box)
        return self.reviewer, self.frame, region

    @property
    def given_at(self) -> tuple[str, float, str] | None:
        """The score, its threshold and its preparation at which it was given; None where it does
        not say, as of a box drawn by hand. A preparation that is not recorded is none.
        """
        judged = self.region or self
        if judged.score is None or judged.threshold is None:
            return None
        return judged.score, judged.threshold, judged.preparation or ""

    @property
    def names_preparation(self) -> bool:
        """Whether it records what was done with the map before it was flagged."""
        return (self.region or self).preparation is not None


@dataclass(frozen=True)
class _VerdictFile:
    format: Literal["segunc-verdicts"]
    version: Literal[2]
    run: str
    verdicts: list[Verdict]


_FILE = TypeAdapter(_VerdictFile)


def read_verdicts(path: Path, run: str, frames: Sequence[str]) -> list[Verdict]:
    """Read the verdicts that the page exported as JSON.

    Args:
        path: of the file.
        run: id of the run that the verdicts must be on.
        frames: names of its frames.

    Raises:
        InputError: the file is of another form or run, names a frame that is not there, or has two
            verdicts on one thing.
    """
    return parse_verdicts(read_bytes(path), str(path), run, frames)


def parse_verdicts(data: bytes | str, path: str, run: str, frames: Sequence[str]) -> list[Verdict]:
    """Return the verdicts in JSON as :func:`read_verdicts` does; ``path`` names it in messages."""
    try:
        content = _FILE.validate_json(data, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        where = "".join(f", {part}" for part in first["loc"])
        raise InputError(
            f"{path}{where}: {first['msg']}", hint="export the verdicts from the page as JSON"
        ) from error
    if content.run != run:
        raise InputError(
            f"{path} holds verdicts on the run {content.run}, not on {run}",
            hint="give the maps folder of that run",
        )
    # A name may be composed otherwise in the file; where it is not, it is taken as it is.
    names = {composed(name): name for name in frames}
    names |= {name: name for name in frames}
    verdicts: dict[Any, Verdict] = {}
    for exported in content.verdicts:
        name = names.get(exported.frame, names.get(composed(exported.frame)))
        if name is None:
            raise InputError(
                f"{path} has a verdict on frame '{exported.frame}', which the maps do not hold"
            )
        verdict = replace(exported, frame=name)
        if verdict.subject in verdicts:
            subject = f"a region of frame '{name}'" if verdict.region else f"frame '{name}'"
            raise InputError(f"{path} has two verdicts on {subject}", hint="remove one of them")
        verdicts[verdict.subject] = verdict
    return list(verdicts.values())


@dataclass(frozen=True)
class VerdictsOnImages:
    """The verdicts that were given on the images of a maps folder, and those that were not."""

    lists: list[list[Verdict]]  # of each file, in the order of the files
    left_out: list[Verdict]  # their frames had another image when they were judged
    # of those in the lists: they do not say on which image they were given, and the maps record one
    unstated: list[Verdict]

    @property
    def notes(self) -> list[str]:
        """A line on the verdicts that are left out, and one on those that name no image."""
        notes = []
        if self.left_out:
            frames = len({verdict.frame for verdict in self.left_out})
            notes.append(
                f"{counted(len(self.left_out), 'verdict', 'is')} left out, on "
                f"{counted(frames, 'frame')} that had another image when judged, first "
                f"frame {self.left_out[0].frame}: the maps are of the new one"
            )
        if self.unstated:
            notes.append(
                f"{counted(len(self.unstated), 'verdict', 'names')} no image, as of an earlier "
                "version; taken as given on the images of these maps"
            )
        return notes


def read_verdict_files(paths: Sequence[Path], run: str, reader: MapsReader) -> VerdictsOnImages:
    """Return the verdicts of files that :func:`read_verdicts` reads, without those on other images
    than the maps are of: predict makes the maps of a changed image again, under the same name and
    run.
    """
    lists = [read_verdicts(path, run, reader.frames) for path in paths]
    return verdicts_on_images(lists, reader)


def verdicts_on_images(lists: Iterable[Sequence[Verdict]], reader: MapsReader) -> VerdictsOnImages:
    """Return the verdicts that speak of the images of maps. One that does not say on which image it
    was given counts, and so does one on a frame whose image the maps do not record.
    """
    kept_lists: list[list[Verdict]] = []
    left_out: list[Verdict] = []
    unstated: list[Verdict] = []
    for verdicts in lists:
        kept = []
        for verdict in verdicts:
            recorded = reader.image_hash(verdict.frame)
            if recorded is not None and verdict.image_hash is None:
                unstated.append(verdict)
            elif recorded is not None and verdict.image_hash != recorded:
                left_out.append(verdict)
                continue
            kept.append(verdict)
        kept_lists.append(kept)
    return VerdictsOnImages(kept_lists, left_out, unstated)


def merge_verdicts(
    lists: Iterable[Sequence[Verdict]], now: datetime | None = None
) -> list[Verdict]:
    """Return all verdicts of several files, in the order of the first. Of two verdicts by one
    reviewer on one thing the later one counts.

    A verdict without a date that can be true loses against one with such a date. A wrong clock
    would otherwise beat every later correction. Among themselves such verdicts keep the order of
    their dates.

    Args:
        lists: the verdicts of each file.
        now: a date may lie after this time by :data:`CLOCK_TOLERANCE` at most; None is the
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
    verdicts_are = f"{number} verdicts are" if number > 1 else "1 verdict is"
    return (
        f"{verdicts_are} dated after now, first {future[0].time} on frame {future[0].frame}: "
        "a clock was wrong, so a verdict with a true date takes its place"
    )


def note_on_changes(verdicts: Sequence[Verdict]) -> str:
    """Return a line on frames and regions of which a reviewer has given several verdicts; empty
    where there is none.

    Args:
        verdicts: of all files, before :func:`merge_verdicts`.
    """
    given: dict[Any, set[str]] = {}
    for verdict in verdicts:
        if verdict.verdict:
            given.setdefault(verdict.subject, set()).add(verdict.verdict)
    changed = sum(len(different) > 1 for different in given.values())
    if not changed:
        return ""
    are = counted(changed, "verdict", "has")
    return (
        f"{are} replaced an earlier one of the same reviewer, so agreement and kappa are of the "
        "settled verdicts, and not of independent ones; the first files alone give those"
    )


@dataclass(frozen=True)
class VerdictsAtThreshold:
    """The verdicts of a run that speak of one threshold of a score, and those that do not."""

    kept: list[Verdict]
    left_out: list[Verdict]
    # of those kept: neither they nor others of their reviewer and frame say a threshold
    unstated: list[Verdict]
    # of those kept: they say the threshold of a prepared map, and not how it was prepared
    unprepared: list[Verdict]
    first_other: Verdict | None  # the first that was given at another score or threshold

    def notes(self, score: str, threshold: float, preparation: str = "") -> list[str]:
        """Return a line on the verdicts that are left out, and one on those that do not say at
        which threshold, or at which preparation, they were given.
        """
        this = _at(score, threshold, preparation)
        notes = []
        if self.first_other is not None and self.first_other.given_at is not None:
            frames = len({verdict.frame for verdict in self.left_out})
            left_out = counted(len(self.left_out), "verdict", "is")
            notes.append(
                f"{left_out} left out, on {counted(frames, 'frame')} judged at another threshold "
                f"than {this}, first at {_at(*self.first_other.given_at)} on "
                f"frame {self.first_other.frame}: what one threshold misses, another may find"
            )
        if self.unstated:
            notes.append(
                f"{counted(len(self.unstated), 'verdict', 'names')} no threshold; taken as given "
                f"at {this}"
            )
        if self.unprepared:
            notes.append(
                f"{counted(len(self.unprepared), 'verdict', 'names')} no preparation of the map, "
                f"as of an earlier version; taken as given at {this}"
            )
        return notes


def verdicts_at(
    verdicts: Sequence[Verdict], score: str, threshold: float, preparation: str = ""
) -> VerdictsAtThreshold:
    """Return the verdicts that speak of a threshold of maps that were prepared in one way, see
    :attr:`segunc.decisions.preparation.Preparation.options`.

    What a reviewer said of a frame is left out as a whole if some of it was said at another score
    or threshold. The share of missed objects of a part of it would be of no threshold, because a
    box drawn around a missed object does not say its own.
    """
    by_frame: dict[tuple[str, str], list[Verdict]] = {}
    for verdict in verdicts:
        if verdict.verdict:  # not a note alone
            by_frame.setdefault((verdict.frame, verdict.reviewer), []).append(verdict)
    kept: list[Verdict] = []
    left_out: list[Verdict] = []
    unstated: list[Verdict] = []
    unprepared: list[Verdict] = []
    first_other = None
    for judged in by_frame.values():
        stated = [verdict for verdict in judged if verdict.given_at is not None]
        others = [
            verdict for verdict in stated if not _is_at(verdict, score, threshold, preparation)
        ]
        if others:
            left_out += judged
            first_other = first_other or others[0]
            continue
        kept += judged
        if not stated:
            unstated += judged
        elif preparation:
            unprepared += [verdict for verdict in stated if not verdict.names_preparation]
    return VerdictsAtThreshold(kept, left_out, unstated, unprepared, first_other)


def _is_at(verdict: Verdict, score: str, threshold: float, preparation: str) -> bool:
    """Return whether a verdict was given at a threshold of a score, on maps that were prepared in
    one way. Thresholds of one float32 flag the same pixels.
    """
    if verdict.given_at is None:
        return False
    name, value, prepared = verdict.given_at
    if name != score or np.float32(value) != np.float32(threshold):
        return False
    return prepared == preparation or not verdict.names_preparation


def _at(score: str, threshold: float, preparation: str = "") -> str:
    words = f"{score} >= {threshold_text(threshold)}"
    return f"{words} after {preparation}" if preparation else words


def note_on_thresholds(verdicts: Sequence[Verdict]) -> str:
    """Return a line on verdicts that were given at several scores or thresholds, which numbers of
    all of them mix; empty where there are less than two.
    """
    given = Counter(verdict.given_at for verdict in verdicts if verdict.verdict)
    given.pop(None, None)
    if len(given) < 2:
        return ""
    parts = []
    for at, number in given.most_common(MAX_NAMED_THRESHOLDS):
        assert at is not None
        parts.append(f"{number} at {_at(*at)}")
    more = len(given) - len(parts)
    if more:
        parts.append(f"others at {more} more")
    return (
        f"verdicts were given at {len(given)} thresholds ({', '.join(parts)}), and the numbers "
        "count all of them"
    )


def by_reviewer(verdicts: Sequence[Verdict]) -> dict[str, dict[str, str]]:
    """Return the verdict of each reviewer on each frame: their own, else the gravest on its
    regions. Notes alone do not count.
    """
    judged = [verdict for verdict in verdicts if verdict.verdict]
    opinions: dict[str, dict[str, str]] = {verdict.reviewer: {} for verdict in judged}
    for verdict in judged:
        if verdict.region is not None:
            frames = opinions[verdict.reviewer]
            before = frames.get(verdict.frame, verdict.verdict)
            frames[verdict.frame] = min(before, verdict.verdict, key=GRAVEST.index)
    for verdict in judged:
        if verdict.region is None:
            opinions[verdict.reviewer][verdict.frame] = verdict.verdict
    return opinions


def summary_table(verdicts: Sequence[Verdict], frames: int) -> str:
    """Count frames and regions by verdict, of each reviewer, as Markdown tables."""
    opinions = by_reviewer(verdicts)
    reviewers = dict.fromkeys(verdict.reviewer for verdict in verdicts)
    tables = []
    for reviewer in reviewers:
        frames_by_verdict = Counter(opinions.get(reviewer, {}).values())
        regions_by_verdict: Counter[str] = Counter()
        for verdict in verdicts:
            if verdict.reviewer == reviewer and verdict.region:
                regions_by_verdict[verdict.verdict] += 1
        lines = [
            _row(visible(reviewer or "verdict"), "frames", "share", "regions"),
            _row("---", "---:", "---:", "---:"),
        ]
        for kind, words in VERDICTS.items():
            number = frames_by_verdict[kind]
            lines.append(_row(words, number, f"{number / frames:.1%}", regions_by_verdict[kind]))
        left = frames - sum(frames_by_verdict.values())
        lines.append(_row("no verdict", left, f"{left / frames:.1%}", 0))
        tables.append("\n".join(lines))
    return "\n\n".join(tables)


def _row(*cells: object) -> str:
    """Return a row of a Markdown table."""
    return f"| {' | '.join(map(str, cells))} |"


@dataclass(frozen=True)
class Agreement:
    """How far two reviewers agree on the frames that both judged."""

    reviewers: tuple[str, str]  # their names
    frames: int
    agreed: float  # share of the frames, 0 where there is none
    kappa: float | None  # None where both gave one verdict throughout, or judged no frame both


def agreements(verdicts: Sequence[Verdict]) -> list[Agreement]:
    """Compare each two reviewers on the frames that both judged.

    Cohen's kappa is (p_o - p_e) / (1 - p_e), with the agreement p_o and the share p_e that the
    frequencies of their verdicts alone would give (Cohen 1960).
    """
    opinions = by_reviewer(verdicts)
    compared = []
    for reviewers in combinations(opinions, 2):
        first = opinions[reviewers[0]]
        second = opinions[reviewers[1]]
        frames = first.keys() & second.keys()
        agreed, kappa = _agreement([(first[frame], second[frame]) for frame in frames])
        compared.append(Agreement(reviewers, len(frames), agreed, kappa))
    return compared


def _agreement(pairs: Sequence[tuple[str, str]]) -> tuple[float, float | None]:
    """Return the share of pairs of verdicts that are equal, and Cohen's kappa of them."""
    if not pairs:
        return 0.0, None
    agreed = sum(first == second for first, second in pairs) / len(pairs)
    by_first = Counter(first for first, _ in pairs)
    by_second = Counter(second for _, second in pairs)
    chance = sum(by_first[kind] * by_second[kind] for kind in by_first) / len(pairs) ** 2
    kappa = None if chance == 1 else (agreed - chance) / (1 - chance)
    return agreed, kappa


SAME_REGION = 0.5
"""Two boxes of one frame and score are the same region from this overlap on (intersection over
union), here as on the review page: reviewers who set other thresholds see other outlines of one
thing."""


@dataclass(frozen=True)
class RegionAgreement:
    """How far two reviewers agree on the regions that both judged."""

    reviewers: tuple[str, str]  # their names
    regions: int
    agreed: float  # share of the regions, 0 where there is none
    kappa: float | None  # None where both gave one verdict throughout, or judged no region both


def region_agreements(verdicts: Sequence[Verdict]) -> list[RegionAgreement]:
    """Compare each two reviewers on the regions that both judged, see :data:`SAME_REGION`.

    A region of one reviewer is compared with one of the other at most. Of several, those that
    overlap most belong together. Kappa is that of :func:`agreements`.
    """
    judged = _regions_by_place(verdicts)
    compared = []
    for reviewers in combinations(judged, 2):
        first = judged[reviewers[0]]
        second = judged[reviewers[1]]
        pairs = []
        for place in first.keys() & second.keys():
            for own, other in _same_regions(first[place], second[place]):
                pairs.append((own.verdict, other.verdict))
        agreed, kappa = _agreement(pairs)
        compared.append(RegionAgreement(reviewers, len(pairs), agreed, kappa))
    return compared


def _regions_by_place(
    verdicts: Sequence[Verdict],
) -> dict[str, dict[tuple[str, str | None], list[Verdict]]]:
    """Return the verdicts on regions: reviewer -> frame and score -> verdicts."""
    judged: dict[str, dict[tuple[str, str | None], list[Verdict]]] = {}
    for verdict in verdicts:
        if verdict.region is not None and verdict.verdict:
            of_reviewer = judged.setdefault(verdict.reviewer, {})
            of_reviewer.setdefault((verdict.frame, verdict.region.score), []).append(verdict)
    return judged


def disputed_regions(verdicts: Sequence[Verdict]) -> list[list[Verdict]]:
    """Return the verdicts on each region on which reviewers disagree, see :data:`SAME_REGION`, in
    the order of the first verdict on each.
    """
    judged = _regions_by_place(verdicts)
    regions: dict[Any, list[Verdict]] = {}  # subject of a verdict -> all verdicts on its region
    for reviewers in combinations(judged, 2):
        first = judged[reviewers[0]]
        second = judged[reviewers[1]]
        for place in first.keys() & second.keys():
            for own, other in _same_regions(first[place], second[place]):
                together = regions.get(own.subject, [own])
                for verdict in regions.get(other.subject, [other]):
                    if verdict not in together:
                        together.append(verdict)
                for verdict in together:
                    regions[verdict.subject] = together
    disputed: list[list[Verdict]] = []
    for verdict in verdicts:
        region = regions.get(verdict.subject, [])
        if len({said.verdict for said in region}) > 1 and region not in disputed:
            disputed.append(region)
    return disputed


def _same_regions(
    first: Sequence[Verdict], second: Sequence[Verdict]
) -> Iterator[tuple[Verdict, Verdict]]:
    """Yield the verdicts of two reviewers on each region of one frame and score that both
    judged."""
    overlaps = []
    for row, own in enumerate(first):
        for column, other in enumerate(second):
            overlap = _overlap(own.region, other.region)
            if overlap >= SAME_REGION:
                overlaps.append((-overlap, row, column))
    taken_rows = set()
    taken_columns = set()
    for _, row, column in sorted(overlaps):
        if row not in taken_rows and column not in taken_columns:
            taken_rows.add(row)
            taken_columns.add(column)
            yield first[row], second[column]


def _overlap(first: JudgedRegion | None, second: JudgedRegion | None) -> float:
    """Return the intersection over union of two boxes."""
    if first is None or second is None:
        return 0.0
    left, top, width, height = first.box
    other_left, other_top, other_width, other_height = second.box
    across = min(left + width, other_left + other_width) - max(left, other_left)
    down = min(top + height, other_top + other_height) - max(top, other_top)
    both = max(across, 0) * max(down, 0)
    either = width * height + other_width * other_height - both
    return both / either if either else 0.0


def agreement_table(verdicts: Sequence[Verdict]) -> str:
    """Say how far each two reviewers agree on frames, and on regions where both judged some, a line
    each; a dash where there is no kappa."""
    frames = agreements(verdicts)
    regions = [pair for pair in region_agreements(verdicts) if pair.regions]
    lines = [_agreement_line(pair, counted(pair.frames, "frame")) for pair in frames]
    lines += [_agreement_line(pair, counted(pair.regions, "region")) for pair in regions]
    return "\n\n".join(lines)


def _agreement_line(pair: Agreement | RegionAgreement, units: str) -> str:
    kappa = "–" if pair.kappa is None else f"{pair.kappa:.2f}"
    names = " and ".join(visible(name or "no name") for name in pair.reviewers)
    return f"{names}, {units} judged by both: {pair.agreed:.1%} agree, Cohen's kappa {kappa}"


MAX_NAMED_DISPUTES = 10
"""Disputed regions that :func:`dispute_list` names."""


def dispute_list(verdicts: Sequence[Verdict]) -> str:
    """Name the regions on which reviewers disagree, a line each: frame, box, and who said what.
    Empty where there is none.
    """
    disputed = disputed_regions(verdicts)
    if not disputed:
        return ""
    number = len(disputed)
    lines = [f"Reviewers disagree on {number} {'region' if number == 1 else 'regions'}:", ""]
    lines += [f"- {_dispute_line(region)}" for region in disputed[:MAX_NAMED_DISPUTES]]
    more = number - MAX_NAMED_DISPUTES
    if more > 0:
        lines.append(f"- and {more} more")
    return "\n".join(lines)


def _dispute_line(region: Sequence[Verdict]) -> str:
    first = region[0]
    assert first.region is not None
    left, top, width, height = first.region.box
    what = "drawn box" if first.region.score is None else "region"
    said = ", ".join(
        f"{visible(verdict.reviewer or 'no name')}: {VERDICTS[verdict.verdict]}"
        for verdict in region
    )
    return f"frame {visible(first.frame)}, {what} at {left}, {top} ({width} x {height}): {said}"
