"""Results of evaluations from disk, and whether two of them are of the same data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from segunc.core.errors import InputError
from segunc.core.files import read_json
from segunc.evaluation.resampling import NumberPath, Replicates, load_replicates, sidecar_path

ABOUT = ("intervals", "reasons", "counts", "left_out", "run", "bootstrap", "unfinished", "component_mode")
"""What a result says of its numbers; every other key is a section that holds numbers."""
HIGHER_IS_BETTER = (
    *("auroc", "aupr", "best_f1", "miou", "accuracy", "siou_gt", "ppv", "mean_f1"),
    *("failure_auroc", "failure_aupr", "pavpu"),
)
LOWER_IS_BETTER = (
    *("fpr95", "ece", "adaptive_ece", "classwise_ece", "nll", "brier", "aurc", "augrc", "ause", "failure_fpr95"),
)
_EVALUATED = {
    "scores": ("anomaly_frames", "anomaly_pixels", "normal_pixels"),
    "segmentation": ("labelled_frames", "labelled_pixels"),
}
"""Section -> counts that must agree for its numbers to be of the same data; the others are as segmentation."""


@dataclass(frozen=True)
class EvaluationResult:
    """One ``metrics.json``.

    Attributes:
        name: how it is called in a table.
        path: its file.
        content: all of it.
        numbers: every number, None where it is null.
        replicates: of its sidecar, None where there is none.
    """

    name: str
    path: Path
    content: Mapping[str, Any]
    numbers: Mapping[NumberPath, float | None]
    replicates: Replicates | None

    def interval(self, path: NumberPath) -> tuple[float, float] | None:
        """The 95 % interval of a number, None where there is none."""
        bounds = self.content.get("intervals", {}).get(".".join(path))
        return (float(bounds[0]), float(bounds[1])) if bounds and None not in bounds else None

    def replicates_of(self, path: NumberPath) -> npt.NDArray[np.float64] | None:
        """The bootstrap replicates ``[R]`` of a number, None where there are none."""
        dotted = ".".join(path)
        if self.replicates is None or dotted not in self.replicates.paths:
            return None
        return np.asarray(self.replicates.values[self.replicates.paths.index(dotted)], np.float64)

    def reason(self, path: NumberPath) -> str:
        """Why a number is null."""
        return str(self.content.get("reasons", {}).get(".".join(path), "no reason is given"))


def load_results(paths: Sequence[Path], names: Sequence[str] | None = None) -> list[EvaluationResult]:
    """Read results of ``segunc evaluate`` with their sidecars.

    Names are the files' stems, with their folder before it where two files share one.

    Raises:
        InputError: a file cannot be read or is no result, or names lack or repeat.
    """
    stems = Counter(path.stem for path in paths)
    found = names or [f"{p.resolve().parent.name}/{p.stem}" if stems[p.stem] > 1 else p.stem for p in paths]
    if len(found) != len(paths):
        raise InputError(f"{len(found)} names for {len(paths)} results", "one name for each", "--names a,b")
    repeated = [name for name, number in Counter(found).items() if number > 1]
    if repeated:
        raise InputError(f"two results are named '{repeated[0]}'", "each name once", "give --names")
    return [_load(path, name) for path, name in zip(paths, found, strict=True)]


def higher_is_better(path: NumberPath) -> bool | None:
    """The direction of a number; None where it has none (a threshold) or is not known."""
    if path[-1] in LOWER_IS_BETTER:
        return False
    # An IoU of a class and an F1 at a threshold are named by the class and the threshold.
    return True if path[-1] in HIGHER_IS_BETTER or path[-2:-1] in (("per_class",), ("f1",)) else None


def differing_counts(first: EvaluationResult, second: EvaluationResult, section: str) -> list[str]:
    """The counts that tell that a section's numbers of two results are of different data, as ``name (n and m)``."""
    a, b = first.content["counts"], second.content["counts"]
    keys = _EVALUATED.get(section, _EVALUATED["segmentation"])
    return [f"{key} ({a.get(key)} and {b.get(key)})" for key in keys if a.get(key) != b.get(key)]


def data_warnings(results: Sequence[EvaluationResult]) -> list[str]:
    """One line for each result that is of other data than the first."""
    warnings = []
    for other in results[1:]:
        first = results[0]
        different = [text for section in _EVALUATED for text in differing_counts(first, other, section)]
        for key in ("dataset", "split"):
            a, b = (result.content.get("run", {}).get(key) for result in (first, other))
            if None not in (a, b) and a != b:
                different.append(f"{key} ({a} and {b})")
        lost, lost_other = ({e.get("frame") for e in r.content.get("left_out", [])} for r in (first, other))
        if lost != lost_other:
            different.append(f"left_out ({len(lost)} and {len(lost_other)} frames)")
        if different:
            warnings.append(f"not comparable: {first.name} and {other.name} differ in {', '.join(different)}")
    return warnings


def _load(path: Path, name: str) -> EvaluationResult:
    content = read_json(path, "a result of segunc evaluate")
    if not all(isinstance(content.get(key), dict) for key in ("scores", "counts")):
        raise InputError(f"{path} holds no scores and counts", "a result of segunc evaluate", "give another file")
    sidecar = sidecar_path(path)
    replicates = load_replicates(sidecar) if sidecar.is_file() else None
    sections = [section for section in content if section not in ABOUT]
    numbers = {where: value for section in sections for where, value in _numbers(content[section], (section,))}
    return EvaluationResult(name, path, content, numbers, replicates)


def _numbers(content: Any, prefix: NumberPath) -> Iterator[tuple[NumberPath, float | None]]:
    """The numbers and nulls of nested objects; lists (points of curves) are no numbers of a table."""
    if isinstance(content, Mapping):
        for key, value in content.items():
            yield from _numbers(value, (*prefix, str(key)))
    elif len(prefix) > 1 and (content is None or (isinstance(content, int | float) and not isinstance(content, bool))):
        yield prefix, None if content is None else float(content)
