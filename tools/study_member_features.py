"""Whether the features of an ABNN's members, averaged, know more than those of their base: the score knn of the network's own encoder.

    python -m tools.study_member_features --model runs/camvid-abnn --base runs/camvid --data data/camvid \
        --anomalies data/road_anomaly --size 352x640 --out runs/member-features

Each member becomes a network of its own, without noise; features are fitted on it as on the base (`segunc finetune --method features`),
and the distances of the members are averaged. Numbers are pooled, of `--anomaly-dataset`.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor

import segunc
from segunc.affine.convert import revert
from segunc.affine.draws import AffineLayout
from segunc.core.device import choose_precision, resolve_device
from segunc.core.errors import InputError
from segunc.core.files import write_atomically, write_json
from segunc.data.datasets import dataset_entry
from segunc.evaluation.evaluator import EvaluationOptions
from segunc.evaluation.models import evaluate_model
from segunc.networks.files import save_network
from segunc.options import FinetuneOptions, image_size
from segunc.posteriors.abnn import ABNN
from segunc.posteriors.files import Model, load_model
from segunc.sampling.density import FeatureDensity
from segunc.sampling.sampler import Sampler
from tools.measuring import provenance

SCORE = "knn"
NUMBERS = ("auroc", "aupr", "fpr95")


class MeanDensity:
    """The mean of what several say."""

    def __init__(self, densities: Collection[FeatureDensity]) -> None:
        self.densities = densities
        self.gives = frozenset.intersection(*(density.gives for density in densities))

    def __call__(self, images: Tensor, needs: Collection[str], *how: Any) -> dict[str, Tensor]:
        found = [density(images, needs, *how) for density in self.densities]
        return {name: torch.stack([one[name] for one in found]).mean(0) for name in found[0]}


def with_features(folder: Path, out: Path, data: Path, device: torch.device) -> Model:
    """A deterministic model with features of its own last encoder level, fitted where they are not there."""
    if not (out / "features.json").exists():
        config, features = out.with_suffix(".yaml"), {"encoder": "own", "scores": [SCORE]}
        write_atomically(
            config, yaml.safe_dump({"data": {"dataset": "camvid", "root": str(data)}, "features": features}).encode()
        )
        segunc.finetune(FinetuneOptions(base=folder, method="features", config=config, out=out))
    model = load_model(out)
    model.place(device)
    return model


def save_member(folder: Path, member: int, out: Path) -> Path:
    """A member of an ABNN as a network, its statistics' correction included."""
    model = load_model(folder)
    if not isinstance(model.posterior, ABNN):
        raise InputError(f"{folder} of method {model.posterior.method}", "an ABNN", "give another model")
    layout = AffineLayout(model.network)
    affine = model.posterior.with_alpha(0.0).affine(layout, [member], 0)
    layout.store(affine.weight[0], affine.bias[0])
    revert(model.network)
    save_network(model.network, out)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="folder of an ABNN")
    parser.add_argument("--base", type=Path, required=True, help="folder of its base")
    parser.add_argument("--data", type=Path, required=True, help="CamVid")
    parser.add_argument("--anomaly-dataset", default="road-anomaly")
    parser.add_argument("--anomalies", type=Path, required=True)
    parser.add_argument("--size", type=image_size, metavar="HxW")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, required=True, help="of the members and their features")
    options = parser.parse_args()
    device = resolve_device(options.device)
    members = range(load_model(options.model).posterior.members)
    networks = [options.base, *(save_member(options.model, m, options.out / f"member-{m}") for m in members)]
    names = ["base", *(folder.name for folder in networks[1:])]
    models = [
        with_features(folder, options.out / f"{name}-features", options.data, device)
        for name, folder in zip(names, networks, strict=True)
    ]
    densities = [model.fitted([SCORE])["density"] for model in models]
    rows = dict(zip(names, densities, strict=True)) | {"mean of the members": MeanDensity(densities[1:])}
    entry = dataset_entry(options.anomaly_dataset)
    samples, base = entry.samples(options.anomalies, "test"), models[0]
    found = {}
    print(f"| {SCORE} of | {' | '.join(NUMBERS)} |\n|---|{'---|' * len(NUMBERS)}")
    for name, density in rows.items():
        precision = choose_precision("auto", device, base.network)[0]
        sampler = Sampler(base.network, scores=["msp", SCORE], density=density, precision=precision)
        result = evaluate_model(
            sampler, base, entry, samples, EvaluationOptions([SCORE], ("pooled",)), size=options.size
        )
        found[name] = {number: result.result["scores"][SCORE]["pooled"][number] for number in NUMBERS}
        print(f"| {name} | {' | '.join(f'{value:.4f}' for value in found[name].values())} |", flush=True)
    write_json(options.out / "member-features.json", {"about": provenance(device), "rows": found})


if __name__ == "__main__":
    main()
