"""``segunc evaluate``: metrics from maps on disk, or from a model in one pass."""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from segunc.core.errors import InputError, PartialFailure
from segunc.core.progress import ConsoleProgress, Progress
from segunc.data.corruptions import Corruption
from segunc.data.datasets import dataset_entry
from segunc.data.entry import BINARY, DatasetEntry, Sample
from segunc.evaluation.evaluator import Evaluation, EvaluationOptions, Result
from segunc.evaluation.labelled_frame import CONFIDENCE
from segunc.evaluation.maps import NO_LABEL, Labels, evaluate_maps
from segunc.evaluation.report import format_metrics, write_metrics
from segunc.evaluation.resampling import Replicates, Resampling, save_replicates, sidecar_path

SELECTION = "selection"
"""A split of every data set with class labels: val, or what stands in for it where every frame of val holds an anomaly."""


def run(arguments: argparse.Namespace) -> None:
    """Evaluate, print the tables and write the result, its replicates and the figures."""
    out = Path(arguments.out)
    if out.is_dir():
        raise InputError(f"--out {arguments.out} is a folder", "the path of a JSON file", "e.g. metrics.json in it")
    anomaly_classes = [name for names in arguments.anomaly_class or [] for name in names]
    if anomaly_classes and not arguments.dataset:
        raise InputError("--anomaly-class without the data set it belongs to", "--dataset", "e.g. --dataset camvid")
    entry = dataset_entry(arguments.dataset, anomaly_classes=anomaly_classes) if arguments.dataset else None
    options = EvaluationOptions(
        scores=arguments.scores,
        protocols=arguments.protocols,
        tracks=arguments.components or (),
        mode=arguments.component_mode,
        resampling=Resampling(arguments.replicates),
        resample=arguments.resample,
    )
    evaluation = (_from_maps if arguments.maps else _from_model)(arguments, entry, options)
    result = evaluation.result
    if anomaly_classes:
        result.setdefault("run", {})["anomaly_classes"] = anomaly_classes
    result["bootstrap"] = {
        "replicates": arguments.replicates,
        "seed": options.resampling.seed,
        "unit": options.resample,
    }
    write_metrics(result, out)
    _write_replicates(evaluation.replicates, sidecar_path(out))
    print(format_metrics(result))
    print(f"wrote {out}")
    if arguments.plots:
        from segunc.plots.evaluation import write_plots

        files = write_plots(evaluation.evaluator.gatherer, result, Path(arguments.plots), out.stem)
        print(f"wrote {len(files)} files of figures to {arguments.plots}")
    _report_failures(result, out)


def _write_replicates(replicates: Replicates, path: Path) -> None:
    if replicates.paths:
        save_replicates(path, replicates)
    else:
        path.unlink(missing_ok=True)  # those of an earlier result would pass for this one's


def _report_failures(result: Result, out: Path) -> None:
    if "unfinished" in result:
        print(f"note: {result['unfinished']}")
    # A frame without a label was not asked about; any other that is missing from the numbers is a failure.
    failed = [entry for entry in result["left_out"] if entry["reason"] != NO_LABEL]
    if failed:
        raise PartialFailure(
            f"{len(failed)} of {result['counts']['frames']} frames could not be counted, first {failed[0]['frame']} "
            f"({failed[0]['reason']}); the numbers of the others are in {out}, with every reason under left_out"
        )


def _from_maps(arguments: argparse.Namespace, entry: DatasetEntry | None, options: EvaluationOptions) -> Evaluation:
    if arguments.corruption is not None:
        raise InputError(
            f"--corruption {arguments.corruption} with --maps", "--model", "maps are of images as they were predicted"
        )
    if arguments.root is None and _chosen_frames(arguments):
        raise InputError(
            "--frames or --every with --maps alone", "--dataset with --root", "or a folder with fewer labels"
        )
    labels, anomaly_labels = _labels_of_maps(arguments, entry)
    classes = None
    if labels is not None:
        if entry is None or entry.labels is None:
            raise InputError(
                "--labels without the data set they belong to",
                "--dataset with class labels",
                "e.g. --dataset cityscapes",
            )
        classes = entry.label_map()
    encoding = (entry.anomaly_encoding if entry else None) or BINARY
    with ConsoleProgress() as show:
        start = time.monotonic()
        evaluation = evaluate_maps(
            Path(arguments.maps),
            anomaly_labels=anomaly_labels,
            labels=labels,
            label_map=classes,
            anomaly_encoding=encoding,
            options=options,
            on_frame=lambda done, total: show(Progress(done, 0, 0, total, time.monotonic() - start)),
        )
    if entry is not None:
        asked = {"split": arguments.split, **_chosen_frames(arguments)} if arguments.root else {}
        evaluation.result["run"] = {"dataset": entry.name, **asked}
    return evaluation


