"""The tables of a study as Markdown: numbers with intervals, differences to the baseline, and what
everything cost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from segunc.core.errors import InputError
from segunc.evaluation.comparison import (
    ARROWS,
    BY_SCORE,
    NULL,
    Comparison,
    Difference,
    compare,
    format_cell,
    format_difference,
    format_number,
    markdown_table,
)
from segunc.evaluation.resampling import Cell, EvaluationResult, NumberPath
from tools.study.means import mean_over_seeds, spread_over_seeds

DRAWN = {"deterministic-msp": "msp", "deterministic-entropy": "entropy"}
"""A score of one pass -> what it is called where there are draws, for numbers that compare the two.
"""


@dataclass(frozen=True)
class Entry:
    """The finished results of a row in one evaluation.

    Attributes:
        label: of the row.
        results: seed -> its result; at least one.
        partners: seeds of the baseline that each seed is compared with; itself, or the members of
            an ensemble.
    """

    label: str
    results: Mapping[int, EvaluationResult]
    partners: Mapping[int, Sequence[int]]

    @cached_property
    def mean(self) -> EvaluationResult:
        """The mean over its seeds, which are resampled too where they are several."""
        return mean_over_seeds(list(self.results.values()), self.label, list(self.results))


def mean_entry(label: str, parts: Sequence[Entry]) -> Entry | None:
    """The mean of some rows for each seed that all of them have; None where there is no such
    seed.
    """
    results = {}
    for seed in parts[0].results:
        if all(seed in part.results for part in parts):
            results[seed] = mean_over_seeds([part.results[seed] for part in parts], str(seed))
    if not results:
        return None
    partners = {seed: parts[0].partners[seed] for seed in results}
    return Entry(label, results, partners)


@dataclass(frozen=True)
class Chosen:
    """Which numbers a table shows.

    Attributes:
        numbers: dotted paths; with a score, below that score.
        score: whose numbers they are, None for numbers of the whole result.
        baseline_score: the baseline's score; None is the same one.
    """

    numbers: Sequence[str]
    score: str | None = None
    baseline_score: str | None = None

    def path(self, number: str) -> NumberPath:
        """Where a number stands in a result; the name of an F1's threshold holds a dot. Of a score,
        a number whose first word is another section of numbers by score (``flagged.share``) stands
        there.
        """
        head, dot, threshold = number.partition(".f1.")
        words = [*head.split("."), *(("f1", threshold) if dot else ())]
        if self.score:
            section = words.pop(0) if words[0] in BY_SCORE else "scores"
            words = [section, self.score, *words]
        return tuple(words)


def number_table(entries: Sequence[Entry], chosen: Chosen) -> str:
    """A line for each row: the mean over its seeds, their standard deviation, and the 95 % interval
    over frames.

    The best number is bold where all rows are of the same seeds; else it might be the seeds that
    are better.

    Raises:
        InputError: a number that no result has.
    """
    arrows, cells = _number_cells(entries, chosen)
    head = ["", *(number + arrow for number, arrow in zip(chosen.numbers, arrows, strict=True))]
    return markdown_table(
        [head, *([_named(entry), *texts] for entry, texts in zip(entries, cells, strict=True))]
    )


def score_table(entries: Sequence[Entry], number: str, scores: Sequence[str]) -> str:
    """One number of several scores, a line for each row and a column for each score; otherwise as
    :func:`number_table`.
    """
    head, lines = [""], [[_named(entry)] for entry in entries]
    for score in scores:
        (arrow,), cells = _number_cells(entries, Chosen([number], score))
        head.append(score + arrow)
        for line, texts in zip(lines, cells, strict=True):
            line += texts
    return markdown_table([head, *lines])


def line_table(
    lines: Sequence[tuple[Entry, str]], baseline: Entry | None, numbers: Sequence[str], score: str
) -> str:
    """A line for each row and score of it: as :func:`number_table`, and the differences to
    ``score`` of the baseline as :func:`difference_table` has them.
    """
    rows, arrows = list[list[str]](), [""] * len(numbers)
    for entry, of in lines:
        chosen = Chosen(numbers, of, score)
        if not _has_score(entry.mean, of):
            continue
        arrows, (texts,) = _number_cells([entry], chosen)
        found = differences(entry, baseline, chosen) if baseline else dict.fromkeys(numbers)
        rows.append(
            [
                f"{_named(entry)}: {of}",
                *texts,
                *(format_difference(found[number]) for number in numbers),
            ]
        )
    head = [
        "",
        *(number + arrow for number, arrow in zip(numbers, arrows, strict=True)),
        *(f"{n}, less" for n in numbers),
    ]
    return markdown_table([head, *rows])


def difference_table(entries: Sequence[Entry], baseline: Entry, chosen: Chosen) -> str:
    """A line for each other row: its mean less the baseline's of the same seeds, with the paired
    interval and p.

    Below the table stands why a difference has no interval. Empty where there is no other row.
    """
    unpaired: dict[str, dict[str, None]] = {}
    lines = [[f"less {baseline.label}", *chosen.numbers]]
    for entry in entries:
        if entry.label == baseline.label:
            continue
        pairs = _pairs(entry, baseline)
        found = differences(entry, baseline, chosen)
        if not pairs:
            lines.append([entry.label, *(NULL for _ in chosen.numbers)])
            continue
        cells = []
        for number in chosen.numbers:
            difference = found[number]
            text = format_difference(difference)
            if difference is not None and difference.reason:
                unpaired.setdefault(difference.reason, {})[entry.label] = None
            agreeing = _agreeing(pairs, chosen, number, difference)
            cells.append(text if agreeing is None else f"{text}; {agreeing}")
        lines.append([_counted(entry.label, len(pairs)), *cells])
    reasons = [
        f"Not paired ({'; '.join(labels)}): {reason}." for reason, labels in unpaired.items()
    ]
    return "\n\n".join([markdown_table(lines), *reasons]) if len(lines) > 1 else ""


def differences(entry: Entry, baseline: Entry, chosen: Chosen) -> dict[str, Difference | None]:
    """Number -> a row's mean less the baseline's of the same seeds; None without a common seed or
    without the number.
    """
    means = paired_means(entry, baseline)
    if means is None:
        return dict.fromkeys(chosen.numbers)
    ours, theirs = means
    against = chosen.baseline_score or chosen.score
    if chosen.score is not None and not (
        _has_score(ours, chosen.score) and _has_score(theirs, str(against))
    ):
        return dict.fromkeys(chosen.numbers)
    scores = None if chosen.score is None else [str(against), chosen.score]
    first, second = _heading(theirs, against, 2), _heading(ours, chosen.score, 2)
    comparison = compare([theirs, ours], scores=scores, keys=chosen.numbers, baseline=first)
    column = comparison.columns.index(second)
    return {row.label: row.differences[column] for row in comparison.rows}


def paired_means(entry: Entry, baseline: Entry) -> tuple[EvaluationResult, EvaluationResult] | None:
    """The mean of a row and that of its partners in the baseline, over the seeds that have some;
    None where none has.
    """
    pairs = _pairs(entry, baseline)
    seeds = [
        seed for seed, of in entry.partners.items() if any(one in baseline.results for one in of)
    ]
    if not pairs:
        return None
    ours = mean_over_seeds([result for result, _ in pairs], entry.label, seeds)
    theirs = [mean_over_seeds(partners, "") for _, partners in pairs]
    return ours, mean_over_seeds(theirs, "the baseline", seeds)


def cost_table(records: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """A line for each row: seconds of its method, with the trainings of its networks, seconds a
    frame, sizes on disk.

    Args:
        records: label -> the records of its cells.
    """
    evaluations = list(
        dict.fromkeys(
            name for held in records.values() for one in held for name in one["evaluations"]
        )
    )
    head = [
        "",
        "method, s",
        "with its networks, s",
        *(f"{name}, s a frame" for name in evaluations),
    ]
    lines = [[*head, "posterior, kB", "all, MB"]]
    for label, held in records.items():
        seconds = [training_seconds(record) for record in held]
        lines.append(
            [
                f"{label} ({len(held)})"
                + (" †" if any(record["continued"] for record in held) else ""),
                _mean([record["method_seconds"] for record in held], 0),
                _mean(seconds, 0),
                *(
                    _mean([_frame_seconds(record, name) for record in held], 2)
                    for name in evaluations
                ),
                _mean([record["posterior_bytes"] / 1e3 for record in held], 0),
                _mean([record["bytes"] / 1e6 for record in held], 1),
            ]
        )
    return markdown_table(lines)


def training_seconds(record: Mapping[str, Any]) -> float | None:
    """Seconds of a cell's method and of the trainings of its base networks; None where one of these
    is not known.
    """
    networks = list(record["networks"].values())
    return None if None in networks else float(sum(networks) + record["method_seconds"])


def _number_cells(entries: Sequence[Entry], chosen: Chosen) -> tuple[list[str], list[list[str]]]:
    """An arrow for each number, and for each row the texts of its numbers."""
    means = [entry.mean for entry in entries]
    comparison = _compare(means, chosen, [chosen.score] if chosen.score else None)
    headings = [_heading(mean, chosen.score, len(means)) for mean in means]
    rows = {row.label: row for row in comparison.rows}
    same_seeds = (
        len({frozenset(seed for of in entry.partners.values() for seed in of) for entry in entries})
        == 1
    )
    lines = []
    for entry, heading in zip(entries, headings, strict=True):
        if heading not in comparison.columns:  # it has no such score
            lines.append([NULL] * len(chosen.numbers))
            continue
        column, texts = comparison.columns.index(heading), []
        for number in chosen.numbers:
            spread = spread_over_seeds(list(entry.results.values()), chosen.path(number))
            text = _with_spread(rows[number].cells[column], spread)
            texts.append(f"**{text}**" if same_seeds and rows[number].best == column else text)
        lines.append(texts)
    return [ARROWS[rows[number].higher_is_better] for number in chosen.numbers], lines


def _compare(
    results: Sequence[EvaluationResult], chosen: Chosen, scores: Sequence[str] | None
) -> Comparison:
    try:
        return compare(results, scores=scores, keys=chosen.numbers)
    except InputError as error:
        raise error.within(f"table of {', '.join(chosen.numbers)}") from error


def _heading(result: EvaluationResult, score: str | None, results: int) -> str:
    """What :func:`compare` calls a result, or a score of it."""
    if score is None:
        return result.name
    return score if results == 1 else f"{result.name}:{score}"


def _pairs(entry: Entry, baseline: Entry) -> list[tuple[EvaluationResult, list[EvaluationResult]]]:
    """The result of each seed with those of the baseline that it is compared with, where there are
    any.
    """
    pairs = [
        (result, [baseline.results[one] for one in entry.partners[seed] if one in baseline.results])
        for seed, result in entry.results.items()
    ]
    return [(result, partners) for result, partners in pairs if partners]


def _has_score(result: EvaluationResult, score: str) -> bool:
    return any(path[0] in BY_SCORE and path[1:2] == (score,) for path in result.numbers)


def _agreeing(
    pairs: Sequence[tuple[EvaluationResult, Sequence[EvaluationResult]]],
    chosen: Chosen,
    number: str,
    difference: Difference | None,
) -> str | None:
    """How many of several seeds differ in the direction of their mean, None with one seed."""
    if len(pairs) < 2 or difference is None:
        return None
    against = Chosen(chosen.numbers, chosen.baseline_score or chosen.score)
    agreeing = 0
    for result, partners in pairs:
        ours = result.numbers[chosen.path(number)]
        theirs = mean_over_seeds(partners, "").numbers[against.path(number)]
        assert ours is not None
        assert theirs is not None
        agreeing += (ours - theirs) * difference.value > 0
    return f"{agreeing}/{len(pairs)}"


def _with_spread(cell: Cell, spread: float | None) -> str:
    value, bracket, interval = format_cell(cell).partition(" [")
    if spread is not None and cell.value is not None:
        value += f" ± {format_number(spread, like=cell.value)}"
    return value + bracket + interval


def _named(entry: Entry) -> str:
    return _counted(entry.label, len(entry.results))


def _counted(label: str, seeds: int) -> str:
    return f"{label} ({seeds}{', units alone' if seeds == 1 else ''})"


def _mean(values: Sequence[float | None], decimals: int) -> str:
    known = [value for value in values if value is not None]
    return (
        f"{sum(known) / len(known):.{decimals}f}" if known and len(known) == len(values) else NULL
    )


def _frame_seconds(record: Mapping[str, Any], evaluation: str) -> float | None:
    held = record["evaluations"].get(evaluation)
    return held["seconds"] / held["frames"] if held and held["frames"] else None
