"""What a study is made of, as its YAML file says it, checked before the first hour of computing."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from segunc.core.bounds import Settings
from segunc.core.errors import InputError
from segunc.evaluation.comparison import higher_is_better
from segunc.posteriors.methods import METHODS
from segunc.training.config import FitConfig, parse_config

SELECTION = "selection"
"""Name of the evaluation that candidates are ranked by."""
SELECTION_SPLITS = ("val", "selection")
"""Splits that may select something; results are reported on others."""
TRAINING_SECONDS, PRICE = "training_seconds", "price"
"""The numbers of a figure's axis that belong to no evaluation; the second is of
``tools.study_price``.
"""
SCORE = "{score}"
"""In a figure's number: the first score of the row."""


@dataclass
class Protocol:
    """Data that networks are trained on, and what they are evaluated on.

    Args:
        base: folder of the base network of a seed; ``{seed}`` stands for the seed, ``$NAME`` for a
            variable of the environment.
        data: settings of ``data`` for every fine-tuning.
        evaluations: name -> options of ``segunc evaluate``, without their dashes; in ``flag``
            ``{cell}`` stands for the folder of the results of the same row and seed, in which those
            of earlier evaluations are; ``RESULT.json:RECALL`` for its thresholds.
        selection: those of the evaluation that candidates are ranked by; its split is ``val`` or
            ``selection``.
    """

    base: str
    data: dict[str, Any]
    evaluations: dict[str, dict[str, Any]]
    selection: dict[str, Any] = field(default_factory=dict)


@dataclass
class Row:
    """Models of one kind, one for each seed.

    Args:
        label: what tables call it.
        method: of ``segunc finetune``; none is the base network itself.
        settings: of the method's section; its seed is that of the row unless it stands here.
        data: settings of ``data`` beside those of the protocol.
        select: settings of the frames that the method selects on.
        trainer: settings of the Lightning Trainer, for methods that train with it.
        base: as :class:`Protocol`, instead of the protocol's.
        of: label of an earlier row whose models are the bases; without a method its models
            themselves, evaluated otherwise.
        members: seeds of the bases of an ensemble.
        networks: how many bases an ensemble has: that of the row's seed and those of the study's
            next seeds, in turn.
        evaluate: options of its evaluations, over those of the protocol.
        seeds: instead of the study's.
        protocols: where it is made; none is everywhere.
        scores: that are evaluated, instead of those of the evaluations.
        evaluations: of the protocol's, those that are made; none is all.
    """

    label: str
    method: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    select: dict[str, Any] = field(default_factory=dict)
    trainer: dict[str, Any] = field(default_factory=dict)
    base: str | None = None
    of: str | None = None
    members: list[int] = field(default_factory=list)
    networks: int = 0
    evaluate: dict[str, Any] = field(default_factory=dict)
    seeds: list[int] | None = None
    protocols: list[str] | None = None
    scores: list[str] | None = None
    evaluations: list[str] | None = None

    @property
    def slug(self) -> str:
        """The label as a folder's name."""
        return re.sub(r"[^a-z0-9.]+", "-", self.label.lower()).strip("-")


@dataclass
class Table:
    """Numbers of one evaluation, a line for each row.

    Args:
        title: its heading.
        evaluation: ``PROTOCOL/EVALUATION``.
        numbers: dotted paths in a result; with a score, below that score.
        score: whose numbers they are.
        baseline_score: the score of the baseline that differences refer to; none is the same score.
        scores: instead of one: a column each, for a single number, without differences.
        lines: ``ROW: SCORE`` each, instead of a line for each row; differences are to
            baseline_score of the baseline.
    """

    title: str
    evaluation: str
    numbers: list[str]
    score: str | None = None
    baseline_score: str | None = None
    scores: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    @property
    def parts(self) -> list[tuple[str, str]]:
        """The label and the score of each of ``lines``."""
        return [
            (label, score) for label, _, score in (line.rpartition(": ") for line in self.lines)
        ]


@dataclass
class Endpoint:
    """A difference that the study is made to decide, named before it is run.

    Args:
        evaluation: ``PROTOCOL/EVALUATION``.
        number: dotted path in a result; of a line with a score, below that score.
        line: ``ROW`` or ``ROW: SCORE``.
        baseline: the same; none is the study's baseline, with the score of the line.
        margin: in units of the number: what is shown is that the line is worse by less than this;
            none: that it is better.
        direction: which way is better, ``higher`` or ``lower``; none is what the number is known
            for.
    """

    evaluation: str
    number: str
    line: str
    baseline: str = ""
    margin: float | None = None
    direction: str = ""

    def __post_init__(self) -> None:
        self.direction = (
            self.direction or _DIRECTIONS[higher_is_better((self.number.split(".")[-1],))]
        )

    @property
    def claim(self) -> str:
        """What it says if it is decided."""
        what = (
            f"{self.direction} than"
            if self.margin is None
            else f"not {_OPPOSITE[self.direction]} by {self.margin:g} than"
        )
        return f"{self.evaluation}, {self.number}: {self.line} {what} {self.baseline}"


