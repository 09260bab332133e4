"""What a study says: its tables and figures, of the cells that are finished."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from segunc.core.errors import InputError
from segunc.core.files import read_json, write_atomically, write_json
from segunc.evaluation import parts as kinds
from segunc.evaluation.comparison import ARROWS, data_warnings, first_of, higher_is_better
from segunc.evaluation.resampling import EvaluationResult, NumberPath, load_results
from segunc.plots import save_figure
from tools.measuring import provenance
from tools.study.cells import Cell, Study
from tools.study.endpoints import endpoint_table
from tools.study.plan import PRICE, SCORE, SELECTION, TRAINING_SECONDS, Scatter, Table
from tools.study.scatter import Panel, Point, scatter_figure
from tools.study.tables import (
    DRAWN,
    Chosen,
    Entry,
    cost_table,
    difference_table,
    differences,
    line_table,
    mean_entry,
    number_table,
    score_table,
    training_seconds,
)

READING = (
    "In brackets behind a label: the number of seeds. A number is the mean over them, ± their"
    " standard deviation; brackets hold its 95 % bootstrap interval over other units (frames, or"
    " blocks of them) and, where there are several, other seeds; with one seed over units alone."
    " Effective units: as many of normal influence would leave the interval as uncertain. Bold is"
    " better than every other row by more than chance; nothing is bold where rows are of different"
    " seeds. A difference is to the baseline of the same seed (of an ensemble: of its members),"
    " paired over units and seeds; k/n: so many seeds differ in that direction. No correction is"
    " made for the number of comparisons, but among the endpoints, which the plan names beforehand."
)
ENDPOINTS = (
    "A difference is decided where its p, adjusted for all endpoints of the plan (Holm 1979), is"
    " below .05 and its sign is the claim's. Of a margin, p is that of the difference with the"
    " margin added in the claim's favour: alone, it is below .05 exactly where the interval lies"
    " beyond the margin. An endpoint without a test counts as one with p = 1."
)
COSTS = (
    "Seconds of the method alone, and with the trainings of all networks that it needs; seconds a"
    " frame of the evaluation, metrics included. The posterior is what lies beside the networks. †"
    " A training was continued: its seconds are those of the last part."
)
SELECTION_NUMBERS = ("calibration.nll", "calibration.ece", "calibration.brier", "segmentation.miou")

_OF_CLASSES = (
    kinds.ConfidenceCalibration,
    kinds.ProbabilityCalibration,
    kinds.Segmentation,
    kinds.Selective,
)
TITLES = kinds.titles((*kinds.AREAS, *(metric for kind in _OF_CLASSES for metric in kind.metrics)))
"""What the axes of a figure call a number."""

PRICE_FILE = "price.json"
"""Of ``tools.study_price``, beside the report."""


def report(study: Study) -> str:
    """Write ``study.md``, ``study.json`` and the figures of a study into its folder; returns the
    text.
    """
    plan, out = study.plan, study.out
    parts = ["# Study", READING]
    places = [endpoint.evaluation for endpoint in plan.endpoints] + [
        table.evaluation for table in plan.tables
    ]
    entries = {place: _entries(study, place) for place in dict.fromkeys(places)}
    if plan.endpoints:
        parts += ["## Endpoints", endpoint_table(plan, entries), ENDPOINTS]
    for table in plan.tables:
        shown = _table(table, entries[table.evaluation], plan.baseline)
        parts += (
            [*shown, *_mixed(study, table.evaluation, entries[table.evaluation])] if shown else []
        )
    for protocol in plan.protocols:
        records = _records(study, protocol)
        if records:
            parts += [f"## Costs, {protocol}", cost_table(records), COSTS]
    parts += _unfinished(study)
    written = {figure.name: _draw(study, figure) for figure in plan.figures}
    lacking = [name for name, files in written.items() if not files]
    if lacking:
        parts.append(f"Without a point yet: {', '.join(lacking)}.")
    made = provenance()
    parts.append(f"Written {made['date']}, commit {made['commit']}: `{made['command']}`")
    text = "\n\n".join(parts) + "\n"
    write_atomically(out / "study.md", text.encode())
    content = {
        "made": made,
        "plan": asdict(plan),
        "cells": [_cell_content(cell) for cell in study.cells()],
    }
    write_json(out / "study.json", content)
    return text


def selection_report(study: Study) -> str:
    """Write ``selection.md`` with the candidates of each protocol, best validation NLL first;
    returns the text.
    """
    parts = ["# Selection", READING.replace("the baseline", "the first candidate")]
    chosen = Chosen(SELECTION_NUMBERS)
    for protocol in study.plan.protocols:
        entries = _entries(study, f"{protocol}/{SELECTION}")
        if not entries:
            continue
        nll = {
            entry.label: entry.mean.numbers[chosen.path(SELECTION_NUMBERS[0])] for entry in entries
        }
        ranked = sorted(
            entries, key=lambda entry: (nll[entry.label] is None, nll[entry.label] or 0.0)
        )
        parts += [
            f"## {protocol}",
            number_table(ranked, chosen),
            difference_table(ranked, ranked[0], chosen),
        ]
        parts += [cost_table(_records(study, protocol)), COSTS]
    parts += _unfinished(study, SELECTION)
    text = "\n\n".join(part for part in parts if part) + "\n"
    write_atomically(study.out / "selection.md", text.encode())
    return text


def _table(table: Table, entries: Sequence[Entry], baseline: str) -> list[str]:
    """A table with its title and its differences."""
    if not entries:
        return []
    counts = next(iter(entries[0].results.values())).content["counts"]
    said = (
        f"{table.evaluation}, {counts['frames']} frames, {counts.get('resampled_units', 0)}"
        " resampled units"
    )
    paths = {".".join(path) for part in _chosen(table) for path in map(part.path, table.numbers)}
    held = [entry.mean.content["bootstrap"] for entry in entries]
    if effective := [
        number for of in held for path, number in of["effective_units"].items() if path in paths
    ]:
        said += f" (effective {min(effective):.0f} to {max(effective):.0f})"
    for why in dict.fromkeys(
        why for of in held for path, why in of["no_interval"].items() if path in paths
    ):
        said += f"; no interval: {why}"
    if table.scores:
        number = table.numbers[0]
        return [
            f"## {table.title}",
            f"{said}, {number}.",
            score_table(entries, number, table.scores),
        ]
    base = next((entry for entry in entries if entry.label == baseline), None)
    if table.lines:
        of = {entry.label: entry for entry in entries}
        lines = [(of[label], score) for label, score in table.parts if label in of]
        said += f" (differences to {table.baseline_score} of the baseline)"
        return [
            f"## {table.title}",
            f"{said}.",
            line_table(lines, base, table.numbers, str(table.baseline_score)),
        ]
    chosen = Chosen(table.numbers, table.score, table.baseline_score)
    score = f", score {table.score}" if table.score else ""
    if table.baseline_score:
        score += f" (differences to {table.baseline_score} of the baseline)"
    parts = [f"## {table.title}", f"{said}{score}.", number_table(entries, chosen)]
    return [*parts, difference_table(entries, base, chosen)] if base and len(entries) > 1 else parts


def _chosen(table: Table) -> list[Chosen]:
    """The scores of a table, each with its numbers."""
    scores = [table.score, *table.scores, *(score for _, score in table.parts)]
    return [
        Chosen(table.numbers, score) for score in dict.fromkeys(scores) if score or scores == [None]
    ]


def _mixed(study: Study, place: str, entries: Sequence[Entry]) -> list[str]:
    """A line for each thing in which the results of a table differ though they should not: data,
    and the commit of the evaluation.
    """
    protocol, _, evaluation = place.partition("/")
    warnings = data_warnings([entry.mean for entry in entries])
    lines = [f"Mixed: {warning}." for warning in warnings]
    commits: dict[str, list[str]] = {}
    rows = {row.label: row for row in study.rows}
    for entry in entries:
        if entry.label not in rows:  # a mean of rows, which stand here by themselves
            continue
        for seed in entry.results:
            held = study.cell(protocol, rows[entry.label], seed).record()["evaluations"][evaluation]
            commits.setdefault(str(held.get("commit", "not recorded")), []).append(
                f"{entry.label} {seed}"
            )
    if len(commits) > 1:
        said = "; ".join(f"{commit} ({first_of(cells)})" for commit, cells in commits.items())
        lines.append(f"Mixed: evaluated at {len(commits)} commits: {said}.")
    return lines


def _entries(study: Study, place: str) -> list[Entry]:
    """The rows, and then the means of rows, that have a result in ``PROTOCOL/EVALUATION``."""
    entries = _row_entries(study, place)
    by_label = {entry.label: entry for entry in entries}
    for label, of in study.plan.means.items():
        parts = [by_label[row] for row in of if row in by_label]
        entry = mean_entry(label, parts) if len(parts) == len(of) else None
        if entry is not None:
            entries.append(entry)
    return entries


def _row_entries(study: Study, place: str) -> list[Entry]:
    """The rows that have a result in ``PROTOCOL/EVALUATION``."""
    protocol, _, evaluation = place.partition("/")
    found = []
    for row in study.rows:
        if protocol not in study.plan.protocols_of(row):
            continue
        cells = [study.cell(protocol, row, seed) for seed in study.plan.seeds_of(row)]
        cells = [cell for cell in cells if study.lacks(cell, evaluation) is None]
        if cells:
            results = load_results(
                [cell.result(evaluation) for cell in cells], [str(cell.seed) for cell in cells]
            )
            results = [named_as_drawn(result) for result in results]
            partners = {cell.seed: study.plan.members_of(row, cell.seed) for cell in cells}
            found.append(
                Entry(row.label, dict(zip([c.seed for c in cells], results, strict=True)), partners)
            )
    return found


def named_as_drawn(result: EvaluationResult) -> EvaluationResult:
    """A result with the selective prediction of one pass under the names that a posterior's draws
    give it: what a network without draws calls ``deterministic-msp`` is the msp of its only
    probabilities. A result that has both keeps both.
    """
    there = {path[1] for path in result.numbers if path[0] == "selective"}
    drawn = {one_pass: score for one_pass, score in DRAWN.items() if score not in there}

    def named(path: NumberPath) -> NumberPath:
        return (path[0], drawn.get(path[1], path[1]), *path[2:]) if path[0] == "selective" else path

    def dotted(where: str) -> str:
        return ".".join(named(tuple(where.split(".", 2))))

    content = dict(result.content)
    for key in ("intervals", "reasons"):
        content[key] = {dotted(where): value for where, value in content.get(key, {}).items()}
    numbers = {named(path): value for path, value in result.numbers.items()}
    replicates = result.replicates and replace(
        result.replicates, paths=tuple(map(dotted, result.replicates.paths))
    )
    return replace(result, content=content, numbers=numbers, replicates=replicates)


def _records(study: Study, protocol: str) -> dict[str, list[dict[str, Any]]]:
    """Label -> the records of its finished cells."""
    found: dict[str, list[dict[str, Any]]] = {}
    for cell in study.cells():
        record = cell.record() if cell.protocol == protocol else {}
        if record and record["failure"] is None:
            found.setdefault(cell.row.label, []).append(record)
    return found


def _unfinished(study: Study, evaluation: str | None = None) -> list[str]:
    """What is not there yet, a line for each cell."""
    lines = []
    for cell in study.cells():
        names = (
            [evaluation] if evaluation else list(study.plan.evaluations_of(cell.row, cell.protocol))
        )
        why = dict.fromkeys(study.lacks(cell, name) for name in names)
        lines += [f"* {cell.name}: {reason}" for reason in why if reason is not None]
    return ["## Not finished", "\n".join(lines)] if lines else []


def _cell_content(cell: Cell) -> dict[str, Any]:
    return {"protocol": cell.protocol, "label": cell.row.label, "seed": cell.seed, **cell.record()}


def _draw(study: Study, figure: Scatter) -> list[Path]:
    """Write a figure; nothing where no row has both numbers."""
    across = axis_values(study, figure.x)
    labels = [row.label for row in study.rows]
    styles = _styles(labels, figure.groups)
    panels = []
    for axis in figure.y:
        up = axis_values(study, axis)
        points = [
            Point(label, *across[label], *up[label], *styles[label])
            for label in labels
            if label in across and label in up
        ]
        panels.append(Panel(axis_label(study, axis), points, bool(_higher(axis))))
    if not any(panel.points for panel in panels):
        return []
    logarithmic = _number(figure.x) in (TRAINING_SECONDS, PRICE)
    drawn = scatter_figure(panels, axis_label(study, figure.x), logarithmic=logarithmic)
    return save_figure(drawn, study.out / figure.name)


def _styles(labels: Sequence[str], groups: Sequence[str]) -> dict[str, tuple[str, int, int]]:
    """Label -> its family, the place of its group, and the place of its family in the group."""
    families: list[list[str]] = [[] for _ in (*groups, "others")]
    styles = {}
    for label in labels:
        family = re.sub(r",? (of )?\d+( draws)?$", "", label)
        group = next(
            (place for place, pattern in enumerate(groups) if re.search(pattern, label)),
            len(groups),
        )
        if family not in families[group]:
            families[group].append(family)
        styles[label] = family, group, families[group].index(family)
    return styles


def axis_values(study: Study, axis: str) -> Mapping[str, tuple[float, tuple[float, float] | None]]:
    """Label -> an axis' value and interval, for rows that have one: seconds, or the difference to
    the baseline.

    Rows are of different seeds, and bases of different seeds differ by more than methods do: only
    differences to the baseline of the same seeds can be put beside each other.
    """
    place, number = axis.rpartition("/")[0], _number(axis)
    if number == TRAINING_SECONDS:
        seconds = {
            label: [training_seconds(record) for record in records]
            for label, records in _records(study, place).items()
        }
        return {
            label: (sum(known) / len(known), None)
            for label, values in seconds.items()
            if len(known := [value for value in values if value is not None]) == len(values)
        }
    if number == PRICE:
        path = study.out / PRICE_FILE
        prices = read_json(path, "the prices of a study's rows")["passes"] if path.exists() else {}
        return {label: (passes, None) for label, passes in prices.items()}
    entries = _entries(study, place)
    baseline = next((entry for entry in entries if entry.label == study.plan.baseline), None)
    if baseline is None:
        return {}
    scores = {row.label: (row.scores or [""])[0] for row in study.rows}
    base_score = scores[baseline.label] if SCORE in number else None
    if Chosen([_of_score(number)], base_score).path(_of_score(number)) not in baseline.mean.numbers:
        raise InputError(f"axis '{axis}' of a figure is no number of {place}")
    found: dict[str, tuple[float, tuple[float, float] | None]] = {baseline.label: (0.0, None)}
    for entry in entries:
        if entry.label not in scores:  # a mean of rows is no point
            continue
        own = scores[entry.label] if SCORE in number else None
        chosen = Chosen([_of_score(number)], own, base_score)
        difference = (
            differences(entry, baseline, chosen)[_of_score(number)]
            if entry is not baseline
            else None
        )
        if difference is not None:
            test = difference.test
            found[entry.label] = difference.value, (test.low, test.high) if test else None
    return found


def _of_score(number: str) -> str:
    """The number below its score, where it is one of a row's own."""
    return number.removeprefix(f"scores.{SCORE}.")


def _number(axis: str) -> str:
    return axis.rpartition("/")[2]


def axis_label(study: Study, axis: str) -> str:
    """In words: the number and its direction, the title of the first table of its evaluation,
    ``difference to base``; a line each.
    """
    number, place = _number(axis), axis.rpartition("/")[0]
    if number == TRAINING_SECONDS:
        return "training of method and networks, s"
    if number == PRICE:
        return "price of a frame in base passes"
    name = TITLES.get(number.split(".")[-1], number) + ARROWS[_higher(axis)]
    title = next((table.title for table in study.plan.tables if table.evaluation == place), place)
    return f"{name}\n{title}\ndifference to {study.plan.baseline}"


def _higher(axis: str) -> bool | None:
    return higher_is_better((_number(axis).split(".")[-1],))
