"""Completion of the command line in a shell, by the library shtab."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn, get_type_hints

from segunc.core.terminal import say
from segunc.options import flags_of, option_fields, parts_of

SHELLS = ("bash", "zsh")


class PrintCompletion(argparse.Action):
    """Print the script that completes verbs, options, choices and paths in a shell.

    Args:
        options_types: the dataclass of the options of each verb.
    """

    def __init__(self, *, options_types: Mapping[str, type], **settings: Any) -> None:
        super().__init__(default=argparse.SUPPRESS, **settings)
        self.options_types = options_types

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> NoReturn:
        try:
            import shtab
        except ModuleNotFoundError:
            message = "--print-completion needs the package shtab, which is not installed"
            parser.error(f"{message}. Hint: pip install 'segunc[completion]'")
        mark_paths(parser, self.options_types, file=shtab.FILE, folder=shtab.DIRECTORY)
        say(shtab.complete(parser, shell=values))
        raise SystemExit(0)


def mark_paths(
    parser: argparse.ArgumentParser, options_types: Mapping[str, type], *, file: Any, folder: Any
) -> None:
    """Say of each option whether its value is a file or a folder.

    Args:
        parser: of all verbs.
        options_types: the dataclass of the options of each verb.
        file: what shtab takes as the attribute ``complete`` of an option for files.
        folder: the same for folders.
    """
    verbs = next(action for action in parser._actions if action.dest == "verb")
    parsers: Any = verbs.choices
    for verb, options_type in options_types.items():
        hints = get_type_hints(options_type, include_extras=True)
        actions = parsers[verb]._option_string_actions
        for option_field in option_fields(options_type):
            action: Any = actions.get(flags_of(option_field)[0])
            parts = parts_of(hints[option_field.name])
            if action is None:
                continue
            if "folder" in parts:
                action.complete = folder
            elif Path in parts:
                action.complete = file
