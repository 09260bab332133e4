"""Distances of features at the size of the frame, and maps that have none."""

import pytest
import torch
from torch import Tensor, nn

from segunc.baselines.density import FeatureDistances, Neighbours, unit_features
from segunc.baselines.feature_extractor import FeatureExtractor, SecondEncoder
from segunc.core.errors import InputError
from segunc.networks.description import NetworkDescription
from segunc.networks.network import SegmentationNetwork
from segunc.scores import FEATURE_DISTANCE

CLASSES = 3
HALF = (0.5, 0.5, 0.5)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


class Beyond(nn.Module):
    """Frames of fewer than 16 pixels have no place."""

    def forward(self, images: Tensor) -> Tensor:
        return images[..., 15::16, 15::16]


class Body(nn.Module):
    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder = nn.Sequential(nn.Conv2d(3, 8, 5, 4, 2), nn.BatchNorm2d(8), nn.ReLU())
        self.head = head

    def forward(self, images: Tensor) -> Tensor:
        maps = self.head(self.encoder(images))
        return nn.functional.interpolate(
            maps,
            scale_factor=4,
            mode="bilinear",
            align_corners=True,
        )


def network() -> SegmentationNetwork:
    torch.manual_seed(1)
    body = Body(nn.Conv2d(8, CLASSES, 1))
    description = NetworkDescription("own", "", ("a", "b", "c"))
    return SegmentationNetwork(body, description, stride=4).eval()


@pytest.fixture(scope="module")
def images() -> Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.rand(5, 3, 18, 23, generator=generator)  # padded to 20 x 24


@pytest.fixture
def density(images: Tensor) -> FeatureDistances:
    """The density of every third feature of the images, at two sizes."""
    extractor = FeatureExtractor(network(), ["body.encoder"], [1.0, 0.5])
    banks = []
    with torch.no_grad():
        for maps in extractor(images):
            features = unit_features(maps)[::3]
            banks.append(Neighbours(features.half()))
    return FeatureDistances(extractor, banks)


def test_distances_are_at_the_size_of_the_frame(density: FeatureDistances, images: Tensor) -> None:
    assert density.gives == {FEATURE_DISTANCE}
    evidence = density(images, density.gives)
    assert evidence.keys() == {FEATURE_DISTANCE}
    assert evidence[FEATURE_DISTANCE].shape == (5, 18, 23)


def test_a_bank_of_other_features_is_refused(density: FeatureDistances, images: Tensor) -> None:
    density.banks = [Neighbours(random(4, 5))] * 2
    said = "a bank of features of 5 numbers does not fit a layer of 8"
    with pytest.raises(InputError, match=said):
        density(images, density.gives)


def refused_as_small(extractor: FeatureExtractor) -> None:
    image = torch.zeros(1, 3, 12, 40)
    with pytest.raises(InputError, match="an image of 12 x 40 is smaller than the stride"):
        extractor(image)


def test_maps_without_a_place_are_refused() -> None:
    refused_as_small(FeatureExtractor(nn.Sequential(Beyond()), ["0"]))


def test_an_image_smaller_than_a_patch_is_refused() -> None:
    encoder = SecondEncoder("vit_tiny_patch16_224", HALF, HALF)
    refused_as_small(FeatureExtractor(encoder, ["encoder.norm"]))
