"""Results of evaluations side by side: their numbers, their differences, and what chance leaves of them."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from segunc.core.errors import InputError
from segunc.evaluation.resampling import NumberPath, PairedDifference, paired_difference, why_not_paired
from segunc.evaluation.results import EvaluationResult, data_warnings, differing_counts, higher_is_better

BY_SCORE = ("scores", "selective")
"""Sections of a result that hold a part for each score."""
HIDDEN = ("threshold", "per_class", "f1")
"""Parts of a path that are shown only when they are asked for."""
NULL = "—"
_MINUS = "−"
_MOST_DECIMALS = 6
"""What is smaller is rounding: confidences are counted in float32."""
ARROWS = {True: " ↑", False: " ↓", None: ""}
"""Behind a number's name: whether higher or lower is better."""
_CSV_COLUMNS = (
    *("number", "result", "value", "low", "high", "better", "best"),
    *("baseline", "difference", "difference_low", "difference_high", "p_value", "reason"),
)


@dataclass(frozen=True)
class Column:
    """A result, or one score of it, under its heading; ``paths`` leads from the label of a row to the number."""

    name: str
    result: EvaluationResult
    paths: Mapping[str, NumberPath]


@dataclass(frozen=True)
class Cell:
    """A number, its 95 % interval where there is one, and why it is None where it is."""

    value: float | None
    interval: tuple[float, float] | None = None
    reason: str | None = None


@dataclass(frozen=True)
class Difference:
    """A column's number less the baseline's; the test, or why there is none."""

    value: float
    test: PairedDifference | None = None
    reason: str | None = None


@dataclass(frozen=True)
class Row:
    """One number of every column.

    Attributes:
        label: dotted path; without the score where columns are scores.
        higher_is_better: None where neither is better.
        cells: one a column.
        best: the column that is better than every other one by more than chance, None where none is.
        differences: one a column, to the baseline; None for the baseline itself and where a number lacks.
    """

    label: str
    higher_is_better: bool | None
    cells: tuple[Cell, ...]
    best: int | None
    differences: tuple[Difference | None, ...]


@dataclass(frozen=True)
class Comparison:
    """A table of results, and what must be said below it; ``baseline`` is the place of its column."""

    columns: tuple[str, ...]
    baseline: int
    rows: tuple[Row, ...]
    warnings: tuple[str, ...]


def compare(
    results: Sequence[EvaluationResult],
    *,
    scores: Sequence[str] | None = None,
    keys: Sequence[str] | None = None,
    baseline: str | None = None,
) -> Comparison:
    """Put results, or scores of one or several results, side by side.

    A column is marked best in a row only where its difference to every other column is beyond chance: the paired
    interval excludes zero, or, where replicates are not paired, the two intervals do not overlap (which asks for more).
    Nothing is marked where the columns are of different data. No correction is made for the number of rows.

    Args:
        results: the results.
        scores: make a column of each of these scores of each result; None makes one of each result.
        keys: patterns (as of a shell) of the rows to show; None shows all but HIDDEN.
        baseline: the column that differences refer to, by its heading or its file; None is the first.

    Raises:
        InputError: an unknown score, baseline or key.
    """
    columns = _columns(results, scores)
    base = _baseline(columns, baseline)
    rows = tuple(_row(label, columns, base) for label in _labels(columns, keys))
    return Comparison(tuple(column.name for column in columns), base, rows, tuple(data_warnings(results)))


def _columns(results: Sequence[EvaluationResult], scores: Sequence[str] | None) -> list[Column]:
    if scores is None:
        return [Column(r.name, r, {".".join(path): path for path in r.numbers}) for r in results]
    columns = []
    for score in dict.fromkeys(scores):
        found = [(result, _paths_of(result, score)) for result in results]
        if not any(paths for _, paths in found):
            known = ", ".join(dict.fromkeys(name for result in results for name in result.content["scores"]))
            raise InputError(
                f"score '{score}' is in no result", f"one of {known or '(there is none)'}", "check the name"
            )
        for result, paths in found:
            if paths:
                columns.append(Column(score if len(results) == 1 else f"{result.name}:{score}", result, paths))
    return columns


def _paths_of(result: EvaluationResult, score: str) -> dict[str, NumberPath]:
    """Label of a row -> path of each number of a score; the label says its section but for ``scores``."""
    paths = (path for path in result.numbers if path[0] in BY_SCORE and path[1:2] == (score,))
    return {".".join(path[2:] if path[0] == "scores" else (path[0], *path[2:])): path for path in paths}


