"""What ``predict`` says of frames that the bank of features holds."""

from pathlib import Path
from typing import Any

import pytest

import segunc
from segunc.maps.known_frames import note_on_known_frames
from tests.support.scenes import write_maps, write_scene


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


def test_one_frame_is_no_several() -> None:
    note = note_on_known_frames({"a": {"max": {"anomaly": 0.0}}, "b": {"max": {"anomaly": 1.5}}})
    assert note.startswith("1 of 2 frames has no pixel of anomaly from 0.1 on, a: the bank")
    assert note.endswith("so its maps, and those of frames like it, say nothing of unknown objects")


def test_nothing_is_said_of_frames_with_strange_pixels_or_without_the_score() -> None:
    records = {"a": {"max": {"anomaly": 0.1}}, "b": {"max": {"entropy": 0.0}}, "c": {}}
    assert note_on_known_frames(records) == ""


@pytest.mark.parametrize("verb", ["threshold", "evaluate"])
def test_numbers_on_frames_of_the_bank_say_so(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What they promise or measure of such frames says nothing of frames to come."""
    scene = write_scene(tmp_path)
    recorded = {"features_sha256": "0" * 64}
    scores = ("entropy", "anomaly")
    maps = write_maps(scene.images, tmp_path / "m", scores=scores, recorded=recorded)
    data: dict[str, Any] = {"maps": maps, "anomaly_labels": scene.anomaly}

    def notes_of(score: str) -> list[str]:
        if verb == "evaluate":
            notes = segunc.evaluate(**data, scores=[score]).notes
        else:
            asked = {"control": "flagged-pixels", "level": 0.5, "unit": "frame", "score": score}
            notes = segunc.threshold(**data, **asked, out=tmp_path / "t.json").notes
        return [note for note in notes if "the bank of features probably holds" in note]

    assert notes_of("anomaly") == []
    monkeypatch.setattr("segunc.maps.known_frames.KNOWN_BELOW", 100.0)
    (note,) = notes_of("anomaly")
    assert "frames have no pixel of anomaly from 100.0 on, first " in note
    assert notes_of("entropy") == []
