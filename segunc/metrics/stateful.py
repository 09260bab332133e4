"""Numbers of the functional core as the tensors that torchmetrics classes return."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from torchmetrics import Metric

from segunc.core.errors import InputError
from segunc.data.labels import IGNORE
from segunc.maps.encoding import CODE_MAX, decode_unit
from segunc.metrics.calibration import (
    BINS,
    SMALLEST_PROBABILITY,
    bin_counts_by_mass,
    bin_edges,
    classwise_calibration_error,
    expected_calibration_error,
    maximum_calibration_error,
    mean_scores,
)
from segunc.metrics.counting import KEYS, STEPS_PER_UNIT, from_fixed_point
from segunc.metrics.segmentation import accuracy, class_iou, mean_iou
from segunc.metrics.selective import (
    ACCURACY_THRESHOLD,
    WINDOW,
    check_settings,
    patch_summary,
    selective_numbers,
    window_sums,
)
from segunc.metrics.wide_keys import WIDE_KEYS


def scalar_tensors(numbers: Mapping[str, float | None], device: torch.device) -> dict[str, Tensor]:
    """float64 scalars by name; NaN where the number is None, because loggers know no null."""
    return {
        name: torch.tensor(float("nan") if value is None else value, dtype=torch.float64, device=device)
        for name, value in numbers.items()
    }


# Segmentation quality as a ``torchmetrics.Metric`` class: counts on any device, numbers from the functional core.
#
# Every state is a tensor that is summed over processes, so the result of any number of workers is that of one. A number
# whose inputs lack is NaN here, because loggers know no null; never 0.


class SegmentationIoU(Metric):
    """mIoU, IoU of each class and pixel accuracy from the confusion matrix of the whole set.

    States: ``matrix`` int64 ``[C, C]``, rows are true classes.
    """

    full_state_update = False
    higher_is_better = True
    is_differentiable = False
    matrix: Tensor

    def __init__(self, classes: int, **options: Any) -> None:
        super().__init__(**options)
        self.classes = classes
        self.add_state("matrix", torch.zeros(classes, classes, dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, prediction: Tensor, labels: Tensor) -> None:
        """Count pixels.

        Args:
            prediction: class ids ``[...]``.
            labels: train ids ``[...]``, 255 ignored.

        Raises:
            InputError: the shapes differ, or an id is no class.
        """
        if prediction.shape != labels.shape:
            raise InputError(f"predictions of shape {tuple(prediction.shape)} and labels of {tuple(labels.shape)}")
        truth = labels.flatten().to(self.matrix.device).long()
        counted = truth != IGNORE
        truth = truth[counted]
        predicted = prediction.flatten().to(self.matrix.device)[counted].long()
        for name, ids in (("a label", truth), ("a prediction", predicted)):
            if ids.numel() and bool(((ids < 0) | (ids >= self.classes)).any()):
                raise InputError(f"{name} is no class id", f"ids in 0..{self.classes - 1}, labels also {IGNORE}")
        index = truth * self.classes + predicted
        self.matrix += torch.bincount(index, minlength=self.classes**2).view(self.classes, self.classes)

    def compute(self) -> dict[str, Tensor]:
        """``miou`` and ``accuracy`` as float64 scalars, ``per_class`` IoU ``[C]``; NaN where nothing was counted."""
        matrix, device = self.matrix.cpu().numpy(), self.matrix.device
        return {
            **scalar_tensors({"miou": mean_iou(matrix), "accuracy": accuracy(matrix)}, device),
            "per_class": torch.from_numpy(class_iou(matrix)).to(device),
        }


def tensor_keys(scores: Tensor) -> Tensor:
    """Order-preserving keys (int64, 0..65535) of scores on any device, as :func:`segunc.maps.encoding.score_keys`.

    Args:
        scores: uint16 or uint8 codes, or any floating type (rounded to float16 first), any shape.

    Raises:
        InputError: a value is NaN or beyond the range of float16, or the type has no key.
    """
    if scores.dtype in (torch.uint16, torch.uint8):
        return scores.long()
    if not scores.is_floating_point():
        raise InputError(f"scores of type {scores.dtype}", "uint8, uint16 or a floating type", "convert them")
    half = scores.half() + 0.0  # -0.0 + 0.0 = +0.0
    if not bool(torch.isfinite(half).all()):
        raise InputError("a score is NaN or beyond the range of float16", "finite values within +-65504")
    bits = half.view(torch.int16).long() & 0xFFFF
    return torch.where(bits >= 0x8000, 0xFFFF - bits, bits + 0x8000)


def wide_tensor_keys(scores: Tensor) -> Tensor:
    """Order-preserving 20-bit keys (int64) of float scores on any device, as :func:`segunc.metrics.wide_keys.wide_keys`.

    Args:
        scores: any floating type (rounded to float32 first), any shape.

    Raises:
        InputError: a value is NaN or beyond the range of float32, or the type is no floating type.
    """
    if not scores.is_floating_point():
        raise InputError(
            f"scores of type {scores.dtype} for 20-bit keys", "floats", "codes are exact with 16-bit keys already"
        )
    single = scores.float() + 0.0
    if not bool(torch.isfinite(single).all()):
        raise InputError("a score is NaN or beyond the range of float32", "finite values")
    bits = single.view(torch.int32).long() & 0xFFFFFFFF
    return torch.where(bits >= 0x80000000, 0xFFFFFFFF - bits, bits + 0x80000000) >> 12


def tensor_counts(scores: Tensor, anomaly: Tensor, device: torch.device, wide: bool = False) -> Tensor:
    """Pixels by key and label, int64 ``[2, K]`` on ``device``; row 0 normal, row 1 anomalous.

    Args:
        scores: higher is more anomalous; uint16 codes or any floating type, any shape.
        anomaly: the same shape; 0 normal, 1 anomaly, 255 ignored. Ignored floats may be anything.
        device: where to count.
        wide: 20-bit keys of float32 instead of 16-bit keys.

    Raises:
        InputError: the shapes differ, a counted score has no key, or a label is not one of the three.
    """
    if scores.shape != anomaly.shape:
        raise InputError(f"scores of shape {tuple(scores.shape)} and labels of shape {tuple(anomaly.shape)}")
    label = anomaly.flatten().to(device).long()
    counted = label != IGNORE
    label = label[counted]
    if label.numel() and bool(((label != 0) & (label != 1)).any()):
        raise InputError("an anomaly label is not known", "0 normal, 1 anomaly, 255 ignored")
    values = scores.flatten().to(device)
    make_keys, number = (wide_tensor_keys, WIDE_KEYS) if wide else (tensor_keys, KEYS)
    # Ignored floats may be NaN and are dropped first; torch cannot index uint16 on every device, so codes are not.
    keys = make_keys(values[counted]) if values.is_floating_point() else make_keys(values)[counted]
    return torch.bincount(label * number + keys, minlength=2 * number).view(2, number)


class Calibration(Metric):
    """ECE, maximum calibration error, adaptive and classwise ECE, NLL and Brier score over all pixels.

    The adaptive ECE is that of the stored map ``msp`` (16-bit codes of 1 - confidence), the others are of the
    probabilities as they are.

    States, all int64, real sums in :mod:`segunc.metrics.counting`: ``bins`` ``[3, B]`` (pixels, correct pixels,
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
    """As :func:`segunc.metrics.counting.to_fixed_point`, on the device of the sums."""
    return (sums * STEPS_PER_UNIT).round().long()


class SelectivePrediction(Metric):
    """AURC, AUGRC, AUSE and failure detection of one score, see :mod:`segunc.metrics.selective`.

    Exact for float16 scores and uint16 codes; all updates must bring scores of one form (codes, or floats).

    States: ``counts`` int64 ``[2, 65536]``, row 1 wrongly predicted pixels.
    """

    full_state_update = False
    higher_is_better = None
    is_differentiable = False
    counts: Tensor

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.add_state("counts", torch.zeros(2, KEYS, dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, uncertainty: Tensor, prediction: Tensor, labels: Tensor) -> None:
        """Count pixels.

        Args:
            uncertainty: higher is less certain; uint16 codes or any floating type, any shape.
            prediction: class ids, the same shape.
            labels: train ids, the same shape, 255 ignored.

        Raises:
            InputError: the shapes differ, or a counted score is not finite.
        """
        _check_shapes(uncertainty, prediction, labels)
        device = self.counts.device
        truth = labels.flatten().to(device).long()
        counted = truth != IGNORE
        wrong = (prediction.flatten().to(device).long() != truth)[counted].long()
        values = uncertainty.flatten().to(device)
        # Ignored floats may be NaN and are dropped first; torch cannot index uint16 on every device, so codes are not.
        keys = tensor_keys(values[counted]) if values.is_floating_point() else tensor_keys(values)[counted]
        self.counts += torch.bincount(wrong * KEYS + keys, minlength=2 * KEYS).view(2, KEYS)

    def compute(self) -> dict[str, Tensor]:
        """``aurc``, ``augrc``, ``ause``, ``failure_auroc``, ``failure_aupr``, ``failure_fpr95`` as float64 scalars.

        NaN where the inputs of a number lack, a wrongly predicted pixel for instance.
        """
        return scalar_tensors(selective_numbers(self.counts.cpu().numpy()), self.counts.device)


class PatchAccuracyUncertainty(Metric):
    """p(accurate | certain), p(uncertain | inaccurate) and PAvPU of one score, see :mod:`segunc.metrics.selective`.

    Args:
        window: side of a patch in pixels.
        accuracy_threshold: a patch is accurate above this share of right pixels, 0..1.
        threshold: the mean uncertainty above which a patch is uncertain; None is the mean over all patches.

    Raises:
        InputError: a setting is out of range.

    States: ``counts`` int64 ``[2, 65536]`` patches by float16 key of their mean uncertainty, row 1 inaccurate.
    """

    full_state_update = False
    higher_is_better = True
    is_differentiable = False
    counts: Tensor

    def __init__(
        self,
        window: int = WINDOW,
        accuracy_threshold: float = ACCURACY_THRESHOLD,
        threshold: float | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        check_settings(window, accuracy_threshold)
        self.window, self.accuracy_threshold, self.threshold = window, accuracy_threshold, threshold
        self.add_state("counts", torch.zeros(2, KEYS, dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, uncertainty: Tensor, prediction: Tensor, labels: Tensor) -> None:
        """Count the patches of a batch.

        Args:
            uncertainty: floats ``[..., H, W]``, higher is less certain.
            prediction: class ids ``[..., H, W]``.
            labels: train ids ``[..., H, W]``, 255 ignored.

        Raises:
            InputError: the shapes differ, or a counted uncertainty is not finite or beyond float16.
        """
        _check_shapes(uncertainty, prediction, labels)
        if uncertainty.ndim < 2 or not uncertainty.is_floating_point():
            raise InputError(
                f"uncertainty of shape {tuple(uncertainty.shape)} and type {uncertainty.dtype}",
                "a floating map [..., H, W]",
                "decode codes first: the mean of codes is not the code of the mean",
            )
        truth = labels.to(self.counts.device).long()
        counted = truth != IGNORE
        right = counted & (prediction.to(self.counts.device).long() == truth)
        values = uncertainty.to(self.counts.device).double().masked_fill(~counted, 0.0)
        height, width = values.shape[-2:]
        border = (0, -width % self.window, 0, -height % self.window)
        labelled, accurate, total = (
            window_sums(pad(grid.double(), border), self.window) for grid in (counted, right, values)
        )
        kept = labelled > 0
        inaccurate = (accurate[kept] <= self.accuracy_threshold * labelled[kept]).long()
        keys = tensor_keys((total[kept] / labelled[kept]).float())
        self.counts += torch.bincount(inaccurate * KEYS + keys, minlength=2 * KEYS).view(2, KEYS)

    def compute(self) -> dict[str, Tensor]:
        """``threshold``, ``accurate_if_certain``, ``uncertain_if_inaccurate``, ``pavpu``: float64 scalars, or NaN."""
        return scalar_tensors(patch_summary(self.counts.cpu().numpy(), self.threshold), self.counts.device)


def _check_shapes(uncertainty: Tensor, prediction: Tensor, labels: Tensor) -> None:
    if not uncertainty.shape == prediction.shape == labels.shape:
        raise InputError(
            f"uncertainty of shape {tuple(uncertainty.shape)}, predictions of {tuple(prediction.shape)} and labels of "
            f"{tuple(labels.shape)}",
            "one shape for all",
        )
