"""Docstrings of functions that take the fields of a dataclass, made at run time.

They have Google's sections and the markup of Sphinx, as all docstrings here.
"""

from __future__ import annotations

import functools
import inspect
import operator
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from segunc.core.bounds import Bound, meanings

WIDTH = 88  # columns of a line of text in a docstring
INDENT = " " * 4
PLURALS = {
    "path": "paths",
    "path of a file": "paths of files",
    "path of a folder": "paths of folders",
}
_SECTION = re.compile(r"(Args|Returns|Raises|Attributes|Example|Examples):")
_MARKUP = re.compile(r"[*_|^\\]|^--")
"""What Sphinx would read as markup."""


@dataclass(frozen=True)
class Argument:
    """An argument as a docstring describes it.

    Attributes:
        name: of the argument.
        hint: its type, with its bounds.
        default: the default value; MISSING if the argument is required.
        form: how a text is written, such as ``I/N``; empty if any text is right.
        text: what it does.
    """

    name: str
    hint: Any
    default: Any
    form: str
    text: str

    def __str__(self) -> str:
        hint = self.hint
        if self.default is None:
            hint = without_none(hint)
        kind = type_in_words(hint)
        if self.form:
            kind = re.sub(r"\bstr\b", lambda _: f"str ``{self.form}``", kind, count=1)
        text = self.text
        if self.default is not MISSING:
            kind = f"{kind}, default {as_code(repr(self.default))}"
            text = _without_default(text, self.default)
        return f"{self.name} ({kind}): {as_code(text)}"


def _without_default(text: str, default: Any) -> str:
    """Return the text of an argument without its default value, which stands beside the type."""
    value = ",".join(default) if isinstance(default, list) else str(default)
    if isinstance(default, float):
        value = f"{default:g}"
    text = text.replace(f" (default {value})", "")
    text = text.replace(f"(default {value}; ", "(")
    return text.replace(f"(default {value}: ", f"({value}: ")


def type_in_words(hint: Any) -> str:
    """Return what a type accepts, such as ``list of str`` or ``int of at least 1``.

    Args:
        hint: a type as ``get_type_hints`` returns it with its annotations.
    """
    origin = get_origin(hint)
    inner = get_args(hint)
    if hint in (None, NoneType):
        return "None"
    if origin is Annotated:
        return _annotated_in_words(inner[0], inner[1:])
    if origin in (Union, UnionType):
        return _union_in_words(inner)
    if origin is Literal:
        return _alternatives([repr(choice) for choice in inner])
    if origin is tuple:
        return _tuple_in_words(inner)
    if _is_a(origin, Mapping):
        return f"dict of {type_in_words(inner[0])} to {type_in_words(inner[1])}"
    if _is_a(origin, Sequence):
        items = type_in_words(inner[0]).split(" or ")
        return f"list of {' or '.join(PLURALS.get(item, item) for item in items)}"
    if hint is Any:
        return "any value"
    name: str = getattr(hint, "__name__", str(hint))
    return name


def _is_a(origin: Any, kind: type) -> bool:
    return isinstance(origin, type) and issubclass(origin, kind)


def _annotated_in_words(kind: Any, annotations: Sequence[Any]) -> str:
    """Return an annotated type: a number in its bounds, or the path of a file or folder."""
    words = type_in_words(kind)
    for annotation in annotations:
        if isinstance(annotation, Bound):
            words += _bound_in_words(annotation)
        elif annotation in ("file", "folder"):
            words = f"{words} of a {annotation}"
    return words


def _bound_in_words(bound: Bound) -> str:
    if bound.least is not None and bound.most is not None:
        return f" from {bound.least:.10g} to {bound.most:.10g}"
    return str(bound).removeprefix("a number")


def _union_in_words(kinds: Sequence[Any]) -> str:
    """Return alternatives; a text or a ``Path`` is a path."""
    rest = list(kinds)
    words = []
    if str in rest and Path in rest:
        rest.remove(str)
        rest.remove(Path)
        words.append("path")
    words += [type_in_words(kind) for kind in rest]
    return _alternatives(words)


def _tuple_in_words(kinds: Sequence[Any]) -> str:
    if len(kinds) == 2 and kinds[1] is ...:
        return f"tuple of {type_in_words(kinds[0])}"
    words = [type_in_words(kind) for kind in kinds]
    if len(set(words)) == 1:
        return f"tuple of {len(words)} {words[0]}"
    return f"tuple of {', '.join(words)}"


