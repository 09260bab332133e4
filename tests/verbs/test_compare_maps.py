"""``segunc compare`` of maps folders, from the command line and from Python."""

from pathlib import Path

import cv2
import numpy as np
import pytest

import segunc
from segunc.options import CompareOptions
from tests.conftest import Job
from tests.evaluation.runs import write_result
from tests.support.map_folders import SIZE, maps_of, write_folder
from tests.verbs.processes import refuse, succeed

NAMES = ("a", "b", "c")


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Maps of two models whose folders have one name."""
    first = write_folder(
        tmp_path / "abnn" / "maps",
        {name: maps_of(i) for i, name in enumerate(NAMES)},
        base_sha256="one",
    )
    second = write_folder(
        tmp_path / "base" / "maps",
        {name: maps_of(9 + i) for i, name in enumerate(NAMES)},
        base_sha256="two",
    )
    return first, second


def test_two_folders_without_labels_are_compared(
    folders: tuple[Path, Path], tmp_path: Path
) -> None:
    table = tmp_path / "table.md"
    done = succeed("compare", *folders, "--out", table)
    assert "base/maps against abnn/maps (baseline): 3 frames, 2,304 pixels" in done.stdout
    assert "how far the maps differ, and not which are better" in done.stdout
    assert f"wrote {table}" in done.stdout
    assert table.read_text().strip() in done.stdout


def test_every_other_folder_is_compared_with_the_baseline(
    folders: tuple[Path, Path], tmp_path: Path
) -> None:
    third = write_folder(tmp_path / "third", {"b": maps_of(3)})
    result = segunc.compare([*folders, third], baseline=folders[1], names=["x", "y", "z"])
    pairs = [(difference.baseline, difference.other) for difference in result.differences]
    assert pairs == [("y", "x"), ("y", "z")]
    assert [difference.frames for difference in result.differences] == [3, 1]
    assert result.comparison.columns == ("y", "x", "z")
    assert result.comparison.rows == ()
    assert result.page is None
    assert result.paths == ()


def test_a_threshold_is_for_all_folders_or_for_the_one_it_names(
    folders: tuple[Path, Path],
) -> None:
    options = CompareOptions(list(folders), names=["x", "y"], flag=["entropy=0.5"])
    (flagged,) = segunc.compare(options).differences[0].flagged
    assert [side.threshold.value for side in flagged.sides] == [0.5, 0.5]
    own = segunc.compare(folders, names=["x", "y"], flag=["x:entropy=0.5", "y:entropy=0.25"])
    (flagged,) = own.differences[0].flagged
    assert [side.threshold.value for side in flagged.sides] == [0.5, 0.25]
    assert "| entropy >= 0.5 | entropy >= 0.25 |" in own.text


def test_a_folder_without_the_threshold_of_the_others_is_refused(
    folders: tuple[Path, Path],
) -> None:
    message = refuse("compare", *folders, "--names x,y --flag x:entropy=0.5")
    assert "there is no threshold of entropy for y" in message
    assert "--flag y:entropy=0.5" in message


def test_a_score_that_a_folder_lacks_cannot_be_flagged(folders: tuple[Path, Path]) -> None:
    message = refuse("compare", *folders, "--names x,y --flag x:knn=1 --flag y:entropy=0.5")
    assert "x has no maps of knn" in message
    assert "give each folder a threshold of one score that all of them hold" in message


def test_a_promise_for_another_model_is_refused_and_the_way_out_is_said(
    predicted: Job, folders: tuple[Path, Path], tmp_path: Path
) -> None:
    threshold = tmp_path / "threshold.json"
    segunc.threshold(
        maps=predicted.maps,
        anomaly_labels=predicted.masks,
        out=threshold,
        control="flagged-pixels",
        level=0.5,
        score="entropy",
    )
    message = refuse("compare", *folders, "--names x,y --flag", threshold)
    assert "x: threshold.json was calibrated on maps of another model or tool" in message
    assert "--flag NAME:threshold.json" in message


def test_a_promise_holds_in_the_folder_that_it_names(predicted: Job, tmp_path: Path) -> None:
    threshold = tmp_path / "threshold.json"
    segunc.threshold(
        maps=predicted.maps,
        anomaly_labels=predicted.masks,
        out=threshold,
        control="flagged-pixels",
        level=0.5,
        score="entropy",
    )
    other = tmp_path / "other"
    segunc.predict(predicted.base, predicted.frames, out=other, device="cpu")
    done = succeed(
        *("compare", predicted.maps, other, "--names x,y"),
        *(f"--flag x:{threshold}", "--flag y:entropy=0.5"),
    )
    assert "(threshold.json)" in done.stdout
    assert "- The threshold of x, threshold.json: " in done.stdout


def test_folders_and_results_are_not_mixed(folders: tuple[Path, Path], tmp_path: Path) -> None:
    result = write_result(tmp_path / "a.json", {})
    message = refuse("compare", folders[0], result)
    assert f"{folders[0]} is a maps folder and {result} is a file" in message


def test_a_result_under_a_url_is_refused_in_words() -> None:
    message = refuse("compare https://example.org/a.json https://example.org/b.json")
    assert "https://example.org/a.json is a result under a URL" in message


def test_one_folder_is_refused_with_what_to_do(folders: tuple[Path, Path]) -> None:
    message = refuse("compare", folders[0])
    assert "is one maps folder, and compare needs at least two" in message
    assert f"segunc summary --maps {folders[0]}" in message


def test_a_folder_is_not_compared_with_itself(folders: tuple[Path, Path]) -> None:
    assert f"{folders[0]} is given twice" in refuse("compare", folders[0], folders[0])


@pytest.mark.parametrize(
    "words",
    ["--flag entropy=0.5", "--page d.html", "--images nowhere", "--top 3"],
)
def test_options_of_maps_are_refused_with_results(tmp_path: Path, words: str) -> None:
    result = write_result(tmp_path / "a.json", {})
    option, _ = words.split()
    assert f"{option} is for maps folders, and {result} is a file" in refuse(
        "compare", result, words
    )


def test_outputs_are_not_written_into_maps(folders: tuple[Path, Path]) -> None:
    message = refuse("compare", *folders, "--page", folders[1] / "page.html")
    assert f"lies inside the maps folder {folders[1]}" in message
    assert not (folders[1] / "page.html").exists()


def page_parts(page: Path) -> str:
    """The page without its style."""
    return page.read_text().split("</style>")[1]


def test_the_page_shows_the_frames_that_differ_most(
    folders: tuple[Path, Path], tmp_path: Path
) -> None:
    images = tmp_path / "images"
    images.mkdir()
    for name in NAMES:
        assert cv2.imwrite(str(images / f"{name}.png"), np.full((*SIZE, 3), 90, np.uint8))
    page = tmp_path / "differences.html"
    done = succeed(
        *("compare", *folders, "--names x,y --scores entropy --top 2"),
        *("--flag entropy=0.5 --images", images, "--page", page),
    )
    assert f"open {page} in a browser" in done.stdout
    written = page_parts(page)
    assert written.count("<h3>") == 2
    # Image, two predictions, changed classes and two scores of each frame, and the colour bar.
    assert written.count("<img") == 2 * 6 + 1
    assert "no image" not in written
    for words in (
        "not which are better",
        "Classes in x",
        "Classes in y",
        "Class changed",
        "entropy in x",
        "entropy in y",
        "region that only this one flags",
        "pixels that only one folder flags by entropy: ",
        "rank correlation",
        "> road<",
    ):
        assert words in written
    assert "<script" not in written


def test_a_page_without_images_says_so_and_shows_the_maps(
    folders: tuple[Path, Path], tmp_path: Path
) -> None:
    page = tmp_path / "differences.html"
    segunc.compare(folders, page=page, top=1)
    written = page_parts(page)
    assert "The maps do not say where their images are; --images gives their place." in written
    assert written.count("no image") == 1
    assert written.count("<img") == 5 + 1


def test_a_page_of_folders_with_other_classes_shows_scores_alone(
    folders: tuple[Path, Path], tmp_path: Path
) -> None:
    frames = {name: maps_of(20) for name in NAMES}
    other = write_folder(tmp_path / "other", frames, classes=("road", "sky", "car"))
    page = tmp_path / "differences.html"
    segunc.compare([folders[0], other], page=page, top=1, names=["x", "y"])
    written = page_parts(page)
    assert "Classes in x" not in written
    assert "Predicted classes are not compared: class 1 is car in x and sky in y." in written
    assert written.count("<img") == 2 + 1


def test_names_on_the_page_are_text(folders: tuple[Path, Path], tmp_path: Path) -> None:
    page = tmp_path / "differences.html"
    segunc.compare(folders, page=page, top=1, names=["<b>x", "y&"])
    written = page_parts(page)
    assert "<b>x" not in written
    assert "&lt;b&gt;x" in written
