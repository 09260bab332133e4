"""How a run computes: draws and frames in a batch, compiled or not. Chosen once, before its first frame, and recorded."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from segunc.core.errors import InputError
from segunc.data.images import load_image
from segunc.frames.sources import FrameSource
from segunc.networks.description import NetworkDescription
from segunc.networks.network import SegmentationNetwork, inference_size
from segunc.processing.means import Tiling
from segunc.sampling.compilation import Decision, Workload, decide
from segunc.sampling.sampler import Sampler, frames_at_once

LOOKED_AT = 16
"""Frames, evenly spaced, whose sizes stand for those of all."""

Size = tuple[int, int]
FrameInputs = Callable[[int], Sequence[Sequence[Size]]]
"""For at most so many evenly spaced frames the (height, width) of all that the network sees of each."""


@dataclass(frozen=True)
class Execution:
    """How a run computes, and what a user should know of it."""

    chunk: int  # draws in a batch
    group: int  # frames in a batch
    compilation: Decision  # of whole chunks of draws over whole groups
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Asked:
    """What a user says of how a run computes, where None and ``auto`` leave the choice."""

    chunk: int | None = None
    group: int | None = None
    compile: str = "auto"
    one_by_one: bool = False  # frames are smoothed, tiled or drawn anew, and cannot share a batch
    size: Size | None = None  # that the network sees
    tiling: Tiling | None = None


def choose_execution(
    asked: Asked, sampler: Sampler, source: FrameSource, recorded: Mapping[str, Any] | None
) -> Execution:
    """What is asked for, else what an earlier run of the same folder recorded, else what suits the whole input.

    Args:
        asked: by the user.
        sampler: with the chunk that was asked for.
        source: the whole input, whatever a shard takes of it.
        recorded: the ``run`` part of the manifest of a run that is continued, or None.

    Raises:
        InputError: a number of frames below 1, or no frame can be read where one has to be looked at.
    """
    known = recorded or {}
    network = sampler.network
    assert isinstance(network, SegmentationNetwork)
    inputs = _InputsOfSource(source, network.description, asked.size, asked.tiling)
    notes = []
    group = asked.group
    if group is not None and group < 1:
        raise InputError(f"--frames-at-once {group}", "at least 1", "leave it out to have it chosen by size")
    if asked.one_by_one:
        if group not in (None, 1):
            notes.append("frames with --tile, --smooth or --redraw are computed one at a time")
        group = 1
    group = group or known.get("group") or frames_at_once(sampler.device, inputs.largest, sampler.draws)
    chunk = asked.chunk or known.get("chunk")
    if chunk is None:
        chunk = sampler.chunk_for(group, inputs.largest, network.description.num_classes)
    if asked.compile == "auto" and "compiled" in known:
        compilation = Decision(bool(known["compiled"]), "")
    else:
        compilation = choose_compilation(asked.compile, sampler, source.length or source.length_hint, inputs)
    if compilation.said:
        notes.append(compilation.reason)
    return Execution(chunk, group, compilation, tuple(notes))


def choose_compilation(choice: str, sampler: Sampler, frames: int | None, inputs: FrameInputs) -> Decision:
    """``on``, ``off``, or for ``auto`` what :func:`segunc.sampling.compilation.decide` says.

    Args:
        choice: of the user.
        sampler: with its draws.
        frames: of the whole input, None where unknown.
        inputs: of the network; more than one frame is looked at only where one says that compiling pays.
    """
    decision = Decision(choice == "on", "as asked for")
    draws, forms = sampler.drawn_forms()
    for looked_at in (1, LOOKED_AT) if choice == "auto" else ():
        seen = inputs(looked_at)
        pixels = sum(height * width for of_frame in seen for height, width in of_frame) // max(1, len(seen))
        sizes = len({size for of_frame in seen for size in of_frame})
        work = Workload(frames, draws, pixels, max(1, sizes), forms, torch.get_num_threads())
        decision = decide(work, sampler.device.type)
        if not decision.compiled:
            break
    return decision


def inputs_of_images(files: Sequence[Path], description: NetworkDescription, size: Size | None) -> FrameInputs:
    """The network's inputs of some of these image files; files that cannot be read are passed over."""

    def look(count: int) -> list[list[Size]]:
        found = []
        for file in files[:: -(-len(files) // count)]:
            with contextlib.suppress(InputError):
                image = load_image(file)
                found.append(input_sizes(description, (image.shape[0], image.shape[1]), size, None))
        return found

    return look


def input_sizes(description: NetworkDescription, frame: Size, size: Size | None, tiling: Tiling | None) -> list[Size]:
    """(height, width) of all that the network sees of a frame: the whole, or each of its tiles.

    Args:
        description: of the network.
        frame: (height, width) of the frame.
        size: that frames are brought to, None for the description's (with tiles for the frame's own).
        tiling: or None.
    """
    if tiling is None:
        return [inference_size(description, frame, size)]
    tiles = tiling.tiles(*(size or frame))
    return [(rows.end - rows.start, columns.end - columns.start) for rows, columns in tiles]


class _InputsOfSource:
    """The network's inputs of some frames of a source; a :data:`FrameInputs`."""

    def __init__(
        self, source: FrameSource, description: NetworkDescription, size: Size | None, tiling: Tiling | None
    ) -> None:
        self._source, self._description, self._size, self._tiling = source, description, size, tiling

    def __call__(self, count: int) -> list[list[Size]]:
        if count == 1 or self._source.kind == "video":  # frames of a video have one size
            return [self._first]
        length = self._source.length or 1
        step = -(-length // count)
        frames = self._source.frames(lambda index, name: index % step != 0)
        return [self._of(frame.image.shape) for frame in frames if frame.image is not None] or [self._first]

    @property
    def largest(self) -> Size:
        """The largest input of the first frame."""
        return max(self._first, key=lambda size: size[0] * size[1])

    @cached_property
    def _first(self) -> list[Size]:
        shape = next((frame.image.shape for frame in self._source.frames() if frame.image is not None), None)
        if shape is None:
            raise InputError(
                f"no frame of {self._source.path} can be read", "at least one readable image", "check the files"
            )
        return self._of(shape)

    def _of(self, shape: tuple[int, ...]) -> list[Size]:
        return input_sizes(self._description, (shape[0], shape[1]), self._size, self._tiling)
