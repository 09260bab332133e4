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


every_corruption = pytest.mark.parametrize("corruption", EVERY, ids=str)


@every_corruption
def test_a_corruption_changes_a_copy_of_the_frame(
    scene: npt.NDArray[np.uint8], corruption: Corruption
) -> None:
    before = scene.copy()
    corrupted = corruption(scene, "a/b")
    np.testing.assert_array_equal(scene, before)
    assert corrupted.dtype == np.uint8
    assert corrupted.shape == scene.shape
    assert not np.array_equal(corrupted, scene)


@every_corruption
def test_a_corruption_is_a_function_of_the_frame_alone(
    scene: npt.NDArray[np.uint8], corruption: Corruption
) -> None:
    first = corruption(scene, "a/b")
    np.testing.assert_array_equal(corruption(scene, "a/b"), first)


@pytest.mark.parametrize("name", ["noise", "fog", "darkness"])
@pytest.mark.parametrize("strength", range(1, STRENGTHS + 1))
def test_random_corruptions_differ_between_frames(
    scene: npt.NDArray[np.uint8], name: str, strength: int
) -> None:
    corruption = Corruption(name, strength)
    first = corruption(scene, "a/b")
    assert not np.array_equal(corruption(scene, "a/c"), first)


@pytest.mark.parametrize("name", CORRUPTIONS)
@pytest.mark.parametrize("frame", ["first", "second", "third"])
def test_each_strength_is_worse_than_the_one_before(
    scene: npt.NDArray[np.uint8], name: str, frame: str
) -> None:
    ratios = []
    for strength in range(1, STRENGTHS + 1):
        corrupted = Corruption(name, strength)(scene, frame)
        ratios.append(cv2.PSNR(scene, corrupted))
    assert all(later < earlier for earlier, later in pairwise(ratios)), ratios


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
    noisy = Corruption("noise", 3)(grey, "a/b")
    assert noisy.tolist() == [[[27, 131, 179], [143, 151, 169]]]


@pytest.mark.parametrize("strength", [1, 2, 3])  # later ones leave 0..1
def test_noise_has_the_standard_deviation_of_its_table(strength: int) -> None:
    grey = np.full((200, 200, 3), 128, np.uint8)
    noise = Corruption("noise", strength)(grey, "f").astype(float) / 255 - 128 / 255
    deviation = corruptions.NOISE_DEVIATION[strength - 1]
    assert noise.std() == pytest.approx(deviation, rel=0.02)
    assert abs(noise.mean()) < 0.002


@pytest.mark.parametrize("strength", range(1, STRENGTHS + 1))
def test_darkness_follows_its_formula(strength: int) -> None:
    """The formula is that of the mean and the variance of a sensor's photons and read noise."""
    scale, photons, read_noise = corruptions.DARKNESS[strength - 1]
    greys = np.linspace(0, 255, 6).astype(np.uint8)
    rows = greys.repeat(400).reshape(6, 400, 1)
    dark = Corruption("darkness", strength)(rows.repeat(3, 2), "f") / 255
    expected = scale * (greys / 255) ** 2
    bright = expected > 3 * read_noise  # darker ones are cut at 0
    difference = np.abs(dark.mean((1, 2)) - expected)
    tolerance = 4 * np.sqrt((expected / photons + read_noise**2) / 1200) + 1 / 510
    np.testing.assert_array_less(difference[bright], tolerance[bright])
    brightest_deviation = np.sqrt(scale / photons + read_noise**2)
    assert dark[-1].std() == pytest.approx(brightest_deviation, rel=0.1)


@pytest.mark.parametrize("strength", range(1, STRENGTHS + 1))
def test_jpeg_is_that_of_its_quality(scene: npt.NDArray[np.uint8], strength: int) -> None:
    quality = corruptions.JPEG_QUALITY[strength - 1]
    blue_first = scene[..., ::-1]
    encoded = cv2.imencode(".jpg", blue_first, [cv2.IMWRITE_JPEG_QUALITY, quality])[1]
    expected = cv2.imdecode(encoded, cv2.IMREAD_COLOR)
    assert expected is not None
    corrupted = Corruption("jpeg", strength)(scene, "f")
    np.testing.assert_array_equal(corrupted, expected[..., ::-1])


def test_blur_keeps_what_is_flat() -> None:
    flat = np.full((60, 80, 3), (10, 130, 250), np.uint8)
    np.testing.assert_array_equal(Corruption("blur", 5)(flat, "f"), flat)


@pytest.mark.parametrize(
    ("side", "diameter"),
    [
        (256, 2 * 1.5),
        (512, 2 * 3),
        (1024, 2 * 6),
    ],
)
def test_blur_grows_with_the_frame(side: int, diameter: float) -> None:
    edge = np.zeros((side, side, 3), np.uint8)
    edge[:, side // 2 :] = 255
    row = Corruption("blur", 3)(edge, "f")[side // 2, :, 0]
    width = np.count_nonzero((row > 0) & (row < 255))
    assert width == pytest.approx(diameter, abs=2)


every_strength_of_fog = pytest.mark.parametrize("strength", range(1, STRENGTHS + 1))


def foggy(strength: int) -> npt.NDArray[np.int_]:
    """Return fog over a picture that is black above row 32 and of the value 200 below it."""
    image = np.zeros((64, 96, 3), np.uint8)
    image[32:] = 200
    return Corruption("fog", strength)(image, "f").astype(int)


@every_strength_of_fog
def test_fog_lifts_the_dark_and_keeps_the_brightest_value(strength: int) -> None:
    corrupted = foggy(strength)
    assert corrupted[:32].max() > 40
    assert corrupted.max() <= 200


@every_strength_of_fog
def test_fog_is_a_pattern_and_no_plain_grey(strength: int) -> None:
    assert np.ptp(foggy(strength)[:32]) > 20


@every_strength_of_fog
def test_fog_lowers_contrast_by_its_thickness(strength: int) -> None:
    corrupted = foggy(strength)
    contrast = corrupted[32] - corrupted[31]
    brightest = 200 / 255
    thickness = corruptions.FOG_THICKNESS[strength - 1]
    expected = 200 * brightest / (brightest + thickness)
    assert contrast.mean() == pytest.approx(expected, rel=0.15)


@settings(max_examples=20, deadline=None)
@given(
    st.sampled_from(EVERY),
    st.integers(1, 40),
    st.integers(1, 40),
    st.integers(0, 255),
)
def test_frames_of_any_size_and_flat_ones(
    corruption: Corruption, height: int, width: int, value: int
) -> None:
    image = np.full((height, width, 3), value, np.uint8)
    assert corruption(image, "f").shape == image.shape


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 40), st.integers(0, 255))
def test_a_fractal_is_a_large_enough_square_from_0_to_1(side: int, seed: int) -> None:
    heights = fractal(side, 2.0, np.random.default_rng(seed))
    assert heights.shape[0] == heights.shape[1] >= side
    assert heights.min() == 0
    assert heights.max() == 1
