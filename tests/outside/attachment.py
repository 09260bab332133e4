"""What another package fits on a model, how often each class is predicted, and a score over this
new evidence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from segunc.baselines.fitted import fitted_on, frames_as_seen, load_for_fitting
from segunc.core.bounds import NonNegativeInt, Settings
from segunc.core.device import resolve_device
from segunc.posteriors.methods import METHODS, Method
from segunc.posteriors.model import ATTACHMENTS, Attachment
from segunc.scores import EVIDENCE, SCORES, Evidence, Score


@dataclass(frozen=True)
class ClassShares(Attachment):
    file: ClassVar[str] = "class_shares.json"
    what: ClassVar[str] = "shares of the classes"
    gives = frozenset({"class shares"})

    shares: tuple[float, ...]
    fitted_on: Mapping[str, Any]
    base_sha256: str

    def __call__(self, images, needs, precision, temperature):
        return {"class shares": torch.tensor(self.shares, device=images.device)}


@dataclass(frozen=True)
class ClassSharesConfig(Settings):
    section = "class_shares"
    frames: NonNegativeInt = 0


def fit(base, config, out, *, device="auto", say=print):
    model, data = load_for_fitting(base, config, resolve_device(device))
    counts = torch.ones(model.network.description.num_classes)
    with torch.inference_mode():
        for _, image, *_ in frames_as_seen(
            model, data, "train", config.settings.frames, "class-shares"
        ):
            counts += model.network(image).argmax(1).flatten().bincount(minlength=len(counts)).cpu()
    found = ClassShares(
        tuple((counts / counts.sum()).tolist()), fitted_on(config, "train"), model.sha256
    )
    found.attach(base, config, out, "class-shares", say)
    return found


def rarity(logits, shares):
    return -shares.log()[logits.argmax(1)]


METHODS.register("class-shares", Method("class-shares", ClassSharesConfig, fit, finished=True))
ATTACHMENTS.register("class_shares", ClassShares)
EVIDENCE.register(
    "class shares", Evidence("[C] of training pixels", "constant", "without shares", "class-shares")
)
needs = ("base logits", "class shares")
SCORES.register(
    "rarity",
    Score("rarity", "how rare the class is", "made up", "nats", 0, None, "float16", needs, rarity),
)
