"""Weights in the names of efficientnet_pytorch, which smp's own EfficientNets have, too."""

from pathlib import Path

import pytest
import segmentation_models_pytorch as smp
import timm
import torch

from segunc.core.errors import InputError
from segunc.networks.smp import load_encoder_weights


@pytest.fixture(scope="module")
def encoder() -> torch.nn.Module:
    """An EfficientNet-B0 of smp with random statistics."""
    torch.manual_seed(0)
    network: torch.nn.Module = smp.encoders.get_encoder("efficientnet-b0", weights=None).eval()
    for module in network.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
    return network


def test_an_efficientnet_of_timm_takes_them(encoder: torch.nn.Module, tmp_path: Path) -> None:
    classifier = {"_fc.weight": torch.zeros(1000, 1280), "_fc.bias": torch.zeros(1000)}
    torch.save({**encoder.state_dict(), **classifier}, tmp_path / "b0.pth")
    ours = timm.create_model("tf_efficientnet_b0", num_classes=0).eval()
    notes = load_encoder_weights(ours, "tf_efficientnet_b0", str(tmp_path / "b0.pth"))
    assert notes == [
        f"{tmp_path / 'b0.pth'}: took the weights; left out 2 tensors, e.g. classifier.weight, "
        "classifier.bias"
    ]
    images = torch.rand(1, 3, 64, 64)
    with torch.inference_mode():
        maps = ours.blocks(ours.bn1(ours.conv_stem(images)))
        assert torch.equal(maps, encoder(images)[-1])


def test_the_wrapper_of_smp_takes_them(encoder: torch.nn.Module, tmp_path: Path) -> None:
    torch.save(encoder.state_dict(), tmp_path / "b0.pth")
    ours = smp.encoders.get_encoder("tu-tf_efficientnet_b0", weights=None).eval()
    load_encoder_weights(ours, "tu-tf_efficientnet_b0", str(tmp_path / "b0.pth"))
    images = torch.rand(1, 3, 64, 64)
    with torch.inference_mode():
        assert torch.equal(ours(images)[-1], encoder(images)[-1])


def test_an_efficientnet_of_another_depth_is_refused(
    encoder: torch.nn.Module, tmp_path: Path
) -> None:
    torch.save(encoder.state_dict(), tmp_path / "b0.pth")
    deeper = timm.create_model("tf_efficientnet_b1", num_classes=0)
    with pytest.raises(InputError, match=r"b0\.pth do not fit the network: .* missing"):
        load_encoder_weights(deeper, "tf_efficientnet_b1", str(tmp_path / "b0.pth"))


def test_the_names_of_smp_itself_stay_as_they_are(encoder: torch.nn.Module, tmp_path: Path) -> None:
    torch.save(encoder.state_dict(), tmp_path / "b0.pth")
    same = smp.encoders.get_encoder("efficientnet-b0", weights=None)
    assert load_encoder_weights(same, "efficientnet-b0", str(tmp_path / "b0.pth")) == []
    weight = same.state_dict()["_conv_stem.weight"]
    assert torch.equal(weight, encoder.state_dict()["_conv_stem.weight"])
