"""One evaluation of a network in training, shared out over the processes of a run."""

from __future__ import annotations

import inspect
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from segunc.core.preserving import seed_random_sources
from segunc.data.channels import shown_colours
from segunc.lightning.counts import FrameCounts, counted_scores
from segunc.lightning.loaders import Frames, Share, is_indexed
from segunc.lightning.sheet import DrawnFrame
from segunc.networks.copies import copy_network
from segunc.posteriors.model import Model, wrap
from segunc.sampling.sampler import Prediction, Sampler


class Fits(Protocol):
    """The settings of a method, such as :class:`segunc.ABNN`."""

    def fit(self, base: Any, data: Any, /) -> Model: ...


@dataclass(frozen=True)
class Recipe:
    """How a network becomes a model, and what is measured of it.

    Attributes:
        methods: are fitted one after the other.
        classes, mean, std, palette: see :func:`segunc.wrap`.
        draws, seed: of the sampler.
        scores: whose numbers and maps are made; None chooses by the model.
    """

    methods: Sequence[Fits]
    classes: Sequence[str]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    palette: Sequence[tuple[int, int, int]]
    draws: int
    seed: int
    scores: Sequence[str] | None

    def wrapped(self, network: nn.Module) -> Model:
        """Return a model of a copy of a network, in float32.

        Raises:
            InputError: see :func:`segunc.wrap` and :func:`segunc.networks.copies.copy_network`.
        """
        copied = copy_network(network, len(self.mean))
        return wrap(
            copied.float(), self.classes, mean=self.mean, std=self.std, palette=self.palette
        )

    def fitted(self, network: nn.Module, data: Sequence[Any], device: torch.device) -> Model:
        """Return a copy of a network with all methods fitted, each on its data, on a device."""
        model = self.wrapped(network)
        model.network.to(device)
        seed_everything(self.seed, data)
        for method, batches in zip(self.methods, data, strict=True):
            fit: Any = method.fit
            takes_device = "device" in inspect.signature(fit).parameters
            settings = {"device": str(device)} if takes_device else {}
            model = fit(model, batches, **settings)
        model.place(device)
        return model

    def scores_of(self, model: Model) -> tuple[str, ...]:
        """Return the scores of the settings, or those that say most of a model."""
        if self.scores is not None:
            return tuple(self.scores)
        scores = ["anomaly"] if "anomaly" in model.attachments else []
        scores.append("entropy")
        if model.bayesian:
            scores.append("epistemic")
        return tuple(scores)


def seed_everything(seed: int, data: Sequence[Any]) -> None:
    """Start the random numbers of the process and those of the data from a seed, so that all
    processes fit the same, and every evaluation does.
    """
    seed_random_sources(data, seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002  transforms of users draw from it
    # torch.manual_seed would also seed a GPU that comes into use later.
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(seed)


@dataclass
class Findings:
    """What one process found of its share of the frames.

    Attributes:
        counts: of the frames; None where it failed.
        drawn: the frames of the picture that are among them.
        failure: why it failed, in one sentence; empty where it did not.
        fitted_on: a sum of the first batch of each stream on which a method was fitted.
    """

    counts: FrameCounts | None = None
    drawn: Sequence[DrawnFrame] = ()
    failure: str = ""
    fitted_on: Sequence[str] = ()

    def packed(self) -> dict[str, Any]:
        """Return it as it goes to other processes."""
        counts = None if self.counts is None else self.counts.state()
        return {
            "counts": counts,
            "drawn": list(self.drawn),
            "failure": self.failure,
            "fitted_on": list(self.fitted_on),
        }


def evaluate_share(model: Model, recipe: Recipe, frames: Frames, share: Share) -> Findings:
    """Return what a model gives for one share of the frames.

    Every frame runs alone, so that its maps do not depend on those beside it in a batch.
    """
    scores = recipe.scores_of(model)
    needed = counted_scores(scores)
    sampler = Sampler(
        model.network,
        model.posterior,
        draws=recipe.draws,
        seed=recipe.seed,
        scores=needed,
        fitted=model.fitted(needed),
    )
    counts = FrameCounts(scores, model.network.description.classes)
    drawn = []
    for number, tensors in frames.of(share):
        images = tensors.pop("image").float()
        whole = [_as_bytes(images[0])]
        maps = sampler(images, keep_probabilities="label" in tensors, whole=whole)
        counts.add(f"frame {number}", maps, tensors)
        if number in frames.drawn:
            drawn.append(_drawn(number, shown_colours(whole[0]), maps, scores, tensors))
    return Findings(counts, drawn)


def _as_bytes(image: Tensor) -> Any:
    """Return an image ``[K, H, W]`` in 0..1 as uint8 ``[H, W, K]``."""
    scaled = image.clamp(0, 1).mul(255).round().byte()
    return np.ascontiguousarray(scaled.permute(1, 2, 0).cpu().numpy())


def _drawn(
    number: int,
    image: Any,
    maps: Prediction,
    scores: Sequence[str],
    labels: dict[str, Tensor],
) -> DrawnFrame:
    """Return what is drawn of a frame."""
    by_kind: dict[str, Any] = {"label": None, "anomaly": None}
    for kind, tensor in labels.items():
        by_kind[kind] = tensor[0].cpu().numpy().astype(np.uint8)
    return DrawnFrame(
        number,
        image,
        maps.prediction[0].cpu().numpy(),
        {score: maps.scores[score][0].cpu().numpy() for score in scores},
        **by_kind,
    )


def together(findings: Findings, share: Share) -> list[dict[str, Any]]:
    """Return the findings of all processes, packed, in the order of the processes.

    Every process must call it once for each evaluation, also one that failed: the others wait for
    it here.
    """
    return _of_all(findings.packed(), share)


def is_shared_out(frames: Frames, share: Share) -> bool:
    """Return whether the frames that are evaluated are others in each process, as those of a stream
    that its user shares out.

    Every process must call it once for each evaluation: the others wait for it here.
    """
    if share.processes == 1 or is_indexed(frames.source):
        return False
    try:
        first_sum = frames.first_sum()
    except Exception:  # what cannot be read fails again where frames are evaluated
        first_sum = ""
    return len(set(_of_all(first_sum, share))) > 1


def _of_all(content: Any, share: Share) -> list[Any]:
    """Return what each process has, in the order of the processes."""
    if share.processes == 1:
        return [content]
    import torch.distributed as dist

    gathered: list[Any] = [None] * share.processes
    dist.all_gather_object(gathered, content)
    return gathered


def same_buffers(network: nn.Module, share: Share) -> None:
    """Give the network of every process the parameters and buffers of the first.

    Statistics of BatchNorm layers are of the frames that each process saw.
    """
    if share.processes == 1:
        return
    import torch.distributed as dist

    with torch.no_grad():
        for tensor in (*network.parameters(), *network.buffers()):
            dist.broadcast(tensor.data, 0)
