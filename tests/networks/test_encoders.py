"""Pretrained encoders: files in the names of smp, timm and torchvision are matched by name, others are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest
import segmentation_models_pytorch as smp
import timm
import torch
import torchvision
from torch import Tensor, nn

from segunc.core.errors import InputError
from segunc.networks.features import FeatureExtractor, SecondEncoder, fold_norms
from segunc.networks.smp import encoder_normalisation, load_encoder_weights
from tests.affine.networks import randomise

IMAGES = torch.rand(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))


def encoder(name: str) -> nn.Module:
    made: nn.Module = smp.encoders.get_encoder(name, weights=None)
    return made.eval()


@pytest.mark.parametrize(
    ("name", "theirs"),
    [
        ("resnet50", lambda: torchvision.models.resnet50(weights=None)),
        ("tu-resnet50", lambda: timm.create_model("resnet50", pretrained=False)),
        ("tu-resnet50", lambda: torchvision.models.resnet50(weights=None)),
        ("tu-convnext_atto", lambda: timm.create_model("convnext_atto", pretrained=False)),
    ],
    ids=["torchvision", "timm", "torchvision into timm", "joined names"],
)
def test_the_file_that_everybody_has_is_taken(tmp_path: Path, name: str, theirs: type[nn.Module]) -> None:
    torch.manual_seed(1)
    network = theirs()
    torch.save(network.state_dict(), tmp_path / "weights.pth")
    ours = encoder(name)
    notes = load_encoder_weights(ours, name, str(tmp_path / "weights.pth"))
    assert "left out" in notes[0]
    values = {value.numpy().tobytes() for value in network.state_dict().values()}
    assert all(v.numpy().tobytes() in values for v in ours.state_dict().values() if v.is_floating_point())


def test_timm_s_network_is_reproduced_exactly(tmp_path: Path) -> None:
    torch.manual_seed(1)
    network = timm.create_model("tf_efficientnet_lite0", pretrained=False, features_only=True).eval()
    whole = timm.create_model("tf_efficientnet_lite0", pretrained=False)
    network.load_state_dict(whole.state_dict(), strict=False)
    torch.save(whole.state_dict(), tmp_path / "weights.pth")
    ours = encoder("tu-tf_efficientnet_lite0")
    load_encoder_weights(ours, "tu-tf_efficientnet_lite0", str(tmp_path / "weights.pth"))
    with torch.inference_mode():
        for mine, theirs in zip(ours(IMAGES)[-5:], network(IMAGES), strict=True):
            assert torch.equal(mine, theirs)


def test_a_whole_network_s_file_gives_its_encoder(tmp_path: Path) -> None:
    torch.manual_seed(1)
    network = smp.Unet("resnet18", encoder_weights=None, classes=3)
    torch.save({"state_dict": {f"model.{k}": v for k, v in network.state_dict().items()}}, tmp_path / "run.ckpt")
    ours = encoder("resnet18")
    (note,) = load_encoder_weights(ours, "resnet18", str(tmp_path / "run.ckpt"))
    assert "took the weights under 'state_dict.model.encoder'; left out" in note
    assert torch.equal(ours.state_dict()["conv1.weight"], network.encoder.conv1.weight)


@pytest.mark.parametrize(
    ("name", "theirs", "said"),
    [
        ("resnet18", "resnet50", "do not fit"),
        ("resnet50", "resnet101", "unknown"),  # its further blocks are no classifier
    ],
)
def test_the_file_of_another_encoder_is_refused(tmp_path: Path, name: str, theirs: str, said: str) -> None:
    torch.save(torchvision.models.get_model(theirs, weights=None).state_dict(), tmp_path / "weights.pth")
    with pytest.raises(InputError, match=said):
        load_encoder_weights(encoder(name), name, str(tmp_path / "weights.pth"))


def test_names_of_smp_need_a_connection_and_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"encoder weights 'imagnet'.*imagenet"):
        load_encoder_weights(encoder("resnet18"), "resnet18", "imagnet")

    def no_connection(*_: object, **__: object) -> None:
        raise OSError("We couldn't connect to the hub\nand so on")

    monkeypatch.setattr("segmentation_models_pytorch.encoders.hf_hub_download", no_connection)
    with pytest.raises(InputError, match=r"cannot be downloaded \(OSError: We couldn't connect to the hub and so on\)"):
        load_encoder_weights(encoder("resnet18"), "resnet18", "imagenet")


def test_each_encoder_has_the_normalisation_of_its_weights() -> None:
    half = (0.5, 0.5, 0.5)
    assert encoder_normalisation("tu-tf_efficientnet_lite0") == (half, half)
    for name in ("resnet50", "mit_b0"):
        assert encoder_normalisation(name) == ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


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
