"""Frames to their maps: frames that cannot be fail alone."""

import json
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

from segunc.baselines.anomaly import ScoreSum, Standard, Surprise
from segunc.baselines.density import FeatureDensity, Neighbours, unit_features
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


def computed(process: FrameProcess, given: list[Frame]) -> list[Maps]:
    results = [process(frame) for frame in given]
    assert not [result for result in results if isinstance(result, Exception)]
    return results


def with_reasons() -> Sampler:
    """A sampler of a sum of energy and feature distance, of which all frames have alarms, and a
    bank of features of two frames.
    """
    plain = small_sampler()
    network = plain.network
    extractor = FeatureExtractor(network, ["body.2"])
    dark = np.full((40, 56, 3), 30, np.uint8)
    noise = cast(Any, random_frames(1)[0].image)
    with torch.no_grad():
        of_dark = unit_features(extractor(network_input([dark], (40, 56)))[0])[:50]
        of_noise = unit_features(extractor(network_input([noise], (40, 56)))[0])[::7]
    names = ["dark"] * len(of_dark) + ["noise"] * len(of_noise)
    bank = Neighbours(torch.cat([of_dark, of_noise]), names)
    total = ScoreSum(
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
    fitted = Fitted(providers=[FeatureDensity(extractor, [bank]), total])
    return Sampler(network, plain.posterior, draws=4, scores=REASONED, fitted=fitted)


REASONED = ("deterministic-energy", "knn", "anomaly")


def written(
    out: Path, given: list[Frame], *, compact: bool = False, killed: int | None = None
) -> list[dict[str, Any]]:
    """The lines of a folder of maps; with ``killed`` the run ends at that frame and is
    continued.
    """
    run: dict[str, Any] = {"input": "here", "seed": 0}
    if compact:
        run["compact"] = True
    manifest = build_manifest(
        run, REASONED, device="cpu", classes=("road", "car", "sky"), palette=[(0, 0, 0)] * 3
    )
    process = FrameProcess(with_reasons(), REASONED)
    for end in [killed, None] if killed else [None]:
        with MapsWriter(out, manifest) as writer:
            for frame in given[:end]:
                if frame.index not in writer.lines:
                    (maps,) = computed(process, [frame])
                    writer.commit(writer.store(frame.name, maps, place=frame.index))
    return [json.loads(line) for line in (out / "frames.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def half_dark(tmp_path_factory: pytest.TempPathFactory) -> tuple[MapsReader, list[Any]]:
    """Maps of two frames, the second of which is dark on its left half; and the frames, each with
    its line.
    """
    folder = tmp_path_factory.mktemp("half_dark") / "maps"
    pair = random_frames(2)
    cast(Any, pair[1].image)[:, :28] = 30
    lines = written(folder, pair)
    return MapsReader(folder), list(zip(pair, lines, strict=True))


def test_peaks_are_the_strongest_pixels_of_alarms(half_dark: tuple[MapsReader, list[Any]]) -> None:
    reader, pairs = half_dark
    for frame, line in pairs:
        anomaly = reader.read(frame.name, "anomaly")
        peaks = line["peaks"]["anomaly"]
        assert 1 <= len(peaks) <= 5
        strengths = [peak["strength"] for peak in peaks]
        assert strengths == sorted(strengths, reverse=True)
        assert strengths[0] == pytest.approx(line["region"]["anomaly"])
        values = [float(anomaly[y, x]) for x, y in (peak["at"] for peak in peaks)]
        assert min(values) >= 3
        assert max(values) == anomaly.max()


def test_the_parts_of_a_peak_are_those_of_the_maps(
    half_dark: tuple[MapsReader, list[Any]],
) -> None:
    reader, pairs = half_dark
    _, total = cast(Any, with_reasons().fitted.providers)
    for frame, line in pairs:
        maps = {name: reader.read(frame.name, name) for name in total.parts}
        for peak in line["peaks"]["anomaly"]:
            x, y = peak["at"]
            for name, surprise in zip(total.parts, total.part_surprises, strict=True):
                stored = torch.tensor(np.float16(maps[name][y, x])).view(1)
                step = float(np.spacing(stored.numpy())[0])  # of a map that is stored as float16
                low = float(surprise(stored.float() - step))
                high = float(surprise(stored.float() + step))
                assert low - 1e-3 <= peak["parts"][name] <= high + 1e-3


def test_a_peak_names_the_training_frame_of_the_nearest_feature(
    half_dark: tuple[MapsReader, list[Any]],
) -> None:
    reader, pairs = half_dark
    density, _ = cast(Any, with_reasons().fitted.providers)
    (bank,) = density.banks
    named = set()
    for frame, line in pairs:
        distances = reader.read(frame.name, "knn")
        with torch.no_grad():
            ((features,),) = density.extractor(network_input([frame.image], (40, 56)))
        for peak in line["peaks"]["anomaly"]:
            x, y = peak["at"]
            nearest = peak["nearest"]
            assert nearest["distance"] == pytest.approx(float(distances[y, x]), abs=2e-3)
            feature = features[:, y, x].double()  # the layer is as large as the frame
            similarities = bank.bank.double() @ (feature / feature.norm())
            assert nearest["frame"] == bank.frames[int(similarities.argmax())]
            named.add(nearest["frame"])
    assert named == {"dark", "noise"}


@pytest.mark.parametrize("compact", [False, True])
def test_peaks_of_a_killed_run_are_continued_to_the_same_bytes(
    tmp_path: Path, compact: bool
) -> None:
    whole = written(tmp_path / "whole", random_frames(4), compact=compact)
    assert whole == written(tmp_path / "killed", random_frames(4), compact=compact, killed=2)
    assert all(line["peaks"]["anomaly"] for line in whole)
    assert (tmp_path / "whole" / "frames.jsonl").read_bytes() == (
        tmp_path / "killed" / "frames.jsonl"
    ).read_bytes()
    reader = MapsReader(tmp_path / "whole")
    for line in whole:  # what the page lists finds the peaks of its regions, of compact maps too
        maps = {"anomaly": reader.read(line["name"], "anomaly")}
        alarms = find_alarms(maps, "anomaly", 3, None, peaks=line["peaks"]["anomaly"])
        assert alarms[0].reasons["parts"].keys() == {"deterministic-energy", "knn"}
        assert compact or [alarm.reasons for alarm in alarms] == line["peaks"]["anomaly"]


LACK_OF_MEMORY = "DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"
OTHER_SHAPES = "The size of tensor a (9) must match the size of tensor b (8)"
DARK = Frame("dark", 9, np.zeros((40, 56, 3), np.uint8))


def fail_on_dark_frames(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    plain = Engine.logits

    def logits(self: Engine, images: torch.Tensor, *rest: Any) -> Any:
        if images[0].max() == images[0].min():
            raise error
        return plain(self, images, *rest)

    monkeypatch.setattr(Engine, "logits", logits)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (NotFiniteError("the network returns NaN"), "the network returns NaN"),
        (MemoryError(), "there is not enough memory for a frame of 56 x 40 pixels"),
        (RuntimeError(LACK_OF_MEMORY), "not enough memory for a frame"),
        (RuntimeError(OTHER_SHAPES), "the network fails on a frame of 56 x 40 pixels"),
    ],
)
def test_a_frame_that_memory_or_network_does_not_take_fails_alone(
    error: Exception, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = FrameProcess(small_sampler(), ("entropy",))
    expected = computed(process, random_frames())
    fail_on_dark_frames(monkeypatch, error)
    assert said in str(process(DARK))
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
