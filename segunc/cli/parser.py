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
from collections.abc import Callable, Sequence
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, NoReturn, Union, get_args, get_origin, get_type_hints

from segunc.core.bounds import check_device, meanings
from segunc.core.errors import InputError
from segunc.core.terminal import say, visible
from segunc.options import default_of, flags_of, option_fields, parts_of, several


class Parser(argparse.ArgumentParser):
    """Parser that says what is wrong in one line, and once more as JSON for who asked for it, and
    exits with 2.
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
        self.exit(2, f"{self.prog}: error: {visible(message)}; {hint}\n")


def add_options(parser: argparse.ArgumentParser, options: type) -> None:
    """Add a dataclass's options, and under a title those of each of its bases: the first words of
    its docstring.
    """
    kinds, texts = get_type_hints(options, include_extras=True), meanings(options)
    for section in options.__mro__:
        title = re.split(r"[:.]", inspect.cleandoc(section.__doc__ or ""), maxsplit=1)[0]
        group = parser.add_argument_group(
            "the verb's own options" if section is options else title.lower()
        )
        exclusive: Any = None
        for field in option_fields(options):
            if field.name in inspect.get_annotations(section):
                flags, settings = _argument(field, kinds[field.name], *texts[field.name])
                one_of = settings.pop("exclusive", False)
                exclusive = exclusive or (
                    group.add_mutually_exclusive_group(required=True) if one_of else None
                )
                (exclusive if one_of else group).add_argument(*flags, **settings)


def add_keys(parser: argparse.ArgumentParser, section: Any) -> None:
    """Add the keys of a section of a configuration, for its help."""
    texts, (about, *_) = meanings(section), inspect.cleandoc(section.__doc__ or "").splitlines()
    group = parser.add_argument_group(f"{section.section} ({about.rstrip('.')})")
    for key in dataclasses.fields(section):
        default = (
            "required" if default_of(key) is dataclasses.MISSING else f"default {default_of(key)}"
        )
        text = f"{texts.get(key.name, ('', ''))[1]} ({default})"
        group.add_argument(
            f"--{section.section}.{key.name}", metavar="", help=text.replace("%", "%%")
        )


def parsed(options: type, arguments: argparse.Namespace, **further: Any) -> Any:
    """Return what was given on the command line as the dataclass of a verb's options."""
    return options(
        **{field.name: getattr(arguments, field.name) for field in option_fields(options)},
        **further,
    )


def reader_of(kind: Any) -> tuple[Any, Callable[[str], Any] | None]:
    """Return the plain type of an option, of ``X | None`` the X, and what reads a word of it; None
    for a text.
    """
    if get_origin(kind) in (Union, UnionType):
        kind = get_args(kind)[0]
    kind, *annotations = get_args(kind) if get_origin(kind) is Annotated else (kind,)
    return kind, next(filter(callable, annotations), kind if kind in (int, float) else None)


def _argument(
    field: dataclasses.Field[Any], kind: Any, placeholder: str, about: str
) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Return names and settings of an option for argparse's ``add_argument``."""
    flags, default = flags_of(field), default_of(field)
    settings: dict[str, Any] = {"help": about.replace("%", "%%"), **field.metadata}
    settings.pop("flags", None)
    if placeholder:
        settings["metavar"] = placeholder
    is_list = any(get_origin(each) is Sequence for each in (kind, *get_args(kind)))
    kind, reader = reader_of(kind)
    if get_origin(kind) is Literal:
        settings["choices"] = get_args(kind)
    elif reader is not None:
        settings["type"] = reader
    elif is_list:
        settings["nargs"] = "+"
    if place := settings.pop("choices_of", None):
        module, _, name = place.partition(":")
        settings["choices"] = tuple(getattr(importlib.import_module(module), name))
    if not flags[0].startswith("-"):
        return flags, settings
    required = {"required": True} if default is dataclasses.MISSING else {"default": default}
    return flags, {
        **settings,
        "dest": field.name,
        **({"action": "store_true"} if kind is bool else required),
    }


def check_options(options: Any) -> None:
    """Raise InputError where a path or a device of a verb's options cannot be, before torch is
    imported, which takes seconds.
    """
    hints = get_type_hints(type(options), include_extras=True)
    values = {field.name: getattr(options, field.name) for field in dataclasses.fields(options)}
    for field in dataclasses.fields(options):
        kinds = {"folder", "file"}.intersection(map(str, parts_of(hints[field.name])))
        if field.name == "input" or (kinds and field.name not in ("out", "plots", "events")):
            for name in several(values[field.name] or ()):
                if field.name != "input" or not glob.has_magic(str(name)):
                    path = Path(name).expanduser()
                    if not path.exists() or ("folder" in kinds and not path.is_dir()):
                        lack = "is no folder" if path.exists() else "does not exist"
                        raise InputError(
                            f"{flags_of(field)[0]} {path} {lack}", hint="check the path"
                        )
    check_device(values.get("device", "auto"))
