"""Bayesian models on disk: ``posterior.safetensors`` and ``posterior.json`` beside their base network."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save

from segunc.bayes.abnn import ABNN
from segunc.bayes.attachments import CALIBRATION, MAX_LOGIT_STATISTICS, Calibration, MaxLogitStatistics
from segunc.bayes.chain import HMC, SGHMC, SGLD
from segunc.bayes.convert import ConversionReport, convert
from segunc.bayes.draws import AffineLayout
from segunc.bayes.laplace import Laplace
from segunc.bayes.mc_dropout import ChannelDropout
from segunc.bayes.posterior import Deterministic, Posterior
from segunc.bayes.swag import Swag
from segunc.bayes.variational import MeanField
from segunc.errors import InputError
from segunc.files import read_json, write_atomically, write_json
from segunc.networks.files import (
    DESCRIPTION,
    POSTERIOR,
    WEIGHTS,
    check_finite,
    load_network,
    state_sha256,
)
from segunc.networks.network import SegmentationNetwork

FORMAT = 1
TENSORS = "posterior.safetensors"
STORED: tuple[type[Posterior], ...] = (ABNN, MeanField, Swag, Laplace, ChannelDropout, SGLD, SGHMC, HMC)
METHODS = {posterior.method: posterior for posterior in STORED}
"""The posteriors that model folders hold, by name; the deterministic one is a folder without any."""


@dataclass
class Model:
    """A network with its posterior, ready for the sampler.

    Attributes:
        network: in eval mode; converted when the posterior is not deterministic.
        posterior: how draws are made.
        sha256: of the base network's weights.
        posterior_sha256: of the posterior's tensors and settings, or None for a deterministic network.
        report: what the conversion did, None for a deterministic network.
        record: the content of ``posterior.json``, empty for a deterministic network.
        calibration: the temperature that was fitted on this model, or None.
        max_logit_statistics: of the base network on its training set, or None.
    """

    network: SegmentationNetwork
    posterior: Posterior
    sha256: str
    posterior_sha256: str | None
    report: ConversionReport | None
    record: dict[str, Any]
    calibration: Calibration | None = None
    max_logit_statistics: MaxLogitStatistics | None = None

    @property
    def bayesian(self) -> bool:
        return not isinstance(self.posterior, Deterministic)

    @property
    def temperature(self) -> float:
        """T, by which logits are divided before the softmax; 1 for a model that was not calibrated."""
        return 1.0 if self.calibration is None else self.calibration.temperature


def save_posterior(
    posterior: Posterior,
    layout: AffineLayout,
    report: ConversionReport,
    base: Path,
    folder: Path,
    *,
    seed: int,
    provenance: dict[str, Any],
) -> None:
    """Write a Bayesian model: the posterior, and the base network linked (or copied) beside it.

    Args:
        posterior: what to store.
        layout, report: of the converted base network.
        base: the model folder of the base network.
        folder: the new model folder.
        seed: that the posterior was made with.
        provenance: how it came to be: settings, measurements, dates.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if folder.resolve() != base.resolve():
        for name in (WEIGHTS, DESCRIPTION):
            _link_or_copy(base / name, folder / name)
    tensors = {name: t.detach().cpu().contiguous().clone() for name, t in posterior.tensors().items()}
    check_finite(tensors, "the posterior to save")
    write_atomically(folder / TENSORS, save(tensors))
    base_hash = read_json(folder / DESCRIPTION, "the description of a network")["sha256"]
    write_json(
        folder / POSTERIOR,
        {
            "format": FORMAT,
            "method": posterior.method,
            "members": posterior.members,
            **posterior.settings(),
            "seed": seed,
            "base_sha256": base_hash,
            "tensors_sha256": _file_hash(folder / TENSORS),
            "parameters": sum(t.numel() for t in tensors.values()),
            "conversion": report.to_json(),
            "provenance": provenance,
        },
    )


