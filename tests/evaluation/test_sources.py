"""What an evaluation is made of: maps that are still being written, and a model of other
classes.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from segunc.core.errors import InputError
from segunc.data.entries import DatasetEntry, Sample
from segunc.evaluation.from_maps import MapsSource, evaluate_maps
from segunc.evaluation.from_model import ModelSource, evaluate_model
from segunc.maps.labelled import LabelSources
from segunc.maps.store import MapsWriter
from tests.maps.fakes import SCORES, manifest
from tests.maps.foreign import write_map

ANOMALY = np.array([[0, 1], [0, 1]], np.uint8)


def result_of_one_frame(folder: Path) -> dict[str, Any]:
    labels = LabelSources(anomaly_labels=folder / "labels")
    result, _ = evaluate_maps(MapsSource(folder / "maps"), labels)
    return result


def write_one_frame(writer: MapsWriter, folder: Path) -> None:
    maps = {score: np.zeros((2, 2), np.float32) for score in SCORES}
    writer.write("one", {"prediction": np.zeros((2, 2), np.uint8), **maps})
    write_map(folder / "labels" / "one.png", ANOMALY)


def test_a_result_says_that_its_maps_are_unfinished(tmp_path: Path) -> None:
    with MapsWriter(tmp_path / "maps", manifest()) as writer:
        write_one_frame(writer, tmp_path)
        result = result_of_one_frame(tmp_path)
    assert "1 frame so far" in result["unfinished"]


def test_a_result_of_finished_maps_says_nothing_of_it(tmp_path: Path) -> None:
    with MapsWriter(tmp_path / "maps", manifest()) as writer:
        write_one_frame(writer, tmp_path)
    assert "unfinished" not in result_of_one_frame(tmp_path)


def test_a_model_of_other_classes_than_the_data_is_refused(tmp_path: Path) -> None:
    entry = DatasetEntry("streets", layouts=(), labels="camvid")
    model: Any = SimpleNamespace(
        network=SimpleNamespace(description=SimpleNamespace(classes=("ground", "rest")))
    )
    sampler: Any = None
    source = ModelSource(model, sampler, ("entropy",), size=None, corruption=None, run={})
    sample = Sample("a", image=tmp_path / "a.png", label=tmp_path / "a_label.png")
    with pytest.raises(InputError, match=r"streets has the classes .*the network ground, rest, "):
        evaluate_model(source, entry, [sample])
