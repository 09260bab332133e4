"""From a frame to its maps: sampling, and the way from the device to the threads that write."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass

import torch
from torch import Tensor

from segunc.frames.source import Frame
from segunc.maps.encoding import Array
from segunc.maps.store import Maps
from segunc.sampling.sampler import Reasons, Sampler, fault_of, sample_frames


class HostMaps(Mapping[str, Array]):
    """Maps by name as arrays. Copies from a GPU are queued behind the computation; whoever looks at a map waits for them, so that the
    thread that computes goes on to the next frames at once. On a CPU nothing is copied."""

    def __init__(self, maps: Mapping[str, Tensor], reasons: Reasons | None = None) -> None:
        self.reasons = reasons
        device = next(iter(maps.values())).device
        self._maps = {name: values.to("cpu", non_blocking=True) for name, values in maps.items()}
        self._copied: torch.cuda.Event | None = None
        if device.type == "cuda":
            self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._copied.record(torch.cuda.current_stream(device))

    def __getitem__(self, name: str) -> Array:
        if self._copied is not None:
            self._copied.synchronize()
        array: Array = self._maps[name].numpy()
        return array

    def __iter__(self) -> Iterator[str]:
        return iter(self._maps)

    def __len__(self) -> int:
        return len(self._maps)


@dataclass(frozen=True)
class FrameProcess:
    """Makes the maps of frames of one size, as a batch; a frame that the network refuses fails alone."""

    sampler: Sampler  # over a :class:`SegmentationNetwork`
    scores: Sequence[str]  # names of the maps to return
    _: KW_ONLY
    size: tuple[int, int] | None = None  # that the network sees; None: its inference size

    def __call__(self, frames: Sequence[Frame]) -> Sequence[Maps | Exception]:
        """Return the maps of each frame, or why there are none."""
        images = [frame.image for frame in frames if frame.image is not None]
        try:
            result = sample_frames(self.sampler, images, size=self.size)
            maps = {"prediction": result.prediction, **{name: result.scores[name] for name in self.scores}}
        except Exception as error:
            failure = fault_of(error, images[0])
            if len(frames) > 1:  # one of them may be at fault, or all together too many
                return [self([frame])[0] for frame in frames]
            return [failure]
        reasons: Sequence[Reasons | None] = result.reasons or [None] * len(images)
        return [HostMaps({name: values[i] for name, values in maps.items()}, reasons[i]) for i in range(len(images))]
