"""The numbers of ``segunc evaluate`` as metrics of torchmetrics.

The states are whole numbers of constant size that add, so that frames may come in any order and
from any number of processes: the numbers are the same to the last bit. They are made of the states
by the functions that the command line uses.

Scores are counted as they are given: every distinct score is a threshold of its own
(:mod:`segunc.metrics.score_table`). Of more than :data:`segunc.metrics.score_table.MAX_DISTINCT`
different scores, low bits are dropped, and a warning says how far AUROC may be off. To get the
numbers of the command line for the maps of a network, give its scores as they are stored: float16,
or decoded from their codes. The confidence of class probabilities is rounded so by itself.

A number that is not defined, because no pixel is an anomaly for instance, is NaN, and a warning
says why.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torchmetrics import Metric

from segunc.core.errors import InputError, NoteWarning
from segunc.data.labels import IGNORE
from segunc.maps.encoding import CODE_MAX, decode_unit
from segunc.metrics import counting, prediction, smiyc
from segunc.metrics.counting import KEYS, DetectionCurve
from segunc.metrics.score_table import MAX_DISTINCT, ScoreTable, merged

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_NO_WRONG = "no pixel is wrongly predicted"
_NO_RIGHT = "no pixel is rightly predicted"
_NO_LABEL = "no pixel is labelled"


def _common_settings(settings: Tensor) -> Tensor:
    """Return the settings ``[K]`` that the metrics of all processes have in common.

    Args:
        settings: of each process, ``[P, K]``.

    Raises:
        InputError: they differ in more than the label of ignored pixels, which is the first.
    """
    if not bool((settings[:, 1:] == settings[0, 1:]).all()):
        raise InputError(
            "the metrics of several processes have other settings",
            hint="make the metric with the same arguments in every process",
        )
    return settings[0]


class _CountingMetric(Metric, ABC):
    """What all metrics of this module have in common.

    States are replaced and never changed in place, because a tensor that was made in inference mode
    cannot be changed outside of it.
    """

    is_differentiable = False
    full_state_update = False
    higher_is_better: bool | None = None
    plot_lower_bound: float | None = 0.0
    plot_upper_bound: float | None = 1.0

    settings: Tensor

    def __init__(self, ignore_index: int, *settings: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.ignore_index = ignore_index
        # A state that never changes. A MetricCollection computes metrics of equal states together,
        # which metrics of other settings must not be, although their first batch may be counted
        # alike.
        numbers = np.array([ignore_index, *settings], np.float64).view(np.int64)
        self.add_state("settings", torch.from_numpy(numbers), dist_reduce_fx=_common_settings)

    def set_dtype(self, dst_type: str | torch.dtype) -> _CountingMetric:
        """Return the metric as it is: its states are whole numbers, which floats would round."""
        return self

    def merge_state(self, incoming_state: dict[str, Any] | Metric) -> None:
        """Add the states of another metric of the same class.

        Raises:
            InputError: it counts at another threshold, for another track, or in other classes.
        """
        own = self.settings
        if isinstance(incoming_state, Metric):
            theirs = getattr(incoming_state, "settings", own)
        else:
            theirs = incoming_state.get("settings", own)
        # The first is the label of ignored pixels, which may differ between data sets.
        if not torch.equal(own[1:].cpu(), theirs[1:].cpu()):
            raise InputError(
                f"the {type(self).__name__} to merge has other settings than this one",
                hint="make both with the same arguments",
            )
        super().merge_state(incoming_state)
        self.settings = own

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *arguments: Any, **named: Any
    ) -> None:
        """Take over the states of a checkpoint.

        Raises:
            InputError: they were counted at another threshold, for another track, or in other
                classes.
        """
        own = self.settings
        theirs = state_dict.get(f"{prefix}settings", own)
        if not torch.equal(own[1:].cpu(), theirs[1:].cpu()):
            raise InputError(
                f"the checkpoint holds a {type(self).__name__} with other settings than this one",
                hint="make the metric with the arguments that it had there",
            )
        super()._load_from_state_dict(state_dict, prefix, *arguments, **named)
        self.settings = own

    @abstractmethod
    def number(self) -> float | None:
        """Return the number of the states; None where they define none."""

    @abstractmethod
    def why_undefined(self) -> str:
        """Return why :meth:`number` is None."""

    def compute(self) -> Tensor:
        """Return the number of all pixels so far, float64; NaN with a warning where it has none."""
        number = self.number()
        if number is None:
            name = type(self).__name__
            warnings.warn(f"{name} is undefined: {self.why_undefined()}", NoteWarning, stacklevel=2)
        return self._result(np.nan if number is None else number)

    def _result(self, value: Any) -> Tensor:
        # Apple's GPUs have no float64.
        dtype = torch.float32 if self.device.type == "mps" else torch.float64
        return torch.as_tensor(value, dtype=dtype, device=self.device)

    def plot(
        self, val: Tensor | Sequence[Tensor] | None = None, ax: Axes | None = None
    ) -> tuple[Figure, Any]:
        """Draw a value, or values of several steps.

        Args:
            val: of ``compute`` or ``forward``, or a list of these; None computes it.
            ax: to draw on; None makes a figure.
        """
        return self._plot(val, ax)

    def _counted(self, target: Tensor) -> Tensor:
        """Return which pixels of a target are not ignored, bool."""
        check_tensor(target, "target")
        if target.dtype in _FLOATS or target.is_complex():
            raise InputError(
                f"target is of type {target.dtype}, and labels are whole numbers",
                hint="give target.long(); check that scores and target are in this order",
            )
        if target.dtype == torch.bool:
            return torch.ones_like(target)
        return target != self.ignore_index


class _ScoreMetric(_CountingMetric):
    """A number of the curve of a score, whose state is a :class:`ScoreTable`.

    The names of its states begin with ``kind``, so that a MetricCollection takes no two kinds of
    pixels for one.
    """

    kind: str

    def __init__(self, ignore_index: int, *settings: float, **kwargs: Any) -> None:
        super().__init__(ignore_index, *settings, **kwargs)
        for name in self._columns():
            self.add_state(name, [], dist_reduce_fx="cat")
        self.add_state(f"{self.kind}_level", torch.tensor(0), dist_reduce_fx="max")

    def _columns(self) -> list[str]:
        return [f"{self.kind}_{column}" for column in ("keys", "negatives", "positives")]

    def table(self) -> ScoreTable:
        """Return the pixels by score."""
        states = [getattr(self, name) for name in self._columns()]
        level = int(getattr(self, f"{self.kind}_level"))
        if all(isinstance(state, list) and len(state) == 1 for state in states):
            keys, negatives, positives = (state[0] for state in states)
            return ScoreTable(keys, negatives, positives, level)
        # Of several batches or processes: lists of columns, or columns one after the other.
        columns = [state if isinstance(state, list) else [state] for state in states]
        tables = []
        for keys, negatives, positives in zip(*columns, strict=True):
            tables.append(ScoreTable(keys, negatives, positives))
        # With ``compute_on_cpu`` they are not on the device of the metric.
        device = tables[0].keys.device if tables else self.device
        return merged([*tables, ScoreTable.empty(device, level)])

    def curve(self) -> DetectionCurve:
        """Return the pixels at or above each score, from the highest score down."""
        return self.table().curve()

    def compute(self) -> Tensor:
        """Return the number of all pixels so far, float64; NaN with a warning where it has none."""
        table = self.table()
        if table.level:
            warnings.warn(
                f"{type(self).__name__}: there are more than {MAX_DISTINCT:,} different scores, so "
                f"{table.level} of their 64 bits were dropped; AUROC is off by at most "
                f"{table.auroc_error():.1g}",
                NoteWarning,
                stacklevel=2,
            )
        return super().compute()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the number of this batch, and add the batch to the states."""
        value = super().forward(*args, **kwargs)
        self._keep(self.table())
        return value

    def merge_state(self, incoming_state: dict[str, Any] | Metric) -> None:
        """Add the states of another metric of the same class."""
        super().merge_state(incoming_state)
        self._keep(self.table())

    def sync(self, *args: Any, **kwargs: Any) -> None:
        """Add the states of all processes; a process may have none."""
        # torchmetrics would send an empty list as floats, which no process with states expects.
        self._keep(self.table())
        super().sync(*args, **kwargs)

    def _keep(self, table: ScoreTable) -> None:
        columns = (table.keys, table.negatives, table.positives)
        for name, column in zip(self._columns(), columns, strict=True):
            setattr(self, name, [column])
        level = torch.tensor(table.level, device=table.keys.device)
        setattr(self, f"{self.kind}_level", level)

    def _add(self, scores: Tensor, positive: Tensor, counted: Tensor) -> None:
        """Add the counted pixels of a batch."""
        scores = scores[counted]
        if not bool(scores.isfinite().all()):
            raise InputError(
                f"scores hold NaN or infinite values at {int((~scores.isfinite()).sum())} labelled "
                "pixels",
                hint="repair them, or mark such pixels as ignored in target",
            )
        if self.device.type == "mps":
            raise InputError(
                "scores cannot be counted on Apple's GPUs, which have no float64",
                hint="metric.cpu()",
            )
        table = self.table()
        device = table.keys.device
        scores = scores.detach().to(device)
        self._keep(table.with_pixels(scores, positive[counted].to(device)))


