"""Feature density, with distances against scikit-learn and a bank that knows its own frames; and
one score of several: its scales, the pixels that they are measured on, and the surprise that it is
told as.
"""

import math
import re
import shutil
from dataclasses import asdict, dataclass, replace
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
    Anomaly,
    ScoreSum,
    Standard,
    Surprise,
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
from segunc.baselines.features import FeatureDensity
from segunc.baselines.fitted import frames_as_seen, frames_compared
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
from tests.conftest import Job, change_record
from tests.support.fits import fit_folder, open_fit

HALF = (0.5, 0.5, 0.5)
FEATURES = frozenset(name for name, evidence in EVIDENCE.items() if evidence.source == "frame")


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("block", [1, 7, 512])
def test_distances_are_those_of_scikit_learn(monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setitem(BLOCK, "cpu", block)
    queries = random(50, 12)
    bank = random(80, 12, seed=1)
    of_scikit_learn = NearestNeighbors(n_neighbors=1, metric="cosine").fit(bank)
    expected, _ = of_scikit_learn.kneighbors(queries)
    neighbours = Neighbours(bank)
    distances = neighbours(nn.functional.normalize(queries, dim=1))
    np.testing.assert_allclose(distances.numpy(), expected[:, 0], atol=1e-5)


@settings(max_examples=30, deadline=None)
@given(
    parts=st.lists(st.integers(1, 40), min_size=1, max_size=6),
    size=st.integers(1, 60),
    seed=st.integers(0, 99),
)
def test_a_sample_does_not_depend_on_how_the_stream_is_cut(
    parts: list[int], size: int, seed: int
) -> None:
    stream = torch.arange(float(sum(parts)))[:, None]
    whole = Sample(size, seed)
    whole.add(stream)
    cut = Sample(size, seed)
    for part in stream.split(parts):
        cut.add(part)
    assert torch.equal(whole.rows.sort(0).values, cut.rows.sort(0).values)
    assert len(whole.rows.unique()) == min(size, len(stream))


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("weights") / "encoder.pth"
    encoder = timm.create_model("test_efficientnet", pretrained=False)
    torch.save(encoder.state_dict(), path)
    return path


@pytest.fixture(scope="module")
def base(toy_set: Path, tmp_path_factory: pytest.TempPathFactory) -> Job:
    torch.manual_seed(0)
    options = {"decoder_pyramid_channels": 32, "decoder_segmentation_channels": 32}
    names = label_map("toy").classes
    description = NetworkDescription("FPN", "mobilenet_v2", names, options=options)
    network = build_network(description)
    folder = tmp_path_factory.mktemp("base")
    save_network(network, folder)
    return Job(toy_set, folder, folder, folder, folder, folder)


def density_of(model: Any, needs: Any = FEATURES, frames: Any = None) -> Any:
    return model.attachments["features"].providers(model, needs, frames)[-1]


def fitted(base: Job, out: Path, **options: Any) -> Any:
    data = {"dataset": "toy", "root": str(base.data)}
    fit_folder(FeatureDensity(frames=3, **options), base.base, out, data)
    return load_model(out)


@pytest.mark.parametrize("encoder", ["own", "test_efficientnet"])
def test_what_was_seen_is_near_and_noise_is_far(
    base: Job, weights: Path, tmp_path: Path, encoder: str
) -> None:
    if encoder == "own":
        # Deeper layers of so small a network say the same everywhere.
        options: dict[str, Any] = {"layers": ["body.encoder.features.3"]}
    else:
        options = {
            "encoder": encoder,
            "weights": str(weights),
            "sizes": [1.0, 0.5],
        }
    model = fitted(base, tmp_path / "model", bank=10_000, **options)
    density = density_of(model)
    first = sorted(base.data.glob("leftImg8bit/train/*/*.png"))[0]
    seen = network_input([load_image(first)], (64, 128))
    noise = torch.rand(seen.shape, generator=torch.Generator().manual_seed(0))
    near = density(seen, FEATURES)[FEATURE_DISTANCE]
    far = density(noise, FEATURES)[FEATURE_DISTANCE]
    assert near.shape == (1, 64, 128)
    assert float(near.max()) < 2e-4  # the bank is stored in half precision
    assert float(far.median()) > 3 * float(near.max())


LAYER = "body.encoder.features.3"


@dataclass(frozen=True)
class CopiedModel:
    """A model with banks of two layers and three frames, whose folder was copied and removed."""

    model: Model
    names: tuple[str, ...]  # of the frames
    stored: dict[str, Tensor]
    second_frame: Tensor  # as the network sees it


@pytest.fixture(scope="module")
def copied(base: Job, tmp_path_factory: pytest.TempPathFactory) -> CopiedModel:
    root = tmp_path_factory.mktemp("copied")
    fitted(base, root / "model", layers=["body.encoder.features.5", LAYER])
    copy_model(root / "model", root / "copy")
    shutil.rmtree(root / "model")
    model = load_model(root / "copy")
    features: Any = model.attachments["features"]
    (path,) = base.data.glob(f"leftImg8bit/train/{features.frames[1]}.png")
    return CopiedModel(
        model,
        features.frames,
        load_file(root / "copy" / "features.safetensors"),
        network_input([load_image(path)], (64, 128)),
    )


def test_a_bank_says_which_frame_its_features_are_of(copied: CopiedModel) -> None:
    (maps,) = FeatureExtractor(copied.model.network, [LAYER])(copied.second_frame)
    of_second = copied.stored["1.origins"][:, 0] == 1
    neighbours = Neighbours(copied.stored["1.bank"][of_second].float())
    distances = neighbours(unit_features(maps).detach())
    assert float(distances.max()) < 1e-3


def test_only_the_frames_that_are_trained_on_count(copied: CopiedModel) -> None:
    trained = {copied.names[0], copied.names[2]}
    density = density_of(copied.model, FEATURES, trained)
    of_trained = torch.isin(copied.stored["0.origins"][:, 0], torch.tensor([0.0, 2.0]))
    expected = Neighbours(copied.stored["0.bank"][of_trained])
    assert torch.equal(density.banks[0].bank, expected.bank)
    (nearest_of,) = density(copied.second_frame, FEATURES)[NEAREST]
    ((_, name),) = nearest_of([(0.5, 0.5)])
    assert name in trained


def test_a_bank_of_no_frame_that_is_trained_on_is_refused(copied: CopiedModel) -> None:
    with pytest.raises(InputError, match=r"all frames of the bank \(3\) are left out"):
        density_of(copied.model, FEATURES, {"another"})


# A map of 2 x 2 places, each of which has the feature of one training frame. A feature that comes
# again in the bank is that of the first.
CORNERS = torch.eye(4).reshape(2, 2, 4).permute(2, 0, 1)
NINE_FEATURES = torch.eye(4).repeat(3, 1)[:9]
CORNER_BANK = Neighbours(NINE_FEATURES, list("abcdABCDx"))
FAR_BANK = Neighbours(torch.tensor([[1.0, 1.0, 0.0, 0.0]]), ["far"])
WHOLE = (1.0, 1.0)


def test_the_nearest_frame_is_that_of_the_place() -> None:
    places = [(0.1, 0.1), (0.1, 0.9), (0.9, 0.1), (1.0, 1.0)]
    nearest = nearest_frames([(CORNERS, CORNER_BANK, WHOLE)], places)
    assert nearest == [(0.0, "a"), (0.0, "b"), (0.0, "c"), (0.0, "d")]


def test_the_nearest_frame_of_a_map_that_covers_more_than_the_frame() -> None:
    """As of a network that pads below and at the right."""
    maps = [(CORNERS, CORNER_BANK, (2.0, 2.0))]
    assert nearest_frames(maps, [(0.9, 0.9)]) == [(0.0, "a")]


def test_the_nearest_frame_has_its_distance() -> None:
    nearest = nearest_frames([(CORNERS, FAR_BANK, WHOLE)], [(0.1, 0.1)])
    assert nearest == [(pytest.approx(1 - 0.5**0.5), "far")]


def test_the_nearest_frame_of_several_maps() -> None:
    maps = [(CORNERS, FAR_BANK, WHOLE), (CORNERS, CORNER_BANK, WHOLE)]
    assert nearest_frames(maps, [(0.9, 0.9)]) == [(0.0, "d")]


def test_a_frame_of_the_bank_is_its_own_nearest(base: Job, tmp_path: Path) -> None:
    model = fitted(base, tmp_path / "model", layers=["body.encoder.features.3"], bank=10_000)
    places = []
    for row in (0.2, 0.6, 0.9):
        places += [(row, column) for column in (0.1, 0.5, 0.8)]
    for name in model.attachments["features"].frames:
        (path,) = base.data.glob(f"leftImg8bit/train/{name}.png")
        image = network_input([load_image(path)], (64, 128))
        (nearest_of,) = density_of(model)(image, FEATURES)[NEAREST]
        nearest = nearest_of(places)
        assert {frame for _, frame in nearest} == {name}
        assert max(distance for distance, _ in nearest) < 1e-3


def test_a_bank_of_an_earlier_version_names_no_frames(base: Job, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    model = fitted(base, folder, layers=["body.encoder.features.3"], bank=10_000)
    images = torch.rand(1, 3, 64, 128, generator=torch.Generator().manual_seed(0))
    before = density_of(model)(images, FEATURES)
    stored = folder / "features.safetensors"
    tensors = load_file(stored)
    without = {name: tensor for name, tensor in tensors.items() if "origins" not in name}
    save_file(without, folder / "old")
    (folder / "old").rename(stored)
    change_record(folder / "features.json", tensors_sha256=file_sha256(stored))
    older = load_model(folder)
    evidence = density_of(older)(images, FEATURES)
    assert before.keys() == {FEATURE_DISTANCE, NEAREST}
    assert evidence.keys() == {FEATURE_DISTANCE}
    assert torch.equal(evidence[FEATURE_DISTANCE], before[FEATURE_DISTANCE])
    with pytest.raises(InputError, match="does not say of which frames"):
        density_of(older, FEATURES, {"any"})


def test_what_frames_look_like_under_corruptions_is_known(base: Job, tmp_path: Path) -> None:
    layers = ["body.encoder.features.3"]
    clean = fitted(base, tmp_path / "clean", layers=layers)
    both = fitted(base, tmp_path / "both", layers=layers, corruptions=["noise:4", "jpeg:5"])
    names = clean.attachments["features"].frames
    assert both.attachments["features"].frames == names
    clean_density = density_of(clean)
    density = density_of(both)
    assert len(density.banks[0].bank) == 3 * len(clean_density.banks[0].bank)
    samples = SegmentationDataModule("toy", str(base.data)).dataset("train").samples
    sample = next(sample for sample in samples if sample.name == names[0])
    image = Corruption.parse("noise:4")(load_image(sample.image), sample.name)
    noisy = network_input([image], (64, 128))
    assert clean_density(noisy, FEATURES)[FEATURE_DISTANCE].mean() > 0.1
    # What is stored is rounded.
    distances = density(noisy, FEATURES)[FEATURE_DISTANCE]
    assert distances.mean() < 1e-3


def test_an_unknown_corruption_is_refused() -> None:
    with pytest.raises(InputError, match="corruption 'rain'"):
        FeatureDensity(corruptions=["rain:1"])


def test_a_place_has_the_class_of_most_of_its_labelled_pixels() -> None:
    labels = torch.full((5, 6), 255, dtype=torch.uint8)
    labels[:2, :2] = torch.tensor([[1, 1], [1, 0]])
    labels[:2, 2:4] = torch.tensor([[1, 255], [255, 0]])
    labels[:2, 4] = 3
    places = places_of(labels, (3, 3), (6, 6))  # a row of pixels is padding
    assert places[:, 2].tolist() == [1, 255, 3, *[255] * 6]
    assert places[0, :2].tolist() == pytest.approx([1 / 5, 1 / 6])
    assert places[-1, :2].tolist() == pytest.approx([1, 5 / 6])


@pytest.mark.parametrize(
    "change",
    [
        {"scores": ["knn", "gmm"]},
        {"scores": ["knn"], "upsampling": "guided"},
    ],
)
def test_a_bank_of_what_is_gone_is_refused(
    base: Job, tmp_path: Path, change: dict[str, Any]
) -> None:
    fitted(base, tmp_path / "model", bank=50)
    change_record(tmp_path / "model" / "features.json", **change)
    said = r"features\.json was fitted for knn(, gmm)? with .* bilinear upsampling alone"
    with pytest.raises(InputError, match=said):
        load_model(tmp_path / "model")


def test_a_damaged_bank_is_refused(base: Job, tmp_path: Path) -> None:
    model = fitted(base, tmp_path / "model", bank=50)
    stored = tmp_path / "model" / "features.safetensors"
    stored.write_bytes(stored.read_bytes()[:-4] + b"abcd")
    with pytest.raises(InputError, match=r"has changed since features\.json was written"):
        density_of(model)


def test_a_bank_of_another_encoder_is_refused(base: Job, tmp_path: Path) -> None:
    model = fitted(base, tmp_path / "model", bank=50)
    stored = tmp_path / "model" / "features.safetensors"
    stored.write_bytes(stored.read_bytes()[:-4] + b"abcd")
    other = replace(
        model.attachments["features"],
        tensors_sha256=file_sha256(stored),
        encoder="test_efficientnet",
        mean=HALF,
        std=HALF,
    )
    with pytest.raises(InputError, match="do not fit the network"):
        other.providers(model, FEATURES)


def test_a_bank_that_is_gone_is_refused(base: Job, tmp_path: Path) -> None:
    model = fitted(base, tmp_path / "model", bank=50)
    (tmp_path / "model" / "features.safetensors").unlink()
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
    if options.get("weights") == "WEIGHTS":
        options = options | {"weights": str(weights)}
    with pytest.raises(InputError, match=said) as caught:
        fitted(base, tmp_path / "model", **options)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "model").exists()


def known(count: int = 200_000, seed: int = 0) -> Tensor:
    values = np.random.default_rng(seed).exponential(size=count)
    return torch.from_numpy(values).float()


def test_surprise_is_the_share_of_pixels_that_score_as_high() -> None:
    values = known()
    surprise = Surprise.of(values)
    for share in (1.0, 0.5, 0.1, 0.03, 0.001):
        value = torch.quantile(values[:100_000].double(), 1 - share).float()
        measured = -math.log10(float((values >= value).float().mean()))
        assert float(surprise(value[None])) == pytest.approx(measured, abs=0.05)


def test_surprise_beyond_the_last_level() -> None:
    """exp(-x) of the pixels of an exponential law exceed x, and its tail goes on as it must where
    none was seen.
    """
    far = torch.tensor([9.0, 14.0, 30.0])
    decades = Surprise.of(known())(far)
    expected = far.numpy() / math.log(10)
    np.testing.assert_allclose(decades.numpy(), expected, rtol=0.1)


def test_surprise_keeps_the_order_where_levels_are_equal() -> None:
    nine_in_ten_are_0 = torch.cat([torch.zeros(90_000), known(10_000)])
    surprise = Surprise.of(nine_in_ten_are_0)
    assert len(set(surprise.levels)) < len(surprise.levels)
    values = torch.linspace(-1, 20, 2001).reshape(3, 23, 29)
    decades = surprise(values)
    assert float(decades.min()) >= 0
    assert (decades.flatten().diff() >= 0).all()
    assert (decades[values > 1e-3].diff() > 0).all()
    # All pixels reach the value that nine in ten have.
    assert float(decades[values <= 0].max()) == 0


PARTS = ("deterministic-energy", "deterministic-entropy")


@dataclass(frozen=True)
class MeasuredSum:
    """A sum of PARTS, and the values ``[P, N]`` of the pixels that it was fitted on."""

    total: ScoreSum
    values: Tensor

    def surprise(self) -> Tensor:
        maps = dict(zip(PARTS, self.values[:, None, None], strict=True))
        return self.total(maps)[SUM].flatten()


@pytest.fixture(scope="module")
def measured(base: Job, toy_set: Path, tmp_path_factory: pytest.TempPathFactory) -> MeasuredSum:
    data = {"dataset": "toy", "root": str(toy_set)}
    method = Anomaly(parts=list(PARTS), weights=[2.0, 1.0], frames=3)
    model = load_model(base.base)
    total = method.fit(model, data, device="cpu").attachments["anomaly"]
    sampler = Sampler(model.network, scores=list(PARTS))
    pixels = []
    run = open_fit(model, method, data)
    for frame in frames_as_seen(run, run.data, "val", 3):
        scores = sampler(frame.image).scores
        labelled = torch.from_numpy(frame.labels != 255)
        pixels.append(torch.stack([scores[name][0][labelled] for name in PARTS]))
    return MeasuredSum(total, torch.cat(pixels, 1))


def test_a_sum_records_what_it_was_fitted_on(measured: MeasuredSum) -> None:
    assert measured.total.parts == PARTS
    assert measured.total.weights == (2.0, 1.0)
    assert measured.total.frames == 3
    assert measured.total.features_sha256 is None
    assert measured.total.pixels == measured.values.shape[1]


def test_parts_are_scaled_by_mean_and_deviation_over_normal_scenes(measured: MeasuredSum) -> None:
    of_parts = measured.values.double().numpy()
    for scale, values in zip(measured.total.scales, of_parts, strict=True):
        assert scale.mean == pytest.approx(values.mean(), rel=1e-5)
        assert scale.std == pytest.approx(values.std(), rel=1e-5)


@pytest.mark.parametrize("decades", [1, 2, 3])
def test_3_is_one_pixel_in_a_thousand(measured: MeasuredSum, decades: int) -> None:
    share = float((measured.surprise() >= decades).float().mean())
    assert share == pytest.approx(10.0**-decades, rel=0.2)


def test_ten_pixels_reach_what_is_called_measured(measured: MeasuredSum) -> None:
    assert measured.total.measured_to is not None
    surprise = measured.surprise()
    assert int((surprise >= measured.total.measured_to).sum()) >= 10
    assert int((surprise >= measured.total.measured_to + 0.1).sum()) < 10


def test_each_part_has_a_surprise_of_its_own(measured: MeasuredSum) -> None:
    parts = zip(PARTS, measured.values, measured.total.part_surprises, strict=True)
    for name, values, surprise in parts:
        highest = values.max()
        decades = measured.total.decades(dict.fromkeys(PARTS, float(highest)))
        expected = float(surprise(highest[None]))
        assert decades[name] == pytest.approx(expected, abs=1e-3)
        one_in_a_hundred = surprise(values) >= 2
        assert float(one_in_a_hundred.float().mean()) == pytest.approx(0.01, rel=0.2)


@pytest.mark.parametrize(
    ("held_out", "left_out"),
    [
        (None, list("01234567")),
        ("3", ["3"]),
    ],
)
def test_a_frame_is_not_compared_with_features_of_its_own_sequence(
    base: Job,
    toy_set: Path,
    monkeypatch: pytest.MonkeyPatch,
    held_out: str | None,
    left_out: list[str],
) -> None:
    sequence = "0([0-7])_000019_leftImg8bit$"  # each of the eight training frames is one
    folds = {
        "validation": "leave-sequence-out",
        "sequence": sequence,
        "held_out": held_out,
    }
    compared: list[set[str]] = []

    def noted(self: Model, scores: Any, frames: Any = None) -> Fitted:
        compared.append({re.search(sequence, name)[1] for name in frames})  # type: ignore[index]
        return Fitted()

    monkeypatch.setattr(Model, "fitted", noted)
    data = SegmentationDataModule("toy", str(toy_set), **folds)
    model = load_model(base.base)
    parts = ["deterministic-entropy"]
    pixels = known_pixels(open_fit(model, Anomaly(), data), parts, draws=1)
    expected = [sorted(set("01234567") - {name}) for name in left_out]
    assert sorted(sorted(names) for names in compared) == sorted(expected)
    assert len(pixels.values) == 1
    assert pixels.frames == len(left_out)


def test_a_frame_of_val_is_not_compared_with_its_own_features(base: Job, toy_set: Path) -> None:
    """The split may have changed since the bank was made: then its frames would look familiar."""
    data = SegmentationDataModule("toy", str(toy_set))
    model = load_model(base.base)
    names = data.frame_names("val")
    train = data.frame_names("train")

    def compared(frames: list[str]) -> set[str] | None:
        model.attachments["features"] = SimpleNamespace(frames=tuple(frames))
        return frames_compared(model, data)

    assert compared([*train, names[0]]) == set(train)
    assert compared(train) is None
    assert compared(names) is None  # of another data set: nothing would be left


def test_a_bank_of_images_records_no_size_of_the_data(base: Job, toy_set: Path) -> None:
    """Images are seen at the size of the network, whatever size the data have."""
    settings = FeatureDensity(images=str(toy_set / "leftImg8bit" / "val"))
    data = {"dataset": "toy", "root": str(toy_set), "size": (32, 64)}
    bank = settings.fit(load_model(base.base), data, device="cpu").attachments["features"]
    assert bank.fitted_on["size"] is None


def refused_sum(model: Path, data: Path, out: Path, said: str, **settings: Any) -> None:
    with pytest.raises(InputError, match=said):
        fit_folder(Anomaly(**settings), model, out, {"dataset": "toy", "root": str(data)})


def test_a_sum_of_sums_is_refused(base: Job, tmp_path: Path) -> None:
    parts = ["anomaly", "knn"]
    refused_sum(base.base, base.data, tmp_path / "out", "'anomaly' is a sum", parts=parts)


def test_a_sum_without_weights_is_refused(base: Job, tmp_path: Path) -> None:
    refused_sum(
        base.base,
        base.data,
        tmp_path / "out",
        "weights has 0 numbers for 1 parts",
        parts=["deterministic-entropy"],
        weights=[],
    )


def test_a_score_without_spread_is_refused(base: Job, tmp_path: Path) -> None:
    network = load_network(base.base)
    last: Any = network.body.segmentation_head[0]
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)
    flat = tmp_path / "flat"
    save_network(network, flat)
    said = "deterministic-entropy is 1 at every pixel"
    parts = ["deterministic-entropy"]
    refused_sum(flat, base.data, tmp_path / "out", said, parts=parts)


