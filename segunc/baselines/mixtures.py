"""Deep ensembles, of networks that are deterministic or have a posterior of their own
(Lakshminarayanan et al. 2017); and test-time augmentation: flips and scales of the frame as draws,
over any posterior (Wang et al. 2019, 1807.07356).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, cast

from torch import nn

from segunc.affine.posterior import Posterior
from segunc.core.bounds import PositiveFloat
from segunc.core.errors import InputError
from segunc.core.files import is_whole_record, plain_record, read_json, unlinked, write_record
from segunc.core.removal import Ledger, remove_result
from segunc.core.version import now
from segunc.networks.model_folder import POSTERIOR
from segunc.posteriors import model as stored
from segunc.posteriors.fit_run import FitRun
from segunc.posteriors.fitting import fit_several
from segunc.posteriors.methods import Method
from segunc.posteriors.model import MEMBERS, GivenNetworks, Model, model_files, posterior_hash
from segunc.posteriors.settings import MethodSettings
from segunc.sampling.branches import (
    AnyPosterior,
    Branch,
    InputTransform,
    Mixture,
    branches_of,
    least_draws,
)
from segunc.training.config import DATA, HISTORY

# With their mirror images, four draws for the price of three passes (docs/results.md).
SCALES = (1.0, 0.75)


class EnsemblePosterior(Mixture):
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


@dataclass(frozen=True)
class Ensemble(MethodSettings):
    """A deep ensemble of trained models; it has no settings.

    >>> import torch
    >>> import segunc
    >>> nets = [torch.nn.Sequential(torch.nn.Conv2d(3, 2, 3, padding=1)) for _ in range(2)]
    >>> models = [segunc.wrap(net, ("road", "other")) for net in nets]
    >>> segunc.Ensemble().fit(models).posterior.members
    2
    """

    section = "ensemble"
    method = "ensemble"

    def fit(self, models: Sequence[Model]) -> Model:  # type: ignore[override]
        """Return a model of several, each deterministic or with a posterior of one network. What
        was fitted on them is left out.

        Args:
            models: at least two, of one data set; base scores are those of the first.

        Returns:
            The ensemble.

        Raises:
            InputError: too few models, one twice, or models that do not fit together.
        """
        if not isinstance(models, Iterable):
            raise InputError(
                f"an ensemble is made of several models, not of a {type(models).__name__}",
                hint="segunc.Ensemble().fit([first, second])",
            )
        return fit_several(self, list(models))


def make_ensemble(settings: Ensemble, models: Sequence[Model]) -> Model:
    """Return the ensemble of models."""
    if len(models) < 2:
        raise InputError(
            f"an ensemble needs at least two models, not {len(models)}",
            hint="train more: segunc train --seeds 0,1,2,3",
        )
    _check_alike(models)
    parts = []
    for index, model in enumerate(models):
        parts.append(
            {
                "folder": f"{MEMBERS}/{index}",
                "method": model.posterior.method,
                "base_sha256": model.sha256,
                "posterior_sha256": model.posterior_sha256,
            }
        )
    names = [_name_of(model, index) for index, model in enumerate(models)]
    record = {
        "method": EnsemblePosterior.method,
        "members": len(models),
        "parts": parts,
        "base_sha256": models[0].sha256,
        "provenance": {"date": now(), "bases": [Path(name).name for name in names]},
    }
    made = _ensemble_of(models, plain_record(record))
    made.summary = f"an ensemble of {', '.join(names)}; base scores are those of the first"
    return made


def _ensemble_of(models: Sequence[Model], record: Mapping[str, Any]) -> Model:
    """Return the ensemble that a record describes, of the models of its members."""
    posterior = EnsemblePosterior(
        [Branch(model.network, cast(Posterior, model.posterior)) for model in models]
    )
    hashes = [[model.sha256, model.posterior_sha256] for model in models]
    first = models[0]
    digest = posterior_hash(json.dumps(hashes), posterior)
    made = Model(first.network, posterior, first.sha256, digest, first.report, record)
    made.parts = tuple(models)
    return made


def _name_of(model: Model, index: int) -> str:
    """Return what a user calls a member."""
    return f"model {index}" if model.folder is None else str(model.folder)


def store_ensemble(model: Model, out: Path) -> None:
    """Write the folder of an ensemble; its members are linked (or copied) into ``members/0`` and so
    on, without what was fitted on them.
    """
    folders = [member.folder for member in model.parts if member.folder is not None]
    files = Ledger(out)
    files.check([MEMBERS])
    _check_out(out, folders)
    files.clear([MEMBERS])
    remove_result(out / POSTERIOR, is_whole_record, "the record of a posterior")
    for index, member in enumerate(model.parts):
        name = f"{MEMBERS}/{index}"
        with ExitStack() as stack:
            folder = member.folder
            if folder is None:
                folder = Path(stack.enter_context(TemporaryDirectory()))
                member.save_posterior(folder)
            for path in model_files(folder, fitted=False):
                files.link(f"{name}/{path.relative_to(folder).as_posix()}", path)
    write_record(out / POSTERIOR, model.record)


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


def _check_alike(models: Sequence[Model]) -> None:
    """Raise InputError where models cannot be members of one ensemble, or one is there twice."""
    first = models[0].network.description
    first_name = _name_of(models[0], 0)
    seen: dict[tuple[str, str | None], str] = {}
    for index, model in enumerate(models):
        name = _name_of(model, index)
        description = model.network.description
        if not isinstance(model.posterior, Posterior):
            raise InputError(
                f"{name} holds several networks ({model.posterior.method})",
                hint="name models of one network each",
            )
        if description.classes != first.classes:
            classes = ", ".join(description.classes[:4])
            first_classes = ", ".join(first.classes[:4])
            raise InputError(
                f"{name} has the classes {classes}, ..., and {first_name} {first_classes}, ...",
                hint="train all members on one data set",
            )
        if description.inference_size != first.inference_size:
            raise InputError(
                f"{name} has the inference size {description.inference_size}, "
                f"{first_name} {first.inference_size}",
                hint="train all members with the same network.inference_size",
            )
        key = (model.sha256, model.posterior_sha256)
        if key in seen:
            raise InputError(
                f"{name} is the same model as {seen[key]}",
                hint="train members with different seeds",
            )
        seen[key] = name


def load_ensemble(folder: Path, record: Mapping[str, Any], networks: GivenNetworks) -> Model:
    """Return the ensemble that a record describes; InputError where a member is not the one that it
    was made of.
    """
    models = []
    for part in record["parts"]:
        member = unlinked(folder, part["folder"])
        model = stored.load_posterior(member, networks)
        recorded = [part["base_sha256"], part["posterior_sha256"]]
        if [model.sha256, model.posterior_sha256] != recorded:
            raise InputError(
                f"{member} has changed since {POSTERIOR} was written",
                hint="make the ensemble again",
            )
        models.append(model)
    # Members were checked against each other when the ensemble was made, and the hashes above are
    # those of then.
    return _ensemble_of(models, record)


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
class TTA(MethodSettings):
    """Which transforms the frames go through.

    Args:
        scales: factors of both sides of the frame.
        flip: also mirror the frame.

    >>> import torch
    >>> import segunc
    >>> _ = torch.manual_seed(0)
    >>> first = torch.nn.Conv2d(3, 4, 3, padding=1)
    >>> net = torch.nn.Sequential(first, torch.nn.BatchNorm2d(4), torch.nn.Conv2d(4, 2, 1))
    >>> base = segunc.wrap(net, ("road", "other"))
    >>> model = segunc.TTA(scales=[1.0], flip=True).fit(base)
    >>> model.posterior.members
    2
    """

    section = "tta"
    method = "tta"
    uses_data: ClassVar[dict[str, str]] = {}
    scales: list[PositiveFloat] = field(default_factory=lambda: list(SCALES))
    flip: bool = True


def augment_model(run: FitRun[TTA]) -> Model:
    """Return a model with test-time augmentation over it, without what was fitted on the model."""
    model = run.model
    settings = run.settings
    posterior = TestTimeAugmentation(model.posterior, settings.scales, settings.flip)
    name = "the model" if model.folder is None else str(model.folder)
    if set(posterior.scales) != {1.0}:
        _check_sizes(model, name)
    record = {
        "method": posterior.method,
        "members": posterior.members,
        "scales": list(posterior.scales),
        "flip": posterior.flip,
        "base_sha256": model.sha256,
        "inner": dict(model.record) if model.bayesian else None,
        "provenance": {"date": now(), "base": Path(name).name},
    }
    made = _augmented(model, posterior, plain_record(record))
    scales = ", ".join(f"{scale:g}" for scale in settings.scales)
    mirrored = ", each also mirrored" if posterior.flip else ""
    made.summary = f"frames at scale {scales}{mirrored}"
    return made


def _augmented(model: Model, posterior: TestTimeAugmentation, record: Mapping[str, Any]) -> Model:
    """Return a model with test-time augmentation over it."""
    digest = posterior_hash(model.posterior_sha256, posterior)
    made = Model(model.network, posterior, model.sha256, digest, model.report, record)
    made.base_folder = model.base_folder
    made.parts = (model,)
    return made


def store_augmented(model: Model, out: Path) -> None:
    """Write the folder of a model with test-time augmentation."""
    (inner,) = model.parts
    if inner.folder is not None and out.resolve() == inner.folder.resolve():
        raise InputError(f"--out {out} is the base", hint="give another --out")
    if (out / POSTERIOR).exists():
        former = read_json(out / POSTERIOR, "a record")
        if former.get("method") == model.posterior.method:  # the same command once more
            remove_result(out / POSTERIOR, is_whole_record, "the record of a posterior")
        elif not inner.bayesian:
            raise InputError(
                f"{out} holds a model of another method ({former.get('method')})",
                hint="give another --out",
            )
    inner.save_posterior(out, fitted=False)
    write_record(out / POSTERIOR, model.record)


def _check_sizes(model: Model, name: str) -> None:
    """Raise InputError where a network may take frames of one size alone."""
    for network in model.networks:
        description = network.description
        untried = description.kind == "python" and description.divisor is None
        if untried and description.options.get("stride", 1) == 1:
            raise InputError(
                f"the network of {name} takes frames of one size alone, or was imported before "
                "sizes were tried",
                hint="import it again, or --tta.scales [1.0]",
            )


def load_augmented(folder: Path, record: Mapping[str, Any], networks: GivenNetworks) -> Model:
    """Return the model with test-time augmentation that a record describes."""
    model = stored.load_recorded(folder, record["inner"], networks)
    stored.check_base(folder, record, model.sha256)
    model.base_folder = folder
    posterior = TestTimeAugmentation(model.posterior, record["scales"], record["flip"])
    return _augmented(model, posterior, record)


ENSEMBLE_METHOD = Method(
    name="ensemble",
    config=Ensemble,
    fit=make_ensemble,
    load=load_ensemble,
    store=store_ensemble,
    finished=True,
    data=False,
    several=True,
)
TTA_METHOD = Method(
    name="tta",
    config=TTA,
    fit=augment_model,
    load=load_augmented,
    store=store_augmented,
    finished=True,
    data=False,
)
