"""Signatures of functions that take the fields of a dataclass."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field
from typing import Any, get_type_hints

from segunc.core.docstrings import without_annotations
from segunc.core.errors import CallError, nearest


def default_of(field: Field[Any]) -> Any:
    """Return the default of a field, MISSING where it is required."""
    if field.default_factory is MISSING:
        return field.default
    return field.default_factory()


def signature_of(dataclass: type, result_type: type) -> inspect.Signature:
    """Return the signature of a function of the fields of a dataclass, with their types and
    defaults.

    Keywords stand in the order in which a reader needs them: what is required, what the dataclass
    itself declares, and what its bases declare.

    Args:
        dataclass: whose fields the function takes.
        result_type: what the function returns.
    """
    hints = get_type_hints(dataclass, include_extras=True)
    own = inspect.get_annotations(dataclass)
    positional: list[inspect.Parameter] = []
    keywords: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(dataclass).parameters.items():
        default = default_of(dataclass.__dataclass_fields__[name])  # type: ignore[attr-defined]
        parameter = parameter.replace(
            annotation=without_annotations(hints[name]),
            default=parameter.empty if default is MISSING else default,
        )
        is_keyword = parameter.kind is parameter.KEYWORD_ONLY
        (keywords if is_keyword else positional).append(parameter)

    def place(parameter: inspect.Parameter) -> tuple[bool, bool]:
        return parameter.default is not parameter.empty, parameter.name not in own

    parameters = [*positional, *sorted(keywords, key=place)]
    return inspect.Signature(parameters, return_annotation=result_type)


def annotations_of(signature: inspect.Signature) -> dict[str, Any]:
    """Return the annotations of a function with a signature."""
    annotations = {name: each.annotation for name, each in signature.parameters.items()}
    return annotations | {"return": signature.return_annotation}


def check_call(
    name: str,
    signature: inspect.Signature,
    arguments: Sequence[Any],
    keywords: Mapping[str, Any],
) -> None:
    """Check that a function takes these arguments, whatever their values are.

    Args:
        name: of the function, a public name of the package.
        signature: of the function.
        arguments: those without a name.
        keywords: those with one.

    Raises:
        CallError: an argument is unknown, given twice or missing.
    """
    how = f"help(segunc.{name}) shows what it takes"
    for keyword in keywords:
        if keyword not in signature.parameters:
            near = nearest(keyword, signature.parameters)
            raise CallError(f"{name}() has no argument `{keyword}`{near}", "" if near else how)
    try:
        given = signature.bind_partial(*arguments, **keywords).arguments
    except TypeError as error:
        raise CallError(f"{name}() got {error}", how) from None
    lacking = [
        f"`{parameter.name}`"
        for parameter in signature.parameters.values()
        if parameter.default is parameter.empty and parameter.name not in given
    ]
    if lacking:
        raise CallError(f"{name}() needs {' and '.join(lacking)}", how)
