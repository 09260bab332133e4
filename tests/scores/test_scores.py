"""The table of scores is complete, and every formula is the definition, within the bounds that the table says."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from segunc.baselines.max_logit import MaxLogitStatistics
from segunc.core.errors import InputError
from segunc.gallery.overlay import display_range
from segunc.maps.encoding import decode_unit, encode_score
from segunc.maps.manifest import build_manifest
from segunc.sampling.ending import Upsampling
from segunc.sampling.tail import DrawAccumulator
from segunc.scores import DEFAULT_SCORES, EVIDENCE, MEANS, SCORES, SUM, check_scores
from tests.scores.stacked import decompose_draws, draw_variance, expected_pairwise_kl, variation_ratio

T = 1.4
LOGITS = torch.randn(6, 5, 9, 11, generator=torch.Generator().manual_seed(0)) * 3
"""Six draws; the base network's are the first."""
STATISTICS = MaxLogitStatistics((1.0, 2.0, 0.5, 1.5, 0.0), (0.5, 1.0, 0.25, 2.0, 1.0), (9,) * 5, {}, 1, "")


def evidence() -> dict[str, object]:
    sums = DrawAccumulator(5, (9, 11), LOGITS.device, needs=EVIDENCE, temperature=T)
    sums.add(LOGITS, Upsampling.none((9, 11)))
    found = sums.finish()[1]
    base = {"base logits": LOGITS[:1], "base scores": LOGITS[:1]}
    distances = LOGITS[:1].sigmoid().mean(1)
    return (
        found
        | base
        | {"temperature": T, "max-logit statistics": STATISTICS, SUM: 3 * distances}
        | {name: distances for name, one in EVIDENCE.items() if one.source == "frame"}
    )


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
        "energy-spread": energies.std(0, correction=0),
        "logit-variance": logits.var(0, correction=0).mean(1),
        "rba": -LOGITS[:1].double().tanh().sum(1),
        "variance": draw_variance(p),
        "variation-ratio": variation_ratio(p),
        "expected-pairwise-kl": expected_pairwise_kl(p),
    }


def test_evidence_is_all_that_the_table_asks_for() -> None:
    assert set(evidence()) == set(EVIDENCE) == {need for score in SCORES.values() for need in score.needs}
    assert {EVIDENCE[name].source for name in MEANS} == {"draws"}
    elsewhere = {name for name, score in SCORES.items() if score.sources & {"scores", "frame"}}
    assert SCORES.keys() - closed_forms().keys() == {"standardized-max-logit", *elsewhere}, (
        "in test_standardized.py, test_densities.py and test_features.py"
    )


@pytest.mark.parametrize("name", SCORES)
def test_an_entry_is_complete_and_its_values_are_within_its_bounds(name: str) -> None:
    score = SCORES[name]
    assert (score.name, bool(score.meaning), bool(score.source), bool(score.unit)) == (name, True, True, True)
    values = score(evidence())
    assert values.shape == (1, 9, 11)
    assert values.std() > 0
    stored = encode_score(name, values.numpy())
    assert stored.dtype == (np.uint16 if score.stored == "unit16" else np.float16)
    shown = decode_unit(stored) if score.stored == "unit16" else stored.astype(np.float32)
    np.testing.assert_allclose(shown, values.float().numpy(), rtol=1e-3, atol=2e-5)
    assert score.lower is None or shown.min() >= score.lower
    assert score.upper is None or shown.max() <= score.upper
    assert score.colours or score.upper is None  # where values may be anything, colours may still be fixed
    if score.colours:
        assert display_range(name).low == score.colours[0]
        assert display_range(name).ticks[-1] == ("1" if score.colours[1] == score.upper else f">= {score.colours[1]}")
    described = build_manifest({}, [name], device="", classes=["road"], palette=[(0, 0, 0)])["maps"][name]
    assert described["unit"] == score.unit
    assert described.get("component_threshold") == score.threshold
    assert described["range"] == ([0.0, 1.0] if score.stored == "unit16" else None)


@pytest.mark.parametrize("name", closed_forms())
def test_a_formula_is_its_closed_form(name: str) -> None:
    found = SCORES[name](evidence()).float()
    torch.testing.assert_close(found, closed_forms()[name].float(), rtol=1e-4, atol=2e-6)


def test_names_are_checked() -> None:
    assert check_scores(["deterministic-energy", "msp", "deterministic-energy"]) == ("deterministic-energy", "msp")
    assert check_scores(DEFAULT_SCORES) == DEFAULT_SCORES
    for names, said in ((["sharpness"], "no score 'sharpness'. Hint: choose one of msp, "), ([], "no score is named")):
        with pytest.raises(InputError, match=said):
            check_scores(names)
    with pytest.raises(InputError, match="a score 'msp' already"):
        SCORES.register("msp", replace(SCORES["msp"]))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"upper": None}, "cannot be stored as codes"),
        ({"upper": 1.5}, "cannot be stored as codes"),
        ({"needs": ()}, "has no formula"),
        ({"formula": None, "needs": ("votes", "variance")}, "has no formula"),
    ],
)
def test_an_entry_that_cannot_be_is_refused(changed: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=said):
        replace(SCORES["msp"], **changed)  # type: ignore[arg-type]


def test_the_table_needs_no_torch() -> None:
    code = "import sys; from segunc.scores import SCORES; [*SCORES.values()]; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