class _AnomalyMetric(_ScoreMetric):
    kind = "anomaly"
    higher_is_better: bool | None = True

    def __init__(self, ignore_index: int = IGNORE, **kwargs: Any) -> None:
        super().__init__(ignore_index, **kwargs)

    def update(self, scores: Tensor, target: Tensor) -> None:
        """Count a batch.

        Args:
            scores: floats of any shape, higher where an anomaly is likelier, on any device.
            target: of the same shape: 0 or False normal, 1 or True anomaly, ``ignore_index``
                ignored.

        Raises:
            InputError: shapes differ, or a type or value does not fit.
        """
        check_scores(scores, target)
        counted = self._counted(target)
        check_anomalies(target, counted, self.ignore_index)
        self._add(scores, (target == 1).to(scores.device), counted.to(scores.device))

    def why_undefined(self) -> str:
        return str(self.curve().undefined)


class PixelAUROC(_AnomalyMetric):
    """Area under the ROC curve of all pixels; a tie counts one half.

    It is ``pooled.auroc`` of ``segunc evaluate``. Memory does not grow with the pixels.

    Args:
        ignore_index: label of pixels that are not counted.
        kwargs: as of :class:`torchmetrics.Metric`.

    >>> import torch
    >>> from segunc.metrics import PixelAUROC
    >>> metric = PixelAUROC()
    >>> metric.update(torch.tensor([[0.1, 0.4], [0.35, 0.8]]), torch.tensor([[0, 0], [1, 1]]))
    >>> metric.compute()
    tensor(0.7500, dtype=torch.float64)
    """

    def number(self) -> float | None:
        return counting.auroc(self.curve())


