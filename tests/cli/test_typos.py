"""A path that is not there and a name that is in no table are said before torch is imported, by every verb."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

LINES = {
    "predict --model nowhere --input FOLDER --out o": "nowhere",
    "predict --model FOLDER --input nowhere/*.png nowhere --out o": "nowhere",
    "predict --model FOLDER --input FOLDER --out o --maps entropie": "entropie",
    "predict --model FOLDER --input FOLDER --out o --device gpu": "gpu",
    "evaluate --maps nowhere --out o": "nowhere",
    "evaluate --maps FOLDER --dataset camvit --root FOLDER --out o": "camvit",
    "evaluate --model FOLDER --dataset toy --root nowhere --out o": "nowhere",
    "evaluate --model FOLDER --dataset toy --root FOLDER --scores entropie --out o": "entropie",
    "train --config nowhere --out o": "nowhere",
    "train --config FILE --out o --data.root=nowhere": "nowhere",
    "train --config FILE --out o --data.dataset camvit": "camvit",
    "train --config FILE --out o --label-map camvit": "camvit",
    "finetune --base nowhere --out o": "nowhere",
    "finetune --base FILE --out o": "no folder",
    "finetune --base FOLDER --out o --method abn": "'abn'",
    "doctor --model nowhere": "nowhere",
    "doctor --maps nowhere": "nowhere",
    "doctor --model FOLDER --image nowhere.png": "nowhere.png",
    "import smp:x --out o --weights nowhere": "nowhere",
    "review --maps nowhere --out o": "nowhere",
    "summary --maps nowhere": "nowhere",
    "overlay --maps nowhere --out o": "nowhere",
    "export --maps nowhere --to smiyc --score entropy --out o": "nowhere",
    "compare nowhere.json": "nowhere.json",
}
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
    lines = json.dumps(list(LINES))
    done = subprocess.run(
        [sys.executable, "-c", RUN], input=lines, cwd=folder, capture_output=True, text=True, check=True
    )
    assert not (folder / "o").exists()
    found: Results = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("line", LINES)
def test_a_typo_is_said_at_once(results: Results, line: str) -> None:
    code, said, imported = results[line]
    assert (code, imported) == (2, [])
    assert LINES[line] in said
    assert len(said.splitlines()) == 1
