"""Networks of any number of input channels: maps by hand, and what a model does with images of
other channels.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import segmentation_models_pytorch as smp
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import segunc
from segunc.core.errors import InputError
from segunc.data.channels import shown_colours
from segunc.lightning.callback import UncertaintyCallback
from segunc.posteriors.image_maps import ImageMaps
from tests.posteriors.test_images_in import assert_same

CLASSES = ("road", "car", "sky")
MEAN = (0.1, 0.2, 0.3, 0.4)
STD = (0.5, 0.6, 0.7, 0.8)
IMAGE = np.random.default_rng(0).integers(0, 256, (32, 48, 4), np.uint8)
SCORES = ("entropy", "msp", "deterministic-energy")


def network(channels: int = 4) -> nn.Sequential:
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(channels, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 3, 1)
    )
    module[1].running_var.uniform_(0.5, 2)
    return module.eval()


def wrapped(module: nn.Module | None = None, channels: int = 4) -> segunc.Model:
    mean = [0.05 * number for number in range(1, channels + 1)]
    std = [0.5 + 0.05 * number for number in range(channels)]
    return segunc.wrap(module or network(channels), CLASSES, mean=mean, std=std)


@pytest.fixture(scope="module")
def module() -> nn.Sequential:
    return network()


@pytest.fixture(scope="module")
def model(module: nn.Sequential) -> segunc.Model:
    return segunc.wrap(module, CLASSES, mean=MEAN, std=STD)


def logits_by_hand(module: nn.Sequential, shares: Any) -> Any:
    """Return the logits float64 ``[3, H, W]`` of an image ``[H, W, 4]`` in 0..1, by loops over the
    taps of the first convolution.
    """
    state = {name: value.double().numpy() for name, value in module.state_dict().items()}
    normal = (shares - np.array(MEAN)) / np.array(STD)
    height, width, _ = normal.shape
    padded = np.pad(normal, ((1, 1), (1, 1), (0, 0)))
    hidden = np.tile(state["0.bias"], (height, width, 1))
    for row in range(3):
        for column in range(3):
            taps = state["0.weight"][:, :, row, column]
            hidden += padded[row : row + height, column : column + width] @ taps.T
    scale = state["1.weight"] / np.sqrt(state["1.running_var"] + 1e-5)
    hidden = np.maximum((hidden - state["1.running_mean"]) * scale + state["1.bias"], 0)
    logits = hidden @ state["3.weight"][:, :, 0, 0].T + state["3.bias"]
    return logits.transpose(2, 0, 1)


def test_maps_of_four_channels_by_hand(model: segunc.Model, module: nn.Sequential) -> None:
    maps = model(IMAGE, draws=1, scores=SCORES)
    logits = logits_by_hand(module, IMAGE / 255)
    exponentials = np.exp(logits)
    shares = exponentials / exponentials.sum(0)
    entropy = -(shares * np.log(shares)).sum(0) / np.log(3)
    np.testing.assert_allclose(maps.entropy, entropy, rtol=0, atol=1e-6)
    np.testing.assert_allclose(maps.msp, 1 - shares.max(0), rtol=0, atol=1e-6)
    energy = -np.log(exponentials.sum(0))
    np.testing.assert_allclose(maps.deterministic_energy, energy, rtol=0, atol=1e-5)
    assert np.array_equal(maps.prediction, logits.argmax(0))


def test_the_type_decides_the_scale(model: segunc.Model, module: nn.Sequential) -> None:
    wide = np.random.default_rng(1).integers(0, 65536, IMAGE.shape, np.uint16)
    by_hand = logits_by_hand(module, wide / 65535)
    energy = -np.log(np.exp(by_hand).sum(0))
    for image in (wide, wide / 65535, (wide / 65535).astype(np.float32)):
        found = model(image, draws=1, scores=SCORES).deterministic_energy
        np.testing.assert_allclose(found, energy, rtol=0, atol=1e-5)


def containers() -> Iterator[Any]:
    tensor = torch.from_numpy(IMAGE).permute(2, 0, 1)
    yield from (tensor, tensor.float() / 255, IMAGE / 255, IMAGE.astype(np.uint16) * 257)
    yield Image.fromarray(IMAGE, "RGBA")


@pytest.mark.parametrize("image", containers(), ids=["torch", "shares", "floats", "uint16", "pil"])
def test_every_container_gives_the_same_maps(model: segunc.Model, image: Any) -> None:
    assert_same(model(image, draws=1), model(IMAGE, draws=1))


def test_a_channel_without_weight_changes_nothing(module: nn.Sequential) -> None:
    """The maps are those of the network of three channels, draw by draw."""
    three = network(3)
    with torch.no_grad():
        four = network(4)
        four[0].weight[:, :3] = three[0].weight
        four[0].weight[:, 3] = 0
        four[0].bias[:] = three[0].bias
        for index in (1, 3):
            four[index].load_state_dict(three[index].state_dict())
    abnn = segunc.ABNN(members=2, alpha=0.2)
    maps = abnn.fit(segunc.wrap(four, CLASSES, mean=MEAN, std=STD))(IMAGE, draws=4)
    other = abnn.fit(segunc.wrap(three, CLASSES, mean=MEAN[:3], std=STD[:3]))
    expected = other(IMAGE[..., :3], draws=4)
    assert list(maps.scores) == list(expected.scores)
    for name, values in expected.scores.items():
        np.testing.assert_allclose(maps.scores[name], values, rtol=0, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("order", [(1, 0, 2, 3), (0, 1, 3, 2), (2, 1, 0, 3)])
def test_swapped_channels_give_other_maps(model: segunc.Model, order: tuple[int, ...]) -> None:
    swapped = model(IMAGE[..., order], draws=1).deterministic_energy
    assert np.abs(swapped - model(IMAGE, draws=1).deterministic_energy).max() > 0.05


@pytest.mark.parametrize(
    ("image", "fault"),
    [
        (IMAGE[..., :3], r"the shape \(32, 48, 3\), so 3 channels, and the network takes 4"),
        (IMAGE[..., 0], r"the shape \(32, 48\); images are \[H, W, 4\], \[N, H, W, 4\]"),
        (IMAGE.transpose(2, 0, 1), r"NumPy arrays have channels last. .*transpose\(1, 2, 0\)"),
        (Image.fromarray(IMAGE[..., :3]), "so 3 channels, and the network takes 4"),
        (IMAGE.astype(np.int16), "int16, whose values of black and white are not known"),
        (IMAGE.astype(np.float32), "values from 0 to 255, and floats without a value_range"),
    ],
)
def test_other_images_are_refused(model: segunc.Model, image: Any, fault: str) -> None:
    with pytest.raises(InputError, match=fault):
        model(image)


def test_three_channels_refuse_four_as_before() -> None:
    with pytest.raises(InputError, match="so 4 channels and not 3 or 1"):
        wrapped(channels=3)(IMAGE)


@pytest.mark.parametrize("channels", [1, 2, 4, 6, 13])
def test_any_number_of_channels_is_fitted_saved_and_loaded(tmp_path: Path, channels: int) -> None:
    module = network(channels)
    base = wrapped(module, channels)
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(4, channels, 64, 64, generator=generator)
    labels = torch.randint(0, 3, (4, 64, 64), generator=generator)
    loader = DataLoader(TensorDataset(images, labels), 2)
    model = segunc.ABNN(members=2, epochs=1, alpha=0.2).fit(base, loader)
    image = images[0].permute(1, 2, 0).numpy()
    maps = model(image, draws=4)
    assert maps.epistemic.max() > 0
    model.save(tmp_path)
    loaded = segunc.load(tmp_path, network=module)
    assert loaded.network.description.channels == channels
    again = loaded(images[0], draws=4)
    for name, scores in maps.scores.items():
        np.testing.assert_allclose(again.scores[name], scores, rtol=0, atol=1e-5, err_msg=name)
    assert [one.entropy.shape for one in model.maps(loader, draws=2)] == [(64, 64)] * 4


def test_one_channel_takes_grey_images() -> None:
    model = wrapped(channels=1)
    grey = IMAGE[..., 0]
    expected = model(grey, draws=1)
    assert_same(model(grey[..., None], draws=1), expected)
    assert_same(model(Image.fromarray(grey), draws=1), expected)
    with pytest.raises(InputError, match="3 channels, and the network takes 1"):
        model(IMAGE[..., :3])


@pytest.mark.parametrize("channels", [1, 4, 6])
def test_frames_are_resized_to_the_size_of_the_network(channels: int) -> None:
    """OpenCV drops the axis of one channel; channel by channel is the same."""
    module = network(channels)
    image = np.random.default_rng(0).integers(0, 256, (64, 96, channels), np.uint8)
    mean = [0.0] * channels
    std = [1.0] * channels
    small = segunc.wrap(module, CLASSES, mean=mean, std=std, inference_size=(32, 48))
    own = segunc.wrap(module, CLASSES, mean=mean, std=std)
    halves = image.reshape(32, 2, 48, 2, channels).mean((1, 3)) / 255
    expected = own(np.rint(halves * 255).astype(np.uint8), draws=1).msp
    found = small(image, draws=1).msp[::2, ::2]
    assert np.abs(found - expected).mean() < 0.01


def test_a_missing_mean_says_how_many_numbers_it_has(module: nn.Sequential) -> None:
    with pytest.raises(InputError, match=r"fails on a frame .*give mean and std 4 numbers each"):
        segunc.wrap(module, CLASSES)


def test_a_batch_of_other_channels_is_refused(model: segunc.Model) -> None:
    batch = (torch.rand(2, 3, 64, 64), torch.zeros(2, 64, 64, dtype=torch.long))
    with pytest.raises(InputError, match=r"images of shape \(2, 3, 64, 64\) are not \[N, 4, H, W"):
        segunc.ABNN(members=2, epochs=1).fit(model, [batch])


@pytest.mark.parametrize(
    ("method", "fault"),
    [
        (
            segunc.Anomaly(),
            "the second encoder of the packaged bank needs images of three channels",
        ),
        (
            segunc.FeatureDensity(encoder="resnet18", weights="imagenet"),
            "a second encoder needs images of three channels",
        ),
        (segunc.FeatureDensity(layers=["0"], corruptions=["noise:2"]), "a corruption needs images"),
        (segunc.Student(epochs=1), "a student needs images of three channels"),
    ],
)
def test_what_needs_colour_says_so(model: segunc.Model, method: Any, fault: str) -> None:
    batch = (torch.rand(2, 4, 64, 64), torch.zeros(2, 64, 64, dtype=torch.long))
    with pytest.raises(InputError, match=fault):
        method.fit(model, [batch])


def test_features_of_the_network_itself(model: segunc.Model) -> None:
    batch = (torch.rand(4, 4, 64, 64), torch.randint(0, 3, (4, 64, 64)))
    fitted = segunc.FeatureDensity(layers=["body.2"]).fit(model, [batch])
    assert fitted(IMAGE, draws=1, scores=("knn",)).knn.max() > 0
    with pytest.raises(
        InputError, match=r"the choice of anomaly.parts needs .* takes 4. Hint: name"
    ):
        segunc.Anomaly().fit(fitted, [batch])
    other = (torch.rand(4, 4, 64, 64), batch[1])
    total = segunc.Anomaly(parts=["entropy", "knn"]).fit(fitted, [other])
    assert np.isfinite(total(IMAGE, draws=1, scores=("anomaly",)).anomaly).all()


def test_tta_and_other_methods(model: segunc.Model) -> None:
    images = torch.rand(4, 4, 64, 64, generator=torch.Generator().manual_seed(0))
    labels = model.network(images).argmax(1)
    labels[:, ::2] = (labels[:, ::2] + 1) % 3  # half of the prediction is wrong
    batch = (images, labels)
    for method in (segunc.TTA(), segunc.MCDropout(), segunc.Laplace(), segunc.Temperature()):
        fitted = method.fit(model, [batch])
        assert fitted(IMAGE, draws=4, scores=("entropy",)).entropy.shape == (32, 48)


def test_pictures_show_the_first_three_channels(model: segunc.Model, tmp_path: Path) -> None:
    maps = model(IMAGE, draws=1, scores=("entropy",))
    titles = [axes.get_title() for axes in maps.plot().axes]
    texts = [text.get_text() for text in maps.plot().texts]
    assert any("channels 1 to 3" in text for text in (*titles, *texts))
    maps.save(tmp_path / "maps", "a", images=tmp_path / "images")
    with Image.open(tmp_path / "images/a.png") as picture:
        assert np.array_equal(np.asarray(picture), shown_colours(IMAGE))


def test_smp_networks_of_any_channels(tmp_path: Path) -> None:
    torch.manual_seed(0)
    for channels in (1, 5):
        folder = tmp_path / str(channels)
        options = {"encoder_weights": None, "classes": 3, "decoder_pyramid_channels": 32}
        theirs = smp.FPN("resnet18", in_channels=channels, **options).eval()
        theirs.save_pretrained(folder / "theirs")
        mean = tuple(0.1 * number for number in range(1, channels + 1))
        std = (0.5,) * channels
        segunc.import_network(
            source=f"smp:{folder / 'theirs'}",
            classes=",".join(CLASSES),
            mean=mean,
            std=std,
            out=folder / "ours",
        )
        ours = segunc.load(folder / "ours").network
        images = torch.rand(1, channels, 64, 96)
        normal = (images - torch.tensor(mean).view(-1, 1, 1)) / torch.tensor(std).view(-1, 1, 1)
        with torch.no_grad():
            torch.testing.assert_close(ours(images), theirs(normal))


class Training:
    """Frames of four channels and their labels."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        images = torch.rand(4, 4, 32, 32, generator=generator)
        labels = torch.randint(0, 3, (4, 32, 32), generator=generator)
        self.loader = DataLoader(TensorDataset(images, labels), 2)


