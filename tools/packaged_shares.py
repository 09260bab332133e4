"""Shares of the pixels of normal frames that ``anomaly`` of the packaged bank takes for strange.

    python -m tools.packaged_shares --weights FILE --frames 6 --corruption fog:3 'camvid/test/*'

For a group of frames and each corruption it prints which share of all pixels scores 2, and 3, and
more. The score is ``knn`` on the scale of the packaged bank, at the frames' own size.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from glob import glob
from pathlib import Path

import torch
from torch import Tensor

from segunc.baselines.anomaly import Surprise
from segunc.baselines.density import FeatureDistances, Neighbours
from segunc.baselines.feature_extractor import FeatureExtractor
from segunc.baselines.packaged_bank import PackagedBank
from segunc.data.corruptions import Corruption
from segunc.data.images import load_image
from segunc.sampling.sampler import network_input
from segunc.scores import FEATURE_DISTANCE
from segunc.training.batches import spaced

DECADES = (2, 3)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("patterns", nargs="+", metavar="PATTERN", help="images, a group each")
    parser.add_argument("--weights", required=True, metavar="FILE")
    parser.add_argument("--frames", type=int, default=0, metavar="N", help="of a group (0: all)")
    parser.add_argument("--corruption", action="append", default=[], metavar="NAME:N")
    options = parser.parse_args(words)
    bank = PackagedBank.load()
    distances = distances_of(bank, options.weights)
    surprise = Surprise(tuple(bank.knn["levels"]), bank.knn["excess"])
    corruptions = [None, *(Corruption.parse(text) for text in options.corruption)]
    for pattern in options.patterns:
        paths = [Path(path) for path in sorted(glob(pattern, recursive=True))]
        if not paths:
            parser.error(f"no image matches {pattern}")
        chosen = [paths[index] for index in spaced(len(paths), options.frames)]
        for name, corruption in zip(("", *options.corruption), corruptions, strict=True):
            shares = torch.zeros(len(DECADES))
            for path in chosen:
                image = load_image(path)
                if corruption is not None:
                    image = corruption(image, path.stem)
                evidence = distances(network_input([image]), distances.gives)
                shares += shares_of(surprise(evidence[FEATURE_DISTANCE]))
            text = ", ".join(f"{share:.3f}" for share in (shares / len(chosen)).tolist())
            print(f"{pattern} {name or 'clean'}, {len(chosen)} frames: {text}", flush=True)
    return 0


def distances_of(bank: PackagedBank, weights: str) -> FeatureDistances:
    """Return what gives the distances of frames from the packaged bank."""
    tensors = bank.tensors()
    maps = range(len(bank.layers) * len(bank.sizes))
    banks = [Neighbours(tensors[f"{index}.bank"]) for index in maps]
    extractor = FeatureExtractor(bank.open_encoder(weights, "--weights"), bank.layers, bank.sizes)
    return FeatureDistances(extractor, banks, whole=True)


def shares_of(surprise: Tensor) -> Tensor:
    """Return which share of the values reaches each of :data:`DECADES`."""
    return torch.tensor([float((surprise >= decades).float().mean()) for decades in DECADES])


if __name__ == "__main__":
    sys.exit(main())
