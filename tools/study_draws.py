"""How far maps of S draws are from maps of many draws, for each draw scheme: choose S by it.

    python -m tools.study_draws --model runs/camvid-abnn --images data/road_anomaly/images --frames 6 --json draws.json

The reference is the mean over `--reference` independent draws of another seed. Its own error is part of every row, so
rows near it say less. For each scheme and S: the root mean square error of the entropy and the epistemic map, the mean
epistemic value over that of the reference (fewer draws see less disagreement), the share of pixels whose class changes;
means over frames and seeds.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from segunc.affine.noise import SCHEMES, Scheme
from segunc.core.device import choose_precision, resolve_device
from segunc.core.errors import InputError
from segunc.core.files import write_json
from segunc.data.images import load_image
from segunc.data.layout import list_images
from segunc.posteriors.abnn import ABNNPosterior
from segunc.posteriors.files import load_model
from segunc.posteriors.model import Model
from segunc.sampling.sampler import Sampler, sample_frames
from segunc.training.data import spaced
from tools.measuring import provenance

COLUMNS = ("entropy_rmse", "epistemic_rmse", "epistemic_ratio", "classes_changed")


def errors(sampler: Sampler, images: list[npt.NDArray[np.uint8]], references: list[dict[str, Tensor]]) -> Tensor:
    """The columns of one sampler, means over frames, ``[4]``."""
    rows = []
    for image, reference in zip(images, references, strict=True):
        maps = measured(sampler, image)
        rows.append(
            [
                *((maps[name] - reference[name]).square().mean().sqrt() for name in ("entropy", "epistemic")),
                maps["epistemic"].mean() / reference["epistemic"].mean(),
                (maps["prediction"] != reference["prediction"]).double().mean(),
            ]
        )
    return torch.tensor(rows, dtype=torch.float64).mean(0)


def measured(sampler: Sampler, image: npt.NDArray[np.uint8]) -> dict[str, Tensor]:
    """Entropy, epistemic and prediction of a frame at the size that the network sees."""
    result = sample_frames(sampler, [image], keep_probabilities=False)
    return {
        **{name: result.scores[name][0].double().cpu() for name in ("entropy", "epistemic")},
        "prediction": result.prediction[0].cpu(),
    }


def make_sampler(model: Model, draws: int, seed: int, scheme: Scheme, precision: str) -> Sampler:
    device = next(model.network.parameters()).device
    return Sampler(
        model.network,
        model.posterior,
        draws=draws,
        seed=seed,
        scheme=scheme,
        precision=choose_precision(precision, device, model.network)[0],
        scores=("msp", "entropy", "epistemic"),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--images", type=Path, required=True, help="a folder of images")
    parser.add_argument("--frames", type=int, default=6, help="evenly spaced in the folder")
    parser.add_argument("--draws", type=int, nargs="+", default=[6, 12, 24, 48])
    parser.add_argument("--seeds", type=int, default=2, help="repetitions of each row")
    parser.add_argument("--reference", type=int, default=512)
    parser.add_argument("--alpha", type=float, help="of an ABNN instead of its own")
    parser.add_argument("--precision", choices=("auto", "float32", "bfloat16"), default="auto")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    device = resolve_device(arguments.device)
    model = load_model(arguments.model)
    if arguments.alpha is not None:
        if not isinstance(model.posterior, ABNNPosterior):
            raise InputError(f"--alpha with a model of method {model.posterior.method}", "an ABNN", "leave it out")
        model = replace(model, posterior=model.posterior.with_alpha(arguments.alpha))
    model.network.to(device).to(memory_format=torch.channels_last)
    files = list_images(arguments.images)
    images = [load_image(files[i]) for i in spaced(len(files), arguments.frames)]
    far = make_sampler(model, arguments.reference, 10_000, "independent", arguments.precision)
    references = [measured(far, image) for image in images]
    rows = []
    print("| scheme | S | " + " | ".join(COLUMNS) + " |\n|---|---|" + "---|" * len(COLUMNS))
    for scheme in SCHEMES:
        for draws in arguments.draws:
            samplers = [
                make_sampler(model, draws, seed, scheme, arguments.precision) for seed in range(arguments.seeds)
            ]
            mean = torch.stack([errors(sampler, images, references) for sampler in samplers]).mean(0).tolist()
            rows.append({"scheme": scheme, "draws": draws, **dict(zip(COLUMNS, mean, strict=True))})
            print(f"| {scheme} | {draws} | " + " | ".join(f"{value:.5f}" for value in mean) + " |", flush=True)
    if arguments.json:
        about = provenance(device) | {"frames": len(images), "reference": arguments.reference}
        write_json(arguments.json, {"about": about, "rows": rows})


if __name__ == "__main__":
    main()
