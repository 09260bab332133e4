"""The monitor: its level and its delay by simulation, its martingale beside MAPIE's, bounds of a
risk, and the verb over maps on disk.

``python -m tests.decisions.test_monitor`` prints the table of delays of the guide.
"""

from __future__ import annotations

import json
import re
import shutil
import warnings
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from segunc import monitor, summary
from segunc.core.errors import InputError, NoteWarning
from segunc.core.files import write_json
from segunc.decisions.guarantee import (
    GuaranteedThreshold,
    calibration_frames,
    model_of,
    read_threshold,
    settings_of,
    source_of,
)
from segunc.decisions.sequential import (
    detectable_shift,
    largest_log_martingale,
    log_martingale,
    losses_of_verdicts,
    risk_bounds,
)
from segunc.gallery.review_page import run_id
from segunc.maps.manifest import build_manifest
from segunc.maps.reader import MapsReader
from segunc.maps.store import MapsWriter
from segunc.maps.verdicts import JudgedRegion, Verdict, verdicts_at
from segunc.verbs.monitor import _power
from tests.maps.foreign import write_map
from tests.verbs.processes import segunc

REGION = JudgedRegion((0, 0, 1, 1), 1, (8, 8), (0, 1), "entropy", 0.5)
BEFORE, AFTER, LEVEL = 100, 400, 0.01
ALONE: dict[str, Any] = {"reference": None}
Calibrated = Callable[..., dict[str, Any]]
RUN = {
    "base_sha256": "b" * 64,
    "posterior_sha256": "p" * 64,
    "draws": 4,
    "seed": 0,
    "size": None,
}


def delays(
    shift: float, runs: int, *, ties: bool = False, reference: int = 200, seed: int = 0
) -> Any:
    """Return how many frames after a shift of normal statistics (in standard deviations) each run
    fires, ``[runs]``: negative before it, infinite never. With ``ties`` statistics are rounded to
    whole numbers.
    """
    generator = np.random.default_rng(seed)
    values = generator.standard_normal((runs, reference + BEFORE + AFTER))
    values[:, reference + BEFORE :] += shift
    values = np.rint(values) if ties else values
    path = log_martingale(
        values[:, reference:], values[:, :reference], generator.random((runs, BEFORE + AFTER))
    )
    fired = path >= -np.log10(LEVEL)
    return np.where(fired.any(1), fired.argmax(1) + 1.0 - BEFORE, np.inf)


@pytest.mark.parametrize(
    "settings", [{}, {"ties": True}, {"reference": 0}], ids=["plain", "ties", "no reference"]
)
def test_it_fires_at_most_at_its_level_where_nothing_changes(settings: dict[str, Any]) -> None:
    assert np.isfinite(delays(0.0, 1000, seed=1, **settings)).mean() <= LEVEL


def test_it_fires_the_sooner_the_larger_the_shift_is_also_downwards() -> None:
    half, one, two, down = (np.median(delays(shift, 200)) for shift in (0.5, 1.0, 2.0, -1.0))
    assert two < one < half
    assert max(2 * two, one, down) < 40


def test_p_values_are_ranks_among_all_that_came_before_and_do_not_change_when_frames_come() -> None:
    values, reference, uniforms = (
        np.array([3.0, 1.0, 3.0]),
        np.array([1.0, 2.0]),
        np.array([0.5, 0.25, 0.5]),
    )
    path = log_martingale(values, reference, uniforms, bets=(1.0,))  # whose gains are 1/2 + p
    np.testing.assert_allclose(
        10 ** np.diff(path, prepend=0) - 0.5, [0.5 / 3, (2 + 0.25 * 2) / 4, 0.5 * 2 / 5]
    )
    np.testing.assert_array_equal(
        path[:2], log_martingale(values[:2], reference, uniforms[:2], bets=(1.0,))
    )


def test_the_martingale_is_that_of_mapie() -> None:
    """MAPIE's test takes features and labels, but its p-value and its jumper take numbers."""
    online = pytest.importorskip(
        "mapie.exchangeability_testing", reason="MAPIE is not installed"
    ).OnlineMartingaleTest
    values = np.random.default_rng(3).standard_normal(300).round(1)
    values[150:] += 1
    theirs = online(test_method="jumper_martingale", jump_size=0.01, random_state=5)
    p_values = [
        theirs.compute_p_value(value, values[: 40 + t]) for t, value in enumerate(values[40:])
    ]
    path = [theirs.update_simple_jumper_martingale(p) for p in p_values]
    ours = log_martingale(
        values[40:], values[:40], np.random.default_rng(5).random(260), (-1.0, 0.0, 1.0)
    )
    np.testing.assert_allclose(ours, np.log10(path), atol=1e-9)


