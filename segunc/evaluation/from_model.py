"""Evaluate a model on a data set in one pass, scored as its maps would be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from segunc.core.errors import InputError
from segunc.data.channels import load_frame, shown_colours
from segunc.data.corruptions import Corruption
from segunc.data.entries import DatasetEntry, Sample, encoding_of_masks
from segunc.data.images import AnyImage, PixelDepth
from segunc.data.labels import LabelMap, check_label_files
from segunc.data.masks import check_masks
from segunc.decisions.flags import calibrated_frames, check_promises
from segunc.evaluation.evaluator import DEFAULT_MEASURES, Evaluator, Measures, Result
from segunc.evaluation.parts import CONFIDENCE
from segunc.frames.image_source import stamp_of
from segunc.maps.encoding import encode_score

if TYPE_CHECKING:  # whoever evaluates verdicts or maps loads no torch
    from segunc.posteriors.model import Model
    from segunc.sampling.sampler import Sampler


@dataclass(frozen=True)
class ModelSource:
    """A model, and how it predicts.

    Attributes:
        model: the network with its posterior.
        sampler: of the model.
        scores: to evaluate.
        size: (height, width) that the network sees; None is its inference size.
        corruption: applied to every image at its own size.
        run: what the result records of model and settings, which a threshold with a promise must
            share.
    """

    model: Model
    sampler: Sampler
    scores: Sequence[str]
    size: tuple[int, int] | None
    corruption: Corruption | None
    run: Mapping[str, Any]


class _PredictedFrames:
    """The samples of a data set, each predicted when it is read."""

    def __init__(self, source: ModelSource, entry: DatasetEntry, samples: Sequence[Sample]) -> None:
        self.source = source
        self.samples = {sample.name: sample for sample in samples}
        self.masks = {s.name: s.anomaly for s in samples if s.anomaly is not None}
        self.encoding = encoding_of_masks(entry)
        self.classes = _classes_of(entry, samples, source.model)
        self.depth = PixelDepth()
        self.channels = source.model.network.description.channels
        check_masks(self.masks.values(), self.encoding)

    def read(self, frame: str) -> dict[str, Any]:
        """Return the fields of the :class:`LabelledFrame` of a name."""
        from segunc.sampling.sampler import fault_of

        sample = self.samples[frame]
        image: AnyImage | None = None
        try:
            image = load_frame(sample.image, self.channels, self.depth, strict=True)
            anomaly = None
            if sample.anomaly is not None:
                anomaly = self.encoding.read(sample.anomaly)
            labels = None
            if sample.label is not None and self.classes is not None:
                labels = self.classes.read(sample.label)
            if self.source.corruption is not None:
                image = self.source.corruption(shown_colours(image), frame)
            maps = self._predict(image, keep_probabilities=labels is not None)
        except Exception as error:
            raise fault_of(error, image) from error
        return {"labels": labels, "anomaly": anomaly, **maps}

    def _predict(self, image: AnyImage, *, keep_probabilities: bool) -> dict[str, Any]:
        """Return the maps of an image; scores in their stored encoding."""
        from segunc.sampling.sampler import sample_frames

        result = sample_frames(
            self.source.sampler,
            [image],
            size=self.source.size,
            keep_probabilities=keep_probabilities,
        )
        stored = {}
        for name in {*self.source.scores, CONFIDENCE}:
            stored[name] = encode_score(name, result.scores[name][0].cpu().numpy())
        probabilities = None
        if result.probabilities is not None:
            probabilities = result.probabilities[0].cpu().numpy()
        return {
            "stored": stored,
            "prediction": result.prediction[0].cpu().numpy(),
            "mean_probabilities": probabilities,
        }


def evaluate_model(
    source: ModelSource,
    entry: DatasetEntry,
    samples: Sequence[Sample],
    measures: Measures = DEFAULT_MEASURES,
) -> tuple[Result, Evaluator]:
    """Predict and count the samples of a data set frame by frame; only the counts are kept.

    Component tracks predict the frames with anomaly labels again. Scores are counted in their
    stored encoding, so that the numbers equal those of :func:`evaluate_maps`, which says what is
    returned.
    """
    frames = _PredictedFrames(source, entry, samples)
    names = list(frames.samples)
    evaluator = Evaluator(
        source.scores,
        frames.classes,
        names,
        anomalies=list(frames.masks) or None,
        stamp_of=lambda frame: stamp_of(frames.samples[frame].image),
        measures=measures,
    )
    check_promises(evaluator.flag, source.run)

    def identities(score: str) -> list[tuple[str, str]]:
        return [(sample.name, stamp_of(sample.image)) for sample in samples]

    tested = evaluator.leave_out_all(names, calibrated_frames(evaluator.flag, identities))
    evaluator.leave_out_units(
        tested, names, lambda name, score: stamp_of(frames.samples[name].image)
    )
    evaluator.count(tested, frames.read)
    check_promises(evaluator.flag, source.run, evaluator.sizes)
    frames.depth.warn(f"data set {entry.name}")
    return evaluator.numbers(frames.read), evaluator


def _classes_of(entry: DatasetEntry, samples: Sequence[Sample], model: Model) -> LabelMap | None:
    """Return the label map of the samples; None where none has a class label."""
    labels = [sample.label for sample in samples if sample.label is not None]
    if not labels:
        return None
    classes = entry.label_map()
    network_classes = model.network.description.classes
    if classes.classes != network_classes:
        of_data = ", ".join(classes.classes[:4])
        of_network = ", ".join(network_classes[:4])
        raise InputError(
            f"the data set {entry.name} has the classes {of_data}, ..., "
            f"and the network {of_network}, ...",
            hint="evaluate on the data set of the network's training, "
            "or give a --label-map that names its classes so",
        )
    check_label_files(labels, classes)
    return classes
