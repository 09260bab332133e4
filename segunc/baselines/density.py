"""How unlike the training frames a frame's features are: the evidence that no draw of the network
gives. The distance of each map is made at its places, upsampled to the frame, and averaged over
layers and sizes.
"""

from __future__ import annotations

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

BLOCK = {"cpu": 512, "cuda": 8192}
"""Places, and features of a bank, that are multiplied at a time: on a CPU their cosines stay in the
cache, however large the bank.
"""


class Neighbours:
    """A bank of features ``[N, D]`` of the training frames, and how far others are from the nearest
    of them: ``1 - cosine`` in 0..2 (Sun et al., ICML 2022, arXiv 2204.06507). ``frames`` names the
    training frame of each feature; empty where that is unknown.
    """

    def __init__(self, bank: Tensor, frames: Sequence[str] = ()) -> None:
        self.channels, self.frames = bank.shape[1], frames
        # A GPU multiplies halves faster than it reads them.
        self.bank = F.normalize(bank.float(), dim=1).to(
            torch.float16 if bank.is_cuda else torch.float32
        )

    def __call__(self, features: Tensor) -> Tensor:
        """Return the distances ``[M]`` of features ``[M, D]`` of length 1."""
        if (
            get_proxy_mode() is not None
        ):  # of a graph one product, however many places its frames will have
            return (1.0 - (features.to(self.bank.dtype) @ self.bank.T).amax(1).float()).clamp_(
                0.0, 2.0
            )
        side = BLOCK[self.bank.device.type]
        blocks, parts = (
            torch.split(self.bank, side),
            torch.split(features.to(self.bank.dtype), side),
        )
        nearest = [
            torch.stack([(part @ rows.T).amax(1) for rows in blocks]).amax(0) for part in parts
        ]
        return (1.0 - torch.cat(nearest).float()).clamp_(0.0, 2.0)


FrameFeatures = Sequence[tuple[Tensor, Neighbours, tuple[float, float]]]
"""Of a frame for each map of its features ``[D, h, w]`` the bank, and the height and width that it
covers, as shares of the frame's.
"""


def nearest_frames(
    maps: FrameFeatures, places: Sequence[tuple[float, float]]
) -> list[tuple[float, str]]:
    """Return distance and training frame of the stored feature that is nearest to that of each
    place, given as shares 0..1 of the frame's height and width; of several maps that of the
    smallest distance.
    """
    nearest = []
    for features, bank, extent in maps:
        shape = features.shape[1:]
        at = [
            [min(int(s / e * n), n - 1) for s, e, n in zip(place, extent, shape, strict=True)]
            for place in places
        ]
        rows = unit_features(features[:, [y for y, _ in at], [x for _, x in at]][None, ..., None])
        cosines, indices = (rows.to(bank.bank.dtype) @ bank.bank.T).float().max(1)
        distances = (1.0 - cosines).clamp_(0.0, 2.0).tolist()
        nearest.append(
            [(d, bank.frames[index]) for d, index in zip(distances, indices.tolist(), strict=True)]
        )
    return [min(of_maps) for of_maps in zip(*nearest, strict=True)]