@pytest.mark.parametrize("risk", [0.02, 0.2])
def test_bounds_of_a_risk_hold_at_all_times_and_close_in(risk: float) -> None:
    generator, missed = np.random.default_rng(2), np.zeros(2)
    for _ in range(200):
        losses = (generator.random(150) < risk).astype(float)
        lower, upper = risk_bounds(losses, 0.1)
        missed += lower.max() > risk, upper.min() < risk
    assert (missed <= 0.1 * 200).all()
    assert min(np.diff(lower).min(), -np.diff(upper).max()) >= 0
    lower, upper = risk_bounds((generator.random(3000) < risk).astype(float), 0.1)
    assert upper[-1] - lower[-1] < 0.06


def test_a_risk_is_rejected_where_the_capital_of_a_bet_against_it_is_large() -> None:
    """The bound of a few losses, by the product of the paper alone."""
    losses, level = np.array([1.0, 1.0, 0.0, 1.0, 1.0, 1.0]), 0.3

    def capital(risk: float) -> float:
        value, largest = 1.0, 1.0
        for t, loss in enumerate(losses, start=1):
            means = [(0.5 + losses[: i + 1].sum()) / (i + 2) for i in range(t - 1)]
            variance = (0.25 + sum((losses[i] - mean) ** 2 for i, mean in enumerate(means))) / t
            bet = min(np.sqrt(2 * np.log(1 / level) / (variance * t * np.log(1 + t))), 0.5 / risk)
            value *= 1 + bet * (loss - risk)
            largest = max(largest, value)
        return largest

    bound = risk_bounds(losses, level)[0][-1]
    assert capital(bound) >= 1 / level > capital(bound + 0.001)


def test_losses_are_those_of_what_reviewers_said() -> None:
    said = [
        Verdict("b", "true-alarm", time="3", reviewer="x", region=REGION),
        Verdict("b", "missed", time="3", reviewer="x", region=replace(REGION, score=None)),
        Verdict("b", "nothing-wrong", time="2", reviewer="y"),
        Verdict("a", "false-alarm", time="4"),
        Verdict("c", "unsure", time="1"),
        Verdict("d", "true-alarm", time="5", region=REGION),
        Verdict("d", "missed", time="5"),  # beside the object that was flagged
    ]
    assert losses_of_verdicts(said, "missed-objects") == {"b": 0.5, "d": 0.5}
    assert list(losses_of_verdicts(said, "false-alarms").items()) == [
        ("b", 0.0),
        ("a", 1.0),
        ("d", 0.0),
    ]
    assert losses_of_verdicts(said, "missed-pixels") == {}


def write_maps(
    folder: Path,
    means: npt.NDArray[np.float64],
    apart: float | None,
    draws: int = 4,
    black: Collection[int] = (),
    **run: Any,
) -> MapsReader:
    """Maps of a video whose frames, so many seconds apart, have these mean entropies; those of a
    black frame are all the same."""
    run, scores = RUN | {"draws": draws} | run, ["entropy", "deterministic-energy"]
    manifest = build_manifest(run, scores, device="cpu", classes=["road"], palette=[(0, 0, 0)])
    shutil.rmtree(folder, ignore_errors=True)  # of other frames under the same names
    with MapsWriter(folder, manifest) as writer:
        for place, mean in enumerate(means.tolist()):
            values = np.full((8, 8), mean, np.float32)
            values[0] += place * 1e-4  # no two frames are the same
            if place in black:
                values[:] = 0.01
            maps = {
                "prediction": np.zeros((8, 8), np.uint8),
                "entropy": values,
                "deterministic-energy": -values,
            }
            time = {} if apart is None else {"time": place * apart}
            writer.commit(writer.store(f"{folder.name}_{place:04d}", maps) | time)
    return MapsReader(folder)


@pytest.fixture
def calibrated(tmp_path: Path) -> Calibrated:
    """Maps of the calibration and their threshold, and maps to watch, as options of the verb."""

    def make(
        shift: float,
        *,
        apart: float = 10.0,
        draws: int = 4,
        black: tuple[Collection[int], Collection[int]] = ((), ()),
        **changes: Any,
    ) -> dict[str, Any]:
        generator = np.random.default_rng(4)
        before, now = (generator.uniform(0.1, 0.4, size) for size in (60, 80))
        now[40:] += shift
        reader = write_maps(tmp_path / "before", before, 10.0, black=black[0])
        write_maps(tmp_path / "now", now, apart, draws, black=black[1])
        frames = {name: reader.identity(name, "entropy") for name in reader.frames}
        fields: dict[str, Any] = {
            "score": "entropy",
            "value": 0.5,
            "form": "unit-code",
            "control": "missed-objects",
            "method": "conformal",
            "level": 0.1,
            "confidence": None,
            "unit": "frame",
            "units": 60,
            "minimum_units": 9,
            "risk": 0.05,
            "bound": None,
            "promise": "p",
            "condition": "c",
            "model": model_of(RUN),
            "settings": settings_of(RUN, "entropy"),
            "frames": frames,
            "command": "?",
            "date": "?",
            "segunc": "0",
        }
        fields |= changes
        write_json(tmp_path / "threshold.json", asdict(GuaranteedThreshold(**fields)))
        places = {
            "threshold": tmp_path / "threshold.json",
            "maps": tmp_path / "now",
            "reference": tmp_path / "before",
        }
        return places | {
            "out": tmp_path / "state" / "monitor.json",
            "plot": tmp_path / "plots" / "monitor",
        }

    return make


