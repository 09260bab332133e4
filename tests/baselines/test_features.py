"""Feature density, with distances against scikit-learn and a bank that knows its own frames; and
one score of several: its scales, the pixels that they are measured on, and the surprise that it is
told as.
"""

import math
import re
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import timm
import torch
from hypothesis import given, settings, strategies as st
from safetensors.torch import load_file, save_file
from sklearn.neighbors import NearestNeighbors
from torch import Tensor, nn

from segunc import Model, Sampler, build_network, load_network, save_network
from segunc.baselines.anomaly import (
    AnomalyConfig,
    ScoreSum,
    Standard,
    Surprise,
    fit_sum,
    known_pixels,
    weighted_sum,
)
from segunc.baselines.density import (
    BLOCK,
    Neighbours,
    Sample,
    nearest_frames,
    places_of,
    unit_features,
)
from segunc.baselines.feature_extractor import FeatureExtractor
from segunc.baselines.features import FeaturesConfig, fit_features
from segunc.baselines.fitted import frames_as_seen
from segunc.core.errors import InputError
from segunc.core.files import file_sha256, write_record
from segunc.data.corruptions import Corruption
from segunc.data.images import load_image
from segunc.data.labels import label_map
from segunc.data.module import SegmentationDataModule
from segunc.networks.description import NetworkDescription
from segunc.posteriors.model import copy_model, load_model
from segunc.sampling.sampler import Fitted, network_input
from segunc.scores import EVIDENCE, FEATURE_DISTANCE, NEAREST, SUM
from segunc.training.config import FitConfig
from tests.conftest import Job, change_record

HALF = (0.5, 0.5, 0.5)
FEATURES = frozenset(name for name, evidence in EVIDENCE.items() if evidence.source == "frame")


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("block", [1, 7, 512])
def test_distances_are_those_of_scikit_learn(monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setitem(BLOCK, "cpu", block)
    queries, bank = random(50, 12), random(80, 12, seed=1)
    found, _ = NearestNeighbors(n_neighbors=1, metric="cosine").fit(bank).kneighbors(queries)
    neighbours, unit = Neighbours(bank), nn.functional.normalize(queries, dim=1)
    np.testing.assert_allclose(neighbours(unit).numpy(), found[:, 0], atol=1e-5)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=6), st.integers(1, 60), st.integers(0, 99))
def test_a_sample_does_not_depend_on_how_the_stream_is_cut(
    parts: list[int], size: int, seed: int
) -> None:
    stream = torch.arange(float(sum(parts)))[:, None]
    whole, cut = Sample(size, seed), Sample(size, seed)
    whole.add(stream)
    for part in stream.split(parts):
        cut.add(part)
    assert torch.equal(whole.rows.sort(0).values, cut.rows.sort(0).values)
    assert len(whole.rows.unique()) == min(size, len(stream))


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("weights") / "encoder.pth"
    torch.save(timm.create_model("test_efficientnet", pretrained=False).state_dict(), path)
    return path


@pytest.fixture(scope="module")
def base(toy_set: Path, tmp_path_factory: pytest.TempPathFactory) -> Job:
    torch.manual_seed(0)
    options = {"decoder_pyramid_channels": 32, "decoder_segmentation_channels": 32}
    names = label_map("toy").classes
    network = build_network(NetworkDescription("FPN", "mobilenet_v2", names, options=options))
    folder = tmp_path_factory.mktemp("base")
    save_network(network, folder)
    return Job(toy_set, folder, folder, folder, folder, folder)


def density_of(model: Any, needs: Any = FEATURES, frames: Any = None) -> Any:
    return model.attachments["features"].providers(model, needs, frames)[-1]


def fitted(base: Job, out: Path, **options: Any) -> Any:
    config = FitConfig(
        FeaturesConfig(frames=3, **options), {"dataset": "toy", "root": str(base.data)}
    )
    fit_features(base.base, config, out, device="cpu")
    return load_model(out)


