"""The table of scores is complete, and every formula is the definition, within the bounds that the
table says.
"""

import math
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import entropy as scipy_entropy
from torch import Tensor

from segunc.colours import display_range
from segunc.core.errors import InputError
from segunc.maps.encoding import decode_unit, encode_score
from segunc.sampling.shortcuts import Upsampling
from segunc.sampling.tail import DrawAccumulator
from segunc.scores import DEFAULT_SCORES, EVIDENCE, SCORES, SET_THRESHOLD, SUM, check_scores
from segunc.uncertainty import Calibrator, energy, entropy_from_probabilities, max_softmax
from tests.sampling.plain import decompose_draws

T = 1.4
LAMBDA = 0.9
LOGITS = torch.randn(6, 5, 9, 11, generator=torch.Generator().manual_seed(0)) * 3
"""Six draws; the base network's are the first."""


def evidence() -> dict[str, object]:
    sums = DrawAccumulator(5, (9, 11), LOGITS.device, needs=EVIDENCE, temperature=T)
    sums.add(LOGITS, Upsampling.none((9, 11)))
    distances = LOGITS[:1].sigmoid().mean(1)
    others = {
        "base logits": LOGITS[:1],
        "class scores": LOGITS[:1].exp(),
        "temperature": T,
        SUM: 3 * distances,
        SET_THRESHOLD: LAMBDA,
    }
    of_frame = {
        name: distances for name, evidence in EVIDENCE.items() if evidence.source == "frame"
    }
    return sums.finish()[1] | others | of_frame


def closed_forms() -> dict[str, Tensor]:
    """From all draws at once in float64, each ``[1, 9, 11]``."""
    p = (LOGITS.double() / T).softmax(1)[:, None]
    parts, base = decompose_draws(p), p[0]
    logits = LOGITS.double()[:, None]
    energies = -T * (logits / T).exp().sum(2).log()
    return {
        "msp": 1 - p.mean(0).amax(1),
        "entropy": parts.entropy,
        "aleatoric": parts.aleatoric,
        "epistemic": parts.epistemic,
        "deterministic-msp": 1 - base.amax(1),
        "deterministic-entropy": -(base * base.log()).sum(1) / math.log(5),
        "deterministic-max-logit": -LOGITS[:1].double().amax(1),
        "deterministic-energy": -T * (LOGITS[:1].double() / T).exp().sum(1).log(),
        "mean-max-logit": -logits.amax(2).mean(0),
        "mean-energy": energies.mean(0),
        "logit-variance": logits.var(0, correction=0).mean(1),
        "rba": -LOGITS[:1].double().exp().tanh().sum(1),
        "set-size": (p.mean(0) >= 1 - LAMBDA).sum(1).clamp_min(1),
    }


def test_evidence_is_all_that_the_table_asks_for() -> None:
    needs = set()
    for score in SCORES.values():
        needs.update(score.needs)
    assert set(EVIDENCE) == needs
    assert set(evidence()) == needs


def test_every_score_of_draws_or_base_has_a_closed_form() -> None:
    # The others are tested in tests/baselines.
    elsewhere = {name for name, score in SCORES.items() if score.sources & {"scores", "frame"}}
    assert SCORES.keys() - closed_forms().keys() == elsewhere


@pytest.mark.parametrize("name", SCORES)
def test_an_entry_is_complete(name: str) -> None:
    score = SCORES[name]
    assert score.name == name
    assert score.meaning
    assert score.source
    assert score.unit


@pytest.mark.parametrize("name", SCORES)
def test_stored_values_are_within_the_bounds(name: str) -> None:
    score = SCORES[name]
    values = score(evidence())
    assert values.shape == (1, 9, 11)
    assert values.std() > 0
    stored = encode_score(name, values.numpy())
    if score.stored == "unit16":
        assert stored.dtype == np.uint16
        shown = decode_unit(stored)
    else:
        assert stored.dtype == np.float16
        shown = stored.astype(np.float32)
    np.testing.assert_allclose(shown, values.float().numpy(), rtol=1e-3, atol=2e-5)
    assert score.lower is None or shown.min() >= score.lower
    assert score.upper is None or shown.max() <= score.upper


@pytest.mark.parametrize("name", SCORES)
def test_the_colour_bar_ends_where_the_table_says(name: str) -> None:
    score = SCORES[name]
    # Where values may be anything, colours may still be fixed.
    assert score.colours or score.upper is None
    if score.colours:
        low, high = score.colours
        bar = display_range(name)
        assert bar.low == low
        assert bar.ticks[-1] == ("1" if high == score.upper else f">= {high}")


