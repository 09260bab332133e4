"""The built-in toy road scenes: reproducible, labelled exactly, and with anomalies that no simple
cue gives away.
"""

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import pytest
from sklearn.metrics import roc_auc_score

from segunc.core.errors import InputError
from segunc.data.frame_names import frame_stem
from segunc.data.image_files import list_images
from segunc.data.images import read_image, read_label_image
from segunc.data.labels import label_map
from segunc.data.layouts import find_labels
from segunc.toyroads import Scene, ToyConfig, generate_toy, render_scene
from segunc.toyroads.canvas import Camera, Canvas, Id, Stage, sample_light
from segunc.toyroads.scene import (
    FRAMES_PER_SECOND,
    SPLITS,
    VIDEO_SPLIT,
    frame_name,
    video_frames,
    vote,
)
from segunc.toyroads.things import KINDS, sample_anomaly

SIZE = (128, 256)
SMALL = ToyConfig(seed=3, train=3, val=1, test=1, anomaly=2, video_frames=5, size=(64, 128))
# A detector that has learned the scenes reaches 0.85 to 0.95 pooled AUROC; a cue without any
# learning of shapes stays clearly below.
CUE_BOUND = 0.75


@pytest.fixture(scope="module")
def normal_scenes() -> list[Scene]:
    return [render_scene((0, 0, i), SIZE, anomaly=False) for i in range(24)]


@pytest.fixture(scope="module")
def anomaly_scenes() -> list[Scene]:
    return [render_scene((0, 3, i), SIZE, anomaly=True) for i in range(32)]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("toy") / "set"
    generate_toy(root, SMALL)
    return root


def digests(root: Path) -> dict[str, str]:
    return {
        p.relative_to(root).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in root.rglob("*.png")
    }


def test_a_second_run_gives_the_same_bytes_and_sets_of_other_lengths_share_frames(
    written: Path, tmp_path: Path
) -> None:
    generate_toy(tmp_path / "again", SMALL)
    again = digests(tmp_path / "again")
    assert again == digests(written)
    assert len(again) == 2 * (3 + 1 + 1 + 2) + 2 + 5
    generate_toy(
        tmp_path / "short", replace(SMALL, train=1, val=0, test=0, anomaly=0, video_frames=0)
    )
    short = digests(tmp_path / "short")
    assert len(short) == 2
    assert short.items() <= again.items()


def test_the_files_are_named_and_hold_what_was_rendered(written: Path) -> None:
    for split in SPLITS:
        images = written / "leftImg8bit" / split
        names = [
            path.relative_to(images).with_suffix("").as_posix() for path in list_images(images)
        ]
        assert names == sorted(
            f"{frame_name(split, i)}_leftImg8bit" for i in range(getattr(SMALL, split))
        )
        assert len(find_labels(written / "gtFine" / split, names)) == len(names)
        assert all(frame_stem(name).endswith("_000019") for name in names)
    assert (
        len(
            find_labels(
                written / "gtAnomaly" / "anomaly", [frame_name("anomaly", i) for i in range(2)]
            )
        )
        == 2
    )
    assert json.loads((written / "toy.json").read_text())["config"]["seed"] == 3
    assert not list(written.parent.glob(".*unfinished"))
    scene, frame = render_scene((3, 3, 1), SMALL.size, anomaly=True), frame_name("anomaly", 1)
    for path, values in (
        (f"leftImg8bit/anomaly/{frame}_leftImg8bit.png", scene.image),
        (f"gtFine/anomaly/{frame}_gtFine_labelIds.png", scene.labels),
        (f"gtAnomaly/anomaly/{frame}_anomaly.png", scene.anomaly),
    ):
        np.testing.assert_array_equal(
            (read_image if values.ndim == 3 else read_label_image)(written / path), values
        )


def test_every_class_occurs_in_plausible_shares_at_every_size(normal_scenes: list[Scene]) -> None:
    base, small = normal_scenes[0], render_scene((0, 0, 0), (64, 128), anomaly=False)
    assert (small.labels == base.labels[::2, ::2]).mean() > 0.9
    for seed in ((1, 0, 0), (0, 1, 0), (0, 0, 1)):
        assert (render_scene(seed, SIZE, anomaly=False).image != base.image).mean() > 0.5
    toy = label_map("toy")
    train = toy.encode(np.stack([scene.labels for scene in normal_scenes]))
    assert (
        train.max() == toy.num_classes - 1
    )  # nothing is ignored in a normal scene, and nothing an anomaly
    assert not any(scene.anomaly.any() for scene in normal_scenes)
    shares = {name: float((train == i).mean()) for i, name in enumerate(toy.classes)}
    ranges = {
        "sky": (0.05, 0.35), "building": (0.08, 0.4), "vegetation": (0.06, 0.35), "road": (0.2, 0.5),
        "sidewalk": (0.02, 0.2), "car": (0.04, 0.25), "person": (0.004, 0.06), "pole": (0.006, 0.05),
        "traffic sign": (0.004, 0.04),
    }  # fmt: skip
    assert shares.keys() == ranges.keys()
    assert [name for name, (low, high) in ranges.items() if not low < shares[name] < high] == []


