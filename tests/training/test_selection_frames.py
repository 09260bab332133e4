"""The frames that a method selects on, and how it is asked for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from segunc.core.errors import InputError
from segunc.data.corruptions import Corruption
from segunc.data.labels import IGNORE
from segunc.data.module import SegmentationDataModule
from segunc.data.samples import SegmentationDataset
from segunc.posteriors.anomaly import AnomalyConfig
from segunc.posteriors.methods import METHODS, Method
from segunc.training.config import FitConfig, SelectConfig, parse_config, save_config
from segunc.training.selection import selection_frames


@pytest.fixture
def fold(toy_set: Path) -> SegmentationDataModule:
    return SegmentationDataModule("toy", str(toy_set))


def test_each_frame_clean_and_under_each_corruption(fold: SegmentationDataModule) -> None:
    found = list(selection_frames(fold, SelectConfig(corruptions=["fog:3", "noise:2"], frames=2)))
    assert [str(frame.corruption) for frame in found] == ["None", "fog:3", "noise:2"] * 2
    data = fold.dataset("val")
    for start, index in ((0, 0), (3, len(data) - 1)):  # evenly spaced
        image, labels = data.read(index)
        for frame, corruption in zip(found[start : start + 3], (None, "fog:3", "noise:2"), strict=True):
            assert frame.name == data.samples[index].name
            expected = Corruption.parse(corruption)(image, frame.name) if corruption else image
            np.testing.assert_array_equal(frame.image, expected)
            np.testing.assert_array_equal(frame.labels, labels)
            np.testing.assert_array_equal(frame.anomaly, np.where(labels == IGNORE, IGNORE, 0))
    assert len(list(selection_frames(fold, SelectConfig()))) == len(data)


def test_anomalies_are_pasted_before_the_corruption(fold: SegmentationDataModule) -> None:
    settings = SelectConfig("cut-paste", corruptions=["jpeg:1"], seed=3)
    found, data = list(selection_frames(fold, settings)), fold.dataset("val")
    assert len(found) == 2 * len(data)
    for clean, corrupted in zip(found[::2], found[1::2], strict=True):
        assert (clean.anomaly == 1).any()
        assert (clean.labels[clean.anomaly == 1] == IGNORE).all()
        np.testing.assert_array_equal(clean.anomaly, corrupted.anomaly)
        assert corrupted.corruption is not None
        np.testing.assert_array_equal(corrupted.image, corrupted.corruption(clean.image, clean.name))
    for one, other in zip(found, selection_frames(fold, settings), strict=True):
        np.testing.assert_array_equal(one.image, other.image)


def test_objects_come_from_the_sequences_that_are_not_held_out(toy_set: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sequence = "0([0-7])_000019_leftImg8bit$"  # each of the eight frames is one
    data = SegmentationDataModule("toy", str(toy_set), validation="leave-sequence-out", sequence=sequence)
    seen: list[str] = []
    read = SegmentationDataset.read

    def noted(self: SegmentationDataset, index: int) -> Any:
        seen.append(self.samples[index].name)
        return read(self, index)

    monkeypatch.setattr(SegmentationDataset, "read", noted)
    for fold in data.folds()[:4]:
        seen.clear()
        (frame,) = selection_frames(fold, SelectConfig("cut-paste"))
        assert frame.name.endswith(f"{fold.held_out}_000019_leftImg8bit")
        assert seen.count(frame.name) == 1  # the frame itself
        assert len(seen) > 1


def parsed(*words: str, config: Path | None = None, selects: bool = True) -> FitConfig[Any]:
    data = ["--data.dataset=toy", "--data.root=data"]
    return parse_config(FitConfig, config, [*data, *words], AnomalyConfig, selects=selects)


def test_the_section_is_parsed_and_recorded(tmp_path: Path) -> None:
    config = parsed("--select.anomalies=cut-paste", "--select.corruptions=[fog:3,jpeg:1]", "--select.frames=5")
    assert config.select == SelectConfig("cut-paste", None, ["fog:3", "jpeg:1"], 5)
    assert config.select.kinds() == [Corruption("fog", 3), Corruption("jpeg", 1)]
    save_config(config, tmp_path, "anomaly")
    assert parsed(config=tmp_path / "anomaly.yaml") == config


def test_a_method_that_does_not_select_has_no_such_section(tmp_path: Path) -> None:
    config = parsed(selects=False)
    assert config.select is None
    save_config(config, tmp_path, "anomaly")
    assert "select" not in yaml.safe_load((tmp_path / "anomaly.yaml").read_text())
    with pytest.raises(InputError, match="select"):
        parsed("--select.frames=5", selects=False)
    assert not METHODS["temperature"].selects
    assert Method("mine", AnomalyConfig, print, finished=True, selects=True).selects


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--select.anomalies=zebra"], "select: anomalies.*zebra"),
        (["--select.corruptions=[rain:3]"], "select: corruption 'rain'"),
        (["--select.corruptions=[fog]"], "select: corruption 'fog'"),
        (["--select.frames=-1"], "select: frames -1"),
        (["--select.objects=folder"], "select: objects folder with anomalies none"),
    ],
)
def test_bad_settings_are_one_line(words: list[str], said: str) -> None:
    with pytest.raises(InputError, match=said) as caught:
        parsed(*words)
    assert "\n" not in str(caught.value)
