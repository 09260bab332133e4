"""What a part of the campaign found, as rows of one table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Failure:
    """Something that must not happen."""

    what: str  # its kind, and where: two failures of the same text have one cause
    again: str  # what runs it again: a case for --case, or a moment in seconds
    detail: str = ""  # one line


@dataclass
class Row:
    """What became of the cases of one target."""

    part: str
    target: str
    seed: int
    cases: int = 0
    failures: list[Failure] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)  # how the other cases ended
    seconds: float = 0.0

    def count(self, outcome: str, number: int = 1) -> None:
        """So many more cases ended in this way."""
        self.counts[outcome] = self.counts.get(outcome, 0) + number
        self.cases += number

    def fail(self, what: str, again: str, detail: str = "") -> None:
        """One more case failed."""
        self.cases += 1
        self.failures.append(Failure(what, again, " ".join(detail.split())[:400]))

    def distinct(self) -> dict[str, list[Failure]]:
        """The failures by their cause."""
        found: dict[str, list[Failure]] = {}
        for failure in self.failures:
            found.setdefault(failure.what, []).append(failure)
        return found

    def plain(self) -> dict[str, Any]:
        """As JSON knows it; of each cause the first three cases."""
        causes = {what: [len(all_of), *map(asdict, all_of[:3])] for what, all_of in self.distinct().items()}
        return {**asdict(self), "failures": causes, "seconds": round(self.seconds, 1)}


def markdown(rows: Iterable[Row]) -> str:
    """The table of ``docs/reliability.md``."""
    lines = ["| part | target | cases | seed | how they ended | failures |", "|---|---|---:|---:|---|---:|"]
    for row in rows:
        ended = ", ".join(f"{number} {outcome}" for outcome, number in row.counts.items())
        lines.append(f"| {row.part} | {row.target} | {row.cases} | {row.seed} | {ended} | {len(row.failures)} |")
    return "\n".join(lines)
