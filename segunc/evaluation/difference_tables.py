"""Tables and sentences on how the maps of two folders differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from segunc.core.terminal import counted
from segunc.evaluation.comparison import NULL, format_number, markdown_table
from segunc.evaluation.map_differences import (
    FlaggedDifference,
    FlaggedSide,
    FrameDifference,
    MapsDifference,
    PredictionDifference,
    ScoreDifference,
)
from segunc.maps.encoding import threshold_text

NOT_A_JUDGEMENT = (
    "Without labels, these numbers say how far the maps differ, and not which are better. "
    "With labels, segunc evaluate measures each folder, and segunc compare sets its results side "
    "by side."
)
RANKS_ALONE = "*"
"""Stands behind the name of a score whose scale is another in each folder."""
ARROW = " → "


@dataclass(frozen=True)
class DifferenceTable:
    """A table with its title; the first row is the header, and the first column names the rows."""

    title: str
    rows: tuple[tuple[str, ...], ...]


def heading_of(difference: MapsDifference) -> str:
    """Return what is compared, in one line."""
    frames = counted(difference.frames, "frame")
    return (
        f"{difference.other} against {difference.baseline} (baseline): {frames}, "
        f"{difference.pixels:,} pixels"
    )


def summary_tables(difference: MapsDifference) -> list[DifferenceTable]:
    """Return the tables of all frames together, in the order in which they are read."""
    tables = []
    if difference.prediction is not None:
        tables.append(_of_classes(difference, difference.prediction))
    if difference.scores:
        tables.append(_of_scores(difference))
    tables += [_of_flagged(difference, flagged) for flagged in difference.flagged]
    return tables


def notes_of(difference: MapsDifference) -> list[str]:
    """Return what a reader needs to know of the numbers, each a sentence."""
    notes = []
    if difference.scores:
        notes.append(
            "The mean difference is the mean of the absolute differences. The rank correlation is "
            "Spearman's, of the pixels of each frame, mean over the frames; 1 is the same order."
        )
        notes.append(
            "The highest 5 % shared is the intersection over union of the highest 5 % of the "
            "pixels of each frame, mean over the frames; 1 is the same pixels, .026 is chance."
        )
    other_scales = [score.score for score in difference.scores if score.scales_differ]
    if other_scales:
        notes.append(
            f"{RANKS_ALONE} {', '.join(other_scales)}: the scale may be another in each folder, so "
            "compare ranks, and no means or differences."
        )
    if difference.flagged:
        notes.append(
            "A region is met if it shares a pixel with a flagged region of the other folder."
        )
    flagged_scores = {flagged.score for flagged in difference.flagged}
    notes += [_of_flagged_scale(score) for score in other_scales if score in flagged_scores]
    return [*notes, *(f"{note}." for note in difference.notes)]


def _of_flagged_scale(score: str) -> str:
    return (
        f"A threshold of {score} is a value of the scale of each folder: one value for both may "
        "flag more in one because of its scale alone."
    )


def format_difference(difference: MapsDifference) -> str:
    """Write the tables and notes of a difference as Markdown."""
    texts = [f"**{heading_of(difference)}**"]
    for table in (*summary_tables(difference), frames_table(difference)):
        texts.append(f"{table.title}:")
        texts.append(markdown_table(table.rows))
    texts.append("\n".join(f"- {note}" for note in notes_of(difference)))
    return "\n\n".join(texts)


def format_differences(differences: Sequence[MapsDifference]) -> str:
    """Write several differences as Markdown, and that none says which folder is better."""
    return "\n\n".join([*map(format_difference, differences), NOT_A_JUDGEMENT])


def percent(share: float | None) -> str:
    """Write a share of 1 in percent, a dash for None."""
    return NULL if share is None else f"{100 * share:.3g} %"


def numbers_of_frame(difference: MapsDifference, frame: FrameDifference) -> list[str]:
    """Return the numbers of a frame, each in words; the first is the one that ranks it."""
    words = []
    if difference.flagged:
        words.append(f"{difference.ranked_by}: {frame.value:,.0f}")
    if frame.changed is not None:
        words.append(f"class changed in {percent(frame.changed)} of the pixels")
    for score, value in frame.mean_differences.items():
        if score in _shown_scores(difference):
            words.append(f"mean absolute difference of {score} {format_number(value)}")
    for score, (first, second) in frame.regions.items():
        alone = frame.alone[score]
        words.append(
            f"regions flagged by {score}: {first} in {difference.baseline} ({alone[0]} only "
            f"there), {second} in {difference.other} ({alone[1]} only there)"
        )
    return words


def _shown_scores(difference: MapsDifference) -> list[str]:
    """Return the scores whose difference in each frame is listed: the one that ranks the frames and
    those that are flagged.
    """
    shown = [flagged.score for flagged in difference.flagged]
    if difference.ranking_score:
        shown.append(difference.ranking_score)
    return list(dict.fromkeys(shown))


def _of_classes(difference: MapsDifference, prediction: PredictionDifference) -> DifferenceTable:
    header = (f"in {difference.baseline}{ARROW}in {difference.other}", "pixels", "share")
    rows = [header, ("any change", f"{prediction.changed:,}", percent(prediction.share))]
    for change in prediction.changes:
        row = (f"{change.before}{ARROW}{change.after}", f"{change.pixels:,}", percent(change.share))
        rows.append(row)
    return DifferenceTable("Pixels whose predicted class changed", tuple(rows))


def _of_scores(difference: MapsDifference) -> DifferenceTable:
    header = (
        "score",
        f"mean in {difference.baseline}",
        f"mean in {difference.other}",
        "mean difference",
        "rank correlation",
        "highest 5 % shared",
    )
    rows = [header]
    for score in difference.scores:
        first, second = score.means or (None, None)
        row = (
            _score_name(score),
            _number(first),
            _number(second),
            _number(score.mean_difference),
            _number(score.rank_correlation),
            _number(score.highest_overlap),
        )
        rows.append(row)
    return DifferenceTable("Scores of the pixels", tuple(rows))


def _score_name(score: ScoreDifference) -> str:
    return f"{score.score} {RANKS_ALONE}" if score.scales_differ else score.score


def _number(value: float | None) -> str:
    return NULL if value is None else format_number(value)


def _of_flagged(difference: MapsDifference, flagged: FlaggedDifference) -> DifferenceTable:
    first, second = flagged.sides
    rows = [
        ("", difference.baseline, difference.other),
        ("threshold", _threshold(flagged.score, first), _threshold(flagged.score, second)),
        (
            "smallest region",
            f"{first.threshold.smallest} pixels",
            f"{second.threshold.smallest} pixels",
        ),
        (
            "frames with a region",
            f"{first.frames} of {difference.frames}",
            f"{second.frames} of {difference.frames}",
        ),
        (
            "share of pixels in regions",
            percent(_share(first, flagged)),
            percent(_share(second, flagged)),
        ),
        ("regions", f"{first.regions:,}", f"{second.regions:,}"),
        ("regions met by the other folder", f"{first.met:,}", f"{second.met:,}"),
        ("regions only here", f"{first.alone:,}", f"{second.alone:,}"),
    ]
    return DifferenceTable(f"Regions flagged by {flagged.score}", tuple(rows))


def _threshold(score: str, side: FlaggedSide) -> str:
    threshold = side.threshold
    name = threshold.preparation.name_of(score)
    words = f"{name} >= {threshold_text(threshold.value)}"
    return f"{words} ({threshold.source})" if threshold.source else words


def _share(side: FlaggedSide, flagged: FlaggedDifference) -> float | None:
    return side.pixels / flagged.pixels if flagged.pixels else None


def frames_table(difference: MapsDifference) -> DifferenceTable:
    """Return the table of the frames that differ most."""
    header = ["frame"]
    if difference.prediction is not None:
        header.append("class changed")
    scores = _shown_scores(difference)
    header += [f"mean difference of {score}" for score in scores]
    for flagged in difference.flagged:
        header.append(f"{flagged.score} regions only in {difference.baseline}")
        header.append(f"only in {difference.other}")
    if difference.flagged:
        header.append("pixels only one flags")
    rows = [tuple(header)]
    for frame in difference.most:
        row = [frame.name]
        if difference.prediction is not None:
            row.append(percent(frame.changed))
        row += [_number(frame.mean_differences.get(score)) for score in scores]
        for flagged in difference.flagged:
            row += [str(count) for count in frame.alone[flagged.score]]
        if difference.flagged:
            row.append(f"{frame.value:,.0f}")
        rows.append(tuple(row))
    return DifferenceTable(f"Frames that differ most, by {difference.ranked_by}", tuple(rows))
