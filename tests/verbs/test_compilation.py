"""Whether ``--compile auto`` compiles: by the length of the run and the time of its first frame,
before the first kept frame, and the same for all runs of one folder.
"""

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import segunc
from segunc.core.errors import InputError
from segunc.frames.source import FrameSource
from segunc.frames.sources import open_source
from segunc.maps.manifest import read_manifest
from segunc.options import EvaluateOptions, PredictOptions
from segunc.sampling import Sampler
from segunc.verbs import compilation
from segunc.verbs.compilation import check_compile_option, decide, seconds_of_frame
from segunc.verbs.execution import make_sampler
from tests.conftest import Job
from tests.maps.fakes import write_pictures
from tests.support.sampled import random_frames, small_sampler
from tests.verbs.processes import refuse

AUTO = PredictOptions("model", "input", "out", compile="auto", size=(32, 48))


@pytest.fixture
def source(tmp_path: Path) -> FrameSource:
    """300 frames, as far as the source says."""
    write_pictures(tmp_path, 2)
    source = open_source(tmp_path)
    source.length = 300
    return source


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Set the seconds that a frame takes with plain passes, and with compiled ones."""

    def set_times(plain: float, compiled: float | None = None) -> None:
        measured = iter([plain] if compiled is None else [plain, compiled])
        monkeypatch.setattr(compilation, "seconds_of_frame", lambda *arguments: next(measured))

    return set_times


def sampler(compiled: bool) -> Sampler:
    made = small_sampler()
    made.compiled = compiled
    return made


def test_a_short_run_is_not_compiled(source: FrameSource, times: Callable[..., None]) -> None:
    times(1.9)  # 300 x 1.9 s = 570 s
    decision = decide(sampler, AUTO, [source])
    assert not decision.compiled
    assert "300 frames of 1.9 s take less than 10 minutes" in decision.reason


@pytest.mark.parametrize(("seconds", "compiles"), [(1.99, True), (2.0, False), (2.5, False)])
def test_a_long_run_is_compiled_where_a_frame_gets_a_twentieth_faster(
    seconds: float, compiles: bool, source: FrameSource, times: Callable[..., None]
) -> None:
    times(2.1, seconds)  # 300 x 2.1 s = 630 s; .95 x 2.1 s = 1.995 s
    decision = decide(sampler, AUTO, [source])
    assert decision.compiled == compiles
    assert decision.sampler.compiled == compiles
    assert f"{seconds:.2g} s in place of 2.1 s" in decision.reason


def test_the_frames_of_all_inputs_count(source: FrameSource, times: Callable[..., None]) -> None:
    times(1.9, 1.0)  # 600 x 1.9 s = 1140 s
    assert decide(sampler, AUTO, [source, source]).compiled


def test_an_input_without_a_length_is_not_compiled(source: FrameSource) -> None:
    source.length = None
    source.length_hint = None
    assert "does not say how long it is" in decide(sampler, AUTO, [source]).reason


def test_images_that_may_have_several_sizes_are_not_compiled(source: FrameSource) -> None:
    decision = decide(sampler, replace(AUTO, size=None), [source])
    assert not decision.compiled
    assert "--size says that they have one" in decision.reason


def test_the_first_pass_of_a_frame_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that goes on by a second whenever it is read, and by 100 where a pass is first."""
    clock = itertools.count()
    frame = random_frames(1)[0]
    assert frame.image is not None
    monkeypatch.setattr(compilation.time, "perf_counter", lambda: next(clock))
    assert seconds_of_frame(small_sampler(), frame.image, None) == 1
    assert next(clock) == 2 * compilation.TIMED_FRAMES


@pytest.mark.parametrize("option", [{"shard": "1/2"}, {"ray": "auto"}])
def test_processes_that_decide_for_themselves_are_refused(option: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="do not go together"):
        check_compile_option(replace(AUTO, **option))
    check_compile_option(replace(AUTO, compile=True, **option))


def test_other_verbs_have_no_number_of_frames_to_decide_by() -> None:
    options: Any = EvaluateOptions(model=Path("model"), out=Path("out"), compile="auto")
    with pytest.raises(InputError, match="which only predict does"):
        make_sampler(segunc.load_model, options)  # type: ignore[arg-type]


def test_the_decision_is_recorded_and_kept(
    finetuned: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_ = torch.compile
    monkeypatch.setattr(torch, "compile", lambda graph, **_: compile_(graph, backend="eager"))
    monkeypatch.setattr(compilation, "SHORTEST_RUN", 0.0)
    monkeypatch.setattr(
        compilation, "seconds_of_frame", lambda made, *_: 1.0 if made.compiled else 2.0
    )
    out = tmp_path / "maps"
    options = PredictOptions(
        model=finetuned.abnn,
        input=finetuned.video,
        out=out,
        draws=2,
        scores=["entropy"],
        precision="float32",
        device="cpu",
        compile="auto",
    )
    first = segunc.predict(options)
    assert "--compile auto: compiled, a frame takes 1 s in place of 2 s" in first.notes
    run = (read_manifest(out) or {})["run"]
    assert run["compiled"] is True
    # What would now be measured is the opposite: the record decides.
    monkeypatch.setattr(compilation, "SHORTEST_RUN", 1e9)
    segunc.predict(options)
    segunc.predict(replace(options, compile=True))
    with pytest.raises(InputError, match="compiled"):
        segunc.predict(replace(options, compile=False))


def test_a_word_that_is_no_choice_is_refused() -> None:
    message = refuse("predict --model m --input i --out o --compile always")
    assert "invalid choice: 'always'" in message
