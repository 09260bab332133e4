"""How words of the command line become values of options, and which words are refused."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from segunc import options as opts
from segunc.options import (
    Options,
    by_name,
    channel_numbers,
    frame_groups,
    json_or_text,
    size_or_dynamic,
)

read_pairs = partial(by_name, read=float, form="NAME=NUMBER")
read_arguments = partial(by_name, read=json_or_text, form="NAME=JSON")


@dataclass(frozen=True, kw_only=True)
class Counted(Options):
    """Options of a verb whose output is neither a file nor a folder."""

    out: int = 1


def write_groups(path: Path, *lines: str) -> str:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    ("read", "word", "value"),
    [
        (size_or_dynamic, "dynamic", "dynamic"),
        (size_or_dynamic, "40x56", (40, 56)),
        (channel_numbers, "0.5,0.25,1", (0.5, 0.25, 1.0)),
        (channel_numbers, "0.5,0.25,1,0.125", (0.5, 0.25, 1.0, 0.125)),
        (read_pairs, "a=1, b = 2.5", {"a": 1.0, "b": 2.5}),
        (read_arguments, 'a=enet,b="enet",c=1', {"a": "enet", "b": "enet", "c": 1}),
        (read_arguments, "a=true,b=null", {"a": True, "b": None}),
    ],
)
def test_a_word_is_read_as_a_value(read: Callable[[str], Any], word: str, value: Any) -> None:
    assert read(word) == value


@pytest.mark.parametrize(
    ("read", "word", "message"),
    [
        (
            channel_numbers,
            "1,2,red",
            "'1,2,red' is not a number for each channel, e.g. 0.485,0.456,0.406",
        ),
        (channel_numbers, "1,", "'1,' is not a number for each channel, e.g. 0.485,0.456,0.406"),
        (read_pairs, "a=1,a=2", "'a' is given twice"),
        (read_pairs, "a=one", "'a=one' is not NAME=NUMBER"),
        (read_arguments, "a=True", "'a=True' is not NAME=JSON"),
        (read_arguments, 'a="enet', "'a=\"enet' is not NAME=JSON"),
        (read_pairs, ",", "',' names nothing; expected NAME=NUMBER"),
    ],
)
def test_a_word_of_another_form_is_refused(
    read: Callable[[str], Any], word: str, message: str
) -> None:
    with pytest.raises(ArgumentTypeError) as refused:
        read(word)
    assert str(refused.value) == message


def test_groups_of_frames_are_read_from_a_file(tmp_path: Path) -> None:
    file = write_groups(tmp_path / "groups.csv", "frame,group", "a/1,day", "a/2,night")
    assert frame_groups(file) == {"a/1": "day", "a/2": "night"}


def test_a_regular_expression_of_groups_stays_as_it_is() -> None:
    assert frame_groups("(day|night)/") == "(day|night)/"


def test_a_group_without_a_name_is_refused(tmp_path: Path) -> None:
    file = write_groups(tmp_path / "groups.csv", "frame,group", "a/1,")
    with pytest.raises(ArgumentTypeError, match=r"^'a/1=' is not FRAME,GROUP$"):
        frame_groups(file)


def test_other_columns_are_refused_with_the_start_of_the_line(tmp_path: Path) -> None:
    file = write_groups(tmp_path / "groups.csv", f"name,{'x' * 100}", "a/1,day")
    with pytest.raises(ArgumentTypeError) as refused:
        frame_groups(file)
    # 80 characters of the line are shown: "name," and 75 more.
    shown = "name," + "x" * 75
    message = f"the first line of {file} is '{shown}'; expected frame,group"
    assert str(refused.value) == message


def test_an_output_that_is_not_a_path_is_not_looked_for() -> None:
    assert Counted(out=3).out == 3


@pytest.mark.parametrize(
    ("options", "name", "expected"),
    [
        (opts.SummaryOptions(maps="maps", flag="entropy=0.5"), "flag", ["entropy=0.5"]),
        (opts.EvaluateOptions(maps="maps", scores="msp,entropy"), "scores", ["msp", "entropy"]),
        (opts.EvaluateOptions(protocols="pooled,smiyc"), "protocols", ["pooled", "smiyc"]),
        (opts.CompareOptions(results="a.json"), "results", ["a.json"]),
        (opts.ReportOptions(model="m", runs="a,b.json", out="r"), "runs", ["a,b.json"]),
        (opts.PredictOptions(model="m", input="a,b.jpg", out="maps"), "input", "a,b.jpg"),
    ],
)
def test_one_text_stands_for_several_as_on_the_command_line(
    options: Options, name: str, expected: object
) -> None:
    assert getattr(options, name) == expected
