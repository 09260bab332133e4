"""The wheel and the source archive of the last commit; the wheel has the same bytes whoever builds it where.

    python -m tools.wheel --out dist

What git has in HEAD is unpacked with the modes of a umask of 022 into an empty folder and built there by this environment's setuptools,
without a network: neither the checkout's path and modes nor files that lie about in it count. Times in the wheel are the commit's, and
nothing is compressed, since compressed bytes would be those of the machine's zlib. The source archive carries times of the build.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from hashlib import sha256
from pathlib import Path

from tools.default_install import ROOT

BUILD = """
import sys
from setuptools import build_meta
out = sys.argv[1]  # which setuptools changes
build_meta.build_sdist(out)
build_meta.build_wheel(out, {"--build-option": ["--compression=stored"]})
"""


def git(*arguments: str, root: Path) -> bytes:
    """Standard output of git in a checkout."""
    return subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, check=True).stdout


def build(out: Path, root: Path = ROOT) -> tuple[Path, Path]:
    """Build HEAD of the checkout ``root`` into the folder ``out``: the paths of the source archive and of the wheel.

    Raises:
        subprocess.CalledProcessError: ``root`` is no checkout.
        SystemExit: the build failed.
    """
    time = git("log", "-1", "--format=%ct", root=root).decode().strip()
    with tempfile.TemporaryDirectory() as folder:
        archive, tree = Path(folder) / "head.tar", Path(folder) / "tree"
        archive.write_bytes(git("-c", "tar.umask=0022", "archive", "HEAD", root=root))
        with tarfile.open(archive) as tar:
            tar.extractall(tree, filter="tar")
        return build_in(tree, out, time)


def build_in(tree: Path, out: Path, time: str) -> tuple[Path, Path]:
    """Build a folder of sources, with ``time`` (seconds since 1970) for all times in the wheel; returns as ``build`` does."""
    made = tree.parent / "made"
    command = [sys.executable, "-c", BUILD, str(made)]
    # Files that setuptools makes get the mode of this process.
    done = subprocess.run(
        command, cwd=tree, env={**os.environ, "SOURCE_DATE_EPOCH": time}, umask=0o022, capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    out.mkdir(parents=True, exist_ok=True)
    archive, wheel = (shutil.copy(next(made.glob(name)), out) for name in ("*.tar.gz", "*.whl"))
    return Path(archive), Path(wheel)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the folder of the two files")
    for path in build(parser.parse_args().out):
        print(f"{sha256(path.read_bytes()).hexdigest()}  {path}")
    if git("status", "--porcelain", root=ROOT):
        print("uncommitted changes are not in it", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
