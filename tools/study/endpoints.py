"""The differences that a study is made to decide, with p-values adjusted for their number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from segunc.evaluation.comparison import NULL, format_number, format_p, markdown_table
from segunc.evaluation.resampling import LEVEL, Chance, NumberPath, paired_difference
from tools.study.plan import Endpoint, Plan
from tools.study.tables import Chosen, Entry, paired_means


def holm(p_values: Sequence[float]) -> list[float]:
    """The p-values adjusted so that all that are below a level are wrong together with at most its
    probability (Holm 1979, "A simple sequentially rejective multiple test procedure"): the k-th
    smallest of m, times m - k + 1, never below those before it.
    """
    adjusted, highest = [1.0] * len(p_values), 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=lambda place: p_values[place])):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = highest
    return adjusted


def endpoint_table(plan: Plan, entries: Mapping[str, Sequence[Entry]]) -> str:
    """A line for each endpoint: its difference with the interval, p, adjusted p, and whether it is
    decided, which nothing is before all seeds of the plan are there.

    Args:
        entries: evaluation -> its rows.
    """
    found = [_measured(plan, endpoint, entries[endpoint.evaluation]) for endpoint in plan.endpoints]
    adjusted = holm([1.0 if isinstance(one, str) else one[1].p_value for one in found])
    lines = [["", "difference", "effective units", "p", "p, adjusted", "decided"]]
    for endpoint, one, p_value in zip(plan.endpoints, found, adjusted, strict=True):
        if isinstance(one, str):
            lines.append([endpoint.claim, f"{NULL} {one}", NULL, NULL, NULL, "no"])
            continue
        value, chance, margin = one
        ends = (chance.low - margin, chance.high - margin)
        shown = [
            format_number(number, like=max((value, *ends), key=abs), sign=True)
            for number in (value, *ends)
        ]
        sign = chance.low > 0 if endpoint.direction == "higher" else chance.high < 0
        waits = _waits(plan, endpoint, entries[endpoint.evaluation])
        decided = waits or ("yes" if sign and p_value < 1 - LEVEL else "no")
        text = f"{shown[0]} [{shown[1]}, {shown[2]}]"
        lines.append(
            [
                endpoint.claim,
                text,
                f"{chance.effective:.0f}",
                format_p(chance.p_value),
                format_p(p_value),
                decided,
            ]
        )
    return markdown_table(lines)


def endpoint_paths(plan: Plan, endpoint: Endpoint) -> tuple[NumberPath, NumberPath]:
    """Where the number of the line and that of its baseline stand in a result."""
    scores = [plan.part_of(line)[1] for line in (endpoint.line, endpoint.baseline)]
    ours, theirs = (Chosen([endpoint.number], score).path(endpoint.number) for score in scores)
    return ours, theirs


def _waits(plan: Plan, endpoint: Endpoint, entries: Sequence[Entry]) -> str | None:
    """The seeds that one of both rows lacks: who decides on those that came first may stop where
    they are lucky.
    """
    labels = {plan.part_of(line)[0] for line in (endpoint.line, endpoint.baseline)}
    due = set()
    for label in labels:
        for row in plan.rows_of(label):
            due.update((label, seed) for seed in plan.seeds_of(row))
    lacking = {
        seed
        for _, seed in due - {(entry.label, seed) for entry in entries for seed in entry.results}
    }
    return f"waits for seed {', '.join(map(str, sorted(lacking)))}" if lacking else None


def _measured(
    plan: Plan, endpoint: Endpoint, entries: Sequence[Entry]
) -> tuple[float, Chance, float] | str:
    """The difference, what chance leaves of it with the margin added, and that with its sign; or
    why there is no test.
    """
    of = {entry.label: entry for entry in entries}
    row, base = (plan.part_of(line)[0] for line in (endpoint.line, endpoint.baseline))
    if lacking := [label for label in (row, base) if label not in of]:
        return f"{lacking[0]} is not finished"
    means = paired_means(of[row], of[base])
    if means is None:
        return "no seed of both is finished"
    ours, theirs = means
    one, other = endpoint_paths(plan, endpoint)
    value, reference = ours.numbers.get(one), theirs.numbers.get(other)
    if value is None or reference is None:
        return f"no number {'.'.join(one if value is None else other)}"
    if ours.replicates is None or theirs.replicates is None:
        return "no replicates"
    margin = (endpoint.margin or 0.0) * (1 if endpoint.direction == "higher" else -1)
    chance = paired_difference(theirs.replicates, ours.replicates, other, one, margin)
    return chance if isinstance(chance, str) else (value - reference, chance, margin)
