"""Results of evaluations side by side: their numbers, their differences, and what chance leaves of
them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from segunc.core.errors import InputError
from segunc.core.terminal import visible
from segunc.evaluation.flagged import FLAGGED_METRICS, JUDGED_METRICS
from segunc.evaluation.over_time import OBJECT_METRICS
from segunc.evaluation.parts import PARTS, PROTOCOLS, ByObject, Components
from segunc.evaluation.resampling import (
    Cell,
    Chance,
    EvaluationResult,
    NumberPath,
    paired_difference,
)

BY_SCORE = (
    "scores",
    "selective",
    "flagged",
)  # sections of a result that hold a part for each score
# Parts of a path that are shown only when they are asked for.
HIDDEN = ("threshold", "thresholds", "per_class", "by_class", "f1", "size", "distance", "groups")
NULL = "—"
ARROWS = {True: " ↑", False: " ↓", None: ""}  # whether higher or lower is better
_MINUS = "−"
_MAX_DECIMALS = 6  # what is smaller is rounding: confidences are counted in float32


class _Column(NamedTuple):
    """A result, or one score of it, under its heading; ``paths`` leads from the label of a row to
    the number.
    """

    name: str
    result: EvaluationResult
    paths: Mapping[str, NumberPath]

    def cell(self, label: str) -> Cell:
        path = self.paths.get(label)
        return (
            Cell(None, reason="the file does not hold it")
            if path is None
            else self.result.cell(path)
        )


@dataclass(frozen=True)
class Difference:
    """A column's number less the baseline's; the test, or why there is none."""

    value: float
    test: Chance | None = None
    reason: str | None = None


@dataclass(frozen=True)
class Row:
    """One number of every column."""

    label: str  # dotted path; without the score where columns are scores
    higher_is_better: bool | None  # None where neither is better
    cells: tuple[Cell, ...]
    best: (
        int | None
    )  # the column that is better than every other one by more than chance, None where none is
    differences: tuple[
        Difference | None, ...
    ]  # to the baseline; None for itself and where a number lacks


@dataclass(frozen=True)
class Comparison:
    """A table of results, and the warnings below it; ``baseline`` is the index of its column."""

    columns: tuple[str, ...]
    baseline: int
    rows: tuple[Row, ...]
    warnings: tuple[str, ...]


def higher_is_better(path: NumberPath) -> bool | None:
    """Return the direction of a number as its part defines it, or else one of its name in any
    section; None where it has none.
    """
    parts = (part for build in PARTS.values() for part in build(("score",), ("class",), PROTOCOLS))
    sections = [
        ("scores", (*Components.metrics, *ByObject.metrics)),
        ("flagged", (*FLAGGED_METRICS, *OBJECT_METRICS)),
    ]
    sections += [
        ("verdicts", JUDGED_METRICS),
        *((part.section[0], tuple(part.metrics)) for part in parts),
    ]
    by_fit = sorted(
        sections, key=lambda section: section[0] == path[0]
    )  # the section of the path last
    metrics = {metric.key: metric for _, metrics in by_fit for metric in metrics}
    # An IoU of a class and an F1 at a threshold are named by the class and the threshold.
    metric = metrics.get(".".join((*path[-2:-1], "*"))) or metrics.get(path[-1])
    return metric.higher_is_better if metric else None


def _differing_counts(first: EvaluationResult, second: EvaluationResult, section: str) -> list[str]:
    """Return the counts that tell that a section's numbers of two results are of different data, as
    ``name (n and m)``.
    """
    a, b = first.content["counts"], second.content["counts"]
    anomaly, labelled = (
        ("anomaly_frames", "anomaly_pixels", "normal_pixels"),
        ("labelled_frames", "labelled_pixels"),
    )
    keys = anomaly if section == "scores" else labelled
    return [f"{key} ({a.get(key)} and {b.get(key)})" for key in keys if a.get(key) != b.get(key)]


def _smallest_object(result: EvaluationResult) -> int | None:
    """Return the pixels of the smallest labelled object of a result, of earlier versions 0; None
    where it holds no anomaly label."""
    if not result.content["counts"].get("anomaly_frames"):
        return None
    return int(result.content.get("run", {}).get("smallest_object", 0))


def data_warnings(results: Sequence[EvaluationResult]) -> list[str]:
    """Return one line for each result that is of other data than the first."""
    warnings = []
    for other in results[1:]:
        first = results[0]
        if different := [
            s for key in ("scores", "segmentation") for s in _differing_counts(first, other, key)
        ]:
            warnings.append(
                f"not comparable: {first.name} and {other.name} differ in {', '.join(different)}"
            )
        sizes = [_smallest_object(result) for result in (first, other)]
        if None not in sizes and sizes[0] != sizes[1]:
            warnings.append(
                f"numbers of objects are not comparable: {first.name} and {other.name} count "
                f"labelled regions from {sizes[0]} and {sizes[1]} pixels on"
            )
    return warnings


def compare(
    results: Sequence[EvaluationResult],
    *,
    scores: Sequence[str] | None = None,
    keys: Sequence[str] | None = None,
    baseline: str | None = None,
) -> Comparison:
    """Put results, or ``scores`` of one or several results (``RESULT:SCORE``), side by side. A
    column is marked best in a row only where the paired interval of its difference to every other
    column excludes zero. ``keys`` are patterns (as of a shell) of the rows to show, None for all
    but HIDDEN; ``baseline`` is the column that differences refer to, by its heading or its file,
    None for the first.
    """
    columns = _columns(results, scores)
    base = 0 if baseline is None else _baseline(columns, baseline)
    rows = tuple(_row(label, columns, base) for label in _labels(columns, keys))
    return Comparison(
        tuple(column.name for column in columns), base, rows, tuple(data_warnings(results))
    )


def _columns(results: Sequence[EvaluationResult], scores: Sequence[str] | None) -> list[_Column]:
    if scores is None:
        return [_Column(r.name, r, {".".join(path): path for path in r.numbers}) for r in results]
    columns = []
    for score in dict.fromkeys(scores):
        headings = {
            result.name: score if len(results) == 1 else f"{result.name}:{score}"
            for result in results
        }
        of_score = [
            _Column(headings[result.name], result, _paths_of(result, score)) for result in results
        ]
        if not any(column.paths for column in of_score):
            known = dict.fromkeys(name for result in results for name in result.content["scores"])
            raise InputError(
                f"no result has a score '{score}'", hint=f"known are {', '.join(known) or 'none'}"
            )
        columns += [column for column in of_score if column.paths]
    return columns


def _paths_of(result: EvaluationResult, score: str) -> dict[str, NumberPath]:
    """Return the path of each number of a score by the label of its row, which says its section but
    for ``scores``.
    """
    paths = (path for path in result.numbers if path[0] in BY_SCORE and path[1:2] == (score,))
    return {
        ".".join(path[2:] if path[0] == "scores" else (path[0], *path[2:])): path for path in paths
    }


def _baseline(columns: Sequence[_Column], name: str) -> int:
    file = Path(name).resolve()
    matches = [
        i
        for i, column in enumerate(columns)
        if name == column.name or file == column.result.path.resolve()
    ]
    if len(matches) != 1:
        fault = f"is the file of {len(matches)} columns" if matches else "is no column"
        raise InputError(
            f"the baseline {name} {fault}", hint=f"give one of {', '.join(c.name for c in columns)}"
        )
    return matches[0]


def _labels(columns: Sequence[_Column], keys: Sequence[str] | None) -> list[str]:
    labels = {label: path for column in columns for label, path in column.paths.items()}
    if keys is None:
        return [label for label, path in labels.items() if not set(HIDDEN).intersection(path)]
    for key in keys:
        if not any(fnmatchcase(label, key) for label in labels):
            examples = ", ".join(list(labels)[:3])
            raise InputError(
                f"no number matches the key '{key}'; there are {examples}, ...",
                hint="--keys '*.auroc'",
            )
    return [label for label in labels if any(fnmatchcase(label, key) for key in keys)]


def _row(label: str, columns: Sequence[_Column], base: int) -> Row:
    upwards = higher_is_better(
        next(column.paths[label] for column in columns if label in column.paths)
    )
    differences = (
        None if c is columns[base] else _difference(label, columns[base], c) for c in columns
    )
    cells = tuple(column.cell(label) for column in columns)
    return Row(label, upwards, cells, _best(label, columns, upwards), tuple(differences))


def _difference(label: str, base: _Column, other: _Column) -> Difference | None:
    reference, number = base.cell(label).value, other.cell(label).value
    if reference is None or number is None:
        return None
    value = number - reference
    if _differing_counts(base.result, other.result, base.paths[label][0]):
        return Difference(value, reason="other data")
    first, second = base.result.replicates, other.result.replicates
    if first is None or second is None:
        return Difference(
            value,
            reason=f"{(base if first is None else other).result.name} has no replicates beside it",
        )
    test = paired_difference(first, second, base.paths[label], other.paths[label])
    return Difference(value, reason=test) if isinstance(test, str) else Difference(value, test)


def _best(label: str, columns: Sequence[_Column], upwards: bool | None) -> int | None:
    values = {
        i: value
        for i, column in enumerate(columns)
        if (value := column.cell(label).value) is not None
    }
    if upwards is None or len(values) < 2:
        return None
    best = max(values, key=lambda i: values[i] if upwards else -values[i])
    tests = [_difference(label, columns[other], columns[best]) for other in values.keys() - {best}]
    return (
        best
        if all(d is not None and d.test is not None and d.test.excludes_zero for d in tests)
        else None
    )


def format_number(value: float, *, like: float | None = None, sign: bool = False) -> str:
    """Write a number as statistics does: three decimals, no zero before the point, up to six
    decimals near zero; as many decimals as the number ``like`` has, and with ``sign`` a plus, too.
    """
    reference = abs(value if like is None else like)
    decimals = (
        3
        if reference == 0 or reference >= 0.01
        else min(2 - math.floor(math.log10(reference)), _MAX_DECIMALS)
    )
    text = f"{abs(value):.{decimals}f}"
    if not text.strip("0."):
        return ".000"
    return (_MINUS if value < 0 else "+" if sign else "") + text.removeprefix("0")


def format_cell(cell: Cell) -> str:
    """Write ``.312 [.290, .335]``, without the interval where there is none; a dash for null."""
    if cell.value is None:
        return NULL
    text = format_number(cell.value)
    if cell.interval is None:
        return text
    low, high = (
        format_number(bound, like=cell.value or cell.interval[1]) for bound in cell.interval
    )
    return f"{text} [{low}, {high}]"


def markdown_table(rows: Sequence[Sequence[str]]) -> str:
    """Write rows with a header as a Markdown table that is aligned in a terminal, too."""
    escaped = [[visible(cell).replace("|", "\\|") for cell in row] for row in rows]
    widths = [max(3, *(len(row[i]) for row in escaped)) for i in range(len(escaped[0]))]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    aligned = [[row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])] for row in escaped]
    return "\n".join(f"| {' | '.join(row)} |" for row in (aligned[0], rule, *aligned[1:]))


def format_comparison(comparison: Comparison) -> str:
    """Write the table, the differences to the baseline, and the notes on both."""
    rows = [["number", *comparison.columns]]
    for row in comparison.rows:
        texts = [format_cell(cell) for cell in row.cells]
        if row.best is not None:
            texts[row.best] = f"**{texts[row.best]}**"
        rows.append([row.label + ARROWS[row.higher_is_better], *texts])
    parts = [markdown_table(rows)]
    if len(comparison.columns) > 1:
        others = [i for i in range(len(comparison.columns)) if i != comparison.baseline]
        rows = [
            [
                f"less {comparison.columns[comparison.baseline]}",
                *(comparison.columns[i] for i in others),
            ]
        ]
        rows += [
            [row.label, *(format_difference(row.differences[i]) for i in others)]
            for row in comparison.rows
        ]
        parts.append(markdown_table(rows))
    parts.append("\n".join(_notes(comparison)))
    return "\n\n".join(part for part in parts if part)


def format_difference(difference: Difference | None) -> str:
    """Write ``−.008 [−.014, +.001], p .120``, without interval and p where there is no test; a dash
    for none.
    """
    if difference is None:
        return NULL
    test = difference.test
    if test is None:
        return format_number(difference.value, sign=True)
    numbers = (difference.value, test.low, test.high)
    value, low, high = (
        format_number(number, like=max(numbers, key=abs), sign=True) for number in numbers
    )
    return f"{value} [{low}, {high}], p {format_p(test.p_value)}"


def format_p(p_value: float) -> str:
    return "< .001" if p_value < 0.001 else format_number(p_value, like=1)


def _notes(comparison: Comparison) -> Iterator[str]:
    yield from (f"Warning: {warning}." for warning in comparison.warnings)
    if any(cell.interval for row in comparison.rows for cell in row.cells):
        yield "Brackets hold 95 % intervals."
    if len(comparison.columns) > 1:
        yield (
            "Bold is better than every other column by more than chance: the paired 95 % interval of the difference excludes 0. "
            "There is no correction for the number of rows."
        )
    reasons: dict[str, list[str]] = {}
    for row in comparison.rows:
        for name, cell, difference in zip(
            comparison.columns, row.cells, row.differences, strict=True
        ):
            if cell.reason:
                kind = NULL if cell.value is None else "no interval:"
                reasons.setdefault(f"{kind} {cell.reason}", []).append(f"{row.label} of {name}")
            elif difference and difference.reason:
                reasons.setdefault(f"not paired: {difference.reason}", []).append(
                    f"{row.label} of {name}"
                )
    yield from (f"{reason}: {first_of(numbers)}." for reason, numbers in reasons.items())


def first_of(names: Sequence[str]) -> str:
    """Return the first three names, and how many more there are."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
