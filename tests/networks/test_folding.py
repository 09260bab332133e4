"""A network without its batch norms says what it said with them."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from segunc.networks.features import FeatureExtractor, SecondEncoder, fold_norms
from tests.affine.networks import randomise

HALF = (0.5, 0.5, 0.5)


@pytest.mark.parametrize("name", ["test_efficientnet", "resnet18", "test_vit"])
def test_an_encoder_of_timm(name: str) -> None:
    torch.manual_seed(0)
    second = randomise(SecondEncoder(name, HALF, HALF)).eval()
    folded, images = second.folded([second.deepest]), torch.rand(2, 3, 64, 96)
    assert (folded is second) == (name == "test_vit")
    assert not any(isinstance(module, nn.BatchNorm2d) for module in folded.modules())
    with torch.inference_mode():
        (before,), (after,) = (FeatureExtractor(network, [second.deepest])(images) for network in (second, folded))
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
    alone = nn.Sequential(
        nn.Sequential(nn.Conv2d(3, 4, 1)), nn.BatchNorm2d(4)
    ).eval()  # "0" holds the convolution and not the norm
    assert [isinstance(fold_norms(alone, images, keep)[1], nn.BatchNorm2d) for keep in (["0"], ["1"])] == [True, False]  # type: ignore[index]
    with torch.inference_mode():
        assert torch.allclose(network(images), folded(images), rtol=1e-5, atol=1e-6)
    assert isinstance(network.of_plain, nn.BatchNorm2d)


class PreActivated(nn.Module):
    """A residual branch beside the norm of what a convolution makes."""

    pretrained_cfg: ClassVar[dict[str, Any]] = {"input_size": (3, 16, 16)}

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.whole = nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Identity()

    def forward_features(self, images: Tensor) -> Tensor:
        made = self.conv(images)
        return self.whole(made + self.norm(made))


def test_a_witness_that_folding_would_change_stays_as_it_is() -> None:
    torch.manual_seed(0)
    second = SecondEncoder("test_efficientnet", HALF, HALF)
    second.encoder = randomise(PreActivated())
    assert second.folded(["encoder.whole"]) is second
    assert second.folded(["encoder.norm"]) is not second
    second = SecondEncoder("test_efficientnet", HALF, HALF)
    assert second.folded(["encoder.bn1.act"]) is not second
