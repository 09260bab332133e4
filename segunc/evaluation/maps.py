"""Evaluate a folder of uncertainty maps, of any tool, against labels. Nothing here knows a network."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from segunc.core.errors import InputError
from segunc.core.progress import ConsoleProgress
from segunc.data.entry import BINARY, AnomalyEncoding, check_masks
from segunc.data.labels import LabelMap
from segunc.evaluation.evaluator import Evaluation, EvaluationOptions, finish
from segunc.evaluation.labelled_frame import CONFIDENCE, LabelledFrame
from segunc.maps.folder import PREDICTION
from segunc.maps.labelled import Labels, LabelSources, ReviewLabels, choose_scores, every_label
from segunc.maps.reader import MapsReader, check_classes

NO_LABEL = "no label carries its name"  # why a frame is left out that nobody has labelled


def evaluate_maps(
    maps: Path,
    *,
    anomaly_labels: Labels | None = None,
    labels: Labels | None = None,
    label_map: LabelMap | None = None,
    anomaly_encoding: AnomalyEncoding = BINARY,
    options: EvaluationOptions | None = None,
) -> Evaluation:
    """Evaluate a folder of maps in bounded memory; frames that could not be counted stand in ``left_out`` with the reason.

    Args:
        maps: a folder of ``SCORE/FRAME.{png,npy,...}`` and ``prediction/FRAME.png``, with or without a manifest.
        anomaly_labels: anomaly masks; a folder, or frame name -> file where a data set names them its own way.
        labels: masks of class ids, likewise, whose values ``label_map`` explains.

    Raises:
        InputError: there are no maps, a score is unknown, or the label map does not fit the maps' classes.
        PartialFailure: no label belongs to a frame, or not one frame could be counted.
    """
    options, reader = options or EvaluationOptions(), MapsReader(maps)
    classes = None if labels is None else label_map
    if classes is not None:
        check_classes(reader, classes)
    label_files = LabelSources(anomaly_labels, anomaly_encoding, labels, classes).find(reader, reader.frames)
    check_masks(label_files.anomaly_files.values(), anomaly_encoding)
    chosen = choose_scores(reader, options.scores)
    codes = {name for name in reader.scores if reader.form(name) == "unit-code"}
    evaluator = options.evaluator(
        chosen,
        classes,
        reader.frames,
        anomalies=None if anomaly_labels is None else label_files.anomaly_files,
        time_of=lambda frame: reader.records.get(frame, {}).get("time"),
        unit_codes=codes,
    )
    inputs = _FrameInputs(reader, chosen, label_files, codes)
    if inputs.may_hold_floats():
        evaluator.find_bins(inputs.float_maps())
    counted = []
    for frame in ConsoleProgress().follow(reader.frames):
        try:
            arrays = inputs.read(frame)
        except InputError as error:
            evaluator.leave_out(frame, str(error))
        else:
            if evaluator.update(frame, **arrays) and arrays["anomaly"] is not None:
                counted.append(frame)
    frames = set(reader.frames)
    for failure in (reader.manifest or {}).get("failed", []):
        if failure["name"] not in frames:
            evaluator.leave_out(failure["name"], f"failed when it was predicted: {failure['reason']}")
    result = evaluator.result()
    kinds = ("anomaly", anomaly_labels, label_files.anomaly_files), ("class", labels, label_files.class_files)
    for kind, source, files in kinds:
        if source is not None:
            result["counts"][f"frames_without_{kind}_label"] = len(frames - files.keys())
            # Many labels that no frame claims mean that the maps cover only a part of the set.
            result["counts"][f"{kind}_labels_without_frame"] = len(set(every_label(source)) - set(files.values()))
    if reader.unfinished:
        result["unfinished"] = reader.unfinished
    return finish(evaluator, result, options, lambda: inputs.anomaly_frames(counted))


@dataclass(frozen=True)
class _FrameInputs:
    """Reads what the evaluator needs of a frame, and nothing that its labels have no use for."""

    reader: MapsReader
    scores: Sequence[str]
    labels: ReviewLabels
    codes: Collection[str]  # scores whose maps hold codes of this tool

    @cached_property
    def _has_predictions(self) -> bool:
        return any(self.reader.has(frame, PREDICTION) for frame in self.reader.frames)

    def may_hold_floats(self) -> bool:
        """Return whether another tool may have written scores in more than 16 bits: this one's maps never hold such."""
        names = {*self.scores, CONFIDENCE}
        return self.reader.manifest is None and any(self.reader.may_hold_floats(name) for name in names)

    def float_maps(self) -> Iterator[LabelledFrame]:
        """Yield all readable frames with their float maps alone."""
        for frame in ConsoleProgress(label="first look").follow(self.reader.frames):
            with suppress(InputError):  # said when the frame is counted
                arrays = self.read(frame)
                arrays["stored"] = {name: kept for name, kept in arrays["stored"].items() if kept.dtype.kind == "f"}
                yield LabelledFrame(frame, **arrays, unit_codes=self.codes)

    def anomaly_frames(self, frames: Sequence[str]) -> Iterator[LabelledFrame]:
        """Yield frames with their scores and anomaly labels."""
        for frame in ConsoleProgress(label="components").follow(frames):
            arrays = self.read(frame)
            yield LabelledFrame(frame, arrays["stored"], anomaly=arrays["anomaly"], unit_codes=self.codes)

    def read(self, frame: str) -> dict[str, Any]:
        """Return the arguments of :meth:`Evaluator.update`; raises InputError where a file is damaged, or there is no label."""
        # What lies outside of the region was not predicted: its maps hold zeros, which are no scores.
        anomaly, labels, prediction = self.labels.anomaly(frame), self.labels.classes(frame), None
        needed = set(self.scores if anomaly is not None else ())
        if labels is not None:
            # Where no frame has a prediction the result says so; where only this one lacks it, it is left out.
            prediction = self.reader.prediction(frame) if self._has_predictions else None
            needed.update(name for name in (*self.scores, CONFIDENCE) if self.reader.has(frame, name))
        elif anomaly is None:
            raise InputError(NO_LABEL)
        stored = {name: self.reader.read_stored(frame, name) for name in sorted(needed)}
        return {"stored": stored, "prediction": prediction, "labels": labels, "anomaly": anomaly}
