"""The examples of the verbs' functions run, on a tiny model over tiny toy scenes."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest
import torch
import torchvision

import segunc
from segunc import options
from segunc.cli.main import VERBS
from segunc.cli.run import FUNCTIONS
from tests.conftest import Job

# The demo takes minutes; `make demo` runs it.
EXAMPLES = [FUNCTIONS.get(verb, verb) for verb in VERBS if verb != "demo"]


@pytest.mark.parametrize("verb", EXAMPLES)
def test_the_example_of_a_verb_runs(verb: str, predicted: Job, tmp_path: Path) -> None:
    frames = tmp_path / "frames"
    frames.mkdir()
    for path in sorted(predicted.frames.rglob("*.png"))[:2]:
        (frames / path.name).write_bytes(path.read_bytes())
    known = {
        **{name: getattr(options, name) for name in dir(options) if name.endswith("Options")},
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
    if verb == "import_network":
        known["weights"] = tmp_path / "lraspp.pth"
        network = torchvision.models.get_model("lraspp_mobilenet_v3_large", weights_backbone=None, num_classes=19)
        torch.save(network.state_dict(), known["weights"])
    if verb == "compare":
        labels, out = predicted.masks, tmp_path / "metrics.json"
        known["metrics"] = segunc.evaluate(predicted.maps, anomaly_labels=labels, out=out, replicates=0).path
    example = doctest.DocTestFinder().find(known[verb], verb, globs=known)[0]
    assert example.examples
    runner = doctest.DocTestRunner(verbose=False)
    said: list[str] = []
    runner.run(example, out=said.append)
    assert runner.summarize(verbose=False).failed == 0, "".join(said)
