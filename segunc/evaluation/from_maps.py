"""Evaluate a folder of uncertainty maps, of this tool or any other, against its labels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy.typing as npt

from segunc.core.errors import InputError
from segunc.data.layouts import possible_labels
from segunc.decisions.flags import calibrated_frames, check_promises
from segunc.evaluation.evaluator import DEFAULT_MEASURES, Evaluator, Measures, Read, Result
from segunc.evaluation.parts import CONFIDENCE
from segunc.maps.folder import PREDICTION
from segunc.maps.labelled import Labels, LabelSources, ReviewLabels, choose_scores, folder_of
from segunc.maps.reader import MapsReader
from segunc.maps.regions import Mask
from segunc.maps.shards import frame_times

NO_LABEL = "no label carries its name"  # why a frame is left out that nobody has labelled


@dataclass(frozen=True)
class MapsSource:
    """The maps that are evaluated.

    Attributes:
        folder: of ``SCORE/FRAME.{png,npy,...}`` and ``prediction/FRAME.png``, with or without a
            manifest.
        scores: to evaluate; None for all.
        choose: returns those of the frames' names that are evaluated.
        fps: frames a second, where the images of maps without times are a video.
    """

    folder: Path
    scores: Sequence[str] | None = None
    choose: Callable[[Sequence[str]], Sequence[str]] = list
    fps: float | None = None


def evaluate_maps(
    source: MapsSource, labels: LabelSources, measures: Measures = DEFAULT_MEASURES
) -> tuple[Result, Evaluator]:
    """Evaluate maps against labels, in bounded memory.

    Return the content of ``metrics.json``, whose ``left_out`` are frames that could not be counted
    with the reason, and the counts behind it.
    """
    reader = MapsReader(source.folder)
    label_files = labels.find(reader, reader.frames)
    scores = choose_scores(reader, source.scores)
    names = source.choose(reader.frames)
    anomalies = None
    if labels.anomaly_labels is not None:
        anomalies = label_files.anomaly_files.keys() & {*names}
    times = frame_times(reader.frames, reader.records, reader.manifest, source.fps)
    evaluator = Evaluator(
        scores,
        None if labels.labels is None else labels.label_map,
        names,
        anomalies=anomalies,
        time_of=dict(zip(reader.frames, times, strict=True)).get,
        stamp_of=lambda frame: reader.records.get(frame, {}).get("stamp"),
        unit_codes={name for name in reader.scores if reader.form(name) == "unit-code"},
        measures=measures,
    )
    tested = _leave_out_calibrated(evaluator, reader, label_files, names)
    # Where no frame has a prediction the result says so; where only some lack it, these are left
    # out.
    predicted = any(reader.has(frame, PREDICTION) for frame in names)
    places = any(threshold.preparation.place_ids for threshold in evaluator.flag.values())
    read = partial(read_frame, reader, scores, label_files, predicted, places=places)
    _count(evaluator, reader, scores, tested, read)
    result = evaluator.numbers(read)
    anomaly_files = label_files.anomaly_files
    class_files = label_files.class_files
    if labels.holds_anomaly is not None:  # both kinds lie in one folder
        anomaly_files = class_files = {**anomaly_files, **class_files}
    result["counts"] |= _unmatched("anomaly", labels.anomaly_labels, anomaly_files, names)
    result["counts"] |= _unmatched("class", labels.labels, class_files, names)
    if reader.unfinished:
        result["unfinished"] = reader.unfinished
    return result, evaluator


def _leave_out_calibrated(
    evaluator: Evaluator, reader: MapsReader, label_files: ReviewLabels, names: Sequence[str]
) -> list[str]:
    """Leave out the frames that thresholds were calibrated on, and return the others."""
    labelled = label_files.labelled(names)
    run = (reader.manifest or {}).get("run", {})
    check_promises(evaluator.flag, run, reader.sizes(labelled))

    def identities(score: str) -> list[tuple[str, str]]:
        return [(name, reader.identity(name, score)) for name in labelled]

    reasons = calibrated_frames(evaluator.flag, identities)
    tested = [name for name in labelled if name not in reasons]
    evaluator.leave_out_units(tested, reader.frames, reader.identity)
    return evaluator.leave_out_all(names, reasons)


def _count(
    evaluator: Evaluator,
    reader: MapsReader,
    scores: Sequence[str],
    names: Sequence[str],
    read: Read,
) -> None:
    """Count frames, and leave out those that failed when they were predicted."""
    # This tool's maps never hold scores in more than 16 bits.
    if reader.manifest is None:
        needed = {*scores, CONFIDENCE}
        if any(reader.may_hold_floats(name) for name in needed):
            evaluator.find_bins(names, read)
    evaluator.count(names, read)
    for failure in (reader.manifest or {}).get("failed", []):
        if failure["name"] not in reader.frames:
            reason = f"failed when it was predicted: {failure['reason']}"
            evaluator.leave_out(failure["name"], reason)


def _unmatched(
    kind: str, source: Labels | None, files: Mapping[str, Path], names: Sequence[str]
) -> dict[str, int]:
    """Return how many frames have no label of a kind, and how many labels no frame.

    Many labels that no frame claims mean that the maps cover only a part of the set.
    """
    if source is None:
        return {}
    if isinstance(source, Mapping):
        every_label = set(source.values())
    else:
        every_label = set(possible_labels(folder_of(source)))
    return {
        f"frames_without_{kind}_label": len(set(names) - files.keys()),
        f"{kind}_labels_without_frame": len(every_label - set(files.values())),
    }


def read_frame(
    reader: MapsReader,
    scores: Sequence[str],
    label_files: ReviewLabels,
    predicted: bool | None,
    frame: str,
    *,
    places: bool = False,
) -> dict[str, Any]:
    """Return the fields of a :class:`LabelledFrame`, and nothing that its labels have no use for.

    Args:
        reader: of the maps.
        scores: that are evaluated.
        label_files: of the frames.
        predicted: whether the frame must have a prediction; None takes one where it is there.
        frame: its name.
        places: whether a threshold needs the prediction to find the place that it flags.
    """
    # What lies outside of the region was not predicted: its maps hold zeros, which are no scores.
    anomaly = label_files.anomaly(frame)
    labels = label_files.classes(frame)
    prediction = None
    needed: set[str] = set()
    if anomaly is not None:
        needed.update(scores)
    if labels is not None:
        if predicted or (predicted is None and reader.has(frame, PREDICTION)):
            prediction = reader.prediction(frame)
        needed.update(name for name in (*scores, CONFIDENCE) if reader.has(frame, name))
    elif anomaly is None:
        raise InputError(NO_LABEL)
    if places and prediction is None and reader.has(frame, PREDICTION):
        prediction = reader.prediction(frame)
    stored = {name: reader.read_stored(frame, name) for name in sorted(needed)}
    return {
        "stored": stored,
        "prediction": prediction,
        "labels": labels,
        "anomaly": anomaly,
        "kept": _kept_of(reader, stored.values()),
    }


def _kept_of(reader: MapsReader, maps: Iterable[npt.NDArray[Any]]) -> Mask | None:
    """Return which pixels of a frame with these maps count; None where all do."""
    for values in maps:
        return reader.kept(values.shape)
    return None
