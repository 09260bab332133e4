"""The label map of a data set as a network with other classes is scored by it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from segunc.core.errors import InputError
from segunc.data.labels import IGNORE, LabelMap, recode


@dataclass(frozen=True)
class ClassMapping(LabelMap):
    """Which class of a data set each class of a network is; several may be one.

    As a label map its C classes are those of the data set that have a partner: the raw ids of the others are ignored, because nothing
    that the network predicts is right there. Predicting a class of the network without a partner is an error on every labelled pixel.
    """

    network: tuple[str, ...]  # the network's N class names in the order of its logits
    partners: tuple[int, ...]  # of each of them the train id of its partner in 0..C-1, C where it has none
    ignored: tuple[str, ...]  # classes of the data set without a partner

    @classmethod
    def of(cls, labels: LabelMap, network: Sequence[str], pairs: Mapping[str, str]) -> Self:
        """Return the mapping by ``pairs``, name of a class of the network -> name of one of the label map; raise InputError for an
        unknown name."""
        for owner, classes, names in (
            ("the network", network, pairs.keys()),
            (f"label map '{labels.name}'", labels.classes, pairs.values()),
        ):
            if unknown := [name for name in names if name not in classes]:
                raise InputError(
                    f"--map-classes: {owner} has no class '{unknown[0]}'", hint=f"one of {', '.join(classes)}"
                )
        kept = labels.keeping(set(pairs.values()))
        return cls(
            kept.name,
            kept.classes,
            kept.palette,
            kept.raw_to_train,
            tuple(network),
            tuple(kept.classes.index(pairs[name]) if name in pairs else kept.num_classes for name in network),
            tuple(name for name in labels.classes if name not in kept.classes),
            colours=labels.colours,
            train_ids=labels.train_ids,
        )

    @property
    def others(self) -> bool:
        """Whether a class of the network has no partner: predictions may then be C, and probabilities lack what it holds."""
        return self.num_classes in self.partners

    def predicted(self, prediction: npt.NDArray[np.uint8], labels: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """Return the partner of each class that the network predicts, C for one without (uint8 ``[H, W]``), and anything where the
        labels ``[H, W]`` are ignored; raise InputError for an id that the network does not have."""
        counted = np.where(labels == IGNORE, np.uint8(0), prediction)
        known_values, hint = f"0-{len(self.network) - 1}", "give the maps that belong to this network"
        return recode(counted, dict(enumerate(self.partners)), "the prediction", known_values, hint)

    def merged(self, probabilities: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Return probabilities ``[C, H, W]`` of the data set's classes, each the sum over the partners of it among the network's
        ``[N, H, W]``; they are not made to sum to 1 where some lies on classes without a partner."""
        sums = np.zeros((self.num_classes, *probabilities.shape[1:]), probabilities.dtype)
        for number, partner in enumerate(self.partners):
            if partner < self.num_classes:
                sums[partner] += probabilities[number]
        return sums

    def about(self) -> dict[str, Any]:
        """Return what a result records of the mapping."""
        by_name = zip(self.network, self.partners, strict=True)
        return {
            "partners": {name: self.classes[partner] for name, partner in by_name if partner < self.num_classes},
            "network_classes_without_partner": self._without_partner(),
            "dataset_classes_without_partner": list(self.ignored),
            "confidence": "1 - msp of the network's own classes, a lower bound of the merged class's probability",
        }

    def notes(self) -> list[str]:
        """Return lines on what has no partner, for a user."""
        lines = []
        if errors := self._without_partner():
            lines.append(
                f"classes of the network without a partner, an error wherever they are predicted: {', '.join(errors)}"
            )
        if self.ignored:
            lines.append(f"classes of label map '{self.name}' without a partner, ignored: {', '.join(self.ignored)}")
        return lines

    def _without_partner(self) -> list[str]:
        return [name for name, partner in zip(self.network, self.partners, strict=True) if partner == self.num_classes]
