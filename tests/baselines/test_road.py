"""Frames of one's own road: a bank without labels, labels that keep anomalies out, and frames at
their own size.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from segunc import Sampler, build_network, save_network
from segunc.baselines.anomaly import Anomaly, ScoreSum, drivable_hull
from segunc.baselines.features import FeatureDensity
from segunc.core.errors import InputError
from segunc.data.images import load_image
from segunc.networks.description import NetworkDescription
from segunc.posteriors.model import Model, load_model
from segunc.sampling.sampler import network_input, sample_frames
from tests.conftest import change_record
from tests.support.fits import fit_folder
from tests.support.images import rename_to_latin_1
from tests.verbs.processes import succeed

LAYERS = ["body.encoder.features.3"]  # of stride 4
PARTS = ["deterministic-energy", "knn"]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained network that sees frames at half their size."""
    torch.manual_seed(0)
    classes = ("road", "car", "sky")
    description = NetworkDescription("FPN", "mobilenet_v2", classes, inference_size=(64, 128))
    folder = tmp_path_factory.mktemp("base")
    save_network(build_network(description), folder)
    return folder


@pytest.fixture
def road(tmp_path: Path) -> Path:
    images = np.random.default_rng(0).integers(0, 255, (3, 128, 256, 3), np.uint8)
    return write(tmp_path / "road" / "images", *images)


