"""How unlike the training frames the features of a frame are: evidence that no draw of the network
gives. The distance of each feature map is computed at its places, upsampled to the frame, and
averaged over layers and sizes. On request it is taken relative to what is usual at its place of the
frame, and smoothed.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from segunc.baselines.feature_extractor import FeatureExtractor
from segunc.core.device import Precision, full_float32
from segunc.core.errors import InputError
from segunc.data.labels import IGNORE, UNKNOWN
from segunc.scores import FEATURE_DISTANCE, NEAREST

# Places, and features of a bank, that are multiplied at a time. On a CPU their cosines stay in the
# cache, however large the bank.
BLOCK = {"cpu": 512, "cuda": 8192}
# Of the training frames: features of each map whose distances say what is usual at a place.
USUAL_FEATURES = 7_500
PLACE_GRID = 12  # rows and columns of the grid of places of a frame
# A cell of the grid counts as if it held this many more distances, all of them the mean of all
# cells, so that few distances do not decide.
PLACE_PRIOR = 20


class Neighbours:
    """A bank of features of the training frames, and how far other features are from it.

    The distance is ``1 - cosine`` in 0..2 from the nearest feature (Sun et al., ICML 2022, arXiv
    2204.06507).

    Args:
        bank: features ``[N, D]``.
        frames: the training frame of each feature; empty where that is unknown.
    """

    def __init__(self, bank: Tensor, frames: Sequence[str] = ()) -> None:
        self.channels = bank.shape[1]
        self.frames = frames
        # A GPU multiplies halves faster than it reads them.
        stored = torch.float16 if bank.is_cuda else torch.float32
        self.bank = F.normalize(bank.float(), dim=1).to(stored)

    def __call__(self, features: Tensor) -> Tensor:
        """Return the distances ``[M]`` of features ``[M, D]`` of length 1."""
        features = features.to(self.bank.dtype)
        if get_proxy_mode() is not None:
            # One product in a graph, however many places its frames will have.
            cosines = (features @ self.bank.T).amax(1)
        else:
            cosines = self._largest_cosines(features)
        return (1.0 - cosines.float()).clamp_(0.0, 2.0)

    def _largest_cosines(self, features: Tensor) -> Tensor:
        """Return the cosine of each feature to the nearest of the bank, computed in blocks."""
        block = BLOCK[self.bank.device.type]
        banks = torch.split(self.bank, block)
        largest = []
        for part in torch.split(features, block):
            cosines = [(part @ bank.T).amax(1) for bank in banks]
            largest.append(torch.stack(cosines).amax(0))
        return torch.cat(largest)

    def nearest(self, features: Tensor) -> list[tuple[float, str]]:
        """Return distance and training frame of the nearest of the bank to each of few features
        ``[M, D]`` of length 1.
        """
        cosines, indices = (features.to(self.bank.dtype) @ self.bank.T).float().max(1)
        distances = (1.0 - cosines).clamp_(0.0, 2.0).tolist()
        frames = [self.frames[index] for index in indices.tolist()]
        return list(zip(distances, frames, strict=True))


FrameFeatures = Sequence[tuple[Tensor, Neighbours, tuple[float, float]]]
"""The feature maps of a frame: for each the map ``[D, h, w]``, its bank, and the height and width
that it covers, as shares of the frame's.
"""


def nearest_frames(
    maps: FrameFeatures, places: Sequence[tuple[float, float]]
) -> list[tuple[float, str]]:
    """Return the training frame whose stored feature is nearest to that of each place.

    Args:
        places: (row, column), as shares 0..1 of the frame's height and width.

    Returns:
        Distance and training frame for each place; of several maps, those of the smallest distance.
    """
    nearest = []
    for features, bank, (covered_height, covered_width) in maps:
        _, height, width = features.shape
        rows = []
        columns = []
        for row, column in places:
            rows.append(min(int(row / covered_height * height), height - 1))
            columns.append(min(int(column / covered_width * width), width - 1))
        chosen = unit_features(features[:, rows, columns][None, ..., None])
        nearest.append(bank.nearest(chosen))
    return [min(candidates) for candidates in zip(*nearest, strict=True)]


def usual_distances(features: Tensor, origins: Tensor) -> Tensor:
    """Return how far features of the training frames are from the nearest feature of another
    training frame, and where they are.

    Args:
        features: of the bank, ``[N, D]`` in random order; at most the first USUAL_FEATURES are
            taken.
        origins: frame number, row and column of each, ``[N, 3]`` or more columns.

    Returns:
        ``[M, 4]`` float32: frame number, row and column as shares 0..1, and distance 0..2.

    Raises:
        InputError: all features are of one frame.
    """
    frames = origins[:, 0]
    if bool((frames == frames[:1]).all()):
        raise InputError(
            "features.by_place compares frames of the bank with each other, and it holds one alone",
            hint="give more frames, or --features.by_place false",
        )
    unit = F.normalize(features.float(), dim=1)
    distances = []
    for block in torch.split(torch.arange(min(len(unit), USUAL_FEATURES)), BLOCK["cpu"]):
        cosines = unit[block] @ unit.T
        cosines[frames[block, None] == frames] = -1.0
        distances.append((1.0 - cosines.amax(1)).clamp(0.0, 2.0))
    usual = torch.cat(distances)
    return torch.cat([origins[: len(usual), :3].float(), usual[:, None]], 1)


def place_levels(usual: Tensor) -> Tensor:
    """Return by how much distances at each place of the frame are usually above their mean.

    Args:
        usual: what :func:`usual_distances` returns, ``[M, 4]``.

    Returns:
        ``[PLACE_GRID, PLACE_GRID]`` float32 on the device of ``usual``; cells are equal parts of
        the frame's height and width.

    >>> import torch
    >>> top = torch.tensor([[0, 0.04, 0.04, 0.5]]).repeat(20, 1)
    >>> bottom = torch.tensor([[0, 0.96, 0.04, 0.1]]).repeat(20, 1)
    >>> levels = place_levels(torch.cat([top, bottom]))
    >>> [round(level, 3) for level in levels[:, 0].tolist()[::11]]
    [0.1, -0.1]
    """
    mean = usual[:, 3].sum() / max(1, len(usual))
    rows, columns = (usual[:, 1:3] * PLACE_GRID).long().clamp(0, PLACE_GRID - 1).unbind(1)
    cells = rows * PLACE_GRID + columns
    size = PLACE_GRID * PLACE_GRID
    excess = torch.zeros(size, device=usual.device).index_add_(0, cells, usual[:, 3] - mean)
    levels = excess / (cells.bincount(minlength=size) + PLACE_PRIOR)
    return levels.view(PLACE_GRID, PLACE_GRID)


def smoothed(maps: Tensor, deviation: float) -> Tensor:
    """Return maps ``[n, H, W]`` after a Gaussian filter whose standard deviation is in pixels. The
    edge of a map is continued beyond it.
    """
    radius = math.ceil(3 * deviation)
    steps = torch.arange(-radius, radius + 1, dtype=maps.dtype, device=maps.device)
    weights = torch.softmax(-0.5 * (steps / deviation) ** 2, dim=0)
    padded = F.pad(maps[:, None], (radius, radius, radius, radius), mode="replicate")
    rows = F.conv2d(padded, weights.view(1, 1, 1, -1))
    return F.conv2d(rows, weights.view(1, 1, -1, 1))[:, 0]


class FeatureDistances:
    """How far the features of frames are from those of the training frames.

    Args:
        extractor: makes the maps.
        banks: a bank for each map.
        whole: asks for frames at their own size.
        levels: for each map, what is subtracted from its distances at each place of the frame
            (:func:`place_levels`); empty subtracts nothing.
        smoothing: standard deviation in pixels of the Gaussian filter of the mean distance; 0
            filters nothing.
    """

    gives = frozenset({FEATURE_DISTANCE})

    def __init__(
        self,
        extractor: FeatureExtractor,
        banks: Sequence[Neighbours],
        *,
        whole: bool = False,
        levels: Sequence[Tensor] = (),
        smoothing: float = 0.0,
    ) -> None:
        self.extractor = extractor
        self.banks = banks
        self.whole = whole
        self.levels = levels
        self.smoothing = smoothing

    @torch.inference_mode()
    @full_float32()
    def __call__(
        self,
        images: Tensor,
        needs: Collection[str],
        precision: Precision = "float32",
        temperature: float = 1.0,
    ) -> dict[str, Any]:
        """Return the evidence of images ``[n, 3, H, W]`` in 0..1.

        Returns:
            The mean distance over the maps, ``[n, H, W]`` float32; and where the frames of all
            banks are known, under :data:`NEAREST` a :data:`segunc.sampling.sampler.Nearest` for
            each image.
        """
        # On a GPU alone: on many CPUs depthwise convolutions are slower in bfloat16.
        with torch.autocast(
            images.device.type, torch.bfloat16, enabled=precision == "bfloat16" and images.is_cuda
        ):
            maps = self.extractor(images)
            extents = self.extractor.extents(images)
        height, width = images.shape[-2:]
        distances = []
        for features, bank, extent in zip(maps, self.banks, extents, strict=True):
            if features.shape[1] != bank.channels:
                raise InputError(
                    f"a bank of features of {bank.channels} numbers does not fit a layer of "
                    f"{features.shape[1]}",
                    hint="fit the features of this network again",
                )
            coarse = bank(unit_features(features)).view(len(images), 1, *features.shape[2:])
            covered = F.interpolate(coarse, extent, mode="bilinear", align_corners=False)
            distances.append(covered[:, 0, :height, :width] / len(maps))
        evidence: dict[str, Any] = {FEATURE_DISTANCE: self._relative(sum(distances))}
        if all(bank.frames for bank in self.banks):
            shares = [(rows / height, columns / width) for rows, columns in extents]
            nearest = []
            for image_maps in zip(*maps, strict=True):
                frame = tuple(zip(image_maps, self.banks, shares, strict=True))
                nearest.append(partial(nearest_frames, frame))
            evidence[NEAREST] = nearest
        return evidence

    def _relative(self, distances: Any) -> Tensor:
        """Return mean distances ``[n, H, W]`` relative to what is usual at each place, smoothed."""
        relative: Tensor = distances
        if self.levels:
            grid = torch.stack(list(self.levels)).mean(0)[None, None]
            size = relative.shape[-2:]
            level = F.interpolate(grid, size, mode="bilinear", align_corners=False)
            relative = relative - level[0]
        if self.smoothing:
            relative = smoothed(relative, self.smoothing)
        if self.levels:
            relative = relative.clamp(0.0, 2.0)
        return relative


def unit_features(maps: Tensor) -> Tensor:
    """Return the features of maps ``[n, D, h, w]`` as rows ``[n h w, D]`` of length 1, float32."""
    return F.normalize(maps.float().movedim(1, -1).flatten(0, 2), dim=1)


class Sample:
    """A uniform sample without replacement of at most ``size`` rows of a stream, in constant
    memory: the rows with the smallest random keys. It depends on the seed and the stream alone, not
    on how the stream is cut.
    """

    def __init__(self, size: int, seed: int) -> None:
        self.size = size
        self.rows = torch.empty(0)
        self._keys = torch.empty(0, dtype=torch.float64)
        self._generator = torch.Generator().manual_seed(seed)

    def add(self, rows: Tensor) -> None:
        new_keys = torch.rand(len(rows), generator=self._generator, dtype=torch.float64)
        keys = torch.cat([self._keys, new_keys])
        if len(self.rows):
            rows = torch.cat([self.rows, rows])
        smallest = keys.argsort()[: self.size]
        self._keys = keys[smallest]
        self.rows = rows[smallest]


def _centres(side: int, extent: int, length: int) -> Tensor:
    """Return the centres of the places along one side of a map, as shares of the frame's side."""
    return ((torch.arange(side) + 0.5) / side * extent / length).clamp_max(1.0)


