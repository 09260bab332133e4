"""Review pages whose thresholds, scores and frames are not the usual ones."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from segunc.core.errors import InputError
from segunc.decisions.flags import Threshold
from segunc.decisions.guarantee import GuaranteedThreshold, model_of, settings_of
from segunc.decisions.preparation import Preparation
from segunc.gallery.review_page import PAGE_NAME, page_of, run_id, write_review
from segunc.maps.reader import MapsReader
from tests.support.scenes import NAMES, SIZE, Scene, table, write_page


def ranked_within_frames(maps: Path, value: float) -> Threshold:
    """A threshold of entropy, ranked within each frame, as a file of segunc threshold gives it."""
    run = MapsReader(maps).manifest["run"]
    guarantee = GuaranteedThreshold(
        score="entropy",
        value=value,
        form="unit16",
        control="flagged-pixels",
        method="conformal",
        level=0.25,
        confidence=None,
        unit="frame",
        units=30,
        minimum_units=3,
        risk=0.1,
        bound=None,
        promise="Few pixels are flagged.",
        condition="It holds here.",
        model=model_of(run),
        settings=settings_of(run, "entropy"),
        frames={},
        command="",
        date="",
        segunc="",
        preparation=Preparation(level="frame"),
    )
    return Threshold(value, source="t.json", promise=guarantee.promise, guarantee=guarantee)


@pytest.fixture(scope="module")
def levelled(scene: Scene, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page whose threshold flags the rarest tenth of each frame."""
    flag = {"entropy": ranked_within_frames(scene.maps, 1.0)}
    return write_review(scene.maps, tmp_path_factory.mktemp("levelled") / "review", flag=flag)


def test_statistics_have_the_scale_of_a_threshold_within_the_frame(levelled: Path) -> None:
    """The gallery and the list of alarms compare them with the threshold."""
    for row in table(levelled, "frames"):
        statistics = row["statistics"]["entropy"]
        # Of the rarest pixel of 1,200, or of two that are equal.
        assert 2.7 < statistics["max"] < 3.1
        # Of evenly ranked pixels the mean is log10 of e.
        assert statistics["mean"] == pytest.approx(np.log10(np.e), abs=0.05)


def test_a_level_within_the_frame_has_no_unit_of_the_score(levelled: Path) -> None:
    facts = table(levelled, "page")["scores"]["entropy"]
    assert facts["unit"] == ""
    assert facts["words"].startswith("3 = one in 1,000 pixels")


def damaged(maps: Path, frame: str) -> Path:
    """Damage the map of entropy of a frame."""
    (maps / MapsReader(maps).records[frame]["files"]["entropy"]).write_bytes(b"torn")
    return maps


def test_a_frame_without_the_ranking_map_has_no_alarms_of_another_score(
    copy: Path, tmp_path: Path
) -> None:
    flag = {"entropy": 0.4, "epistemic": 0.03}
    bright = NAMES[4]
    whole = table(write_page(copy, tmp_path / "whole", flag=flag), "frames")
    assert whole[4]["alarms"]
    index = write_page(damaged(copy, bright), tmp_path / "torn", flag=flag)
    row = table(index, "frames")[4]
    assert row["problems"]
    assert row["statistics"]["epistemic"]["max"] > flag["epistemic"]
    assert not row["alarms"]


def test_a_limit_leaves_out_a_frame_that_cannot_be_ranked_and_says_so(
    copy: Path, tmp_path: Path
) -> None:
    brightest = NAMES[5]
    flag = {"entropy": 0.4}
    index = write_page(damaged(copy, brightest), tmp_path / "review", limit=1, flag=flag)
    assert [row["name"] for row in table(index, "frames")] == [NAMES[4]]
    notices = page_of(index.parent)["notices"]
    line = f"1 frame could not be ranked, because a map cannot be read, first {brightest}."
    assert line in notices


def write_foreign_maps(folder: Path, **frames: Any) -> MapsReader:
    """Write maps of a score "mine" as another tool does, without a manifest."""
    (folder / "mine").mkdir(parents=True)
    for name, values in frames.items():
        np.save(folder / "mine" / f"{name}.npy", values)
    return MapsReader(folder)


def test_a_limit_ranks_maps_with_nan_by_their_other_pixels(tmp_path: Path) -> None:
    # Compared with NaN, no frame would be the worst.
    high = np.full(SIZE, 0.9, np.float32)
    high[0] = np.nan
    low = np.full(SIZE, 0.1, np.float32)
    middle = np.full(SIZE, 0.5, np.float32)
    reader = write_foreign_maps(tmp_path / "maps", a=middle, b=high, c=low, d=middle)
    index = write_page(reader.folder, tmp_path / "review", limit=1)
    assert [row["name"] for row in table(index, "frames")] == ["b"]


def test_a_threshold_shows_its_score(scene: Scene, tmp_path: Path) -> None:
    flag = {"deterministic-max-logit": -5.0}
    page = table(write_page(scene.maps, tmp_path / "review", flag=flag), "page")
    assert list(page["scores"]) == ["entropy", "epistemic", "deterministic-max-logit"]
    assert page["ranking"] == "deterministic-max-logit"
    assert page["scores"]["deterministic-max-logit"]["region_from"] == -5.0


def test_a_threshold_of_a_score_that_is_not_among_the_shown_ones_is_refused(
    scene: Scene, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="'epistemic' has a threshold but is not shown") as caught:
        write_page(scene.maps, tmp_path / "r", scores=["entropy"], flag={"epistemic": 0.03})
    assert caught.value.hint == "--scores entropy,epistemic"


def test_a_threshold_of_a_score_without_maps_is_refused(scene: Scene, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the score 'entropie' has no maps"):
        write_page(scene.maps, tmp_path / "r", flag={"entropie": 0.5})
    assert not (tmp_path / "r" / PAGE_NAME).exists()


def test_maps_of_two_models_by_another_tool_are_two_runs(tmp_path: Path) -> None:
    """Else the verdicts on one would count as verdicts on the other."""
    random = np.random.default_rng(0)
    first = write_foreign_maps(tmp_path / "a" / "maps", x=random.random(SIZE, np.float32))
    second = write_foreign_maps(tmp_path / "b" / "maps", x=random.random(SIZE, np.float32))
    assert first.frames == second.frames
    assert run_id(first) != run_id(second)
    assert run_id(first) == run_id(MapsReader(first.folder))
