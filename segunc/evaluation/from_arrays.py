"""Evaluate score maps, predictions and probabilities that are in memory.

They are counted as the maps that ``segunc predict`` would have written of them: scores that a model
just made are rounded to their stored form, and so are arrays that were read from such maps, which
loses nothing. All other arrays are counted as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from segunc.core.errors import InputError, nearest
from segunc.core.terminal import counted
from segunc.data.labels import IGNORE
from segunc.evaluation.arrays import (
    DEFAULT_SCORE,
    Array,
    ArrayFrame,
    Maps,
    anomaly_label,
    class_label,
    in_order_of,
    maps_of,
    split_frames,
)
from segunc.evaluation.evaluator import Evaluator, Measures, Result
from segunc.evaluation.parts import CONFIDENCE
from segunc.maps.encoding import class_ids, decode_unit, encode_score, encode_unit
from segunc.scores import SCORES, stored_as_codes


def anomaly_frames(
    maps: Any,
    labels: Mapping[str, Array],
    scores: Sequence[str] | None,
    ignore: int,
    *,
    by_name: bool,
) -> list[ArrayFrame]:
    """Return frames with score maps and anomaly labels.

    Args:
        maps: as of :func:`segunc.evaluation.arrays.maps_of`.
        labels: of each frame by name.
        scores: the names of the scores that are evaluated; None for all.
        ignore: the label of ignored pixels.
        by_name: whether maps are named as labels are.
    """
    names = [*labels] if by_name else None
    arrays = maps_of(maps, names, _name_of_arrays(scores), predicted=False)
    arrays = replace(arrays, prediction=None, scores=_chosen(arrays.scores, scores))
    frames = _frames(arrays, labels)
    for frame in frames:
        frame.label = anomaly_label(labels[frame.name], frame.name, ignore)
    return frames


def class_frames(
    maps: Any,
    labels: Mapping[str, Array],
    scores: Sequence[str] | None,
    ignore: int,
    classes: int,
    *,
    by_name: bool,
    prediction: Any = None,
    probabilities: Any = None,
) -> list[ArrayFrame]:
    """Return frames with predictions, scores and labels of class ids.

    Probabilities give the prediction and the score of the confidence where there are none.

    Args:
        maps: class ids, probabilities or score maps, as :func:`anomaly_frames` takes them.
        labels: likewise.
        scores: likewise.
        ignore: likewise.
        classes: the number of classes.
        by_name: likewise.
        prediction: class ids of maps that are scores.
        probabilities: of all classes.
    """
    names = [*labels] if by_name else None
    are_scores = prediction is not None or probabilities is not None
    arrays = maps_of(maps, names, _name_of_arrays(scores), predicted=not are_scores)
    if prediction is not None:
        in_order = in_order_of(names, prediction, "prediction")
        arrays.prediction = split_frames(in_order, "prediction")
    if probabilities is not None:
        in_order = in_order_of(names, probabilities, "probabilities")
        arrays.probabilities = split_frames(in_order, "probabilities", axes=3)
    if arrays.prediction is None and arrays.probabilities is None:
        raise InputError(
            "class labels need a prediction, and there are only scores",
            hint="add prediction=, the class ids, or probabilities=",
        )
    confidence = arrays.scores.get(CONFIDENCE)
    if arrays.scores:
        arrays.scores = _chosen(arrays.scores, scores)
    if confidence is not None:
        arrays.scores[CONFIDENCE] = confidence
    frames = _frames(arrays, labels)
    for frame in frames:
        frame.label = class_label(labels[frame.name], frame.name, classes, ignore)
        _complete(frame, classes)
    return frames


def _name_of_arrays(scores: Sequence[str] | None) -> str:
    return scores[0] if scores and len(scores) == 1 else DEFAULT_SCORE


def _chosen(
    maps: Mapping[str, list[Array]], scores: Sequence[str] | None
) -> dict[str, list[Array]]:
    """Return the maps of the scores that are evaluated."""
    if not maps:
        raise InputError("maps hold no score", hint="give score maps [H, W]")
    if scores is None:
        return dict(maps)
    for name in scores:
        if name not in maps:
            raise InputError(
                f"scores names '{name}', and maps hold {', '.join(maps)}{nearest(name, maps)}",
                hint="name a score that there is",
            )
    return {name: maps[name] for name in scores}


def _frames(maps: Maps, labels: Mapping[str, Array]) -> list[ArrayFrame]:
    """Return the frames of maps; labels are still those that were given."""
    for column, arrays in maps.columns().items():
        if len(arrays) != len(labels):
            raise InputError(
                f"{column} has {counted(len(arrays), 'frame')}, and labels has {len(labels)}",
                hint="give one label for each map, in the same order",
            )
        for (name, label), array in zip(labels.items(), arrays, strict=True):
            if array.shape[-2:] != label.shape:
                raise InputError(
                    f"frame '{name}': {column} is {_size(array)}, and its label {_size(label)}",
                    hint="predict at the labels' size, or give the labels of these maps",
                )
    frames = []
    for number, name in enumerate(labels):
        frame = ArrayFrame(
            name=name,
            label=np.zeros(0, np.uint8),
            scores={score: arrays[number] for score, arrays in maps.scores.items()},
            of_model=maps.of_model,
        )
        if maps.prediction is not None:
            frame.prediction = maps.prediction[number]
        if maps.probabilities is not None:
            frame.probabilities = maps.probabilities[number]
        frames.append(frame)
    return frames


def _size(array: Array) -> str:
    return " x ".join(map(str, array.shape[-2:]))


def _complete(frame: ArrayFrame, classes: int) -> None:
    """Check the prediction and the probabilities of a frame, and make what they give."""
    if frame.probabilities is not None:
        if frame.probabilities.dtype.kind != "f":
            raise InputError(
                f"probabilities of frame '{frame.name}' are of type {frame.probabilities.dtype}",
                hint="give the output of a softmax",
            )
        if len(frame.probabilities) != classes:
            raise InputError(
                f"probabilities of frame '{frame.name}' are of {len(frame.probabilities)} "
                f"classes, and classes says {classes}",
                hint="give [C, H, W] or [N, C, H, W]",
            )
        frame.probabilities = frame.probabilities.astype(np.float32)
        if frame.prediction is None:
            frame.prediction = frame.probabilities.argmax(0)
        if CONFIDENCE not in frame.scores:
            frame.scores[CONFIDENCE] = _encoded_confidence(frame.probabilities)
    assert frame.prediction is not None
    if frame.prediction.dtype.kind == "f":
        raise InputError(
            f"the prediction of frame '{frame.name}' is of type {frame.prediction.dtype}, "
            "and class ids are whole numbers",
            hint="give probabilities.argmax(axis), or probabilities= for probabilities",
        )
    frame.prediction = class_ids(frame.prediction.astype(np.int64), frame.name)


def _encoded_confidence(probabilities: npt.NDArray[np.float32]) -> Array:
    """Return the codes of 1 - max p; where no label counts them, values may be anything."""
    complement = np.float32(1) - probabilities.max(0)
    return encode_unit(np.nan_to_num(complement, nan=0.0).clip(0.0, 1.0))


class _ArraySource:
    """The frames of an evaluation, with their scores in the form that is counted."""

    def __init__(self, frames: Sequence[ArrayFrame], scores: Sequence[str]) -> None:
        self.frames = {frame.name: frame for frame in frames}
        self.as_codes = {name for name in scores if self._are_codes(name)}

    @property
    def may_be_wide(self) -> bool:
        """Whether 16 bits may not hold a score."""
        for frame in self.frames.values():
            for name, values in frame.scores.items():
                if name not in self.as_codes and values.dtype in (np.float32, np.float64):
                    return True
        return False

    def _are_codes(self, score: str) -> bool:
        """Return whether a score is stored as codes, and all of its values are of such codes.

        Those of a model are rounded to them.
        """
        if not stored_as_codes(score):
            return False
        for frame in self.frames.values():
            values = frame.scores[score]
            if values.dtype.kind == "f" and not frame.of_model:
                counted = values[frame.label != IGNORE]
                in_range = ((counted >= 0) & (counted <= 1)).all()  # False of NaN
                if not in_range or (decode_unit(encode_unit(counted)) != counted).any():
                    return False
        return True

    def read(self, name: str) -> dict[str, Any]:
        """Return the fields of the :class:`LabelledFrame` of a frame, except for its label."""
        frame = self.frames[name]
        stored = {score: self._stored(frame, score) for score in frame.scores}
        return {
            "stored": stored,
            "prediction": frame.prediction,
            "mean_probabilities": frame.probabilities,
        }

    def _stored(self, frame: ArrayFrame, score: str) -> Array:
        values = frame.scores[score]
        if values.dtype.kind != "f":
            if score in self.as_codes and values.dtype == np.uint16:
                return values
            raise InputError(
                f"score '{score}' of frame '{frame.name}' is of type {values.dtype}, "
                "and scores are floats",
                hint="segunc.decode_unit(codes) decodes a uint16 map of this package; "
                "class ids go with classes=",
            )
        counted = frame.label != IGNORE
        finite = np.isfinite(values)
        lost = int((counted & ~finite).sum())
        if lost:
            raise InputError(
                f"score '{score}' of frame '{frame.name}' holds NaN or infinite values "
                f"at {lost} labelled pixels",
                hint="repair the map, or mark such pixels as ignored in labels",
            )
        if score in self.as_codes or (frame.of_model and score in SCORES):
            return encode_score(score, np.where(finite, values, 0))
        return values


class _AnomalySource(_ArraySource):
    def read(self, name: str) -> dict[str, Any]:
        return super().read(name) | {"anomaly": self.frames[name].label}


class _ClassSource(_ArraySource):
    def read(self, name: str) -> dict[str, Any]:
        return super().read(name) | {"labels": self.frames[name].label}


def evaluate_arrays(
    frames: Sequence[ArrayFrame],
    scores: Sequence[str],
    classes: Sequence[str] | None,
    measures: Measures,
) -> tuple[Result, Evaluator]:
    """Evaluate frames; return the content of ``metrics.json`` and the counts behind it.

    Args:
        frames: all with the same scores.
        scores: those that are evaluated.
        classes: names of the classes of the labels; None where labels are of anomalies.
        measures: what is measured.

    Raises:
        InputError: a frame cannot be counted.
    """
    held = [*frames[0].scores]
    names = [frame.name for frame in frames]
    source = _AnomalySource(frames, held) if classes is None else _ClassSource(frames, held)
    evaluator = Evaluator(
        scores, classes, names, anomalies=names if classes is None else None, measures=measures
    )
    evaluator.quiet = True
    if source.may_be_wide:
        evaluator.find_bins(names, source.read)
    for name in names:
        evaluator.update(name, **source.read(name))
        for left_out in evaluator.left_out:
            raise InputError(f"frame '{name}': {left_out['reason']}")
    return evaluator.numbers(source.read), evaluator