class PixelAveragePrecision(_AnomalyMetric):
    """Average precision (AUPR) of all pixels by the step rule, as scikit-learn's.

    It is ``pooled.aupr`` of ``segunc evaluate``. Arguments are those of :class:`PixelAUROC`.

    >>> import torch
    >>> from segunc.metrics import PixelAveragePrecision
    >>> metric = PixelAveragePrecision()
    >>> metric(torch.tensor([0.1, 0.4, 0.35, 0.8]), torch.tensor([0, 0, 1, 1]))
    tensor(0.8333, dtype=torch.float64)
    """

    def number(self) -> float | None:
        return counting.average_precision(self.curve())


class FPRAtTPR(_AnomalyMetric):
    """False positive rate at the highest threshold whose true positive rate is at least ``tpr``.

    There is no interpolation. Other arguments are those of :class:`PixelAUROC`.

    Args:
        tpr: true positive rate (recall), above 0 and at most 1.
        ignore_index: label of pixels that are not counted.
        kwargs: as of :class:`torchmetrics.Metric`.

    >>> import torch
    >>> from segunc.metrics import FPRAtTPR
    >>> metric = FPRAtTPR(tpr=0.5)
    >>> metric(torch.tensor([0.1, 0.9, 0.35, 0.8]), torch.tensor([0, 0, 1, 1]))
    tensor(0.5000, dtype=torch.float64)
    """

    higher_is_better = False

    def __init__(self, tpr: float = 0.95, ignore_index: int = IGNORE, **kwargs: Any) -> None:
        if not 0 < tpr <= 1:
            raise InputError(f"tpr is {tpr}; it must be above 0 and at most 1", hint="tpr=0.95")
        super().__init__(ignore_index, **kwargs)
        self.tpr = tpr

    def number(self) -> float | None:
        return counting.fpr_at_recall(self.curve(), self.tpr)


class FPR95(FPRAtTPR):
    """False positive rate at the highest threshold with a recall of at least 0.95.

    It is ``pooled.fpr95`` of ``segunc evaluate``. Arguments are those of :class:`PixelAUROC`.

    >>> import torch
    >>> from segunc.metrics import FPR95
    >>> metric = FPR95()
    >>> metric(torch.tensor([0.1, 0.4, 0.35, 0.8]), torch.tensor([0, 0, 1, 1]))
    tensor(0.5000, dtype=torch.float64)
    """

    def __init__(self, ignore_index: int = IGNORE, **kwargs: Any) -> None:
        super().__init__(0.95, ignore_index, **kwargs)


class BestF1(_AnomalyMetric):
    """The largest F1 of all pixels over all thresholds.

    It is ``pooled.best_f1`` of ``segunc evaluate``. Arguments are those of :class:`PixelAUROC`.

    >>> import torch
    >>> from segunc.metrics import BestF1
    >>> metric = BestF1()
    >>> metric(torch.tensor([0.1, 0.4, 0.35, 0.8]), torch.tensor([0, 0, 1, 1]))
    tensor(0.8000, dtype=torch.float64)
    """

    def number(self) -> float | None:
        best = counting.best_f1(self.curve())
        return None if best is None else best[0]


class BestF1Threshold(_AnomalyMetric):
    """The highest threshold with the largest F1; a pixel is flagged at or above it.

    It is ``pooled.threshold`` of ``segunc evaluate``. Arguments are those of :class:`PixelAUROC`.

    >>> import torch
    >>> from segunc.metrics import BestF1Threshold
    >>> metric = BestF1Threshold()
    >>> metric(torch.tensor([0.25, 0.5, 0.375, 0.75]), torch.tensor([0, 0, 1, 1]))
    tensor(0.3750, dtype=torch.float64)
    """

    higher_is_better = None
    plot_lower_bound = None
    plot_upper_bound = None

    def number(self) -> float | None:
        best = counting.best_f1(self.curve())
        return None if best is None else float(best[1])


