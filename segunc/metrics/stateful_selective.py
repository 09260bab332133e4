"""Selective prediction and patch metrics as ``torchmetrics.Metric``: counts on any device, numbers from the core."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from torchmetrics import Metric

from segunc.data.labels import IGNORE
from segunc.errors import InputError
from segunc.metrics.patches import ACCURACY_THRESHOLD, WINDOW, check_settings, patch_summary, window_sums
from segunc.metrics.pixel_curves import KEYS
from segunc.metrics.scalars import scalar_tensors
from segunc.metrics.selective import selective_numbers
from segunc.metrics.tensor_counts import tensor_keys


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
    """p(accurate | certain), p(uncertain | inaccurate) and PAvPU of one score, see :mod:`segunc.metrics.patches`.

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
