"""Which score ``anomaly`` adds to the feature density ``knn``, chosen on frames of normal scenes
with pasted objects.

Which score of a network finds unknown objects depends on the network, so no fixed sum suits all.
The choice needs no labelled anomaly: objects are pasted into frames that the fit has anyway
(:func:`segunc.data.pasting.paste_objects`), and each candidate sum is measured on them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from segunc.baselines.fitted import (
    FoldProgress,
    SeenFrame,
    as_8_bits,
    frames_as_seen,
    frames_compared,
    frames_of,
)
from segunc.core.errors import InputError
from segunc.core.terminal import agreeing, counted
from segunc.data.images import Image, Labels, resize_nearest
from segunc.data.labels import IGNORE, UNKNOWN
from segunc.data.pasting import paste_objects
from segunc.metrics.counting import (
    average_precision,
    detection_curve,
    fpr_at_recall,
)
from segunc.posteriors.fit_run import FitRun
from segunc.posteriors.model import Model
from segunc.sampling.sampler import Sampler, network_input
from segunc.training.batches import spaced
from segunc.training.fit_data import content_name

KNN = "knn"
# Scores that may be added to knn, from the cheapest to the dearest: the first two need one pass,
# the last one all draws.
ONE_PASS = ("deterministic-entropy", "deterministic-energy")
OF_DRAWS = ("entropy",)
KNN_WEIGHT = 2.0  # for a weight of 1 of the other score
MAX_PASTED_FRAMES = 20
MAX_SOURCES = 10  # frames of which patches are cut
MIN_FRAMES = 3  # different frames with pasted objects; fewer decide nothing
MAX_FPR95_RISE = 0.01
# Added to knn unless the frames speak against it: bounded, so that it cannot outweigh knn where it
# fails, and on public Cityscapes networks better than knn alone (docs/boards.md).
PREFERRED = "deterministic-entropy"
RULE = (
    f"begin with {PREFERRED} + {KNN}, and take another sum, from the cheapest on, if its mean "
    "average precision is higher by more than one standard error of the paired difference, and "
    f"its mean FPR95 is at most {MAX_FPR95_RISE} above that of the first"
)


class Candidate(NamedTuple):
    """A sum of scores that may be chosen."""

    parts: tuple[str, ...]
    weights: tuple[float, ...]


class PastedFrame(NamedTuple):
    """The numbers of K candidates on a frame with pasted objects."""

    name: str
    content: str  # a name that the content of the frame decides
    pixels: int  # of pasted objects
    average_precision: tuple[float, ...]  # [K]
    fpr95: tuple[float, ...]  # [K]


@dataclass(frozen=True)
class PartChoice:
    """A choice among candidate sums, and what it was made of."""

    chosen: Candidate
    record: dict[str, Any]  # for anomaly.json
    line: str  # for the user


class FewFrames(NamedTuple):
    """Frames of normal scenes by the fold that holds them out."""

    folds: Sequence[Any]
    of_each: int  # most evenly spaced frames of a fold; 0 for all


def few_frames(run: FitRun[Any]) -> FewFrames:
    """Return evenly spaced frames of a fit, at most :data:`MAX_PASTED_FRAMES`."""
    folds = frames_of(run).folds()
    chosen = [folds[index] for index in spaced(len(folds), MAX_PASTED_FRAMES)]
    of_each = max(1, MAX_PASTED_FRAMES // len(chosen))
    if run.settings.frames:
        of_each = min(of_each, run.settings.frames)
    return FewFrames(chosen, of_each)


def partners(model: Model) -> tuple[str, ...]:
    """Return the scores of a model that may be added to ``knn``, from the cheapest on."""
    return (*ONE_PASS, *OF_DRAWS) if model.bayesian else ONE_PASS


def candidate_sums(
    names: Sequence[str], weights: Sequence[float] | None = None
) -> tuple[Candidate, ...]:
    """Return ``knn`` alone, and each score plus ``knn``.

    Args:
        names: of the scores, from the cheapest on.
        weights: of the score and of ``knn``; None for 1 and 2.

    Raises:
        InputError: the weights are not two.
    """
    if weights is None:
        weights = (1.0, KNN_WEIGHT)
    if len(weights) != 2:
        raise InputError(
            f"anomaly.weights has {len(weights)} numbers, but anomaly.parts auto adds one score to "
            "knn",
            hint="give two weights, of the score and of knn, or name the parts",
        )
    of_two = [Candidate((name, KNN), tuple(weights)) for name in names]
    return (Candidate((KNN,), (1.0,)), *of_two)


@dataclass(frozen=True)
class PastedObjects:
    """Measures candidate sums on frames of normal scenes into which objects are pasted.

    Attributes:
        run: the fit, whose settings may hold ``images`` and hold ``frames``.
        candidates: K sums.
        scales: of each part, to standard deviations from its mean over normal scenes.
        draws: number of draws, if a part needs them.
        counted: from a prediction ``[h, w]`` to bool ``[h, w]``, where the sum counts.
    """

    run: FitRun[Any]
    candidates: Sequence[Candidate]
    scales: Mapping[str, Callable[[Tensor], Tensor]]
    draws: int
    counted: Callable[[Tensor], Tensor]

    def frames(self, few: FewFrames) -> Iterator[PastedFrame]:
        """Yield the numbers of the frames that have pasted and normal pixels.

        No frame is compared with features of its own sequence.
        """
        progress = FoldProgress(
            self.run, few.folds, "val", few.of_each, "candidates on pasted objects"
        )
        for fold in few.folds:
            sources = _sources(fold)
            sampler = self._sampler(fold)
            for frame in frames_as_seen(self.run, fold, "val", few.of_each, progress=progress):
                measured = self._measured(sampler, frame, sources)
                if measured is not None:
                    yield measured

    def _sampler(self, fold: Any) -> Sampler:
        model = self.run.model
        names = tuple(self.scales)
        return Sampler(
            model.network,
            model.posterior if model.bayesian else None,
            draws=self.draws,
            scores=names,
            fitted=model.fitted(names, frames_compared(model, fold)),
        )

    def _measured(
        self, sampler: Sampler, frame: SeenFrame, sources: Sequence[Image]
    ) -> PastedFrame | None:
        """Return the numbers of a frame; None if no pixel is pasted or none is normal."""
        original = as_8_bits(frame.original)
        others = [source for source in sources if not np.array_equal(source, original)]
        if not others:
            return None
        ignored = np.where(frame.original_labels >= UNKNOWN, IGNORE, 0).astype(np.uint8)
        image, mask = paste_objects(original, ignored, others, frame.name)
        height, width = frame.image.shape[2:]
        seen = network_input([image], (height, width)).to(frame.image.device)
        seen = seen.contiguous(memory_format=torch.channels_last)
        sampled = sampler(seen, whole=[image])
        mask = resize_nearest(mask, width, height)
        mask[~self.counted(sampled.prediction[0]).cpu().numpy()] = IGNORE
        if not (mask == 0).any() or not (mask == 1).any():
            return None
        values = {}
        for name, scale in self.scales.items():
            values[name] = scale(sampled.scores[name][0].float()).cpu()
        numbers = [_numbers(candidate, values, mask) for candidate in self.candidates]
        return PastedFrame(
            name=frame.name,
            content=content_name(original),
            pixels=int((mask == 1).sum()),
            average_precision=tuple(precision for precision, _ in numbers),
            fpr95=tuple(rate for _, rate in numbers),
        )


def _sources(fold: Any) -> list[Image]:
    """Return evenly spaced training frames of a fold, or, if it has none, those of its ``val``."""
    try:
        frames = fold.dataset("train")
        number = len(frames)
    except InputError:  # a data module of a program may have no such split
        number = 0
    if not number:
        frames = fold.dataset("val")
        number = len(frames)
    return [as_8_bits(frames.read(index)[0]) for index in spaced(number, MAX_SOURCES)]


def _numbers(
    candidate: Candidate, values: Mapping[str, Tensor], mask: Labels
) -> tuple[float, float]:
    """Return average precision and FPR95 of a sum of standardised maps ``[h, w]``."""
    total = torch.zeros(mask.shape)
    for name, weight in zip(candidate.parts, candidate.weights, strict=True):
        total += weight * values[name]
    # All values are told apart: a score without much spread has values of 1e5 deviations.
    ranks, keys = np.unique(total.numpy(), return_inverse=True)
    keys = keys.reshape(mask.shape)
    normal = np.bincount(keys[mask == 0], minlength=len(ranks))
    pasted = np.bincount(keys[mask == 1], minlength=len(ranks))
    curve = detection_curve(np.stack([normal, pasted]))
    precision = average_precision(curve)
    rate = fpr_at_recall(curve)
    assert precision is not None  # the mask has pasted and normal pixels
    assert rate is not None
    return precision, rate


def choose_parts(
    candidates: Sequence[Candidate], frames: Sequence[PastedFrame], dropped: Sequence[str] = ()
) -> PartChoice:
    """Return the choice by :data:`RULE`.

    Without :data:`MIN_FRAMES` different frames it is the sum that the rule begins with. Where that
    one is no candidate, the rule begins with ``knn`` alone.

    Args:
        candidates: K sums, from the cheapest on; the first is ``knn`` alone.
        frames: with the numbers of each.
        dropped: scores that are no candidates, since they are the same at every pixel.

    >>> sums = candidate_sums(["deterministic-entropy", "deterministic-energy"])
    >>> frames = []
    >>> for number, gain in enumerate([0.1, 0.2, 0.3]):
    ...     precision = (0.4, 0.5, 0.5 + gain)
    ...     frames.append(PastedFrame(str(number), str(number), 90, precision, (0.2, 0.2, 0.1)))
    >>> choose_parts(sums, frames).chosen.parts
    ('deterministic-energy', 'knn')
    """
    precision = np.array([frame.average_precision for frame in frames]).reshape(-1, len(candidates))
    rates = np.array([frame.fpr95 for frame in frames]).reshape(-1, len(candidates))
    different = len({frame.content for frame in frames})
    first = _first_sum(candidates)
    best = first
    reason = None
    if different < MIN_FRAMES:
        reason = (
            f"{counted(different, 'different frame')} with pasted objects "
            f"{agreeing('is', different)} fewer than {MIN_FRAMES}, so "
            f"{' + '.join(candidates[first].parts)} is taken"
        )
    else:
        for index in range(len(candidates)):
            gains = precision[:, index] - precision[:, best]
            rise = float((rates[:, index] - rates[:, first]).mean())
            if gains.mean() > _standard_error(gains) and rise <= MAX_FPR95_RISE:
                best = index
    numbers = []
    for index, candidate in enumerate(candidates):
        entry: dict[str, Any] = {
            "parts": list(candidate.parts),
            "weights": list(candidate.weights),
            "average_precision": None,
            "fpr95": None,
        }
        if len(frames):
            entry["average_precision"] = round(float(precision[:, index].mean()), 4)
            entry["fpr95"] = round(float(rates[:, index].mean()), 4)
        numbers.append(entry)
    record = {
        "rule": RULE,
        "reason": reason,
        "chosen": best,
        "candidates": numbers,
        "dropped": list(dropped),
        "frames": [frame.name for frame in frames],
        "pasted_pixels": sum(frame.pixels for frame in frames),
    }
    return PartChoice(candidates[best], record, _line(record))


def _first_sum(candidates: Sequence[Candidate]) -> int:
    """Return the place of the sum that the rule begins with."""
    for index, candidate in enumerate(candidates):
        if PREFERRED in candidate.parts:
            return index
    return 0


def _standard_error(values: npt.NDArray[np.float64]) -> float:
    """Return the standard error of the mean of values ``[N]``, N at least 2."""
    return float(values.std(ddof=1) / np.sqrt(len(values)))


def _line(record: Mapping[str, Any]) -> str:
    """Return what the user is told of a choice."""
    if record["reason"] is not None:
        return f"anomaly.parts auto: {record['reason']}"
    sums = []
    for entry in record["candidates"]:
        name = " + ".join(entry["parts"])
        sums.append(f"{name} {entry['average_precision']:.3f}")
    chosen = " + ".join(record["candidates"][record["chosen"]]["parts"])
    return (
        f"anomaly.parts auto: {chosen} is chosen on {counted(len(record['frames']), 'frame')} "
        f"with pasted objects, by average precision: {', '.join(sums)}"
    )
