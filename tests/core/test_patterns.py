"""A pattern out of a file finds what ``re`` finds, and ends."""

import re
import time
from importlib import import_module
from random import Random

import pytest

from segunc.core.errors import InputError
from segunc.core.patterns import LinearPattern, pattern_of_file

ENDLESS = (
    "(a+)+$",
    "(a|a)+$",
    "(a|aa)+$",
    "(.+)*x",
    "^(.*a){12}$",
    "(?=(?:a+)+b)a",
    "(?:(?=a*b).)*c",
    ".*.*.*.*.*.*.*b",
)
PATTERNS = (
    *(r"^Seq05VD_f0[0-2]", r"_f\d\d\d", r"^(?!(0|2|30|40|52)$)", r"^([^_]+)_", r"^(.*)_f(\d+)$"),
    *(r"(?i)NIGHT|rain", r"a{2,3}?b", r"(a|b)+?c", r"\bday\b", r"(?<=_)f(?!0)", r"(?<!a)b", r""),
    *(
        r"^[a-z_]+",
        r"(x)?a(y)?",
        r"(?:ab|a)(?:c|bcd)(d*)",
        r".*?(\d+)$",
        r"[^a-c\d]+\.",
        r"(?s)a.b",
    ),
)
TEXTS = ("Seq05VD_f012", "seq_f123", "52", "520", "night_001", "aab", "aaab", "abcbc", "a day b")


def linear(pattern: str) -> LinearPattern:
    parsed = import_module("re._parser").parse(pattern)
    return LinearPattern(pattern, re.compile(pattern).groups, parsed, "it")


def found(match: "re.Match[str] | None") -> list[str | None] | None:
    return None if match is None else [match[0], *match.groups()]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_it_finds_what_re_finds(pattern: str) -> None:
    random = Random(pattern)
    texts = [*TEXTS, *("".join(random.choices("abcxy_0f5. ", k=9)) for _ in range(200))]
    compiled = linear(pattern)
    for text in texts:
        assert compiled.search(text) == found(re.search(pattern, text)), text


def random_pattern(random: Random, depth: int = 3) -> str:
    """A pattern of letters, choices, groups and repeats of what is not empty."""
    kind = random.choice("lllcrgsb") if depth else "l"
    inner = random_pattern(random, depth - 1) if depth else ""
    if kind == "c":
        return f"(?:{inner}|{random_pattern(random, depth - 1)})"
    if kind == "g":
        return f"({inner})"
    if kind == "r":
        return f"(?:{inner}){random.choice(['*', '+', '?', '{1,2}', '*?', '+?'])}a"
    if kind == "s":
        return inner + random_pattern(random, depth - 1)
    return random.choice(["a", "b", "[ab]", ".", "(?!b)a", "(?<=a)b"])


def test_it_finds_what_re_finds_for_random_patterns() -> None:
    random = Random(0)
    for _ in range(400):
        pattern = random_pattern(random)
        try:
            compiled = linear(pattern)
        except InputError:  # it repeats what may be empty
            continue
        for _ in range(10):
            text = "".join(random.choices("abc", k=8))
            assert compiled.search(text) == found(re.search(pattern, text)), (pattern, text)


@pytest.mark.parametrize("pattern", ENDLESS)
def test_a_pattern_that_never_ends_in_re_ends(pattern: str) -> None:
    start = time.monotonic()
    assert pattern_of_file(pattern, "it").search("a" * 300 + "!") is None
    assert time.monotonic() - start < 5


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        (r"(a)\1", "goes back"),
        (r"(a)?(?(1)b|c)", "goes back"),
        (r"(?>a*)b", "goes back"),
        (r"a++b", "goes back"),
        ("(", "not a regular expression"),
        ("a" * 1001, "1001 characters"),
        ("(?:ab|c){900}", "1000 instructions"),
        ("(a*)*", "repeats what may be empty"),
        ("(" * 490 + "a+" + ")" * 490 + "a+", "regular expression|instructions"),
    ],
)
def test_what_cannot_be_decided_once_is_one_sentence(pattern: str, said: str) -> None:
    with pytest.raises(InputError, match=said) as error:
        pattern_of_file(pattern, "scope of base/posterior.json")
    assert "\n" not in str(error.value)


def test_a_text_of_more_than_1024_characters_is_refused() -> None:
    with pytest.raises(InputError, match="at most 1024 characters"):
        pattern_of_file("a+", "it").search("a" * 1025)
