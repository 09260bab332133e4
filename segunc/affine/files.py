"""A posterior over one network on disk: ``posterior.safetensors`` and ``posterior.json`` beside their base network."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from safetensors.torch import save

from segunc.affine.convert import ConversionReport
from segunc.affine.draws import AffineLayout
from segunc.affine.posterior import Stored
from segunc.core.files import link_or_copy, read_bytes, read_json, write_atomically, write_record
from segunc.networks.files import DESCRIPTION, POSTERIOR, WEIGHTS
from segunc.networks.weights import check_finite

TENSORS = "posterior.safetensors"


def save_posterior(
    posterior: Stored,
    layout: AffineLayout | None,
    report: ConversionReport | None,
    base: Path,
    folder: Path,
    *,
    seed: int,
    provenance: dict[str, Any],
) -> None:
    """Write a Bayesian model: the posterior, and the base network linked (or copied) beside it.

    Args:
        layout, report: of the converted base network; None for one that is not converted.
        base, folder: the model folder of the base network, and the new one.
        seed: that the posterior was made with.
        provenance: how it came to be: settings, measurements, dates.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if folder.resolve() != base.resolve():
        for name in (WEIGHTS, DESCRIPTION):
            link_or_copy(base / name, folder / name)
    tensors = {name: t.detach().cpu().contiguous().clone() for name, t in posterior.tensors().items()}
    check_finite(tensors, "the posterior to save")
    write_atomically(folder / TENSORS, save(tensors))
    record = {
        **{"method": posterior.method, "members": posterior.members, **posterior.settings()},
        "seed": seed,
        "base_sha256": read_json(folder / DESCRIPTION, "the description of a network")["sha256"],
        "tensors_sha256": file_sha256(folder / TENSORS),
        "parameters": sum(t.numel() for t in tensors.values()),
        "conversion": None if report is None else report.to_json(),
        "provenance": provenance,
    }
    write_record(folder / POSTERIOR, record)


def file_sha256(path: Path) -> str:
    return hashlib.sha256(read_bytes(path)).hexdigest()