@pytest.mark.parametrize("encoder", ["own", "test_efficientnet"])
def test_what_was_seen_is_near_and_noise_is_far(
    base: Job, weights: Path, tmp_path: Path, encoder: str
) -> None:
    own = {
        "layers": ["body.encoder.features.3"]
    }  # deeper ones of so small a network say the same everywhere
    given = (
        own
        if encoder == "own"
        else {"encoder": encoder, "weights": str(weights), "sizes": [1.0, 0.5]}
    )
    model = fitted(base, tmp_path / "model", bank=10_000, **given)
    density = density_of(model)
    first = sorted(base.data.glob("leftImg8bit/train/*/*.png"))[0]
    seen = network_input([load_image(first)], (64, 128))
    other = torch.rand(seen.shape, generator=torch.Generator().manual_seed(0))
    near, far = (density(images, FEATURES)[FEATURE_DISTANCE] for images in (seen, other))
    assert near.shape == (1, 64, 128)
    assert float(near.max()) < 2e-4  # the bank is stored in half precision
    assert float(far.median()) > 3 * float(near.max())


def test_only_the_frames_that_are_trained_on_count(base: Job, tmp_path: Path) -> None:
    layer = "body.encoder.features.3"
    fitted(base, tmp_path / "model", layers=["body.encoder.features.5", layer])
    copy_model(tmp_path / "model", tmp_path / "copy")
    shutil.rmtree(tmp_path / "model")
    model = load_model(tmp_path / "copy")
    names = model.attachments["features"].frames
    density = density_of(model, FEATURES, {names[0], names[2]})
    stored = load_file(tmp_path / "copy" / "features.safetensors")
    (path,) = base.data.glob(f"leftImg8bit/train/{names[1]}.png")
    (maps,) = FeatureExtractor(model.network, [layer])(network_input([load_image(path)], (64, 128)))
    seen = stored["1.bank"][stored["1.origins"][:, 0] == 1].float()
    assert float(Neighbours(seen)(unit_features(maps).detach()).max()) < 1e-3
    wanted = torch.isin(stored["0.origins"][:, 0], torch.tensor([0.0, 2.0]))
    expected = Neighbours(stored["0.bank"][wanted]).bank
    assert torch.equal(density.banks[0].bank, expected)
    (nearest,) = density(network_input([load_image(path)], (64, 128)), FEATURES)[NEAREST]
    assert nearest([(0.5, 0.5)])[0][1] in {names[0], names[2]}
    with pytest.raises(InputError, match="all 3 frames of the bank are left out"):
        density_of(model, FEATURES, {"another"})


def test_the_nearest_frame_is_that_whose_feature_is_nearest_at_the_place() -> None:
    """The second map covers more than the frame, which a network pads below and at the right."""
    bank = Neighbours(
        torch.eye(4).repeat(3, 1)[:9], [*"abcdABCDx"]
    )  # a feature that comes again is that of the first
    features = torch.eye(4)[torch.tensor([[0, 1], [2, 3]])].permute(2, 0, 1)
    covered = [("a", 0.1, 0.1), ("b", 0.1, 0.9), ("c", 0.9, 0.1), ("d", 1.0, 1.0)]
    found = nearest_frames(
        [(features, bank, (1.0, 1.0))], [(row, column) for _, row, column in covered]
    )
    assert found == [(0.0, name) for name, *_ in covered]
    assert nearest_frames([(features, bank, (2.0, 2.0))], [(0.9, 0.9)]) == [(0.0, "a")]
    other = Neighbours(torch.tensor([[1.0, 1.0, 0.0, 0.0]]), ["far"])
    assert nearest_frames([(features, other, (1.0, 1.0))], [(0.1, 0.1)]) == [
        (pytest.approx(1 - 0.5**0.5), "far")
    ]
    assert nearest_frames([(features, m, (1.0, 1.0)) for m in (other, bank)], [(0.9, 0.9)]) == [
        (0.0, "d")
    ]


