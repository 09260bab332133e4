"""Whether compiled passes pay for a run: decided once, before its first frame.

Compiled and plain passes differ by rounding, so the decision must be the same in every shard and after every kill. It is
made of what is known of the whole input and of the settings, never of a clock, and a run records it.
"""

from __future__ import annotations

from dataclasses import dataclass

from segunc.sampling.tail_native import native_tail

COMPILE_SECONDS = 15.0
"""The longest that one form of a network (its input's size, a scale) took to compile: 7 to 15 s were measured."""
SAVED_SHARE = 0.1
"""The least share of a plain pass that a compiled one saved on a CPU; up to 0.2 were measured."""
CORE_SECONDS = 0.9
"""Plain pass of one draw over a megapixel on one core: DeepLabV3+ ResNet-18, bfloat16 (0.24 s for 512 x 1024 on two cores).
Larger networks gain more. A scope that leaves less of a pass to its draws leaves as much less to compile."""
MARGIN = 2.0
"""What is saved must be so many times what compiling costs: an estimate that is wrong by a factor should cost nothing."""
MOST_SIZES = 4
"""With more sizes of frames among those looked at, most frames would wait for a compilation of their own."""


@dataclass(frozen=True)
class Workload:
    """What is known of a run before its first frame.

    Attributes:
        frames: of the whole input, all shards together; None where only its end tells, which is taken for a long video.
        draws: with noise, of each frame; others are never compiled.
        pixels: that one draw of a frame puts through the network, all its tiles together.
        sizes: different inputs of the network among the frames that were looked at.
        forms: pairs of a network and a scale of its input among the draws; each is compiled for each size.
        threads: of the CPU.
    """

    frames: int | None
    draws: int
    pixels: int
    sizes: int
    forms: int
    threads: int


@dataclass(frozen=True)
class Decision:
    """Whether passes are compiled, and why.

    Attributes:
        compiled: whether they are.
        reason: in words.
        said: whether a user should hear of it: that a run waits for a compiler, or misses one.
    """

    compiled: bool
    reason: str
    said: bool = False


def decide(work: Workload, device: str) -> Decision:
    """Whether compiling is expected to save :data:`MARGIN` times the seconds that it costs, and is possible.

    Args:
        work: of the whole run.
        device: ``cpu`` or ``cuda``; on CUDA nothing was measured, so that nothing is compiled there unasked.
    """
    if device != "cpu":
        return Decision(False, f"whether compiling pays on {device} has not been measured")
    if work.draws == 0:
        return Decision(False, "no draw has noise")
    cost = COMPILE_SECONDS * work.sizes * work.forms
    expected = "the input's length is not known"
    if work.frames is not None:
        pass_seconds = CORE_SECONDS * work.pixels / 1e6 / work.threads
        saved = SAVED_SHARE * pass_seconds * work.draws * work.frames
        expected = f"{work.frames} frames would save about {saved:.0f} s"
        if saved < MARGIN * cost:
            return Decision(False, f"{expected}, compiling takes about {cost:.0f} s")
    if work.sizes > MOST_SIZES:
        return Decision(False, f"nothing is compiled: {work.sizes} sizes among the frames that were looked at", True)
    if native_tail().library is None:
        return Decision(False, f"nothing is compiled: {native_tail().reason}", True)
    return Decision(True, f"draws are compiled, which takes about {cost:.0f} s: {expected}", True)
