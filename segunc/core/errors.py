"""The two ways a run can go wrong, as exceptions with one clear line each.

The command line turns :class:`InputError` into exit code 2 (bad usage or bad input, nothing was started)
and :class:`PartialFailure` into exit code 1 (work was under way; what was finished is kept).
"""

from __future__ import annotations

from collections.abc import Callable


class InputError(ValueError):
    """Bad usage or bad input: says what was given, what was expected and what to do about it.

    Args:
        given: what was found, with the path or value that caused it.
        expected: what would have been right.
        remedy: what the user can do now.
    """

    def __init__(self, given: str, expected: str = "", remedy: str = "") -> None:
        self.given, self.expected, self.remedy = given, expected, remedy
        parts = [given]
        if expected:
            parts.append(f"expected {expected}")
        if remedy:
            parts.append(remedy)
        super().__init__("; ".join(part.rstrip(".;") for part in parts))

    def __reduce__(self) -> tuple[type[InputError], tuple[str, str, str]]:
        # The default would hand the joined message back as `given` when a worker process raises.
        return type(self), (self.given, self.expected, self.remedy)


class NotFiniteError(InputError):
    """A network returns NaN or infinite logits."""


class PartialFailure(RuntimeError):
    """Work under way failed in places; everything that was finished is kept and named in the output."""


def failure_of(check: Callable[[], None]) -> str:
    """The line of the :class:`PartialFailure` that a check raises; empty where it raises none."""
    try:
        check()
    except PartialFailure as failure:
        return str(failure)
    return ""
