"""Results of evaluations from disk, side by side: their numbers, their differences, and what chance leaves of them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from segunc.core.errors import InputError
from segunc.core.files import csv_text, read_json
from segunc.core.registry import Registry
from segunc.core.terminal import visible
from segunc.evaluation.breakdown import ByObject
from segunc.evaluation.parts import PARTS, PROTOCOLS, Components, Metric
from segunc.evaluation.resampling import (
    Chance,
    NumberPath,
    Replicates,
    load_replicates,
    paired_difference,
    sidecar_path,
)

ABOUT = (
    *("intervals", "reasons", "counts", "left_out", "forms", "run", "bootstrap", "unfinished"),
    *("component_mode", "flagged_regions_from"),
)
"""What a result says of its numbers; every other key is a section that holds numbers."""
_ASKED_FOR: Registry[Sequence[Metric]] = Registry(
    "section",
    "segunc.sections",
    {"flagged": "segunc.evaluation.flagged:METRICS", "verdicts": "segunc.evaluation.judged:METRICS"},
)
"""By section, the numbers of parts that only some evaluations have; those of the others are asked of :data:`PARTS`."""
_EVALUATED = {
    "scores": ("anomaly_frames", "anomaly_pixels", "normal_pixels"),
    "segmentation": ("labelled_frames", "labelled_pixels"),
}
"""Section -> counts that must agree for its numbers to be of the same data; the others are as segmentation."""
BY_SCORE = ("scores", "selective", "flagged")  # sections of a result that hold a part for each score
HIDDEN = (
    "threshold",
    "thresholds",
    "per_class",
    "by_class",
    "f1",
    "size",
    "distance",
    "groups",
)  # parts of a path that are shown only when they are asked for
NULL = "—"
_MINUS = "−"
_MOST_DECIMALS = 6  # what is smaller is rounding: confidences are counted in float32
ARROWS = {True: " ↑", False: " ↓", None: ""}  # behind a number's name: whether higher or lower is better
_CSV_COLUMNS = (
    *("number", "result", "value", "low", "high", "better", "best"),
    *("baseline", "difference", "difference_low", "difference_high", "p_value", "reason"),
)


@dataclass(frozen=True)
class Cell:
    """A number, its 95 % interval where there is one, and why it is None where it is, or has no interval where one was asked for."""

    value: float | None
    interval: tuple[float, float] | None = None
    reason: str | None = None


@dataclass(frozen=True)
class EvaluationResult:
    """One ``metrics.json``, under its name in a table: all of it, every number in it (None where it is null), and the
    replicates of its sidecar, None where there is none."""

    name: str
    path: Path
    content: Mapping[str, Any]
    numbers: Mapping[NumberPath, float | None]
    replicates: Replicates | None

    def cell(self, path: NumberPath) -> Cell:
        """A number with its interval, or why it is null."""
        value, dotted = self.numbers.get(path), ".".join(path)
        if value is None:
            return Cell(None, reason=str(self.content.get("reasons", {}).get(dotted, "no reason is given")))
        bounds = self.content.get("intervals", {}).get(dotted)
        without = self.content.get("bootstrap", {}).get("no_interval", {}).get(dotted)
        return Cell(value, (float(bounds[0]), float(bounds[1])) if bounds and None not in bounds else None, without)


def load_results(paths: Sequence[Path], names: Sequence[str] | None = None) -> list[EvaluationResult]:
    """Read results of ``segunc evaluate`` with their sidecars; names are the files' stems, with their folder where two share one.
    InputError: a file cannot be read or is no result, or names lack or repeat."""
    stems = Counter(path.stem for path in paths)
    found = names or [f"{p.resolve().parent.name}/{p.stem}" if stems[p.stem] > 1 else p.stem for p in paths]
    if len(found) != len(paths):
        raise InputError(f"{len(found)} names for {len(paths)} results", "one name for each", "--names a,b")
    repeated = [name for name, number in Counter(found).items() if number > 1]
    if repeated:
        raise InputError(f"two results are named '{repeated[0]}'", "each name once", "give --names")
    return [_load(path, name) for path, name in zip(paths, found, strict=True)]


def higher_is_better(path: NumberPath) -> bool | None:
    """Return the direction of a number as its part defines it, or else one of its name in any section; None where it has none."""
    parts = (part for build in PARTS.values() for part in build(("score",), ("class",), PROTOCOLS))
    sections = [("scores", (*Components.metrics, *ByObject.metrics)), *_ASKED_FOR.items()]
    sections += [(part.section[0], part.metrics) for part in parts]
    own_last = sorted(sections, key=lambda section: section[0] == path[0])
    known = {metric.key: metric for _, metrics in own_last for metric in metrics}
    # An IoU of a class and an F1 at a threshold are named by the class and the threshold.
    metric = known.get(".".join((*path[-2:-1], "*"))) or known.get(path[-1])
    return metric.higher_is_better if metric else None


def differing_counts(first: EvaluationResult, second: EvaluationResult, section: str) -> list[str]:
    """The counts that tell that a section's numbers of two results are of different data, as ``name (n and m)``."""
    a, b = first.content["counts"], second.content["counts"]
    keys = _EVALUATED.get(section, _EVALUATED["segmentation"])
    return [f"{key} ({a.get(key)} and {b.get(key)})" for key in keys if a.get(key) != b.get(key)]


