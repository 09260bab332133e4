"""How far a frame's features are from those of the training frames: the evidence that no draw of the network gives.

The distance of a place is that of its feature to the nearest feature of the bank, ``1 - cosine`` in 0..2 (Sun et al., ICML 2022,
arXiv 2204.06507), averaged over layers and sizes at the size of the frame.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from segunc.core.device import Precision
from segunc.core.errors import InputError
from segunc.networks.features import FeatureExtractor

CHUNK_BYTES = 64 << 20
"""Of the cosines of a chunk of places with the whole bank."""


class Origin(NamedTuple):
    """Where in the training frames a feature was seen."""

    frame: str  # name
    row: float  # of the place's centre, as shares of the frame's height and width
    column: float
    label: str | None  # name of the class of most of its labelled pixels


class Nearest(NamedTuple):
    """For each place of a map the nearest feature of a bank."""

    rows: Tensor  # int64 [n, h, w], of the bank
    distances: Tensor  # float32 [n, h, w], 1 - cosine
    extent: tuple[float, float]  # of the map, as shares of the frames' height and width: a network may pad what it sees


class FeatureDensity:
    """Distances of places to the training frames.

    Args:
        extractor: of the maps, on its device.
        banks: for each of its maps features ``[N, D]`` of length 1, in any floating type.
        origins: of the rows of the bank of the last layer at the first size.
    """

    def __init__(self, extractor: FeatureExtractor, banks: Sequence[Tensor], origins: Sequence[Origin] = ()) -> None:
        self.origins = origins
        device = next(extractor.parameters()).device
        # A GPU multiplies halves faster than it reads them.
        kind = torch.float16 if device.type == "cuda" else torch.float32
        self.extractor, self.banks = extractor, [F.normalize(bank.to(device).float(), dim=1).to(kind) for bank in banks]

    @torch.inference_mode()
    def __call__(self, images: Tensor, precision: Precision = "float32") -> Tensor:
        """Distances ``[n, H, W]`` float32 in 0..2 of images ``[n, 3, H, W]`` in 0..1."""
        # On many CPUs depthwise convolutions are slower in bfloat16.
        narrow = precision == "bfloat16" and images.device.type == "cuda"
        with torch.autocast(images.device.type, torch.bfloat16, enabled=narrow):
            maps = self.extractor(images)
        total = images.new_zeros(len(images), 1, *images.shape[-2:])
        for features, bank in zip(maps, self.banks, strict=True):
            if features.shape[1] != bank.shape[1]:
                given = f"features of {features.shape[1]} numbers for a bank of {bank.shape[1]}"
                raise InputError(given, "the bank of this network and layer", "fit it again")
            found = nearest_distances(unit_features(features), bank)
            coarse = found.view(len(images), 1, *features.shape[-2:])
            total += F.interpolate(coarse, images.shape[-2:], mode="bilinear", align_corners=False)
        return total[:, 0] / len(self.banks)

    @torch.inference_mode()
    def nearest(self, images: Tensor) -> Nearest:
        """For each place of the last layer's map at the first size the row of :attr:`origins` whose feature is nearest; images
        ``[n, 3, H, W]`` in 0..1."""
        last = len(self.extractor.layers) - 1
        maps = self.extractor(images)[last]
        bank = self.banks[last]
        parts = torch.split(unit_features(maps), rows_at_once(bank))
        cosines, rows = zip(*((part.to(bank.dtype) @ bank.T).max(1) for part in parts), strict=True)
        shape = (len(maps), *maps.shape[2:])
        distances = (1.0 - torch.cat(cosines).float()).clamp_(0.0, 2.0)
        height, width = self.extractor.extents(images)[last]
        extent = (height / images.shape[2], width / images.shape[3])
        return Nearest(torch.cat(rows).view(shape), distances.view(shape), extent)


def unit_features(maps: Tensor) -> Tensor:
    """The features of maps ``[n, D, h, w]`` as rows ``[n h w, D]`` of length 1, float32."""
    return F.normalize(maps.float().movedim(1, -1).flatten(0, 2), dim=1)


def nearest_distances(features: Tensor, bank: Tensor) -> Tensor:
    """``1 - cosine`` ``[M]`` float32 of unit features ``[M, D]`` to the nearest of a bank ``[N, D]`` of such."""
    parts = torch.split(features, rows_at_once(bank))
    return torch.cat([1.0 - (part.to(bank.dtype) @ bank.T).amax(1).float() for part in parts]).clamp_(0.0, 2.0)


def rows_at_once(bank: Tensor) -> int:
    """How many rows are compared with a whole bank ``[N, D]`` at once."""
    return max(1, CHUNK_BYTES // (bank.element_size() * len(bank)))
