"""What is public: names and verbs have their place in the documentation, which builds, and its
examples run.
"""

import ast
import dataclasses
import importlib
import inspect
import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import cv2
import numpy as np
import pytest

import segunc
from segunc.cli.main import VERBS, build_parser, options_of
from segunc.cli.run import FUNCTIONS
from segunc.core.registry import Registry
from segunc.evaluation.parts import PARTS, AnomalyProtocol, ArrayPart, PartBuilder
from segunc.scores import EVIDENCE, SCORES, Score
from tests.support.map_folders import maps_of, write_folder
from tools.run_notebook import execute

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGE = (DOCS / "determinism.md").read_text("utf-8")
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("sphinx", reason="Sphinx is not installed")
    out = tmp_path_factory.mktemp("site")
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-q",
        "-W",
        "--keep-going",
        "-E",
        "-d",
        str(out / "cache"),
        "-b",
        "html",
    ]
    done = subprocess.run(
        [*command, str(DOCS), str(out)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return out


def test_every_verb_and_every_public_name_has_its_place(site: Path) -> None:
    commands = (site / "reference" / "commands.html").read_text(encoding="utf-8")
    assert set(VERBS) <= set(re.findall(r'<section id="([\w-]+)">', commands))
    api = (site / "reference" / "api.html").read_text(encoding="utf-8")
    assert set(segunc.__all__) <= set(re.findall(r'id="segunc\.(\w+)"', api))


def test_links_of_the_site_lead_to_its_files_and_nothing_is_loaded_from_elsewhere(
    site: Path,
) -> None:
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert not re.findall(r'<(?:script|img|link)[^>]*(?:src|href)="(https?://[^"]+)"', text), (
            page
        )
        links = re.findall(r'<a class="reference [^>]*href="([^":#]+)["#]', text)
        assert [link for link in links if not (page.parent / link).exists()] == []
    assert (
        'href="../results.html"'
        in (site / "concepts/scores.html").read_text("utf-8").split("<article")[1]
    )


def test_every_test_that_the_page_names_is_there() -> None:
    assert len(NAMED) > 20
    gone = [
        f"{file}::{name}"
        for file, name in NAMED
        if name
        not in {
            getattr(node, "name", None) for node in ast.parse((ROOT / file).read_text("utf-8")).body
        }
    ]
    assert gone == []


def test_every_line_of_a_table_names_one() -> None:
    promises = [
        line
        for line in PAGE.splitlines()
        if line.startswith("|") and not line.startswith(("| what |", "| what differs |", "|---"))
    ]
    assert len(promises) > 12
    assert [line for line in promises if "::test_" not in line.split("|")[-2]] == []


RELIABILITY = (DOCS / "reliability.md").read_text(encoding="utf-8")
MENDED = re.findall(
    r"^\|[^|]+\|[^|]+\|[^|]+\| ([\w/., ]+\.\w+) \| ([\w/:, ]+) \|$", RELIABILITY, re.M
)
"""The files and the tests of each row on what went wrong in silence."""


def in_folders(names: str) -> list[str]:
    """Return the names of a list, each with the folder of the one before where it has none."""
    paths: list[str] = []
    for name in names.split(", "):
        folder = paths[-1].rpartition("/")[0] if paths and "/" not in name else ""
        paths.append(f"{folder}/{name}" if folder else name)
    return paths


def missing_tests(names: list[str]) -> list[str]:
    """Return which of ``tests/file.py`` and ``tests/file.py::test`` do not exist."""
    missing = []
    for name in names:
        file, _, test = name.partition("::")
        path = ROOT / file
        if not path.is_file() or (test and f"def {test}(" not in path.read_text("utf-8")):
            missing.append(name)
    return missing


def test_files_that_mend_a_fault_exist() -> None:
    assert len(MENDED) > 100
    files = [file for mended, _ in MENDED for file in in_folders(mended)]
    assert [file for file in files if not (ROOT / "segunc" / file).is_file()] == []


def paths_of_tests(cells: list[str]) -> list[str]:
    """Return the tests that the cells of a table name, with their whole paths."""
    names = []
    for cell in cells:
        for name in in_folders(cell):
            file, colons, test = name.partition("::")
            names.append(f"tests/{file}.py{colons}{test}")
    return names


def test_tests_that_hold_a_mended_fault_exist() -> None:
    assert missing_tests(paths_of_tests([tests for _, tests in MENDED])) == []


def test_every_finding_of_the_campaign_names_tests_that_exist() -> None:
    table = RELIABILITY.partition("| problem | repair | test |\n|---|---|---|\n")[2]
    rows = table.partition("\n\n")[0].splitlines()
    assert len(rows) > 15
    assert missing_tests(paths_of_tests([row.split("|")[3].strip() for row in rows])) == []


def test_every_row_on_a_fault_names_file_and_test() -> None:
    tables = RELIABILITY.split("| kind | was | now | mended in | test |\n|---|---|---|---|---|\n")
    rows = sum(len(table.partition("\n\n")[0].splitlines()) for table in tables[1:])
    assert len(MENDED) == rows


def test_tests_that_hold_a_promise_of_security_exist() -> None:
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    names = re.findall(r"`(tests/[\w/]+\.py(?:::\w+)?)`", text)
    assert len(names) > 20
    assert missing_tests(names) == []


API = (DOCS / "reference" / "api.md").read_text(encoding="utf-8")
DOCUMENTED = re.findall(r":: segunc\.(\w+)$", API, re.MULTILINE)
FUNCTION_OF = {verb: FUNCTIONS.get(verb, verb) for verb in VERBS}


JOBS = re.findall(r"^([A-Z][\w ]+)\n-{4,}\n(.*?)(?=^[A-Z][\w ]+\n-{4,}\n|\Z)", API, re.M | re.S)
"""Heading and text of each section of the reference."""


def test_the_reference_has_the_public_names_by_their_jobs() -> None:
    documented = {
        heading[0].lower() + heading[1:]: sorted(re.findall(r":: segunc\.(\w+)$", text, re.M))
        for heading, text in JOBS
    }
    public = {job: sorted(names) for job, names in segunc._NAMES.items()}
    assert list(documented) == list(public)
    assert documented == public


def test_type_checkers_find_the_public_names_in_the_modules_that_they_come_from() -> None:
    tree = ast.parse(Path(segunc.__file__).read_text("utf-8"))
    static = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            for alias in node.names:
                if alias.asname == alias.name:  # which exports the name
                    static[alias.name] = node.module
    assert {name for name in static if static[name] == "segunc"} == set(segunc._MODULES)
    assert {name: static[name] for name in static if static[name] != "segunc"} == segunc._HOMES


def test_dir_has_the_public_names_and_nothing_else() -> None:
    code = "import json, segunc; print(json.dumps(dir(segunc)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert json.loads(done.stdout) == sorted([*segunc.__all__, *segunc._MODULES])


def test_other_names_are_attribute_errors_with_the_nearest_name() -> None:
    assert len(segunc.__all__) == len(set(segunc.__all__))
    assert set(FUNCTION_OF.values()) <= set(segunc.__all__)
    assert not {path.stem for path in Path(segunc.__file__).parent.iterdir()} & set(segunc.__all__)
    with pytest.raises(AttributeError, match=r"no attribute 'Samplr' \(did you mean Sampler\?\)"):
        _ = segunc.Samplr


@pytest.mark.parametrize("name", sorted({*DOCUMENTED} - {*FUNCTION_OF.values()}))
def test_every_public_name_is_importable_and_documented(name: str) -> None:
    value = getattr(segunc, name)
    assert value.__name__ in (name, f"{name}_model")  # load is load_model
    assert value.__module__.startswith("segunc.")
    # A dataclass or a NamedTuple without a docstring gets its signature for one.
    assert value.__doc__
    assert not value.__doc__.startswith(f"{name}(")


@pytest.mark.parametrize("name", VERBS)
def test_every_verb_is_a_typed_function_of_its_frozen_options(name: str) -> None:
    options = options_of(name)
    signature = inspect.signature(getattr(segunc, FUNCTION_OF[name]))
    assert set(signature.parameters) == {field.name for field in dataclasses.fields(options)}
    assert signature.return_annotation.__name__ == f"{name.capitalize()}Result"
    assert options.__dataclass_params__.frozen  # type: ignore[attr-defined]


GUIDES = [ROOT / "README.md", *sorted((ROOT / "docs/guides").glob("*.md"))]
PAGES = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    *sorted(path for path in DOCS.rglob("*.md") if "_build" not in path.parts),
]
TEXTS = {path.name: path.read_text(encoding="utf-8") for path in GUIDES}
BLOCKS = [
    block
    for text in TEXTS.values()
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL)
]
COMMANDS = [
    line for text in TEXTS.values() for line in re.findall(r"^\$ (segunc .*)$", text, re.MULTILINE)
]
MODULE, JOB, HUB, ONNX, OPENVINO = (
    next(i for i, block in enumerate(BLOCKS) if mark in block)
    for mark in (
        "# my_training.py",
        "segunc.review",
        "push_to_hub",
        "# ONNX Runtime:",
        "# OpenVINO:",
    )
)
"""``HUB`` needs a hub, and runs in ``tests/posteriors/test_model_card.py``; ``ONNX`` and
``OPENVINO`` need an exported file, and run in ``tests/exporting/test_export.py``.
"""
ELSEWHERE = (JOB, HUB, ONNX, OPENVINO)


