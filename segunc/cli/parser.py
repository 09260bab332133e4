"""Make argparse's options from the dataclass of a verb's options, read them back, and check them
before a verb imports torch.
"""

from __future__ import annotations

import argparse
import dataclasses
import glob
import importlib
import inspect
import json
import re
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, NoReturn, Union, get_args, get_origin, get_type_hints

from segunc.core.bounds import check_device, meanings
from segunc.core.errors import InputError
from segunc.core.files import nearest_path
from segunc.core.signatures import default_of
from segunc.core.terminal import say, visible
from segunc.core.urls import is_live, is_url, split_topic
from segunc.options import (
    OUTPUT_OPTIONS,
    flags_of,
    is_source,
    option_fields,
    parts_of,
    several,
)

HELP_WIDTH = 79  # columns of a description, which argparse does not wrap
BAD_USAGE = 2  # exit code
_ROLE = re.compile(r":\w+:`[~.]?([^`]*)`")
"""Markup of Sphinx for the name of a module, a class or a function."""


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Formatter of help that breaks no word at a hyphen, so that names stay whole."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)


class StoreOption(argparse.Action):
    """Store the value of an option. Values of a repeated option are added if it takes several. Of
    any other repeated option the last value counts, as scripts expect, and a note says so.
    """

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        earlier_options: frozenset[str] = getattr(namespace, "given_options", frozenset())
        if self.dest in earlier_options:
            values = self._added(getattr(namespace, self.dest), values)
        namespace.given_options = earlier_options | {self.dest}
        setattr(namespace, self.dest, values)

    def _added(self, earlier: Any, later: Any) -> Any:
        """Return what two uses of the option are together."""
        if isinstance(earlier, list):
            return [*earlier, *later]
        if not isinstance(earlier, Mapping):
            if earlier != later:
                name = self.option_strings[0]
                say(
                    f"note: {name} is given twice; {later} counts, {earlier} does not",
                    stream=sys.stderr,
                )
            return later
        for name in later:
            if name in earlier:
                raise argparse.ArgumentError(self, f"'{name}' is given twice")
        return {**earlier, **later}


class Parser(argparse.ArgumentParser):
    """Parser that says in one line what is wrong, and exits with 2.

    Args:
        as_json: also print the error as one line of JSON.
        settings: arguments of argparse's ``ArgumentParser``.
    """

    def __init__(self, *, as_json: bool = False, **settings: Any) -> None:
        # Abbreviated options would change their meaning when an option is added, and would swallow
        # configuration keys.
        super().__init__(**settings, allow_abbrev=False)
        self.as_json = as_json

    def _print_message(self, message: str, file: Any = None) -> None:
        say(message, stream=file or sys.stderr, end="")

    def error(self, message: str) -> NoReturn:
        hint = f"see {self.prog} --help"
        if self.as_json:
            say(json.dumps({"error": visible(message), "hint": hint}))
        self.exit(BAD_USAGE, f"{self.prog}: error: {visible(message)}; {hint}\n")


def paragraphs_of(documented: type) -> list[str]:
    """Return the paragraphs of a class's docstring above its arguments, each as one line."""
    text = inspect.cleandoc(documented.__doc__ or "")
    above_arguments = re.split(r"(?:^|\n)(?:Args|Raises):\n", text)[0].strip()
    return [" ".join(paragraph.split()) for paragraph in above_arguments.split("\n\n")]


def description_of(options: type) -> str:
    """Return what a verb does, from the docstring of its options, wrapped for a terminal."""
    wrapped = [textwrap.fill(paragraph, HELP_WIDTH) for paragraph in paragraphs_of(options)]
    return "\n\n".join(wrapped)


def add_options(parser: argparse.ArgumentParser, options: type) -> None:
    """Add the options of a dataclass to a parser, in one group for each class that declares some.

    The options that a base class declares stand below the first words of its docstring.
    """
    kinds = get_type_hints(options, include_extras=True)
    texts = meanings(options)
    for section in options.__mro__:
        group = parser.add_argument_group(_title_of(section, options))
        required_choice: Any = None  # the group of the options of which one is required
        for field in option_fields(options):
            if field.name not in inspect.get_annotations(section):
                continue
            placeholder, text = texts[field.name]
            flags, settings = _argument(field, kinds[field.name], placeholder, text)
            if settings.pop("exclusive", False):
                if required_choice is None:
                    required_choice = group.add_mutually_exclusive_group(required=True)
                required_choice.add_argument(*flags, **settings)
            else:
                group.add_argument(*flags, **settings)


def _title_of(section: type, options: type) -> str:
    """Return the title of a group of options in the help."""
    if section is options:
        return "options of this verb"
    first_words = re.split(r"[:.]", paragraphs_of(section)[0], maxsplit=1)[0]
    return first_words.lower()


