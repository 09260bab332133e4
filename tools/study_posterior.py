"""How faithful is each posterior? Its predictive against that of Hamiltonian Monte Carlo on the same target.

    python -m tools.study_posterior --out study
    python -m tools.study_posterior --reference runs/hmc --models runs/abnn runs/swag --data toy --out study

The first form makes everything in place: toy scenes, a small network, and every posterior over its affine parameters that
`segunc finetune` knows, each told the same prior, N_eff and data (whole frames, no augmentation). The second compares finished model folders
of one base. Agreement of the argmax and total variation as in Izmailov et al. 2021 (arXiv 2104.14421), on the splits
test and anomaly; the reference's own chains, compared with each other, say how far it can be trusted. A killed run
continues. Prints a table and writes study.md and study.json.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor

from segunc.baselines.chains import ChainStates
from segunc.core.device import resolve_device
from segunc.core.errors import InputError
from segunc.core.files import write_json
from segunc.data.labels import IGNORE
from segunc.data.module import SegmentationDataModule
from segunc.posteriors.files import load_model
from segunc.posteriors.methods import METHODS
from segunc.posteriors.model import Model
from segunc.sampling.sampler import Sampler
from segunc.toyroads import ToyConfig, generate_toy
from segunc.training.base import train_network
from segunc.training.config import FinetuneConfig, TrainConfig, parse_config
from tools.measuring import provenance

REFERENCE = "hmc"
COMPARED = [name for name, method in METHODS.items() if not method.finished and name != "deterministic"]
"""`deterministic` writes a network, not a posterior; the control row is the same training."""
SPLITS = ("test", "anomaly")
SIZE = (64, 128)
SCENES = ToyConfig(seed=0, train=16, val=8, test=12, anomaly=12, video_frames=0, size=SIZE)
DATA: dict[str, Any] = {
    "dataset": "toy",
    "crop": list(SIZE),
    "batch_size": 4,
    "scale": [1.0, 1.0],
    "flip": 0.0,
    "colour": 0.0,
    "blur": 0.0,
}
"""Whole frames without augmentation: what every method sees is the data of the posterior."""
NETWORK: dict[str, Any] = {
    "architecture": "FPN",
    "encoder": "tu-test_efficientnet",
    "options": {"decoder_pyramid_channels": 32, "decoder_segmentation_channels": 32},
}
"""2,464 affine parameters."""
DRIFT = {"shape": "constant", "exploration": 0.25}
"""Cycles that keep their step size: a cosine spends most of its states near the end, where they hardly move."""
SCALES = [1.0, 3.0, 10.0, 30.0, 100.0]
"""Of SWAG's covariance. Its learning rate was chosen with them on validation NLL: with 0.05 the snapshots lie on one point."""
ABNNPosterior = {"epochs": 15, "lr": 0.005, "alpha_grid": [0.02, 0.05, 0.1, 0.2]}
TARGET = {"effective_pixels": 1000.0, "prior_scale": 0.1}
"""The posterior that all methods are told, where they have such a setting."""
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "abnn": ("abnn", {**ABNNPosterior, "members": 3, "random_classes": 3}),
    "abnn without class weights": ("abnn", {**ABNNPosterior, "members": 3}),
    "control: fine-tuned, alpha 0": ("abnn", {**ABNNPosterior, "alpha": 0.0}),
    "hmc": ("hmc", {"chains": 2, "warmup": 30, "samples": 150}),
    "laplace": ("laplace", {"epochs": 20, "prior_scale_grid": [], "images": 16, "samples": 8}),
    "sghmc": ("sghmc", {"cycles": 4, "cycle_steps": 200, "lr": 0.05, "momentum": 0.9, "states_per_cycle": 15, **DRIFT}),
    "sgld": ("sgld", {"cycles": 4, "cycle_steps": 400, "lr": 0.05, "states_per_cycle": 15, **DRIFT}),
    "swag": ("swag", {"epochs": 40, "burn_in": 60, "collect_every": 4, "lr": 2.0, "scale": None, "scale_grid": SCALES}),
    "variational": ("variational", {"epochs": 60}),
}
"""Rows of the table: method, and settings where its defaults are for larger data. Methods without a row run with their defaults."""