def test_the_callback_of_a_training(tmp_path: Path) -> None:
    import lightning as L

    class Task(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = network()

        def training_step(self, batch: Any, index: int) -> Any:
            return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def validation_step(self, batch: Any, index: int) -> None:
            self.net(batch[0])

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.01)

    callback = UncertaintyCallback(
        segunc.ABNN(members=2, alpha=0.2),
        CLASSES,
        network="net",
        mean=MEAN,
        std=STD,
        on_error="raise",
        folder=tmp_path / "pictures",
        draws=2,
    )
    trainer = L.Trainer(
        max_epochs=1,
        callbacks=[callback],
        logger=False,
        accelerator="cpu",
        default_root_dir=tmp_path,
        enable_progress_bar=False,
        enable_checkpointing=False,
        enable_model_summary=False,
    )
    loader = Training().loader
    trainer.fit(Task(), loader, loader)
    assert callback.history[0].frames == 4
    assert [path.suffix for path in (tmp_path / "pictures").iterdir()] == [".png"]


def test_maps_hold_what_they_were_given(model: segunc.Model) -> None:
    maps: ImageMaps = model(IMAGE, draws=1)
    assert maps.image is not None
    assert np.array_equal(maps.image, IMAGE)
    run = maps.origin.run if maps.origin else {}
    assert run["channels"] == 4
    assert run["white"] == {"uint8": 255.0, "uint16": 65535.0, "float": 1.0}
