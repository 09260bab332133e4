"""Pasted objects: a function of the frame's name, where the mask says, in any size of frame."""

from pathlib import Path

import cv2
import numpy as np
import pytest

from segunc.data.images import Image
from segunc.data.labels import IGNORE
from segunc.data.pasting import AREAS, MAX_OBJECTS, paste_objects
from segunc.toyroads import render_scene
from tools import paste_objects as tool


@pytest.fixture(scope="module")
def scene() -> Image:
    return render_scene((5, 0, 0), (192, 320), anomaly=False).image


@pytest.fixture(scope="module")
def sources() -> list[Image]:
    return [render_scene((6, 0, number), (96, 160), anomaly=False).image for number in range(3)]


def normal(height: int, width: int) -> Image:
    return np.zeros((height, width), np.uint8)


def test_the_arguments_stay_as_they_are(scene: Image, sources: list[Image]) -> None:
    image = scene.copy()
    mask = normal(192, 320)
    paste_objects(image, mask, sources, "a")
    np.testing.assert_array_equal(image, scene)
    assert not mask.any()


def test_the_name_of_a_frame_decides_its_objects(scene: Image, sources: list[Image]) -> None:
    first, mask = paste_objects(scene, normal(192, 320), sources, "a")
    again, again_mask = paste_objects(scene, normal(192, 320), sources, "a")
    _, other_mask = paste_objects(scene, normal(192, 320), sources, "b")
    np.testing.assert_array_equal(first, again)
    np.testing.assert_array_equal(mask, again_mask)
    assert not np.array_equal(mask, other_mask)


@pytest.mark.parametrize("name", "abcdefgh")
def test_only_marked_pixels_change(scene: Image, sources: list[Image], name: str) -> None:
    pasted, mask = paste_objects(scene, normal(192, 320), sources, name)
    unmarked = mask == 0
    difference = np.abs(pasted.astype(int) - scene)[unmarked]
    assert difference.max() <= 3  # an opacity of up to .01 is not marked
    assert np.any(pasted[mask == 1] != scene[mask == 1])
    number_of_objects = cv2.connectedComponents((mask == 1).astype(np.uint8))[0] - 1
    assert 1 <= number_of_objects <= MAX_OBJECTS
    assert (mask == 1).mean() <= MAX_OBJECTS * AREAS[1] * 2


def test_ignored_pixels_stay_ignored_beside_the_objects(scene: Image, sources: list[Image]) -> None:
    ignored = np.full((192, 320), IGNORE, np.uint8)
    _, mask = paste_objects(scene, ignored, sources, "a")
    assert set(np.unique(mask)) == {1, IGNORE}


@pytest.mark.parametrize("size", [(16, 400), (400, 16), (8, 8), (3, 5)])
def test_frames_of_any_size_get_objects(sources: list[Image], size: tuple[int, int]) -> None:
    height, width = size
    frame = np.zeros((height, width, 3), np.uint8)
    tiny_source = sources[0][:4, :4]
    for name in "abcd":
        pasted, mask = paste_objects(frame, normal(*size), [tiny_source], name)
        assert pasted.shape == frame.shape
        assert mask.shape == size
        assert (mask == 1).any()


def test_each_small_frame_has_a_pasted_pixel(sources: list[Image]) -> None:
    frame = np.full((64, 96, 3), 120, np.uint8)
    for number in range(300):
        pasted, mask = paste_objects(frame, normal(64, 96), sources, f"{number:06d}")
        assert (mask == 1).any()
        assert np.abs(pasted.astype(int) - frame)[mask == 0].max() <= 3


def test_the_tool_writes_frames_and_masks(
    scene: Image, sources: list[Image], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels = normal(192, 320)
    labels[:20] = 11
    folders = {"frames": [scene] * 3, "labels": [labels] * 3, "sources": sources}
    words = ["paste_objects", "--every", "2", "--out", str(tmp_path / "out")]
    for name, images in folders.items():
        (tmp_path / name).mkdir()
        words += [f"--{name}", str(tmp_path / name)]
        for number, image in enumerate(images):
            cv2.imwrite(str(tmp_path / name / f"{number}.png"), image)
    monkeypatch.setattr("sys.argv", words)
    assert tool.main() == 0
    written = sorted(path.name for path in (tmp_path / "out" / "images").iterdir())
    assert written == ["0.png", "2.png"]
    mask = cv2.imread(str(tmp_path / "out" / "labels_masks" / "2.png"), cv2.IMREAD_UNCHANGED)
    ignored = np.where(labels == 11, IGNORE, 0).astype(np.uint8)
    from_files = [source[..., ::-1].copy() for source in sources]
    frame, expected = paste_objects(scene[..., ::-1].copy(), ignored, from_files, "2")
    np.testing.assert_array_equal(mask, expected)
    image = cv2.imread(str(tmp_path / "out" / "images" / "2.png"))
    np.testing.assert_array_equal(image[..., ::-1], frame)
