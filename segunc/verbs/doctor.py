"""``segunc doctor``: is the uncertainty of a model alive, and its conversion sound?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from segunc.affine.convert import is_converted, revert
from segunc.affine.draws import AffineLayout
from segunc.core.device import describe_device, flushed_denormals, full_float32, threads
from segunc.core.errors import InputError
from segunc.core.results import VerbResult
from segunc.core.terminal import counted
from segunc.data.channels import COLOUR, load_frame
from segunc.exporting.check import check_frames
from segunc.networks.copies import copy_network
from segunc.networks.network import inference_size
from segunc.options import DoctorOptions, takes
from segunc.posteriors.abnn import ABNNPosterior
from segunc.posteriors.model import Attachment, Model
from segunc.sampling.sampler import Sampler, SamplerReport, network_input
from segunc.toyroads import render_scene
from segunc.verbs.execution import make_sampler
from segunc.verbs.model_cache import load

# Largest difference of logits at alpha = 0, relative to the largest, that is float32 rounding.
IDENTITY_BOUND = 1e-5
TOY_SIZE = (256, 512)  # height and width of a frame that nobody gives
# Mean (share of ln C) below which draws are one network: float32 sums alone give about 1e-8.
DEAD_EPISTEMIC = 1e-6
# Standard error of a score, as a share of its mean, from which more draws are worth their time.
MAX_ERROR_SHARE = 0.5
Status = Literal["ok", "warn", "fail"]  # warn: worth a look; fail: the maps cannot be trusted


@dataclass(frozen=True)
class Finding:
    """The outcome of one check.

    Attributes:
        check: what was looked at.
        status: ok, warn or fail.
        text: what was measured, with its bound.
    """

    check: str
    status: Status
    text: str


def diagnose(model: Model, sampler: Sampler, frame: Tensor) -> Iterator[Finding]:
    """Run all checks of a Bayesian model on one clean frame, as the network sees it: ``[1, K, H,
    W]``.
    """
    if model.report is not None:
        yield Finding("conversion", "warn" if model.report.left else "ok", str(model.report))
    yield from _check_conversions(model, frame)
    scores = sampler(frame).scores
    yield from _check_report(sampler.report)
    yield _check_epistemic(scores["epistemic"])
    if sampler.report.self_check is not None:  # else these are all draws: they have no noise
        yield _check_convergence(sampler, frame, scores)


def check_fitted_files(model: Model) -> Iterator[Finding]:
    """Compare the files of what was fitted on a model with the hashes in its records. The records
    themselves, the network and the posterior are checked where the model is loaded.
    """
    check = "files of what was fitted"
    checked: list[str] = []
    unchecked: list[str] = []
    assert model.folder is not None  # from which it was loaded
    for attachment in model.attachments.values():
        kind = type(attachment)
        checked.append(kind.file)
        if kind.beside and kind.check_tensors is Attachment.check_tensors:
            unchecked += kind.beside
            continue
        try:
            attachment.check_tensors(model.folder)
        except InputError as error:
            yield Finding(check, "fail", error.command_line)
            return
        checked += kind.beside
    if checked:
        yield Finding(check, "ok", f"{', '.join(checked)} are as they were written")
    if unchecked:
        text = f"{', '.join(unchecked)}: not checked, because their package has no check"
        yield Finding(check, "warn", text)


def _check_conversions(model: Model, frame: Tensor) -> Iterator[Finding]:
    """Compare each converted network, without noise, with the network that it was before."""
    for index, network in enumerate(model.networks):
        if not is_converted(network):
            continue
        difference = conversion_difference(network, frame)
        check = "alpha = 0 is the unconverted network"
        if len(model.networks) > 1:
            check = f"member {index}: {check}"
        text = (
            f"largest difference {difference:.1e} of the largest logit (bound {IDENTITY_BOUND:.0e})"
        )
        yield Finding(check, "ok" if difference <= IDENTITY_BOUND else "fail", text)


def _check_report(report: SamplerReport) -> Iterator[Finding]:
    """Tell what the sampler found out with its first frame."""
    if report.self_check is not None:
        check = "two draws as a batch against one by one"
        text = f"largest difference {report.self_check:.1e} of the largest logit"
        if report.batched:
            yield Finding(check, "ok", text)
        else:
            yield Finding(check, "warn", f"{text}; draws run one at a time")
    if report.unreached:
        text = (
            f"{len(report.unreached)} are not, e.g. {report.unreached[0]}: their noise does nothing"
        )
        yield Finding("normalisation layers that are called", "warn", text)


def _check_epistemic(epistemic: Tensor) -> Finding:
    """Tell whether draws differ at all, by their epistemic uncertainty ``[1, H, W]``."""
    mean = float(epistemic.mean())
    largest = float(epistemic.max())
    text = (
        f"mean {mean:.2e}, maximum {largest:.2e} (share of ln C; dead below {DEAD_EPISTEMIC:.0e})"
    )
    return Finding("epistemic above zero", "ok" if mean > DEAD_EPISTEMIC else "fail", text)


def _check_convergence(sampler: Sampler, frame: Tensor, scores: Mapping[str, Tensor]) -> Finding:
    """Compare the scores of a frame with those of other draws.

    The difference of two estimates has sqrt(2) times the standard error of one.
    """
    sampler.noise = replace(sampler.noise, seed=sampler.seed + 1)
    other_scores = sampler(frame).scores
    errors: list[str] = []
    largest_share = 0.0
    for name in ("entropy", "epistemic"):
        difference = other_scores[name] - scores[name]
        standard_error = float(difference.square().mean().sqrt()) / 2**0.5
        share = standard_error / max(float(scores[name].mean()), 1e-12)
        largest_share = max(largest_share, share)
        errors.append(f"{name} {standard_error:.4f} ({share:.0%} of its mean)")
    text = (
        f"standard error a pixel at S = {sampler.draws}: {', '.join(errors)}; "
        "it falls as 1 / sqrt(S)"
    )
    status: Status = "ok" if largest_share < MAX_ERROR_SHARE else "warn"
    return Finding("convergence with the draws", status, text)


@torch.inference_mode()
@full_float32()
def conversion_difference(network: nn.Module, images: Tensor) -> float:
    """Return the largest difference between a draw at alpha = 0 of a converted network and the
    unconverted network, on images ``[N, K, H, W]``, relative to the largest logit.
    """
    layout = AffineLayout(network)
    plain = copy_network(network)
    revert(plain)
    # The same batch for both: convolutions may sum in another order for another batch size.
    twice = images.repeat(2, 1, 1, 1)
    expected = plain(twice)
    with layout.active(ABNNPosterior.around(layout, 0.0).affine(layout, [0], 0)):
        drawn = network(twice)
    largest_difference = (drawn - expected).abs().max()
    return float(largest_difference / expected.abs().max().clamp_min(1e-12))


@dataclass(frozen=True, repr=False)
class DoctorResult(VerbResult):
    """What the checks found.

    Attributes:
        about: the model and its draws, in lines.
        findings: the outcome of each check, in their order.
        failure: why the maps cannot be trusted, in one line; empty where they can.
        notes: what the sampler says, e.g. that it could not be compiled.
    """

    about: tuple[str, ...]
    findings: tuple[Finding, ...] = ()
    failure: str = ""
    notes: tuple[str, ...] = ()


@takes(DoctorOptions)
def doctor(options: DoctorOptions) -> DoctorResult:
    """Check that the uncertainty of a model is alive and its conversion sound.

    Raises:
        InputError: the model or the image cannot be used.

    >>> result = doctor(DoctorOptions(model=abnn, draws=4, size=(64, 128), device="cpu"))
    >>> result.failure, result.findings[0].check, result.findings[0].status
    ('', 'conversion', 'ok')
    """
    model = load(options.model, trust=options.trust)
    with flushed_denormals(), threads(options.threads):
        sampler = make_sampler(model, options)
        about = _about_model(options.model, model)
        if not model.bayesian:
            failure = (
                "the model is deterministic: one draw, so its epistemic uncertainty is zero "
                "everywhere; fine-tune it first"
            )
            return DoctorResult(about, tuple(check_fitted_files(model)), failure)
        about = (*about, *_about_draws(model, sampler))
        frame = _network_frame(options, model).to(sampler.device)
        findings = (*diagnose(model, sampler, frame), *check_fitted_files(model))
    failed = [finding.check for finding in findings if finding.status == "fail"]
    failure = f"not sound: {'; '.join(failed)}" if failed else ""
    return DoctorResult(about, findings, failure, notes=tuple(sampler.report.messages))


def _about_model(folder: Path | str, model: Model) -> tuple[str, ...]:
    """Return which model is checked, in lines."""
    description = model.network.description
    network = f"{description.architecture} {description.encoder}, {description.num_classes} classes"
    method = model.posterior.method
    return (
        f"{folder}: {network}, {method}, base network sha256 {model.sha256}",
        f"calibration: {model.attachments.get('calibration', 'none')}",
    )


def _about_draws(model: Model, sampler: Sampler) -> tuple[str, ...]:
    """Return which draws are checked, in lines."""
    parts = [
        f"posterior sha256 {model.posterior_sha256}",
        counted(model.posterior.members, "member"),
    ]
    parts += [f"{name} {value}" for name, value in model.posterior.settings().items()]
    return (
        ", ".join(parts),
        f"{counted(sampler.draws, 'draw')}, {sampler.precision}, {describe_device(sampler.device)}",
    )


def _network_frame(options: DoctorOptions, model: Model) -> Tensor:
    """Return the frame of the checks ``[1, K, H, W]``, at the size at which the network sees it: a
    given image, else a toy scene. A network of other than three channels sees random texture.
    """
    channels = model.network.description.channels
    if options.image:
        image = load_frame(Path(options.image), channels)
    elif channels != COLOUR:
        size = inference_size(model.network.description, TOY_SIZE, options.size)
        return check_frames(size, channels)[0]
    else:
        image = render_scene(np.random.SeedSequence(0), TOY_SIZE, anomaly=False).image
    height, width = image.shape[:2]
    size = inference_size(model.network.description, (height, width), options.size)
    return network_input([image], size)
