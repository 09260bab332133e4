"""What the maps of an image hold, for whoever draws or stores them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from segunc.data.images import AnyImage

ClassMap: TypeAlias = npt.NDArray[np.uint8]
ScoreMap: TypeAlias = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Origin:
    """What made maps, as the manifest of a folder of maps records it.

    Attributes:
        run: what decides the values of the maps.
        model: for readers of the maps.
        device: in words.
        measured_to: score -> value beyond which it is extrapolated.
    """

    run: Mapping[str, Any] = field(default_factory=dict)
    model: Mapping[str, Any] = field(default_factory=dict)
    device: str = "cpu"
    measured_to: Mapping[str, float] = field(default_factory=dict)


class MapsOfImage(Protocol):
    """The fields of :class:`segunc.posteriors.image_maps.ImageMaps`."""

    @property
    def prediction(self) -> ClassMap: ...
    @property
    def scores(self) -> Mapping[str, ScoreMap]: ...
    @property
    def image(self) -> AnyImage | None: ...
    @property
    def classes(self) -> tuple[str, ...]: ...
    @property
    def palette(self) -> tuple[tuple[int, int, int], ...]: ...
    @property
    def origin(self) -> Origin | None: ...
    @property
    def reasons(self) -> Mapping[tuple[int, int], Mapping[str, Any]]: ...
