"""The maps of frames, on their way from the device that computes them to the threads that write them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass

import torch
from torch import Tensor

from segunc.frames.source import Frame
from segunc.maps.encoding import Array
from segunc.maps.store import Maps
from segunc.processing.tiles import Tiling, finish_maps, sample_means
from segunc.sampling.frames import fault_of, network_input
from segunc.sampling.sampler import Sampler, sample_frames


class HostMaps(Mapping[str, Array]):
    """Maps by name as arrays. Copies from a GPU are queued behind the computation; whoever looks at a map waits for them, so that the
    thread that computes goes on to the next frames at once. On a CPU nothing is copied."""

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


@dataclass(frozen=True)
class FrameProcess:
    """Makes the maps of frames of one size; a frame that the network refuses fails alone.

    Frames share a batch, except with tiles or new draws for each, where they run one after the other. With ``redraw`` every frame has
    new draws, from the sampler's seed and its name, so that it has the same maps in any shard, after any kill and with any selection.
    Maps of a video flicker then.
    """

    sampler: Sampler  # over a :class:`SegmentationNetwork`; with tiles it must return aleatoric
    scores: Sequence[str]  # names of the maps to return
    _: KW_ONLY
    size: tuple[int, int] | None = None  # that the network sees; None: its inference size, with tiles the frame's
    tiling: Tiling | None = None  # cut frames (after resizing to ``size``) into tiles
    redraw: bool = False

    def __call__(self, frames: Sequence[Frame]) -> Sequence[Maps | Exception]:
        """Return the maps of each frame, or why there are none."""
        one_by_one = self.tiling is not None or self.redraw
        if one_by_one and len(frames) > 1:
            return [self([frame])[0] for frame in frames]
        seed = frame_seed(self.sampler.seed, frames[0].name) if self.redraw else None
        images = [frame.image for frame in frames if frame.image is not None]
        try:
            if self.tiling is None:
                result = sample_frames(self.sampler, images, size=self.size, seed=seed)
                maps = {"prediction": result.prediction, **{name: result.scores[name] for name in self.scores}}
            else:
                (image,) = images
                size = (image.shape[0], image.shape[1])
                whole = network_input([image], self.size or size)
                means = self.tiling.run(whole, lambda tile: sample_means(self.sampler, tile, seed))
                finished = finish_maps(means, size, self.scores, self.sampler.calibrator)
                maps = {name: values[None] for name, values in finished.items()}
        except Exception as error:
            failure = fault_of(error, images[0])
            if len(frames) > 1:  # one of them may be at fault, or all together too many
                return [self([frame])[0] for frame in frames]
            return [failure]
        return [HostMaps({name: values[index] for name, values in maps.items()}) for index in range(len(images))]


def frame_seed(seed: int, name: str) -> int:
    """Return the seed of one frame's draws, in 0..2^63 - 1."""
    digest = hashlib.blake2b(f"{seed} {name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
