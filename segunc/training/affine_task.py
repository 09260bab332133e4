"""The fine-tuning of affine parameters over a frozen network, as a LightningModule that knows no
method.
"""

from __future__ import annotations

from typing import Any

import lightning as L
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor
from torch.optim import Optimizer

from segunc.affine.posterior import P
from segunc.training.affine_tuner import AffineTuner
from segunc.training.batches import unpack_batch
from segunc.training.losses import require_finite_state

PREFIX = "trained."


class AffineTask(AffineTuner[P], L.LightningModule):
    """An :class:`~segunc.training.affine_tuner.AffineTuner` for a Lightning Trainer; checkpoints
    hold the posterior's parameters only. A loss or a parameter that becomes NaN or infinite ends
    the training (PartialFailure), and no checkpoint is written after.
    """

    strict_loading = False  # checkpoints do not hold the network; it lies in the base's folder

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        images, labels = unpack_batch(batch)
        # Lightning begins a step with each epoch, so that this holds after resuming, too.
        accumulated = batch_idx % self.trainer.accumulate_grad_batches
        batch_of_step = accumulated * self.trainer.world_size + self.global_rank
        loss, added = self.terms(images, labels, self.global_step, batch_of_step)
        logged = {"train/loss": loss, f"train/{self.trained.regulariser_name}": added}
        self.log_dict(logged, prog_bar=True, batch_size=len(images))
        return loss + added

    def on_train_start(self) -> None:
        self.trained.check_steps(int(self.trainer.estimated_stepping_batches))

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        # Their gradients are 0, but a momentum would still move them.
        for parameter in self.trained.others(self.member(self.global_step)):
            parameter.grad = None

    def on_train_batch_end(self, *_: Any) -> None:
        self.trained.after_step(self.layout, self.global_step)

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        optimizer, schedule = self.optimizer(int(self.trainer.estimated_stepping_batches))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        state = checkpoint["state_dict"]
        kept: dict[str, Any] = {}
        for key, value in state.items():
            if key.startswith(PREFIX):
                kept[key.removeprefix(PREFIX)] = value
        require_finite_state(kept, self.global_step)
        checkpoint["state_dict"] = kept

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        state = checkpoint["state_dict"]
        checkpoint["state_dict"] = {PREFIX + key: value for key, value in state.items()}
