"""The fault campaign: kills, damaged files, failing resources, flipped bits; each part with its count and seed.

    python -m tools.fault_campaign --out results.json [--part kills,fuzz,resources,silent,demo] [--seed 0] [--short]
    python -m tools.fault_campaign --case 'labels:4711' [--keep FOLDER]
    python -m tools.fault_campaign --document docs/reliability.md results.json

Prints a table, and of each cause of a failure the first case, with what runs it again. The exit code is 1 where anything failed. Needs the packages of the tests; some resources can only fail for root.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: bits do not depend on the cores of this machine

from tools.faults.report import Row, markdown, rewrite
from tools.faults.world import World, build
from tools.measuring import provenance

PARTS = ("kills", "fuzz", "resources", "silent")


def rows_of(part: str, world: World, arguments: argparse.Namespace) -> Iterator[Row]:
    """The rows of one part, as they come."""
    seed, only = arguments.seed, arguments.only
    if part == "kills":
        from tools.faults.kills import kill

        yield from kill(world, arguments.kills, seed, only)
    elif part == "demo":
        from tools.faults.kills import kill_demo

        yield kill_demo(world, 10, seed)
    elif part == "fuzz":
        from tools.faults.fuzz import fuzz

        yield from fuzz(world, arguments.cases, seed, only, arguments.workers)
    elif part == "resources":
        from tools.faults.resources import take_away

        yield from take_away(world, seed, only)
    elif part == "silent":
        from tools.faults.silent import flip

        yield flip(world, arguments.frames, arguments.flips, seed)


def _tell(row: Row) -> None:
    print(f"{row.part}, {row.target}: {row.cases} cases, {len(row.failures)} failures, {row.seconds} s", flush=True)
    for what, failures in row.distinct().items():
        print(f"    {len(failures)} x {what}: {failures[0].again} {failures[0].detail}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, metavar="JSON")
    parser.add_argument("--part", default=",".join(PARTS), help="of kills, fuzz, resources, silent, demo")
    parser.add_argument("--only", type=lambda text: text.split(";"), help="targets of the part, A;B")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--short", action="store_true", help="a form of minutes: few cases of everything")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--cases", type=int, default=200_000, help="of the fuzzing")
    parser.add_argument("--frames", type=int, default=10_000, help="of the run in which bits flip")
    parser.add_argument("--flips", type=int, default=20)
    parser.add_argument("--workers", type=int, default=2, help="processes of the fuzzing")
    parser.add_argument(
        "--work", type=Path, help="folder of what is made, kept and used again (default: a temporary one)"
    )
    parser.add_argument("--case", help="READER:NUMBER, one case of the fuzzing in this process")
    parser.add_argument("--keep", type=Path, help="folder for the damaged file of --case")
    parser.add_argument(
        "--document",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="MD JSON ...: results as tables into a document, no run",
    )
    arguments = parser.parse_args()
    if arguments.document:
        rewrite(arguments.document[0], arguments.document[1:])
        return 0
    if arguments.short:
        arguments.kills, arguments.cases, arguments.frames, arguments.flips = 30, 4_000, 50, 4
    begun, rows = time.monotonic(), list[Row]()
    with tempfile.TemporaryDirectory(prefix="segunc-faults-") as temporary:
        world = build(arguments.work or Path(temporary))
        if arguments.case:
            from tools.faults.fuzz import run_case

            name, _, number = arguments.case.rpartition(":")
            print(run_case(name.strip("'"), int(number), world, arguments.seed, arguments.keep))
            return 0
        for part in arguments.part.split(","):
            for row in rows_of(part, world, arguments):
                rows.append(row)
                _tell(row)
                if arguments.out:
                    seconds = round(time.monotonic() - begun)
                    content = {"seconds": seconds, "provenance": provenance(), "rows": [row.plain() for row in rows]}
                    arguments.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    print(f"\n{markdown(row.plain() for row in rows)}\n\n{sum(row.cases for row in rows)} cases")
    return 1 if any(row.failures for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
