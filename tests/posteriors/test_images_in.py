"""What a model takes as images: containers, axes, types and ranges of values."""

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from PIL import Image

import segunc
from segunc.core.errors import NoteWarning
from segunc.data.image_arrays import RANGES, batches_of, read_images
from segunc.data.images import load_image
from segunc.posteriors.image_maps import BatchMaps, ImageMaps
from segunc.sampling import Sampler
from segunc.sampling.sampler import network_input, sample_frames
from tests.posteriors.small_models import IMAGE, small_model

TENSOR = torch.from_numpy(IMAGE).permute(2, 0, 1)
GREY = IMAGE[..., 0]
OTHER = IMAGE[::-1, ::-1].copy()
PIXELS = np.arange(256, dtype=np.uint8).repeat(3).reshape(16, 16, 3)


@pytest.fixture(scope="module")
def model() -> segunc.Model:
    return small_model()


@pytest.fixture(scope="module")
def expected(model: segunc.Model) -> ImageMaps:
    return model(IMAGE, draws=4)


def assert_same(maps: ImageMaps, expected: ImageMaps) -> None:
    """Fail unless all maps have the same bits."""
    assert np.array_equal(maps.prediction, expected.prediction)
    assert list(maps.scores) == list(expected.scores)
    for name, values in expected.scores.items():
        assert maps.scores[name].tobytes() == values.tobytes(), name


def test_uint8_gives_the_bits_of_the_sampler(model: segunc.Model, expected: ImageMaps) -> None:
    sampler = Sampler(model.network, model.posterior, draws=4)
    plain = sample_frames(sampler, [IMAGE])
    assert np.array_equal(expected.prediction, plain.prediction[0])
    for name, values in plain.scores.items():
        assert np.array_equal(expected.scores[name], values[0]), name


@pytest.mark.parametrize(
    "image",
    [
        np.asfortranarray(IMAGE),
        IMAGE[::-1][::-1],
        TENSOR,
        TENSOR.contiguous(),
        TENSOR.float() / 255,
        (TENSOR.double() / 255).requires_grad_(),
        IMAGE / 255,
        (IMAGE / 255).astype(np.float32),
        (IMAGE / 255).astype(">f8"),
        IMAGE.astype(np.uint16) * 257,
        TENSOR.to(torch.int32).mul(257).to(torch.uint16),
        Image.fromarray(IMAGE),
        Image.fromarray(np.dstack([IMAGE, GREY])),  # RGBA
    ],
    ids=lambda image: f"{type(image).__name__}-{getattr(image, 'dtype', image)}"[:40],
)
def test_every_container_gives_the_bits_of_uint8(
    model: segunc.Model, expected: ImageMaps, image: Any
) -> None:
    maps = model(image, draws=4)
    assert type(maps) is ImageMaps
    assert_same(maps, expected)
    assert np.array_equal(maps.image, IMAGE)


@pytest.mark.parametrize(
    ("image", "value_range"),
    [
        (IMAGE.astype(np.float32), (0, 255)),
        (IMAGE.astype(np.int64), (0, 255)),
        (TENSOR.float(), (0.0, 255.0)),
        (IMAGE / 127.5 - 1, (-1, 1)),
        (IMAGE.astype(np.uint16), (0, 255)),
        (IMAGE, (np.float32(0), np.int64(255))),
    ],
)
def test_a_stated_range_gives_the_bits_of_uint8(
    model: segunc.Model, expected: ImageMaps, image: Any, value_range: tuple[float, float]
) -> None:
    assert_same(model(image, draws=4, value_range=value_range), expected)


@pytest.mark.parametrize(
    "grey",
    [
        GREY,
        GREY[..., None],
        GREY / 255,
        torch.from_numpy(GREY.copy()),
        torch.from_numpy(GREY.copy())[None],
        Image.fromarray(GREY),
    ],
)
def test_grey_is_repeated_over_the_channels(model: segunc.Model, grey: Any) -> None:
    assert_same(model(grey, draws=4), model(np.dstack([GREY, GREY, GREY]), draws=4))


