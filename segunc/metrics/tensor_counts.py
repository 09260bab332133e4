"""Keys and counts of score tensors on any device, equal to those of the numpy core."""

from __future__ import annotations

import torch
from torch import Tensor

from segunc.data.labels import IGNORE
from segunc.errors import InputError
from segunc.metrics.pixel_curves import KEYS
from segunc.metrics.wide_keys import WIDE_KEYS


def tensor_keys(scores: Tensor) -> Tensor:
    """Order-preserving keys (int64, 0..65535) of scores on any device, as :func:`segunc.maps.encoding.score_keys`.

    Args:
        scores: uint16 or uint8 codes, or any floating type (rounded to float16 first), any shape.

    Raises:
        InputError: a value is NaN or beyond the range of float16, or the type has no key.
    """
    if scores.dtype in (torch.uint16, torch.uint8):
        return scores.long()
    if not scores.is_floating_point():
        raise InputError(f"scores of type {scores.dtype}", "uint8, uint16 or a floating type", "convert them")
    half = scores.half() + 0.0  # -0.0 + 0.0 = +0.0
    if not bool(torch.isfinite(half).all()):
        raise InputError("a score is NaN or beyond the range of float16", "finite values within +-65504")
    bits = half.view(torch.int16).long() & 0xFFFF
    return torch.where(bits >= 0x8000, 0xFFFF - bits, bits + 0x8000)


def wide_tensor_keys(scores: Tensor) -> Tensor:
    """Order-preserving 20-bit keys (int64) of float scores on any device, as :func:`segunc.metrics.wide_keys.wide_keys`.

    Args:
        scores: any floating type (rounded to float32 first), any shape.

    Raises:
        InputError: a value is NaN or beyond the range of float32, or the type is no floating type.
    """
    if not scores.is_floating_point():
        raise InputError(
            f"scores of type {scores.dtype} for 20-bit keys", "floats", "codes are exact with 16-bit keys already"
        )
    single = scores.float() + 0.0
    if not bool(torch.isfinite(single).all()):
        raise InputError("a score is NaN or beyond the range of float32", "finite values")
    bits = single.view(torch.int32).long() & 0xFFFFFFFF
    return torch.where(bits >= 0x80000000, 0xFFFFFFFF - bits, bits + 0x80000000) >> 12


def tensor_counts(scores: Tensor, anomaly: Tensor, device: torch.device, wide: bool = False) -> Tensor:
    """Pixels by key and label, int64 ``[2, K]`` on ``device``; row 0 normal, row 1 anomalous.

    Args:
        scores: higher is more anomalous; uint16 codes or any floating type, any shape.
        anomaly: the same shape; 0 normal, 1 anomaly, 255 ignored. Ignored floats may be anything.
        device: where to count.
        wide: 20-bit keys of float32 instead of 16-bit keys.

    Raises:
        InputError: the shapes differ, a counted score has no key, or a label is not one of the three.
    """
    if scores.shape != anomaly.shape:
        raise InputError(f"scores of shape {tuple(scores.shape)} and labels of shape {tuple(anomaly.shape)}")
    label = anomaly.flatten().to(device).long()
    counted = label != IGNORE
    label = label[counted]
    if label.numel() and bool(((label != 0) & (label != 1)).any()):
        raise InputError("an anomaly label is not known", "0 normal, 1 anomaly, 255 ignored")
    values = scores.flatten().to(device)
    make_keys, number = (wide_tensor_keys, WIDE_KEYS) if wide else (tensor_keys, KEYS)
    # Ignored floats may be NaN and are dropped first; torch cannot index uint16 on every device, so codes are not.
    keys = make_keys(values[counted]) if values.is_floating_point() else make_keys(values)[counted]
    return torch.bincount(label * number + keys, minlength=2 * number).view(2, number)
