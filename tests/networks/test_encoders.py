"""Pretrained encoders: files in the names of smp, timm and torchvision are matched by name, others are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import segmentation_models_pytorch as smp
import timm
import torch
import torchvision
from torch import nn

from segunc.core.errors import InputError
from segunc.networks.smp import encoder_normalisation, load_encoder_weights

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
        ("tu-tf_efficientnet_lite0", lambda: timm.create_model("tf_efficientnet_lite0", pretrained=False)),
        ("tu-convnext_atto", lambda: timm.create_model("convnext_atto", pretrained=False)),
    ],
    ids=["torchvision", "timm", "torchvision into timm", "lite", "joined names"],
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
    assert encoder_normalisation("timm-tf_efficientnet_lite0") == (half, half)
    assert encoder_normalisation("resnet50") == ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    assert encoder_normalisation("mit_b0") == ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
