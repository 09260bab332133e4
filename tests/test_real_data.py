"""A trained network on real frames: conversion, chunks and order, and that noise does something
useful.
"""

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from segunc import ABNNPosterior, AffineLayout, NetworkDescription, Sampler, build_network, convert
from segunc.baselines.feature_extractor import FeatureExtractor
from segunc.baselines.packaged_bank import PackagedBank
from segunc.data.datasets import dataset_entry
from segunc.data.images import load_image
from segunc.data.labels import label_map
from segunc.maps.encoding import encode_unit
from segunc.networks import SegmentationNetwork
from segunc.networks.weights import load_weights
from segunc.sampling.sampler import network_input, sample_frames
from segunc.verbs.doctor import IDENTITY_BOUND, conversion_difference
from tools.identity_table import batch_difference
from tools.make_road_bank import ENCODER, evenly_spaced_frames, features_of

DATA = os.environ.get("SEGUNC_DATA")
pytestmark = pytest.mark.skipif(DATA is None, reason="SEGUNC_DATA names no folder of real data")
SCORES = ("msp", "entropy", "aleatoric", "epistemic")


@pytest.fixture(scope="module")
def network() -> SegmentationNetwork:
    torch.set_flush_denormal(True)
    labels = label_map("camvid")
    built = build_network(
        NetworkDescription(
            "DeepLabV3Plus", "resnet18", labels.classes, labels.palette, {"decoder_channels": 128}
        )
    )
    load_weights(
        built.body, Path(str(DATA)) / "bases" / "camvid_deeplabv3plus_resnet18.safetensors"
    )
    convert(built.body)
    return built.eval()


@pytest.fixture(scope="module")
def frames() -> list[np.ndarray]:
    samples = dataset_entry("camvid").samples(Path(str(DATA)) / "camvid", "test")
    return [load_image(samples[i].image) for i in (0, 100, 200)]


def codes(sampler: Sampler, images: list[np.ndarray]) -> dict[str, np.ndarray]:
    result = sample_frames(sampler, images, size=(192, 256))
    return {name: encode_unit(result.scores[name].numpy()).astype(int) for name in SCORES}


def test_the_identity_on_a_real_frame(
    network: SegmentationNetwork, frames: list[np.ndarray]
) -> None:
    images = network_input(frames[:1], (192, 256))
    assert (
        max(conversion_difference(network, images), batch_difference(network, images))
        <= IDENTITY_BOUND
    )


def test_chunks_and_order_within_one_code(
    network: SegmentationNetwork, frames: list[np.ndarray]
) -> None:
    posterior = ABNNPosterior.around(AffineLayout(network), 0.1, 3)
    reference = codes(Sampler(network, posterior, draws=6, chunk=6), frames)
    for chunk in (1, 3):
        for order in ([0, 1, 2], [2, 0, 1]):
            found = codes(
                Sampler(network, posterior, draws=6, chunk=chunk), [frames[i] for i in order]
            )
            for name in SCORES:
                assert np.abs(found[name] - reference[name][order]).max() <= 1, (chunk, order, name)


@pytest.mark.slow
def test_the_packaged_bank_is_of_the_clip_and_these_weights() -> None:
    weights = Path(str(DATA)) / "bases" / f"{ENCODER}_imagenet.safetensors"
    bank = PackagedBank.load()
    encoder = bank.open_encoder(str(weights), "--anomaly.encoder_weights")
    clip = Path(str(DATA)) / "video" / "solidWhiteRight.mp4"
    names, images = evenly_spaced_frames(clip, len(bank.frames))
    assert tuple(f"road_bank/{name}" for name in names) == bank.frames
    with torch.inference_mode():
        made = features_of(images[2:3], FeatureExtractor(encoder, bank.layers, bank.sizes))
    stored = bank.tensors()
    for index in range(len(bank.layers)):
        of_frame = stored[f"{index}.origins"][:, 0] == 2
        expected = stored[f"{index}.bank"][of_frame].float()
        cosines = (made[f"{index}.bank"].float() * expected).sum(1)
        assert cosines.min() > 0.999
