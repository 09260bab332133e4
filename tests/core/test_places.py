"""What is handed to others names no place of the machine."""

import pytest

from segunc.core.places import is_place, shown_command, without_place, without_places


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/home/me/data", "data"),
        ("/home/my name/data/", "data"),
        ("~/data", "data"),
        ("~me/data", "data"),
        ("C:\\Users\\me\\data", "data"),
        ("\\\\server\\share\\data", "data"),
        ("file:///home/me/a.csv", "a.csv"),
        ("toy:/home/me/frames", "toy:frames"),
        ("from /home/me/a.csv, and (/home/me/b.csv)", "from a.csv, and (b.csv)"),
        ("root=/home/me/data", "root=data"),
        ("'/home/me/data'", "'data'"),
    ],
)
def test_a_path_becomes_its_last_name(text: str, shown: str) -> None:
    assert without_place(text) == shown
    assert is_place(text)
    assert not is_place(shown)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "/",
        "road/lane",
        "a / b",
        "1/2",
        "runs/base",
        "../data",
        "m/s",
        "https://a.org/b/c",
        "a:b",
    ],
)
def test_other_texts_stay(text: str) -> None:
    assert without_place(text) == text
    assert not is_place(text)


def test_values_at_any_depth() -> None:
    value = {"a": ["/x/y", {"b": "/x/z"}], "c": 3, "d": None, "e": ("/x/w",)}
    assert without_places(value) == {"a": ["y", {"b": "z"}], "c": 3, "d": None, "e": ["w"]}


def test_a_command_keeps_its_words() -> None:
    command = "segunc train --config '/home/my name/a.yaml' --data.root=/x/toy --out runs/base"
    expected = "segunc train --config a.yaml --data.root=toy --out runs/base"
    assert shown_command(command) == expected
    assert shown_command("segunc fit --images toy:/x/frames") == "segunc fit --images toy:frames"
