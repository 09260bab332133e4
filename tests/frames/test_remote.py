"""Inputs under URLs give the frames that they give from the disk.

They lie in fsspec's memory, on a web server, and on servers that speak as S3 and as Google Cloud
Storage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import numpy as np
import pytest

from segunc.core import urls
from segunc.core.errors import InputError
from segunc.frames.source import Frame, Selection
from segunc.frames.sources import open_source, plan_inputs, recorded_images
from tests.maps.fakes import folder_bytes, predict, write_pictures, write_video
from tests.support.file_server import FileServer, serving
from tests.support.gcs_server import empty_gcs_bucket, refusing_gcs, serving_gcs, use_gcs
from tests.support.recordings import camera, write_bag2
from tests.support.s3_server import empty_bucket, serving_s3

fsspec = pytest.importorskip("fsspec", reason="the extra cloud is not installed")
Upload = Callable[[Path], str]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SEGUNC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(urls, "WAITS", (0.0, 0.0, 0.0))
    return tmp_path / "cache" / "downloads"


@pytest.fixture
def images(tmp_path: Path) -> Path:
    folder = tmp_path / "served" / "images"
    write_pictures(folder, 4)
    return folder


@pytest.fixture
def web(tmp_path: Path) -> Iterator[FileServer]:
    (tmp_path / "served").mkdir(exist_ok=True)
    with serving(tmp_path / "served") as server:
        yield server


@pytest.fixture(scope="module")
def s3_endpoint() -> Iterator[str]:
    with serving_s3() as endpoint:
        yield endpoint


@pytest.fixture
def s3(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A file system with the empty bucket ``drives``."""
    return empty_bucket(s3_endpoint, "drives", monkeypatch)


@pytest.fixture(scope="module")
def gcs_endpoint() -> Iterator[str]:
    with serving_gcs() as endpoint:
        yield endpoint


