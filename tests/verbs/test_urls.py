"""URLs and recordings through the command line."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import h5py
import numpy as np
import pytest

from segunc.core import urls
from segunc.core.urls import download_folder
from tests.conftest import Job
from tests.maps.fakes import edit_manifest, folder_bytes
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
    assert f"output {out} lies in the memory of this process" in done.stdout
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


def test_images_under_a_recorded_url_are_named_and_not_opened(
    web: FileServer, predicted: Job, tmp_path: Path
) -> None:
    frames = address(web, predicted.frames)
    maps = tmp_path / "maps"
    shutil.copytree(predicted.maps, maps)
    edit_manifest(maps, lambda content: content["run"].update(input=frames))
    message = refuse("overlay --score entropy --maps", maps, "--out", tmp_path / "figures")
    assert "The images are under a URL, which is opened only where it is named" in message
    assert message.endswith(f"Hint: --images {frames}")
    printed = succeed("review --maps", maps, "--out", tmp_path / "page")
    assert f"--images {frames} shows them" in printed.stdout + printed.stderr


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


def test_several_inputs_are_not_put_into_maps_of_other_inputs_under_a_url(
    predicted: Job, tmp_path: Path
) -> None:
    out = "memory://results/drives"
    videos = []
    for name in ("d1/f.webm", "d2/b.webm", "d2/f.webm"):
        videos.append(tmp_path / name)
        videos[-1].parent.mkdir(exist_ok=True)
        shutil.copy(predicted.video, videos[-1])
    command = ("predict --model", predicted.abnn, "--every 6 --out", out, SMALL, "--input")
    succeed(*command, *videos[:2])
    # A third input of an equal name gives the first one a longer name.
    refused = refuse(*command, *videos)
    assert f"maps of {videos[0]} are in {out}/f, and with these inputs" in refused
    assert f"move {out}/f to {out}/d1_f, and the run goes on" in refused
    system = fsspec.filesystem("memory")
    system.mv("/results/drives/f", "/results/drives/d1_f", recursive=True)
    assert "0 in 0.0 s" in succeed(*command, *videos).stdout
    system.store.clear()
    succeed(*command, videos[0])
    refused = refuse(*command, *videos[:2])
    assert f"{out} holds the maps of one input" in refused
    assert f"move its files into {out}/f, and the run goes on" in refused


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


@pytest.fixture
def pair(web: FileServer, predicted: Job, tmp_path: Path) -> tuple[Path, str]:
    """Maps of the anomaly split on the disk, and the same maps under a URL."""
    shutil.copytree(predicted.maps, predicted.data / "maps", dirs_exist_ok=True)
    return predicted.maps, f"{web.url}/maps"


def pictures_in(folder: Path) -> dict[str, bytes]:
    """The pictures below a folder by their names."""
    files = folder_bytes(folder)
    return {name: data for name, data in files.items() if name.endswith((".png", ".jpg"))}


def test_overlays_of_maps_under_a_url(
    pair: tuple[Path, str], predicted: Job, tmp_path: Path
) -> None:
    for number, maps in enumerate(pair):
        words = ("--images", predicted.frames, "--score entropy", "--out", tmp_path / f"{number}")
        succeed("overlay --maps", maps, *words)
    pictures = pictures_in(tmp_path / "0")
    assert len(pictures) == 4
    assert pictures_in(tmp_path / "1") == pictures


def test_a_review_page_of_maps_under_a_url(
    pair: tuple[Path, str], predicted: Job, tmp_path: Path
) -> None:
    for number, maps in enumerate(pair):
        succeed(
            "review --maps", maps, "--images", predicted.frames, "--out", tmp_path / f"{number}"
        )
    local = folder_bytes(tmp_path / "0")
    remote = folder_bytes(tmp_path / "1")
    without_stamp = []
    for pages in (local, remote):
        stamp = json.loads(pages["review.json"])["stamp"].encode()  # of this writing
        without_stamp.append({name: data.replace(stamp, b"") for name, data in pages.items()})
    first, second = without_stamp
    changed = {name for name in first if first[name] != second.get(name)}
    # The record of the page names its maps, and the list of files has the sums of all files.
    assert changed <= {"review.json", ".segunc-files.jsonl"}
    assert local.keys() == remote.keys()
    assert json.loads(remote["review.json"])["maps"] == pair[1]


def test_a_threshold_a_monitor_and_a_report_of_maps_under_a_url(
    pair: tuple[Path, str], predicted: Job, tmp_path: Path
) -> None:
    labels = ("--anomaly-labels", predicted.masks)
    results = []
    for number, maps in enumerate(pair):
        out = tmp_path / f"{number}"
        threshold = out / "threshold.json"
        words = ("--control missed-pixels --level 0.5 --score entropy", *labels)
        succeed("threshold --maps", maps, *words, "--out", threshold)
        words = ("--threshold", threshold, "--maps", maps, "--reference", maps)
        message = refuse("monitor", *words, "--out", out / "monitor.json")
        assert f"{maps} holds 0 units beside those of the calibration" in message
        words = ("--model", predicted.abnn, "--threshold", threshold, *labels, "--maps", maps)
        succeed("report", *words, "--out", out / "report")
        results.append((read(threshold), read(out / "report/report.json")))
    (threshold, report), (remote_threshold, remote_report) = results
    assert remote_threshold["value"] == threshold["value"]
    assert remote_threshold["frames"] == threshold["frames"]
    assert remote_report["failures"] == report["failures"]
    assert remote_report["maps"] == report["maps"]
    assert remote_report["maps"][0]["name"] == "maps"


def test_a_monitor_watches_maps_under_a_url(
    pair: tuple[Path, str], predicted: Job, tmp_path: Path
) -> None:
    words = ("--control missed-pixels --level 0.5 --score entropy --frames _00000[01]_",)
    labels = ("--anomaly-labels", predicted.masks)
    threshold = tmp_path / "threshold.json"
    succeed("threshold --maps", pair[0], *words, *labels, "--out", threshold)
    states = []
    for number, maps in enumerate(pair):
        out = tmp_path / f"{number}.json"
        words = ("--threshold", threshold, "--maps", maps, "--reference", maps, "--level 0.9")
        succeed("monitor", *words, "--out", out)
        states.append(read(out))
    local, remote = states
    assert remote["maps"] == remote["reference"]["path"] == pair[1]
    for state in states:
        for key in ("maps", "reference", "command", "date", "record_sha256"):
            state.pop(key, None)
    assert remote == local


def test_a_summary_of_maps_under_a_url(pair: tuple[Path, str], tmp_path: Path) -> None:
    local = succeed("summary --maps", pair[0], "--out", tmp_path / "0.csv").stdout
    remote = succeed("summary --maps", pair[1], "--out", tmp_path / "1.csv").stdout
    assert remote.replace("1.csv", "0.csv") == local
    table = (tmp_path / "1.csv").read_text()
    assert table.replace(pair[1], str(pair[0])) == (tmp_path / "0.csv").read_text()


def test_files_of_a_benchmark_of_maps_under_a_url(pair: tuple[Path, str], tmp_path: Path) -> None:
    for number, maps in enumerate(pair):
        succeed("export --to smiyc --score entropy --maps", maps, "--out", tmp_path / f"{number}")
    local = sorted((tmp_path / "0").rglob("*.hdf5"))
    remote = sorted((tmp_path / "1").rglob("*.hdf5"))
    assert len(local) == len(remote) == 4
    for path, remote_path in zip(local, remote, strict=True):
        with h5py.File(path) as expected, h5py.File(remote_path) as written:
            assert np.array_equal(written["value"], expected["value"])


def test_what_maps_under_a_url_lack_is_said_with_the_url(
    pair: tuple[Path, str], predicted: Job, tmp_path: Path
) -> None:
    message = refuse("overlay --maps", pair[1], "--score knn", "--out", tmp_path / "figures")
    assert f"the score 'knn' has no maps in {pair[1]}, which holds" in message
    message = refuse("compare", pair[1])
    assert f"{pair[1]} is one maps folder, and compare needs at least two" in message


def read(path: Path) -> Any:
    return json.loads(path.read_text())
