"""Test-time augmentation: flips and scales of the frame as draws, over any posterior (Wang et al. 2019, 1807.07356)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

from torch import nn

from segunc.affine.branches import AnyPosterior, Branch, InputTransform, Mixture, branches_of, least_draws
from segunc.core.errors import InputError


class TestTimeAugmentation(Mixture):
    """Draw s is draw s of a posterior, of the frame under transform s mod K.

    The K transforms are every scale as it is, in the order given, and then, with ``flip``, every scale mirrored. Logits
    are brought back to the frame before the softmax. Over an ensemble of M networks the draws s, s + lcm(M, K), ... take one
    transform after the other, so that M K draws are all pairs. Members of a posterior over one network do not: where M and
    K have a common divisor, such a member meets only some of the transforms.

    Args:
        inner: any other posterior; a deterministic one has K draws in all.
        scales: factors of both sides of the frame.
        flip: also mirror the frame.

    Raises:
        InputError: no scale, one that is not positive, or a posterior that is augmented already.
    """

    __test__ = False  # pytest takes the name for that of a test
    method: ClassVar[str] = "tta"

    def __init__(self, inner: AnyPosterior, scales: Sequence[float] = (1.0,), flip: bool = True) -> None:
        if isinstance(inner, TestTimeAugmentation):
            raise InputError(
                "test-time augmentation of a model that has it already", "a model without", "start from its base"
            )
        if not scales or not all(scale > 0 and math.isfinite(scale) for scale in scales):
            raise InputError(f"scales {list(scales)}", "positive numbers", "0.75, 1 and 1.25 are usual")
        self.inner, self.scales, self.flip = inner, tuple(float(scale) for scale in scales), flip
        mirrored = (False, True) if flip else (False,)
        self.transforms = tuple(InputTransform(scale, m) for m in mirrored for scale in dict.fromkeys(self.scales))

    @property
    def members(self) -> int:
        return len(self.transforms)

    @property
    def least_draws(self) -> int:
        return max(self.members, least_draws(self.inner))

    def branches(self, network: nn.Module) -> list[Branch]:
        inner = branches_of(network, self.inner)
        networks, transforms = len(inner), self.members
        period = math.lcm(networks, transforms)
        # One step further after each period, or a common divisor would keep some pairs apart for ever.
        return [
            replace(inner[i % networks], transform=self.transforms[(i + i // period) % transforms])
            for i in range(networks * transforms)
        ]

    def settings(self) -> dict[str, Any]:
        within = {"method": self.inner.method, **self.inner.settings()}
        return {"scales": list(self.scales), "flip": self.flip, "inner": within}
