"""A posterior on the disk: tensors and record, beside the base network that they are bound to."""

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
        posterior: over the base network.
        report: of the conversion; None for a network that is not converted.
        base: the model folder of the base network.
        folder: the new model folder; it may be the same.
        seed: that the posterior was made with.
        provenance: how it came to be: settings, measurements, dates.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if folder.resolve() != base.resolve():
        for name in (WEIGHTS, DESCRIPTION):
            link_or_copy(base / name, folder / name)
    tensors = {}
    for name, tensor in posterior.tensors().items():
        tensors[name] = tensor.detach().cpu().contiguous().clone()
    check_finite(tensors, "the posterior to save")
    write_atomically(folder / TENSORS, save(tensors))
    description = read_json(folder / DESCRIPTION, "the description of a network")
    record = {
        "method": posterior.method,
        "members": posterior.members,
        **posterior.settings(),
        "seed": seed,
        "base_sha256": description["sha256"],
        "tensors_sha256": file_sha256(folder / TENSORS),
        "parameters": sum(tensor.numel() for tensor in tensors.values()),
        "conversion": None if report is None else report.to_json(),
        "provenance": provenance,
    }
    write_record(folder / POSTERIOR, record)
