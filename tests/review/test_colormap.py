"""Colours: even lightness, fixed ranges, one colour for one value."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from segunc.core.errors import InputError
from segunc.review.colormap import (
    COLOUR_MAPS,
    DisplayRange,
    colour_table,
    colourise,
    colourise_classes,
    display_range,
)
from segunc.scores import SCORES


@pytest.mark.parametrize("name", COLOUR_MAPS)
def test_lightness_rises_evenly(name: str) -> None:
    """What makes a map readable in grey and to colour-blind eyes: CIE L* rises with the value, without jumps."""
    lab = cv2.cvtColor(colour_table(name)[None].astype(np.float32) / 255, cv2.COLOR_RGB2LAB)[0]
    steps = np.diff(lab[::8, 0])
    assert steps.min() > 0
    assert steps.max() < 3 * steps.mean()


def test_default_map_ends_in_a_saturated_colour_not_in_white() -> None:
    """White lane markings must not be taken for the highest score."""
    assert colour_table()[255].astype(int).min() < 60


@pytest.mark.parametrize("score", [name for name in SCORES if SCORES[name].colours])
def test_one_value_has_one_colour_whatever_else_the_frame_holds(score: str) -> None:
    shown = display_range(score)
    calm = np.array([[0.0, 0.02, 0.1]])
    wild = np.array([[0.9, 0.02, 0.1]])
    np.testing.assert_array_equal(colourise(calm, shown)[0, 1:], colourise(wild, shown)[0, 1:])
    assert (colourise(calm, shown)[0, 0] != colourise(wild, shown)[0, 0]).any()


def test_values_beyond_the_range_take_its_end_and_the_label_says_so() -> None:
    shown = display_range("epistemic")
    ends = colourise(np.array([[0.1, 0.11, 1.0]]), shown)
    np.testing.assert_array_equal(ends, np.broadcast_to(colour_table()[255], (1, 3, 3)))
    assert (shown.low_text, shown.high_text) == ("0", ">= 0.1")
    assert display_range("entropy").high_text == "1"


def test_a_range_of_ones_own_marks_its_open_ends() -> None:
    assert display_range("entropy", (0, 0.5)).high_text == ">= 0.5"
    assert display_range("epistemic", (0, 1)).high_text == "1"
    logit = display_range("max-logit", (-20, 0))
    assert (logit.low_text, logit.high_text) == ("<= -20", ">= 0")


@pytest.mark.parametrize("given", [None, (1, 0), (0, 0), (0, float("nan"))])
def test_no_range_is_guessed(given: tuple[float, float] | None) -> None:
    with pytest.raises(InputError, match="range"):
        display_range("max-logit", given)


def test_unknown_colour_map_is_refused() -> None:
    with pytest.raises(InputError, match="jet"):
        colour_table("jet")


def test_classes_beyond_the_palette_are_white() -> None:
    colours = colourise_classes(np.array([[0, 1, 2, 255]], np.uint8), [(1, 2, 3), (4, 5, 6)])
    assert colours[0].tolist() == [[1, 2, 3], [4, 5, 6], [255] * 3, [255] * 3]


def test_place_is_linear_between_the_ends() -> None:
    np.testing.assert_allclose(DisplayRange(-2, 2).place(np.array([-3.0, -1.0, 0.0, 5.0])), [0, 0.25, 0.5, 1])