_DIRECTIONS = {True: "higher", False: "lower", None: ""}
_OPPOSITE = {"higher": "lower", "lower": "higher"}


@dataclass
class Scatter:
    """A figure with a point for each row: seconds, or differences to the baseline of the same
    seeds.

    Args:
        name: of its files.
        x: ``PROTOCOL/EVALUATION/NUMBER``, in which ``{score}`` is the first score of a row; or
            ``PROTOCOL/training_seconds`` or ``PROTOCOL/price``, which are drawn on a logarithmic
            axis.
        y: the same, a panel each.
        groups: regular expressions; a row has the colour of the first that is found in its label,
            or one more. Rows whose labels differ in ``, N draws`` or `` of N`` only are one line
            with one marker.
    """

    name: str
    x: str
    y: list[str]
    groups: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Plan(Settings):
    """A study.

    Args:
        protocols: by name.
        rows: in the order of the tables.
        baseline: label of the row that differences refer to.
        seeds: of every row that has none of its own.
        evaluate: options of every evaluation, overruled by its own.
        candidates: rows that are ranked on the selection frames and not reported.
        tables: of the report.
        figures: of the report.
        endpoints: of the report's first table, whose p-values are adjusted for their number.
        means: label -> labels of rows. In tables and endpoints the label stands for the mean of
            their numbers, taken for each seed apart: of the same networks with other draws, for
            instance. A seed counts where each of the rows has it.
    """

    section = "study"
    protocols: dict[str, Protocol]
    rows: list[Row]
    baseline: str
    seeds: list[int] = field(default_factory=lambda: [0, 1, 2])
    evaluate: dict[str, Any] = field(default_factory=dict)
    candidates: list[Row] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    figures: list[Scatter] = field(default_factory=list)
    endpoints: list[Endpoint] = field(default_factory=list)
    means: dict[str, list[str]] = field(default_factory=dict)

    @property
    def labels(self) -> list[str]:
        """The labels of the rows, then those of the means."""
        return [*(row.label for row in self.rows), *self.means]

    def rows_of(self, label: str) -> list[Row]:
        """The row with a label, or the rows of a mean."""
        labels = self.means.get(label, [label])
        return [row for row in self.rows if row.label in labels]

    def part_of(self, line: str) -> tuple[str, str | None]:
        """The row and the score of ``ROW`` or ``ROW: SCORE``; the row is one that is not there
        where it names none.
        """
        label, colon, score = line.rpartition(": ")
        return (label, score) if colon and line not in self.labels else (line, None)

    def seeds_of(self, row: Row) -> list[int]:
        """The seeds that a row is made for."""
        return self.seeds if row.seeds is None else row.seeds

    def members_of(self, row: Row, seed: int) -> list[int]:
        """The seeds of the bases of a cell."""
        place = self.seeds.index(seed) if row.networks else 0
        turns = [self.seeds[(place + turn) % len(self.seeds)] for turn in range(row.networks)]
        return turns or row.members or [seed]

    def evaluations_of(self, row: Row, protocol: str) -> dict[str, dict[str, Any]]:
        """Name -> options of the evaluations of a row."""
        every = self.protocols[protocol].evaluations
        return (
            every
            if row.evaluations is None
            else {n: given for n, given in every.items() if n in row.evaluations}
        )

    def protocols_of(self, row: Row) -> list[str]:
        """The protocols that a row is made in."""
        return list(self.protocols) if row.protocols is None else row.protocols


def read_plan(path: Path) -> Plan:
    """The plan in a YAML file, under the key ``study``.

    Raises:
        InputError: a missing file, an unknown key, a value of the wrong type, or names that do not
            fit together.
    """
    plan: Plan = parse_config(FitConfig, path, [], Plan, data=False, own=True).settings
    for rows in (plan.rows, plan.candidates):
        _check_rows(plan, rows, path)
    _check_means(plan, path)
    if plan.baseline not in [row.label for row in plan.rows]:
        labels = _listed(row.label for row in plan.rows)
        raise InputError(
            f"{path}: baseline '{plan.baseline}' is no row", hint=f"choose from {labels}"
        )
    for name, protocol in plan.protocols.items():
        split = protocol.selection.get("split")
        if (protocol.selection or plan.candidates) and split not in SELECTION_SPLITS:
            raise InputError(
                f"{path}: the selection of protocol {name} has the split {split}, and nothing is"
                " selected on frames of results",
                hint=f"use {' or '.join(SELECTION_SPLITS)}",
            )
    for table in plan.tables:
        if table.scores and (table.score or table.baseline_score or len(table.numbers) != 1):
            raise InputError(
                f"{path}: table '{table.title}' has several scores, and so has one number, no score"
                " and no baseline_score",
                hint="make a table for each number",
            )
        lacking = {label for label, _ in table.parts} - set(plan.labels)
        if lacking or (
            table.lines and not (table.baseline_score and not table.score and not table.scores)
        ):
            unknown = (
                f" name the row {lacking.pop()}"
                if lacking
                else " need a baseline_score, and no score or scores"
            )
            labels = _listed(plan.labels)
            raise InputError(
                f"{path}: lines of table '{table.title}'{unknown}", hint=f"ROW: SCORE of {labels}"
            )
    for endpoint in plan.endpoints:
        _check_endpoint(plan, endpoint, path)
    places = [table.evaluation for table in plan.tables] + [
        endpoint.evaluation for endpoint in plan.endpoints
    ]
    places += [
        axis.rpartition("/")[0]
        for figure in plan.figures
        for axis in (figure.x, *figure.y)
        if not _of_time(axis)
    ]
    known = [
        f"{name}/{evaluation}"
        for name, protocol in plan.protocols.items()
        for evaluation in protocol.evaluations
    ]
    for place in places:
        if place not in known:
            raise InputError(
                f"{path}: a table, figure or endpoint has the evaluation '{place}'",
                hint=_listed(known),
            )
    return plan


