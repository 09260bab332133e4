"""The training of a decoder on a frozen encoder; a file of its own, because it imports Lightning."""

from __future__ import annotations

from typing import Any, Self

import lightning as L
from torch import Tensor, nn

from segunc.affine.draws import in_encoder
from segunc.baselines.feature_extractor import hooked
from segunc.core.errors import InputError
from segunc.training.base import SegmentationTask


class DecoderTask(SegmentationTask):
    """Train what lies behind a network's encoder, with all its weights and statistics. The encoder stays in eval mode and has no
    gradients: its activations are not kept, nothing goes back through it, and checkpoints do not hold it."""

    strict_loading = False
    validation_step = L.LightningModule.validation_step  # type: ignore[assignment]  # nothing is selected

    def __init__(self, network: nn.Module, *more: Any) -> None:
        super().__init__(network, *more)
        for name, parameter in network.named_parameters():
            parameter.requires_grad_(not in_encoder(name))

    def train(self, mode: bool = True) -> Self:
        super().train(mode)  # Lightning toggles the mode around validation
        for name, module in self.named_modules():
            if in_encoder(name):
                module.training = False
        return self

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> Tensor:
        if self.global_step:
            return super().training_step(batch, batch_idx)

        def check_frozen(module: nn.Module, inputs: Any, output: Any) -> None:
            if isinstance(output, Tensor) and output.requires_grad:
                message = f"the network has weights before its encoder, on which its {type(module).__name__} depends"
                raise InputError(message, hint="make an ensemble of whole networks")

        with hooked([module for name, module in self.named_modules() if in_encoder(name)], check_frozen):
            return super().training_step(batch, batch_idx)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_save_checkpoint(checkpoint)
        state = checkpoint["state_dict"]
        checkpoint["state_dict"] = {name: value for name, value in state.items() if not in_encoder(name)}
