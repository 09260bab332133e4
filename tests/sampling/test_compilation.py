"""Whether a pass is compiled depends on the run alone, never on what came before."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from segunc.affine.convert import convert
from segunc.baselines.mc_dropout import OwnDropout, convert_dropout
from segunc.sampling import Sampler, engine
from segunc.sampling.sampler import CUDA_BATCH_PIXELS, MOST_FRAMES, frames_at_once
from tests.affine.networks import small_network
from tests.sampling.plain import posterior_of


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


def test_whole_chunks_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "TOLERANCE", math.inf)  # else the shift would be found and nothing compiled
    monkeypatch.setattr(torch, "compile", made := Compilations())
    used = sampler(draws=5, chunk=2).with_execution(chunk=2, compiled=True)
    plain = share_compiled(sampler(draws=5, chunk=2, compiled=False), frames(3))
    assert plain < 0.5
    whole = share_compiled(used, frames(3))
    assert whole == pytest.approx(0.8 + 0.2 * plain, abs=0.1), "four draws of five"
    assert made.shapes == [(3, 3, 16, 20)]
    assert share_compiled(used.with_execution(chunk=2, compiled=False), frames(3)) == plain
    # Another run through the same sampler, with other chunks: compiled as it would be if it came first.
    used = used.with_execution(chunk=5, compiled=True)
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
    posterior = OwnDropout(convert_dropout(network))
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
    used = sampler(draws=5, chunk=2).with_execution(chunk=2, compiled=True)
    used(frames(3))
    (message,) = used.report.messages
    assert f"others can write to {shared}, from which compiled code would be loaded" in message
