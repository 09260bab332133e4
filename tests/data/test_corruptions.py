"""Corruptions: a function of frame, name and strength alone, worse with strength, and what their
formulas say.
"""

from itertools import pairwise

import cv2
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings, strategies as st

from segunc.core.errors import InputError
from segunc.data import corruptions
from segunc.data.corruptions import CORRUPTIONS, STRENGTHS, Corruption, fractal
from segunc.toyroads import render_scene

EVERY = [Corruption(name, strength) for name in CORRUPTIONS for strength in range(1, STRENGTHS + 1)]


@pytest.fixture(scope="module")
def scene() -> npt.NDArray[np.uint8]:
    return render_scene((5, 0, 0), (192, 320), anomaly=False).image


@pytest.mark.parametrize("corruption", EVERY, ids=str)
def test_a_function_of_the_frame_alone(
    scene: npt.NDArray[np.uint8], corruption: Corruption
) -> None:
    before = scene.copy()
    made = corruption(scene, "a/b")
    assert made.dtype == np.uint8
    assert made.shape == scene.shape
    np.testing.assert_array_equal(scene, before)
    np.testing.assert_array_equal(corruption(scene, "a/b"), made)
    assert not np.array_equal(made, scene)
    if corruption.name in ("noise", "fog", "darkness"):
        assert not np.array_equal(corruption(scene, "a/c"), made)


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_each_strength_is_worse_than_the_one_before(
    scene: npt.NDArray[np.uint8], name: str
) -> None:
    for frame in ("first", "second", "third"):
        values = [
            cv2.PSNR(scene, Corruption(name, s)(scene, frame)) for s in range(1, STRENGTHS + 1)
        ]
        assert all(later < earlier for earlier, later in pairwise(values)), values


def test_names_and_strengths_are_read_back() -> None:
    assert [Corruption.parse(str(corruption)) for corruption in EVERY] == EVERY


@pytest.mark.parametrize(
    "text",
    ["fog", "fog:", "fog:x", "fog:0", "fog:6", "fog:-1", "rain:3", "fog:3.5", ":3", "fog:³"],
)
def test_an_unknown_corruption_or_strength_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        Corruption.parse(text)


def test_the_pattern_of_a_frame_is_that_of_earlier_results() -> None:
    grey = np.full((1, 2, 3), 128, np.uint8)
    assert Corruption("noise", 3)(grey, "a/b").tolist() == [[[27, 131, 179], [143, 151, 169]]]


def test_noise_has_the_standard_deviation_of_its_table_and_darkness_follows_its_formula() -> None:
    grey = np.full((200, 200, 3), 128, np.uint8)
    for strength, deviation in enumerate(
        corruptions.NOISE_DEVIATION[:3], start=1
    ):  # later ones leave 0..1
        noise = Corruption("noise", strength)(grey, "f").astype(float) / 255 - 128 / 255
        assert noise.std() == pytest.approx(deviation, rel=0.02)
        assert abs(noise.mean()) < 0.002
    ramp = np.repeat(np.linspace(0, 255, 6).astype(np.uint8), 400).reshape(6, 400, 1).repeat(3, 2)
    for strength, (scale, photons, read_noise) in enumerate(corruptions.DARKNESS, start=1):
        made = Corruption("darkness", strength)(ramp, "f") / 255
        expected = scale * (ramp[:, 0, 0] / 255) ** 2
        tolerance = 4 * np.sqrt((expected / photons + read_noise**2) / 1200) + 1 / 510
        bright = expected > 3 * read_noise  # darker ones are cut at 0
        np.testing.assert_array_less(
            np.abs(made.mean((1, 2)) - expected)[bright], tolerance[bright]
        )
        spread = made[-1].std()
        assert spread == pytest.approx(np.sqrt(scale / photons + read_noise**2), rel=0.1)


def test_jpeg_is_that_of_its_quality(scene: npt.NDArray[np.uint8]) -> None:
    for strength, quality in enumerate(corruptions.JPEG_QUALITY, start=1):
        encoded = cv2.imencode(".jpg", scene[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, quality])[1]
        expected = cv2.imdecode(encoded, cv2.IMREAD_COLOR)
        assert expected is not None
        np.testing.assert_array_equal(Corruption("jpeg", strength)(scene, "f"), expected[..., ::-1])


def test_blur_grows_with_the_frame_and_keeps_what_is_flat() -> None:
    flat = np.full((60, 80, 3), (10, 130, 250), np.uint8)
    np.testing.assert_array_equal(Corruption("blur", 5)(flat, "f"), flat)
    widths = []
    for side in (256, 512, 1024):
        edge = np.zeros((side, side, 3), np.uint8)
        edge[:, side // 2 :] = 255
        spread = Corruption("blur", 3)(edge, "f")[side // 2, :, 0]
        widths.append(np.count_nonzero((spread > 0) & (spread < 255)))
    assert widths == [
        pytest.approx(diameter, abs=2) for diameter in (2 * 1.5, 2 * 3, 2 * 6)
    ]  # strength 3


def test_fog_lifts_the_dark_and_keeps_the_brightest_value() -> None:
    image = np.zeros((64, 96, 3), np.uint8)
    image[32:] = 200
    for strength in range(1, STRENGTHS + 1):
        made = Corruption("fog", strength)(image, "f").astype(int)
        assert made.max() <= 200
        assert made[:32].max() > 40
        assert np.ptp(made[:32]) > 20  # a pattern, not a plain grey
        contrast = made[32] - made[31]
        brightest, thickness = 200 / 255, corruptions.FOG_THICKNESS[strength - 1]
        assert contrast.mean() == pytest.approx(200 * brightest / (brightest + thickness), rel=0.15)


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(EVERY), st.integers(1, 40), st.integers(1, 40), st.integers(0, 255))
def test_frames_of_any_size_and_flat_ones(
    corruption: Corruption, height: int, width: int, value: int
) -> None:
    image = np.full((height, width, 3), value, np.uint8)
    assert corruption(image, "f").shape == image.shape
    heights = fractal(max(height, width), 2.0, np.random.default_rng(value))
    assert heights.shape[0] == heights.shape[1] >= max(height, width)
    assert (heights.min(), heights.max()) == (0, 1)
