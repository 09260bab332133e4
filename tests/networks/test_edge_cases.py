"""Networks, their copies and their files where something lacks or does not fit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.error import URLError

import pytest
import segmentation_models_pytorch as smp
import torch
from torch import Tensor, nn

import segunc
from segunc.core.errors import InputError, NoteWarning
from segunc.networks import NetworkDescription, SegmentationNetwork
from segunc.networks.copies import check_copy, check_copyable
from segunc.networks.endings import last_function
from segunc.networks.gradients import replace_inference_tensors, run_with_gradients
from segunc.networks.import_sources import Wishes, check_network
from segunc.networks.network import check_images, check_parameters, settle_outputs, softmax_output
from segunc.networks.smp import load_encoder_weights, read as read_smp
from segunc.networks.torchvision import read as read_torchvision
from segunc.networks.weights import load_foreign, read_state

CLASSES = ("road", "car")
NORMAL: dict[str, Any] = {"mean": (0.4, 0.5, 0.6), "std": (0.2, 0.25, 0.3)}


class Failing(nn.Module):
    """Makes logits, but for frames on which it raises an error."""

    def __init__(self, error: Exception, fails_on: Callable[[Tensor], bool]) -> None:
        super().__init__()
        self.head = nn.Conv2d(3, 2, 1)
        self.error = error
        self.fails_on = fails_on

    def forward(self, images: Tensor) -> Tensor:
        if self.fails_on(images):
            raise self.error
        logits: Tensor = self.head(images)
        return logits


def always(images: Tensor) -> bool:
    return True


def never(images: Tensor) -> bool:
    return False


def of_two_frames(images: Tensor) -> bool:
    return len(images) == 2


def network_of(body: nn.Module, classes: tuple[str, ...] = CLASSES) -> SegmentationNetwork:
    description = NetworkDescription("body", "", classes, kind="python", **NORMAL)
    return SegmentationNetwork(body, description, stride=1)


def test_a_network_that_fails_on_all_frames_cannot_be_checked() -> None:
    network = Failing(ValueError("too small"), always)
    with pytest.raises(InputError, match=r"fails on frames of 128 x 192, .*\(.*too small\)"):
        check_copy(network, network)


def test_the_lack_of_memory_of_a_network_is_not_taken_for_a_wrong_size() -> None:
    network = Failing(MemoryError("64 GiB"), always)
    with pytest.raises(MemoryError, match="64 GiB"):
        check_copy(network, network)


def test_a_copy_that_fails_where_its_network_does_not_is_refused() -> None:
    error = ValueError("lost its features")
    with pytest.raises(InputError, match=r"copy of the network fails .*lost its features"):
        check_copy(Failing(error, never), Failing(error, always))


def test_the_lack_of_memory_of_a_copy_is_not_taken_for_a_wrong_copy() -> None:
    error = MemoryError("64 GiB")
    with pytest.raises(MemoryError, match="64 GiB"):
        check_copy(Failing(error, never), Failing(error, always))


def test_a_copy_whose_logits_have_another_shape_is_refused() -> None:
    with pytest.raises(InputError, match="other logits, by inf of the largest"):
        check_copy(nn.Conv2d(3, 2, 1), nn.Conv2d(3, 4, 1))


def test_modules_that_python_cannot_copy_are_refused() -> None:
    network = nn.Conv2d(3, 2, 1)
    network.numbers = (number for number in range(3))  # type: ignore[assignment]
    with pytest.raises(InputError, match=r"the network cannot be copied \(.*generator"):
        check_copyable(network)


def test_a_network_without_a_class_is_refused() -> None:
    with pytest.raises(InputError, match="a network has 1 to 255 classes, not 0"):
        NetworkDescription("Unet", "resnet18", ())


def test_a_blank_class_name_is_refused_by_its_number() -> None:
    with pytest.raises(InputError, match=r"class 1 of \('road', ' '\) has no name"):
        NetworkDescription("Unet", "resnet18", ("road", " "))


def test_a_palette_of_fewer_colours_than_classes_is_refused() -> None:
    with pytest.raises(InputError, match="a palette of 1 colours does not fit 2 classes"):
        NetworkDescription("Unet", "resnet18", CLASSES, palette=((0, 0, 0),))


def test_the_lack_of_memory_behind_an_unknown_ending_passes() -> None:
    network = Failing(MemoryError("64 GiB"), always)
    with pytest.raises(MemoryError, match="64 GiB"):
        last_function(network, torch.zeros(1, 3, 4, 4))


def test_a_parameter_of_inference_mode_stays_a_parameter() -> None:
    with torch.inference_mode():
        network = nn.Conv2d(3, 2, 1)
    before = network.weight.clone()
    assert network.weight.is_inference()
    replace_inference_tensors(network)
    assert isinstance(network.weight, nn.Parameter)
    assert not network.weight.is_inference()
    assert network.weight.requires_grad
    assert torch.equal(network.weight, before)


def test_tensors_of_inference_mode_in_a_dictionary_that_holds_itself_are_replaced() -> None:
    network = nn.Conv2d(3, 2, 1)
    with torch.inference_mode():
        kept: dict[str, Any] = {"grid": torch.ones(2)}
    kept["again"] = kept
    network.kept = kept  # type: ignore[assignment]
    replace_inference_tensors(network)
    assert not kept["grid"].is_inference()
    assert kept["again"] is kept


def test_another_error_behind_that_of_inference_tensors_passes() -> None:
    class TwoErrors(nn.Module):
        calls = 0

        def forward(self, images: Tensor) -> Tensor:
            self.calls += 1
            kinds = ("Inference tensors cannot be saved for backward", "sizes do not match")
            raise RuntimeError(kinds[self.calls - 1])

    with pytest.raises(RuntimeError, match="sizes do not match"):
        run_with_gradients(TwoErrors(), torch.zeros(1, 3, 4, 4))


def test_a_network_that_fails_on_two_frames_is_refused() -> None:
    network = network_of(Failing(ValueError("one at a time"), of_two_frames))
    with pytest.raises(InputError, match=r"fails on two frames of 128 x 192 \(.*one at a time"):
        check_network(network)


def test_a_network_without_parameters_normalises_in_float32() -> None:
    network = network_of(nn.Identity(), ("red", "green", "blue"))
    check_parameters(network)
    assert network.mean.dtype == torch.float32


def test_a_network_that_takes_no_frame_keeps_its_classes() -> None:
    network = network_of(Failing(ValueError("too small"), always))
    assert settle_outputs(network) == ""
    assert not network.description.binary


def test_no_images_have_no_value_out_of_range() -> None:
    check_images(torch.zeros(0, 3, 4, 4))


def test_one_output_is_no_softmax() -> None:
    # Its values are 1 and sum to 1, as probabilities of two classes or more would.
    assert softmax_output(torch.ones(1, 1, 2, 2)) == ""


@pytest.mark.parametrize(
    ("config", "fault"),
    [
        (
            {"_model_class": "Unet", "in_channels": 4},
            "a network of 4 channels and does not say how its images are normalised",
        ),
        ({"_model_class": "Nobody", "in_channels": 3}, "holds 'Nobody', which is none of smp's"),
    ],
    ids=["channels", "architecture"],
)
def test_a_folder_of_smp_that_does_not_fit_is_refused(
    tmp_path: Path, config: dict[str, Any], fault: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(InputError, match=fault):
        read_smp(str(tmp_path), Wishes())


def test_published_weights_of_torchvision_that_cannot_be_downloaded_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))

    def refuse(*_: object, **__: object) -> None:
        raise URLError("Name or service not known")

    monkeypatch.setattr("torch.hub.download_url_to_file", refuse)
    with pytest.raises(InputError, match="fcn_resnet50 cannot be downloaded") as error:
        read_torchvision("fcn_resnet50", Wishes())
    assert error.value.hint == "--weights FILE, a state dict"


def test_weights_without_a_classifier_do_not_name_the_classes_of_torchvision() -> None:
    wishes = Wishes(state={"backbone.weight": torch.zeros(21)})
    with pytest.raises(InputError, match="fcn_resnet50 does not give its class names"):
        read_torchvision("fcn_resnet50", wishes)


def test_a_checkpoint_without_tensors_is_refused_by_its_keys(tmp_path: Path) -> None:
    torch.save({"epoch": 3, "best": 0.5}, tmp_path / "weights.pt")
    with pytest.raises(InputError, match=r"no state dict \(it has the keys epoch, best\)"):
        read_state(tmp_path / "weights.pt")


class Counting(nn.Module):
    """A weight, and a table of whole numbers."""

    table: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)
        self.register_buffer("table", torch.zeros(2, dtype=torch.int64))


def test_whole_numbers_of_a_narrower_type_are_taken() -> None:
    network = Counting()
    table = torch.tensor([3, 5], dtype=torch.int32)
    load_foreign(network, network.state_dict() | {"table": table}, "weights.pt")
    assert network.table.tolist() == [3, 5]


def test_whole_numbers_are_not_read_from_floats() -> None:
    network = Counting()
    state = network.state_dict() | {"table": torch.tensor([3.5, 5.0])}
    with pytest.raises(InputError, match=r"table is of type torch.float32, .*torch.int64"):
        load_foreign(network, state, "weights.pt")


def test_a_mean_of_another_length_than_the_std_is_refused() -> None:
    with pytest.raises(InputError, match="the input mean has 2 numbers and the std 3"):
        NetworkDescription("Unet", "resnet18", CLASSES, mean=(0.5, 0.5))


def test_a_network_without_a_channel_is_refused() -> None:
    with pytest.raises(InputError, match="1 to 256 input channels, not 0"):
        NetworkDescription("Unet", "resnet18", CLASSES, mean=(), std=())


def test_a_dropped_output_that_does_not_exist_is_refused() -> None:
    with pytest.raises(
        InputError, match=r"dropped outputs \(3,\) are not different ones that exist"
    ):
        NetworkDescription("Unet", "resnet18", CLASSES, dropped_outputs=(3,))


class Pair(nn.Module):
    """Returns its logits twice."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Conv2d(3, 2, 1)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        return self.head(images), self.head(images)