def data_warnings(results: Sequence[EvaluationResult]) -> list[str]:
    """One line for each result that is of other data than the first."""
    warnings = []
    for other in results[1:]:
        first = results[0]
        different = [text for section in _EVALUATED for text in differing_counts(first, other, section)]
        for key in ("dataset", "split"):
            a, b = (result.content.get("run", {}).get(key) for result in (first, other))
            if None not in (a, b) and a != b:
                different.append(f"{key} ({a} and {b})")
        lost, lost_other = ({e.get("frame") for e in r.content.get("left_out", [])} for r in (first, other))
        if lost != lost_other:
            different.append(f"left_out ({len(lost)} and {len(lost_other)} frames)")
        if different:
            warnings.append(f"not comparable: {first.name} and {other.name} differ in {', '.join(different)}")
    return warnings


def _load(path: Path, name: str) -> EvaluationResult:
    content = read_json(path, "a result of segunc evaluate")
    if not all(isinstance(content.get(key), dict) for key in ("scores", "counts")):
        raise InputError(f"{path} holds no scores and counts", "a result of segunc evaluate", "give another file")
    if damaged := _damaged(content):
        raise InputError(f"{path}: {damaged} is damaged", "a result of segunc evaluate", "evaluate again")
    sidecar = sidecar_path(path)
    replicates = load_replicates(sidecar) if sidecar.is_file() else None
    sections = [section for section in content if section not in ABOUT]
    numbers = {where: value for section in sections for where, value in _numbers(content[section], (section,))}
    return EvaluationResult(name, path, content, numbers, replicates)


def _damaged(content: Mapping[str, Any]) -> str:
    """Which part of what a result says of its numbers is not of its form, or an empty string; every other one is looked at as numbers."""

    def is_interval(value: Any) -> bool:
        kinds = int | float | None
        return value is None or (
            isinstance(value, list) and len(value) == 2 and all(isinstance(v, kinds) for v in value)
        )

    objects = ("intervals", "reasons", "counts", "forms", "run", "bootstrap")
    found = {key: isinstance(content.get(key, {}), dict) for key in objects}
    left_out = content.get("left_out", [])
    found["left_out"] = isinstance(left_out, list) and all(isinstance(one, dict) for one in left_out)
    found["intervals"] = found["intervals"] and all(map(is_interval, content.get("intervals", {}).values()))
    found["bootstrap"] = found["bootstrap"] and isinstance(content.get("bootstrap", {}).get("no_interval", {}), dict)
    return next((key for key, right in found.items() if not right), "")


def _numbers(content: Any, prefix: NumberPath) -> Iterator[tuple[NumberPath, float | None]]:
    """The numbers and nulls of nested objects; lists (points of curves) are no numbers of a table."""
    if isinstance(content, Mapping):
        for key, value in content.items():
            yield from _numbers(value, (*prefix, str(key)))
    elif len(prefix) > 1 and (content is None or (isinstance(content, int | float) and not isinstance(content, bool))):
        yield prefix, None if content is None else float(content)


