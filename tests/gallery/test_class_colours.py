"""Colours of classes: apart for every eye, and the palette's own where they are."""

from __future__ import annotations

import numpy as np
import pytest

from segunc.data.labels import label_map
from segunc.gallery.colormap import APART, VISIONS, Colour, kept_apart, seen


def nearest(palette: list[Colour]) -> float:
    """The smallest distance of two colours of a palette, for the vision that tells them apart least."""
    found = []
    for vision in VISIONS:
        lab = seen(palette, vision)
        distances = np.linalg.norm(lab[:, None] - lab[None], axis=2)
        found.append(distances[np.triu_indices(len(lab), 1)].min())
    return float(min(found))


@pytest.mark.parametrize("name", ["camvid", "cityscapes", "toy"])
def test_no_two_classes_merge_for_any_eye(name: str) -> None:
    palette = list(label_map(name).palette)
    assert nearest(palette) < 7  # as published, some do
    assert nearest(kept_apart(palette)) >= APART - 0.5  # colours are rounded to whole numbers


def test_colours_that_are_apart_are_kept() -> None:
    palette: list[Colour] = [(0, 0, 0), (255, 255, 255), (0, 0, 255)]
    assert kept_apart(palette) == palette
    twice = kept_apart([(128, 64, 128)] * 3)
    assert twice[0] == (128, 64, 128)
    assert nearest(twice) >= APART - 0.5


def test_the_simulation_leaves_greys_and_takes_red_from_green() -> None:
    greys: list[Colour] = [(0, 0, 0), (128, 128, 128), (255, 255, 255)]
    for vision in VISIONS:
        assert np.abs(seen(greys, vision)[:, 1:]).max() < 0.5  # the matrices keep neutral colours neutral
    red_green: list[Colour] = [(200, 60, 60), (110, 110, 50)]
    apart = {vision: float(np.linalg.norm(np.diff(seen(red_green, vision), axis=0))) for vision in VISIONS}
    assert apart["deuteranopia"] < 0.6 * apart["usual"]
