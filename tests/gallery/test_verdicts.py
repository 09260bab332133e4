"""Verdicts from files: whole, of this run, and refused with one line where they are not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from segunc.core.errors import InputError
from segunc.gallery.verdicts import Verdict, read_verdicts, summary_table

RUN = "0123456789abcdef"
FRAMES = ("a", "b,c", "d")
ENTRY = {"frame": "a", "verdict": "missed", "note": "", "time": "2026-01-01T00:00:00.000Z"}


def write(folder: Path, **changes: Any) -> Path:
    content = {"format": "segunc-verdicts", "version": 1, "run": RUN, "verdicts": [ENTRY]} | changes
    path = folder / "verdicts.json"
    path.write_text(json.dumps(content))
    return path


def test_json_and_csv_say_the_same(tmp_path: Path) -> None:
    second = {"frame": "b,c", "verdict": "", "note": 'two\r\nlines, "quoted"', "time": "t"}
    from_json = read_verdicts(write(tmp_path, verdicts=[ENTRY, second]), RUN, FRAMES)
    table = tmp_path / "verdicts.csv"
    table.write_bytes(
        f"run,frame,verdict,note,time\r\n{RUN},a,missed,,{ENTRY['time']}\r\n"
        f'{RUN},"b,c",,"two\r\nlines, ""quoted""",t\r\n'.encode()
    )
    assert from_json == read_verdicts(table, RUN, FRAMES)
    assert from_json == [Verdict("a", "missed", "", ENTRY["time"]), Verdict("b,c", "", 'two\r\nlines, "quoted"', "t")]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "other"}, 'has the format "other"'),
        ({"version": 2}, "version 2"),
        ({"run": "fedc"}, "verdicts on the run fedc"),
        ({"verdicts": {}}, "no list of verdicts"),
        ({"verdicts": ["a"]}, "verdict 1, is incomplete"),
        ({"verdicts": [ENTRY | {"note": None}]}, "verdict 1, is incomplete"),
        ({"verdicts": [ENTRY | {"frame": "z"}]}, "frame 'z', which the maps do not hold"),
        ({"verdicts": [ENTRY, ENTRY]}, "two verdicts on frame 'a'"),
        ({"verdicts": [ENTRY | {"verdict": "fine"}]}, "the verdict 'fine'"),
        ({"verdicts": [ENTRY | {"verdict": ""}]}, "the verdict ''"),
        (("v.txt", b""), "a .json or .csv file"),
        (("v.json", b"{"), "not valid JSON"),
        (("v.csv", b"run,frame\n\xff,a"), "is no CSV file"),
        (("v.csv", f"frame,verdict\n{RUN},a".encode()), "verdicts on the run None"),
        (("v.csv", f"run,frame\n{RUN},a".encode()), "is incomplete"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, changes: Any, message: str) -> None:
    path = write(tmp_path, **changes) if isinstance(changes, dict) else tmp_path / changes[0]
    if isinstance(changes, tuple):
        path.write_bytes(changes[1])
    with pytest.raises(InputError, match=message):
        read_verdicts(path, RUN, FRAMES)


def test_summary_counts_every_frame_once() -> None:
    verdicts = [Verdict("a", "missed", "x"), Verdict("b", "missed"), Verdict("c", "", "y"), Verdict("d", "unsure")]
    lines = summary_table(verdicts, 10).splitlines()
    counts = {row.split("|")[1].strip(): row.split("|")[2:5] for row in lines[2:]}
    assert [cell.strip() for cell in counts["missed"]] == ["2", "20.0%", "1"]
    assert [cell.strip() for cell in counts["not reviewed"]] == ["6", "60.0%", "0"]
    assert sum(int(row[0]) for row in counts.values()) == 10