@dataclass(frozen=True)
class Column:
    """A result, or one score of it, under its heading; ``paths`` leads from the label of a row to the number."""

    name: str
    result: EvaluationResult
    paths: Mapping[str, NumberPath]

    def cell(self, label: str) -> Cell:
        path = self.paths.get(label)
        return Cell(None, reason="the file does not hold it") if path is None else self.result.cell(path)


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
    best: int | None  # the column that is better than every other one by more than chance, None where none is
    differences: tuple[Difference | None, ...]  # to the baseline; None for itself and where a number lacks


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
        scores: make a column of each of these scores of each result, ``RESULT:SCORE`` of that result alone; None makes one of each
            result.
        keys: patterns (as of a shell) of the rows to show; None shows all but HIDDEN.
        baseline: the column that differences refer to, by its heading or its file; None is the first.

    InputError for an unknown score, baseline or key.
    """
    columns = _columns(results, scores)
    base = _baseline(columns, baseline)
    rows = tuple(_row(label, columns, base) for label in _labels(columns, keys))
    return Comparison(tuple(column.name for column in columns), base, rows, tuple(data_warnings(results)))


def _columns(results: Sequence[EvaluationResult], scores: Sequence[str] | None) -> list[Column]:
    if scores is None:
        return [Column(r.name, r, {".".join(path): path for path in r.numbers}) for r in results]
    columns = list[Column]()
    for given in dict.fromkeys(scores):
        of = [result for result in results if given.startswith(f"{result.name}:")] if len(results) > 1 else []
        score = given.removeprefix(f"{of[0].name}:") if of else given
        found = [(result, _paths_of(result, score)) for result in of or results]
        if not any(paths for _, paths in found):
            known = ", ".join(dict.fromkeys(name for result in results for name in result.content["scores"]))
            known = f"one of {known or '(there is none)'}"
            raise InputError(f"score '{score}' is in no result", known, "check the name")
        for result, paths in found:
            heading = score if len(results) == 1 else f"{result.name}:{score}"
            if paths and heading not in [column.name for column in columns]:
                columns.append(Column(heading, result, paths))
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
    upwards = higher_is_better(next(column.paths[label] for column in columns if label in column.paths))
    differences = (None if c is columns[base] else _difference(label, columns[base], c) for c in columns)
    cells = tuple(column.cell(label) for column in columns)
    return Row(label, upwards, cells, _best(label, columns, upwards), tuple(differences))


def _difference(label: str, base: Column, other: Column) -> Difference | None:
    reference, number = base.cell(label).value, other.cell(label).value
    if reference is None or number is None:
        return None
    value = number - reference
    different = differing_counts(base.result, other.result, base.paths[label][0])
    if different:
        return Difference(value, reason=f"other data: {', '.join(different)}")
    first, second = base.result.replicates, other.result.replicates
    if first is None or second is None:
        return Difference(value, reason=f"{(base if first is None else other).result.name} has no replicates beside it")
    test = paired_difference(first, second, base.paths[label], other.paths[label])
    return Difference(value, reason=test) if isinstance(test, str) else Difference(value, test)


def _best(label: str, columns: Sequence[Column], upwards: bool | None) -> int | None:
    cells = [column.cell(label) for column in columns]
    known = {i: cell.value for i, cell in enumerate(cells) if cell.value is not None}
    if upwards is None or len(known) < 2:
        return None
    best = max(known, key=lambda i: known[i] if upwards else -known[i])
    section = columns[best].paths[label][0]
    for other in known.keys() - {best}:
        if differing_counts(columns[best].result, columns[other].result, section):
            return None
        difference = _difference(label, columns[other], columns[best])
        if difference is not None and difference.test is not None:
            beyond_chance = difference.test.excludes_zero
        else:
            a, b = cells[other].interval, cells[best].interval
            beyond_chance = a is not None and b is not None and (a[1] < b[0] or b[1] < a[0])
        if not beyond_chance:
            return None
    return best


def format_number(value: float, *, like: float | None = None, sign: bool = False) -> str:
    """A number in the manner of statistics: three decimals, no zero before the point, up to six decimals near zero; as many
    as the number ``like`` takes, and with ``sign`` a plus, too."""
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
    escaped = [[visible(cell).replace("|", "\\|") for cell in row] for row in rows]
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
    return f"{value} [{low}, {high}], p {format_p(test.p_value)}"


def format_p(p_value: float) -> str:
    """Three decimals, ``< .001`` below."""
    return "< .001" if p_value < 0.001 else format_number(p_value, like=1)


def _below(comparison: Comparison) -> Iterable[str]:
    yield from (f"Warning: {warning}." for warning in comparison.warnings)
    if any(cell.interval for row in comparison.rows for cell in row.cells):
        yield "Brackets hold 95 % intervals."
    tests = [found.test for row in comparison.rows for found in row.differences if found and found.test]
    if tests:
        effective = [test.effective for test in tests]
        yield f"Differences rest on {min(effective):.0f} to {max(effective):.0f} effective units."
    if len(comparison.columns) > 1:
        yield (
            "Bold is better than every other column by more than chance: the paired interval excludes 0, or, unpaired, "
            "the intervals do not overlap; not corrected for the number of rows."
        )
    reasons: dict[str, list[str]] = {}
    for row in comparison.rows:
        for name, cell, difference in zip(comparison.columns, row.cells, row.differences, strict=True):
            if cell.reason:
                what = NULL if cell.value is None else "no interval:"
                reasons.setdefault(f"{what} {cell.reason}", []).append(f"{row.label} of {name}")
            elif difference and difference.reason:
                reasons.setdefault(f"not paired: {difference.reason}", []).append(f"{row.label} of {name}")
    yield from (f"{reason}: {first_of(places)}." for reason, places in reasons.items())


def first_of(names: Sequence[str]) -> str:
    """The first three, and how many more there are."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def csv_table(comparison: Comparison) -> str:
    """One line for each number and column, in full precision; empty where there is nothing."""
    lines: list[tuple[object, ...]] = [_CSV_COLUMNS]
    better = {True: "higher", False: "lower", None: ""}
    base = comparison.columns[comparison.baseline]
    for row in comparison.rows:
        for i, (name, cell, difference) in enumerate(zip(comparison.columns, row.cells, row.differences, strict=True)):
            number = row.label, name, cell.value, *(cell.interval or (None, None))
            judged = better[row.higher_is_better], int(row.best == i)
            test = difference.test if difference else None
            shown = (test.low, test.high, test.p_value) if test else (None, None, None)
            compared = (base, difference.value, *shown) if difference else (None,) * 5
            lines.append((*number, *judged, *compared, cell.reason or (difference and difference.reason)))
    return csv_text(lines)
