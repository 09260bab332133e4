"""Gather the counts of a whole run, frame by frame in constant memory, and turn them into one result.

The evaluator sees arrays only: whether they come from files or straight from a network, the stored form of each score
is what is counted, so both ways give the same numbers to the last digit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from segunc.data.labels import LabelMap
from segunc.errors import InputError
from segunc.metrics import calibration, segmentation
from segunc.metrics.frame_counts import CONFIDENCE, FrameCounts, LabelledMaps, count_frame, decode_keys
from segunc.metrics.pixel_curves import (
    KEYS,
    auroc,
    average_precision,
    best_f1,
    detection_curve,
    empty_counts,
    fpr_at_recall,
)
from segunc.metrics.probability_sums import mean_scores

Array = npt.NDArray[Any]
Result = dict[str, Any]
"""The content of ``metrics.json``."""
POOLED = ("auroc", "aupr", "fpr95", "best_f1", "threshold")
CALIBRATION = ("ece", "nll", "brier")


class Evaluator:
    """Counts frames one by one; :meth:`result` gives the numbers.

    A frame is counted whole or not at all, so all scores are compared over the same pixels. Frames that cannot be
    counted are listed in the result with the reason, and the run goes on.

    Args:
        score_names: the scores to evaluate; every frame with an anomaly label must bring all of them.
        classes: the label map, or the class names by train id; None where no class labels are evaluated.

    Raises:
        InputError: a score or a class is named twice, or there is nothing to evaluate.
    """

    def __init__(self, score_names: Sequence[str], classes: LabelMap | Sequence[str] | None) -> None:
        self.score_names = tuple(score_names)
        self.classes = tuple(classes.classes if isinstance(classes, LabelMap) else classes or ())
        for kind, names in (("score", self.score_names), ("class", self.classes)):
            if len(set(names)) != len(names):
                raise InputError(f"the {kind} names {', '.join(names)}", "each name once", "rename one of them")
        if not self.score_names and not self.classes:
            raise InputError("neither scores nor classes to evaluate", "at least one of them")
        self._forms: dict[str, str] = {}
        self._scores = {name: empty_counts() for name in self.score_names}
        self._anomaly_pixels = np.zeros(3, np.int64)
        self._matrix = np.zeros((len(self.classes), len(self.classes)), np.int64)
        self._ignored = 0
        self._failures = empty_counts()
        self._probability_sums = np.zeros(3, np.int64)
        self._frames = dict.fromkeys(("seen", "scored", "anomaly", "both", "labelled"), 0)
        self._left_out: list[dict[str, str]] = []

    def update(
        self,
        frame: str,
        stored: Mapping[str, Array],
        prediction: npt.NDArray[np.uint8] | None = None,
        mean_probabilities: npt.NDArray[np.float32] | None = None,
        labels: npt.NDArray[np.uint8] | None = None,
        anomaly: npt.NDArray[np.uint8] | None = None,
    ) -> bool:
        """Count a frame.

        Args:
            frame: its name.
            stored: score name -> map ``[H, W]`` in its stored form (uint16 codes, or floats, taken as float16).
            prediction: class ids uint8 ``[H, W]``.
            mean_probabilities: float32 ``[C, H, W]``, mean over the draws.
            labels: train ids uint8 ``[H, W]``, 255 ignored.
            anomaly: uint8 ``[H, W]``, 0 normal, 1 anomaly, 255 ignored.

        Returns:
            whether the frame was counted; where not, the result names it and says why.
        """
        maps = LabelledMaps(frame, stored, prediction, mean_probabilities, labels, anomaly)
        try:
            counts = count_frame(maps, self.score_names, len(self.classes))
            self._check_forms(counts)
        except InputError as error:
            self.leave_out(frame, str(error))
            return False
        self._add(counts)
        return True

    def leave_out(self, frame: str, reason: str) -> None:
        """Note a frame that cannot be counted, one that could not be read for instance."""
        self._frames["seen"] += 1
        self._left_out.append({"frame": frame, "reason": reason})

    def result(self) -> Result:
        """The numbers of all frames so far, in the form of ``metrics.json``.

        Every number that cannot be made is None, and ``reasons`` says why under its dotted path.

        Raises:
            InputError: no frame could be counted.
        """
        if self._frames["scored"] == 0:
            first = f" (first {self._left_out[0]['frame']}: {self._left_out[0]['reason']})" if self._left_out else ""
            raise InputError(
                f"none of {self._frames['seen']} frames could be scored{first}",
                "maps and labels of the same frames",
                "check that the label folder belongs to these maps",
            )
        reasons: dict[str, str] = {}
        result: Result = {"scores": {name: {"pooled": self._pooled(name, reasons)} for name in self.score_names}}
        result["segmentation"] = self._segmentation(reasons)
        result["calibration"] = self._calibration(reasons)
        result["reasons"] = reasons
        result["counts"] = self._numbers()
        result["left_out"] = list(self._left_out)
        return result

    def _check_forms(self, counts: FrameCounts) -> None:
        for name, form in counts.forms.items():
            if self._forms.get(name, form) != form:
                raise InputError(
                    f"the map '{name}' is stored as {form}", f"{self._forms[name]}, as in the frames before it"
                )

    def _add(self, counts: FrameCounts) -> None:
        self._frames["seen"] += 1
        self._frames["scored"] += 1
        self._forms |= counts.forms
        for name, rows in counts.scores.items():
            self._scores[name] += rows
        if counts.anomaly_pixels is not None:
            self._frames["anomaly"] += 1
            self._frames["both"] += int(counts.anomaly_pixels[0] > 0 and counts.anomaly_pixels[1] > 0)
            self._anomaly_pixels += counts.anomaly_pixels
        if counts.matrix is not None:
            self._frames["labelled"] += 1
            self._matrix += counts.matrix
            self._ignored += counts.ignored
        if counts.failures is not None:
            self._failures += counts.failures
        if counts.probability_sums is not None:
            self._probability_sums += counts.probability_sums

    def _pooled(self, name: str, reasons: dict[str, str]) -> dict[str, float | None]:
        curve = detection_curve(self._scores[name])
        why = curve.undefined
        if self._frames["anomaly"] == 0:
            why = "no frame has an anomaly label"
        elif why and self._anomaly_pixels[2] and not self._anomaly_pixels[1]:
            why += f"; {self._anomaly_pixels[2]} pixels are ignored"
        if why:
            reasons |= {f"scores.{name}.pooled.{number}": why for number in POOLED}
            return dict.fromkeys(POOLED)
        best = best_f1(curve)
        assert best is not None
        threshold = decode_keys(name, self._forms[name], np.array([best[1]], np.uint16))[0]
        values = (auroc(curve), average_precision(curve), fpr_at_recall(curve), best[0], float(threshold))
        return dict(zip(POOLED, values, strict=True))

    def _why_no_class_labels(self) -> str | None:
        if not self.classes:
            return "no class labels were given"
        if self._frames["labelled"] == 0:
            return "no frame has both class labels and a prediction"
        return None if self._matrix.any() else "every pixel of the class labels is ignored"

    def _segmentation(self, reasons: dict[str, str]) -> Result:
        why = self._why_no_class_labels()
        iou = [None if np.isnan(value) else float(value) for value in segmentation.class_iou(self._matrix)]
        if why:
            reasons |= dict.fromkeys(("segmentation.miou", "segmentation.accuracy"), why)
        for name, value in zip(self.classes, iou, strict=True):
            if value is None:
                reasons[f"segmentation.per_class.{name}"] = why or "the class is in neither labels nor predictions"
        return {
            "miou": segmentation.mean_iou(self._matrix),
            "accuracy": segmentation.accuracy(self._matrix),
            "per_class": dict(zip(self.classes, iou, strict=True)),
        }

    def _calibration(self, reasons: dict[str, str]) -> dict[str, float | None]:
        values: dict[str, float | None] = dict.fromkeys(CALIBRATION)
        why = self._why_no_class_labels()
        if why:
            reasons |= {f"calibration.{number}": why for number in CALIBRATION}
            return values
        pixels = int(self._matrix.sum())
        if int(self._failures.sum()) == pixels:
            confidence = 1.0 - decode_keys(CONFIDENCE, self._forms[CONFIDENCE], np.arange(KEYS, dtype=np.uint16))
            used = self._failures.any(axis=0)  # keys of floats outside 0..1 exist but never occur
            weight = self._failures.sum(axis=0)
            sums = calibration.bin_confidences(confidence[used], self._failures[0, used], weight[used])
            values["ece"] = calibration.expected_calibration_error(sums)
        else:
            reasons["calibration.ece"] = f"not every labelled frame has a map '{CONFIDENCE}'"
        if int(self._probability_sums[0]) == pixels:
            values["nll"], values["brier"] = mean_scores(self._probability_sums)
        else:
            why = "needs the mean probabilities of all classes, which maps on disk do not hold; evaluate with the model"
            reasons |= dict.fromkeys(("calibration.nll", "calibration.brier"), why)
        return values

    def _numbers(self) -> dict[str, int]:
        normal, anomaly, ignored = (int(n) for n in self._anomaly_pixels)
        return {
            "frames": self._frames["seen"],
            "frames_scored": self._frames["scored"],
            "frames_left_out": self._frames["seen"] - self._frames["scored"],
            "anomaly_frames": self._frames["anomaly"],
            "anomaly_frames_with_both_classes": self._frames["both"],
            "pixels": normal + anomaly,
            "anomaly_pixels": anomaly,
            "normal_pixels": normal,
            "ignored_pixels": ignored,
            "labelled_frames": self._frames["labelled"],
            "labelled_pixels": int(self._matrix.sum()),
            "ignored_label_pixels": self._ignored,
        }
