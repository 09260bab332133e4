"""Verdicts as an evaluation: numbers counted by hand, intervals over frames, and what cannot be
evaluated.
"""

import json
import re
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import cohen_kappa_score

from segunc.core.errors import InputError
from segunc.evaluation.comparison import compare, format_comparison, has_other_images
from segunc.evaluation.evaluator import NO_INTERVALS
from segunc.evaluation.flagged import DISPUTED
from segunc.evaluation.from_verdicts import evaluate_verdicts
from segunc.evaluation.resampling import (
    Resampling,
    load_results,
    save_replicates,
    sidecar_path,
)
from segunc.evaluation.tables import format_metrics
from segunc.maps.verdicts import JudgedRegion, RegionAgreement, Verdict, region_agreements

FRAMES = [f"f{index:02}" for index in range(40)]
KINDS = (
    ["true-alarm"] * 6 + ["false-alarm"] * 2 + ["missed"] * 3 + ["nothing-wrong"] * 8 + ["unsure"]
)
VERDICTS = ("nothing-wrong", "true-alarm", "false-alarm", "missed", "unsure")
FLAGGED = {
    "box": (0, 0, 2, 2),
    "area": 4,
    "size": (4, 4),
    "mask": (0, 2, 4, 2),
    "score": "entropy",
    "threshold": 0.5,
}
ANNA = [Verdict(frame, kind, reviewer="anna") for frame, kind in zip(FRAMES, KINDS, strict=False)]


REGIONS_OF_ANNA = 6


def region(frame: str, verdict: str, *, drawn: bool = False, left: int = 0) -> Verdict:
    values = FLAGGED | {"box": (left, 0, 2, 2)}
    if drawn:
        values |= {"score": None, "threshold": None}
    return Verdict(frame, verdict, reviewer="anna", region=JudgedRegion(**values))


@pytest.fixture(scope="module")
def of_anna() -> dict[str, Any]:
    """The result of anna's verdicts on twenty frames and six regions."""
    regions = [
        region("f00", "true-alarm", left=0),
        region("f00", "true-alarm", left=1),
        region("f00", "false-alarm", left=2),
        region("f08", "missed", drawn=True),
        region("f08", "missed"),
        region("f09", "unsure"),
    ]
    result, _ = evaluate_verdicts([*ANNA, *regions], FRAMES, Resampling(400), str)
    return result


def test_numbers_of_frames_are_those_counted_by_hand(of_anna) -> None:
    anna = of_anna["verdicts"]["reviewers"]["anna"]
    assert anna["precision"] == 6 / 8
    assert anna["recall"] == 6 / 9
    assert anna["false_alarms"] == 2 / 10
    assert anna["share"] == {
        "nothing-wrong": 8 / 20,
        "true-alarm": 6 / 20,
        "false-alarm": 2 / 20,
        "missed": 3 / 20,
        "unsure": 1 / 20,
    }


def test_numbers_of_regions_are_those_counted_by_hand(of_anna) -> None:
    regions = of_anna["verdicts"]["reviewers"]["anna"]["regions"]
    assert regions == {
        "precision": 2 / 3,
        "recall": 2 / 4,
        "missed_per_frame": 2 / 3,
    }


def test_one_reviewer_alone_is_all_together(of_anna) -> None:
    anna = of_anna["verdicts"]["reviewers"]["anna"]
    together = of_anna["verdicts"]["together"]
    of_frames = {key: value for key, value in anna.items() if key != "regions"}
    assert {key: together[key] for key in of_frames} == of_frames
    assert together["at_least"] == of_frames
    assert together["at_most"] == of_frames


def test_counts_say_what_each_number_rests_on(of_anna) -> None:
    counts = of_anna["counts"]
    assert counts["judged_frames"] == 20
    of_reviewer = {"frames": 20, "by_regions": 0, "regions": REGIONS_OF_ANNA}
    assert counts["verdicts"] == {"anna": of_reviewer}
    assert counts["rests_on"]["verdicts.together.recall"] == [9, 9]
    assert counts["rests_on"]["verdicts.reviewers.anna.regions.recall"] == [4, 4]


def test_intervals_of_verdicts(of_anna) -> None:
    low, high = of_anna["intervals"]["verdicts.together.precision"]
    assert 0.2 < low < 0.75 < high <= 1
    # Three of twenty units know of regions.
    reasons = of_anna["bootstrap"]["no_interval"]
    assert "resampled units say something" in reasons["verdicts.reviewers.anna.regions.recall"]


@pytest.mark.parametrize("is_video", [False, True])
def test_results_of_verdicts_tell_other_images_of_equal_names(
    tmp_path: Path, is_video: bool
) -> None:
    """The frames of a video have no hashes of their own."""
    results = []
    for name in ("monday", "friday"):
        result, gatherer = evaluate_verdicts(
            ANNA,
            FRAMES,
            Resampling(40),
            str,
            stamp_of=lambda frame, drive=name: None if is_video else f"{drive} {frame}",
            video=name if is_video else None,
        )
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(result))
        save_replicates(sidecar_path(path), gatherer.replicates())
        results += load_results([path])
    assert has_other_images(*results)
    assert not has_other_images(results[0], results[0])
    text = format_comparison(compare(results))
    assert "friday less monday: paired by frame name; the images differ." in text


