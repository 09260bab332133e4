"""From a frame to its maps: sampling, and the way from the device to the threads that write."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from segunc.data.images import AnyImage
from segunc.frames.source import Frame
from segunc.maps.encoding import Array
from segunc.maps.store import Maps
from segunc.sampling.sampler import Prediction, Reasons, Sampler, fault_of, sample_frames


class FrameMaps(dict[str, Array]):
    """Maps of one frame by name, and what made its sums of scores."""

    reasons: Reasons | None = None


@dataclass(frozen=True)
class _MapsOnTheirWay:
    """The maps of one frame while a GPU computes and copies them.

    Attributes:
        result: on the device.
        on_host: the maps by name, which are copied there.
        copied: a CUDA event behind the copies; None where they are done.
    """

    result: Prediction
    on_host: Mapping[str, Tensor]
    copied: Any

    def __call__(self) -> FrameMaps:
        """Wait for the maps, and return them.

        Raises:
            NotFiniteError: a draw gave NaN or infinite logits.
        """
        if self.copied is not None:
            self.copied.synchronize()
            self.result.require_finite()
        maps = FrameMaps({name: values.numpy() for name, values in self.on_host.items()})
        if self.result.reasons:
            maps.reasons = self.result.reasons[0]
        return maps


@dataclass(frozen=True)
class FrameProcess:
    """Makes the maps of frames; a frame that the network refuses fails alone.

    Attributes:
        sampler: over a :class:`segunc.networks.network.SegmentationNetwork`.
        scores: names of the maps to return.
        size: (height, width) that the network sees; None is its inference size.
    """

    sampler: Sampler
    scores: Sequence[str]
    _: KW_ONLY
    size: tuple[int, int] | None = None

    def __call__(self, frame: Frame) -> Maps | Callable[[], Maps] | Exception:
        """Return the maps of a frame that has an image, or the error why there are none.

        Maps of a GPU are on their way: what is returned waits for them when it is called, in
        another thread, while this one queues the next frame.
        """
        assert frame.image is not None
        try:
            maps = self._start(frame.image)
        except Exception as error:
            return fault_of(error, frame.image)
        return maps() if maps.copied is None else maps

    def _start(self, image: AnyImage) -> _MapsOnTheirWay:
        """Sample a frame, and begin to copy its maps to the host."""
        device = self.sampler.device
        on_gpu = device.type == "cuda"
        result = sample_frames(self.sampler, [image], size=self.size, wait=not on_gpu)
        on_host = {"prediction": result.prediction[0].to("cpu", non_blocking=True)}
        for name in self.scores:
            on_host[name] = result.scores[name][0].to("cpu", non_blocking=True)
        if result.extremes is not None:
            extremes = result.extremes.to("cpu", non_blocking=True)
            result = replace(result, extremes=extremes)
        copied: Any = torch.cuda.current_stream(device).record_event() if on_gpu else None
        return _MapsOnTheirWay(result, on_host, copied)
