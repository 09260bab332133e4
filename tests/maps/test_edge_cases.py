"""Maps, masks and verdicts where something lacks or does not fit."""

from datetime import UTC, datetime
from pathlib import Path

import cv2
import numpy as np
import pytest

from segunc.core.errors import InputError
from segunc.maps.encoding import encode_half, encode_jpeg, encode_score, score_keys
from segunc.maps.labelled import open_maps
from segunc.maps.moments import maps_folders
from segunc.maps.reader import MapsReader
from segunc.maps.regions import Region
from segunc.maps.store import MapsWriter
from segunc.maps.verdicts import (
    Agreement,
    JudgedRegion,
    Verdict,
    agreement_table,
    agreements,
    by_reviewer,
    merge_verdicts,
    note_on_dates,
)
from tests.maps.fakes import manifest

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
PIXEL = JudgedRegion((0, 0, 1, 1), 1, (3, 4), (0, 1))


@pytest.mark.parametrize("dtype", [np.uint8, np.int32])
def test_a_bounded_score_of_other_whole_numbers_has_no_stored_form(dtype: type) -> None:
    with pytest.raises(InputError, match=r"map entropy is of type .*neither floats nor uint16"):
        encode_score("entropy", np.zeros((2, 2), dtype))


@pytest.mark.parametrize("value", [np.nan, 65_520.0], ids=["NaN", "too large"])
def test_a_score_that_float16_does_not_hold_is_refused(value: float) -> None:
    with pytest.raises(InputError, match="NaN or beyond the range of float16"):
        encode_half(np.array([0.0, value]))


def test_the_largest_float16_is_stored() -> None:
    assert encode_half(np.array([65_504.0])).tolist() == [65_504.0]


def test_codes_of_a_bounded_score_are_stored_as_they_are() -> None:
    codes = np.array([[0, 7], [65535, 1]], np.uint16)
    assert encode_score("entropy", codes) is codes


def test_scores_of_signed_whole_numbers_have_no_keys() -> None:
    with pytest.raises(InputError, match="a score map is of type int16: neither"):
        score_keys(np.zeros(2, np.int16))


def test_a_code_of_a_byte_has_the_key_of_its_value() -> None:
    # 255 is the value 1, as is 65535; 1 is 1/255, as is 257/65535.
    assert score_keys(np.array([0, 1, 255], np.uint8)).tolist() == [0, 257, 65535]


def test_a_picture_that_a_jpeg_cannot_hold_is_refused() -> None:
    with pytest.raises(InputError, match="a picture of 70000 x 1 pixels has more than the 65"):
        encode_jpeg(np.zeros((1, 70_000, 3), np.uint8))


def test_a_folder_of_maps_folders_is_refused_by_their_number(tmp_path: Path) -> None:
    for name in ("first", "second"):
        MapsWriter(tmp_path / name, manifest()).close()
    with pytest.raises(InputError, match=r"holds 2 maps folders.*/first"):
        open_maps(tmp_path)


def test_a_folder_that_is_not_there_has_no_moments(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="missing does not exist"):
        maps_folders(tmp_path / "missing")


def test_a_mask_of_one_pixel_that_a_smaller_frame_skips_is_refused(tmp_path: Path) -> None:
    mask = np.zeros((12, 16), np.uint8)
    mask[0, 0] = 1  # a frame of a quarter of the sides takes a pixel nearer to the middle of 4 x 4
    cv2.imwrite(str(tmp_path / "mask.png"), mask)
    region = Region(tmp_path / "mask.png")
    with pytest.raises(InputError, match="the mask leaves nothing of a frame of 3x4"):
        region.at(3, 4)


def test_reviewers_without_a_common_frame_have_no_agreement() -> None:
    verdicts = [Verdict("a", "missed", reviewer="Ana"), Verdict("b", "missed", reviewer="Ben")]
    assert agreements(verdicts) == [Agreement(("Ana", "Ben"), frames=0, agreed=0.0, kappa=None)]


def test_an_agreement_without_kappa_has_a_dash() -> None:
    verdicts = [Verdict("a", "missed", reviewer="Ana"), Verdict("b", "missed", reviewer="Ben")]
    assert agreement_table(verdicts) == (
        "Ana and Ben, 0 frames judged by both: 0.0% agree, Cohen's kappa –"
    )


def test_several_dates_in_the_future_are_counted() -> None:
    verdicts = [Verdict(frame, "missed", time="2026-05-03T00:00:00Z") for frame in ("a", "b")]
    note = note_on_dates(verdicts, NOW)
    assert note.startswith("2 verdicts are dated after now, first 2026-05-03T00:00:00Z on frame a")


def test_a_verdict_without_a_date_loses_against_one_with_a_date() -> None:
    undated = Verdict("a", "missed", time="yesterday")
    dated = Verdict("a", "unsure", time="2026-04-30T00:00:00")
    assert merge_verdicts([[undated], [dated]], NOW) == [dated]


def test_verdicts_on_two_regions_of_a_frame_are_not_on_one_thing() -> None:
    second = JudgedRegion((1, 0, 1, 1), 1, (3, 4), (1, 1))
    verdicts = [Verdict("a", "missed", region=region) for region in (PIXEL, second)]
    assert merge_verdicts([verdicts], NOW) == verdicts


def test_a_frame_without_a_verdict_of_its_own_has_the_gravest_of_its_regions() -> None:
    second = JudgedRegion((1, 0, 1, 1), 1, (3, 4), (1, 1))
    verdicts = [
        Verdict("a", "unsure", reviewer="Ana", region=PIXEL),
        Verdict("a", "true-alarm", reviewer="Ana", region=second),
    ]
    assert by_reviewer(verdicts) == {"Ana": {"a": "true-alarm"}}


def test_a_verdict_on_a_region_cannot_say_that_nothing_is_wrong() -> None:
    with pytest.raises(ValueError, match="'nothing-wrong' is none of missed, true-alarm"):
        Verdict("a", "nothing-wrong", region=PIXEL)


def test_a_frame_without_a_line_has_no_map(tmp_path: Path) -> None:
    values = np.full((4, 6), 0.5, np.float32)
    scores = {"entropy": values, "epistemic": values, "deterministic-max-logit": -values}
    prediction = np.zeros((4, 6), np.uint8)
    with MapsWriter(tmp_path / "maps", manifest()) as writer:
        writer.write("a", scores | {"prediction": prediction})
    reader = MapsReader(tmp_path / "maps")
    assert reader.has("a", "entropy")
    assert not reader.has("b", "entropy")