@pytest.mark.parametrize(
    "batch",
    [
        np.stack([IMAGE, OTHER]),
        torch.from_numpy(np.stack([IMAGE, OTHER])).permute(0, 3, 1, 2),
        np.stack([IMAGE, OTHER]) / 255,
        [IMAGE, OTHER],
        (TENSOR, Image.fromarray(OTHER)),
    ],
)
def test_a_batch_has_the_bits_of_single_calls(
    model: segunc.Model, expected: ImageMaps, batch: Any
) -> None:
    maps = model(batch, draws=4)
    assert isinstance(maps, BatchMaps)
    assert_same(maps[0], expected)
    assert_same(maps[1], model(OTHER, draws=4))


@pytest.mark.parametrize("batch", [IMAGE[None], TENSOR[None], [IMAGE]])
def test_a_batch_of_one_is_a_batch(model: segunc.Model, expected: ImageMaps, batch: Any) -> None:
    maps = model(batch, draws=4)
    assert maps.prediction.shape == (1, 32, 48)
    assert_same(maps[0], expected)


def test_images_of_a_list_may_differ_in_size(model: segunc.Model, expected: ImageMaps) -> None:
    maps = model([IMAGE, IMAGE[:20]], draws=4)
    assert [image.prediction.shape for image in maps] == [(32, 48), (20, 48)]
    assert_same(maps[0], expected)
    with pytest.raises(segunc.InputError, match=r"2 sizes \(32 x 48 and 20 x 48\)"):
        _ = maps.entropy


def test_sides_of_three_do_not_turn_an_image() -> None:
    """The container decides the order of axes, also where sizes fit two orders."""
    array = np.random.default_rng(0).integers(0, 256, (3, 5, 3), np.uint8)
    (as_numpy,) = read_images(array).images
    (as_torch,) = read_images(torch.from_numpy(array)).images
    assert np.array_equal(as_numpy, array)
    assert np.array_equal(as_torch, array.transpose(1, 2, 0))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_floats_are_not_rounded_to_8_bits(dtype: Any) -> None:
    exact = np.random.default_rng(0).random((6, 7, 3)).astype(dtype)
    (image,) = read_images(exact).images
    assert image.dtype == np.float32
    assert np.array_equal(image, exact.astype(np.float32))


def test_uint16_is_not_rounded_to_8_bits() -> None:
    exact = np.random.default_rng(0).integers(0, 65536, (6, 7, 3), np.uint16)
    (image,) = read_images(exact).images
    assert np.array_equal(image, (exact / 65535).astype(np.float32))


def test_all_256_steps_of_8_bits_are_known_again() -> None:
    for image in (PIXELS / 255, PIXELS.astype(np.float32) / 255, torch.from_numpy(PIXELS / 255)):
        as_numpy = image if isinstance(image, np.ndarray) else image.permute(2, 0, 1)
        (read,) = read_images(as_numpy).images
        assert read.dtype == np.uint8
        assert np.array_equal(read, PIXELS)


def test_a_float_image_reaches_the_network_as_it_is(model: segunc.Model) -> None:
    exact = np.random.default_rng(0).random((32, 48, 3)).astype(np.float32)
    maps = model(exact, draws=4)
    sampler = Sampler(model.network, model.posterior, draws=4)
    plain = sampler(torch.from_numpy(exact).permute(2, 0, 1)[None])
    for name, values in plain.scores.items():
        assert np.array_equal(maps.scores[name], values[0]), name


@pytest.mark.parametrize("size", [(16, 24), (64, 96)])
def test_float_images_are_resized_in_float(size: tuple[int, int]) -> None:
    exact = np.random.default_rng(0).random((32, 48, 3)).astype(np.float32)
    resized = network_input([exact], size)[0].permute(1, 2, 0).numpy()
    how = cv2.INTER_AREA if size[0] < 32 else cv2.INTER_LINEAR
    assert np.array_equal(resized, cv2.resize(exact, size[::-1], interpolation=how))
    codes = resized * 255
    assert np.abs(codes - np.rint(codes)).max() > 0.4


def test_images_of_8_bits_and_floats_stand_in_one_batch() -> None:
    exact = np.full((4, 4, 3), 0.3, np.float32)
    batch = network_input([np.full((4, 4, 3), 51, np.uint8), exact])
    assert batch.dtype == torch.float32
    assert batch[0].unique().tolist() == pytest.approx([0.2])
    assert batch[1].unique().tolist() == pytest.approx([0.3])


