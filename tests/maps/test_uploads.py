"""Maps folders under URLs: the bytes of a local run, whatever ends it, and no line before its
files.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from segunc.core import urls
from segunc.core.errors import InputError, PartialFailure
from segunc.core.urls import cache_folder, check_writable, download_folder
from segunc.frames.sources import open_source
from segunc.maps import uploads
from segunc.maps.pipeline import Summary, run_pipeline
from segunc.maps.store import MapsWriter
from segunc.maps.uploads import fetch_maps, finish_upload, uploading
from tests.maps.fakes import folder_bytes, manifest, predict, process, write_pictures
from tests.support.gcs_server import empty_gcs_bucket, serving_gcs
from tests.support.s3_server import empty_bucket, serving_s3

fsspec = pytest.importorskip("fsspec", reason="the extra cloud is not installed")
URL = "memory://results/maps"


@pytest.fixture(autouse=True)
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("SEGUNC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(urls, "WAITS", (0.0, 0.0, 0.0))
    download_folder.cache_clear()
    memory = fsspec.filesystem("memory")
    memory.store.clear()
    yield memory
    memory.store.clear()


@pytest.fixture
def images(tmp_path: Path) -> Path:
    write_pictures(tmp_path / "in", 4)
    return tmp_path / "in"


def upload_maps(images: Path, fail_at: str = "", url: str = URL) -> Summary:
    """Predict into the URL; the frame of a name ends the run."""

    def failing(frame: Any) -> Any:
        if frame.name == fail_at:
            raise KeyboardInterrupt
        return process(frame)

    out = fetch_maps(url)
    with uploading(out, url):
        summary = run_pipeline(open_source(images), failing, MapsWriter(out, manifest()))
    finish_upload(out, url)
    return summary


def remote(memory: Any) -> dict[str, bytes]:
    root = "/results/maps/"
    return {name.removeprefix(root): memory.cat_file(name) for name in memory.find(root)}


def without_manifest(files: dict[str, bytes]) -> dict[str, bytes]:
    return {name: data for name, data in files.items() if name != "manifest.json"}


def forget_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Go on as on another machine, whose cache is empty."""
    for folder in list(uploads._UPLOADS):
        uploads._release(folder)
    monkeypatch.setenv("SEGUNC_CACHE", str(tmp_path / "another"))


def assert_lines_name_what_is_there(files: dict[str, bytes]) -> None:
    for line in files.get("frames.jsonl", b"").splitlines():
        assert set(json.loads(line)["files"].values()) <= files.keys()


def test_the_files_are_those_of_a_local_run(images: Path, tmp_path: Path, system: Any) -> None:
    predict(images, tmp_path / "local")
    assert upload_maps(images).finished == 4
    files = remote(system)
    assert without_manifest(files) == folder_bytes(tmp_path / "local")
    assert json.loads(files["manifest.json"])["status"] == "finished"