def of_hashes(temperature: float = 1.0, bank: str | None = "bank") -> Any:
    hashes = {
        "base_sha256": "base",
        "posterior_sha256": None,
        "calibrator_sha256": None,
        "temperature": temperature,
        "features_sha256": bank,
    }
    return SimpleNamespace(hashes=hashes)


def total() -> ScoreSum:
    values = torch.stack([known(seed=0), known(seed=1)])
    energy, knn = values
    scales = (Standard.of(energy), Standard.of(knn))
    return ScoreSum(
        parts=("deterministic-energy", "knn"),
        weights=(1.0, 2.0),
        scales=scales,
        surprise=Surprise.of(weighted_sum(values, (1.0, 2.0), scales)),
        fitted_on={"dataset": "toy"},
        frames=3,
        draws=1,
        temperature=1.0,
        base_sha256="base",
        posterior_sha256=None,
        features_sha256="bank",
        part_surprises=(Surprise.of(energy), Surprise.of(knn)),
        pixels=values.shape[1],
        measured_to=4.1,
    )


@pytest.fixture
def written(tmp_path: Path) -> ScoreSum:
    made = total()
    write_record(tmp_path / made.file, asdict(made))
    return made


def test_a_sum_comes_back(written: ScoreSum, tmp_path: Path) -> None:
    again = ScoreSum.load(tmp_path, of_hashes())
    assert again == written
    assert "part_surprises" in again.record()["anomaly"]


