"""Model folders of mixtures: an ensemble with its members beneath it, and test-time augmentation of any model."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from segunc.affine.files import FORMAT
from segunc.affine.posterior import Posterior
from segunc.core.errors import InputError
from segunc.core.files import link_or_copy, read_json, write_json
from segunc.networks.files import POSTERIOR
from segunc.posteriors.ensemble import Ensemble
from segunc.posteriors.files import MEMBERS, Model, copy_model, load_model, model_files
from segunc.posteriors.tta import TestTimeAugmentation


def member_folders(bases: Sequence[Path]) -> list[Path]:
    """The model folders that are named, or the ``seed-*`` folders in the one that is."""
    if len(bases) == 1:
        found = sorted(
            (path for path in bases[0].glob("seed-*") if path.is_dir()),
            key=lambda path: (len(path.name), path.name),  # seed-10 after seed-9
        )
        return found or [bases[0]]
    return list(bases)


def save_ensemble(bases: Sequence[Path], folder: Path, provenance: dict[str, Any]) -> None:
    """Write the model folder of an ensemble, its members linked (or copied) into ``members/0`` and so on.

    What was fitted on a member (its temperature, its max-logit statistics) is left out: it does not hold for the whole.

    Args:
        bases: model folders, each deterministic or with a posterior of one network.
        folder: the new model folder.
        provenance: how it came to be.

    Raises:
        InputError: fewer than two members, the same one twice, one that is a mixture itself, members of other classes or
            inference sizes than the first, or a folder that holds another kind of model.
    """
    if len(bases) < 2:
        raise InputError(
            f"an ensemble of {len(bases)} model" + (f" ({bases[0]})" if bases else ""),
            "at least two model folders, or one folder with several seed-* folders",
            "train more: segunc train --seeds 0,1,2,3",
        )
    models = [load_model(base) for base in bases]
    _check_alike(models, bases)
    occupied = [path.name for path in model_files(folder) if MEMBERS not in path.parts and path.name != POSTERIOR]
    if occupied:
        raise InputError(
            f"{folder} holds a model of another kind ({occupied[0]})", "a new folder", "give another --out"
        )
    if any(folder.resolve() in (base.resolve(), *base.resolve().parents) for base in bases):
        raise InputError(f"--out {folder} holds the members", "a folder of its own", "give another --out")
    record = {
        "format": FORMAT,
        "method": Ensemble.method,
        "members": len(bases),
        "parts": [
            {
                "folder": f"{MEMBERS}/{index}",
                "method": model.posterior.method,
                "base_sha256": model.sha256,
                "posterior_sha256": model.posterior_sha256,
            }
            for index, model in enumerate(models)
        ],
        "base_sha256": models[0].sha256,
        "provenance": provenance,
    }
    (folder / POSTERIOR).unlink(missing_ok=True)
    shutil.rmtree(folder / MEMBERS, ignore_errors=True)
    for part, base in zip(record["parts"], bases, strict=True):  # type: ignore[call-overload]
        target = folder / part["folder"]
        target.mkdir(parents=True)
        for path in model_files(base, fitted=False):
            link_or_copy(path, target / path.relative_to(base))
    write_json(folder / POSTERIOR, record)


def save_augmented(base: Path, folder: Path, scales: Sequence[float], flip: bool, provenance: dict[str, Any]) -> None:
    """Write a model with test-time augmentation over it; what was fitted on the model without is left out.

    Args:
        base: the model folder of any model that is not augmented already.
        folder: the new model folder.
        scales, flip: see :class:`segunc.posteriors.tta.TestTimeAugmentation`.
        provenance: how it came to be.

    Raises:
        InputError: settings out of range, an augmented model, or ``folder`` is ``base``.
    """
    model = load_model(base)
    posterior = TestTimeAugmentation(model.posterior, scales, flip)
    if folder.resolve() == base.resolve():
        raise InputError(f"--out {folder} is the base", "a folder of its own", "give another --out")
    if (folder / POSTERIOR).exists() and read_json(folder / POSTERIOR, "a record").get("method") == posterior.method:
        (folder / POSTERIOR).unlink()  # the same command once more
    copy_model(base, folder, fitted=False)
    inner = read_json(base / POSTERIOR, "the description of a posterior") if model.bayesian else None
    record = {
        "format": FORMAT,
        "method": posterior.method,
        "members": posterior.members,
        "scales": list(posterior.scales),
        "flip": posterior.flip,
        "base_sha256": model.sha256,
        "inner": inner,
        "provenance": provenance,
    }
    write_json(folder / POSTERIOR, record)


def _check_alike(models: Sequence[Model], bases: Sequence[Path]) -> None:
    first = models[0].network.description
    seen: dict[tuple[str, str | None], Path] = {}
    for model, base in zip(models, bases, strict=True):
        description = model.network.description
        if not isinstance(model.posterior, Posterior):
            raise InputError(
                f"{base} is of method {model.posterior.method}", "members of one network each", "name the members"
            )
        if description.classes != first.classes:
            raise InputError(
                f"{base} has the classes {', '.join(description.classes[:4])}, ... ({len(description.classes)}), "
                f"{bases[0]} {', '.join(first.classes[:4])}, ... ({len(first.classes)})",
                "members of the same classes in the same order",
                "train them on one data set",
            )
        if description.inference_size != first.inference_size:
            raise InputError(
                f"{base} has the inference size {description.inference_size}, {bases[0]} {first.inference_size}",
                "members of one inference size",
                "train them with the same network.inference_size",
            )
        key = model.sha256, model.posterior_sha256
        if key in seen:
            raise InputError(f"{base} is the same model as {seen[key]}", "different members", "train with other seeds")
        seen[key] = base
