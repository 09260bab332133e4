"""The two ways a run can go wrong, as exceptions with one clear line each: exit code 2,
:class:`InputError`, and 1, :class:`PartialFailure`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches

_NO_MEMORY = re.compile(
    "not enough memory|out ?of ?memory|allocate memory|insufficient memory|bad_alloc|map segment|create a (primitive|memory)",
    re.I,
)
"""How torch, CUDA, oneDNN, OpenCV, C++ and the loader of libraries say so; they have no common
exception.
"""
_FLAG = re.compile(r"\b(?:segunc|pip|python|\w+\.py) [^;]*|--([a-z]\w*(?:[-.]\w+)*)")
"""A command that can be typed, or an option of the command line (its one group)."""
# Characters of a message that an error shows: a value in a file may be as long as the file.
MAX_MESSAGE_LENGTH = 1000


class InputError(ValueError):
    """Bad usage or bad input; nothing was started. ``command_line`` is its text with options as
    they are typed, --anomaly-labels; the text of the exception itself names the parameter,
    `anomaly_labels`.

    Args:
        message: what is wrong, one sentence without its full stop, with the value and the file that
            caused it.
        hint: what the user can do now, best as something that can be typed.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        self.message, self.hint = message, hint
        shown = (
            message if len(message) <= MAX_MESSAGE_LENGTH else f"{message[:MAX_MESSAGE_LENGTH]} ..."
        )
        self.command_line = (
            f"{shown.rstrip('.;')}. Hint: {hint.rstrip('.;')}" if hint else shown.rstrip(".;")
        )
        named = _FLAG.sub(
            lambda flag: f"`{flag[1].replace('-', '_')}`" if flag[1] else flag[0], self.command_line
        )
        super().__init__(named)

    def within(self, where: str) -> InputError:
        """Return the same error with the file, the setting or the frame where it happened in front:
        ``raise error.within(path) from error``.
        """
        return type(self)(f"{where}: {self.message}", self.hint)

    def __reduce__(self) -> tuple[type[InputError], tuple[str, str]]:
        # The default would hand the whole text back as `message` when a worker process raises.
        return type(self), (self.message, self.hint)


class NotFiniteError(InputError):
    """A network returns NaN or infinite logits."""


class PartialFailure(RuntimeError):
    """Work under way failed in places; everything that was finished is kept and named in the
    output.
    """


class NoteWarning(UserWarning):
    """What a user should know of an input that may not be what it seems; the command line shows it
    as a note.
    """


def nearest(name: str, names: Iterable[str], cutoff: float = 0.6) -> str:
    """Return a question after the one of ``names`` that an unknown name is likest to; nothing where
    none is, by difflib's ``cutoff``.
    """
    return (
        f" (did you mean {near[0]}?)"
        if (near := get_close_matches(name, list(names), 1, cutoff))
        else ""
    )


def shortened(text: str, length: int = 60) -> str:
    """Return the start of a text that may be as long as a file."""
    return text if len(text) <= length else f"{text[:length]}..."


def one_line(error: Exception) -> str:
    """Return an error in one line, with options as the command line has them; one that is not ours
    with its type, and cut.
    """
    text = " ".join((error.command_line if isinstance(error, InputError) else str(error)).split())
    return (
        text
        if isinstance(error, InputError | PartialFailure)
        else f"{type(error).__name__}: {text[:200]}"
    )


def is_out_of_memory(error: BaseException) -> bool:
    """Whether what is behind an error is a lack of memory, of the machine's, of the process's limit
    or of a GPU's.
    """
    return isinstance(error, MemoryError) or bool(
        _NO_MEMORY.search(f"{type(error).__name__}: {error}")
    )