def _labels_of_maps(arguments: argparse.Namespace, entry: DatasetEntry | None) -> tuple[Labels | None, Labels | None]:
    """Class labels and anomaly labels: the folders given, or those of a data set's frames."""
    folders = [Path(folder) if folder else None for folder in (arguments.labels, arguments.anomaly_labels)]
    if arguments.root is None:
        if not any(folders):
            raise InputError(
                "--maps without labels", "--labels, --anomaly-labels, or --dataset with --root", "say where they are"
            )
        return folders[0], folders[1]
    if entry is None or any(folders):
        raise InputError("--maps with --root", "--dataset beside it, and no label folders", "give one or the other")
    samples = _samples(entry, arguments)
    labels = {sample.name: sample.label for sample in samples if sample.label is not None}
    anomalies = {sample.name: sample.anomaly for sample in samples if sample.anomaly is not None}
    return labels or None, anomalies or None


def _samples(entry: DatasetEntry, arguments: argparse.Namespace) -> list[Sample]:
    """The frames of ``--split`` that are asked for; ``selection`` are those that every selection of a fine-tuning looks at."""
    root = Path(arguments.root)
    selecting = arguments.split == SELECTION
    samples = entry.training_samples(root, "val") if selecting else entry.samples(root, arguments.split)
    if arguments.every < 1:
        raise InputError(f"--every {arguments.every}", "at least 1", "1 takes every frame")
    try:
        pattern = re.compile(arguments.frames or "")
    except re.error as error:
        raise InputError(f"--frames '{arguments.frames}': {error}", "a regular expression") from error
    chosen = [sample for sample in samples if pattern.search(sample.name)][:: arguments.every]
    if not chosen:
        raise InputError(
            f"--frames '{arguments.frames}', which no frame matches", f"names such as {samples[0].name}", "see --root"
        )
    return chosen


def _chosen_frames(arguments: argparse.Namespace) -> dict[str, Any]:
    """What a result records of the choice of frames; nothing where all were taken."""
    chosen = {"frames": arguments.frames} if arguments.frames else {}
    return chosen | ({"every": arguments.every} if arguments.every > 1 else {})


def _from_model(arguments: argparse.Namespace, entry: DatasetEntry | None, options: EvaluationOptions) -> Evaluation:
    from segunc.evaluation.models import evaluate_model
    from segunc.posteriors.files import load_model
    from segunc.scores import DEFAULT_SCORES, check_scores
    from segunc.verbs.device import make_sampler
    from segunc.verbs.execution import choose_compilation, inputs_of_images

    corruption = None if arguments.corruption is None else Corruption.parse(arguments.corruption)
    if entry is None or not arguments.root:
        raise InputError(
            "--model without a data set", "--dataset NAME and --root DIR", "e.g. --dataset camvid --root data/camvid"
        )
    samples = _samples(entry, arguments)
    model = load_model(Path(arguments.model))
    # msp is what calibration is made of.
    sampler = make_sampler(model, arguments, check_scores((*(options.scores or DEFAULT_SCORES), CONFIDENCE)))
    inputs = inputs_of_images([sample.image for sample in samples], model.network.description, arguments.size)
    compilation = choose_compilation(arguments.compile, sampler, len(samples), inputs)
    sampler.compiled = compilation.compiled
    evaluation = evaluate_model(sampler, model, entry, samples, options, size=arguments.size, corruption=corruption)
    for message in [*([compilation.reason] if compilation.said else []), *sampler.report.messages]:
        print(f"note: {message}")
    evaluation.result["run"] = {
        "dataset": entry.name,
        "split": arguments.split,
        **_chosen_frames(arguments),
        "method": model.posterior.method,
        "base_sha256": model.sha256,
        "posterior_sha256": model.posterior_sha256,
        "temperature": sampler.temperature,
        "draws": sampler.draws,
        "seed": sampler.seed,
        "scheme": sampler.noise.scheme,
        "scope": sampler.scope,
        "precision": sampler.precision,
        "compiled": sampler.compiled,
        "size": arguments.size,
        **({} if corruption is None else {"corruption": str(corruption)}),
    }
    return evaluation


ROOT = Path(__file__).resolve().parents[2]


def peak_bytes(device: torch.device) -> int:
    """Largest memory of this process so far: resident on a CPU (Linux counts it in KiB), allocated on a GPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def in_own_process(script: str, words: Sequence[str], what: str) -> dict[str, Any]:
    """The JSON object in the last line that a script prints, run with these words in a fresh process.

    Empty where it fails, with the reason on stderr beside ``what``.
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, script, *words]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        print(f"{what}: {(done.stderr.strip().splitlines() or ['failed'])[-1]}", file=sys.stderr)
        return {}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
