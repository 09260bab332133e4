"""Feature density: distances against scikit-learn, features of any layer, and a bank that knows its own frames."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
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
from segunc.networks.features import FeatureExtractor, Witness, candidate_layers, deepest_layer
from segunc.networks.network import SegmentationNetwork
from segunc.posteriors.features import (
    FeatureBank,
    FeaturesConfig,
    _choose_layers,
    _opened,
    fit_features,
)
from segunc.posteriors.files import load_model
from segunc.posteriors.model import copy_model
from segunc.posteriors.pasted import Pixels, gather_pixels
from segunc.sampling.density import BLOCK, FeatureDensity, Neighbours, Sample, places_of, unit_features
from segunc.sampling.frames import network_input
from segunc.sampling.sampler import Sampler
from segunc.scores import EVIDENCE, FEATURE_DISTANCE, SCORES
from segunc.toyroads.canvas import PERSON
from segunc.training.config import FitConfig, SelectConfig
from segunc.training.selection import SelectionFrame
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
    looked_at, _ = _opened(network, FeaturesConfig(layers=["body.head"]), print)
    assert FeatureExtractor(looked_at, ["body.head"])(torch.rand(1, 3, 8, 8))[0].shape == (1, 2, 8, 8)
    with pytest.raises(InputError, match=r"features\.layers"):
        _opened(network, FeaturesConfig(), print)


@pytest.mark.parametrize("block", [1, 7, 512])
def test_distances_are_those_of_scikit_learn(monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setitem(BLOCK, "cpu", block)
    queries, bank = random(50, 12), random(80, 12, seed=1)
    found, rows = NearestNeighbors(n_neighbors=1, metric="cosine").fit(bank).kneighbors(queries)
    neighbours, unit = Neighbours(bank), nn.functional.normalize(queries, dim=1)
    np.testing.assert_allclose(neighbours(unit)[FEATURE_DISTANCE].numpy(), found[:, 0], atol=1e-5)
    nearest, distances = neighbours.nearest(unit)
    assert nearest.tolist() == rows[:, 0].tolist()
    np.testing.assert_allclose(distances.numpy(), found[:, 0], atol=1e-5)


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
    witness = Witness("vit_tiny_patch16_224", HALF, HALF).eval()
    assert witness.deepest == "encoder.blocks.11"
    with torch.no_grad():
        (maps,) = FeatureExtractor(witness, [witness.deepest])(torch.rand(1, 3, 70, 100))
    assert maps.shape == (1, 192, 4, 6)


def test_the_deepest_layer_of_encoders() -> None:
    import segmentation_models_pytorch as smp

    for name, expected in (("resnet18", "layer4"), ("tu-test_efficientnet", "model.blocks.")):
        network = smp.FPN(name, encoder_weights=None)
        assert deepest_layer(network, network.encoder).startswith(f"encoder.{expected}")
    with pytest.raises(InputError, match="encoder 'hf_hub:them/theirs'"):
        Witness("hf_hub:them/theirs", HALF, HALF)


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


@pytest.fixture(scope="module")
def small(base: Job, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with a bank of 50 features of one frame."""
    out = tmp_path_factory.mktemp("small") / "model"
    settings = FeaturesConfig(layers=["body.encoder.features.3"], frames=1, bank=50)
    fit_features(base.base, FitConfig(settings, {"dataset": "toy", "root": str(base.data)}), out, device="cpu")
    return out


def density_of(model: Any, needs: Any = FEATURES, frames: Any = None) -> Any:
    """Of the features of layers."""
    return model.attachments["features"].providers(model, needs, frames)[-1]


def fitted(base: Job, out: Path, select: SelectConfig | None = None, **options: Any) -> Any:
    config = FitConfig(FeaturesConfig(frames=3, **options), {"dataset": "toy", "root": str(base.data)}, select)
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
    assert len(density.origins) == len(bank) == 300
    assert {origin.frame for origin in density.origins} == {*model.attachments["features"].frames}
    assert {origin.label for origin in density.origins} <= {*range(model.network.description.num_classes), None}
    for feature, origin in zip(bank, density.origins, strict=True):
        height, width, _ = frames[origin.frame].shape
        seen = frames[origin.frame][int(origin.row * height), int(origin.column * width)]
        torch.testing.assert_close(feature, seen, atol=1e-3, rtol=0)
    seen = network_input([load_image(path)], (64, 128))
    rows = unit_features(FeatureExtractor(model.network, [layer])(seen)[0]).detach()
    expected = NearestNeighbors(n_neighbors=1, metric="cosine").fit(bank).kneighbors(rows)[0][:, 0]
    found = bank[density.nearest(seen)[0].flatten()]
    np.testing.assert_allclose(1 - nn.functional.cosine_similarity(found, rows), expected, atol=1e-5)


