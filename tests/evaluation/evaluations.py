"""Result files as ``segunc evaluate`` writes them, with made-up numbers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from segunc.evaluation.resampling import Replicates, save_replicates, sidecar_path

COUNTS = {"anomaly_frames": 60, "anomaly_pixels": 900, "normal_pixels": 9000}
COUNTS |= {"labelled_frames": 5, "labelled_pixels": 7}
UNITS = tuple(f"frame_{i}" for i in range(60))


def write_result(path: Path, pooled: Mapping[str, Mapping[str, float | None]], **more: Any) -> Path:
    """A result with the pooled numbers of some scores; further sections by name."""
    content = {
        "scores": {score: {"pooled": dict(numbers)} for score, numbers in pooled.items()},
        "segmentation": {"miou": 0.5, "per_class": {"road": 0.9}},
        "calibration": {"ece": 0.031, "nll": None},
        "intervals": {},
        "reasons": {"calibration.nll": "maps hold no probabilities"},
        "counts": COUNTS,
        "left_out": [],
        "run": {"dataset": "camvid"},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content | more), encoding="utf-8")
    return path


def write_replicates(
    result: Path, numbers: Mapping[str, float], *, noise: float = 0.004, seed: int = 0, units: tuple[str, ...] = UNITS
) -> None:
    """Replicates that share the spread of the frames (0.03) and have a little noise of their own."""
    shared = np.random.default_rng(99).normal(0, 0.03, 400)
    own = np.random.default_rng(list(result.name.encode())).normal(0, noise, (len(numbers), 400))
    values = np.array(list(numbers.values()))[:, None] + shared + own
    save_replicates(sidecar_path(result), Replicates(tuple(numbers), values, seed, units))
