"""A small run that is known in full: draws of probabilities, the maps that follow from them, and both kinds of labels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from segunc.maps.encoding import encode_score
from segunc.uncertainty import energy, max_softmax
from tests.sampling.plain import decompose_draws

CLASSES = ("road", "car", "sky", "tree")
SIZE = (24, 36)


@dataclass
class Run:
    """One frame: its maps in stored form and its labels, each ``[H, W]``; probabilities ``[C, H, W]``."""

    stored: dict[str, np.ndarray]
    prediction: np.ndarray
    probabilities: np.ndarray
    labels: np.ndarray
    anomaly: np.ndarray


def make_frame(seed: int, size: tuple[int, int] = SIZE) -> Run:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(1, len(CLASSES), *size, generator=generator) * 2
    draws = (logits + torch.randn(5, 1, len(CLASSES), *size, generator=generator)[:, 0]).softmax(1)[:, None]
    mean = draws.mean(0)
    parts = decompose_draws(draws)
    values = {
        "msp": max_softmax(mean),
        "entropy": parts.entropy,
        "epistemic": parts.epistemic,
        "deterministic-energy": energy(logits),
    }
    stored = {name: encode_score(name, value[0].numpy()) for name, value in values.items()}
    prediction = mean[0].argmax(0)
    random = torch.rand(3, *size, generator=generator)
    labels = torch.where(random[0] < 0.7, prediction, torch.randint(0, len(CLASSES), size, generator=generator))
    anomaly = ((parts.entropy[0] + random[1]) > 1.5).to(torch.uint8)
    labels[anomaly == 1] = 255
    anomaly[random[2] < 0.05] = 255
    return Run(stored, prediction.byte().numpy(), mean[0].numpy(), labels.byte().numpy(), anomaly.numpy())


def make_run() -> dict[str, Run]:
    """Four frames in two folders."""
    return {f"{folder}/frame_{i}": make_frame(i) for i, folder in enumerate(("bergen", "bergen", "lund", "lund"))}