def _places_of_pixels(side: int, extent: int, length: int) -> Tensor:
    """Return the place along one side of a map to which each pixel of the frame's side belongs."""
    return (2 * torch.arange(length) + 1) * side // (2 * extent)


def places_of(labels: Tensor, size: tuple[int, int], extent: tuple[int, int]) -> Tensor:
    """Return where each place of a feature map is, and its class.

    The class is the train id of most of the labelled pixels of a place: 255 where none has most,
    and beside unknown pixels, which features there have seen. What a network pads beyond the frame
    counts as its edge.

    Args:
        labels: train ids uint8 ``[H, W]`` of the frame.
        size: (height, width) of the map.
        extent: (height, width) that the map covers, in pixels of the frame.

    Returns:
        ``[h w, 3]`` float32: row and column of the centre as shares of the frame's height and
        width, and the train id.
    """
    rows, columns = size
    height, width = labels.shape
    row_centres = _centres(rows, extent[0], height)
    column_centres = _centres(columns, extent[1], width)
    centres = torch.cartesian_prod(row_centres, column_centres).view(-1, 2)
    row = _places_of_pixels(rows, extent[0], height)
    column = _places_of_pixels(columns, extent[1], width)
    cell = (row[:, None] * columns + column).clamp_max(rows * columns - 1)
    classes = _classes_of_places(cell, labels, size)
    return torch.cat([centres, classes[:, None]], 1)


def _classes_of_places(place: Tensor, labels: Tensor, size: tuple[int, int]) -> Tensor:
    """Return the class of each place of a map, int64 ``[h w]``, from the place and the train id of
    each pixel ``[H, W]``.
    """
    rows, columns = size
    count = rows * columns
    pixels = torch.bincount((place * 256 + labels).flatten(), minlength=count * 256)
    pixels = pixels.view(-1, 256)[:, :IGNORE]  # of each place and train id
    most, classes = pixels.max(1)
    unknown = pixels[:, UNKNOWN].view(1, rows, columns).float()
    beside_unknown = F.max_pool2d(unknown, 3, 1, 1).flatten() > 0
    classes[(2 * most <= pixels.sum(1)) | beside_unknown] = IGNORE
    return classes