def _check_means(plan: Plan, path: Path) -> None:
    labels = [row.label for row in plan.rows]
    for mean, of in plan.means.items():
        where = f"{path}: mean '{mean}'"
        if mean in labels:
            raise InputError(f"{where} has the label of a row", hint="change the label")
        unknown = [label for label in of if label not in labels]
        if unknown:
            raise InputError(f"{where} names the row '{unknown[0]}'", hint=_listed(labels))
        if len(set(of)) < 2:
            raise InputError(f"{where} is of fewer than two rows", hint="name two or more")


def _check_endpoint(plan: Plan, endpoint: Endpoint, path: Path) -> None:
    score = plan.part_of(endpoint.line)[1]
    endpoint.baseline = endpoint.baseline or (
        f"{plan.baseline}: {score}" if score else plan.baseline
    )
    where = f"{path}: endpoint '{endpoint.claim}'"
    labels = plan.labels
    for line in (endpoint.line, endpoint.baseline):
        if plan.part_of(line)[0] not in labels:
            raise InputError(
                f"{where} names the row of '{line}'", hint=f"ROW or ROW: SCORE of {_listed(labels)}"
            )
    if endpoint.direction not in _OPPOSITE:
        raise InputError(f"{where} has no direction", hint="say higher or lower")
    if endpoint.margin is not None and not endpoint.margin > 0:
        raise InputError(f"{where} has the margin {endpoint.margin:g}, which is not above 0")


def _of_time(axis: str) -> bool:
    return axis.rpartition("/")[2] in (TRAINING_SECONDS, PRICE)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "(there is none)"


def _check_rows(plan: Plan, rows: list[Row], path: Path) -> None:
    seen: dict[str, Row] = {}
    slugs: set[str] = set()
    for row in rows:
        where = f"{path}: row '{row.label}'"
        if row.slug in slugs or not row.slug:
            raise InputError(
                f"{where} has the folder name '{row.slug}' of another row", hint="change the label"
            )
        if row.method is not None and row.method not in METHODS:
            raise InputError(
                f"{where} has the method {row.method}", hint=f"choose from {_listed(METHODS)}"
            )
        if row.method is None and (row.settings or row.data or row.trainer):
            raise InputError(f"{where} has settings without a method")
        if row.networks and not 2 <= row.networks <= len(plan.seeds):
            raise InputError(
                f"{where} has {row.networks} networks, not 2 to {len(plan.seeds)}",
                hint="name more seeds",
            )
        if (row.members or row.networks) and row.method != "ensemble":
            raise InputError(f"{where} has members, and is no ensemble")
        unknown = set(plan.protocols_of(row)) - set(plan.protocols)
        if unknown:
            raise InputError(
                f"{where} names the protocol {unknown.pop()}", hint=_listed(plan.protocols)
            )
        known = [
            name
            for protocol in plan.protocols_of(row)
            for name in plan.protocols[protocol].evaluations
        ]
        if unknown := set(row.evaluations or ()) - set(known):
            raise InputError(f"{where} names the evaluation {unknown.pop()}", hint=_listed(known))
        if row.of is not None:
            if row.of not in seen:
                raise InputError(
                    f"{where} is of '{row.of}', which is no earlier row: {_listed(seen)}"
                )
            source = seen[row.of]
            asked = {one for seed in plan.seeds_of(row) for one in plan.members_of(row, seed)}
            lacking = asked - set(plan.seeds_of(source))
            if lacking or set(plan.protocols_of(row)) - set(plan.protocols_of(source)):
                raise InputError(
                    f"{where} needs '{row.of}' of"
                    f" {f'seed {min(lacking)}' if lacking else 'other protocols'}, which has seeds"
                    f" {plan.seeds_of(source)} in {_listed(plan.protocols_of(source))}"
                )
        seen[row.label] = row
        slugs.add(row.slug)
