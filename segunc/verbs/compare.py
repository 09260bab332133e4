"""``segunc compare``: results side by side."""

from __future__ import annotations

import argparse
from pathlib import Path

from segunc.core.errors import InputError
from segunc.core.files import write_atomically
from segunc.evaluation.compare import compare, csv_table, format_comparison
from segunc.evaluation.results import load_results
from segunc.exchange.leaderboard import TRACKS, board_csv, format_board, load_board, place_results


def run(arguments: argparse.Namespace) -> None:
    """Print the table and write it."""
    out = Path(arguments.out) if arguments.out else None
    if out is not None and (out.suffix.lower() not in (".md", ".csv") or out.is_dir()):
        raise InputError(f"--out {out}", "the path of a .md or .csv file", "e.g. table.md")
    results = load_results([Path(path) for path in arguments.results], arguments.names)
    comparison = compare(results, scores=arguments.scores, keys=arguments.keys, baseline=arguments.baseline)
    text = format_comparison(comparison)
    tables = {out: csv_table(comparison)} if out is not None else {}
    if arguments.leaderboard:
        track = TRACKS[arguments.track]
        rows = place_results(load_board(Path(arguments.leaderboard), track), results, track, arguments.scores)
        text += "\n\n" + format_board(rows, results, track)
        if out is not None:
            tables[out.with_suffix(".leaderboard.csv")] = board_csv(rows, track)
    print(text)
    if out is None:
        return
    if out.suffix.lower() == ".md":
        tables = {out: f"{text}\n"}
    out.parent.mkdir(parents=True, exist_ok=True)
    for path, content in tables.items():
        write_atomically(path, content.encode())
        print(f"wrote {path}")
