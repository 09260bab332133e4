"""Steps, the rows that they leave, and the table of all rows."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from segunc.core.device import Precision, resolve_device
from segunc.core.files import write_json
from tools.gpu_day.timing import Turns

Row = dict[str, Any]
"""What a step found, by name. ``met`` says whether its bound was kept; without it there is none."""
FAILED = "failed"
NOT_MEASURED = "not measured"
WITHOUT_COLUMN = ("seconds", "commit", "met", FAILED, NOT_MEASURED)
"""Keys of a row that the table does not list among what was found."""
JSON = "gpu_day.json"
MARKDOWN = "gpu_day.md"
LONGEST_REASON = 300  # characters


class NotMeasured(Exception):
    """A step cannot run here, or not to its end. Its row holds the reason, and the next call tries
    it again.
    """


@dataclass(frozen=True)
class Day:
    """What all steps of a call share.

    Attributes:
        out: folder of everything that is written.
        device_name: as ``--device`` of the verbs.
        tiny: whether sizes are those of a rehearsal.
        end: moment of ``time.monotonic()`` after which no step begins.
        study_seconds: after so many seconds a training or a study stops, to be continued.
        model: model folder of the part ``runtimes``; None makes one of random weights.
        turns: in which processes of one device are timed.
    """

    out: Path
    device_name: str = "cuda"
    tiny: bool = False
    end: float = float("inf")
    study_seconds: float = 480.0
    model: Path | None = None
    turns: Turns = field(default_factory=Turns)

    @property
    def device(self) -> torch.device:
        return resolve_device(self.device_name)

    @property
    def on_gpu(self) -> bool:
        return self.device_name.startswith("cuda")

    @property
    def precision(self) -> Precision:
        """What the networks compute in: a CPU without AMX emulates bfloat16."""
        return "bfloat16" if self.on_gpu else "float32"


@dataclass(frozen=True)
class Step:
    """A row of the table.

    Attributes:
        name: of the row, by which ``--only`` chooses it.
        run: measures, and returns the row. It may raise NotMeasured.
    """

    name: str
    run: Callable[[], Row]


class Results:
    """The rows so far. Each is on disk as soon as it is there, so that the same call goes on.

    Args:
        folder: of ``gpu_day.json`` and ``gpu_day.md``.
        about: command, hardware, versions and commit of this call.
    """

    def __init__(self, folder: Path, about: Mapping[str, Any]) -> None:
        self.folder = folder
        self.about = about
        self.rows: dict[str, Row] = {}
        path = folder / JSON
        if path.exists():
            self.rows = json.loads(path.read_text(encoding="utf-8"))["rows"]

    def is_finished(self, name: str) -> bool:
        """Return whether a step has a row that stays: one that failed is not run again."""
        return name in self.rows and NOT_MEASURED not in self.rows[name]

    def run(self, step: Step) -> Row:
        """Run a step and keep its row, whatever becomes of it."""
        start = time.monotonic()
        try:
            row = step.run()
        except NotMeasured as reason:
            row = {NOT_MEASURED: str(reason)[:LONGEST_REASON]}
        except Exception as error:  # what is behind it is still worth measuring
            row = {FAILED: f"{type(error).__name__}: {' '.join(str(error).split())}"}
            row[FAILED] = row[FAILED][:LONGEST_REASON]
        seconds = time.monotonic() - start
        row = {**row, "seconds": seconds, "commit": self.about["commit"]}
        self.rows[step.name] = row
        write_json(self.folder / JSON, {**self.about, "rows": self.rows})
        return row

    def write_table(self) -> str:
        """Write all rows as Markdown, and return them."""
        text = table(self.rows)
        (self.folder / MARKDOWN).write_text(text + "\n", encoding="utf-8")
        return text

    @property
    def all_met(self) -> bool:
        """Whether no step failed and none missed its bound."""
        return all(verdict(row) != "no" for row in self.rows.values())


def verdict(row: Row) -> str:
    """Return ``yes``, ``no``, or ``not measured``."""
    if NOT_MEASURED in row:
        return NOT_MEASURED
    return "yes" if row.get("met", FAILED not in row) else "no"


def table(rows: Mapping[str, Row]) -> str:
    """Return all rows as Markdown."""
    lines = ["| step | seconds | met | what was found |", "|---|---|---|---|"]
    for name, row in rows.items():
        lines.append(f"| {name} | {row['seconds']:.1f} | {verdict(row)} | {_found(row)} |")
    return "\n".join(lines)


def _found(row: Row) -> str:
    """Return what a row found, or why it found nothing, in one line."""
    for reason in (FAILED, NOT_MEASURED):
        if reason in row:
            return str(row[reason])
    words = []
    for name, value in row.items():
        if name not in WITHOUT_COLUMN:
            words.append(f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}")
    return ", ".join(words)
