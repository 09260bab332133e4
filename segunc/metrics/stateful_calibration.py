"""Calibration as a ``torchmetrics.Metric``: counts on any device, numbers from the functional core."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from segunc.data.labels import IGNORE
from segunc.errors import InputError
from segunc.maps.encoding import CODE_MAX, decode_unit
from segunc.metrics.calibration import (
    BINS,
    bin_counts_by_mass,
    bin_edges,
    expected_calibration_error,
    maximum_calibration_error,
)
from segunc.metrics.fixed_point import STEPS_PER_UNIT, from_fixed_point
from segunc.metrics.pixel_curves import KEYS
from segunc.metrics.probability_sums import SMALLEST_PROBABILITY, classwise_calibration_error, mean_scores
from segunc.metrics.scalars import scalar_tensors


class Calibration(Metric):
    """ECE, maximum calibration error, adaptive and classwise ECE, NLL and Brier score over all pixels.

    The adaptive ECE is that of the stored map ``msp`` (16-bit codes of 1 - confidence), the others are of the
    probabilities as they are.

    States, all int64, real sums in :mod:`segunc.metrics.fixed_point`: ``bins`` ``[3, B]`` (pixels, correct pixels,
    confidences), ``codes`` ``[2, 65536]`` (rightly and wrongly predicted pixels by code of 1 - confidence),
    ``classwise`` ``[C, B, 3]`` (pixels, pixels of the class, probabilities), ``sums`` ``[3]`` (pixels, -ln p_y, Brier).
    """

    full_state_update = False
    higher_is_better = False
    is_differentiable = False
    bins: Tensor
    codes: Tensor
    classwise: Tensor
    sums: Tensor

    def __init__(self, classes: int, bins: int = BINS, **options: Any) -> None:
        super().__init__(**options)
        self.classes = classes
        for name, shape in (
            ("bins", (3, bins)),
            ("codes", (2, KEYS)),
            ("classwise", (classes, bins, 3)),
            ("sums", (3,)),
        ):
            self.add_state(name, torch.zeros(shape, dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, probabilities: Tensor, labels: Tensor) -> None:
        """Add pixels.

        Args:
            probabilities: ``[N, C, ...]`` that sum to 1 over the classes.
            labels: train ids ``[N, ...]``, 255 ignored.

        Raises:
            InputError: the shapes differ, an id is no class, or the values are no probabilities.
        """
        selected, truth = self._labelled(probabilities, labels)
        confidence, predicted = selected.max(0)
        confidence = confidence.clamp(max=1.0)  # a softmax may round to 1 + 1e-7
        right = predicted == truth
        index = self._bin(confidence)
        self.bins += torch.stack(
            [
                self._count(index),
                self._count(index[right]),
                _fixed(self._count(index, confidence)),
            ]
        )
        codes = (((1.0 - confidence).sqrt() * CODE_MAX).round()).long()  # as segunc.maps.encoding.encode_unit
        self.codes += torch.bincount((~right).long() * KEYS + codes, minlength=2 * KEYS).view(2, KEYS)
        for number, row in enumerate(selected):
            index = self._bin(row)
            self.classwise[number] += torch.stack(
                [
                    self._count(index),
                    self._count(index[truth == number]),
                    _fixed(self._count(index, row)),
                ],
                dim=-1,
            )
        chosen = selected.gather(0, truth[None])[0].double()
        brier = (1.0 - chosen).square() + (selected.square().sum(0).double() - chosen.square()).clamp(min=0.0)
        loss = -chosen.clamp(min=SMALLEST_PROBABILITY).log()
        self.sums[0] += truth.numel()
        self.sums[1:] += _fixed(torch.stack([loss.sum(), brier.sum()]))

    def compute(self) -> dict[str, Tensor]:
        """``ece``, ``mce``, ``adaptive_ece``, ``classwise_ece`` in 0..1, ``nll`` in nats, ``brier`` in 0..2.

        float64 scalars; NaN without a pixel.
        """
        bins = self.bins.cpu().numpy().astype("float64")
        bins[2] = from_fixed_point(self.bins[2].cpu().numpy())
        confidence = 1.0 - decode_unit(torch.arange(KEYS).numpy().astype("uint16"))
        loss, brier = mean_scores(self.sums.cpu().numpy())
        numbers = {
            "ece": expected_calibration_error(bins),
            "mce": maximum_calibration_error(bins),
            "adaptive_ece": expected_calibration_error(
                bin_counts_by_mass(self.codes.cpu().numpy(), confidence, bins.shape[1])
            ),
            "classwise_ece": classwise_calibration_error(self.classwise.cpu().numpy()),
            "nll": loss,
            "brier": brier,
        }
        return scalar_tensors(numbers, self.bins.device)

    def _labelled(self, probabilities: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Probabilities float32 ``[C, P]`` and class ids ``[P]`` of the labelled pixels, checked."""
        if probabilities.shape[:1] + probabilities.shape[2:] != labels.shape or probabilities.shape[1] != self.classes:
            raise InputError(
                f"probabilities of shape {tuple(probabilities.shape)} and labels of {tuple(labels.shape)}",
                f"[N, {self.classes}, ...] and [N, ...]",
            )
        truth = labels.to(self.bins.device).long()
        counted = truth != IGNORE
        truth = truth[counted]
        if truth.numel() and bool(((truth < 0) | (truth >= self.classes)).any()):
            raise InputError("a label is no class id", f"ids in 0..{self.classes - 1}, or {IGNORE}")
        selected = probabilities.to(self.bins.device).float().movedim(1, 0)[:, counted]
        if not bool(((selected.sum(0) - 1.0).abs() <= 1e-2).all() & (selected >= 0.0).all()):
            raise InputError("class probabilities are negative or do not sum to 1", "the output of a softmax")
        return selected, truth

    def _bin(self, values: Tensor) -> Tensor:
        edges = torch.from_numpy(bin_edges(self.bins.shape[1])[1:-1]).to(values.device)
        return torch.bucketize(values, edges, right=True)

    def _count(self, index: Tensor, weight: Tensor | None = None) -> Tensor:
        """Elements of each bin, int64, or the float64 sums of their weights."""
        return torch.bincount(index, None if weight is None else weight.double(), minlength=self.bins.shape[1])


def _fixed(sums: Tensor) -> Tensor:
    """As :func:`segunc.metrics.fixed_point.to_fixed_point`, on the device of the sums."""
    return (sums * STEPS_PER_UNIT).round().long()
