"""``segunc compare``: results of evaluate side by side, as tables."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from segunc.core.errors import InputError
from segunc.core.files import write_file
from segunc.core.results import VerbResult
from segunc.evaluation.comparison import Comparison, compare as compare_results, format_comparison
from segunc.evaluation.resampling import load_results
from segunc.options import CompareOptions, takes


@dataclass(frozen=True, repr=False)
class CompareResult(VerbResult):
    """Results side by side.

    Attributes:
        comparison: the numbers, their intervals and the paired tests.
        text: the tables as Markdown.
        paths: the files that were written.
    """

    comparison: Comparison
    text: str
    paths: tuple[Path, ...] = ()


@takes(CompareOptions)
def compare(options: CompareOptions) -> CompareResult:
    """Compare results of evaluate, and write the tables.

    Raises:
        InputError: a result cannot be read, or holds nothing that is asked for.

    >>> scores = ["entropy", "epistemic"]
    >>> asked = CompareOptions(results=[metrics], scores=scores, keys=["pooled.auroc"])
    >>> compared = compare(asked)
    >>> compared.comparison.columns
    ('entropy', 'epistemic')
    """
    if options.out and Path(options.out).suffix.lower() != ".md":
        raise InputError(f"--out {options.out} is not a Markdown file", hint="--out table.md")
    for path in options.results:
        if Path(path).is_dir():
            raise InputError(
                f"{path} is a folder, and compare reads results of segunc evaluate, which need "
                "labels",
                hint=f"segunc evaluate --maps {path} --anomaly-labels MASKS --out a.json; without "
                f"labels, segunc summary --maps {path} lists the frames that stand out",
            )
    results = load_results([Path(path) for path in options.results], options.names)
    comparison = compare_results(
        results, scores=options.scores, keys=options.keys, baseline=options.baseline
    )
    text = format_comparison(comparison)
    if not options.out:
        return CompareResult(comparison, text)
    path = Path(options.out)
    write_file(path, f"{text}\n".encode())
    return CompareResult(comparison, text, (path,))
