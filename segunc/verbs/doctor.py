"""``segunc doctor``: is the uncertainty of a model alive, and its conversion sound? Are maps what was written?"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Self, cast

import numpy as np
import torch
from torch import Tensor, nn

from segunc.affine.convert import StochasticSite, is_converted, revert
from segunc.affine.draws import AffineLayout
from segunc.core.device import describe_device, flushed_denormals, threads
from segunc.core.errors import InputError
from segunc.data.images import Image, load_image
from segunc.maps.health import examine
from segunc.maps.statistics import maps_folders
from segunc.maps.sums import REPAIR
from segunc.networks.network import inference_size
from segunc.options import DoctorOptions, PathLike, takes
from segunc.posteriors.abnn import ABNNPosterior
from segunc.posteriors.model import Model, load_model
from segunc.sampling.frames import network_input
from segunc.sampling.sampler import Sampler
from segunc.verbs.execution import make_sampler
from segunc.verbs.predict import predict, recorded_options

IDENTITY_BOUND = 1e-5  # largest difference of logits at alpha = 0, relative to the largest, that is float32 rounding
DEAD_EPISTEMIC = 1e-6  # mean (share of ln C) below which draws are one network: float32 sums alone give about 1e-8
DEAD_VARIANCE = 1e-12  # running variance below which a channel gave one constant in training


@dataclass(frozen=True)
class Finding:
    """The outcome of one check."""

    check: str  # what was looked at
    status: Literal["ok", "warn", "fail"]  # warn: worth a look; fail: the maps cannot be trusted
    text: str  # what was measured, with its bound

    @classmethod
    def of(cls, check: str, good: bool, text: str, otherwise: Literal["warn", "fail"] = "warn") -> Self:
        return cls(check, "ok" if good else otherwise, text)


def diagnose(model: Model, sampler: Sampler, image: Image, size: tuple[int, int]) -> list[Finding]:
    """Run all checks of a Bayesian model, on one clean frame: RGB uint8 ``[H, W, 3]``, seen at (height, width) ``size``."""
    frame = network_input([image], size).to(sampler.device)
    findings = []
    if model.report is not None:
        findings.append(Finding.of("conversion", not model.report.left, str(model.report)))
    for index, network in enumerate(model.networks):
        if is_converted(network):
            part = [_dead_channels(network), _identity(network, frame)]
            member = f"member {index}: " if len(model.networks) > 1 else ""
            findings += [replace(finding, check=f"{member}{finding.check}") for finding in part]
    clean = sampler(frame)
    report = sampler.report
    if report.self_check is not None:
        text = f"largest difference {report.self_check:.1e} of the largest logit"
        text += "" if report.batched else "; draws run one at a time"
        findings.append(Finding.of("two draws as a batch against one by one", report.batched, text))
    if report.unreached:
        text = f"{len(report.unreached)} are not, e.g. {report.unreached[0]}: their noise does nothing"
        findings.append(Finding("sites that are called", "warn", text))
    epistemic = clean.scores["epistemic"]
    text = f"mean {float(epistemic.mean()):.2e}, maximum {float(epistemic.max()):.2e}"
    text += f" (share of ln C; dead below {DEAD_EPISTEMIC:.0e})"
    findings.append(Finding.of("epistemic above zero", float(epistemic.mean()) > DEAD_EPISTEMIC, text, "fail"))
    if report.self_check is not None:  # draws without noise are all there are
        findings.append(_convergence(sampler, frame, clean.scores))
    return [*findings, _noise(sampler, frame, clean.scores)]


def _dead_channels(network: nn.Module) -> Finding:
    dead = total = 0
    for module in network.modules():
        if isinstance(module, StochasticSite):
            variance = getattr(module, "running_var", None)
            weight = cast(Tensor, cast(nn.Module, module).weight).detach().flatten()
            silent = (weight == 0) if variance is None else (weight == 0) | (variance < DEAD_VARIANCE)
            dead += int(silent.sum())
            total += weight.numel()
    share = dead / max(total, 1)
    text = f"{dead:,} of {total:,} channels ({share:.1%}) have no variance or gamma 0"
    return Finding.of("dead channels", share <= 0.1, text)


@torch.inference_mode()
def conversion_differences(network: nn.Module, images: Tensor, alpha: float = 0.1) -> tuple[float, float]:
    """Measure how exact a converted network is on images ``[N, 3, H, W]``, as largest differences relative to the largest logit.

    Returns:
        a draw at alpha = 0 against the unconverted network, and two draws at ``alpha`` as a batch against one by one: infinite
        where the network does not keep the batch outermost.
    """
    layout = AffineLayout(network)
    plain = copy.deepcopy(network)
    revert(plain)
    # The same batch for both: convolutions may sum in another order for another batch size.
    twice = images.repeat(2, 1, 1, 1)
    expected = plain(twice)
    size = expected.abs().max().clamp_min(1e-12)
    with layout.active(ABNNPosterior.around(layout, 0.0).affine(layout, [0], 0)):
        identity = (network(twice) - expected).abs().max() / size
    noisy = ABNNPosterior.around(layout, alpha)
    single = []
    for draw in (0, 1):
        with layout.active(noisy.affine(layout, [draw], 0)):
            single.append(network(images))
    try:
        with layout.active(noisy.affine(layout, [0, 1], 0)):
            both = network(twice)
    except InputError:
        return float(identity), math.inf
    batched = (both - torch.cat(single)).abs().max() / torch.cat(single).abs().max().clamp_min(1e-12)
    return float(identity), float(batched)


def _identity(network: nn.Module, frame: Tensor) -> Finding:
    difference, _ = conversion_differences(network, frame)
    text = f"largest difference {difference:.1e} of the largest logit (bound {IDENTITY_BOUND:.0e})"
    return Finding.of("alpha = 0 is the unconverted network", difference <= IDENTITY_BOUND, text, "fail")


def _convergence(sampler: Sampler, frame: Tensor, scores: Mapping[str, Tensor]) -> Finding:
    """Compare maps with those from other draws of the same number."""
    other = sampler(frame, seed=sampler.seed + 1).scores
    parts, worst = [], 0.0
    for name in ("entropy", "epistemic"):
        rms = float((other[name] - scores[name]).square().mean().sqrt()) / 2**0.5
        relative = rms / max(float(scores[name].mean()), 1e-12)
        worst = max(worst, relative)
        parts.append(f"{name} {rms:.4f} ({relative:.0%} of its mean)")
    text = f"standard error a pixel at S = {sampler.draws}: {', '.join(parts)}; it falls as 1 / sqrt(S)"
    return Finding.of("convergence with the draws", worst < 0.5, text)


def _noise(sampler: Sampler, frame: Tensor, scores: Mapping[str, Tensor]) -> Finding:
    generator = torch.Generator().manual_seed(0)
    noise = torch.rand(frame.shape, generator=generator).to(frame.device)
    clean = float(scores["epistemic"].mean())
    noisy = float(sampler(noise).scores["epistemic"].mean())
    text = f"mean {noisy:.2e} on uniform noise, {clean:.2e} on the frame"
    return Finding.of("epistemic higher on noise than on a clean frame", noisy > clean, text)


@dataclass(frozen=True)
class DoctorResult:
    """What the checks found."""

    about: tuple[str, ...]  # which model and draws, in lines
    findings: tuple[Finding, ...] = ()  # of the checks, in their order
    failure: str = ""  # why the maps cannot be trusted, in one line; empty where they can
    verdict: str = "the uncertainty is alive"  # where they can


@takes(DoctorOptions)
def doctor(options: DoctorOptions) -> DoctorResult:
    """Check that the uncertainty of a model is alive and its conversion sound; or check maps folders, and with ``repair`` make their
    damaged frames again.

    Raises:
        InputError: the model or the image cannot be used; a folder's manifest is damaged, or records no command.

    >>> result = doctor(DoctorOptions(model=abnn, draws=4, size=(64, 128), device="cpu"))
    >>> result.failure, result.findings[0].check, result.findings[0].status
    ('', 'conversion', 'ok')
    """
    if options.maps is not None:
        return _doctor_maps(options.maps, options.repair)
    assert options.model is not None
    model = load_model(Path(options.model))
    with flushed_denormals(), threads(options.threads):
        sampler = make_sampler(model, options)
        description = model.network.description
        about = [
            f"{options.model}: {description.architecture} {description.encoder}, {description.num_classes} classes, "
            f"{model.posterior.method}",
            f"base network sha256 {model.sha256}",
            f"calibration: {model.attachments.get('calibration', 'none')}",
        ]
        if not model.bayesian:
            why = "the model is deterministic: one draw, so its epistemic uncertainty is zero everywhere; fine-tune it first"
            return DoctorResult(tuple(about), (), why)
        settings = ", ".join(f"{name} {value}" for name, value in model.posterior.settings().items())
        about += [
            f"posterior sha256 {model.posterior_sha256}, {model.posterior.members} members, {settings}",
            f"{sampler.draws} draws, {sampler.precision}, {describe_device(sampler.device)}",
        ]
        image = load_image(Path(options.image)) if options.image else _toy_frame()
        size = inference_size(description, (image.shape[0], image.shape[1]), options.size)
        findings = diagnose(model, sampler, image, size)
    failed = [finding.check for finding in findings if finding.status == "fail"]
    return DoctorResult(tuple(about), tuple(findings), f"not sound: {'; '.join(failed)}" if failed else "")


def _doctor_maps(given: PathLike, repair: bool) -> DoctorResult:
    folders, findings, damaged = maps_folders(Path(given)), list[Finding](), 0
    for folder in folders:
        health = examine(folder)
        label = "" if len(folders) == 1 else f"{folder.name}: "
        if repair and not health.whole:
            options = recorded_options(folder, health.manifest)
            for shard in health.shards:
                predict(replace(options, shard=None if shard.whole else str(shard)))
            text = f"{health.amount} were damaged and are made again: {health.examples}"
            findings.append(Finding(f"{label}repair", "ok", text))
            health = examine(folder)
        text = f"{health.amount} of {health.total} are damaged: {health.examples}"
        text = f"{health.frames} are what was written" if health.whole else text
        findings.append(Finding.of(f"{label}finished frames", health.whole, text, "fail"))
        damaged += 0 if health.whole else health.amount
    failure = f"{damaged} frames are not what was written; {REPAIR}" if damaged else ""
    return DoctorResult((str(given),), tuple(findings), failure, "the maps are what was written")


def _toy_frame() -> Image:
    from segunc.toyroads import render_scene

    return render_scene(np.random.SeedSequence(0), (256, 512), anomaly=False).image
