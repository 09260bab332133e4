"""When compiling pays, and that whether a pass is compiled depends on the run alone, never on what came before."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from segunc.affine.branches import Branch
from segunc.affine.convert import convert
from segunc.baselines.own_dropout import OwnDropout, convert_dropout
from segunc.posteriors.ensemble import Ensemble
from segunc.posteriors.tta import TestTimeAugmentation
from segunc.sampling import Sampler, compilation, engine
from segunc.sampling.compilation import COMPILE_SECONDS, CORE_SECONDS, MARGIN, MOST_SIZES, SAVED_SHARE, Workload, decide
from segunc.sampling.sampler import CUDA_BATCH_PIXELS, MOST_FRAMES, frames_at_once
from segunc.sampling.tail_native import NativeTail
from tests.affine.networks import small_network
from tests.sampling.plain import posterior_of

VIDEO = Workload(frames=900, draws=24, pixels=512 * 1024, sizes=1, forms=1, threads=2)


@pytest.fixture(autouse=True)
def compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with a compiler, whatever this one has."""
    monkeypatch.setattr(compilation, "native_tail", lambda: NativeTail(object()))  # type: ignore[arg-type]


def test_the_break_even_lies_where_the_measurements_put_it() -> None:
    for count, compiled in ((900, True), (None, True), (12, False)):
        found = decide(replace(VIDEO, frames=count), "cpu")
        assert found.compiled is found.said is compiled
    # One thread, one draw of a megapixel: a compiled pass saves a tenth of 0.9 s, and must do so for twice 15 s.
    work = Workload(frames=0, draws=1, pixels=10**6, sizes=1, forms=1, threads=1)
    frames = MARGIN * COMPILE_SECONDS / (SAVED_SHARE * CORE_SECONDS)
    assert frames == pytest.approx(333.3, abs=0.1)
    assert not decide(replace(work, frames=333), "cpu").compiled
    assert decide(replace(work, frames=334), "cpu").compiled


@given(st.integers(0, 5000), st.integers(1, 64), st.integers(1000, 4_000_000), st.integers(1, 9), st.integers(1, 4))
def test_more_to_compute_never_speaks_against_compiling(
    frames: int, draws: int, pixels: int, sizes: int, forms: int
) -> None:
    work = Workload(frames, draws, pixels, sizes, forms, threads=2)
    compiled = decide(work, "cpu").compiled
    for more in (replace(work, frames=frames + 1), replace(work, draws=draws + 1), replace(work, pixels=2 * pixels)):
        assert decide(more, "cpu").compiled >= compiled
    for dearer in (replace(work, sizes=sizes + 1), replace(work, forms=forms + 1), replace(work, threads=4)):
        assert decide(dearer, "cpu").compiled <= compiled


def test_what_forbids_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not decide(VIDEO, "cuda").compiled
    assert not decide(replace(VIDEO, draws=0), "cpu").compiled
    assert not decide(replace(VIDEO, frames=10**6, sizes=MOST_SIZES + 1), "cpu").compiled
    assert decide(replace(VIDEO, frames=10**6, sizes=MOST_SIZES), "cpu").compiled
    monkeypatch.setattr(compilation, "native_tail", lambda: NativeTail(None, "no C++ compiler was found"))
    refused = decide(VIDEO, "cpu")
    assert (refused.compiled, refused.said) == (False, True)
    assert "no C++ compiler was found" in refused.reason
    assert not decide(replace(VIDEO, frames=12), "cpu").said  # it would not have been compiled anyway


def test_draws_with_noise_and_their_forms_are_counted() -> None:
    networks = [small_network(seed=seed) for seed in (0, 1)]
    assert Sampler(networks[0], draws=24).drawn_forms() == (0, 0)
    posteriors = [posterior_of(network, 0.2, 1) for network in networks]
    assert Sampler(networks[0], posteriors[0], draws=5).drawn_forms() == (5, 1)
    augmented = TestTimeAugmentation(posteriors[0], (1.0, 0.75), flip=True)
    assert Sampler(networks[0], augmented, draws=8).drawn_forms() == (8, 2), "mirrored frames are of the same size"
    ensemble = Ensemble([Branch(*pair) for pair in zip(networks, posteriors, strict=True)])
    assert Sampler(networks[0], ensemble, draws=7).drawn_forms() == (7, 2)


