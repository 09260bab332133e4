"""Networks of every source through `segunc import`: what is converted, how exactly, and how long a
draw takes.

    python -m tools.network_table [--only torchvision] [--markdown]

torchvision: all its segmentation networks. smp: a folder of its own. python: a function of this
file. All with random weights, float32, one thread:

sites      normalisation layers that a posterior draws
alpha 0    largest difference of logits of draws without noise from the unconverted network, of the
           largest logit
batch      the same of two draws (alpha 0.1) as a batch against one by one; above 1e-4 the sampler
           takes them one by one
again      whether `segunc predict` writes the same bytes after the folder was saved and loaded
s a draw   of the sampler at 128 x 192, the best of three
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import segmentation_models_pytorch as smp
import torch
from torch import nn

from segunc import (
    ABNNPosterior,
    AffineLayout,
    ImportOptions,
    InputError,
    PredictOptions,
    Sampler,
    convert,
    import_network,
    load_network,
    predict,
    save_network,
)
from segunc.networks import torchvision as torchvision_kind
from segunc.verbs.doctor import IDENTITY_BOUND, conversion_difference
from tools.identity_table import batch_difference, randomise
from tools.measuring import provenance

SIZE = (128, 192)
CLASSES = ("road", "car", "sky", "person", "tree")
NORMAL: dict[str, Any] = {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}


def plain() -> nn.Module:
    """A hand-written network with one normalisation layer."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, len(CLASSES), 1)
    )


def of_torchvision(name: str, folder: Path) -> ImportOptions:
    """A file with the weights of one of torchvision's networks."""
    import torchvision

    torch.manual_seed(0)
    network = torchvision.models.get_model(
        name, weights=None, weights_backbone=None, num_classes=len(CLASSES)
    )
    randomise(network)
    torch.save(network.state_dict(), folder / "weights.pth")
    return _options(f"torchvision:{name}", folder, weights=folder / "weights.pth")


def of_smp(name: str, folder: Path) -> ImportOptions:
    """A folder as ``save_pretrained`` writes it."""
    network = smp.create_model(name, "resnet18", encoder_weights=None, classes=len(CLASSES))
    randomise(network)
    network.save_pretrained(folder / "source")
    return _options(f"smp:{folder / 'source'}", folder, **NORMAL)


def of_python(name: str, folder: Path) -> ImportOptions:
    """A function of this file."""
    return _options(f"python:tools.network_table:{name}", folder, trust=True, **NORMAL)


def _options(source: str, folder: Path, **more: Any) -> ImportOptions:
    return ImportOptions(
        source=source, classes=",".join(CLASSES), size=SIZE, out=folder / "network", **more
    )


def sources(only: str | None) -> Iterator[tuple[str, Callable[[Path], ImportOptions]]]:
    """Name of each row, and what makes its files in a folder and says how to import them."""
    rows = (
        ("torchvision", torchvision_kind.names(), of_torchvision),
        ("smp", ["upernet"], of_smp),
        ("python", ["plain"], of_python),
    )
    for source, names, make in rows:
        if only in (None, source):
            yield from ((f"{source}: {name}", partial(make, name)) for name in names)


def measure(options: ImportOptions, folder: Path) -> dict[str, Any]:
    """The columns of one network."""
    import_network(options)
    network = load_network(options.out)
    row: dict[str, Any] = {}
    images = torch.rand(2, 3, *SIZE, generator=torch.Generator().manual_seed(0))
    try:
        report = convert(network)
    except InputError as error:
        return row | {"sites": str(error)}
    row["sites"] = len(report.sites)
    row["alpha 0"], row["batch"] = (
        conversion_difference(network, images),
        batch_difference(network, images),
    )
    sampler = Sampler(
        network,
        ABNNPosterior.around(AffineLayout(network), 0.1),
        draws=4,
        seed=0,
        precision="float32",
    )
    sampler(images[:1])
    times = []
    for _ in range(3):
        start = time.perf_counter()
        sampler(images[:1])
        times.append((time.perf_counter() - start) / 4)
    row["s a draw"] = round(min(times), 4)
    cv2.imwrite(
        str(folder / "frame.png"), (images[0].permute(1, 2, 0).numpy() * 255).astype(np.uint8)
    )
    save_network(load_network(options.out), folder / "again")
    maps = []
    for model in (Path(options.out), folder / "again"):
        out = folder / f"maps-{model.name}"
        predict(
            PredictOptions(
                model=model, input=folder / "frame.png", out=out, device="cpu", precision="float32"
            )
        )
        maps.append({p.relative_to(out): p.read_bytes() for p in out.rglob("*.png") if p.is_file()})
    row["again"] = bool(maps[0]) and maps[0] == maps[1]
    return row


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=("torchvision", "smp", "python"))
    parser.add_argument(
        "--markdown", action="store_true", help="print a table for the documentation"
    )
    arguments = parser.parse_args()
    print(json.dumps(provenance()))
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    columns = ("sites", "alpha 0", "batch", "again", "s a draw")
    print(
        f"| network | {' | '.join(columns)} |\n|{'---|' * (len(columns) + 1)}"
        if arguments.markdown
        else ""
    )
    bad = 0
    for name, make in sources(arguments.only):
        with tempfile.TemporaryDirectory() as folder:
            try:
                row = measure(make(Path(folder)), Path(folder))
            except Exception as error:  # a row of the table says so
                row = {"sites": f"{type(error).__name__}: {error}"}
        bad += not (row.get("alpha 0", 1) <= IDENTITY_BOUND and row.get("again"))
        cells = [
            (
                f"{v:.1e}"
                if isinstance(v := row.get(c), float) and c in ("alpha 0", "batch")
                else str(v)
            )
            for c in columns
        ]
        print(
            f"| {name} | {' | '.join(cells)} |" if arguments.markdown else f"{name}: {row}",
            flush=True,
        )
    return bad > 0


if __name__ == "__main__":
    sys.exit(main())
