"""Patch accuracy against patch uncertainty (Mukhoti & Gal 2018, arXiv 1811.12709), for all thresholds at once.

A frame is cut into windows of w x w pixels that do not overlap. A patch is accurate where the share of right pixels is
above the accuracy threshold, and uncertain where its mean uncertainty is above the uncertainty threshold, both strictly.

Pixels without a label belong to no patch: shares and means are over the labelled pixels of a window, and a window
without any is dropped. A window that crosses the border of the frame keeps the pixels inside.

The state is int64 ``[2, 65536]``: accurate and inaccurate patches by the key of their mean uncertainty, rounded to
float16 (a relative step of 2^-11). A threshold is rounded in the same way before it is compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt

from segunc.errors import InputError
from segunc.maps.encoding import keys_to_half, score_keys
from segunc.metrics.pixel_curves import Counts, count_keys

if TYPE_CHECKING:
    from torch import Tensor

WINDOW = 4
"""Side of a patch in pixels."""
ACCURACY_THRESHOLD = 0.5
"""A patch is accurate above this share of right pixels."""

SHARES = ("accurate_if_certain", "uncertain_if_inaccurate", "pavpu")

Values = npt.NDArray[np.float64]
Grid = TypeVar("Grid", npt.NDArray[np.float64], "Tensor")


def count_patches(
    uncertainty: npt.NDArray[np.floating],
    correct: npt.NDArray[np.bool_],
    counted: npt.NDArray[np.bool_],
    window: int = WINDOW,
    accuracy_threshold: float = ACCURACY_THRESHOLD,
) -> Counts:
    """Count the patches of a frame by accuracy and by their mean uncertainty.

    Args:
        uncertainty: ``[H, W]`` in any unit; higher is less certain. May be anything where ``counted`` is False.
        correct: ``[H, W]`` whether the predicted class is right.
        counted: ``[H, W]`` whether the pixel has a label.
        window: w, the side of a patch in pixels.
        accuracy_threshold: a patch is accurate above this share of right pixels, 0..1.

    Returns:
        int64 ``[2, 65536]`` patches by the float16 key of their mean uncertainty; row 0 accurate, row 1 inaccurate. Counts
        of two frames add.

    Raises:
        InputError: the shapes differ, a setting is out of range, or a counted uncertainty is NaN, infinite or beyond
            float16.
    """
    if not uncertainty.shape == correct.shape == counted.shape or uncertainty.ndim != 2:
        raise InputError(
            f"uncertainty of shape {uncertainty.shape}, outcomes of shape {correct.shape} and a mask of shape "
            f"{counted.shape}",
            "one size [H, W] for all",
        )
    check_settings(window, accuracy_threshold)
    border = [(0, -side % window) for side in uncertainty.shape]
    labelled, right, total = (
        window_sums(np.pad(values.astype(np.float64), border), window)
        for values in (counted, correct & counted, np.where(counted, uncertainty, 0.0))
    )
    kept = labelled > 0
    inaccurate = right[kept] <= accuracy_threshold * labelled[kept]
    # By way of float32, as torch rounds float64 to float16, so that both give the same key.
    return count_keys(score_keys((total[kept] / labelled[kept]).astype(np.float32)), inaccurate)


def window_sums(values: Grid, window: int) -> Grid:
    """Sums over the windows of ``[..., H, W]`` (both sides multiples of the window): ``[..., H / w, W / w]``.

    One order of addition, row by row of a window, on every device: so the means have the same bits everywhere.
    """
    parts = [values[..., y::window, x::window] for y in range(window) for x in range(window)]
    total = parts[0] + 0.0
    for part in parts[1:]:
        total = total + part
    return total


def check_settings(window: int, accuracy_threshold: float) -> None:
    """Raise InputError where the side of a patch is below 1 or the accuracy threshold is not in 0..1 (1 excluded)."""
    if window < 1:
        raise InputError(f"a patch side of {window}", "at least 1 pixel")
    if not 0.0 <= accuracy_threshold < 1.0:
        raise InputError(f"an accuracy threshold of {accuracy_threshold}", "a number from 0 to below 1")


@dataclass(frozen=True)
class PatchCurve:
    """The four kinds of patches at each distinct uncertainty as the threshold, ascending.

    Attributes:
        thresholds: ``[T]`` the distinct mean uncertainties of patches; a patch above the threshold is uncertain.
        accurate_certain: int64 ``[T]`` accurate patches at or below each threshold; the last one is their total.
        inaccurate_certain: int64 ``[T]`` inaccurate patches at or below each threshold; the last one is their total.
    """

    thresholds: Values
    accurate_certain: npt.NDArray[np.int64]
    inaccurate_certain: npt.NDArray[np.int64]

    @property
    def patches(self) -> int:
        """Number of patches."""
        return int(self.accurate_certain[-1] + self.inaccurate_certain[-1]) if len(self.thresholds) else 0

    @property
    def inaccurate(self) -> int:
        """Number of inaccurate patches."""
        return int(self.inaccurate_certain[-1]) if len(self.thresholds) else 0


@dataclass(frozen=True)
class PatchNumbers:
    """The three conditional numbers of Mukhoti & Gal, in 0..1; arrays over thresholds or single numbers.

    Attributes:
        thresholds: ``[P]`` uncertainty thresholds.
        accurate_if_certain: ``[P]`` p(accurate | certain); NaN where no patch is certain.
        uncertain_if_inaccurate: ``[P]`` p(uncertain | inaccurate); NaN where no patch is inaccurate.
        pavpu: ``[P]`` share of patches that are accurate and certain, or inaccurate and uncertain; NaN without a patch.
    """

    thresholds: Values
    accurate_if_certain: Values
    uncertain_if_inaccurate: Values
    pavpu: Values


def patch_curve(counts: Counts) -> PatchCurve:
    """The curve of the added counts of :func:`count_patches`."""
    keys = np.flatnonzero(counts.any(axis=0))
    accurate, inaccurate = counts[:, keys].cumsum(axis=1)
    return PatchCurve(keys_to_half(keys.astype(np.uint16)).astype(np.float64), accurate, inaccurate)


def mean_uncertainty(curve: PatchCurve) -> float | None:
    """Mean uncertainty of all patches (each as its float16), the threshold where none is given; None without a patch."""
    if not curve.patches:
        return None
    patches = np.diff(curve.accurate_certain + curve.inaccurate_certain, prepend=0)
    return float(np.sum(curve.thresholds * patches) / curve.patches)


def patch_numbers(curve: PatchCurve, thresholds: npt.ArrayLike) -> PatchNumbers:
    """The numbers at any uncertainty thresholds ``[P]``; each is rounded to float16, as the patches are.

    The metric leaves the threshold open. :func:`mean_uncertainty` of the patches themselves is a choice that needs no
    other data; numbers at thresholds that differ between models compare less than the sweeps do.
    """
    asked = np.asarray(thresholds, np.float64)
    with np.errstate(over="ignore"):  # a threshold beyond float16 is above every patch
        rounded = asked.astype(np.float32).astype(np.float16).astype(np.float64)
    at = np.searchsorted(curve.thresholds, rounded, side="right")
    accurate_certain = np.append(0, curve.accurate_certain)[at]
    inaccurate_certain = np.append(0, curve.inaccurate_certain)[at]
    inaccurate_uncertain = curve.inaccurate - inaccurate_certain
    return PatchNumbers(
        asked,
        _share(accurate_certain, accurate_certain + inaccurate_certain),
        _share(inaccurate_uncertain, np.full_like(inaccurate_uncertain, curve.inaccurate)),
        _share(accurate_certain + inaccurate_uncertain, np.full_like(at, curve.patches)),
    )


def patch_summary(counts: Counts, threshold: float | None = None) -> dict[str, float | None]:
    """The numbers of the added counts of :func:`count_patches` at one threshold; None where nothing defines one.

    Args:
        counts: int64 ``[2, 65536]``.
        threshold: the uncertainty above which a patch is uncertain; None is :func:`mean_uncertainty`.

    Returns:
        ``threshold``, and in 0..1 ``accurate_if_certain``, ``uncertain_if_inaccurate``, ``pavpu``.
    """
    curve = patch_curve(counts)
    chosen = mean_uncertainty(curve) if threshold is None else threshold
    if chosen is None:
        return dict.fromkeys(("threshold", *SHARES))
    numbers = patch_numbers(curve, [chosen])
    shares = {name: float(getattr(numbers, name)[0]) for name in SHARES}
    return {"threshold": chosen} | {name: None if np.isnan(share) else share for name, share in shares.items()}


def sweep(curve: PatchCurve, points: int = 101) -> PatchNumbers | None:
    """The numbers at thresholds evenly spaced from the least to the greatest uncertainty of a patch; None without one.

    Thresholds u_min + t (u_max - u_min), t in 0..1 (as Krishnan & Tickoo 2020, arXiv 2012.07923, sweep theirs), so
    that scores of different units share an axis t.
    """
    if not curve.patches:
        return None
    return patch_numbers(curve, np.linspace(curve.thresholds[0], curve.thresholds[-1], points))


def _share(part: npt.NDArray[np.integer], whole: npt.NDArray[np.integer]) -> Values:
    share = np.full(part.shape, np.nan)
    np.divide(part, whole, out=share, where=whole > 0)
    return share
