"""Evaluate labelled frames: a folder of uncertainty maps, of any tool, a model in one pass, scored
as its maps would be, or verdicts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from segunc.core.errors import InputError
from segunc.data.corruptions import Corruption
from segunc.data.entries import DatasetEntry, Sample, encoding_of_masks
from segunc.data.images import PixelDepth, load_image
from segunc.data.labels import LabelMap, check_label_files
from segunc.data.layouts import possible_labels
from segunc.data.masks import check_masks
from segunc.decisions.flags import calibrated_frames, check_promises
from segunc.evaluation.evaluator import Evaluator, Gatherer, Result
from segunc.evaluation.flagged import JudgedFrames, JudgedRegions, JudgedTogether
from segunc.evaluation.parts import CONFIDENCE, LabelledFrame
from segunc.evaluation.resampling import Resampling
from segunc.frames.sources import stamp_of
from segunc.maps.encoding import encode_score
from segunc.maps.folder import PREDICTION
from segunc.maps.labelled import LabelSources, ReviewLabels, choose_scores
from segunc.maps.reader import MapsReader
from segunc.maps.shards import frame_times
from segunc.maps.verdicts import Verdict, agreements, by_reviewer

if TYPE_CHECKING:  # evaluating maps loads no torch
    from segunc.posteriors.model import Model
    from segunc.sampling.sampler import Sampler

NO_NAME = "no name"
NO_LABEL = "no label carries its name"  # why a frame is left out that nobody has labelled


def evaluate_maps(
    maps: Path,
    labels: LabelSources,
    scores: Sequence[str] | None = None,
    new: Callable[..., Evaluator] = Evaluator,
    choose: Callable[[Sequence[str]], Sequence[str]] = list,
    fps: float | None = None,
) -> tuple[Result, Evaluator]:
    """Evaluate a folder of ``SCORE/FRAME.{png,npy,...}`` and ``prediction/FRAME.png``, with or
    without a manifest, in bounded memory: ``scores``, None for all, of the frames that ``choose``
    leaves, ``fps`` a second where images are a video, by the evaluator that ``new`` makes. Return
    the content of ``metrics.json``, whose ``left_out`` are frames that could not be counted with
    the reason, and the counts behind it.
    """
    reader = MapsReader(maps)
    classes = None if labels.labels is None else labels.label_map
    label_files = labels.find(reader, reader.frames)
    chosen, names = choose_scores(reader, scores), choose(reader.frames)
    evaluator = new(
        chosen,
        classes,
        names,
        anomalies=None
        if labels.anomaly_labels is None
        else label_files.anomaly_files.keys() & {*names},
        time_of=dict(
            zip(
                reader.frames,
                frame_times(reader.frames, reader.records, reader.manifest, fps),
                strict=True,
            )
        ).get,
        unit_codes={name for name in reader.scores if reader.form(name) == "unit-code"},
    )
    run, labelled = (reader.manifest or {}).get("run", {}), label_files.labelled(names)
    check_promises(evaluator.flag, run)
    calibrated = calibrated_frames(
        evaluator.flag,
        lambda score: [(name, reader.identity(name, score)) for name in labelled],
    )
    tested = evaluator.leave_out_all(names, calibrated)
    # Where no frame has a prediction the result says so; where only some lack it, these are left
    # out.
    predicted = any(reader.has(frame, PREDICTION) for frame in names)
    read = partial(read_frame, reader, chosen, label_files, predicted)
    # This tool's maps never hold scores in more than 16 bits.
    if reader.manifest is None and any(
        reader.may_hold_floats(name) for name in {*chosen, CONFIDENCE}
    ):
        evaluator.find_bins(tested, read)
    evaluator.count(tested, read)
    for failure in (reader.manifest or {}).get("failed", []):
        if failure["name"] not in reader.frames:
            evaluator.leave_out(
                failure["name"], f"failed when it was predicted: {failure['reason']}"
            )
    result = evaluator.numbers(read)
    anomalies = ("anomaly", labels.anomaly_labels, label_files.anomaly_files)
    for kind, source, files in (anomalies, ("class", labels.labels, label_files.class_files)):
        if source is not None:
            result["counts"][f"frames_without_{kind}_label"] = len(set(names) - files.keys())
            # Many labels that no frame claims mean that the maps cover only a part of the set.
            every_label = (
                source.values()
                if isinstance(source, Mapping)
                else possible_labels(Path(str(source)))
            )
            result["counts"][f"{kind}_labels_without_frame"] = len(
                set(every_label) - set(files.values())
            )
    if reader.unfinished:
        result["unfinished"] = reader.unfinished
    return result, evaluator


def read_frame(
    reader: MapsReader,
    scores: Sequence[str],
    label_files: ReviewLabels,
    predicted: bool | None,
    frame: str,
) -> dict[str, Any]:
    """Return the fields of a :class:`LabelledFrame`, and nothing that its labels have no use for.
    ``predicted`` says whether it must have a prediction; None takes one where it is there.
    """
    # What lies outside of the region was not predicted: its maps hold zeros, which are no scores.
    anomaly, labels, prediction = label_files.anomaly(frame), label_files.classes(frame), None
    needed = set(scores if anomaly is not None else ())
    if labels is not None:
        prediction = (
            reader.prediction(frame)
            if predicted or (predicted is None and reader.has(frame, PREDICTION))
            else None
        )
        needed.update(name for name in (*scores, CONFIDENCE) if reader.has(frame, name))
    elif anomaly is None:
        raise InputError(NO_LABEL)
    stored = {name: reader.read_stored(frame, name) for name in sorted(needed)}
    return {"stored": stored, "prediction": prediction, "labels": labels, "anomaly": anomaly}


def evaluate_model(
    sampler: Sampler,
    model: Model,
    entry: DatasetEntry,
    samples: Sequence[Sample],
    scores: Sequence[str],
    new: Callable[..., Evaluator],
    *,
    size: tuple[int, int] | None = None,
    corruption: Corruption | None = None,
    run: Mapping[str, Any] | None = None,
) -> tuple[Result, Evaluator]:
    """Predict and count frame by frame; nothing is kept but the counts. Component tracks predict
    the frames with anomaly labels again. Scores are counted in their stored encoding, so that the
    numbers equal those of :func:`evaluate_maps`, which says what is returned.

    Args:
        size: (height, width) that the network sees; None is its inference size.
        corruption: applied to every image at its own size.
        run: what the result records of model and settings, which a threshold with a promise must
            share.
    """
    from segunc.sampling.sampler import fault_of, sample_frames

    classes, by_name, depth = (
        _classes_of(entry, samples, model),
        {s.name: s for s in samples},
        PixelDepth(),
    )
    masks = {sample.name: sample.anomaly for sample in samples if sample.anomaly is not None}
    encoding = encoding_of_masks(entry)
    check_masks(masks.values(), encoding)

    def read(frame: str) -> dict[str, Any]:
        sample, image = by_name[frame], None
        try:
            image = load_image(sample.image, depth, strict=True)
            anomaly = None if sample.anomaly is None else encoding.read(sample.anomaly)
            labels = None if sample.label is None or classes is None else classes.read(sample.label)
            image = image if corruption is None else corruption(image, frame)
            result = sample_frames(
                sampler, [image], size=size, keep_probabilities=labels is not None
            )
            stored = {
                name: encode_score(name, result.scores[name][0].cpu().numpy())
                for name in {*scores, CONFIDENCE}
            }
        except Exception as error:
            raise fault_of(error, image) from error
        probabilities = (
            None if result.probabilities is None else result.probabilities[0].cpu().numpy()
        )
        fields = {
            "prediction": result.prediction[0].cpu().numpy(),
            "mean_probabilities": probabilities,
        }
        return {"stored": stored, "labels": labels, "anomaly": anomaly, **fields}

    evaluator = new(scores, classes, list(by_name), anomalies=list(masks) or None)
    check_promises(evaluator.flag, run or {})
    calibrated = calibrated_frames(
        evaluator.flag,
        lambda score: [(sample.name, stamp_of(sample.image)) for sample in samples],
    )
    evaluator.count(evaluator.leave_out_all(list(by_name), calibrated), read)
    depth.warn(f"data set {entry.name}")
    return evaluator.numbers(read), evaluator


def _classes_of(entry: DatasetEntry, samples: Sequence[Sample], model: Model) -> LabelMap | None:
    """Return the label map of the samples, None where none has a class label."""
    labels = [sample.label for sample in samples if sample.label is not None]
    if not labels:
        return None
    classes, network_classes = entry.label_map(), model.network.description.classes
    if classes.classes != network_classes:
        theirs, ours = (", ".join(names[:4]) for names in (classes.classes, network_classes))
        message = (
            f"the data set {entry.name} has the classes {theirs}, ..., and the network {ours}, ..."
        )
        hint = "evaluate on the data set of the network's training, or give a --label-map that names its classes so"
        raise InputError(message, hint=hint)
    check_label_files(labels, classes)
    return classes


def evaluate_verdicts(
    verdicts: Sequence[Verdict],
    frames: Sequence[str],
    resampling: Resampling,
    unit: Callable[[str], str],
) -> tuple[Result, Gatherer]:
    """Return the numbers of verdicts on ``frames``, of each reviewer and of all together, and the
    counts behind them. Where reviewers disagree on frames, the numbers of all together are bounds,
    see :class:`JudgedTogether`; ``unit`` is as of :class:`Gatherer`."""
    reviewers = by_reviewer(verdicts)
    if not reviewers:
        raise InputError(
            "the files hold notes and no verdict",
            hint="judge frames on the review page, then export",
        )
    by_frame: dict[str, list[str]] = {}
    for of_frames in reviewers.values():
        for frame, verdict in of_frames.items():
            by_frame.setdefault(frame, []).append(verdict)
    parts: list[JudgedTogether | JudgedFrames | JudgedRegions]
    parts = [JudgedTogether(("verdicts", "together"), by_frame)]
    counts: dict[str, Any] = {
        "frames": len(frames),
        "judged_frames": len(by_frame),
        "judged_by_several": sum(len(kinds) > 1 for kinds in by_frame.values()),
        "disagreed_frames": sum(len({*kinds}) > 1 for kinds in by_frame.values()),
        "agreement": [asdict(pair) for pair in agreements(verdicts)],
        "verdicts": {},
    }
    for reviewer, of_frames in reviewers.items():
        name = reviewer or NO_NAME
        section = ("verdicts", "reviewers", name)
        theirs = [verdict for verdict in verdicts if verdict.reviewer == reviewer]
        parts += [JudgedFrames(section, of_frames), JudgedRegions((*section, "regions"), theirs)]
        counts["verdicts"][name] = {
            "frames": len(of_frames),
            "regions": sum(verdict.region is not None for verdict in theirs),
        }
    gatherer = Gatherer(parts, resampling, unit)
    for frame in frames:
        if frame in by_frame:
            gatherer.add(
                LabelledFrame(frame, {}, anomaly=np.zeros((0, 0), np.uint8))
            )  # verdicts need no label
    counts["resampled_units"] = len(gatherer.units)
    counts["rests_on"] = {}
    for part, tally in zip(parts, gatherer.tallies, strict=True):
        rests_on = {} if tally.total is None else part.rests_on(tally.total)
        for number, bounds in rests_on.items():
            counts["rests_on"][".".join((*part.section, *number))] = bounds
    result: Result = {
        "counts": counts,
        "scores": {},
        "left_out": [],
        "reasons": {},
        "intervals": {},
    }
    gatherer.place_numbers(result)
    gatherer.place_intervals(result)
    return result, gatherer
