"""Maps of a frame on their way from the device that computed them to the threads that write them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass

import torch
from torch import Tensor

from segunc.core.device import to_device
from segunc.data.images import Image
from segunc.frames.source import Frame
from segunc.maps.encoding import Array
from segunc.maps.store import Maps
from segunc.networks.network import SegmentationNetwork, inference_size
from segunc.processing.means import Tiling, finish_maps, sample_means
from segunc.processing.smoothing import Smoother
from segunc.sampling.density import FeatureDensity, Nearest
from segunc.sampling.frames import fault_of, network_input
from segunc.sampling.sampler import Sampler, sample_frames


class HostMaps(Mapping[str, Array]):
    """Maps by name as arrays, which wait for their copies only when they are looked at. From a GPU these are queued
    behind the computation, so that the thread that computes goes on to the next frames at once and the thread that
    writes waits. On a CPU nothing is copied."""

    def __init__(self, maps: Mapping[str, Tensor], nearest: Nearest | None = None) -> None:
        device = next(iter(maps.values())).device
        self._nearest = nearest
        if nearest is not None:
            rows, distances = (part.to("cpu", non_blocking=True) for part in (nearest.rows, nearest.distances))
            self._nearest = Nearest(rows, distances, nearest.extent)
        self._maps = {name: values.to("cpu", non_blocking=True) for name, values in maps.items()}
        self._copied: torch.cuda.Event | None = None
        if device.type == "cuda":
            self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._copied.record(torch.cuda.current_stream(device))

    @property
    def nearest(self) -> Nearest | None:
        """What each place of the frame is most like, ``[h, w]``, where that was asked for."""
        if self._copied is not None:
            self._copied.synchronize()
        return self._nearest

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
    """Maps of frames of one size; a frame that the network refuses fails alone.

    Frames share a batch, except with tiles, smoothing or new draws for each, where they run one after the other.
    With ``redraw`` every frame has new draws, from the sampler's seed and its name, so that it has the same maps in any shard, after
    any kill and with any selection. Maps of a video flicker then.
    """

    sampler: Sampler  # over a :class:`SegmentationNetwork`; with tiles or smoothing it must return aleatoric
    scores: Sequence[str]  # names of the maps to return
    _: KW_ONLY
    size: tuple[int, int] | None = None  # that the network sees; None: its inference size, with tiles the frame's
    tiling: Tiling | None = None  # cut frames (after resizing to ``size``) into tiles
    smoother: Smoother | None = None  # average along the video; frames must then come in order
    redraw: bool = False
    nearest: FeatureDensity | None = None  # also what of the training frames each place is most like; not with tiles

    def __call__(self, frames: Sequence[Frame]) -> Sequence[Maps | Exception]:
        if self.tiling is not None or self.smoother is not None:
            return [self._by_means(frame) for frame in frames]
        if self.redraw:
            return [self._at_once([frame])[0] for frame in frames]
        return self._at_once(frames)

    def _seed(self, frame: Frame) -> int | None:
        return frame_seed(self.sampler.seed, frame.name) if self.redraw else None

    def _at_once(self, frames: Sequence[Frame]) -> Sequence[Maps | Exception]:
        try:
            images = [frame.image for frame in frames if frame.image is not None]
            result = sample_frames(self.sampler, images, size=self.size, seed=self._seed(frames[0]))
            near = self._nearest(images)
        except Exception as error:
            failure = fault_of(error, frames[0].image)
            if len(frames) > 1:  # one of them may be at fault, or all together too many
                return [self._at_once([frame])[0] for frame in frames]
            return [failure]
        stacked = {"prediction": result.prediction, **{name: result.scores[name] for name in self.scores}}
        return [HostMaps({name: maps[i] for name, maps in stacked.items()}, near[i]) for i in range(len(frames))]

    def _nearest(self, images: Sequence[Image]) -> list[Nearest | None]:
        """Of each of the images RGB uint8 ``[H, W, 3]`` of one size."""
        network = self.sampler.network
        assert isinstance(network, SegmentationNetwork)
        if self.nearest is None:
            return [None] * len(images)
        size = inference_size(network.description, (images[0].shape[0], images[0].shape[1]), self.size)
        rows, distances, extent = self.nearest.nearest(to_device(network_input(images, size), self.sampler.device))
        return [Nearest(*of_frame, extent) for of_frame in zip(rows, distances, strict=True)]

    def _by_means(self, frame: Frame) -> Maps | Exception:
        network = self.sampler.network
        assert frame.image is not None
        assert isinstance(network, SegmentationNetwork)
        own, seed = (frame.image.shape[0], frame.image.shape[1]), self._seed(frame)
        try:
            if self.tiling is None:
                seen = inference_size(network.description, own, self.size)
                means = sample_means(self.sampler, network_input([frame.image], seen), seed)
            else:
                image = network_input([frame.image], self.size or own)
                means = self.tiling.run(image, lambda tile: sample_means(self.sampler, tile, seed))
            (near,) = self._nearest([frame.image])
        except Exception as error:
            return fault_of(error, frame.image)
        if self.smoother is not None:
            means = self.smoother.update(frame, means)
        return HostMaps(finish_maps(means, own, self.scores, self.sampler.calibrator), near)


def frame_seed(seed: int, name: str) -> int:
    """The seed of one frame's draws, in 0..2^63 - 1."""
    digest = hashlib.blake2b(f"{seed} {name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