class _FailureMetric(_ScoreMetric):
    """How a score ranks the pixels whose class is wrong."""

    kind = "failure"
    higher_is_better = True

    def __init__(self, ignore_index: int = IGNORE, **kwargs: Any) -> None:
        super().__init__(ignore_index, **kwargs)

    def update(self, preds: Tensor, target: Tensor, scores: Tensor | None = None) -> None:
        """Count a batch.

        Args:
            preds: class probabilities ``[N, C, ...]``, or class ids ``[N, ...]``.
            target: class ids ``[N, ...]``.
            scores: of the pixels ``[N, ...]``, higher where the prediction is less certain; None
                takes 1 - max p of probabilities, rounded as its map is stored.

        Raises:
            InputError: shapes differ, or a type or value does not fit.
        """
        counted = self._counted(target)
        ids, codes = predicted_classes(preds, target, counted)
        if scores is None:
            if codes is None:
                raise InputError(
                    "preds are class ids, so that scores are needed",
                    hint="metric.update(ids, target, scores), or give probabilities",
                )
            scores = torch.from_numpy(decode_unit(codes.cpu().numpy().astype(np.uint16)))
        check_scores(scores, target)
        wrong = ids.to(target.device) != target
        self._add(scores, wrong.to(scores.device), counted.to(scores.device))

    def counts(self) -> counting.Counts:
        """Return the pixels by score, int64 ``[2, K]``, rightly predicted ones first."""
        counts: counting.Counts = self.table().counts().cpu().numpy()
        return counts

    def why_undefined(self) -> str:
        right, wrong = self.counts()
        if right.any():
            return _NO_WRONG
        return _NO_RIGHT if wrong.any() else _NO_LABEL


class AURC(_FailureMetric):
    """Area under the risk-coverage curve: mean share of wrong pixels among the most certain ones.

    It is ``selective.SCORE.aurc`` of ``segunc evaluate`` (Geifman & El-Yaniv 2017,
    arXiv 1705.08500).

    Args:
        ignore_index: label of pixels that are not counted.
        kwargs: as of :class:`torchmetrics.Metric`.

    >>> import torch
    >>> from segunc.metrics import AURC
    >>> metric = AURC()
    >>> metric(torch.tensor([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8]]), torch.tensor([0, 1, 1]))
    tensor(0.1111, dtype=torch.float64)
    """

    higher_is_better = False

    def number(self) -> float | None:
        return prediction.aurc(prediction.risk_coverage(self.counts()))


class AUSE(_FailureMetric):
    """Area under the sparsification error curve of a score; 0 is perfect.

    It is ``selective.SCORE.ause`` of ``segunc evaluate`` (Ilg et al. 2018, arXiv 1802.07095), with
    an error of 0 or 1 for each pixel. Arguments are those of :class:`AURC`.

    >>> import torch
    >>> from segunc.metrics import AUSE
    >>> metric = AUSE()
    >>> metric(torch.tensor([0, 1, 0, 1]), torch.zeros(4, dtype=int), torch.arange(4.0))
    tensor(0.2500, dtype=torch.float64)
    """

    higher_is_better = False

    def number(self) -> float | None:
        return prediction.ause(prediction.risk_coverage(self.counts()))


class FailureAUROC(_FailureMetric):
    """AUROC of a score, with the wrongly predicted pixels as the positives.

    It is ``selective.SCORE.failure_auroc`` of ``segunc evaluate``. Arguments are those of
    :class:`AURC`.
    """

    def number(self) -> float | None:
        return counting.auroc(self.curve())


class FailureAveragePrecision(_FailureMetric):
    """Average precision of a score, with the wrongly predicted pixels as the positives.

    It is ``selective.SCORE.failure_aupr`` of ``segunc evaluate``. Arguments are those of
    :class:`AURC`.
    """

    def number(self) -> float | None:
        return counting.average_precision(self.curve())


class FailureFPR95(_FailureMetric):
    """False positive rate at 95 % recall, with the wrongly predicted pixels as the positives.

    It is ``selective.SCORE.failure_fpr95`` of ``segunc evaluate``. Arguments are those of
    :class:`AURC`.
    """

    higher_is_better = False

    def number(self) -> float | None:
        return counting.fpr_at_recall(self.curve())


