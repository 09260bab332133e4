"""Every method beside the deterministic base, on every protocol: makes, evaluates and reports what
one YAML file asks for.

    python -m tools.study_methods --plan PLAN.yaml --out runs/study --stage select
    python -m tools.study_methods --plan PLAN.yaml --out runs/study

A cell is a row of the plan, a seed and a protocol: `segunc finetune` and `segunc evaluate` run in
this process, with the words that its record, cell.json, keeps. Finished cells are kept, so the same
command continues a killed study, and what waits for a base network that is not trained yet is made
by a later call. `--stage select` makes the plan's candidates and ranks them by the NLL of its
selection frames; nothing else is looked at there. `--stage report` only writes the tables
(study.md, study.json) and figures again. A cell that other settings or options than the plan's made
stands in no table and is named below them, as are the commits and data that a table would mix.
`--keep DIR` copies what these need, small enough for a repository. Two processes may work on one
study if they are given other `--rows` or `--seeds`; `--evaluations` leaves the others for later.
"""

from __future__ import annotations

import argparse
import csv
import sys
from pathlib import Path

import torch

from segunc.core.errors import InputError
from segunc.options import whole_numbers
from tools.study.cells import Study
from tools.study.keeping import keep
from tools.study.plan import SELECTION, read_plan
from tools.study.report import report, selection_report


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--plan", type=Path, required=True, metavar="YAML", help="see configs/study/"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--stage", choices=("study", "select", "report"), default="study")
    parser.add_argument(
        "--rows",
        type=labels,
        metavar="A,B",
        help="labels of rows, one with a comma quoted (default: all)",
    )
    parser.add_argument(
        "--seeds", type=whole_numbers, metavar="A,B", help="seeds to work on (default: all)"
    )
    parser.add_argument(
        "--evaluations",
        type=labels,
        metavar="A,B",
        help="names of evaluations to make now (default: all of the plan)",
    )
    parser.add_argument(
        "--keep",
        type=Path,
        metavar="DIR",
        help="copy records, results and the replicates of the tables' numbers",
    )
    parser.add_argument("--device", default="auto")
    arguments = parser.parse_args()
    torch.set_flush_denormal(True)
    try:
        return run(arguments)
    except InputError as error:
        print(f"study_methods: {error}", file=sys.stderr)
        return 2


def labels(text: str) -> list[str]:
    """``base,"ABNN, 24 draws"`` as a list."""
    return next(csv.reader([text], skipinitialspace=True), [])


def run(arguments: argparse.Namespace) -> int:
    """Work on the cells that are asked for, then write what all finished ones say; 1 where one
    failed.
    """
    plan = read_plan(arguments.plan)
    selecting = arguments.stage == "select"
    out = arguments.out / SELECTION if selecting else arguments.out
    study = Study(plan, plan.candidates if selecting else plan.rows, out, arguments.device)
    failed = False
    for cell in study.cells(arguments.rows, arguments.seeds) if arguments.stage != "report" else ():
        print(f"\n== {cell.name}", flush=True)
        if selecting:
            evaluations = {SELECTION: plan.protocols[cell.protocol].selection}
        else:
            evaluations = plan.evaluations_of(cell.row, cell.protocol)
        if arguments.evaluations is not None:
            chosen = arguments.evaluations
            evaluations = {name: evaluations[name] for name in evaluations if name in chosen}
        outcome = study.run(cell, evaluations)
        print(f"== {cell.name}: {outcome}", flush=True)
        failed |= outcome.startswith("failed")
    if arguments.keep:
        print(f"\nkept {keep(study, arguments.keep)} cells in {arguments.keep}")
    out.mkdir(parents=True, exist_ok=True)
    print(f"\n{selection_report(study) if selecting else report(study)}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
