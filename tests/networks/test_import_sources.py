"""Networks of others become model folders that compute the same, or are refused in one line with
nothing written.
"""

import json
import math
import shutil
import socket
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import segmentation_models_pytorch as smp
import torch
import torchvision
from torch import nn

import segunc
from segunc import InputError, Sampler, import_network, load_network
from segunc.baselines.mixtures import TTA
from segunc.core.errors import NoteWarning
from segunc.core.trust import TRUST
from segunc.data.labels import label_map
from segunc.networks import (
    NetworkDescription,
    SegmentationNetwork,
    build_network,
    save_network,
)
from segunc.options import ImportOptions

SIZE = (64, 96)
IMAGES = torch.rand(2, 3, *SIZE, generator=torch.Generator().manual_seed(0))
CLASSES = "road,car,sky"
NORMAL: dict[str, Any] = {"mean": (0.4, 0.5, 0.6), "std": (0.2, 0.25, 0.3)}


def normalised(images: torch.Tensor) -> torch.Tensor:
    mean, std = (torch.tensor(NORMAL[name]).view(3, 1, 1) for name in ("mean", "std"))
    return (images - mean) / std


def imported(tmp_path: Path, source: str, **options: Any) -> Any:
    given = (
        {
            "classes": CLASSES,
            "size": SIZE,
            "out": tmp_path / "imported",
        }
        | NORMAL
        | options
    )
    import_network(ImportOptions(source=source, **given))
    return load_network(tmp_path / "imported")


def logits(network: nn.Module, images: torch.Tensor) -> Any:
    with torch.inference_mode():
        return network.eval()(images)


def resnet_file(path: Path, wrapper: str = "") -> nn.Module:
    torch.manual_seed(0)
    network: nn.Module = torchvision.models.get_model(
        "lraspp_mobilenet_v3_large", weights=None, weights_backbone=None, num_classes=3
    )
    torch.save({f"{wrapper}{name}": value for name, value in network.state_dict().items()}, path)
    return network


@pytest.mark.parametrize("wrapper", ["", "student.network."])
def test_torchvision_by_name_with_a_file_of_any_prefix(tmp_path: Path, wrapper: str) -> None:
    theirs = resnet_file(tmp_path / "weights.pth", wrapper)
    ours = imported(
        tmp_path, "torchvision:lraspp_mobilenet_v3_large", weights=tmp_path / "weights.pth"
    )
    assert torch.equal(logits(ours, IMAGES), logits(theirs, normalised(IMAGES))["out"])
    assert ours.description.classes == ("road", "car", "sky")


def test_torchvision_knows_its_normalisation_and_the_classes_of_its_own_weights(
    tmp_path: Path,
) -> None:
    name = "deeplabv3_mobilenet_v3_large"
    network = torchvision.models.get_model(
        name, weights=None, weights_backbone=None, num_classes=21, aux_loss=True
    )
    torch.save(network.state_dict(), tmp_path / "weights.pth")
    unsaid = {"classes": None, "mean": None, "std": None}
    ours = imported(tmp_path, f"torchvision:{name}", weights=tmp_path / "weights.pth", **unsaid)
    assert ours.description.mean == (0.485, 0.456, 0.406)
    assert ours.description.classes[15] == "person"
    assert ours.description.options == {"aux_loss": True}


def test_smp_reads_what_save_pretrained_wrote(tmp_path: Path) -> None:
    torch.manual_seed(0)
    theirs = smp.FPN("resnet18", encoder_weights=None, classes=3, decoder_pyramid_channels=32)
    theirs.save_pretrained(tmp_path / "theirs")
    ours = imported(tmp_path, f"smp:{tmp_path / 'theirs'}")
    assert torch.equal(logits(ours, IMAGES), logits(theirs, normalised(IMAGES)))
    config = json.loads((tmp_path / "theirs/config.json").read_text())
    (tmp_path / "theirs/config.json").write_text(
        json.dumps(config | {"encoder_weights": "imagenet"})
    )
    imported(tmp_path, f"smp:{tmp_path / 'theirs'}", mean=None, std=None, out=tmp_path / "again")
    assert load_network(tmp_path / "again").description.mean == (0.485, 0.456, 0.406)


