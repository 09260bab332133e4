"""Tools are run as from the command line, in this process."""

import sys
from collections.abc import Callable
from typing import Any

import pytest

Run = Callable[..., Any]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    def main(tool: Any, *words: object) -> Any:
        monkeypatch.setattr(sys, "argv", ["tool.py", *map(str, words)])
        return tool.main()

    return main
