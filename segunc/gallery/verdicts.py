"""Verdicts beside a page, which shows them, and what a page's folder says of itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from segunc.core.files import parse_json, read_bytes, write_json
from segunc.gallery.frame_files import write_data
from segunc.maps.verdicts import FORMAT, FORMAT_VERSION, Verdict, parse_verdicts

PAGE_NAME = "review.json"
PAGE_FORMAT = "segunc-review"
VERDICTS_NAME = "verdicts.json"


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
    return parse_verdicts(out / VERDICTS_NAME, entries) if isinstance(entries, list) else []


def page_of(out: Path) -> dict[str, Any] | None:
    """What a page's folder says of itself; None for any other folder."""
    content = _object(out / PAGE_NAME)
    return content if content.get("format") == PAGE_FORMAT else None


def _object(path: Path) -> dict[str, Any]:
    """The JSON object of a file; empty where there is none."""
    try:
        content = parse_json(read_bytes(path))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