def write(folder: Path, *images: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for number, image in enumerate(images):
        cv2.imwrite(str(folder / f"{number}.png"), image)
    return folder


def mask(road: Path) -> Path:
    """Write labels beside: the left half is an anomaly, the lowest quarter is ignored."""
    labels = np.zeros((128, 256), np.uint8)
    labels[:, :128] = 1
    labels[96:] = 255
    return write(road.parent / "labels_masks", *[labels] * 3)


def fitted(base: Path, out: Path, road: object, **more: Any) -> Model:
    settings: dict[str, Any] = {"images": str(road), "layers": LAYERS, **more}
    fit_folder(FeatureDensity(**settings), base, out)
    return load_model(out)


def test_a_bank_of_images_alone_knows_them(base: Path, road: Path, tmp_path: Path) -> None:
    succeed(
        "finetune --method features --device cpu",
        *("--base", base),
        *("--features.images", road),
        *("--features.layers", LAYERS[0].join("[]")),
        *("--out", tmp_path / "model"),
    )
    model = load_model(tmp_path / "model")
    assert model.attachments["features"].frames == ("0", "1", "2")
    near = model(load_image(road / "0.png"), scores=["knn"]).knn
    far = model(np.zeros((128, 256, 3), np.uint8), scores=["knn"]).knn
    assert near.max() < 2e-4
    assert far.min() > 2e-4


def test_anomalies_and_ignored_pixels_stay_out(base: Path, road: Path, tmp_path: Path) -> None:
    mask(road)
    for images in (road, f"folder:{road.parent}"):
        fitted(base, tmp_path / "model", images)
        stored = load_file(tmp_path / "model" / "features.safetensors")
        _, row, column, _ = stored["0.origins"].T
        assert len(row) == 3 * 12 * 15  # a place beside an anomaly has seen it
        assert row.max() < 0.75
        assert column.min() > 0.5


def refused(base: Path, out: Path, images: object, said: str) -> None:
    with pytest.raises(InputError, match=said):
        fitted(base, out, images)
    assert not out.exists()


def test_a_single_image_with_an_anomaly_is_refused(base: Path, tmp_path: Path) -> None:
    single = write(tmp_path / "one" / "images", np.zeros((128, 256, 3), np.uint8))
    mask(single)
    said = "holds an anomaly, which features beside it have seen"
    refused(base, tmp_path / "out", single, said)


def test_a_folder_that_is_not_there_is_refused(base: Path, tmp_path: Path) -> None:
    refused(base, tmp_path / "out", tmp_path / "nowhere", "does not exist")


def test_a_name_that_no_record_can_hold_is_refused_before_the_fit(
    base: Path, tmp_path: Path
) -> None:
    folder = write(tmp_path / "images", *np.zeros((2, 128, 256, 3), np.uint8))
    rename_to_latin_1(folder / "0.png")
    refused(base, tmp_path / "out", folder, r"stra\\xdfe.png is not UTF-8")


def test_a_data_set_without_anomaly_labels_is_refused(
    base: Path, road: Path, tmp_path: Path
) -> None:
    refused(base, tmp_path / "out", f"camvid:{road}", "has no anomaly labels")


def test_images_of_anomalies_alone_are_refused(base: Path, road: Path, tmp_path: Path) -> None:
    write(mask(road), *np.ones((3, 128, 256), np.uint8))
    refused(base, tmp_path / "out", road, "0 features of .* are of normal pixels")


@pytest.fixture
def whole_frames(base: Path, road: Path, tmp_path: Path) -> Model:
    return fitted(base, tmp_path / "model", road, resolution="frame")


def test_a_sum_is_fitted_on_whole_frames(whole_frames: Model, road: Path, tmp_path: Path) -> None:
    model = fit_folder(Anomaly(images=str(road), parts=PARTS), tmp_path / "model", tmp_path / "sum")
    total = model.attachments["anomaly"]
    assert total.frames == 3
    assert total.fitted_on["dataset"] == str(road)
    assert total.scales[1].mean > 0.01  # a frame that is compared with itself has no distance


def test_whole_frames_are_seen_at_their_own_size(whole_frames: Model, road: Path) -> None:
    model = whole_frames
    image = load_image(road / "1.png")
    (density,) = model.fitted(["knn"]).providers
    distance = density(network_input([image]), density.gives)["feature distance"]
    assert len(density.banks[0].bank) == 3 * 32 * 64
    assert distance.shape == (1, 128, 256)
    sampler = Sampler(model.network, scores=["knn"], fitted=model.fitted(["knn"]))
    other = load_image(road / "0.png")
    sampled = sample_frames(sampler, [image, other]).scores["knn"]
    as_network_sees = F.interpolate(distance[None], (64, 128), mode="bilinear")
    expected = F.interpolate(as_network_sees, (128, 256), mode="bilinear")
    torch.testing.assert_close(sampled[:1], expected[0])


def test_features_of_an_earlier_version_are_of_frames_as_the_network_sees_them(
    whole_frames: Model, tmp_path: Path
) -> None:
    change_record(tmp_path / "model" / "features.json", without=["resolution"])
    older = load_model(tmp_path / "model")
    (density,) = older.fitted(["knn"]).providers
    assert not density.whole


def test_a_hull_joins_large_pieces_and_holds_what_lies_between_them() -> None:
    prediction = torch.full((40, 60), 2, dtype=torch.uint8)
    prediction[20:, 10:25] = 0
    prediction[20:, 35:50] = 1
    prediction[2, 2] = 0  # too small to be road
    hull = drivable_hull(prediction, (0, 1))
    first_row, first_column = hull.nonzero().amin(0).tolist()
    assert first_row == 20
    assert first_column == 10
    assert hull[20:, 10:50].all()
    assert hull.sum() == 20 * 40


def test_without_a_drivable_pixel_the_hull_is_the_frame() -> None:
    prediction = torch.full((40, 60), 2, dtype=torch.uint8)
    assert drivable_hull(prediction, (3,)).all()


def test_outside_of_the_drivable_hull_nothing_is_an_anomaly(
    base: Path, road: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def left_of(prediction: torch.Tensor, classes: Sequence[int]) -> torch.Tensor:
        assert tuple(classes) == (2, 0)
        width = prediction.shape[1]
        return torch.arange(width).expand_as(prediction) < width // 2

    monkeypatch.setattr("segunc.baselines.anomaly.drivable_hull", left_of)
    fitted(base, tmp_path / "model", road)

    def summed(*drivable: str) -> ScoreSum:
        settings = Anomaly(images=str(road), parts=PARTS, drivable=list(drivable))
        made = fit_folder(settings, tmp_path / "model", tmp_path / "sum")
        total: ScoreSum = made.attachments["anomaly"]
        return total

    with pytest.raises(InputError, match="has no class 'pavement'"):
        summed("road", "pavement")
    total = summed("sky", "road")
    model = load_model(tmp_path / "sum")
    maps = model(load_image(road / "0.png"), scores=["anomaly"]).anomaly
    assert not maps[:, 128:].any()
    assert maps[:, :128].any()
    assert total.pixels == 3 * 64 * 64  # of the left half of what the network sees
    assert model.attachments["anomaly"].record()["anomaly"]["drivable"] == (2, 0)
