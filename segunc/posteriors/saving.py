"""A posterior on the disk: its tensors and its record, beside the base network that it is bound to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from safetensors.torch import save

from segunc.affine.convert import ConversionReport
from segunc.affine.posterior import Stored
from segunc.core.files import file_sha256, link_or_copy, read_json, write_atomically, write_record
from segunc.networks.model_folder import DESCRIPTION, POSTERIOR, WEIGHTS
from segunc.networks.weights import check_finite

TENSORS = "posterior.safetensors"


def save_posterior(
    posterior: Stored,
    report: ConversionReport | None,
    base: Path,
    folder: Path,
    *,
    seed: int,
    provenance: dict[str, Any],
) -> None:
    """Write a Bayesian model: the posterior, and the base network linked (or copied) beside it.

    Args:
        report: of the conversion; None for a network that is not converted.
        base, folder: the model folder of the base network, and the new one.
        seed: that the posterior was made with.
        provenance: how it came to be: settings, measurements, dates.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if folder.resolve() != base.resolve():
        for name in (WEIGHTS, DESCRIPTION):
            link_or_copy(base / name, folder / name)
    tensors = {
        name: t.detach().cpu().contiguous().clone() for name, t in posterior.tensors().items()
    }
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
