"""A maps folder from a stranger: whatever it says, nothing outside of ``--out`` is written, removed
or shown.
"""

import contextlib
import os
import shutil
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from segunc.cli.main import main
from segunc.core.errors import InputError
from segunc.core.files import inside, safe_name
from segunc.frames import sources
from segunc.maps.encoding import encode_npy, encode_png
from segunc.maps.labelled import open_images
from segunc.maps.reader import MapsReader
from segunc.maps.shards import file_sum
from segunc.maps.store import MapsWriter
from tests.maps.fakes import edit_log, edit_manifest, manifest, predict, write_pictures

NAMES = ("", ".", "..", "../x", "/x", "a/../../x", "a//b", "a/", "a\\b", "C:x", "a\0b", "a\nb")
VERBS = {
    "overlay": ("overlay", "--maps", "MAPS", "--out", "OUT", "--images", "IN"),
    "review": ("review", "--maps", "MAPS", "--out", "OUT"),
    "evaluate": (
        "evaluate",
        "--maps",
        "MAPS",
        "--anomaly-labels",
        "IN",
        "--out",
        "OUT/metrics.json",
    ),
    "summary": ("summary", "--maps", "MAPS", "--out", "OUT/moments.csv"),
}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """What must stay as it is, with the maps of a stranger in it."""
    home = tmp_path / "home"
    (home / "x").mkdir(parents=True)
    (home / "x" / "thesis.tex").write_text("all of it")
    cv2.imwrite(str(home / "secret.png"), np.full((24, 32), 77, np.uint8))
    write_pictures(home / "in", 2)
    predict(home / "in", home / "maps")
    return home


def tree(home: Path) -> dict[str, Any]:
    """Return the state of every path: where a link leads, the bytes of a file, True of a folder."""
    states: dict[str, Any] = {}
    for path in home.rglob("*"):
        name = str(path.relative_to(home))
        if path.is_symlink():
            states[name] = os.readlink(path)
        elif path.is_dir():
            states[name] = True
        else:
            states[name] = path.read_bytes()
    return states


def words_of(verb: str, home: Path, out: Path) -> list[str]:
    """Return the command of a verb with the places of its maps, images and output."""
    places = {"MAPS": home / "maps", "IN": home / "in"}
    words = [str(places.get(word, word)) for word in VERBS[verb]]
    return [word.replace("OUT", str(out)) for word in words]


def refused_everywhere(home: Path, capsys: pytest.CaptureFixture[str], reason: str) -> None:
    """Every verb ends with 2 and one line, and ``predict`` with its error, before anything is
    touched.
    """
    before = tree(home)
    out = home.parent / "out"
    for verb in VERBS:
        assert main(words_of(verb, home, out)) == 2, verb
        (line,) = capsys.readouterr().err.splitlines()
        assert reason in line, verb
        assert tree(home) == before, verb
        shutil.rmtree(out, ignore_errors=True)
    with pytest.raises(InputError, match=reason):
        predict(home / "in", home / "maps")
    assert tree(home) == before
    with contextlib.suppress(InputError):
        MapsWriter(home / "maps", manifest(), overwrite=True).close()
    assert outside(tree(home)) == outside(before)


def outside(tree: dict[str, Any]) -> dict[str, Any]:
    return {name: state for name, state in tree.items() if not name.startswith("maps")}


@pytest.mark.parametrize("name", NAMES, ids=repr)
def test_unsafe_names_are_refused(name: str) -> None:
    with pytest.raises(InputError, match="is named"):
        safe_name(name, "it")


@pytest.mark.parametrize(
    "name", ["a", "a/b c/d.e", "..a/...", "ü/%20 'x'", "12:30", "x" * 255], ids=repr
)
def test_safe_names_lie_inside(tmp_path: Path, name: str) -> None:
    assert safe_name(name, "it") == name
    assert inside(tmp_path, name) == tmp_path / name


UNSAFE = pytest.mark.parametrize("name", ["../x", "/x", "\udcff", 5], ids=repr)


def absolute(home: Path, name: Any) -> Any:
    """Return the name; for ``/x``, a folder that exists."""
    return str(home / "x") if name == "/x" else name


