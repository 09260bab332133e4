"""Results of evaluations side by side: numbers, differences, and what chance leaves of them."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

from segunc.core.errors import InputError
from segunc.core.terminal import counted, first_of, visible
from segunc.data.datasets import data_words
from segunc.decisions.guarantee import RISKS, fitted_of
from segunc.evaluation.flagged import FLAGGED_METRICS, JUDGED_METRICS, Hits
from segunc.evaluation.over_time import OBJECT_METRICS
from segunc.evaluation.parts import ByObject, Components, Metric, example_parts
from segunc.evaluation.resampling import (
    ANOMALY_LABELS,
    CLASS_LABELS,
    SIZES_OF_LABELS,
    UNIT_MEMBERS,
    Cell,
    Chance,
    EvaluationResult,
    NumberPath,
    paired_difference,
)
from segunc.evaluation.small_objects import small_objects_of
from segunc.maps.encoding import threshold_text

# Sections of a result that hold a part for each score.
BY_SCORE = ("scores", "selective", "flagged")
OF_ANOMALY_LABELS = ("scores",)
OF_CLASS_LABELS = ("segmentation", "calibration", "sets", "selective")
"""Sections whose numbers are of labels of one kind. Those of the others may be of both."""
OF_OBJECTS = ("size", "distance", "over_time")
"""Parts of the paths of numbers that count labelled objects."""
OF_GROUPS = ("groups", "group")
"""Parts of the paths of numbers of a group of frames, whose name comes next."""
OF_SECONDS = "seconds_to_detection"
# Parts of a path that are shown only when they are asked for: details, and thresholds that a metric
# chose, which are no quality of a model.
HIDDEN = (
    *("threshold", "thresholds", "pavpu_threshold", "per_class", "by_class", "f1"),
    *("size", "distance", "groups"),
)
NULL = "—"
ARROWS = {True: " ↑", False: " ↓", None: ""}  # whether higher or lower is better
_CHOSEN = ("threshold", "level", "units")
"""Numbers of a threshold that were chosen or given, and not measured: none is less than another."""
SETTINGS = {
    "size": "Size",
    "draws": "Draws",
    "seed": "Seed",
    "precision": "Precision",
    "scheme": "Scheme of the noise",
    "alpha": "Scale of the noise (alpha)",
    "scope": "Layers with noise",
    "mask": "Mask",
}
"""How frames were seen and drawn, and the words for it."""
FAILURE_AUPR = "failure_aupr"
SAME_SHARE = 0.02
"""Shares of wrong pixels that lie so near each other give nearly the same AUPR by chance."""
FITTED_WORDS = {
    "calibration": "calibration of the probabilities",
    "features_sha256": "bank of features",
    "anomaly": "sum of scores (anomaly)",
    "class_sets": "calibration of class sets",
}
"""What was fitted on a model and changes its maps, and the words for it."""
_NOT_RECORDED = "not recorded"
_HASH_LENGTH = 12  # characters of a SHA-256 that a heading shows
_MINUS = "−"
_MAX_DECIMALS = 6  # what is smaller is rounding: confidences are counted in float32


class _Column(NamedTuple):
    """A result, or one score of it, under its heading.

    ``paths`` leads from the label of a row to the number.
    """

    name: str
    result: EvaluationResult
    paths: Mapping[str, NumberPath]

    def cell(self, label: str) -> Cell:
        path = self.paths.get(label)
        if path is None:
            return Cell(None, reason="the file does not hold it")
        return self.result.cell(path)


@dataclass(frozen=True)
class Difference:
    """A column's number less the baseline's; the test, or why there is none."""

    value: float
    test: Chance | None = None
    reason: str | None = None


@dataclass(frozen=True)
class Row:
    """One number of every column.

    Attributes:
        label: dotted path; without the score where columns are scores.
        higher_is_better: None where neither is better.
        cells: the number of each column.
        best: the column that is better than every other one by more than chance; None where none
            is.
        differences: of each column to the baseline; None for itself and where a number lacks.
    """

    label: str
    higher_is_better: bool | None
    cells: tuple[Cell, ...]
    best: int | None
    differences: tuple[Difference | None, ...]


@dataclass(frozen=True)
class Comparison:
    """A table of results, and what stands above it.

    Attributes:
        columns: their headings.
        baseline: the index of the column that differences refer to.
        rows: the numbers.
        warnings: what cannot be compared.
        headings: a line on each result: its model, images, data, frames and thresholds.
        settings: a sentence on each setting in which the results differ.
        unlike_images: the columns whose images are others than the baseline's under equal names.
        changed_frames: a sentence on each column that shares some frames with the baseline under
            whose names it has other images.
        small_objects: a sentence on the small objects of results, where rows are of objects.
    """

    columns: tuple[str, ...]
    baseline: int
    rows: tuple[Row, ...]
    warnings: tuple[str, ...]
    headings: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    unlike_images: tuple[str, ...] = ()
    changed_frames: tuple[str, ...] = ()
    small_objects: tuple[str, ...] = ()


def higher_is_better(path: NumberPath) -> bool | None:
    """Return whether a number is better where it is higher; None where neither way is.

    The part that makes the number says so, or else a part that makes one of this name in another
    section.
    """
    metrics: dict[str, Metric] = {}
    metrics_of_path: dict[str, Metric] = {}
    for section, of_section in _metrics_by_section():
        for metric in of_section:
            metrics[metric.key] = metric
            if section == path[0]:
                metrics_of_path[metric.key] = metric
    metrics |= metrics_of_path
    # An IoU of a class and an F1 at a threshold are named by the class and the threshold.
    of_kind = ".".join((*path[-2:-1], "*"))
    named = metrics.get(of_kind) or metrics.get(path[-1])
    return named.higher_is_better if named else None


def _metrics_by_section() -> list[tuple[str, Sequence[Metric]]]:
    """Return the metrics of each part with the section that they belong to."""
    return [
        ("scores", Components.metrics),
        ("scores", ByObject.metrics),
        ("flagged", FLAGGED_METRICS),
        ("flagged", OBJECT_METRICS),
        ("verdicts", JUDGED_METRICS),
        *((part.section[0], part.metrics) for part in example_parts()),
    ]


_COUNTED = {
    ANOMALY_LABELS: ("anomaly_frames", "anomaly_pixels", "normal_pixels"),
    CLASS_LABELS: ("labelled_frames", "labelled_pixels"),
}
"""What a result counts of its labels, by their kind."""


def _labels_of(path: NumberPath) -> tuple[str, ...]:
    """Return the kinds of labels that a number depends on.

    What is flagged of known pixels depends on both: pixels that are labelled as an anomaly do not
    count.
    """
    if path[0] in OF_ANOMALY_LABELS:
        return (ANOMALY_LABELS,)
    if path[0] in OF_CLASS_LABELS:
        return (CLASS_LABELS,)
    of_anomalies = {metric.key for metric in Hits.metrics}
    if path[0] == "flagged" and (path[-1] in of_anomalies or set(OF_OBJECTS).intersection(path)):
        return (ANOMALY_LABELS,)
    return (ANOMALY_LABELS, CLASS_LABELS)


def _why_other_data(
    first: EvaluationResult, second: EvaluationResult, path: NumberPath
) -> str | None:
    """Return why a number of two results is of different data; None where it is not."""
    if any(_differing_counts(first, second, labels) for labels in _labels_of(path)):
        return "other data"
    sizes = {_smallest_object(first), _smallest_object(second)}
    if set(OF_OBJECTS).intersection(path) and len(sizes - {None}) > 1:
        return "objects of other sizes count"
    groups = _counts_of_group(first, path), _counts_of_group(second, path)
    if _differ(*groups):
        return "the group is of other frames"
    if path[-1] == OF_SECONDS and len(_frame_rates([first, second])) > 1:
        return "seconds by other frame rates (--fps)"
    return None


def _counts_of_group(result: EvaluationResult, path: NumberPath) -> Mapping[str, Any]:
    """Return how many frames and pixels the group of frames has that a number is of, and the hash
    of its labels; nothing where it is of no group, or the result does not say.
    """
    if len(path) < 4 or path[2] not in OF_GROUPS:
        return {}
    counts: Mapping[str, Any] = result.content["counts"].get("groups", {}).get(path[3], {})
    return counts


def _differ(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    """Return whether two records differ in a key that both have: results of earlier versions lack
    some.
    """
    return any(first[key] != second[key] for key in first.keys() & second.keys())


def _frame_rates(results: Sequence[EvaluationResult]) -> list[float]:
    """Return the frame rates that gave the images of results their times, each once."""
    rates = [result.content.get("run", {}).get("fps") for result in results]
    return list(dict.fromkeys(rate for rate in rates if rate is not None))


def _differing_counts(first: EvaluationResult, second: EvaluationResult, labels: str) -> list[str]:
    """Return the counts that tell that two results are of different labels of a kind.

    Each is ``name (n and m)``.
    """
    keys = _COUNTED[labels]
    differing = []
    for key in keys:
        of_first = first.content["counts"].get(key)
        of_second = second.content["counts"].get(key)
        if of_first != of_second:
            differing.append(f"{key} ({of_first} and {of_second})")
    if not differing and has_other_labels(first, second, labels):
        differing.append(
            f"{labels}: as many pixels of as many frames, with other labels, sizes or names"
        )
    return differing


def has_other_labels(first: EvaluationResult, second: EvaluationResult, labels: str) -> bool:
    """Return whether two results are of other labels of a kind, by the hashes that both record."""
    keys = (labels, SIZES_OF_LABELS[labels])
    counts = []
    for result in (first, second):
        recorded = result.content["counts"]
        counts.append({key: recorded[key] for key in keys if recorded.get(key) is not None})
    return _differ(*counts)


def _smallest_object(result: EvaluationResult) -> int | None:
    """Return the pixels of the smallest labelled object of a result; of earlier versions 0.

    None where the result has no anomaly label.
    """
    if not result.content["counts"].get("anomaly_frames"):
        return None
    return int(result.content.get("run", {}).get("smallest_object", 0))


def data_warnings(results: Sequence[EvaluationResult]) -> list[str]:
    """Return one line for each result that is of other data than the first."""
    warnings = []
    first = results[0]
    for other in results[1:]:
        differing: list[str] = []
        for labels in _COUNTED:
            differing += _differing_counts(first, other, labels)
        if differing:
            warnings.append(
                f"not comparable: {first.name} and {other.name} differ in {', '.join(differing)}"
            )
        size = _smallest_object(first)
        other_size = _smallest_object(other)
        if size is not None and other_size is not None and size != other_size:
            warnings.append(
                f"numbers of objects are not comparable: {first.name} and {other.name} count "
                f"labelled regions from {size} and {other_size} pixels on"
            )
        rates = _frame_rates([first, other])
        if len(rates) > 1:
            warnings.append(
                f"seconds are not comparable: {first.name} and {other.name} were evaluated by "
                f"--fps {rates[0]:g} and {rates[1]:g}"
            )
    return warnings


def _small_objects(columns: Sequence[_Column], labels: Collection[str]) -> Iterator[str]:
    """Yield a sentence on the small objects of the results of which rows show numbers of objects,
    and so may be of specks.
    """
    names: dict[str, dict[str, None]] = {}
    for column in columns:
        paths = [path for label, path in column.paths.items() if label in labels]
        warning = small_objects_of(column.result.content).warning
        if warning and any(_is_of_objects(path, column.result) for path in paths):
            names.setdefault(warning, {})[column.result.name] = None
    for warning, of_warning in names.items():
        yield f"{', '.join(of_warning)}: {warning}."


def _is_of_objects(path: NumberPath, result: EvaluationResult) -> bool:
    """Return whether a number counts labelled objects: by its part, or as a risk of missed ones."""
    if set(OF_OBJECTS).intersection(path):
        return True
    if path[0] != "flagged" or path[-1] not in ("risk", "upper"):
        return False
    # The numbers of the first control lie beside the threshold, those of others below their names.
    control = path[2] if len(path) > 3 else result.content["flagged"][path[1]].get("control")
    return bool(control == "missed-objects")


def has_other_images(first: EvaluationResult, second: EvaluationResult) -> bool:
    """Return whether two results are of frames of equal names with other images, by the hashes
    that both record; False where either records none.
    """
    counts = (first.content["counts"], second.content["counts"])
    names = {of_result.get("frame_names") for of_result in counts}
    images = {of_result.get("images") for of_result in counts}
    return len(names) == 1 and len(images) == 2 and None not in names | images


def _changed_frames(columns: Sequence[_Column], base: int) -> Iterator[str]:
    """Yield a sentence on each column of frames that the baseline holds, too, of which some have
    other images than there.

    Where all frames of two results have equal names and other images, :func:`has_other_images` says
    so.
    """
    baseline = columns[base]
    for column in columns:
        shared, changed = images_of_shared_frames(baseline.result, column.result)
        if changed:
            have = "has another image" if len(changed) == 1 else "have other images"
            yield (
                f"{column.name} less {baseline.name}: {len(changed)} of the {len(shared)} shared "
                f"frames {have} under the same name: {first_of(sorted(changed))}."
            )


def images_of_shared_frames(
    first: EvaluationResult, second: EvaluationResult
) -> tuple[list[str], list[str]]:
    """Return the frames that two results share by name, and those of them whose images differ, by
    the hashes that both record; nothing where either records none.

    Where all frames of both have equal names and other images, :func:`has_other_images` says so,
    and none is named here.
    """
    if first.replicates is None or second.replicates is None:
        return [], []
    images = first.replicates.images
    other_images = second.replicates.images
    shared = [name for name in other_images if name in images]
    changed = [name for name in shared if images[name] != other_images[name]]
    if len(changed) == len(images) == len(other_images):
        changed = []
    return shared, changed


def images_words(run: Mapping[str, Any]) -> str:
    """Return the folder of the maps or images of a result, such as ``maps in maps_fog``; empty
    where it records none.

    Args:
        run: what the result records of how it was made.
    """
    if run.get("maps_in"):
        return f"maps in {run['maps_in']}"
    if run.get("method") and run.get("labels_in"):  # a model sees the images of its data set
        return f"images in {run['labels_in']}"
    return ""


def settings_words(run: Mapping[str, Any]) -> dict[str, str]:
    """Return how the frames of a run were seen and drawn in words, by the keys of
    :data:`SETTINGS`.
    """
    size = run.get("size")
    mask = run.get("mask_sha256")
    return {
        "size": f"{size[0]} x {size[1]}" if size else "of the model",
        "draws": str(run.get("draws", _NOT_RECORDED)),
        "seed": str(run.get("seed", _NOT_RECORDED)),
        "precision": str(run.get("precision") or _NOT_RECORDED),
        "scheme": run.get("scheme") or _NOT_RECORDED,
        "alpha": str(run.get("alpha", "of the model")),
        "scope": run.get("scope") or "of the posterior",
        "mask": f"{mask[:_HASH_LENGTH]}: pixels are left out" if mask else "none",
    }


def fitted_words(run: Mapping[str, Any]) -> dict[str, str]:
    """Return what was fitted on the model of a run in words, by the keys of :data:`FITTED_WORDS`.

    What no score of the run used is not recorded, and has no words.
    """
    words = {}
    if run.get("calibrator_sha256"):
        sha256 = run["calibrator_sha256"][:_HASH_LENGTH]
        words["calibration"] = f"{sha256}, of the mean over the draws"
    elif run.get("temperature") is not None:
        temperature = float(run["temperature"])
        words["calibration"] = "none"
        if temperature != 1:
            words["calibration"] = f"temperature {temperature:.6g} of the logits"
    for key, sha256 in fitted_of(run).items():
        words[key] = sha256[:_HASH_LENGTH]
    return words


def differing_settings(rows: Sequence[Mapping[str, str]]) -> list[str]:
    """Return a sentence on each setting in which runs differ.

    Args:
        rows: of each run its ``name``, its :func:`settings_words`, and its :func:`fitted_words`
            where these may differ. A precision that is not recorded is no other one: thresholds
            have none. Neither is a scheme of the noise, nor what was fitted.
    """
    sentences = []
    fitted = {key: word.capitalize() for key, word in FITTED_WORDS.items()}
    for key, word in {**SETTINGS, **fitted}.items():
        names: dict[str, list[str]] = {}
        for row in rows:
            is_unknown = key in ("precision", "scheme") and row[key] == _NOT_RECORDED
            if key in row and not is_unknown:
                names.setdefault(row[key], []).append(row["name"])
        if len(names) > 1:
            parts = [f"{value} ({', '.join(of_value)})" for value, of_value in names.items()]
            sentences.append(f"{word}: {'; '.join(parts)}.")
    return sentences


def heading(result: EvaluationResult) -> str:
    """Return in a line what a result is of: its model, images, data, frames and thresholds."""
    run = result.content.get("run", {})
    counts = result.content["counts"]
    model = "model not recorded"
    if run.get("base_sha256"):
        hashes = [run[key] for key in ("base_sha256", "posterior_sha256") if run.get(key)]
        model = f"model {' with posterior '.join(sha[:_HASH_LENGTH] for sha in hashes)}"
    data = data_words(
        run.get("dataset"),
        run.get("split"),
        run.get("labels_in", ""),
        None,
        is_judged="verdicts" in result.content,
    )
    frames = counts.get("frames_scored", counts.get("frames"))
    labelled = counts.get("labelled_frames", 0)
    anomalies = counts.get("anomaly_frames", 0)
    number = "frames not counted" if frames is None else counted(frames, "frame")
    parts = [
        model,
        images_words(run) or "folder of the images not recorded",
        f"corrupted by {run['corruption']}" if run.get("corruption") else "",
        data,
        f"{number} ({labelled} with class labels, {anomalies} with anomaly labels)",
        *_thresholds_words(result),
    ]
    return f"{result.name}: {'; '.join(part for part in parts if part)}"


def _thresholds_words(result: EvaluationResult) -> list[str]:
    """Return each threshold of a result, with its file and the risk that it controls, where they
    are recorded.
    """
    files = result.content.get("run", {}).get("thresholds", {})
    words = []
    for score, numbers in result.content.get("flagged", {}).items():
        file = files.get(score)
        text = "threshold"
        if file:
            text += f" {file['file']} (SHA-256 {file['sha256'][:_HASH_LENGTH]}):"
        value = numbers.get("threshold")
        shown = "not recorded" if value is None else threshold_text(value)
        text += f" {score} >= {shown}"
        control = numbers.get("control")
        if control:
            text += f" for {RISKS.get(control, control)}"
            if numbers.get("level") is not None:
                text += f" of at most {format_number(numbers['level'])}"
        words.append(text)
    return words


def _flagging_scores(label: str, columns: Sequence[_Column]) -> list[str]:
    """Return the scores at whose thresholds a row holds numbers, each once."""
    paths = [column.paths[label] for column in columns if label in column.paths]
    return list(dict.fromkeys(path[1] for path in paths if path[0] == "flagged"))


def _chances_of_failures(columns: Sequence[_Column]) -> str:
    """Return a line on the AUPR of wrong pixels, whose chance level is their share; empty where
    all columns have about the same share, or it is not known.
    """
    shares: dict[str, float] = {}
    for column in columns:
        accuracy = column.result.numbers.get(("segmentation", "accuracy"))
        if accuracy is not None:
            shares[column.result.name] = 1 - accuracy
    if not shares or max(shares.values()) - min(shares.values()) <= SAME_SHARE:
        return ""
    of_each = ", ".join(f"{format_number(share)} in {name}" for name, share in shares.items())
    return (
        f"{FAILURE_AUPR} of chance is the share of wrong pixels, {of_each}: more errors alone "
        "make it higher, so no column is called better by it"
    )


class _RecordedThreshold(NamedTuple):
    """What a result records of a threshold.

    Attributes:
        value: of the score.
        sha256: of its file; None of a bare value, and in results of earlier versions.
        control: the risk that it controls; None of a bare value.
    """

    value: float | None
    sha256: str | None
    control: str | None


def _other_thresholds(
    results: Sequence[EvaluationResult], columns: Sequence[_Column], labels: Collection[str]
) -> dict[str, str]:
    """Return each score of whose thresholds the rows show numbers that belong to different ones,
    with a line that says so.
    """
    shown: dict[str, None] = {}
    for column in columns:
        for label, path in column.paths.items():
            if label in labels and path[0] == "flagged":
                shown[path[1]] = None
    warnings: dict[str, str] = {}
    for score in shown:
        thresholds: dict[str, _RecordedThreshold] = {}
        for result in results:
            numbers = result.content.get("flagged", {}).get(score)
            if numbers is not None:
                file = result.content.get("run", {}).get("thresholds", {}).get(score, {})
                thresholds[result.name] = _RecordedThreshold(
                    value=numbers.get("threshold"),
                    sha256=file.get("sha256"),
                    control=numbers.get("control"),
                )
        # Results of earlier versions record no file: there equal values count as one threshold. A
        # value without a promise flags otherwise than a file: by regions of another size, say.
        has_files = all(threshold.sha256 is not None for threshold in thresholds.values())
        names: dict[object, list[str]] = {}
        for name, threshold in thresholds.items():
            compared = threshold if has_files else threshold._replace(sha256=None)
            names.setdefault(compared, []).append(name)
        if len(names) > 1:
            of_each = " and ".join(", ".join(of_one) for of_one in names.values())
            warnings[score] = (
                f"numbers of flagged.{score} belong to different thresholds in {of_each}, "
                "so they do not tell the results apart"
            )
    return warnings


def _settings_of(results: Sequence[EvaluationResult]) -> list[str]:
    """Return a sentence on each setting in which results differ."""
    rows = []
    for result in results:
        run = result.content.get("run", {})
        rows.append({"name": result.name, **settings_words(run), **fitted_words(run)})
    return differing_settings(rows)


def compare(
    results: Sequence[EvaluationResult],
    *,
    scores: Sequence[str] | None = None,
    keys: Sequence[str] | None = None,
    baseline: str | None = None,
) -> Comparison:
    """Put results, or scores of one or several results, side by side.

    A column is marked best in a row only where the paired interval of its difference to every other
    column excludes zero, and p is below .05.

    Args:
        results: of evaluations.
        scores: the columns (``RESULT:SCORE`` of several results); None for a column a result.
        keys: patterns (as of a shell) of the rows to show, by their labels or by the whole paths of
            their numbers; None for all except those of ``HIDDEN``.
        baseline: the column that differences refer to, by its heading or its file; None for the
            first.
    """
    columns = (
        _columns_of_results(results) if scores is None else _columns_of_scores(results, scores)
    )
    base = 0 if baseline is None else _baseline(columns, baseline)
    labels = _labels(columns, keys)
    other_thresholds = _other_thresholds(results, columns, {*labels})
    chances = _chances_of_failures(columns)
    flagging_scores = {label: _flagging_scores(label, columns) for label in labels}
    rows = []
    for label, flagging in flagging_scores.items():
        row = _row(label, columns, base)
        at_other_thresholds = len(flagging) > 1 or not other_thresholds.keys().isdisjoint(flagging)
        if at_other_thresholds or (chances and label.endswith(FAILURE_AUPR)):
            row = replace(row, best=None)
        rows.append(row)
    unlike = [
        column.name for column in columns if has_other_images(columns[base].result, column.result)
    ]
    warnings = [*data_warnings(results), *other_thresholds.values()]
    if any(len(flagging) > 1 for flagging in flagging_scores.values()):
        warnings.append(
            "numbers of what is flagged are of another threshold in each score, so they do not "
            "tell the scores apart"
        )
    if chances and any(label.endswith(FAILURE_AUPR) for label in labels):
        warnings.append(chances)
    return Comparison(
        columns=tuple(column.name for column in columns),
        baseline=base,
        rows=tuple(rows),
        warnings=tuple(warnings),
        headings=tuple(heading(result) for result in results),
        settings=tuple(_settings_of(results)),
        unlike_images=tuple(unlike),
        changed_frames=tuple(_changed_frames(columns, base)),
        small_objects=tuple(_small_objects(columns, {*labels})),
    )


def _columns_of_results(results: Sequence[EvaluationResult]) -> list[_Column]:
    columns = []
    for result in results:
        paths = {".".join(path): path for path in result.numbers}
        columns.append(_Column(result.name, result, paths))
    return columns


def _columns_of_scores(results: Sequence[EvaluationResult], scores: Sequence[str]) -> list[_Column]:
    columns: list[_Column] = []
    for score in dict.fromkeys(scores):
        of_score = []
        for result in results:
            name = score if len(results) == 1 else f"{result.name}:{score}"
            paths = _paths_of(result, score)
            if paths:
                of_score.append(_Column(name, result, paths))
        if not of_score:
            available: dict[str, None] = {}
            for result in results:
                available |= dict.fromkeys(result.content["scores"])
            raise InputError(
                f"no result has a score '{score}'",
                hint=f"the results have {', '.join(available) or 'no scores'}",
            )
        columns += of_score
    return columns


def _paths_of(result: EvaluationResult, score: str) -> dict[str, NumberPath]:
    """Return the path of each number of a score by the label of its row.

    The label names the section, except for ``scores``.
    """
    paths: dict[str, NumberPath] = {}
    for path in result.numbers:
        section, *below = path
        if section not in BY_SCORE or below[0] != score:
            continue
        names = below[1:] if section == "scores" else [section, *below[1:]]
        paths[".".join(names)] = path
    return paths


def _baseline(columns: Sequence[_Column], name: str) -> int:
    """Return the place of the column with a heading or a file."""
    file = Path(name).resolve()
    matches = []
    for number, column in enumerate(columns):
        if name == column.name or file == column.result.path.resolve():
            matches.append(number)
    if len(matches) != 1:
        fault = f"is the file of {len(matches)} columns" if matches else "is not a column"
        names = ", ".join(column.name for column in columns)
        raise InputError(f"the baseline {name} {fault}", hint=f"give one of {names}")
    return matches[0]


def _labels(columns: Sequence[_Column], keys: Sequence[str] | None) -> list[str]:
    labels = {label: path for column in columns for label, path in column.paths.items()}
    if keys is None:
        return [label for label, path in labels.items() if not set(HIDDEN).intersection(path)]
    chosen: set[str] = set()
    for key in keys:
        matches = {label for label in labels if _matches(label, key, columns)}
        if not matches:
            raise _no_number(key, list(labels), columns)
        chosen |= matches
    return [label for label in labels if label in chosen]


def _matches(label: str, key: str, columns: Sequence[_Column]) -> bool:
    """Return whether a key matches the label of a row, or the whole path of one of its numbers."""
    names = {label}
    for column in columns:
        if label in column.paths:
            names.add(".".join(column.paths[label]))
    return any(fnmatchcase(name, key) for name in names)


def _no_number(key: str, labels: Sequence[str], columns: Sequence[_Column]) -> InputError:
    """Return the error of a key that no row has, with a key that some row has.

    Args:
        key: that was asked for.
        labels: of all rows.
        columns: of the table.
    """
    message = f"no number matches the key '{key}'"
    hints = []
    whole = _sections_of_results(key, columns)
    if whole:
        verb = "holds" if len(whole) == 1 else "hold"
        message += f", because {' and '.join(whole)} {verb} no numbers of one score"
        hints.append("leave --scores out for those")
    if labels:
        message += f"; there are {first_of(labels)}"
        hints.append(f"--keys '{_pattern_of_some(key, labels)}'")
    return InputError(message, hint=", or ".join(hints))


def _sections_of_results(key: str, columns: Sequence[_Column]) -> list[str]:
    """Return the sections of whole results, which no score has, in which a key finds numbers."""
    sections: dict[str, None] = {}
    for column in columns:
        for path in column.result.numbers:
            if path[0] not in BY_SCORE and fnmatchcase(".".join(path), key):
                sections[path[0]] = None
    return list(sections)


def _pattern_of_some(key: str, labels: Sequence[str]) -> str:
    """Return a pattern that some of the labels match: by the last word of a key that matches none,
    or else by the first word of a label.
    """
    last = key.rpartition(".")[2]
    for pattern in (f"*.{last}", f"*.{last}.*"):
        if last.strip("*?") and any(fnmatchcase(label, pattern) for label in labels):
            return pattern
    section, dot, _ = labels[0].partition(".")
    return f"{section}.*" if dot else section


def _row(label: str, columns: Sequence[_Column], base: int) -> Row:
    path = next(column.paths[label] for column in columns if label in column.paths)
    upwards = higher_is_better(path)
    differences: list[Difference | None] = []
    for column in columns:
        is_base = column is columns[base]
        differences.append(None if is_base else _difference(label, columns[base], column))
    return Row(
        label=label,
        higher_is_better=upwards,
        cells=tuple(column.cell(label) for column in columns),
        best=_best(label, columns, upwards),
        differences=tuple(differences),
    )


def _difference(label: str, base: _Column, other: _Column) -> Difference | None:
    """Return the number of a column less that of the base; None where either lacks it, and of a
    setting.
    """
    path = base.paths.get(label, ())
    if path[:1] == ("flagged",) and path[-1] in _CHOSEN:
        return None
    reference = base.cell(label).value
    number = other.cell(label).value
    if reference is None or number is None:
        return None
    value = number - reference
    why = _why_other_data(base.result, other.result, base.paths[label])
    if why is not None:
        return Difference(value, reason=why)
    for column in (base, other):
        if column.result.replicates is None:
            return Difference(value, reason=f"{column.result.name} has no replicates beside it")
    why = _why_other_units(base.result, other.result)
    if why is not None:
        return Difference(value, reason=why)
    assert base.result.replicates is not None
    assert other.result.replicates is not None
    test = paired_difference(
        base.result.replicates, other.result.replicates, base.paths[label], other.paths[label]
    )
    if isinstance(test, str):
        return Difference(value, reason=test)
    return Difference(value, test)


def _why_other_units(first: EvaluationResult, second: EvaluationResult) -> str | None:
    """Return why units of two results may hold other frames though they have equal names: another
    --resample, or other frames in them; None where nothing recorded says so.
    """
    bootstraps = [result.content.get("bootstrap", {}) for result in (first, second)]
    units = [bootstrap.get("unit") for bootstrap in bootstraps]
    if None not in units and units[0] != units[1]:
        return f"resampled by other units ({units[0]} and {units[1]})"
    members = [bootstrap.get(UNIT_MEMBERS) for bootstrap in bootstraps]
    if None in members or members[0] == members[1]:
        return None
    # Units of other names are told apart where replicates are paired.
    names = [result.replicates and result.replicates.units for result in (first, second)]
    return "resampled units of equal names hold other frames" if names[0] == names[1] else None


def _best(label: str, columns: Sequence[_Column], upwards: bool | None) -> int | None:
    """Return the column that is better than all others by more than chance; None if none is."""
    values: dict[int, float] = {}
    for number, column in enumerate(columns):
        value = column.cell(label).value
        if value is not None:
            values[number] = value
    if upwards is None or len(values) < 2:
        return None
    best = max(values, key=lambda number: values[number] if upwards else -values[number])
    for other in values.keys() - {best}:
        difference = _difference(label, columns[other], columns[best])
        if difference is None or difference.test is None or not difference.test.excludes_zero:
            return None
    return best


def format_number(value: float, *, like: float | None = None, sign: bool = False) -> str:
    """Write a number as statistics does: three decimals, and no zero before the point.

    Args:
        value: near zero it has up to six decimals.
        like: a number that has as many decimals; None for the value itself.
        sign: whether a number above 0 has a plus.
    """
    reference = abs(value if like is None else like)
    decimals = 3
    if 0 < reference < 0.01:
        decimals = min(2 - math.floor(math.log10(reference)), _MAX_DECIMALS)
    text = f"{abs(value):.{decimals}f}"
    if not text.strip("0."):
        return ".000"
    text = text.removeprefix("0")
    if value < 0:
        return _MINUS + text
    return "+" + text if sign else text


def format_cell(cell: Cell) -> str:
    """Write ``.312 [.290, .335]``, without the interval where there is none; a dash for null."""
    if cell.value is None:
        return NULL
    text = format_number(cell.value)
    if cell.interval is None:
        return text
    like = cell.value or cell.interval[1]
    low, high = (format_number(bound, like=like) for bound in cell.interval)
    return f"{text} [{low}, {high}]"


def markdown_table(rows: Sequence[Sequence[str]]) -> str:
    """Write rows with a header as a Markdown table that is aligned in a terminal, too."""
    escaped = [[visible(cell).replace("|", "\\|") for cell in row] for row in rows]
    widths = [max(3, *map(len, column)) for column in zip(*escaped, strict=True)]
    lines = []
    for first, *others in escaped:
        cells = [first.ljust(widths[0])]
        for cell, width in zip(others, widths[1:], strict=True):
            cells.append(cell.rjust(width))
        lines.append(f"| {' | '.join(cells)} |")
    to_the_right = ["-" * (width - 1) + ":" for width in widths[1:]]
    rule = ["-" * widths[0], *to_the_right]
    lines.insert(1, f"| {' | '.join(rule)} |")
    return "\n".join(lines)


def format_comparison(comparison: Comparison) -> str:
    """Write the warnings, what the columns are of, the table, the differences to the baseline, and
    the notes on both.

    Rows in which no column has a number stand in the notes alone.
    """
    # What cannot be compared is said before the numbers.
    texts = [f"Warning: {warning}." for warning in comparison.warnings]
    if comparison.headings:
        texts.append("\n".join(f"- {visible(line)}" for line in comparison.headings))
    if comparison.settings:
        texts.append(f"Other settings. {visible(' '.join(comparison.settings))}")
    if comparison.small_objects:
        texts.append("\n".join(map(visible, comparison.small_objects)))
    texts.append(markdown_table(_rows_of_numbers(comparison)))
    if len(comparison.columns) > 1:
        texts += _words_on_images(comparison)
        texts.append(markdown_table(_rows_of_differences(comparison)))
    notes = "\n".join(_notes(comparison))
    if notes:
        texts.append(notes)
    return "\n\n".join(texts)


def _words_on_images(comparison: Comparison) -> Iterator[str]:
    """Yield of each column of other images that they differ from the baseline's, how the
    differences are paired if some are, and which frames have other images.
    """
    tested: set[str] = set()
    for row in comparison.rows:
        for name, difference in zip(comparison.columns, row.differences, strict=True):
            if difference is not None and difference.test is not None:
                tested.add(name)
    for name in comparison.unlike_images:
        columns = f"{name} less {comparison.columns[comparison.baseline]}"
        if name in tested:
            yield f"{columns}: paired by frame name; the images differ."
        else:
            yield f"{columns}: the images differ under the same frame names."
    yield from map(visible, comparison.changed_frames)


def _rows_to_show(comparison: Comparison) -> list[Row]:
    """Return the rows in which some column has a number; all of them where none has.

    The notes name the other rows, and why their numbers lack.
    """
    rows = [row for row in comparison.rows if any(cell.value is not None for cell in row.cells)]
    return rows or list(comparison.rows)


def _rows_of_numbers(comparison: Comparison) -> list[list[str]]:
    rows = [["number", *comparison.columns]]
    for row in _rows_to_show(comparison):
        texts = [format_cell(cell) for cell in row.cells]
        if row.best is not None:
            texts[row.best] = f"**{texts[row.best]}**"
        rows.append([row.label + ARROWS[row.higher_is_better], *texts])
    return rows


def _rows_of_differences(comparison: Comparison) -> list[list[str]]:
    baseline = comparison.baseline
    others = [number for number in range(len(comparison.columns)) if number != baseline]
    header = [f"less {comparison.columns[baseline]}"]
    header += [comparison.columns[number] for number in others]
    rows = [header]
    for row in _rows_to_show(comparison):
        texts = [format_difference(row.differences[number]) for number in others]
        rows.append([row.label, *texts])
    return rows


def format_difference(difference: Difference | None) -> str:
    """Write ``−.008 [−.014, +.001], p .120``; a dash for no difference.

    Without a test there is neither an interval nor a p.
    """
    if difference is None:
        return NULL
    test = difference.test
    if test is None:
        return format_number(difference.value, sign=True)
    numbers = (difference.value, test.low, test.high)
    largest = max(numbers, key=abs)
    value, low, high = (format_number(number, like=largest, sign=True) for number in numbers)
    return f"{value} [{low}, {high}], p {format_p(test.p_value)}"


def format_p(p_value: float) -> str:
    """Write a p-value with three decimals."""
    return "< .001" if p_value < 0.001 else format_number(p_value, like=1)


def _notes(comparison: Comparison) -> Iterator[str]:
    if any(cell.interval for row in comparison.rows for cell in row.cells):
        yield "Brackets hold 95 % intervals."
    if len(comparison.columns) > 1:
        yield (
            "Bold is better than every other column by more than chance: "
            "the 95 % interval of each paired difference excludes 0, and its p is below .05. "
            "There is no correction for the number of rows."
        )
    for reason, numbers in _reasons(comparison).items():
        yield f"{reason}: {first_of(numbers)}."


def _reasons(comparison: Comparison) -> dict[str, list[str]]:
    """Return the numbers that lack something, a number, an interval or a test, by their reason."""
    reasons: dict[str, list[str]] = {}
    for row in comparison.rows:
        columns = zip(comparison.columns, row.cells, row.differences, strict=True)
        for name, cell, difference in columns:
            if cell.reason:
                lack = NULL if cell.value is None else "no interval:"
                reason = f"{lack} {cell.reason}"
            elif difference and difference.reason:
                reason = f"not paired: {difference.reason}"
            else:
                continue
            reasons.setdefault(reason, []).append(f"{row.label} of {name}")
    return reasons