def test_8_bits_give_the_same_maps_in_any_container_where_the_network_sees_another_size() -> None:
    model = small_model(inference_size=(16, 24))
    maps = model(IMAGE, draws=4)
    assert maps.prediction.shape == (32, 48)
    assert_same(model(TENSOR.float() / 255, draws=4), maps)


def test_a_file_gives_what_predict_reads_of_it(tmp_path: Path) -> None:
    """Palettes are expanded, an alpha channel is dropped, an orientation is applied."""
    turned = Image.Exif()
    turned[0x0112] = 6
    Image.fromarray(IMAGE).save(tmp_path / "turned.jpg", exif=turned, quality=95)
    Image.fromarray(IMAGE).quantize(16).save(tmp_path / "palette.png")
    Image.fromarray(GREY > 99).save(tmp_path / "bilevel.png")
    Image.merge("LA", [Image.fromarray(GREY), Image.fromarray(GREY)]).save(tmp_path / "la.png")
    Image.fromarray(np.dstack([IMAGE, GREY])).save(tmp_path / "rgba.png")
    for path in sorted(tmp_path.iterdir()):
        with Image.open(path) as opened:
            (image,) = read_images(opened).images
        assert image.shape == load_image(path).shape, path.name
        # Pillow and OpenCV decode a JPEG to within a step or two.
        off_by = np.abs(image.astype(int) - load_image(path)).max()
        assert off_by <= (3 if path.suffix == ".jpg" else 0), path.name
    assert load_image(tmp_path / "turned.jpg").shape == (48, 32, 3)


def opened(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data))


def test_a_damaged_pil_image_is_said(model: segunc.Model) -> None:
    file = io.BytesIO()
    Image.fromarray(IMAGE).save(file, "png")
    with pytest.raises(segunc.InputError, match=r"PIL image that cannot be decoded \(.*trunc"):
        model(opened(file.getvalue()[:1000]), draws=2)


def test_a_pil_image_of_several_pictures_is_refused(model: segunc.Model) -> None:
    file = io.BytesIO()
    Image.fromarray(IMAGE).save(file, "gif", save_all=True, append_images=[Image.fromarray(OTHER)])
    with pytest.raises(segunc.InputError, match="several pictures"):
        model(opened(file.getvalue()), draws=2)


def test_a_pil_image_of_16_bits_keeps_them() -> None:
    deep = np.random.default_rng(0).integers(0, 65536, (5, 6), np.uint16)
    (image,) = read_images(Image.fromarray(deep)).images
    assert np.array_equal(image[..., 1], (deep / 65535).astype(np.float32))