def test_tables_of_verdicts(of_anna) -> None:
    text = format_metrics(of_anna)
    assert "Verdicts on 20 frames of 40; a frame without a verdict of its own has" in text
    table = text.split(f"anna: regions, {REGIONS_OF_ANNA} in number")[1]
    (missed,) = [line for line in table.splitlines() if "missed regions a frame" in line]
    assert missed.split("|")[3].strip() == "3 frames"  # in a column of regions


def test_notes_alone_are_no_verdicts() -> None:
    with pytest.raises(InputError, match="no verdict"):
        evaluate_verdicts([Verdict("f00", "", "dark")], FRAMES, NO_INTERVALS, str)


def extremes(opinions: Sequence[Sequence[str]], these: str, other: str) -> tuple[float, float]:
    """The smallest and the largest share of one verdict, over each choice of a verdict a frame."""
    shares = []
    for chosen in product(*opinions):
        whole = chosen.count(these) + chosen.count(other)
        if whole:
            shares.append(chosen.count(these) / whole)
    return min(shares), max(shares)


def test_bounds_are_the_extremes_over_each_choice_of_verdicts() -> None:
    generator = np.random.default_rng(5)
    opinions = [[VERDICTS[place] for place in pair] for pair in generator.integers(0, 5, (9, 2))]
    opinions += [["true-alarm"] * 2, ["false-alarm"] * 2, ["missed"] * 2, ["nothing-wrong"] * 2]
    verdicts = []
    for frame, pair in zip(FRAMES, opinions, strict=False):
        for reviewer, kind in zip(("anna", "ben"), pair, strict=True):
            verdicts.append(Verdict(frame, kind, reviewer=reviewer))
    result, _ = evaluate_verdicts(verdicts, FRAMES, NO_INTERVALS, str)
    together = result["verdicts"]["together"]
    shares = {
        "precision": ("true-alarm", "false-alarm"),
        "recall": ("true-alarm", "missed"),
        "false_alarms": ("false-alarm", "nothing-wrong"),
    }
    for name, (these, other) in shares.items():
        smallest, largest = extremes(opinions, these, other)
        assert together["at_least"][name] == smallest
        assert together["at_most"][name] == largest
        assert together[name] is None
        assert result["reasons"][f"verdicts.together.{name}"] == DISPUTED
    missed = sum("missed" in pair for pair in opinions) / len(opinions)
    assert together["at_most"]["share"]["missed"] == missed


def disputed() -> list[Verdict]:
    """Two reviewers of 30 frames, who agree on six true alarms and on nothing else."""
    anna = ["true-alarm"] * 6 + ["true-alarm"] * 7 + ["false-alarm"] * 4 + ["false-alarm"] * 13
    ben = ["true-alarm"] * 6 + ["false-alarm"] * 7 + ["true-alarm"] * 4 + ["nothing-wrong"] * 13
    verdicts = []
    for reviewer, kinds in (("anna", anna), ("ben", ben)):
        for frame, kind in zip(FRAMES, kinds, strict=False):
            verdicts.append(Verdict(frame, kind, reviewer=reviewer))
    return verdicts


def test_bounds_hold_the_numbers_of_each_reviewer() -> None:
    result, _ = evaluate_verdicts(disputed(), FRAMES, NO_INTERVALS, str)
    judged = result["verdicts"]
    assert judged["reviewers"]["anna"]["precision"] == 13 / 30
    assert judged["reviewers"]["ben"]["precision"] == 10 / 17
    together = judged["together"]
    assert together["at_least"]["precision"] == 6 / 30
    assert together["at_most"]["precision"] == 17 / 17
    assert result["counts"]["rests_on"]["verdicts.together.precision"] == [17, 30]
    assert result["counts"]["judged_by_several"] == 30


def test_the_table_names_the_disputed_share_and_kappa() -> None:
    result, _ = evaluate_verdicts(disputed(), FRAMES, NO_INTERVALS, str)
    text = format_metrics(result)
    assert "disagree on 24 of 30 that two or more judged, a disputed share of 80.0%" in text
    (least,) = re.findall(r"\| alarms that are true, at least .*", text)
    kappa = cohen_kappa_score(kinds_of(disputed(), "anna"), kinds_of(disputed(), "ben"))
    shown = f"{kappa:.3f}".replace("-0.", "−.")
    assert [cell.strip() for cell in least.split("|")[2:5]] == [".200", "17 to 30", shown]
    assert DISPUTED not in text, "its bounds are shown"


