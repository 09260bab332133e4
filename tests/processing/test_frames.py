"""Frames to their maps: frames that cannot be fail alone."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

from segunc.baselines.anomaly import ScoreSum, Standard, Surprise
from segunc.baselines.density import FeatureDistances, Neighbours, unit_features
from segunc.baselines.feature_extractor import FeatureExtractor
from segunc.core.errors import NotFiniteError
from segunc.frames.source import Frame
from segunc.gallery.alarms import find_alarms
from segunc.maps.manifest import build_manifest
from segunc.maps.reader import MapsReader
from segunc.maps.store import Maps, MapsWriter
from segunc.processing import FrameProcess
from segunc.sampling import Sampler
from segunc.sampling.engine import Engine
from segunc.sampling.sampler import Fitted, network_input
from tests.support.sampled import random_frames, small_sampler


def computed(process: FrameProcess, frames: list[Frame]) -> list[Maps]:
    results = [process(frame) for frame in frames]
    for result in results:
        assert not isinstance(result, Exception)
    return results


def two_frame_bank(extractor: FeatureExtractor) -> Neighbours:
    """Return a bank of features of a dark frame and of noise."""
    dark = np.full((40, 56, 3), 30, np.uint8)
    noise = cast(Any, random_frames(1)[0].image)
    with torch.no_grad():
        dark_layers = extractor(network_input([dark], (40, 56)))
        noise_layers = extractor(network_input([noise], (40, 56)))
    dark_features = unit_features(dark_layers[0])[:50]
    noise_features = unit_features(noise_layers[0])[::7]
    names = ["dark"] * len(dark_features) + ["noise"] * len(noise_features)
    return Neighbours(torch.cat([dark_features, noise_features]), names)


def energy_and_distance() -> ScoreSum:
    """Return a sum of which all frames have alarms."""
    return ScoreSum(
        parts=("deterministic-energy", "knn"),
        weights=(1.0, 1.0),
        scales=(Standard(-1.0, 0.3), Standard(0.0005, 0.001)),
        surprise=Surprise((-1.0, 0.0, 1.0), 0.1),
        fitted_on={},
        frames=1,
        draws=4,
        temperature=1.0,
        base_sha256="",
        posterior_sha256=None,
        features_sha256=None,
        part_surprises=(
            Surprise((-2.0, -1.0, 1.0), 0.4),
            Surprise((0.0, 0.0005, 0.002), 0.01),
        ),
    )


def with_reasons() -> Sampler:
    """A sampler of a sum of energy and feature distance, of which all frames have alarms, and a
    bank of features of two frames.
    """
    plain = small_sampler()
    extractor = FeatureExtractor(plain.network, ["body.2"])
    density = FeatureDistances(extractor, [two_frame_bank(extractor)])
    return Sampler(
        plain.network,
        plain.posterior,
        draws=4,
        scores=REASONED,
        fitted=Fitted(providers=[density, energy_and_distance()]),
    )


REASONED = ("deterministic-energy", "knn", "anomaly")


def lines_of(maps: Path) -> list[dict[str, Any]]:
    log = (maps / "frames.jsonl").read_text().splitlines()
    return [json.loads(line) for line in log]


def write_frames(out: Path, manifest: dict[str, Any], frames: list[Frame]) -> None:
    """Write the maps of those frames that have no line yet."""
    process = FrameProcess(with_reasons(), REASONED)
    with MapsWriter(out, manifest) as writer:
        for frame in frames:
            if frame.index not in writer.lines:
                (maps,) = computed(process, [frame])
                record = writer.store(frame.name, maps, place=frame.index)
                writer.commit(record)


def written(
    out: Path, frames: list[Frame], *, compact: bool = False, killed: int | None = None
) -> list[dict[str, Any]]:
    """The lines of a folder of maps; with ``killed`` the run ends at that frame and is
    continued.
    """
    run: dict[str, Any] = {"input": "here", "seed": 0}
    if compact:
        run["compact"] = True
    manifest = build_manifest(
        run,
        REASONED,
        device="cpu",
        classes=("road", "car", "sky"),
        palette=[(0, 0, 0)] * 3,
    )
    if killed is not None:
        write_frames(out, manifest, frames[:killed])
    write_frames(out, manifest, frames)
    return lines_of(out)


@dataclass
class HalfDark:
    """Maps of two frames, the second of which is dark on its left half; and the frames, each with
    its line.
    """

    reader: MapsReader
    pairs: list[tuple[Frame, dict[str, Any]]]


@pytest.fixture(scope="module")
def half_dark(tmp_path_factory: pytest.TempPathFactory) -> HalfDark:
    folder = tmp_path_factory.mktemp("half_dark") / "maps"
    frames = random_frames(2)
    cast(Any, frames[1].image)[:, :28] = 30
    lines = written(folder, frames)
    return HalfDark(MapsReader(folder), list(zip(frames, lines, strict=True)))


def test_peaks_are_ordered_by_strength(half_dark: HalfDark) -> None:
    for _, line in half_dark.pairs:
        peaks = line["peaks"]["anomaly"]
        assert 1 <= len(peaks) <= 5
        strengths = [peak["strength"] for peak in peaks]
        assert strengths == sorted(strengths, reverse=True)
        assert strengths[0] == pytest.approx(line["region"]["anomaly"])


def test_peaks_are_the_strongest_pixels_of_alarms(half_dark: HalfDark) -> None:
    for frame, line in half_dark.pairs:
        anomaly = half_dark.reader.read(frame.name, "anomaly")
        values = []
        for peak in line["peaks"]["anomaly"]:
            x, y = peak["at"]
            values.append(float(anomaly[y, x]))
        assert min(values) >= 3
        assert max(values) == anomaly.max()


def surprise_range(surprise: Surprise, value: float) -> tuple[float, float]:
    """Return the surprise of the next smaller and the next larger float16."""
    stored = np.float16(value)
    step = float(np.spacing(stored))
    tensor = torch.tensor(stored).view(1).float()
    return float(surprise(tensor - step)), float(surprise(tensor + step))


def test_the_parts_of_a_peak_are_those_of_the_maps(half_dark: HalfDark) -> None:
    """Maps are stored as float16."""
    _, total = cast(Any, with_reasons().fitted.providers)
    for frame, line in half_dark.pairs:
        for name, surprise in zip(total.parts, total.part_surprises, strict=True):
            values = half_dark.reader.read(frame.name, name)
            for peak in line["peaks"]["anomaly"]:
                x, y = peak["at"]
                low, high = surprise_range(surprise, values[y, x])
                assert low - 1e-3 <= peak["parts"][name] <= high + 1e-3


def test_the_distance_of_a_peak_is_that_of_the_map(half_dark: HalfDark) -> None:
    for frame, line in half_dark.pairs:
        distances = half_dark.reader.read(frame.name, "knn")
        for peak in line["peaks"]["anomaly"]:
            x, y = peak["at"]
            distance = float(distances[y, x])
            assert peak["nearest"]["distance"] == pytest.approx(distance, abs=2e-3)


def nearest_frame(bank: Neighbours, feature: torch.Tensor) -> str:
    """Return the training frame whose feature has the largest cosine with this one."""
    wide = feature.double()
    similarities = bank.bank.double() @ (wide / wide.norm())
    return str(cast(Any, bank.frames)[int(similarities.argmax())])


def test_a_peak_names_the_training_frame_of_the_nearest_feature(half_dark: HalfDark) -> None:
    density, _ = cast(Any, with_reasons().fitted.providers)
    (bank,) = density.banks
    named = set()
    for frame, line in half_dark.pairs:
        images = network_input([cast(Any, frame.image)], (40, 56))
        with torch.no_grad():
            ((features,),) = density.extractor(images)
        for peak in line["peaks"]["anomaly"]:
            x, y = peak["at"]
            name = peak["nearest"]["frame"]
            # The layer is as large as the frame.
            assert name == nearest_frame(bank, features[:, y, x])
            named.add(name)
    assert named == {"dark", "noise"}


@pytest.mark.parametrize("compact", [False, True])
def test_peaks_of_a_killed_run_are_continued_to_the_same_bytes(
    tmp_path: Path, compact: bool
) -> None:
    whole = written(tmp_path / "whole", random_frames(4), compact=compact)
    killed = written(tmp_path / "killed", random_frames(4), compact=compact, killed=2)
    assert killed == whole
    whole_log = (tmp_path / "whole/frames.jsonl").read_bytes()
    assert (tmp_path / "killed/frames.jsonl").read_bytes() == whole_log


@pytest.mark.parametrize("compact", [False, True])
def test_what_the_page_lists_finds_the_peaks_of_its_regions(tmp_path: Path, compact: bool) -> None:
    lines = written(tmp_path, random_frames(4), compact=compact)
    reader = MapsReader(tmp_path)
    for line in lines:
        peaks = line["peaks"]["anomaly"]
        assert peaks
        maps = {"anomaly": reader.read(line["name"], "anomaly")}
        alarms = find_alarms(maps, "anomaly", 3, None, peaks=peaks)
        assert alarms[0].reasons["parts"].keys() == {"deterministic-energy", "knn"}
        if not compact:
            assert [alarm.reasons for alarm in alarms] == peaks


LACK_OF_MEMORY = "DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"
OTHER_SHAPES = "The size of tensor a (9) must match the size of tensor b (8)"
ONE_PIXEL = "Expected more than 1 value per channel when training, got input size [1, 32, 1, 1]"
DARK = Frame("dark", 9, np.zeros((40, 56, 3), np.uint8))


def fail_on_dark_frames(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    plain = Engine.logits

    def logits(self: Engine, images: torch.Tensor, *rest: Any) -> Any:
        if images[0].max() == images[0].min():
            raise error
        return plain(self, images, *rest)

    monkeypatch.setattr(Engine, "logits", logits)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (NotFiniteError("the network returns NaN"), "the network returns NaN"),
        (MemoryError(), "there is not enough memory for a frame of 56 x 40 pixels"),
        (RuntimeError(LACK_OF_MEMORY), "not enough memory for a frame"),
        (RuntimeError(OTHER_SHAPES), "the network fails on a frame of 56 x 40 pixels"),
        (ValueError(ONE_PIXEL), "the network fails on a frame of 56 x 40 pixels"),
    ],
)
def test_a_frame_that_memory_or_network_does_not_take_fails_alone(
    error: Exception, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = FrameProcess(small_sampler(), ("entropy",))
    expected = computed(process, random_frames())
    fail_on_dark_frames(monkeypatch, error)
    assert reason in str(process(DARK))
    for maps, before in zip(computed(process, random_frames()), expected, strict=True):
        np.testing.assert_array_equal(maps["entropy"], before["entropy"])


@pytest.mark.parametrize(
    "error",
    [
        ZeroDivisionError(),
        RuntimeError("CUDA error: an illegal memory access was encountered"),
        NotImplementedError(),
    ],
)
def test_any_other_failure_ends_the_run(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    process = FrameProcess(small_sampler(), ("entropy",))
    computed(process, random_frames())
    fail_on_dark_frames(monkeypatch, error)
    with pytest.raises(type(error)):
        process(DARK)
