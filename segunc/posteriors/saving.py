"""A posterior on the disk: tensors and record, beside the base network that they are bound to."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from safetensors.torch import save

from segunc.affine.convert import ConversionReport
from segunc.affine.posterior import Stored
from segunc.core.files import write_atomically, write_record
from segunc.networks.model_folder import POSTERIOR
from segunc.networks.weights import check_finite

TENSORS = "posterior.safetensors"


def posterior_bytes(posterior: Stored) -> bytes:
    """Return the content of the file of a posterior's tensors.

    Raises:
        InputError: a number is NaN or infinite.
    """
    tensors = {}
    for name, tensor in posterior.tensors().items():
        tensors[name] = tensor.detach().cpu().contiguous().clone()
    check_finite(tensors, "the posterior to save")
    return save(tensors)


def posterior_record(
    posterior: Stored,
    report: ConversionReport | None,
    *,
    base_sha256: str,
    seed: int,
    provenance: dict[str, Any],
) -> dict[str, Any]:
    """Return the record of a posterior.

    Args:
        posterior: over the base network.
        report: of the conversion; None for a network that is not converted.
        base_sha256: hash of the base network.
        seed: that the posterior was made with.
        provenance: how it came to be: settings, measurements, dates.
    """
    return {
        "method": posterior.method,
        "members": posterior.members,
        **posterior.settings(),
        "seed": seed,
        "base_sha256": base_sha256,
        "tensors_sha256": hashlib.sha256(posterior_bytes(posterior)).hexdigest(),
        "parameters": sum(tensor.numel() for tensor in posterior.tensors().values()),
        "conversion": None if report is None else report.to_json(),
        "provenance": provenance,
    }


def save_posterior(posterior: Stored, record: dict[str, Any], folder: Path) -> None:
    """Write a posterior and its record beside the base network in a model folder."""
    write_atomically(folder / TENSORS, posterior_bytes(posterior))
    write_record(folder / POSTERIOR, record)