def test_anomalies_cover_a_small_part_and_are_ignored_in_training(
    anomaly_scenes: list[Scene],
) -> None:
    shares = [float((scene.anomaly == 1).mean()) for scene in anomaly_scenes]
    assert 0.01 < np.mean(shares) < 0.04
    assert min(shares) > 0.0005, "a cone 18 m away has about 20 pixels"
    for scene in anomaly_scenes:
        assert set(np.unique(scene.anomaly)) == {0, 1, 255}
        np.testing.assert_array_equal(scene.anomaly == 1, scene.labels == Id.ANOMALY)
        rim = (scene.anomaly == 255).astype(np.uint8)
        assert not cv2.erode(rim, np.ones((5, 5), np.uint8)).any()  # thin
        assert (label_map("toy").encode(scene.labels)[scene.anomaly == 1] == 255).all()


def cue_auroc(score: npt.NDArray[np.floating], anomaly: npt.NDArray[np.uint8]) -> float:
    """AUROC over all counted pixels, whichever end of the score means anomalous."""
    counted = anomaly != 255
    value = float(roc_auc_score(anomaly[counted] == 1, score[counted]))
    return max(value, 1 - value)


def test_no_simple_cue_tells_anomalies(
    anomaly_scenes: list[Scene], normal_scenes: list[Scene]
) -> None:
    images = np.stack([scene.image for scene in anomaly_scenes]).astype(np.float32) / 255
    anomaly = np.stack([scene.anomaly for scene in anomaly_scenes])
    training = (
        np.stack([scene.image for scene in normal_scenes]).reshape(-1, 3).astype(np.float32) / 255
    )
    grey = images.mean(axis=-1)
    precision = np.linalg.inv(np.cov(training.T))
    offset = images - training.mean(axis=0)
    cues = {
        "brightness": grey,
        "distance from middle grey": np.abs(grey - np.median(grey)),
        "Mahalanobis distance of the colour": np.einsum(
            "nhwi,ij,nhwj->nhw", offset, precision, offset
        ),
        "local deviation": np.stack(
            [cv2.blur(g * g, (5, 5)) - cv2.blur(g, (5, 5)) ** 2 for g in grey]
        ),
        "noise": np.stack([np.abs(g - cv2.GaussianBlur(g, (0, 0), 1.0)) for g in grey]),
    }
    values = {name: cue_auroc(score, anomaly) for name, score in cues.items()}
    # A classifier of single pixels' colours, fitted on one half of the scenes with the answers,
    # scored on the other.
    fit, others, counted = slice(0, 16), slice(16, 32), anomaly[:16] != 255
    bins = (images * 11.999).astype(np.intp)
    index = (bins[..., 0] * 12 + bins[..., 1]) * 12 + bins[..., 2]
    odd = np.bincount(index[fit][anomaly[fit] == 1], minlength=1728)
    every = np.bincount(index[fit][counted], minlength=1728)
    ratio = (odd + 1.0) / (every + 1.0 / max(1e-6, odd.sum() / every.sum()))
    values["histogram over RGB"] = cue_auroc(ratio[index[others]], anomaly[others])
    too_easy = {name: value for name, value in values.items() if value >= CUE_BOUND}
    assert not too_easy


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_anomaly_is_drawn_as_one(kind: str) -> None:
    rng = np.random.default_rng(1)
    canvas = Canvas(np.zeros((128, 256, 3), np.float32))
    camera = Camera(128, 256, 1.0, 0.45, 1.5)
    sample_anomaly(rng, 0.0, 8.0, kind).draw(Stage(canvas, camera, sample_light(rng)))
    rows, columns = np.nonzero(canvas.labels == Id.ANOMALY)
    assert 60 < len(rows) < 4000
    assert set(np.unique(canvas.labels)) == {Id.SKY, Id.ANOMALY}
    # It stands on the ground 8 m ahead, row = horizon + focal * height / distance; its front is up
    # to 0.8 m nearer.
    foot = [0.45 * 128 + camera.focal * 1.5 / distance for distance in (8.3, 7.2)]
    assert foot[0] - 1 < rows.max() < foot[1] + 1
    assert abs(columns.mean() - 128) < 12
    np.testing.assert_allclose(canvas.depth[rows, columns], 8, atol=1.5)


