"""One pass of a model over a labelled data set, scored as the maps on disk would be."""

from __future__ import annotations

import time
from collections.abc import Sequence

from segunc.bayes.files import Model
from segunc.data.datasets import DatasetEntry
from segunc.data.label_images import read_label_image
from segunc.data.samples import Sample, load_image
from segunc.errors import InputError
from segunc.evaluation import Evaluator, Result
from segunc.maps.encoding import encode_score
from segunc.maps.pipeline import Progress
from segunc.maps.progress import ConsoleProgress
from segunc.sampling.frames import sample_frames
from segunc.sampling.prediction import DEFAULT_SCORES, check_scores
from segunc.sampling.sampler import Sampler


def evaluate_model(
    sampler: Sampler,
    model: Model,
    entry: DatasetEntry,
    samples: Sequence[Sample],
    *,
    scores: Sequence[str] | None = None,
    size: tuple[int, int] | None = None,
) -> Result:
    """Predict and count frame by frame; nothing is kept but the counts.

    Scores are counted in their stored encoding, so that the numbers equal those from a maps folder.

    Args:
        sampler: over the model's network; returns these scores and msp.
        model: for its classes.
        entry: tells what the labels mean.
        samples: the labelled frames.
        scores: anomaly scores to evaluate; None for those that need no further sums or statistics.
        size: (height, width) the network sees; None for its inference size.

    Raises:
        InputError: the data set's classes are not the network's, or no frame could be scored.
    """
    anomalies = entry.anomaly_encoding if any(sample.anomaly for sample in samples) else None
    classes = entry.label_map() if any(sample.label for sample in samples) else None
    if classes is not None and classes.classes != model.network.description.classes:
        raise InputError(
            f"data set {entry.name} has the classes {', '.join(classes.classes[:4])}, ...",
            f"those of the network: {', '.join(model.network.description.classes[:4])}, ...",
            "evaluate on the data set that the network was trained for",
        )
    chosen = list(check_scores(scores or DEFAULT_SCORES)) if anomalies else []
    evaluator = Evaluator(chosen, classes)
    with ConsoleProgress() as show:
        start = time.monotonic()
        for done, sample in enumerate(samples, start=1):
            try:
                image, truth, labels = load_image(sample.image), None, None
                if sample.anomaly is not None and anomalies is not None:
                    truth = anomalies.encode(read_label_image(sample.anomaly), str(sample.anomaly))
                if sample.label is not None and classes is not None:
                    labels = classes.encode(read_label_image(sample.label), str(sample.label))
                result = sample_frames(sampler, [image], size=size, keep_probabilities=labels is not None)
                stored = {n: encode_score(n, result.scores[n][0].cpu().numpy()) for n in {*chosen, "msp"}}
            except InputError as error:
                evaluator.leave_out(sample.name, str(error))
            else:
                probabilities = None if result.probabilities is None else result.probabilities[0].cpu().numpy()
                evaluator.update(sample.name, stored, result.prediction[0].cpu().numpy(), probabilities, labels, truth)
            show(Progress(done, 0, 0, len(samples), time.monotonic() - start))
    return evaluator.result()
