"""Compiled passes against plain ones: the same maps, also where draws share a part, and a plain
pass where a graph would not do.
"""

import contextlib
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from segunc.affine.convert import convert
from segunc.affine.draws import AffineLayout
from segunc.affine.posterior import Deterministic
from segunc.baselines.mc_dropout import OwnDropout, convert_dropout
from segunc.baselines.mixtures import EnsemblePosterior, TestTimeAugmentation
from segunc.posteriors.abnn import ABNNPosterior
from segunc.sampling import Sampler, compiled as compiled_module
from segunc.sampling.branches import Branch
from tests.affine.networks import randomise
from tests.sampling.test_engine import IMAGES, Headed, upsampled

compiled = torch.compile


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Graphs run as they were traced, which takes no C++ compiler; they are listed."""
    graphs: list[Any] = []

    def keep(graph: Any, **settings: Any) -> Any:
        graphs.append(graph)
        return compiled(graph, backend="eager", **settings)

    monkeypatch.setattr(torch, "compile", keep)
    return graphs


def posterior(network: nn.Module, members: int = 2) -> ABNNPosterior:
    convert(network)
    return ABNNPosterior.around(AffineLayout(network), 0.3, members)


def assert_same(network: nn.Module, of: Any, **settings: Any) -> Sampler:
    """Maps of two frames one after the other, each of other values, are those of plain passes but
    for rounding.
    """
    asked: dict[str, Any] = {
        "draws": 5,
        "chunk": 2,
        "scores": ["entropy", "epistemic", "deterministic-energy"],
        **settings,
    }
    plain, sampler = Sampler(network, of, **asked), Sampler(network, of, compiled=True, **asked)
    for images in (IMAGES[:1], 0.5 * IMAGES[1:], IMAGES[:1]):
        expected, found = plain(images), sampler(images)
        for name, values in expected.scores.items():
            torch.testing.assert_close(found.scores[name], values, atol=2e-6, rtol=1e-5)
    return sampler


@pytest.mark.parametrize("scope", [None, "last:1"])
def test_draws_are_those_of_plain_passes_and_a_graph_serves_all_frames(
    scope: str | None, quick: list[Any]
) -> None:
    network = Headed(upsampled)
    assert_same(network, posterior(network), scope=scope)
    assert len(quick) == 3  # the base, two draws, the last one


def test_what_draws_share_is_not_computed_again(quick: list[Any]) -> None:
    network = Headed(upsampled)
    assert_same(network, posterior(network), scope="last:1")
    convolutions = [
        sum("conv" in str(node.target) for node in graph.graph.nodes) for graph in quick
    ]
    assert convolutions == [3, 1, 1]  # encoder and second stage come once a frame


def test_networks_of_an_ensemble_and_transformed_frames(quick: list[Any]) -> None:
    first, second = Headed(upsampled), Headed(upsampled)
    second.encoder = first.encoder
    randomise(second.head, 1)
    assert_same(
        first,
        EnsemblePosterior([Branch(first, Deterministic()), Branch(second, Deterministic())]),
        draws=2,
    )
    network = Headed(upsampled)
    assert_same(network, TestTimeAugmentation(posterior(network), (1.0, 0.75)), draws=8)
    assert quick


def test_in_bfloat16_a_graph_may_round_as_a_plain_pass_does(quick: list[Any]) -> None:
    of = posterior(network := Headed(upsampled))
    sampler = Sampler(network, of, draws=4, precision="bfloat16", compiled=True)
    expected = Sampler(network, of, draws=4)(IMAGES[:1])
    assert (
        float((sampler(IMAGES[:1]).scores["entropy"] - expected.scores["entropy"]).abs().mean())
        < 0.01
    )
    assert quick
    assert not sampler.report.messages


def test_a_graph_with_other_numbers_is_left_out_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(graph: Any, **settings: Any) -> Any:
        def run(*inputs: Any) -> Any:
            logits, recorded = graph(*inputs)
            return logits + 0.01 * logits.abs().max() * torch.tensor([1.0, -1.0, 0.0, 0.0])[
                :, None, None
            ], recorded

        return run

    monkeypatch.setattr(torch, "compile", wrong)
    network = Headed(upsampled)
    messages = assert_same(network, posterior(network)).report.messages
    assert any(
        "could not be compiled and runs as it is (ValueError: its logits change by 1.0e-02 of "
        "the largest)" in text
        for text in messages
    )


def test_a_compiler_that_fails_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(graph: Any, **settings: Any) -> Any:
        raise OSError("no compiler here")

    monkeypatch.setattr(torch, "compile", broken)
    network = Headed(upsampled)
    messages = assert_same(network, posterior(network)).report.messages
    assert sum("no compiler here" in text for text in messages) == 1


class Branching(nn.Module):
    """Reads a value of its input."""

    def __init__(self) -> None:
        super().__init__()
        self.body = Headed(upsampled)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.body(x)
        return -logits if x.mean() > 0.4 else logits


def test_masks_of_dropout_and_code_that_reads_values_run_as_they_are(quick: list[Any]) -> None:
    network = Branching()
    assert_same(network, posterior(network))
    dropping = nn.Sequential(Headed(upsampled), nn.Dropout(0.1)).eval()
    convert(dropping)
    assert_same(dropping, OwnDropout(convert_dropout(dropping)))
    assert not quick


class Dynamic(nn.Module):
    """A network that computes the weight of a convolution from each frame."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(3)
        self.dynamic = nn.Conv2d(3, 4, 3, padding=1)
        self.register_buffer("filters", torch.randn(4, 3, 3, 3))

    def forward(self, images: Tensor) -> Tensor:
        self.dynamic.weight.data = self.filters * images.mean()
        logits: Tensor = self.dynamic(self.norm(images))
        return logits


def test_a_network_that_computes_its_parameters_in_each_pass_runs_as_it_is(
    quick: list[Any],
) -> None:
    network = Dynamic().eval()
    assert_same(network, posterior(network))
    assert not quick


def test_sizes_beyond_the_most_graphs_run_as_they_are(
    quick: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled_module, "MAX_GRAPHS", 2)
    network = Headed(upsampled)
    sampler = assert_same(network, posterior(network), chunk=5)
    sampler(IMAGES[:1, :, :48])
    assert len(quick) == 2
    assert sampler.report.messages == [
        "there are 2 compiled graphs already; frames of further sizes run as they are"
    ]


def test_inductor_itself() -> None:
    network = Headed(upsampled)
    sampler = assert_same(network, posterior(network), chunk=5)
    assert not sampler.report.messages


def test_what_a_captured_pass_gave_outlives_the_next_replay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A graph of a GPU, emulated here, reads and writes the memory of its capture."""
    memory = list[Tensor]()

    class Graph:
        def replay(self) -> None:
            memory[1].copy_(2 * memory[0])

    def run(images: Tensor, *_: Any) -> tuple[Tensor, dict[int, Tensor]]:
        memory.extend([images, 2 * images])
        return memory[1], {3: memory[1]}

    for name, stand_in in {
        "CUDAGraph": Graph,
        "graph_pool_handle": int,
        "graph": contextlib.nullcontext,
        "device": contextlib.nullcontext,
    }.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, make=stand_in, **__: make())
    replay = compiled_module.CompiledEngine(Headed(upsampled), "float32")._captured(
        run, (torch.zeros(2), {}, [], [])
    )
    results = [replay(torch.full((2,), number), {}, [], []) for number in (1.0, 5.0)]
    assert [(float(logits[0]), float(recorded[3][0])) for logits, recorded in results] == [
        (2, 2),
        (10, 10),
    ]
