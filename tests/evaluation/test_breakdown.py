"""Numbers by objects and by groups: those of the set that holds nothing else, merged to the bit,
with intervals and reasons.
"""

from collections.abc import Iterable
from functools import reduce
from operator import getitem
from typing import Any

import numpy as np
import pytest

from segunc.core.errors import InputError, NoteWarning
from segunc.evaluation.comparison import HIDDEN, format_number
from segunc.evaluation.evaluator import Evaluator, Measures
from segunc.evaluation.resampling import Resampling, group_frames
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
