"""The examples in the docstrings of what trains."""

from __future__ import annotations

import doctest
from types import ModuleType

import pytest

from segunc.core import preserving
from segunc.lightning import callback


@pytest.mark.parametrize("module", [callback, preserving], ids=lambda module: module.__name__)
@pytest.mark.filterwarnings("ignore")
def test_examples_run(module: ModuleType) -> None:
    failed, tried = doctest.testmod(module)
    assert failed == 0
    assert tried >= 4
