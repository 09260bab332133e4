"""Which norm sites are worth drawing, and with how much noise: cost, anomaly detection, calibration, mIoU.

    python -m tools.study_scopes --model runs/camvid-abnn --data data/camvid --anomalies data/road_anomaly \
        --scopes all encoder decoder last:4 every:4 --alphas 0 0.05 0.1 0.2 --json scopes.json

A row for each scope at the model's own alpha, and one for each alpha at scope `all` (ABNN only). Nothing is trained
anew: a scope draws fewer sites of the same members. Class numbers are of `--dataset` (`--split`), anomaly numbers of
`--anomaly-dataset`, pooled, by entropy and by epistemic. Rows are for choosing; report results on other data.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch

from segunc.affine.posterior import Posterior
from segunc.core.device import choose_precision, resolve_device
from segunc.core.errors import InputError
from segunc.core.files import write_json
from segunc.data.datasets import dataset_entry
from segunc.data.entry import Sample
from segunc.evaluation.evaluator import EvaluationOptions
from segunc.evaluation.models import evaluate_model
from segunc.posteriors.abnn import ABNN
from segunc.posteriors.files import Model, load_model
from segunc.sampling.sampler import Sampler
from segunc.training.data import spaced
from tools.measuring import provenance

SCORES = ("entropy", "epistemic")
COLUMNS = (
    *("seconds_a_frame", "miou", "ece", "nll"),
    *(f"{score}_{number}" for score in SCORES for number in ("auroc", "aupr", "fpr95")),
)


def row(
    model: Model, posterior: Posterior, scope: str | None, sets: list[tuple[Any, list[Sample]]], options: Any
) -> dict[str, float]:
    """The columns of one scope and posterior."""
    device = next(model.network.parameters()).device
    numbers: dict[str, float] = {}
    seconds, frames = 0.0, 0
    for entry, samples in sets:
        sampler = Sampler(
            model.network,
            posterior,
            draws=options.draws,
            scope=scope,
            precision=choose_precision(options.precision, device, model.network)[0],
            scores=("msp", *SCORES),
        )
        start = time.perf_counter()
        result = evaluate_model(sampler, model, entry, samples, EvaluationOptions(SCORES, ("pooled",))).result
        seconds, frames = seconds + time.perf_counter() - start, frames + len(samples)
        if entry.labels is not None:
            numbers |= {"miou": result["segmentation"]["miou"]}
            numbers |= {name: result["calibration"][name] for name in ("ece", "nll")}
        else:
            for score in SCORES:
                pooled = result["scores"][score]["pooled"]
                numbers |= {f"{score}_{name}": pooled[name] for name in ("auroc", "aupr", "fpr95")}
    return {"seconds_a_frame": seconds / frames} | numbers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="a Bayesian model folder")
    parser.add_argument("--dataset", default="camvid")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--split", default="val")
    parser.add_argument("--anomaly-dataset", default="road-anomaly")
    parser.add_argument("--anomalies", type=Path, required=True)
    parser.add_argument("--anomaly-split", default="test")
    parser.add_argument("--scopes", nargs="+", default=["all", "encoder", "decoder", "last:4", "every:4"])
    parser.add_argument("--alphas", type=float, nargs="*", default=[])
    parser.add_argument("--draws", type=int, default=12)
    parser.add_argument("--frames", type=int, default=30, help="of each data set, evenly spaced")
    parser.add_argument("--precision", choices=("auto", "float32", "bfloat16"), default="auto")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    device = resolve_device(options.device)
    model = load_model(options.model)
    model.network.to(device).to(memory_format=torch.channels_last)
    sets = []
    for name, root, split in (
        (options.dataset, options.data, options.split),
        (options.anomaly_dataset, options.anomalies, options.anomaly_split),
    ):
        entry = dataset_entry(name)
        samples = entry.samples(root, split)
        sets.append((entry, [samples[i] for i in spaced(len(samples), options.frames)]))
    posterior = model.posterior
    jobs: list[tuple[str, Posterior, str | None]] = [(f"scope {scope}", posterior, scope) for scope in options.scopes]
    if options.alphas and not isinstance(posterior, ABNN):
        raise InputError(f"--alphas with a model of method {posterior.method}", "an ABNN", "leave --alphas out")
    if isinstance(posterior, ABNN):
        jobs += [(f"alpha {alpha:g}", posterior.with_alpha(alpha), None) for alpha in options.alphas]
    rows = []
    print("| | " + " | ".join(COLUMNS) + " |\n|---|" + "---|" * len(COLUMNS))
    for name, held, scope in jobs:
        numbers = row(model, held, scope, sets, options)
        rows.append({"name": name, **numbers})
        print(f"| {name} | " + " | ".join(f"{numbers[column]:.4f}" for column in COLUMNS) + " |", flush=True)
    if options.json:
        write_json(options.json, {"about": provenance(device), "draws": options.draws, "rows": rows})


if __name__ == "__main__":
    main()
