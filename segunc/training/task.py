"""The LightningModule that trains a deterministic segmentation network."""

from __future__ import annotations

from typing import Any, Literal

import lightning as L
import torch
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor, nn
from torchmetrics.classification import MulticlassConfusionMatrix

from segunc.data.labels import IGNORE
from segunc.training.losses import (
    Schedule,
    SegmentationLoss,
    diverged,
    make_optimizer,
    make_schedule,
    require_finite_state,
)


class SegmentationTask(L.LightningModule):
    """Trains any network from images ``[N, 3, H, W]`` in 0..1 to logits ``[N, C, H, W]``.

    Logs ``train/loss`` every few steps and, from the confusion matrix of the whole validation set, ``val/miou`` and
    ``val/loss``. Batches are dictionaries with ``image`` and ``label`` (int64, 255 ignored).

    Args:
        network: the network; :class:`segunc.networks.SegmentationNetwork` or a module of your own.
        classes: the class names, C of them.
        loss: the loss; plain cross-entropy when None.
        optimizer: ``adamw`` or ``sgd`` (Nesterov momentum 0.9).
        lr: peak learning rate.
        weight_decay: decay of weights; normalisation parameters and biases are not decayed.
        schedule: see :func:`segunc.training.losses.make_schedule`.

    Raises:
        InputError, PartialFailure: in training, when the loss or a parameter becomes NaN or infinite; checkpoints written
            before stay, and none is written after.
    """

    def __init__(
        self,
        network: nn.Module,
        classes: tuple[str, ...],
        loss: nn.Module | None = None,
        optimizer: Literal["adamw", "sgd"] = "adamw",
        lr: float = 1e-3,
        weight_decay: float = 1e-4,
        schedule: Schedule = "onecycle",
    ) -> None:
        super().__init__()
        self.network, self.classes = network, classes
        self.loss = SegmentationLoss() if loss is None else loss
        self.optimizer_name, self.lr, self.weight_decay, self.schedule = optimizer, lr, weight_decay, schedule
        self.val_confusion = MulticlassConfusionMatrix(len(classes), ignore_index=IGNORE)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.network(images.contiguous(memory_format=torch.channels_last))
        return logits

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> Tensor:
        loss: Tensor = self.loss(self(batch["image"]), batch["label"])
        if not bool(torch.isfinite(loss)):
            raise diverged("the loss", self.global_step)
        self.log("train/loss", loss, prog_bar=True, batch_size=len(batch["image"]))
        return loss

    def validation_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        logits = self(batch["image"])
        self.val_confusion.update(logits.argmax(1), batch["label"])
        self.log("val/loss", self.loss(logits, batch["label"]), sync_dist=True, batch_size=len(batch["image"]))

    def on_validation_epoch_end(self) -> None:
        # The metric adds its confusion matrices over processes itself.
        confusion = self.val_confusion.compute().double()
        hits = confusion.diag()
        union = confusion.sum(0) + confusion.sum(1) - hits
        self.log("val/miou", (hits / union)[union > 0].mean().float(), prog_bar=True)
        self.val_confusion.reset()

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        decayed = [p for p in self.network.parameters() if p.requires_grad and p.ndim > 1]
        plain = [p for p in self.network.parameters() if p.requires_grad and p.ndim <= 1]
        groups = [{"params": decayed, "weight_decay": self.weight_decay}, {"params": plain, "weight_decay": 0.0}]
        optimizer = make_optimizer(self.optimizer_name, groups, self.lr)
        steps = int(self.trainer.estimated_stepping_batches)
        schedule = make_schedule(optimizer, self.schedule, steps, self.lr)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        require_finite_state(checkpoint["state_dict"], self.global_step)
