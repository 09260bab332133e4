"""Pasted anomalies: a function of frame and seed, of every size, never out of what training ignores, and no easier to see by their
borders than what is normal."""

from __future__ import annotations

import os
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt
import pytest
from sklearn.metrics import roc_auc_score

from segunc.core.errors import InputError
from segunc.data import cut_paste
from segunc.data.cut_paste import FEWEST, LARGEST, MOST, SMALLEST, CutPaste, Pasted
from segunc.data.images import Image
from segunc.data.labels import IGNORE, label_map
from segunc.data.module import SegmentationDataModule
from segunc.data.samples import Labels, SegmentationDataset
from segunc.toyroads import render_scene

DATA = os.environ.get("SEGUNC_DATA")
Frame = tuple[Image, Labels]
SEEDS = range(6)


class Frames(SegmentationDataset):
    """Frames in memory."""

    def __init__(self, frames: list[Frame]) -> None:
        self.frames = frames

    def __len__(self) -> int:
        return len(self.frames)

    def read(self, index: int) -> Frame:
        return self.frames[index]


def scene(number: int) -> Frame:
    made = render_scene((7, 0, number), (192, 320), anomaly=False)
    return made.image, label_map("toy").encode(made.labels)


@pytest.fixture(scope="module")
def sources() -> list[Frame]:
    return [scene(number) for number in range(4)]


@pytest.fixture(scope="module")
def pasted(sources: list[Frame]) -> list[tuple[Frame, Pasted]]:
    held_out = [scene(number) for number in range(4, 8)]
    return [
        (frame, CutPaste(Frames(sources), seed=seed)(*frame, f"f{number}"))
        for seed in SEEDS
        for number, frame in enumerate(held_out)
    ]


def solid(frame: Frame, made: Pasted) -> npt.NDArray[np.bool_]:
    """What was pasted, with its borders where the frame's own labels ignore nothing."""
    return (made.anomaly == 1) | ((made.anomaly == IGNORE) & (frame[1] != IGNORE))


