"""``segunc compare``: results of evaluate side by side, as tables; or how maps differ, without
labels.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from segunc.core.errors import InputError
from segunc.core.files import write_file
from segunc.core.results import VerbResult
from segunc.evaluation.comparison import Comparison, compare as compare_results, format_comparison
from segunc.evaluation.difference_tables import format_differences
from segunc.evaluation.map_differences import MapsDifference
from segunc.evaluation.resampling import load_results
from segunc.options import CompareOptions, takes
from segunc.verbs.compare_maps import check_results_options, compare_folders, is_folder


@dataclass(frozen=True, repr=False)
class CompareResult(VerbResult):
    """Results side by side, or how maps differ.

    Attributes:
        comparison: the numbers of results, their intervals and the paired tests; of maps folders,
            which have no labels, their names without a row.
        text: the tables as Markdown.
        paths: the files with tables that were written.
        differences: of maps folders: how each differs from the baseline.
        page: on which the frames that differ most are shown; None if none was asked for.
    """

    comparison: Comparison
    text: str
    paths: tuple[Path, ...] = ()
    differences: tuple[MapsDifference, ...] = ()
    page: Path | None = None


@takes(CompareOptions)
def compare(options: CompareOptions) -> CompareResult:
    """Compare results of evaluate, or maps folders without labels, and write the tables.

    Raises:
        InputError: a result or a map cannot be read, or holds nothing that is asked for; or two
            folders share nothing that can be compared.

    >>> scores = ["entropy", "epistemic"]
    >>> asked = CompareOptions(results=[metrics], scores=scores, keys=["pooled.auroc"])
    >>> compared = compare(asked)
    >>> compared.comparison.columns
    ('entropy', 'epistemic')
    """
    if options.out and Path(options.out).suffix.lower() != ".md":
        raise InputError(f"--out {options.out} is not a Markdown file", hint="--out table.md")
    if any(is_folder(place) for place in options.results):
        return _compare_maps(options)
    check_results_options(options)
    results = load_results([Path(path) for path in options.results], options.names)
    comparison = compare_results(
        results, scores=options.scores, keys=options.keys, baseline=options.baseline
    )
    text = format_comparison(comparison)
    return CompareResult(comparison, text, _written(options, text))


def _compare_maps(options: CompareOptions) -> CompareResult:
    """Compare maps folders, and write the tables and the page."""
    differences = compare_folders(options)
    baseline = differences[0].baseline
    names = (baseline, *(difference.other for difference in differences))
    text = format_differences(differences)
    return CompareResult(
        comparison=Comparison(names, baseline=0, rows=(), warnings=()),
        text=text,
        paths=_written(options, text),
        differences=tuple(differences),
        page=Path(options.page).resolve() if options.page else None,
    )


def _written(options: CompareOptions, text: str) -> tuple[Path, ...]:
    """Write the tables where they are asked for; return the files."""
    if not options.out:
        return ()
    path = Path(options.out)
    write_file(path, f"{text}\n".encode())
    return (path,)
