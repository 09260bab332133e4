"""URLs and recordings through the command line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
import pytest

from segunc.core import urls
from segunc.core.urls import download_folder
from tests.conftest import Job
from tests.maps.fakes import folder_bytes
from tests.support.file_server import FileServer, serving
from tests.support.recordings import SECOND, START, Camera, Picture, write_mcap
from tests.verbs.processes import SMALL, refuse, succeed

fsspec = pytest.importorskip("fsspec", reason="the extra cloud is not installed")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEGUNC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(urls, "WAITS", (0.0, 0.0, 0.0))
    download_folder.cache_clear()
    fsspec.filesystem("memory").store.clear()


@pytest.fixture
def web(predicted: Job) -> Iterator[FileServer]:
    with serving(predicted.data) as server:
        yield server


def address(server: FileServer, path: Path) -> str:
    return f"{server.url}/{path.relative_to(server.root).as_posix()}"


def scores_of(result: Path) -> object:
    return json.loads(result.read_text())["scores"]


def test_predict_and_evaluate_between_urls_give_the_local_numbers(
    web: FileServer, predicted: Job, tmp_path: Path
) -> None:
    frames = address(web, predicted.frames)
    masks = address(web, predicted.masks)
    out = "memory://results/maps"
    words = ("--draws 4 --precision float32 --device cpu --overlay --model", predicted.abnn)
    done = succeed("predict", *words, "--input", frames, "--out", out)
    assert f"frames in {out}" in done.stdout
    maps = download_folder(out)
    assert folder_bytes(maps) == folder_bytes(predicted.maps)
    manifest = json.loads((maps / "manifest.json").read_text())
    assert manifest["run"]["input"] == frames
    assert f"--out {out}" in manifest["command"]
    remote = tmp_path / "remote.json"
    local = tmp_path / "local.json"
    how = "--replicates 0"
    succeed("evaluate --maps", out, "--anomaly-labels", masks, "--out", remote, how)
    words = ("--anomaly-labels", predicted.masks, "--out", local, how)
    succeed("evaluate --maps", predicted.maps, *words)
    assert scores_of(remote) == scores_of(local)


def test_review_and_overlay_take_images_under_a_url(
    web: FileServer, predicted: Job, tmp_path: Path
) -> None:
    frames = address(web, predicted.frames)
    page = tmp_path / "page"
    succeed("review --maps", predicted.maps, "--images", frames, "--out", page)
    assert (page / "index.html").is_file()
    figures = tmp_path / "figures"
    words = ("--images", frames, "--out", figures, "--score entropy")
    succeed("overlay --maps", predicted.maps, *words)
    assert list(figures.rglob("*.png"))


def test_what_is_not_under_a_url_is_said_in_one_line(
    web: FileServer, predicted: Job, tmp_path: Path
) -> None:
    out = tmp_path / "maps"
    words = ("predict --model", predicted.abnn, SMALL, "--out", out)
    assert "nothing.png does not exist" in refuse(*words, "--input", f"{web.url}/nothing.png")
    labels = f"{web.url}/nothing"
    words = ("evaluate --maps", predicted.maps, "--anomaly-labels", labels)
    assert f"{labels} does not exist" in refuse(*words)


@pytest.mark.parametrize("words", ["--overwrite", "--shard 1/2"])
def test_what_does_not_go_with_an_output_under_a_url(words: str, predicted: Job) -> None:
    command = ("predict --model", predicted.abnn, "--input", predicted.frames)
    option = words.split()[0]
    message = refuse(*command, "--out", "memory://results/maps", words)
    assert f"{option} and an --out under a URL do not go together" in message


def test_an_output_below_an_input_under_a_url(predicted: Job) -> None:
    command = ("predict --model", predicted.abnn, "--input memory://r/in --out memory://r/in/maps")
    assert "lies inside the input memory://r/in" in refuse(*command)


@pytest.mark.parametrize("option", ["--out metrics", "--plots plots"])
def test_other_outputs_are_folders_of_this_machine(
    option: str, predicted: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    flag, name = option.split()
    words = ("evaluate --maps", predicted.maps, "--anomaly-labels", predicted.masks)
    message = refuse(*words, flag, f"memory://results/{name}")
    assert f"{flag} memory://results/{name} is a URL" in message
    assert list(tmp_path.iterdir()) == []


def recording(job: Job, folder: Path) -> Path:
    """Write the frames of a job as a camera of ten pictures a second."""
    pictures = []
    for number, path in enumerate(sorted(job.frames.rglob("*.png"))):
        moment = START + number * SECOND // 10
        rgb = np.ascontiguousarray(cv2.imread(str(path))[..., ::-1])
        pictures.append(Picture(rgb, moment, moment + SECOND // 50))
    return write_mcap(folder / "drive.mcap", [Camera("/camera/front", pictures)])


def test_a_camera_of_a_recording_goes_through_the_verbs(predicted: Job, tmp_path: Path) -> None:
    pytest.importorskip("mcap", reason="the extra recordings is not installed")
    pytest.importorskip("rosbags", reason="the extra recordings is not installed")
    path = recording(predicted, tmp_path)
    maps = tmp_path / "maps"
    words = ("--model", predicted.abnn, "--out", maps, SMALL, "--overlay")
    succeed("predict", *words, "--input", f"{path}:/camera/front")
    lines = [json.loads(line) for line in (maps / "frames.jsonl").read_text().splitlines()]
    assert [line["time"] for line in lines] == [index / 10 for index in range(len(lines))]
    assert (maps / "overlay.webm").is_file()
    page = tmp_path / "page"
    done = succeed("review --maps", maps, "--out", page)
    assert "could not be opened" not in done.stdout
    assert "have no image" not in done.stdout
    assert "0:00:00.100" in succeed("summary --top 99 --maps", maps).stdout


def test_a_topic_that_is_not_there_lists_those_that_are(predicted: Job, tmp_path: Path) -> None:
    pytest.importorskip("mcap", reason="the extra recordings is not installed")
    path = recording(predicted, tmp_path)
    words = ("predict --model", predicted.abnn, SMALL, "--out", tmp_path / "maps")
    message = refuse(*words, "--input", f"{path}:/camera/rear")
    assert f"{path} has no topic /camera/rear" in message
    assert "/camera/front (" in message