class ECE(_CountingMetric):
    """Expected calibration error of the predicted class, in bins of equal width.

    It is ``calibration.ece`` of ``segunc evaluate``: the confidence is rounded to 16 bits, as the
    map of ``msp`` is stored.

    Args:
        bins: of the confidence.
        ignore_index: label of pixels that are not counted.
        kwargs: as of :class:`torchmetrics.Metric`.

    >>> import torch
    >>> from segunc.metrics import ECE
    >>> metric = ECE()
    >>> metric(torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 1, 1]))
    tensor(0.3333, dtype=torch.float64)
    """

    higher_is_better = False
    confidence_counts: Tensor

    def __init__(
        self, bins: int = prediction.BINS, ignore_index: int = IGNORE, **kwargs: Any
    ) -> None:
        if bins < 1:
            raise InputError(f"bins is {bins}; at least 1 is needed", hint="bins=15")
        super().__init__(ignore_index, **kwargs)
        self.bins = bins
        counts = torch.zeros(2, KEYS, dtype=torch.int64)
        self.add_state("confidence_counts", counts, dist_reduce_fx="sum")

    def update(self, preds: Tensor, target: Tensor, scores: Tensor | None = None) -> None:
        """Count a batch.

        Args:
            preds: class probabilities ``[N, C, ...]``, or class ids ``[N, ...]``.
            target: class ids ``[N, ...]``.
            scores: ``msp`` ``[N, ...]``, which is 1 - max p, in 0..1; with class ids.

        Raises:
            InputError: shapes differ, or a type or value does not fit.
        """
        counted = self._counted(target)
        ids, codes = predicted_classes(preds, target, counted)
        if scores is not None:
            check_scores(scores, target)
            of_counted = scores[counted.to(scores.device)]
            if not bool(((of_counted >= 0) & (of_counted <= 1)).all()):
                raise InputError(
                    "scores are NaN or leave 0..1, so that they are not 1 - max probability",
                    hint="give msp",
                )
            codes = _unit_codes(scores)
        if codes is None:
            raise InputError(
                "preds are class ids, so that scores are needed",
                hint="metric.update(ids, target, msp), or give probabilities",
            )
        wrong = (ids.to(target.device) != target)[counted].to(self.device)
        places = codes[counted.to(codes.device)].to(self.device) + KEYS * wrong.long()
        counts = torch.bincount(places, minlength=2 * KEYS).view(2, KEYS)
        self.confidence_counts = self.confidence_counts + counts

    def number(self) -> float | None:
        codes = np.arange(KEYS).astype(np.uint16)
        confidence = (1.0 - decode_unit(codes)).clip(0.0, 1.0)
        counts = self.confidence_counts.cpu().numpy()
        bins = self.sums_by_bin(counts, confidence)
        return prediction.expected_calibration_error(bins)

    def sums_by_bin(
        self, counts: counting.Counts, confidence: npt.NDArray[np.floating]
    ) -> counting.Floats:
        """Return pixels, correct pixels and summed confidences of each bin, ``[3, B]``.

        Args:
            counts: pixels by key, ``[2, K]``, wrongly predicted ones in row 1.
            confidence: of each key, ``[K]``.
        """
        return prediction.bin_counts(counts, confidence, self.bins)

    def why_undefined(self) -> str:
        return _NO_LABEL


class AdaptiveECE(ECE):
    """Expected calibration error of the predicted class, in bins that hold equally many pixels.

    It is ``calibration.adaptive_ece`` of ``segunc evaluate`` (the adaptive ranges of Nixon et al.
    2019, arXiv 1904.01685). Arguments are those of :class:`ECE`.

    >>> import torch
    >>> from segunc.metrics import AdaptiveECE
    >>> metric = AdaptiveECE(bins=2)
    >>> metric(torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 1, 1]))
    tensor(0.3333, dtype=torch.float64)
    """

    def sums_by_bin(
        self, counts: counting.Counts, confidence: npt.NDArray[np.floating]
    ) -> counting.Floats:
        return prediction.bin_counts_by_mass(counts, confidence, self.bins)