def test_a_frame_of_the_bank_is_its_own_nearest_and_older_banks_name_none(
    base: Job, tmp_path: Path
) -> None:
    model = fitted(base, tmp_path / "model", layers=["body.encoder.features.3"], bank=10_000)
    for name in model.attachments["features"].frames:
        (path,) = base.data.glob(f"leftImg8bit/train/{name}.png")
        (nearest,) = density_of(model)(network_input([load_image(path)], (64, 128)), FEATURES)[
            NEAREST
        ]
        found = nearest([(row, column) for row in (0.2, 0.6, 0.9) for column in (0.1, 0.5, 0.8)])
        assert {frame for _, frame in found} == {name}
        assert max(distance for distance, _ in found) < 1e-3
    images = torch.rand(1, 3, 64, 128, generator=torch.Generator().manual_seed(0))
    before = density_of(model)(images, FEATURES)
    tensors = load_file(tmp_path / "model" / "features.safetensors")
    save_file(
        {name: v for name, v in tensors.items() if "origins" not in name},
        tmp_path / "model" / "old",
    )
    (tmp_path / "model" / "old").rename(tmp_path / "model" / "features.safetensors")
    digest = file_sha256(tmp_path / "model" / "features.safetensors")
    change_record(tmp_path / "model" / "features.json", tensors_sha256=digest)
    older = load_model(tmp_path / "model")
    evidence = density_of(older)(images, FEATURES)
    assert evidence.keys() == {FEATURE_DISTANCE} == before.keys() - {NEAREST}
    assert torch.equal(evidence[FEATURE_DISTANCE], before[FEATURE_DISTANCE])
    with pytest.raises(InputError, match="does not say of which frames"):
        density_of(older, FEATURES, {"any"})


def test_what_frames_look_like_under_corruptions_is_known(base: Job, tmp_path: Path) -> None:
    layers = ["body.encoder.features.3"]
    clean = fitted(base, tmp_path / "clean", layers=layers)
    both = fitted(base, tmp_path / "both", layers=layers, corruptions=["noise:4", "jpeg:5"])
    assert both.attachments["features"].frames == clean.attachments["features"].frames
    samples = SegmentationDataModule("toy", str(base.data)).dataset("train").samples
    sample = next(one for one in samples if one.name == clean.attachments["features"].frames[0])
    noisy = network_input(
        [Corruption.parse("noise:4")(load_image(sample.image), sample.name)], (64, 128)
    )
    densities = [density_of(model) for model in (clean, both)]
    first, second = (density.banks[0].bank for density in densities)
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


def test_a_bank_of_what_is_gone_is_refused(base: Job, tmp_path: Path) -> None:
    fitted(base, tmp_path / "model", bank=50)
    for change in ({"scores": ["knn", "gmm"]}, {"scores": ["knn"], "upsampling": "guided"}):
        change_record(tmp_path / "model" / "features.json", **change)
        with pytest.raises(
            InputError,
            match=r"features\.json was fitted for knn(, gmm)? with .* bilinear upsampling alone",
        ):
            load_model(tmp_path / "model")


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
    with pytest.raises(InputError, match="does not exist"):
        density_of(model)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"layers": ["body.nothing"]}, "layer 'body.nothing'"),
        ({"layers": []}, "layers is empty"),
        ({"encoder": "test_efficientnet"}, "has no weights"),
        ({"encoder": "resnet18", "weights": "WEIGHTS"}, "do not fit"),
    ],
)
def test_bad_input_is_one_line(
    base: Job, weights: Path, tmp_path: Path, options: dict[str, Any], said: str
) -> None:
    options = {
        name: str(weights) if value == "WEIGHTS" else value for name, value in options.items()
    }
    with pytest.raises(InputError, match=said) as caught:
        fitted(base, tmp_path / "model", **options)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "model").exists()


def known(count: int = 200_000, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).exponential(size=count)).float()