def test_projection_of_known_points_and_its_inverse() -> None:
    camera = Camera(100, 200, float(np.pi / 2), 0.5, 1.5, curvature=0.02)
    assert camera.focal == pytest.approx(100)
    # 10 m ahead the bend has carried the street 0.02 / 2 * 10^2 = 1 m to the right.
    found = camera.project(np.array([[0.0, 1.5, 10.0], [2.0, 0.0, 10.0]]))
    np.testing.assert_allclose(found, [[110.0, 50.0], [130.0, 65.0]])
    camera = Camera(120, 240, 1.0, 0.45, 1.4, curvature=0.003, roll=0.02, station=7.0)
    grid = camera.ground_grid()
    for row, column in ((119, 3), (80, 200), (60, 120)):
        i = row - grid.first_row
        point = np.array([[grid.lateral[i, column], 0.0, grid.distance[i, column] + 7.0]], float)
        np.testing.assert_allclose(camera.project(point), [[column + 0.5, row + 0.5]], atol=0.02)


def test_vote_takes_the_majority_and_thin_things_win_ties() -> None:
    labels = np.array(
        [
            [Id.CAR, Id.CAR, Id.ROAD, Id.SIGN],
            [Id.CAR, Id.ROAD, Id.ROAD, Id.SIGN],
            [Id.ANOMALY, Id.ROAD, Id.ROAD, Id.ROAD],
            [Id.ROAD] * 4,
        ]
    )
    winner, anomaly = vote(labels.astype(np.uint8))
    np.testing.assert_array_equal(winner, [[Id.CAR, Id.SIGN], [Id.ROAD, Id.ROAD]])
    np.testing.assert_array_equal(anomaly, [[0, 0], [255, 0]])


def test_video_opens_and_every_frame_has_its_label(written: Path) -> None:
    capture = cv2.VideoCapture(str(written / "video/crossing.webm"))
    assert capture.get(cv2.CAP_PROP_FPS) == pytest.approx(FRAMES_PER_SECOND)
    frames = [capture.read()[1] for _ in range(6)]
    assert [None if frame is None else frame.shape for frame in frames] == [(64, 128, 3)] * 5 + [
        None
    ]
    labels = sorted((written / "video/crossing_anomaly").iterdir())
    assert [p.name for p in labels] == [f"{i:06d}.png" for i in range(5)]
    masks = [read_label_image(path) == 1 for path in labels]
    centres = [float(np.nonzero(mask)[1].mean()) for mask in masks if mask.any()]
    assert len(centres) >= 4
    assert centres == sorted(centres)  # it crosses from left to right
    assert centres[-1] - centres[0] > 15


@pytest.mark.parametrize("seed", range(4))
def test_nothing_hides_the_crossing_animal(seed: int) -> None:
    frames = list(video_frames((seed, VIDEO_SPLIT), (128, 256), 6, 6 / 48 * FRAMES_PER_SECOND))
    visible = [int((frame.anomaly == 1).sum()) for frame in frames]
    assert min(visible[1:]) > 100, "at the start a parked car may stand before it"
    assert visible[-1] > 3 * visible[1], "the camera comes nearer"


def test_a_finished_set_is_kept_and_anything_else_refused(written: Path, tmp_path: Path) -> None:
    before = {p: p.stat().st_mtime_ns for p in written.rglob("*")}
    lines: list[str] = []
    generate_toy(written, SMALL, progress=lines.append)
    assert {p: p.stat().st_mtime_ns for p in written.rglob("*")} == before
    assert lines == [f"toy road scenes in {written} are complete"]
    (tmp_path / "mine.txt").write_text("keep")
    for root, config in ((written, replace(SMALL, train=4)), (tmp_path, SMALL)):
        with pytest.raises(InputError, match="something else"):
            generate_toy(root, config)
    with pytest.raises(KeyError):
        generate_toy(tmp_path / "set", SMALL, progress=lambda line: {}[line])
    assert [p.name for p in tmp_path.iterdir()] == ["mine.txt"]  # a failure leaves nothing behind


@pytest.mark.parametrize("settings", [{"size": (16, 256)}, {"size": (65, 128)}, {"train": -1}])
def test_bad_configurations_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=next(iter(settings))):
        ToyConfig(**settings)