def test_a_finished_folder_leaves_this_machine(images: Path) -> None:
    upload_maps(images)
    (work,) = cache_folder("outputs").iterdir()
    assert list(work.iterdir()) == []


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_run_that_was_ended_goes_on(
    elsewhere: bool,
    images: Path,
    tmp_path: Path,
    system: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    predict(images, tmp_path / "local")
    with pytest.raises(KeyboardInterrupt):
        upload_maps(images, fail_at="b/frame_002")
    files = remote(system)
    assert_lines_name_what_is_there(files)
    assert len(files["frames.jsonl"].splitlines()) == 2
    assert json.loads(files["manifest.json"])["status"] == "interrupted"
    if elsewhere:
        forget_this_machine(tmp_path, monkeypatch)
    summary = upload_maps(images)
    assert (summary.finished, summary.skipped) == (2, 2)
    assert without_manifest(remote(system)) == folder_bytes(tmp_path / "local")


@pytest.mark.parametrize("kind", ["s3", "gs"])
def test_a_bucket_holds_the_files_of_a_local_run(
    kind: str, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    predict(images, tmp_path / "local")
    url = f"{kind}://results/drive/maps"
    with serving_s3() if kind == "s3" else serving_gcs() as endpoint:
        make_bucket = empty_bucket if kind == "s3" else empty_gcs_bucket
        make_bucket(endpoint, "results", monkeypatch)
        with pytest.raises(KeyboardInterrupt):
            upload_maps(images, "b/frame_002", url)
        forget_this_machine(tmp_path, monkeypatch)
        assert upload_maps(images, url=url).skipped == 2
        assert folder_bytes(download_folder(url)) == folder_bytes(tmp_path / "local")


def test_a_missing_bucket_is_named(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not the file by which the run tries it."""
    with serving_s3() as endpoint:
        empty_bucket(endpoint, "results", monkeypatch)
        with pytest.raises(InputError) as caught:
            check_writable("s3://nowhere/drive/maps")
    assert str(caught.value).startswith("the bucket of s3://nowhere/drive/maps does not exist")


def test_maps_that_were_removed_under_the_url_begin_anew(images: Path, system: Any) -> None:
    with pytest.raises(KeyboardInterrupt):
        upload_maps(images, fail_at="b/frame_002")
    system.store.clear()
    summary = upload_maps(images)
    assert (summary.finished, summary.skipped) == (4, 0)


def test_a_finished_run_is_read_back_and_skipped(images: Path, system: Any) -> None:
    upload_maps(images)
    before = without_manifest(remote(system))
    summary = upload_maps(images)
    assert (summary.finished, summary.skipped) == (0, 4)
    assert without_manifest(remote(system)) == before


def test_no_line_is_there_before_its_files(
    images: Path, system: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: list[str] = []
    plain = type(system).pipe_file

    def pipe_file(self: Any, path: str, value: bytes, **how: Any) -> None:
        plain(self, path, value, **how)
        names.append(path)
        assert_lines_name_what_is_there(remote(system))

    monkeypatch.setattr(type(system), "pipe_file", pipe_file)
    monkeypatch.setattr(uploads, "UPLOAD_SECONDS", 0.01)
    upload_maps(images)
    assert names[-2].endswith("frames.jsonl")
    assert names[-1].endswith("manifest.json")


def test_frames_that_are_made_again_lose_their_lines_first(
    images: Path, system: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload_maps(images)
    write_pictures(images, 4, size=(26, 32))
    states: list[int] = []
    plain = type(system).pipe_file

    def pipe_file(self: Any, path: str, value: bytes, **how: Any) -> None:
        plain(self, path, value, **how)
        states.append(len(remote(system)["frames.jsonl"].splitlines()))

    monkeypatch.setattr(type(system), "pipe_file", pipe_file)
    assert upload_maps(images).finished == 4
    probe, running, first, *others, lines, last = states
    assert (probe, running, first, lines, last) == (4, 4, 0, 4, 4)
    assert others == [0] * 16


@pytest.mark.parametrize("elsewhere", [False, True])
def test_an_upload_that_fails_is_said_and_made_up_for(
    elsewhere: bool, images: Path, tmp_path: Path, system: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    predict(images, tmp_path / "local")
    plain = type(system).pipe_file

    def pipe_file(self: Any, path: str, value: bytes, **how: Any) -> None:
        if "entropy" in path:
            raise ConnectionError("the line is cut")
        plain(self, path, value, **how)

    with monkeypatch.context() as broken:
        broken.setattr(type(system), "pipe_file", pipe_file)
        with pytest.raises(PartialFailure) as error:
            upload_maps(images)
    text = str(error.value)
    assert text.startswith("uploading failed: memory://results/maps/entropy/")
    assert "finished frames are kept in" in text
    assert "\n" not in text
    assert "frames.jsonl" not in remote(system)
    begun = json.loads(remote(system)["manifest.json"])
    assert begun["status"] == "running"
    # What lies there already is known as the run's own by any machine.
    assert begun["begun"].keys() == folder_bytes(tmp_path / "local").keys() - {"frames.jsonl"}
    if elsewhere:
        forget_this_machine(tmp_path, monkeypatch)
    summary = upload_maps(images)
    assert summary.finished == (4 if elsewhere else 0)
    assert without_manifest(remote(system)) == folder_bytes(tmp_path / "local")
    assert "begun" not in json.loads(remote(system)["manifest.json"])


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_file_that_no_record_lists_is_not_replaced(
    elsewhere: bool, images: Path, tmp_path: Path, system: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    predict(images, tmp_path / "local")
    with pytest.raises(KeyboardInterrupt):
        upload_maps(images, fail_at="b/frame_002")
    if elsewhere:
        forget_this_machine(tmp_path, monkeypatch)
    mine = "/results/maps/entropy/b/frame_002.png"
    system.pipe_file(mine, b"mine")
    system.pipe_file("/results/maps/entropy/notes.txt", b"no map has such a name")
    said = r"memory://results/maps holds entropy/b/frame_002\.png, which is in no record of the run"
    with pytest.raises(InputError, match=said):
        upload_maps(images)
    assert system.cat_file(mine) == b"mine"
    system.rm_file(mine)
    system.rm_file("/results/maps/entropy/notes.txt")
    assert upload_maps(images).finished == 2
    assert without_manifest(remote(system)) == folder_bytes(tmp_path / "local")


def test_maps_that_another_machine_went_on_with_are_taken_from_there(
    images: Path, tmp_path: Path, system: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    predict(images, tmp_path / "local")
    with pytest.raises(KeyboardInterrupt):
        upload_maps(images, fail_at="a/frame_001")
    first_cache = os.environ["SEGUNC_CACHE"]
    forget_this_machine(tmp_path, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        upload_maps(images, fail_at="b/frame_003")
    forget_this_machine(tmp_path, monkeypatch)
    monkeypatch.setenv("SEGUNC_CACHE", first_cache)
    summary = upload_maps(images)
    assert (summary.finished, summary.skipped) == (1, 3)
    assert without_manifest(remote(system)) == folder_bytes(tmp_path / "local")


def test_another_run_at_the_same_time_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    fetch_maps(URL)
    monkeypatch.setattr(uploads, "_UPLOADS", {})  # as in another process
    with pytest.raises(InputError, match="output memory://results/maps is being written by"):
        fetch_maps(URL)


def test_files_that_are_no_maps_are_left_alone(system: Any) -> None:
    system.pipe_file("/results/maps/letter.txt", b"mine")
    with pytest.raises(InputError, match=r"holds 1 file and no maps, for example letter\.txt"):
        fetch_maps(URL)
    assert remote(system) == {"letter.txt": b"mine"}


def test_a_web_server_takes_no_maps() -> None:
    with pytest.raises(InputError, match="because web servers take no files"):
        fetch_maps("https://127.0.0.1/maps")


def test_a_place_without_the_right_to_write_is_said_before_the_run(
    system: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError("Access Denied")

    monkeypatch.setattr(type(system), "pipe_file", refuse)
    with pytest.raises(InputError, match="may not be written with the present account"):
        fetch_maps(URL)


def test_uploaded_maps_are_read_from_their_url(images: Path, tmp_path: Path) -> None:
    predict(images, tmp_path / "local")
    upload_maps(images)
    assert folder_bytes(download_folder(URL)) == folder_bytes(tmp_path / "local")
