"""Decoder ensembles: several decoders on one frozen encoder (the trees of Lee et al. 2015, 1511.06314, that branch behind it)."""

from __future__ import annotations

import copy
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, cast

import torch
from torch import Tensor

from segunc.affine.draws import in_encoder
from segunc.affine.noise import mix_seed
from segunc.affine.posterior import TENSORS, Branch, Deterministic
from segunc.baselines.mixtures import Ensemble
from segunc.core.bounds import Bound, NonNegativeInt, PositiveInt
from segunc.core.errors import InputError
from segunc.networks.files import build_network, load_network
from segunc.networks.network import SegmentationNetwork
from segunc.networks.weights import load_state
from segunc.posteriors.fitting import finetuning
from segunc.posteriors.methods import Method
from segunc.posteriors.model import Model, load_base, posterior_hash
from segunc.training.config import FinetuneConfig, OptimisationConfig
from segunc.training.finetune_run import FinetuneRun
from segunc.training.progress import CHECKPOINTS, LAST, fit

HEADS = "heads"


def decoder_state(network: SegmentationNetwork) -> dict[str, Tensor]:
    """Return weights and statistics of all that is not the encoder, by their names in the body."""
    state = network.body.state_dict()
    decoder = {name: tensor for name, tensor in state.items() if not in_encoder(name)}
    if not 0 < len(decoder) < len(state):
        lacking = "no part named encoder or backbone" if decoder else "nothing behind its encoder"
        name = network.description.architecture or type(network.body).__name__
        message = f"{name} has {lacking}, so it has no decoders to train"
        raise InputError(message, hint="make an ensemble of whole networks")
    return decoder


def with_decoder(base: SegmentationNetwork, decoder: Mapping[str, Tensor], source: str) -> SegmentationNetwork:
    """Return a network with the very modules of a base's encoder and another decoder."""
    shared = {id(module): module for name, module in base.named_modules() if in_encoder(name)}
    network = copy.deepcopy(base, shared)
    encoder = {name: tensor for name, tensor in base.body.state_dict().items() if in_encoder(name)}
    load_state(network.body, {**encoder, **decoder}, source)
    return network


class DecoderEnsemble(Ensemble):
    """Draw s is head s: the base's encoder, which a frame goes through once (:mod:`segunc.sampling.shortcuts`), and a decoder of its own,
    which of head 0 is the base's; ``decoders`` are the others, see :func:`decoder_state`."""

    method: ClassVar[str] = "decoder-ensemble"

    def __init__(self, base: SegmentationNetwork, decoders: Sequence[Mapping[str, Tensor]], source: str = "a head") -> None:
        networks = [base, *(with_decoder(base, decoder, source) for decoder in decoders)]
        super().__init__([Branch(network, Deterministic()) for network in networks])

    def tensors(self) -> dict[str, Tensor]:
        """Return what ``posterior.safetensors`` holds: the heads that are not the base's, ``HEAD.NAME``."""
        states = [decoder_state(cast(SegmentationNetwork, part.network)) for part in self.parts[1:]]
        return {f"{head}.{name}": tensor for head, state in enumerate(states, 1) for name, tensor in state.items()}

    def settings(self) -> dict[str, Any]:
        # The last two are constants, as hashes are over them.
        return {"heads": self.members, "keep_base": True, "start": "random"}


@dataclass(frozen=True)
class DecoderEnsembleConfig(OptimisationConfig):
    """How the heads are trained, each alone from new random weights: all that is not the encoder, which stays as it is, its running
    statistics too. Head 0 is the base's own decoder, which is not trained.

    Args:
        heads: K, how many decoders.
        epochs: passes of each head over the training set, in an order of its own.
        max_steps: of each head, at most (0: no limit).
        seed: of everything random; each head has its own from it.
    """

    section = "decoder_ensemble"
    heads: Annotated[int, Bound(least=2)] = 4
    epochs: PositiveInt = 20
    max_steps: NonNegativeInt = 0
    seed: NonNegativeInt = 0


def _has_a_decoder(base: Path, config: FinetuneConfig[Any], out: Path) -> None:
    decoder_state(load_network(base))


@finetuning(check=_has_a_decoder, partial=HEADS)
def finetune_decoders(run: FinetuneRun[DecoderEnsembleConfig]) -> dict[str, Any]:
    """Train the heads one after the other, and write them beside the base; a killed head goes on from its last epoch."""
    options, start = run.config.settings, time.perf_counter()
    run.measured["steps"] = 0
    weights = run.class_weights()
    decoders = [_train_head(run, head, weights) for head in range(1, options.heads)]
    run.measured["train_seconds"] = round(time.perf_counter() - start, 1)
    posterior = DecoderEnsemble(run.network, decoders)
    numbers = sum(tensor.numel() for tensor in posterior.tensors().values())
    return run.finish(posterior, f"{options.heads} heads on one encoder, the first the base's own, {numbers:,} numbers")


def _train_head(run: FinetuneRun[DecoderEnsembleConfig], head: int, weights: Sequence[float] | None) -> dict[str, Tensor]:
    """Return the decoder of a head, trained, on the CPU."""
    import lightning as L

    from segunc.baselines.decoder_task import DecoderTask
    from segunc.training.base import make_trainer

    options, seed = run.config.settings, mix_seed(run.config.settings.seed, head) % 2**32
    L.seed_everything(seed, workers=True, verbose=False)  # initialisation, augmentation and dropout
    fresh = build_network(run.network.description)
    network = with_decoder(run.network, decoder_state(fresh), f"head {head}")
    task = DecoderTask(network.to(memory_format=torch.channels_last), len(run.classes), options, weights)
    folder = run.out / CHECKPOINTS / HEADS / str(head)
    last = folder / CHECKPOINTS / LAST
    run.resume = last if last.exists() else run.resume
    trainer = make_trainer(run.settings, folder, f"head {head}")
    data = copy.copy(run.data)
    data.seed = seed  # of the order of the batches
    fit(trainer, task, last if last.exists() else None, train_dataloaders=data.train_dataloader())
    run.measured["steps"] += trainer.global_step
    run.say(f"head {head}: {trainer.global_step} steps")
    return {name: tensor.clone() for name, tensor in decoder_state(network.cpu()).items()}


def load_decoders(folder: Path, record: Mapping[str, Any]) -> Model:
    """Return the decoder ensemble that a record describes."""
    network, tensors, tensors_sha256 = load_base(folder, record)
    heads: dict[int, dict[str, Tensor]] = defaultdict(dict)
    for key, tensor in tensors.items():
        number, _, name = key.partition(".")
        heads[int(number)][name] = tensor
    posterior = DecoderEnsemble(network, [heads[i] for i in sorted(heads)], str(folder / TENSORS))
    return Model(network, posterior, network.sha256, posterior_hash(tensors_sha256, posterior), None, record)


METHOD = Method("decoder-ensemble", DecoderEnsembleConfig, finetune_decoders, load=load_decoders)