def test_a_network_of_grey_frames_sees_one_channel(tmp_path: Path) -> None:
    torch.manual_seed(0)
    options = {"encoder_weights": None, "classes": 3, "decoder_pyramid_channels": 32}
    theirs = smp.FPN("resnet18", in_channels=1, **options)
    theirs.save_pretrained(tmp_path / "theirs")
    normal = {"mean": (0.4, 0.4, 0.4), "std": (0.2, 0.2, 0.2)}
    ours = imported(tmp_path, f"smp:{tmp_path / 'theirs'}", **normal)
    grey = IMAGES[:, :1]
    expected = logits(theirs, (grey - 0.4) / 0.2)
    torch.testing.assert_close(logits(ours, grey.expand(-1, 3, -1, -1)), expected)
    assert ours.description.options["in_channels"] == 1


MODULE = """
import torch
from torch import nn

class Body(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width), nn.Conv2d(width, 3, 1)
        )

    def forward(self, images):
        return {result}

def build(width=4):
    {before}
    return Body(width)

nothing = 3
"""


def write_module(
    folder: Path, result: str = "self.layers(images)", before: str = "torch.manual_seed(0)"
) -> None:
    (folder / "their_networks").mkdir(exist_ok=True)
    (folder / "their_networks/__init__.py").write_text("")
    (folder / "their_networks/one.py").write_text(MODULE.format(result=result, before=before))


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv(TRUST, raising=False)
    forget("their_networks")
    write_module(tmp_path)
    yield tmp_path
    forget("their_networks", "their_one", "their_help")


TORCHVISION = "torchvision:lraspp_mobilenet_v3_large"
PYTHON = "python:their_networks.one:build"


