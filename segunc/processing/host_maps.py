"""Maps of a frame on their way from the device that computed them to the threads that write them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from segunc.maps.frame_files import Array


class HostMaps(Mapping[str, Array]):
    """Maps by name as arrays, which wait for their copies only when they are looked at.

    From a GPU the copies into pinned memory are queued behind the computation, so that the thread that computes goes on to
    the next frames at once and the thread that writes waits. On a CPU nothing is copied.

    Args:
        maps: ``[H, W]`` each, all on one device.
    """

    def __init__(self, maps: Mapping[str, Tensor]) -> None:
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
