"""A comparison as Markdown for people and as CSV for programs."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence

from segunc.metrics.compare import Cell, Comparison, Difference

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
    lines = [
        "| "
        + " | ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True)))
        + " |"
        for row in escaped
    ]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    lines.insert(1, "| " + " | ".join(rule) + " |")
    return "\n".join(lines)


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
        parts.append(_differences(comparison))
    parts.append("\n".join(_below(comparison)))
    return "\n\n".join(part for part in parts if part)


def _differences(comparison: Comparison) -> str:
    others = [i for i in range(len(comparison.columns)) if i != comparison.baseline]
    rows = [[f"less {comparison.columns[comparison.baseline]}", *(comparison.columns[i] for i in others)]]
    rows += [[row.label, *(format_difference(row.differences[i]) for i in others)] for row in comparison.rows]
    return markdown_table(rows)


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
