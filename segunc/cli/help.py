"""The help of a verb: one screen first, and all options behind ``--help-all``."""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from segunc.cli.parser import HelpFormatter, Parser, add_keys, paragraphs_of
from segunc.core.terminal import say

COMMON: Mapping[str, tuple[str, ...]] = {
    "demo": ("out", "seed", "device"),
    "init": ("data", "out", "images", "labels", "label_map", "void", "labelled_only", "update"),
    "import": ("source", "out", "weights", "classes", "mean", "std", "size", "trust"),
    "train": ("config", "out", "seeds", "device"),
    "finetune": ("base", "config", "out", "method", "device"),
    "predict": (
        "model",
        "input",
        "out",
        "overlay",
        "scores",
        "flag",
        "draws",
        "seed",
        "size",
        "device",
    ),
    "evaluate": (
        "maps",
        "model",
        "anomaly_labels",
        "labels",
        "dataset",
        "root",
        "config",
        "scores",
        "groups",
        "flag",
        "out",
    ),
    "threshold": (
        "maps",
        "anomaly_labels",
        "labels",
        "config",
        "control",
        "level",
        "method",
        "score",
        "unit",
        "place",
        "out",
    ),
    "review": ("maps", "anomaly_labels", "config", "scores", "flag", "verdicts", "out"),
    "summary": ("maps", "score", "statistic", "top", "apart", "flag", "events", "out"),
    "monitor": ("threshold", "maps", "reference", "verdicts", "statistic", "level", "out", "plot"),
    "watch": (
        "model",
        "input",
        "flag",
        "out",
        "draws",
        "max_latency",
        "every_frame",
        "stall",
        "keep",
        "reference",
        "device",
    ),
    "overlay": ("maps", "out", "score", "frames", "flag", "format", "video", "video_format"),
    "compare": ("results", "out", "names", "scores", "keys", "baseline", "flag", "page"),
    "report": ("model", "runs", "maps", "config", "threshold", "monitor", "domain", "out"),
    "export": ("model", "maps", "to", "out", "score", "draws", "size", "scores", "threshold"),
    "doctor": ("model", "image", "draws", "seed", "size", "device"),
}
"""The options of each verb that most people need, as ``--help`` shows them. Required ones are among
them."""
OPTION_COLUMN = 26
"""Column at which the meaning of an option begins."""
MAX_LINES = 3
"""Lines of an option's meaning on the first screen."""
MAX_CHOICES = 60
"""Characters of the choices of an option that are shown on the first screen."""
_END_OF_SENTENCE = re.compile(r"(?<!e\.g)\. ")


class ShortHelp(argparse.Action):
    """Print the first screen of the help of a verb: what most people need, on one screen.

    Args:
        options_type: the dataclass of the verb's options.
        example: words of an example.
        common: names of the options that are shown.
        configured: whether the verb has a configuration.
    """

    def __init__(
        self,
        *,
        options_type: type,
        example: str,
        common: Iterable[str],
        configured: bool,
        **settings: Any,
    ) -> None:
        super().__init__(nargs=0, default=argparse.SUPPRESS, **settings)
        self.options_type = options_type
        self.example = example
        self.common = tuple(common)
        self.configured = configured

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        say(self.text(parser))
        raise SystemExit(0)

    def text(self, parser: argparse.ArgumentParser) -> str:
        """Return the screen.

        Args:
            parser: of the verb, with all its options.
        """
        width = parser._get_formatter()._width
        actions = {action.dest: action for action in parser._actions}
        shown = [actions[name] for name in self.common]
        lines = _joined(_usage(parser, shown), width)
        lines += ["", *textwrap.wrap(paragraphs_of(self.options_type)[0], width)]
        # A line of an example breaks only before an option, so that it can be pasted.
        words = re.split(r" (?=--)", f"  {parser.prog} {self.example}")
        lines += ["", "example:", *_joined(words, width, end=" \\")]
        lines += ["", "options:"]
        for action in shown:
            lines += _lines_of(action, width)
        helps = [action for action in parser._actions if isinstance(action, ShortHelp | FullHelp)]
        count = len(parser._actions) - len(helps)
        keys = " and the keys of the configuration" if self.configured else ""
        pointer = f"{parser.prog} --help-all shows all {count} options{keys}."
        lines += ["", *textwrap.wrap(pointer, width, break_on_hyphens=False)]
        return "\n".join(lines)


