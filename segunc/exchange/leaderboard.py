"""The public leaderboard of SegmentMeIfYouCan, and where a result would stand among its rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from segunc.core.errors import InputError
from segunc.core.files import csv_text, load_json
from segunc.evaluation.compare import NULL, Cell, EvaluationResult, format_cell, format_number, markdown_table
from segunc.evaluation.resampling import NumberPath


@dataclass(frozen=True)
class Track:
    """One table of the board, and the component track of our results with the same size rules."""

    table: str  # its key in leaderboard.json
    split: str  # first part of its fields' names, the data set
    segments: str  # second part of the names of its component fields
    components: str
    frames: int  # that the board scores (Chan et al., arXiv 2104.14812)

    @property
    def fields(self) -> dict[str, str]:
        """Number -> its field in a row of the board."""
        pixels = {number: f"{self.split}-PixBinaryClass-{theirs}" for number, (theirs, _) in _PIXELS.items()}
        return pixels | {number: f"{self.split}-{self.segments}-{theirs}" for number, (theirs, _) in _SEGMENTS.items()}

    def number_path(self, number: str, score: str) -> NumberPath:
        """Where the same number of a score stands in our results."""
        if number in _PIXELS:
            return ("scores", score, "smiyc", _PIXELS[number][1])
        return ("scores", score, "components", self.components, _SEGMENTS[number][1])


# Field names as in assets/leaderboard.json and leaderboard.html of
# https://github.com/SegmentMeIfYouCan/segment-me-if-you-can; all values are fractions.
TRACKS = {
    "anomaly": Track("anomaly_track", "AnomalyTrack-test", "SegEval-AnomalyTrack", "smiyc-anomaly", 100),
    "obstacle": Track("obstacle_track", "ObstacleTrack-test", "SegEval-ObstacleTrack", "smiyc-obstacle", 327),
    "laf-no-known": Track("laf_no_known", "LostAndFound-testNoKnown", "SegEval-ObstacleTrack", "smiyc-obstacle", 1043),
}
RANKED_BY = "AUPR"
_PIXELS = {"AUPR": ("area_PRC", "aupr"), "FPR95": ("tpr95_fpr", "fpr95")}
_SEGMENTS = {"sIoU gt": ("sIoU_gt", "siou_gt"), "PPV": ("prec_pred", "ppv"), "mean F1": ("f1_mean", "mean_f1")}
"""Number -> its name in the fields of the board and in our results, of pixels and of components."""
_LOWER_IS_BETTER = ("FPR95",)


@dataclass(frozen=True)
class BoardRow:
    """A method of the board, or one of our results."""

    method: str
    cells: Mapping[str, Cell]  # number -> cell, empty where the row has no such number
    places: Mapping[str, int]  # number -> place among the board's methods, 1 the best; none for the board's own rows


def load_board(path: Path, track: Track) -> list[BoardRow]:
    """The methods of one table of a ``leaderboard.json``.

    The file is an object of tables (``anomaly_track``, ...), or one table alone: a list of rows with ``method`` and
    :attr:`Track.fields`, all fractions of 1. A value that is no fraction counts as missing; another form is an InputError.
    """
    content = load_json(path, "a leaderboard.json")
    rows = content.get(track.table) if isinstance(content, dict) else content
    if not isinstance(rows, list) or not rows:
        raise InputError(f"{path} has no table '{track.table}'", "a leaderboard.json of SegmentMeIfYouCan")
    for row in rows:
        if not isinstance(row, dict) or not isinstance(row.get("method"), str):
            raise InputError(f"{path}: a row of '{track.table}' names no method", 'rows with "method": NAME')
    if not any(track.fields[RANKED_BY] in row for row in rows):
        raise InputError(f"{path}: no row has {track.fields[RANKED_BY]}", "the fields of this track", "check --track")
    fields = track.fields.items()
    return [BoardRow(row["method"].strip(), {name: _fraction(row.get(f)) for name, f in fields}, {}) for row in rows]


def _fraction(value: Any) -> Cell:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return Cell(float(value)) if is_number and 0 <= value <= 1 else Cell(None, reason="the board has no such fraction")


def place_results(
    board: Sequence[BoardRow], results: Sequence[EvaluationResult], track: Track, scores: Sequence[str] | None = None
) -> list[BoardRow]:
    """The board with a row for each score (or only for ``scores``) of our results among its rows, best AUPR first; InputError
    where no result has a number of the board's protocol."""
    ours = []
    for result in results:
        for score in scores or result.content["scores"]:
            cells = {name: result.cell(track.number_path(name, score)) for name in track.fields}
            places = {n: _place(board, n, cell.value) for n, cell in cells.items() if cell.value is not None}
            if places:
                ours.append(BoardRow(f"{result.name}:{score}", cells, places))
    if not ours:
        expected = f"scores.SCORE.smiyc, or scores.SCORE.components.{track.components}"
        remedy = "evaluate with --protocols smiyc"
        raise InputError("no result has numbers of the protocol 'smiyc'", expected, remedy)

    def rank(row: BoardRow) -> float:
        value = row.cells[RANKED_BY].value
        return 1.0 if value is None else -value

    return sorted([*board, *ours], key=rank)


def _place(board: Sequence[BoardRow], number: str, value: float) -> int:
    """1 and the number of the board's methods that are better."""
    lower = number in _LOWER_IS_BETTER
    others = [cell.value for cell in (row.cells[number] for row in board) if cell.value is not None]
    return 1 + sum(other < value if lower else other > value for other in others)


def format_board(rows: Sequence[BoardRow], results: Sequence[EvaluationResult], track: Track) -> str:
    """The rows as a Markdown table, ours in bold with their places, and what makes the comparison a weak one."""
    size = sum(not row.places for row in rows)
    table = [["method", *track.fields]]
    for row in rows:
        texts = [f"**{row.method}**" if row.places else row.method]
        for name in track.fields:
            cell, place = row.cells[name], row.places.get(name)
            said = NULL if cell.value is None else format_number(cell.value)
            texts.append(said if place is None else f"{format_cell(cell)} ({place})")
        table.append(texts)
    lines = [f"In parentheses: the place among the {size} methods of {track.table}, in fractions of 1 as all numbers."]
    for result in results:
        frames = result.content["counts"].get("anomaly_frames")
        lines.append(
            f"The board's numbers are of the {track.frames} frames of {track.split}, {result.name} is of {frames} frames: "
            + ("a place means what it says only if they are the same." if frames == track.frames else "not comparable.")
        )
    return f"{markdown_table(table)}\n\n" + "\n".join(lines)


def board_csv(rows: Sequence[BoardRow], track: Track) -> str:
    """The rows in full precision: each number, and for our results its interval and place."""
    parts = (f"{name}{part}" for name in track.fields for part in ("", " low", " high", " place"))
    lines: list[list[object]] = [["method", "ours", *parts]]
    for row in rows:
        lines.append([row.method, int(bool(row.places))])
        for name in track.fields:
            cell = row.cells[name]
            lines[-1] += [cell.value, *(cell.interval or (None, None)), row.places.get(name)]
    return csv_text(lines)
