"""Numbers by objects and by groups: those of the set that holds nothing else, merged to the bit,
with intervals and reasons.
"""

from collections.abc import Iterable
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from segunc.core.errors import InputError, NoteWarning
from segunc.core.files import write_result
from segunc.evaluation.comparison import HIDDEN, compare, format_number
from segunc.evaluation.evaluator import Evaluator, Measures
from segunc.evaluation.resampling import (
    EvaluationResult,
    Resampling,
    group_frames,
    load_results,
    save_replicates,
    sidecar_path,
)
from segunc.evaluation.tables import format_metrics
from segunc.metrics.objects import ObjectBins
from tests.support.objects import object_scene

SIZES = ObjectBins("size", (4, 30), ("0-4", "4-30", "30+"))
FRAMES = {
    f"{kind}{i:02}": object_scene(10 * i + len(kind))
    for i in range(15)
    for kind in ("cow", "cone", "tyre")
    if i or kind != "cow"
}


def evaluator(names: Iterable[str], **measures: Any) -> Evaluator:
    names = list(names)
    counted = Evaluator(("own",), None, names, anomalies=names, measures=Measures(**measures))
    for name in names:
        stored, anomaly = FRAMES[name]
        assert counted.update(name, {"own": stored}, anomaly=anomaly)
    return counted


def test_intervals_and_the_order_of_frames() -> None:
    asked = {
        "by": [SIZES, ObjectBins.of("distance")],
        "groups": "^[a-z]+",
        "resampling": Resampling(60),
    }
    whole = evaluator(FRAMES, **asked)
    backwards = evaluator(reversed(FRAMES), **asked)
    result = whole.numbers()
    assert result == backwards.numbers()
    np.testing.assert_array_equal(whole.replicates().values, backwards.replicates().values)
    values = result["scores"]["own"]
    assert list(values) == ["pooled", "size", "distance", "groups"]
    for path in (
        "size.4-30.aupr",
        "size.30+.found",
        "distance.near.fpr95",
        "groups.tyre.pooled.auroc",
    ):
        low, high = result["intervals"][f"scores.own.{path}"]
        assert low <= reduce(getitem, path.split("."), values) <= high
    assert "scores.own.size.4-30.objects" not in result["intervals"]
    assert (
        result["bootstrap"]["no_interval"]["scores.own.groups.cow.pooled.auroc"]
        == "fewer than 15 resampled units say something of it"
    )


def test_maps_of_eight_bits_have_the_intervals_of_the_same_values_in_sixteen() -> None:
    """Coarse keys of replicates would leave eight bits a sixteenth of their values."""
    results = []
    for step in (np.uint8(1), np.uint16(257)):
        counted = Evaluator(
            ("own.v2",),
            None,
            FRAMES,
            anomalies=FRAMES,
            unit_codes=(),
            measures=Measures(resampling=Resampling(60)),
        )
        for name, (stored, anomaly) in FRAMES.items():
            codes = np.clip(stored * 20 + 100, 0, 255).astype(np.uint8)
            assert counted.update(name, {"own.v2": codes * step}, anomaly=anomaly)
        results.append(counted.numbers())
    assert "own.v2 FPR95" in format_metrics(results[0])
    assert all(results[0][part] == results[1][part] for part in ("scores", "intervals"))


def test_a_group_has_the_numbers_of_a_set_of_its_own() -> None:
    result = evaluator(FRAMES, groups="^(cow|cone)").numbers()
    groups = result["scores"]["own"]["groups"]
    assert [*groups] == [*result["counts"]["groups"]] == ["cone", "cow", "other"]
    for group, start in (("cow", "cow"), ("cone", "cone"), ("other", "tyre")):
        alone = evaluator(name for name in FRAMES if name.startswith(start)).numbers()
        assert groups[group] == {"pooled": alone["scores"]["own"]["pooled"]}
        counts = result["counts"]["groups"][group]
        assert counts.items() <= alone["counts"].items()
        assert counts["anomaly_frames"] >= 14


def written(path: Path, names: Iterable[str], **measures: Any) -> EvaluationResult:
    """A result of forty frames, read back from a file, whose labels have equal numbers of pixels.

    The last two letters of a name are the number of the frame.
    """
    frames = {name: int(name[-2:]) for name in names}
    asked = Measures(resampling=Resampling(100), **measures)
    counted = Evaluator(("own",), None, frames, anomalies=frames, measures=asked)
    anomaly = FRAMES["cow01"][1]
    for name, number in frames.items():
        stored = {"own": object_scene(number)[0]}
        assert counted.update(name, stored, anomaly=np.roll(anomaly, number, axis=0))
    content = counted.numbers()
    counted.record_bootstrap(content, asked.resample)
    write_result(path, content)
    save_replicates(sidecar_path(path), counted.replicates())
    return load_results([path])[0]


