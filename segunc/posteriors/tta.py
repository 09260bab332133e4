"""Test-time augmentation: flips and scales of the frame as draws, over any posterior (Wang et al. 2019, 1807.07356)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from torch import nn

from segunc.affine.branches import AnyPosterior, Branch, InputTransform, Mixture, branches_of, least_draws
from segunc.core.bounds import PositiveFloat, Settings
from segunc.core.errors import InputError
from segunc.core.files import read_json, read_record, write_record
from segunc.networks.files import POSTERIOR
from segunc.posteriors.methods import Method
from segunc.posteriors.model import Model, check_base, copy_model, load_model, load_recorded, posterior_hash
from segunc.training.config import now
from segunc.training.progress import Say, say

if TYPE_CHECKING:
    from segunc.training.config import FitConfig

SCALES = (1.0, 0.75)
"""With their mirror images four draws for the price of three passes; the best price in the registered study (docs/results.md)."""


class TestTimeAugmentation(Mixture):
    """Draw s is draw s of a posterior, of the frame under transform s mod K.

    The K transforms are every scale as it is, in the order given, and then, with ``flip``, every scale mirrored. Logits
    are brought back to the frame before the softmax. Over an ensemble of M networks the draws s, s + lcm(M, K), ... take one
    transform after the other, so that M K draws are all pairs. Members of a posterior over one network do not: where M and
    K have a common divisor, such a member meets only some of the transforms.
    """

    __test__ = False  # pytest takes the name for that of a test
    method: ClassVar[str] = "tta"

    def __init__(self, inner: AnyPosterior, scales: Sequence[float] = SCALES, flip: bool = True) -> None:
        if isinstance(inner, TestTimeAugmentation):
            raise InputError("the model has test-time augmentation already", hint="start from its base")
        if not scales:
            raise InputError("there is no scale", hint="0.75, 1 and 1.25 are usual")
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


@dataclass(frozen=True)
class TtaConfig(Settings):
    """Which transforms the frames go through.

    Args:
        scales: factors of both sides of the frame.
        flip: also mirror the frame.
    """

    section = "tta"
    scales: list[PositiveFloat] = field(default_factory=lambda: list(SCALES))
    flip: bool = True


def augment_model(base: Path, config: FitConfig[TtaConfig], out: Path, *, device: str = "auto", say: Say = say) -> None:
    """Write a model with test-time augmentation over it; what was fitted on the model without is left out. See
    :class:`segunc.posteriors.methods.Method`."""
    model = load_model(base)
    posterior = TestTimeAugmentation(model.posterior, config.settings.scales, config.settings.flip)
    for description in (network.description for network in model.networks):
        untried = description.kind == "python" and description.divisor is None
        if untried and description.options.get("stride", 1) == 1 and {*posterior.scales} != {1.0}:
            raise InputError(
                f"the network of {base} takes frames of one size alone, or was imported before sizes were tried",
                hint="import it again, or --tta.scales [1.0]",
            )
    if out.resolve() == base.resolve():
        raise InputError(f"--out {out} is the base", hint="give another --out")
    if (out / POSTERIOR).exists() and read_json(out / POSTERIOR, "a record").get("method") == posterior.method:
        (out / POSTERIOR).unlink()  # the same command once more
    copy_model(base, out, fitted=False)
    record = {
        **{"method": posterior.method, "members": posterior.members},
        **{"scales": list(posterior.scales), "flip": posterior.flip, "base_sha256": model.sha256},
        "inner": read_record(base / POSTERIOR, "the description of a posterior") if model.bayesian else None,
        "provenance": {"date": now(), "base": base.name},
    }
    write_record(out / POSTERIOR, record)
    scales = ", ".join(f"{scale:g}" for scale in config.settings.scales)
    say(f"wrote {out}: frames at scale {scales}{', each also mirrored' if posterior.flip else ''}")


def load_augmented(folder: Path, record: Mapping[str, Any]) -> Model:
    """Return the model with test-time augmentation that a record describes."""
    model = load_recorded(folder, record["inner"])
    check_base(folder, record, model.sha256)
    posterior = TestTimeAugmentation(model.posterior, record["scales"], record["flip"])
    digest = posterior_hash(model.posterior_sha256, posterior)
    return replace(model, posterior=posterior, posterior_sha256=digest, record=record)


METHOD = Method("tta", TtaConfig, augment_model, load=load_augmented, finished=True, data=False)
