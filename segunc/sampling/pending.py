"""Draws and frames in batches, added in the order of their numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from segunc.affine.branches import InputTransform
from segunc.core.errors import InputError
from segunc.sampling.accumulate import DrawAccumulator
from segunc.sampling.ending import Upsampling
from segunc.sampling.tail import Backend, add_draws

CHUNK_PIXELS = 1 << 19
"""Pixels of a batch on a CPU: with more, activations leave the cache between layers and every pass gets slower."""
ACTIVATION_BYTES = 512
"""Memory of activations for a pixel of input on a GPU, on the safe side; what does not fit is halved."""
CUDA_BATCH_PIXELS = 1 << 22
"""Pixels of a batch up to which a GPU is taken to have cores to spare; more frames than these fill it with are no gain."""
MOST_FRAMES = 16
"""Frames of a group at most: as many are decoded, kept and, after a kill, computed again together."""


def most_draws(device: torch.device, frames: int, size: tuple[int, int], classes: int) -> int:
    """Draws of ``frames`` frames of (height, width) ``size`` that a batch may hold, at least 1."""
    pixels = frames * size[0] * size[1]
    if device.type == "cuda":
        free = torch.cuda.mem_get_info(device)[0]
        # Networks that do not end in an upsampling have float32 logits at full resolution, and about as much around.
        return int(max(1, free // 2 // (pixels * (ACTIVATION_BYTES + 8 * classes))))
    return max(1, CHUNK_PIXELS // pixels)


def frames_at_once(device: torch.device, size: tuple[int, int], draws: int) -> int:
    """Frames of (height, width) ``size`` that share a batch when nobody says how many.

    On a GPU as many as fill it with all their draws; it depends on the pixels alone, not on free memory, so that every shard
    of a run groups alike. On a CPU one: from some 250 x 250 pixels on the draws of one frame fill a chunk, below that four
    frames at once saved an eighth (96 x 160, 8 draws, ResNet-18, one thread), and frames alone have the very bits that
    evaluating a model frame by frame has.
    """
    if device.type != "cuda":
        return 1
    return max(1, min(MOST_FRAMES, CUDA_BATCH_PIXELS // (draws * size[0] * size[1])))


PENDING_BYTES = 64 << 20
"""Logits that wait until several draws are added to the sums at once."""


@dataclass(frozen=True)
class Chunk:
    """Logits of some draws of one branch over n frames.

    Attributes:
        logits: ``[k * n, C, h, w]``, draw-major.
        upsampling: that is left to be done to them.
        transform: of the branch; its inverse comes after the upsampling.
        draws: the k numbers of the draws, or more where all draws of the branch are the same.
    """

    logits: Tensor
    upsampling: Upsampling
    transform: InputTransform
    draws: range

    def of_frame(self, first: int, last: int, frame: int, frames: int) -> Tensor:
        """The draws at the places first..last-1 of one frame, ``[last - first, C, h, w]``."""
        if len(self.logits) == frames < len(self.draws) * frames:
            return self.logits[frame : frame + 1].expand(last - first, -1, -1, -1)
        return self.logits[first * frames + frame : (last - 1) * frames + frame + 1 : frames]


class PendingDraws:
    """Chunks that wait until draws before theirs were added.

    Args:
        sums: of n frames, all of one size.
        backend: see :func:`segunc.sampling.tail.choose_backend`.
    """

    def __init__(self, sums: list[DrawAccumulator], backend: Backend) -> None:
        self._sums, self._backend = sums, backend
        self._chunks: list[Chunk] = []
        self._added = 0
        self._size = (sums[0].entropy.shape[0], sums[0].entropy.shape[1])

    @property
    def classes(self) -> int:
        """C of the sums."""
        return self._sums[0].probabilities.shape[0]

    @property
    def full(self) -> bool:
        """Whether enough logits wait to be added at once."""
        return sum(chunk.logits.numel() * chunk.logits.element_size() for chunk in self._chunks) >= PENDING_BYTES

    def put(self, chunk: Chunk) -> None:
        """Let a chunk wait.

        Raises:
            InputError: its logits are of other classes or of another size than the sums.
        """
        expected = (self.classes, *self._size)
        found = (chunk.logits.shape[1], *(chunk.upsampling.kept if chunk.transform.identity else self._size))
        if found != expected:
            raise InputError(
                f"networks that return {expected} and {found} (classes, height, width)", "the same for all"
            )
        self._chunks.append(chunk)

    def add_until(self, draw: int) -> None:
        """Add all draws with smaller numbers, which must be here, to the sums in their order."""
        runs = list(self._runs(draw))
        for index, sums in enumerate(self._sums):
            together: list[Tensor] = []
            for position, (chunk, first, last) in enumerate(runs):
                logits = chunk.of_frame(first, last, index, len(self._sums))
                if chunk.transform.identity:
                    together.append(logits)
                    follower = runs[position + 1][0] if position + 1 < len(runs) else None
                    if follower is None or not _alike(chunk, follower):
                        whole = together[0] if len(together) == 1 else torch.cat(together)
                        add_draws(whole, chunk.upsampling, sums, self._backend)
                        together = []
                    continue
                for one in logits:  # at full resolution, so one at a time
                    full = chunk.transform.undo(chunk.upsampling.apply(one[None].float()), self._size)
                    add_draws(full, Upsampling.none(self._size), sums, self._backend)
        self._added = draw
        self._chunks = [chunk for chunk in self._chunks if chunk.draws[-1] >= draw]

    def _runs(self, end: int) -> Iterator[tuple[Chunk, int, int]]:
        """Parts of chunks whose draws follow on each other, in order: the chunk, its first and last place."""
        draw = self._added
        while draw < end:
            chunk = next(c for c in self._chunks if draw in c.draws)
            first = chunk.draws.index(draw)
            last = len(range(draw, min(end, chunk.draws[-1] + 1))) + first if chunk.draws.step == 1 else first + 1
            yield chunk, first, last
            draw += last - first


def _alike(one: Chunk, other: Chunk) -> bool:
    """Whether draws of both can be added by one call."""
    same = one.logits.dtype == other.logits.dtype and one.logits.device == other.logits.device
    return same and other.transform.identity and one.upsampling == other.upsampling
