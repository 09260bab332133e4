"""Pages for print: text of 7 points that stays text, the picture with all its pixels."""

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextPath

from segunc.colours import display_range
from segunc.core.errors import InputError
from segunc.data.images import read_image
from segunc.figure_style import WIDTH
from segunc.gallery.drawing import Legend, draw_scores
from segunc.gallery.pictures import write_pictures
from segunc.gallery.printing import draw_page
from tests.support.scenes import NAMES, Scene

NOTE = "ABNN, 4 members, 24 draws"
SVG = "{http://www.w3.org/2000/svg}"
POINTS = 72  # in an inch


@pytest.fixture
def legend() -> Legend:
    return Legend("entropy", "share of ln C", display_range("entropy"), NOTE)


@pytest.fixture
def image() -> np.ndarray:
    return np.random.default_rng(1).integers(0, 256, (90, 160, 3), np.uint8)


@pytest.fixture
def values() -> np.ndarray:
    return np.linspace(0, 1, 90 * 160, dtype=np.float32).reshape(90, 160)


def texts(page: bytes) -> dict[str, str]:
    """Return each text of an SVG with its style."""
    root = ElementTree.fromstring(page)
    return {node.text: node.get("style") for node in root.iter(f"{SVG}text")}


def test_the_legend_is_text_of_seven_points(
    image: np.ndarray, values: np.ndarray, legend: Legend
) -> None:
    page = draw_page(image, values, legend, "svg", caption="Frame 000003")
    drawn = texts(page)
    assert "Entropy" in next(iter(drawn))
    assert f"{NOTE}. Frame 000003" in drawn
    assert all("7px" in style for style in drawn.values())  # a px of an SVG of 72 dots is a point
    width = ElementTree.fromstring(page).get("width")
    assert float(width.removesuffix("pt")) == pytest.approx(WIDTH * POINTS)


def test_no_text_leaves_the_page(image: np.ndarray, values: np.ndarray, legend: Legend) -> None:
    long = replace(
        legend, threshold=0.4, promise="at most 10 % of the objects are missed on average"
    )
    page = draw_page(image, values, long, "svg", caption="Frame drive/" + "a" * 80)
    root = ElementTree.fromstring(page)
    width, height = (float(root.get(side).removesuffix("pt")) for side in ("width", "height"))
    for node in root.iter(f"{SVG}text"):
        x, y = (float(node.get(name)) for name in ("x", "y"))
        path = TextPath((0, 0), node.text, size=7, prop=FontProperties(family="DejaVu Sans"))
        letters = path.get_extents().x1
        anchor = node.get("style")
        left = x - letters if "end" in anchor else x - letters / 2 if "middle" in anchor else x
        assert left >= 0, node.text
        assert left + letters <= width, node.text
        assert 0 < y < height, node.text


def test_the_picture_keeps_its_pixels(
    image: np.ndarray, values: np.ndarray, legend: Legend, tmp_path: Path
) -> None:
    if shutil.which("pdfimages") is None:
        pytest.skip("pdfimages (poppler-utils) is not installed")
    path = tmp_path / "page.pdf"
    path.write_bytes(draw_page(image, values, legend, "pdf"))
    subprocess.run(["pdfimages", "-png", path, tmp_path / "picture"], check=True)
    expected, _ = draw_scores(image, values, legend, (160, 90))
    pictures = [read_image(file) for file in sorted(tmp_path.glob("picture-*.png"))]
    # A page turns its rows over when it draws them.
    assert any(np.array_equal(picture[::-1], expected) for picture in pictures)


@pytest.mark.parametrize("format", ["pdf", "svg"])
def test_the_same_page_has_the_same_bytes(
    image: np.ndarray, values: np.ndarray, legend: Legend, format: str
) -> None:
    assert draw_page(image, values, legend, format) == draw_page(image, values, legend, format)


def test_what_is_flagged_has_its_meaning_on_the_page(
    image: np.ndarray, values: np.ndarray, legend: Legend
) -> None:
    flagging = replace(legend, threshold=0.4)
    drawn = texts(draw_page(image, values, flagging, "svg", anomaly=values > 0.9))
    assert "Flagged: entropy >= 0.4" in drawn
    assert "Outlined: labelled anomaly" in drawn


def test_a_label_of_another_size_is_refused(
    image: np.ndarray, values: np.ndarray, legend: Legend
) -> None:
    with pytest.raises(InputError, match="for an image of 160x90"):
        draw_page(image, values, legend, "pdf", anomaly=values[1:] > 0.9)


def test_pages_are_written_for_each_frame(scene: Scene, tmp_path: Path) -> None:
    written = write_pictures(scene.maps, tmp_path / "out", score=["entropy"], format="pdf")
    paths = written.pictures["overlay-entropy"]
    assert [path.stem for path in paths] == [Path(name).stem for name in NAMES]
    assert all(path.read_bytes().startswith(b"%PDF") for path in paths)


def test_what_a_mask_leaves_out_is_striped_and_the_legend_says_so(
    image: np.ndarray, values: np.ndarray, legend: Legend
) -> None:
    kept = np.ones((90, 160), bool)
    kept[60:] = False
    whole, outlines = draw_scores(image, values, legend, (160, 90))
    assert outlines == []
    picture, outlines = draw_scores(image, values, legend, (160, 90), kept=kept)
    assert [outline.words for outline in outlines] == ["Striped: left out by the mask"]
    assert np.array_equal(picture[:60], whole[:60])
    left_out = picture[60:].astype(int)
    assert (left_out <= whole[60:]).all()
    # Stripes: on a row, darker and lighter pieces of equal width follow one another.
    brightness = left_out.sum(2) / whole[60:].sum(2).clip(1)
    is_dark = brightness < 0.42
    assert 0.3 < is_dark.mean() < 0.7
    everything, outlines = draw_scores(image, values, legend, (160, 90), kept=kept | True)
    assert outlines == []
    assert np.array_equal(everything, whole)
