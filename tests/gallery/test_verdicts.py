"""Verdicts from files: whole, of this run, and refused with one line where they are not."""

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import segunc
from segunc.cli.main import main
from segunc.core.errors import InputError
from segunc.evaluation.resampling import load_results
from segunc.gallery.review_page import run_id
from segunc.maps.labelled import open_maps
from segunc.maps.verdicts import (
    JudgedRegion,
    Verdict,
    agreement_table,
    dispute_list,
    merge_verdicts,
    note_on_changes,
    note_on_dates,
    note_on_thresholds,
    read_verdicts,
    summary_table,
)
from tests.support.scenes import NAMES, Scene

RUN = "0123456789abcdef"
FRAMES = ("a", "b,c", "d")
REGION = {
    "box": [1, 0, 2, 2],
    "area": 4,
    "size": [3, 4],
    "mask": [1, 2, 5, 2],
}
REGION |= {"score": "entropy", "threshold": 0.5, "value": 0.7}
ENTRY = {
    "frame": "a",
    "verdict": "missed",
    "note": "",
    "time": "2026-01-01T00:00:00.000Z",
}


def as_bytes(**changes: Any) -> bytes:
    content = {
        "format": "segunc-verdicts",
        "version": 2,
        "run": RUN,
        "verdicts": [ENTRY],
    } | changes
    return json.dumps(content).encode()


def write(folder: Path, **changes: Any) -> Path:
    path = folder / "verdicts.json"
    path.write_bytes(as_bytes(**changes))
    return path


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "other"}, "format"),
        ({"version": 3}, "version"),
        ({"verdicts": [ENTRY | {"region": {"box": [0, 0, 2, 2]}}]}, "verdicts, 0, region"),
        ({"verdicts": [ENTRY | {"region": REGION | {"mask": [1.5, 2]}}]}, "verdicts, 0, region"),
        ({"verdicts": [ENTRY | {"region": REGION | {"area": -1}}]}, "verdicts, 0, region"),
        (
            {"verdicts": [ENTRY | {"region": REGION, "verdict": "nothing-wrong"}]},
            "'nothing-wrong' is none of",
        ),
        ({"verdicts": [ENTRY | {"region": REGION}] * 2}, "two verdicts on a region of frame 'a'"),
        ({"run": "fedc"}, "verdicts on the run fedc"),
        ({"verdicts": [ENTRY | {"note": None}]}, "verdicts, 0, note"),
        ({"verdicts": [ENTRY | {"frame": "z"}]}, "frame 'z', which the maps do not hold"),
        ({"verdicts": [ENTRY, ENTRY]}, "two verdicts on frame 'a'"),
        ({"verdicts": [ENTRY | {"verdict": "fine"}]}, "'fine' is none of"),
        (b"run,frame", "Invalid JSON"),
        (
            as_bytes(verdicts=[ENTRY | {"region": REGION}]).replace(b'"area": 4', b'"area": 1e999'),
            "verdicts, 0, region",
        ),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, changes: Any, message: str) -> None:
    path = write(tmp_path, **(changes if isinstance(changes, dict) else {}))
    if isinstance(changes, bytes):
        path.write_bytes(changes)
    with pytest.raises(InputError, match=message):
        read_verdicts(path, RUN, FRAMES)


def test_a_file_gives_verdicts_on_frames_and_regions(tmp_path: Path) -> None:
    entry = ENTRY | {"reviewer": "Ana", "region": REGION}
    region = JudgedRegion((1, 0, 2, 2), 4, (3, 4), (1, 2, 5, 2), "entropy", 0.5, 0.7)
    assert read_verdicts(write(tmp_path, verdicts=[ENTRY, entry]), RUN, FRAMES) == [
        Verdict("a", "missed", "", ENTRY["time"]),
        Verdict("a", "missed", "", ENTRY["time"], "Ana", region),
    ]


def test_files_are_merged_and_two_reviewers_compared() -> None:
    def given(reviewer: str, time: str = "1", **verdicts: str) -> list[Verdict]:
        return [
            Verdict(frame, verdict, time=time, reviewer=reviewer)
            for frame, verdict in verdicts.items()
        ]

    ana = given("Ana", a="missed", b="missed", c="true-alarm", d="nothing-wrong")
    later = given("Ana", "2", d="true-alarm")
    part = Verdict(
        "d", "false-alarm", reviewer="Ben", region=JudgedRegion((0, 0, 1, 1), 1, (3, 4), (0, 1))
    )
    ben = [*given("Ben", a="missed", b="true-alarm", c="true-alarm", e="missed"), part]
    merged = merge_verdicts([ana, ben, later])
    assert len(merged) == 4 + 5
    assert Verdict("d", "true-alarm", time="2", reviewer="Ana") in merged
    # Four frames of both; two agree. By chance: Ana 2 missed, 2 true; Ben 1 missed, 2 true, 1
    # false: (2*1 + 2*2) / 16.
    text = agreement_table(merged)
    kappa = (0.5 - 6 / 16) / (1 - 6 / 16)
    assert text == f"Ana and Ben, 4 frames judged by both: 50.0% agree, Cohen's kappa {kappa:.2f}"
    assert agreement_table(ana) == ""


