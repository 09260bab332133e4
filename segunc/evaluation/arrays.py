"""Frames of score maps, predictions and labels that are in memory, in any of the usual containers.

An array is of NumPy, a tensor of torch on any device, or anything that NumPy reads as one, a PIL
image for instance. Whatever comes in leaves as one :class:`ArrayFrame` for each label.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from segunc.core.errors import InputError, nearest
from segunc.core.terminal import counted
from segunc.data.labels import IGNORE, UNKNOWN

Array = npt.NDArray[Any]
DEFAULT_SCORE = "score"
"""The name of score maps that nobody named."""


@runtime_checkable
class HasScores(Protocol):
    """What a model returns of an image or of a batch."""

    @property
    def scores(self) -> Mapping[str, Any]:
        """Score maps ``[H, W]`` or ``[N, H, W]`` by name."""

    @property
    def prediction(self) -> Any:
        """Class ids of the same shape."""


@dataclass
class ArrayFrame:
    """The arrays of one frame.

    Attributes:
        name: of the frame.
        label: anomaly labels or class ids uint8 ``[H, W]``, 255 ignored.
        scores: score maps ``[H, W]`` by name.
        prediction: class ids ``[H, W]``.
        probabilities: of all classes, float32 ``[C, H, W]``.
        of_model: whether a model of this package made the maps just now.
    """

    name: str
    label: npt.NDArray[np.uint8]
    scores: dict[str, Array] = field(default_factory=dict)
    prediction: Array | None = None
    probabilities: npt.NDArray[np.float32] | None = None
    of_model: bool = False


@dataclass
class Maps:
    """What belongs to labels, frame by frame.

    Attributes:
        scores: score maps ``[H, W]`` of each score.
        prediction: class ids ``[H, W]``; None where there are none.
        probabilities: ``[C, H, W]``; None where there are none.
        of_model: as of :class:`ArrayFrame`.
    """

    scores: dict[str, list[Array]] = field(default_factory=dict)
    prediction: list[Array] | None = None
    probabilities: list[Array] | None = None
    of_model: bool = False

    def columns(self) -> dict[str, list[Array]]:
        """Return the arrays of each frame by what messages call them."""
        columns = {f"the score '{name}'": frames for name, frames in self.scores.items()}
        if self.prediction is not None:
            columns["prediction"] = self.prediction
        if self.probabilities is not None:
            columns["probabilities"] = self.probabilities
        return columns


def as_array(value: Any, argument: str) -> Array:
    """Return a value as a NumPy array, without a copy where its memory allows that.

    Raises:
        InputError: it is no array of numbers.
    """
    if hasattr(value, "detach"):  # a tensor of torch
        tensor = value.detach().cpu()
        # NumPy has no bfloat16, and float32 holds each of its values.
        array = tensor.float().numpy() if str(tensor.dtype) == "torch.bfloat16" else tensor.numpy()
    else:
        try:
            array = np.asarray(value)
        except ValueError as error:  # rows of different lengths
            raise InputError(f"{argument} is no array of numbers ({error})") from error
    if array.dtype.kind not in "biuf":
        raise InputError(
            f"{argument} is {type(value).__name__}, and not an array of numbers",
            hint="give a NumPy array, a torch tensor, or a list of them",
        )
    return np.asarray(array)


def split_frames(value: Any, argument: str, axes: int = 2) -> list[Array]:
    """Return the single frames of an array, of a batch, or of a list of both.

    Args:
        value: ``[H, W]``, ``[N, H, W]``, ``[N, 1, H, W]``, or a list of such; with three ``axes``
            each frame has one axis more in front.
        argument: what messages call it.
        axes: of one frame.

    Raises:
        InputError: an array has too few or too many axes, or there is none.
    """
    if _is_list_of_arrays(value):
        frames = []
        for item in value:
            frames += split_frames(item, argument, axes)
    else:
        frames = _split_array(as_array(value, argument), argument, axes)
    if not frames:
        raise InputError(f"{argument} holds no frame", hint="give at least one")
    return frames


def _is_list_of_arrays(value: Any) -> bool:
    if not isinstance(value, list | tuple):
        return False
    return not value or any(
        hasattr(item, "shape") or hasattr(item, "__array_interface__") for item in value
    )


def _first_array(value: Any, argument: str) -> Array:
    """Return the first array of a list, or the array itself."""
    if _is_list_of_arrays(value) and len(value):
        value = value[0]
    return as_array(value, argument)


def _split_array(array: Array, argument: str, axes: int) -> list[Array]:
    if array.ndim == 4 and axes == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim == axes:
        return [array]
    if array.ndim == axes + 1:
        return list(array)
    expected = "[H, W] or [N, H, W]" if axes == 2 else "[C, H, W] or [N, C, H, W]"
    raise InputError(
        f"{argument} has the shape {array.shape}, and {expected} is expected",
        hint="give a list of arrays where frames differ in size",
    )


def label_frames(labels: Any, names: Sequence[str] | None) -> dict[str, Array]:
    """Return the label of each frame by its name.

    Args:
        labels: array, batch, list, or a mapping from names.
        names: of the frames; None takes those of the mapping, or numbers: ``000000``, ...

    Raises:
        InputError: names repeat, or are more or fewer than the labels.
    """
    if isinstance(labels, Mapping):
        if names is not None:
            raise InputError("names are given twice: labels is a mapping with names of its own")
        by_name = {}
        for name, value in labels.items():
            if str(name) in by_name:
                raise _named_twice(name)
            by_name[str(name)] = _only_frame(value, f"the label of frame '{name}'")
        if not by_name:
            raise InputError("labels holds no frame", hint="give at least one")
        return by_name
    frames = split_frames(labels, "labels")
    if names is None:
        names = [f"{number:06}" for number in range(len(frames))]
    elif isinstance(names, str):
        raise InputError(f"names is the text '{names}'", hint=f"give a list: names=['{names}']")
    if len(names) != len(frames):
        raise InputError(f"{len(names)} names are given for {counted(len(frames), 'label')}")
    texts = [str(name) for name in names]
    if len({*texts}) != len(texts):
        raise _named_twice(next(text for text in texts if texts.count(text) > 1))
    return dict(zip(texts, frames, strict=True))


def _named_twice(name: object) -> InputError:
    """Return the error of two frames of one name."""
    return InputError(f"two frames are named '{name}'", hint="give each its own name")


def _only_frame(value: Any, argument: str, axes: int = 2) -> Array:
    frames = split_frames(value, argument, axes)
    if len(frames) > 1:
        raise InputError(
            f"{argument} holds {counted(len(frames), 'frame')}", hint="give one array for a name"
        )
    return frames[0]


def anomaly_label(values: Array, name: str, ignore: int) -> npt.NDArray[np.uint8]:
    """Return an anomaly label as uint8: 0 normal, 1 anomaly, 255 ignored.

    Raises:
        InputError: it is not of whole numbers, or holds another value.
    """
    label = _whole(values, name, "0 normal, 1 anomaly and 255 ignored")
    known = (label == 0) | (label == 1) | (label == ignore)
    if not known.all():
        unknown = np.unique(label[~known])[:8].tolist()
        raise InputError(
            f"the label of frame '{name}' holds the values {unknown}, "
            f"none of 0 normal, 1 anomaly and {ignore} ignored",
            hint="for class ids give classes=19 or the names of the classes; "
            "another value of ignored pixels is ignore=VALUE",
        )
    return _with_ignored(label, ignore)


def class_label(values: Array, name: str, classes: int, ignore: int) -> npt.NDArray[np.uint8]:
    """Return a label of class ids as uint8, 255 ignored.

    Raises:
        InputError: it is not of whole numbers, or holds an id that is no class.
    """
    label = _whole(values, name, "class ids")
    known = ((label >= 0) & (label < classes)) | (label == ignore)
    if not known.all():
        unknown = np.unique(label[~known])[:8].tolist()
        raise InputError(
            f"the label of frame '{name}' holds the class ids {unknown}, "
            f"which are neither in 0..{classes - 1} nor {ignore}, the ignored value",
            hint="give train ids, or classes=NUMBER and ignore=VALUE as they are in the labels",
        )
    return _with_ignored(label, ignore)


def _whole(values: Array, name: str, meaning: str) -> Array:
    if values.dtype.kind == "f":
        raise InputError(
            f"the label of frame '{name}' is of type {values.dtype}, "
            f"and labels are whole numbers: {meaning}",
            hint="give labels.astype('uint8'), or labels.long() of torch; "
            "check that maps and labels are in this order",
        )
    return values


def _with_ignored(label: Array, ignore: int) -> npt.NDArray[np.uint8]:
    coded = label.astype(np.uint8)
    if ignore != IGNORE:
        coded[label == ignore] = IGNORE
    return coded


def class_names(classes: Any) -> tuple[str, ...]:
    """Return the names of classes; of a number of classes, their ids.

    Raises:
        InputError: it is one text or no number, or there are fewer than 2 or more than 254 classes.
    """
    if isinstance(classes, str):
        raise InputError(
            f"classes is the text '{classes}'", hint="give their number, or a list of their names"
        )
    listed: Any = classes
    if isinstance(classes, Integral) and classes is not True:
        listed = range(int(classes))
    if not isinstance(listed, Iterable):
        raise InputError(
            f"classes is {classes!r}", hint="give their number, or a list of their names"
        )
    names = tuple(map(str, listed))
    if not 2 <= len(names) <= UNKNOWN:
        raise InputError(f"classes says {len(names)} classes; 2 to {UNKNOWN} can be counted")
    if len({*names}) != len(names):
        raise InputError("two classes have one name", hint="give each class its own name")
    return names


def maps_of(maps: Any, names: Sequence[str] | None, score: str, *, predicted: bool) -> Maps:
    """Return what maps hold, frame by frame.

    Args:
        maps: arrays, what a model returned, or a list of either. With ``names`` a mapping from
            these; without, a mapping from the names of scores is possible too.
        names: of the frames; None where labels are no mapping.
        score: the name of score maps that come without one.
        predicted: whether arrays are class ids or probabilities, by their type, and not scores.

    Raises:
        InputError: maps are of a type or shape that says nothing.
    """
    maps = in_order_of(names, maps, "maps")
    maps = _without_batches(maps)
    if isinstance(maps, HasScores):
        return _of_model([maps])
    if isinstance(maps, Mapping):
        by_score: dict[str, list[Array]] = {}
        for name, values in maps.items():
            by_score[str(name)] = split_frames(values, f"score '{name}'")
        return Maps(scores=by_score)
    if isinstance(maps, list | tuple) and maps and all(isinstance(m, HasScores) for m in maps):
        return _of_model(maps)
    if predicted:
        return _predicted(maps)
    return Maps(scores={score: split_frames(maps, "maps")})


def _without_batches(maps: Any) -> Any:
    """Return maps with the batches of a model taken apart, whose images may differ in size."""
    if _is_batch(maps):
        return [*maps]
    if not isinstance(maps, list | tuple) or not any(map(_is_batch, maps)):
        return maps
    results: list[Any] = []
    for item in maps:
        results += [*item] if _is_batch(item) else [item]
    return results


def _is_batch(value: Any) -> bool:
    """Return whether a value is a result of a model that yields those of its images."""
    # Of the type, because to ask the value would stack the maps.
    return hasattr(type(value), "scores") and hasattr(type(value), "__iter__")


def in_order_of(names: Sequence[str] | None, values: Any, argument: str) -> Any:
    """Return the values of each name.

    Args:
        names: of the frames; None where labels are no mapping, so that values have their order.
        values: a mapping from these names.
        argument: what messages call the values.

    Raises:
        InputError: values are no mapping from these names.
    """
    if names is None:
        return values
    if not isinstance(values, Mapping):
        raise InputError(
            f"labels is a mapping from the names of frames, and {argument} is not",
            hint=f"give {argument} as a mapping from the same names, or both as lists",
        )
    by_name = {str(name): value for name, value in values.items()}
    if {*by_name} != {*names}:
        raise _other_names(by_name, names, argument)
    return [by_name[name] for name in names]


def _other_names(values: Mapping[str, Any], names: Sequence[str], argument: str) -> InputError:
    """Return the error of values whose names are not those of the labels."""
    others = sorted({*values} - {*names})
    if others:
        near = nearest(others[0], names)
        fault = f"{argument} has '{others[0]}', and no label is named so{near}"
    else:
        missing = min({*names} - {*values})
        fault = f"a label is named '{missing}', and {argument} has no such name"
    hint = f"name {argument} and labels alike"
    if argument == "maps":
        hint += "; for a mapping from names of scores give labels as a list"
    return InputError(fault, hint=hint)


def _of_model(results: Sequence[HasScores]) -> Maps:
    """Return the maps of one or many results of a model."""
    first = list(results[0].scores)
    maps = Maps(scores={name: [] for name in first}, prediction=[], of_model=True)
    for result in results:
        if {*result.scores} != {*first}:
            raise InputError(
                f"one frame has the scores {', '.join(result.scores)}, "
                f"and another {', '.join(first)}",
                hint="make all maps with the same scores",
            )
        for name, values in result.scores.items():
            maps.scores[name] += split_frames(values, f"score '{name}'")
        assert maps.prediction is not None
        maps.prediction += split_frames(result.prediction, "prediction")
    return maps


def _predicted(maps: Any) -> Maps:
    """Return class ids or probabilities, whichever arrays are."""
    first = _first_array(maps, "maps")
    if first.dtype.kind == "f":
        if first.ndim < 3:
            raise InputError(
                "maps are floats [H, W], which are neither class ids nor probabilities",
                hint="score maps go with prediction=, the class ids; probabilities are "
                "[C, H, W] or [N, C, H, W]",
            )
        return Maps(probabilities=split_frames(maps, "maps", axes=3))
    return Maps(prediction=split_frames(maps, "maps"))
