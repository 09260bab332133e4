"""Files under URLs: what is read, what is kept, and what is said when a server fails."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from segunc.core import urls
from segunc.core.errors import InputError, NoteWarning
from segunc.core.urls import (
    cache_folder,
    download,
    download_folder,
    has_wildcard,
    is_url,
    list_remote,
    remembered,
    remote_file,
    root_of,
    shown_url,
    split_topic,
)
from tests.support.file_server import FileServer, serving

pytest.importorskip("fsspec", reason="the extra cloud is not installed")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SEGUNC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(urls, "WAITS", (0.0, 0.0, 0.0))
    return tmp_path / "cache" / "downloads"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FileServer]:
    (tmp_path / "served").mkdir()
    with serving(tmp_path / "served") as served:
        yield served


def content(url: str) -> bytes:
    with download(remote_file(url)) as local:
        return local.path.read_bytes()


def message(url: str) -> str:
    with pytest.raises(InputError) as raised:
        content(url)
    text = str(raised.value)
    assert "\n" not in text
    return text


def test_what_is_a_url() -> None:
    assert is_url("s3://bucket/a")
    assert is_url("https://host/a")
    assert not is_url("drive.mcap:/camera")
    assert not is_url("/a/b")
    assert not is_url(Path("/a"))


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://me:secret@host:80/a.png?token=secret", "https://host:80/a.png"),
        ("s3://bucket/a?.png", "s3://bucket/a?.png"),
    ],
)
def test_secrets_are_not_shown(url: str, shown: str) -> None:
    assert shown_url(url) == shown


@pytest.mark.parametrize(
    ("url", "root"),
    [
        ("s3://b/x/*/c.png", "s3://b/x"),
        ("s3://b/x/d*.png", "s3://b/x"),
        ("s3://b/x", "s3://b/x"),
    ],
)
def test_the_root_of_a_pattern(url: str, root: str) -> None:
    assert root_of(url) == root


def test_a_query_is_no_wildcard() -> None:
    assert not has_wildcard("https://host/a.png?x=*")
    assert has_wildcard("s3://b/a?.png")


@pytest.mark.parametrize(
    ("spec", "parts"),
    [
        ("drive.mcap:/camera/front", ("drive.mcap", "/camera/front")),
        ("a/drive.bag:camera", ("a/drive.bag", "camera")),
        ("bag:/camera", ("bag", "/camera")),
        ("s3://b/drive.mcap:/camera", ("s3://b/drive.mcap", "/camera")),
        ("s3://b/drive.mcap", ("s3://b/drive.mcap", None)),
        ("https://host:80/a.png", ("https://host:80/a.png", None)),
        ("a.png", ("a.png", None)),
    ],
)
def test_the_topic_behind_a_recording(spec: str, parts: tuple[str, str | None]) -> None:
    assert split_topic(spec) == parts


def test_a_path_that_exists_has_no_topic(tmp_path: Path) -> None:
    path = tmp_path / "a:" / "b.png"
    path.parent.mkdir()
    path.touch()
    assert split_topic(str(path)) == (str(path), None)


def test_a_file_is_downloaded_once(server: FileServer) -> None:
    (server.root / "a.bin").write_bytes(b"one")
    assert content(f"{server.url}/a.bin") == b"one"
    assert content(f"{server.url}/a.bin") == b"one"
    assert server.downloads["/a.bin"] == 1


def test_a_file_that_changed_on_the_server_is_downloaded_again(server: FileServer) -> None:
    (server.root / "a.bin").write_bytes(b"one")
    assert content(f"{server.url}/a.bin") == b"one"
    (server.root / "a.bin").write_bytes(b"two")
    assert content(f"{server.url}/a.bin") == b"two"


def test_a_server_that_tells_no_version_is_noted_and_asked_by_each_run(
    server: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.tells_versions = False
    (server.root / "a.bin").write_bytes(b"one")
    with pytest.warns(NoteWarning, match=r"a\.bin says neither when it changed nor a tag"):
        assert content(f"{server.url}/a.bin") == b"one"
    (server.root / "a.bin").write_bytes(b"two")
    monkeypatch.setattr(urls, "_RUN", "another run")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # one note on a server is enough
        assert content(f"{server.url}/a.bin") == b"two"


def test_a_connection_that_breaks_is_tried_again(server: FileServer) -> None:
    (server.root / "a.bin").write_bytes(bytes(range(256)))
    server.drops = 2
    assert content(f"{server.url}/a.bin") == bytes(range(256))
    assert server.downloads["/a.bin"] == 3


def test_a_connection_that_always_breaks_is_said(server: FileServer, cache: Path) -> None:
    (server.root / "a.bin").write_bytes(bytes(range(256)))
    server.drops = 99
    assert "a.bin cannot be read, after 4 tries" in message(f"{server.url}/a.bin")
    assert list(cache.iterdir()) == []


def test_a_large_file_comes_in_pieces_of_which_each_is_tried_again(
    server: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(urls, "PIECE", 100)
    (server.root / "a.bin").write_bytes(bytes(range(256)))
    server.drops = 1
    assert content(f"{server.url}/a.bin") == bytes(range(256))
    assert server.ranges == ["bytes=0-99", "bytes=0-99", "bytes=100-199", "bytes=200-255"]


def test_a_server_without_ranges_gives_a_large_file_whole(
    server: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(urls, "PIECE", 100)
    server.gives_ranges = False
    (server.root / "a.bin").write_bytes(bytes(range(256)))
    assert content(f"{server.url}/a.bin") == bytes(range(256))


def test_what_is_not_there_is_said_at_once(server: FileServer) -> None:
    assert "a.bin does not exist" in message(f"{server.url}/a.bin")


def test_what_may_not_be_read_is_said_at_once(server: FileServer) -> None:
    server.forbidden = "secret"
    (server.root / "secret.bin").write_bytes(b"one")
    text = message(f"{server.url}/secret.bin?signature=abc")
    assert "secret.bin may not be read with the present account" in text
    assert "abc" not in text


def test_a_server_that_does_not_answer_is_said() -> None:
    assert "cannot be read, after 4 tries" in message("http://127.0.0.1:9/a.bin")


def test_an_unknown_kind_of_url_is_said() -> None:
    assert "of the kind 'nonsense', which fsspec does not know" in message("nonsense://a/b.png")


def test_a_folder_is_listed_with_its_folders(server: FileServer) -> None:
    (server.root / "x" / "sub dir").mkdir(parents=True)
    (server.root / "x" / "a.png").write_bytes(b"1")
    (server.root / "x" / "sub dir" / "b #1.png").write_bytes(b"2")
    files = list_remote(f"{server.url}/x")
    assert sorted(files) == ["a.png", "sub dir/b #1.png"]
    with download(files["sub dir/b #1.png"]) as local:
        assert local.path.read_bytes() == b"2"


@pytest.mark.parametrize("pattern", ["", "/**/*.png"])
def test_a_folder_that_cannot_be_listed_is_said(pattern: str, server: FileServer) -> None:
    (server.root / "x" / "secret").mkdir(parents=True)
    (server.root / "x" / "a.png").write_bytes(b"1")
    server.forbidden = "secret"
    with pytest.raises(InputError, match="may not be read with the present account"):
        list_remote(f"{server.url}/x{pattern}")


def test_a_folder_that_is_not_there_is_said(server: FileServer) -> None:
    with pytest.raises(InputError, match="/x does not exist"):
        list_remote(f"{server.url}/x")


def test_a_server_that_does_not_list_is_said() -> None:
    with pytest.raises(InputError, match="cannot be read, after 4 tries"):
        list_remote("http://127.0.0.1:9/x")


def test_a_pattern_is_listed(server: FileServer) -> None:
    (server.root / "x").mkdir()
    for name in ("a1.png", "a2.png", "b.png"):
        (server.root / "x" / name).write_bytes(b"1")
    assert sorted(list_remote(f"{server.url}/x/a*.png")) == ["a1.png", "a2.png"]


def test_a_folder_is_copied(server: FileServer) -> None:
    (server.root / "x" / "sub").mkdir(parents=True)
    (server.root / "x" / "a.png").write_bytes(b"1")
    (server.root / "x" / "sub" / "b.png").write_bytes(b"2")
    folder = download_folder(f"{server.url}/x")
    assert (folder / "a.png").read_bytes() == b"1"
    assert (folder / "sub" / "b.png").read_bytes() == b"2"


def test_the_file_that_was_used_longest_ago_makes_room(
    server: FileServer, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEGUNC_CACHE_BYTES", "250")
    for number, name in enumerate(("a.bin", "b.bin")):
        (server.root / name).write_bytes(bytes(100))
        with download(remote_file(f"{server.url}/{name}")) as local:
            os.utime(local.path, (number, number))
    (server.root / "c.bin").write_bytes(bytes(100))
    content(f"{server.url}/c.bin")
    content(f"{server.url}/b.bin")
    assert server.downloads == {"/a.bin": 1, "/b.bin": 1, "/c.bin": 1}
    content(f"{server.url}/a.bin")
    assert server.downloads["/a.bin"] == 2
    assert sum(path.stat().st_size for path in cache.iterdir()) <= 250


def test_a_file_in_use_is_not_removed(server: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEGUNC_CACHE_BYTES", "0")
    (server.root / "a.bin").write_bytes(b"one")
    (server.root / "b.bin").write_bytes(b"two")
    held = download(remote_file(f"{server.url}/a.bin"))
    content(f"{server.url}/b.bin")
    assert held.path.read_bytes() == b"one"
    held.close()
    (server.root / "c.bin").write_bytes(b"three")
    content(f"{server.url}/c.bin")
    assert not held.path.exists()


def test_a_limit_that_is_no_number_is_said(
    server: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEGUNC_CACHE_BYTES", "20 GB")
    (server.root / "a.bin").write_bytes(b"one")
    assert "SEGUNC_CACHE_BYTES is '20 GB', which is not a number" in message(f"{server.url}/a.bin")


def test_a_cache_that_others_can_write_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    monkeypatch.setenv("SEGUNC_CACHE", str(shared))
    with pytest.raises(InputError, match="others can write there"):
        cache_folder()


def test_a_text_on_a_file_is_remembered_when_the_file_is_gone(
    server: FileServer, cache: Path
) -> None:
    (server.root / "a.bin").write_bytes(b"one")

    def length(path: Path) -> str:
        return str(path.stat().st_size)

    file = remote_file(f"{server.url}/a.bin")
    assert remembered(file, length) == "3"
    for path in cache.glob("*.bin"):
        path.unlink()
    assert remembered(file, length) == "3"
    assert server.downloads["/a.bin"] == 1
    (server.root / "a.bin").write_bytes(b"three")
    assert remembered(file, length) == "5"
