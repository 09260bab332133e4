"""What is installed: the same bytes of a wheel from any checkout, at work where no checkout is, and
locked dependencies.
"""

import os
import re
import subprocess
import sys
import sysconfig
import tomllib
import venv
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(not (ROOT / ".git").exists(), reason="this is no checkout")
JOB = """
import sys
from pathlib import Path
import segunc
from segunc.cli.main import main
from segunc.data.labels import label_map
from segunc.toyroads import ToyConfig, generate_toy

assert Path(segunc.__file__).is_relative_to(sys.prefix), segunc.__file__  # not the checkout's
toy = ToyConfig(seed=0, train=1, val=1, test=1, anomaly=2, video_frames=2, size=(64, 128))
generate_toy(Path("toy"), toy)
description = segunc.NetworkDescription("FPN", "mobilenet_v2", label_map("toy").classes)
segunc.save_network(segunc.build_network(description).eval(), "base")
for words in (
    "finetune --base base --out abnn --abnn.statistics frozen --device cpu",
    "predict --model abnn --input toy/leftImg8bit/anomaly --out maps --draws 3 --device cpu",
    "review --maps maps --labels toy/gtFine/anomaly --dataset toy --out page",
):
    assert main(words.split()) == 0, words
"""


def git(*words: str) -> str:
    return subprocess.run(
        ["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=True
    ).stdout


def build(out: Path, checkout: Path = ROOT) -> tuple[Path, Path]:
    subprocess.run(
        [ROOT / "tools" / "wheel.sh", out, sys.executable],
        cwd=checkout,
        capture_output=True,
        check=True,
    )
    (archive,), (wheel,) = out.glob("*.tar.gz"), out.glob("*.whl")
    return archive, wheel


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return build(tmp_path_factory.mktemp("built"))


def test_another_checkout_with_other_modes_gives_the_same_bytes(
    built: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "a checkout elsewhere"
    subprocess.run(
        ["git", "clone", "--quiet", "--shared", str(ROOT), str(other)], check=True, umask=0o077
    )
    (other / "segunc" / "left_about.py").touch()
    (other / "build" / "lib" / "segunc").mkdir(parents=True)
    (other / "build" / "lib" / "segunc" / "old.py").touch()
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    before = os.umask(0o077)
    try:
        _, wheel = build(tmp_path / "again", other)
    finally:
        os.umask(before)
    assert (other / "segunc" / "__init__.py").stat().st_mode & 0o777 == 0o600
    assert wheel.read_bytes() == built[1].read_bytes()


def test_the_wheel_has_every_file_of_the_package_and_no_other(built: tuple[Path, Path]) -> None:
    names = set(git("ls-tree", "-r", "--name-only", "HEAD", "segunc").splitlines())
    with ZipFile(built[1]) as wheel:
        packed = {name for name in wheel.namelist() if ".dist-info/" not in name}
        commit = wheel.read("segunc/core/commit.txt").decode().strip()
    assert packed == names | {"segunc/core/commit.txt"}
    assert commit == git("rev-parse", "HEAD").strip()
    assert {
        "segunc/py.typed",
        "segunc/sampling/affine_native.cpp",
        "segunc/sampling/native_numbers.h",
        "segunc/sampling/native_pieces.h",
        "segunc/sampling/tail_native.cpp",
        "segunc/verbs/demo_train.yaml",
    } < names


@pytest.mark.slow
def test_the_wheel_does_its_job_in_an_empty_folder(
    built: tuple[Path, Path], tmp_path: Path
) -> None:
    """In an environment with the dependencies of this one, but not with the package that is under
    test here.
    """
    place, empty = tmp_path / "venv", tmp_path / "empty"
    venv.create(place, with_pip=False)
    empty.mkdir()
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("PYTHON")
    }
    install = [
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-index",
        "--no-deps",
        str(built[1]),
    ]
    subprocess.run(
        [sys.executable, "-m", "pip", "--python", str(place), *install], env=environment, check=True
    )
    # Lines of .pth files count in the folder of a site alone, and not in one that such a line
    # names: the editable install's does not.
    own = Path(sysconfig.get_path("purelib", "venv", {"base": str(place)}))
    (own / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")

    def run(program: str, *words: str) -> str:
        command = [str(place / "bin" / program), *words]
        done = subprocess.run(
            command, cwd=empty, env=environment, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    assert "How far to trust a segmentation network" in run("segunc", "--help")
    run("python", "-c", JOB)
    assert (empty / "page" / "index.html").is_file()


def blocks(name: str) -> list[str]:
    return re.split(r"\n(?=\S)", (ROOT / name).read_text(encoding="utf-8").strip())


def requirement(block: str) -> Requirement:
    return Requirement(block.splitlines()[0].removesuffix("\\"))


def test_every_locked_line_is_a_version_with_hashes() -> None:
    whole, default, tools = (
        blocks(f"requirements{name}.lock") for name in ("", "-default", "-tools")
    )
    assert set(default) < set(whole)
    for block in (*whole, *default, *tools):
        first, *hashes = block.splitlines()
        assert re.fullmatch(r"[a-z0-9-]+==[^\s;]+( ; [^\\]+)? \\", first)
        assert hashes
        assert all(re.fullmatch(r"    --hash=sha256:[0-9a-f]{64}( \\)?", line) for line in hashes)


def test_the_locks_have_what_is_asked_for() -> None:
    """Neither a dependency nor a bound was added to pyproject.toml without `make lock`."""
    table = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extras = table["project"]["optional-dependencies"]
    asked = {
        "requirements.lock": [*table["project"]["dependencies"], *extras["dev"], *extras["export"]],
        "requirements-default.lock": table["project"]["dependencies"],
        "requirements-tools.lock": table["dependency-groups"]["tools"],
    }
    for lock, lines in asked.items():
        locked = [requirement(block) for block in blocks(lock)]
        for line in map(Requirement, lines):
            same = [found for found in locked if found.name == canonicalize_name(line.name)]
            versions = [str(found.specifier).removeprefix("==") for found in same]
            assert versions, f"{line} is not in {lock}"
            assert all(
                line.specifier.contains(version, prereleases=True) for version in versions
            ), f"{line} in {lock}"


def test_make_installs_nothing_whose_hash_it_does_not_check() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8").replace("\\\n", " ")
    checked = (
        "-m pip install --quiet --disable-pip-version-check --only-binary :all: --require-hashes"
    )
    assert f"INSTALL := {checked}\n" in text
    others = [line for line in text.splitlines() if "pip install" in line and checked not in line]
    assert [re.findall(r"--no-\S+", line) for line in others] == [
        ["--no-index", "--no-deps", "--no-build-isolation"]
    ]
