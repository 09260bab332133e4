"""Averaging along the video: the closed form, and a killed run that goes on to the same bytes."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from segunc.core.errors import InputError
from segunc.frames.source import Frame, FrameSource
from segunc.frames.sources import open_source
from segunc.maps.manifest import build_manifest
from segunc.maps.pipeline import run_pipeline
from segunc.maps.store import Maps, MapsWriter
from segunc.options import PredictOptions
from segunc.processing import smoothing
from segunc.processing.means import FrameMeans, finish_maps
from segunc.processing.smoothing import Smoother
from tests.maps.fakes import CLASSES, PALETTE, folder_bytes, write_pictures, write_timed_video

SCORES = ("entropy", "aleatoric", "epistemic", "msp")
TIMES = (0.0, 0.04, 0.2, 0.24, 0.5, 0.54, 0.58, 0.9, 1.0, 1.04, 1.1, 1.2)


def means_of(image: np.ndarray) -> FrameMeans:
    logits = torch.from_numpy(image.astype(np.float32)).permute(2, 0, 1) / 25
    probabilities = logits.softmax(0)
    entropy = torch.special.entr(probabilities).sum(0) / math.log(3)
    return FrameMeans(probabilities, 0.7 * entropy, {})


class Process:
    """Means from the picture alone, smoothed; may break at a frame as a killed run does."""

    def __init__(self, smoother: Smoother, breaks_at: int | None = None) -> None:
        self.smoother, self.breaks_at = smoother, breaks_at
        self.computed: list[int] = []

    def __call__(self, frames: Sequence[Frame]) -> list[Maps]:
        results = []
        for frame in frames:
            if frame.index == self.breaks_at:
                raise KeyboardInterrupt
            self.computed.append(frame.index)
            means = self.smoother.update(frame, means_of(frame.image))
            maps = finish_maps(means, (frame.image.shape[0], frame.image.shape[1]), SCORES)
            results.append({name: maps[name].numpy() for name in ("prediction", *SCORES)})
        return results


def run(source: FrameSource, out: Path, breaks_at: int | None = None) -> list[int]:
    """Places that were computed."""
    manifest = build_manifest({"smooth": 0.3}, SCORES, device="cpu", classes=CLASSES, palette=PALETTE)
    process = Process(Smoother(0.3, out), breaks_at)
    with contextlib.suppress(KeyboardInterrupt):
        run_pipeline(source, process, MapsWriter(out, manifest), sequence=process.smoother)
    return process.computed


@pytest.fixture
def video(tmp_path: Path) -> Path:
    write_timed_video(tmp_path / "drive.mkv", TIMES)
    return tmp_path / "drive.mkv"


def test_smoothed_means_are_the_closed_form(video: Path, tmp_path: Path) -> None:
    frames = list(open_source(video))
    smoother = Smoother(0.3, tmp_path / "out")
    weights: list[float] = []
    for count, frame in enumerate(frames, start=1):
        found = smoother.update(frame, means_of(frame.image))
        # The weight of frame i in frame t is a_i times the (1 - a) of all between; of the first frame it is what is left.
        steps = [1.0, *(1 - math.exp(-(TIMES[i] - TIMES[i - 1]) / 0.3) for i in range(1, count))]
        weights = [steps[i] * math.prod(1 - step for step in steps[i + 1 :]) for i in range(count)]
        assert sum(weights) == pytest.approx(1.0)
        parts = [means_of(past.image) for past in frames[:count] if past.image is not None]
        for name in ("probabilities", "aleatoric"):
            expected = sum(w * getattr(part, name) for w, part in zip(weights, parts, strict=True))
            torch.testing.assert_close(getattr(found, name), expected, rtol=1e-5, atol=1e-6)
        epistemic = finish_maps(found, (48, 64), SCORES)
        assert float((epistemic["entropy"] - epistemic["aleatoric"]).min()) > -1e-6
    assert min(weights) < 0.2 < max(weights)


def test_a_long_pause_forgets_and_a_new_folder_starts_anew(tmp_path: Path) -> None:
    first, second = (np.full((4, 4, 3), value, np.uint8) * [[[1, 0, 0]]] for value in (200, 10))

    def frame(name: str, index: int, time: float | None, image: np.ndarray) -> Frame:
        return Frame(name, index, image.astype(np.uint8), time=time)

    smoother = Smoother(1.0, tmp_path)
    smoother.update(frame("000000", 0, 0.0, first), means_of(first))
    late = smoother.update(frame("000001", 1, 1e6, second), means_of(second))
    torch.testing.assert_close(late.probabilities, means_of(second).probabilities)
    stuck = smoother.update(frame("000002", 2, 1e6, first), means_of(first))  # the time did not advance: the interval
    expected = torch.lerp(means_of(second).probabilities, means_of(first).probabilities, 1 - math.exp(-1))
    torch.testing.assert_close(stuck.probabilities, expected)

    smoother = Smoother(2.0, tmp_path)
    smoother.update(frame("a/0", 0, None, first), means_of(first))
    half = smoother.update(frame("a/3", 3, None, second), means_of(second))  # three frames later
    expected = torch.lerp(means_of(first).probabilities, means_of(second).probabilities, 1 - math.exp(-1.5))
    torch.testing.assert_close(half.probabilities, expected)
    other = smoother.update(frame("b/0", 4, None, first), means_of(first))
    assert torch.equal(other.probabilities, means_of(first).probabilities)


@pytest.mark.parametrize("every", [3, 64])
@pytest.mark.parametrize("breaks", [(0,), (1,), (7,), (10, 11)])
def test_a_broken_run_goes_on_to_the_same_bytes(
    video: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: int, breaks: tuple[int, ...]
) -> None:
    monkeypatch.setattr(smoothing, "EVERY", every)
    assert run(open_source(video), tmp_path / "whole") == list(range(12))
    for breaks_at in breaks:
        run(open_source(video), tmp_path / "broken", breaks_at)
    computed = run(open_source(video), tmp_path / "broken")
    assert folder_bytes(tmp_path / "broken") == folder_bytes(tmp_path / "whole")
    if every == 3 and breaks[-1] > 5:
        assert 0 < computed[0] <= breaks[-1]  # from a state, not from the start
    assert not (tmp_path / "broken" / "smoothing").exists()
    assert run(open_source(video), tmp_path / "broken") == []


def test_a_state_newer_than_the_last_line_is_not_taken(
    video: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(smoothing, "EVERY", 3)
    run(open_source(video), tmp_path / "whole")
    run(open_source(video), tmp_path / "broken", 8)
    assert [path.stem for path in sorted((tmp_path / "broken/smoothing").iterdir())] == ["000000000002", "000000000005"]
    lines = tmp_path / "broken/frames.jsonl"
    lines.write_bytes(b"".join(lines.read_bytes().splitlines(keepends=True)[:4]))  # the kill came before the others
    assert run(open_source(video), tmp_path / "broken") == list(range(3, 12))
    assert folder_bytes(tmp_path / "broken") == folder_bytes(tmp_path / "whole")


def test_a_retried_frame_computes_all_that_follow_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smoothing, "EVERY", 2)
    names = write_pictures(tmp_path / "in", 8)
    run(open_source(tmp_path / "in"), tmp_path / "whole")
    path = tmp_path / "in" / f"{names[5]}.png"
    data = path.read_bytes()
    path.write_bytes(data[:-20])
    run(open_source(tmp_path / "in"), tmp_path / "broken")
    records = [json.loads(line) for line in (tmp_path / "broken/frames.jsonl").read_text().splitlines()]
    assert [record["index"] for record in records] == [0, 1, 2, 3, 4, 6, 7]
    path.write_bytes(data)
    run(open_source(tmp_path / "in"), tmp_path / "broken")
    assert folder_bytes(tmp_path / "broken") == folder_bytes(tmp_path / "whole")


@pytest.mark.parametrize("tau", [0.0, -1.0, math.nan, math.inf])
def test_impossible_time_constants_are_refused(tau: float) -> None:
    with pytest.raises(InputError, match="`smooth`"):
        PredictOptions("model", "input", "out", smooth=tau)


@pytest.mark.parametrize(
    "damage", [lambda data: b"", lambda data: data[:-40], lambda data: data.replace(b"time", b"tine")]
)
def test_a_damaged_state_is_one_line(
    video: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: Callable[[bytes], bytes]
) -> None:
    monkeypatch.setattr(smoothing, "EVERY", 3)
    run(open_source(video), tmp_path / "broken", 8)
    state = tmp_path / "broken/smoothing/000000000005.npz"
    state.write_bytes(damage(state.read_bytes()))
    with pytest.raises(InputError, match=r"000000000005\.npz holds no state of a video") as error:
        Smoother(0.3, tmp_path / "broken").resume(8)
    assert "\n" not in str(error.value)
