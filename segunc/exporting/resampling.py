"""OpenCV's resizing of 8-bit images as operators of a graph.

``predict`` resizes frames with ``cv2.resize``: by the mean over areas where they shrink, else
bilinearly. Both are separable: a pixel is a weighted sum of a few rows and columns, its taps.
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from segunc.core.errors import InputError

_UNIT = 2048.0
"""OpenCV's bilinear weights of 8-bit images are whole numbers of this many parts."""
_DROPPED = 16.0
"""OpenCV drops 4 bits of its bilinear columns. The weights of columns are divided by it beforehand,
which changes no bit in float32: 255 x 2048 would be infinite where a device computes in float16."""
_ROUNDING_UP = (1, 3, 4)
"""Numbers of channels for which OpenCV has a rounding of its own for the mean of 2 x 2 pixels."""


@dataclass(frozen=True)
class Taps:
    """The source lines of each line (row or column) of a resized image, and their weights.

    Attributes:
        lines: int64 ``[k, n]``, of each of n lines its k source lines.
        weights: float32 ``[k, n]``.
    """

    lines: Tensor
    weights: Tensor

    def products(self, image: Tensor, axis: int) -> list[Tensor]:
        """Return each tap of an image times its weight, along axis 2 or 3 of ``[N, C, H, W]``."""
        shape = [1, 1, 1, 1]
        shape[axis] = -1
        products = []
        for lines, weights in zip(self.lines, self.weights, strict=True):
            products.append(image.index_select(axis, lines) * weights.reshape(shape))
        return products

    def sums(self, image: Tensor, axis: int) -> Tensor:
        """Return the sum over the taps, added in their order."""
        total, *others = self.products(image, axis)
        for product in others:
            total = total + product
        return total


class Resampling:
    """Resizes 8-bit images as ``segunc.sampling.sampler.network_input`` does.

    Means over areas are OpenCV's to the last bit. Of bilinear values few differ by one level,
    where float32 rounds a product of OpenCV's whole numbers.

    Args:
        source: (height, width) of the frames.
        target: (height, width) of the network.

    Raises:
        InputError: one side shrinks and the other one grows, which OpenCV does in a way of its own.
    """

    def __init__(self, source: tuple[int, int], target: tuple[int, int]) -> None:
        self.is_identity = source == target
        self.is_area = target[0] < source[0]
        if self.is_area and target[1] > source[1]:
            raise InputError(
                f"a frame of {source[0]}x{source[1]} would be lower and wider at the network's "
                f"{target[0]}x{target[1]}, and no graph resizes them as predict does",
                hint="--size HxW of the same shape as --frame-size",
            )
        height_ratio, width_ratio = source[0] / target[0], source[1] / target[1]
        self._pixels = 1.0  # in an area, where areas are whole pixels
        if not self.is_area:
            self._rows = _bilinear_taps(source[0], target[0], is_row=True)
            self._columns = _bilinear_taps(source[1], target[1], is_row=False)
        elif height_ratio.is_integer() and width_ratio.is_integer():
            # OpenCV adds the pixels, and divides once.
            self._rows = _whole_taps(source[0], target[0])
            self._columns = _whole_taps(source[1], target[1])
            self._pixels = height_ratio * width_ratio
        else:
            self._rows = _area_taps(source[0], target[0])
            self._columns = _area_taps(source[1], target[1])
        # Of 2 x 2 pixels OpenCV rounds halves up, of other areas to the even neighbour.
        self._is_of_four = (height_ratio, width_ratio) == (2.0, 2.0)

    def __call__(self, images: Tensor) -> Tensor:
        """Return images ``[N, K, H, W]`` of whole float32 numbers 0..255 at the target size."""
        if self.is_identity:
            return images
        columns = self._columns.sums(images, 3)
        if not self.is_area:
            return self._bilinear(columns)
        values = self._rows.sums(columns, 2)
        if self._pixels > 1:
            values = values * (1.0 / self._pixels)
        rounds_up = self._is_of_four and images.shape[1] in _ROUNDING_UP
        return (values + 0.5).floor() if rounds_up else values.round()

    def _bilinear(self, columns: Tensor) -> Tensor:
        """Return the rows of images whose columns are done, in OpenCV's steps for 8 bits.

        It drops 4 bits of the columns, 16 bits of each product and, rounding, the last 2 bits.
        """
        upper, lower = self._rows.products(columns.floor(), 2)
        return ((upper.floor() + lower.floor() + 2.0) / 4.0).floor()


def _bilinear_taps(source: int, target: int, *, is_row: bool) -> Taps:
    """Return the two taps of each line, as ``cv2.resize`` finds them.

    The weights are whole numbers, those of columns divided by 16 and those of rows by 65536. Beyond
    the border, columns take one line alone, and rows take it twice.
    """
    centres = (np.arange(target) + 0.5) * (source / target) - 0.5
    positions = centres.astype(np.float32)
    first = np.floor(positions).astype(np.int64)
    shares = (positions - first).astype(np.float32)
    if not is_row:
        beyond = (first < 0) | (first >= source - 1)
        shares[beyond] = 0.0
    lines = np.stack([first, first + 1]).clip(0, source - 1)
    weights = np.rint(np.stack([np.float32(1) - shares, shares]) * np.float32(_UNIT))
    weights = weights / (65536.0 if is_row else _DROPPED)
    return _taps(lines, weights)


def _whole_taps(source: int, target: int) -> Taps:
    """Return the taps of areas of whole pixels, each of weight 1."""
    ratio = source // target
    lines = np.arange(source).reshape(target, ratio).T
    return _taps(lines, np.ones_like(lines))


def _area_taps(source: int, target: int) -> Taps:
    """Return the taps of areas, with the weights that OpenCV itself gives single lines."""
    lines_alone = np.eye(source, dtype=np.float32)
    matrix = cv2.resize(lines_alone, (source, target), interpolation=cv2.INTER_AREA)
    count = int((matrix != 0).sum(1).max())
    # Lines without weight come last, the others in their order.
    order = np.argsort(matrix == 0, axis=1, kind="stable")[:, :count]
    return _taps(order.T, np.take_along_axis(matrix, order, 1).T)


def _taps(lines: npt.NDArray[np.integer], weights: npt.NDArray[np.number]) -> Taps:
    return Taps(
        torch.from_numpy(np.ascontiguousarray(lines, np.int64)),
        torch.from_numpy(np.ascontiguousarray(weights, np.float32)),
    )
