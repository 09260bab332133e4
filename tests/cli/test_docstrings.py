"""The examples of the verbs' functions run, on a tiny model over tiny toy scenes."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

import segunc
from segunc.cli.main import VERBS
from tests.conftest import Job

EXAMPLES = [verb for verb in VERBS if verb != "demo"]  # which takes minutes; `make demo` runs it


@pytest.mark.parametrize("verb", EXAMPLES)
def test_the_example_of_a_verb_runs(verb: str, predicted: Job, tmp_path: Path) -> None:
    frames = tmp_path / "frames"
    frames.mkdir()
    for path in sorted(predicted.frames.rglob("*.png"))[:2]:
        (frames / path.name).write_bytes(path.read_bytes())
    known = {
        **{name: getattr(segunc, name) for name in dir(segunc) if name.endswith("Options")},
        verb: getattr(segunc, verb),
        "segunc": segunc,
        "folder": tmp_path,
        "frames": frames,
        "data": predicted.data,
        "base": predicted.base,
        "abnn": predicted.abnn,
        "maps": predicted.maps,
        "train_config": predicted.train_config,
        "finetune_config": predicted.finetune_config,
    }
    if verb == "compare":
        options = segunc.EvaluateOptions(
            maps=predicted.maps, anomaly_labels=predicted.masks, out=tmp_path / "metrics.json", replicates=0
        )
        known["metrics"] = segunc.evaluate(options).path
    example = doctest.DocTestFinder().find(known[verb], verb, globs=known)[0]
    assert example.examples
    runner = doctest.DocTestRunner(verbose=False)
    said: list[str] = []
    runner.run(example, out=said.append)
    assert runner.summarize(verbose=False).failed == 0, "".join(said)
