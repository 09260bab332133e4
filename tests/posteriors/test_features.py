"""Feature density: distances against scikit-learn, features of any layer, and a bank that knows its own frames."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import timm
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from sklearn.neighbors import NearestNeighbors
from torch import nn

from segunc import build_network, save_network
from segunc.affine.files import file_sha256
from segunc.core.errors import InputError
from segunc.data.corruptions import Corruption
from segunc.data.images import load_image
from segunc.data.labels import label_map
from segunc.data.module import SegmentationDataModule
from segunc.networks.description import NetworkDescription
from segunc.networks.features import FeatureExtractor, SecondEncoder, deepest_layer
from segunc.networks.network import SegmentationNetwork
from segunc.posteriors.features import (
    FeatureBank,
    FeaturesConfig,
    _open_encoder,
    fit_features,
)
from segunc.posteriors.files import load_model
from segunc.posteriors.model import copy_model
from segunc.sampling.density import BLOCK, FeatureDensity, Neighbours, Sample, places_of, unit_features
from segunc.sampling.frames import network_input
from segunc.sampling.sampler import Sampler
from segunc.scores import EVIDENCE, FEATURE_DISTANCE, SCORES
from segunc.toyroads.canvas import Id
from segunc.training.config import FitConfig
from tests.conftest import Job
from tests.records import change_record

HALF = (0.5, 0.5, 0.5)
FEATURES = frozenset(name for name, evidence in EVIDENCE.items() if evidence.source == "frame")


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


class PairEncoder(nn.Conv2d):
    """Returns a pair, as no encoder of smp does."""

    def forward(self, images: torch.Tensor) -> Any:
        return super().forward(images), None


class PairNetwork(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.head = PairEncoder(3, 4, 1), nn.Conv2d(4, 2, 1)

    def forward(self, images: torch.Tensor) -> Any:
        return self.head(self.encoder(images)[0])


def test_layers_that_are_named_need_no_encoder_of_a_known_kind() -> None:
    network = SegmentationNetwork(PairNetwork(), NetworkDescription("", "", ("road", "car")), 1)
    looked_at, _ = _open_encoder(network, FeaturesConfig(layers=["body.head"]), print)
    assert FeatureExtractor(looked_at, ["body.head"])(torch.rand(1, 3, 8, 8))[0].shape == (1, 2, 8, 8)
    with pytest.raises(InputError, match=r"features\.layers"):
        _open_encoder(network, FeaturesConfig(), print)


@pytest.mark.parametrize("block", [1, 7, 512])
def test_distances_are_those_of_scikit_learn(monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setitem(BLOCK, "cpu", block)
    queries, bank = random(50, 12), random(80, 12, seed=1)
    found, _ = NearestNeighbors(n_neighbors=1, metric="cosine").fit(bank).kneighbors(queries)
    neighbours, unit = Neighbours(bank), nn.functional.normalize(queries, dim=1)
    np.testing.assert_allclose(neighbours(unit)[FEATURE_DISTANCE].numpy(), found[:, 0], atol=1e-5)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=6), st.integers(1, 60), st.integers(0, 99))
def test_a_sample_does_not_depend_on_how_the_stream_is_cut(parts: list[int], size: int, seed: int) -> None:
    stream = torch.arange(float(sum(parts)))[:, None]
    whole, cut = Sample(size, seed), Sample(size, seed)
    whole.add(stream)
    for part in stream.split(parts):
        cut.add(part)
    assert torch.equal(whole.rows.sort(0).values, cut.rows.sort(0).values)
    assert len(whole.rows.unique()) == min(size, len(stream))


def test_a_sample_is_uniform() -> None:
    counts = torch.zeros(20)
    for seed in range(400):
        sample = Sample(5, seed)
        sample.add(torch.arange(20.0)[:, None])
        counts[sample.rows.long().flatten()] += 1
    assert counts.min() > 60  # 100 expected, standard deviation below 9
    assert counts.max() < 140


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3, 2, 1), nn.Conv2d(4, 6, 3, 2, 1)
        self.unused, self.runs = nn.Conv2d(1, 1, 1), 0

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        images = self.second(self.first(images))
        self.runs += 1
        return images


def test_features_are_the_outputs_of_the_layers_and_nothing_runs_behind_the_last() -> None:
    network, images = Small(), random(2, 3, 16, 24)
    with torch.no_grad():
        first, second = FeatureExtractor(network, ["first", "second"])(images)
        assert torch.equal(first, network.first(images))
        assert torch.equal(second, network.second(first))
        assert network.runs == 0
        both = FeatureExtractor(network, ["second"], [1.0, 0.5])(images)
    assert [tuple(maps.shape) for maps in both] == [(2, 6, 4, 6), (2, 6, 2, 3)]
    with pytest.raises(InputError, match=r"no layer 'thrid'"):
        FeatureExtractor(network, ["thrid"])
    with pytest.raises(InputError, match="never calls its layer 'unused'"):
        FeatureExtractor(network, ["unused"])(images)


def test_tokens_of_patches_are_maps_too() -> None:
    torch.manual_seed(0)
    second = SecondEncoder("vit_tiny_patch16_224", HALF, HALF).eval()
    assert second.deepest == "encoder.blocks.11"
    with torch.no_grad():
        (maps,) = FeatureExtractor(second, [second.deepest])(torch.rand(1, 3, 70, 100))
    assert maps.shape == (1, 192, 4, 6)


def test_the_deepest_layer_of_encoders() -> None:
    import segmentation_models_pytorch as smp

    for name, expected in (("resnet18", "layer4"), ("tu-test_efficientnet", "model.blocks.")):
        network = smp.FPN(name, encoder_weights=None)
        assert deepest_layer(network, network.encoder).startswith(f"encoder.{expected}")
    with pytest.raises(InputError, match="encoder 'hf_hub:them/theirs'"):
        SecondEncoder("hf_hub:them/theirs", HALF, HALF)


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("weights") / "encoder.pth"
    torch.save(timm.create_model("test_efficientnet", pretrained=False).state_dict(), path)
    return path


@pytest.fixture(scope="module")
def base(toy_set: Path, tmp_path_factory: pytest.TempPathFactory) -> Job:
    """An untrained network."""
    torch.manual_seed(0)
    options = {"decoder_pyramid_channels": 32, "decoder_segmentation_channels": 32}
    names = label_map("toy").classes
    network = build_network(NetworkDescription("FPN", "mobilenet_v2", names, options=options))
    folder = tmp_path_factory.mktemp("base")
    save_network(network, folder)
    return Job(toy_set, folder, folder, folder, folder, folder)


def density_of(model: Any, needs: Any = FEATURES, frames: Any = None) -> Any:
    """Of the features of layers."""
    return model.attachments["features"].providers(model, needs, frames)[-1]


def fitted(base: Job, out: Path, **options: Any) -> Any:
    config = FitConfig(FeaturesConfig(frames=3, **options), {"dataset": "toy", "root": str(base.data)})
    fit_features(base.base, config, out, device="cpu")
    return load_model(out)


@pytest.mark.parametrize("encoder", ["own", "test_efficientnet"])
def test_what_was_seen_is_near_and_noise_is_far(base: Job, weights: Path, tmp_path: Path, encoder: str) -> None:
    own = {"layers": ["body.encoder.features.3"]}  # deeper ones of so small a network say the same everywhere
    given = own if encoder == "own" else {"encoder": encoder, "weights": str(weights), "sizes": [1.0, 0.5]}
    model = fitted(base, tmp_path / "model", bank=10_000, **given)
    density = density_of(model)
    first = sorted(base.data.glob("leftImg8bit/train/*/*.png"))[0]
    seen = network_input([load_image(first)], (64, 128))
    other = torch.rand(seen.shape, generator=torch.Generator().manual_seed(0))
    near, far = (density(images, FEATURES)[FEATURE_DISTANCE] for images in (seen, other))
    assert near.shape == (1, 64, 128)
    assert float(near.max()) < 2e-4  # the bank is stored in half precision
    assert float(far.median()) > 3 * float(near.max())


def test_the_bank_says_where_each_feature_was_seen(base: Job, tmp_path: Path) -> None:
    layer = "body.encoder.features.3"
    model = fitted(base, tmp_path / "model", bank=300, layers=["body.encoder.features.5", layer])
    density, frames = density_of(model), {}
    for path in base.data.glob("leftImg8bit/train/*/*.png"):
        (maps,) = FeatureExtractor(model.network, [layer])(network_input([load_image(path)], (64, 128)))
        frames[f"{path.parent.name}/{path.stem}"] = unit_features(maps).detach().view(*maps.shape[2:], -1)
    bank = density.densities[1][0].bank
    assert len(bank) == 300
    seen = network_input([load_image(path)], (64, 128))
    rows = unit_features(FeatureExtractor(model.network, [layer])(seen)[0]).detach()
    expected = NearestNeighbors(n_neighbors=1, metric="cosine").fit(bank).kneighbors(rows)[0][:, 0]
    found = density.densities[1][0](rows)[FEATURE_DISTANCE]
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-5)


def test_only_the_frames_that_are_trained_on_count(base: Job, tmp_path: Path) -> None:
    model = fitted(base, tmp_path / "model", layers=["body.encoder.features.3"])
    names = model.attachments["features"].frames
    density = density_of(model, FEATURES, {names[0], names[2]})
    stored = load_file(tmp_path / "model" / "features.safetensors")
    wanted = torch.isin(stored["0.origins"][:, 0], torch.tensor([0.0, 2.0]))
    expected = Neighbours(stored["0.bank"][wanted]).bank
    assert torch.equal(density.densities[0][0].bank, expected)
    with pytest.raises(InputError, match="none of the 3 frames of the bank"):
        density_of(model, FEATURES, {"another"})


def test_what_frames_look_like_under_corruptions_is_known(base: Job, tmp_path: Path) -> None:
    layers = ["body.encoder.features.3"]
    clean = fitted(base, tmp_path / "clean", layers=layers)
    both = fitted(base, tmp_path / "both", layers=layers, corruptions=["noise:4", "jpeg:5"])
    assert both.attachments["features"].frames == clean.attachments["features"].frames
    samples = SegmentationDataModule("toy", str(base.data)).dataset("train").samples
    sample = next(one for one in samples if one.name == clean.attachments["features"].frames[0])
    noisy = network_input([Corruption.parse("noise:4")(load_image(sample.image), sample.name)], (64, 128))
    densities = [density_of(model) for model in (clean, both)]
    first, second = (density.densities[0][0].bank for density in densities)
    assert len(second) == 3 * len(first)
    far, near = (density(noisy, FEATURES)[FEATURE_DISTANCE].mean() for density in densities)
    assert far > 0.1
    assert near < 1e-3  # what is stored is rounded
    with pytest.raises(InputError, match="corruption 'rain'"):
        FeaturesConfig(corruptions=["rain:1"])


def test_a_place_has_the_class_of_most_of_its_labelled_pixels() -> None:
    labels = torch.full((5, 6), 255, dtype=torch.uint8)
    labels[:2, :2] = torch.tensor([[1, 1], [1, 0]])
    labels[:2, 2:4] = torch.tensor([[1, 255], [255, 0]])
    labels[:2, 4] = 3
    places = places_of(labels, (3, 3), (6, 6))  # a row of pixels is padding
    assert places[:, 2].tolist() == [1, 255, 3, *[255] * 6]
    assert places[0, :2].tolist() == pytest.approx([1 / 5, 1 / 6])
    assert places[-1, :2].tolist() == pytest.approx([1, 5 / 6])


def test_every_score_of_features_is_fitted_in_one_pass_and_loaded_alone(base: Job, tmp_path: Path) -> None:
    scores = ["gmm", "relative-mahalanobis", "knn", "vim", "react-energy", "scale-energy"]
    layers = ["body.encoder.features.4", "body.encoder.features.6"]
    said: list[str] = []
    settings = FeaturesConfig(scores=scores, layers=layers, frames=3, bank=50, upsampling="guided")
    data = Path(shutil.copytree(base.data, tmp_path / "data"))
    for path in (data / "gtFine").rglob("*_labelIds.png"):
        labels = cv2.imread(str(path), cv2.IMREAD_UNCHANGED)
        cv2.imwrite(str(path), np.where(labels == Id.PERSON, 0, labels))
    config = FitConfig(settings, {"dataset": "toy", "root": str(data)})
    fit_features(base.base, config, tmp_path / "model", device="cpu", say=said.append)
    model = load_model(tmp_path / "model")
    features = model.attachments["features"]
    images = torch.rand(2, 3, 64, 128, generator=torch.Generator().manual_seed(0))
    of_head, whole = features.providers(model, FEATURES)
    found = of_head(images, FEATURES) | whole(images, FEATURES)
    gives = of_head.gives | whole.gives
    assert features.gives == gives == found.keys() == {need for name in scores for need in SCORES[name].needs}
    for name in scores:
        (need,) = SCORES[name].needs
        (alone,) = features.providers(model, [need])
        assert alone.gives >= {need}
        torch.testing.assert_close(alone(images, [need])[need], found[need])
    assert "mahalanobis" not in features.scores
    assert any("left out of the Gaussians" in line and "person" in line for line in said)


def test_a_network_of_its_last_layer_alone_needs_no_encoder(base: Job, tmp_path: Path) -> None:
    model = fitted(base, tmp_path / "model", scores=["scale-energy"])
    (provider,) = model.fitted(["scale-energy"])["fitted"]
    assert (model.attachments["features"].layers, provider.gives) == ((), {"scaled energy"})
    with pytest.raises(InputError, match="score knn of a model without features"):
        Sampler(model.network, scores=["knn"], **model.fitted(["knn"]))


def test_damage_is_one_line(base: Job, weights: Path, tmp_path: Path) -> None:
    model = fitted(base, tmp_path / "model", bank=50)
    place = tmp_path / "model" / "features.safetensors"
    place.write_bytes(place.read_bytes()[:-4] + b"abcd")
    with pytest.raises(InputError, match=r"has changed since features\.json was written"):
        density_of(model)
    digest = file_sha256(place)
    changed = {"tensors_sha256": digest, "encoder": "test_efficientnet", "mean": HALF, "std": HALF}
    other = replace(model.attachments["features"], **changed)
    with pytest.raises(InputError, match="do not fit the network"):
        other.providers(model, FEATURES)
    place.unlink()
    with pytest.raises(InputError, match="cannot be read"):
        density_of(model)
    change_record(tmp_path / "model" / "features.json", base_sha256="0" * 64)
    with pytest.raises(InputError, match="was fitted on a base network with the hash 000000000000"):
        load_model(tmp_path / "model")


def test_a_copy_of_the_model_has_its_bank(base: Job, tmp_path: Path) -> None:
    first = fitted(base, tmp_path / "model", bank=50)
    copy_model(tmp_path / "model", tmp_path / "copy")
    shutil.rmtree(tmp_path / "model")
    again = load_model(tmp_path / "copy")
    assert again.attachments["features"] == first.attachments["features"]
    assert isinstance(density_of(again), FeatureDensity)
    assert FeatureBank.file in {path.name for path in (tmp_path / "copy").iterdir()}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"layers": ["body.nothing"]}, "layer 'body.nothing'"),
        ({"weights": "imagenet"}, "belongs to a second encoder"),
        ({"encoder": "test_efficientnet"}, "has no weights"),
        ({"encoder": "efficientnet_lite_zero", "weights": "x.pth"}, "encoder 'efficientnet_lite_zero'"),
        ({"encoder": "resnet18", "weights": "WEIGHTS"}, "do not fit"),
        ({"sizes": [1e300]}, "sizes 1e"),
        ({"scores": ["entropy"]}, "made of no features.*knn, gmm"),
        ({"scores": ["scale-energy"], "layers": ["body.encoder"]}, "play no part for scale-energy"),
        ({"scores": ["gmm"]}, "features with a class are too few for a covariance of 1280 numbers"),
    ],
)
def test_bad_input_is_one_line(base: Job, weights: Path, tmp_path: Path, options: dict[str, Any], said: str) -> None:
    options = {name: str(weights) if value == "WEIGHTS" else value for name, value in options.items()}
    with pytest.raises(InputError, match=said) as caught:
        fitted(base, tmp_path / "model", **options)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "model").exists()
