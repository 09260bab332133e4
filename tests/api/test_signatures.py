"""What ``help``, ``inspect`` and editors show of the verbs, and what a wrong call says."""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

import segunc
from segunc.cli.main import VERBS, build_parser, options_of
from segunc.cli.run import FUNCTIONS
from segunc.core.bounds import Bound
from segunc.core.docstrings import Argument, as_code, type_in_words, without_annotations
from segunc.core.errors import PARAMETERS
from segunc.core.results import VerbResult, value_in_words
from segunc.options import File, Names, Options, Size, flags_of, takes


def verb_function(name: str) -> Callable[..., Any]:
    function: Callable[..., Any] = getattr(segunc, FUNCTIONS.get(name, name))
    return function


def actions_of(name: str) -> dict[str, argparse.Action]:
    """Return what the command line takes for a verb, by the name of the argument."""
    subparsers = next(
        action
        for action in build_parser()._actions
        if isinstance(action, argparse._SubParsersAction)
    )
    actions = {action.dest: action for action in subparsers.choices[name]._actions}
    for common in ("help", "help_all", "json", "debug"):
        del actions[common]
    return actions


@pytest.mark.parametrize("name", VERBS)
def test_the_signature_of_a_verb_has_the_options_of_the_command_line(name: str) -> None:
    parameters = dict(inspect.signature(verb_function(name)).parameters)
    settings = parameters.pop("settings", None)
    assert (settings is not None) == (name in ("train", "finetune"))
    actions = actions_of(name)
    assert set(parameters) == set(actions)
    for option, action in actions.items():
        default = parameters[option].default
        if default is inspect.Parameter.empty:
            assert action.required
        else:
            assert default == action.default


@pytest.mark.parametrize("name", VERBS)
def test_the_help_of_a_verb_describes_every_argument_and_every_field_of_its_result(
    name: str,
) -> None:
    function = verb_function(name)
    signature = inspect.signature(function)
    _, arguments, returned, _ = re.split(
        r"^(?:Args|Returns|Raises):\n", function.__doc__ or "", flags=re.M
    )
    described = re.findall(r"^    (\w+) \((?=.*): ?|^    (\w+) \(", arguments, re.M)
    assert ["".join(names) for names in described] == list(signature.parameters)
    fields = [field.name for field in dataclasses.fields(signature.return_annotation)]
    assert re.findall(r"^    - ``(\w+)``: ", returned, re.M) == fields
    assert "--" not in arguments
    assert max(len(line) for line in arguments.splitlines()) <= 100


@pytest.mark.parametrize("name", VERBS)
def test_the_annotations_of_a_verb_are_types(name: str) -> None:
    function = verb_function(name)
    assert function.__annotations__.keys() == {*inspect.signature(function).parameters, "return"}
    for annotation in function.__annotations__.values():
        assert not isinstance(annotation, str)
        assert "Annotated" not in repr(annotation)


def test_required_keywords_come_first_and_those_of_all_verbs_last() -> None:
    assert str(inspect.signature(segunc.finetune)).startswith("(*, base: ")
    assert list(inspect.signature(segunc.finetune).parameters) == [
        "base",
        "out",
        "config",
        "method",
        "settings",
        "trust",
        "device",
    ]
    assert list(inspect.signature(segunc.predict).parameters)[:4] == [
        "model",
        "input",
        "out",
        "compact",
    ]


def test_arguments_are_described_in_words_of_python() -> None:
    text = " ".join((segunc.evaluate.__doc__ or "").split())
    assert "draws (int from 1 to 4096, default 8): number of sampled networks seed" in text
    assert "config (path of a file, default None): configuration file whose section" in text
    assert "instead of ``dataset``, ``root`` and ``label_map``" in text
    assert "corruption (str ``NAME:N``, default None): with ``model``, corrupt" in text
    assert "(may be repeated)" not in text


@pytest.mark.parametrize(
    ("hint", "words"),
    [
        (int, "int"),
        (Annotated[int, Bound(above=0)], "int above 0"),
        (Annotated[float, Bound(least=0, most=1)], "float from 0 to 1"),
        (Annotated[float, Bound(least=0, below=1)], "float of at least 0 and below 1"),
        (str | Path, "path"),
        (File, "path of a file"),
        (File | list[File], "path of a file or list of paths of files"),
        (list[File | int], "list of paths of files or int"),
        (Names | None, "list of str or None"),
        (Size, "tuple of 2 int from 32 to 16384"),
        (tuple[str, int], "tuple of str, int"),
        (tuple[int, ...], "tuple of int"),
        (dict[str, tuple[float, float]], "dict of str to tuple of 2 float"),
        (Literal["png", "jpg", None], "'png', 'jpg' or None"),
        (Any, "any value"),
    ],
)
def test_types_in_words(hint: Any, words: str) -> None:
    assert type_in_words(hint) == words


@pytest.mark.parametrize(
    ("hint", "plain"),
    [
        (Size | None, tuple[int, int] | None),
        (File, str | Path),
        (dict[str, Annotated[float, Bound(above=0)]], dict[str, float]),
        (Literal["a"] | None, Literal["a"] | None),
    ],
)
def test_a_signature_has_types_without_their_bounds(hint: Any, plain: Any) -> None:
    assert without_annotations(hint) == plain


@pytest.mark.parametrize(
    ("text", "marked"),
    [
        ("e.g. masks or *_L.png", "e.g. masks or ``*_L.png``"),
        ("weights (state_dict).", "weights (``state_dict``)."),
        ("already ``a_b`` marked", "already ``a_b`` marked"),
        ("2 * 3 is plain", "2 ``*`` 3 is plain"),
    ],
)
def test_words_that_sphinx_would_read_as_markup_are_code(text: str, marked: str) -> None:
    assert as_code(text) == marked