PASTED = SelectConfig(anomalies="cut-paste", frames=2)


def test_layers_and_upsampling_are_chosen_by_what_finds_pasted_anomalies(
    base: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[Pixels] = []

    def planted(*given: Any) -> tuple[Pixels, int]:
        """Values of 2 ways to upsample by C layers: the guided maps of two layers give together what was pasted."""
        real, frames = gather_pixels(*given)
        tried.append(real)
        values, found = torch.randn(real.values.shape, generator=torch.Generator().manual_seed(0)), real.size > 0
        half = torch.rand(found.shape, generator=torch.Generator().manual_seed(1)) < 0.5
        guided = values[len(values) // 2 :]
        guided[0] += 8.0 * (found & half)
        guided[2] += 8.0 * (found & ~half)
        return real._replace(values=values), frames

    monkeypatch.setattr("segunc.posteriors.features.gather_pixels", planted)
    sizes = {"sizes": [1.0, 2.0]}
    model = fitted(base, tmp_path / "auto", select=PASTED, layers="auto", **sizes)
    bank = model.attachments["features"]
    candidates = candidate_layers(model.network, ("body.encoder", "body.decoder"), torch.zeros(1, 3, 256, 256))
    assert bank.layers == (candidates[0], candidates[2])
    assert bank.upsampling == "guided"
    assert tried[0].values.shape == (2 * len(candidates), len(tried[0].size))
    assert tried[0].values.min() >= 0  # distances
    # What is kept is what these layers would have by their names.
    named = fitted(base, tmp_path / "named", layers=list(bank.layers), upsampling="guided", **sizes)
    image = torch.rand(1, 3, 64, 128, generator=torch.Generator().manual_seed(0))
    both = [density_of(one)(image, FEATURES)[FEATURE_DISTANCE] for one in (model, named)]
    torch.testing.assert_close(*both)


def test_a_layer_that_sees_what_was_pasted_is_chosen(base: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    def planted(fold: SegmentationDataModule, _: SelectConfig) -> Iterator[SelectionFrame]:
        """Frames with a block of a colour that no scene has."""
        for index in range(2):
            image, labels = fold.dataset("val").read(index)
            image, anomaly = image.copy(), np.zeros_like(labels)
            image[20:40, 50:90], anomaly[20:40, 50:90] = (255, 0, 255), 1
            yield SelectionFrame(str(index), image, labels, anomaly, None)

    monkeypatch.setattr("segunc.posteriors.pasted.selection_frames", planted)

    class Planted(nn.Module):
        """One layer repeats the colours; the other gives noise."""

        def __init__(self) -> None:
            super().__init__()
            self.noise, self.colours, self.blind = nn.Identity(), nn.Identity(), nn.Conv2d(3, 4, 1)

        def forward(self, images: torch.Tensor) -> None:
            small = nn.functional.avg_pool2d(images, 4)
            self.noise(random(1, 4, *small.shape[2:], seed=int(1e6 * images.sum()) % 997))
            self.colours(torch.cat([small, small.square()], 1))

    model, extractor = load_model(base.base), FeatureExtractor(Planted(), ["noise", "colours"])
    data = SegmentationDataModule("toy", str(base.data))
    banks = [Sample(20_000, 0), Sample(20_000, 0)]
    for index in range(4):
        image = torch.from_numpy(data.dataset("train").read(index)[0]).permute(2, 0, 1)[None].float() / 255
        for bank, maps in zip(banks, extractor(image), strict=True):
            bank.add(unit_features(maps))
    settings, names = FeaturesConfig(layers="auto", upsampling="bilinear"), [f"{i}" for i in range(4)]
    kept = [{"bank": bank.rows, "origins": torch.zeros(len(bank.rows), 4)} for bank in banks]
    said: list[str] = []
    places, form = _choose_layers(model, data, extractor, kept, names, settings, PASTED, said.append)
    assert (places, form) == ((1,), "bilinear")
    assert "colours, bilinear" in said[0]


def test_only_the_frames_that_are_trained_on_count(base: Job, tmp_path: Path) -> None:
    model = fitted(base, tmp_path / "model", layers=["body.encoder.features.3"])
    names = model.attachments["features"].frames
    density = density_of(model, FEATURES, {names[0], names[2]})
    assert {origin.frame for origin in density.origins} == {names[0], names[2]}
    assert len(density.densities[0][0].bank) == len(density.origins)
    with pytest.raises(InputError, match="none of which is trained on"):
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
    assert len(densities[1].origins) == 3 * len(densities[0].origins)
    far, near = (density(noisy, FEATURES)[FEATURE_DISTANCE].mean() for density in densities)
    assert far > 0.1
    assert near < 1e-3  # what is stored is rounded
    with pytest.raises(InputError, match="corruption 'rain'"):
        FeaturesConfig(corruptions=["rain:1"])


def test_candidates_are_maps_of_known_strides() -> None:
    class Nested(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Conv2d(3, 4, 3, 4, 1)
            self.blocks = nn.Sequential(
                nn.Sequential(nn.Conv2d(4, 4, 3, 2, 1)), nn.Conv2d(4, 4, 3, 2, 1), nn.Conv2d(4, 4, 3, 4, 1)
            )
            self.pool = nn.AdaptiveAvgPool2d(1)

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return self.pool(self.blocks(self.stem(images)))

    whole = nn.Module()
    whole.encoder = Nested()
    whole.forward = whole.encoder.forward  # type: ignore[method-assign]
    # Strides 8 and 16; the stem's is 4, the last block's 64.
    assert candidate_layers(whole, ["encoder"], torch.zeros(1, 3, 128, 128)) == ["encoder.blocks.0", "encoder.blocks.1"]
    assert candidate_layers(whole, ["body.encoder"], torch.zeros(1, 3, 128, 128)) == []


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
        cv2.imwrite(str(path), np.where(labels == PERSON, 0, labels))
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
    assert len(whole.origins) == 50
    assert any("left out of the Gaussians" in line and "person" in line for line in said)


def test_a_network_of_its_last_layer_alone_needs_no_encoder(base: Job, tmp_path: Path) -> None:
    model = fitted(base, tmp_path / "model", scores=["scale-energy"])
    (provider,) = model.fitted(["scale-energy"])["fitted"]
    assert (model.attachments["features"].layers, provider.gives) == ((), {"scaled energy"})
    without = FeatureDensity(FeatureExtractor(model.network, ["body.encoder.features.3"]), [[]])
    with pytest.raises(InputError, match=r"nearest features of a model without a bank.*--features\.scores \[knn\]"):
        without.nearest(torch.rand(1, 3, 64, 128))
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


@pytest.mark.parametrize("sizes", [[1e300], [1.0] * 1000])
def test_sizes_that_would_take_any_memory_are_refused(small: Path, tmp_path: Path, sizes: list[float]) -> None:
    copy_model(small, tmp_path)
    change_record(tmp_path / "features.json", sizes=sizes)
    with pytest.raises(InputError, match=r"features\.json: 1\d* sizes"):
        load_model(tmp_path)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"layers": ["body.nothing"]}, "layer 'body.nothing'"),
        ({"weights": "imagenet"}, "for the network's own features"),
        ({"encoder": "test_efficientnet"}, r"without features\.weights"),
        ({"encoder": "efficientnet_lite_zero", "weights": "x.pth"}, "encoder 'efficientnet_lite_zero'"),
        ({"encoder": "resnet18", "weights": "WEIGHTS"}, "do not fit"),
        ({"layers": ["body.segmentation_head.2"], "sizes": [0.0]}, "sizes 0"),
        ({"sizes": [1e300]}, "sizes 1e"),
        ({"scores": ["entropy"]}, r"features\.scores with 'entropy'; expected some of knn, gmm"),
        ({"scores": ["scale-energy"], "layers": ["body.encoder"]}, r"features\.layers for scale-energy alone"),
        ({"scores": ["gmm"]}, "features with a class for a covariance of 1280 numbers"),
    ],
)
def test_bad_input_is_one_line(base: Job, weights: Path, tmp_path: Path, options: dict[str, Any], said: str) -> None:
    options = {name: str(weights) if value == "WEIGHTS" else value for name, value in options.items()}
    with pytest.raises(InputError, match=said) as caught:
        fitted(base, tmp_path / "model", **options)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "model").exists()


def test_unit_features_are_rows_of_length_1() -> None:
    rows = unit_features(random(2, 5, 3, 4))
    assert rows.shape == (24, 5)
    torch.testing.assert_close(rows.norm(dim=1), torch.ones(24))
