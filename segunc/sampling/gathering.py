"""What is gathered of the features of the training frames, in one pass and constant memory."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from segunc.core.registry import Registry
from segunc.data.labels import IGNORE
from segunc.scores import FEATURE_DISTANCE

if TYPE_CHECKING:
    from segunc.networks.network import SegmentationNetwork
    from segunc.posteriors.features import FeatureBank, FeaturesConfig
    from segunc.training.progress import Say

Take = Callable[[Iterable[str]], dict[str, Tensor]]


class FeatureFit:
    """Gathers over the training frames what some evidence of features needs, an entry of :data:`FEATURE_FITS` for each name of it. There
    is one for each map of the encoder, or with a ``prefix`` one for the frames themselves."""

    prefix: ClassVar[str] = ""  # of the names of its tensors; those of map 2 begin with ``2.``

    def __init__(self, network: SegmentationNetwork, needs: Collection[str], settings: FeaturesConfig) -> None:
        self.network, self.needs, self.settings = network, needs, settings

    def add(self, seen: Tensor, labels: Tensor) -> None:
        """Take unit features ``[M, D]`` of a map with the train ids ``[M]`` of their places, or a frame ``[1, 3, h, w]`` with its own."""

    def tensors(self, sample: Tensor, say: Say) -> dict[str, Tensor]:
        """Return what is kept. A row of the sample is a feature of the map and, in four numbers, where it was seen."""
        raise NotImplementedError

    @staticmethod
    def restore(take: Take, needs: Collection[str], network: SegmentationNetwork, bank: FeatureBank) -> Any:
        """Return a :class:`segunc.sampling.density.Density` of the map, or with a prefix a :class:`segunc.sampling.sampler.Provider`, of the
        tensors that ``take`` gives for their names, on the network's device."""
        raise NotImplementedError


FEATURE_FITS: Registry[type[FeatureFit]] = Registry(
    "evidence of features", "segunc.feature_fits", {FEATURE_DISTANCE: "segunc.posteriors.features:BankFit"}
)


def fits_of(needs: Collection[str]) -> list[type[FeatureFit]]:
    """Return those that some evidence needs."""
    return list(dict.fromkeys(FEATURE_FITS[name] for name in FEATURE_FITS if name in needs))


class Sample:
    """A uniform sample without replacement of at most ``size`` rows of a stream, in constant memory: those of the smallest random
    keys. It depends on the seed and the stream alone, not on how the stream is cut."""

    def __init__(self, size: int, seed: int) -> None:
        self.size, self._generator = size, torch.Generator().manual_seed(seed)
        self._keys, self.rows = torch.empty(0, dtype=torch.float64), torch.empty(0)

    def add(self, rows: Tensor) -> None:
        """Rows ``[M, D]``."""
        keys = torch.cat([self._keys, torch.rand(len(rows), generator=self._generator, dtype=torch.float64)])
        rows = torch.cat([self.rows, rows]) if len(self.rows) else rows
        kept = keys.argsort()[: self.size]
        self._keys, self.rows = keys[kept], rows[kept]


def places_of(labels: Tensor, size: tuple[int, int], extent: tuple[int, int]) -> Tensor:
    """For each place of a map of (height, width) ``size`` that covers ``extent`` pixels of a frame its centre's row and column as
    shares of the frame's height and width, and the train id of most of its labelled pixels (255 where none has most), ``[h w, 3]``
    float32. Train ids uint8 ``[H, W]``; what a network pads beyond the frame counts as its edge."""
    shares = [
        (torch.arange(n) + 0.5) / n * covered / side
        for n, covered, side in zip(size, extent, labels.shape, strict=True)
    ]
    at = torch.cartesian_prod(*(share.clamp_max(1.0) for share in shares)).view(-1, 2)
    row, column = (
        (2 * torch.arange(side) + 1) * n // (2 * covered)
        for n, covered, side in zip(size, extent, labels.shape, strict=True)
    )
    place = (row[:, None] * size[1] + column).clamp_max(size[0] * size[1] - 1)
    counts = torch.bincount((place * 256 + labels).flatten(), minlength=size[0] * size[1] * 256).view(-1, 256)[
        :, :IGNORE
    ]
    most, label = counts.max(1)
    label[2 * most <= counts.sum(1)] = IGNORE
    return torch.cat([at, label[:, None]], 1)
