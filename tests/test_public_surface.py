"""The public names: those of the reference, each importable and documented."""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path

import pytest

import segunc
from segunc.cli.main import VERBS, options_of
from segunc.cli.run import FUNCTIONS

API = (Path(__file__).parents[1] / "docs" / "reference" / "api.md").read_text(encoding="utf-8")
DOCUMENTED = re.findall(r":: segunc\.(\w+)$", API, re.MULTILINE)
FUNCTION_OF = {verb: FUNCTIONS.get(verb, verb) for verb in VERBS}


def test_the_public_names_are_those_of_the_reference() -> None:
    assert segunc.__all__ == sorted(DOCUMENTED)
    assert set(FUNCTION_OF.values()) <= set(segunc.__all__) <= set(dir(segunc))


@pytest.mark.parametrize("name", sorted({*DOCUMENTED} - {*FUNCTION_OF.values()}))
def test_every_public_name_is_importable_and_documented(name: str) -> None:
    value = getattr(segunc, name)
    assert value.__name__ == name
    assert value.__module__.startswith("segunc.")
    # A dataclass or a NamedTuple without a docstring gets its signature for one.
    assert value.__doc__
    assert not value.__doc__.startswith(f"{name}(")


@pytest.mark.parametrize("name", VERBS)
def test_every_verb_is_a_typed_function_over_its_frozen_options(name: str) -> None:
    verb, options = getattr(segunc, FUNCTION_OF[name]), options_of(name)
    signature = inspect.signature(verb)
    assert next(iter(signature.parameters.values())).annotation == options.__name__
    assert signature.return_annotation == f"{name.capitalize()}Result"
    assert all(p.default is None for p in list(signature.parameters.values())[1:])
    assert dataclasses.fields(options)
    assert options.__dataclass_params__.frozen  # type: ignore[attr-defined]


def test_no_room_has_the_name_of_a_public_name_and_others_are_attribute_errors() -> None:
    assert not {path.stem for path in Path(segunc.__file__).parent.iterdir()} & set(segunc.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Samplr'"):
        _ = segunc.Samplr
