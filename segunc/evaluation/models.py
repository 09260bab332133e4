"""One pass of a model over a labelled data set, scored as the maps on disk would be."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from segunc.core.errors import InputError
from segunc.core.progress import ConsoleProgress
from segunc.data.corruptions import Corruption
from segunc.data.entry import DatasetEntry, Sample, check_masks
from segunc.data.images import PixelDepth, load_image
from segunc.data.labels import LabelMap, check_label_files
from segunc.evaluation.evaluator import Evaluation, EvaluationOptions, finish
from segunc.evaluation.labelled_frame import LabelledFrame
from segunc.maps.encoding import encode_score
from segunc.posteriors.model import Model
from segunc.sampling.sampler import Sampler, fault_of, sample_frames
from segunc.scores import DEFAULT_SCORES, check_scores


def evaluate_model(
    sampler: Sampler,
    model: Model,
    entry: DatasetEntry,
    samples: Sequence[Sample],
    options: EvaluationOptions,
    *,
    size: tuple[int, int] | None = None,
    corruption: Corruption | None = None,
    bits: int | None = None,
) -> Evaluation:
    """Predict and count frame by frame; nothing is kept but the counts.

    Scores are counted in their stored encoding, so that the numbers equal those from a maps folder. Components need the
    scores of the labelled frames a second time: these lie in a temporary folder meanwhile, two bytes a pixel and score.

    Args:
        sampler: over the model's network; returns the scores of the options (None: :data:`DEFAULT_SCORES`) and msp.
        size: (height, width) that the network sees; None is its inference size.
        corruption: applied to every image at its own size.
        bits: that the values of 16-bit images use.

    Raises:
        InputError: the data set's classes are not the network's and the options map none to them.
        PartialFailure: no frame could be scored.
    """
    classes = _classes_of(entry, samples, model, options)
    anomalies = entry.anomaly_encoding if any(sample.anomaly for sample in samples) else None
    if anomalies is not None:
        check_masks([sample.anomaly for sample in samples if sample.anomaly is not None], anomalies)
    chosen = list(check_scores(options.scores or DEFAULT_SCORES))
    names = [sample.name for sample in samples]
    marked = None if anomalies is None else [sample.name for sample in samples if sample.anomaly is not None]
    evaluator = options.evaluator(chosen, classes, names, anomalies=marked)
    with tempfile.TemporaryDirectory(prefix="segunc-") as folder, ConsoleProgress() as show:
        kept: list[str] = []
        depth = PixelDepth(bits)
        for done, sample in enumerate(samples, start=1):
            image = truth = labels = None
            try:
                image = load_image(sample.image, depth)
                if sample.anomaly is not None and anomalies is not None:
                    truth = anomalies.read(sample.anomaly)
                if sample.label is not None and classes is not None:
                    labels = classes.read(sample.label)
                image = image if corruption is None else corruption(image, sample.name)
                result = sample_frames(sampler, [image], size=size, keep_probabilities=labels is not None)
                stored = {n: encode_score(n, result.scores[n][0].cpu().numpy()) for n in {*chosen, "msp"}}
            except Exception as error:
                evaluator.leave_out(sample.name, str(fault_of(error, image)))
            else:
                probabilities = None if result.probabilities is None else result.probabilities[0].cpu().numpy()
                prediction = result.prediction[0].cpu().numpy()
                counted = evaluator.update(sample.name, stored, prediction, probabilities, labels, truth)
                if options.tracks and counted and truth is not None:
                    scores: dict[str, Any] = {score: stored[score] for score in chosen}
                    np.savez(Path(folder, f"{len(kept)}.npz"), truth, **scores)  # "anomaly" is a score's name
                    kept.append(sample.name)
            show.count(done, len(samples))
        depth.warn(f"data set {entry.name}")

        def again() -> Iterable[LabelledFrame]:
            for index, name in enumerate(kept):
                with np.load(Path(folder, f"{index}.npz"), allow_pickle=False) as arrays:
                    yield LabelledFrame(name, {score: arrays[score] for score in chosen}, anomaly=arrays["arr_0"])

        return finish(evaluator, evaluator.result(), options, again)


def _classes_of(
    entry: DatasetEntry, samples: Sequence[Sample], model: Model, options: EvaluationOptions
) -> LabelMap | None:
    """Return the label map of the samples; None where none has a class label."""
    labels = [sample.label for sample in samples if sample.label is not None]
    if not labels:
        return None
    classes, own = entry.label_map(), model.network.description.classes
    if classes.classes != own:
        theirs, ours = (", ".join(names[:4]) for names in (classes.classes, own))
        message = f"the data set {entry.name} has the classes {theirs}, ..., and the network {ours}, ..."
        raise InputError(message, hint="give a --label-map that names the classes as the network does")
    check_label_files(labels, classes)
    return classes
