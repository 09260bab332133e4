"""Baselines are found as another package's methods are; where their entry points lack, one sentence says what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from segunc.core import registry
from segunc.core.errors import InputError
from segunc.posteriors.methods import METHODS
from segunc.posteriors.model import load_recorded

MODULES = {"hmc": "chains", "laplace": "laplace", "sghmc": "chains", "sgld": "chains", "swag": "swag"}
MODULES |= {"variational": "variational", "mc-dropout": "mc_dropout", "decoder-ensemble": "decoder_ensemble"}


def test_each_baseline_is_found_under_its_name() -> None:
    modules = {name: METHODS[name].fit.__module__.removeprefix("segunc.baselines.") for name in METHODS}
    expected = MODULES | {"standardized-max-logit": "max_logit"}
    assert {name: module for name, module in modules.items() if not module.startswith("segunc.")} == expected


@pytest.mark.parametrize("ask", [lambda: METHODS["sgld"], lambda: load_recorded(Path("model"), {"method": "laplace"})])
def test_a_baseline_without_its_entry_point_says_to_install_again(
    ask: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a checkout that was updated but not installed again."""
    monkeypatch.setattr(registry, "entry_points", lambda group: [])
    entries = {name: None if name in MODULES else entry for name, entry in METHODS._entries.items()}
    monkeypatch.setattr(METHODS, "_entries", entries)
    monkeypatch.setattr(METHODS, "_looked_outside", False)
    with pytest.raises(InputError, match=r"entry point of .* '(sgld|laplace)' .* pip install -e "):
        ask()
    assert {"sgld", "laplace"} <= set(METHODS), "their names are listed all the same"