def test_a_default_stands_once() -> None:
    argument = Argument("device", str, "auto", "", "where (default auto: a GPU if there is one)")
    assert str(argument) == "device (str, default 'auto'): where (auto: a GPU if there is one)"


@dataclasses.dataclass(frozen=True, kw_only=True)
class CutOptions(Options):
    """Cut.

    Args:
        length: of what is cut, in metres
        folds (N): number of folds
    """

    length: float
    folds: int = 2


@dataclasses.dataclass(frozen=True, repr=False)
class CutResult(VerbResult):
    """What was cut.

    Attributes:
        parts: their lengths.
        note: what a user should know.
    """

    parts: tuple[float, ...]
    note: str = ""


@takes(CutOptions)
def cut(options: CutOptions) -> CutResult:
    """Cut something into parts.

    The parts have one length.

    Raises:
        InputError: there is nothing to cut.

    >>> cut(length=1.0).parts
    (0.5, 0.5)
    """
    return CutResult((options.length / options.folds,) * options.folds)


def test_the_docstring_of_a_verb_keeps_its_text_its_errors_and_its_example() -> None:
    assert cut.__doc__ == (
        """\
Cut something into parts.

The parts have one length.

One :class:`segunc.options.CutOptions` may stand for all arguments.

Args:
    length (float): of what is cut, in metres
    folds (int, default 2): number of folds

Returns:
    CutResult: what was cut.

    - ``parts``: their lengths.
    - ``note``: what a user should know.

Raises:
    InputError: there is nothing to cut.

>>> cut(length=1.0).parts
(0.5, 0.5)"""
    )


def test_a_verb_takes_its_fields_or_one_object_of_its_options() -> None:
    assert cut(length=3.0, folds=3) == CutResult((1.0, 1.0, 1.0))
    assert cut(CutOptions(length=3.0, folds=3)) == CutResult((1.0, 1.0, 1.0))


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"length": 1.0, "fold": 2}, r"^cut\(\) has no argument `fold` \(did you mean folds\?\)$"),
        (
            {"length": 1.0, "xyz": 2},
            r"^cut\(\) has no argument `xyz`\. Hint: help\(segunc\.cut\) shows what it takes$",
        ),
        ({"folds": 2}, r"^cut\(\) needs `length`\. Hint: help\(segunc\.cut\) shows"),
    ],
)
def test_a_wrong_keyword_is_one_sentence(keywords: dict[str, Any], message: str) -> None:
    function: Callable[..., Any] = cut
    with pytest.raises(segunc.InputError, match=message) as raised:
        function(**keywords)
    assert isinstance(raised.value, TypeError)


def test_wrong_positions_are_one_sentence() -> None:
    function: Callable[..., Any] = cut
    with pytest.raises(segunc.InputError, match=r"^cut\(\) got too many positional arguments\."):
        function(1.0)
    with pytest.raises(TypeError, match=r"^predict\(\) needs `input` and `out`\."):
        segunc.predict("runs/abnn")  # type: ignore[call-overload]
    with pytest.raises(TypeError, match=r"^predict\(\) got multiple values for argument 'model'"):
        segunc.predict("runs/abnn", "a.png", out="maps", model="runs/abnn")  # type: ignore[call-overload]


def test_the_options_of_another_verb_are_refused() -> None:
    function: Callable[..., Any] = cut
    with pytest.raises(segunc.InputError, match=r"^cut\(\) takes CutOptions, not CompareOptions$"):
        function(options_of("compare")(["a.json"]))


def test_a_value_out_of_range_is_named_as_the_argument() -> None:
    with pytest.raises(segunc.InputError) as raised:
        segunc.predict("runs/abnn", "a.png", out="maps", draws=0)
    assert str(raised.value) == (
        "`draws` 0 is not a number of at least 1 and at most 4096. Hint: see help() of the function"
    )
    with pytest.raises(segunc.InputError, match=r"^`ranges\.entropy` nan is not finite"):
        segunc.overlay("maps", "figures", ranges={"entropy": (float("nan"), 1.0)})


def test_options_that_python_names_otherwise_are_known() -> None:
    others = {}
    for name in VERBS:
        for field in dataclasses.fields(options_of(name)):
            flag = flags_of(field)[0].removeprefix("--")
            if flag.replace("-", "_") != field.name:
                others[flag] = field.name
    assert others == PARAMETERS


def test_a_result_prints_its_fields_in_lines() -> None:
    assert repr(CutResult((0.25,) * 6, "one was\n left")) == (
        "CutResult\n  parts: 0.25, 0.25, 0.25, 0.25 and 2 more\n  note: one was left"
    )
    assert repr(CutResult(())) == "CutResult\n  parts: none"


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (Path("maps"), "maps"),
        ("x" * 100, "x" * 80 + "..."),
        (1 / 3, "0.333333"),
        (None, "None"),
        ({"entropy": 0.25, "other": {}}, "entropy=0.25, other"),
        ({}, "empty"),
        ((CutResult(()), CutResult(())), "2 of CutResult"),
        (CutResult(()), "CutResult"),
    ],
)
def test_values_of_results_in_words(value: Any, words: str) -> None:
    assert value_in_words(value) == words


@pytest.mark.parametrize("name", VERBS)
def test_the_result_of_a_verb_is_a_frozen_dataclass(name: str) -> None:
    result = inspect.signature(verb_function(name)).return_annotation
    assert issubclass(result, VerbResult)
    assert result.__dataclass_params__.frozen
