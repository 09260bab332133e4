"""A small data set for the tests of trainings, a task for each thing that is trained, and a
Lightning run over it.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from segunc.baselines.swag import SWAG, Point, Trajectory
from segunc.baselines.variational import MeanFieldTraining, Variational
from segunc.posteriors.abnn import ABNN, Members
from segunc.training.affine_task import AffineTask
from segunc.training.config import AffineTrainingConfig


def abnn_task(
    network: nn.Module, class_weights: list[float] | None = None, **settings: Any
) -> AffineTask[Any]:
    config = ABNN(**{"members": 3, **settings})
    return AffineTask(
        network, 4, lambda layout: Members(layout, 4, config), config, class_weights=class_weights
    )


def point_task(network: nn.Module, **settings: Any) -> AffineTask[Any]:
    config = AffineTrainingConfig(**settings)
    return AffineTask(
        network, 4, lambda layout: Point(layout, config.scope, config.prior()), config
    )


def swag_task(network: nn.Module, **settings: Any) -> AffineTask[Any]:
    config = SWAG(
        **{
            "burn_in": 1,
            "collect_every": 2,
            "rank": 4,
            **settings,
        }
    )
    return AffineTask(network, 4, lambda layout: Trajectory(layout, config), config)


def variational_task(network: nn.Module, **settings: Any) -> AffineTask[Any]:
    config = Variational(
        **{
            "lr": 0.005,
            "optimizer": "sgd",
            "sigma_lr": 0.005,
            **settings,
        }
    )
    return AffineTask(network, 4, lambda layout: MeanFieldTraining(layout, config), config)


TASKS: dict[str, Callable[..., AffineTask[Any]]] = {
    "abnn": lambda network, **s: abnn_task(network, **{"members": 2, "random_classes": 1, **s}),
    "point": point_task,
    "swag": swag_task,
    "variational": variational_task,
}


def loader(batch: int = 4) -> DataLoader[Any]:
    """Sixteen images of 16x16 in the same order every epoch; the label is the brightness in four
    classes.
    """
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(16, 3, 16, 16, generator=generator)
    labels = (images.mean(1) * 4).long().clamp(0, 3)
    return DataLoader(TensorDataset(images, labels), batch)


def fit(
    task: L.LightningModule,
    folder: Path,
    epochs: int = 3,
    *,
    ckpt_path: Path | None = None,
    **settings: Any,
) -> L.Trainer:
    settings |= dict.fromkeys(
        ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False
    )
    trainer = L.Trainer(max_epochs=epochs, accelerator="cpu", default_root_dir=folder, **settings)
    trainer.fit(
        task, loader(), ckpt_path=None if ckpt_path is None else str(ckpt_path), weights_only=True
    )
    return trainer