def test_the_verb_says_what_changed_by_state_figure_and_exit_code(calibrated: Calibrated) -> None:
    options = calibrated(0.3)
    done = segunc(
        "monitor", *(word for name, value in options.items() for word in (f"--{name}", value))
    )
    state = json.loads(options["out"].read_text())
    assert done.code == 1
    assert 40 < int(state["fired"][-4:]) < 60
    assert f"no longer like those of the calibration: alarm at {state['fired']}" in done.stderr
    assert re.search("ALARM: martingale .* against 60 calibration frames", done.stdout)
    assert state["summary"].startswith("ALARM: the frames are no longer like those")
    assert (state["frames"], state["reference"]["frames"], state["risk"]) == (80, 60, None)
    assert state["model"] == json.loads(Path(options["threshold"]).read_text())["model"]
    assert state["martingale"] > 2
    assert all(
        options["plot"].with_suffix(suffix).stat().st_size > 1000
        for suffix in (".pdf", ".svg", ".png")
    )
    assert (
        segunc("monitor", *(w for n, v in calibrated(0.0).items() for w in (f"--{n}", v))).code == 0
    )


def test_neighbours_of_a_video_are_thinned(calibrated: Calibrated) -> None:
    options = calibrated(0.0, apart=0.5)
    assert [monitor(**options, apart=apart).state["frames"] for apart in (0, 4)] == [80, 10]
    blocks = monitor(**calibrated(0.0, apart=2.5, unit="10s"))
    assert (blocks.state["frames"], blocks.state["reference"]["frames"]) == (20, 60)
    assert "20 of 80 frames" in blocks.line


def test_a_summary_says_that_frames_come_more_densely_than_those_of_a_promise(
    calibrated: Calibrated,
) -> None:
    """The calibration has a frame in each block, and the maps have one or ten."""
    changes = {"control": "false-alarms", "unit": "10s"}
    for apart, words in ((10.0, ""), (1.0, "here 10 and more come: more frames have more false")):
        options = calibrated(0.0, apart=apart, **changes)
        notes = summary(maps=options["maps"], flag=[str(options["threshold"])]).notes
        told = [note for note in notes if "was calibrated on about 1 frame in 10s" in note]
        assert [words in note for note in told] == ([True] if words else [])


def test_frames_that_lie_just_as_far_apart_as_asked_are_kept(calibrated: Calibrated) -> None:
    found = monitor(**calibrated(0.0, apart=0.8), apart=0.8)
    assert found.state["frames"] == 80


def test_the_condition_of_the_level_names_which_frames_are_compared(
    calibrated: Calibrated, tmp_path: Path
) -> None:
    timed = calibrated(0.0, apart=0.5)
    thinned = monitor(**timed, apart=4)
    assert thinned.notes == ()
    assert thinned.state["condition"] == (
        "The level of false alarms holds where frames of which one is compared every 4 s are "
        "exchangeable."
    )
    of_each = "those that follow one another on a drive are not"
    each = monitor(**timed, apart=0)
    (note,) = each.notes
    assert note.startswith("--apart 0 compares each frame; ")
    assert of_each in each.state["condition"]
    write_maps(tmp_path / "images", np.linspace(0.1, 0.4, 80), None)
    untimed = monitor(threshold=timed["threshold"], maps=tmp_path / "images")
    (note,) = untimed.notes
    assert note.startswith("these frames have no times, so each one is compared; ")
    assert of_each in untimed.state["condition"]
    blocks = monitor(**calibrated(0.0, apart=2.5, unit="10s"), apart=0)
    assert blocks.notes == ()
    assert "one of each unit of the threshold" in blocks.state["condition"]


