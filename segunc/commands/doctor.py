"""``segunc doctor``."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from segunc.bayes.files import Model, load_model
from segunc.commands.device import describe_device, make_sampler
from segunc.data.datasets import dataset_entry
from segunc.data.images import Image
from segunc.data.samples import load_image
from segunc.diagnosis import Finding, diagnose
from segunc.errors import InputError, PartialFailure
from segunc.networks.network import inference_size
from segunc.sampling.sampler import Sampler


def run(arguments: argparse.Namespace) -> None:
    """Print every check; fail where the uncertainty is dead or the conversion is not sound."""
    model = load_model(Path(arguments.model))
    sampler = make_sampler(model, arguments)
    description = model.network.description
    print(
        f"{arguments.model}: {description.architecture} {description.encoder}, {description.num_classes} classes, {model.posterior.method}"
    )
    print(f"base network sha256 {model.sha256}")
    if not model.bayesian:
        raise PartialFailure(
            "the model is deterministic: one draw, so its epistemic uncertainty is zero everywhere; fine-tune it first"
        )
    settings = ", ".join(f"{name} {value}" for name, value in model.posterior.settings().items())
    print(f"posterior sha256 {model.posterior_sha256}, {model.posterior.members} members, {settings}")
    print(f"{sampler.draws} draws, {sampler.precision}, {describe_device(sampler.device)}")
    image = load_image(Path(arguments.image)) if arguments.image else _toy_frame()
    size = inference_size(description, (image.shape[0], image.shape[1]), arguments.size)
    findings = diagnose(model, sampler, image, size)
    if arguments.dataset:
        findings.append(_calibration(arguments, model, sampler))
    for finding in findings:
        print(f"{finding.status:>4}  {finding.check}: {finding.text}")
    failed = [finding.check for finding in findings if finding.status == "fail"]
    if failed:
        raise PartialFailure(f"not sound: {'; '.join(failed)}")
    print("the uncertainty is alive")


def _toy_frame() -> Image:
    from segunc.data.toy import render_scene

    return render_scene(np.random.SeedSequence(0), (256, 512), anomaly=False).image


def _calibration(arguments: argparse.Namespace, model: Model, sampler: Sampler) -> Finding:
    from segunc.commands.model_evaluation import evaluate_model
    from segunc.metrics.passes import EvaluationOptions
    from segunc.training.selection import spaced

    if not arguments.root:
        raise InputError("--dataset without --root", "the folder of the data set", "")
    entry = dataset_entry(arguments.dataset)
    samples = entry.samples(Path(arguments.root), arguments.split)
    chosen = [samples[i] for i in spaced(len(samples), arguments.frames)]
    options = EvaluationOptions(scores=("msp",))
    result = evaluate_model(sampler, model, entry, chosen, options, size=arguments.size).result
    ece, nll, miou = result["calibration"]["ece"], result["calibration"]["nll"], result["segmentation"]["miou"]
    text = f"ECE {ece:.4f}, NLL {nll:.4f}, mIoU {miou:.4f} on {len(chosen)} frames of {entry.name} {arguments.split}"
    return Finding("calibration", "ok" if ece < 0.1 else "warn", text)
