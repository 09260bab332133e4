"""Component-level detection: ``SegEval`` of SegmentMeIfYouCan (Chan et al. 2021, arXiv 2104.14812).

Truth and thresholded score are cut into 8-connected components and compared:

* sIoU_gt(k) = |k & K| / (|k or K| - |A|) of a truth component k; K is the union of the predicted components that touch
  k, A those pixels of K that lie on other truth components, which k is not to blame for.
* PPV(p) = |p & truth| / |p| of a predicted component p.
* For tau in 0.25, 0.30, ..., 0.75: TP are truth components with sIoU_gt >= tau, FN the other ones, FP the predicted
  components with PPV < tau; F1 = 2 TP / (2 TP + FN + FP).

The public code (``metrics/instance_segmentation.py`` of ``road-anomaly-benchmark``) compares every component with the
whole frame; here all is summed from one sparse contingency table of (truth component, predicted component) pairs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from segunc.core.errors import InputError
from segunc.data.labels import IGNORE
from segunc.metrics.counting import STEPS_PER_FRACTION, Counts, grouped_sums, mean_of_fractions, to_fixed_point

TAUS = np.linspace(0.25, 0.75, 11)
"""Thresholds on sIoU_gt and PPV, as the benchmark makes them (0.25, 0.30, ..., 0.75 in float64)."""
NO_TRUTH_COMPONENT = "no labelled component is large enough"
NO_PREDICTED_COMPONENT = "no predicted component is large enough"
NO_COMPONENT = "there is neither a labelled nor a predicted component"

_TP, _FN, _FP = (slice(11 * place, 11 * place + 11) for place in range(3))
_TRUTH, _PREDICTED, _SIOU, _PPV = range(33, 37)


@dataclass(frozen=True)
class Track:
    """Least pixels of what counts: smaller predicted components are dropped, smaller truth components ignored with what is
    predicted on them."""

    smallest_predicted: int
    smallest_truth: int


TRACKS = {"smiyc-anomaly": Track(500, 100), "smiyc-obstacle": Track(50, 10)}


def component_counts(
    scores: npt.NDArray[np.floating], anomaly: npt.NDArray[np.uint8], threshold: float, track: str
) -> Counts:
    """Count the components of one frame.

    As in the benchmark, a pixel is predicted where score > threshold, compared in float16 as NumPy 1 does (the threshold is
    rounded to nearest), although the threshold of the ``smiyc`` pixel protocol is an inclusive lower edge. So a perfect map of
    zeros and ones has no component.

    Args:
        scores: float16 ``[H, W]``, higher is more anomalous. Ignored scores may be anything.
        anomaly: uint8 ``[H, W]``; 0 normal, 1 anomaly, 255 ignored.
        threshold: finite, of the ``smiyc`` pixel protocol.
        track: a key of :data:`TRACKS`.

    Returns:
        int64 ``[37]``: TP, FN and FP at each of the 11 :data:`TAUS`; truth components, predicted components; steps of
        2^-40 of the summed sIoU_gt and of the summed PPV. Counts of frames add.

    Raises:
        InputError: a score that is not ignored is NaN.
    """
    counted = anomaly != IGNORE
    if (np.isnan(scores) & counted).any():
        raise InputError("a score map holds NaN", hint="repair the map, or mark such pixels as ignored in the labels")
    return match_components((scores > np.float16(threshold)) & counted, anomaly == 1, TRACKS[track])


def match_components(predicted: npt.NDArray[np.bool_], truth: npt.NDArray[np.bool_], track: Track) -> Counts:
    """Compare the components of two masks ``[H, W]``; ignored pixels are False in both. See :func:`component_counts`."""
    truth_label, truth_size = _components(truth)
    predicted_label, predicted_size = _components(predicted)
    # Sizes of predicted components are those before small truth components are cut out of them.
    kept = predicted_size >= track.smallest_predicted
    kept[0] = False
    void = truth_size < track.smallest_truth  # with the background, as in the original, where it is that small
    pixels = np.flatnonzero(kept.take(predicted_label) & ~void.take(truth_label))
    size = np.bincount(predicted_label[pixels], minlength=len(kept))
    truth_there = truth_label[pixels]
    on_truth = truth_there > 0
    pair, shared = np.unique(
        truth_there[on_truth].astype(np.int64) * len(kept) + predicted_label[pixels[on_truth]], return_counts=True
    )
    truth_of_pair, predicted_of_pair = np.divmod(pair, len(kept))
    on_any_truth = grouped_sums(predicted_of_pair, shared, len(kept))

    # Summed over the predicted components that touch each truth component:
    intersection = grouped_sums(truth_of_pair, shared, len(void))
    area = grouped_sums(truth_of_pair, size[predicted_of_pair], len(void))
    on_others = grouped_sums(truth_of_pair, on_any_truth[predicted_of_pair] - shared, len(void))
    scored = ~void
    scored[0] = False
    siou = intersection[scored] / (truth_size + area - intersection - on_others)[scored]
    present = size > 0
    ppv = on_any_truth[present] / size[present]
    counts = np.zeros(37, np.int64)
    reached = (siou[:, None] >= TAUS).sum(axis=0)
    counts[_TP], counts[_FN] = reached, len(siou) - reached
    counts[_FP] = (ppv[:, None] < TAUS).sum(axis=0)
    counts[_TRUTH], counts[_PREDICTED] = len(siou), len(ppv)
    counts[_SIOU], counts[_PPV] = (to_fixed_point(part, STEPS_PER_FRACTION).sum() for part in (siou, ppv))
    return counts


def component_result(counts: Counts) -> dict[str, Any]:
    """Return the numbers of a set of frames, in 0..1; None where no component makes one (:func:`undefined_components`).

    ``siou_gt`` and ``ppv`` are means over all components, ``mean_f1`` is over :data:`TAUS`, ``f1`` by tau (``"0.25"``, ...).
    """
    found, missed, false = (counts[part].astype(np.float64) for part in (_TP, _FN, _FP))
    f1: dict[str, float | None] = dict.fromkeys(map("{:.2f}".format, TAUS))
    mean = None
    if counts[_TRUTH] + counts[_PREDICTED] > 0:
        # Every tau has a truth component (TP or FN) or, without any, predicted ones with PPV 0, which are all FP.
        scores = 2.0 * found / (2.0 * found + missed + false)
        f1 = dict(zip(f1, scores.tolist(), strict=True))
        mean = float(scores.sum() / len(TAUS))
    return {
        "siou_gt": mean_of_fractions(counts[_SIOU], counts[_TRUTH]),
        "ppv": mean_of_fractions(counts[_PPV], counts[_PREDICTED]),
        "mean_f1": mean,
        "f1": f1,
    }


def undefined_components(counts: Counts) -> dict[str, str]:
    """Return why numbers of :func:`component_result` are None: name -> reason, empty where all are numbers."""
    reasons = {}
    if counts[_TRUTH] == 0:
        reasons["siou_gt"] = NO_TRUTH_COMPONENT
    if counts[_PREDICTED] == 0:
        reasons["ppv"] = NO_PREDICTED_COMPONENT
    if len(reasons) == 2:
        reasons |= dict.fromkeys(("mean_f1", "f1"), NO_COMPONENT)
    return reasons


def _components(mask: npt.NDArray[np.bool_]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
    """Return flat 8-connected component numbers (0 outside) ``[H * W]`` and the pixels of each, from number 0 on."""
    pixels = np.ascontiguousarray(mask).view(np.uint8)
    number, labels = cv2.connectedComponents(pixels, connectivity=8, ltype=cv2.CV_32S)
    flat = np.asarray(labels, np.int32).ravel()
    return flat, np.bincount(flat, minlength=number)
