"""Gaussian densities of unit features: the evidence of the scores ``mahalanobis``, ``relative-mahalanobis`` and ``gmm``.

Features have length 1, always: the norms of a class vary, which no Gaussian has, and a norm says little of what was seen. Mueller &
Hein, "Mahalanobis++", ICML 2025, arXiv 2505.18032: so normalised, Mahalanobis distances rank better and depend less on the encoder.

Counts, sums and sums of products are float64 and gathered in one pass. The covariance S that the classes share (population, divisor N)
is whitened; directions in which the features of no class vary are left out, as a pseudo-inverse leaves them out. All else is computed
in whitened coordinates, in which S is the unit matrix, so that float32 is enough to predict.

Distances and densities of features of different lengths have different units. Each is therefore given in standard deviations from its
mean over a sample of the training features, for one map as for several, which are then averaged.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from segunc.baselines.scores import LOG_DENSITY, MAHALANOBIS, RELATIVE_MAHALANOBIS
from segunc.core.errors import InputError
from segunc.data.labels import IGNORE
from segunc.networks.network import SegmentationNetwork
from segunc.posteriors.features import FeatureFit, FeaturesConfig, Take
from segunc.training.progress import Say

LEAST_SHARE = 1e-8
"""Of the largest variance of the shared covariance; directions with less hold the rounding of float32 features."""
OF_GAUSSIANS = (MAHALANOBIS, RELATIVE_MAHALANOBIS, LOG_DENSITY)  # the rows of the constants


class GaussianFit(FeatureFit):
    """Counts ``[K]``, sums ``[K, D]`` and sums of products of the features of K classes, in float64: the products ``[K, D, D]``, or
    ``[1, D, D]`` of all together unless the log density is needed."""

    def __init__(self, network: SegmentationNetwork, needs: Collection[str], settings: FeaturesConfig) -> None:
        super().__init__(network, needs, settings)
        self.counts = torch.zeros(network.description.num_classes, dtype=torch.float64)
        self.sums, self.products = torch.zeros(len(self.counts), 0), torch.zeros(0)

    def add(self, seen: Tensor, labels: Tensor) -> None:
        """Features with the id 255 are not counted."""
        rows, labels = seen[labels != IGNORE].double(), labels[labels != IGNORE]
        classes, size, by_class = len(self.counts), seen.shape[1], LOG_DENSITY in self.needs
        if not self.products.numel():
            self.sums = rows.new_zeros(classes, size)
            self.products = rows.new_zeros(classes if by_class else 1, size, size)
        self.counts += torch.bincount(labels, minlength=classes)
        self.sums.index_add_(0, labels, rows)
        if not by_class:
            self.products[0].addmm_(rows.T, rows)
            return
        for label in torch.bincount(labels).nonzero().flatten():
            part = rows[labels == label]
            self.products[label].addmm_(part.T, part)

    def tensors(self, sample: Tensor, say: Say) -> dict[str, Tensor]:
        counts = zip(self.network.description.classes, self.counts, strict=True)
        if absent := sorted(name for name, count in counts if not count):
            say(f"left out of the Gaussians, as no place is mostly of them: {', '.join(absent)}")
        return dict(Gaussians.fit(self, sample[:, :-4]).tensors)

    @staticmethod
    def restore(take: Take, needs: Collection[str], *_: object) -> Gaussians:
        return Gaussians(take(Gaussians.shapes(needs)), needs)


class Gaussians:
    """Gaussians of K classes that occurred, over features ``[M, D]`` of which R directions count, of the tensors that :meth:`shapes` names."""

    @staticmethod
    def shapes(needs: Collection[str]) -> dict[str, str]:
        """Return names of the tensors that some evidence needs, with their axes."""
        shapes = {
            "mean": "D",  # of all features with a class
            "whitening": "RD",
            "centres": "KR",  # means of the classes, whitened
            "standard": "32",  # mean and standard deviation of each evidence, in OF_GAUSSIANS
        }
        if RELATIVE_MAHALANOBIS in needs:
            shapes["background"] = "RR"  # whitens the one Gaussian of all, in whitened coordinates
        if LOG_DENSITY in needs:  # what whitens the classes' own; logarithms of weights and normalisers
            shapes |= {"components": "KRR", "constants": "K"}
        return shapes

    def __init__(self, tensors: Mapping[str, Tensor], gives: Collection[str]) -> None:
        self.tensors, self.gives = tensors, frozenset(gives).intersection(OF_GAUSSIANS)

    @property
    def channels(self) -> int:
        return len(self.tensors["mean"])

    @classmethod
    def fit(cls, moments: GaussianFit, sample: Tensor) -> Gaussians:
        """Return those that some evidence needs, standardised on a sample ``[M, D]`` of the training features.

        Class covariances are drawn towards the shared one as if D more features with it had been seen, D the number of directions:
        (n_k S_k + D S) / (n_k + D), so that a class with fewer features than directions has one, too.
        """
        needs, present = moments.needs, moments.counts > 0
        counts, sums = moments.counts[present], moments.sums[present]
        total, classes, size = counts.sum(), int(present.sum()), moments.sums.shape[1]
        if total < classes + size or not size:
            raise InputError(
                f"{total:.0f} features with a class are too few for a covariance of {size} numbers within {classes} classes, which "
                f"needs {classes + size}",
                hint="take more frames, or a layer of fewer channels",
            )
        means, mean, products = sums / counts[:, None], sums.sum(0) / total, moments.products.sum(0)
        shared = (products - (means.T * counts) @ means) / total
        variances, directions = torch.linalg.eigh(shared)
        kept = variances > max(LEAST_SHARE * float(variances[-1]), torch.finfo(torch.float32).eps ** 2)
        if not kept.any():
            raise InputError("the features are the same wherever a class is", hint="name another layer")
        whitening = (directions[:, kept] / variances[kept].sqrt()).T
        tensors = {"mean": mean, "whitening": whitening, "centres": (means - mean) @ whitening.T}
        if RELATIVE_MAHALANOBIS in needs:
            tensors["background"] = _whitening(whitening @ (products / total - mean.outer(mean)) @ whitening.T)
        if LOG_DENSITY in needs:
            unit = torch.eye(len(whitening), dtype=torch.float64)
            scatters = moments.products[present] - counts[:, None, None] * means[:, :, None] * means[:, None]
            drawn = whitening @ scatters @ whitening.T + len(whitening) * unit
            components = _whitening(drawn / (counts + len(whitening))[:, None, None])
            normaliser = components.diagonal(dim1=1, dim2=2).log().sum(1) - variances[kept].log().sum() / 2
            tensors["components"] = components
            tensors["constants"] = (counts / total).log() + normaliser - len(whitening) / 2 * math.log(2 * math.pi)
        plain = cls({name: values.float().contiguous() for name, values in tensors.items()}, needs)
        values = plain.raw(sample, needs)
        standard = torch.tensor([[0.0, 1.0]] * len(OF_GAUSSIANS))
        for name, of_sample in values.items():
            wide = of_sample.double()
            standard[OF_GAUSSIANS.index(name)] = torch.stack([wide.mean(), wide.std(correction=0).clamp_min(1e-6)])
        return cls({**plain.tensors, "standard": standard}, needs)

    def raw(self, features: Tensor, needs: Collection[str]) -> dict[str, Tensor]:
        """Return the evidence that is needed of features ``[M, D]``, each ``[M]`` float32: squared Mahalanobis distance to the nearest class
        (Lee et al., NeurIPS 2018), the same less that to the one Gaussian of all (Ren et al. 2021), and minus the log density of the
        mixture whose weights are the shares of the classes (Mukhoti et al., CVPR 2023)."""
        tensors, evidence = self.tensors, dict[str, Tensor]()
        white = (features - tensors["mean"]) @ tensors["whitening"].T
        if {MAHALANOBIS, RELATIVE_MAHALANOBIS}.intersection(needs):
            # Through products of matrices the difference of two large squares would lose the digits.
            distances = torch.cdist(white, tensors["centres"], compute_mode="donot_use_mm_for_euclid_dist")
            evidence[MAHALANOBIS] = distances.amin(1).square()
        if RELATIVE_MAHALANOBIS in needs:
            evidence[RELATIVE_MAHALANOBIS] = evidence[MAHALANOBIS] - (white @ tensors["background"].T).square().sum(1)
        if LOG_DENSITY in needs:
            logs = [
                constant - ((white - centre) @ component.T).square().sum(1) / 2
                for centre, component, constant in zip(
                    tensors["centres"], tensors["components"], tensors["constants"], strict=True
                )
            ]
            evidence[LOG_DENSITY] = -torch.stack(logs).logsumexp(0)
        return {name: values for name, values in evidence.items() if name in needs}

    def __call__(self, features: Tensor, needs: Collection[str]) -> dict[str, Tensor]:
        """Return the evidence that is needed of unit features ``[M, D]``, each ``[M]`` float32, standardised."""
        constants = dict(zip(OF_GAUSSIANS, self.tensors["standard"], strict=True))
        raw = self.raw(features, needs)
        return {name: (values - constants[name][0]) / constants[name][1] for name, values in raw.items()}


def _whitening(covariance: Tensor) -> Tensor:
    """Return W ``[..., R, R]``, lower triangular, with W S W^T the unit matrix, of covariances S of full rank."""
    factor = torch.linalg.cholesky(covariance)
    unit = torch.eye(covariance.shape[-1], dtype=covariance.dtype)
    inverse: Tensor = torch.linalg.solve_triangular(factor, unit.expand_as(covariance), upper=False)
    return inverse
