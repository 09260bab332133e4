"""Several inputs: what stands for which videos, and where each one's maps go."""

from __future__ import annotations

from pathlib import Path

import pytest

from segunc.core.errors import InputError
from segunc.frames.inputs import plan_inputs


def touch(*paths: Path) -> None:
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")


def folders(specs: list[Path | str], out: Path) -> list[str]:
    return [given.out.relative_to(out).as_posix() for given in plan_inputs([str(spec) for spec in specs], out)]


def test_a_single_input_has_the_output_folder_itself(tmp_path: Path) -> None:
    touch(tmp_path / "drive.mp4")
    (given,) = plan_inputs([str(tmp_path / "drive.mp4")], tmp_path / "maps")
    assert (given.spec, given.out, given.label) == (str(tmp_path / "drive.mp4"), tmp_path / "maps", "")


def test_names_grow_until_they_differ(tmp_path: Path) -> None:
    given = [
        tmp_path / "monday/front.mp4",
        tmp_path / "tuesday/front.mp4",
        tmp_path / "rear.v2.mp4",
        tmp_path / "pictures.day",
    ]
    touch(*given[:3], given[3] / "a.png")
    assert folders([*given], tmp_path) == ["monday_front", "tuesday_front", "rear.v2", "pictures.day"]


def test_a_folder_or_pattern_of_videos_stands_for_its_videos(tmp_path: Path) -> None:
    touch(tmp_path / "day/b.mp4", tmp_path / "day/a.WEBM", tmp_path / "day/notes.txt")
    for spec in (tmp_path / "day", f"{tmp_path}/day/*", f"{tmp_path}/**/*.*"):
        found = plan_inputs([str(spec)], tmp_path / "out")
        assert [(Path(given.spec).name, given.out.name) for given in found] == [("a.WEBM", "a"), ("b.mp4", "b")]


def test_a_folder_or_pattern_with_images_stays_one_input(tmp_path: Path) -> None:
    touch(tmp_path / "day/b.mp4", tmp_path / "day/deep/er/one.png")
    assert [given.spec for given in plan_inputs([str(tmp_path / "day")], tmp_path)] == [str(tmp_path / "day")]
    assert len(plan_inputs([f"{tmp_path}/**/*"], tmp_path)) == 1


def test_names_that_cannot_differ_are_refused(tmp_path: Path) -> None:
    touch(tmp_path / "drive.mp4", tmp_path / "drive.webm")
    with pytest.raises(InputError, match="several inputs would have the maps folder"):
        folders([tmp_path / "drive.mp4", tmp_path / "drive.webm"], tmp_path)
    with pytest.raises(InputError, match="given 2 times"):
        folders([tmp_path / "drive.mp4", tmp_path / "drive.mp4"], tmp_path)


def test_nothing_found_is_left_to_the_opening(tmp_path: Path) -> None:
    assert plan_inputs(["nowhere/*.mp4"], tmp_path)[0].spec == "nowhere/*.mp4"
    assert plan_inputs(["nowhere.mp4"], tmp_path)[0].spec == "nowhere.mp4"