def test_surprise_is_the_share_of_known_pixels_that_score_as_high_in_their_order_and_with_equal_levels() -> (
    None
):
    values = known()
    surprise = Surprise.of(values)
    for share in (1.0, 0.5, 0.1, 0.03, 0.001):
        at = torch.quantile(values[:100_000].double(), 1 - share).float()
        measured = -math.log10(float((values >= at).float().mean()))
        assert float(surprise(at[None])) == pytest.approx(measured, abs=0.05)
    # exp(-x) of the pixels of an exponential law exceed x, and its tail goes on as it must where
    # none was seen.
    far = torch.tensor([9.0, 14.0, 30.0])
    np.testing.assert_allclose(surprise(far).numpy(), far.numpy() / math.log(10), rtol=0.1)
    surprise = Surprise.of(
        torch.cat([torch.zeros(90_000), known(10_000)])
    )  # nine in ten are one value
    assert len(set(surprise.levels)) < len(surprise.levels)
    values = torch.linspace(-1, 20, 2001).reshape(3, 23, 29)
    found = surprise(values)
    assert float(found.min()) >= 0
    assert (found.flatten().diff() >= 0).all()
    assert (found[values > 1e-3].diff() > 0).all()
    assert float(found[values <= 0].max()) == 0  # all pixels reach the value that nine in ten have


def test_parts_are_measured_on_normal_scenes_and_3_is_one_pixel_in_a_thousand(
    base: Job, toy_set: Path, tmp_path: Path
) -> None:
    parts, data = (
        ["deterministic-energy", "deterministic-entropy"],
        {"dataset": "toy", "root": str(toy_set)},
    )
    config = FitConfig(AnomalyConfig(parts=parts, weights=[2.0, 1.0], frames=3), data)
    total = fit_sum(base.base, config, tmp_path, device="cpu")
    assert (total.parts, total.weights, total.frames, total.features_sha256) == (
        tuple(parts),
        (2.0, 1.0),
        3,
        None,
    )
    model, module = load_model(base.base), SegmentationDataModule(**data)
    sampler, pixels = Sampler(model.network, scores=parts), []
    for _, image, labels, *_ in frames_as_seen(model, module, "val", 3, "test"):
        maps = sampler(image).scores
        pixels.append(
            torch.stack([maps[name][0][torch.from_numpy(labels != 255)] for name in parts])
        )
    values = torch.cat(pixels, 1)
    for scale, of_part in zip(total.scales, values.double().numpy(), strict=True):
        assert (scale.mean, scale.std) == pytest.approx((of_part.mean(), of_part.std()), rel=1e-5)
    surprise = total(dict(zip(parts, values[:, None, None], strict=True)))[SUM].flatten()
    for decades in (1, 2, 3):
        assert float((surprise >= decades).float().mean()) == pytest.approx(10.0**-decades, rel=0.2)
    reached = [int((surprise >= total.measured_to + more).sum()) for more in (0, 0.1)]
    assert reached[1] < 10 <= reached[0]
    assert total.pixels == values.shape[1]
    for name, of_part, part in zip(parts, values, total.part_surprises, strict=True):
        rare = total.decades({one: float(of_part.max()) for one in parts})[name]
        assert rare == pytest.approx(float(part(of_part.max()[None])), abs=1e-3)
        assert float((part(of_part) >= 2).float().mean()) == pytest.approx(0.01, rel=0.2)


@pytest.mark.parametrize(("held_out", "left_out"), [(None, list("01234567")), ("3", ["3"])])
def test_a_frame_is_not_compared_with_features_of_its_own_sequence(
    base: Job,
    toy_set: Path,
    monkeypatch: pytest.MonkeyPatch,
    held_out: str | None,
    left_out: list[str],
) -> None:
    sequence = "0([0-7])_000019_leftImg8bit$"  # each of the eight training frames is one
    folds = {"validation": "leave-sequence-out", "sequence": sequence, "held_out": held_out}
    compared: list[set[str]] = []

    def noted(self: Model, scores: Any, frames: Any = None) -> Fitted:
        compared.append({re.search(sequence, name)[1] for name in frames})  # type: ignore[index]
        return Fitted()

    monkeypatch.setattr(Model, "fitted", noted)
    data = SegmentationDataModule("toy", str(toy_set), **folds)
    pixels = known_pixels(
        load_model(base.base), data, ["deterministic-entropy"], AnomalyConfig(), draws=1
    )
    assert sorted(map(sorted, compared)) == sorted(
        sorted(set("01234567") - {name}) for name in left_out
    )
    assert len(pixels.values) == 1
    assert pixels.frames == len(left_out)


