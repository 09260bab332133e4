"""Distances of features at the size of the frame, and maps that have none."""

import pytest
import torch
from torch import Tensor, nn

from segunc.baselines.density import FeatureDensity, Neighbours, unit_features
from segunc.baselines.feature_extractor import FeatureExtractor, SecondEncoder
from segunc.core.errors import InputError
from segunc.networks.description import NetworkDescription
from segunc.networks.network import SegmentationNetwork
from segunc.scores import FEATURE_DISTANCE

CLASSES, HALF = 3, (0.5, 0.5, 0.5)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


class Beyond(nn.Module):
    """Frames of fewer than 16 pixels have no place."""

    def forward(self, images: Tensor) -> Tensor:
        return images[..., 15::16, 15::16]


class Body(nn.Module):
    def __init__(self, head: nn.Module, corners: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder = nn.Sequential(nn.Conv2d(3, 8, 5, 4, 2), nn.BatchNorm2d(8), nn.ReLU())
        self.head, self.corners = head, corners

    def forward(self, images: Tensor) -> Tensor:
        maps = self.encoder(images)
        last = isinstance(self.head, nn.Linear)
        maps = self.head(maps.movedim(1, -1)).movedim(-1, 1) if last else self.head(maps)
        return nn.functional.interpolate(
            maps, scale_factor=4, mode="bilinear", align_corners=self.corners
        )


def network(head: nn.Module | None = None) -> SegmentationNetwork:
    torch.manual_seed(1)
    body = Body(head or nn.Conv2d(8, CLASSES, 1))
    return SegmentationNetwork(body, NetworkDescription("own", "", ("a", "b", "c")), 4).eval()


@pytest.fixture(scope="module")
def images() -> Tensor:
    return torch.rand(5, 3, 18, 23, generator=torch.Generator().manual_seed(3))  # padded to 20 x 24


def density(own: SegmentationNetwork, images: Tensor) -> FeatureDensity:
    extractor = FeatureExtractor(own, ["body.encoder"], [1.0, 0.5])
    with torch.no_grad():
        banks = [Neighbours(unit_features(maps)[::3].half()) for maps in extractor(images)]
    return FeatureDensity(extractor, banks)


def test_distances_are_at_the_size_of_the_frame(images: Tensor) -> None:
    own = density(network(), images)
    assert own.gives == {FEATURE_DISTANCE}
    evidence = own(images, own.gives)
    assert evidence.keys() == {FEATURE_DISTANCE}
    assert evidence[FEATURE_DISTANCE].shape == (5, 18, 23)


def test_a_bank_of_other_features_is_refused(images: Tensor) -> None:
    own = density(network(), images)
    own.banks = [Neighbours(random(4, 5))] * 2
    said = "a bank of features of 5 numbers does not fit a layer of 8"
    with pytest.raises(InputError, match=said):
        own(images, own.gives)


def no_place(encoder: nn.Module, layer: str) -> None:
    with pytest.raises(InputError, match="an image of 12 x 40 is smaller than the stride"):
        FeatureExtractor(encoder, [layer])(torch.zeros(1, 3, 12, 40))


def test_maps_without_a_place_are_refused() -> None:
    no_place(nn.Sequential(Beyond()), "0")


def test_an_image_smaller_than_a_patch_is_refused() -> None:
    no_place(SecondEncoder("vit_tiny_patch16_224", HALF, HALF), "encoder.norm")
