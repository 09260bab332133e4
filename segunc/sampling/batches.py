"""How many draws and frames go through a network at once, by the pixels of the batch and the device's memory."""

from __future__ import annotations

import torch

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