def test_a_sum_tells_the_surprise_of_its_standardised_parts(written: ScoreSum) -> None:
    energy = known(600, 5).view(1, 20, 30)
    knn = known(600, 6).view(1, 20, 30)
    energy_scale, knn_scale = written.scales
    standard_energy = (energy - energy_scale.mean) / energy_scale.std
    standard_knn = (knn - knn_scale.mean) / knn_scale.std
    expected = written.surprise(standard_energy + 2 * standard_knn)
    found = written({"deterministic-energy": energy, "knn": knn})
    torch.testing.assert_close(found, {SUM: expected})


def test_a_sum_of_an_earlier_version_has_no_surprises_of_its_parts(
    written: ScoreSum, tmp_path: Path
) -> None:
    later_fields = ["part_surprises", "pixels", "measured_to"]
    change_record(tmp_path / written.file, without=later_fields)
    older = ScoreSum.load(tmp_path, of_hashes())
    assert older.part_surprises == ()
    assert older.measured_to is None
    assert older.decades({}) == {}
    assert older.record()["anomaly"].keys() == {"parts", "weights", "scales", "surprise"}


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (of_hashes(1.5), "whose temperature is"),
        (of_hashes(bank=None), "with other features"),
    ],
)
def test_a_sum_of_another_model_is_refused(
    written: ScoreSum, tmp_path: Path, other: Any, said: str
) -> None:
    with pytest.raises(InputError, match=said):
        ScoreSum.load(tmp_path, other)


def test_a_sum_of_surprises_of_an_earlier_version_is_refused(
    written: ScoreSum, tmp_path: Path
) -> None:
    change_record(tmp_path / written.file, scales=[{"levels": [0, 1], "excess": 1}] * 2)
    with pytest.raises(InputError, match="earlier version"):
        ScoreSum.load(tmp_path, of_hashes())
