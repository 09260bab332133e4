"""``segunc watch``: its alarms are those of the maps of ``segunc predict``, what is dropped is
counted, and a restarted watch goes on.
"""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import signal
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar

import cv2
import numpy as np
import pytest

import segunc
from segunc.cli.run import SHOWN
from segunc.core.errors import InputError, NoteWarning, PartialFailure
from segunc.core.files import LineFile, read_lines
from segunc.core.histogram import TimeHistogram
from segunc.decisions.events import find_events
from segunc.decisions.flags import read_thresholds
from segunc.frames import streams
from segunc.frames.source import Frame
from segunc.frames.streams import Arrival, LiveSource, StreamError
from segunc.maps.manifest import read_manifest
from segunc.maps.reader import MapsReader
from segunc.maps.regions import strongest_regions
from segunc.maps.shards import Shard, write_state
from segunc.options import SamplingOptions, WatchOptions
from segunc.verbs import execution, watch as watch_module, watch_log
from segunc.verbs.monitor import EACH_FRAME
from segunc.verbs.watch_log import RUNNING, read_earlier
from tests.conftest import Job
from tests.maps.fakes import folder_bytes
from tests.support.images import rename_to_latin_1
from tests.support.scenes import table
from tests.support.streams import (
    RtspServer,
    free_port,
    tcp_server,
    whole,
    write_stream,
)
from tests.support.videos import decoded
from tests.verbs.processes import Command, refuse, segunc as run
from tests.verbs.test_interrupted import count_lines, wait_for

SAMPLING: dict[str, Any] = {"draws": 4, "precision": "float32", "device": "cpu", "threads": 1}
WORDS = "--draws 4 --precision float32 --device cpu --threads 1"
Event = dict[str, Any]


@dataclass(frozen=True)
class Scene:
    """A clip, its maps, and thresholds of its model."""

    job: Job
    clip: Path
    maps: Path
    calibration: Path
    threshold: Path
    value: float

    @property
    def flag(self) -> str:
        """A plain threshold that flags some frames and not all."""
        return f"entropy={self.value!r}"

    def watch(self, **settings: Any) -> list[Event]:
        """Return all events of a watch of the clip."""
        return list(self.begin(**settings))

    def begin(self, **settings: Any) -> Any:
        """Begin a watch of the clip."""
        given: dict[str, Any] = {"input": self.clip, "flag": [self.flag], **SAMPLING}
        return segunc.watch(**{"model": self.job.abnn, **given, **settings})


@pytest.fixture(scope="module")
def scene(finetuned: Job, tmp_path_factory: pytest.TempPathFactory) -> Scene:
    """Maps of the toy set's video as a transport stream, and a threshold of the same model."""
    folder = tmp_path_factory.mktemp("watch")
    _, images = decoded(finetuned.video)
    clip = write_stream(folder / "clip.ts", images)
    places = {"maps": clip, "calibration": finetuned.frames}
    for name, source in places.items():
        segunc.predict(finetuned.abnn, source, folder / name, **SAMPLING)
    made = segunc.threshold(
        maps=folder / "calibration",
        anomaly_labels=finetuned.masks,
        out=folder / "threshold.json",
        control="flagged-pixels",
        level=0.5,
        score="entropy",
    )
    return Scene(
        job=finetuned,
        clip=clip,
        maps=folder / "maps",
        calibration=folder / "calibration",
        threshold=made.path,
        value=value_with_alarms(MapsReader(folder / "maps")),
    )


def value_with_alarms(reader: MapsReader) -> float:
    """Return a threshold of the entropy that flags regions of 50 pixels in half of the frames."""
    highest = []
    for name in reader.frames:
        values = reader.read(name, "entropy")
        # Half the interval again and again: from its lower end on a region is flagged.
        low = 0.0
        high = 1.0
        for _ in range(30):
            middle = (low + high) / 2
            if strongest_regions(values, middle, smallest=50, most=1):
                low = middle
            else:
                high = middle
        highest.append(low)
    highest.sort()
    middle = len(highest) // 2
    return (highest[middle - 1] + highest[middle]) / 2


def lines_of(out: Path) -> list[Event]:
    return list(read_lines(out / "alarms.jsonl"))


def kinds(events: list[Event]) -> list[str]:
    return [event["kind"] for event in events]


def of_kind(events: list[Event], kind: str) -> list[Event]:
    return [event for event in events if event["kind"] == kind]


def assert_alarms_of_the_maps(scene: Scene, events: list[Event], flag: str) -> None:
    """Compare alarms, region by region, with the events of the maps of the clip."""
    reader = MapsReader(scene.maps)
    ((score, threshold),) = read_thresholds([flag]).items()
    found, _ = find_events(reader, score, threshold, [None] * len(reader.frames))
    expected: dict[int, dict[int, list[int]]] = {}
    for event in found:
        for name, box in event.boxes.items():
            expected.setdefault(int(name), {})[event.id] = box
    alarms = {}
    for alarm in of_kind(events, "alarm"):
        boxes = {}
        for region in alarm["regions"]:
            box = region["box"]
            boxes[region["event"]] = [box["x"], box["y"], box["width"], box["height"]]
        alarms[alarm["frame"]] = boxes
    assert alarms == expected
    assert len(alarms) > 0
    # What the events say of their strongest frame, a line says of it, too.
    for event in found:
        number = int(event.peak["frame"])
        (alarm,) = [alarm for alarm in of_kind(events, "alarm") if alarm["frame"] == number]
        (region,) = [region for region in alarm["regions"] if region["event"] == event.id]
        assert region["peak"] == event.peak["value"]
        assert region["strength"] == pytest.approx(event.peak["strength"], rel=1e-8)


def test_alarms_of_a_stream_are_those_of_the_maps(scene: Scene) -> None:
    with tcp_server(whole(scene.clip)) as url:
        events = scene.watch(input=url, queue=100, reconnect=0, frame_lines=True)
    end = events[-1]
    assert end["kind"] == "end"
    assert end["reason"] == "lost"
    assert end["read"] == end["processed"] == 12
    assert len(of_kind(events, "frame")) + len(of_kind(events, "alarm")) == 12
    assert len(of_kind(events, "frame")) > 0
    assert_alarms_of_the_maps(scene, events, scene.flag)
    stamps = [event["time"] for event in events if event["kind"] in ("frame", "alarm")]
    np.testing.assert_allclose(stamps, np.arange(12) / 25, atol=1e-4)
    assert of_kind(events, "gap")[0]["size"] == [64, 128]


@pytest.mark.parametrize("options", [(), ("--place", "0,1"), ("--level-frames", "--margin", "2")])
def test_alarms_of_a_prepared_threshold_are_those_of_the_maps(
    scene: Scene, tmp_path: Path, options: tuple[str, ...]
) -> None:
    if options[:1] == ("--place",):
        options = ("--place", "road")
    file = tmp_path / "threshold.json"
    done = run(
        "threshold --control flagged-pixels --level 0.5 --score entropy --smallest 5",
        "--maps",
        scene.calibration,
        "--anomaly-labels",
        scene.job.masks,
        "--out",
        file,
        *options,
    )
    assert done.code == 0, done.stderr
    events = scene.watch(flag=[str(file)], no_monitor=True)
    assert_alarms_of_the_maps(scene, events, str(file))


def test_kept_maps_are_those_of_predict_byte_by_byte(scene: Scene, tmp_path: Path) -> None:
    out = tmp_path / "out"
    events = scene.watch(out=out, keep="all")
    assert kinds(lines_of(out)) == kinds(events)
    for name in ("000000", "000011"):
        for score in ("entropy", "prediction"):
            kept = (out / "maps" / score / f"{name}.png").read_bytes()
            assert kept == (scene.maps / score / f"{name}.png").read_bytes()
    picture = cv2.imread(str(out / "frames" / "000003.png"))[..., ::-1]
    np.testing.assert_array_equal(picture, decoded(scene.clip)[1][3])
    # Other verbs read the folder.
    summary = segunc.summary(out / "maps", score="entropy", top=2)
    assert summary.moments[0].time is not None
    assert segunc.review(out / "maps", out=tmp_path / "review").page is not None


