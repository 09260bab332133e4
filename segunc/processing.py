"""From a frame to its maps: sampling, and the way from the device to the threads that write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass

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

    def __call__(self, frame: Frame) -> Maps | Exception:
        """Return the maps of a frame that has an image, or why there are none."""
        assert frame.image is not None
        try:
            result = sample_frames(self.sampler, [frame.image], size=self.size)
            maps = {"prediction": result.prediction, **{name: result.scores[name] for name in self.scores}}
            of_frame = FrameMaps({name: values[0].cpu().numpy() for name, values in maps.items()})
        except Exception as error:
            return fault_of(error, frame.image)
        of_frame.reasons = result.reasons[0] if result.reasons else None
        return of_frame
