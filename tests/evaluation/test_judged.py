"""Verdicts as an evaluation: numbers counted by hand, intervals over frames, and what cannot be evaluated."""

import pytest

from segunc.core.errors import InputError
from segunc.evaluation.evaluator import NO_INTERVALS
from segunc.evaluation.maps import evaluate_verdicts
from segunc.evaluation.report import format_metrics
from segunc.evaluation.resampling import Resampling
from segunc.maps.verdicts import JudgedRegion, Verdict

FRAMES = [f"f{index:02}" for index in range(40)]
KINDS = (
    ["true-alarm"] * 6 + ["false-alarm"] * 2 + ["missed"] * 3 + ["nothing-wrong"] * 8 + ["unsure"]
)
FLAGGED = {
    "box": (0, 0, 2, 2),
    "area": 4,
    "size": (4, 4),
    "mask": (0, 2, 4, 2),
    "score": "entropy",
    "threshold": 0.5,
}
ANNA = [Verdict(frame, kind, reviewer="anna") for frame, kind in zip(FRAMES, KINDS, strict=False)]


def region(frame: str, verdict: str, drawn: bool = False, left: int = 0) -> Verdict:
    values = (
        FLAGGED | {"box": (left, 0, 2, 2)} | ({"score": None, "threshold": None} if drawn else {})
    )
    return Verdict(frame, verdict, reviewer="anna", region=JudgedRegion(**values))


def test_numbers_of_one_reviewer_are_those_counted_by_hand() -> None:
    regions = [
        *(
            region("f00", kind, left=place)
            for place, kind in enumerate(["true-alarm", "true-alarm", "false-alarm"])
        ),
        region("f08", "missed", drawn=True),
        region("f08", "missed"),
        region("f09", "unsure"),
    ]
    result, _ = evaluate_verdicts([*ANNA, *regions], FRAMES, Resampling(400), str)
    anna = result["verdicts"]["reviewers"]["anna"]
    assert (anna["precision"], anna["recall"], anna["false_alarms"]) == (6 / 8, 6 / 9, 2 / 10)
    assert anna["share"] == {
        **{
            "nothing-wrong": 8 / 20,
            "true-alarm": 6 / 20,
            "false-alarm": 2 / 20,
            "missed": 3 / 20,
            "unsure": 1 / 20,
        }
    }
    assert anna["regions"] == {"precision": 2 / 3, "recall": 2 / 4, "missed_per_frame": 2 / 3}
    assert result["verdicts"]["together"] == {
        key: value for key, value in anna.items() if key != "regions"
    }
    assert result["counts"]["judged_frames"] == 20
    assert result["counts"]["verdicts"] == {"anna": {"frames": 20, "regions": 6}}
    low, high = result["intervals"]["verdicts.together.precision"]
    assert 0.2 < low < 0.75 < high <= 1
    # Three of twenty units know of regions.
    reasons = result["bootstrap"]["no_interval"]
    assert "resampled units say something" in reasons["verdicts.reviewers.anna.regions.recall"]
    text = format_metrics(result)
    assert "Verdicts on 20 frames of 40\n" in text
    assert "anna: regions, 6 in number" in text


def test_together_is_what_all_agree_on_and_notes_alone_are_no_verdicts() -> None:
    ben = [Verdict("f00", "false-alarm", reviewer="ben"), Verdict("f30", "missed", reviewer="ben")]
    result, _ = evaluate_verdicts([*ANNA, *ben], FRAMES, NO_INTERVALS, str)
    assert result["counts"]["disagreed_frames"] == 1
    assert result["counts"]["judged_frames"] == 21
    together = result["verdicts"]["together"]
    assert (together["precision"], together["recall"]) == (5 / 7, 5 / 9)
    assert result["verdicts"]["reviewers"]["ben"]["precision"] == 0
    assert "1 on which they disagree" in format_metrics(result)
    assert result["reasons"]["verdicts.reviewers.ben.regions.precision"] == "no frame has a verdict"
    with pytest.raises(InputError, match="no verdict"):
        evaluate_verdicts([Verdict("f00", "", "dark")], FRAMES, NO_INTERVALS, str)
