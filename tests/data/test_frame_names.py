"""The frames that written names mean."""

import pytest

from segunc.core.errors import InputError
from segunc.data.frame_names import frames_named
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
