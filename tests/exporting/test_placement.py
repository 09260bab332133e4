"""The mask of a threshold, and the inputs on which a file is checked."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from segunc.exporting.check import check_inputs
from segunc.exporting.placement import Flag, Placement, least_flagged
from segunc.maps.encoding import decode_unit, encode_score, is_flagged


@pytest.mark.parametrize("value", [0.0, 1e-9, 0.01, 0.3, 0.5, 1.0])
def test_the_least_flagged_value_of_a_bounded_score(value: float) -> None:
    least = np.float32(least_flagged("entropy", value))
    below = np.nextafter(least, np.float32(-2))
    stored = decode_unit(encode_score("entropy", np.array([max(least, np.float32(0))])))
    assert is_flagged(stored, value)[0]
    if value > 0:
        stored = decode_unit(encode_score("entropy", np.array([below])))
        assert not is_flagged(stored, value)[0]


@pytest.mark.parametrize("value", [-70.3, -2.0, 0.0, 0.1, 3.0, 1e4])
def test_the_least_flagged_value_of_an_unbounded_score(value: float) -> None:
    least = np.float32(least_flagged("anomaly", value))
    below = np.nextafter(least, np.float32(-np.inf))
    assert is_flagged(encode_score("anomaly", np.array([least])).astype(np.float32), value)[0]
    stored = encode_score("anomaly", np.array([below])).astype(np.float32)
    assert not is_flagged(stored, value)[0]


def test_the_least_flagged_value_by_hand() -> None:
    # Halfway between the codes 32767 and 32768, above which the square root rounds to 32768.
    assert least_flagged("entropy", (32767.7 / 65535) ** 2) == pytest.approx(
        (32767.5 / 65535) ** 2, rel=1e-6
    )
    # float16 has steps of 2 at 3000: 2999 is a tie, which goes to the even 3000.
    assert least_flagged("anomaly", 3000.0) == 2999.0


def test_a_threshold_above_all_values_flags_nothing() -> None:
    assert least_flagged("entropy", 1.5) == float("inf")
    assert least_flagged("anomaly", 1e6) == float("inf")


def test_a_flag_is_a_mask_of_zeros_and_ones() -> None:
    mask = Flag("entropy", 0.25)({"entropy": torch.tensor([[[0.2, 0.25, 0.9]]])})
    assert mask.dtype == torch.uint8
    assert mask.tolist() == [[[0, 1, 1]]]


@pytest.mark.parametrize("value", [0.25, 1e6], ids=["some", "none"])
def test_what_is_no_finite_number_is_flagged(value: float) -> None:
    """No map of such a score can be stored, so predict refuses the frame."""
    scores = torch.tensor([[[float("nan"), float("inf"), -float("inf"), -3.0]]])
    mask = Flag("anomaly", value)({"anomaly": scores})
    assert mask.tolist() == [[[1, 1, 1, 0]]]


def test_the_frames_of_a_batch_differ() -> None:
    (frames,) = check_inputs(Placement((32, 48), batch=5, frame_size=(40, 60)))
    assert frames.shape == (5, 40, 60, 3)
    assert frames.dtype == torch.uint8
    different = {frame.numpy().tobytes() for frame in frames}
    assert len(different) == 5
