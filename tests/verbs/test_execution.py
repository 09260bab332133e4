"""How a run computes: chosen from the whole input, kept by every shard and after every kill."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import pytest

from segunc.core.errors import InputError
from segunc.frames.sources import open_source
from segunc.networks import NetworkDescription
from segunc.options import PredictOptions
from segunc.processing import Tiling
from segunc.verbs.execution import Execution, choose_execution, input_sizes
from tests.conftest import Job
from tests.maps.fakes import write_pictures
from tests.processing.test_frames import sampler
from tests.verbs.processes import SMALL, refuse, succeed
from tests.verbs.test_interrupted import kill_after_three, tree, write_mask
from tests.verbs.test_job import assert_codes_agree

PLAIN = PredictOptions("model", "input", "out")


def test_what_was_recorded_is_continued_and_what_is_given_wins(tmp_path: Path) -> None:
    write_pictures(tmp_path, 4)
    source = open_source(tmp_path)
    assert choose_execution(PLAIN, None, sampler(), source, None) == Execution(4, 1)
    recorded: dict[str, Any] = {"chunk": 2, "group": 3}
    assert choose_execution(PLAIN, None, sampler(), source, recorded) == Execution(2, 3)
    asked = replace(PLAIN, chunk=1, frames_at_once=2)
    assert choose_execution(asked, None, sampler(), source, recorded) == Execution(1, 2)


@pytest.mark.parametrize("given", [{"redraw": True}, {"tiling": Tiling((32, 32), 0)}])
def test_what_needs_frames_one_by_one_gets_them(tmp_path: Path, given: dict[str, Any]) -> None:
    write_pictures(tmp_path, 2)
    options = replace(PLAIN, frames_at_once=4, redraw="redraw" in given)
    found = choose_execution(options, given.get("tiling"), sampler(), open_source(tmp_path), None)
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


def test_grouped_frames_killed_and_continued_give_the_same_bytes(finetuned: Job, tmp_path: Path) -> None:
    base = ("predict --model", finetuned.abnn, "--input", finetuned.video, SMALL, "--mask", write_mask(tmp_path))
    command = (*base, "--frames-at-once 5")
    whole, killed, alone = (tmp_path / name for name in ("whole", "killed", "alone"))
    succeed(*command, "--out", whole)
    before = kill_after_three(killed, *command)
    done = succeed(*base, "--out", killed)  # the grouping comes from the manifest
    assert f"{before} were finished before" in done.stdout
    assert tree(killed) == tree(whole)
    assert len(tree(whole)) == 12 * 4 + 2  # frames.jsonl and the mask
    run = json.loads((whole / "manifest.json").read_text())["run"]
    assert (run["group"], run["compiled"]) == (5, False)
    assert "group = 5 (now 2)" in refuse(*base, "--frames-at-once 2", "--out", whole)
    succeed(*base, "--out", alone)
    assert json.loads((alone / "manifest.json").read_text())["run"]["group"] == 1
    for path in sorted((alone / "entropy").glob("*.png")):
        assert_codes_agree(whole / "entropy" / path.name, path)
        assert not cv2.imread(str(path), cv2.IMREAD_UNCHANGED)[48:].any()
