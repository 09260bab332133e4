"""Deep ensembles: several networks, each deterministic or with a posterior of its own (Lakshminarayanan et al. 2017)."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

from torch import nn

from segunc.affine.branches import Branch, Mixture
from segunc.affine.posterior import Posterior
from segunc.core.errors import InputError
from segunc.core.files import inside, link_or_copy, write_record
from segunc.networks.files import DESCRIPTION, POSTERIOR
from segunc.posteriors.methods import Method
from segunc.posteriors.model import MEMBERS, Model, load_model, load_posterior, model_files, posterior_hash
from segunc.training.config import now
from segunc.training.progress import Say, claim_checkpoints, is_first_process, say

if TYPE_CHECKING:
    from segunc.training.config import TrainConfig


class Ensemble(Mixture):
    """Draw s is draw s // M of the posterior of member s mod M, with noise of the member's own.

    Networks give logits of the same classes. Base scores (deterministic-msp and so on) are those of member 0.
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
        return {"parts": [{"method": p.posterior.method, **p.posterior.settings()} for p in self.parts]}


def train_members(
    config: TrainConfig, seeds: Sequence[int], out: Path, *, device: str = "auto", say: Say = say
) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Train one network for each seed, in the place of the configuration's, into ``seed-N`` below ``out``; finished ones are skipped.
    Yields the folder and what was measured, after each training."""
    from segunc.training.base import train_network

    if len(set(seeds)) < len(seeds) or not seeds or min(seeds) < 0:
        raise InputError(
            f"--seeds {','.join(map(str, seeds))} are not different numbers of at least 0", hint="e.g. 0,1,2,3"
        )
    for number, seed in enumerate(seeds, start=1):
        own, folder = replace(config, seed=seed), out / f"seed-{seed}"
        if (folder / DESCRIPTION).exists():
            claim_checkpoints(folder, "train", own.plain())  # refuses what other settings made
            say(f"member {number} of {len(seeds)}: {folder} is finished")
            continue
        say(f"member {number} of {len(seeds)}: {folder}")
        yield folder, train_network(own, folder, device=device)[1]


def make_ensemble(bases: Sequence[Path], out: Path, *, say: Say = say) -> None:
    """Write the model folder of an ensemble, its members linked (or copied) into ``members/0`` and so on; nothing is trained.

    What was fitted on a member (its temperature, its max-logit statistics) is left out: it does not hold for the whole. ``bases`` are
    model folders, each deterministic or with a posterior of one network, or one folder that holds several in ``seed-*``.
    """
    if not is_first_process():
        return
    folders = list(bases)
    if len(folders) == 1:
        members = [path for path in folders[0].glob("seed-*") if path.is_dir()]
        folders = sorted(members, key=lambda path: (len(path.name), path.name)) or folders  # seed-10 after seed-9
    if len(folders) < 2:
        only = f" and no folder with several seed-* folders: {folders[0]}" if folders else ""
        raise InputError(
            f"an ensemble needs at least two model folders, and --base has {len(folders)}{only}",
            hint="train more: segunc train --seeds 0,1,2,3",
        )
    models = [load_model(folder) for folder in folders]
    _check_alike(models, folders)
    occupied = [path.name for path in model_files(out) if MEMBERS not in path.parts and path.name != POSTERIOR]
    if occupied:
        raise InputError(f"{out} holds a model of another kind ({occupied[0]})", hint="give another --out")
    if any(out.resolve() in (folder.resolve(), *folder.resolve().parents) for folder in folders):
        raise InputError(f"--out {out} holds the members", hint="give another --out")
    (out / POSTERIOR).unlink(missing_ok=True)
    shutil.rmtree(out / MEMBERS, ignore_errors=True)
    parts = []
    for index, (model, folder) in enumerate(zip(models, folders, strict=True)):
        name = f"{MEMBERS}/{index}"
        (out / name).mkdir(parents=True)
        for path in model_files(folder, fitted=False):
            link_or_copy(path, out / name / path.relative_to(folder))
        hashes = {"base_sha256": model.sha256, "posterior_sha256": model.posterior_sha256}
        parts.append({"folder": name, "method": model.posterior.method, **hashes})
    record: dict[str, Any] = {"method": Ensemble.method, "members": len(folders), "parts": parts}
    provenance = {"date": now(), "bases": [folder.name for folder in folders]}
    write_record(out / POSTERIOR, {**record, "base_sha256": models[0].sha256, "provenance": provenance})
    say(f"wrote {out}: an ensemble of {', '.join(map(str, folders))}; base scores are those of the first")


def _check_alike(models: Sequence[Model], bases: Sequence[Path]) -> None:
    first = models[0].network.description
    seen: dict[tuple[str, str | None], Path] = {}
    for model, base in zip(models, bases, strict=True):
        description = model.network.description
        if not isinstance(model.posterior, Posterior):
            raise InputError(
                f"{base} holds several networks ({model.posterior.method})", hint="name models of one network each"
            )
        if description.classes != first.classes:
            raise InputError(
                f"{base} has the classes {', '.join(description.classes[:4])}, ... ({len(description.classes)}), "
                f"{bases[0]} {', '.join(first.classes[:4])}, ... ({len(first.classes)})",
                hint="train all members on one data set",
            )
        if description.inference_size != first.inference_size:
            raise InputError(
                f"{base} has the inference size {description.inference_size}, {bases[0]} {first.inference_size}",
                hint="train all members with the same network.inference_size",
            )
        key = model.sha256, model.posterior_sha256
        if key in seen:
            raise InputError(f"{base} is the same model as {seen[key]}", hint="train members with different seeds")
        seen[key] = base


def load_ensemble(folder: Path, record: Mapping[str, Any]) -> Model:
    """Return the ensemble that a record describes; InputError where a member is not the one that it was made of."""
    models = []
    for part in record["parts"]:
        member = inside(folder, part["folder"])
        model = load_posterior(member)
        if (model.sha256, model.posterior_sha256) != (part["base_sha256"], part["posterior_sha256"]):
            raise InputError(f"{member} has changed since {POSTERIOR} was written", hint="make the ensemble again")
        models.append(model)
    # The hashes above are those of members that were checked when the ensemble was made.
    posterior, first = Ensemble([Branch(m.network, cast(Posterior, m.posterior)) for m in models]), models[0]
    digest = posterior_hash(json.dumps([[m.sha256, m.posterior_sha256] for m in models]), posterior)
    return Model(first.network, posterior, first.sha256, digest, first.report, record)


METHOD = Method("ensemble", None, make_ensemble, load=load_ensemble, finished=True, data=False, several=True)
