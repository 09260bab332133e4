"""Colours: even lightness, fixed ranges, one colour for one value."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from segunc.core.errors import InputError
from segunc.gallery.colormap import DisplayRange, colour_table, colourise, display_range, levels


def test_lightness_rises_evenly_to_a_saturated_colour() -> None:
    """What makes a map readable in grey and to colour-blind eyes: CIE L* rises with the value, without jumps."""
    lab = cv2.cvtColor(colour_table()[None].astype(np.float32) / 255, cv2.COLOR_RGB2LAB)[0]
    steps = np.diff(lab[::8, 0])
    assert steps.min() > 0
    assert steps.max() < 3 * steps.mean()
    # White lane markings must not be taken for the highest score.
    assert colour_table()[255].astype(int).min() < 60


def test_values_beyond_the_range_take_its_end_and_the_label_says_so() -> None:
    shown = display_range("epistemic")
    ends = colourise(np.array([[0.1, 0.11, 1.0]]), shown)
    np.testing.assert_array_equal(ends, np.broadcast_to(colour_table()[255], (1, 3, 3)))
    assert shown.ticks == ("0", "0.05", ">= 0.1")
    assert display_range("entropy").ticks == ("0", "0.5", "1")


def test_a_range_of_ones_own_marks_its_open_ends() -> None:
    assert display_range("entropy", (0, 0.5)).ticks[2] == ">= 0.5"
    assert display_range("epistemic", (0, 1)).ticks[2] == "1"
    assert display_range("deterministic-max-logit", (-20, 0)).ticks == ("<= -20", "-10", ">= 0")


@pytest.mark.parametrize("given", [None, (1, 0), (0, 0), (0, float("nan"))])
def test_no_range_is_guessed(given: tuple[float, float] | None) -> None:
    with pytest.raises(InputError, match="range"):
        display_range("deterministic-max-logit", given)


def test_levels_are_linear_between_the_ends() -> None:
    found = levels(np.array([[-3.0, -1.0, 0.4, 5.0]]), DisplayRange(-2, 2))
    np.testing.assert_array_equal(found, [[0, 64, 153, 255]])