@pytest.mark.parametrize("name", closed_forms())
def test_a_formula_is_its_closed_form(name: str) -> None:
    found = SCORES[name](evidence()).float()
    torch.testing.assert_close(found, closed_forms()[name].float(), rtol=1e-4, atol=2e-6)


def test_a_name_that_is_given_twice_counts_once() -> None:
    names = ["deterministic-energy", "msp", "deterministic-energy"]
    assert check_scores(names) == ("deterministic-energy", "msp")
    assert check_scores(DEFAULT_SCORES) == DEFAULT_SCORES


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["sharpness"], "no score 'sharpness'. Hint: choose one of msp, "),
        ([], "no score is named"),
    ],
)
def test_names_without_a_score_are_refused(names: list[str], said: str) -> None:
    with pytest.raises(InputError, match=said):
        check_scores(names)


def test_a_second_score_of_one_name_is_refused() -> None:
    with pytest.raises(InputError, match="a score 'msp' already"):
        SCORES.register("msp", replace(SCORES["msp"]))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"upper": 1.5}, "cannot be stored as codes"),
        ({"formula": None, "needs": ("mean energy", "logit variance")}, "has no formula"),
    ],
)
def test_an_entry_that_cannot_be_is_refused(changed: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=said):
        replace(SCORES["msp"], **changed)  # type: ignore[arg-type]


def test_the_table_needs_no_torch() -> None:
    code = (
        "import sys; from segunc.scores import SCORES; [*SCORES.values()]; "
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_entropy_equals_scipy() -> None:
    logits = torch.randn(4, 7, 5, generator=torch.Generator().manual_seed(0)) * 3
    probabilities = logits.double().softmax(1)
    probabilities[0, :, 0] = torch.eye(7)[2]  # certain
    expected = torch.from_numpy(scipy_entropy(probabilities.numpy(), axis=1)).float()
    torch.testing.assert_close(
        entropy_from_probabilities(probabilities.float()), expected, atol=1e-6, rtol=1e-5
    )


def test_scores_of_known_values() -> None:
    logits = torch.tensor([[math.log(0.7), math.log(0.2), math.log(0.1)]])
    assert float(max_softmax(logits.softmax(1))) == pytest.approx(0.3)
    assert float(energy(logits)) == pytest.approx(0.0, abs=1e-6)
    assert float(energy(2 * logits, temperature=2.0)) == pytest.approx(0.0, abs=1e-6)


def probabilities_that_underflow(classes: int) -> Tensor:
    logits = torch.randn(2, classes, 9, 5, generator=torch.Generator().manual_seed(0)) * 60
    probabilities = logits.softmax(1)
    assert classes == 1 or bool((probabilities == 0).any())
    return probabilities


@pytest.mark.parametrize("classes", [1, 3])
def test_a_calibrator_takes_0_as_the_smallest_normal_number(classes: int) -> None:
    probabilities = probabilities_that_underflow(classes)
    calibrated, entropy = Calibrator(1.3)(probabilities)
    logs = probabilities.double().clamp_min(torch.finfo(torch.float32).tiny).log()
    expected = (logs / 1.3).softmax(1)
    torch.testing.assert_close(calibrated, expected.float(), rtol=1e-4, atol=1e-7)
    share = torch.from_numpy(scipy_entropy(expected.numpy(), axis=1)) / max(math.log(classes), 1e-9)
    torch.testing.assert_close(entropy, share.float(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("classes", [1, 3])
def test_strips_of_any_height_are_calibrated_as_the_whole(
    classes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    probabilities = probabilities_that_underflow(classes)
    calibrator = Calibrator(1.3)
    whole = calibrator(probabilities)
    monkeypatch.setattr("segunc.uncertainty.STRIP_NUMBERS", 2 * 5 * classes)
    in_strips = calibrator(probabilities)
    torch.testing.assert_close(in_strips[0], whole[0], rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(in_strips[1], whole[1], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("classes", [1, 3])
def test_a_temperature_of_1_changes_no_probability(
    classes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    probabilities = probabilities_that_underflow(classes)
    monkeypatch.setattr("segunc.uncertainty.STRIP_NUMBERS", 2 * 5 * classes)
    calibrated, _ = Calibrator(1.0)(probabilities)
    torch.testing.assert_close(calibrated, probabilities, rtol=1e-5, atol=1e-7)


def test_the_scores_of_stacked_draws_that_others_are_compared_with() -> None:
    draws = torch.tensor([[[0.9, 0.1]], [[0.1, 0.9]]], dtype=torch.float64)
    parts = decompose_draws(draws)  # H(mean) = ln 2, mean H = H(0.1)
    assert float(parts.entropy) == pytest.approx(1)
    assert float(parts.epistemic) == pytest.approx(1 + (0.1 * np.log2(0.1) + 0.9 * np.log2(0.9)))