def test_a_reference_with_times_beside_frames_without_is_told(
    calibrated: Calibrated, tmp_path: Path
) -> None:
    options = calibrated(0.0)
    write_maps(tmp_path / "images", np.linspace(0.1, 0.4, 80), None)
    options["maps"] = tmp_path / "images"
    note = "the reference has times, these frames have none: 6 of 60 reference frames are left"
    with pytest.warns(NoteWarning, match=f"{note} at --apart 100; give --fps, or a smaller"):
        monitor(**options, apart=100)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        monitor(**options, apart=10)  # which thins nothing
    assert not [warning for warning in caught if "the reference has times" in str(warning.message)]


def test_nothing_is_measured_against_one_calibration_frame(calibrated: Calibrated) -> None:
    options = calibrated(0.0)
    write_maps(options["maps"], np.random.default_rng(5).uniform(0.1, 0.4, 80), None)
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    refused = segunc("monitor", *words, "--apart", 1000)
    state = json.loads(options["out"].read_text())
    assert refused.code == 2
    assert "1 of 60 reference frames is left at --apart 1000" in refused.stdout
    reason = "1 of 60 calibration frames is left, which is too few to compare with, and at least 2"
    assert reason in refused.stderr
    assert "against 1 calibration frame;" in refused.stderr
    assert "or a smaller --apart" in refused.stderr
    assert "standard deviations" not in refused.stdout + refused.stderr
    assert state["measured"] is False
    assert state["summary"].startswith(f"nothing was measured: {reason}")


def test_frames_of_one_value_have_no_shift_in_units_of_the_score() -> None:
    past = {str(number): 0.25 for number in range(20)}
    for alarm in (2.0, 90.0):
        line = _power(past, past, alarm)["line"]
        assert re.search("standard deviations? since the first frame", line)


def test_images_get_their_times_by_a_rate(calibrated: Calibrated, tmp_path: Path) -> None:
    """Eighty images, two a second, are forty seconds."""
    options = calibrated(0.0, unit="2s")
    write_maps(tmp_path / "images", np.linspace(0.1, 0.4, 80), None)
    asked: dict[str, Any] = ALONE | {"maps": tmp_path / "images"}
    with pytest.raises(InputError, match="no time of the frame"):
        monitor(**options | asked)
    assert monitor(**options | asked, fps=2).state["frames"] == 20


def test_frames_of_the_calibration_are_not_watched(calibrated: Calibrated) -> None:
    options = calibrated(0.0)
    with pytest.raises(InputError, match="holds 0 units beside those of the calib") as refusal:
        monitor(**options | {"maps": options["reference"]})
    place = options["reference"]
    assert refusal.value.message.endswith(f"--reference {place} holds the same frames")
    assert refusal.value.hint == "predict other frames, and give their maps as --maps"


def test_a_watch_of_the_calibration_alone_is_told_to_be_the_reference(
    calibrated: Calibrated,
) -> None:
    options = calibrated(0.0)
    with pytest.raises(InputError, match="holds 0 units beside those of the calib") as refusal:
        monitor(**options | ALONE | {"maps": options["reference"]})
    assert "holds the same frames" not in refusal.value.message
    assert refusal.value.hint.endswith("give their maps as --maps, and these as --reference")


def test_frames_of_a_dark_camera_are_watched_though_one_was_calibrated_on(
    calibrated: Calibrated,
) -> None:
    found = monitor(**calibrated(0.0, black=([0], range(40, 80))))
    state = found.state
    assert (state["frames"], state["passed_over"], state["same_bytes"]) == (80, 0, 40)
    assert state["fired"] is not None
    assert any("40 frames have the bytes of a frame of the calib" in note for note in found.notes)


@pytest.mark.parametrize(
    ("source", "recorded", "passed_over"),
    [
        ("/drive", "/drive", 60),
        ("/drive", "/other", 0),
        ("", "/drive", 60),
        ("/drive", "", 60),
    ],
    ids=["same", "another", "not in the threshold", "not in the maps"],
)
def test_a_frame_of_the_calibration_has_its_source_name_and_bytes(
    source: str, recorded: str, passed_over: int, calibrated: Calibrated, tmp_path: Path
) -> None:
    """The calibration was the first sixty frames of a drive that goes on."""
    means = np.random.default_rng(4).uniform(0.1, 0.4, 100)
    reader = write_maps(tmp_path / "drive", means, 10.0, input=recorded)
    frames = {name: reader.identity(name, "entropy") for name in reader.frames[:60]}
    options = calibrated(0.0, frames=frames, source=source_of({"input": source}))
    found = monitor(**options | ALONE | {"maps": tmp_path / "drive"})
    assert (found.state["frames"], found.state["passed_over"]) == (100 - passed_over, passed_over)
    unknown = [note for note in found.notes if "by name and bytes, because a source" in note]
    assert len(unknown) == (not (source and recorded))


