"""What ``predict`` says of frames that the bank of features holds."""

from segunc.maps.known_frames import note_on_known_frames


def test_frames_in_which_nothing_is_strange_are_named() -> None:
    records = {
        "a": {"max": {"anomaly": 0.0, "entropy": 0.9}},
        "b": {"max": {"anomaly": 1.5}},
        "c": {"max": {"anomaly": 0}},
    }
    note = note_on_known_frames(records)
    assert note.startswith(
        "2 of 3 frames have no pixel of anomaly from 0.1 on, first a, c: the bank"
    )


def test_nothing_is_said_of_frames_with_strange_pixels_or_without_the_score() -> None:
    records = {"a": {"max": {"anomaly": 0.1}}, "b": {"max": {"entropy": 0.0}}, "c": {}}
    assert note_on_known_frames(records) == ""
