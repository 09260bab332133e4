"""How frames come into a file and what comes out beside the score maps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from segunc.exporting.resampling import Resampling
from segunc.maps.encoding import decode_unit, encode_score, is_flagged
from segunc.networks.description import COLOUR
from segunc.sampling.sampler import Prediction, Sampler, network_input
from segunc.scores import SCORES

FLAGGED = "flagged"
"""The output that says which pixels are at or above a threshold."""


@dataclass(frozen=True)
class Flag:
    """A threshold whose mask is an output of the file.

    Attributes:
        score: name of the score.
        value: pixels are flagged where the stored score is at or above it.
    """

    score: str
    value: float

    @property
    def least(self) -> float:
        """The least float32 that is flagged once it is stored; infinite where none is."""
        return least_flagged(self.score, self.value)

    def __call__(self, maps: dict[str, Tensor]) -> Tensor:
        """Return the mask uint8 ``[N, H, W]``: 1 where a pixel is flagged, and where its score is
        NaN or infinite.
        """
        # ``predict`` refuses such a frame. A graph cannot, and 0 would say that all is well.
        values = maps[self.score]
        low = (values < self.least) & (values >= torch.finfo(torch.float32).min)
        return (~low).float().to(torch.uint8)  # TensorRT converts only floats to uint8


def least_flagged(score: str, value: float) -> float:
    """Return the least float32 value of a score that is flagged once it is stored.

    A stored score is rounded. A graph does not store it, so it compares with this value instead,
    and flags the same pixels.

    Args:
        score: name of the score.
        value: of the threshold.
    """
    largest = np.float32(1.0 if SCORES[score].stored == "unit16" else np.finfo(np.float16).max)
    low, high = _order(-largest), _order(largest)
    if not _is_flagged(score, largest, value):
        return float("inf")
    while low < high:
        middle = (low + high) // 2
        if _is_flagged(score, _in_order(middle), value):
            high = middle
        else:
            low = middle + 1
    return float(_in_order(low))


def _is_flagged(score: str, number: np.float32, value: float) -> bool:
    """Return whether a value of a score is flagged once it is stored."""
    if SCORES[score].stored == "unit16":
        stored = decode_unit(encode_score(score, np.array([max(number, np.float32(0))])))
    else:
        stored = encode_score(score, np.array([number])).astype(np.float32)
    return bool(is_flagged(stored, value)[0])


def _order(number: np.float32) -> int:
    """Return the place of a float32 among all float32, a whole number; 0 is that of 0."""
    bits = int(np.abs(number).view(np.int32))
    return bits if number >= 0 else -bits


def _in_order(place: int) -> np.float32:
    """Return the float32 at a place."""
    magnitude = np.int32(abs(place)).view(np.float32)
    return magnitude if place >= 0 else -magnitude


@dataclass(frozen=True)
class Placement:
    """The input of a file, and its further output.

    Attributes:
        batch: number of frames N in a call.
        network_size: (height, width) that the network sees.
        frame_size: (height, width) of uint8 frames ``[N, H, W, K]``; None for float32 images
            ``[N, K, h, w]`` in 0..1, which have the size of the network.
        flag: None where no mask is an output.
        channels: number K of channels of the frames.
    """

    network_size: tuple[int, int]
    batch: int = 1
    frame_size: tuple[int, int] | None = None
    flag: Flag | None = None
    channels: int = COLOUR

    def __post_init__(self) -> None:
        if self.frame_size is not None:
            Resampling(self.frame_size, self.network_size)  # refuses what no graph resizes

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the input."""
        if self.frame_size is None:
            return (self.batch, self.channels, *self.network_size)
        return (self.batch, *self.frame_size, self.channels)

    def images(self, frames: Tensor) -> Tensor:
        """Return what the network sees of an input, float32 ``[N, K, h, w]`` in 0..1."""
        if self.frame_size is None:
            return frames
        # First of all: TensorRT has uint8 only where a graph begins.
        pixels = frames.float().permute(0, 3, 1, 2)
        return Resampling(self.frame_size, self.network_size)(pixels) / 255.0

    def maps(self, sampler: Sampler, *inputs: Tensor, any_size: bool = False) -> dict[str, Tensor]:
        """Return the outputs of the file, ``[N, H, W]`` by name: plain operators of torch.

        Args:
            sampler: over the network.
            inputs: frames, and draws where these are an input.
            any_size: the graph is for frames of any size.
        """
        frames, *draws = inputs
        images = self.images(frames)
        prediction = sampler.graph_maps(images, *draws, any_size=any_size, size=self.frame_size)
        outputs = {"prediction": prediction.prediction, **prediction.scores}
        if self.flag is not None:
            outputs[FLAGGED] = self.flag(outputs)
        return outputs

    def prepare(self, sampler: Sampler, frames: Tensor) -> None:
        """Call the sampler on an input, so that it knows the network before it is traced."""
        sampler(self._seen(frames))

    def _seen(self, frames: Tensor) -> Tensor:
        """Return what ``predict`` shows the network of an input, ``[N, K, h, w]``."""
        if self.frame_size is None:
            return frames
        return network_input(list(frames.numpy()), self.network_size)

    def expected(self, sampler: Sampler, frames: Tensor) -> Prediction:
        """Return what the sampler gives for each frame of an input alone, as ``predict`` asks it;
        with the mean probabilities.
        """
        alone = []
        for frame in frames:
            image = self._seen(frame[None])
            alone.append(sampler(image, size=self.frame_size, keep_probabilities=True))
        return Prediction(
            prediction=torch.cat([one.prediction for one in alone]),
            scores={
                name: torch.cat([one.scores[name] for one in alone]) for name in sampler.scores
            },
            probabilities=torch.cat([_probabilities(one) for one in alone]),
        )


def _probabilities(prediction: Prediction) -> Tensor:
    assert prediction.probabilities is not None
    return prediction.probabilities
