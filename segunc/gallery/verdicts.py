"""What reviewers decided on frames: the files that the page exports, read back, checked and counted."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from segunc.core.errors import InputError
from segunc.core.files import read_json, write_json
from segunc.gallery.frame_files import write_data

# As they stand in files -> in words.
VERDICTS = {"true-alarm": "true alarm", "false-alarm": "false alarm", "missed": "missed", "unsure": "unsure"}
FORMAT = "segunc-verdicts"
FORMAT_VERSION = 1
PAGE_NAME = "review.json"
PAGE_FORMAT = "segunc-review"
VERDICTS_NAME = "verdicts.json"


@dataclass(frozen=True)
class Verdict:
    """A verdict on one frame."""

    frame: str  # its name
    verdict: str  # one of VERDICTS, or empty for a note alone
    note: str = ""
    time: str = ""  # when it was given, ISO 8601 in UTC


def read_verdicts(path: Path, run: str, frames: Sequence[str]) -> list[Verdict]:
    """The verdicts of a file exported by the page, JSON or CSV by its ending, on ``frames`` of the run of this id; InputError where
    it is damaged, of another version or run, or names a frame twice, a frame that is not there or a verdict that there is not."""
    if path.suffix.lower() not in (".json", ".csv"):
        raise InputError(f"verdicts {path}", "a .json or .csv file exported by the review page", "export again")
    rows, known, seen = _verdicts(path, _entries(path, run)), set(frames), set[str]()
    for verdict in rows:
        on = f"on frame '{verdict.frame}'"
        if verdict.frame not in known:
            given = f"{path} has a verdict {on}, which the maps do not hold"
            raise InputError(given, "frames of these maps", "give the --maps that were reviewed")
        if verdict.frame in seen:
            raise InputError(f"{path} has two verdicts {on}", "one", "remove one of them")
        if verdict.verdict not in VERDICTS and not (verdict.verdict == "" and verdict.note):
            expected = f"one of {', '.join(VERDICTS)}, or none with a note"
            raise InputError(f"{path} has the verdict '{verdict.verdict}' {on}", expected, "repair the file")
        seen.add(verdict.frame)
    return rows


def _entries(path: Path, run: str) -> list[Any]:
    """The verdicts as they stand in a file, which must be of the run."""
    entries: Any
    if path.suffix.lower() == ".json":
        content = read_json(path, "verdicts exported by the review page")
        if content.get("format") != FORMAT or content.get("version") != FORMAT_VERSION:
            given = f'{path} has the format "{content.get("format")}", version {content.get("version")}'
            raise InputError(given, f'"{FORMAT}", version {FORMAT_VERSION}', "export the verdicts again")
        entries, runs = content.get("verdicts"), {str(content.get("run"))}
    else:
        try:
            # Notes may hold line breaks, which are theirs.
            entries = list(csv.DictReader(io.StringIO(path.read_bytes().decode("utf-8-sig"), newline=""), strict=True))
        except OSError as error:
            raise InputError(f"{path} cannot be read ({error.strerror})", "a CSV file", "check the path") from error
        except (UnicodeDecodeError, csv.Error) as error:
            raise InputError(f"{path} is no CSV file ({error})", "a CSV file in UTF-8", "save it so") from error
        runs = {str(row.get("run")) for row in entries}
    for other in sorted(runs - {run}):
        given = f"{path} holds verdicts on the run {other}"
        raise InputError(given, f"verdicts on {run}", "give the --maps that were reviewed")
    if not isinstance(entries, list):
        raise InputError(f"{path} has no list of verdicts", '"verdicts": [...]', "export the verdicts again")
    return entries


def _verdicts(path: Path, entries: Sequence[Any]) -> list[Verdict]:
    found = []
    for number, entry in enumerate(entries, start=1):
        values = [entry.get(one.name) if isinstance(entry, Mapping) else None for one in fields(Verdict)]
        texts = [value for value in values if isinstance(value, str)]
        if len(texts) < len(values):
            given = f"{path}, verdict {number}, is incomplete"
            raise InputError(given, "text for frame, verdict, note and time", "export again")
        found.append(Verdict(*texts))
    return found


def write_verdicts(out: Path, run: str, verdicts: Sequence[Verdict]) -> None:
    """Lay verdicts beside a page, which shows them: ``verdicts.json`` and the script that the page loads."""
    entries = [asdict(verdict) for verdict in verdicts]
    content = {"format": FORMAT, "version": FORMAT_VERSION, "run": run, "verdicts": entries}
    if verdicts:
        write_json(out / VERDICTS_NAME, content)
    write_data(out / "data" / "verdicts.js", "verdicts", content)


def kept_verdicts(out: Path, run: str) -> list[Verdict]:
    """The verdicts that were imported into an earlier page of the same run; none where there is no such page."""
    content = _object(out / VERDICTS_NAME)
    entries = content.get("verdicts") if content.get("run") == run else None
    return _verdicts(out / VERDICTS_NAME, entries) if isinstance(entries, list) else []


def page_of(out: Path) -> dict[str, Any] | None:
    """What a page's folder says of itself; None for any other folder."""
    content = _object(out / PAGE_NAME)
    return content if content.get("format") == PAGE_FORMAT else None


def _object(path: Path) -> dict[str, Any]:
    """The JSON object of a file; empty where there is none."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def summary_table(verdicts: Sequence[Verdict], frames: int) -> str:
    """Numbers and shares of frames by verdict, as a Markdown table."""
    counts = Counter(verdict.verdict for verdict in verdicts)
    notes = Counter(verdict.verdict for verdict in verdicts if verdict.note)
    rows = [(words, counts[key], notes[key]) for key, words in (VERDICTS | {"": "note alone"}).items()]
    rows.append(("not reviewed", frames - len(verdicts), 0))
    lines = ["| verdict | frames | share | with a note |", "|---|---:|---:|---:|"]
    lines += [f"| {words} | {count} | {count / frames:.1%} | {noted} |" for words, count, noted in rows]
    return "\n".join(lines)