def on_region(frame: str, verdict: str, reviewer: str, left: int) -> Verdict:
    region = JudgedRegion((left, 2, 4, 4), 16, (30, 40), (0, 1), "entropy", 0.5, 0.7)
    return Verdict(frame, verdict, reviewer=reviewer, region=region)


def test_disputed_regions_are_named() -> None:
    verdicts = [
        on_region("a", "false-alarm", "Ana", 1),
        on_region("a", "true-alarm", "Ana", 20),
        on_region("b", "unsure", "Ana", 1),
        on_region("a", "true-alarm", "Ben", 2),  # 3 of 5 columns are common
        on_region("a", "true-alarm", "Ben", 20),
        on_region("b", "false-alarm", "Ben", 10),
        on_region("a", "unsure", "", 1),
    ]
    assert dispute_list(verdicts).splitlines() == [
        "Reviewers disagree on 1 region:",
        "",
        "- frame a, region at 1, 2 (4 x 4): Ana: false alarm, Ben: true alarm, no name: unsure",
    ]
    assert dispute_list(verdicts[:3]) == ""


def test_at_most_ten_disputed_regions_are_named() -> None:
    verdicts = []
    for place in range(12):
        verdicts.append(on_region(f"{place:02}", "false-alarm", "Ana", 1))
        verdicts.append(on_region(f"{place:02}", "true-alarm", "Ben", 1))
    lines = dispute_list(verdicts).splitlines()
    assert lines[0] == "Reviewers disagree on 12 regions:"
    assert "frame 09" in lines[-2]
    assert lines[-1] == "- and 2 more"


NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)


def dated(time: str, verdict: str = "missed", reviewer: str = "Ana") -> Verdict:
    return Verdict("a", verdict, time=time, reviewer=reviewer)


@pytest.mark.parametrize(
    ("wrong", "correction"),
    [
        ("2099-01-01T00:00:00.000Z", "2026-04-30T08:00:00.000Z"),
        ("tomorrow", "2026-04-30T08:00:00.000Z"),
        ("2026-05-01T01:00:00+02:00", "2026-04-30T23:30:00.000Z"),
    ],
    ids=["a wrong clock", "no date", "another zone"],
)
def test_the_later_verdict_counts_whatever_the_earlier_says_of_its_date(
    wrong: str, correction: str
) -> None:
    first, second = dated(wrong), dated(correction, "true-alarm")
    for files in ([first], [second]), ([second], [first]):
        assert merge_verdicts(files, NOW) == [second]


def test_of_two_verdicts_dated_in_the_future_the_later_counts() -> None:
    earlier, later = dated("2099-01-01T00:00:00Z"), dated("2099-01-02T00:00:00Z", "true-alarm")
    assert merge_verdicts([[later], [earlier]], NOW) == [later]


def test_dates_in_the_future_are_said_and_a_day_is_a_time_zone() -> None:
    soon, late = dated("2026-05-02T11:00:00Z"), dated("2026-05-02T13:00:00Z", reviewer="Ben")
    assert note_on_dates([soon], NOW) == ""
    note = note_on_dates([soon, late], NOW)
    assert note.startswith("1 verdict is dated after now, first 2026-05-02T13:00:00Z on frame a")


def test_summary_counts_every_frame_once() -> None:
    verdicts = [
        Verdict("a", "missed", "x"),
        Verdict("b", "missed"),
        Verdict("c", "", "y"),
        Verdict("d", "unsure"),
    ]
    lines = summary_table(verdicts, 10).splitlines()
    counts = {row.split("|")[1].strip(): row.split("|")[2:5] for row in lines[2:]}
    assert [cell.strip() for cell in counts["missed"]] == ["2", "20.0%", "0"]
    assert [cell.strip() for cell in counts["no verdict"]] == ["7", "70.0%", "0"]
    assert sum(int(row[0]) for row in counts.values()) == 10