def test_too_many_shards_are_refused(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit_manifest(home / "maps", lambda content: content.update(shards=4097))
    refused_everywhere(home, capsys, "N up to 4096")


@pytest.mark.parametrize("name", ["../x", "/x", "\udcff"], ids=repr)
def test_an_unsafe_name_of_a_score_is_refused(
    home: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    score = absolute(home, name)
    edit_manifest(home / "maps", lambda content: content["maps"].update({score: {}}))
    refused_everywhere(home, capsys, "score '")


@UNSAFE
def test_an_unsafe_name_of_a_frame_is_refused(
    home: Path, capsys: pytest.CaptureFixture[str], name: Any
) -> None:
    frame = absolute(home, name)
    edit_log(home / "maps", lambda record: record.update(name=frame))
    refused_everywhere(home, capsys, "is named")


@UNSAFE
def test_an_unsafe_name_of_a_file_is_refused(
    home: Path, capsys: pytest.CaptureFixture[str], name: Any
) -> None:
    file = absolute(home, name)
    edit_log(home / "maps", lambda record: record["files"].update(entropy=file))
    refused_everywhere(home, capsys, "is named")


def assert_not_overwritten(home: Path, stranger: str) -> None:
    before = tree(home)
    refusal = rf"holds {stranger}, which is no file of the run"
    with pytest.raises(InputError, match=refusal) as error:
        MapsWriter(home / "maps", manifest(), overwrite=True)
    assert "\n" not in str(error.value)
    assert tree(home) == before


@pytest.mark.parametrize(
    "stranger",
    [
        "notes.txt",
        "entropy/notes.txt",
        "other/a.png",
        "prediction/a/frame_000.jpg",
        "b/c",
        "entropy/mine.png",
        "entropy/a/mine.npy",
        "mask.png",
        "overlay.webm",
    ],
)
def test_overwrite_refuses_what_the_run_did_not_write(home: Path, stranger: str) -> None:
    path = home / "maps" / stranger
    path.parent.mkdir(exist_ok=True)
    path.write_text("mine")
    assert_not_overwritten(home, stranger)


def test_overwrite_refuses_a_link(home: Path) -> None:
    (home / "maps/link").symlink_to(home / "x")
    assert_not_overwritten(home, "link")


@pytest.mark.parametrize(
    "link",
    [
        "manifest.json",
        "frames.jsonl",
        "entropy",
        "entropy/a/frame_000.png",
        ".lock",
        ".lock-start",
        ".manifest.json.segunc-partial",
        "entropy/a/.frame_000.png.segunc-partial",
    ],
)
@pytest.mark.parametrize("hard", [False, True])
@pytest.mark.parametrize("overwrite", [False, True])
def test_predict_writes_and_removes_nothing_behind_a_link(
    home: Path, link: str, hard: bool, overwrite: bool
) -> None:
    path = home / "maps" / link
    moved = home / "moved"
    if path.exists():
        path.rename(moved)
    else:
        moved.write_text("precious")
    if hard and (moved.is_dir() or link.startswith(".lock")):
        pytest.skip("folders have no hard links, and a lock is written into what is there")
    if hard:
        path.hardlink_to(moved)
    else:
        path.symlink_to(moved)
    before = outside(tree(home))
    # A link is replaced where that is safe, and refused elsewhere.
    with contextlib.suppress(InputError, OSError):
        predict(home / "in", home / "maps", overwrite=overwrite)
    assert outside(tree(home)) == before


@pytest.mark.parametrize("link", ["manifest.json", "frames.jsonl", "mask.png"])
def test_no_verb_reads_behind_a_link(
    home: Path, capsys: pytest.CaptureFixture[str], link: str
) -> None:
    path = home / "maps" / link
    moved = home / "moved"
    if link == "mask.png":
        shutil.copy(home / "secret.png", moved)
    else:
        path.rename(moved)
    path.symlink_to(moved)
    if link == "mask.png":
        edit_manifest(home / "maps", lambda content: content.update(mask={}))
    out = home.parent / "out"
    assert main(["review", "--maps", str(home / "maps"), "--out", str(out)]) == 2
    (line,) = capsys.readouterr().err.splitlines()[-1:]
    assert "leads out of" in line
    assert not (out / link).exists()


def move_behind_a_link(home: Path, place: str) -> None:
    path = home / "maps" / place
    path.rename(home / "moved")
    path.symlink_to(home / "moved")


def as_of_another_tool(maps: Path) -> None:
    (maps / "manifest.json").unlink()
    (maps / "frames.jsonl").unlink()


@pytest.mark.parametrize("place", ["entropy/a", "entropy/a/frame_000.png"])
def test_no_map_is_read_behind_a_link(home: Path, place: str) -> None:
    move_behind_a_link(home, place)
    with pytest.raises(InputError, match="leads out of"):
        MapsReader(home / "maps").read_stored("a/frame_000", "entropy")


def test_no_map_of_another_tool_is_read_behind_a_link(home: Path) -> None:
    as_of_another_tool(home / "maps")
    move_behind_a_link(home, "entropy/a/frame_000.png")
    with pytest.raises(InputError, match="leads out of"):
        MapsReader(home / "maps").read_stored("a/frame_000", "entropy")


def test_no_listing_of_another_tools_maps_follows_a_link(home: Path) -> None:
    as_of_another_tool(home / "maps")
    move_behind_a_link(home, "entropy/a")
    assert not MapsReader(home / "maps").has("a/frame_000", "entropy")


def forge(maps: Path, score: str, data: bytes, ending: str) -> None:
    """Put other bytes in the place of a map, with their sum in its line, as a forger does."""
    file = f"{score}/a/frame_000.{ending}"
    (maps / file).write_bytes(data)

    def change(record: dict[str, Any]) -> None:
        record["files"][score] = file
        record["sums"][score] = file_sum(data)

    edit_log(maps, change)


FORGED = {
    "another shape": ("entropy", encode_png(np.zeros((12, 16), np.uint16)), "png"),
    "another type": ("entropy", encode_png(np.zeros((24, 32), np.uint8)), "png"),
    "floats": ("entropy", encode_npy(np.zeros((24, 32), np.float32)), "npy"),
    "wider floats": (
        "deterministic-max-logit",
        encode_npy(np.zeros((24, 32), np.float64)),
        "npy",
    ),
    "not a number": (
        "deterministic-max-logit",
        encode_npy(np.full((24, 32), np.nan, np.float16)),
        "npy",
    ),
    "no such class": ("prediction", encode_png(np.full((24, 32), 200, np.uint8)), "png"),
}


def read(reader: MapsReader, score: str) -> Any:
    if score == "prediction":
        return reader.prediction("a/frame_000")
    return reader.read("a/frame_000", score)


@pytest.mark.parametrize("kind", FORGED)
def test_a_forged_map_whose_sum_fits_is_refused(home: Path, kind: str) -> None:
    score, data, ending = FORGED[kind]
    forge(home / "maps", score, data, ending)
    reader = MapsReader(home / "maps")
    with pytest.raises(InputError, match=rf"a/frame_000\.{ending} is ") as error:
        read(reader, score)
    assert "\n" not in str(error.value)


def test_a_compact_map_asks_for_no_more_than_its_pixels(tmp_path: Path) -> None:
    write_pictures(tmp_path / "in", 2)
    predict(tmp_path / "in", tmp_path / "maps", run={"compact": True})
    edit_log(tmp_path / "maps", lambda record: record.update(size=[400_000, 400_000]))
    with pytest.raises(InputError, match=r"\[12, 16\], not uint8 \[200000, 200000\] as recorded"):
        MapsReader(tmp_path / "maps").read("a/frame_000", "entropy")


def shown(maps: Path, images: Path | None = None) -> tuple[list[str], str | None]:
    """Names of the images that a page shows, and its line on those that it does not."""
    reader = MapsReader(maps)
    source, missing = open_images(reader, images, reader.frames)
    if source is None:
        return [], missing
    names = [frame.name for frame in source.frames() if frame.image is not None]
    return names, missing


def record_input(maps: Path, place: Any) -> None:
    edit_manifest(maps, lambda content: content["run"].update(input=str(place)))


@pytest.fixture
def unlisted(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail where a folder is listed after the maps of `home` are written."""
    monkeypatch.setattr(sources, "list_input", lambda folder: pytest.fail(f"{folder} was listed"))


@pytest.mark.parametrize("place", ["in", "in/*/*.png"])
@pytest.mark.usefixtures("unlisted")
def test_images_of_the_recorded_place_are_shown(home: Path, place: str) -> None:
    record_input(home / "maps", home / place)
    images, _ = shown(home / "maps")
    assert images == ["a/frame_000", "b/frame_001"]


@pytest.mark.usefixtures("unlisted")
def test_a_recorded_place_without_those_images_shows_none(home: Path) -> None:
    for place in (home, "/"):
        record_input(home / "maps", place)
        images, _ = shown(home / "maps")
        assert images == []


@pytest.mark.usefixtures("unlisted")
def test_an_image_of_other_bytes_is_not_shown(home: Path) -> None:
    record_input(home / "maps", home)
    edit_log(home / "maps", lambda record: record.update(name="secret"))
    images, _ = shown(home / "maps")
    assert images == []


@pytest.mark.usefixtures("unlisted")
def test_an_image_whose_bytes_are_not_recorded_is_not_shown(home: Path) -> None:
    record_input(home / "maps", home)
    edit_log(home / "maps", lambda record: record.update(name="secret"))
    edit_log(home / "maps", lambda record: record.pop("stamp"))
    images, missing = shown(home / "maps")
    assert images == []
    assert missing is not None
    assert missing.startswith("2 of 2 frames have no image at the recorded place")


def test_a_place_that_the_user_names_shows_its_images(home: Path) -> None:
    edit_log(home / "maps", lambda record: record.update(name="secret"))
    edit_log(home / "maps", lambda record: record.pop("stamp"))
    images, _ = shown(home / "maps", home)
    assert "secret" in images


def test_without_a_recorded_place_no_image_is_shown(home: Path) -> None:
    record_input(home / "maps", home / "in")
    edit_manifest(home / "maps", lambda content: content["run"].pop("input"))
    images, _ = shown(home / "maps")
    assert images == []
