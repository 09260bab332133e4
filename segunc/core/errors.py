"""The two ways a run can go wrong, as exceptions with one clear line each.

:class:`InputError` is exit code 2, :class:`PartialFailure` exit code 1.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches

from segunc.core.terminal import counted

_NO_MEMORY = re.compile(
    "not enough memory|out ?of ?memory|allocate memory|insufficient memory|bad_alloc|map segment|"
    "create a (primitive|memory)",
    re.I,
)
"""How torch, CUDA, oneDNN, OpenCV, C++ and the loader of libraries say that memory is lacking; they
have no common exception.
"""
_FLAG = re.compile(r"\b(?:segunc|pip|python|\w+\.py) [^;]*|--([a-z]\w*(?:[-.]\w+)*)")
"""A command that can be typed, or an option of the command line (its one group)."""
PARAMETERS = {"import": "verdicts", "range": "ranges"}
"""Options of the command line whose parameter in Python has another name."""
MAX_MESSAGE_LENGTH = 1000
"""Characters of a message that an error shows: a value in a file may be as long as the file."""


class InputError(ValueError):
    """Bad usage or bad input; nothing was started.

    The text of the exception itself names parameters, `anomaly_labels`. ``command_line`` is its
    text with options as they are typed, --anomaly-labels.

    Args:
        message: what is wrong, one sentence without its full stop, with the value and the file that
            caused it.
        hint: what the user can do now, best as something that can be typed.

    >>> str(InputError("--every 0 is not a number above 0", hint="--every 1"))
    '`every` 0 is not a number above 0. Hint: `every` 1'
    """

    def __init__(self, message: str, hint: str = "") -> None:
        self.message = message
        self.hint = hint
        text = message.rstrip(".;")
        end = "."
        if len(text) > MAX_MESSAGE_LENGTH:
            text = f"{text[:MAX_MESSAGE_LENGTH]} ..."
            end = ""
        if hint:
            text = f"{text}{end} Hint: {hint.rstrip('.;')}"
        self.command_line = text
        super().__init__(_FLAG.sub(_named_in_python, text))

    def within(self, where: str) -> InputError:
        """Return the same error with the file, the setting or the frame where it happened in front.

        It is used as ``raise error.within(path) from error``.
        """
        return type(self)(f"{where}: {self.message}", self.hint)

    def __reduce__(self) -> tuple[type[InputError], tuple[str, str]]:
        # The default would hand the whole text back as `message` when a worker process raises.
        return type(self), (self.message, self.hint)


def _named_in_python(match: re.Match[str]) -> str:
    """Return what :data:`_FLAG` found: a command as it is, an option as a parameter."""
    flag = match[1]
    if not flag:
        return match[0]
    if flag == "help":
        return "help() of the function"
    name, dot, key = flag.partition(".")
    parameter = PARAMETERS.get(name, name.replace("-", "_"))
    return f"`{parameter}{dot}{key.replace('-', '_')}`"


class CallError(InputError, TypeError):
    """A function got an argument that it does not take, or lacks one."""


class NotFiniteError(InputError):
    """A network returns NaN or infinite logits."""


class PartialFailure(RuntimeError):
    """Work under way failed in places; what was finished is kept and named in the output.

    >>> str(PartialFailure("2 of 9 frames failed"))
    '2 of 9 frames failed'
    """


class NoteWarning(UserWarning):
    """What a user should know of an input that may not be what it seems.

    The command line shows it as a note.
    """


def nearest(name: str, names: Iterable[str], cutoff: float = 0.6) -> str:
    """Return a question after the name that an unknown name is likest to, empty if none is like it.

    Args:
        name: the unknown name.
        names: those that exist.
        cutoff: how like it must be, 0..1, as for :func:`difflib.get_close_matches`.
    """
    choices = list(names)
    # batch_size has more letters of crop_size than crop has, but means something else.
    beginnings = [choice for choice in choices if name.startswith(f"{choice}_")]
    matches = beginnings[:1] or get_close_matches(name, choices, 1, cutoff)
    return f" (did you mean {matches[0]}?)" if matches else ""


def shortened(text: str, length: int = 60) -> str:
    """Return the start of a text that may be as long as a file."""
    return text if len(text) <= length else f"{text[:length]}..."


def one_line(error: Exception) -> str:
    """Return an error in one line, with options as the command line has them.

    An error that is not ours is shortened, and named with its type.
    """
    text = error.command_line if isinstance(error, InputError) else str(error)
    line = " ".join(text.split())
    if isinstance(error, InputError | PartialFailure):
        return line
    return f"{type(error).__name__}: {line[:200]}"


def failed_frames(failed: Mapping[str, str], what: str) -> str:
    """Say how many frames failed, and the first of them with its reason, in one line.

    Args:
        failed: frame -> why it failed.
        what: what became of one of them, e.g. ``is not in the recording``.

    Returns:
        The line; empty where none failed.

    >>> failed_frames({"a": "it is damaged", "b": "it is empty"}, "has no picture")
    '2 frames have no picture, first a (it is damaged)'
    """
    if not failed:
        return ""
    frame, reason = next(iter(failed.items()))
    verb, _, rest = what.partition(" ")
    frames = counted(len(failed), "frame", verb)
    return f"{frames} {rest}, first {frame} ({reason})"


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error comes from a lack of memory.

    It may be the machine's, the limit of the process or a GPU's.
    """
    if isinstance(error, MemoryError):
        return True
    return _NO_MEMORY.search(f"{type(error).__name__}: {error}") is not None
