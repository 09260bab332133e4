"""Regular expressions that come out of files, which may be a stranger's: searched in time linear in
the text, whatever they say.

``re`` goes back to try every way to match, which for ``(a+)+$`` doubles with each letter. Here each
pair of an instruction of the pattern and a place in the text is decided once (Thompson 1968, with
the priorities of a backtracking search), so m instructions and n characters take at most m n steps.
Look-aheads and look-behinds are decided the same way, which is why this is no library of finite
automata: patterns of domains and scopes use them. What only going back can decide, such as a
reference to an earlier group, is refused.

Patterns that are typed on a command line are their user's own and stay with ``re``, and so does one
from a file that cannot go back far.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Any, NamedTuple, Protocol

from segunc.core.errors import InputError

MAX_PATTERN = 1000  # characters
MAX_INSTRUCTIONS = 1000
MAX_TEXT = 1024  # characters, of a frame or of a layer
MAX_WAYS = 16  # of choosing one alternative in each choice of a pattern that ``re`` may search

# The parser of the standard library, which gives the meaning of a pattern as ``re`` itself reads
# it.
_parser: Any = import_module("re._parser")
_compiler: Any = import_module("re._compiler")
_SINGLE = {"LITERAL", "NOT_LITERAL", "ANY", "IN"}
_REPEATS = {"MAX_REPEAT", "MIN_REPEAT"}
_LOOKS = {"ASSERT", "ASSERT_NOT"}


class Found(Protocol):
    """What was found in a text, by the number of a group; 0 is all of it."""

    def __getitem__(self, group: int, /) -> str | Any: ...


class Searcher(Protocol):
    """A regular expression that can be searched, as one of ``re`` can."""

    @property
    def pattern(self) -> str: ...

    @property
    def groups(self) -> int: ...

    def search(self, text: str, /) -> Found | None: ...


def pattern_of_file(pattern: str, where: str) -> Searcher:
    """Return the search of a regular expression that a file holds.

    Args:
        pattern: the regular expression, in the syntax of ``re``.
        where: names the pattern and its file in messages.

    Raises:
        InputError: the text is not a regular expression, is too long, or can only be decided by a
            search that goes back.
    """
    if len(pattern) > MAX_PATTERN:
        raise InputError(
            f"{where} has {len(pattern)} characters, more than {MAX_PATTERN}",
            hint="write a shorter regular expression",
        )
    try:
        parsed = _parser.parse(pattern)
        ordinary = re.compile(pattern)
        if _ways(parsed) <= MAX_WAYS and _variable_repeats(parsed) <= 1:
            return _Bounded(ordinary, where)
        return LinearPattern(pattern, ordinary.groups, parsed, where)
    except (re.error, RecursionError, OverflowError) as error:
        raise InputError(
            f"{where} is not a regular expression ({error})", hint="e.g. ^[a-z_]+"
        ) from error


class _Bounded:
    """A pattern of ``re`` that goes back once at most, for texts of bounded length."""

    def __init__(self, ordinary: re.Pattern[str], where: str) -> None:
        self.pattern = ordinary.pattern
        self.groups = ordinary.groups
        self._ordinary = ordinary
        self._where = where

    def search(self, text: str, /) -> Found | None:
        """Return what is found first in a text, as ``re`` does."""
        check_length(text, self._where)
        return self._ordinary.search(text)


def check_length(text: str, where: str) -> None:
    """Raise InputError for a text that is too long to be searched by a pattern from a file."""
    if len(text) > MAX_TEXT:
        message = f"{where} is searched in names of at most {MAX_TEXT} characters"
        raise InputError(f"{message}, and {text[:40]}... has {len(text)}", hint="rename it")


class Step(NamedTuple):
    """An instruction: what it asks of a place in the text, and where it goes on."""

    kind: str  # one of test, at, look, not look, split, save, fail, match
    value: Any = None
    next: tuple[int, ...] = ()  # instructions, the preferred one first


class LinearPattern:
    """A regular expression as instructions, of which each is decided once at each place of a
    text."""

    def __init__(self, pattern: str, groups: int, parsed: Any, where: str) -> None:
        self.pattern = pattern
        self.groups = groups
        self._where = where
        self._state = parsed.state
        self._steps: list[Step] = [Step("match")]
        self._start = self._add_sequence(parsed, 0)
        self._tests: dict[tuple[int, str], bool] = {}

    def search(self, text: str, /) -> Sequence[str | None] | None:
        """Return what is found first in a text: all of it, and each group or None, as ``re`` finds
        them."""
        check_length(text, self._where)
        decided: dict[tuple[int, int], bool] = {}
        for place in range(len(text) + 1):
            if self._decide((self._start, place), text, decided):
                return self._groups_from((self._start, place), text, decided)
        return None

    def _groups_from(
        self, state: tuple[int, int], text: str, decided: dict[tuple[int, int], bool]
    ) -> list[str | None]:
        """Go the preferred way from a state that matches, and return what it finds."""
        first = state[1]
        bounds: dict[int, int] = {}
        while self._steps[state[0]].kind != "match":
            step = self._steps[state[0]]
            if step.kind == "save":
                bounds[step.value] = state[1]
            ways = self._ways_on(state, text, decided)
            state = next(way for way in ways if self._decide(way, text, decided))
        found: list[str | None] = [text[first : state[1]]]
        for group in range(1, self.groups + 1):
            ended = 2 * group + 1 in bounds
            found.append(text[bounds[2 * group] : bounds[2 * group + 1]] if ended else None)
        return found

    def _decide(
        self, state: tuple[int, int], text: str, decided: dict[tuple[int, int], bool]
    ) -> bool:
        """Return whether the instruction of a state leads to a match from the place of the
        state."""
        waiting = [state]
        while waiting:
            current = waiting[-1]
            if current in decided:
                waiting.pop()
            elif self._steps[current[0]].kind == "match":
                decided[current] = True
            else:
                ways = self._ways_on(current, text, decided)
                unknown = [way for way in ways if way not in decided]
                if unknown:
                    waiting += unknown
                else:
                    decided[current] = any(decided[way] for way in ways)
        return decided[state]

    def _ways_on(
        self, state: tuple[int, int], text: str, decided: dict[tuple[int, int], bool]
    ) -> list[tuple[int, int]]:
        """Return the states that may follow a state, the preferred one first; none where its
        instruction asks for something else."""
        number, place = state
        step = self._steps[number]
        if step.kind == "test":
            if place < len(text) and self._test(number, text[place]):
                return [(step.next[0], place + 1)]
            return []
        if step.kind in ("at", "look", "not look"):
            holds = self._holds(step, place, text, decided)
            return [(step.next[0], place)] if holds else []
        return [(following, place) for following in step.next]

    def _holds(
        self, step: Step, place: int, text: str, decided: dict[tuple[int, int], bool]
    ) -> bool:
        """Return whether a condition holds at a place, which takes no character."""
        if step.kind == "at":
            found = step.value.match(text, place)
            return found is not None
        start, back = step.value
        seen = place >= back and self._decide((start, place - back), text, decided)
        return seen == (step.kind == "look")

    def _test(self, number: int, character: str) -> bool:
        """Return whether a character is one that an instruction takes."""
        key = number, character
        if key not in self._tests:
            self._tests[key] = self._steps[number].value.fullmatch(character) is not None
        return self._tests[key]

    def _add(self, step: Step) -> int:
        if len(self._steps) >= MAX_INSTRUCTIONS:
            raise InputError(
                f"{self._where} makes more than {MAX_INSTRUCTIONS} instructions",
                hint="repeat less, or write a shorter regular expression",
            )
        self._steps.append(step)
        return len(self._steps) - 1

    def _add_sequence(self, parsed: Iterable[Any], following: int) -> int:
        """Add the instructions of a part of the pattern, and return the number of its first."""
        for operator, value in reversed([*parsed]):
            following = self._add_node(str(operator), value, following)
        return following

    def _add_node(self, operator: str, value: Any, following: int) -> int:
        if operator in _SINGLE:
            return self._add(Step("test", self._compiled(operator, value), (following,)))
        if operator == "AT":
            return self._add(Step("at", self._compiled(operator, value), (following,)))
        if operator == "BRANCH":
            starts = [self._add_sequence(part, following) for part in value[1]]
            return self._add(Step("split", None, tuple(starts)))
        if operator == "SUBPATTERN":
            return self._add_group(value, following)
        if operator in _REPEATS:
            return self._add_repeat(value, following, lazy=operator == "MIN_REPEAT")
        if operator in _LOOKS:
            return self._add_look(value, following, wanted=operator == "ASSERT")
        if operator == "FAILURE":
            return self._add(Step("fail"))
        raise InputError(
            f"{self._where} holds what only a search that goes back can decide ({operator})",
            hint="write it without references to groups, conditions and possessive repeats",
        )

    def _add_group(self, value: Any, following: int) -> int:
        group, added, removed, inner = value
        if added or removed:
            raise InputError(
                f"{self._where} sets flags in a group", hint="write (?i) at the start instead"
            )
        if group is None:
            return self._add_sequence(inner, following)
        end = self._add(Step("save", 2 * group + 1, (following,)))
        return self._add(Step("save", 2 * group, (self._add_sequence(inner, end),)))

    def _add_repeat(self, value: Any, following: int, *, lazy: bool) -> int:
        least, most, inner = value
        if most > 1 and inner.getwidth()[0] == 0:
            raise InputError(
                f"{self._where} repeats what may be empty", hint="write (a*)* as a*, for instance"
            )
        if most is _parser.MAXREPEAT:
            loop = self._add(Step("split"))
            body = self._add_sequence(inner, loop)
            self._steps[loop] = Step("split", None, _preferred(body, following, lazy=lazy))
            start = loop
        else:
            start = following
            for _ in range(most - least):
                body = self._add_sequence(inner, start)
                start = self._add(Step("split", None, _preferred(body, following, lazy=lazy)))
        for _ in range(least):
            start = self._add_sequence(inner, start)
        return start

    def _add_look(self, value: Any, following: int, *, wanted: bool) -> int:
        direction, inner = value
        if wanted and _has_group(inner):
            raise InputError(
                f"{self._where} has a group in a look-ahead", hint="write (?:...) in its place"
            )
        back = inner.getwidth()[0] if direction < 0 else 0
        start = self._add_sequence(inner, 0)
        kind = "look" if wanted else "not look"
        return self._add(Step(kind, (start, back), (following,)))

    def _compiled(self, operator: str, value: Any) -> re.Pattern[str]:
        """Return a single character or condition of the pattern as ``re`` takes it, with the flags
        of the whole."""
        node = getattr(_parser, operator), value
        compiled: re.Pattern[str] = _compiler.compile(_parser.SubPattern(self._state, [node]))
        return compiled


def _preferred(body: int, following: int, *, lazy: bool) -> tuple[int, int]:
    return (following, body) if lazy else (body, following)


def _parts(operator: str, value: Any) -> list[Any]:
    """Return the parts of a node that are patterns themselves."""
    if operator == "BRANCH":
        return [*value[1]]
    if operator == "SUBPATTERN":
        return [value[3]]
    if operator in _REPEATS:
        return [value[2]]
    if operator in _LOOKS:
        return [value[1]]
    return []


def _has_group(parsed: Iterable[Any]) -> bool:
    for operator, value in parsed:
        if str(operator) == "SUBPATTERN" and value[0] is not None:
            return True
        if any(_has_group(part) for part in _parts(str(operator), value)):
            return True
    return False


def _ways(parsed: Iterable[Any]) -> int:
    """Return how many ways there are to choose one alternative in each choice; too many where
    ``re`` may go back further than that."""
    ways = 1
    for operator, value in parsed:
        name = str(operator)
        inner = _parts(name, value)
        if name == "BRANCH":
            ways *= sum(_ways(part) for part in inner)
        elif name in _REPEATS:
            single = all(str(part) in _SINGLE for part, _ in inner[0])
            ways *= 1 if single and value[0] <= MAX_TEXT else MAX_WAYS + 1
        elif name in (*_SINGLE, "AT"):
            continue
        elif name == "SUBPATTERN" or name in _LOOKS:
            ways *= _ways(inner[0])
        else:
            ways = MAX_WAYS + 1
    return ways


def _variable_repeats(parsed: Iterable[Any]) -> int:
    """Return how many repeats of a pattern can take more or less of a text."""
    count = 0
    for operator, value in parsed:
        if str(operator) in _REPEATS and value[0] != value[1]:
            count += 1
        count += sum(_variable_repeats(part) for part in _parts(str(operator), value))
    return count
