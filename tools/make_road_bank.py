"""Make the feature bank that the package holds (segunc/baselines/packaged): features of a second
encoder of evenly spaced frames of a video, and the scale of ``knn`` on these frames.

    python -m tools.make_road_bank --video solidWhiteRight.mp4 --weights FILE \\
        --out segunc/baselines/packaged

The same input gives the same bytes on the same machine. The frames and the weights are not in it.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from segunc.baselines.anomaly import MAX_PIXELS_PER_FRAME, Standard, Surprise, measured_decades
from segunc.baselines.density import FeatureDistances, Neighbours, places_of, unit_features
from segunc.baselines.feature_extractor import FeatureExtractor, SecondEncoder
from segunc.baselines.packaged_bank import RECORD, TENSORS, PackagedBank, encoder_sha256
from segunc.core.files import write_file, write_record
from segunc.data.images import Image
from segunc.frames.video import VideoSource
from segunc.networks.smp import encoder_normalisation, load_encoder_weights
from segunc.sampling.sampler import network_input
from segunc.scores import FEATURE_DISTANCE
from segunc.training.batches import spaced

NAME = "road_bank"
ENCODER = "tf_efficientnet_lite0"
LAYERS = ("encoder.blocks.5", "encoder.blocks.6")
SIZES = (1.0,)
SOURCE = "https://github.com/udacity/CarND-LaneLines-P1, test_videos/solidWhiteRight.mp4"
LICENCE = "MIT"
CREDIT = "Copyright (c) 2016-2018 Udacity, Inc."


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--video", type=Path, required=True, metavar="FILE")
    parser.add_argument(
        "--weights", type=Path, required=True, metavar="FILE", help=f"ImageNet weights of {ENCODER}"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--frames", type=int, default=5, metavar="N")
    options = parser.parse_args(words)
    names, images = evenly_spaced_frames(options.video, options.frames)
    mean, std = encoder_normalisation(ENCODER)
    encoder = SecondEncoder(ENCODER, mean, std)
    load_encoder_weights(encoder.encoder, ENCODER, str(options.weights))
    encoder.requires_grad_(False).eval()
    extractor = FeatureExtractor(encoder, LAYERS, SIZES)
    with torch.inference_mode():
        tensors = features_of(images, extractor)
        distances = distances_to_other_frames(images, tensors, extractor)
    content = save(tensors)
    bank = PackagedBank(
        name=NAME,
        encoder=ENCODER,
        encoder_sha256=encoder_sha256(encoder.encoder),
        mean=mean,
        std=std,
        layers=LAYERS,
        sizes=SIZES,
        resolution="frame",
        frame_size=images[0].shape[:2],
        frames=tuple(f"{NAME}/{name}" for name in names),
        source=SOURCE,
        licence=LICENCE,
        credit=CREDIT,
        made_by=(
            f"python -m tools.make_road_bank --video {options.video.name} "
            f"--weights {options.weights.name} --frames {options.frames} --out FOLDER"
        ),
        tensors_sha256=hashlib.sha256(content).hexdigest(),
        knn=scale_of(distances),
    )
    options.out.mkdir(parents=True, exist_ok=True)
    write_file(options.out / TENSORS, content)
    write_record(options.out / RECORD, asdict(bank))
    print(f"wrote {options.out}: {len(images)} frames, {len(content):,} bytes of features")
    return 0


def evenly_spaced_frames(video: Path, count: int) -> tuple[list[str], list[Image]]:
    """Return names and RGB images of evenly spaced frames of a video."""
    source = VideoSource(video)
    total = sum(1 for _ in source.frames())
    wanted = set(spaced(total, count))
    names = []
    images = []
    for frame in source.frames(lambda index, name: index not in wanted):
        if frame.image is None:
            raise SystemExit(frame.error)
        names.append(frame.name)
        images.append(frame.image)
    return names, images


def features_of(images: Sequence[Image], extractor: FeatureExtractor) -> dict[str, Tensor]:
    """Return features and origins of each map, as a feature bank stores them."""
    maps: dict[str, list[Tensor]] = {}
    for number, image in enumerate(images):
        frame = network_input([image])
        labels = torch.zeros(image.shape[:2], dtype=torch.uint8)  # every pixel is normal
        extents = extractor.extents(frame)
        for index, (features, extent) in enumerate(zip(extractor(frame), extents, strict=True)):
            places = places_of(labels, (features.shape[2], features.shape[3]), extent)
            numbers = torch.full((len(places), 1), number)
            maps.setdefault(f"{index}.bank", []).append(unit_features(features).half())
            maps.setdefault(f"{index}.origins", []).append(torch.cat([numbers, places], 1))
    return {name: torch.cat(parts).contiguous() for name, parts in maps.items()}


def distances_to_other_frames(
    images: Sequence[Image], tensors: dict[str, Tensor], extractor: FeatureExtractor
) -> Tensor:
    """Return ``knn`` at random pixels of each frame, compared with the other frames only."""
    generator = torch.Generator().manual_seed(0)
    chosen = []
    for number, image in enumerate(images):
        banks = []
        for index in range(len(extractor.layers) * len(extractor.sizes)):
            others = tensors[f"{index}.origins"][:, 0] != number
            banks.append(Neighbours(tensors[f"{index}.bank"][others]))
        distances = FeatureDistances(extractor, banks, whole=True)
        evidence = distances(network_input([image]), distances.gives)
        values = evidence[FEATURE_DISTANCE].flatten()
        order = torch.randperm(len(values), generator=generator)
        chosen.append(values[order[:MAX_PIXELS_PER_FRAME]])
    return torch.cat(chosen)


def scale_of(distances: Tensor) -> dict[str, Any]:
    """Return the scale of ``knn`` as a record."""
    surprise = Surprise.of(distances)
    return {
        **asdict(Standard.of(distances)),
        **asdict(surprise),
        "pixels": len(distances),
        "measured_to": measured_decades(surprise(distances)),
    }


if __name__ == "__main__":
    sys.exit(main())