def test_sums_of_sums_and_scores_without_spread_are_refused(
    base: Job, toy_set: Path, tmp_path: Path
) -> None:
    data = {"dataset": "toy", "root": str(toy_set)}
    config = FitConfig(AnomalyConfig(parts=["deterministic-entropy"]), data)
    with pytest.raises(InputError, match="'anomaly' is a sum"):
        fit_sum(
            base.base,
            FitConfig(AnomalyConfig(parts=["anomaly", "knn"]), data),
            tmp_path / "out",
            device="cpu",
        )
    unweighted = FitConfig(AnomalyConfig(parts=["deterministic-entropy"], weights=[]), data)
    with pytest.raises(InputError, match="weights has 0 numbers for 1 parts"):
        fit_sum(base.base, unweighted, tmp_path / "out", device="cpu")
    with torch.no_grad():
        network = load_network(base.base)
        network.body.segmentation_head[0].weight.zero_()
        network.body.segmentation_head[0].bias.zero_()
    save_network(network, tmp_path / "flat")
    with pytest.raises(InputError, match="deterministic-entropy is 1 at every pixel"):
        fit_sum(tmp_path / "flat", config, tmp_path / "out", device="cpu")


def of_hashes(temperature: float = 1.0, bank: str | None = "bank") -> Any:
    hashes = {"base_sha256": "base", "posterior_sha256": None, "calibrator_sha256": None}
    return SimpleNamespace(hashes=hashes | {"temperature": temperature, "features_sha256": bank})


def total() -> ScoreSum:
    values = torch.stack([known(seed=0), known(seed=1)])
    scales = (Standard.of(values[0]), Standard.of(values[1]))
    surprise = Surprise.of(weighted_sum(values, (1.0, 2.0), scales))
    parts = ("deterministic-energy", "knn")
    made = ScoreSum(
        parts, (1.0, 2.0), scales, surprise, {"dataset": "toy"}, 3, 1, 1.0, "base", None, "bank"
    )
    return replace(
        made,
        part_surprises=tuple(map(Surprise.of, values)),
        pixels=values.shape[1],
        measured_to=4.1,
    )


def test_a_sum_comes_back_and_tells_a_surprise(tmp_path: Path) -> None:
    written = total()
    write_record(tmp_path / written.file, asdict(written))
    again = ScoreSum.load(tmp_path, of_hashes())
    assert again == written
    assert "part_surprises" in again.record()["anomaly"]
    change_record(
        tmp_path / written.file, without=["part_surprises", "pixels", "measured_to"]
    )  # an older file
    older = ScoreSum.load(tmp_path, of_hashes())
    assert (older.part_surprises, older.measured_to, older.decades({})) == ((), None, {})
    assert older.record()["anomaly"].keys() == {"parts", "weights", "scales", "surprise"}
    maps = {
        "deterministic-energy": known(600, 5).view(1, 20, 30),
        "knn": known(600, 6).view(1, 20, 30),
    }
    energy, knn = (
        (values - scale.mean) / scale.std
        for values, scale in zip(maps.values(), again.scales, strict=True)
    )
    torch.testing.assert_close(again(maps), {SUM: written.surprise(energy + 2 * knn)})
    for other, said in (
        (of_hashes(1.5), "whose temperature is"),
        (of_hashes(bank=None), "with other features"),
    ):
        with pytest.raises(InputError, match=said):
            ScoreSum.load(tmp_path, other)
    change_record(tmp_path / written.file, scales=[{"levels": [0, 1], "excess": 1}] * 2)
    with pytest.raises(InputError, match="earlier version"):
        ScoreSum.load(tmp_path, of_hashes())