def test_a_watch_is_compared_with_an_offline_run_as_the_guide_says(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guide = (Path(__file__).parents[2] / "docs/guides/watching.md").read_text("utf-8")
    section = guide.partition("\n## The same frames offline\n")[2].partition("\n## ")[0]
    monkeypatch.chdir(tmp_path)
    named = {"runs/abnn": scene.job.abnn, "drive.mp4": scene.clip, "threshold.json": scene.flag}
    printed = {}
    for command in re.findall(r"^\$ segunc (.*)$", section, re.MULTILINE):
        words = [str(named.get(word, word)) for word in command.split()]
        verb = words[0]
        if verb in ("watch", "predict"):
            words[1:1] = WORDS.split()
        done = run(*words)
        assert done.code == 0, done.stderr
        printed[verb] = done.stdout
    table = printed["compare"]
    assert re.search(r"any change +\| +0 \| +0 % ", table)
    assert re.search(r"regions only here +\| +0 \| +0 \|", table)
    assert "12 frames" in table
    alarms = of_kind(lines_of(Path("replay")), "alarm")
    told = {region["event"] for alarm in alarms for region in alarm["regions"]}
    rows = Path("offline.csv").read_text().splitlines()[1:]
    assert told == {int(row.split(",")[0]) for row in rows}


def test_maps_of_a_watch_of_a_folder_are_compared_as_the_refusal_says(
    scene: Scene, tmp_path: Path
) -> None:
    incoming = tmp_path / "incoming"
    incoming.mkdir()
    for name, picture in zip(("left.png", "right.png"), decoded(scene.clip)[1], strict=False):
        cv2.imwrite(str(incoming / name), picture[..., ::-1])
    out = tmp_path / "out"
    settings: dict[str, Any] = {
        "input": incoming,
        "every_frame": True,
        "frame_lines": True,
        "status": 0.5,
    }
    with scene.begin(out=out, keep="all", **settings) as events:
        for event in events:
            if event.get("frame") == 1 and "flagged_pixels" in event:
                break
        next(events, None)  # so that the frame is kept
    segunc.predict(scene.job.abnn, incoming, tmp_path / "named", **SAMPLING)
    with pytest.raises(InputError) as refused:
        segunc.compare([out / "maps", tmp_path / "named"])
    assert "like 000000 and left" in refused.value.message
    named = re.search(r"segunc predict --input (\S+)$", refused.value.hint)
    assert named is not None
    assert "both models" not in refused.value.hint
    segunc.predict(scene.job.abnn, named[1], tmp_path / "kept", **SAMPLING)
    assert "2 frames" in segunc.compare([out / "maps", tmp_path / "kept"]).text


def test_loading_is_said_before_the_first_line(scene: Scene) -> None:
    done = run(f"watch --model {scene.job.abnn} --input {scene.clip} --flag {scene.flag} {WORDS}")
    assert done.code == 0, done.stderr
    assert f"loading {scene.job.abnn}" in done.stderr.splitlines()
    for line in done.stdout.splitlines():
        json.loads(line)


def test_only_alarms_are_kept_up_to_the_limit(scene: Scene, tmp_path: Path) -> None:
    events = scene.watch(out=tmp_path / "out", keep="alarms")
    alarms = [event["frame"] for event in of_kind(events, "alarm")]
    kept = sorted(path.stem for path in (tmp_path / "out" / "frames").iterdir())
    assert kept == [f"{number:06d}" for number in alarms]
    limited = scene.watch(out=tmp_path / "limited", keep="all", keep_limit=2e-5)
    pictures = list((tmp_path / "limited" / "frames").iterdir())
    assert 1 <= len(pictures) < 12
    (note,) = [
        event for event in of_kind(limited, "note") if "nothing more is kept" in event["text"]
    ]
    assert "--keep-limit" in note["text"]


def manifest_of(out: Path) -> dict[str, Any]:
    """Return the manifest of the maps that a watch kept."""
    manifest = read_manifest(out / "maps")
    assert manifest is not None
    return manifest


@pytest.fixture(scope="module")
def kept_alarms(scene: Scene, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Maps of the frames with an alarm alone, and what is said of them."""
    out = tmp_path_factory.mktemp("kept") / "night"
    events = scene.watch(out=out, keep="alarms")
    alarms = events[-1]["alarms"]
    assert 1 < alarms < events[-1]["processed"]
    return out / "maps", (
        f"{out / 'maps'} holds only frames with an alarm, {alarms} of the "
        f"{events[-1]['processed']} that were processed (watch --keep alarms), so it does not say "
        "how often an alarm comes"
    )


def test_a_summary_says_that_only_alarms_were_kept(
    scene: Scene, kept_alarms: tuple[Path, str]
) -> None:
    maps, said = kept_alarms
    notes = segunc.summary(maps, flag=[str(scene.threshold)]).notes
    assert f"{said}; the list is of what is there" in notes
    assert not any("with an alarm" in note for note in segunc.summary(scene.maps).notes)


def test_a_review_page_says_that_only_alarms_were_kept(
    scene: Scene, kept_alarms: tuple[Path, str], tmp_path: Path
) -> None:
    maps, said = kept_alarms
    page = segunc.review(maps=maps, flag=[str(scene.threshold)], out=tmp_path / "page").page
    assert page is not None
    assert f"This page shows what is there: {said}." in table(page, "page")["notices"]


def test_a_monitor_says_that_only_alarms_were_kept(
    scene: Scene, kept_alarms: tuple[Path, str], tmp_path: Path
) -> None:
    maps, said = kept_alarms
    done = segunc.monitor(
        threshold=scene.threshold, maps=maps, apart=0, level=0.9, out=tmp_path / "monitor.json"
    )
    assert said in done.notes
    assert any("so an alarm of the monitor is no sign of a change" in note for note in done.notes)


def test_a_threshold_says_that_only_alarms_were_kept(
    kept_alarms: tuple[Path, str], tmp_path: Path
) -> None:
    maps, said = kept_alarms
    reader = MapsReader(maps)
    masks = tmp_path / "masks"
    masks.mkdir()
    for name in reader.frames:
        mask = np.zeros(reader.read(name, "entropy").shape, np.uint8)
        mask[:4] = 1
        cv2.imwrite(str(masks / f"{name}.png"), mask)
    made = segunc.threshold(
        maps=maps,
        anomaly_labels=masks,
        control="flagged-pixels",
        level=0.9,
        unit="frame",
        out=tmp_path / "threshold.json",
    )
    assert said in made.notes
    assert made.threshold.chosen in made.notes
    assert made.threshold.chosen.startswith("these frames were kept because they had an alarm; ")
    done = segunc.evaluate(maps=maps, anomaly_labels=masks, out=tmp_path / "evaluated.json")
    assert done.numbers["unfinished"] == said


def test_a_watch_that_goes_on_adds_what_it_processed(scene: Scene, tmp_path: Path) -> None:
    out = tmp_path / "night"
    counts = []
    for keep in ("alarms", "alarms", "all"):
        end = scene.watch(out=out, keep=keep)[-1]
        counts.append(end["processed"])
        kept = manifest_of(out)["kept"]
        assert kept["processed"] == sum(counts)
        assert kept["frames"].startswith("with an alarm")
        assert (kept["frames"] == "with an alarm") == (keep == "alarms")


def test_a_watch_that_is_killed_leaves_no_number_of_frames(scene: Scene, tmp_path: Path) -> None:
    out = tmp_path / "night"
    scene.watch(out=out, keep="alarms")
    manifest = manifest_of(out)
    manifest["kept"]["processed"] = None  # as a run leaves it until it ends
    write_state(out / "maps", Shard(), manifest)
    scene.watch(out=out, keep="alarms")
    assert manifest_of(out)["kept"] == {"frames": "with an alarm", "processed": None}
    said = str(MapsReader(out / "maps").unfinished)
    assert "holds only frames with an alarm (watch --keep alarms), so" in said


def test_maps_of_all_frames_say_nothing_of_what_was_kept(scene: Scene, tmp_path: Path) -> None:
    scene.watch(out=tmp_path / "night", keep="all")
    assert MapsReader(tmp_path / "night" / "maps").unfinished is None


def test_the_monitor_gives_the_numbers_of_segunc_monitor(scene: Scene, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"level": 0.9, "apart": 0, "statistic": "p99"}
    events = scene.watch(flag=[str(scene.threshold)], reference=scene.calibration, **settings)
    tested = of_kind(events, "monitor")
    assert [event["frame"] for event in tested] == list(range(12))
    try:
        state = segunc.monitor(
            threshold=scene.threshold, maps=scene.maps, reference=scene.calibration, **settings
        ).state
    except InputError:
        pytest.fail("12 frames are enough at this level")
    assert tested[-1]["log10"] == pytest.approx(state["martingale"], abs=1e-12)
    drifts = of_kind(events, "drift")
    fired = [f"{event['frame']:06d}" for event in drifts]
    assert fired == ([state["fired"]] if state["fired"] else [])
    assert EACH_FRAME in [event["text"] for event in of_kind(events, "note")]
    thinned = scene.watch(flag=[str(scene.threshold)])
    assert EACH_FRAME not in [event["text"] for event in of_kind(thinned, "note")]


# With sources and models that are not there.


class Given(LiveSource):
    """A source of numbered frames, which waits for each of its gates before it goes on."""

    kind = "stream"
    shown = "rtsp://camera"
    reconnects = False

    def __init__(self, *steps: int | Callable[[], object], size: tuple[int, int] = (64, 128)):
        self.steps = steps
        self.size = size
        self.number = 0
        self.clock_number = 0

    def arrivals(self, stopped: threading.Event) -> Iterator[Arrival | None]:
        for step in self.steps:
            if callable(step):
                step()
                continue
            for _ in range(step):
                image = np.zeros((*self.size, 3), np.uint8)
                image[:, :, 0] = self.number % 256
                stamp = self.number / 10
                self.number += 1
                yield Arrival(
                    image=lambda image=image: image,  # type: ignore[misc]
                    arrived=time.monotonic(),
                    wall=time.time(),
                    stamp=stamp,
                    clock=self.clock_number,
                )


class Named(Given):
    """Numbered frames that are files of a folder."""

    kind = "folder"

    def arrivals(self, stopped: threading.Event) -> Iterator[Arrival | None]:
        for arrival in super().arrivals(stopped):
            assert arrival is not None
            assert arrival.stamp is not None
            name = f"{arrival.stamp:g}.png"
            yield replace(arrival, name=name, taken_up_to=(arrival.stamp, name))


class FakeProcess:
    """Stands for the network: maps whose entropy is 1 in a square at every third frame."""

    def __init__(self, *_: object, **settings: object) -> None:
        pass

    def __call__(self, frame: Frame) -> Any:
        height, width = frame.image.shape[:2]  # type: ignore[union-attr]
        entropy = np.zeros((height, width), np.float32)
        if frame.index % 3 == 0:
            entropy[8:20, 8:20] = 1
        return {"prediction": np.zeros((height, width), np.uint8), "entropy": entropy}


class Always(FakeProcess):
    """A network that sees the same square in each frame."""

    def __call__(self, frame: Frame) -> Any:
        maps = super().__call__(frame)
        maps["entropy"][8:20, 8:20] = 1
        return maps


@pytest.fixture
def given(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Return a function that begins a watch of a source with a fake network."""
    monkeypatch.setattr(watch_module, "FrameProcess", FakeProcess)

    def begin(source: LiveSource, process: Any = FakeProcess, **settings: Any) -> Any:
        monkeypatch.setattr(watch_module, "open_live", lambda *_, **__: source)
        monkeypatch.setattr(watch_module, "FrameProcess", process)
        words: dict[str, Any] = {"flag": ["entropy=0.5"], "input": "rtsp://camera", **settings}
        return segunc.watch(model=scene.job.abnn, **{**SAMPLING, **words})

    return begin


def test_a_slow_network_gets_the_newest_frame_and_the_others_are_counted(given: Any) -> None:
    """The first frame is in the network while nine more come; of these the last is processed."""
    is_processing = threading.Event()
    all_came = threading.Event()

    class Slow(FakeProcess):
        def __call__(self, frame: Frame) -> Any:
            is_processing.set()
            assert all_came.wait(10)
            return super().__call__(frame)

    source = Given(1, lambda: is_processing.wait(10), 9, all_came.set)
    events = list(given(source, Slow, frame_lines=True))
    processed = [event["frame"] for event in events if event["kind"] in ("alarm", "frame")]
    assert processed == [0, 9]
    assert events[-1]["read"] == 10
    assert events[-1]["dropped"] == {"newer": 8, "end": 0}
    # The first frame waited for the gate, and the last one did not.
    assert events[-1]["latency"]["frames"] == 2


def test_a_frame_that_is_too_old_when_its_turn_comes_is_dropped(given: Any) -> None:
    is_processing = threading.Event()
    came = threading.Event()

    class Slow(FakeProcess):
        def __call__(self, frame: Frame) -> Any:
            is_processing.set()
            assert came.wait(10)
            if frame.index == 0:
                time.sleep(0.6)  # frames 1 and 2 wait meanwhile
            return super().__call__(frame)

    source = Given(1, lambda: is_processing.wait(10), 2, came.set, lambda: time.sleep(1.0), 1)
    events = list(given(source, Slow, queue=5, max_latency=0.3, frame_lines=True))
    processed = [event["frame"] for event in events if event["kind"] in ("alarm", "frame")]
    assert processed == [0, 3]
    assert events[-1]["dropped"] == {"late": 2, "end": 0}


def test_frames_of_another_size_stop_the_watch(given: Any) -> None:
    source = Given(2, lambda: setattr(source, "size", (64, 64)), 3)
    result = given(source, queue=100)
    events = list(result)
    (gap,) = [event for event in of_kind(events, "gap") if event["what"] == "size"]
    assert gap["size"] == [64, 64]
    assert events[-1]["reason"] == "size"
    assert "64 x 64 pixels, and the threshold is applied to 64 x 128" in result.failure
    assert "--size-change skip" in result.failure
    assert events[-1]["processed"] == 2
    assert events[-1]["read"] == 2 + sum(events[-1]["dropped"].values())


def test_frames_of_another_size_are_skipped_until_the_size_is_back(given: Any) -> None:
    source = Given(
        2,
        lambda: setattr(source, "size", (64, 64)),
        3,
        lambda: setattr(source, "size", (64, 128)),
        1,
    )
    result = given(source, queue=100, size_change="skip")
    events = list(result)
    gaps = [event for event in of_kind(events, "gap") if event["what"] == "size"]
    assert [(gap["frame"], gap["size"]) for gap in gaps] == [(2, [64, 64]), (5, [64, 128])]
    assert events[-1]["processed"] == 3
    assert events[-1]["dropped"] == {"size": 3, "end": 0}
    assert result.failure == ""


def test_a_threshold_of_frames_of_another_size_gets_a_note(given: Any, scene: Scene) -> None:
    flag = [str(scene.threshold)]
    usual = [event["text"] for event in of_kind(list(given(Given(1), flag=flag)), "note")]
    assert not any("was calibrated on frames of" in text for text in usual)
    source = Given(1)
    source.size = (64, 64)
    notes = [event["text"] for event in of_kind(list(given(source, flag=flag)), "note")]
    assert any("on frames of 128x64 pixels, and these have 64x64" in text for text in notes)


def test_frames_that_come_more_densely_than_those_of_a_promise_get_a_note(
    scene: Scene, tmp_path: Path
) -> None:
    """Of more frames in a block, more have an alarm."""
    content = json.loads(scene.threshold.read_text())
    del content["record_sha256"]
    content |= {"control": "false-alarms", "level": 1.0, "unit": "10s", "units": 1, "all_units": 1}
    notes = []
    for count in (1, 12):  # frames of the calibration in a block
        frames = {f"{number}": "0" * 64 for number in range(count)}
        file = tmp_path / f"{count}.json"
        file.write_text(json.dumps({**content, "frames": frames}))
        with pytest.warns(NoteWarning, match="hash"):
            events = scene.watch(flag=[str(file)], no_monitor=True)
        notes.append([event["text"] for event in of_kind(events, "note")])
    (note,) = notes[0]
    assert note.startswith("1.json was calibrated on about 1 frame in 10s, and here 2 and more")
    assert notes[1] == []


def test_a_source_without_times_says_so_once(given: Any, scene: Scene, tmp_path: Path) -> None:
    source = Given(3)
    source.clock = lambda: "no times"
    out = tmp_path / "out"
    events = list(given(source, flag=scene.flag, out=out))
    assert [event["text"] for event in of_kind(events, "note")].count("no times") == 1
    assert [event["text"] for event in of_kind(lines_of(out), "note")].count("no times") == 1


def test_a_network_that_fails_is_told_once_and_its_frames_are_counted(given: Any) -> None:
    class Faulty(FakeProcess):
        def __call__(self, frame: Frame) -> Any:
            maps = super().__call__(frame)
            if 2 <= frame.index < 5:
                maps["entropy"][0, 0] = np.nan
            return maps

    events = list(given(Given(7), Faulty, queue=100))
    (gap,) = [event for event in of_kind(events, "gap") if event["what"] == "failed"]
    assert gap["frame"] == 2
    assert "NaN" in gap["reason"]
    assert events[-1]["processed"] == 4
    assert events[-1]["dropped"] == {"failed": 3, "end": 0}


def test_silence_is_told_with_its_length_and_status_goes_on(given: Any) -> None:
    source = Given(1, lambda: time.sleep(1.5), 1)
    source.kind = "folder"
    events = list(given(source, stall=0.5, status=0.4))
    gaps = [event["what"] for event in of_kind(events, "gap")]
    assert gaps == ["connected", "stalled", "resumed"]
    states = of_kind(events, "status")
    assert len(states) >= 3
    assert states[0]["flagging"] is True
    assert states[-1]["flagging"] is False
    assert states[-1]["memory_mb"] > 0


def test_a_watch_ends_after_its_time(given: Any) -> None:
    stop = threading.Event()
    events = list(given(Given(1, lambda: stop.wait(20)), duration=0.5))
    stop.set()
    assert events[-1]["reason"] == "duration"


def test_a_watch_of_a_folder_without_images_says_so_and_leaves_its_lines(
    scene: Scene, tmp_path: Path
) -> None:
    (tmp_path / "incoming" / "deeper").mkdir(parents=True)
    events = scene.watch(input=tmp_path / "incoming", out=tmp_path / "night", duration=0.5)
    (note,) = of_kind(events, "note")
    assert f"{tmp_path / 'incoming'} holds no image yet" in note["text"]
    assert lines_of(tmp_path / "night") == events
    assert events[-1]["reason"] == "duration"
    assert events[-1]["read"] == 0


def test_a_watch_says_which_files_of_its_folder_are_no_frames(scene: Scene, tmp_path: Path) -> None:
    incoming = tmp_path / "incoming"
    incoming.mkdir()
    for name in ("x.mp4", "pic.heic"):
        (incoming / name).write_bytes(b"something")
    events = scene.watch(input=incoming, out=tmp_path / "night", duration=1.0)
    texts = [note["text"] for note in of_kind(events, "note")]
    assert [text.partition(": ")[2].partition(";")[0] for text in texts[1:]] == [
        "1 video left out, first x.mp4",
        "1 picture of formats that are not read (HEIC) left out, first pic.heic",
    ]
    assert lines_of(tmp_path / "night") == events
    assert not of_kind(events, "gap")


def test_memory_does_not_grow_with_the_frames(given: Any, tmp_path: Path) -> None:
    marks = []
    tracemalloc.start()
    try:
        # Frames that are alarms, and lines that are written.
        source = Given(2500, size=(32, 32))
        source.can_wait = True
        source.kind = "folder"
        result = given(source, every_frame=True, out=tmp_path / "out", frame_lines=True)
        for event in result:
            is_mark = event["kind"] in ("alarm", "frame") and event["frame"] in (500, 2400)
            if is_mark:
                memory, _ = tracemalloc.get_traced_memory()
                marks += [memory]
    finally:
        tracemalloc.stop()
    assert result.end["processed"] == 2500
    before, after = marks
    assert after - before < 100_000, "bytes in 1900 frames"


class Interrupted(FakeProcess):
    """Ctrl-C comes while the network computes the frame of index 3."""

    def __call__(self, frame: Frame) -> Any:
        if frame.index == 3:
            raise KeyboardInterrupt
        return super().__call__(frame)


def test_a_frame_in_work_when_the_watch_is_interrupted_is_counted(
    given: Any, tmp_path: Path
) -> None:
    events = given(Given(8), Interrupted, out=tmp_path / "out", queue=20)
    with pytest.raises(KeyboardInterrupt):
        list(events)
    end = lines_of(tmp_path / "out")[-1]
    assert (end["kind"], end["reason"], end["processed"]) == ("end", "interrupted", 3)
    assert end["read"] == end["processed"] + sum(end["dropped"].values())


class Changing(FakeProcess):
    """A network whose entropy is higher from frame 40 on."""

    def __call__(self, frame: Frame) -> Any:
        maps = super().__call__(frame)
        generator = np.random.default_rng(frame.index)
        level = 0.3 if frame.index < 40 else 0.5
        maps["entropy"][:] = generator.uniform(level - 0.1, level + 0.1)
        return maps


def test_frames_that_are_unlike_those_before_raise_the_alarm_of_the_monitor(
    given: Any, scene: Scene, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    settings: dict[str, Any] = {"flag": [str(scene.threshold)], "apart": 0, "queue": 200}
    events = list(given(Given(80), Changing, out=out, **settings))
    (drift,) = of_kind(events, "drift")
    assert 40 <= drift["frame"] < 80
    assert drift["log10"] >= 2
    assert "no longer like those before" in drift["text"]
    assert events[-1]["monitor"][0]["fired"] == drift["frame"]
    assert events[-1]["failure"] == ""
    # A restarted watch goes on with the same test.
    restarted = list(given(Given(5), Changing, out=out, **settings))
    assert restarted[-1]["monitor"][0]["frames"] == 85
    assert restarted[-1]["monitor"][0]["fired"] == drift["frame"]
    assert of_kind(restarted, "drift") == []
    # It has the numbers of one long watch.
    whole = list(given(Given(85), Changing, **settings))
    assert whole[-1]["monitor"][0] == restarted[-1]["monitor"][0]


def test_a_broken_off_loop_ends_the_watch(given: Any, tmp_path: Path) -> None:
    stop = threading.Event()
    with given(Given(5, lambda: stop.wait(20)), out=tmp_path, frame_lines=True) as result:
        for event in result:
            if event["kind"] in ("alarm", "frame"):
                break
    stop.set()
    assert lines_of(tmp_path)[-1] == result.end
    assert result.end["reason"] == "closed"
    assert result.path == tmp_path / "alarms.jsonl"
    assert "processed" in str(result)


def events_of(lines: list[Event]) -> list[tuple[int, int, bool]]:
    """Return frame, number of the event and whether it is new, of each alarm of one region."""
    found = []
    for alarm in of_kind(lines, "alarm"):
        (region,) = alarm["regions"]
        found.append((alarm["frame"], region["event"], region["new"]))
    return found


def test_an_alarm_after_a_lost_connection_is_a_new_one(
    given: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody saw what was there meanwhile, however long the stream was away."""
    monkeypatch.setattr(streams, "FIRST_WAIT", 0.01)

    class Lost(Given):
        reconnects = True
        connections = 0

        def arrivals(self, stopped: threading.Event) -> Iterator[Arrival | None]:
            self.connections += 1
            if self.connections > 2:
                raise StreamError("rtsp://camera is away")
            yield from super().arrivals(stopped)

    events = list(given(Lost(2), Always, queue=20, reconnect=1))
    assert events_of(events) == [(0, 1, True), (1, 1, False), (2, 2, True), (3, 2, False)]


def test_an_alarm_after_frames_of_another_size_is_a_new_one(given: Any) -> None:
    source = Given(
        1,
        lambda: setattr(source, "size", (64, 64)),
        1,
        lambda: setattr(source, "size", (64, 128)),
        1,
    )
    events = list(given(source, Always, queue=100, size_change="skip"))
    assert events_of(events) == [(0, 1, True), (2, 2, True)]


def test_a_frame_whose_alarm_is_not_written_yet_is_not_processed(
    given: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a watch that goes on would pass over its file, and its alarm would be lost."""
    places = []

    def interrupted(*arguments: Any, **settings: Any) -> Any:
        places.append(len(places))
        if len(places) == 4:
            raise KeyboardInterrupt
        return strongest_regions(*arguments, **settings)

    monkeypatch.setattr(watch_module, "strongest_regions", interrupted)
    events = given(Named(8), Always, out=tmp_path / "out", queue=20)
    with pytest.raises(KeyboardInterrupt):
        list(events)
    lines = lines_of(tmp_path / "out")
    assert [alarm["frame"] for alarm in of_kind(lines, "alarm")] == [0, 1, 2]
    assert lines[-1]["processed"] == lines[-1]["alarms"] == 3
    assert lines[-1]["last_file"] == [0.2, "0.2.png"]
    assert lines[-1]["read"] == lines[-1]["processed"] + sum(lines[-1]["dropped"].values())


def test_times_that_go_back_are_told_once(given: Any) -> None:
    source = Given(
        3,
        lambda: setattr(source, "number", 10**6),
        2,
        lambda: setattr(source, "number", 5),
        3,
    )
    events = list(given(source, Always, queue=100))
    times = [alarm["time"] for alarm in of_kind(events, "alarm")]
    assert times[4:] == [times[4]] * 4, "the time stands"
    (note,) = of_kind(events, "note")
    assert note["frame"] == 5
    assert note["text"].startswith("the times of frames go back, so the time of the watch stands")


def files_of(scene: Scene, count: int, **settings: Any) -> list[Event]:
    """Return the lines of the first files that a watch takes from a folder."""
    lines: list[Event] = []
    with scene.begin(**settings, every_frame=True, duration=20.0) as events:
        for event in events:
            if "file" in event:
                lines.append(event)
            if len(lines) == count:
                break
    return lines


def test_files_that_come_while_no_watch_runs_are_taken_after_one_whose_time_is_to_come(
    scene: Scene, tmp_path: Path
) -> None:
    incoming = tmp_path / "incoming"
    incoming.mkdir()
    picture = np.zeros((64, 128, 3), np.uint8)
    tomorrow = time.time() + 86400
    for name in ("a.png", "b.png"):
        cv2.imwrite(str(incoming / name), picture)
    os.utime(incoming / "b.png", (tomorrow, tomorrow))
    settings: dict[str, Any] = {"input": incoming, "out": tmp_path / "night", "frame_lines": True}
    first, second = files_of(scene, 2, **settings)
    assert (first["file"], second["file"]) == ("a.png", "b.png")
    assert second["time"] < 3600, "of the clock of this machine"
    cv2.imwrite(str(incoming / "c.png"), picture)
    assert [line["file"] for line in files_of(scene, 2, **settings)] == ["b.png", "c.png"]


def test_a_stream_whose_clock_jumps_ahead_says_so_and_time_goes_on(given: Any) -> None:
    source = Given(
        3,
        lambda: setattr(source, "number", 10**6),
        lambda: setattr(source, "clock_number", 1),
        2,
    )
    events = list(given(source, Always, queue=100))
    times = [alarm["time"] for alarm in of_kind(events, "alarm")]
    assert times == sorted(times)
    assert times[-1] < 10, "seconds, and not those of the clock of the stream"
    (note,) = of_kind(events, "note")
    assert note["frame"] == 3
    assert note["text"].startswith("the times of the stream jump ahead")


def test_an_alarm_of_the_monitor_that_a_kill_left_untold_is_told_when_it_goes_on(
    given: Any, scene: Scene, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    settings: dict[str, Any] = {"flag": [str(scene.threshold)], "apart": 0, "queue": 200}
    events = list(given(Given(80), Changing, out=out, **settings))
    (drift,) = of_kind(events, "drift")
    path = out / "alarms.jsonl"
    before, _, _ = path.read_bytes().partition(b'{"kind": "drift"')
    path.write_bytes(before)
    (told,) = of_kind(list(given(Given(5), Changing, out=out, **settings)), "drift")
    assert (told["frame"], told["time"]) == (drift["frame"], drift["time"])
    assert of_kind(list(given(Given(5), Changing, out=out, **settings)), "drift") == []


# Bad input, and a watch that is started again.


def words_of(scene: Scene, source: object, *more: object, flag: object = "") -> tuple[object, ...]:
    place = ("--model", scene.job.abnn, "--input", source, "--flag", flag or scene.flag)
    return ("watch", WORDS, *place, *more)


def test_an_address_that_does_not_answer_is_bad_input_and_leaves_no_lines(
    scene: Scene, tmp_path: Path
) -> None:
    url = f"tcp://me:pass-word@127.0.0.1:{free_port()}/live?key=pass-word"
    done = run(*words_of(scene, url, "--out", tmp_path / "out", "--debug"))
    assert done.code == 2
    assert "cannot be opened as a video stream (Connection refused)" in done.error_lines[-1]
    assert "pass-word" not in done.stderr + done.stdout
    assert not (tmp_path / "out" / "alarms.jsonl").exists()


def test_a_password_is_in_no_line(scene: Scene, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with RtspServer(scene.clip, pause=0.001) as server:
        words = words_of(
            scene,
            server.url,
            "--out",
            out,
            "--reconnect",
            0,
            "--stream-options",
            "user_agent=camera,passphrase=pass-word",
        )
        done = run(*words, "--json", "--queue", 100)
    assert done.code == 1  # the camera went away
    text = (out / "alarms.jsonl").read_text()
    assert "rtsp://127.0.0.1" in text
    for shown in (text, done.stdout, done.stderr):
        assert "pass-word" not in shown
    result = json.loads(done.stdout.splitlines()[0])
    assert result["end"]["reason"] == "lost"
    assert result["end"]["processed"] >= 11
    assert "given up" in done.stderr


def test_a_camera_that_is_not_there_is_bad_input(scene: Scene) -> None:
    assert "camera /dev/video97 cannot be opened" in refuse(*words_of(scene, "camera:97"))
    assert "/dev/video97 does not exist" in refuse(*words_of(scene, "/dev/video97"))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--keep", "alarms"), "--keep alarms needs a folder. Hint: add --out DIR"),
        (("--reference", "MAPS"), "--reference needs a threshold with calibration frames"),
        (("--flag", "no-such-score=1"), "no-such-score"),
        (("--level", "1"), "--level"),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    scene: Scene, more: tuple[str, ...], message: str
) -> None:
    words = [scene.maps if word == "MAPS" else word for word in more]
    assert message in refuse(*words_of(scene, scene.clip, *words))


def test_a_model_of_images_of_other_channels_is_refused(scene: Scene, tmp_path: Path) -> None:
    description = segunc.NetworkDescription(
        "FPN", "resnet18", ("road", "car"), mean=(0.5,) * 4, std=(0.5,) * 4
    )
    segunc.save_network(segunc.build_network(description), tmp_path / "model")
    with pytest.raises(InputError, match=r"colour frames, and .*model takes images of 4 channels"):
        scene.watch(model=tmp_path / "model", flag=["deterministic-entropy=0.5"])


def test_a_stream_does_not_wait(scene: Scene) -> None:
    refusal = refuse(*words_of(scene, "udp://127.0.0.1:5000", "--every-frame"))
    assert "does not wait until a frame is processed" in refusal
    refusal = refuse(*words_of(scene, "udp://127.0.0.1:5000", "--pace", "real"))
    assert "--pace real is for video files" in refusal


def test_a_threshold_of_another_model_or_setting_is_refused(scene: Scene) -> None:
    words = ("watch", "--device cpu --precision float32 --input", scene.clip)
    flag = ("--flag", scene.threshold)
    refusal = refuse(*words, *flag, "--model", scene.job.abnn, "--draws", 8)
    assert "was calibrated on maps with draws 4, and these have 8" in refusal
    refusal = refuse(*words, *flag, "--model", scene.job.base, "--draws", 4)
    assert "another model or tool" in refusal


def test_a_unit_that_no_stream_has_is_refused(scene: Scene, tmp_path: Path) -> None:
    content = json.loads(scene.threshold.read_text())
    del content["record_sha256"]
    file = tmp_path / "by_folder.json"
    file.write_text(json.dumps({**content, "unit": "folder"}))
    refusal = refuse(*words_of(scene, scene.clip, flag=file))
    assert "is 'folder', which a stream does not have" in refusal
    assert "--no-monitor" in refusal


def test_a_restarted_watch_goes_on(scene: Scene, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = words_of(scene, scene.clip, "--out", out, "--keep", "alarms")
    done = run(*words)
    assert done.code == 0, done.stderr
    assert "12 frames: 12 processed, none dropped" in done.stdout
    begun = f"alarms are written to {out / 'alarms.jsonl'}"
    assert done.stdout.splitlines()[0] == begun
    first = lines_of(out)
    assert of_kind(first, "note") == []
    with (out / "alarms.jsonl").open("ab") as file:  # as a kill leaves it
        file.write(b'{"kind": "alarm", "fra')
    assert run(*words).code == 0
    lines = lines_of(out)
    assert lines[: len(first)] == first
    again = lines[len(first) :]
    assert again[0]["kind"] == "restart"
    assert again[0]["next_frame"] == 12
    (note,) = of_kind(again, "note")
    assert "the video is read again from its first frame" in note["text"]
    assert 0 <= again[0]["away"] < 600
    assert again[-1]["next_frame"] == 24
    assert all(line.endswith(b"\n") for line in (out / "alarms.jsonl").open("rb"))
    frames = [event["frame"] for event in of_kind(lines, "alarm")]
    assert frames == sorted(set(frames))
    half = len(frames) // 2
    assert [number + 12 for number in frames[:half]] == frames[half:]
    events = [region["event"] for alarm in of_kind(lines, "alarm") for region in alarm["regions"]]
    earlier = [region["event"] for a in of_kind(first, "alarm") for region in a["regions"]]
    assert min(events[len(earlier) :]) > max(earlier)
    times = [event["time"] for event in of_kind(lines, "alarm")]
    assert times == sorted(times)
    # Other settings do not mix with these lines.
    before = (out / "alarms.jsonl").read_bytes()
    refusal = refuse(*words_of(scene, scene.clip, "--out", out, flag="entropy=0.9"))
    assert f"jsonl was written with --flag {scene.flag} (now entropy=0.9). Hint: " in refusal
    refusal = refuse(*words_of(scene, scene.clip, "--out", out, "--seed", 7, "--size 64x128"))
    assert "was written with --seed 0 (now 7), no --size (now 64x128). Hint: " in refusal
    assert (out / "alarms.jsonl").read_bytes() == before


def test_a_watch_goes_on_in_the_recorded_precision(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: dict[str, Any] = {"out": tmp_path / "out", "frame_lines": True}
    scene.watch(**settings, precision="bfloat16")
    # As a machine chooses that does not multiply in bfloat16.
    monkeypatch.setattr(
        execution, "choose_precision", lambda text, *_: "float32" if text == "auto" else text
    )
    events = scene.watch(**settings, precision="auto")
    assert events[0]["run"]["precision"] == "bfloat16"
    assert events[-1]["processed"] == 12


def test_options_of_running_that_have_changed_are_told_when_a_watch_goes_on(
    given: Any, scene: Scene, tmp_path: Path
) -> None:
    for settings in ({"keep": "alarms", "stall": 5.0, "frame_lines": True}, {}, {}):
        with given(Given(1), out=tmp_path / "out", **settings) as watched:
            list(watched)
    lines = lines_of(tmp_path / "out")
    notes = [note["text"] for note in of_kind(lines, "note") if " was " in note["text"]]
    assert notes == [
        "--stall was 5 and is 10 now; --frame-lines was on and is off now; "
        "--keep was alarms and is none now"
    ]


def test_every_option_of_a_watch_is_recorded() -> None:
    """An option whose change is neither refused nor told would be silent."""
    same = {"model", "input", "flag", "mask", "reference", "statistic", "level", "apart"}
    same |= {"no_monitor", *SamplingOptions.__dataclass_fields__}
    others = {"out", "trust"}
    assert {*WatchOptions.__dataclass_fields__} == same | others | {*RUNNING}


def test_a_watch_with_another_monitor_names_each_option_that_changed(
    scene: Scene, tmp_path: Path
) -> None:
    place = ("--out", tmp_path / "out", "--reference", scene.calibration)
    words = words_of(scene, scene.clip, flag=scene.threshold)
    assert run(*words, *place).code == 0
    assert run(*words, *place).code == 0
    refusal = refuse(*words, *place[:2])
    assert f"was written with --reference {scene.calibration} (now there is none). " in refusal
    refusal = refuse(*words, *place, "--level 0.5 --statistic p99 --apart 3")
    changes = "--statistic mean (now p99), --level 0.01 (now 0.5), --apart 10 (now 3). Hint: "
    assert f"was written with {changes}" in refusal
    refusal = refuse(*words, *place, "--no-monitor")
    assert "was written with a monitor (now there is none)" in refusal
    other = words_of(scene, scene.clip, flag=scene.flag)
    refusal = refuse(*other, *place[:2])
    assert f"was written with --flag {scene.threshold} (now {scene.flag}). Hint: " in refusal


def test_a_threshold_file_that_was_calibrated_again_is_said_to_have_changed(
    scene: Scene, tmp_path: Path
) -> None:
    path = tmp_path / "threshold.json"
    shutil.copy(scene.threshold, path)
    words = words_of(scene, scene.clip, "--out", tmp_path / "out", flag=path)
    assert run(*words).code == 0
    segunc.threshold(
        maps=scene.calibration,
        anomaly_labels=scene.job.masks,
        out=path,
        control="flagged-pixels",
        level=0.45,
        score="entropy",
    )
    refusal = refuse(*words)
    assert f"was written with --flag {path}, whose content has changed. Hint: " in refusal


def test_a_file_of_something_else_is_not_written_to(scene: Scene, tmp_path: Path) -> None:
    (tmp_path / "alarms.jsonl").write_text('{"kind": "alarm"}\n')
    refusal = refuse(*words_of(scene, scene.clip, "--out", tmp_path))
    assert "was not written by segunc watch of this version" in refusal
    assert (tmp_path / "alarms.jsonl").read_text() == '{"kind": "alarm"}\n'


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_watch_with_its_code_and_a_last_line(
    scene: Scene, tmp_path: Path, kind: signal.Signals
) -> None:
    folder = tmp_path / "frames"
    folder.mkdir()
    for number, picture in enumerate(decoded(scene.clip)[1][:2]):
        cv2.imwrite(str(folder / f"{number}.png"), picture[..., ::-1])
    out = tmp_path / "out"
    words = words_of(scene, folder, "--out", out, "--frame-lines", "--every-frame")
    command = Command(*words)
    wait_for(command, lambda: count_lines(out / "alarms.jsonl") >= 5)
    done = command.stop(kind)
    assert done.code == 128 + kind, done.stderr
    end = lines_of(out)[-1]
    assert end["kind"] == "end"
    assert end["reason"] == "interrupted"
    assert end["processed"] == 2
    assert end["last_file"][1] == "1.png"
    # What was added meanwhile is taken, and nothing twice.
    cv2.imwrite(str(folder / "2.png"), decoded(scene.clip)[1][2][..., ::-1])
    assert run(*words, "--duration", 3).code == 0
    named = [line["file"] for line in lines_of(out) if line["kind"] in ("frame", "alarm")]
    assert named == ["0.png", "1.png", "2.png"]


def test_a_killed_watch_goes_on(scene: Scene, tmp_path: Path) -> None:
    folder = tmp_path / "frames"
    folder.mkdir()
    for number, picture in enumerate(decoded(scene.clip)[1][:3]):
        cv2.imwrite(str(folder / f"{number}.png"), picture[..., ::-1])
    out = tmp_path / "out"
    words = words_of(scene, folder, "--out", out, "--frame-lines", "--every-frame", "--keep", "all")
    command = Command(*words)
    wait_for(command, lambda: count_lines(out / "alarms.jsonl") >= 5)
    assert command.kill().code == -9
    assert run(*words, "--duration", 2).code == 0
    lines = lines_of(out)
    assert kinds(lines).count("restart") == 1
    of_frames = [line for line in lines if line["kind"] in ("frame", "alarm")]
    frames = [line["frame"] for line in of_frames]
    assert frames == sorted(set(frames))
    assert [line["file"] for line in of_frames] == ["0.png", "1.png", "2.png"]
    # The kill may have come between an alarm and the maps that are kept of it.
    kept = len(list((out / "maps" / "entropy").iterdir()))
    assert len(frames) - 1 <= kept <= len(frames)
    assert len(MapsReader(out / "maps").frames) == kept


def test_two_watches_do_not_write_into_one_folder(given: Any, tmp_path: Path) -> None:
    stop = threading.Event()
    first = given(Given(1, lambda: stop.wait(20)), out=tmp_path)
    next(first)
    second = given(Given(1), out=tmp_path)
    with pytest.raises(InputError, match="is being written by another run"):
        next(second)
    first.close()
    stop.set()


def test_a_watch_that_was_prepared_while_another_one_wrote_does_not_go_on(
    given: Any, tmp_path: Path
) -> None:
    """It would repeat numbers of frames and events, and files of a folder."""
    stop = threading.Event()
    first = given(Given(1, lambda: stop.wait(20)), out=tmp_path)
    for event in first:
        if event["kind"] == "alarm":
            break
    second = given(Given(1), out=tmp_path)
    first.close()
    stop.set()
    lines = lines_of(tmp_path)
    with pytest.raises(InputError, match="another watch wrote into") as refused:
        next(second)
    assert "run the same command again" in refused.value.hint
    assert lines_of(tmp_path) == lines
    again = list(given(Given(1), out=tmp_path))
    assert again[0]["kind"] == "restart"
    assert again[0]["next_frame"] == lines[-1]["next_frame"]


def test_a_watch_that_goes_on_says_that_it_does_not_know_a_hidden_part_of_its_address(
    given: Any, tmp_path: Path
) -> None:
    notes = []
    for address in ("rtsp://camera/live?channel=1", "rtsp://camera/live?channel=2"):
        events = list(given(Given(1), input=address, out=tmp_path / "query"))
        notes.append([note["text"] for note in of_kind(events, "note")])
    assert notes[0] == []
    (text,) = notes[1]
    assert "if it names another stream than before, give another --out" in text
    for _ in range(2):
        events = list(given(Given(1), input="rtsp://camera/live", out=tmp_path / "plain"))
    assert of_kind(events, "note") == []


def test_files_whose_times_are_in_another_order_than_their_names_are_taken_after_a_restart(
    scene: Scene, tmp_path: Path
) -> None:
    incoming = tmp_path / "incoming"
    incoming.mkdir()
    for name, changed in (("a.png", 1300.0), ("b.png", 1100.0), ("c.png", 1200.0)):
        cv2.imwrite(str(incoming / name), np.zeros((64, 128, 3), np.uint8))
        os.utime(incoming / name, (changed, changed))
    settings: dict[str, Any] = {
        "input": incoming,
        "out": tmp_path / "night",
        "every_frame": True,
        "frame_lines": True,
    }
    for _ in range(2):  # each is ended behind its first file
        with scene.begin(**settings, duration=10.0) as events:
            for event in events:
                if event.get("file"):
                    break
    files: list[str] = []
    with scene.begin(**settings, duration=60.0) as events:
        for event in events:
            if event["kind"] in ("frame", "alarm"):
                files.append(event["file"])
            if len(files) == 3:
                break
    assert files == ["a.png", "b.png", "c.png"]
    assert events.end["last_file"] == [1300.0, "a.png"]
    lines = scene.watch(**settings, duration=0.5)
    assert not any(line.get("file") for line in lines)


def test_lines_are_printed_one_by_one(scene: Scene) -> None:
    done = run(*words_of(scene, scene.clip))
    assert done.code == 0, done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert events[0]["kind"] == "start"
    assert events[0]["run"]["draws"] == 4
    assert len(events[0]["run"]["base_sha256"]) == 64
    assert events[-1]["kind"] == "end"
    assert events[-1]["reason"] == "ended"
    assert kinds(events).count("end") == 1


def test_a_watch_that_goes_on_in_a_folder_says_after_which_image(
    scene: Scene, tmp_path: Path
) -> None:
    incoming = tmp_path / "incoming"
    incoming.mkdir()
    for name in ("a.png", "b.png"):
        cv2.imwrite(str(incoming / name), np.zeros((64, 128, 3), np.uint8))
    settings: dict[str, Any] = {"input": incoming, "out": tmp_path / "night", "every_frame": True}
    with segunc.watch(
        model=scene.job.abnn, flag=[scene.flag], **SAMPLING, **settings, frame_lines=True
    ) as events:
        for event in events:
            if event.get("frame") == 1:
                break
    events_after = scene.watch(**settings, duration=0.5)
    notes = [event["text"] for event in of_kind(events_after, "note")]
    assert any(text.startswith("the watch goes on after b.png;") for text in notes)


def test_a_watch_that_kept_frames_names_the_review_at_its_threshold(
    scene: Scene, tmp_path: Path
) -> None:
    out = tmp_path / "night"
    done = run(*words_of(scene, scene.clip, "--out", out, "--keep", "alarms"))
    review = f"segunc review --maps {out / 'maps'} --flag {scene.flag} --out review"
    assert f"look at the kept frames: {review}" in done.stdout
    done = run(*words_of(scene, scene.clip, "--out", tmp_path / "other"))
    assert "segunc review" not in done.stdout


class EndedWatch:
    """The result of a watch that has ended."""

    path = Path("night/alarms.jsonl")
    end: ClassVar[Event] = {
        "read": 7,
        "processed": 3,
        "dropped": {"newer": 3, "late": 0, "end": 1},
        "alarms": 2,
    }

    def __iter__(self) -> Iterator[Event]:
        return iter([self.end | {"kind": "end"}])

    def close(self, reason: str) -> None:
        pass


def test_frames_that_were_dropped_are_named_with_their_reason() -> None:
    options = WatchOptions(model="abnn", input="clip.ts", flag=("entropy=0.5",), out="night")
    lines = list(SHOWN["watch"](EndedWatch(), options))
    assert lines[0] == (
        "7 frames: 3 processed, 3 replaced by newer ones, 1 still waiting at the end; "
        "2 with an alarm"
    )


def test_notes_are_printed_where_lines_go_into_a_folder(scene: Scene, tmp_path: Path) -> None:
    incoming = tmp_path / "incoming"
    incoming.mkdir()
    done = run(
        f"watch --model {scene.job.abnn} --input {incoming} --flag {scene.flag} "
        f"--duration 0.5 --out {tmp_path / 'night'} {WORDS}"
    )
    assert f"note: {incoming} holds no image yet" in done.stdout
    assert (tmp_path / "night" / "alarms.jsonl").exists()


class FullDisk:
    """Fails as a full disk from the second file on."""

    def __init__(self, plain: Callable[..., bytes]) -> None:
        self.plain = plain
        self.files = 0

    def __call__(self, *arguments: Any) -> bytes:
        self.files += 1
        if self.files > 1:
            raise OSError(28, "No space left on device")
        return self.plain(*arguments)


def test_alarms_go_on_where_frames_can_no_longer_be_kept(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "night"
    monkeypatch.setattr(watch_log, "encode_png", FullDisk(watch_log.encode_png))
    events = scene.watch(out=out, keep="all")
    notes = [event["text"] for event in of_kind(events, "note")]
    text = "frame 000001 cannot be kept (No space left on device)"
    assert notes == [f"{text}; nothing more is kept, and alarms go on"]
    assert events[-1]["processed"] == 12
    assert_alarms_of_the_maps(scene, events, scene.flag)
    assert MapsReader(out / "maps").frames == ["000000"]


def test_lines_that_cannot_be_written_end_the_watch_with_their_file(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill(*_: object) -> None:
        raise OSError(28, "No space left on device")

    events = scene.begin(out=tmp_path / "night")
    next(event for event in events if event["kind"] == "alarm")
    monkeypatch.setattr(LineFile, "append", fill)
    said = r"night/alarms\.jsonl cannot be written \(No space left on device\), so the watch ends"
    with pytest.raises(PartialFailure, match=said):
        next(event for event in events if event["kind"] == "end")


@pytest.mark.parametrize("is_emptied", [False, True])
def test_kept_frames_are_not_replaced_where_the_lines_are_gone(
    scene: Scene, tmp_path: Path, is_emptied: bool
) -> None:
    """As after a rotation of log files."""
    out = tmp_path / "night"
    scene.watch(out=out, keep="all")
    before = folder_bytes(out)
    lines = (out / "alarms.jsonl").read_bytes()
    (out / "alarms.jsonl").unlink()
    if is_emptied:
        (out / "alarms.jsonl").touch()
    said = r"night holds 12 frames that an earlier watch kept, first frames/000000\.png, and not"
    with pytest.raises(InputError, match=said):
        scene.begin(out=out, keep="all")
    (out / "alarms.jsonl").write_bytes(lines)
    assert folder_bytes(out) == before
    assert scene.watch(out=out, keep="all")[-1]["next_frame"] == 24


def test_a_torn_line_is_cut_also_where_it_is_the_only_one(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    for content, left in ((b'{"a', b""), (b"{}\n{", b"{}\n"), (b"{}\n", b"{}\n"), (b"", b"")):
        path.write_bytes(content)
        file = LineFile(path)
        assert path.read_bytes() == left
        file.append({"a": 1})
        file.close()
        assert path.read_bytes() == left + b'{"a": 1}\n'


def test_percentiles_are_at_most_two_percent_too_high() -> None:
    times = np.random.default_rng(0).lognormal(-2, 1, 5000)
    histogram = TimeHistogram()
    assert histogram.percentiles([50]) == [None]
    for seconds in times:
        histogram.add(float(seconds))
    percents = (50, 95, 99, 100)
    for percent, found in zip(percents, histogram.percentiles(percents), strict=True):
        exact = float(np.percentile(times, percent, method="inverted_cdf"))
        assert found is not None
        assert exact <= found <= 1.02 * exact
    assert histogram.largest == times.max()


def arrival(stamp: float | None, arrived: float, *, wall: float | None = None) -> Arrival:
    """Return a frame of a stream that was there at a moment of the clock."""
    moment = 1000 + arrived if wall is None else wall
    return Arrival(
        image=lambda: np.zeros((2, 2, 3), np.uint8), arrived=arrived, wall=moment, stamp=stamp
    )


def test_numbers_of_a_fresh_stream_begin_anew_and_time_goes_on() -> None:
    clock = watch_module._RunningClock(None, None)
    assert clock.time_of(arrival(100.0, 0.0)) == 0.0
    assert clock.time_of(arrival(101.5, 2.0)) == 1.5
    clock.restart()
    assert clock.time_of(arrival(0.0, 12.0)) == 12.0  # by this machine's clock
    assert clock.time_of(arrival(0.25, 12.5)) == 12.25
    assert clock.time_of(arrival(0.0, 13.0)) == 13.0  # the stream's clock went back
    assert clock.time_of(arrival(None, 14.0)) == 14.0


def test_time_does_not_run_ahead_of_the_clock_where_streams_come_in_bursts() -> None:
    clock = watch_module._RunningClock(None, None)
    times = []
    for burst in range(5):
        clock.restart()
        for number in range(11):
            moment = 3.0 * burst + 0.1 * number  # ten seconds of frames within one
            times.append(clock.time_of(arrival(1.0 * number, moment)))
    assert times == sorted(times)
    # The last burst began after 12 s, and its last frame was taken 10 s later.
    assert times[-1] == 22.0


def test_a_clock_that_stands_still_gives_way_to_the_times_of_arrival() -> None:
    clock = watch_module._RunningClock(None, None)
    times = [clock.time_of(arrival(7.0, 0.5 * number)) for number in range(6)]
    assert times == [0.0, 0.0, 0.0, 1.5, 2.0, 2.5]
    assert clock.stands_still
    assert clock.time_of(arrival(8.0, 3.0)) == 3.0  # it moves again
    assert not clock.stands_still
    assert clock.time_of(arrival(8.5, 3.1)) == 3.5


def test_a_line_that_finds_no_room_is_not_there_and_the_next_one_is_whole(tmp_path: Path) -> None:
    """A write puts down what fits, and only the next one raises an error."""
    path = tmp_path / "lines"
    file = LineFile(path)
    file.append({"a": "x" * 50})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            file.append({"b": "x" * 50})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    file.append({"c": 1})
    assert list(read_lines(path)) == [{"a": "x" * 50}, {"c": 1}]


def test_a_last_line_without_its_line_break_does_not_count(tmp_path: Path) -> None:
    """It is cut when the watch goes on, so nothing may rest on it."""
    path = tmp_path / "lines"
    path.write_bytes(b'{"a": 1}\n{"b": 2}')
    assert list(read_lines(path)) == [{"a": 1}]


def test_a_clock_that_jumps_ahead_is_set_by_the_clock_of_this_machine() -> None:
    clock = watch_module._RunningClock(None, None)
    assert clock.time_of(arrival(0.0, 0.0)) == 0.0
    assert clock.time_of(replace(arrival(5e4, 1.0), clock=1)) == 1.0
    assert clock.time_of(replace(arrival(5e4 + 2, 3.5), clock=1)) == 3.0
    assert clock.has_jumped
    clock.restart()
    assert clock.time_of(arrival(0.0, 10.0)) == 10.0


def test_time_of_a_watch_that_goes_on_counts_from_the_first_frame_of_all() -> None:
    clock = watch_module._RunningClock(28.0, 1000.0)
    assert clock.time_of(arrival(0.0, 5.0, wall=1060.0)) == 60.0
    # A clock that was set back, or a burst before the end.
    clock = watch_module._RunningClock(28.0, 1000.0)
    assert clock.time_of(arrival(0.0, 5.0, wall=1010.0)) == 28.0
    assert clock.time_of(arrival(1.5, 5.1, wall=1010.1)) == 29.5


def test_the_first_frame_of_all_is_read_from_the_lines_of_a_watch(
    scene: Scene, tmp_path: Path
) -> None:
    scene.watch(out=tmp_path)
    (connected,) = [line for line in lines_of(tmp_path) if line.get("what") == "connected"]
    begun = datetime.fromisoformat(connected["wall"]).timestamp()
    scene.watch(out=tmp_path)
    earlier = read_earlier(tmp_path)
    assert earlier is not None
    assert earlier.begun == begun


def test_a_damaged_file_is_named(scene: Scene, tmp_path: Path) -> None:
    incoming = tmp_path / "incoming"
    incoming.mkdir()
    (incoming / "a.png").write_bytes(b"\x89PNG\r\n\x1a\nno picture")
    with scene.begin(input=incoming) as events:
        note = next(event for event in events if event.get("file"))
    assert (note["kind"], note["frame"], note["file"]) == ("note", 0, "a.png")
    assert note["text"].startswith("a.png cannot be decoded whole")
    assert events.end["dropped"]["damaged"] == 1


def test_a_file_whose_name_is_not_utf_8_is_taken_and_shown(scene: Scene, tmp_path: Path) -> None:
    incoming = tmp_path / "incoming"
    incoming.mkdir()
    for name in ("0.png", "z.png"):
        cv2.imwrite(str(incoming / name), np.zeros((64, 128, 3), np.uint8))
    (incoming / "0.mp4").write_bytes(b"a video is no frame")
    for name in ("0.png", "0.mp4"):
        rename_to_latin_1(incoming / name)
    settings: dict[str, Any] = {"input": incoming, "out": tmp_path / "night", "frame_lines": True}
    (line,) = files_of(scene, 1, **settings)
    assert line["file"] == "stra\\xdfe.png"
    assert any(r"first stra\xdfe.mp4" in line.get("text", "") for line in lines_of(settings["out"]))
    # A restarted watch knows the file again by the name in its line.
    assert [line["file"] for line in files_of(scene, 1, **settings)] == ["z.png"]


def test_a_folder_whose_name_is_not_utf_8_is_refused_for_lines(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "0.d").mkdir()
    rename_to_latin_1(tmp_path / "0.d")
    (folder,) = tmp_path.iterdir()
    monkeypatch.chdir(folder)
    with pytest.raises(InputError, match=r"stra\\xdfe.d/night is not UTF-8"):
        scene.begin(out="night")
    assert not [*folder.iterdir()]


def test_kept_maps_say_beyond_which_value_they_are_extrapolated(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tmp_path / "model"
    settings = segunc.FeatureDensity(layers=["body.encoder.features.3"], bank=50)
    data = f"toy:{scene.job.data}"
    settings.fit(segunc.load(scene.job.abnn), data, device="cpu").save(model)
    parts = ["deterministic-energy", "knn"]
    total = segunc.Anomaly(parts=parts, draws=2, frames=2)
    total.fit(segunc.load(model), data, device="cpu").save(model)
    scene.watch(model=model, flag=["anomaly=0.1"], keep="all", out=tmp_path / "out")
    measured_to = segunc.load(model).attachments["anomaly"].measured_to
    assert measured_to is not None
    manifest = MapsReader(tmp_path / "out" / "maps").manifest or {}
    assert manifest["maps"]["anomaly"]["measured_to"] == measured_to
    assert not manifest["maps"]["prediction"].get("measured_to")
    assert not notes_on_bank(tmp_path / "out")
    # Of frames that the bank seems to hold, the first is named.
    monkeypatch.setattr("segunc.maps.known_frames.KNOWN_BELOW", 100.0)
    scene.watch(model=model, flag=["anomaly=0.1"], out=tmp_path / "known")
    (note,) = notes_on_bank(tmp_path / "known")
    assert note.startswith("1 of 1 frame has no pixel of anomaly from 100.0 on, ")
    assert note.endswith("; later ones are not named")
    # Pixels outside of a mask do not count.
    values = MapsReader(tmp_path / "out" / "maps").read("000000", "anomaly")
    median = float(np.median(values))
    assert values.max() > median + 0.01
    cv2.imwrite(str(tmp_path / "mask.png"), np.where(values <= median, 255, 0).astype(np.uint8))
    monkeypatch.setattr("segunc.maps.known_frames.KNOWN_BELOW", median + 0.01)
    masked: dict[str, Any] = {"mask": tmp_path / "mask.png", "out": tmp_path / "masked"}
    scene.watch(model=model, flag=["anomaly=0.1"], **masked)
    assert len(notes_on_bank(tmp_path / "masked")) == 1


def notes_on_bank(out: Path) -> list[str]:
    notes = [line["text"] for line in lines_of(out) if line["kind"] == "note"]
    return [note for note in notes if "bank of features probably holds" in note]