@pytest.mark.parametrize(
    ("image", "said"),
    [
        (IMAGE.transpose(2, 0, 1), "shape (3, 32, 48), but NumPy ... image.transpose(1, 2, 0)"),
        (IMAGE.transpose(2, 0, 1)[None], "NumPy ... Hint: image.transpose(0, 2, 3, 1)"),
        (torch.from_numpy(IMAGE), "torch tensors have channels first ... image.permute(2, 0, 1)"),
        (torch.from_numpy(IMAGE)[None], "image.permute(0, 3, 1, 2)"),
        (np.zeros((5, 5, 4), np.uint8), "4 channels and not 3 or 1 ... image[..., :3] drops"),
        (torch.zeros(4, 5, 5), "4 channels ... image[..., :3, :, :] drops"),
        (np.zeros((5, 5, 2), np.uint8), "2 channels"),
        (torch.zeros(2, 5, 5), "2 channels"),
        (np.zeros((5, 8, 9), np.uint8), "[N, H, W, 1]"),
        (np.zeros(3), "image has the shape (3,); images are [H, W, 3]"),
        (np.zeros((2, 2, 5, 5, 3)), "image has the shape (2, 2, 5, 5, 3)"),
        (np.zeros((0, 4, 3), np.uint8), "(0, 4, 3), which holds no pixel"),
        (np.zeros((0, 4, 5, 3), np.uint8), "holds no pixel"),
        (IMAGE > 9, "image is of dtype bool ... image.astype('uint8') * 255"),
        (TENSOR > 9, "image is of dtype bool ... image.byte() * 255"),
        (IMAGE.astype(object), "image is of dtype object"),
        (IMAGE.astype(complex), "image is of dtype complex128"),
        (IMAGE.astype(str), "image is of dtype <U"),
        (IMAGE.astype(np.int64), "dtype int64, whose ... value_range=(0, 255)"),
        (TENSOR.long(), "dtype int64"),
        (IMAGE * 1.0, "from 0 to 255, and floats without a value_range are 0..1 ... =(0, 255)"),
        (IMAGE * 257.0, "value_range=(0, 65535)"),
        (
            IMAGE / 100 - 2,
            "from -2 to 0.55 ... leave the normalisation out ... value_range=(-1, 1)",
        ),
        (IMAGE / 250, "from 0 to 1.02 ... image.clip(0, 1)"),
        (np.where(IMAGE == 7, np.nan, IMAGE / 255), "image holds 15 NaN or infinite values"),
        (np.full((4, 4, 3), np.inf), "holds 48 NaN or infinite values"),
        (np.ma.masked_equal(IMAGE, 0), "type MaskedArray"),
        (torch.zeros(3, 4, 4, device="meta"), "a tensor without plain values"),
        (torch.zeros(3, 4, 4).to_sparse(), "a tensor without plain values"),
        ("frame.png", "type str ... PIL.Image.open(path)"),
        (Path("frame.png"), "PIL.Image.open(path)"),
        (None, "type NoneType"),
        ({"image": IMAGE}, "type dict ... model.maps(batches)"),
        (iter([IMAGE]), "model.maps(batches)"),
        ([], "image is an empty list"),
        ([[[1, 2], [3, 4]]], "image[0] is of type list"),
        ([IMAGE, IMAGE[None]], "image[1] of the list is a batch of shape (1, 32, 48, 3)"),
        ([IMAGE, IMAGE > 9], "image[1] is of dtype bool"),
        (np.stack([IMAGE / 255, IMAGE / 9]), "image[1] has values from 0 to 28.33"),
        (Image.new("I", (4, 4)), "dtype int32"),
        (Image.new("CMYK", (4, 4)), "mode CMYK ... image.convert('RGB')"),
        (Image.new("F", (4, 4), 7.5), "from 7.5 to 7.5"),
    ],
)
def test_what_is_no_image_is_said_in_a_sentence(model: segunc.Model, image: Any, said: str) -> None:
    with pytest.raises(segunc.InputError) as caught:
        model(image, draws=2)
    for words in said.split(" ... "):
        assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"value_range": 255}, r"value_range 255 is not the values of black and white"),
        ({"value_range": (1, 0)}, r"value_range \(1, 0\)"),
        ({"value_range": (0, float("nan"))}, r"value_range \(0, nan\)"),
        ({"value_range": "0..1"}, r"value_range '0..1'"),
        ({"value_range": (0, 100)}, r"from 0 to 255, outside of value_range \(0, 100\)"),
        ({"draws": 0}, "draws 0"),
        ({"draws": 2.5}, "draws 2.5"),
        ({"seed": -1}, "seed -1"),
        ({"scores": "entropy"}, r"scores is one text.*scores=\(\"entropy\",\)"),
        ({"scores": ("entropi",)}, "no score 'entropi'"),
    ],
)
def test_settings_that_are_out_of_bounds_are_named(
    model: segunc.Model, settings: dict[str, Any], said: str
) -> None:
    for call in (model, model.maps):
        with pytest.raises(segunc.InputError, match=said):
            list(call([IMAGE], **settings))


@pytest.mark.parametrize(
    ("image", "said"),
    [
        ((IMAGE > 200).astype(np.uint8), "nearly black: .* 0 to 1 in a range of 0 to 255"),
        (IMAGE / 255 / 255, "nearly black"),
        (IMAGE.astype(np.uint16) * 16, r"uses 12 bits, so it looks 16 times too dark.*\(0, 4095\)"),
    ],
)
def test_an_image_that_uses_little_of_its_range_is_noted(
    model: segunc.Model, image: Any, said: str
) -> None:
    with pytest.warns(NoteWarning, match=said) as caught:
        model(image, draws=2)
    with pytest.warns(NoteWarning, match=said) as of_loader:
        list(model.maps([image], draws=2))
    assert caught[0].filename == of_loader[0].filename == __file__


