"""The label map of a data set as a network with other classes is scored by it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
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
        """The mapping by ``pairs``, name of a class of the network -> name of one of the label map; InputError for an unknown name."""
        for owner, known, names in (
            ("the network", network, list(pairs)),
            (f"label map '{labels.name}'", labels.classes, list(pairs.values())),
        ):
            for name in names:
                if name not in known:
                    near = get_close_matches(name, known, 1)
                    given, expected = f"--map-classes: {owner} has no class '{name}'", f"one of {', '.join(known)}"
                    raise InputError(given, expected, f"did you mean '{near[0]}'?" if near else "check the name")
        wanted = set(pairs.values())
        kept = [i for i, name in enumerate(labels.classes) if name in wanted]
        numbers = {old: new for new, old in enumerate(kept)}
        classes = tuple(labels.classes[i] for i in kept)
        return cls(
            labels.name,
            classes,
            tuple(labels.palette[i] for i in kept),
            {raw: numbers.get(train, IGNORE) for raw, train in labels.raw_to_train.items()},
            tuple(network),
            tuple(classes.index(pairs[name]) if name in pairs else len(kept) for name in network),
            tuple(name for name in labels.classes if name not in wanted),
            colours=labels.colours,
            train_ids=labels.train_ids,
        )

    @property
    def others(self) -> bool:
        """Whether a class of the network has no partner: predictions may then be C, and probabilities lack what it holds."""
        return self.num_classes in self.partners

    def predicted(self, prediction: npt.NDArray[np.uint8], labels: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """The partner of each class that the network predicts, C for one without (uint8 ``[H, W]``); whatever is predicted where the
        labels ``[H, W]`` are ignored. InputError for an id that the network does not have."""
        counted = np.where(labels == IGNORE, np.uint8(0), prediction)
        expected, remedy = f"ids in 0..{len(self.network) - 1}", "give the maps that belong to this network"
        return recode(counted, dict(enumerate(self.partners)), "the prediction", expected, remedy)

    def merged(self, probabilities: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Probabilities ``[C, H, W]`` of the data set's classes, each the sum over the partners of it among the network's
        ``[N, H, W]``; they are not made to sum to 1 where some lies on classes without a partner."""
        sums = np.zeros((self.num_classes, *probabilities.shape[1:]), probabilities.dtype)
        for own, partner in enumerate(self.partners):
            if partner < self.num_classes:
                sums[partner] += probabilities[own]
        return sums

    def about(self) -> dict[str, Any]:
        """What a result records of it."""
        by_name = zip(self.network, self.partners, strict=True)
        return {
            "partners": {name: self.classes[partner] for name, partner in by_name if partner < self.num_classes},
            "network_classes_without_partner": self._unpartnered(),
            "dataset_classes_without_partner": list(self.ignored),
            "confidence": "1 - msp of the network's own classes, a lower bound of the merged class's probability",
        }

    def notes(self) -> list[str]:
        """Lines on what has no partner, for a user."""
        own, theirs = ", ".join(self._unpartnered()), ", ".join(self.ignored)
        lines = (
            [f"classes of the network without a partner, an error wherever they are predicted: {own}"] if own else []
        )
        return [
            *lines,
            *([f"classes of label map '{self.name}' without a partner, ignored: {theirs}"] if theirs else []),
        ]

    def _unpartnered(self) -> list[str]:
        return [name for name, partner in zip(self.network, self.partners, strict=True) if partner == self.num_classes]
