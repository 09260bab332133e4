"""A path that is not there is said before torch is imported, by every verb."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

LINES = [
    "predict --model nowhere --input FOLDER --out o",
    "predict --model FOLDER --input nowhere/*.png nowhere --out o",
    "predict --model FOLDER --input FOLDER --out o --device nowhere",
    "evaluate --model FOLDER --dataset toy --root nowhere --out o",
    "train --config nowhere --out o",
    "finetune --base nowhere --out o",
    "finetune --base FOLDER --out o --method nowhere",
    "doctor --model FOLDER --image nowhere",
    "import smp:x --out o --weights nowhere",
    "summary --maps FILE",
    "overlay --maps nowhere --out o --panel --anomaly-labels nowhere",
    "compare nowhere",
]
RUN = """
import contextlib, io, json, sys
from segunc.cli.main import main
results = {}
for line in json.loads(sys.stdin.read()):
    with contextlib.redirect_stderr(io.StringIO()) as said:
        try:
            code = main(line.split())
        except SystemExit as end:
            code = end.code
    results[line] = code, said.getvalue(), [name for name in ("torch", "lightning") if name in sys.modules]
print(json.dumps(results))
"""
Results = dict[str, tuple[int, str, list[str]]]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """What each line says: exit code, standard error, and heavy modules that it or a line before it imported."""
    folder = tmp_path_factory.mktemp("typos")
    (folder / "FOLDER").mkdir()
    (folder / "FILE").touch()
    lines = json.dumps(LINES)
    done = subprocess.run(
        [sys.executable, "-c", RUN], input=lines, cwd=folder, capture_output=True, text=True, check=True
    )
    assert not (folder / "o").exists()
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize("line", LINES)
def test_a_typo_is_said_at_once(results: Results, line: str) -> None:
    code, said, imported = results[line]
    assert (code, imported) == (2, [])
    assert ("nowhere" if "nowhere" in line else "FILE is no folder") in said
    assert len(said.splitlines()) == 1