def test_a_black_image_is_no_mistake(model: segunc.Model, recwarn: pytest.WarningsRecorder) -> None:
    model(np.zeros((8, 8, 3), np.uint8), draws=2)
    assert [str(warning.message) for warning in recwarn if warning.category is NoteWarning] == []


def test_maps_keep_a_copy_of_the_image(model: segunc.Model) -> None:
    buffer = IMAGE.copy()
    tensor = TENSOR.contiguous()
    of_array = model(buffer, draws=2)
    of_tensor = model(tensor, draws=2)
    buffer[:] = 0
    tensor[:] = 0
    assert np.array_equal(of_array.image, IMAGE)
    assert np.array_equal(of_tensor.image, IMAGE)


def test_every_type_with_a_range_says_all_its_values() -> None:
    for name, (low, high) in RANGES.items():
        assert (np.iinfo(name).min, np.iinfo(name).max) == (low, high)


# Loaders.


class Numbered(torch.utils.data.Dataset):
    """A data set that only has numbers and a length."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        return (TENSOR.float() / 255, 0) if number < 2 else (TENSOR, -1)


def labelled() -> torch.utils.data.TensorDataset:
    images = torch.stack([TENSOR, TENSOR.flip(1), TENSOR.flip(2)]) / 255
    return torch.utils.data.TensorDataset(images, torch.zeros(3, 32, 48).long())


@pytest.mark.parametrize(
    ("batches", "count"),
    [
        (lambda: torch.utils.data.DataLoader(labelled(), batch_size=2), 3),
        (lambda: labelled(), 3),
        (lambda: Numbered(), 2),
        (lambda: [{"image": TENSOR[None], "mask": None}, {"image": IMAGE}], 2),
        (lambda: ([IMAGE, image] for image in (None, "a name")), 2),
        (lambda: [([IMAGE, IMAGE[:9]], [None, None])], 2),
        (lambda: [Image.fromarray(IMAGE)], 1),
        (lambda: [np.stack([IMAGE, IMAGE])], 2),
    ],
)
def test_a_loader_gives_the_maps_of_each_image(
    model: segunc.Model, expected: ImageMaps, batches: Callable[[], Any], count: int
) -> None:
    maps = list(model.maps(batches(), draws=4))
    assert [type(image) for image in maps] == [ImageMaps] * count
    assert_same(maps[0], expected)


def test_a_loader_is_read_a_batch_at_a_time(model: segunc.Model) -> None:
    read: list[int] = []

    def endless() -> Iterator[np.ndarray]:
        while True:
            read.append(len(read))
            yield np.stack([IMAGE, IMAGE])

    maps = model.maps(endless(), draws=2)
    for _ in range(5):
        next(maps)
    assert len(read) == 3


@pytest.mark.parametrize(
    ("batches", "said"),
    [
        (IMAGE, r"batches is of type ndarray.*model\(image\)"),
        (5, "batches is of type int"),
        ([{"pixels": IMAGE}], r"batch 0 has no 'image'; it holds pixels"),
        ([IMAGE, []], "batch 1 is empty"),
        ([[IMAGE, IMAGE]], r"batch 0 has something like an image at its places 0 and 1"),
        ([(TENSOR, 0, TENSOR)], r"places 0 and 2"),
        ([("a name", IMAGE)], "type str"),
    ],
)
def test_what_is_no_loader_of_images_is_said(model: segunc.Model, batches: Any, said: str) -> None:
    with pytest.raises(segunc.InputError, match=said):
        list(model.maps(batches, draws=2))


def test_a_label_of_the_size_of_its_image_is_a_label() -> None:
    label = torch.zeros(32, 48, dtype=torch.uint8)
    mask = torch.zeros(1, 32, 48, dtype=torch.uint8)
    for other in (label, mask, TENSOR.float(), Image.fromarray(GREY), IMAGE):
        (first,) = batches_of([(TENSOR, other)])
        assert first is TENSOR
