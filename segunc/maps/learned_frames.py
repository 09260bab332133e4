"""Frames on which verdicts changed the bank of features of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from segunc.core.terminal import counted
from segunc.data.frame_names import composed

SHOWN = 3
"""Frames that a note names."""
Round = Mapping[str, Any]  # one round of verdicts, as the record of a bank holds it


def learned_record(rounds: Sequence[Round]) -> list[dict[str, Any]]:
    """Return what a manifest records of rounds of verdicts: of each the ``images``, and the
    ``learned`` frames with the hash of their image. Rounds of earlier versions record neither.
    """
    return [{key: entry[key] for key in ("images", "learned") if key in entry} for entry in rounds]


def round_words(entry: Round) -> str:
    """Return the frames of a round of verdicts, such as ``verdicts on 9 frames of friday``."""
    number = len(entry["learned"]) if "learned" in entry else int(entry.get("frames", 0))
    words = f"verdicts on {counted(number, 'frame')}"
    return f"{words} of {entry['images']}" if entry.get("images") else words


def named(frames: Sequence[str]) -> str:
    """Return the first few names of frames."""
    names = ", ".join(frames[:SHOWN])
    return f"{names}, ..." if len(frames) > SHOWN else names


def learned_among(
    rounds: Sequence[Round], frames: Mapping[str, str | None], images: str = ""
) -> list[str]:
    """Return the frames on which verdicts changed the bank.

    A frame is known by the hash of its image. Where either record has none, as of a video, it is
    known by its name and the images that it is of.

    Args:
        rounds: of verdicts, see :func:`learned_record`.
        frames: name -> hash of the image, or None.
        images: the folder or the video of the frames, as :func:`learned_record` has it.
    """
    hashes: set[str] = set()
    learned_names: set[str] = set()
    names_without_hash: set[str] = set()
    for entry in rounds:
        of_images = entry.get("images") == images
        for name, stamp in entry.get("learned", {}).items():
            if stamp is not None:
                hashes.add(stamp)
            elif of_images:
                names_without_hash.add(composed(name))
            if of_images:
                learned_names.add(composed(name))
    among = []
    for name, stamp in frames.items():
        names = learned_names if stamp is None else names_without_hash
        if stamp in hashes or composed(name) in names:
            among.append(name)
    return among


def learned_words(rounds: Sequence[Round], among: Sequence[str], frames: int) -> list[str]:
    """Return what verdicts had to do with frames, each the beginning of a sentence.

    Args:
        rounds: of verdicts, see :func:`learned_record`.
        among: the frames on which verdicts changed the bank, see :func:`learned_among`.
        frames: number of all frames.
    """
    sentences = []
    if among:
        sentences.append(
            f"{len(among)} of these {counted(frames, 'frame')} gave features to the bank by "
            f"verdicts, or lost some ({named(among)}); --frames leaves them out"
        )
    if any("learned" not in entry for entry in rounds):
        sentences.append(
            "verdicts changed the bank of features, and an earlier version of segunc did not "
            "record on which frames"
        )
    return sentences