class FeatureDensity:
    """How far the features of frames are from those of the training frames; ``whole`` asks for
    frames at their own size.
    """

    gives = frozenset({FEATURE_DISTANCE})

    def __init__(
        self, extractor: FeatureExtractor, banks: Sequence[Neighbours], *, whole: bool = False
    ) -> None:
        self.extractor, self.banks, self.whole = extractor, banks, whole

    @torch.inference_mode()
    @full_float32()
    def __call__(
        self,
        images: Tensor,
        needs: Collection[str],
        precision: Precision = "float32",
        temperature: float = 1.0,
    ) -> dict[str, Any]:
        """Return the mean distance over the maps, ``[n, H, W]`` float32, of images ``[n, 3, H, W]``
        in 0..1, and where the frames of all banks are known, under :data:`NEAREST` a
        :data:`segunc.sampling.sampler.Nearest` for each image.
        """
        # On a GPU alone: on many CPUs depthwise convolutions are slower in bfloat16.
        with torch.autocast(
            images.device.type, torch.bfloat16, enabled=precision == "bfloat16" and images.is_cuda
        ):
            maps, extents = self.extractor(images), self.extractor.extents(images)
        distances = []
        for features, bank, extent in zip(maps, self.banks, extents, strict=True):
            if features.shape[1] != bank.channels:
                sizes = f"{bank.channels} numbers does not fit a layer of {features.shape[1]}"
                raise InputError(
                    f"a bank of features of {sizes}", hint="fit the features of this network again"
                )
            coarse = bank(unit_features(features)).view(len(images), 1, *features.shape[2:])
            whole = F.interpolate(coarse, extent, mode="bilinear", align_corners=False)
            whole = whole[..., : images.shape[2], : images.shape[3]]
            distances.append(whole[:, 0] / len(maps))
        evidence: dict[str, Any] = {FEATURE_DISTANCE: sum(distances)}
        if all(bank.frames for bank in self.banks):
            shares = [
                (height / images.shape[2], width / images.shape[3]) for height, width in extents
            ]
            frames = (
                tuple(zip(frame, self.banks, shares, strict=True))
                for frame in zip(*maps, strict=True)
            )
            evidence[NEAREST] = [partial(nearest_frames, frame) for frame in frames]
        return evidence


def unit_features(maps: Tensor) -> Tensor:
    """The features of maps ``[n, D, h, w]`` as rows ``[n h w, D]`` of length 1, float32."""
    return F.normalize(maps.float().movedim(1, -1).flatten(0, 2), dim=1)


class Sample:
    """A uniform sample without replacement of at most ``size`` rows of a stream, in constant
    memory: those of the smallest random keys. It depends on the seed and the stream alone, not on
    how the stream is cut.
    """

    def __init__(self, size: int, seed: int) -> None:
        self.size, self._generator = size, torch.Generator().manual_seed(seed)
        self._keys, self.rows = torch.empty(0, dtype=torch.float64), torch.empty(0)

    def add(self, rows: Tensor) -> None:
        keys = torch.cat(
            [self._keys, torch.rand(len(rows), generator=self._generator, dtype=torch.float64)]
        )
        rows = torch.cat([self.rows, rows]) if len(self.rows) else rows
        kept = keys.argsort()[: self.size]
        self._keys, self.rows = keys[kept], rows[kept]


def places_of(labels: Tensor, size: tuple[int, int], extent: tuple[int, int]) -> Tensor:
    """For each place of a map of (height, width) ``size`` that covers ``extent`` pixels of a frame
    its centre's row and column as shares of the frame's height and width, and the train id of most
    of its labelled pixels (255 where none has most, and beside unknown pixels, which features there
    have seen), ``[h w, 3]`` float32. Train ids uint8 ``[H, W]``; what a network pads beyond the
    frame counts as its edge.
    """
    axes, count = list(zip(size, extent, labels.shape, strict=True)), size[0] * size[1]
    shares = [(torch.arange(n) + 0.5) / n * covered / side for n, covered, side in axes]
    centres = torch.cartesian_prod(*(share.clamp_max(1.0) for share in shares)).view(-1, 2)
    row, column = ((2 * torch.arange(side) + 1) * n // (2 * covered) for n, covered, side in axes)
    place = (row[:, None] * size[1] + column).clamp_max(count - 1)
    counts = torch.bincount((place * 256 + labels).flatten(), minlength=count * 256).view(-1, 256)[
        :, :IGNORE
    ]
    most, label = counts.max(1)
    unknown = F.max_pool2d(counts[:, UNKNOWN].view(1, *size).float(), 3, 1, 1).flatten() > 0
    label[(2 * most <= counts.sum(1)) | unknown] = IGNORE
    return torch.cat([centres, label[:, None]], 1)
