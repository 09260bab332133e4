"""The tail in all its forms against PyTorch's own interpolation and softmax in float64, and sums of
logits against the pure functions of stacked draws.
"""

import importlib.util
import math
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings, strategies as st
from torch import Tensor

from segunc.core.device import threads
from segunc.sampling.shortcuts import Upsampling
from segunc.sampling.tail import (
    NATIVE_BASE,
    OF_LOGITS,
    Backend,
    DrawAccumulator,
    base_maps,
    choose_backend,
)
from segunc.sampling.tail_native import native_tail
from segunc.scores import SCORES
from segunc.uncertainty import Calibrator

CPU = torch.device("cpu")
native = pytest.mark.skipif(
    native_tail().functions is None, reason=f"no compiled tail: {native_tail().reason}"
)
BACKENDS = ["reference", pytest.param("native", marks=native)]
CASES = {
    "smp": (19, Upsampling((16, 24), (64, 96), (64, 96), True, (4.0, 4.0))),
    "torchvision": (21, Upsampling((9, 13), (65, 97), (65, 97), False)),
    "factor": (4, Upsampling((5, 7), (11, 16), (11, 16), False, (2.3, 2.3))),
    "cropped": (5, Upsampling((8, 8), (32, 32), (27, 31), True, (4.0, 4.0))),
    "one class": (1, Upsampling((3, 5), (12, 20), (12, 20), True)),
    "150 classes": (150, Upsampling((3, 9), (9, 31), (9, 31), False)),
    "one pixel": (3, Upsampling((1, 1), (8, 8), (8, 8), True)),
    "none": (7, Upsampling.none((11, 301))),
    "strips": (11, Upsampling.none((23, 3000))),  # of a few rows
    "shrinking": (3, Upsampling((20, 20), (9, 150), (9, 150), False)),
}
"""Number of classes, and the upsampling of their logits."""


def logits_for(name: str, draws: int = 3) -> tuple[Tensor, Upsampling]:
    classes, upsampling = CASES[name]
    generator = torch.Generator().manual_seed(len(name))
    logits = torch.randn(draws, classes, *upsampling.source, generator=generator) * 5
    return logits, upsampling


