"""``segunc review``: write the page of a maps folder, or read back the verdicts that reviewers gave on it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from segunc.core.errors import InputError
from segunc.core.progress import count_frames
from segunc.data.datasets import dataset_entry
from segunc.data.entry import BINARY
from segunc.gallery.description import run_id
from segunc.gallery.inputs import open_maps
from segunc.gallery.page import write_review
from segunc.gallery.verdicts import VERDICTS_NAME, page_of, read_verdicts, summary_table, write_verdicts
from segunc.options import ReviewOptions


@dataclass(frozen=True)
class ReviewResult:
    """A page, or verdicts that were read back."""

    page: Path | None = None  # to open in a browser
    verdicts: str = ""  # how many of which kind, as a table
    path: Path | None = None  # of the file through which the page shows these verdicts


def review(options: ReviewOptions) -> ReviewResult:
    """Write the page, or import verdicts.

    Raises:
        InputError: the maps, the labels or the verdicts do not fit.

    >>> review(ReviewOptions(maps=maps, out=folder / "review")).page.name
    'index.html'
    """
    if options.verdicts:
        return _import(Path(options.verdicts), options)
    if not options.out:
        raise InputError("no --out is given", "a folder for the page", "e.g. --out review")
    entry = dataset_entry(options.dataset) if options.dataset else None
    if options.labels and (entry is None or entry.labels is None):
        raise InputError(
            "--labels without the data set they belong to", "--dataset with class labels", "e.g. --dataset cityscapes"
        )
    with count_frames() as show:
        page = write_review(
            Path(options.maps),
            Path(options.out),
            labels=_path(options.labels),
            label_map=entry.label_map() if options.labels and entry else None,
            anomaly_labels=_path(options.anomaly_labels),
            anomaly_encoding=(entry.anomaly_encoding if entry else None) or BINARY,
            compare=_path(options.compare),
            images=options.images,
            metrics=_path(options.metrics),
            scores=options.scores,
            limit=options.limit,
            on_frame=show,
        )
    return ReviewResult(page.resolve())


def _import(given: Path, options: ReviewOptions) -> ReviewResult:
    reader = open_maps(Path(options.maps))
    verdicts = read_verdicts(given, run_id(reader), reader.frames)
    table = summary_table(verdicts, len(reader.frames))
    if not options.out:
        return ReviewResult(verdicts=table)
    out = Path(options.out)
    page = page_of(out)
    if page is None or page.get("run") != run_id(reader):
        raise InputError(f"{out} is no review page of these maps", "the --out of that page", "check the path")
    write_verdicts(out, run_id(reader), verdicts)
    return ReviewResult(verdicts=table, path=out / VERDICTS_NAME)


def _path(given: str | Path | None) -> Path | None:
    return Path(given) if given else None
