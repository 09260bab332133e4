"""The picture that the callback logs, pixel by pixel."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from matplotlib import colormaps

from segunc.lightning.sheet import GAP, MARGIN, TILE_WIDTH, DrawnFrame, draw_sheet

CLASSES = ["road", "car"]
PALETTE = [(10, 20, 30), (200, 100, 50)]
LEFT = np.zeros((16, 32), bool)
LEFT[:, :16] = True


def frame(**fields: Any) -> DrawnFrame:
    """A frame of two halves: what is on the left, and what is on the right."""
    settings: dict[str, Any] = {
        "number": 0,
        "image": np.where(LEFT[..., None], 40, 220).repeat(3, 2).astype(np.uint8),
        "prediction": np.where(LEFT, 0, 1).astype(np.uint8),
        "scores": {"entropy": np.where(LEFT, 0.0, 1.0).astype(np.float32)},
    }
    return DrawnFrame(**{**settings, **fields})


def halves(picture: npt.NDArray[np.uint8], column: int) -> list[tuple[int, ...]]:
    """Return the colours in the middle of the two halves of a picture in the first row."""
    top = next(row for row in range(len(picture)) if (picture[row, MARGIN + 20] == 40).all())
    left = MARGIN + column * (TILE_WIDTH + GAP)
    row = picture[top + 60]
    return [
        tuple(int(value) for value in row[left + TILE_WIDTH // 4]),
        tuple(int(value) for value in row[left + 3 * TILE_WIDTH // 4]),
    ]


def plasma(share: float) -> tuple[int, ...]:
    return tuple(round(255 * value) for value in colormaps["plasma"](share)[:3])


def test_image_prediction_and_scores_stand_side_by_side() -> None:
    picture = draw_sheet([frame()], CLASSES, PALETTE)
    assert picture.shape[1] == 2 * MARGIN + 3 * TILE_WIDTH + 2 * GAP
    assert halves(picture, 0) == [(40, 40, 40), (220, 220, 220)]
    assert halves(picture, 1) == PALETTE
    assert halves(picture, 2) == [plasma(0.0), plasma(1.0)]


def test_labels_bring_a_column_of_their_own_and_one_of_errors() -> None:
    label = np.where(LEFT, 1, 1).astype(np.uint8)
    picture = draw_sheet([frame(label=label)], CLASSES, PALETTE)
    assert halves(picture, 1) == [PALETTE[1], PALETTE[1]]
    assert halves(picture, 2) == PALETTE
    assert halves(picture, 3) == [(255, 255, 255), (0, 0, 0)]
    assert halves(picture, 4) == [plasma(0.0), plasma(1.0)]


def test_ignored_pixels_are_no_errors() -> None:
    label = np.where(LEFT, 255, 1).astype(np.uint8)
    picture = draw_sheet([frame(label=label)], CLASSES, PALETTE)
    assert halves(picture, 1)[0] == (0, 0, 0)
    assert halves(picture, 3) == [(90, 90, 90), (0, 0, 0)]


def test_a_score_keeps_its_colours_from_epoch_to_epoch() -> None:
    """Half of the scale looks the same beside a lower maximum."""
    entropy = np.where(LEFT, 0.5, 0.6).astype(np.float32)
    picture = draw_sheet([frame(scores={"entropy": entropy})], CLASSES, PALETTE)
    assert halves(picture, 2)[0] == plasma(0.5)


def test_a_score_without_a_fixed_scale_takes_that_of_its_frames() -> None:
    energy = np.where(LEFT, -30.0, -10.0).astype(np.float32)
    picture = draw_sheet([frame(scores={"deterministic-energy": energy})], CLASSES, PALETTE)
    assert halves(picture, 2) == [plasma(0.0), plasma(1.0)]


def test_a_constant_score_is_drawn() -> None:
    energy = np.full((16, 32), -5.0, np.float32)
    picture = draw_sheet([frame(scores={"deterministic-energy": energy})], CLASSES, PALETTE)
    assert halves(picture, 2)[0] == halves(picture, 2)[1]


def test_a_labelled_anomaly_is_outlined() -> None:
    anomaly = np.zeros((16, 32), np.uint8)
    anomaly[4:12, 4:28] = 1
    plain = draw_sheet([frame()], CLASSES, PALETTE)
    outlined = draw_sheet([frame(anomaly=anomaly)], CLASSES, PALETTE)
    changed = (plain != outlined).any(axis=2)[60:, MARGIN : MARGIN + TILE_WIDTH]
    assert (outlined[60:, MARGIN : MARGIN + TILE_WIDTH][changed] == 255).any()
    # The middle of the anomaly is still to be seen.
    assert halves(outlined, 0) == [(40, 40, 40), (220, 220, 220)]


@pytest.mark.parametrize("count", [1, 19, 150])
def test_every_class_is_in_the_legend_whatever_their_number(count: int) -> None:
    few = draw_sheet([frame()], CLASSES[:1])
    names = [f"class {number}" for number in range(count)]
    many = draw_sheet([frame(prediction=np.zeros((16, 32), np.uint8))], names)
    rows = -(-count // ((few.shape[1] - 2 * MARGIN) // 164))
    assert len(many) == len(few) + (rows - 1) * 24


def test_frames_of_different_sizes_stand_below_each_other() -> None:
    high = frame(
        image=np.zeros((64, 32, 3), np.uint8),
        prediction=np.zeros((64, 32), np.uint8),
        scores={"entropy": np.zeros((64, 32), np.float32)},
    )
    one = draw_sheet([frame()], CLASSES)
    two = draw_sheet([frame(), high], CLASSES)
    assert len(two) == len(one) + 2 * TILE_WIDTH + GAP


def test_classes_without_a_palette_have_the_colours_of_the_figure_of_maps() -> None:
    picture = draw_sheet([frame()], CLASSES)
    assert halves(picture, 1) == [(0, 114, 178), (230, 159, 0)]  # Okabe and Ito's


def test_a_score_without_a_fixed_range_has_that_of_its_percentiles() -> None:
    values = np.where(LEFT, 0, 50).astype(np.float32)
    picture = draw_sheet([frame(scores={"mean-energy": values})], CLASSES, PALETTE)
    assert halves(picture, 2) == [plasma(0.0), plasma(1.0)]
