"""What every part of a result has: each counts frames into integers that add, and makes its numbers of any such sum.

A part knows one section of ``metrics.json``. It is asked for the counts of a frame, for numbers of the counts of all
frames, and for the numbers of bootstrap replicates, whose counts by key are coarser (see :func:`coarse_keys`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from segunc.metrics.labelled_frame import LabelledFrame, decode_keys
from segunc.metrics.pixel_curves import KEYS

Counts = npt.NDArray[np.int64]
Path = tuple[str, ...]
Numbers = dict[Path, float | None]
Forms = Mapping[str, str]
COARSE_KEYS = 4096
"""Bins of the replicates' counts by key."""


def coarse_keys(counts: Counts) -> Counts:
    """Counts by key ``[..., 65536]`` with neighbouring keys merged to ``[..., 4096]``."""
    merged: Counts = counts.reshape(*counts.shape[:-1], COARSE_KEYS, KEYS // COARSE_KEYS).sum(-1)
    return merged


def key_values(score: str, forms: Forms, bins: int) -> npt.NDArray[np.float32]:
    """The score at each bin of counts by key: at the key itself, or at the middle of merged keys; ``[bins]``."""
    width = KEYS // bins
    return decode_keys(score, forms[score], (np.arange(bins) * width + width // 2).astype(np.uint16))


class Part(ABC):
    """One section of a result.

    Attributes:
        section: its place in ``metrics.json``.
        names: of its numbers below the section.
        point: those of them that are given without an interval, thresholds for instance.
    """

    section: Path
    names: Sequence[Path]
    point: frozenset[Path] = frozenset()

    @abstractmethod
    def count(self, frame: LabelledFrame) -> Counts | None:
        """The counts of a frame, None where it lacks what the part needs."""

    @abstractmethod
    def numbers(self, counts: Counts, forms: Forms) -> Numbers:
        """The numbers of summed counts; None where the counts define none."""

    def coarsen(self, counts: Counts) -> Counts:
        """The form in which replicates keep the counts."""
        return counts

    def why(self, counts: Counts | None, name: Path) -> str:
        """Why a number is None."""
        del counts, name
        return "no frame holds what it needs"


class AnomalyPart(Part):
    """A part that needs an anomaly label."""

    def why(self, counts: Counts | None, name: Path) -> str:
        return "no frame has an anomaly label" if counts is None else super().why(counts, name)


class ClassLabelPart(Part):
    """A part that needs class labels and the prediction."""

    def why(self, counts: Counts | None, name: Path) -> str:
        if counts is None:
            return "no frame has both class labels and a prediction"
        return "every pixel of the class labels is ignored"
