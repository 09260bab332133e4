"""Densities of features against scikit-learn and brute force; what goes into a network's last layer, scored by the authors' formulas."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.covariance import EmpiricalCovariance
from sklearn.decomposition import PCA
from sklearn.mixture import GaussianMixture
from torch import Tensor, nn

from segunc.baselines.densities import OF_GAUSSIANS, GaussianFit, Gaussians
from segunc.baselines.head import HeadFit, HeadScores
from segunc.baselines.scores import (
    CLIPPED_ENERGY,
    LOG_DENSITY,
    MAHALANOBIS,
    RELATIVE_MAHALANOBIS,
    SCALED_ENERGY,
    VIRTUAL_LOGIT,
)
from segunc.core.errors import InputError
from segunc.networks.description import NetworkDescription
from segunc.networks.features import FeatureExtractor, SecondEncoder
from segunc.networks.network import SegmentationNetwork
from segunc.sampling.density import FeatureDensity, Neighbours, unit_features
from segunc.scores import EVIDENCE
from segunc.uncertainty import energy

FEATURES = frozenset(name for name, evidence in EVIDENCE.items() if evidence.source == "frame")
CLASSES, SIZE, HALF = 3, 6, (0.5, 0.5, 0.5)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def moments_of(classes: int, needs: Any = OF_GAUSSIANS) -> GaussianFit:
    network: Any = SimpleNamespace(description=SimpleNamespace(num_classes=classes))
    return GaussianFit(network, needs, None)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def known() -> tuple[Tensor, Tensor]:
    """Unit features of three classes of their own covariances, id 1 of which never occurs, and some of no class."""
    labels = torch.tensor([0] * 300 + [2] * 200 + [3] * 40 + [255] * 60)
    mixing = random(4, SIZE, SIZE)
    rows = [random(SIZE, seed=i) @ mixing[label % 4] * 0.3 + 2 * label % 5 for i, label in enumerate(labels.tolist())]
    return nn.functional.normalize(torch.stack(rows) + random(SIZE, seed=9), dim=1), labels


@pytest.fixture(scope="module")
def fitted(known: tuple[Tensor, Tensor]) -> Gaussians:
    """From the stream in three parts."""
    moments = moments_of(4)
    for rows, labels in zip(known[0].split(250), known[1].split(250), strict=True):
        moments.add(rows, labels)
    return Gaussians.fit(moments, known[0])


def by_class(known: tuple[Tensor, Tensor]) -> tuple[list[Any], Any]:
    rows, labels = known[0].double().numpy(), known[1].numpy()
    return [rows[labels == label] for label in (0, 2, 3)], rows[labels != 255]


def queries() -> Tensor:
    return nn.functional.normalize(random(50, SIZE, seed=5), dim=1)


def assert_near(found: Tensor, expected: Any) -> None:
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-5)


def test_mahalanobis_distances_are_those_of_scikit_learn(known: tuple[Tensor, Tensor], fitted: Gaussians) -> None:
    parts, whole = by_class(known)
    centred = EmpiricalCovariance(assume_centered=True).fit(np.concatenate([part - part.mean(0) for part in parts]))
    wide = queries().double().numpy()
    expected = np.min([centred.mahalanobis(wide - part.mean(0)) for part in parts], 0)
    found = fitted.raw(queries(), OF_GAUSSIANS)
    assert_near(found[MAHALANOBIS], expected)
    relative = expected - EmpiricalCovariance().fit(whole).mahalanobis(wide)
    # A difference of two float32 numbers as large as the distance.
    assert np.all(np.abs(found[RELATIVE_MAHALANOBIS].numpy() - relative) < 1e-6 * expected)


def test_the_mixture_is_that_of_scikit_learn_with_covariances_drawn_to_the_shared_one(
    known: tuple[Tensor, Tensor], fitted: Gaussians
) -> None:
    parts, whole = by_class(known)
    scatters = [(part - part.mean(0)).T @ (part - part.mean(0)) for part in parts]
    shared = np.sum(scatters, 0) / len(whole)
    drawn = [(s + SIZE * shared) / (len(part) + SIZE) for s, part in zip(scatters, parts, strict=True)]
    mixture = GaussianMixture(3)
    mixture.weights_ = np.array([len(part) / len(whole) for part in parts])
    mixture.means_ = np.array([part.mean(0) for part in parts])
    mixture.covariances_ = drawn
    mixture.precisions_cholesky_ = np.array([np.linalg.cholesky(np.linalg.inv(covariance)) for covariance in drawn])
    assert_near(fitted.raw(queries(), OF_GAUSSIANS)[LOG_DENSITY], -mixture.score_samples(queries().double().numpy()))


def test_each_is_standardised_on_the_training_features(known: tuple[Tensor, Tensor], fitted: Gaussians) -> None:
    for name, values in fitted(known[0], OF_GAUSSIANS).items():
        assert float(values.mean()) == pytest.approx(0, abs=1e-4), name
        assert float(values.std()) == pytest.approx(1, abs=1e-2), name


def test_only_what_is_needed_is_fitted_and_means_the_same(known: tuple[Tensor, Tensor], fitted: Gaussians) -> None:
    moments = moments_of(4, [MAHALANOBIS])
    moments.add(*known)
    alone = Gaussians.fit(moments, known[0])
    assert (alone.gives, fitted.gives) == ({MAHALANOBIS}, set(OF_GAUSSIANS))
    assert alone.tensors.keys() == Gaussians.shapes([MAHALANOBIS]).keys()
    assert_near(alone(queries(), OF_GAUSSIANS[:1])[MAHALANOBIS], fitted(queries(), OF_GAUSSIANS)[MAHALANOBIS])


def test_a_class_of_one_feature_has_a_gaussian_and_dead_channels_are_left_out(known: tuple[Tensor, Tensor]) -> None:
    rows = torch.cat([known[0], torch.zeros(len(known[0]), 2)], 1)
    moments, plain = (moments_of(4) for _ in range(2))
    labels = known[1].clone()
    labels[-1] = 1
    moments.add(rows, labels)
    plain.add(known[0], labels)
    found, expected = Gaussians.fit(moments, rows), Gaussians.fit(plain, known[0])
    for name, values in found(torch.cat([queries(), random(50, 2)], 1), OF_GAUSSIANS).items():
        assert_near(values, expected(queries(), OF_GAUSSIANS)[name])


class Beyond(nn.Module):
    """Frames of fewer than 16 pixels have no place."""

    def forward(self, images: Tensor) -> Tensor:
        return images[..., 15::16, 15::16]


class Body(nn.Module):
    """An encoder of stride 4, and a head of its own at that stride."""

    def __init__(self, head: nn.Module, corners: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder = nn.Sequential(nn.Conv2d(3, 8, 5, 4, 2), nn.BatchNorm2d(8), nn.ReLU())
        self.head, self.corners = head, corners

    def forward(self, images: Tensor) -> Tensor:
        maps = self.encoder(images)
        last = isinstance(self.head, nn.Linear)
        maps = self.head(maps.movedim(1, -1)).movedim(-1, 1) if last else self.head(maps)
        return nn.functional.interpolate(maps, scale_factor=4, mode="bilinear", align_corners=self.corners)


def network(head: nn.Module | None = None) -> SegmentationNetwork:
    torch.manual_seed(1)
    body = Body(head or nn.Conv2d(8, CLASSES, 1))
    return SegmentationNetwork(body, NetworkDescription("own", "", ("a", "b", "c")), 4).eval()


def head_scores(found: SegmentationNetwork, images: Tensor, needs: Any, clip: float = 90.0) -> HeadScores:
    settings: Any = SimpleNamespace(seed=0)
    fit = HeadFit(found, needs, settings)
    for image in images:
        fit.add(image[None], torch.zeros(0))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("segunc.baselines.head.REACT_PERCENTILE", clip)
        kept = fit.tensors(torch.zeros(0), print)
    tensors = {name: values.to(images.device) for name, values in kept.items()}
    return HeadScores(fit.layer, tensors, 75.0, needs)


@pytest.fixture(scope="module")
def images() -> Tensor:
    return torch.rand(5, 3, 18, 23, generator=torch.Generator().manual_seed(3))  # padded to 20 x 24


@pytest.fixture(params=["convolution", "linear"])
def of_one_place(request: pytest.FixtureRequest) -> SegmentationNetwork:
    torch.manual_seed(2)
    return network(nn.Conv2d(8, CLASSES, 1) if request.param == "convolution" else nn.Linear(8, CLASSES))


@torch.inference_mode()
def test_vim_is_the_formula_with_the_residual_of_scikit_learn(
    of_one_place: SegmentationNetwork, images: Tensor
) -> None:
    own = of_one_place
    scores = head_scores(own, images, [VIRTUAL_LOGIT])
    layer: Any = own.body.head
    weight, bias = layer.weight.flatten(1).double(), layer.bias.double()
    padded = nn.functional.pad((images - own.mean) / own.std, (0, 1, 0, 2), mode="replicate")
    maps = own.body.encoder(padded).double()
    rows = maps.movedim(1, -1).flatten(0, 2)
    shifted = (rows + torch.linalg.pinv(weight) @ bias).numpy()
    principal = PCA(4).fit(np.concatenate([shifted, -shifted]))  # of mean 0: vim does not centre
    lengths = np.linalg.norm(shifted - principal.inverse_transform(principal.transform(shifted)), axis=1)
    alpha = float((rows @ weight.T + bias).amax(1).mean() / lengths.mean())
    residual = torch.from_numpy(lengths).view(5, 1, 5, 6) * alpha
    expected = nn.functional.interpolate(residual, (20, 24), mode="bilinear", align_corners=True)[:, 0, :18, :23]
    for temperature in (1.0, 2.0):
        found = scores(images, FEATURES, temperature=temperature)[VIRTUAL_LOGIT]
        assert_near(found, expected + energy(own(images), temperature))


@torch.inference_mode()
@pytest.mark.parametrize("kernel", [1, 3])
def test_clipped_and_scaled_energies_are_the_formulas(images: Tensor, kernel: int) -> None:
    own = network(nn.Conv2d(8, CLASSES, kernel, padding=kernel // 2))
    scores = head_scores(own, images, [CLIPPED_ENERGY, SCALED_ENERGY])
    padded = nn.functional.pad((images - own.mean) / own.std, (0, 1, 0, 2), mode="replicate")
    maps = own.body.encoder(padded)
    clipped = maps.clamp(max=float(np.percentile(maps.numpy(), 90)))
    largest = maps.sort(1).values[:, -2:].sum(1, keepdim=True)  # 8 channels, the 75th percentile
    scaled = maps * (maps.sum(1, keepdim=True) / largest.clamp_min(1e-30)).exp()
    found = scores(images, FEATURES, temperature=1.5)
    for name, given in ((CLIPPED_ENERGY, clipped), (SCALED_ENERGY, scaled)):
        logits = nn.functional.interpolate(own.body.head(given), scale_factor=4, mode="bilinear", align_corners=True)
        assert_near(found[name], energy(logits[..., :18, :23], 1.5))
    assert_near(
        head_scores(own, images, [CLIPPED_ENERGY], 100.0)(images, FEATURES)[CLIPPED_ENERGY], energy(own(images))
    )


def density(own: SegmentationNetwork, images: Tensor) -> FeatureDensity:
    """Of the features of a layer."""
    extractor = FeatureExtractor(own, ["body.encoder"], [1.0, 0.5])
    with torch.no_grad():
        banks = [Neighbours(unit_features(maps)[::3].half()) for maps in extractor(images)]
    return FeatureDensity(extractor, [[bank] for bank in banks])


def test_the_evidence_that_is_needed_is_at_the_size_of_the_frame(images: Tensor) -> None:
    own = network()
    plain, of_head = density(own, images), head_scores(own, images, FEATURES)
    assert (plain.gives, of_head.gives) == ({"feature distance"}, {VIRTUAL_LOGIT, CLIPPED_ENERGY, SCALED_ENERGY})
    assert plain(images, []) == {}
    for provider in (plain, of_head):
        evidence = provider(images, FEATURES)
        assert {name: values.shape for name, values in evidence.items()} == dict.fromkeys(provider.gives, (5, 18, 23))


def test_maps_without_a_place_or_of_other_features_are_one_line(images: Tensor) -> None:
    found = density(network(), images)
    second = SecondEncoder("vit_tiny_patch16_224", HALF, HALF)
    for small, layer in ((nn.Sequential(Beyond()), "0"), (second, "encoder.norm")):
        with pytest.raises(InputError, match="an image of 12 x 40 is smaller than the stride"):
            FeatureExtractor(small, [layer])(torch.zeros(1, 3, 12, 40))
    found.densities = [[Neighbours(random(4, 5))]] * 2
    with pytest.raises(InputError, match="a bank of features of 5 numbers does not fit a layer of 8"):
        found(images, FEATURES)
