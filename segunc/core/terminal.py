"""The one place that prints: texts that come from files reach a terminal as characters that can be
seen, never as commands to it.
"""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Sequence
from typing import TextIO

_COMMANDS = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""Control characters (C0, DEL, C1), line separators, and marks that change the direction in which a
text is read.
"""
_OF_LAYOUT = re.compile(rf"(?![\n\t]){_COMMANDS.pattern}")


def visible(text: object, *, layout: bool = False) -> str:
    """Return a text with an escape such as ``\\x1b`` in the place of each character that a terminal
    would obey instead of show; with ``layout`` line breaks and tabs stay, of a text whose lines are
    made here.
    """
    pattern = _OF_LAYOUT if layout else _COMMANDS
    return pattern.sub(lambda match: match[0].encode("unicode_escape").decode(), str(text))


def say(
    text: object = "", *, stream: TextIO | None = None, end: str = "\n", flush: bool = False
) -> None:
    """Print a text, line breaks and tabs included, to a stream or to standard output. Control
    characters are shown (:func:`visible`), and so is what the stream's encoding does not know:
    ``\\u2192`` for an arrow in ASCII.
    """
    stream = sys.stdout if stream is None else stream
    encoding = getattr(stream, "encoding", None) or "utf-8"
    shown = visible(text, layout=True).encode(encoding, "backslashreplace").decode(encoding)
    try:
        print(shown, file=stream, end=end, flush=flush)
    except OSError:
        if stream is not sys.stderr:
            raise
        _forget_standard_error()


def _forget_standard_error() -> None:
    """Write on to nowhere: who runs a command without reading its messages still gets its
    results."""
    null = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null, sys.stderr.fileno())
    except OSError:  # a stream without a file
        sys.stderr = io.StringIO()
    finally:
        os.close(null)


def open_standard_streams() -> None:
    """Give a process that was started without standard input, output or error the null device in
    their places, or the first files that it opens would take these, and get what libraries
    print."""
    null = os.open(os.devnull, os.O_RDWR)
    while null <= 2:
        null = os.open(os.devnull, os.O_RDWR)
    os.close(null)
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", closefd=False)


_VERBS_OF_SEVERAL = {"is": "are", "was": "were", "has": "have", "goes": "go"}


def counted(number: int, noun: str, verb: str = "") -> str:
    """Return a number with its noun, and with the verb that follows, if any: ``1 member``,
    ``2 members are``.

    Args:
        number: how many there are.
        noun: one of them; an s makes it several.
        verb: of one of them, as for :func:`agreeing`.
    """
    nouns = noun if number == 1 else f"{noun}s"
    return f"{number:,} {nouns} {agreeing(verb, number)}".rstrip()


def agreeing(verb: str, number: int) -> str:
    """Return a verb in the form that a number asks for: ``has`` of 1, ``have`` of any other.

    Args:
        verb: of one, such as ``is``, ``has`` or ``holds``.
        number: how many do what the verb says.
    """
    if number == 1:
        return verb
    return _VERBS_OF_SEVERAL.get(verb, verb.removesuffix("s"))


def first_of(names: Sequence[str]) -> str:
    """Return the first three names, and how many more there are."""
    shown = ", ".join(names[:3])
    more = len(names) - 3
    return f"{shown} and {more} more" if more > 0 else shown
