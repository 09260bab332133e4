"""``segunc compare``: results side by side."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from segunc.core.errors import InputError
from segunc.core.files import write_file
from segunc.evaluation.compare import Comparison, csv_table, format_comparison, load_results
from segunc.evaluation.compare import compare as compare_results
from segunc.exchange.leaderboard import TRACKS, board_csv, format_board, load_board, place_results
from segunc.options import CompareOptions


@dataclass(frozen=True)
class CompareResult:
    """Results side by side."""

    comparison: Comparison
    text: str  # its tables, with the places on the leaderboard, as Markdown
    paths: tuple[Path, ...] = ()  # of the files that were written


def compare(options: CompareOptions) -> CompareResult:
    """Compare results of evaluate, and write the tables.

    Raises:
        InputError: a result cannot be read, or holds nothing that is asked for.

    >>> compared = compare(CompareOptions(results=[metrics], scores=["entropy", "epistemic"], keys=["pooled.auroc"]))
    >>> compared.comparison.columns
    ('entropy', 'epistemic')
    """
    out = Path(options.out) if options.out else None
    if out is not None and (out.suffix.lower() not in (".md", ".csv") or out.is_dir()):
        raise InputError(f"--out {out}", "the path of a .md or .csv file", "e.g. table.md")
    results = load_results([Path(path) for path in options.results], options.names)
    comparison = compare_results(results, scores=options.scores, keys=options.keys, baseline=options.baseline)
    text = format_comparison(comparison)
    tables = {out: csv_table(comparison)} if out is not None else {}
    if options.leaderboard:
        track = TRACKS[options.track]
        rows = place_results(load_board(Path(options.leaderboard), track), results, track, options.scores)
        text += "\n\n" + format_board(rows, results, track)
        if out is not None:
            tables[out.with_suffix(".leaderboard.csv")] = board_csv(rows, track)
    if out is not None and out.suffix.lower() == ".md":
        tables = {out: f"{text}\n"}
    for path, content in tables.items():
        write_file(path, content.encode())
    return CompareResult(comparison, text, tuple(tables))
