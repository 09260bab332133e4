"""A small run that is known in full, its maps and both kinds of labels, and result files with
made-up numbers.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from segunc.evaluation.resampling import Replicates, save_replicates, sidecar_path
from segunc.maps.encoding import decode_unit, encode_score
from segunc.maps.manifest import build_manifest
from segunc.maps.store import MapsWriter
from segunc.uncertainty import energy, max_softmax
from tests.maps.foreign import write_map
from tests.sampling.plain import decompose_draws

CLASSES = ("road", "car", "sky", "tree")
SIZE = (24, 36)


@dataclass
class Run:
    """One frame: its maps in stored form and its labels, each ``[H, W]``; probabilities ``[C, H,
    W]``.
    """

    stored: dict[str, np.ndarray]
    prediction: np.ndarray
    probabilities: np.ndarray
    labels: np.ndarray
    anomaly: np.ndarray


def make_frame(seed: int, size: tuple[int, int] = SIZE) -> Run:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(1, len(CLASSES), *size, generator=generator) * 2
    draws = (logits + torch.randn(5, 1, len(CLASSES), *size, generator=generator)[:, 0]).softmax(1)[
        :, None
    ]
    mean = draws.mean(0)
    parts = decompose_draws(draws)
    values = {
        "msp": max_softmax(mean),
        "entropy": parts.entropy,
        "epistemic": parts.epistemic,
    }
    values["deterministic-energy"] = energy(logits)
    stored = {name: encode_score(name, value[0].numpy()) for name, value in values.items()}
    prediction = mean[0].argmax(0)
    random = torch.rand(3, *size, generator=generator)
    labels = torch.where(
        random[0] < 0.7, prediction, torch.randint(0, len(CLASSES), size, generator=generator)
    )
    anomaly = ((parts.entropy[0] + random[1]) > 1.5).to(torch.uint8)
    labels[anomaly == 1] = 255
    anomaly[random[2] < 0.05] = 255
    return Run(
        stored, prediction.byte().numpy(), mean[0].numpy(), labels.byte().numpy(), anomaly.numpy()
    )


def decoded(frame: Run) -> dict[str, np.ndarray]:
    """Return the maps of a frame in real units, floats as they are stored."""
    scores = {}
    for name, stored in frame.stored.items():
        scores[name] = decode_unit(stored) if stored.dtype == np.uint16 else stored
    return scores


def make_run() -> dict[str, Run]:
    """Four frames in two folders."""
    return {
        f"{folder}/frame_{i}": make_frame(i)
        for i, folder in enumerate(("bergen", "bergen", "lund", "lund"))
    }


def write_run(root: Path, run: Mapping[str, Run]) -> None:
    """Write maps of this tool, and labels of both kinds with their label map, below a folder.

    They are ``maps``, ``anomaly``, ``labels`` and ``classes.csv``.
    """
    palette = tuple((40 * number, 20, 90) for number in range(len(CLASSES)))
    scores = tuple(next(iter(run.values())).stored)
    manifest = build_manifest({"draws": 5}, scores, device="cpu", classes=CLASSES, palette=palette)
    with MapsWriter(root / "maps", manifest) as writer:
        for name, frame in run.items():
            writer.write(name, {"prediction": frame.prediction, **frame.stored})
            write_map(root / "anomaly" / f"{name}.png", frame.anomaly)
            write_map(root / "labels" / f"{name}.png", frame.labels)
    rows = ["id,name,train_id,red,green,blue"]
    for number, name in enumerate(CLASSES):
        rows.append(f"{number},{name},{number},{40 * number},20,90")
    rows.append("255,void,255,0,0,0")
    (root / "classes.csv").write_text("\n".join(rows), encoding="utf-8")


COUNTS = {
    "anomaly_frames": 60,
    "anomaly_pixels": 900,
    "normal_pixels": 9000,
}
COUNTS |= {"labelled_frames": 5, "labelled_pixels": 7}
UNITS = tuple(f"frame_{i}" for i in range(60))


def write_result(path: Path, pooled: Mapping[str, Mapping[str, float | None]], **more: Any) -> Path:
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
    result: Path,
    numbers: Mapping[str, float],
    *,
    noise: float = 0.004,
    seed: int = 0,
    units: tuple[str, ...] = UNITS,
    images: Mapping[str, str] | None = None,
) -> None:
    """Replicates that share the spread of the frames (0.03) and have a little noise of
    their own.
    """
    shared = np.random.default_rng(99).normal(0, 0.03, 400)
    own = np.random.default_rng(list(result.name.encode())).normal(0, noise, (len(numbers), 400))
    values = np.array(list(numbers.values()))[:, None] + shared + own
    replicates = Replicates(tuple(numbers), values, seed, units, images=images or {})
    save_replicates(sidecar_path(result), replicates)