def copy_model(source: Path, folder: Path) -> None:
    """Link (or copy) all files of a model into another folder; what is fitted on the model may then be added there.

    Raises:
        InputError: the model is deterministic and the folder holds a Bayesian one.
    """
    if folder.resolve() == source.resolve():
        return
    if (folder / POSTERIOR).exists() and not (source / POSTERIOR).exists():
        raise InputError(
            f"{folder} holds a Bayesian model, {source} a deterministic one",
            "a folder of its own",
            "give another --out",
        )
    folder.mkdir(parents=True, exist_ok=True)
    for name in (WEIGHTS, DESCRIPTION, TENSORS, POSTERIOR, CALIBRATION, MAX_LOGIT_STATISTICS):
        if (source / name).exists():
            _link_or_copy(source / name, folder / name)


def load_model(folder: Path | str) -> Model:
    """A model folder of either kind: deterministic, or Bayesian with its network converted.

    Raises:
        InputError: a missing or damaged file, a posterior that belongs to another base network, or a calibration or
            statistics that belong to another model.
    """
    folder = Path(folder)
    model = _load_posterior(folder)
    classes = model.network.description.num_classes
    model.calibration = Calibration.read(folder, model.sha256, model.posterior_sha256)
    model.max_logit_statistics = MaxLogitStatistics.read(folder, model.sha256, classes)
    return model


def _load_posterior(folder: Path) -> Model:
    """The network and its posterior, without what was fitted on them."""
    bayesian = (folder / POSTERIOR).exists()
    if not bayesian and (folder / TENSORS).exists():
        raise InputError(
            f"{folder} holds {TENSORS} without {POSTERIOR}", "both files of a Bayesian model", "restore the file"
        )
    network = load_network(folder, ignore_posterior=True)
    digest = state_sha256(network.body)
    if not bayesian:
        return Model(network, Deterministic(), digest, None, None, {})
    record = read_json(folder / POSTERIOR, "the description of a posterior")
    if record.get("format") != FORMAT:
        raise InputError(
            f"{folder / POSTERIOR} is not of format {FORMAT}",
            "a posterior.json that this version wrote",
            "make it again",
        )
    if record.get("base_sha256") != digest:
        raise InputError(
            f"the posterior in {folder} belongs to a base network with the hash {str(record.get('base_sha256'))[:12]}, "
            f"the network beside it has {digest[:12]}",
            "a posterior beside its own base",
            "fine-tune this base, or restore the other",
        )
    try:
        tensors = load_file(folder / TENSORS)
    except (OSError, SafetensorError) as error:
        raise InputError(
            f"{folder / TENSORS} cannot be read ({error})", "the tensors of the posterior", "restore the file"
        ) from error
    actual = _file_hash(folder / TENSORS)
    if actual != record.get("tensors_sha256"):
        raise InputError(
            f"{folder / TENSORS} has changed since {POSTERIOR} was written", "both files of one run", "restore them"
        )
    check_finite(tensors, str(folder / TENSORS))
    report = convert(network.body)
    layout = AffineLayout(network)
    posterior = _restore(record, tensors, folder)
    recorded = [(s["name"], s["channels"]) for s in record["conversion"]["sites"]]
    if recorded != [(s.name, s.channels) for s in report.sites]:
        raise InputError(
            f"{folder}: the posterior has {len(recorded)} norm sites, this conversion finds {len(report.sites)}",
            "the same sites",
            "a library has changed the network; use the versions in posterior.json or fine-tune again",
        )
    assert layout.total == report.channels
    return Model(network, posterior, digest, _posterior_hash(actual, posterior), report, record)


def _restore(record: dict[str, Any], tensors: dict[str, Any], folder: Path) -> Posterior:
    method = record.get("method")
    if method not in METHODS:
        raise InputError(f"posterior method '{method}' in {folder}", ", ".join(METHODS), "a newer version may know it")
    try:
        return METHODS[method].from_tensors(tensors, record)
    except KeyError as error:
        raise InputError(f"{folder / POSTERIOR} lacks {error}", "the record of a posterior", "make it again") from error


def _posterior_hash(tensors_sha256: str, posterior: Posterior) -> str:
    """Over all that decides the draws: the same members with another alpha are another posterior."""
    settings = json.dumps([tensors_sha256, posterior.method, posterior.settings()], sort_keys=True)
    return hashlib.sha256(settings.encode()).hexdigest()


def _file_hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _link_or_copy(source: Path, target: Path) -> None:
    target.unlink(missing_ok=True)
    try:
        os.link(source.resolve(), target)
    except OSError:
        shutil.copy2(source, target)