@pytest.fixture
def gs(gcs_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A file system of Google with the empty bucket ``drives``."""
    return empty_gcs_bucket(gcs_endpoint, "drives", monkeypatch)


@pytest.fixture(params=["memory", "http", "s3", "gs"])
def upload(request: pytest.FixtureRequest) -> Upload:
    """What puts a folder below ``served`` where a URL leads to it, and returns the URL."""
    if request.param == "http":
        server = request.getfixturevalue("web")
        return lambda path: f"{server.url}/{path.relative_to(server.root).as_posix()}"
    if request.param in ("s3", "gs"):
        system = request.getfixturevalue(request.param)
        root = f"{request.param}://drives"
    else:
        system = fsspec.filesystem("memory")
        system.store.clear()
        root = "memory://drives"

    def put(path: Path) -> str:
        files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
        for file in files:
            target = f"{root}/{file.relative_to(path.parent).as_posix()}"
            system.pipe_file(target, file.read_bytes())
        return f"{root}/{path.name}"

    return put


def same(remote: Frame, local: Frame) -> bool:
    described = (remote.name, remote.index, remote.time, remote.stamp, remote.error)
    if described != (local.name, local.index, local.time, local.stamp, local.error):
        return False
    return np.array_equal(remote.image, local.image)


def assert_same_frames(url: str, path: Path, **how: Any) -> None:
    remote = list(open_source(url, **how).frames())
    local = list(open_source(path, **how).frames())
    assert len(remote) == len(local) > 0
    for remote_frame, local_frame in zip(remote, local, strict=True):
        assert same(remote_frame, local_frame)


def test_a_folder_gives_the_frames_of_the_disk(upload: Upload, images: Path) -> None:
    assert_same_frames(upload(images), images)
    assert_same_frames(f"{upload(images)}/", images, selection=Selection(every=3))


def test_one_image_gives_the_frame_of_the_disk(upload: Upload, images: Path) -> None:
    image = images / "a" / "frame_000.png"
    upload(images)
    assert_same_frames(f"{upload(images)}/a/frame_000.png", image)


def test_an_image_that_comes_in_pieces_gives_the_frame_of_the_disk(
    upload: Upload, images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(urls, "PIECE", 100)
    image = images / "a" / "frame_000.png"
    assert image.stat().st_size > 300
    assert_same_frames(f"{upload(images)}/a/frame_000.png", image)


def test_a_pattern_gives_the_frames_of_the_disk(upload: Upload, images: Path) -> None:
    assert_same_frames(f"{upload(images)}/*/*_00[13].png", images / "*" / "*_00[13].png")


def test_a_video_gives_the_frames_of_the_disk(upload: Upload, tmp_path: Path) -> None:
    path = tmp_path / "served" / "drive.mp4"
    path.parent.mkdir(exist_ok=True)
    write_video(path, 5)
    url = upload(path)
    assert_same_frames(url, path, selection=Selection(start=0.05))
    source = open_source(url)
    assert source.identity()["input"] == url
    assert source.identity()["input_hash"] == open_source(path).identity()["input_hash"]


@pytest.mark.parametrize("mcap", [False, True])
def test_a_bag_of_ros_2_gives_the_frames_of_the_disk(
    upload: Upload, tmp_path: Path, mcap: bool
) -> None:
    """It is a folder, which is copied whole."""
    pytest.importorskip("rosbags", reason="the extra recordings is not installed")
    path = tmp_path / "served" / "drive"
    path.parent.mkdir(exist_ok=True)
    write_bag2(path, [camera("/camera/front", 4)], mcap=mcap)
    url = upload(path)
    assert_same_frames(url, path)
    (note,) = open_source(url).notes
    assert "/camera/front" in note  # the only topic
    source = open_source(f"{url}:/camera/front", selection=Selection(every=2))
    assert [frame.time for frame in source.frames()] == [0.0, 0.2]
    assert source.identity()["input"] == f"{url}:/camera/front"
    (planned,) = plan_inputs([f"{url}:/camera/front"], tmp_path / "maps")
    assert planned.out == tmp_path / "maps"


def test_a_topic_that_a_bag_of_ros_2_lacks_is_said(upload: Upload, tmp_path: Path) -> None:
    pytest.importorskip("rosbags", reason="the extra recordings is not installed")
    path = tmp_path / "served" / "drive"
    path.parent.mkdir(exist_ok=True)
    write_bag2(path, [camera("/camera/front", 4)])
    url = upload(path)
    with pytest.raises(InputError, match=f"{url} has no topic /camera/rear") as error:
        open_source(f"{url}:/camera/rear")
    assert "/camera/front (4" in str(error.value)


def test_maps_have_the_bytes_of_a_local_run_and_go_on_from_it(
    upload: Upload, images: Path, tmp_path: Path
) -> None:
    url = upload(images)
    predict(images, tmp_path / "local")
    predict(url, tmp_path / "remote")  # type: ignore[arg-type]
    assert folder_bytes(tmp_path / "remote") == folder_bytes(tmp_path / "local")
    again = predict(url, tmp_path / "local")  # type: ignore[arg-type]
    assert (again.finished, again.skipped) == (0, 4)


def test_a_run_goes_on_without_the_files_that_left_the_cache(
    web: FileServer, images: Path, tmp_path: Path, cache: Path
) -> None:
    url = f"{web.url}/images"
    predict(url, tmp_path / "maps")  # type: ignore[arg-type]
    predict(url, tmp_path / "maps")  # type: ignore[arg-type]
    for file in cache.glob("*.png"):
        file.unlink()
    again = predict(url, tmp_path / "maps")  # type: ignore[arg-type]
    assert (again.finished, again.skipped) == (0, 4)
    assert set(web.downloads.values()) == {1}


def test_an_image_that_changed_on_the_server_is_made_again(
    web: FileServer, images: Path, tmp_path: Path
) -> None:
    url = f"{web.url}/images"
    predict(url, tmp_path / "maps")  # type: ignore[arg-type]
    write_pictures(images, 4, size=(26, 32))
    again = predict(url, tmp_path / "maps")  # type: ignore[arg-type]
    assert (again.finished, again.skipped) == (4, 0)


def test_a_server_that_fails_gives_up_no_finished_frame(
    web: FileServer, images: Path, tmp_path: Path, cache: Path
) -> None:
    url = f"{web.url}/images"
    predict(url, tmp_path / "maps")  # type: ignore[arg-type]
    lines = (tmp_path / "maps" / "frames.jsonl").read_bytes()
    for file in cache.iterdir():
        file.unlink()
    web.drops = 999
    with pytest.raises(InputError, match=r"frame_000\.png cannot be read, after 4 tries"):
        predict(url, tmp_path / "maps")  # type: ignore[arg-type]
    assert (tmp_path / "maps" / "frames.jsonl").read_bytes() == lines


def test_an_image_that_may_not_be_read_fails_alone(
    web: FileServer, images: Path, tmp_path: Path
) -> None:
    web.forbidden = "frame_002"
    summary = predict(f"{web.url}/images", tmp_path / "maps")  # type: ignore[arg-type]
    assert summary.finished == 3
    reason = summary.failed["b/frame_002"]
    assert reason.endswith(
        "/images/b/frame_002.png may not be read with the present account (Forbidden)"
    )


def check_rights(endpoint: str, after: int) -> None:
    """Let the server check the rights of whoever asks, after so many further requests."""
    address = f"{endpoint}/moto-api/reset-auth"
    text = {"Content-Type": "text/plain"}
    request = Request(address, str(after).encode(), text, method="POST")
    urlopen(request).close()


def test_a_bucket_without_rights_is_said(s3: Any, s3_endpoint: str) -> None:
    s3.pipe_file("drives/images/a.png", b"1")
    check_rights(s3_endpoint, after=0)
    try:
        with pytest.raises(InputError) as error:
            open_source("s3://drives/images")
    finally:
        check_rights(s3_endpoint, after=10**9)
    assert str(error.value).startswith(
        "s3://drives/images may not be read with the present account"
    )
    assert "\n" not in str(error.value)


def test_a_bucket_without_credentials_is_said(
    s3: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    type(s3).clear_instance_cache()
    with pytest.raises(InputError, match="may not be read with the present account") as error:
        open_source("s3://drives/images")
    assert "\n" not in str(error.value)
    type(s3).clear_instance_cache()


def test_a_bucket_of_google_without_rights_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with refusing_gcs() as endpoint:
        use_gcs(endpoint, monkeypatch)
        with pytest.raises(InputError) as error:
            open_source("gs://drives/images")
    assert str(error.value).startswith(
        "gs://drives/images may not be read with the present account (Anonymous caller"
    )
    assert "e.g. GOOGLE_APPLICATION_CREDENTIALS" in error.value.hint


def test_gcsfs_prints_nothing(gs: Any, images: Path, capfd: pytest.CaptureFixture[str]) -> None:
    gs.pipe_file("drives/images/a.png", (images / "a" / "frame_000.png").read_bytes())
    capfd.readouterr()
    assert open_source("gs://drives/images").length == 1
    assert capfd.readouterr().err == ""


@pytest.mark.usefixtures("gs")
def test_a_bucket_of_google_that_is_not_there_is_said() -> None:
    with pytest.raises(InputError, match=r"gs://nowhere/images (does not exist|holds no image)"):
        open_source("gs://nowhere/images")


@pytest.mark.usefixtures("s3")
def test_a_bucket_that_is_not_there_is_said() -> None:
    with pytest.raises(InputError, match=r"s3://nowhere/images (does not exist|holds no image)"):
        open_source("s3://nowhere/images")


def test_a_folder_without_images_is_said(upload: Upload, tmp_path: Path) -> None:
    folder = tmp_path / "served" / "texts"
    folder.mkdir(parents=True)
    (folder / "a.txt").write_text("a")
    with pytest.raises(InputError, match="texts holds no image"):
        open_source(upload(folder))


def test_videos_beside_images_are_noted(upload: Upload, images: Path) -> None:
    write_video(images / "drive.mp4", 3)
    source = open_source(upload(images))
    assert source.length == 4
    (note,) = source.notes
    assert "1 video left out, first drive.mp4" in note


def test_labels_beside_images_are_left_out(upload: Upload, images: Path) -> None:
    (images / "a" / "x_gtFine_labelIds.png").write_bytes(
        (images / "a" / "frame_000.png").read_bytes()
    )
    url = upload(images)
    assert open_source(url, all_images=False).length == 4
    assert open_source(url).length == 5


def test_a_folder_of_videos_stands_for_its_videos(upload: Upload, tmp_path: Path) -> None:
    folder = tmp_path / "served" / "drives"
    folder.mkdir(parents=True)
    write_video(folder / "one.mp4", 3)
    write_video(folder / "two.mp4", 3)
    url = upload(folder)
    out = tmp_path / "maps"
    inputs = plan_inputs([url], out)
    assert [(part.out, part.label) for part in inputs] == [
        (out / "one", "one"),
        (out / "two", "two"),
    ]
    assert len(list(open_source(inputs[0].spec).frames())) == 3


def test_secrets_of_a_url_are_not_recorded(web: FileServer, images: Path) -> None:
    address = web.url.replace("http://", "http://me:pass@")
    source = open_source(f"{address}/images/a/frame_000.png?token=abc")
    assert source.identity()["input"] == f"{web.url}/images/a/frame_000.png"
    (frame,) = source.frames()
    assert frame.name == "frame_000"


def test_a_recorded_url_is_not_opened(web: FileServer, images: Path) -> None:
    """Maps of a stranger could make this machine call any server."""
    url = f"{web.url}/images"
    stamps = {frame.name: frame.stamp for frame in open_source(url).frames()}
    web.downloads.clear()
    assert recorded_images(url, stamps) is None
    assert not web.downloads