FRAMES = torch.rand(2, 3, 8, 12, generator=torch.Generator().manual_seed(0))


class WithLogits:
    """An output as that of transformers, which is neither a dictionary nor a tuple."""

    def __init__(self, logits: Tensor) -> None:
        self.logits = logits


@pytest.mark.parametrize(
    "outputs",
    [
        lambda logits: (logits, logits + 1),
        lambda logits: [logits],
        lambda logits: {"aux": logits + 1, "out": logits},
        lambda logits: {"loss": None, "logits": logits},
        WithLogits,
    ],
    ids=["tuple", "list", "out", "logits", "attribute"],
)
def test_logits_are_found_in_what_a_forward_returns(outputs: Any) -> None:
    class Outputs(Pair):
        def forward(self, images: Tensor) -> Any:
            return outputs(self.head(images))

    network = network_of(Outputs())
    expected = network.body.head(network.prepared(FRAMES))  # type: ignore[union-attr,operator]
    assert torch.equal(network(FRAMES), expected)


def test_logits_of_another_size_are_resized_bilinearly() -> None:
    class Small(Pair):
        def forward(self, images: Tensor) -> Any:
            return self.head(images)[..., ::4, ::4]

    network = network_of(Small())
    small = network.body(network.prepared(FRAMES))
    assert small.shape == (2, 2, 2, 3)
    expected = nn.functional.interpolate(small, (8, 12), mode="bilinear", align_corners=False)
    assert torch.equal(network(FRAMES), expected)