def _baseline(columns: Sequence[Column], given: str | None) -> int:
    if given is None:
        return 0
    file = Path(given).resolve()
    found = [i for i, column in enumerate(columns) if given == column.name or file == column.result.path.resolve()]
    if len(found) != 1:
        what = f"is the file of {len(found)} columns" if found else "is no column"
        names = ", ".join(column.name for column in columns)
        raise InputError(f"baseline {given} {what}", f"one of {names}", "give the heading of a column")
    return found[0]


def _labels(columns: Sequence[Column], keys: Sequence[str] | None) -> list[str]:
    every = {label: path for column in columns for label, path in column.paths.items()}
    if keys is None:
        return [label for label, path in every.items() if not set(HIDDEN).intersection(path)]
    for key in keys:
        if not any(fnmatchcase(label, key) for label in every):
            some = ", ".join(list(every)[:3])
            raise InputError(f"no number matches the key '{key}'", f"for instance {some}", "use wildcards: '*.auroc'")
    return [label for label in every if any(fnmatchcase(label, key) for key in keys)]


def _row(label: str, columns: Sequence[Column], base: int) -> Row:
    cells = tuple(_cell(column, label) for column in columns)
    path = next(column.paths[label] for column in columns if label in column.paths)
    upwards = higher_is_better(path)
    differences = tuple(
        None if column is columns[base] else _difference(label, columns[base], column, cells[base], cell)
        for column, cell in zip(columns, cells, strict=True)
    )
    return Row(label, upwards, cells, _best(label, columns, cells, upwards), differences)


def _cell(column: Column, label: str) -> Cell:
    path = column.paths.get(label)
    if path is None:
        return Cell(None, reason="the file does not hold it")
    value = column.result.numbers[path]
    if value is None:
        return Cell(None, reason=column.result.reason(path))
    return Cell(value, column.result.interval(path))


def _difference(label: str, base: Column, other: Column, base_cell: Cell, cell: Cell) -> Difference | None:
    if base_cell.value is None or cell.value is None:
        return None
    value = cell.value - base_cell.value
    different = differing_counts(base.result, other.result, base.paths[label][0])
    if different:
        return Difference(value, reason=f"other data: {', '.join(different)}")
    first, second = base.result.replicates, other.result.replicates
    if first is None or second is None:
        return Difference(value, reason=f"{(base if first is None else other).result.name} has no replicates beside it")
    why = why_not_paired(first, second)
    if why:
        return Difference(value, reason=why)
    a, b = base.result.replicates_of(base.paths[label]), other.result.replicates_of(other.paths[label])
    if a is None or b is None:
        return Difference(value, reason="this number has no replicates")
    try:
        return Difference(value, paired_difference(a, b))
    except InputError as error:
        return Difference(value, reason=error.given)


def _best(label: str, columns: Sequence[Column], cells: Sequence[Cell], upwards: bool | None) -> int | None:
    known = {i: cell.value for i, cell in enumerate(cells) if cell.value is not None}
    if upwards is None or len(known) < 2:
        return None
    best = max(known, key=lambda i: known[i] if upwards else -known[i])
    section = columns[best].paths[label][0]
    for other in known.keys() - {best}:
        if differing_counts(columns[best].result, columns[other].result, section):
            return None
        difference = _difference(label, columns[other], columns[best], cells[other], cells[best])
        if difference is None:
            return None
        if difference.test is not None:
            beyond_chance = difference.test.excludes_zero
        else:
            a, b = cells[other].interval, cells[best].interval
            beyond_chance = a is not None and b is not None and (a[1] < b[0] or b[1] < a[0])
        if not beyond_chance:
            return None
    return best


def format_number(value: float, *, like: float | None = None, sign: bool = False) -> str:
    """A number in the manner of statistics: three decimals, no zero before the point, up to six decimals near zero.

    Args:
        value: the number.
        like: take as many decimals as this number does; ``value`` itself by default.
        sign: write a plus, too.
    """
    reference = abs(value if like is None else like)
    decimals = 3 if reference == 0 or reference >= 0.01 else min(2 - math.floor(math.log10(reference)), _MOST_DECIMALS)
    text = f"{abs(value):.{decimals}f}"
    if not text.strip("0."):
        return ".000"
    return (_MINUS if value < 0 else "+" if sign else "") + text.removeprefix("0")