def test_a_threshold_of_an_earlier_version_has_no_source(calibrated: Calibrated) -> None:
    path = calibrated(0.0)["threshold"]
    content = json.loads(path.read_text())
    del content["source"]
    content.pop("record_sha256", None)
    path.write_text(json.dumps(content))
    assert read_threshold(path).source == ""


def test_a_frame_of_the_calibration_stands_for_one_frame_at_most() -> None:
    calibrated = {"a": "black", "b": "white", "c": "road"}
    dark = [(f"n{place}", "black") for place in range(300)]
    assert calibration_frames(calibrated, dark) == {"n0": False}
    assert calibration_frames(calibrated, [*dark, ("a", "black")]) == {"a": True}
    renamed = [(f"copy/{name}", identity) for name, identity in calibrated.items()]
    assert calibration_frames(calibrated, renamed) == dict.fromkeys(dict(renamed), False)
    assert calibration_frames(calibrated, [("a", "another image")]) == {}


def jumper(p_values: Sequence[float]) -> float:
    """The simple jumper of the paper on p-values, one bet after the other; returns its
    logarithm."""
    capital = dict.fromkeys((-2.0, -1.0, 0.0, 1.0, 2.0), 0.2)
    for p in p_values:
        total = sum(capital.values())
        for slope in capital:
            moved = 0.99 * capital[slope] + 0.01 * total / 5
            capital[slope] = moved * (1 + slope * (p - 0.5))
    return float(np.log10(sum(capital.values())))


def test_no_frames_reach_more_than_the_most_extreme_ones() -> None:
    """Gains are linear in each p-value, so the largest martingale is at a corner of all
    p-values."""
    largest = largest_log_martingale()
    for frames in range(1, 9):
        reached = max(jumper(corner) for corner in product((0.0, 1.0), repeat=frames))
        assert largest[frames - 1] == pytest.approx(reached)
    assert largest[7] < 2 < largest[8], "fewer than nine frames never reach an alarm of 0.01"


@pytest.mark.parametrize("shift", [0.0, 0.3])
def test_too_few_frames_are_no_evidence_that_nothing_changed(
    shift: float, calibrated: Calibrated
) -> None:
    options = calibrated(shift, apart=1.25)  # 100 seconds are eight blocks
    refused = segunc(
        "monitor",
        *(word for name, value in options.items() for word in (f"--{name}", value)),
        *("--apart", 12.5),
    )
    state = json.loads(options["out"].read_text())
    assert refused.code == 2
    assert "8 frames are too few to raise an alarm, and at least 9 are needed" in refused.stderr
    assert "no change found" not in refused.stdout
    assert (state["measured"], state["frames"], state["fired"]) == (False, 8, None)
    assert state["summary"].startswith("nothing was measured: 8 frames are too few")
    assert state["reachable"] < 2


def test_silence_says_which_change_it_would_have_found(calibrated: Calibrated) -> None:
    options = calibrated(0.0)
    found = monitor(**options)
    power = found.state["power"]
    records = MapsReader(options["reference"]).records
    spread = np.std([record["mean"]["entropy"] for record in records.values()])
    assert power["shift"] == 1.0
    size = f"at least 1 standard deviation ({power['spread']:.3g}) since the first frame"
    verdict = f"no change found in 80 frames; they show only shifts of {size}, with a probability"
    assert found.line.startswith(verdict)
    assert found.state["summary"].startswith(verdict)
    assert power["spread"] == pytest.approx(spread, rel=1e-6)
    assert found.state["measured"] is True


def test_silence_of_few_frames_says_that_they_show_nothing(calibrated: Calibrated) -> None:
    options = calibrated(0.0, apart=1.25)
    found = monitor(**options | {"apart": 12.0})
    assert found.state["power"]["shift"] is None
    assert found.state["summary"].startswith(
        "no change found in 9 of 80 frames; they are too few to show even a shift of 4 standard "
        "deviations ("
    )
    assert found.line.startswith(found.state["summary"])


def test_the_shift_that_is_said_to_be_found_is_found_and_the_next_smaller_is_not() -> None:
    """Other series than those of the simulation, watched as long and against as large a
    reference."""
    shift = detectable_shift(80, 60, 2.0)
    assert shift == 1.0
    rates = []
    for size in (0.75, 1.0):
        generator = np.random.default_rng(11)
        values = generator.standard_normal((400, 140))
        values[:, 60:] += size
        path = log_martingale(values[:, 60:], values[:, :60], generator.random((400, 80)))
        rates.append((path >= 2.0).any(1).mean())
    assert rates[0] < 0.9 < rates[1] + 0.05
    assert detectable_shift(9, 60, 2.0) is None


