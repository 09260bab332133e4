"""What another package fits on a model, and a score over the evidence that it gives.

The evidence is how often each class occurs in training frames. The score is high where the
predicted class is rare.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from segunc.baselines.fitted import frames_as_seen
from segunc.core.bounds import NonNegativeInt
from segunc.posteriors.fit_run import FitRun
from segunc.posteriors.methods import Method
from segunc.posteriors.model import Attachment, Model
from segunc.posteriors.settings import MethodSettings
from segunc.scores import Evidence, Score


@dataclass(frozen=True)
class ClassShares(Attachment):
    """The record beside the model, which also provides the evidence.

    Args:
        shares: share of each class in the predictions.
        fitted_on: the frames, the date and the version of torch.
        base_sha256: hash of the network that it belongs to.
    """

    file: ClassVar[str] = "class_shares.json"
    what: ClassVar[str] = "shares of the classes"
    gives = frozenset({"class shares"})

    shares: tuple[float, ...]
    fitted_on: Mapping[str, Any]
    base_sha256: str

    def __call__(
        self, images: Tensor, needs: Collection[str], precision: Any, temperature: Any
    ) -> dict[str, Tensor]:
        """Return the evidence by name: here the same constant for every frame."""
        return {"class shares": torch.tensor(self.shares, device=images.device)}


@dataclass(frozen=True)
class ClassSharesConfig(MethodSettings):
    """How the shares are counted.

    Args:
        frames: how many evenly spaced frames (0: all).
    """

    section = "class_shares"
    method = "class-shares"
    frames: NonNegativeInt = 0


def fit(run: FitRun[ClassSharesConfig]) -> Model:
    """Count the predicted classes in training frames, and return the model with their shares."""
    model = run.model
    # Begin with one pixel of each class, so that no share is 0.
    counts = torch.ones(model.network.description.num_classes)
    with torch.inference_mode():
        for frame in frames_as_seen(run, run.data, split="train", limit=run.settings.frames):
            predicted = model.network(frame.image).argmax(dim=1).flatten()
            counts += predicted.bincount(minlength=len(counts)).cpu()
    record = ClassShares(
        shares=tuple((counts / counts.sum()).tolist()),
        fitted_on=run.fitted_on(split="train"),
        base_sha256=model.sha256,
    )
    return run.attach(record, summary="shares of the classes")


def rarity(logits: Tensor, shares: Tensor) -> Tensor:
    """Return how rare the predicted class is, ``[n, H, W]`` in nats."""
    return -shares.log()[logits.argmax(dim=1)]


METHOD = Method(
    name="class-shares",
    config=ClassSharesConfig,
    fit=fit,
    finished=True,
)

EVIDENCE = Evidence(
    meaning="[C] of training pixels",
    source="constant",
    without="without shares",
    method="class-shares",
)

RARITY = Score(
    name="rarity",
    meaning="how rare the class is",
    source="made up",
    unit="nats",
    lower=0,
    upper=None,
    stored="float16",
    needs=("base logits", "class shares"),
    formula=rarity,
)
