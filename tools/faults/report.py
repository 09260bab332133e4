"""What a part of the campaign found, as rows of one table."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

MARKS = "<!-- campaign -->", "<!-- end of campaign -->"
"""Lines of a document between which its table stands."""


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

    @contextlib.contextmanager
    def timed(self) -> Iterator[None]:
        """Measure the seconds of what is done inside; where it cannot go on, that is a failure, and the campaign does."""
        begun = time.monotonic()
        try:
            yield
        except Exception as error:
            self.fail(f"the campaign could not go on: {type(error).__name__}", self.target, str(error))
        finally:
            self.seconds = round(time.monotonic() - begun, 1)

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
        return {**asdict(self), "failed": len(self.failures), "failures": causes}


def markdown(rows: Iterable[dict[str, Any]]) -> str:
    """The table of ``docs/reliability.md``, of plain rows."""
    lines = [
        "| part | target | cases | seed | how they ended | failures | seconds |",
        "|---|---|---:|---:|---|---:|---:|",
    ]
    for row in rows:
        ended = ", ".join(f"{number:,} {outcome}" for outcome, number in row["counts"].items())
        cells = (row["part"], row["target"], f"{row['cases']:,}", row["seed"], ended, row["failed"], row["seconds"])
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def rewrite(document: Path, results: Iterable[Path]) -> None:
    """Put the tables of results, with what they add up to, between the :data:`MARKS` of a document."""
    begin, end = MARKS
    before, _, rest = document.read_text(encoding="utf-8").partition(begin)
    texts = [begin]
    for path in results:
        content = json.loads(path.read_text(encoding="utf-8"))
        rows, made = content["rows"], content["provenance"]
        cases, failed = (sum(row[name] for row in rows) for name in ("cases", "failed"))
        counted = f"{cases:,} cases in {content['seconds']:,} s, {failed} failures"
        texts.append(f"Commit {made['commit']}, {made['date'][:10]}: {counted}.\n\n{markdown(rows)}")
    document.write_text(before + "\n\n".join([*texts, end]) + rest.partition(end)[2], encoding="utf-8")
