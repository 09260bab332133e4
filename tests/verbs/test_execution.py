"""How a run computes: chosen from the whole input, kept by every shard and after every kill."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import pytest
import torch

from segunc.core.errors import InputError
from segunc.frames.sources import open_source
from segunc.networks import NetworkDescription
from segunc.options import PredictOptions
from segunc.processing.means import Tiling
from segunc.sampling.compilation import Decision, Workload
from segunc.verbs import execution
from segunc.verbs.execution import choose_compilation, choose_execution, input_sizes
from segunc.verbs.predict import read_options
from tests.conftest import Job
from tests.maps.fakes import write_pictures, write_video
from tests.processing.test_frames import sampler
from tests.verbs.processes import SMALL, refuse, succeed
from tests.verbs.test_interrupted import kill_after_three, tree, write_mask
from tests.verbs.test_job import assert_codes_agree

PLAIN = PredictOptions("model", "input", "out")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Workload]:
    """What the rule was asked; it answers that compiling pays."""
    seen: list[Workload] = []

    def decide(work: Workload, device: str) -> Decision:
        seen.append(work)
        return Decision(True, "it pays", True)

    monkeypatch.setattr(execution, "decide", decide)
    return seen


def test_the_whole_input_decides_whatever_a_shard_takes_of_it(tmp_path: Path, asked: list[Workload]) -> None:
    write_pictures(tmp_path / "in", 40, (24, 32))
    write_pictures(tmp_path / "in", 12, (30, 32))  # six in each folder, six of them new, are of another size
    source = open_source(tmp_path / "in")
    found = choose_execution(PLAIN, None, sampler(), source, None)
    assert found.compilation.compiled
    assert found.notes == ("it pays",)
    one, several = asked[:2]
    assert (one.frames, one.draws, one.pixels, one.sizes, one.forms) == (46, 4, 30 * 32, 1, 1)
    # Of 46 frames every third is looked at: 16, of which 0, 3, 21 and 24 are large.
    assert (several.frames, several.sizes) == (46, 2)
    assert several.pixels == (4 * 30 * 32 + 12 * 24 * 32) // 16
    assert several.threads == torch.get_num_threads()


def test_one_frame_of_a_video_is_looked_at(tmp_path: Path, asked: list[Workload]) -> None:
    write_video(tmp_path / "drive.avi", 30)
    choose_execution(PLAIN, None, sampler(), open_source(tmp_path / "drive.avi"), None)
    assert [(work.frames, work.pixels, work.sizes) for work in asked] == [(30, 48 * 64, 1)] * 2


def test_what_was_recorded_is_continued_and_what_is_given_wins(tmp_path: Path, asked: list[Workload]) -> None:
    write_pictures(tmp_path, 4)
    source = open_source(tmp_path)
    recorded: dict[str, Any] = {"chunk": 2, "group": 3, "compiled": False}
    found = choose_execution(PLAIN, None, sampler(), source, recorded)
    assert (found.chunk, found.group, found.compilation.compiled) == (2, 3, False)
    assert not asked
    assert choose_execution(PLAIN, None, sampler(), source, recorded | {"compiled": True}).compilation.compiled
    given = replace(PLAIN, chunk=1, frames_at_once=2, compile="on")
    found = choose_execution(given, None, sampler(), source, recorded)
    assert (found.chunk, found.group, found.compilation.compiled) == (1, 2, True)
    # A manifest from before passes could be compiled.
    assert choose_execution(replace(PLAIN, compile="off"), None, sampler(), source, {"chunk": 2, "group": 1}).group == 1


def test_a_short_input_runs_as_it_is_and_says_nothing(tmp_path: Path) -> None:
    write_pictures(tmp_path, 4)
    found = choose_execution(PLAIN, None, sampler(), open_source(tmp_path), None)
    assert (found.chunk, found.group, found.compilation.compiled, found.notes) == (4, 1, False, ())
    assert "4 frames would save" in found.compilation.reason


@pytest.mark.parametrize("given", [{"smooth": 1.0}, {"redraw": True}, {"tile": (32, 32), "overlap": 0}])
def test_what_needs_frames_one_by_one_gets_them(tmp_path: Path, given: dict[str, Any]) -> None:
    write_pictures(tmp_path, 2)
    request = read_options(PredictOptions("m", tmp_path, "o", frames_at_once=4, **given))
    found = choose_execution(request.options, request.tiling, sampler(), open_source(tmp_path), None)
    assert found.group == 1
    assert "one at a time" in found.notes[0]


def test_unreadable_inputs(tmp_path: Path) -> None:
    (name,) = write_pictures(tmp_path, 1)
    (tmp_path / f"{name}.png").write_bytes(b"broken")
    with pytest.raises(InputError, match="no frame of"):
        choose_execution(PLAIN, None, sampler(), open_source(tmp_path), None)


def test_inputs_of_the_network() -> None:
    description = NetworkDescription("body", "none", ("road", "car", "sky"))
    assert input_sizes(description, (100, 200), None, None) == [(100, 200)]
    assert input_sizes(description, (100, 200), (64, 96), None) == [(64, 96)]
    tiles = input_sizes(description, (100, 200), None, Tiling((64, 128), 32))
    assert tiles == [(height, width) for height in (64, 64, 36) for width in (128, 104)]


def test_compilation_of_an_evaluation_is_asked_for_or_decided(asked: list[Workload]) -> None:
    def inputs(count: int) -> list[list[tuple[int, int]]]:
        return [[(32, 48)], [(32, 64)]][:count]

    assert choose_compilation("on", sampler(), 10, inputs).compiled
    assert not choose_compilation("off", sampler(), 10, inputs).compiled
    assert not asked
    assert choose_compilation("auto", sampler(), 10, inputs).compiled
    assert [(work.sizes, work.pixels) for work in asked] == [(1, 32 * 48), (2, 32 * 56)]


def test_grouped_frames_killed_and_continued_give_the_same_bytes(finetuned: Job, tmp_path: Path) -> None:
    base = ("predict --model", finetuned.abnn, "--input", finetuned.video, SMALL, "--mask", write_mask(tmp_path))
    command = (*base, "--frames-at-once 5")
    whole, killed, alone = (tmp_path / name for name in ("whole", "killed", "alone"))
    succeed(*command, "--out", whole)
    before = kill_after_three(killed, *command)
    done = succeed(*base, "--out", killed)  # the grouping comes from the manifest
    assert f"{before} were finished before" in done.stdout
    assert tree(killed) == tree(whole)
    assert len(tree(whole)) == 12 * 4 + 3  # frames.jsonl, frames.csv and the mask
    run = json.loads((whole / "manifest.json").read_text())["run"]
    assert (run["group"], run["compiled"]) == (5, False)
    assert "group = 5 (now 2)" in refuse(*base, "--frames-at-once 2", "--out", whole)
    assert "compiled = False (now True)" in refuse(*base, "--compile", "--out", whole)
    succeed(*base, "--out", alone)
    assert json.loads((alone / "manifest.json").read_text())["run"]["group"] == 1
    for path in sorted((alone / "entropy").glob("*.png")):
        assert_codes_agree(whole / "entropy" / path.name, path)
        assert not cv2.imread(str(path), cv2.IMREAD_UNCHANGED)[48:].any()
