"""Monte Carlo batch normalisation: a draw is the network with the BatchNorm statistics of one
random batch of training frames (Teye, Azizpour & Smith 2018, 1802.06455).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from segunc.affine.draws import AffineDraws, AffineLayout
from segunc.affine.noise import NoiseSource, Seed
from segunc.affine.posterior import Posterior
from segunc.baselines.fitted import SeenFrame, chosen_as_seen, frames_of
from segunc.core.bounds import Bound, NonNegativeInt, PositiveInt
from segunc.core.errors import InputError
from segunc.core.terminal import counted
from segunc.posteriors.finetune_run import FinetuneRun
from segunc.posteriors.methods import Method
from segunc.posteriors.model import Model
from segunc.posteriors.running_statistics import NormalisingCopy
from segunc.posteriors.settings import MethodSettings

LARGER_BATCH = "raise mcbn.batch_size"


class MCBNPosterior(Posterior):
    """A draw is the network with the statistics of one batch: ``weight = gamma rescale_k``, ``bias
    = beta + gamma reshift_k``. There ``rescale_k = s / s_k`` and ``reshift_k = (mu - mu_k) / s_k``;
    mu and s are the running statistics of the network, and mu_k and s_k those of batch k.

    Draw s takes batch number s mod K in an order that the seed decides. So at most K draws differ;
    beyond K they come again.

    Args:
        rescale, reshift: ``[K, T]``; 1 and 0 where a layer keeps the statistics of the network.
        scope: the normalisation layers that take the statistics of the batches.

    Raises:
        InputError: rescale and reshift of other shapes.
    """

    method: ClassVar[str] = "mcbn"
    members = 1

    def __init__(self, rescale: Tensor, reshift: Tensor, scope: str = "all") -> None:
        if rescale.ndim != 2 or rescale.shape != reshift.shape or len(rescale) == 0:
            raise InputError(
                f"rescale {tuple(rescale.shape)} and reshift {tuple(reshift.shape)} are not both "
                "[K, T]"
            )
        self.rescale = rescale
        self.reshift = reshift
        self.scope = scope

    def affine(
        self, layout: AffineLayout, draws: Sequence[int], seed: Seed, scope: str | None = None
    ) -> AffineDraws:
        count = len(self.rescale)
        order = np.random.Generator(np.random.Philox(key=NoiseSource.of(seed).seed))
        batch_of_draw = order.permutation(count)
        batches = torch.tensor([int(batch_of_draw[draw % count]) for draw in draws])
        mask = layout.mask(self.scope, scope)
        rescale = torch.where(mask, self.rescale[batches].to(layout.device), 1.0)
        reshift = torch.where(mask, self.reshift[batches].to(layout.device), 0.0)
        return AffineDraws(layout.weight * rescale, layout.bias + layout.weight * reshift)

    def settings(self) -> dict[str, Any]:
        return {"batches": len(self.rescale), "scope": self.scope}


@dataclass(frozen=True)
class MCBN(MethodSettings):
    """How many batches of training frames give the network their BatchNorm statistics; nothing is
    trained, and no labels are needed.

    The frames are seen as in a prediction: whole, not augmented, at the network's size.

    Args:
        batches: number K of batches, at least 2. At most K draws differ, so use no more draws.
        batch_size: number of frames in a batch. The smaller it is, the more the draws differ; the
            publication takes the batch size of the training.
        scope: normalisation layers that take the statistics of the batches: all, encoder, decoder,
            last:N, every:N or a regular expression.
        seed: random seed of the batches.
        images ([DATASET:]FOLDER): frames of your own instead of the training set; they need no
            labels.

    >>> import torch
    >>> import segunc
    >>> _ = torch.manual_seed(0)
    >>> first = torch.nn.Conv2d(3, 4, 3, padding=1)
    >>> net = torch.nn.Sequential(first, torch.nn.BatchNorm2d(4), torch.nn.Conv2d(4, 2, 1))
    >>> base = segunc.wrap(net, ("road", "other"))
    >>> images = torch.rand(4, 3, 64, 64)
    >>> labels = (images.mean(1) > 0.5).long()
    >>> batches = [(images[:2], labels[:2]), (images[2:], labels[2:])]
    >>> model = segunc.MCBN(batches=2, batch_size=2).fit(base, batches)
    >>> model.posterior.rescale.shape
    torch.Size([2, 4])
    """

    section = "mcbn"
    method = "mcbn"
    without_data: ClassVar[str] = "--mcbn.images FOLDER (needs no labels)"
    epochs: ClassVar[int] = 0  # nothing is trained
    needs_labels: ClassVar[bool] = False
    batches: Annotated[int, Bound(least=2)] = 8
    batch_size: PositiveInt = 4
    scope: str = "all"
    seed: NonNegativeInt = 0
    images: str | None = None

    @property
    def uses_data(self) -> dict[str, str]:
        """The splits that are looked at, each with the setting that asks for it."""
        if self.images:
            return {}
        return {"train": f"mcbn.batches {self.batches}"}


def finetune_mcbn(run: FinetuneRun[MCBN]) -> Model:
    """Return a base network with the statistics of some batches of frames."""
    options = run.config.settings
    run.place()
    if not NormalisingCopy(run.network, options.scope, LARGER_BATCH).layers:
        raise InputError(
            "the network has no BatchNorm layer with running statistics in scope "
            f"'{options.scope}', and Monte Carlo batch normalisation draws nothing else",
            hint="--method abnn draws every kind of normalisation layer",
        )
    data = frames_of(run)
    count = len(data.dataset("train"))
    chosen = random_batches(count, options.batches, options.batch_size, options.seed)
    if options.batches * options.batch_size > count:
        run.say(f"{counted(count, 'frame')}: some are in several batches")
    rescales = []
    reshifts = []
    names = []
    batch: list[SeenFrame] = []
    for frame in chosen_as_seen(run, data, "train", [index for part in chosen for index in part]):
        batch.append(frame)
        if len(batch) == options.batch_size:
            rescale, reshift = statistics_of(run, batch)
            rescales.append(rescale.cpu())
            reshifts.append(reshift.cpu())
            names.append([seen.name for seen in batch])
            batch = []
    run.measured["frames"] = names
    posterior = MCBNPosterior(torch.stack(rescales), torch.stack(reshifts), options.scope)
    of_frames = counted(options.batch_size, "frame")
    return run.finish(posterior, f"statistics of {options.batches} batches of {of_frames}")


def random_batches(frames: int, batches: int, batch_size: int, seed: int) -> list[list[int]]:
    """Return the indices of the frames of each batch, in their order. No frame is twice in a batch.
    Batches have frames in common only where there are too few frames for all.

    Args:
        frames: number of frames.
        batches: number of batches.
        batch_size: number of frames in a batch.
        seed: of the choice.

    Raises:
        InputError: the frames make only one batch, or none.

    >>> [len(batch) for batch in random_batches(frames=6, batches=3, batch_size=2, seed=0)]
    [2, 2, 2]
    """
    if frames <= batch_size:
        raise InputError(
            f"{counted(frames, 'frame')} cannot give different batches of {batch_size}, so all "
            "draws would agree",
            hint="give more frames, or lower mcbn.batch_size",
        )
    generator = np.random.default_rng(seed)
    chosen = []
    unused: list[int] = []
    for _ in range(batches):
        if len(unused) < batch_size:
            unused = generator.permutation(frames).tolist()
        chosen.append(sorted(unused[:batch_size]))
        unused = unused[batch_size:]
    return chosen


@torch.no_grad()
def statistics_of(run: FinetuneRun[MCBN], batch: Sequence[SeenFrame]) -> tuple[Tensor, Tensor]:
    """Return ``rescale`` and ``reshift`` ``[T]`` of :class:`MCBNPosterior` for one batch.

    Args:
        run: whose network is on its device.
        batch: frames of one size.

    Raises:
        InputError: frames of several sizes, or too few values for statistics.
    """
    sizes = sorted({f"{frame.image.shape[2]}x{frame.image.shape[3]}" for frame in batch})
    if len(sizes) > 1:
        raise InputError(
            f"frames of the sizes {' and '.join(sizes)} make no batch",
            hint="give frames of one size, data.size, or mcbn.batch_size 1",
        )
    device = next(run.network.parameters()).device
    images = torch.cat([frame.image for frame in batch]).to(device)
    copied = NormalisingCopy(run.network, run.config.settings.scope, LARGER_BATCH)
    copied.network(images.contiguous(memory_format=torch.channels_last))
    return copied.corrections()


METHOD = Method("mcbn", MCBN, finetune_mcbn, MCBNPosterior.from_tensors)
