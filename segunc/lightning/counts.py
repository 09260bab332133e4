"""What is counted of the frames of an evaluation. Counts are whole numbers, so that those of
several processes add up to the numbers of one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from segunc.core.errors import InputError
from segunc.data.labels import IGNORE
from segunc.evaluation.evaluator import NO_INTERVALS, Gatherer
from segunc.evaluation.parts import (
    CONFIDENCE,
    ArrayPart,
    ConfidenceCalibration,
    LabelledFrame,
    Pooled,
    ProbabilityCalibration,
    Segmentation,
    Selective,
)
from segunc.maps.encoding import encode_score
from segunc.metrics.counting import STEPS_PER_FRACTION
from segunc.sampling.sampler import Prediction


class FrameCounts:
    """The counts of frames with their maps and labels.

    Args:
        scores: whose numbers are made.
        classes: of the network.
    """

    def __init__(self, scores: Sequence[str], classes: Sequence[str]) -> None:
        self.scores = tuple(scores)
        self.classes = tuple(classes)
        parts: list[ArrayPart] = [
            Segmentation(self.classes),
            ConfidenceCalibration(),
            ProbabilityCalibration(),
        ]
        parts += [Selective(score) for score in self.scores]
        parts += [Pooled(score) for score in self.scores]
        self._gatherer = Gatherer(parts, NO_INTERVALS, str)
        self.frames = 0
        # Sums of the means of frames, in fixed point; of any size, as Python's whole numbers are.
        self._sums = dict.fromkeys(self.scores, 0)

    def add(self, name: str, maps: Prediction, labels: Mapping[str, Tensor]) -> None:
        """Count a frame.

        Args:
            name: of the frame, in messages.
            maps: of this one frame, with its probabilities where it has class labels.
            labels: ``label`` and ``anomaly``, ``[1, H, W]``, those that it has.

        Raises:
            InputError: labels that are no classes, or no anomaly labels.
        """
        stored = {}
        for score, values in maps.scores.items():
            stored[score] = encode_score(score, values[0].cpu().numpy())
        for score in self.scores:
            mean = float(maps.scores[score].double().mean())
            self._sums[score] += round(mean * STEPS_PER_FRACTION)
        self.frames += 1
        if not labels:
            return
        class_labels = None
        if "label" in labels:
            class_labels = self._class_labels(labels["label"][0], name)
        anomaly = None
        if "anomaly" in labels:
            anomaly = _anomaly_labels(labels["anomaly"][0], name)
        probabilities = None
        if maps.probabilities is not None and class_labels is not None:
            probabilities = maps.probabilities[0].cpu().numpy()
        frame = LabelledFrame(
            name,
            stored,
            prediction=maps.prediction[0].cpu().numpy(),
            mean_probabilities=probabilities,
            labels=class_labels,
            anomaly=anomaly,
        )
        self._gatherer.add(frame)

    def _class_labels(self, labels: Tensor, name: str) -> npt.NDArray[np.uint8]:
        """Return class ids as uint8, 255 ignored; InputError where they hold other numbers."""
        numbers = labels.cpu().numpy()
        count = len(self.classes)
        wrong = (numbers != IGNORE) & ((numbers < 0) | (numbers >= count))
        if wrong.any():
            value = int(numbers[wrong][0])
            message = f"the label of {name} holds {value}, which is none of {count} classes"
            hint = f"UncertaintyCallback(ignore_index={value}) ignores it"
            raise InputError(message, hint=hint)
        return numbers.astype(np.uint8)

    def state(self) -> dict[str, Any]:
        """Return the counts, to be added by :meth:`merge` in another process."""
        tallies = [(tally.total, tally.frames) for tally in self._gatherer.tallies]
        return {
            "frames": self.frames,
            "sums": self._sums,
            "forms": self._gatherer.forms,
            "tallies": tallies,
        }

    def merge(self, state: Mapping[str, Any]) -> None:
        """Add the counts of another process."""
        self.frames += state["frames"]
        for score, value in state["sums"].items():
            self._sums[score] += value
        self._gatherer.forms |= state["forms"]
        for tally, (total, frames) in zip(self._gatherer.tallies, state["tallies"], strict=True):
            if total is not None:
                tally.add(total, "", frames)

    def numbers(self) -> dict[str, float]:
        """Return the numbers that the labels allow by their names, such as ``miou``,
        ``entropy_mean`` and ``entropy_auroc``.
        """
        result: dict[str, Any] = {"reasons": {}}
        self._gatherer.place_numbers(result)
        numbers: dict[str, float | None] = {**result["segmentation"], **result["calibration"]}
        numbers.pop("per_class", None)
        for score in self.scores:
            name = score.replace("-", "_")
            numbers[f"{name}_mean"] = self._sums[score] / STEPS_PER_FRACTION / self.frames
            for key, value in result["selective"][score].items():
                numbers[f"{name}_{key}"] = value
            for key in ("auroc", "aupr", "fpr95"):
                numbers[f"{name}_{key}"] = result["scores"][score]["pooled"][key]
        return {key: value for key, value in numbers.items() if value is not None}


def counted_scores(scores: Sequence[str]) -> tuple[str, ...]:
    """Return the scores whose maps are needed for the numbers of some scores."""
    return tuple(dict.fromkeys((*scores, CONFIDENCE)))


def _anomaly_labels(labels: Tensor, name: str) -> npt.NDArray[np.uint8]:
    """Return anomaly labels as uint8; InputError where they hold other numbers than 0, 1, 255."""
    numbers = labels.cpu().numpy()
    wrong = (numbers != 0) & (numbers != 1) & (numbers != IGNORE)
    if wrong.any():
        value = int(numbers[wrong][0])
        message = f"the anomaly label of {name} holds {value}"
        raise InputError(message, hint="0 is normal, 1 an anomaly, 255 is ignored")
    return numbers.astype(np.uint8)
