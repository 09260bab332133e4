"""What every part of a result has: each counts frames into integers that add, and makes its numbers of any such sum.

A part knows one section of ``metrics.json``. It is asked for the counts of a frame, for numbers of the counts of all
frames, and for the numbers of bootstrap replicates, of which many are kept, in a coarser form.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from segunc.metrics.labelled_frame import LabelledFrame
from segunc.metrics.pixel_curves import KEYS

Counts = npt.NDArray[np.int64]
State = TypeVar("State")
Path = tuple[str, ...]
Numbers = dict[Path, float | None]
Forms = Mapping[str, str]
COARSE_KEYS = 4096
"""Bins of the replicates' counts by key."""


def coarse_keys(counts: Counts) -> Counts:
    """Counts by key ``[..., 65536]`` with neighbouring keys merged to ``[..., 4096]``."""
    merged: Counts = counts.reshape(*counts.shape[:-1], COARSE_KEYS, KEYS // COARSE_KEYS).sum(-1)
    return merged


def fine_keys(coarse: Counts) -> Counts:
    """Counts ``[..., 65536]`` with the pixels of merged keys at the middle one."""
    width = KEYS // COARSE_KEYS
    counts = np.zeros((*coarse.shape[:-1], KEYS), np.int64)
    counts[..., width // 2 :: width] = coarse
    return counts


class Part(ABC, Generic[State]):
    """One section of a result; ``State`` is the type of its counts.

    Attributes:
        section: its place in ``metrics.json``.
        names: of its numbers below the section.
        point: those of them that are given without an interval, thresholds for instance.
        batch: frames whose counts are kept before they are combined.
        needs: the kind of label it needs, ``anomaly`` or ``class``.
    """

    section: Path
    names: Sequence[Path]
    point: ClassVar[frozenset[Path]] = frozenset()
    batch: ClassVar[int] = 1
    needs: ClassVar[str]

    @abstractmethod
    def count(self, frame: LabelledFrame) -> State | None:
        """The counts of a frame, None where it lacks what the part needs."""

    @abstractmethod
    def numbers(self, counts: State, forms: Forms) -> Numbers:
        """The numbers of summed counts; None where the counts define none."""

    @abstractmethod
    def combine(self, counts: Sequence[State]) -> State:
        """The sum of counts."""

    @abstractmethod
    def coarsen(self, counts: State) -> Counts:
        """The form in which replicates are kept: whole numbers of a fixed shape that add."""

    @abstractmethod
    def refine(self, coarse: Counts) -> State:
        """Counts whose :meth:`coarsen` is ``coarse``."""

    @abstractmethod
    def why(self, counts: State | None, name: Path) -> str:
        """Why a number is None; ``counts`` is None where no frame holds what the part needs."""


class ArrayPart(Part[Counts]):
    """A part whose counts are one array, replicates included."""

    def combine(self, counts: Sequence[Counts]) -> Counts:
        total: Any = sum(counts[1:], counts[0])
        return np.asarray(total, np.int64)

    def coarsen(self, counts: Counts) -> Counts:
        return counts

    def refine(self, coarse: Counts) -> Counts:
        return coarse


class KeyPart(ArrayPart):
    """A part whose counts are by 16-bit key, ``[2, 65536]``; those of replicates by 12 bits of it."""

    def coarsen(self, counts: Counts) -> Counts:
        return coarse_keys(counts)

    def refine(self, coarse: Counts) -> Counts:
        return fine_keys(coarse)
