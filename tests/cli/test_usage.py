"""What the command line promises before any work: help with examples that parse, and nothing heavy
loaded before a verb needs it.
"""

from __future__ import annotations

import doctest
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision

import segunc
from segunc import options
from segunc.cli import run
from segunc.cli.main import VERBS, build_parser, main
from segunc.cli.run import FUNCTIONS
from segunc.maps.reader import MapsReader
from segunc.options import DemoOptions
from segunc.verbs.demo import SHOWN
from tests.conftest import Job

REPOSITORY = Path(__file__).resolve().parents[2]
KEPT = "what is finished is kept, and the same command"


def test_the_module_is_the_command() -> None:
    command = [sys.executable, "-m", "segunc", "--help"]
    shown = subprocess.run(
        command, cwd=REPOSITORY, capture_output=True, text=True, check=True
    ).stdout
    assert all(re.search(rf"\n    {verb}\s", shown) for verb in VERBS)


def test_an_unknown_option_is_named_with_its_neighbour_and_as_json(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        main(["predict", "--model", "m", "--input", "i", "--out", "o", "--json", "--draw", "3"])
    line = {
        "error": "unrecognised arguments: --draw 3 (did you mean --draws?)",
        "hint": "see segunc predict --help",
    }
    assert json.loads(capsys.readouterr().out) == line


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_with_an_example_that_parses(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main([verb, "--help"])
    text = capsys.readouterr().out
    example = re.findall(r"^  segunc (.*)$", text, re.MULTILINE)[-1].split()
    known, rest = build_parser().parse_known_args(example)
    assert (end.value.code, known.verb, example[0]) == (0, verb, verb)
    assert not rest or verb in ("train", "finetune")
    assert ("--data.root" in text.partition("keys of the configuration")[2]) == (
        verb in ("train", "finetune")
    )


def test_the_demo_shows_commands_that_parse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without their work, which takes minutes."""
    monkeypatch.setattr("segunc.toyroads.generate_toy", lambda *args, **settings: None)
    scores = {name: {"pooled": {"auroc": 0.5}} for name in SHOWN}
    (tmp_path / "anomaly.json").write_text(json.dumps({"scores": scores}))
    shown = run.run
    monkeypatch.setattr(run, "run", lambda verb, options: None)
    shown("demo", DemoOptions(out=tmp_path))
    commands = re.findall(r"^\$ segunc (.*)$", capsys.readouterr().out, re.MULTILINE)
    assert len(commands) == 15
    for command in commands:
        known, rest = build_parser().parse_known_args(command.split())
        assert not rest or known.verb in ("train", "finetune")


@pytest.mark.parametrize("verb", ["predict", "train", "import", "summary"])
def test_ctrl_c_is_one_line_and_130(
    verb: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(verb: str, options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("segunc.cli.main.run", interrupted)
    monkeypatch.setattr(
        "segunc.cli.main.check_options", lambda options: None
    )  # the paths of the example are not here
    assert main([verb, *VERBS[verb].split()]) == 130
    goes_on = (
        "goes on from there" if verb in ("demo", "train", "finetune", "predict") else "begins again"
    )
    assert capsys.readouterr().err == f"segunc {verb}: interrupted; {KEPT} {goes_on}\n"


TRAINING = {"lightning", "torchmetrics", "albumentations"}
HEAVY = ["torch", "numpy", "cv2", "segmentation_models_pytorch", *sorted(TRAINING)]
RUN = "from segunc.cli.main import main\nmain({!r})"


def imported_by(code: str) -> set[str]:
    """Heavy packages that a fresh interpreter has imported after running ``code``."""
    report = f"print('|'.join(m for m in {HEAVY!r} if m in sys.modules), file=sys.stderr)"
    command = [
        sys.executable,
        "-c",
        f"import atexit, sys\natexit.register(lambda: {report})\n{code}",
    ]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    return set(filter(None, done.stderr.splitlines()[-1].split("|")))


CODES = [
    RUN.format(words) for words in (["--help"], ["predict", "--help"], ["predict", "--size", "x"])
]


@pytest.mark.parametrize(
    "code", [*CODES, "from segunc.options import PredictOptions\nPredictOptions('m', 'i', 'o')"]
)
def test_help_usage_errors_and_the_options_import_nothing_heavy(code: str) -> None:
    assert imported_by(code) == set()
    assert imported_by("import numpy") == {"numpy"}  # the probe can see


def test_prediction_loads_nothing_of_a_training(finetuned: Job, tmp_path: Path) -> None:
    frame = next(finetuned.frames.rglob("*.png"))
    words = f"predict --model {finetuned.abnn} --input {frame} --out {tmp_path / 'maps'} --draws 2 --device cpu"
    imported = imported_by(RUN.format(words.split()))
    assert (tmp_path / "maps" / "frames.jsonl").exists()
    assert "torch" in imported
    assert not imported & TRAINING


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("predict --model m --input i\udce9 --out o", "not a text in UTF-8"),
        *(
            (f"evaluate --maps m --out {place}", "--out {}")
            for place in ("FIFO", "FILE/x.json", "FOLDER", "/dev/null")
        ),
        *(
            (f"{verb} --out {place}", "--out {}")
            for place in ("FIFO", "FILE")
            for verb in ("demo", "review --maps m")
        ),
        ("import a:b --out /dev/null", "--out {}"),
    ],
)
def test_what_no_verb_can_use_is_one_line(
    line: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = {"FIFO": tmp_path / "fifo", "FILE": tmp_path / "file", "FOLDER": tmp_path}
    os.mkfifo(places["FIFO"])
    places["FILE"].write_text("")
    for name, place in places.items():
        line = line.replace(name, str(place))
    device, before = os.stat("/dev/null"), {path.name: path.lstat() for path in tmp_path.iterdir()}
    assert main(line.split(" ")) == 2
    (message,) = capsys.readouterr().err.splitlines()
    assert said.format(line.split(" ")[-1]) in message
    assert os.path.samestat(os.stat("/dev/null"), device)
    assert {path.name: path.lstat() for path in tmp_path.iterdir()} == before


def test_a_reader_that_leaves_is_no_failure(tmp_path: Path) -> None:
    """As ``| head -1``: 128 + 13, as shells say it of what SIGPIPE ends, and nothing on standard
    error.
    """
    (tmp_path / "a.json").touch()
    reading, writing = os.pipe()
    os.close(reading)
    code = "import segunc.cli.main as main; main.run = lambda verb, options: print('x' * 99); main.entry()"
    command = [sys.executable, "-c", code, "compare", "a.json"]
    done = subprocess.run(
        command, stdout=writing, stderr=subprocess.PIPE, text=True, check=False, cwd=tmp_path
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")


FULL, READ_ONLY = (
    OSError(28, "No space left on device", "out/a.png"),
    OSError(30, "Read-only file system"),
)
NO_MEMORY = OSError(12, "Cannot allocate memory")


@pytest.mark.parametrize(
    ("verb", "error", "said"),
    [
        ("summary", FULL, f"out/a.png: No space left on device; {KEPT} begins again"),
        ("predict", READ_ONLY, f"Read-only file system; {KEPT} goes on from there"),
        ("summary", NO_MEMORY, "not enough memory: OSError: [Errno 12] Cannot allocate memory"),
        ("summary", KeyError("place"), "KeyError: 'place'"),
    ],
)
def test_what_the_system_refuses_is_said_in_its_words(
    verb: str,
    error: Exception,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("segunc.cli.main.run", fail)
    monkeypatch.setattr("segunc.cli.main.check_options", lambda options: None)
    words = {
        "summary": ["--maps", "maps"],
        "predict": ["--model", "m", "--input", "in", "--out", "out"],
    }[verb]
    assert main([verb, *words]) == 1
    assert capsys.readouterr().err == f"segunc {verb}: {said} (--debug shows where)\n"


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
    "overlay --maps nowhere --out o --anomaly-labels nowhere",
    "compare nowhere",
]
TYPED = """
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


def test_a_path_that_is_not_there_is_said_before_torch_is_imported(tmp_path: Path) -> None:
    (tmp_path / "FOLDER").mkdir()
    (tmp_path / "FILE").touch()
    command = [sys.executable, "-c", TYPED]
    done = subprocess.run(
        command, input=json.dumps(LINES), cwd=tmp_path, capture_output=True, text=True, check=True
    )
    for line, (code, said, imported) in json.loads(done.stdout).items():
        assert (code, imported, len(said.splitlines())) == (2, [], 1), line
        assert ("nowhere" if "nowhere" in line else "FILE is not a folder") in said
    assert not (tmp_path / "o").exists()


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
        network = torchvision.models.get_model(
            "lraspp_mobilenet_v3_large", weights_backbone=None, num_classes=19
        )
        torch.save(network.state_dict(), known["weights"])
    if verb in ("compare", "report"):
        labels, out = predicted.masks, tmp_path / "metrics.json"
        known["metrics"] = segunc.evaluate(
            predicted.maps, anomaly_labels=labels, out=out, replicates=0
        ).path
    if verb == "monitor":
        first = "|".join(f"^{name}$" for name in MapsReader(predicted.maps).frames[:2])
        asked = {"control": "flagged-pixels", "level": 0.5, "score": "entropy", "frames": first}
        known["threshold"] = tmp_path / "threshold.json"
        segunc.threshold(
            maps=predicted.maps, anomaly_labels=predicted.masks, out=known["threshold"], **asked
        )
    example = doctest.DocTestFinder().find(known[verb], verb, globs=known)[0]
    assert example.examples
    runner = doctest.DocTestRunner(verbose=False)
    said: list[str] = []
    runner.run(example, out=said.append)
    assert runner.summarize(verbose=False).failed == 0, "".join(said)