def test_a_gpu_takes_as_many_frames_as_fill_it_and_a_cpu_one() -> None:
    cuda = torch.device("cuda")
    assert frames_at_once(cuda, (1024, 2048), 20) == 1
    assert frames_at_once(cuda, (176, 320), 8) == CUDA_BATCH_PIXELS // (8 * 176 * 320) == 9
    assert frames_at_once(cuda, (32, 32), 1) == MOST_FRAMES
    assert frames_at_once(torch.device("cpu"), (96, 160), 8) == 1


class Compilations:
    """In place of torch.compile: the graph as it is with logits shifted, so that compiled passes can be told."""

    def __init__(self) -> None:
        self.shapes: list[tuple[int, ...]] = []

    def __call__(self, traced: nn.Module, **options: Any) -> Callable[..., Tensor]:
        def run(images: Tensor, *rest: Sequence[Tensor]) -> Tensor:
            if not seen:
                seen.append(True)
                self.shapes.append(tuple(images.shape))
            logits: Tensor = traced(images, *rest)
            return logits + torch.tensor([9.0, 0.0, 0.0, 0.0]).view(1, 4, 1, 1)

        seen: list[bool] = []
        return run


def frames(count: int, height: int = 16, width: int = 20) -> Tensor:
    return torch.rand(count, 3, height, width, generator=torch.Generator().manual_seed(height + width))


def sampler(**settings: Any) -> Sampler:
    network = small_network()
    return Sampler(network, posterior_of(network, 0.3, 1), **{"draws": 4, "compiled": True} | settings)


def share_compiled(of: Sampler, images: Tensor) -> float:
    """Which share of the draws was compiled: these give nearly all probability to class 0."""
    probabilities = of(images, keep_probabilities=True).probabilities
    assert probabilities is not None
    return round(float(probabilities[:, 0].mean()), 1)


def test_frames_of_any_size_have_the_same_bits_wherever_a_run_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "TOLERANCE", math.inf)  # else the shift would be found and nothing compiled
    monkeypatch.setattr(torch, "compile", Compilations())
    sizes = [(16, 16 + 4 * step) for step in range(7)]
    forward, backward = sampler(), sampler()
    found = {size: forward(frames(1, *size)) for size in sizes}
    for size in reversed(sizes):
        again = backward(frames(1, *size))
        assert all(torch.equal(found[size].scores[name], values) for name, values in again.scores.items()), size
    assert share_compiled(forward, frames(1, *sizes[-1])) == 1.0


def test_whole_chunks_over_whole_groups_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "TOLERANCE", math.inf)  # else the shift would be found and nothing compiled
    monkeypatch.setattr(torch, "compile", made := Compilations())
    used = sampler(draws=5, chunk=2).with_execution(chunk=2, group=3, compiled=True)
    plain = share_compiled(sampler(draws=5, chunk=2, compiled=False), frames(3))
    assert plain < 0.5
    whole = share_compiled(used, frames(3))
    assert whole == pytest.approx(0.8 + 0.2 * plain, abs=0.1), "four draws of five"
    assert share_compiled(used, frames(2)) == plain
    assert made.shapes == [(3, 3, 16, 20)]
    assert share_compiled(used.with_execution(chunk=2, group=3, compiled=False), frames(3)) == plain
    # Another run through the same sampler, with other chunks: compiled as it would be if it came first.
    used = used.with_execution(chunk=5, group=3, compiled=True)
    assert share_compiled(used, frames(3)) == 1.0
    assert not used.report.messages


def test_a_compiler_that_makes_other_numbers_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", Compilations())
    used = sampler()
    assert share_compiled(used, frames(1)) == share_compiled(sampler(compiled=False), frames(1))
    assert any("self-check failed" in message for message in used.report.messages)


def test_what_cannot_be_compiled_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", Compilations())
    network = nn.Sequential(small_network(), nn.Dropout(0.5)).eval()
    convert(network)
    posterior = OwnDropout.of(convert_dropout(network))
    used = Sampler(network, posterior, draws=4, compiled=True)
    for _ in range(2):
        used(frames(1))
    assert used.report.messages == ["masks of dropout layers cannot be compiled; draws run as they are"]


def test_nothing_is_compiled_where_others_can_plant_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(shared))
    monkeypatch.setattr(torch, "compile", lambda *args, **settings: pytest.fail("it was compiled"))
    used = sampler(draws=5, chunk=2).with_execution(chunk=2, group=3, compiled=True)
    used(frames(3))
    (message,) = used.report.messages
    assert f"others can write to {shared}, from which compiled code would be loaded" in message