@pytest.mark.parametrize("size", [(12, 8), (1, 1), (8, 3)])
def test_logits_of_another_aspect_ratio_are_refused(size: tuple[int, int]) -> None:
    class Other(Pair):
        def forward(self, images: Tensor) -> Any:
            return images.new_zeros(len(images), 2, *size)

    with pytest.raises(InputError, match=rf"gives logits of {size[0]} x {size[1]} for frames of 8"):
        network_of(Other())(FRAMES)


@pytest.mark.parametrize("outputs", [{"aux": torch.zeros(1)}, (), "logits", None])
def test_a_forward_without_logits_is_refused(outputs: Any) -> None:
    class Nothing(Pair):
        def forward(self, images: Tensor) -> Any:
            return outputs

    with pytest.raises(InputError, match="without a tensor of logits"):
        network_of(Nothing())(FRAMES)


def test_what_was_taken_for_the_logits_is_said() -> None:
    class Several(Pair):
        def forward(self, images: Tensor) -> Any:
            return self.head(images)[..., ::4, ::4], images

    note = "the first of 2 results .* logits of 32 x 48 for frames of 128 x 192"
    with pytest.warns(NoteWarning, match=note):
        segunc.wrap(Several(), CLASSES[:2])


def test_a_softmax_in_a_dictionary_is_found() -> None:
    class Soft(Pair):
        def forward(self, images: Tensor) -> Any:
            return {"logits": self.head(images).softmax(1)}

    with pytest.raises(InputError, match=r"softmax|probabilities"):
        segunc.wrap(Soft(), CLASSES[:2])


def test_a_softmax_is_found_where_the_kept_shares_do_not_sum_to_1() -> None:
    torch.manual_seed(0)
    body = nn.Sequential(nn.Conv2d(3, 3, 1), nn.Softmax(1))
    description = NetworkDescription(
        "body", "", CLASSES, kind="python", dropped_outputs=(2,), **NORMAL
    )
    with pytest.raises(InputError, match="Sequential ends in a softmax: its outputs"):
        check_network(SegmentationNetwork(body, description, stride=1))


class Wrapped(nn.Module):
    """Has all its weights in a part named model."""

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Sequential(nn.Linear(2, 1), nn.Linear(1, 1))


def test_a_layer_more_of_a_wrapped_network_is_refused() -> None:
    network = Wrapped()
    state = network.state_dict() | {"model.0.scale": torch.ones(1)}
    with pytest.raises(InputError, match=r"unknown .*model\.0\.scale"):
        load_foreign(network, state, "weights.pt")


def test_an_encoder_takes_the_weights_that_smp_has_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = nn.Linear(2, 1)
    theirs = nn.Linear(2, 1)
    monkeypatch.setattr(smp.encoders, "get_encoder", lambda name, **arguments: theirs)
    assert load_encoder_weights(ours, "resnet18", "imagenet") == []
    assert torch.equal(ours.weight, theirs.weight)