def test_a_function_of_frame_name_and_seed(sources: list[Frame], pasted: list[tuple[Frame, Pasted]]) -> None:
    frame, first = pasted[0]
    before = frame[0].copy(), frame[1].copy()
    again = CutPaste(Frames(sources), seed=0)
    again(*pasted[1][0], "another frame before it")
    for one, other in zip(first, again(*frame, "f0"), strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(frame[0], before[0])
    np.testing.assert_array_equal(frame[1], before[1])
    for name, seed in (("f0", 1), ("f1", 0)):
        other = CutPaste(Frames(sources), seed=seed)(*frame, name)
        assert not np.array_equal(first.anomaly, other.anomaly)


def test_the_frame_is_untouched_outside_of_anomalies_and_shams(pasted: list[tuple[Frame, Pasted]]) -> None:
    for (image, labels), made in pasted:
        changed = (made.image != image).any(2)
        assert not (changed & (made.anomaly == 0) & ~made.shams).any()
        assert changed[made.anomaly == 1].mean() > 0.9
        assert not (made.shams & (made.anomaly == 1)).any()
        assert set(np.unique(made.anomaly)) <= {0, 1, IGNORE}
        assert (made.anomaly == 1).any()
        np.testing.assert_array_equal(made.labels, np.where(made.anomaly != 0, IGNORE, labels))
        assert (made.anomaly[(labels == IGNORE)] != 0).all()
        # An anomaly never ends in a counted pixel: its border is ignored.
        beside = cv2.dilate(np.uint8(made.anomaly == 1), cv2.getStructuringElement(cv2.MORPH_CROSS, (3, 3))) == 1
        assert (made.anomaly[beside] != 0).all()


def test_sizes_are_uniform_in_their_logarithm(sources: list[Frame], monkeypatch: pytest.MonkeyPatch) -> None:
    areas: list[float] = []
    blend = cut_paste._blend

    def measured(made: Image, cut: cut_paste.CutOut, *more: object) -> object:
        areas.append((cut.inside > 0.5).sum())
        return blend(made, cut, *more)  # type: ignore[arg-type]

    paste = CutPaste(Frames(sources))
    paste.kinds = [paste._texture]  # objects give way where the frame is too narrow for them
    monkeypatch.setattr(cut_paste, "_blend", measured)
    monkeypatch.setattr(cut_paste, "_regions", lambda labels: [])  # no shams
    image, labels = sources[0]
    counts = []
    for number in range(60):
        before = len(areas)
        paste(image, labels, f"frame {number}")
        counts.append(len(areas) - before)
    assert set(counts) == set(range(1, MOST + 1))
    fractions = np.sort(areas) / labels.size
    assert fractions[0] < 1.5 * max(SMALLEST, FEWEST / labels.size)
    assert 0.8 * LARGEST < fractions[-1] <= 1.05 * LARGEST
    least = FEWEST / labels.size
    for quantile in (0.25, 0.5, 0.75):
        expected = max(SMALLEST * (LARGEST / SMALLEST) ** quantile, least)
        assert np.quantile(fractions, quantile) == pytest.approx(expected, rel=0.35)


def test_what_training_ignores_is_never_pasted(sources: list[Frame], pasted: list[tuple[Frame, Pasted]]) -> None:
    """The class that a test calls an anomaly is ignored in the training labels. Whatever it looks like changes nothing."""
    random = np.random.default_rng(0)

    def with_leak(picture: int) -> list[Frame]:
        frames = []
        for image, labels in sources:
            image, labels = image.copy(), labels.copy()
            labels[30:80, 20:120] = IGNORE
            image[labels == IGNORE] = random.integers(0, 256, 3) if picture else (255, 0, 255)
            frames.append((image, labels))
        return frames

    pastes = [CutPaste(Frames(with_leak(picture))) for picture in range(2)]
    for number in range(12):
        one, other = (paste(*pasted[0][0], f"f{number}") for paste in pastes)
        np.testing.assert_array_equal(one.image, other.image)
    everywhere = Frames([(image, np.full_like(labels, IGNORE)) for image, labels in sources])
    with pytest.raises(InputError, match="4 training frames without an object to cut out"):
        CutPaste(everywhere)


def detectors(image: Image) -> dict[str, npt.NDArray[np.float32]]:
    """Statistics of edges and blur over 5 x 5 pixels, which know nothing of objects."""
    light = cv2.cvtColor(np.float32(image) / 255, cv2.COLOR_RGB2LAB)[..., 0]
    gradient = np.hypot(cv2.Sobel(light, -1, 1, 0), cv2.Sobel(light, -1, 0, 1))
    laplacian, fine = np.abs(cv2.Laplacian(light, -1)), np.abs(light - cv2.medianBlur(light, 3))
    every = {"gradient": gradient, "laplacian": laplacian, "fine": fine}
    return {name: np.float32(cv2.dilate(values, np.ones((5, 5)))) for name, values in every.items()}


def test_borders_of_anomalies_look_like_those_of_what_is_normal(pasted: list[tuple[Frame, Pasted]]) -> None:
    borders_are_no_cue(pasted)


def borders_are_no_cue(pasted: list[tuple[Frame, Pasted]]) -> None:
    anomalous: dict[str, list[npt.NDArray[np.float32]]] = {}
    normal: dict[str, list[npt.NDArray[np.float32]]] = {}
    for frame, made in pasted:
        for name, values in detectors(made.image).items():
            for found, mask in ((anomalous, solid(frame, made)), (normal, made.shams)):
                border = mask & (cv2.erode(np.uint8(mask), np.ones((3, 3)), borderValue=0) == 0)
                found.setdefault(name, []).append(values[border])
    for name in anomalous:
        values = [np.concatenate(found[name]) for found in (normal, anomalous)]
        assert min(map(len, values)) > 1500
        auroc = roc_auc_score(np.repeat([0, 1], [len(one) for one in values]), np.concatenate(values))
        assert auroc == pytest.approx(0.5, abs=0.1), name


@pytest.mark.skipif(DATA is None, reason="SEGUNC_DATA names no folder of real data")
def test_borders_are_no_cue_on_camvid() -> None:
    root = str(Path(str(DATA)) / "camvid")
    data = SegmentationDataModule("camvid", root, validation="leave-sequence-out", sequence="^([^_]+)_")
    pasted = []
    for fold in data.folds():
        frames, paste = fold.dataset("val"), CutPaste(fold.dataset("train"))
        assert len(frames) == {"0001TP": 62, "0006R0": 101, "0016E5": 204}[str(fold.held_out)]
        for index in range(0, len(frames), len(frames) // 6):
            frame = frames.read(index)
            pasted.append((frame, paste(*frame, frames.samples[index].name)))
    borders_are_no_cue(pasted)


def test_colours_move_towards_those_around() -> None:
    random = np.random.default_rng(0)
    pixels, around = (
        np.float32(random.normal(60, 10, (20, 20, 3))),
        random.integers(120, 200, (500, 3)).astype(np.uint8),
    )
    core = np.ones((20, 20), bool)
    means = [cut_paste._matched(pixels, core, around, share).mean((0, 1)) for share in (0.0, 0.5, 1.0)]
    np.testing.assert_allclose(means[0], pixels.mean((0, 1)), rtol=1e-4)
    np.testing.assert_allclose(means[2], around.mean(0), rtol=1e-4)
    np.testing.assert_allclose(means[1], (means[0] + means[2]) / 2, rtol=1e-4)
    spreads = [cut_paste._matched(pixels, core, around, share).std() for share in (0.0, 0.5, 1.0)]
    assert spreads[0] < spreads[1] < spreads[2] <= 2.001 * spreads[0]  # never more than twice the contrast


def test_shams_go_through_the_blending(pasted: list[tuple[Frame, Pasted]]) -> None:
    shams = [
        (made.image[made.shams] != frame[0][made.shams]).any(1).mean() for frame, made in pasted if made.shams.any()
    ]
    assert len(shams) > 0.8 * len(pasted)
    assert np.mean(shams) > 0.8


def cut_out(path: Path, *, channels: int = 4, alpha: int | None = None) -> Path:
    """A green disc."""
    pixels = np.full((40, 60, channels), (40, 200, 30, 255)[:channels], np.uint8)
    if channels == 4:
        pixels[..., 3] = cv2.circle(np.zeros((40, 60), np.uint8), (30, 20), 18, 255, -1) if alpha is None else alpha
    path.parent.mkdir(parents=True, exist_ok=True)
    assert cv2.imwrite(str(path), pixels)
    return path


def test_objects_of_the_user_are_pasted(sources: list[Frame], tmp_path: Path) -> None:
    cut_out(tmp_path / "objects" / "disc.png")
    paste = CutPaste(Frames(sources), tmp_path / "objects")
    assert len(paste.kinds) == 3
    paste.kinds = paste.kinds[2:]
    image = sources[0][0]
    made = paste(image, np.zeros(image.shape[:2], np.uint8), "one class")
    red, green, blue = made.image[made.anomaly == 1].astype(int).T
    assert (green > red + 20).mean() > 0.9
    assert (green > blue + 20).mean() > 0.9
    assert not made.shams.any()  # one class everywhere has no region to be a sham


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda folder: None, "folder .* does not exist"),
        (lambda folder: folder.mkdir(), "holds no image"),
        (lambda folder: cut_out(folder / "a.png", channels=3), r"a\.png has no alpha channel"),
        (lambda folder: cut_out(folder / "a.png", alpha=255), r"a\.png is all opaque"),
        (lambda folder: cut_out(folder / "a.png", alpha=0), r"a\.png is nowhere opaque"),
        (lambda folder: (folder.mkdir(), (folder / "a.png").write_bytes(b"")), r"a\.png cannot be read"),
    ],
)
def test_a_folder_without_a_cut_out_is_refused(tmp_path: Path, make: object, said: str) -> None:
    make(tmp_path / "objects")  # type: ignore[operator]
    with pytest.raises(InputError, match=said) as caught:
        CutPaste(Frames([]), tmp_path / "objects")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("size", [(24, 32), (48, 64), (40, 200)])
def test_frames_of_any_size(sources: list[Frame], size: tuple[int, int]) -> None:
    image = np.full((*size, 3), 90, np.uint8)
    for number in range(15):
        made = CutPaste(Frames(sources))(image, np.zeros(size, np.uint8), f"f{number}")
        assert made.image.shape == image.shape
        assert (made.anomaly == 1).any()
