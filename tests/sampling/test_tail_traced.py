"""The tail of graphs against float64: each error is below its bound, which
``docs/float32.md`` proves, for logits from flat to saturated.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from torch import Tensor

from segunc.sampling.shortcuts import Upsampling
from segunc.sampling.tail import OF_LOGITS
from segunc.sampling.tail_traced import GraphAccumulator
from tools.float32_bounds import EXP, LOG, UNIT, Array, Exact, draws_of_logits


def evidence_of(logits: Tensor, temperature: float = 1.0) -> dict[str, Array]:
    """Return the evidence of the graph's tail, each ``[W]`` in nats."""
    classes = logits.shape[1]
    size = (logits.shape[2], logits.shape[3])
    sums = GraphAccumulator(classes, size, needs=OF_LOGITS, temperature=temperature)
    sums.add(logits, Upsampling.none(size))
    _, evidence = sums.finish()
    assert all(values.dtype == torch.float32 for values in evidence.values())
    arrays = {name: values.double().numpy()[0] for name, values in evidence.items()}
    for name in ("total entropy", "expected entropy", "mutual information"):
        arrays[name] = arrays[name][0] * math.log(classes)
    return arrays


CASES = list(itertools.product((2, 19, 150), (1, 2, 8, 64), (1.0, 1.7)))


@pytest.mark.parametrize(("classes", "draws", "temperature"), CASES)
def test_errors_are_below_their_bounds(classes: int, draws: int, temperature: float) -> None:
    logits = draws_of_logits(classes, draws)
    exact = Exact(logits, temperature)
    evidence = evidence_of(logits, temperature)
    if draws > 1:
        errors = np.abs(evidence["expected entropy"] - exact.entropies.mean(0))
        assert (errors <= exact.expected_bound).all()
    errors = np.abs(evidence["total entropy"] - exact.total)
    assert (errors <= exact.total_bound).all()
    errors = np.abs(evidence["mutual information"] - exact.information)
    assert (errors <= exact.information_bound).all()


@pytest.mark.parametrize(("classes", "draws", "temperature"), CASES)
def test_epistemic_is_exact_to_a_tenth_of_a_stored_code(
    classes: int, draws: int, temperature: float
) -> None:
    logits = draws_of_logits(classes, draws)
    exact = Exact(logits, temperature).information
    information = evidence_of(logits, temperature)["mutual information"]
    largest = math.log(classes)
    codes = 65535 * np.sqrt(information / largest)
    exact_codes = 65535 * np.sqrt(exact.clip(min=0.0) / largest)
    assert np.abs(codes - exact_codes).max() < 0.1


@pytest.mark.parametrize(
    ("classes", "draws", "codes"),
    [(2, 64, 2.5), (19, 8, 1.4), (19, 64, 1.5), (150, 64, 1.9)],
)
def test_the_bound_for_any_logits_in_codes(classes: int, draws: int, codes: float) -> None:
    """The second column of the page's table, from the corollary for one draw."""
    log_classes = math.log(classes)
    shares = 104 * 3 + 3 * log_classes + 2 * EXP + classes + LOG + 3
    products = 4 * (shares * UNIT) * ((6 * log_classes + 9 + classes) * UNIT)
    second_order = ((draws + 2) * UNIT) ** 2 + products
    values = np.append(0, np.geomspace(1e-14, math.log(min(classes, draws)), 2000))
    of_pixels = (shares + draws + classes + 4) * values + (shares + 2) * np.sqrt(2 * values)
    bounds = UNIT * of_pixels + second_order
    exact = 65535 * np.sqrt(values / log_classes)
    highest = 65535 * np.sqrt((values + bounds) / log_classes)
    lowest = 65535 * np.sqrt((values - bounds).clip(min=0.0) / log_classes)
    assert np.maximum(highest - exact, exact - lowest).max() < codes


def test_the_reference_in_float64_is_that_of_fifty_digits() -> None:
    mpmath = pytest.importorskip("mpmath")
    logits = draws_of_logits(19, 8)[..., ::37]
    exact = Exact(logits, 1.7)
    with mpmath.workdps(50):
        for pixel in range(logits.shape[-1]):
            draws = []
            for z in logits[:, :, 0, pixel].tolist():
                exponentials = [mpmath.exp(mpmath.mpf(value) / mpmath.mpf(1.7)) for value in z]
                draws.append([value / sum(exponentials) for value in exponentials])
            mean = [sum(column) / len(draws) for column in zip(*draws, strict=True)]
            information = mpmath.mpf(0)
            for p in draws:
                terms = [a * mpmath.log(a / b) for a, b in zip(p, mean, strict=True)]
                information += sum(terms) / len(draws)
            expected = pytest.approx(float(information), rel=1e-7, abs=1e-16)
            assert exact.information[pixel] == expected
            total = -sum(b * mpmath.log(b) for b in mean)
            assert exact.total[pixel] == pytest.approx(float(total), rel=1e-12, abs=1e-16)


def test_evidence_by_hand() -> None:
    """Two draws of four classes: certain of different classes, then equal and undecided."""
    logits = torch.zeros(2, 4, 1, 2)
    logits[0, 1, 0, 0] = 1e4
    logits[1, 2, 0, 0] = 1e4
    evidence = evidence_of(logits)
    assert evidence["probabilities"][:, 0, 0].tolist() == [0, 0.5, 0.5, 0]
    assert evidence["mutual information"].tolist() == pytest.approx([math.log(2), 0], rel=1e-6)
    assert evidence["expected entropy"].tolist() == pytest.approx([0, math.log(4)], rel=1e-6)
    assert evidence["total entropy"].tolist() == pytest.approx([math.log(2), math.log(4)])
    # Half of the draws have 1e4 in two of four classes: a variance of 2.5e7 in each of these two.
    assert evidence["logit variance"][0].tolist() == pytest.approx([1.25e7, 0])
    assert evidence["mean max logit"][0].tolist() == pytest.approx([-1e4, 0])
    assert evidence["mean energy"][0].tolist() == pytest.approx([-1e4, -math.log(4)])


def test_the_variance_of_large_logits_keeps_its_digits() -> None:
    """Logits of about 1000 that differ by about 0.01."""
    generator = torch.Generator().manual_seed(0)
    logits = 1000 + 0.01 * torch.randn(16, 5, 1, 200, generator=generator)
    exact = logits.double().var(0, correction=0).mean(0)[0].numpy()
    variance = evidence_of(logits)["logit variance"][0]
    np.testing.assert_allclose(variance, exact, rtol=1e-5)
