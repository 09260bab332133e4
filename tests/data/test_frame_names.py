"""The frames that written names mean."""

import pytest

from segunc.core.errors import InputError
from segunc.data.frame_names import HINT_PATTERNS, frames_named
from segunc.options import EvaluateOptions, OverlayOptions, ThresholdOptions, meanings
from segunc.verbs.evaluate import matching


def test_a_name_means_its_frame_however_it_is_written() -> None:
    frames = ["a/b", "a/b.png", "caf\u00e9", "v1"]
    meant = frames_named(["a/b.png", "a/b.jpg", "cafe\u0301.NPY", "v1.5", "b"], frames)
    assert [*meant.values()] == ["a/b.png", "a/b", "caf\u00e9", None, None]


def test_a_pattern_finds_names_however_accents_are_written() -> None:
    for frame in ("caf\u00e9 1", "cafe\u0301 1"):
        for pattern in ("caf\u00e9", "cafe\u0301"):
            assert matching([frame, "x"], pattern) == [frame]
    with pytest.raises(InputError, match="matches no frame"):
        matching(["x"], "caf\u00e9")


FRAMES = ["day/001", "night/001", "night/002", "x/night/003"]


@pytest.mark.parametrize(
    ("pattern", "numbers"),
    [
        ("night", "123"),
        ("^night/", "12"),
        ("night/*", "12"),
        ("*/001", "01"),
        ("n*2.png", "2"),
        ("night/00?", "12"),
        ("n.*2", "2"),
        ("00[12]", "012"),
        ("n*/00[1-2]*", "12"),
        ("night/0[0-4]*", "12"),
        ("night/0[0-4]*$", "123"),
        ("0[0-9]*1", "01"),
    ],
)
def test_a_pattern_of_frames_is_a_regular_expression_or_one_of_whole_names(
    pattern: str, numbers: str
) -> None:
    assert matching(FRAMES, pattern) == [FRAMES[int(number)] for number in numbers]


def test_what_is_no_pattern_of_frames_says_what_to_write() -> None:
    with pytest.raises(InputError, match="is not a regular expression") as refused:
        matching(FRAMES, "night)")
    assert refused.value.hint == HINT_PATTERNS
    with pytest.raises(InputError, match="matches no frame") as refused:
        matching(FRAMES, "ight/*")
    assert refused.value.hint == HINT_PATTERNS


def test_help_texts_say_the_same_of_patterns_of_frames() -> None:
    texts = []
    for options in (EvaluateOptions, ThresholdOptions, OverlayOptions):
        words = " ".join(" ".join(meanings(options)["frames"]).split())
        texts.append(words[words.index("match this regular expression") :])
    assert len({*texts}) == 1