def oracle(
    logits: Tensor, upsampling: Upsampling, temperature: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Sums of p and H(p) by PyTorch in float64, except that the interpolation's positions are those
    of float32.
    """
    full = upsampling.apply(logits.float()).double() / temperature
    p = full.softmax(1)
    return p.sum(0), torch.special.entr(p).sum((0, 1))


def sums_of(
    logits: Tensor, upsampling: Upsampling, backend: Backend, temperature: float = 1.0
) -> DrawAccumulator:
    sums = DrawAccumulator(logits.shape[1], upsampling.kept, CPU, backend, temperature=temperature)
    sums.add(logits, upsampling)
    return sums


def of_another_layout(logits: Tensor) -> Tensor:
    """Return these logits in bfloat16, with rows and columns turned in memory."""
    return logits.bfloat16().transpose(2, 3).contiguous().transpose(2, 3)


def in_channels_last(logits: Tensor) -> Tensor:
    return logits.contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", CASES)
def test_sums_are_those_of_the_upsampled_softmax(name: str, backend: Backend) -> None:
    logits, upsampling = logits_for(name)
    cases = [
        (1.0, logits),
        (1.7, in_channels_last(logits)),
        (1.0, of_another_layout(logits)),
    ]
    for temperature, draws in cases:
        sums = sums_of(draws, upsampling, backend, temperature)
        probabilities, entropy = oracle(draws, upsampling, temperature)
        assert sums.draws == 3
        torch.testing.assert_close(sums.probabilities.double(), probabilities, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(sums.entropy, entropy, atol=2e-5, rtol=1e-5)


def threads_of(backend: Backend, count: int) -> Any:
    """Give the compiled code this number of threads; leave torch its own."""
    return threads(count if backend == "native" else torch.get_num_threads())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("count", [1, 3])
def test_draws_in_any_chunks_and_threads_give_the_same_bits(backend: Backend, count: int) -> None:
    logits, upsampling = logits_for("smp", draws=7)
    whole = sums_of(logits, upsampling, backend)
    parts = DrawAccumulator(19, upsampling.kept, CPU, backend)
    with threads_of(backend, count):
        for chunk in logits.split(count):
            parts.add(chunk, upsampling)
    assert torch.equal(parts.probabilities, whole.probabilities)
    assert torch.equal(parts.entropy, whole.entropy)


@pytest.fixture(params=BACKENDS)
def certain_and_uniform(request: pytest.FixtureRequest) -> DrawAccumulator:
    """Sums of two draws of four classes at three pixels: at the first, each draw is certain of
    another class; at the other two, all classes are equal.
    """
    logits = torch.zeros(2, 4, 1, 3)
    logits[0, 1, 0, 0] = 1e4
    logits[1, 2, 0, 0] = 1e4
    return sums_of(logits, Upsampling.none((1, 3)), request.param)


def test_sums_of_certain_draws(certain_and_uniform: DrawAccumulator) -> None:
    sums = certain_and_uniform
    assert float(sums.entropy[0, 0]) == pytest.approx(0.0, abs=1e-12)
    assert sums.probabilities[:, 0, 0].tolist() == pytest.approx([0, 1, 1, 0], abs=1e-12)


@pytest.mark.parametrize(
    ("score", "expected"),
    [
        ("epistemic", [0.5, 0, 0]),  # two certain draws of four classes: ln 2 / ln 4
        ("aleatoric", [0, 1, 1]),
        ("msp", [0.5, 0.75, 0.75]),
    ],
)
def test_scores_of_certain_and_uniform_pixels(
    certain_and_uniform: DrawAccumulator, score: str, expected: list[float]
) -> None:
    _, evidence = certain_and_uniform.finish()
    values = SCORES[score](evidence)[0].float()
    assert values[0].tolist() == pytest.approx(expected, abs=1e-6)


def test_of_equal_classes_the_first_is_predicted(certain_and_uniform: DrawAccumulator) -> None:
    prediction, _ = certain_and_uniform.finish()
    assert prediction.tolist() == [[1, 0, 0]]


@pytest.mark.parametrize("backend", BACKENDS)
def test_nan_in_one_draw_is_certain_in_no_map(backend: Backend) -> None:
    logits = torch.zeros(3, 4, 1, 2)
    logits[1, 2, 0, 1] = math.nan
    sums = DrawAccumulator(4, (1, 2), CPU, backend, needs=OF_LOGITS)
    sums.add(logits, Upsampling.none((1, 2)))
    _, evidence = sums.finish()
    for name, values in evidence.items():
        pixels = values.isnan().flatten(0, -2)
        assert pixels.unique(dim=0).tolist() == [[False, True]], name


LARGEST = torch.finfo(torch.float32).max
MAGNITUDES = (0.0, 1e-38, 0.5, 4.0, 90.0, 1e4, 1e9, 1e20, 1e30, 1e38, LARGEST)


def logits_of_any_size(dtype: torch.dtype, pixels: int = 400) -> Tensor:
    """Four draws ``[4, 6, 1, pixels]`` of six classes, of magnitudes over the whole range of a
    type; one class is always masked.
    """
    largest = torch.finfo(dtype).max
    magnitudes = torch.tensor(MAGNITUDES, dtype=torch.float64).clamp_max(largest)
    generator = torch.Generator().manual_seed(0)
    chosen = torch.randint(len(MAGNITUDES), (4, 6, 1, pixels), generator=generator)
    sign = torch.randint(2, chosen.shape, generator=generator) * 2 - 1
    # In a quarter of the pixels all classes but the masked one have moderate logits.
    chosen[..., : pixels // 4] = chosen[..., : pixels // 4].clamp_max(4)
    logits = magnitudes[chosen] * sign
    logits[:, 0] = -largest
    return logits.to(dtype)


def by_hand(logits: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    """Softmax, its entropy and ``T ln sum exp(z / T)`` of logits ``[S, C, ...]`` in float64."""
    z = logits.double()
    largest = z.amax(1, keepdim=True)
    e = ((z - largest) / temperature).exp()
    total = e.sum(1, keepdim=True)
    p = e / total
    entropy = -torch.special.xlogy(p, p).sum(1)
    energy = largest + temperature * total.log()
    return p, entropy, energy[:, 0]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("temperature", [1.0, 0.25, 3.0])
def test_every_finite_logit_has_its_softmax(
    backend: Backend, dtype: torch.dtype, temperature: float
) -> None:
    logits = logits_of_any_size(dtype)
    p, entropy, _ = by_hand(logits, temperature)
    sums = sums_of(logits, Upsampling.none((1, 400)), backend, temperature)
    torch.testing.assert_close(sums.probabilities.double(), p.sum(0), atol=2e-6, rtol=0)
    torch.testing.assert_close(sums.entropy, entropy.sum(0), atol=1e-5, rtol=0)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("temperature", [1.0, 0.25, 3.0])
def test_every_finite_logit_has_its_sums(backend: Backend, temperature: float) -> None:
    logits = logits_of_any_size(torch.float32)
    z = logits.double()
    found = logit_evidence(logits, Upsampling.none((1, 400)), backend, temperature)
    energy = -by_hand(logits, temperature)[2].mean(0)
    variance = (z - z.mean(0)).square().mean(0).mean(0)
    torch.testing.assert_close(found["mean max logit"], -z.amax(1).mean(0), atol=1e-5, rtol=1e-6)
    torch.testing.assert_close(found["mean energy"], energy, atol=1e-5, rtol=1e-6)
    torch.testing.assert_close(found["logit variance"], variance, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("temperature", [1.0, 0.25, 3.0])
def test_every_finite_logit_has_its_scores_of_the_base(
    backend: Backend, temperature: float
) -> None:
    logits = logits_of_any_size(torch.float32)[:1]
    scores = [SCORES[name] for name in NATIVE_BASE]
    found = base_maps(scores, logits[0], Upsampling.none((1, 400)), backend, temperature)
    p, entropy, energy = by_hand(logits, temperature)
    expected = {
        "deterministic-msp": 1 - p.amax(1),
        "deterministic-entropy": entropy / math.log(6),
        "deterministic-max-logit": -logits.double().amax(1),
        "deterministic-energy": -energy,
    }
    for name, values in expected.items():
        torch.testing.assert_close(found[name].double(), values[0], atol=1e-5, rtol=1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_finite_logit_is_upsampled(backend: Backend) -> None:
    """By factors of four, whose weights float32 holds exactly."""
    logits = logits_of_any_size(torch.float32, pixels=12).reshape(4, 6, 3, 4)
    logits[:, 1] = LARGEST  # torch's own interpolation of it is infinite at some pixels
    logits[:2, 1, :, 2:] = 2.0
    upsampling = Upsampling((3, 4), (12, 16), (12, 16), factors=(4.0, 4.0))
    full = F.interpolate(logits.double(), scale_factor=4, mode="bilinear")
    p, entropy, _ = by_hand(full, 1.0)
    sums = sums_of(logits, upsampling, backend)
    torch.testing.assert_close(sums.probabilities.double(), p.sum(0), atol=1e-5, rtol=0)
    torch.testing.assert_close(sums.entropy, entropy.sum(0), atol=1e-5, rtol=0)


def test_scores_of_the_base_are_finite_where_interpolation_rounds_to_infinity() -> None:
    logits = torch.full((4, 13, 17), LARGEST)
    logits[0] = -LARGEST
    upsampling = Upsampling((13, 17), (11, 16), (11, 16))
    assert upsampling.apply(logits[None]).isinf().any()
    found = base_maps([SCORES["deterministic-entropy"]], logits, upsampling, "reference")
    # Three of four classes are equally likely.
    expected = math.log(3) / math.log(4)
    entropy = found["deterministic-entropy"]
    torch.testing.assert_close(entropy, torch.full_like(entropy, expected))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_calibrator_sees_small_probabilities_as_they_are(backend: Backend) -> None:
    """A temperature of 10 lifts p of e^-86, and e^-95 counts as the smallest normal float."""
    gaps = torch.tensor([70.0, 79.0, 81.0, 86.0, 95.0, 1e30])
    logits = torch.stack([torch.zeros(6), -gaps])[None, :, None]
    sums = sums_of(logits, Upsampling.none((1, 6)), backend)
    _, evidence = sums.finish()
    calibrated, _ = Calibrator(10.0)(evidence["probabilities"])
    smallest = math.log(torch.finfo(torch.float32).tiny)
    expected = torch.sigmoid((-gaps).double().clamp_min(smallest) / 10)
    torch.testing.assert_close(calibrated[0, 1, 0].double(), expected, atol=0, rtol=1e-4)


@settings(max_examples=60, deadline=None)
@given(
    st.tuples(st.integers(1, 9), st.integers(1, 140)),
    st.tuples(st.integers(1, 30), st.integers(1, 300)),
    st.booleans(),
)
def test_taps_are_those_of_interpolate(
    source: tuple[int, int], full: tuple[int, int], corners: bool
) -> None:
    upsampling = Upsampling(source, full, full, corners)
    image = torch.rand(1, 1, *source, generator=torch.Generator().manual_seed(0))
    above, below, down = upsampling.taps(0)
    upper = image[0, 0][above.long()]
    lower = image[0, 0][below.long()]
    rows = upper * (1 - down)[:, None] + lower * down[:, None]
    left, right, across = upsampling.taps(1)
    found = rows[:, left.long()] * (1 - across) + rows[:, right.long()] * across
    expected = F.interpolate(image, full, mode="bilinear", align_corners=corners)[0, 0]
    torch.testing.assert_close(found, expected, atol=3e-6, rtol=1e-5)


@native
@pytest.mark.parametrize("name", CASES)
def test_maps_of_the_compiled_code_are_those_of_the_sums(name: str) -> None:
    logits, upsampling = logits_for(name)
    plain = sums_of(logits, upsampling, "reference")
    compiled = sums_of(logits, upsampling, "reference")
    compiled.backend = "native"
    expected_prediction, expected = plain.finish()
    prediction, evidence = compiled.finish()
    assert torch.equal(prediction, expected_prediction)
    assert evidence.keys() == expected.keys()
    for name, values in expected.items():
        torch.testing.assert_close(evidence[name], values, atol=1e-7, rtol=1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("temperature", [1.0, 1.7])
def test_scores_of_the_base_network(name: str, backend: Backend, temperature: float) -> None:
    logits, upsampling = logits_for(name, draws=1)
    scores = [SCORES[name] for name in NATIVE_BASE]
    found = base_maps(scores, logits[0], upsampling, backend, temperature)
    evidence = {"base logits": upsampling.apply(logits), "temperature": temperature}
    for score in scores:
        expected = score(evidence)[0]
        torch.testing.assert_close(found[score.name], expected, atol=2e-5, rtol=1e-5)


@native
def test_entropy_near_zero_keeps_its_order() -> None:
    # p = 1 - q: H is about q (1 - ln q); float32 alone would lose it below 1e-7.
    gaps = torch.linspace(5, 15, 200)
    logits = torch.stack([gaps, torch.zeros(200)])[None, :, None]
    entropy = sums_of(logits, Upsampling.none((1, 200)), "native").entropy[0]
    p = torch.sigmoid(-gaps.double())
    exact = -(p * p.log() + (1 - p) * torch.log1p(-p))
    assert float((entropy - exact).abs().max()) < 2e-7
    assert math.isclose(float(entropy[0]), float(exact[0]), rel_tol=1e-5)


def test_without_a_compiler_the_reference_runs_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/nonexistent/c++")
    broken = native_tail.__wrapped__()
    assert broken.functions is None
    assert "/nonexistent/c++" in broken.reason
    monkeypatch.setattr("segunc.sampling.tail.native_tail", lambda: broken)
    backend, why = choose_backend(CPU)
    assert backend == "reference"
    assert "slower" in why


def of_logits(
    logits: Tensor, upsampling: Upsampling, temperature: float = 1.0
) -> dict[str, Tensor]:
    """Evidence of all draws at once in float64, each ``[H, W]``, in the order of
    :data:`OF_LOGITS`.
    """
    z = upsampling.apply(logits.float()).double()
    energies = -temperature * (z / temperature).logsumexp(1)
    variance = z.var(0, correction=0).mean(0)
    found = (-z.amax(1).mean(0), energies.mean(0), variance)
    return dict(zip(OF_LOGITS, found, strict=True))


def logit_evidence(
    logits: Tensor, upsampling: Upsampling, backend: Backend, temperature: float = 1.0, **given: Any
) -> dict[str, Tensor]:
    """What the sums make of draws that come in chunks of one, of two, and the rest."""
    given = {"needs": OF_LOGITS, "temperature": temperature} | given
    sums = DrawAccumulator(logits.shape[1], upsampling.kept, logits.device, backend, **given)
    for chunk in logits.tensor_split((1, 3)):
        if len(chunk):
            sums.add(chunk, upsampling)
    _, evidence = sums.finish()
    always = {"probabilities", "calibrated entropy", "total entropy", "expected entropy"}
    assert set(evidence) == always | set(given["needs"])
    return {name: evidence[name][0].cpu() for name in given["needs"]}


STACKED_DRAWS = {
    "float32": (torch.float32, 5, 1.0),
    "another temperature": (torch.float32, 5, 1.7),
    "bfloat16": (torch.bfloat16, 5, 1.7),
    "one draw": (torch.float32, 1, 1.7),
}
"""Type, number of draws, temperature."""


def stacked_draws(name: str, kind: str) -> tuple[Tensor, Upsampling, float]:
    dtype, draws, temperature = STACKED_DRAWS[kind]
    logits, upsampling = logits_for(name, draws=5)
    return logits[:draws].to(dtype), upsampling, temperature


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("kind", STACKED_DRAWS)
def test_sums_of_logits_are_those_of_stacked_draws(name: str, backend: Backend, kind: str) -> None:
    draws, upsampling, temperature = stacked_draws(name, kind)
    found = logit_evidence(draws, upsampling, backend, temperature)
    expected = of_logits(draws, upsampling, temperature)
    for need in OF_LOGITS:
        torch.testing.assert_close(found[need], expected[need], atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("kind", STACKED_DRAWS)
def test_a_sum_of_logits_alone_is_that_among_others(name: str, backend: Backend, kind: str) -> None:
    draws, upsampling, temperature = stacked_draws(name, kind)
    together = logit_evidence(draws, upsampling, backend, temperature)
    for need in OF_LOGITS:
        alone = logit_evidence(draws, upsampling, backend, temperature, needs=(need,))
        assert torch.equal(alone[need], together[need])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", CASES)
def test_one_draw_has_no_variance(name: str, backend: Backend) -> None:
    draw, upsampling, temperature = stacked_draws(name, "one draw")
    found = logit_evidence(draw, upsampling, backend, temperature)
    assert not found["logit variance"].any()


def whole_sums(logits: Tensor, upsampling: Upsampling, backend: Backend) -> DrawAccumulator:
    """Return the sums of all draws in one chunk, with those of logits, in three threads."""
    sums = DrawAccumulator(19, upsampling.kept, CPU, backend, needs=OF_LOGITS)
    with threads_of(backend, 3):
        sums.add(logits, upsampling)
    return sums


@pytest.mark.parametrize("backend", BACKENDS)
def test_sums_of_logits_have_the_same_bits_in_any_chunks_and_threads(backend: Backend) -> None:
    logits, upsampling = logits_for("smp", draws=7)
    chunked = logit_evidence(logits, upsampling, backend)
    _, whole = whole_sums(logits, upsampling, backend).finish()
    for name in OF_LOGITS:
        assert torch.equal(whole[name][0], chunked[name]), name


@pytest.mark.parametrize("backend", BACKENDS)
def test_sums_of_logits_change_no_other(backend: Backend) -> None:
    logits, upsampling = logits_for("smp", draws=7)
    plain = sums_of(logits, upsampling, backend)
    sums = whole_sums(logits, upsampling, backend)
    assert torch.equal(sums.probabilities, plain.probabilities)
    assert torch.equal(sums.entropy, plain.entropy)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_spread_of_1e_4_beside_logits_of_30_keeps_three_digits(backend: Backend) -> None:
    """In float32 the difference of two means of squares would be 1e-4 here, for a
    variance of 1e-8.
    """
    generator = torch.Generator().manual_seed(0)
    spread = 1e-4 * torch.randn(24, 19, 40, 60, generator=generator).double()
    # Rounded to float32 before both ways, so that they see the same logits.
    logits = (30 + spread).float()
    upsampling = Upsampling.none((40, 60))
    found = logit_evidence(logits, upsampling, backend)["logit variance"].sqrt()
    exact = of_logits(logits, upsampling)["logit variance"].sqrt()
    error = found / exact - 1
    assert 1e-5 < float(exact.median()) < 1.1e-4
    assert float(error.square().mean().sqrt()) < 1e-3
    assert float(error.abs().max()) < 4e-3


TRITON = """
import torch
from tests.sampling.test_tail import (
    CPU, DrawAccumulator, Upsampling, by_hand, logits_for, logits_of_any_size, oracle,
)
for dtype in (torch.float32, torch.bfloat16):
    logits = logits_of_any_size(dtype, pixels=40)
    sums = DrawAccumulator(6, (1, 40), CPU, "triton", temperature=0.25)
    sums.add(logits, Upsampling.none((1, 40)))
    expected = by_hand(logits, 0.25)
    torch.testing.assert_close(sums.probabilities.double(), expected[0].sum(0), atol=1e-5, rtol=0)
    torch.testing.assert_close(sums.entropy, expected[1].sum(0), atol=1e-5, rtol=0)
for name in ("cropped", "one class", "150 classes"):
    logits, upsampling = logits_for(name)
    sums = DrawAccumulator(logits.shape[1], upsampling.kept, CPU, "triton", temperature=1.3)
    for chunk in logits.contiguous(memory_format=torch.channels_last).split((1, 2)):
        sums.add(chunk, upsampling)
    expected = oracle(logits, upsampling, 1.3)
    torch.testing.assert_close(sums.probabilities.double(), expected[0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(sums.entropy, expected[1], atol=1e-5, rtol=1e-5)
print("equal")
"""


def run_script(text: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", text],
        capture_output=True,
        text=True,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            **environment,
        },
        cwd=Path(__file__).parents[2],
        check=False,
    )


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_the_triton_kernel_in_the_interpreter() -> None:
    done = run_script(TRITON, TRITON_INTERPRET="1")
    if (
        version("triton").startswith("3.6.")
        and "only 0-dimensional arrays can be converted" in done.stderr
    ):
        pytest.skip("the interpreter of this Triton (3.6, of torch 2.11) does not know this NumPy")
    assert done.stdout.strip() == "equal", done.stderr[-2000:]


COMPILED = """
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from segunc.sampling.tail_triton import _add_draws
names = _add_draws.arg_names
kinds = dict.fromkeys(("above", "below", "left", "right"), "*i32")
kinds |= dict.fromkeys(("down", "across", "probabilities"), "*fp32")
kinds |= {"logits": "*bf16", "entropy": "*fp64", "factor": "fp32"}
fixed = {"STRIDE_CLASS": 1, "CLASSES": 19, "PADDED": 32, "COLUMNS": 32, "UPSAMPLED": True}
signature = {name: "constexpr" if name in fixed else kinds.get(name, "i32") for name in names}
constants = {(names.index(name),): value for name, value in fixed.items()}
aligned = {}
for parameter in _add_draws.params:
    if parameter.name not in {"factor", *fixed} and not parameter.do_not_specialize:
        aligned[parameter.num,] = [["tt.divisibility", 16]]
source = ASTSource(_add_draws, signature, constants, aligned)
code = compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 1}).asm["ptx"]
assert ".reg" in code
assert "shfl" not in code and "bar.sync" not in code  # a thread holds all classes of its pixels
print("compiled")
"""


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_the_triton_kernel_compiles_for_a_device_that_is_not_here(tmp_path: Path) -> None:
    """The interpreter takes what the compiler refuses."""
    done = run_script(COMPILED, TRITON_CACHE_DIR=str(tmp_path))
    assert done.stdout.strip() == "compiled", done.stderr[-2000:]


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("name", CASES)
def test_the_triton_kernel_on_a_device(name: str) -> None:
    logits, upsampling = logits_for(name)
    sums = DrawAccumulator(
        logits.shape[1], upsampling.kept, torch.device("cuda"), "triton", temperature=1.3
    )
    sums.add(logits.cuda(), upsampling)
    probabilities, entropy = oracle(logits, upsampling, 1.3)
    torch.testing.assert_close(
        sums.probabilities.double().cpu(), probabilities, atol=1e-5, rtol=1e-5
    )
    torch.testing.assert_close(sums.entropy.cpu(), entropy, atol=2e-5, rtol=1e-5)


class Cache:
    """The folder of compiled tails, with a compiler that writes ``ours`` in place of a library."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, parent: Path) -> None:
        self.folder = parent / "cache" / "segunc"
        self.built: list[Path] = []
        self.loaded: list[Path] = []
        self.folder.mkdir(mode=0o700, parents=True)
        self.folder.parent.chmod(0o700)
        parent.chmod(0o700)
        monkeypatch.setenv("XDG_CACHE_HOME", str(self.folder.parent))
        monkeypatch.setattr("segunc.sampling.native._build", self.build)
        monkeypatch.setattr("segunc.sampling.native._load", self.load)

    def build(self, compiler: str, source: Path, path: Path) -> None:
        self.built.append(path)
        path.unlink(missing_ok=True)
        path.write_text("ours")

    def load(self, path: Path) -> Any:
        assert path.read_text() == "ours"
        self.loaded.append(path)


def plant(cache: Cache, monkeypatch: pytest.MonkeyPatch, planted: str) -> None:
    """Replace the library as another user could."""
    (path,) = cache.built
    path.write_text("theirs")
    if planted == "folder":
        cache.folder.chmod(0o777)
    elif planted == "above":
        cache.folder.parent.chmod(0o777)
    elif planted == "file":
        path.chmod(0o666)
    elif planted == "owner":
        monkeypatch.setattr(os, "getuid", lambda: path.stat().st_uid + 1)
    else:
        elsewhere = cache.folder.parents[1] / "elsewhere"
        cache.folder.rename(elsewhere)
        cache.folder.symlink_to(elsewhere)


@native
def test_a_library_is_built_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cache = Cache(monkeypatch, tmp_path)
    assert native_tail.__wrapped__().reason == ""
    assert native_tail.__wrapped__().reason == ""
    (path,) = cache.built
    assert path.parent == cache.folder
    assert cache.loaded == [path, path]


@native
def test_a_library_that_others_can_write_is_built_anew(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cache = Cache(monkeypatch, tmp_path)
    native_tail.__wrapped__()
    plant(cache, monkeypatch, "file")
    assert native_tail.__wrapped__().reason == ""
    assert len(cache.built) == 2
    assert cache.loaded[-1] == cache.loaded[0]


@native
@pytest.mark.parametrize("planted", ["folder", "above", "link", "owner"])
def test_no_library_is_loaded_from_a_folder_that_others_can_write(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, planted: str
) -> None:
    cache = Cache(monkeypatch, tmp_path)
    native_tail.__wrapped__()
    plant(cache, monkeypatch, planted)
    assert native_tail.__wrapped__().reason != ""
    assert len(cache.built) == 2
    assert cache.loaded[-1] != cache.loaded[0]
    assert not cache.loaded[-1].parent.exists()
