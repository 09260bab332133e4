"""``segunc doctor``: is the uncertainty of a model alive, and its conversion sound?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from segunc.affine.convert import is_converted, revert
from segunc.affine.draws import AffineLayout
from segunc.core.device import describe_device, flushed_denormals, full_float32, threads
from segunc.data.images import load_image
from segunc.networks.copies import copy_network
from segunc.networks.network import inference_size
from segunc.options import DoctorOptions, takes
from segunc.posteriors.abnn import ABNNPosterior
from segunc.posteriors.model import Model, load_model
from segunc.sampling.sampler import Sampler, network_input
from segunc.toyroads import render_scene
from segunc.verbs.execution import make_sampler

# Largest difference of logits at alpha = 0, relative to the largest, that is float32 rounding.
IDENTITY_BOUND = 1e-5
# Mean (share of ln C) below which draws are one network: float32 sums alone give about 1e-8.
DEAD_EPISTEMIC = 1e-6


class Finding(NamedTuple):
    """The outcome of one check."""

    check: str  # what was looked at
    status: Literal["ok", "warn", "fail"]  # warn: worth a look; fail: the maps cannot be trusted
    text: str  # what was measured, with its bound


def diagnose(model: Model, sampler: Sampler, frame: Tensor) -> Iterator[Finding]:
    """Run all checks of a Bayesian model on one clean frame, as the network sees it: ``[1, 3, H,
    W]``.
    """
    if model.report is not None:
        yield Finding("conversion", "warn" if model.report.left else "ok", str(model.report))
    for index, network in enumerate(model.networks):
        if is_converted(network):
            difference = conversion_difference(network, frame)
            text = f"largest difference {difference:.1e} of the largest logit (bound {IDENTITY_BOUND:.0e})"
            check = "alpha = 0 is the unconverted network"
            check = f"member {index}: {check}" if len(model.networks) > 1 else check
            yield Finding(check, "ok" if difference <= IDENTITY_BOUND else "fail", text)
    scores, report = sampler(frame).scores, sampler.report
    if report.self_check is not None:
        text = f"largest difference {report.self_check:.1e} of the largest logit"
        text += "" if report.batched else "; draws run one at a time"
        yield Finding(
            "two draws as a batch against one by one", "ok" if report.batched else "warn", text
        )
    if report.unreached:
        text = (
            f"{len(report.unreached)} are not, e.g. {report.unreached[0]}: their noise does nothing"
        )
        yield Finding("normalisation layers that are called", "warn", text)
    mean, most = float(scores["epistemic"].mean()), float(scores["epistemic"].max())
    text = f"mean {mean:.2e}, maximum {most:.2e} (share of ln C; dead below {DEAD_EPISTEMIC:.0e})"
    yield Finding("epistemic above zero", "ok" if mean > DEAD_EPISTEMIC else "fail", text)
    if report.self_check is None:  # draws without noise are all there are
        return
    sampler.noise = replace(sampler.noise, seed=sampler.seed + 1)
    other = sampler(frame).scores
    parts, worst = [], 0.0
    for name in ("entropy", "epistemic"):
        rms = float((other[name] - scores[name]).square().mean().sqrt()) / 2**0.5
        relative = rms / max(float(scores[name].mean()), 1e-12)
        worst = max(worst, relative)
        parts.append(f"{name} {rms:.4f} ({relative:.0%} of its mean)")
    text = f"standard error a pixel at S = {sampler.draws}: {', '.join(parts)}; it falls as 1 / sqrt(S)"
    yield Finding("convergence with the draws", "ok" if worst < 0.5 else "warn", text)


@torch.inference_mode()
@full_float32()
def conversion_difference(network: nn.Module, images: Tensor) -> float:
    """Return the largest difference between a draw at alpha = 0 of a converted network and the
    unconverted network, on images ``[N, 3, H, W]``, relative to the largest logit.
    """
    layout = AffineLayout(network)
    plain = copy_network(network)
    revert(plain)
    # The same batch for both: convolutions may sum in another order for another batch size.
    twice = images.repeat(2, 1, 1, 1)
    expected = plain(twice)
    with layout.active(ABNNPosterior.around(layout, 0.0).affine(layout, [0], 0)):
        return float(
            (network(twice) - expected).abs().max() / expected.abs().max().clamp_min(1e-12)
        )


class DoctorResult(NamedTuple):
    """What the checks found."""

    about: tuple[str, ...]  # which model and draws, in lines
    findings: tuple[Finding, ...] = ()  # of the checks, in their order
    failure: str = ""  # why the maps cannot be trusted, in one line; empty where they can
    notes: tuple[
        str, ...
    ] = ()  # what the sampler says, for instance that the network could not be compiled


@takes(DoctorOptions)
def doctor(options: DoctorOptions) -> DoctorResult:
    """Check that the uncertainty of a model is alive and its conversion sound.

    Raises:
        InputError: the model or the image cannot be used.

    >>> result = doctor(DoctorOptions(model=abnn, draws=4, size=(64, 128), device="cpu"))
    >>> result.failure, result.findings[0].check, result.findings[0].status
    ('', 'conversion', 'ok')
    """
    model = load_model(Path(options.model))
    with flushed_denormals(), threads(options.threads):
        sampler = make_sampler(model, options)
        description = model.network.description
        network = (
            f"{description.architecture} {description.encoder}, {description.num_classes} classes"
        )
        about = [
            f"{options.model}: {network}, {model.posterior.method}, base network sha256 {model.sha256}",
            f"calibration: {model.attachments.get('calibration', 'none')}",
        ]
        if not model.bayesian:
            why = "the model is deterministic: one draw, so its epistemic uncertainty is zero everywhere; fine-tune it first"
            return DoctorResult(tuple(about), (), why)
        settings = ", ".join(
            f"{name} {value}" for name, value in model.posterior.settings().items()
        )
        about += [
            f"posterior sha256 {model.posterior_sha256}, {model.posterior.members} members, {settings}"
        ]
        about += [f"{sampler.draws} draws, {sampler.precision}, {describe_device(sampler.device)}"]
        toy = render_scene(np.random.SeedSequence(0), (256, 512), anomaly=False)
        image = load_image(Path(options.image)) if options.image else toy.image
        size = inference_size(description, (image.shape[0], image.shape[1]), options.size)
        findings = list(diagnose(model, sampler, network_input([image], size).to(sampler.device)))
    failed = [finding.check for finding in findings if finding.status == "fail"]
    failure = f"not sound: {'; '.join(failed)}" if failed else ""
    return DoctorResult(tuple(about), tuple(findings), failure, tuple(sampler.report.messages))