def run_block(index: int, folder: Path) -> str:
    (folder / "my_training.py").write_text(BLOCKS[MODULE], encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", BLOCKS[index]],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.parametrize("index", [i for i in range(len(BLOCKS)) if i not in ELSEWHERE])
def test_python_blocks_run(index: int, tmp_path: Path) -> None:
    stored = np.arange(12, dtype=np.uint16).reshape(3, 4)
    (tmp_path / "maps" / "epistemic").mkdir(parents=True)
    cv2.imwrite(str(tmp_path / "maps" / "epistemic" / "000000.png"), stored)
    for seed, folder in enumerate(("abnn_maps", "base_maps")):
        write_folder(tmp_path / folder, {"000000": maps_of(seed)})
    printed = run_block(index, tmp_path)
    if "maps.prediction.shape" in BLOCKS[index]:
        shape, entropy, epistemic = re.fullmatch(r"(\(\d+, \d+\)) (\S+) (\S+)\n", printed).groups()  # type: ignore[union-attr]
        documented = re.search(r"It prints `(\(.*\)) (\S+) (\S+)`", TEXTS["README.md"])
        assert documented is not None
        assert shape == documented[1]
        # Other processors round otherwise.
        assert float(entropy) == pytest.approx(float(documented[2]), abs=0.02)
        assert float(epistemic) == pytest.approx(float(documented[3]), abs=0.005)


def test_a_training_script_comes_to_maps_of_a_video_and_to_numbers(
    toy_set: Path, tmp_path: Path
) -> None:
    shutil.copy(toy_set / "video" / "crossing.webm", tmp_path / "drive.webm")
    (tmp_path / "labels").mkdir()
    mask = np.zeros((64, 128), np.uint8)
    mask[40:50, 60:70] = 1
    for frame in range(3):
        cv2.imwrite(str(tmp_path / "labels" / f"{frame:06}.png"), mask)
    cv2.imwrite(str(tmp_path / "frame.png"), np.zeros((64, 128, 3), np.uint8))
    printed = re.search(r"(\d+) frames, AUROC of entropy (0\.\d+)", run_block(JOB, tmp_path))
    assert printed is not None
    assert int(printed[1]) == 12
    assert json.loads((tmp_path / "runs/abnn/posterior.json").read_text())["members"] == 3
    assert (tmp_path / "review/index.html").exists()


def without_code(text: str) -> str:
    """Return a page without its code blocks, whose lines may look like headings."""
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def headings_of(page: Path) -> set[str]:
    """Return the names by which links lead to the headings of a page."""
    text = without_code(page.read_text(encoding="utf-8"))
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_files_and_headings(page: Path) -> None:
    text = without_code(page.read_text(encoding="utf-8"))
    for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", text):
        name, _, heading = target.partition("#")
        path = page.parent / name if name else page
        assert path.exists(), target
        if heading and path.suffix == ".md":
            assert heading in headings_of(path), target


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_parse(command: str) -> None:
    words = shlex.split(command)[1:]
    arguments, rest = build_parser().parse_known_args(words)
    assert arguments.verb == words[0]
    if arguments.verb not in ("train", "finetune"):
        assert not rest
    for config in re.findall(r"configs/\S+\.yaml", command):
        assert (ROOT / config).is_file()


NUMBER = re.compile(r"\d+(\.\d+)?(e[-+]\d+)?")


def run_notebook(name: str) -> tuple[list[str], list[str]]:
    """Return what a notebook stores as its outputs, and what a run of it shows."""
    notebook = json.loads((DOCS / name).read_text("utf-8"))
    stored = outputs_of(notebook)
    execute(notebook)
    return stored, outputs_of(notebook)


def without_digits(texts: list[str]) -> list[str]:
    """Return texts with 0 for each number, and one space for several: numbers differ between
    processors.
    """
    return [re.sub(r" +", " ", NUMBER.sub("0", text)) for text in texts]


def outputs_of(notebook: dict[str, Any]) -> list[str]:
    """Return the texts of a notebook's outputs; a figure is "figure"."""
    texts = []
    for cell in notebook["cells"]:
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            shown = output.get("text") or data.get("text/plain")
            texts.append("figure" if "image/png" in data else "".join(shown))
    return texts


def test_the_notebook_of_first_steps_runs_and_shows_what_it_says() -> None:
    stored, printed = run_notebook("start.ipynb")
    assert stored.count("figure") == 2
    assert without_digits(printed) == without_digits(stored)
    areas = re.findall(
        r"^(?:entropy|epistemic|deterministic-energy) +(0\.\d+)", printed[-1], re.MULTILINE
    )
    assert len(areas) == 3
    assert min(map(float, areas)) > 0.6  # of .5 by chance


@pytest.mark.slow
def test_the_notebook_of_methods_runs_and_shows_what_it_says() -> None:
    stored, printed = run_notebook("methods.ipynb")
    assert stored.count("figure") == 2
    assert without_digits(printed) == without_digits(stored)
    (table,) = [text for text in printed if text.startswith("method ")]
    areas = dict(re.findall(r"^(\w+) +[\w-]+ +(\d\.\d+)", table, re.MULTILINE))
    assert list(areas) == ["base", "TTA", "ABNN", "SWAG", "Anomaly"]
    # Which method leads differs between processors, and the page says that intervals overlap.
    assert float(areas["Anomaly"]) > float(areas["base"])
    here, there = re.findall(r"anomaly up to (\S+)", printed[-1])
    assert here == there, "a saved model gives the same maps in another process"


@pytest.mark.parametrize(
    "path", sorted((DOCS / "concepts").glob("*.md")), ids=lambda path: path.name
)
def test_a_concept_shows_a_picture_below_its_first_paragraph(path: Path) -> None:
    _, _, picture, *_ = path.read_text(encoding="utf-8").split("\n\n")
    alternative, file = re.fullmatch(r"!\[(.+)\]\((.+)\)", picture).groups()  # type: ignore[union-attr]
    assert len(alternative.split()) > 5
    assert (path.parent / file).is_file()


# The page on design: what another package can add.

DESIGN = (DOCS / "design.md").read_text(encoding="utf-8")


def rows_below(heading: str) -> list[list[str]]:
    """Return the cells of the first table below a line that begins with ``heading``."""
    lines = DESIGN[DESIGN.index(f"\n{heading}") :].splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("|---"))
    rows = []
    for line in lines[first + 1 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def registry_of(place: str) -> Registry[Any]:
    """Return the table that the page writes as ``scores.SCORES``."""
    module, _, name = place.rpartition(".")
    table: Registry[Any] = getattr(importlib.import_module(f"segunc.{module}"), name)
    return table


SOURCES = "\n".join(path.read_text("utf-8") for path in (ROOT / "segunc").rglob("*.py"))
TABLES = rows_below("## How to add something")


def test_the_design_names_every_table_with_its_group_and_a_file() -> None:
    groups = []
    for _, table_and_group, file in TABLES:
        table, group = re.findall(r"`([^`]+)`", table_and_group)
        assert registry_of(table).group == group
        assert (ROOT / file.strip("` ")).is_file()
        groups.append(group)
    declared = re.findall(r'Registry\(\s*"[^"]+",\s*"(segunc\.\w+)"', SOURCES)
    assert len(declared) > 8
    assert set(declared) <= set(groups)


def test_entry_points_of_the_design_lead_to_what_the_tests_add() -> None:
    (block,) = re.findall(r"```toml\n(.*?)```", DESIGN, re.DOTALL)
    groups = tomllib.loads(block)["project"]["entry-points"]
    known = {registry_of(re.findall(r"`([^`]+)`", row[1])[0]).group for row in TABLES}
    assert set(groups) <= known
    for points in groups.values():
        for place in points.values():
            module, _, name = place.removeprefix("my_package.").partition(":")
            assert hasattr(importlib.import_module(f"tests.outside.{module}"), name)


def test_the_design_names_the_fields_of_a_score() -> None:
    named = {}
    for names, default, _ in rows_below("### A score"):
        for name in re.findall(r"`(\w+)`", names):
            named[name] = default.strip("` ")
    fields = {}
    for field in dataclasses.fields(Score):
        default = "" if field.default is dataclasses.MISSING else str(field.default)
        fields[field.name] = "empty" if field.default == "" else default
    assert named == fields


def test_the_design_names_the_evidence_of_scores() -> None:
    named = {}
    for name, shape, _ in rows_below("Values are higher"):
        named[name.strip("` ")] = shape.strip("` ")
    assert list(named) == [name for name in EVIDENCE if name in named]
    assert set(named) == {need for score in SCORES.values() for need in score.needs}
    for name, shape in named.items():
        if shape.startswith("["):
            assert EVIDENCE[name].meaning.startswith(shape)
        else:
            assert "a number" in EVIDENCE[name].meaning


def test_the_section_of_the_design_is_the_one_that_the_tests_add() -> None:
    (block,) = re.findall(r"```python\n(.*?)```", DESIGN, re.DOTALL)
    file = (ROOT / "tests" / "outside" / "metric_part.py").read_text("utf-8")
    assert file.endswith(block)


def test_the_builder_of_a_section_has_the_signature_of_the_design() -> None:
    arguments, result = get_args(PartBuilder)
    assert arguments == [Sequence[str], Sequence[str], Sequence[AnomalyProtocol]]
    assert result == Sequence[ArrayPart]
    for build in PARTS.values():
        assert list(inspect.signature(build).parameters) == ["scores", "classes", "protocols"]


def test_the_design_names_every_room_once() -> None:
    named = []
    for rooms, _ in rows_below("## The rooms"):
        named += re.findall(r"`(\w+)`", rooms)
    files = [path for path in (ROOT / "segunc").iterdir() if not path.name.startswith("__")]
    rooms = [path.stem for path in files if path.is_dir() or path.suffix == ".py"]
    assert sorted(named) == sorted(rooms)
