"""Deep ensembles, of networks that are deterministic or have a posterior of their own
(Lakshminarayanan et al. 2017); and test-time augmentation: flips and scales of the frame as draws,
over any posterior (Wang et al. 2019, 1807.07356).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

from torch import nn

from segunc.affine.posterior import Posterior
from segunc.core.bounds import PositiveFloat, Settings
from segunc.core.errors import InputError
from segunc.core.files import is_whole_record, read_json, read_record, unlinked, write_record
from segunc.core.removal import Ledger, remove_result
from segunc.networks.model_folder import POSTERIOR
from segunc.posteriors import model as stored
from segunc.posteriors.methods import Method
from segunc.posteriors.model import (
    MEMBERS,
    Model,
    copy_model,
    load_model,
    model_files,
    posterior_hash,
)
from segunc.sampling.branches import (
    AnyPosterior,
    Branch,
    InputTransform,
    Mixture,
    branches_of,
    least_draws,
)
from segunc.training.config import DATA, HISTORY, now
from segunc.training.lightning_runs import Say, is_first_process, say

if TYPE_CHECKING:
    from segunc.training.config import FitConfig

# With their mirror images, four draws for the price of three passes (docs/results.md).
SCALES = (1.0, 0.75)


class Ensemble(Mixture):
    """Draw s is draw s // M of the posterior of member s mod M, with noise of the member's own.
    Base scores are those of member 0.
    """

    method: ClassVar[str] = "ensemble"

    def __init__(self, parts: Sequence[Branch]) -> None:
        self.parts = tuple(parts)

    @property
    def members(self) -> int:
        return len(self.parts)

    @property
    def least_draws(self) -> int:
        return self.members * max(part.posterior.members for part in self.parts)

    def branches(self, network: nn.Module) -> list[Branch]:
        return [replace(part, networks=self.members, index=i) for i, part in enumerate(self.parts)]

    def settings(self) -> dict[str, Any]:
        posteriors = [part.posterior for part in self.parts]
        return {"parts": [{"method": p.method, **p.settings()} for p in posteriors]}


def make_ensemble(bases: Sequence[Path], out: Path, *, say: Say = say) -> None:
    """Write the model folder of an ensemble; its members are linked (or copied) into ``members/0``
    and so on, without what was fitted on them.

    Args:
        bases: model folders, each deterministic or with a posterior of one network, or one folder
            that holds several in ``seed-*``.
    """
    if not is_first_process():
        return
    folders = _member_folders(bases)
    if len(folders) < 2:
        raise InputError(
            "an ensemble needs at least two model folders, or one with several seed-*, and --base "
            f"has {len(folders)}",
            hint="train more: segunc train --seeds 0,1,2,3",
        )
    files = Ledger(out)
    files.check([MEMBERS])
    models = [load_model(folder) for folder in folders]
    _check_alike(models, folders)
    _check_out(out, folders)
    files.clear([MEMBERS])
    remove_result(out / POSTERIOR, is_whole_record, "the record of a posterior")
    parts = []
    for index, (model, folder) in enumerate(zip(models, folders, strict=True)):
        name = f"{MEMBERS}/{index}"
        for path in model_files(folder, fitted=False):
            files.link(f"{name}/{path.relative_to(folder).as_posix()}", path)
        parts.append(
            {
                "folder": name,
                "method": model.posterior.method,
                "base_sha256": model.sha256,
                "posterior_sha256": model.posterior_sha256,
            }
        )
    record = {
        "method": Ensemble.method,
        "members": len(folders),
        "parts": parts,
        "base_sha256": models[0].sha256,
        "provenance": {"date": now(), "bases": [folder.name for folder in folders]},
    }
    write_record(out / POSTERIOR, record)
    names = ", ".join(str(folder) for folder in folders)
    say(f"wrote {out}: an ensemble of {names}; base scores are those of the first")


def _member_folders(bases: Sequence[Path]) -> list[Path]:
    """Return the model folders of the members; of one base, those in its ``seed-*`` if it has any,
    seed-10 after seed-9.
    """
    if len(bases) != 1:
        return list(bases)
    members = [path for path in bases[0].glob("seed-*") if path.is_dir()]
    members.sort(key=lambda path: (len(path.name), path.name))
    return members or list(bases)


def _check_out(out: Path, folders: Sequence[Path]) -> None:
    """Raise InputError where a folder holds a model of another kind, or the members themselves."""
    ours = (POSTERIOR, DATA, HISTORY)
    for path in model_files(out):
        if MEMBERS not in path.parts and path.name not in ours:
            raise InputError(
                f"{out} holds a model of another kind ({path.name})", hint="give another --out"
            )
    for folder in folders:
        if out.resolve() in (folder.resolve(), *folder.resolve().parents):
            raise InputError(f"--out {out} holds the members", hint="give another --out")


def _check_alike(models: Sequence[Model], bases: Sequence[Path]) -> None:
    """Raise InputError where models cannot be members of one ensemble, or one is there twice."""
    first = models[0].network.description
    seen: dict[tuple[str, str | None], Path] = {}
    for model, base in zip(models, bases, strict=True):
        description = model.network.description
        if not isinstance(model.posterior, Posterior):
            raise InputError(
                f"{base} holds several networks ({model.posterior.method})",
                hint="name models of one network each",
            )
        if description.classes != first.classes:
            classes = ", ".join(description.classes[:4])
            first_classes = ", ".join(first.classes[:4])
            raise InputError(
                f"{base} has the classes {classes}, ..., and {bases[0]} {first_classes}, ...",
                hint="train all members on one data set",
            )
        if description.inference_size != first.inference_size:
            raise InputError(
                f"{base} has the inference size {description.inference_size}, "
                f"{bases[0]} {first.inference_size}",
                hint="train all members with the same network.inference_size",
            )
        key = (model.sha256, model.posterior_sha256)
        if key in seen:
            raise InputError(
                f"{base} is the same model as {seen[key]}",
                hint="train members with different seeds",
            )
        seen[key] = base


def load_ensemble(folder: Path, record: Mapping[str, Any]) -> Model:
    """Return the ensemble that a record describes; InputError where a member is not the one that it
    was made of.
    """
    models = []
    hashes = []
    for part in record["parts"]:
        member = unlinked(folder, part["folder"])
        model = stored.load_posterior(member)
        recorded = [part["base_sha256"], part["posterior_sha256"]]
        if [model.sha256, model.posterior_sha256] != recorded:
            raise InputError(
                f"{member} has changed since {POSTERIOR} was written",
                hint="make the ensemble again",
            )
        models.append(model)
        hashes.append(recorded)
    # Members were checked against each other when the ensemble was made, and the hashes above are
    # those of then.
    posterior = Ensemble([Branch(m.network, cast(Posterior, m.posterior)) for m in models])
    first = models[0]
    digest = posterior_hash(json.dumps(hashes), posterior)
    return Model(first.network, posterior, first.sha256, digest, first.report, record)


class TestTimeAugmentation(Mixture):
    """Draw s is draw s of a posterior, of the frame under transform s mod K: every scale as it is,
    and then, with ``flip``, mirrored. Logits are brought back to the frame before the softmax. Over
    an ensemble of M networks M K draws are all pairs. Members of a posterior over one network do
    not: where M and K have a common divisor, such a member meets only some of the transforms.
    """

    __test__ = False  # pytest takes the name for that of a test
    method: ClassVar[str] = "tta"

    def __init__(
        self, inner: AnyPosterior, scales: Sequence[float] = SCALES, flip: bool = True
    ) -> None:
        if isinstance(inner, TestTimeAugmentation):
            raise InputError(
                "the model has test-time augmentation already", hint="start from its base"
            )
        if not scales:
            raise InputError("there is no scale", hint="0.75, 1 and 1.25 are usual")
        self.inner = inner
        self.scales = tuple(float(scale) for scale in scales)
        self.flip = flip
        different = tuple(dict.fromkeys(self.scales))
        transforms = [InputTransform(scale, False) for scale in different]
        if flip:
            transforms += [InputTransform(scale, True) for scale in different]
        self.transforms = tuple(transforms)

    @property
    def members(self) -> int:
        return len(self.transforms)

    @property
    def least_draws(self) -> int:
        return max(self.members, least_draws(self.inner))

    def branches(self, network: nn.Module) -> list[Branch]:
        inner = branches_of(network, self.inner)
        networks = len(inner)
        period = math.lcm(networks, self.members)
        branches = []
        for draw in range(networks * self.members):
            # One transform further after each period, or a common divisor of both numbers would
            # keep some pairs apart for ever.
            transform = self.transforms[(draw + draw // period) % self.members]
            branches.append(replace(inner[draw % networks], transform=transform))
        return branches

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


def augment_model(
    base: Path, config: FitConfig[TtaConfig], out: Path, *, device: str = "auto", say: Say = say
) -> None:
    """Write a model with test-time augmentation over it, without what was fitted on the model."""
    model = load_model(base)
    posterior = TestTimeAugmentation(model.posterior, config.settings.scales, config.settings.flip)
    if set(posterior.scales) != {1.0}:
        _check_sizes(model, base)
    if out.resolve() == base.resolve():
        raise InputError(f"--out {out} is the base", hint="give another --out")
    if (out / POSTERIOR).exists():
        former = read_json(out / POSTERIOR, "a record")
        if former.get("method") == posterior.method:  # the same command once more
            remove_result(out / POSTERIOR, is_whole_record, "the record of a posterior")
    copy_model(base, out, fitted=False)
    inner = None
    if model.bayesian:
        inner = read_record(base / POSTERIOR, "the description of a posterior")
    record = {
        "method": posterior.method,
        "members": posterior.members,
        "scales": list(posterior.scales),
        "flip": posterior.flip,
        "base_sha256": model.sha256,
        "inner": inner,
        "provenance": {"date": now(), "base": base.name},
    }
    write_record(out / POSTERIOR, record)
    scales = ", ".join(f"{scale:g}" for scale in config.settings.scales)
    mirrored = ", each also mirrored" if posterior.flip else ""
    say(f"wrote {out}: frames at scale {scales}{mirrored}")


def _check_sizes(model: Model, base: Path) -> None:
    """Raise InputError where a network may take frames of one size alone."""
    for network in model.networks:
        description = network.description
        untried = description.kind == "python" and description.divisor is None
        if untried and description.options.get("stride", 1) == 1:
            raise InputError(
                f"the network of {base} takes frames of one size alone, or was imported before "
                "sizes were tried",
                hint="import it again, or --tta.scales [1.0]",
            )


def load_augmented(folder: Path, record: Mapping[str, Any]) -> Model:
    """Return the model with test-time augmentation that a record describes."""
    model = stored.load_recorded(folder, record["inner"])
    stored.check_base(folder, record, model.sha256)
    posterior = TestTimeAugmentation(model.posterior, record["scales"], record["flip"])
    digest = posterior_hash(model.posterior_sha256, posterior)
    return replace(model, posterior=posterior, posterior_sha256=digest, record=record)


ENSEMBLE = Method(
    "ensemble", None, make_ensemble, load=load_ensemble, finished=True, data=False, several=True
)
TTA = Method("tta", TtaConfig, augment_model, load=load_augmented, finished=True, data=False)
