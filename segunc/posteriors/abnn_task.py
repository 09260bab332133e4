"""ABNN for a Lightning script of one's own; a file of its own, because it imports Lightning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from segunc.posteriors.abnn import ABNN, AbnnConfig, Members
from segunc.training.affine_task import AffineTask


class ABNNTask(AffineTask[ABNN]):
    """Fine-tunes M members on one shared, frozen network; only their gamma and beta have gradients.

    Member m = step mod M trains at each step, with independent noise for each image of the batch. After ``fit``,
    :meth:`posterior` gives the result.

    Args:
        network, num_classes, class_weights: see :class:`segunc.training.affine_task.AffineTask`; class weights are multiplied
            with the random ones.
        members: M.
        alpha: noise scale in training.
        settings: more of :class:`segunc.posteriors.abnn.AbnnConfig`: ``scope``, ``lr``, ``optimizer``, ``schedule``,
            ``prior_scale``, ``prior_mean``, ``effective_pixels``, ``random_classes``, ``random_class_weight``, ``dice``, ``seed``.

    Raises:
        InputError: settings out of range.
        PartialFailure: in training, when the loss or a member becomes NaN or infinite.
    """

    def __init__(
        self,
        network: nn.Module,
        num_classes: int,
        members: int = 3,
        alpha: float = 0.1,
        *,
        class_weights: Sequence[float] | None = None,
        **settings: Any,
    ) -> None:
        config = AbnnConfig(members=members, alpha=alpha, **settings)
        make = lambda layout: Members(layout, num_classes, config, alpha)  # noqa: E731
        super().__init__(network, num_classes, make, config, class_weights=class_weights)