def build(out: Path, names: Sequence[str], device: str) -> dict[str, Path]:
    """Toy scenes, a base and a model folder for each row; finished ones are kept."""
    data, base = out / "data", out / "base"
    generate_toy(data, SCENES)
    build_base(base, data, device)
    common = {"data": {**DATA, "root": str(data)}}
    folders = {"deterministic (base)": base}
    for name in names:
        method_name, settings = RUNS.get(name, (name, {}))
        folders[name] = out / "".join(c if c.isalnum() else "-" for c in name)
        if (folders[name] / "posterior.json").exists():
            continue
        print(f"\n== {name}", flush=True)
        method = METHODS[method_name]
        options = method.config
        assert options is not None
        known = {field: value for field, value in TARGET.items() if field in options.__dataclass_fields__}
        content: dict[str, Any] = {**common, method.key: {**known, **settings}}
        if "frames" not in options.__dataclass_fields__:  # trained by Lightning
            content["trainer"] = {"precision": "32-true"}
        config = parse_config(FinetuneConfig, _write(folders[name].with_suffix(".yaml"), content), [], options)
        method.fit(base, config, folders[name], device=device)
    return folders


def build_base(base: Path, data: Path, device: str, seed: int = 0) -> None:
    """The small network of a seed, trained on the toy scenes; a finished one is kept."""
    if (base / "network.safetensors").exists():
        return
    train = {"data": {**DATA, "root": str(data)}, "network": NETWORK, "optimisation": {"lr": 0.003}, "seed": seed}
    trainer = {"max_epochs": 60, "check_val_every_n_epoch": 20, "precision": "32-true"}
    content = {**train, "trainer": trainer}
    train_network(parse_config(TrainConfig, _write(base.with_suffix(".yaml"), content), []), base, device=device)


def _write(path: Path, content: dict[str, Any]) -> Path:
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return path


def chain_models(model: Model) -> list[Model]:
    """The chains of a sample as models of their own; empty for a single chain and for other posteriors."""
    posterior = model.posterior
    if not isinstance(posterior, ChainStates) or posterior.chains < 2:
        return []
    each = len(posterior.gamma) // posterior.chains
    parts = [slice(c * each, (c + 1) * each) for c in range(posterior.chains)]
    made = [type(posterior)(posterior.gamma[p], posterior.beta[p], 1, posterior.scope, posterior.target) for p in parts]
    return [Model(model.network, chain, model.sha256, None, model.report, model.record) for chain in made]


class Predictions:
    """Mean probabilities of a model on the frames of the splits, with what follows from them and the labels.

    Attributes:
        probabilities: split -> ``[n, C, H, W]``.
        values: split -> ``nll`` (nats, over labelled pixels) and ``epistemic`` (mean share of ln C).
        seconds: of all splits.
    """

    def __init__(self, model: Model, data: SegmentationDataModule, draws: int, device: str) -> None:
        states = len(model.posterior.gamma) if isinstance(model.posterior, ChainStates) else draws
        network = model.network.to(resolve_device(device))
        sampler = Sampler(network, model.posterior, draws=max(states, model.posterior.members))
        self.probabilities: dict[str, Tensor] = {}
        self.values: dict[str, dict[str, float]] = {}
        start = time.perf_counter()
        for split in SPLITS:
            frames = data.dataset(split)
            items = [frames[i] for i in range(len(frames))]
            results = [sampler(item["image"][None], keep_probabilities=True) for item in items]
            p = torch.cat([r.probabilities for r in results if r.probabilities is not None]).cpu()
            labels = torch.stack([item["label"] for item in items])
            valid = labels != IGNORE
            chosen = p.gather(1, labels.masked_fill(~valid, 0)[:, None])[:, 0][valid]
            nll = -float(chosen.clamp_min(torch.finfo(torch.float32).tiny).double().log().mean())
            epistemic = sum(float(r.scores["epistemic"].mean()) for r in results) / len(results)
            self.probabilities[split], self.values[split] = p, {"nll": nll, "epistemic": epistemic}
        self.seconds = time.perf_counter() - start


def predictive_agreement(probabilities: Tensor, reference: Tensor) -> float:
    """Return the share of the pixels, 0..1, where mean probabilities ``[N, C, ...]`` predict the same class as the reference
    (Izmailov et al. 2021, arXiv 2104.14421, section 5)."""
    return float((probabilities.argmax(1) == reference.argmax(1)).double().mean())


def total_variation(probabilities: Tensor, reference: Tensor) -> float:
    """Return the mean over pixels of ``1/2 sum_c |p_c - q_c|``, 0..1, for mean probabilities ``[N, C, ...]`` (the same source)."""
    return float(0.5 * (probabilities - reference).abs().double().sum(1).mean())