class _ProbabilityMetric(_CountingMetric):
    """A mean over pixels of what all class probabilities say."""

    higher_is_better = False
    plot_upper_bound: float | None = None
    probability_sums: Tensor

    def __init__(self, ignore_index: int = IGNORE, **kwargs: Any) -> None:
        super().__init__(ignore_index, **kwargs)
        sums = torch.zeros(3, dtype=torch.int64)
        self.add_state("probability_sums", sums, dist_reduce_fx="sum")

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Count a batch; each of its images is rounded once, as a frame of the command line is.

        Args:
            preds: class probabilities ``[N, C, ...]``.
            target: class ids ``[N, ...]``.

        Raises:
            InputError: shapes differ, or a type or value does not fit.
        """
        check_tensor(preds, "preds")
        counted = self._counted(target)
        preds, target, counted = _batched(preds, target, counted)
        if preds.dtype not in _FLOATS:
            raise InputError(
                f"preds are of type {preds.dtype}, and probabilities are needed",
                hint="give logits.softmax(1)",
            )
        check_class_ids(target, counted, preds.shape[1], "target")
        labels = torch.where(counted, target, IGNORE).cpu().numpy()
        probabilities = preds.detach().float().cpu().numpy()
        sums = np.zeros(3, np.int64)
        for image, label in zip(probabilities, labels, strict=True):
            sums += prediction.probability_scores(image, label)
        self.probability_sums = self.probability_sums + torch.from_numpy(sums).to(self.device)

    def why_undefined(self) -> str:
        return _NO_LABEL


class NLL(_ProbabilityMetric):
    """Mean negative log-likelihood of the true class in nats.

    It is ``calibration.nll`` of ``segunc evaluate``. The log loss of each image is rounded to 2^-18
    nats, so that sums are exact.

    Args:
        ignore_index: label of pixels that are not counted.
        kwargs: as of :class:`torchmetrics.Metric`.

    >>> import torch
    >>> from segunc.metrics import NLL
    >>> metric = NLL()
    >>> metric(torch.tensor([[0.5, 0.5], [0.5, 0.5]]), torch.tensor([0, 1]))
    tensor(0.6931, dtype=torch.float64)
    """

    def number(self) -> float | None:
        return prediction.mean_scores(self.probability_sums.cpu().numpy())[0]


class Brier(_ProbabilityMetric):
    """Mean Brier score: the squared distance of the probabilities to the true class, 0..2.

    It is ``calibration.brier`` of ``segunc evaluate``. Arguments are those of :class:`NLL`.

    >>> import torch
    >>> from segunc.metrics import Brier
    >>> metric = Brier()
    >>> metric(torch.tensor([[0.5, 0.5], [1.0, 0.0]]), torch.tensor([0, 1]))
    tensor(1.2500, dtype=torch.float64)
    """

    plot_upper_bound = 2.0

    def number(self) -> float | None:
        return prediction.mean_scores(self.probability_sums.cpu().numpy())[1]


class _ConfusionMetric(_CountingMetric):
    """A number of the confusion matrix of all pixels."""

    higher_is_better = True
    confusion: Tensor

    def __init__(self, num_classes: int, ignore_index: int = IGNORE, **kwargs: Any) -> None:
        num_classes = _number_of_classes(num_classes)
        super().__init__(ignore_index, num_classes, **kwargs)
        self.num_classes = num_classes
        matrix = torch.zeros(num_classes, num_classes, dtype=torch.int64)
        self.add_state("confusion", matrix, dist_reduce_fx="sum")

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Count a batch.

        Args:
            preds: class ids ``[N, ...]``, or logits or probabilities ``[N, C, ...]``.
            target: class ids ``[N, ...]``.

        Raises:
            InputError: shapes differ, or a type or value does not fit.
        """
        check_tensor(preds, "preds")
        counted = self._counted(target)
        if preds.dtype in _FLOATS:
            preds, target, counted = _batched(preds, target, counted)
            lost = preds.isnan().any(1) & counted.to(preds.device)
            if bool(lost.any()):
                raise InputError(
                    f"preds hold NaN at {int(lost.sum())} labelled pixels",
                    hint="repair them, or mark such pixels as ignored in target",
                )
            ids = preds.argmax(1)
        else:
            ids = preds
        if ids.shape != target.shape:
            raise _shapes_differ("preds", preds, target)
        check_class_ids(target, counted, self.num_classes, "target")
        counted_ids = counted.to(ids.device)
        check_class_ids(ids, counted_ids, self.num_classes, "preds")
        places = target[counted].long().to(self.device) * self.num_classes
        places += ids[counted_ids].long().to(self.device)
        counts = torch.bincount(places, minlength=self.num_classes**2)
        self.confusion = self.confusion + counts.view(self.num_classes, self.num_classes)

    def why_undefined(self) -> str:
        return _NO_LABEL


class MIoU(_ConfusionMetric):
    """Mean intersection over union of the classes that occur in target or predictions.

    It is ``segmentation.miou`` of ``segunc evaluate``.

    Args:
        num_classes: C.
        ignore_index: label of pixels that are not counted.
        kwargs: as of :class:`torchmetrics.Metric`.

    >>> import torch
    >>> from segunc.metrics import MIoU
    >>> metric = MIoU(num_classes=3)
    >>> metric(torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 1, 255]))
    tensor(0.5000, dtype=torch.float64)
    """

    def number(self) -> float | None:
        return prediction.mean_iou(self.confusion.cpu().numpy())


class PixelAccuracy(_ConfusionMetric):
    """Share of the pixels whose class is right.

    It is ``segmentation.accuracy`` of ``segunc evaluate``. Arguments are those of :class:`MIoU`.

    >>> import torch
    >>> from segunc.metrics import PixelAccuracy
    >>> metric = PixelAccuracy(num_classes=3)
    >>> metric(torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 1, 1]))
    tensor(0.7500, dtype=torch.float64)
    """

    def number(self) -> float | None:
        return prediction.accuracy(self.confusion.cpu().numpy())


class ClassIoU(_ConfusionMetric):
    """Intersection over union of each class ``[C]``; NaN for a class that does not occur.

    It is ``segmentation.per_class`` of ``segunc evaluate``. Arguments are those of :class:`MIoU`.

    >>> import torch
    >>> from segunc.metrics import ClassIoU
    >>> metric = ClassIoU(num_classes=3)
    >>> metric(torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 1, 255]))
    tensor([0.5000, 0.5000,    nan], dtype=torch.float64)
    """

    def number(self) -> float | None:
        return prediction.mean_iou(self.confusion.cpu().numpy())

    def compute(self) -> Tensor:
        """Return the numbers of all pixels so far, float64 ``[C]``."""
        return self._result(prediction.class_iou(self.confusion.cpu().numpy()))