def kinds_of(verdicts: Sequence[Verdict], reviewer: str) -> list[str]:
    """The verdicts of a reviewer, in the order of the frames."""
    return [verdict.verdict for verdict in verdicts if verdict.reviewer == reviewer]


def judged_regions(reviewer: str, kinds: Sequence[str], shift: int = 0) -> list[Verdict]:
    """Verdicts of a reviewer on a region of 10 x 10 pixels in each frame, moved by ``shift``."""
    verdicts = []
    for frame, kind in zip(FRAMES, kinds, strict=False):
        outline = JudgedRegion((shift, 0, 10, 10), 100, (20, 40), (0, 100), "entropy", 0.5)
        verdicts.append(Verdict(frame, kind, reviewer=reviewer, region=outline))
    return verdicts


KINDS_OF_ANNA = ["true-alarm"] * 6 + ["false-alarm"] * 9 + ["missed", "unsure"]
KINDS_OF_BEN = ["true-alarm"] * 4 + ["false-alarm"] * 8 + ["true-alarm"] * 3 + ["missed"] * 2


def test_kappa_of_regions_is_that_of_scikit_learn() -> None:
    # Boxes that are moved by 3 of 10 pixels overlap by 70 of 130.
    verdicts = [*judged_regions("anna", KINDS_OF_ANNA), *judged_regions("ben", KINDS_OF_BEN, 3)]
    (pair,) = region_agreements(verdicts)
    assert pair.regions == len(KINDS_OF_ANNA)
    assert pair.kappa == pytest.approx(cohen_kappa_score(KINDS_OF_ANNA, KINDS_OF_BEN))


def test_the_table_of_regions_holds_their_kappa_and_how_many_both_judged() -> None:
    verdicts = [*judged_regions("anna", KINDS_OF_ANNA), *judged_regions("ben", KINDS_OF_BEN)]
    text = format_metrics(evaluate_verdicts(verdicts, FRAMES, NO_INTERVALS, str)[0])
    table = text.split("anna: regions, 17 in number; 17 also judged by ben")[1]
    (true,) = re.findall(r"\| alarms that are true .*", table.split("ben: ")[0])
    kappa = f"{cohen_kappa_score(KINDS_OF_ANNA, KINDS_OF_BEN):.3f}".lstrip("0")
    assert true.split("|")[-2].strip() == kappa


def test_regions_that_only_one_judged_have_no_kappa() -> None:
    verdicts = [*judged_regions("anna", KINDS_OF_ANNA), *judged_regions("ben", KINDS_OF_BEN, 4)]
    (pair,) = region_agreements(verdicts)  # overlaps of 60 of 140
    assert pair == RegionAgreement(("anna", "ben"), regions=0, agreed=0.0, kappa=None)
    text = format_metrics(evaluate_verdicts(verdicts, FRAMES, NO_INTERVALS, str)[0])
    table = text.split("anna: regions, 17 in number")[1].split("ben: ")[0]
    assert "kappa" not in table


def test_regions_of_other_scores_are_other_regions() -> None:
    anna = judged_regions("anna", ["true-alarm"])
    outline = JudgedRegion((0, 0, 10, 10), 100, (20, 40), (0, 100), None)
    ben = [Verdict(FRAMES[0], "missed", reviewer="ben", region=outline)]
    assert region_agreements([*anna, *ben])[0].regions == 0


def test_a_region_is_compared_with_the_one_that_it_overlaps_most() -> None:
    anna = judged_regions("anna", ["true-alarm"])
    near = judged_regions("ben", ["true-alarm"], 1)
    far = judged_regions("ben", ["false-alarm"], 3)
    assert region_agreements([*anna, *far, *near])[0].agreed == 1
    assert region_agreements([*anna, *far, *near])[0].regions == 1


def test_verdicts_of_one_reviewer_have_no_column_of_kappa(of_anna: dict[str, Any]) -> None:
    assert "kappa" not in format_metrics(of_anna)


def test_intervals_of_disputed_numbers_are_those_of_their_bounds() -> None:
    result, _ = evaluate_verdicts(disputed(), FRAMES, Resampling(400), str)
    low, high = result["intervals"]["verdicts.together.at_least.precision"]
    assert low < 6 / 30 < high < 0.5
    assert "verdicts.together.precision" not in result["intervals"]


def test_the_table_shows_the_smallest_and_the_largest_kappa() -> None:
    # Anna and ben agree on both frames, and cleo says the opposite of either.
    kinds = {
        "anna": ("true-alarm", "false-alarm"),
        "ben": ("true-alarm", "false-alarm"),
        "cleo": ("false-alarm", "true-alarm"),
    }
    verdicts = []
    for reviewer, of_frames in kinds.items():
        verdicts.append(Verdict("f00", of_frames[0], reviewer=reviewer))
        verdicts.append(Verdict("f01", of_frames[1], reviewer=reviewer))
    result, _ = evaluate_verdicts(verdicts, FRAMES, NO_INTERVALS, str)
    assert "-1.000 to 1.000" in format_metrics(result).replace("−", "-")
