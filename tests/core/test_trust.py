"""Agreements to run code: each binds a name and a folder."""

import json
from pathlib import Path

import pytest

from segunc.core.errors import InputError
from segunc.core.trust import NOTE, Code, agree, check_agreed

HERE = Code("networks:build", "/here")
THERE = Code("networks:build", "/there")


@pytest.fixture
def note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of agreements of a user who has made none."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    folder = tmp_path / "segunc"
    folder.mkdir()
    return folder / NOTE


def test_one_name_can_be_trusted_in_two_folders(note: Path) -> None:
    agree(HERE)
    with pytest.raises(InputError, match="nobody agreed"):
        check_agreed(THERE, "--trust")
    agree(THERE)
    agree(THERE)
    check_agreed(HERE, "--trust")
    check_agreed(THERE, "--trust")
    assert json.loads(note.read_text()) == {HERE.name: {"folders": ["/here", "/there"]}}


def test_an_agreement_of_an_earlier_version_holds(note: Path) -> None:
    note.write_text(json.dumps({HERE.name: {"folder": "/here"}}))
    check_agreed(HERE, "--trust")
    agree(THERE)
    check_agreed(HERE, "--trust")
