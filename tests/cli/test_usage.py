"""What the command line promises before any work: help with examples that parse, and nothing heavy
loaded before a verb needs it.
"""

from __future__ import annotations

import dataclasses
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
from segunc.cli.completion import SHELLS
from segunc.cli.help import COMMON
from segunc.cli.main import TRAINING as TRAINING_VERBS, VERBS, build_parser, main, options_of
from segunc.cli.parser import paragraphs_of
from segunc.cli.run import FUNCTIONS
from segunc.core.files import nearest_path
from segunc.maps.reader import MapsReader
from segunc.options import DemoOptions, flags_of, option_fields
from segunc.posteriors.methods import METHODS
from segunc.verbs.demo import SHOWN
from tests.conftest import Job

REPOSITORY = Path(__file__).resolve().parents[2]
KEPT = "what is finished is kept, and the same command"
UTF_8 = "a text in UTF-8"


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


def test_each_unknown_option_is_named_with_its_neighbour(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        main([*PREDICT, "--draw", "3", "--zzzzzz", "--shards=1/2"])
    assert "(did you mean --draws for --draw, --shard for --shards?)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("drive_fryday/camera", "drive_friday/camera"),
        ("drive_fryday/lidar", "drive_friday"),
        ("drive_friday/camra", "drive_friday/camera"),
    ],
)
def test_a_path_that_does_not_exist_is_named_with_its_neighbour(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    typed: str,
    meant: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data/drive_friday/camera").mkdir(parents=True)
    (tmp_path / "m").mkdir()
    words = ["predict", "--model", "m", "--input", f"data/{typed}", "--out", "o"]
    assert main(words) == 2
    said = f"--input data/{typed} does not exist (did you mean data/{meant}?). Hint: check the path"
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("typed", ["data/monday", "notes.txt/camera"])
def test_a_path_that_is_like_none_has_no_neighbour(tmp_path: Path, typed: str) -> None:
    (tmp_path / "data/drive_friday").mkdir(parents=True)
    (tmp_path / "notes.txt").touch()
    assert nearest_path(tmp_path / typed) == ""


def test_an_option_that_other_verbs_have_is_led_to_the_name_here(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["watch", "--model", "m", "--input", "i", "--flag", "entropy=1"]
    for given in (["--end", "3"], ["--end=3"]):
        with pytest.raises(SystemExit):
            main([*words, *given])
        assert "(did you mean --duration?)" in capsys.readouterr().err
    for verb in ("evaluate", "overlay", "summary"):
        with pytest.raises(SystemExit):
            main([verb, "--maps", "m", "--input", "i", "--out", "o"])
        assert "(did you mean --maps?)" in capsys.readouterr().err


PREDICT = ("predict", "--model", "m", "--input", "i", "--out", "o")


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("overlay --maps m --out o --frames 000 001", "--frames 000,001)"),
        ("summary --maps m --flag entropy=0.5 knn=1", "--flag entropy=0.5,knn=1)"),
    ],
)
def test_values_without_commas_between_them_are_shown_with_commas(
    words: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(words.split())
    assert f"(several values have commas between them: {hint}" in capsys.readouterr().err


def test_a_stray_word_after_another_option_has_no_such_hint(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        main(["summary", "--maps", "m", "n"])
    assert "commas" not in capsys.readouterr().err


def test_a_repeated_option_of_several_values_adds_them() -> None:
    arguments = build_parser().parse_args([*PREDICT, "--input", "j", "k"])
    assert arguments.input == ["i", "j", "k"]


def test_a_repeated_option_of_named_values_adds_them() -> None:
    words = ["overlay", "--maps", "m", "--out", "o", "--range", "a=0:1", "--range", "b=0:2"]
    assert build_parser().parse_args(words).ranges == {"a": (0.0, 1.0), "b": (0.0, 2.0)}


def test_of_a_repeated_option_of_one_value_the_last_counts_with_a_note(
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = build_parser().parse_args([*PREDICT, "--seed", "0", "--seed", "3"])
    assert arguments.seed == 3
    note = "note: --seed is given twice; 3 counts, 0 does not\n"
    assert capsys.readouterr().err == note


def test_a_repeated_name_of_a_repeated_option_is_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["overlay", "--maps", "m", "--out", "o", "--range", "a=0:1", "--range", "a=0:2"]
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == 2
    assert "argument --range: 'a' is given twice" in capsys.readouterr().err


def help_of(capsys: pytest.CaptureFixture[str], *words: str, flag: str = "--help-all") -> str:
    """Return what ``segunc WORDS --help-all`` prints, or another flag."""
    with pytest.raises(SystemExit) as end:
        main([*words, flag])
    assert end.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("flag", ["--help", "--help-all"])
@pytest.mark.parametrize("verb", VERBS)
def test_the_help_of_a_verb_has_an_example_that_parses(
    verb: str, flag: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    text = help_of(capsys, verb, flag=flag).replace("\\\n", "")
    example = re.findall(r"^  segunc (.*)$", text, re.MULTILINE)[-1].split()
    assert example[0] == verb
    arguments, further_words = build_parser().parse_known_args(example)
    assert arguments.verb == verb
    assert not further_words or verb in TRAINING_VERBS


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("columns", [80, 100])
def test_the_help_of_a_verb_is_one_screen(
    verb: str, columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = help_of(capsys, verb, flag="--help").splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= columns
    assert lines[0].startswith(f"usage: segunc {verb}")
    assert f"segunc {verb} --help-all shows all" in " ".join(lines[-2:])


@pytest.mark.parametrize("verb", VERBS)
def test_the_first_screen_shows_what_is_required_and_the_rest_is_behind_help_all(
    verb: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert len(COMMON[verb]) <= 11
    screen = help_of(capsys, verb, flag="--help")
    everything = help_of(capsys, verb)
    for option_field in option_fields(options_of(verb)):
        name = flags_of(option_field)[0] if option_field.name not in ("data", "source") else ""
        if name == "results":
            continue
        assert name in everything
        is_shown = bool(re.search(rf"^  {re.escape(name)}( |$)", screen, re.MULTILINE))
        assert is_shown or option_field.name not in COMMON[verb]
        if option_field.default is option_field.default_factory is dataclasses.MISSING:
            assert option_field.name in COMMON[verb]


def test_the_count_of_all_options_is_right(capsys: pytest.CaptureFixture[str]) -> None:
    (count,) = re.findall(r"shows all (\d+) options", help_of(capsys, "doctor", flag="--help"))
    flags = re.findall(r"^  (?:-h, )?(--[a-z-]+)", help_of(capsys, "doctor"), re.MULTILINE)
    assert int(count) == len({*flags} - {"--help", "--help-all"})


@pytest.mark.parametrize("shell", SHELLS)
def test_completion_names_verbs_and_options(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("shtab")
    with pytest.raises(SystemExit) as end:
        main(["--print-completion", shell])
    assert end.value.code == 0
    script = capsys.readouterr().out
    for word in ("predict", "--overlay", "missed-pixels", "--help-all"):
        assert word in script


def test_bash_completes_verbs_options_and_choices(tmp_path: Path) -> None:
    pytest.importorskip("shtab")
    words = [sys.executable, "-m", "segunc", "--print-completion", "bash"]
    script = subprocess.run(words, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    (tmp_path / "completion.bash").write_text(script.stdout)
    (tmp_path / "runs").mkdir()
    (tmp_path / "rules.txt").touch()
    assert completed(tmp_path, "pre") == ["predict"]
    assert completed(tmp_path, "predict", "--overl") == ["--overlay"]
    controls = ["missed-objects", "missed-pixels"]
    assert sorted(completed(tmp_path, "threshold", "--control", "missed")) == controls
    assert completed(tmp_path, "predict", "--model", "ru") == ["runs"]  # folders alone


def completed(folder: Path, *words: str) -> list[str]:
    """Return what bash offers for the last word of a command in a folder."""
    line = " ".join(["segunc", *words])
    script = (
        f"source completion.bash; COMP_WORDS=({line}); COMP_CWORD={len(words)}; "
        f"_shtab_segunc segunc {words[-1]} x; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    )
    done = subprocess.run(
        ["bash", "-c", script], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout.split()


def test_completion_without_its_library_names_the_extra(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    with pytest.raises(SystemExit) as end:
        main(["--print-completion", "bash"])
    assert end.value.code == 2
    assert "pip install 'segunc[completion]'" in capsys.readouterr().err


@pytest.mark.parametrize("verb", VERBS)
def test_training_verbs_list_the_keys_of_their_configuration(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _, _, keys = help_of(capsys, verb).partition("keys of the configuration")
    assert ("--data.root" in keys) == (verb in TRAINING_VERBS)


@pytest.mark.parametrize("method", METHODS)
def test_the_keys_of_a_method_are_told_without_markup(
    method: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = help_of(capsys, "finetune", "--method", method)
    assert "keys of the configuration" in text
    assert "`" not in text
    assert not re.search(r":(data|meth|class|func|mod|attr):", text)


def test_the_list_of_verbs_shows_whole_sentences(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    text = help_of(capsys, flag="--help")
    for verb in VERBS:
        sentence = paragraphs_of(options_of(verb))[0]
        shown = sentence[0].lower() + sentence[1:].removesuffix(".")
        assert re.search(rf"\n    {verb}\s+{re.escape(shown)}\n", text)


def test_help_breaks_no_name_at_a_hyphen(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    text = help_of(capsys, "threshold")
    for control in ("missed-pixels", "flagged-pixels", "missed-objects", "false-alarms"):
        assert f"{control}:" in text


def test_the_description_of_a_verb_shows_all_its_paragraphs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    shown = " ".join(help_of(capsys, "monitor").split())
    for paragraph in paragraphs_of(options_of("monitor")):
        assert paragraph in shown


def test_the_demo_shows_commands_that_parse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without their work, which takes minutes."""
    monkeypatch.setattr("segunc.toyroads.generate_toy", lambda *args, **settings: None)
    scores = {name: {"pooled": {"auroc": 0.5}} for name in SHOWN}
    (tmp_path / "anomaly.json").write_text(json.dumps({"scores": scores}))
    run_verb = run.run
    monkeypatch.setattr(run, "run", lambda verb, options: None)
    run_verb("demo", DemoOptions(out=tmp_path))
    commands = re.findall(r"^\$ segunc (.*)$", capsys.readouterr().out, re.MULTILINE)
    assert len(commands) == 15
    for command in commands:
        arguments, further_words = build_parser().parse_known_args(command.split())
        assert not further_words or arguments.verb in TRAINING_VERBS


@pytest.mark.parametrize("verb", ["predict", "train", "import", "summary"])
def test_ctrl_c_is_one_line_and_130(
    verb: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(verb: str, options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("segunc.cli.main.run", interrupted)
    # The paths of the example are not here.
    monkeypatch.setattr("segunc.cli.main.check_options", lambda options: None)
    assert main([verb, *VERBS[verb].split()]) == 130
    next_run = "goes on from there" if verb in ("predict", "train") else "begins again"
    assert capsys.readouterr().err == f"segunc {verb}: interrupted; {KEPT} {next_run}\n"


def test_an_interrupted_fine_tuning_promises_no_more_than_it_keeps(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(verb: str, options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("segunc.cli.main.run", interrupted)
    monkeypatch.setattr("segunc.cli.main.check_options", lambda options: None)
    assert main(["finetune", *VERBS["finetune"].split()]) == 130
    said = capsys.readouterr().err
    assert KEPT not in said
    assert "such as temperature, features, anomaly and a student, begins again" in said


TRAINING_PACKAGES = {"lightning", "torchmetrics", "albumentations"}
HEAVY = ["torch", "numpy", "cv2", "segmentation_models_pytorch", *sorted(TRAINING_PACKAGES)]
RUN = "from segunc.cli.main import main\nmain({!r})"


def imported_by(code: str) -> set[str]:
    """Return the heavy packages that a fresh interpreter has imported after running ``code``."""
    report = f"print('|'.join(m for m in {HEAVY!r} if m in sys.modules), file=sys.stderr)"
    registered = f"import atexit, sys\natexit.register(lambda: {report})\n{code}"
    command = [sys.executable, "-c", registered]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    return set(filter(None, done.stderr.splitlines()[-1].split("|")))


LIGHT = {
    "help": RUN.format(["--help"]),
    "help of a verb": RUN.format(["predict", "--help"]),
    "usage error": RUN.format(["predict", "--size", "x"]),
    "options": "from segunc.options import PredictOptions\nPredictOptions('m', 'i', 'o')",
}


@pytest.mark.parametrize("name", LIGHT)
def test_what_comes_before_work_imports_nothing_heavy(name: str) -> None:
    assert imported_by(LIGHT[name]) == set()


def test_a_heavy_import_is_noticed() -> None:
    assert imported_by("import numpy") == {"numpy"}


def test_prediction_loads_nothing_of_a_training(finetuned: Job, tmp_path: Path) -> None:
    frame = next(finetuned.frames.rglob("*.png"))
    out = tmp_path / "maps"
    words = f"predict --model {finetuned.abnn} --input {frame} --out {out} --draws 2 --device cpu"
    imported = imported_by(RUN.format(words.split()))
    assert (out / "frames.jsonl").exists()
    assert "torch" in imported
    assert not imported & TRAINING_PACKAGES


UNUSABLE = [
    "evaluate --maps m --out FIFO",
    "evaluate --maps m --out FILE/x.json",
    "evaluate --maps m --out FOLDER",
    "evaluate --maps m --out /dev/null",
    "demo --out FIFO",
    "demo --out FILE",
    "review --maps m --out FIFO",
    "review --maps m --out FILE",
    "import a:b --out /dev/null",
]


@pytest.mark.parametrize("line", UNUSABLE)
def test_an_output_that_cannot_be_written_is_one_line_and_left_alone(
    line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = {
        "FIFO": tmp_path / "fifo",
        "FILE": tmp_path / "file",
        "FOLDER": tmp_path,
    }
    os.mkfifo(places["FIFO"])
    places["FILE"].write_text("")
    for name, place in places.items():
        line = line.replace(name, str(place))
    device = os.stat("/dev/null")
    before = {path.name: path.lstat() for path in tmp_path.iterdir()}
    words = line.split(" ")
    assert main(words) == 2
    (message,) = capsys.readouterr().err.splitlines()
    assert f"--out {words[-1]}" in message
    assert os.path.samestat(os.stat("/dev/null"), device)
    assert {path.name: path.lstat() for path in tmp_path.iterdir()} == before


def test_a_word_that_is_not_utf_8_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "--model", "m", "--input", "i\udce9", "--out", "o"]) == 2
    (message,) = capsys.readouterr().err.splitlines()
    assert UTF_8 in message


def test_a_reader_that_leaves_is_no_failure(tmp_path: Path) -> None:
    """As ``| head -1``: 128 + 13, as shells say it of what SIGPIPE ends, and nothing on standard
    error.
    """
    (tmp_path / "a.json").touch()
    reading, writing = os.pipe()
    os.close(reading)
    code = (
        "import segunc.cli.main as main\n"
        "main.run = lambda verb, options: print('x' * 99)\n"
        "main.entry()\n"
    )
    command = [sys.executable, "-c", code, "compare", "a.json"]
    done = subprocess.run(
        command, stdout=writing, stderr=subprocess.PIPE, text=True, check=False, cwd=tmp_path
    )
    os.close(writing)
    assert done.returncode == 141
    assert done.stderr == ""


FULL = OSError(28, "No space left on device", "out/a.png")
READ_ONLY = OSError(30, "Read-only file system")
NO_MEMORY = OSError(12, "Cannot allocate memory")


@pytest.mark.parametrize(
    ("verb", "error", "message"),
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
    message: str,
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
    assert capsys.readouterr().err == f"segunc {verb}: {message} (--debug shows where)\n"


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
    with contextlib.redirect_stderr(io.StringIO()) as errors:
        try:
            code = main(line.split())
        except SystemExit as end:
            code = end.code
    imported = [name for name in ("torch", "lightning") if name in sys.modules]
    results[line] = code, errors.getvalue(), imported
print(json.dumps(results))
"""


def test_a_path_that_is_not_there_is_said_before_torch_is_imported(tmp_path: Path) -> None:
    (tmp_path / "FOLDER").mkdir()
    (tmp_path / "FILE").touch()
    command = [sys.executable, "-c", TYPED]
    done = subprocess.run(
        command, input=json.dumps(LINES), cwd=tmp_path, capture_output=True, text=True, check=True
    )
    for line, (code, errors, imported) in json.loads(done.stdout).items():
        assert code == 2, line
        assert imported == [], line
        assert len(errors.splitlines()) == 1, line
        assert ("nowhere" if "nowhere" in line else "FILE is not a folder") in errors
    assert not (tmp_path / "o").exists()


# The demo takes minutes; `make demo` runs it.
EXAMPLES = [FUNCTIONS.get(verb, verb) for verb in VERBS if verb != "demo"]


def names_of_example(verb: str, job: Job, folder: Path) -> dict[str, Any]:
    """Return the names that the example in the docstring of a verb's function uses."""
    names = {name: getattr(options, name) for name in dir(options) if name.endswith("Options")}
    names[verb] = getattr(segunc, verb)
    names["segunc"] = segunc
    names["folder"] = folder
    names["frames"] = copy_two_frames(job, folder / "frames")
    names["data"] = job.data
    names["base"] = job.base
    names["abnn"] = job.abnn
    names["maps"] = job.maps
    names["train_config"] = job.train_config
    names["finetune_config"] = job.finetune_config
    if verb == "import_network":
        names["weights"] = write_weights(folder / "lraspp.pth")
    if verb in ("compare", "report"):
        names["metrics"] = write_metrics(job, folder / "metrics.json")
    if verb == "monitor":
        names["threshold"] = write_threshold(job, folder / "threshold.json")
    return names


def copy_two_frames(job: Job, folder: Path) -> Path:
    folder.mkdir()
    for path in sorted(job.frames.rglob("*.png"))[:2]:
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


def write_weights(path: Path) -> Path:
    network = torchvision.models.get_model(
        "lraspp_mobilenet_v3_large", weights_backbone=None, num_classes=19
    )
    torch.save(network.state_dict(), path)
    return path


def write_metrics(job: Job, path: Path) -> Path:
    segunc.evaluate(job.maps, anomaly_labels=job.masks, out=path, replicates=0)
    return path


def write_threshold(job: Job, path: Path) -> Path:
    """Write a threshold that two frames were calibrated on."""
    two_frames = MapsReader(job.maps).frames[:2]
    segunc.threshold(
        maps=job.maps,
        anomaly_labels=job.masks,
        out=path,
        control="flagged-pixels",
        level=0.5,
        score="entropy",
        frames="|".join(f"^{name}$" for name in two_frames),
    )
    return path


@pytest.mark.parametrize("verb", EXAMPLES)
def test_the_example_of_a_verb_runs(verb: str, predicted: Job, tmp_path: Path) -> None:
    names = names_of_example(verb, predicted, tmp_path)
    example = doctest.DocTestFinder().find(names[verb], verb, globs=names)[0]
    assert example.examples
    runner = doctest.DocTestRunner(verbose=False)
    printed: list[str] = []
    runner.run(example, out=printed.append)
    assert runner.summarize(verbose=False).failed == 0, "".join(printed)


def test_the_package_run_as_a_file_finds_the_library_lightning() -> None:
    """As Lightning starts the further processes of a training."""
    program = Path(segunc.__file__).with_name("__main__.py")
    check = f"import runpy; runpy.run_path({str(program)!r}); import lightning.pytorch"
    folder = program.parent
    code = f"import sys; sys.path.insert(0, {str(folder)!r}); {check}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
