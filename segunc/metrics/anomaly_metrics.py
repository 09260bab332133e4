"""The anomaly protocols as ``torchmetrics.Metric`` classes: counts on any device, numbers from the functional core.

States are integers that add over batches, shards and processes, so the result of any number of workers is that of one,
to the bit. A number whose inputs lack is NaN here, because loggers know no null; never 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torchmetrics import Metric

from segunc.core.errors import InputError
from segunc.metrics.components import TRACKS, ComponentCounts, Mode, component_counts, component_result
from segunc.metrics.counting import (
    KEYS,
    DetectionCurve,
    auroc,
    average_precision,
    best_f1,
    detection_curve,
    fpr_at_recall,
)
from segunc.metrics.per_image import FprRule, per_image_result, per_image_sums
from segunc.metrics.smiyc import (
    VALUES_OF_FLOAT_KEYS,
    VALUES_OF_UNIT_CODES,
    SmiycBins,
    empty_bins,
    merge_bins,
    smiyc_bins,
    smiyc_curve,
    smiyc_result,
)
from segunc.metrics.stateful import tensor_counts
from segunc.metrics.wide_keys import WIDE_KEYS


class AnomalyMetric(Metric):
    """What the protocols share: names of numbers are computed as float64 scalars."""

    full_state_update = False
    higher_is_better = None
    is_differentiable = False

    def _tensors(self, numbers: Mapping[str, float | None]) -> dict[str, Tensor]:
        return {
            name: torch.tensor(float("nan") if value is None else value, dtype=torch.float64, device=self.device)
            for name, value in numbers.items()
        }


def _images(scores: Tensor, anomaly: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    if scores.shape != anomaly.shape or scores.ndim not in (2, 3):
        raise InputError(
            f"scores of shape {tuple(scores.shape)} and labels of shape {tuple(anomaly.shape)}", "[H, W] or [N, H, W]"
        )
    if scores.ndim == 2:
        return iter([(scores, anomaly)])
    return zip(scores, anomaly, strict=True)


class PooledAnomaly(AnomalyMetric):
    """AUROC, AUPR, FPR95 and best F1 of one score over all pixels of a set.

    Exact for float16 scores and uint16 codes with 16-bit keys; with 20-bit keys float32 scores are rounded down by less
    than 2^-11 of their value (:mod:`segunc.metrics.wide_keys`). Unlike torchmetrics' own curves it never passes scores
    outside 0..1 through a sigmoid, and unlike a mean over batches it pools all pixels. All updates must bring scores
    of one form (codes, or floats).

    Args:
        key_bits: 16 (1 MiB of state), or 20 for floats only (16 MiB).

    States: ``counts`` int64 ``[2, 2^key_bits]``.

    Raises:
        InputError: another number of bits.
    """

    counts: Tensor

    def __init__(self, key_bits: Literal[16, 20] = 16, **options: Any) -> None:
        super().__init__(**options)
        if key_bits not in (16, 20):
            raise InputError(f"keys of {key_bits} bits", "16 or 20")
        self.key_bits = key_bits
        number = KEYS if key_bits == 16 else WIDE_KEYS
        self.add_state("counts", torch.zeros(2, number, dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, scores: Tensor, anomaly: Tensor) -> None:
        """Count pixels; see :func:`segunc.metrics.stateful.tensor_counts`.

        Args:
            scores: higher is more anomalous; uint16 codes or any floating type, any shape.
            anomaly: the same shape; 0 normal, 1 anomaly, 255 ignored.
        """
        self.counts += tensor_counts(scores, anomaly, self.counts.device, self.key_bits == 20)

    def curve(self) -> DetectionCurve:
        """The curve so far, with keys as thresholds; of this process alone."""
        return detection_curve(self.counts.cpu().numpy())

    def compute(self) -> dict[str, Tensor]:
        """``auroc``, ``aupr``, ``fpr95``, ``best_f1`` as float64 scalars in 0..1; NaN without one of the two classes."""
        curve = self.curve()
        best = best_f1(curve)
        return self._tensors(
            {
                "auroc": auroc(curve),
                "aupr": average_precision(curve),
                "fpr95": fpr_at_recall(curve),
                "best_f1": None if best is None else best[0],
            }
        )


class PerImageAnomaly(AnomalyMetric):
    """Mean over images of each image's AUROC, AUPR, FPR95 and best F1; images without both classes are left out.

    Args:
        rule: where FPR95 is read; ``nearest-recall`` is that of CAOS.

    States: ``sums`` int64 ``[6]`` of :func:`segunc.metrics.per_image.per_image_sums`.
    """

    sums: Tensor

    def __init__(self, rule: FprRule = "first-point", **options: Any) -> None:
        super().__init__(**options)
        self.rule: FprRule = rule
        self.add_state("sums", torch.zeros(6, dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, scores: Tensor, anomaly: Tensor) -> None:
        """Score images.

        Args:
            scores: ``[H, W]`` or ``[N, H, W]``; uint16 codes or any floating type, higher is more anomalous.
            anomaly: the same shape; 0 normal, 1 anomaly, 255 ignored.
        """
        for image, label in _images(scores, anomaly):
            counts = tensor_counts(image, label, self.sums.device).cpu().numpy()
            self.sums += torch.from_numpy(per_image_sums(counts, self.rule)).to(self.sums.device)

    def compute(self) -> dict[str, Tensor]:
        """``auroc``, ``aupr``, ``fpr95``, ``best_f1`` as float64 scalars in 0..1; NaN where no image is scored."""
        return self._tensors(per_image_result(self.sums.cpu().numpy()))


class SmiycAnomaly(AnomalyMetric):
    """The SegmentMeIfYouCan pixel protocol; see :mod:`segunc.metrics.smiyc`.

    uint16 scores are codes of this tool's maps in 0..1; floats are taken as float16.

    States: ``bins``, a list of int64 ``[E, 3]`` (the bits of the float64 lower edge, normal pixels, anomalous pixels).
    It grows with the number of different edges, at most 18 KiB a frame; equal edges are added up at each update.
    """

    bins: list[Tensor] | Tensor

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.add_state("bins", [], dist_reduce_fx="cat")
        self.reset()

    def reset(self) -> None:
        """Forget all frames."""
        super().reset()
        # A process without a frame must gather a table of the right type and width, not torchmetrics' float32 [0].
        self.bins = [_to_table(empty_bins()).to(self.device)]

    def update(self, scores: Tensor, anomaly: Tensor) -> None:
        """Bin frames.

        Args:
            scores: ``[H, W]`` or ``[N, H, W]``; uint16 codes or any floating type, higher is more anomalous.
            anomaly: the same shape; 0 normal, 1 anomaly, 255 ignored.
        """
        if scores.dtype == torch.uint8:
            raise InputError("scores of type torch.uint8", "uint16 codes or a floating type", "convert them to floats")
        values = VALUES_OF_FLOAT_KEYS if scores.is_floating_point() else VALUES_OF_UNIT_CODES
        frames = [
            smiyc_bins(tensor_counts(image, label, self.device).cpu().numpy(), values)
            for image, label in _images(scores, anomaly)
        ]
        self.bins = [_to_table(merge_bins([self._merged(), *frames])).to(self.device)]

    def curve(self) -> DetectionCurve:
        """The curve so far, with scores as thresholds; of this process alone."""
        return smiyc_curve(self._merged())

    def compute(self) -> dict[str, Tensor]:
        """``auroc``, ``aupr``, ``fpr95``, ``best_f1`` in 0..1 and ``threshold``, float64 scalars; NaN without a class."""
        return self._tensors(smiyc_result(self._merged()))

    def _merged(self) -> SmiycBins:
        # After a synchronisation torchmetrics holds one tensor, otherwise a list of them.
        tables = [self.bins] if isinstance(self.bins, Tensor) else self.bins
        return merge_bins(_from_table(table) for table in tables)


class ComponentAnomaly(AnomalyMetric):
    """sIoU, PPV and F1 of components at a fixed threshold; see :mod:`segunc.metrics.components`.

    Args:
        threshold: a score; the benchmark takes that of best F1 of :class:`SmiycAnomaly` over the same set.
        track: ``smiyc-anomaly`` or ``smiyc-obstacle``.
        mode: ``smiyc`` (score > threshold, in float16) or ``inclusive`` (score >= threshold).

    States: ``counts`` int64 ``[37]``.

    Raises:
        InputError: the track is not known.
    """

    counts: Tensor

    def __init__(self, threshold: float, track: str = "smiyc-anomaly", mode: Mode = "smiyc", **options: Any) -> None:
        super().__init__(**options)
        if track not in TRACKS:
            raise InputError(f"the track '{track}'", " or ".join(TRACKS))
        self.threshold, self.track = threshold, track
        self.mode: Mode = mode
        self.add_state("counts", torch.zeros(37, dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, scores: Tensor, anomaly: Tensor) -> None:
        """Count the components of frames; on the CPU, whatever the device.

        Args:
            scores: ``[H, W]`` or ``[N, H, W]``, a floating type (taken as float16), higher is more anomalous.
            anomaly: the same shape; 0 normal, 1 anomaly, 255 ignored.
        """
        if not scores.is_floating_point():
            raise InputError(f"scores of type {scores.dtype}", "a floating type", "decode codes first")
        for image, label in _images(scores.half().cpu(), anomaly.cpu()):
            counts: ComponentCounts = component_counts(
                image.numpy(), label.numpy().astype(np.uint8), self.threshold, self.track, self.mode
            )
            self.counts += torch.from_numpy(counts).to(self.counts.device)

    def compute(self) -> dict[str, Tensor]:
        """``siou_gt``, ``ppv``, ``mean_f1``, ``f1_0.25`` ... ``f1_0.75``, float64 scalars in 0..1; NaN without components."""
        numbers = component_result(self.counts.cpu().numpy())
        by_tau = {f"f1_{tau}": value for tau, value in numbers.pop("f1").items()}
        return self._tensors(numbers | by_tau)


def _to_table(bins: SmiycBins) -> Tensor:
    return torch.from_numpy(np.column_stack((bins.edges.view(np.int64), *bins.counts)))


def _from_table(table: Tensor) -> SmiycBins:
    columns = table.cpu().numpy().T
    return SmiycBins(np.ascontiguousarray(columns[0]).view(np.float64), columns[1:])
