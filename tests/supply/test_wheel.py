"""The wheel: the same bytes from any checkout, with all that the package needs, at work where no checkout is."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from zipfile import ZipFile

import pytest

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
labels = Path(segunc.__file__).parent / "data" / "labels"
assert [label_map(path.stem) for path in labels.glob("*.csv")]
generate_toy(Path("toy"), ToyConfig(seed=0, train=1, val=1, test=1, anomaly=2, video_frames=2, size=(64, 128)))
net = segunc.build_network(segunc.NetworkDescription("FPN", "mobilenet_v2", tuple("abcde")))
segunc.save_network(net.eval(), "base")
frames, masks = (f"toy/{name}/anomaly" for name in ("leftImg8bit", "gtAnomaly"))
for line in (
    "finetune --base base --out abnn --abnn.epochs 0 --abnn.alpha 0.1 --abnn.statistics frozen",
    f"predict --model abnn --input {frames} --out maps --draws 3",
    f"evaluate --maps maps --anomaly-labels {masks} --replicates 0 --out metrics.json",
    "review --maps maps --out page",
):
    assert main([*line.split(), *(() if line.startswith("evaluate") else ("--device", "cpu"))]) == 0, line
"""


def git(*words: str) -> str:
    return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=True).stdout


def build(out: Path, checkout: Path = ROOT) -> tuple[Path, Path]:
    """Source archive and wheel of a checkout."""
    subprocess.run([ROOT / "tools" / "wheel.sh", out, sys.executable], cwd=checkout, capture_output=True, check=True)
    (archive,), (wheel,) = out.glob("*.tar.gz"), out.glob("*.whl")
    return archive, wheel


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Source archive and wheel of this checkout."""
    return build(tmp_path_factory.mktemp("built"))


def test_another_checkout_with_other_modes_gives_the_same_bytes(
    built: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "a checkout elsewhere"
    subprocess.run(["git", "clone", "--quiet", "--shared", str(ROOT), str(other)], check=True, umask=0o077)
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
        assert {name for name in wheel.namelist() if ".dist-info/" not in name} == names
    assert {"segunc/py.typed", "segunc/sampling/tail_native.cpp", "segunc/verbs/demo_train.yaml"} < names


@pytest.mark.slow
def test_the_wheel_does_its_job_in_an_empty_folder(built: tuple[Path, Path], tmp_path: Path) -> None:
    """In an environment with the dependencies of this one, but not with the package that is under test here."""
    place, empty = tmp_path / "venv", tmp_path / "empty"
    venv.create(place, with_pip=False)
    empty.mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    install = ["install", "--quiet", "--disable-pip-version-check", "--no-index", "--no-deps", str(built[1])]
    subprocess.run([sys.executable, "-m", "pip", "--python", str(place), *install], env=environment, check=True)
    # Lines of .pth files count in the folder of a site alone, and not in one that such a line names: the editable install's does not.
    own = Path(sysconfig.get_path("purelib", "venv", {"base": str(place)}))
    (own / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")

    def run(program: str, *words: str) -> str:
        command = [str(place / "bin" / program), *words]
        done = subprocess.run(command, cwd=empty, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    assert "How far to trust a segmentation network" in run("segunc", "--help")
    run("python", "-c", JOB)
    assert (empty / "page" / "index.html").is_file()