def test_a_factory_of_ones_own_is_run_where_its_user_agreed(
    theirs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = imported(theirs, PYTHON, trust=True, arguments={"width": 5})
    with pytest.raises(InputError, match="holds a network already"):
        imported(theirs, PYTHON, trust=True)
    assert ours.body.layers[0].out_channels == 5
    monkeypatch.setenv("XDG_CONFIG_HOME", str(theirs / "of another user"))
    with pytest.raises(InputError, match=r"nobody agreed.*--trust"):
        load_network(theirs / "imported")
    monkeypatch.setenv(TRUST, "their_networks.one:build@/elsewhere")
    with pytest.raises(InputError, match=rf"{TRUST}=their_networks.one:build@{theirs}"):
        load_network(theirs / "imported")
    monkeypatch.setenv(TRUST, f"other:build@., their_networks.one:build@{theirs}")
    assert torch.equal(logits(load_network(theirs / "imported"), IMAGES), logits(ours, IMAGES))


def test_a_module_of_no_package_is_bound_to_its_folder(
    theirs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_module(theirs, before="import their_help")
    (theirs / "their_networks/one.py").rename(theirs / "their_one.py")
    (theirs / "their_help.py").write_text("width = 3\n")
    options = {"trust": True, "out": theirs / "alone"}
    import_network(
        ImportOptions(
            source="python:their_one:build", classes=CLASSES, size=SIZE, **NORMAL, **options
        )
    )
    forget("their_one", "their_help")
    load_network(theirs / "alone")
    forget("their_one", "their_help")
    (theirs / "elsewhere").mkdir()
    shutil.move(theirs / "their_one.py", theirs / "elsewhere")
    monkeypatch.chdir(theirs / "elsewhere")
    with pytest.raises(InputError, match="nobody agreed"):
        load_network(theirs / "alone")
    assert "their_one" not in sys.modules


def forget(*names: str) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] in names]:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"before": "raise SystemExit"},
            "nobody agreed to it.*`trust`",
        ),  # nothing runs without trust
        ({"source": "torchvision:resnet50"}, "no network 'resnet50'.*deeplabv3_resnet50"),
        ({"source": TORCHVISION, "classes": "road,car"}, r"instead of \(2,\).*number of classes"),
        ({"source": "smp:nowhere"}, "'nowhere' is not a folder"),
        ({"source": "python:their_networks.one"}, r"package\.module:function"),
        (
            {"source": "python:their_networks.two:build", "trust": True},
            r"No module named .their_networks\.two",
        ),
        (
            {"source": "python:their_networks.one:bild", "trust": True},
            "the module their_networks.one has no function 'bild', but build, .*"
            "python:their_networks.one:build",
        ),
        (
            {"source": "python:their_networks.one:bild", "trust": True, "classes": None},
            "has no function 'bild'",  # before what the network would need is asked for
        ),
        (
            {"source": "python:their_networks.one:nn", "trust": True},
            "their_networks.one:nn is of type module, not a function or class, but ",
        ),
        ({"trust": True, "arguments": {"depth": 3}}, "raises TypeError.*depth"),
        ({"trust": True, "classes": None}, "does not give its class names.*`classes`"),
        ({"trust": True, "classes": "road,car"}, "3 output channels, but 2"),
        (
            {"trust": True, "result": "self.layers(images)[..., ::2]"},
            "of 64 x 48 for frames of 64 x 96",
        ),
        ({"trust": True, "result": "self.layers(images) * float('nan')"}, "not finite"),
        (
            {"trust": True, "result": "self.layers(images) - self.layers(images).mean(0)"},
            "depend on the other frames",
        ),
        ({"trust": True, "result": "self.layers(images).softmax(1)"}, "returns probabilities"),
        (
            {"trust": True, "result": "torch.ops.their.kernel(images)"},
            "fails on a frame of.*kernel",
        ),
        ({"trust": True, "before": "raise OSError('no\\nlicence')"}, "raises OSError: no licence"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(
    theirs: Path, change: dict[str, Any], said: str
) -> None:
    module = {name: change.pop(name) for name in ("result", "before") if name in change}
    write_module(theirs, **module)
    resnet_file(theirs / "weights.pth")
    change = {"source": PYTHON} | change
    if change["source"].startswith("torchvision"):
        change["weights"] = theirs / "weights.pth"
    with pytest.raises(InputError, match=said) as caught:
        imported(theirs, **change)
    assert "\n" not in str(caught.value)
    assert not (theirs / "imported").exists()


@pytest.mark.parametrize(("mean", "std"), [((0.4, 0.5, 0.6), (58, 57, 57)), ((0,) * 3, (255,) * 3)])
def test_a_deviation_of_images_in_0_to_255_is_refused(
    theirs: Path, mean: tuple[float, ...], std: tuple[float, ...]
) -> None:
    with pytest.raises(InputError, match=r"input std .* is of images in 0\.\.255.*divide mean and"):
        imported(theirs, PYTHON, trust=True, mean=mean, std=std)
    assert not (theirs / "imported").exists()


@pytest.mark.parametrize(
    ("classes", "is_noted"), [("car,road,sky", True), (CLASSES, False), ("car,lane,sky", False)]
)
def test_classes_in_another_order_than_that_of_the_source_are_noted(
    theirs: Path, classes: str, is_noted: bool
) -> None:
    code = theirs / "their_networks/one.py"
    code.write_text(f"{code.read_text()}\nbuild.segunc = {{'classes': {CLASSES.split(',')}}}\n")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        imported(theirs, PYTHON, trust=True, classes=classes)
    notes = [str(warning.message) for warning in caught if warning.category is NoteWarning]
    said = "another order than --classes, which names the output 'road' 'car'"
    assert any(said in note for note in notes) == is_noted


PRETRAINED = {"pretrained": True}


@pytest.mark.parametrize(
    ("kind", "architecture", "encoder", "options"),
    [
        *(
            ("smp", "Unet", f"tu-{hub}:timm/resnet18.a1_in1k", {})
            for hub in ("hf_hub", "local-dir")
        ),
        *(
            ("smp", "Unet", name, {})
            for name in ("hf-hub:x/y", "tu-timm/resnet18", "timm/resnet18", "tu-../x")
        ),
        *(
            ("smp", "Unet", "tu-resnet18", options)
            for options in (PRETRAINED, {"pretrained_cfg": {"url": "https://x"}})
        ),
        *(
            ("torchvision", "fcn_resnet50", "", {key: "DEFAULT"})
            for key in ("weights", "weights_backbone")
        ),
    ],
)
def test_a_description_that_points_outside_is_refused_without_a_connection(
    kind: str,
    architecture: str,
    encoder: str,
    options: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    def refuse(*where: Any, **more: Any) -> None:
        asked.append(where)  # who asks may swallow the error
        raise OSError("no connection")

    for place, name in (
        (socket.socket, "connect"),
        (socket, "create_connection"),
        (socket, "getaddrinfo"),
    ):
        monkeypatch.setattr(place, name, refuse)
    with pytest.raises(InputError) as error:
        build_network(
            NetworkDescription(architecture, encoder, ("a", "b"), options=options, kind=kind)
        )
    assert asked == []
    assert "\n" not in str(error.value)


FRAMES = torch.rand(2, 3, 100, 168, generator=torch.Generator().manual_seed(0))
SIZED = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, depth, fixed, outputs, softmax, end):
        super().__init__()
        self.down = nn.Sequential()
        for i in range(depth):
            convolution = nn.Conv2d(3 if i == 0 else 4, 4, 3, 2, 1)
            self.down.append(nn.Sequential(convolution, nn.BatchNorm2d(4), nn.ReLU()))
        self.skip = nn.Conv2d(3, 4, 1)
        self.up = nn.Upsample(scale_factor=2 ** depth)
        self.head = nn.Conv2d(4, outputs, 1)
        self.fixed = fixed
        self.softmax = softmax
        self.end = end

    def forward(self, x):
        assert not self.fixed or x.shape[-2:] == (96, 160)
        # The sum fails where the sides are not multiples of 2 ** depth.
        logits = self.head(self.skip(x) + self.up(self.down(x)))
        if self.end == "sigmoid then upsampled":
            return nn.functional.interpolate(logits[..., ::2, ::2].sigmoid(), scale_factor=2)
        if self.end == "gated":
            return logits * logits.sigmoid()
        if self.end == "scripted":
            return scripted(logits)
        if self.end == "clamped":
            return logits.clamp(0, 1)
        return logits.softmax(1) if self.softmax else logits

@torch.jit.script
def scripted(x: torch.Tensor):
    return torch.sigmoid(x)

def build(depth=1, fixed=False, outputs=4, softmax=False, end=""):
    torch.manual_seed(0)
    return Net(depth, fixed, outputs, softmax, end)
"""
OUTPUTS = "road,void,car,sky"
ROAD = "id,name,train_id,red,green,blue\n0,road,0,128,64,128\n"


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delitem(sys.modules, "net_of_theirs", raising=False)
    (tmp_path / "net_of_theirs.py").write_text(SIZED)
    return tmp_path


def import_sized(
    folder: Path,
    size: Any = (100, 168),
    classes: str = OUTPUTS,
    drop: str | None = None,
    **arguments: Any,
) -> tuple[nn.Module, Any]:
    import net_of_theirs

    options = ImportOptions(
        source="python:net_of_theirs:build",
        **{
            "classes": classes,
            "drop_classes": drop,
            "mean": (0, 0, 0),
            "std": (1, 1, 1),
            "size": size,
            "trust": True,
        },
        **{"arguments": arguments, "out": folder / "model"},
    )
    import_network(options)
    return net_of_theirs.build(**arguments).eval(), load_network(folder / "model")


def padded(network: nn.Module, images: torch.Tensor, divisor: int) -> Any:
    height, width = images.shape[-2:]
    whole = nn.functional.pad(images, (0, -width % divisor, 0, -height % divisor), mode="replicate")
    return network(whole)[..., :height, :width]


@pytest.mark.parametrize("depth", [1, 4, 6])
@torch.no_grad()
def test_the_divisor_is_found_and_frames_are_padded_to_it(own_module: Path, depth: int) -> None:
    network, ours = import_sized(own_module, depth=depth)
    assert (ours.description.divisor, ours.stride) == (2**depth, 2**depth)
    torch.testing.assert_close(
        ours(FRAMES), padded(network, FRAMES, 2**depth), rtol=1e-5, atol=1e-6
    )


def test_a_network_of_one_size_is_imported_and_not_augmented_by_scales(own_module: Path) -> None:
    assert import_sized(own_module, (96, 160), fixed=True)[1].description.divisor is None
    with pytest.raises(InputError, match="one size alone"):
        TTA().fit(segunc.load(own_module / "model"))


@pytest.mark.parametrize(
    ("classes", "drop", "outputs", "left"),
    [
        (OUTPUTS, "void", 4, [0, 2, 3]),
        ("cityscapes", "19", 20, [*range(19)]),
        ("road,car", "0,2", 4, [1, 3]),
    ],
)
@torch.no_grad()
def test_what_is_left_is_the_network_without_the_outputs(
    own_module: Path, classes: str, drop: str, outputs: int, left: list[int]
) -> None:
    network, ours = import_sized(own_module, classes=classes, drop=drop, outputs=outputs)
    torch.testing.assert_close(ours(FRAMES), network(FRAMES)[:, left], rtol=1e-5, atol=1e-6)
    recorded = json.loads((own_module / "model/network.json").read_text())["dropped_outputs"]
    assert sorted([*recorded, *left]) == [*range(outputs)]
    if classes == "cityscapes":
        labels = label_map("cityscapes")
        assert (ours.description.classes, ours.description.palette) == (
            labels.classes,
            tuple(labels.palette),
        )
    result = Sampler(ours)(FRAMES[:1], keep_probabilities=True)
    torch.testing.assert_close(
        result.probabilities, network(FRAMES)[:1, left].softmax(1), rtol=0, atol=1e-5
    )


@pytest.mark.parametrize(
    ("drop", "classes", "softmax", "said"),
    [
        ("void", OUTPUTS, True, "probabilities"),  # seen although an output of them is dropped
        *((drop, OUTPUTS, False, r"drop.classes") for drop in ("viod", "7", OUTPUTS)),
        ("4", "road,void,car", False, r"drop.classes"),
    ],
)
def test_outputs_that_cannot_be_dropped_are_refused(
    own_module: Path, drop: str, classes: str, softmax: bool, said: str
) -> None:
    with pytest.raises(InputError, match=said):
        import_sized(own_module, classes=classes, drop=drop, softmax=softmax)
    assert not (own_module / "model").exists()


@pytest.mark.parametrize("classes", ["road.csv", "background,road"])
@torch.no_grad()
def test_one_output_is_read_as_the_logits_of_two_classes(own_module: Path, classes: str) -> None:
    (own_module / "road.csv").write_text(ROAD)
    network, ours = import_sized(own_module, classes=classes, outputs=1)
    recorded = json.loads((own_module / "model/network.json").read_text())
    assert recorded["classes"] == ["background", "road"]
    assert recorded["binary"] is True
    result = Sampler(ours)(FRAMES[:1], keep_probabilities=True)
    p = network(FRAMES[:1]).double().sigmoid()
    entropy = -(torch.special.xlogy(p, p) + torch.special.xlogy(1 - p, 1 - p)) / math.log(2)
    torch.testing.assert_close(result.probabilities[:, 1:].double(), p, rtol=0, atol=1e-6)
    torch.testing.assert_close(result.scores["entropy"].double(), entropy[:, 0], rtol=0, atol=1e-6)
    assert torch.equal(result.prediction, (p[:, 0] > 0.5).byte())


@pytest.mark.parametrize("classes", ["road.csv", "background,road"])
@torch.no_grad()
def test_one_output_of_smp_is_read_as_the_logits_of_two_classes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, classes: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "road.csv").write_text(ROAD)
    torch.manual_seed(0)
    theirs = smp.Unet("resnet18", encoder_weights=None, classes=1)
    theirs.save_pretrained(tmp_path / "theirs")
    result = import_network(
        ImportOptions(
            source=f"smp:{tmp_path / 'theirs'}",
            classes=classes,
            size=SIZE,
            out=tmp_path / "imported",
            **NORMAL,
        )
    )
    assert result.notes[0] == "one output z is read as the logits (0, z) of background and road"
    logits_of_two = logits(load_network(result.out), IMAGES)
    assert torch.equal(logits_of_two[:, 1:], logits(theirs, normalised(IMAGES)))
    assert not logits_of_two[:, 0].any()


@pytest.mark.parametrize(
    ("classes", "said"),
    [
        ("road,", "has an empty name"),
        ("road,,car,sky", "has an empty name"),
    ],
)
def test_a_class_without_a_name_is_refused(own_module: Path, classes: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        import_sized(own_module, classes=classes, outputs=1)


@pytest.mark.parametrize("end", ["sigmoid then upsampled", "scripted"])
@pytest.mark.parametrize(
    ("outputs", "classes"),
    [
        (4, OUTPUTS),
        (1, "background,road"),
    ],
)
def test_a_sigmoid_at_the_end_is_refused(
    own_module: Path, end: str, outputs: int, classes: str
) -> None:
    with pytest.raises(InputError, match="ends in a sigmoid: its outputs are not logits"):
        import_sized(own_module, classes=classes, outputs=outputs, end=end)
    assert not (own_module / "model").exists()


def test_a_sigmoid_inside_of_a_network_is_not_its_end(own_module: Path) -> None:
    import_sized(own_module, end="gated")


def test_outputs_in_0_to_1_are_said(own_module: Path) -> None:
    import net_of_theirs

    module = net_of_theirs.build(end="clamped").eval()
    with pytest.warns(UserWarning, match="all outputs of the network lie in 0..1"):
        segunc.wrap(module, tuple(OUTPUTS.split(",")), mean=(0, 0, 0), std=(1, 1, 1))


def test_an_only_class_named_background_is_refused() -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Conv2d(4, 1, 1))
    with pytest.raises(InputError, match="is named 'background'"):
        segunc.wrap(module, ("background",))


def test_a_palette_of_one_class_has_black_for_the_background() -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Conv2d(4, 1, 1))
    with pytest.warns(UserWarning, match="read as the logits"):
        model = segunc.wrap(module, ("road",), palette=((128, 64, 128),))
    assert model.network.description.classes == ("background", "road")
    assert model.network.description.palette == ((0, 0, 0), (128, 64, 128))


def test_an_older_model_folder_of_one_class_is_refused(tmp_path: Path) -> None:
    body = nn.Sequential(nn.Conv2d(3, 1, 1))
    network = SegmentationNetwork(body, NetworkDescription("a.b:c", "", ("road",), kind="python"))
    save_network(network, tmp_path / "model")
    with pytest.raises(InputError, match="has one class, whose probability is 1 everywhere"):
        load_network(tmp_path / "model")


def test_a_bare_module_of_one_output_is_refused() -> None:
    with pytest.raises(InputError, match="one output a pixel, whose softmax is 1 everywhere"):
        Sampler(nn.Sequential(nn.Conv2d(3, 4, 1), nn.Conv2d(4, 1, 1)).eval())(FRAMES)


class MixingBehindAMask(nn.Module):
    """Adds the mean over the batch, and masks its first class."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Conv2d(3, 3, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits = self.head(images + images.mean(0, keepdim=True))
        logits[:, 0] = torch.finfo(logits.dtype).min
        return logits


def test_a_masked_class_does_not_hide_that_a_batch_is_mixed() -> None:
    torch.manual_seed(0)
    with pytest.raises(InputError, match="depend on the other frames of its batch"):
        segunc.wrap(MixingBehindAMask(), ("a", "b", "c"))


@pytest.mark.parametrize(
    "names",
    [
        ("a", "b", "a", "c"),
        ("a", "caf\u00e9", "c", "cafe\u0301"),
    ],
)
def test_two_classes_of_one_name_are_refused(own_module: Path, names: tuple[str, ...]) -> None:
    """Both spellings of the accent are one name, as in label maps."""
    with pytest.raises(InputError, match="of the network both have the name"):
        import_sized(own_module, classes=",".join(names))
    assert not (own_module / "model").exists()
    with pytest.raises(InputError, match="of the network both have the name"):
        segunc.wrap(nn.Conv2d(3, 4, 1), names)


@pytest.mark.parametrize(
    "names",
    [
        ("road",),
        ("background", "road"),
    ],
)
def test_wrap_says_in_one_note_how_one_output_is_read(names: tuple[str, ...]) -> None:
    with pytest.warns(NoteWarning) as notes:
        segunc.wrap(nn.Sequential(nn.Conv2d(3, 4, 1), nn.Conv2d(4, 1, 1)), names)
    assert [str(note.message) for note in notes] == [
        "one output z is read as the logits (0, z) of background and road"
    ]
