"""A maps folder from a stranger: whatever it says, nothing outside of ``--out`` is written, removed
or shown.
"""

import contextlib
import os
import shutil
from itertools import product
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
    return {
        str(path.relative_to(home)): os.readlink(path)
        if path.is_symlink()
        else path.is_dir() or path.read_bytes()
        for path in home.rglob("*")
    }


def refused_everywhere(home: Path, capsys: pytest.CaptureFixture[str], said: str) -> None:
    """Every verb ends with 2 and one line, and ``predict`` with its error, before anything is
    touched.
    """
    before, out = tree(home), home.parent / "out"
    places = {"MAPS": home / "maps", "IN": home / "in"}
    for verb, words in VERBS.items():
        assert (
            main([str(places.get(word, word)).replace("OUT", str(out)) for word in words]) == 2
        ), verb
        lines = capsys.readouterr().err.splitlines()
        assert len([line for line in lines if said in line]) == len(lines) == 1, (verb, lines)
        assert tree(home) == before, verb
        shutil.rmtree(out, ignore_errors=True)
    with pytest.raises(InputError, match=said):
        predict(home / "in", home / "maps")
    assert tree(home) == before
    with contextlib.suppress(InputError):
        MapsWriter(home / "maps", manifest(), overwrite=True).close()
    assert outside(tree(home)) == outside(before)


def outside(tree: dict[str, Any]) -> dict[str, Any]:
    return {name: state for name, state in tree.items() if not name.startswith("maps")}


def test_names_are_safe_or_refused(tmp_path: Path) -> None:
    for name in NAMES:
        with pytest.raises(InputError, match="is named"):
            safe_name(name, "it")
    for name in ("a", "a/b c/d.e", "..a/...", "ü/%20 'x'", "12:30", "x" * 255):
        assert safe_name(name, "it") == name
        assert inside(tmp_path, name) == tmp_path / name


@pytest.mark.parametrize(
    ("place", "name"),
    [("shards", ""), *product(("score", "frame", "file"), ("../x", "/x", "\udcff", 5))],
    ids=repr,
)
def test_a_name_that_is_none_is_refused(
    home: Path, capsys: pytest.CaptureFixture[str], place: str, name: Any
) -> None:
    if name == "/x":
        name = str(home / "x")
    said = "is named"
    if place == "shards":
        edit_manifest(home / "maps", lambda content: content.update(shards=4097))
        said = "N up to 4096"
    elif place == "score" and isinstance(name, str):
        edit_manifest(home / "maps", lambda content: content["maps"].update({name: {}}))
        said = "score '"
    elif place == "frame":
        edit_log(home / "maps", lambda record: record.update(name=name))
    else:
        edit_log(home / "maps", lambda record: record["files"].update(entropy=name))
    refused_everywhere(home, capsys, said)


@pytest.mark.parametrize(
    "stranger",
    [
        *("notes.txt", "entropy/notes.txt", "other/a.png", "prediction/a/frame_000.jpg"),
        *("link", "b/c", "entropy/mine.png", "entropy/a/mine.npy", "mask.png", "overlay.webm"),
    ],
)
def test_overwrite_refuses_what_the_run_did_not_write(home: Path, stranger: str) -> None:
    path = home / "maps" / stranger
    path.parent.mkdir(exist_ok=True)
    path.symlink_to(home / "x") if stranger == "link" else path.write_text("mine")
    before = tree(home)
    with pytest.raises(
        InputError, match=rf"holds {stranger}, which is no file of the run"
    ) as error:
        MapsWriter(home / "maps", manifest(), overwrite=True)
    assert "\n" not in str(error.value)
    assert tree(home) == before


