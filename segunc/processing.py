"""From a frame to its maps: sampling, and the way from the device to the threads that write."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

import torch

from segunc.frames.source import Frame
from segunc.maps.encoding import Array
from segunc.maps.store import Maps
from segunc.sampling.sampler import Reasons, Sampler, fault_of, sample_frames


class FrameMaps(dict[str, Array]):
    """Maps of one frame by name, and what made its sums of scores."""

    reasons: Reasons | None = None


@dataclass(frozen=True)
class FrameProcess:
    """Makes the maps of frames; a frame that the network refuses fails alone."""

    sampler: Sampler  # over a :class:`SegmentationNetwork`
    scores: Sequence[str]  # names of the maps to return
    _: KW_ONLY
    size: tuple[int, int] | None = None  # that the network sees; None: its inference size

    def __call__(self, frame: Frame) -> Maps | Callable[[], Maps] | Exception:
        """Return the maps of a frame that has an image, or why there are none. Those of a GPU are
        on their way: what is returned waits for them when it is called, in another thread, while
        this one queues the next frame.
        """
        assert frame.image is not None
        try:
            device = self.sampler.device
            on_gpu = device.type == "cuda"
            result = sample_frames(self.sampler, [frame.image], size=self.size, wait=not on_gpu)
            maps = {
                "prediction": result.prediction,
                **{name: result.scores[name] for name in self.scores},
            }
            on_host = {
                name: values[0].to("cpu", non_blocking=True) for name, values in maps.items()
            }
            if result.extremes is not None:
                extremes = result.extremes.to("cpu", non_blocking=True)
                result = replace(result, extremes=extremes)
            copied: Any = torch.cuda.current_stream(device).record_event() if on_gpu else None
        except Exception as error:
            return fault_of(error, frame.image)

        reasons = result.reasons[0] if result.reasons else None

        def arrived() -> FrameMaps:
            if copied is not None:
                copied.synchronize()
                result.require_finite()
            of_frame = FrameMaps({name: values.numpy() for name, values in on_host.items()})
            of_frame.reasons = reasons
            return of_frame

        return arrived() if copied is None else arrived
