"""A small data set for the tests of fine-tuning tasks, and a Lightning run over it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning as L
import torch
from torch.utils.data import DataLoader, TensorDataset

from segunc.training.affine_task import AffineTask


def loader(batch: int = 4) -> DataLoader[Any]:
    """Sixteen images of 16x16 in the same order every epoch; the label is the brightness in four classes."""
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(16, 3, 16, 16, generator=generator)
    labels = (images.mean(1) * 4).long().clamp(0, 3)
    return DataLoader(TensorDataset(images, labels), batch)


def fit(
    task: AffineTask, folder: Path, epochs: int = 3, *, batch: int = 4, ckpt_path: Path | None = None, **settings: Any
) -> L.Trainer:
    """Train on the CPU without a log; returns the trainer."""
    trainer = L.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        **settings,
    )
    trainer.fit(task, loader(batch), ckpt_path=None if ckpt_path is None else str(ckpt_path), weights_only=True)
    return trainer