class _ComponentMetric(_CountingMetric):
    """A number of the connected components at a threshold."""

    higher_is_better = True
    component_counts: Tensor
    key: str

    def __init__(
        self,
        threshold: float,
        track: str = "smiyc-anomaly",
        ignore_index: int = IGNORE,
        **kwargs: Any,
    ) -> None:
        if track not in smiyc.TRACKS:
            raise InputError(
                f"there is no track '{track}'", hint=f"track='{next(iter(smiyc.TRACKS))}'"
            )
        threshold = _finite_threshold(threshold)
        super().__init__(ignore_index, threshold, [*smiyc.TRACKS].index(track), **kwargs)
        self.threshold = threshold
        self.track = track
        counts = torch.zeros(smiyc.COMPONENT_COUNTS, dtype=torch.int64)
        self.add_state("component_counts", counts, dist_reduce_fx="sum")

    def update(self, scores: Tensor, target: Tensor) -> None:
        """Count the components of an image or a batch, on the CPU.

        Args:
            scores: floats ``[H, W]`` or ``[N, H, W]``, higher where an anomaly is likelier.
            target: of the same shape: 0 or False normal, 1 or True anomaly, ``ignore_index``
                ignored.

        Raises:
            InputError: shapes differ, or a type or value does not fit.
        """
        check_scores(scores, target)
        if scores.ndim not in (2, 3):
            raise InputError(
                f"scores have the shape {tuple(scores.shape)}, and components need [H, W] or "
                "[N, H, W]",
                hint="scores.squeeze(1) drops an axis of channels",
            )
        counted = self._counted(target)
        check_anomalies(target, counted, self.ignore_index)
        labels = torch.where(counted, target.to(torch.uint8), IGNORE).to(torch.uint8)
        # NumPy has no bfloat16, and float32 holds each of its values.
        values = scores.detach().float() if scores.dtype == torch.bfloat16 else scores.detach()
        size = labels.shape[-2:]
        images = values.cpu().numpy().reshape(-1, *size)
        counts = np.zeros(smiyc.COMPONENT_COUNTS, np.int64)
        for image, label in zip(images, labels.cpu().numpy().reshape(-1, *size), strict=True):
            counts += smiyc.component_counts(image, label, self.threshold, self.track)
        self.component_counts = self.component_counts + torch.from_numpy(counts).to(self.device)

    def number(self) -> float | None:
        number: float | None = smiyc.component_result(self.component_counts.cpu().numpy())[self.key]
        return number

    def why_undefined(self) -> str:
        return smiyc.UNDEFINED[self.key]


class ComponentF1(_ComponentMetric):
    """F1 of connected components, mean over the eleven thresholds 0.25, 0.30, ..., 0.75 on overlap.

    It is ``components.TRACK.mean_f1`` of ``segunc evaluate`` (SegmentMeIfYouCan, arXiv 2104.14812).
    The command line takes the threshold of best F1 of the protocol ``smiyc`` over the same frames,
    and the scores of this package's maps as float16: give ``scores.half()`` for its numbers.

    Args:
        threshold: a pixel above it is predicted as an anomaly.
        track: ``smiyc-anomaly`` drops predicted components of fewer than 500 and labelled ones of
            fewer than 100 pixels, ``smiyc-obstacle`` those of fewer than 50 and 10.
        ignore_index: label of pixels that are not counted.
        kwargs: as of :class:`torchmetrics.Metric`.

    >>> import torch
    >>> from segunc.metrics import ComponentF1
    >>> target = torch.zeros(64, 64, dtype=torch.uint8)
    >>> target[10:40, 10:40] = 1
    >>> metric = ComponentF1(threshold=0.5)
    >>> metric(target * 0.9, target)
    tensor(1., dtype=torch.float64)
    """

    key = "mean_f1"


class ComponentSIoU(_ComponentMetric):
    """Mean sIoU of the labelled components.

    It is ``components.TRACK.siou_gt`` of ``segunc evaluate``. Arguments are those of
    :class:`ComponentF1`.
    """

    key = "siou_gt"


class ComponentPPV(_ComponentMetric):
    """Mean share of a predicted component that lies on labelled ones.

    It is ``components.TRACK.ppv`` of ``segunc evaluate``. Arguments are those of
    :class:`ComponentF1`.
    """

    key = "ppv"


