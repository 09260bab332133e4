"""A small training of a user: coloured blocks, a network with BatchNorm and dropout, and its
LightningModule.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning as L
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import segunc
from segunc.lightning import UncertaintyCallback

CLASSES = ["road", "car", "sky"]
METHOD = segunc.ABNN(members=2, epochs=1)


def blocks(count: int, seed: int) -> TensorDataset:
    """Return images in 0..1 whose blocks have the noisy colour of their class, and labels with an
    ignored stripe.
    """
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 3, (count, 4, 6), generator=generator)
    labels = labels.repeat_interleave(8, 1).repeat_interleave(8, 2)
    noise = torch.rand(count, 3, 32, 48, generator=generator)
    images = 0.6 * nn.functional.one_hot(labels, 3).permute(0, 3, 1, 2) + 0.4 * noise
    labels[:, :4] = 255
    return TensorDataset(images, labels)


def train_loader(**settings: Any) -> DataLoader[Any]:
    return DataLoader(blocks(8, 0), **{"batch_size": 4, "shuffle": True, **settings})


def val_loader(count: int = 5) -> DataLoader[Any]:
    return DataLoader(blocks(count, 1), batch_size=2)


class LitBlocks(L.LightningModule):
    """The LightningModule of a user."""

    def __init__(
        self, lr: float = 0.05, momentum: float = 0.1, dropout: float = 0.2, seed: int = 0
    ) -> None:
        super().__init__()
        self.lr = lr
        generator = torch.random.get_rng_state()
        torch.manual_seed(seed)
        self.net = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.BatchNorm2d(8, momentum=momentum),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Conv2d(8, 3, 1),
        )
        torch.random.set_rng_state(generator)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1], ignore_index=255)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1], ignore_index=255)
        self.log("val/loss", loss, sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), self.lr, momentum=0.9)


def make_callback(**settings: Any) -> UncertaintyCallback:
    defaults: dict[str, Any] = {
        "method": METHOD,
        "classes": CLASSES,
        "network": "net",
        "draws": 4,
        "on_error": "raise",
    }
    return UncertaintyCallback(**{**defaults, **settings})


def make_trainer(
    folder: Path, callbacks: Sequence[Any] = (), *, epochs: int = 2, **settings: Any
) -> L.Trainer:
    defaults: dict[str, Any] = {
        "accelerator": "cpu",
        "devices": 1,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "default_root_dir": folder,
        "max_epochs": epochs,
        "callbacks": list(callbacks),
    }
    return L.Trainer(**{**defaults, **settings})


def run(
    folder: Path, callbacks: Sequence[Any] = (), *, module: Any = None, **settings: Any
) -> tuple[L.Trainer, Any]:
    """Train, from the same random numbers each time, and return the trainer and the module."""
    module = LitBlocks() if module is None else module
    L.seed_everything(1, verbose=False)
    trainer = make_trainer(folder, callbacks, **settings)
    trainer.fit(module, train_loader(), val_loader())
    return trainer, module
