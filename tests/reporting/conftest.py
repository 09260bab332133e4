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
    hashes = [model["base_sha256"], model["posterior_sha256"]]
    content = {
        **{
            "kind": "segunc threshold",
            "version": 1,
            "score": "entropy",
            "value": VALUE,
            "form": "unit-code",
        },
        **{
            "control": "flagged-pixels",
            "found_share": 0.5,
            "smallest": 50,
            "method": "conformal",
            "level": 0.2,
        },
        **{
            "confidence": None,
            "unit": "frame",
            "units": 40,
            "minimum_units": 4,
            "risk": 0.11,
            "bound": None,
        },
        **{
            "groups": {},
            "also": {},
            "promise": "On average, at most 20 % <of> the normal pixels are flagged.",
        },
        **{"condition": "It holds & ends.", "segunc": "0.1.0"},
        **{
            "model": hashlib.sha256(json.dumps(hashes, sort_keys=True).encode()).hexdigest(),
            "settings": {},
        },
        **{"frames": {"a": "1", "b": "2"}, "command": "segunc threshold --maps m", "date": "2026"},
    }
    path.write_text(json.dumps(content | changes))
    return path


@pytest.fixture(scope="session")
def results(predicted: Job, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with results of maps, of clean and of foggy images, a threshold and a domain."""
    folder = tmp_path_factory.mktemp("results")
    by = ("--by", "size,distance", "--groups", "^.", "--replicates", 50)
    succeed(
        "evaluate",
        "--maps",
        predicted.maps,
        "--anomaly-labels",
        predicted.masks,
        "--out",
        folder / ANOMALY,
        *by,
    )
    promised = ("--flag", folder / "threshold.json")
    for name, more in ((CLEAN, ()), (CLEAN, promised), (FOG, (*promised, "--corruption", "fog:5"))):
        model = (
            "--model",
            predicted.abnn,
            "--dataset",
            "toy",
            "--root",
            predicted.data,
            "--split",
            "test",
        )
        succeed("evaluate", *model, SMALL.replace(" --", "\0--").split("\0")[0], "--device", "cpu",
                "--replicates", 50, "--out", folder / name, *more)  # fmt: skip
        run = json.loads((folder / CLEAN).read_text())["run"]
        write_threshold(folder / "threshold.json", run, settings=settings_of(run, "entropy"))
    (folder / "domain.yaml").write_text(
        "intended_use: Slow <b>down</b> & wait.\naffected: Anyone.\naxes: {scene: {any: .}}\n"
    )
    return folder