def test_groups_of_other_frames_with_as_many_pixels_are_not_paired(tmp_path: Path) -> None:
    """Two lists put the same frames into groups of the same names, and two frames change places."""
    names = [f"{number:02}" for number in range(40)]
    usual = {name: "day" if name < "20" else "night" for name in names}
    swapped = {**usual, "05": "night", "25": "day"}
    results = []
    for name, groups in (("one", usual), ("two", swapped), ("again", usual)):
        results.append(written(tmp_path / f"{name}.json", names, groups=groups))
    counts = [dict(result.content["counts"]["groups"]["day"]) for result in results]
    hashes = [group.pop("anomaly_labels") for group in counts]
    assert counts[0] == counts[1]
    assert hashes[0] == hashes[2] != hashes[1]
    row = compare(results, keys=["scores.own.groups.day.pooled.auroc"]).rows[0]
    assert row.differences[1].reason == "the group is of other frames"
    assert row.differences[2].test is not None


def test_resampled_units_of_other_frames_are_not_paired(tmp_path: Path) -> None:
    """The same frames lie in other folders, whose names are the same."""
    results = []
    for name, step in (("one", 1), ("two", 7), ("again", 1)):
        names = [f"{chr(ord('a') + step * number % 20)}/{number:02}" for number in range(40)]
        results.append(written(tmp_path / f"{name}.json", names, resample="folder"))
    assert results[0].replicates.units == results[1].replicates.units
    row = compare(results, keys=["scores.own.pooled.auroc"]).rows[0]
    assert row.differences[1].reason == "resampled units of equal names hold other frames"
    assert row.differences[2].test is not None


def test_the_tables_show_the_bins_that_hold_objects() -> None:
    result = evaluator(
        FRAMES,
        by=[ObjectBins("size", (30, 1e5), ("0-30", "30-100000", "100000+"))],
        groups="^[a-z]+",
    ).numbers()
    text = format_metrics(result)
    sizes = result["scores"]["own"]["size"]
    assert "100000+" not in text
    assert sizes["100000+"]["auroc"] is None
    assert result["reasons"]["scores.own.size.100000+.auroc"] == "no labelled object belongs here"
    row = next(line for line in text.splitlines() if line.startswith("| 30-100000, own"))
    assert format_number(sizes["30-100000"]["found"]) in row
    assert "| found at 5 % flagged (of all objects) |" in text
    # A table of results shows them where they are asked for.
    assert {"size", "groups"} <= set(HIDDEN)


def test_a_list_of_groups_may_be_written_on_a_mac_and_by_file_names() -> None:
    """Of an accent in two characters, and ``NAME.png``."""
    frames = ["s\u00fcd_1", "a/s\u00fcd_2", "x.png", "rest"]
    rows = {
        "su\u0308d_1": "su\u0308d",
        "a/s\u00fcd_2.PNG": "s\u00fcd",
        "x.png": "x",
    }
    assert group_frames(rows, frames) == {
        "s\u00fcd": {"s\u00fcd_1", "a/s\u00fcd_2"},
        "x": {"x.png"},
        "other": {"rest"},
    }
    assert group_frames("s\u00fcd", frames) == group_frames("su\u0308d", frames)


def test_rows_of_no_frame_are_said() -> None:
    rows = {
        "a": "day",
        "b.npy": "night",
        "c_v1.5": "night",
        "d": "day",
    }
    with pytest.warns(NoteWarning, match=r"2 of 4 rows of --groups CSV, first c_v1\.5, name no"):
        assert group_frames(rows, ["a", "b", "c_v1"]) == {
            "day": {"a"},
            "night": {"b"},
            "other": {"c_v1"},
        }


def test_a_frame_of_two_groups_is_refused() -> None:
    with pytest.raises(InputError, match="puts the frame a into two groups, day and night"):
        group_frames({"a": "day", "a.png": "night"}, ["a"])


def test_groups_by_name() -> None:
    names = ["animals01_a", "lost_tires08", "b/cones02", "x"]
    assert group_frames(r"([a-z_]+)\d", names) == {
        "animals": {"animals01_a"},
        "cones": {"b/cones02"},
        "lost_tires": {"lost_tires08"},
        "other": {"x"},
    }
    assert [*group_frames({"x": "b", "animals01_a": "a"}, names)] == ["a", "b", "other"]


@pytest.mark.parametrize("how", ["(", r"\d{5}", {}])
def test_groups_that_name_no_frame_are_refused(how) -> None:
    with pytest.raises(InputError, match="groups"):
        group_frames(how, ["animals01_a", "x"])


def test_too_many_groups_are_refused() -> None:
    with pytest.raises(InputError, match="makes 101 groups"):
        group_frames(".*", [f"f{i}" for i in range(101)])


def test_groups_without_anomaly_labels_are_refused() -> None:
    with pytest.raises(InputError, match="anomaly labels"):
        Evaluator(("own",), None, anomalies=None, measures=Measures(groups="a"))
