"""Networks from their descriptions, and input of any size."""

from __future__ import annotations

import resource
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from segunc.core.errors import InputError
from segunc.networks import NetworkDescription, SegmentationNetwork, build_network
from segunc.networks.files import KINDS, weights_bytes
from segunc.networks.network import inference_size

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


@pytest.mark.parametrize(
    "description",
    [
        describe("Onet", "resnet18"),
        describe("Unet", "resnet19"),
        describe("Unet", "tu-no_such_model"),
        describe("Unet", "resnet18", decoder_colour=3),
        describe("Unet", "resnet18", decoder_channels=[8, 8]),
        describe("Unet", "resnet18", encoder_depth=99),
        describe("Unet", "resnet18", classes=4),
        describe("Unet", "resnet18", encoder_weights="imagenet"),
    ],
)
def test_what_cannot_be_built_is_refused_in_a_line(description: NetworkDescription) -> None:
    with pytest.raises(InputError) as caught:
        build_network(description)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_input_and_output_of_a_wrong_shape_are_refused() -> None:
    network = SegmentationNetwork(torch.nn.Conv2d(3, 3, 1), describe("x", "y"), 1)
    for shape in ((3, 8, 8), (1, 8, 8, 3)):
        with pytest.raises(InputError, match="check the order of the axes"):
            network(torch.zeros(shape))
    with pytest.raises(InputError, match="4 output channels, but 3"):
        SegmentationNetwork(torch.nn.Conv2d(3, 4, 1), describe("x", "y"), 1)(torch.zeros(1, 3, 8, 8))


@pytest.mark.parametrize(
    ("wanted", "frame", "override", "seen"),
    [
        (None, (719, 1283), None, (719, 1283)),  # no size of its own: the frame's
        ((360, 480), (720, 960), None, (360, 480)),  # same aspect ratio: exactly that size
        ((360, 480), (725, 960), None, (360, 480)),  # within 2 %
        ((360, 480), (720, 1280), None, (304, 560)),  # another: about as many pixels, sides in 16s
        ((512, 512), (100, 10000), None, (48, 5120)),
        ((16, 16), (10, 100000), None, (16, 1600)),  # never below 16
        ((360, 480), (720, 960), (100, 200), (100, 200)),  # an override decides alone
    ],
)
def test_inference_size(wanted: Any, frame: tuple[int, int], override: Any, seen: tuple[int, int]) -> None:
    assert inference_size(replace(describe("x", "y"), inference_size=wanted), frame, override) == seen


SEGFORMER = {"kind": "transformers", "architecture": "SegformerForSemanticSegmentation", "encoder": ""}
MOST = 1 << 30


@pytest.mark.parametrize(
    "description",
    [
        describe("FPN", "resnet18", decoder_pyramid_channels=200_000),
        describe("Unet", "resnet18", decoder_channels=[10**9] * 5),
        *(
            replace(describe("", ""), **SEGFORMER, options={"config": config})
            for config in (
                {"num_labels": 10**9},
                {"depths": [100_000, 1, 1, 1], "hidden_sizes": [1] * 4, "num_attention_heads": [1] * 4},
                {"hidden_sizes": [32, 64, 160, 100_000]},
            )
        ),
        replace(
            describe("", "", config={"image_size": 40_000, "patch_size": 1, "num_hidden_layers": 12}),
            kind="transformers",
            architecture="DPTForSemanticSegmentation",
        ),
    ],
    ids=lambda description: str(description.options)[:60],
)
def test_a_network_that_its_weights_cannot_fill_is_refused_before_it_takes_memory(
    description: NetworkDescription,
) -> None:
    if description.kind == "transformers":
        pytest.importorskip("transformers")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    with pytest.raises(InputError, match="network"):
        build_network(description, {"a": torch.zeros(1000)})
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before < MOST


@pytest.mark.parametrize("encoder", ["vgg11", "tu-swin_tiny_patch4_window7_224"])
def test_a_network_that_its_weights_fill_is_built_as_without_them(encoder: str) -> None:
    """VGG builds a classifier that is cut off, Swin tables that no file holds."""
    description = describe("Unet", encoder)
    torch.manual_seed(0)
    expected = KINDS[description.kind](description)[0].state_dict()
    torch.manual_seed(0)
    built = build_network(description, expected).body.state_dict()
    assert built.keys() == expected.keys()
    assert all(torch.equal(built[name], value) for name, value in expected.items())


def test_bytes_that_several_names_share_count_once() -> None:
    shared = torch.zeros(100)
    assert weights_bytes({"a": shared, "b": shared[:50], "c": torch.zeros(7, dtype=torch.int64)}) == 456
