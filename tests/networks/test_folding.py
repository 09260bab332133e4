"""A network without its batch norms says what it said with them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from segunc.networks.features import FeatureExtractor, Witness
from segunc.networks.folding import fold_norms
from tests.affine.networks import randomise

HALF = (0.5, 0.5, 0.5)


@pytest.mark.parametrize(
    ("name", "left"), [("test_efficientnet", 0), ("resnet18", 0), ("mobilenetv3_small_050", 0), ("test_vit", 0)]
)
def test_an_encoder_of_timm(name: str, left: int) -> None:
    torch.manual_seed(0)
    witness = randomise(Witness(name, HALF, HALF)).eval()
    folded, images = witness.folded([witness.deepest]), torch.rand(2, 3, 64, 96)
    assert sum(isinstance(module, nn.BatchNorm2d) for module in folded.modules()) == left
    with torch.inference_mode():
        (before,), (after,) = (FeatureExtractor(network, [witness.deepest])(images) for network in (witness, folded))
    assert (before - after).abs().max() <= 1e-5 * before.abs().max()


class Derived(nn.BatchNorm2d):
    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images).relu()


class Tricky(nn.Module):
    """Only ``plain`` and its norm may be folded."""

    def __init__(self) -> None:
        super().__init__()
        self.plain, self.wanted, self.twice, self.twins, self.derived = (
            nn.Conv2d(3, 3, 3, padding=1) for _ in range(5)
        )
        self.of_plain, self.of_wanted, self.of_twice, self.shared = (nn.BatchNorm2d(3) for _ in range(4))
        self.of_derived = Derived(3)
        self.alone, self.batch = nn.BatchNorm2d(3), nn.BatchNorm2d(3, track_running_stats=False)

    def forward(self, images: Tensor) -> Tensor:
        images = self.of_wanted(self.wanted(self.of_plain(self.plain(images))))
        images = self.of_twice(self.twice(self.twice(images)))
        images = self.shared(self.derived(self.shared(self.twins(images))))
        return self.batch(self.alone(self.of_derived(images)))


def test_what_is_shared_wanted_or_unknown_stays() -> None:
    torch.manual_seed(0)
    network, images = randomise(Tricky()).eval(), torch.rand(1, 3, 8, 8)
    folded = fold_norms(network, images, ["wanted"])
    kept = {name for name, module in folded.named_modules() if isinstance(module, nn.BatchNorm2d)}
    assert kept == {"of_wanted", "of_twice", "shared", "of_derived", "alone", "batch"}
    with torch.inference_mode():
        assert torch.allclose(network(images), folded(images), rtol=1e-5, atol=1e-6)
    assert isinstance(network.of_plain, nn.BatchNorm2d)