class FullHelp(argparse.Action):
    """Print all options of a verb; of a verb with a configuration also its keys.

    The keys are those of the method that stands before ``--help-all``, or of the usual one.

    Args:
        configured: whether the verb has a configuration.
    """

    def __init__(self, *, configured: bool, **settings: Any) -> None:
        super().__init__(nargs=0, default=argparse.SUPPRESS, **settings)
        self.configured = configured

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, *_: Any
    ) -> NoReturn:
        parser.print_help()
        if self.configured:
            _print_keys(getattr(namespace, "method", None))
        raise SystemExit(0)


def _print_keys(method: str | None) -> None:
    """Print the keys of the configuration of a method, or of the usual one."""
    from segunc.verbs.training import settings_of

    keys = Parser(add_help=False, usage=argparse.SUPPRESS, formatter_class=HelpFormatter)
    for section in settings_of(method):
        add_keys(keys, section)
    say("\nkeys of the configuration, in a YAML file (--config) or as --KEY VALUE:\n")
    keys.print_help(sys.stdout)


def add_help(
    parser: argparse.ArgumentParser,
    verb: str,
    options_type: type,
    *,
    example: str,
    configured: bool,
) -> None:
    """Add ``--help`` and ``--help-all`` to the parser of a verb.

    Args:
        parser: of the verb.
        verb: its name.
        options_type: the dataclass of its options.
        example: words of an example.
        configured: whether it has a configuration, whose keys ``--help-all`` shows.
    """
    parser.add_argument(
        "-h",
        "--help",
        action=ShortHelp,
        options_type=options_type,
        example=example,
        common=COMMON[verb],
        configured=configured,
        help="show the options that most people need, and exit",
    )
    keys = " and the keys of the configuration" if configured else ""
    parser.add_argument(
        "--help-all",
        action=FullHelp,
        configured=configured,
        help=f"show all options{keys}, and exit",
    )


def _usage(parser: argparse.ArgumentParser, shown: Iterable[argparse.Action]) -> list[str]:
    """Return the command with the options that cannot be left out, word by word."""
    words = [f"usage: {parser.prog}"]
    words += [_typed(action) for action in shown if action.required]
    for group in parser._mutually_exclusive_groups:
        if group.required:
            choices = " | ".join(_typed(action) for action in group._group_actions)
            words.append(f"({choices})")
    return [*words, "[options]"]


def _typed(action: argparse.Action) -> str:
    """Return the first name of an option with its placeholder, or with its choices if these are
    few."""
    placeholder = str(action.metavar or action.dest.upper())
    if action.choices is not None and not _has_many_choices(action):
        placeholder = "|".join(map(str, action.choices))
    if action.nargs == 0:
        placeholder = ""
    elif action.nargs == "+":
        placeholder = f"{placeholder} ..."
    name = action.option_strings[0] if action.option_strings else ""
    return f"{name} {placeholder}".strip()


def _has_many_choices(action: argparse.Action) -> bool:
    """Return whether the choices of an option are too many for the line of its name."""
    return len("|".join(map(str, action.choices or ()))) > MAX_CHOICES


def _lines_of(action: argparse.Action, width: int) -> list[str]:
    """Return an option with the first sentence of its meaning, as far as the lines allow."""
    typed = f"  {_typed(action)}"
    meaning = _END_OF_SENTENCE.split(str(action.help).replace("%%", "%"), maxsplit=1)[0]
    if _has_many_choices(action):
        meaning = f"{meaning}: {', '.join(map(str, action.choices or ()))}"
    indent = " " * OPTION_COLUMN
    wrapped = textwrap.wrap(
        meaning,
        width,
        initial_indent=indent,
        subsequent_indent=indent,
        break_on_hyphens=False,
        max_lines=MAX_LINES,
        placeholder=" ...",
    )
    if len(typed) >= OPTION_COLUMN:
        return [typed, *wrapped]
    return [typed + wrapped[0][len(typed) :], *wrapped[1:]]


def _joined(words: Iterable[str], width: int, end: str = "") -> list[str]:
    """Return words in lines, of which all but the last have an ``end``, and all but the first an
    indent."""
    lines: list[str] = []
    line = ""
    for word in words:
        if line and len(f"{line} {word}{end}") > width:
            lines.append(f"{line}{end}")
            line = f"    {word}"
        else:
            line = f"{line} {word}" if line else word
    return [*lines, line]