def _alternatives(words: Sequence[str]) -> str:
    """Return ``a, b or c``."""
    *others, last = words
    return f"{', '.join(others)} or {last}" if others else last


def without_none(hint: Any) -> Any:
    """Return a type without its None."""
    if get_origin(hint) not in (Union, UnionType):
        return hint
    return _union([kind for kind in get_args(hint) if kind is not NoneType])


def without_annotations(hint: Any) -> Any:
    """Return a type without what ``Annotated`` adds, as ``X | None`` instead of ``Optional[X]``."""
    origin = get_origin(hint)
    if origin is Annotated:
        return without_annotations(get_args(hint)[0])
    if origin is Literal or origin is None:
        return hint
    inner = [without_annotations(kind) for kind in get_args(hint)]
    if origin in (Union, UnionType):
        return _union(inner)
    return origin[tuple(inner)]


def _union(kinds: Sequence[Any]) -> Any:
    return functools.reduce(operator.or_, kinds)


def as_code(text: str) -> str:
    """Return a text with the words in double backticks that Sphinx would read as markup."""
    words = []
    for word in text.split(" "):
        inner = re.fullmatch(r"([('\"]*)(.+?)([)'\".,;:]*)", word)
        if inner is not None and "`" not in word and _MARKUP.search(inner[2]):
            word = f"{inner[1]}``{inner[2]}``{inner[3]}"
        words.append(word)
    return " ".join(words)


def function_docstring(
    docstring: str, arguments: Sequence[Argument], note: str, result: type
) -> str:
    """Return the docstring of a function with sections on its arguments and its result.

    Args:
        docstring: the function's own. Its first paragraphs, its section ``Raises`` and its examples
            are kept.
        arguments: what the function takes.
        note: a paragraph between the summary and the arguments.
        result: the class that it returns. The section ``Attributes`` of the docstring of that class
            describes the fields.
    """
    text, sections, examples = _split(docstring)
    argument_lines: list[str] = []
    for argument in arguments:
        argument_lines += _wrapped(str(argument))
    parts = [
        text,
        *_wrapped_paragraphs(note),
        _section("Args", argument_lines),
        _section("Returns", _returned(result)),
    ]
    if "Raises" in sections:
        parts.append(_section("Raises", sections["Raises"]))
    if examples:
        parts.append(examples)
    return "\n\n".join(parts)


def _split(docstring: str) -> tuple[str, Mapping[str, list[str]], str]:
    """Return the text of a docstring above its sections, the lines of each section, and the text
    below them.
    """
    text: list[str] = []
    sections: dict[str, list[str]] = {}
    below: list[str] = []
    lines = text
    for line in inspect.cleandoc(docstring).splitlines():
        heading = _SECTION.fullmatch(line)
        if heading is not None:
            lines = sections.setdefault(heading[1], [])
            continue
        in_section = any(lines is section for section in sections.values())
        if line.startswith(">>>") or (in_section and line and not line.startswith(" ")):
            lines = below
        lines.append(line)
    contents = {
        name: _stripped(textwrap.dedent("\n".join(content)).splitlines())
        for name, content in sections.items()
    }
    return "\n".join(text).strip(), contents, "\n".join(below).strip()


def _stripped(lines: Sequence[str]) -> list[str]:
    """Return lines without empty ones at the end."""
    return "\n".join(lines).rstrip().splitlines()


def _returned(result: type) -> list[str]:
    """Return the class of a result with its fields, as lines of a section."""
    summary, _, _ = _split(result.__doc__ or "")
    first = " ".join(summary.split("\n\n")[0].split())
    lines = _wrapped(f"{result.__name__}: {first[0].lower()}{first[1:]}")
    texts = meanings(result, "Attributes")
    if texts:
        lines.append("")
    for name, (_, text) in texts.items():
        lines += textwrap.wrap(f"- ``{name}``: {as_code(text)}", WIDTH, subsequent_indent="  ")
    return lines


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, subsequent_indent=INDENT, break_on_hyphens=False)


def _wrapped_paragraphs(text: str) -> list[str]:
    return [textwrap.fill(text, WIDTH, break_on_hyphens=False)] if text else []


def _section(heading: str, lines: Sequence[str]) -> str:
    return f"{heading}:\n" + textwrap.indent("\n".join(lines), INDENT)
