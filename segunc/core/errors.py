"""The two ways a run can go wrong, as exceptions with one clear line each.

The command line turns :class:`InputError` into exit code 2 and :class:`PartialFailure` into exit code 1.
"""

from __future__ import annotations

import re

_NO_MEMORY = re.compile(
    "not enough memory|out ?of ?memory|allocate memory|insufficient memory|bad_alloc|map segment|create a (primitive|memory)",
    re.I,
)
"""How torch, CUDA, oneDNN, OpenCV, C++ and the loader of libraries say so; they have no common exception."""
_FLAG = re.compile(r"\b(?:segunc|pip|python|\w+\.py) [^;]*|--([a-z]\w*(?:[-.]\w+)*)")
"""A command that can be typed, or an option of the command line (its one group)."""
LONGEST_GIVEN = 1000
"""Characters of what was given that an error shows: a value in a file may be as long as the file."""


class InputError(ValueError):
    """Bad usage or bad input, nothing was started. It says what was given (with the path or value that caused it), what
    would have been right, and what to do now.

    Attributes:
        command_line: the message with options as they are typed, --frames-at-once; as text it names the parameter `frames_at_once`.
    """

    def __init__(self, given: str, expected: str = "", remedy: str = "") -> None:
        self.given, self.expected, self.remedy = given, expected, remedy
        shown = given if len(given) <= LONGEST_GIVEN else f"{given[:LONGEST_GIVEN]} ..."
        parts = (shown, expected and f"expected {expected}", remedy)
        self.command_line = "; ".join(part.rstrip(".;") for part in parts if part)
        super().__init__(
            _FLAG.sub(lambda found: f"`{found[1].replace('-', '_')}`" if found[1] else found[0], self.command_line)
        )

    def __reduce__(self) -> tuple[type[InputError], tuple[str, str, str]]:
        # The default would hand the joined message back as `given` when a worker process raises.
        return type(self), (self.given, self.expected, self.remedy)


class NotFiniteError(InputError):
    """A network returns NaN or infinite logits."""


class PartialFailure(RuntimeError):
    """Work under way failed in places; everything that was finished is kept and named in the output."""


class NoteWarning(UserWarning):
    """What a user should know of an input that may not be what it seems; the command line shows it as a note."""


def words_of(error: Exception) -> str:
    """Return the message of an error in one line, with options as the command line has them."""
    return " ".join((error.command_line if isinstance(error, InputError) else str(error)).split())


def one_line(error: Exception) -> str:
    """An error in one line; those that are not our own clear lines with their type, and cut where they ramble."""
    text = words_of(error)
    return text if isinstance(error, InputError | PartialFailure) else f"{type(error).__name__}: {text[:200]}"


def is_out_of_memory(error: BaseException) -> bool:
    """Whether what is behind an error is a lack of memory, of the machine's, of the process's limit or of a GPU's."""
    return isinstance(error, MemoryError) or bool(_NO_MEMORY.search(f"{type(error).__name__}: {error}"))