def format_cell(cell: Cell) -> str:
    """``.312 [.290, .335]``, without the interval where there is none; a dash for null."""
    if cell.value is None:
        return NULL
    text = format_number(cell.value)
    if cell.interval is None:
        return text
    low, high = (format_number(bound, like=cell.value or cell.interval[1]) for bound in cell.interval)
    return f"{text} [{low}, {high}]"


def markdown_table(rows: Sequence[Sequence[str]]) -> str:
    """Rows with a header as a Markdown table whose columns also stand below each other in a terminal."""
    escaped = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    widths = [max(3, *(len(row[i]) for row in escaped)) for i in range(len(escaped[0]))]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    aligned = [[row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])] for row in escaped]
    return "\n".join(f"| {' | '.join(row)} |" for row in (aligned[0], rule, *aligned[1:]))


def format_comparison(comparison: Comparison) -> str:
    """The table, the differences to the baseline, and below them what they leave unsaid."""
    rows = [["number", *comparison.columns]]
    for row in comparison.rows:
        texts = [format_cell(cell) for cell in row.cells]
        if row.best is not None:
            texts[row.best] = f"**{texts[row.best]}**"
        rows.append([row.label + ARROWS[row.higher_is_better], *texts])
    parts = [markdown_table(rows)]
    if len(comparison.columns) > 1:
        others = [i for i in range(len(comparison.columns)) if i != comparison.baseline]
        rows = [[f"less {comparison.columns[comparison.baseline]}", *(comparison.columns[i] for i in others)]]
        rows += [[row.label, *(format_difference(row.differences[i]) for i in others)] for row in comparison.rows]
        parts.append(markdown_table(rows))
    parts.append("\n".join(_below(comparison)))
    return "\n\n".join(part for part in parts if part)


def format_difference(difference: Difference | None) -> str:
    """``−.008 [−.014, +.001], p .120``, without interval and p where there is no test; a dash for none."""
    if difference is None:
        return NULL
    test = difference.test
    if test is None:
        return format_number(difference.value, sign=True)
    shown = (difference.value, test.low, test.high)
    value, low, high = (format_number(number, like=max(shown, key=abs), sign=True) for number in shown)
    return f"{value} [{low}, {high}], p {'< .001' if test.p_value < 0.001 else format_number(test.p_value, like=1)}"


def _below(comparison: Comparison) -> Iterable[str]:
    yield from (f"Warning: {warning}." for warning in comparison.warnings)
    if any(cell.interval for row in comparison.rows for cell in row.cells):
        yield "Brackets hold 95 % intervals."
    if len(comparison.columns) > 1:
        yield (
            "Bold is better than every other column by more than chance: the paired interval excludes 0, or, unpaired, "
            "the intervals do not overlap; not corrected for the number of rows."
        )
    reasons: dict[str, list[str]] = {}
    for row in comparison.rows:
        for name, cell, difference in zip(comparison.columns, row.cells, row.differences, strict=True):
            if cell.reason:
                reasons.setdefault(f"{NULL} {cell.reason}", []).append(f"{row.label} of {name}")
            elif difference and difference.reason:
                reasons.setdefault(f"not paired: {difference.reason}", []).append(f"{row.label} of {name}")
    for reason, places in reasons.items():
        more = f" and {len(places) - 3} more" if len(places) > 3 else ""
        yield f"{reason}: {', '.join(places[:3])}{more}."


def csv_table(comparison: Comparison) -> str:
    """One line for each number and column, in full precision; empty where there is nothing."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(_CSV_COLUMNS)
    better = {True: "higher", False: "lower", None: ""}
    for row in comparison.rows:
        for i, (name, cell, difference) in enumerate(zip(comparison.columns, row.cells, row.differences, strict=True)):
            low, high = cell.interval or (None, None)
            test = difference.test if difference else None
            writer.writerow(
                [
                    *(row.label, name, cell.value, low, high, better[row.higher_is_better], int(row.best == i)),
                    comparison.columns[comparison.baseline] if difference else None,
                    difference.value if difference else None,
                    *((test.low, test.high, test.p_value) if test else (None, None, None)),
                    cell.reason or (difference.reason if difference else None),
                ]
            )
    return buffer.getvalue()
