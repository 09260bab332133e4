"""Kill `segunc predict` with SIGKILL, start it again, and compare every byte with an unbroken run.

    python -m tools.kill_and_resume --model runs/camvid-abnn --input drive.mp4 --work /some/empty/folder [--after 20] -- --draws 6

What follows `--` goes to `segunc predict`. Compared are frames.jsonl and every map; videos and timings are not.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import time
from pathlib import Path


def command(arguments: argparse.Namespace, out: Path) -> list[str]:
    """The predict command into one folder."""
    fixed = ["predict", "--model", arguments.model, "--input", arguments.input, "--out", str(out)]
    return [sys.executable, "-m", "segunc", *fixed, *arguments.rest]


def lines(out: Path) -> int:
    """Finished frames of a maps folder."""
    path = out / "frames.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--input", required=True)
    parser.add_argument("--work", required=True, type=Path)
    parser.add_argument("--after", type=int, nargs="+", default=[20, 90], help="finished frames at each kill")
    parser.add_argument("rest", nargs="*")
    arguments = parser.parse_args()
    whole, broken = arguments.work / "unbroken", arguments.work / "broken"
    subprocess.run(command(arguments, whole), check=True)
    for count in arguments.after:
        process = subprocess.Popen(command(arguments, broken))
        while process.poll() is None and lines(broken) < count:
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        process.wait()
        print(f"killed with {lines(broken)} frames finished", flush=True)
    subprocess.run(command(arguments, broken), check=True)
    compared = 0
    for path in sorted(whole.rglob("*")):
        if not path.is_file() or path.name in ("manifest.json", "overlay.webm", "overlay.mp4"):
            continue
        twin = broken / path.relative_to(whole)
        if not twin.exists() or twin.read_bytes() != path.read_bytes():
            print(f"differs: {path.relative_to(whole)}")
            return 1
        compared += 1
    extra = {p.relative_to(broken) for p in broken.rglob("*") if p.is_file()} - {
        p.relative_to(whole) for p in whole.rglob("*")
    }
    if extra:
        print(f"left over: {sorted(map(str, extra))[:5]}")
        return 1
    print(f"{compared} files are equal to the byte")
    return 0


if __name__ == "__main__":
    sys.exit(main())
