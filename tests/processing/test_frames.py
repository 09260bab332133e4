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
    found = [process(frame) for frame in given]
    assert not [result for result in found if isinstance(result, Exception)]
    return found


def with_reasons() -> Sampler:
    """A sampler of a sum of energy and feature distance, of which all frames have alarms, and a
    bank of features of two frames.
    """
    plain = small_sampler()
    network = plain.network
    extractor = FeatureExtractor(network, ["body.2"])
    kinds = [np.full((40, 56, 3), 30, np.uint8), random_frames(1)[0].image]
    with torch.no_grad():
        rows = [
            unit_features(extractor(network_input([cast(Any, kind)], (40, 56)))[0])
            for kind in kinds
        ]
    bank = Neighbours(
        torch.cat([rows[0][:50], rows[1][::7]]), ["dark"] * 50 + ["noise"] * len(rows[1][::7])
    )
    parts = Surprise((-2.0, -1.0, 1.0), 0.4), Surprise((0.0, 0.0005, 0.002), 0.01)
    scales = (Standard(-1.0, 0.3), Standard(0.0005, 0.001))
    total = ScoreSum(
        ("deterministic-energy", "knn"), (1.0, 1.0), scales, Surprise((-1.0, 0.0, 1.0), 0.1), {}, 1, 4, 1.0, "", None, None,
        part_surprises=parts,
    )  # fmt: skip
    fitted = Fitted(providers=[FeatureDensity(extractor, [bank]), total])
    return Sampler(network, plain.posterior, draws=4, scores=REASONED, fitted=fitted)


REASONED = ("deterministic-energy", "knn", "anomaly")


def written(
    out: Path, given: list[Frame], *, compact: bool = False, killed: int | None = None
) -> list[dict[str, Any]]:
    """The lines of a folder of maps; with ``killed`` the run ends at that frame and is
    continued.
    """
    run = {"input": "here", "seed": 0} | ({"compact": True} if compact else {})
    manifest = build_manifest(
        run, REASONED, device="cpu", classes=("road", "car", "sky"), palette=[(0, 0, 0)] * 3
    )
    process = FrameProcess(with_reasons(), REASONED)
    for end in [killed, None] if killed else [None]:
        with MapsWriter(out, manifest) as writer:
            for frame in given[:end]:
                if frame.index not in writer.lines:
                    writer.commit(
                        writer.store(frame.name, computed(process, [frame])[0], place=frame.index)
                    )
    return [json.loads(line) for line in (out / "frames.jsonl").read_text().splitlines()]


def test_peaks_hold_what_the_maps_say_and_the_nearest_frame(tmp_path: Path) -> None:
    given = random_frames(2)
    cast(Any, given[1].image)[:, :28] = 30
    lines = written(tmp_path / "maps", given)
    reader, process = MapsReader(tmp_path / "maps"), with_reasons()
    density, total = cast(Any, process.fitted.providers)
    (bank,), named = density.banks, list[str]()
    for frame, line in zip(given, lines, strict=True):
        maps = {name: reader.read(frame.name, name) for name in REASONED}
        with torch.no_grad():
            ((features,),) = density.extractor(network_input([cast(Any, frame.image)], (40, 56)))
        peaks = line["peaks"]["anomaly"]
        assert 1 <= len(peaks) <= 5
        assert peaks[0]["strength"] == pytest.approx(line["region"]["anomaly"])
        assert [peak["strength"] for peak in peaks] == sorted(
            (peak["strength"] for peak in peaks), reverse=True
        )
        assert (
            max(float(maps["anomaly"][y, x]) for x, y in (peak["at"] for peak in peaks))
            == maps["anomaly"].max()
        )
        for peak in peaks:
            x, y = peak["at"]
            assert maps["anomaly"][y, x] >= 3
            for name, surprise in zip(total.parts, total.part_surprises, strict=True):
                stored = torch.tensor(np.float16(maps[name][y, x])).view(1)
                step = float(np.spacing(stored.numpy())[0])  # of a map that is stored as float16
                low, high = (float(surprise(stored.float() + by * step)) for by in (-1, 1))
                assert low - 1e-3 <= peak["parts"][name] <= high + 1e-3
            assert peak["nearest"]["distance"] == pytest.approx(float(maps["knn"][y, x]), abs=2e-3)
            feature = (
                features[:, y, x].double() / features[:, y, x].double().norm()
            )  # the layer is as large as the frame
            named.append(bank.frames[int((bank.bank.double() @ feature).argmax())])
            assert peak["nearest"]["frame"] == named[-1]
    assert {*named} == {"dark", "noise"}


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


def test_a_frame_of_a_size_that_memory_or_network_does_not_take_fails_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Any other failure of the network, or of the device, ends the run."""
    process, plain, errors = (
        FrameProcess(small_sampler(), ("entropy",)),
        Engine.logits,
        [Exception()],
    )
    dark = Frame("dark", 9, np.zeros((40, 56, 3), np.uint8))
    expected = [maps for frame in random_frames() for maps in computed(process, [frame])]

    def limited(self: Engine, images: torch.Tensor, *rest: Any) -> Any:
        if images[0].max() == images[0].min():
            raise errors[-1]
        return plain(self, images, *rest)

    monkeypatch.setattr(Engine, "logits", limited)
    for error, said in (
        (NotFiniteError("the network returns NaN"), "the network returns NaN"),
        (MemoryError(), "there is not enough memory for a frame of 56 x 40 pixels"),
        (
            RuntimeError(
                "DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"
            ),
            "not enough memory for a frame",
        ),
        (
            RuntimeError("The size of tensor a (9) must match the size of tensor b (8)"),
            "the network fails on a frame of 56 x 40 pixels",
        ),
    ):
        errors.append(error)
        results: list[Any] = [process(frame) for frame in (dark, *random_frames())]
        assert said in str(results[0])
        for found, frame in zip(results[1:], expected, strict=True):
            np.testing.assert_array_equal(found["entropy"], frame["entropy"])
    for bug in (
        ZeroDivisionError(),
        RuntimeError("CUDA error: an illegal memory access was encountered"),
        NotImplementedError(),
    ):
        errors.append(bug)
        with pytest.raises(type(bug)):
            process(dark)
