"""The words that the demo shows for the options of a verb."""

from __future__ import annotations

from segunc.cli.parser import command_line
from segunc.options import PredictOptions


def test_only_what_is_not_the_default_is_shown() -> None:
    asked = PredictOptions(model="abnn", input="drive.webm", out="maps", overlay=True, device="cpu")
    assert command_line(asked, but="device") == "--model abnn --input drive.webm --out maps --overlay"
