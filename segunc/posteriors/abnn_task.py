"""ABNN for a Lightning script of one's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from torch import nn

from segunc.affine.prior import Prior, PriorMean
from segunc.posteriors.abnn import ABNN, Members
from segunc.training.affine_task import AffineTask
from segunc.training.losses import Schedule


class ABNNTask(AffineTask[ABNN]):
    """Fine-tunes M members on one shared, frozen network; only their gamma and beta have gradients.

    Member m = step mod M trains at each step, with independent noise for each image of the batch. See
    :class:`segunc.training.affine_task.AffineTask`; after ``fit``, :meth:`posterior` gives the result.

    Args:
        network, num_classes: see :class:`segunc.training.affine_task.AffineTask`.
        members: M.
        alpha: noise scale in training.
        scope: sites that are noisy and trained; the others keep the base's affine.
        lr, optimizer, schedule, class_weights, dice: see there; class weights are multiplied with the random ones.
        prior_scale: s, standard deviation of the Gaussian prior.
        prior_mean: ``base`` centres the prior on the trained values, ``zero`` is plain weight decay.
        effective_pixels: N_eff.
        random_classes: classes weighted up for each member, drawn once from the seed.
        random_class_weight: their weight.
        seed: of the classes and the noise.

    Raises:
        InputError: fewer than one member, or more random classes than there are.
        PartialFailure: in training, when the loss or a member becomes NaN or infinite.
    """

    def __init__(
        self,
        network: nn.Module,
        num_classes: int,
        members: int = 3,
        alpha: float = 0.1,
        scope: str = "all",
        lr: float = 0.005,
        optimizer: Literal["sgd", "adamw"] = "sgd",
        schedule: Schedule = "poly",
        prior_scale: float = Prior.scale,
        prior_mean: PriorMean = Prior.mean,
        effective_pixels: float = Prior.effective_pixels,
        random_classes: int = 3,
        random_class_weight: float = 4.0,
        class_weights: Sequence[float] | None = None,
        dice: float = 0.0,
        seed: int = 0,
    ) -> None:
        prior = Prior(prior_scale, effective_pixels, prior_mean)
        super().__init__(
            network,
            num_classes,
            lambda layout: Members(
                layout, num_classes, members, alpha, scope, prior, random_classes, random_class_weight, seed
            ),
            lr=lr,
            optimizer=optimizer,
            schedule=schedule,
            class_weights=class_weights,
            dice=dice,
            seed=seed,
        )