def test_verdicts_give_bounds_of_the_risk(calibrated: Calibrated, tmp_path: Path) -> None:
    options = calibrated(0.0) | {"verdicts": [tmp_path / "verdicts.json"]}
    reader = MapsReader(options["maps"])
    verdicts = [
        {"frame": name, "verdict": "missed" if i % 2 else "true-alarm"}
        for i, name in enumerate(reader.frames)
    ]
    write_verdicts(options["verdicts"][0], reader, verdicts)
    risk = (found := monitor(**options)).state["risk"]
    assert 0.1 < risk["lower"] < risk["estimate"] == 0.5 < risk["bound"]
    assert (risk["verdicts"], risk["unstated"], found.state["fired"]) == (80, 80, None)
    assert "80 verdicts name no threshold; taken as given at entropy >= 0.5" in found.notes
    assert f"are at least {risk['lower']:.3g}" in found.failure
    with pytest.raises(
        InputError, match=r"no verdict in .* says anything of false alarms a minute"
    ):
        monitor(**options | calibrated(0.0, unit="10s", control="false-alarms"))


def judged(calibrated: Calibrated, tmp_path: Path, of_frame: list[str], **changes: Any) -> Any:
    """Return what the monitor says of a drive of which each frame has these verdicts on regions."""
    options = calibrated(0.0, **changes) | {"verdicts": [tmp_path / "verdicts.json"]}
    reader = MapsReader(options["maps"])
    verdicts: list[dict[str, Any]] = []
    for name in reader.frames:
        for place, verdict in enumerate(of_frame):
            box = [place % 8, place // 8, 1, 1]
            region = {"box": box, "area": 1, "size": [8, 8], "mask": [place, 1]}
            verdicts.append({"frame": name, "verdict": verdict, "region": region})
    write_verdicts(options["verdicts"][0], reader, verdicts)
    return monitor(**options)


def test_verdicts_test_the_share_of_frames_that_clopper_pearson_promises(
    calibrated: Calibrated, tmp_path: Path
) -> None:
    """Each frame has one missed object among twenty, so all frames have any."""
    of_frame = ["missed", *["true-alarm"] * 19]
    of_share = judged(calibrated, tmp_path, of_frame)
    assert of_share.state["risk"]["estimate"] == pytest.approx(0.05)
    assert of_share.failure == ""
    promised = {"method": "clopper-pearson", "confidence": 0.9}
    of_frames = judged(calibrated, tmp_path, of_frame, **promised)
    assert of_frames.state["risk"]["estimate"] == 1
    assert of_frames.failure.startswith("frames with missed objects are at least 0.")


@pytest.mark.parametrize(
    ("changes", "note"),
    [
        (
            {"also": {"false-alarms": {"level": 1.0, "risk": 0.5, "bound": 1.0}}},
            "the second promise, on false alarms, is not tested by verdicts",
        ),
        ({"unit": "10s"}, "verdicts count frames, and the promise is about the mean over 10s bl"),
        ({"control": "false-alarms", "level": 2.0}, "no bound shows that it is kept"),
    ],
)
def test_a_note_says_what_verdicts_do_not_show_of_a_promise(
    calibrated: Calibrated, tmp_path: Path, changes: dict[str, Any], note: str
) -> None:
    verdicts = ["true-alarm", "true-alarm"]
    assert not any(note in line for line in judged(calibrated, tmp_path, verdicts).notes)
    (told,) = [
        line for line in judged(calibrated, tmp_path, verdicts, **changes).notes if note in line
    ]
    assert told


def write_verdicts(path: Path, reader: MapsReader, verdicts: Sequence[dict[str, Any]]) -> Path:
    """Write verdicts on maps as the review page exports them."""
    content = {
        "format": "segunc-verdicts",
        "version": 2,
        "run": run_id(reader),
        "verdicts": list(verdicts),
    }
    path.write_text(json.dumps(content))
    return path


def half_calibrated(calibrated: Calibrated, tmp_path: Path) -> dict[str, Any]:
    """Options of a watch of a drive whose first sixty of 100 frames are the calibration."""
    means = np.random.default_rng(4).uniform(0.1, 0.4, 100)
    reader = write_maps(tmp_path / "drive", means, 10.0)
    frames = {name: reader.identity(name, "entropy") for name in reader.frames[:60]}
    options = calibrated(0.0, frames=frames) | ALONE | {"maps": tmp_path / "drive"}
    return options | {"verdicts": [tmp_path / "verdicts.json"]}


AT = {"score": "entropy", "threshold": 0.5}  # of the calibrated threshold
HIGHER = {"score": "entropy", "threshold": 0.7}


def test_verdicts_on_frames_of_the_calibration_are_left_out(
    calibrated: Calibrated, tmp_path: Path
) -> None:
    options = half_calibrated(calibrated, tmp_path)
    reader = MapsReader(options["maps"])
    on_calibration = [{"frame": name, "verdict": "missed"} | AT for name in reader.frames[:9]]
    others = [{"frame": name, "verdict": "true-alarm"} | AT for name in reader.frames[60:67]]
    note = {"frame": reader.frames[20], "verdict": "", "note": "dusk"}
    write_verdicts(options["verdicts"][0], reader, [*on_calibration, note, *others])
    found = monitor(**options)
    risk = found.state["risk"]
    assert (risk["verdicts"], risk["estimate"]) == (7, 0)
    assert risk["left_out"] == {"image": 0, "calibration": 9, "threshold": 0}
    assert "9 verdicts are left out, on 9 calibration frames" in found.notes
    write_verdicts(options["verdicts"][0], reader, on_calibration)
    with pytest.raises(InputError, match="missed objects: 9 verdicts are left out") as refusal:
        monitor(**options)
    assert "judge frames that the calibration does not hold" in refusal.value.hint


def test_verdicts_at_another_threshold_are_left_out(calibrated: Calibrated, tmp_path: Path) -> None:
    """A miss at a high threshold is none at a lower one."""
    options = calibrated(0.0) | {"verdicts": [tmp_path / "verdicts.json"]}
    reader = MapsReader(options["maps"])
    at_this = [{"frame": name, "verdict": "true-alarm"} | AT for name in reader.frames[:6]]
    higher = [{"frame": name, "verdict": "missed"} | HIGHER for name in reader.frames[6:10]]
    write_verdicts(options["verdicts"][0], reader, [*at_this, *higher])
    found = monitor(**options)
    risk = found.state["risk"]
    assert (risk["verdicts"], risk["estimate"]) == (6, 0)
    assert risk["left_out"] == {"image": 0, "calibration": 0, "threshold": 4}
    (note,) = [note for note in found.notes if "left out" in note]
    assert note.startswith(
        "4 verdicts are left out, on 4 frames judged at another threshold than entropy >= 0.5, "
        f"first at entropy >= 0.7 on frame {reader.frames[6]}"
    )
    assert not [note for note in found.notes if "no threshold" in note]


def test_verdicts_of_a_frame_count_if_all_are_of_the_threshold() -> None:
    drawn = replace(REGION, score=None, threshold=None)
    other = replace(REGION, threshold=0.7)
    at_this = [Verdict("a", "true-alarm", region=REGION), Verdict("a", "missed", region=drawn)]
    mixed = [Verdict("b", "true-alarm", region=other), Verdict("b", "missed", region=drawn)]
    by_another = [Verdict("b", "missed", reviewer="y", score="entropy", threshold=0.5)]
    of_another_score = [Verdict("c", "missed", score="energy", threshold=0.5)]
    unstated = [Verdict("d", "missed"), Verdict("d", "", note="dusk", **HIGHER)]
    every = [*at_this, *mixed, *by_another, *of_another_score, *unstated]
    found = verdicts_at(every, "entropy", 0.5)
    assert found.kept == [*at_this, *by_another, unstated[0]]
    assert found.left_out == [*mixed, *of_another_score]
    assert found.unstated == [unstated[0]]
    assert found.notes("entropy", 0.5)[1] == (
        "1 verdict names no threshold; taken as given at entropy >= 0.5"
    )


def test_verdicts_on_maps_of_another_preparation_are_of_another_threshold() -> None:
    """A margin flags more at the same value."""
    margin = "--margin 16"
    widened = [
        Verdict("a", "true-alarm", region=replace(REGION, preparation=margin)),
        Verdict("b", "missed", score="entropy", threshold=0.5, preparation=margin),
    ]
    as_it_is = [
        Verdict("c", "true-alarm", region=replace(REGION, preparation="")),
        Verdict("d", "missed", score="entropy", threshold=0.5, preparation=""),
    ]
    earlier = [Verdict("e", "true-alarm", region=REGION)]
    every = [*widened, *as_it_is, *earlier]
    found = verdicts_at(every, "entropy", 0.5, margin)
    assert found.kept == [*widened, *earlier]
    assert found.unprepared == earlier
    assert found.notes("entropy", 0.5, margin) == [
        "2 verdicts are left out, on 2 frames judged at another threshold than entropy >= 0.5 "
        "after --margin 16, first at entropy >= 0.5 on frame c: what one threshold misses, another "
        "may find",
        "1 verdict names no preparation of the map, as of an earlier version; taken as given at "
        "entropy >= 0.5 after --margin 16",
    ]
    plain = verdicts_at(every, "entropy", 0.5)
    assert plain.kept == [*as_it_is, *earlier]
    assert not plain.unprepared


def test_the_monitor_leaves_out_verdicts_on_other_images(
    calibrated: Calibrated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = calibrated(0.0) | {"verdicts": [tmp_path / "verdicts.json"]}
    reader = MapsReader(options["maps"])
    monkeypatch.setattr(MapsReader, "image_hash", lambda self, name: f"now {name}")
    on_these = []
    for name in reader.frames[:6]:
        judged_now = {"frame": name, "verdict": "true-alarm", "image_hash": f"now {name}"}
        on_these.append(judged_now | AT)
    on_others = []
    for name in reader.frames[6:10]:
        judged_before = {"frame": name, "verdict": "missed", "image_hash": f"before {name}"}
        on_others.append(judged_before | AT)
    write_verdicts(options["verdicts"][0], reader, [*on_these, *on_others])
    found = monitor(**options)
    risk = found.state["risk"]
    assert (risk["verdicts"], risk["estimate"]) == (6, 0)
    assert risk["left_out"] == {"image": 4, "calibration": 0, "threshold": 0}
    (note,) = [note for note in found.notes if "left out" in note]
    assert note.startswith("4 verdicts are left out, on 4 frames that had another image when")
    write_verdicts(options["verdicts"][0], reader, on_others)
    with pytest.raises(InputError, match="missed objects: 4 verdicts are left out"):
        monitor(**options)


def test_the_monitor_counts_verdicts_of_the_preparation_of_its_threshold(
    calibrated: Calibrated, tmp_path: Path
) -> None:
    options = calibrated(0.0) | {"verdicts": [tmp_path / "verdicts.json"]}
    reader = MapsReader(options["maps"])
    at_this = [
        {"frame": name, "verdict": "true-alarm", "preparation": ""} | AT
        for name in reader.frames[:6]
    ]
    widened = [
        {"frame": name, "verdict": "missed", "preparation": "--margin 16"} | AT
        for name in reader.frames[6:10]
    ]
    write_verdicts(options["verdicts"][0], reader, [*at_this, *widened])
    risk = monitor(**options).state["risk"]
    assert (risk["verdicts"], risk["estimate"]) == (6, 0)
    assert risk["left_out"] == {"image": 0, "calibration": 0, "threshold": 4}


def test_a_threshold_that_was_typed_is_the_calibrated_one() -> None:
    calibrated_value = float(np.float32(2.6))
    typed = Verdict("a", "missed", score="energy", threshold=2.6)
    assert verdicts_at([typed], "energy", calibrated_value).kept == [typed]


@pytest.mark.parametrize(
    ("message", "changes", "given"),
    [
        ("calibrated on maps of another model or tool", {"model": "other"}, {}),
        ("with draws 4, and these have 2", {"draws": 2}, {}),
        ("'anomaly' has no maps in .*, which holds entropy", {"score": "anomaly"}, {}),
        ("holds 0 units of the calibration, and at least 1 is needed", {"frames": {"a": "1"}}, {}),
        ("the unit of the threshold finds nothing in the frame name", {"unit": "night"}, {}),
        ("16 frames are too few .* at least 20 are needed", {}, ALONE | {"apart": 50, "out": None}),
        ("calibrated on maps of another model or tool", {}, {"maps": "other"}),
        (
            "frame other_0 of .* has no mean of",
            {"model": "", "settings": {}},
            ALONE | {"maps": "other"},
        ),
        ("has no region of", {"score": "deterministic-energy"}, ALONE | {"statistic": "region"}),
    ],
)
def test_misfits_are_refused(
    message: str, changes: Any, given: Any, calibrated: Calibrated, tmp_path: Path
) -> None:
    write_map(tmp_path / "other" / "entropy" / "other_0.png", np.zeros((8, 8), np.uint8))
    options = calibrated(0.0, **changes) | given
    options["maps"] = tmp_path / options["maps"]
    with pytest.raises(InputError) as error:
        monitor(**options)
    assert re.search(message, error.value.message)
    assert not (tmp_path / "state").exists()


if __name__ == "__main__":
    for shift in (0.0, 0.25, 0.5, 1.0, 2.0):
        found = delays(shift, 1000)
        late = np.quantile(found[found > 0], (0.5, 0.9), method="inverted_cdf")
        print(shift, (found <= 0).mean(), ((found > 0) & (found < np.inf)).mean(), *late)


def test_a_note_on_a_region_does_not_replace_the_verdict_on_its_frame() -> None:
    verdicts = [
        Verdict("a", "true-alarm", time="1"),
        Verdict("a", "", note="dusk", time="2", region=REGION),
        Verdict("b", "", note="rain", time="3"),
    ]
    assert losses_of_verdicts(verdicts, "missed-objects") == {"a": 0.0}
