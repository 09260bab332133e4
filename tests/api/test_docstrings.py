"""Every public name says what it takes and returns, in its signature, its docstring and an example
that runs.
"""

from __future__ import annotations

import doctest
import inspect
import re
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from torch import nn

import segunc
from segunc.cli.main import VERBS
from segunc.cli.run import FUNCTIONS

VERB_FUNCTIONS = {FUNCTIONS.get(verb, verb) for verb in VERBS}
WITHOUT_EXAMPLE = {
    "demo",  # takes minutes; `make demo` runs it
}
"""Public names without an example in their docstring. No name may be added."""
WITHOUT_SECTIONS: set[str] = set()
"""Public functions whose docstring lacks a section. No name may be added."""

METHODS_WITHOUT_SECTIONS = {
    "ABNNPosterior.from_tensors",
    "Model.fitted",
    "Sampler.start",  # says that its arguments are those of a call
}
"""Public methods of several arguments that no section describes. No name may be added."""
NOT_PUBLIC = {"prior"}
"""Methods of settings that only the package calls."""


def public_objects() -> Iterator[tuple[str, Any]]:
    """Yield the public functions, classes and methods with their names."""
    for name in segunc.__all__:
        value = getattr(segunc, name)
        yield name, value
        if not inspect.isclass(value):
            continue
        for method_name, method in inspect.getmembers(value, inspect.isroutine):
            module = getattr(method, "__module__", None) or ""
            is_public = not method_name.startswith("_") and method_name not in NOT_PUBLIC
            if is_public and module.startswith("segunc."):
                yield f"{name}.{method_name}", method


OBJECTS = dict(public_objects())
CALLABLE = [name for name in OBJECTS if name != "PartialFailure"]  # that one is RuntimeError's


def parameters_of(name: str) -> list[inspect.Parameter]:
    parameters = inspect.signature(OBJECTS[name]).parameters.values()
    return [parameter for parameter in parameters if parameter.name not in ("self", "cls")]


def returns_something(name: str) -> bool:
    annotation = inspect.signature(OBJECTS[name]).return_annotation
    is_context = annotation == "Iterator[None]"
    return not (inspect.isclass(OBJECTS[name]) or is_context or annotation in (None, "None"))


@pytest.mark.parametrize("name", CALLABLE)
def test_the_signature_names_and_types_every_argument(name: str) -> None:
    for parameter in parameters_of(name):
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            described = re.search(rf"^ +(\w+, )*{parameter.name}: ", docstring_of(name), re.M)
            assert described, parameter
        assert parameter.annotation is not parameter.empty, parameter
    if not inspect.isclass(OBJECTS[name]):
        annotation = inspect.signature(OBJECTS[name]).return_annotation
        assert annotation is not inspect.Signature.empty


@pytest.mark.parametrize("name", OBJECTS)
def test_there_is_a_docstring(name: str) -> None:
    assert docstring_of(name)


def docstring_of(name: str) -> str:
    """Return a docstring, of a method perhaps that of the class that declares it first."""
    return inspect.getdoc(OBJECTS[name]) or ""


def lacks_section(name: str) -> bool:
    text = docstring_of(name)
    lacks_arguments = parameters_of(name) and "Args:" not in text and "Attributes:" not in text
    return bool(lacks_arguments or (returns_something(name) and "Returns:" not in text))


def test_public_names_describe_arguments_and_results() -> None:
    names = [name for name in segunc.__all__ if name in CALLABLE]
    assert {name for name in names if lacks_section(name)} == WITHOUT_SECTIONS


def test_methods_of_several_arguments_describe_them() -> None:
    lacking = set()
    for name in CALLABLE:
        text = docstring_of(name)
        if len(parameters_of(name)) > 1 and "Args:" not in text and "Attributes:" not in text:
            lacking.add(name)
    assert lacking == METHODS_WITHOUT_SECTIONS


def names_of_maps() -> dict[str, Any]:
    """Return the names that the examples of maps take for granted."""
    network = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Conv2d(4, 2, 1))
    model = segunc.wrap(network.eval(), classes=("road", "other"))
    return {"model": segunc.ABNN(alpha=0.1).fit(model), "image": np.zeros((32, 48, 3), np.uint8)}


EXAMPLES = [name for name in segunc.__all__ if ">>>" in (OBJECTS[name].__doc__ or "")]


def test_public_names_have_an_example() -> None:
    assert set(segunc.__all__) - set(EXAMPLES) == WITHOUT_EXAMPLE


@pytest.mark.parametrize("name", sorted(set(EXAMPLES) - VERB_FUNCTIONS))
def test_the_example_runs(name: str) -> None:
    """Those of verbs need data and models: ``tests/cli/test_usage.py`` runs them."""
    value = OBJECTS[name]
    names = dict(vars(sys.modules[value.__module__])) | names_of_maps()
    (example,) = doctest.DocTestFinder(recurse=False).find(value, name, globs=names)
    runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS)
    printed: list[str] = []
    runner.run(example, out=printed.append)
    assert runner.summarize(verbose=False).failed == 0, "".join(printed)
