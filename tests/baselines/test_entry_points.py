"""Baselines are found as another package's methods are; where their entry points lack, one sentence says what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from segunc.core import registry
from segunc.core.errors import InputError
from segunc.core.registry import Registry
from segunc.posteriors.files import load_recorded
from segunc.posteriors.mc_dropout import DROPOUTS
from segunc.posteriors.methods import METHODS

NAMES = ("hmc", "laplace", "sghmc", "sgld", "swag", "variational", "own")


def test_each_baseline_is_found_under_its_name() -> None:
    modules = {name: METHODS[name].fit.__module__.removeprefix("segunc.baselines.") for name in METHODS}
    expected = {"hmc": "chains", "laplace": "laplace", "sghmc": "chains", "sgld": "chains", "swag": "swag"}
    expected |= {"variational": "variational", "standardized-max-logit": "max_logit"}
    assert {name: module for name, module in modules.items() if not module.startswith("segunc.")} == expected
    assert DROPOUTS["own"].__module__ == "segunc.baselines.own_dropout"


@pytest.fixture
def uninstalled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tables of a checkout that was updated but not installed again."""
    monkeypatch.setattr(registry, "entry_points", lambda group: [])
    tables: tuple[Registry[Any], ...] = (METHODS, DROPOUTS)
    for table in tables:
        entries = {name: None if name in NAMES else entry for name, entry in table._entries.items()}
        monkeypatch.setattr(table, "_entries", entries)
        monkeypatch.setattr(table, "_looked_outside", False)


@pytest.mark.usefixtures("uninstalled")
@pytest.mark.parametrize(
    "ask",
    [
        lambda: METHODS["sgld"],
        lambda: DROPOUTS["own"],
        lambda: load_recorded(Path("model"), {"method": "laplace"}),
    ],
)
def test_a_baseline_without_its_entry_point_says_to_install_again(ask: Callable[[], object]) -> None:
    with pytest.raises(InputError, match=r"entry point of .* '(sgld|own|laplace)' .* pip install -e "):
        ask()
    assert {"sgld", "laplace"} <= set(METHODS), "their names are listed all the same"
