"""The built-in toy road scenes: reproducible, labelled exactly, and with anomalies that no simple
cue gives away.
"""

import hashlib
import json
import multiprocessing
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import pytest
from sklearn.metrics import roc_auc_score

from segunc.core.errors import InputError, PartialFailure
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
    video_frame,
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
    digests = {}
    for path in root.rglob("*.png"):
        name = path.relative_to(root).as_posix()
        digests[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return digests


def test_two_processes_give_the_same_bytes(written: Path, tmp_path: Path) -> None:
    generate_toy(tmp_path / "again", SMALL, processes=2)
    assert digests(tmp_path / "again") == digests(written)


def test_a_process_that_ends_is_reported_and_leaves_nothing(tmp_path: Path) -> None:
    def end_it(line: str) -> None:
        for process in multiprocessing.active_children():
            process.kill()

    with pytest.raises(PartialFailure, match="a process that drew toy road scenes ended"):
        generate_toy(tmp_path / "set", SMALL, processes=2, progress=end_it)
    assert not any(tmp_path.iterdir())


def test_a_second_run_gives_the_same_bytes(written: Path, tmp_path: Path) -> None:
    generate_toy(tmp_path / "again", SMALL)
    again = digests(tmp_path / "again")
    assert again == digests(written)


def test_a_set_has_a_file_for_each_image_label_and_mask(written: Path) -> None:
    images = 3 + 1 + 1 + 2
    masks = 2
    assert len(digests(written)) == 2 * images + masks + SMALL.video_frames


def test_sets_of_other_lengths_share_frames(written: Path, tmp_path: Path) -> None:
    one_frame = replace(
        SMALL,
        train=1,
        val=0,
        test=0,
        anomaly=0,
        video_frames=0,
    )
    generate_toy(tmp_path / "short", one_frame)
    short = digests(tmp_path / "short")
    assert len(short) == 2
    assert short.items() <= digests(written).items()


@pytest.mark.parametrize("split", SPLITS)
def test_the_images_of_a_split_are_named(written: Path, split: str) -> None:
    count = getattr(SMALL, split)
    names = sorted(f"{frame_name(split, i)}_leftImg8bit" for i in range(count))
    images = written / "leftImg8bit" / split
    paths = [path.relative_to(images) for path in list_images(images)]
    assert [path.with_suffix("").as_posix() for path in paths] == names
    for name in names:
        assert frame_stem(name).endswith("_000019")
    labels = find_labels(written / "gtFine" / split, names)
    assert len(labels) == len(names)


def test_every_frame_of_the_split_anomaly_has_a_mask(written: Path) -> None:
    names = [frame_name("anomaly", i) for i in range(2)]
    masks = find_labels(written / "gtAnomaly" / "anomaly", names)
    assert len(masks) == 2


def test_a_set_records_its_configuration(written: Path) -> None:
    record = json.loads((written / "toy.json").read_text())
    assert record["config"]["seed"] == 3


def test_a_set_leaves_nothing_unfinished(written: Path) -> None:
    assert not list(written.parent.glob(".*unfinished"))


def test_the_files_hold_what_was_rendered(written: Path) -> None:
    scene = render_scene((3, 3, 1), SMALL.size, anomaly=True)
    frame = frame_name("anomaly", 1)
    image = read_image(written / f"leftImg8bit/anomaly/{frame}_leftImg8bit.png")
    labels = read_label_image(written / f"gtFine/anomaly/{frame}_gtFine_labelIds.png")
    anomaly = read_label_image(written / f"gtAnomaly/anomaly/{frame}_anomaly.png")
    np.testing.assert_array_equal(image, scene.image)
    np.testing.assert_array_equal(labels, scene.labels)
    np.testing.assert_array_equal(anomaly, scene.anomaly)


def test_a_smaller_size_shows_the_same_street(normal_scenes: list[Scene]) -> None:
    small = render_scene((0, 0, 0), (64, 128), anomaly=False)
    every_second = normal_scenes[0].labels[::2, ::2]
    assert (small.labels == every_second).mean() > 0.9


@pytest.mark.parametrize(
    "seed",
    [
        (1, 0, 0),
        (0, 1, 0),
        (0, 0, 1),
    ],
)
def test_each_number_of_the_seed_decides(
    normal_scenes: list[Scene], seed: tuple[int, int, int]
) -> None:
    other = render_scene(seed, SIZE, anomaly=False)
    assert (other.image != normal_scenes[0].image).mean() > 0.5


PLAUSIBLE_SHARES = {
    "sky": (0.05, 0.35),
    "building": (0.08, 0.4),
    "vegetation": (0.06, 0.35),
    "road": (0.2, 0.5),
    "sidewalk": (0.02, 0.2),
    "car": (0.04, 0.25),
    "person": (0.004, 0.06),
    "pole": (0.006, 0.05),
    "traffic sign": (0.004, 0.04),
}


@pytest.fixture(scope="module")
def train_ids(normal_scenes: list[Scene]) -> Any:
    """The classes ``[N, H, W]`` that normal scenes train."""
    labels = np.stack([scene.labels for scene in normal_scenes])
    return label_map("toy").encode(labels)


def test_every_class_occurs_in_plausible_shares(train_ids: Any) -> None:
    toy = label_map("toy")
    assert set(toy.classes) == PLAUSIBLE_SHARES.keys()
    for number, name in enumerate(toy.classes):
        low, high = PLAUSIBLE_SHARES[name]
        share = (train_ids == number).mean()
        assert low < share < high, name


def test_nothing_in_a_normal_scene_is_ignored(train_ids: Any) -> None:
    toy = label_map("toy")
    assert train_ids.max() == toy.num_classes - 1


def test_nothing_in_a_normal_scene_is_an_anomaly(normal_scenes: list[Scene]) -> None:
    for scene in normal_scenes:
        assert not scene.anomaly.any()


def test_anomalies_cover_a_small_part(anomaly_scenes: list[Scene]) -> None:
    shares = [float((scene.anomaly == 1).mean()) for scene in anomaly_scenes]
    assert 0.01 < np.mean(shares) < 0.04
    assert min(shares) > 0.0005, "a cone 18 m away has about 20 pixels"


def test_a_mask_holds_the_pixels_of_the_anomaly(anomaly_scenes: list[Scene]) -> None:
    for scene in anomaly_scenes:
        assert set(np.unique(scene.anomaly)) == {0, 1, 255}
        np.testing.assert_array_equal(scene.anomaly == 1, scene.labels == Id.ANOMALY)


def test_the_ignored_rim_of_an_anomaly_is_thin(anomaly_scenes: list[Scene]) -> None:
    square = np.ones((5, 5), np.uint8)
    for scene in anomaly_scenes:
        rim = (scene.anomaly == 255).astype(np.uint8)
        assert not cv2.erode(rim, square).any()


def test_anomalies_are_ignored_in_training(anomaly_scenes: list[Scene]) -> None:
    toy = label_map("toy")
    for scene in anomaly_scenes:
        classes = toy.encode(scene.labels)
        assert (classes[scene.anomaly == 1] == 255).all()


def cue_auroc(score: npt.NDArray[np.floating], anomaly: npt.NDArray[np.uint8]) -> float:
    """AUROC over all counted pixels, whichever end of the score means anomalous."""
    counted = anomaly != 255
    value = float(roc_auc_score(anomaly[counted] == 1, score[counted]))
    return max(value, 1 - value)


def colours_of(scenes: list[Scene]) -> npt.NDArray[np.float32]:
    """``[n, H, W, 3]`` in 0..1."""
    return np.stack([scene.image for scene in scenes]).astype(np.float32) / 255


@pytest.fixture(scope="module")
def images(anomaly_scenes: list[Scene]) -> npt.NDArray[np.float32]:
    return colours_of(anomaly_scenes)


@pytest.fixture(scope="module")
def grey(images: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    return images.mean(axis=-1)


@pytest.fixture(scope="module")
def anomaly(anomaly_scenes: list[Scene]) -> npt.NDArray[np.uint8]:
    return np.stack([scene.anomaly for scene in anomaly_scenes])


def test_brightness_does_not_tell_anomalies(grey: Any, anomaly: Any) -> None:
    assert cue_auroc(grey, anomaly) < CUE_BOUND


def test_distance_from_middle_grey_does_not_tell_anomalies(grey: Any, anomaly: Any) -> None:
    distance = np.abs(grey - np.median(grey))
    assert cue_auroc(distance, anomaly) < CUE_BOUND


def test_distance_from_the_colours_of_normal_scenes_does_not_tell_anomalies(
    images: Any, anomaly: Any, normal_scenes: list[Scene]
) -> None:
    """By Mahalanobis."""
    normal = colours_of(normal_scenes).reshape(-1, 3)
    precision = np.linalg.inv(np.cov(normal.T))
    offset = images - normal.mean(axis=0)
    distance = np.einsum("nhwi,ij,nhwj->nhw", offset, precision, offset)
    assert cue_auroc(distance, anomaly) < CUE_BOUND


def test_local_deviation_does_not_tell_anomalies(grey: Any, anomaly: Any) -> None:
    deviations = []
    for image in grey:
        mean = cv2.blur(image, (5, 5))
        mean_square = cv2.blur(image * image, (5, 5))
        deviations.append(mean_square - mean**2)
    assert cue_auroc(np.stack(deviations), anomaly) < CUE_BOUND


def test_noise_does_not_tell_anomalies(grey: Any, anomaly: Any) -> None:
    noise = []
    for image in grey:
        smooth = cv2.GaussianBlur(image, (0, 0), 1.0)
        noise.append(np.abs(image - smooth))
    assert cue_auroc(np.stack(noise), anomaly) < CUE_BOUND


def test_a_histogram_of_colours_does_not_tell_anomalies(images: Any, anomaly: Any) -> None:
    """A classifier of single pixels' colours, fitted on one half of the scenes with the answers,
    scored on the other.
    """
    red, green, blue = np.moveaxis((images * 11.999).astype(np.intp), -1, 0)
    colours = (red * 12 + green) * 12 + blue
    fitted_colours = colours[:16]
    fitted_labels = anomaly[:16]
    anomalous = np.bincount(fitted_colours[fitted_labels == 1], minlength=1728)
    counted = np.bincount(fitted_colours[fitted_labels != 255], minlength=1728)
    share = max(1e-6, anomalous.sum() / counted.sum())
    ratio = (anomalous + 1.0) / (counted + 1.0 / share)
    assert cue_auroc(ratio[colours[16:]], anomaly[16:]) < CUE_BOUND


HORIZON = 0.45
CAMERA_HEIGHT = 1.5
CAMERA = Camera(128, 256, 1.0, HORIZON, CAMERA_HEIGHT)


@pytest.fixture(scope="module", params=KINDS)
def drawn(request: pytest.FixtureRequest) -> Canvas:
    """A canvas with one kind of anomaly, 8 m ahead."""
    rng = np.random.default_rng(1)
    canvas = Canvas(np.zeros((128, 256, 3), np.float32))
    thing = sample_anomaly(rng, 0.0, 8.0, request.param)
    thing.draw(Stage(canvas, CAMERA, sample_light(rng)))
    return canvas


def test_every_kind_of_anomaly_is_drawn_as_one(drawn: Canvas) -> None:
    anomalous = drawn.labels == Id.ANOMALY
    assert 60 < anomalous.sum() < 4000
    assert set(np.unique(drawn.labels)) == {Id.SKY, Id.ANOMALY}


def row_of_ground(distance: float) -> float:
    return HORIZON * 128 + CAMERA.focal * CAMERA_HEIGHT / distance


def test_an_anomaly_stands_on_the_ground_in_the_middle(drawn: Canvas) -> None:
    rows, columns = np.nonzero(drawn.labels == Id.ANOMALY)
    # Its front is up to 0.8 m nearer than its middle.
    farthest = row_of_ground(8.3)
    nearest = row_of_ground(7.2)
    assert farthest - 1 < rows.max() < nearest + 1
    assert abs(columns.mean() - 128) < 12


def test_an_anomaly_has_the_depth_of_its_place(drawn: Canvas) -> None:
    depth = drawn.depth[drawn.labels == Id.ANOMALY]
    np.testing.assert_allclose(depth, 8, atol=1.5)


def test_projection_of_known_points() -> None:
    camera = Camera(100, 200, float(np.pi / 2), 0.5, 1.5, curvature=0.02)
    assert camera.focal == pytest.approx(100)
    # 10 m ahead the bend has carried the street 0.02 / 2 * 10^2 = 1 m to the right.
    points = np.array([[0.0, 1.5, 10.0], [2.0, 0.0, 10.0]])
    shown = camera.project(points)
    np.testing.assert_allclose(shown, [[110.0, 50.0], [130.0, 65.0]])


@pytest.mark.parametrize(
    ("row", "column"),
    [
        (119, 3),
        (80, 200),
        (60, 120),
    ],
)
def test_the_ground_grid_is_the_inverse_of_the_projection(row: int, column: int) -> None:
    camera = Camera(
        120,
        240,
        1.0,
        0.45,
        1.4,
        curvature=0.003,
        roll=0.02,
        station=7.0,
    )
    grid = camera.ground_grid()
    pixel = (row - grid.first_row, column)
    distance = grid.distance[pixel] + camera.station
    point = np.array([[grid.lateral[pixel], 0.0, distance]], float)
    shown = camera.project(point)
    np.testing.assert_allclose(shown, [[column + 0.5, row + 0.5]], atol=0.02)


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


def test_the_video_opens_and_has_five_frames(written: Path) -> None:
    capture = cv2.VideoCapture(str(written / "video/crossing.webm"))
    assert capture.get(cv2.CAP_PROP_FPS) == pytest.approx(FRAMES_PER_SECOND)
    for _ in range(5):
        _, frame = capture.read()
        assert frame.shape == (64, 128, 3)
    _, beyond = capture.read()
    assert beyond is None


def test_the_anomaly_of_the_video_crosses_from_left_to_right(written: Path) -> None:
    labels = sorted((written / "video/crossing_anomaly").iterdir())
    assert [path.name for path in labels] == [f"{i:06d}.png" for i in range(5)]
    centres = []
    for path in labels:
        _, columns = np.nonzero(read_label_image(path) == 1)
        if len(columns):
            centres.append(float(columns.mean()))
    assert len(centres) >= 4
    assert centres == sorted(centres)
    assert centres[-1] - centres[0] > 15


@pytest.mark.parametrize("seed", range(4))
def test_nothing_hides_the_crossing_animal(seed: int) -> None:
    rate = 6 / 48 * FRAMES_PER_SECOND
    frames = [video_frame((seed, VIDEO_SPLIT), (128, 256), 6, rate, i) for i in range(6)]
    visible = [int((frame.anomaly == 1).sum()) for frame in frames]
    assert min(visible[1:]) > 100, "at the start a parked car may stand before it"
    assert visible[-1] > 3 * visible[1], "the camera comes nearer"


def times(root: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in root.rglob("*")}


def test_a_finished_set_is_kept(written: Path) -> None:
    before = times(written)
    lines: list[str] = []
    generate_toy(written, SMALL, progress=lines.append)
    assert times(written) == before
    assert lines == [f"toy road scenes in {written} are complete"]


def test_a_set_of_another_configuration_is_refused(written: Path) -> None:
    with pytest.raises(InputError, match="something else"):
        generate_toy(written, replace(SMALL, train=4))


def test_a_folder_of_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("keep")
    with pytest.raises(InputError, match="something else"):
        generate_toy(tmp_path, SMALL)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_failure_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(KeyError):
        generate_toy(tmp_path / "set", SMALL, progress=lambda line: {}[line])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("size", (16, 256)),
        ("size", (65, 128)),
        ("train", -1),
    ],
)
def test_bad_configurations_are_refused(setting: str, value: Any) -> None:
    settings: dict[str, Any] = {setting: value}
    with pytest.raises(InputError, match=setting):
        ToyConfig(**settings)