def _number_of_classes(value: Any) -> int:
    """Return a number of classes; InputError where it is none, or less than 2."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        message = f"num_classes is {value!r}, which is not a whole number"
        raise InputError(message, hint="num_classes=len(classes)")
    number = int(value)
    if number < 2:
        raise InputError(f"num_classes is {number}; at least 2 are needed")
    return number


def _finite_threshold(value: Any) -> float:
    """Return a threshold; InputError where it is not a finite number."""
    if not isinstance(value, Real) or not np.isfinite(float(value)):
        message = f"threshold is {value!r}, which is not a finite number"
        raise InputError(message, hint="threshold=0.5; scores above it are anomalies")
    return float(value)


def check_tensor(values: object, argument: str) -> None:
    """Raise InputError where an argument of ``update`` is no tensor."""
    if not isinstance(values, Tensor):
        kind = "NumPy array" if isinstance(values, np.ndarray) else type(values).__name__
        raise InputError(
            f"{argument} is a {kind}, and metrics count tensors",
            hint=f"torch.as_tensor({argument}); segunc.score takes NumPy arrays",
        )


def check_scores(scores: Tensor, target: Tensor) -> None:
    """Raise InputError where scores are not floats of the shape of a target."""
    check_tensor(scores, "scores")
    check_tensor(target, "target")
    if scores.dtype not in _FLOATS:
        raise InputError(
            f"scores are of type {scores.dtype}, and scores are floats",
            hint="segunc.decode_unit(codes) decodes a uint16 map of this package; "
            "check that scores and target are in this order",
        )
    if scores.shape != target.shape:
        raise _shapes_differ("scores", scores, target)


def check_anomalies(target: Tensor, counted: Tensor, ignore_index: int) -> None:
    """Raise InputError where a counted label of an anomaly is neither 0 nor 1."""
    known = (target == 0) | (target == 1) | ~counted
    if not bool(known.all()):
        unknown = torch.unique(target[~known])[:8].tolist()
        raise InputError(
            f"target holds the values {unknown}, none of 0 normal, 1 anomaly and {ignore_index} "
            "ignored",
            hint="give labels of anomalies; another value of ignored pixels is ignore_index=VALUE",
        )


def check_class_ids(ids: Tensor, counted: Tensor, classes: int, argument: str) -> None:
    """Raise InputError where a counted class id is not in 0..classes - 1."""
    unknown = ids[counted & ((ids < 0) | (ids >= classes))]
    if len(unknown):
        raise InputError(
            f"{argument} holds the class ids {torch.unique(unknown)[:8].tolist()}, "
            f"which are not in 0..{classes - 1}",
            hint="give train ids; another value of ignored pixels is ignore_index=VALUE",
        )


def predicted_classes(
    preds: Tensor, target: Tensor, counted: Tensor
) -> tuple[Tensor, Tensor | None]:
    """Return the predicted class ids, and the codes of 1 - max p, both of the shape of the target.

    The codes, int64 in 0..65535, are None where ``preds`` are class ids.

    Raises:
        InputError: shapes differ, a counted label is no class, or counted probabilities do not sum
            to 1.
    """
    check_tensor(preds, "preds")
    if preds.dtype not in _FLOATS:
        if preds.shape != target.shape:
            raise _shapes_differ("preds", preds, target)
        # How many classes there are is not known here, but none of them is negative.
        negative = torch.unique(target[counted & (target < 0)])
        if len(negative):
            raise InputError(
                f"target holds the class ids {negative[:8].tolist()}, which are negative",
                hint="give train ids; another value of ignored pixels is ignore_index=VALUE",
            )
        return preds, None
    probabilities, labels, is_counted = _batched(preds.detach(), target, counted)
    check_class_ids(labels, is_counted, probabilities.shape[1], "target")
    is_counted = is_counted.to(probabilities.device)
    sums_to_one = (probabilities.float().sum(1) - 1).abs() <= 1e-2  # False of NaN
    positive = probabilities.amin(1) >= 0
    if not bool((sums_to_one & positive | ~is_counted).all()):
        raise InputError(
            "preds are negative or do not sum to 1 over the classes",
            hint="give class probabilities: logits.softmax(1)",
        )
    largest, ids = probabilities.float().max(1)
    return ids.view(target.shape), _unit_codes(1 - largest).view(target.shape)


def _unit_codes(values: Tensor) -> Tensor:
    """Return the codes of values as :func:`segunc.maps.encoding.encode_unit` does, int64."""
    values = values.detach().float().clamp(0, 1)
    if values.device.type == "mps":  # has no float64
        values = values.cpu()
    # Torch's square root of float32 is not correctly rounded, as NumPy's is. Of float64 it is close
    # enough: no root of a float32 lies within 2^-51 of the middle between two of them.
    root = values.double().sqrt().float()
    return (root * CODE_MAX).round().nan_to_num(0).long()


def _batched(preds: Tensor, target: Tensor, counted: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return ``[N, C, ...]``, ``[N, ...]`` and ``[N, ...]``, also of a single image."""
    if preds.ndim == target.ndim + 1:
        if preds.shape[:1] + preds.shape[2:] == target.shape:
            return preds, target, counted
        if preds.shape[1:] == target.shape:
            return preds[None], target[None], counted[None]
    raise _shapes_differ("preds", preds, target, "[N, C, ...] and [N, ...]")


def _shapes_differ(argument: str, values: Tensor, target: Tensor, expected: str = "") -> InputError:
    shapes = f"{tuple(values.shape)}, and target {tuple(target.shape)}"
    if expected:
        return InputError(f"{argument} has the shape {shapes}; {expected} are expected")
    return InputError(
        f"{argument} has the shape {shapes}", hint="give both at the size of the labels"
    )
