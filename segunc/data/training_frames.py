"""How many frames a training sees, and from where the frames come on which its epoch is chosen."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from segunc.core.terminal import agreeing, counted

SELECTION = "selection"
"""A split of every data set with class labels: val, or what stands in for it where every frame of
val holds an anomaly.
"""
RECORD = "training_frames"
"""Key of the record of a network."""
EPOCH_FRAMES = "epoch_frames"
"""Key of the record of a network: the frames that chose its epoch, see :func:`name_hashes`."""
VAL_MIOU = "val_miou"
"""Key of the record of a network: its mIoU on the frames that chose its epoch."""
START = "started_from"
"""Key of the record of a network whose weights were trained on: what it started from."""
SEEN_SPLITS = "seen_splits"
"""Key of the record of a posterior: data set and split of the frames that it is made of."""


@dataclass(frozen=True)
class TrainingFrames:
    """Numbers of frames of a training.

    Args:
        train: frames that are left to train on.
        selection: frames on which the epoch is chosen; None where nothing is chosen on frames.
        anomaly_classes: classes whose frames are left out.
        left_out: frames of the split ``train`` that hold one of these classes.
        validation_left_out: frames of the split ``val`` that hold one of these classes.
        substitute: frames that are taken out of ``train`` because ``val`` has none to choose on.
        held_out: sequence on which the epoch is chosen in the place of ``val``; empty where each
            sequence is left out in turn.
    """

    train: int
    selection: int | None = None
    anomaly_classes: tuple[str, ...] = ()
    left_out: int = 0
    validation_left_out: int = 0
    substitute: int = 0
    held_out: str | None = None

    def note(self) -> str:
        """Return which frames are left out and which are taken to choose the epoch; empty where no
        class is declared an anomaly.
        """
        if not self.anomaly_classes:
            return ""
        classes = " or ".join(self.anomaly_classes)
        selection = self.selection or 0
        of_sequence = selection if self.held_out is not None else 0
        others = self.train + self.substitute + of_sequence
        parts = [
            f"{self.left_out} of {self.left_out + others} training frames "
            f"{agreeing('holds', self.left_out)} {classes} and "
            f"{agreeing('is', self.left_out)} left out"
        ]
        if self.substitute:
            reason = f"every frame of val holds {classes}"
            if not self.validation_left_out:
                reason = "there is no split val"
            purpose = "for choosing the epoch"
            if self.held_out is not None:
                purpose = f"for the split {SELECTION}"
            parts.append(
                f"{reason}, so {self.substitute} of the other {others} "
                f"{agreeing('is', self.substitute)} taken {purpose}"
            )
        elif self.validation_left_out:
            parts.append(
                f"so {agreeing('is', self.validation_left_out)} "
                f"{counted(self.validation_left_out, 'frame')} of val"
            )
        if of_sequence:
            parts.append(f"the epoch is chosen on the {of_sequence} of sequence {self.held_out}")
        parts.append(f"{self.train} {agreeing('is', self.train)} left to train")
        return "; ".join(parts)

    def warning(self, batch_size: int) -> str:
        """Return what is wrong with so few frames for batches of a size; empty for enough."""
        steps = self.train // batch_size
        if not self.anomaly_classes or steps > 1:
            return ""
        amount = f"only {steps} step an epoch" if steps else "no step"
        return (
            f"{counted(self.train, 'training frame')} in batches of {batch_size} "
            f"{'makes' if self.train == 1 else 'make'} {amount}, so the "
            "network learns little. Hint: lower data.batch_size, or hold out a class that fewer "
            "frames hold"
        )

    def record(self, *, selected: bool) -> dict[str, Any]:
        """Return the numbers for the record of a network.

        Args:
            selected: whether an epoch was chosen.
        """
        numbers: dict[str, Any] = {"train": self.train}
        if self.anomaly_classes:
            numbers["left_out"] = self.left_out
        if selected and self.selection is not None:
            numbers["selection"] = self.selection
            is_of_train = self.substitute > 0 or self.held_out is not None
            numbers["selection_from"] = "train" if is_of_train else "val"
        return numbers


def frames_record(provenance: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the record of a network says of the frames of its training; empty where an
    earlier version wrote it.
    """
    record = provenance.get(RECORD)
    return dict(record) if isinstance(record, Mapping) else {}


def is_selected_on_train(validation: object, record: Mapping[str, Any]) -> bool:
    """Return whether an epoch was chosen on frames of ``train`` that stand in for ``val``.

    Args:
        validation: setting of the data of the training.
        record: see :func:`frames_record`.
    """
    return validation == "val" and record.get("selection_from") == "train"


def epoch_words(validation: object, record: Mapping[str, Any]) -> str:
    """Return on which frames an epoch was chosen, in words. The arguments are those of
    :func:`is_selected_on_train`.
    """
    if not is_selected_on_train(validation, record):
        return f"its epoch was chosen on the split {validation}"
    return (
        f"its epoch was chosen on {record.get('selection')} other frames of the split train, "
        "because every frame of val holds a class that was left out"
    )


def name_hashes(names: Iterable[str]) -> list[str]:
    """Return a short hash of the name of each frame, sorted. A record of them names no file."""
    return sorted(hashlib.sha256(name.encode()).hexdigest()[:16] for name in names)


def _has_chosen_epoch(provenance: Mapping[str, Any]) -> bool:
    """Return whether frames chose the epoch of a network, or of the one that it started from."""
    start = provenance.get(START)
    records = [provenance, start if isinstance(start, Mapping) else {}]
    return any(record.get(VAL_MIOU) is not None for record in records)


def note_on_epoch_frames(
    provenance: Mapping[str, Any], names: Iterable[str], base: str, *, is_same_split: bool
) -> str:
    """Return a note on frames that chose the epoch of a network and are trained on now; empty where
    there are none.

    Args:
        provenance: of the network.
        names: of the frames that are trained on now.
        base: the network, in words.
        is_same_split: whether the settings of the data say that the frames of ``val`` are those
            of the training of the network. It counts where the network records no frames.
    """
    recorded = provenance.get(EPOCH_FRAMES)
    if recorded is None:
        if not _has_chosen_epoch(provenance) or is_same_split:
            return ""
        return (
            f"an earlier version trained {base} and did not record which frames chose its epoch, "
            "so it cannot be known whether the fine-tuning trains on some of them. To be sure, "
            "train the network again"
        )
    hashes = name_hashes(names)
    common = len(set(recorded).intersection(hashes))
    if not common:
        return ""
    frames = counted(len(hashes), "training frame")
    return (
        f"{common} of {frames} chose the epoch of {base}, because the split has changed since. To "
        "train on none of them, give these frames the split that they had, or train the network "
        "again"
    )
