"""Results of a tiny model, made once, and the browser of the review page's tests."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from segunc.decisions.guarantee import settings_of
from tests.conftest import Job
from tests.gallery.conftest import browser as browser
from tests.verbs.processes import SMALL, succeed

VALUE = 0.4  # of the threshold
FOG, CLEAN, ANOMALY = "fog.json", "test.json", "anomaly.json"


def write_threshold(path: Path, model: dict[str, Any], **changes: Any) -> Path:
    """Write a threshold of the network and posterior that a run records."""
    hashes = [model["base_sha256"], model["posterior_sha256"]]
    content = {
        "kind": "segunc threshold",
        "version": 1,
        "score": "entropy",
        "value": VALUE,
        "form": "unit-code",
        "control": "flagged-pixels",
        "found_share": 0.5,
        "smallest": 50,
        "method": "conformal",
        "level": 0.2,
        "confidence": None,
        "unit": "frame",
        "units": 40,
        "minimum_units": 4,
        "risk": 0.11,
        "bound": None,
        "groups": {},
        "also": {},
        "promise": "On average, at most 20 % <of> the normal pixels are flagged.",
        "condition": "It holds & ends.",
        "segunc": "0.1.0",
        "model": hashlib.sha256(json.dumps(hashes, sort_keys=True).encode()).hexdigest(),
        "settings": {},
        "frames": {"a": "1", "b": "2"},
        "command": "segunc threshold --maps m",
        "date": "2026",
    }
    path.write_text(json.dumps(content | changes))
    return path


def evaluate_images(predicted: Job, out: Path, *more: Any, split: str = "test") -> None:
    """Evaluate the model on the images of a split of the toy data set."""
    model = ("--model", predicted.abnn)
    data = ("--dataset", "toy", "--root", predicted.data, "--split", split)
    small = SMALL.replace(" --", "\0--").split("\0")[0]
    settings = (small, "--device", "cpu", "--replicates", 50)
    succeed("evaluate", *model, *data, *settings, "--out", out, *more)


@pytest.fixture(scope="session")
def results(predicted: Job, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with results of maps, of clean and of foggy images, a threshold and a domain."""
    folder = tmp_path_factory.mktemp("results")
    maps = ("--maps", predicted.maps, "--anomaly-labels", predicted.masks)
    parts = ("--by", "size,distance", "--groups", "^.", "--replicates", 50)
    succeed("evaluate", *maps, "--out", folder / ANOMALY, *parts)
    threshold = folder / "threshold.json"
    promised = ("--flag", threshold)
    evaluate_images(predicted, folder / CLEAN)
    run = json.loads((folder / CLEAN).read_text())["run"]
    write_threshold(threshold, run, settings=settings_of(run, "entropy"))
    evaluate_images(predicted, folder / CLEAN, *promised)
    evaluate_images(predicted, folder / FOG, *promised, "--corruption", "fog:5")
    (folder / "domain.yaml").write_text(
        "intended_use: Slow <b>down</b> & wait.\naffected: Anyone.\naxes: {scene: {any: .}}\n"
    )
    return folder