def add_keys(parser: argparse.ArgumentParser, section: Any) -> None:
    """Add the keys of a section of a configuration, for its help."""
    texts = meanings(section)
    first_sentence = paragraphs_of(section)[0].split(". ")[0]
    group = parser.add_argument_group(f"{section.section}: {plain(first_sentence).rstrip('.')}")
    for key in dataclasses.fields(section):
        _, text = texts.get(key.name, ("", ""))
        help_text = f"{plain(text).rstrip('.')} ({_shown_default(default_of(key))})"
        group.add_argument(
            f"--{section.section}.{key.name}",
            action="store_true",  # shows no placeholder; this parser only prints help
            help=help_text.replace("%", "%%"),
        )


def plain(text: str) -> str:
    """Return a text of a docstring without the markup of Sphinx."""
    return _ROLE.sub(r"\1", text).replace("``", "")


def _shown_default(value: Any) -> str:
    """Return the default of a key as a configuration file would write it."""
    if value is dataclasses.MISSING:
        return "required"
    if value is None or value == "":
        return "default none"
    if isinstance(value, str):
        return f"default {value}"
    return f"default {json.dumps(value, default=str)}"


def parsed(options: type, arguments: argparse.Namespace, **further: Any) -> Any:
    """Return what was given on the command line as the dataclass of a verb's options."""
    values = {field.name: getattr(arguments, field.name) for field in option_fields(options)}
    return options(**values, **further)


def reader_of(kind: Any) -> tuple[Any, Callable[[str], Any] | None]:
    """Return the plain type of an option, and the function that reads a word of it.

    Args:
        kind: the annotation of the field; of ``X | None``, X is taken.

    Returns:
        The type without its annotations, and the reader, which is None for a text.
    """
    if get_origin(kind) in (Union, UnionType):
        kind = get_args(kind)[0]
    annotations: Sequence[Any] = ()
    if get_origin(kind) is Annotated:
        kind, *annotations = get_args(kind)
    for annotation in annotations:
        if callable(annotation):
            return kind, annotation
    return kind, kind if kind in (int, float) else None


def _argument(
    field: dataclasses.Field[Any], kind: Any, placeholder: str, text: str
) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Return names and settings of an option for argparse's ``add_argument``."""
    flags = flags_of(field)
    settings: dict[str, Any] = {"help": text.replace("%", "%%"), **field.metadata}
    settings.pop("flags", None)
    settings.pop("in_python", None)
    if placeholder:
        settings["metavar"] = placeholder
    plain_kind, reader = reader_of(kind)
    if get_origin(plain_kind) is Literal:
        settings["choices"] = get_args(plain_kind)
    elif reader is not None:
        settings["type"] = reader
    elif any(get_origin(part) is Sequence for part in (kind, *get_args(kind))):
        settings["nargs"] = "+"
    table = settings.pop("choices_of", None)
    if table:
        module, _, name = table.partition(":")
        settings["choices"] = tuple(getattr(importlib.import_module(module), name))
    if not flags[0].startswith("-"):
        return flags, settings
    settings["dest"] = field.name
    default = default_of(field)
    if plain_kind is bool:
        settings["action"] = "store_true"
        return flags, settings
    settings["action"] = StoreOption
    if default is dataclasses.MISSING:
        settings["required"] = True
    else:
        settings["default"] = default
    return flags, settings


def check_options(options: Any) -> None:
    """Raise InputError where an input does not exist or a device has no such name.

    This comes before torch is imported, which takes seconds.
    """
    hints = get_type_hints(type(options), include_extras=True)
    for field in dataclasses.fields(options):
        if field.name in OUTPUT_OPTIONS:
            continue
        parts = parts_of(hints[field.name])
        is_choice = get_origin(hints[field.name]) is Literal  # export --input names a form
        may_be_pattern = field.name == "input" and not is_choice
        if not may_be_pattern and "folder" not in parts and "file" not in parts:
            continue
        for name in several(getattr(options, field.name) or ()):
            if "source" in parts and is_source(name):
                continue
            if may_be_pattern and is_live(name):
                continue
            if may_be_pattern:
                name, _ = split_topic(name)
            if is_url(name) and (may_be_pattern or "url" in parts):
                continue
            if not (may_be_pattern and glob.has_magic(str(name))):
                must_be_folder = "folder" in parts
                what = flags_of(field)[0]
                if not what.startswith("-"):
                    what = "folder" if must_be_folder else "file"
                _check_input(what, Path(name).expanduser(), must_be_folder)
    check_device(getattr(options, "device", "auto"))


def _check_input(what: str, path: Path, must_be_folder: bool) -> None:
    """Raise InputError where an input does not exist or is not a folder.

    Args:
        what: the option that names it, or what a word without an option stands for.
        path: the input.
        must_be_folder: whether a file is refused.
    """
    if not path.exists():
        near = nearest_path(path)
        raise InputError(f"{what} {path} does not exist{near}", hint="check the path")
    if must_be_folder and not path.is_dir():
        raise InputError(f"{what} {path} is not a folder", hint="check the path")