@pytest.mark.parametrize(
    "link",
    [
        *(
            "manifest.json",
            "frames.jsonl",
            "entropy",
            "entropy/a/frame_000.png",
            ".lock",
            ".lock-start",
        ),
        *(f"{place}.segunc-partial" for place in (".manifest.json", "entropy/a/.frame_000.png")),
    ],
)
@pytest.mark.parametrize("hard", [False, True])
@pytest.mark.parametrize("overwrite", [False, True])
def test_predict_writes_and_removes_nothing_behind_a_link(
    home: Path, link: str, hard: bool, overwrite: bool
) -> None:
    path, moved = home / "maps" / link, home / "moved"
    if path.exists():
        path.rename(moved)
    else:
        moved.write_text("precious")
    if hard and (moved.is_dir() or link.startswith(".lock")):
        pytest.skip("folders have no hard links, and a lock is written into what is there")
    path.hardlink_to(moved) if hard else path.symlink_to(moved)
    before = outside(tree(home))
    with contextlib.suppress(
        InputError, OSError
    ):  # a link is replaced where that is safe, else refused
        predict(home / "in", home / "maps", overwrite=overwrite)
    assert outside(tree(home)) == before


@pytest.mark.parametrize("link", ["manifest.json", "frames.jsonl", "mask.png"])
def test_no_verb_reads_behind_a_link(
    home: Path, capsys: pytest.CaptureFixture[str], link: str
) -> None:
    path = home / "maps" / link
    path.rename(home / "moved") if path.exists() else shutil.copy(
        home / "secret.png", home / "moved"
    )
    path.symlink_to(home / "moved")
    if link == "mask.png":
        edit_manifest(home / "maps", lambda content: content.update(mask={}))
    assert main(["review", "--maps", str(home / "maps"), "--out", str(home.parent / "out")]) == 2
    (line,) = capsys.readouterr().err.splitlines()[-1:]
    assert "leads out of" in line
    assert not (home.parent / "out" / link).exists()


@pytest.mark.parametrize("ours", [False, True])
@pytest.mark.parametrize("folder", [False, True])
def test_no_map_is_read_behind_a_link(home: Path, ours: bool, folder: bool) -> None:
    if not ours:
        (home / "maps/manifest.json").unlink()
        (home / "maps/frames.jsonl").unlink()
    path = home / "maps/entropy" / ("a" if folder else "a/frame_000.png")
    path.rename(home / "moved")
    path.symlink_to(home / "moved")
    reader = MapsReader(home / "maps")
    if ours or not folder:  # the folders of other tools are listed, and no listing follows a link
        with pytest.raises(InputError, match="leads out of"):
            reader.read_stored("a/frame_000", "entropy")
    else:
        assert not reader.has("a/frame_000", "entropy")


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


@pytest.mark.parametrize("kind", FORGED)
def test_a_forged_map_whose_sum_fits_is_refused(home: Path, kind: str) -> None:
    score, data, ending = FORGED[kind]
    forge(home / "maps", score, data, ending)
    reader = MapsReader(home / "maps")
    with pytest.raises(InputError, match=rf"a/frame_000\.{ending} is ") as error:
        reader.prediction("a/frame_000") if score == "prediction" else reader.read(
            "a/frame_000", score
        )
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
    return [] if source is None else [
        frame.name for frame in source.frames() if frame.image is not None
    ], missing


def test_only_images_of_the_recorded_bytes_are_shown(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    maps, names = home / "maps", ["a/frame_000", "b/frame_001"]
    with monkeypatch.context() as patched:
        patched.setattr(sources, "_listed", lambda folder: pytest.fail(f"{folder} was listed"))
        for place, images in (
            (home / "in", names),
            (home / "in/*/*.png", names),
            ("/", []),
            (home, []),
        ):
            edit_manifest(
                maps, lambda content, place=place: content["run"].update(input=str(place))
            )
            assert shown(maps)[0] == images
        edit_log(maps, lambda record: record.update(name="secret"))
        assert shown(maps)[0] == []
        edit_log(maps, lambda record: record.pop("stamp"))
        images, missing = shown(maps)
    assert images == []
    assert (missing or "").startswith("2 of 2 frames have no image at the recorded place")
    assert "secret" in shown(maps, home)[0]
    edit_manifest(maps, lambda content: content["run"].pop("input"))
    assert shown(maps)[0] == []