def compare(
    folders: dict[str, Path], reference: Path, data: SegmentationDataModule, draws: int, device: str
) -> dict[str, Any]:
    """Every model against the reference, and the reference's chains against each other.

    Raises:
        InputError: a model of another base network.
    """
    truth_model = load_model(reference)
    truth = Predictions(truth_model, data, draws, device)
    rows: dict[str, Any] = {}

    def add(name: str, predictions: Predictions, against: Predictions, record: dict[str, Any]) -> None:
        provenance = record.get("provenance", {})
        rows[name] = {"train_seconds": provenance.get("seconds"), "predict_seconds": round(predictions.seconds, 1)}
        for split in SPLITS:
            p, q = predictions.probabilities[split], against.probabilities[split]
            distances = {"agreement": predictive_agreement(p, q), "total_variation": total_variation(p, q)}
            rows[name][split] = {k: round(v, 5) for k, v in {**distances, **predictions.values[split]}.items()}

    add("reference", truth, truth, truth_model.record)
    chains = chain_models(truth_model)
    if chains:
        one, two = (Predictions(chain, data, draws, device) for chain in chains[:2])
        add("reference: chain 1 against chain 2", one, two, {})
    for name, folder in folders.items():
        model = load_model(folder)
        if model.sha256 != truth_model.sha256:
            raise InputError(f"{folder} has another base than {reference}", "models of one base", "leave it out")
        add(name, Predictions(model, data, draws, device), truth, model.record)
    convergence = truth_model.record.get("provenance", {})
    return {"rows": rows, "reference": {k: convergence.get(k) for k in ("dimensions", "chain_records", "convergence")}}


def markdown(result: dict[str, Any]) -> str:
    """The table of a result, with the circumstances of its making."""
    columns = ("agreement", "total_variation", "nll", "epistemic")
    head = [
        "method",
        *(f"{split} {c.replace('_', ' ')}" for split in SPLITS for c in columns),
        "training s",
        "prediction s",
    ]
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for name, row in result["rows"].items():
        cells = [f"{row[split][c]:.4f}" for split in SPLITS for c in columns]
        seconds = ["-" if row[k] is None else f"{row[k]:.0f}" for k in ("train_seconds", "predict_seconds")]
        lines.append(f"| {' | '.join([name, *cells, *seconds])} |")
    convergence = result["reference"]["convergence"]
    lines += ["", f"Reference: {result['reference']['dimensions']} parameters, {convergence}"]
    made = result["made"]
    lines.append(f"Made {made['date']}, {made['hardware']}, commit {made['commit']}, torch {made['versions']['torch']}")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for everything")
    made = {method for method, _ in RUNS.values()}
    rows = [*RUNS, *(name for name in COMPARED if name not in made)]
    parser.add_argument(
        "--methods", default=",".join(COMPARED), help=f"methods whose rows are made (default: {','.join(COMPARED)})"
    )
    parser.add_argument("--models", type=Path, nargs="+", help="finished model folders instead")
    parser.add_argument("--reference", type=Path, help="the reference among finished models")
    parser.add_argument("--data", type=Path, help="the toy scenes of finished models")
    parser.add_argument("--draws", type=int, default=60, help="of every posterior that is no chain (default 60)")
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    if arguments.models and (arguments.reference is None or arguments.data is None):
        parser.error("--models needs --reference and --data")
    methods = [*arguments.methods.split(","), REFERENCE]
    unknown = [name for name in methods if name not in COMPARED]
    if unknown:
        parser.error(f"unknown methods {unknown}; known are {', '.join(COMPARED)}")
    torch.set_flush_denormal(True)
    try:
        study(arguments, [name for name in rows if RUNS.get(name, (name, {}))[0] in methods])
    except InputError as error:
        print(f"study_posterior: {error}", file=sys.stderr)
        return 2
    return 0


def study(arguments: argparse.Namespace, rows: Sequence[str]) -> None:
    """Make what is to be made, compare it, and write both files."""
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    if arguments.models:
        folders, reference, root = {m.name: m for m in arguments.models}, arguments.reference, arguments.data
    else:
        folders = build(out, rows, arguments.device)
        reference, root = folders.pop(REFERENCE), out / "data"
    data = SegmentationDataModule("toy", str(root))
    result = compare(folders, reference, data, arguments.draws, arguments.device)
    result["made"] = {
        **provenance(resolve_device(arguments.device)),
        "seconds": round(time.perf_counter() - start, 1),
        "target": None if arguments.models else TARGET,
        "runs": None if arguments.models else RUNS,
    }
    write_json(out / "study.json", result)
    (out / "study.md").write_text(markdown(result), encoding="utf-8")
    print(f"\n{markdown(result)}")


if __name__ == "__main__":
    sys.exit(main())