@pytest.fixture
def judged(scene: Scene, tmp_path: Path) -> Path:
    """Verdicts on three frames, of which one alarm is true."""
    kinds = ("true-alarm", "false-alarm", "false-alarm")
    rows = [
        ENTRY | {"frame": frame, "verdict": kind} for frame, kind in zip(NAMES, kinds, strict=False)
    ]
    return write(tmp_path, run=run_id(open_maps(scene.maps)), verdicts=rows)


def test_the_verb_evaluates_verdicts_on_maps(
    scene: Scene, judged: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "judged.json"
    words = ["evaluate", "--maps", str(scene.maps), "--verdicts", str(judged), "--out", str(out)]
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert f"3 of {len(NAMES)} frames were judged" in printed
    assert re.search(r"alarms that are true +\| +\.333", printed)
    assert "too few resampled units: 3" in printed
    (result,) = load_results([out])
    assert result.numbers["verdicts", "together", "precision"] == 1 / 3
    # What a comparison says of the result.
    assert result.content["run"]["maps_in"] == Path(scene.maps).name
    assert {"frame_names", "images"} <= result.content["counts"].keys()


def test_verdicts_on_some_frames_are_counted_alone(scene: Scene, judged: Path) -> None:
    result = segunc.evaluate(maps=scene.maps, verdicts=[judged], frames=NAMES[0])
    assert result.numbers["counts"]["judged_frames"] == 1


@pytest.mark.parametrize(
    "other",
    [
        ["--plots", "x"],
        ["--groups", "^f"],
        ["--smallest-object", "5"],
    ],
)
def test_what_needs_labels_is_refused_with_verdicts(
    scene: Scene, judged: Path, capsys: pytest.CaptureFixture[str], other: list[str]
) -> None:
    words = ["evaluate", "--maps", str(scene.maps), "--verdicts", str(judged)]
    assert main([*words, *other]) == 2
    assert f"--verdicts and {other[0]}" in capsys.readouterr().err


def test_verdicts_need_their_maps(judged: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="`verdicts` needs the maps"):
        segunc.evaluate(verdicts=[judged], out=tmp_path / "judged.json")


def of_reviewer(name: str, frame: str, verdict: str, time: str = "") -> Verdict:
    return Verdict(frame, verdict, time=time, reviewer=name)


def test_verdicts_that_replaced_earlier_ones_are_counted() -> None:
    first = [of_reviewer("Ana", "a", "missed", "1"), of_reviewer("Ana", "d", "unsure")]
    again = [of_reviewer("Ana", "a", "unsure", "2"), of_reviewer("Ana", "d", "unsure")]
    other = [of_reviewer("Ben", "a", "true-alarm", "1")]
    assert note_on_changes([*first, *other]) == ""
    note = note_on_changes([*first, *again, *other])
    assert note.startswith("1 verdict has replaced an earlier one of the same reviewer")


def test_a_margin_makes_another_threshold_of_verdicts() -> None:
    plain = Verdict("a", "missed", score="energy", threshold=0.5, preparation="")
    earlier = Verdict("b", "missed", score="energy", threshold=0.5)
    widened = Verdict("c", "missed", score="energy", threshold=0.5, preparation="--margin 16")
    assert note_on_thresholds([plain, earlier]) == ""
    assert note_on_thresholds([plain, earlier, widened]).startswith(
        "verdicts were given at 2 thresholds (2 at energy >= 0.5, 1 at energy >= 0.5 after "
        "--margin 16)"
    )


@pytest.mark.parametrize("words", ["evaluate --verdicts", "review --import"])
def test_numbers_of_verdicts_at_several_thresholds_say_so(
    words: str, scene: Scene, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        ENTRY | {"frame": frame, "score": "entropy", "threshold": threshold}
        for frame, threshold in zip(NAMES, (0.5, 0.7, 0.7), strict=False)
    ]
    judged = write(tmp_path, run=run_id(open_maps(scene.maps)), verdicts=rows)
    assert main([*words.split(), str(judged), "--maps", str(scene.maps)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert (
        "verdicts were given at 2 thresholds (2 at entropy >= 0.7, 1 at entropy >= 0.5), and the "
        "numbers count all of them"
    ) in printed


def test_of_many_thresholds_of_verdicts_three_are_named() -> None:
    verdicts = [Verdict("a", "missed")]  # which does not say at which
    assert note_on_thresholds(verdicts) == ""
    for number in range(5):
        verdicts.append(Verdict(f"{number}", "missed", score="energy", threshold=float(number)))
        if not number:
            assert note_on_thresholds(verdicts) == ""
    assert "2, others at 2 more)" in note_on_thresholds(verdicts).replace("energy >= ", "")
