"""``segunc review``: the review page of a maps folder, and the verdicts that come back from it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from segunc.core.errors import InputError
from segunc.core.files import write_json
from segunc.core.progress import ConsoleProgress
from segunc.core.results import VerbResult
from segunc.core.terminal import counted
from segunc.core.urls import local_folder
from segunc.decisions.flags import read_thresholds
from segunc.gallery.fiftyone_dataset import read_tags, write_dataset
from segunc.gallery.review_page import (
    EarlierVerdicts,
    earlier_verdicts,
    frames_of_other_images,
    note_on_program,
    page_of,
    run_id,
    verdict_file,
    write_review,
    write_verdicts,
)
from segunc.maps.labelled import open_maps
from segunc.maps.reader import MapsReader
from segunc.maps.verdicts import (
    Verdict,
    agreement_table,
    dispute_list,
    merge_verdicts,
    note_on_changes,
    note_on_dates,
    note_on_thresholds,
    read_verdict_files,
    summary_table,
    verdicts_on_images,
)
from segunc.options import ReviewOptions, flags_of, takes
from segunc.verbs.evaluate import label_sources


@dataclass(frozen=True, repr=False)
class ReviewResult(VerbResult):
    """A page, or verdicts that were read back.

    Attributes:
        page: the page, to open in a browser; None if verdicts were read.
        verdicts: the number of verdicts of each kind, as a table.
        path: the file from which the page takes these verdicts.
        notes: what a user should know.
        failure: how many frames could not be shown whole, in one line; empty where all were.
        dataset: name of the data set in FiftyOne, if it was asked for.
    """

    page: Path | None = None
    verdicts: str = ""
    path: Path | None = None
    notes: tuple[str, ...] = ()
    failure: str = ""
    dataset: str = ""


@takes(ReviewOptions)
def review(options: ReviewOptions) -> ReviewResult:
    """Write the page, or import verdicts.

    Raises:
        InputError: the maps, the labels or the verdicts do not fit.

    >>> review(ReviewOptions(maps=maps, out=folder / "review")).page.name
    'index.html'
    """
    if options.tags:
        return _read_tags(Path(options.tags), options)
    if options.to == "fiftyone":
        return _write_dataset(options)
    if options.verdicts:
        return _import([Path(path) for path in options.verdicts], options)
    if not options.out:
        raise InputError("the page has no place", hint="--out review")
    return _write_page(options, Path(options.out))


def _write_page(options: ReviewOptions, out: Path) -> ReviewResult:
    """Write the page into the folder ``out``."""
    labels = label_sources(options)
    with ConsoleProgress() as progress:
        page = write_review(
            local_folder(options.maps),
            out,
            labels,
            progress.count,
            images=options.images,
            scores=options.scores,
            apart=options.apart,
            fps=options.fps,
            limit=options.limit,
            blind=options.blind,
            flag=read_thresholds(options.flag),
        )
    record = page_of(out) or {}
    notes = (*labels.notes, *record.get("notices", ()))
    return ReviewResult(page.resolve(), notes=notes, failure=_failure(record))


def _write_dataset(options: ReviewOptions) -> ReviewResult:
    """Make the data set of FiftyOne.

    Raises:
        InputError: an option is given that only the page has, or what :func:`write_dataset` raises.
    """
    for name, unused in (("apart", 5.0), ("limit", None), ("blind", "auto")):
        if getattr(options, name) != unused:
            raise InputError(
                f"--to fiftyone takes no --{name}, which is for the page",
                hint=f"leave out --{name}",
            )
    if not options.out:
        raise InputError("the files of the data set have no place", hint="--out fiftyone")
    reader = open_maps(local_folder(options.maps))
    paths = [Path(path) for path in options.verdicts or ()]
    on_images = read_verdict_files(paths, run_id(reader), reader)
    labels = label_sources(options)
    with ConsoleProgress() as progress:
        written = write_dataset(
            local_folder(options.maps),
            Path(options.out),
            labels,
            progress.count,
            images=options.images,
            scores=options.scores,
            fps=options.fps,
            flag=read_thresholds(options.flag),
            verdicts=merge_verdicts(on_images.lists),
        )
    notes = (*labels.notes, *on_images.notes, *written.notes)
    return ReviewResult(notes=notes, failure=written.failure, dataset=written.name)


def _read_tags(path: Path, options: ReviewOptions) -> ReviewResult:
    """Write the verdicts of FiftyOne's tags as a file, and count them.

    Raises:
        InputError: a page or a data set is asked for as well, or what :func:`read_tags` raises.
    """
    if options.out:
        raise InputError(
            f"--tags reads verdicts from FiftyOne, so nothing is written to --out {options.out}",
            hint="leave out --out",
        )
    reader = open_maps(local_folder(options.maps))
    on_images = verdicts_on_images([read_tags(local_folder(options.maps))], reader)
    (verdicts,) = on_images.lists
    write_json(path, verdict_file(run_id(reader), verdicts))
    return ReviewResult(
        verdicts=summary_table(verdicts, len(reader.frames)),
        path=path,
        notes=tuple(on_images.notes),
    )


def _failure(record: Mapping[str, Any]) -> str:
    """Return how many frames of a page could not be shown whole, in one line; empty where all
    were.
    """
    problems = record.get("problems")
    if not problems:
        return ""
    frame, reasons = next(iter(problems.items()))
    return (
        f"{len(problems)} of {record['frames']} frames could not be shown whole, "
        f"first {frame} ({reasons[0]}); the page shows the rest, and says so of each"
    )


# Options that --import takes, also where there is a page.
IMPORT_OPTIONS = ("maps", "verdicts", "out", "to", "tags", "device")


def _refuse_page_options(options: ReviewOptions) -> None:
    """Raise InputError where an option of the page is given, though the page is there already."""
    usual = ReviewOptions(maps=options.maps)
    given = [
        flags_of(field)[0]
        for field in fields(options)
        if field.name not in IMPORT_OPTIONS
        and getattr(options, field.name) != getattr(usual, field.name)
    ]
    if given:
        words = " and ".join(given)
        raise InputError(
            f"{options.out} holds a page already, and --import adds verdicts without making it "
            f"again, so {words} would change nothing",
            hint=f"first segunc review with {words} and without --import makes the page again",
        )


def _notes_on(
    merged: Sequence[Verdict],
    earlier: EarlierVerdicts,
    lists: Sequence[Sequence[Verdict]],
    out: str | Path | None,
) -> tuple[str, ...]:
    """Return lines on dates, changes, thresholds and earlier imports among merged verdicts."""
    given = list(itertools.chain(earlier.kept, *lists))
    notes = (
        note_on_dates(given),
        note_on_changes(given),
        note_on_thresholds(merged),
        _note_on_earlier(earlier, lists, out),
        earlier.note_on_images,
    )
    return tuple(note for note in notes if note)


def _note_on_earlier(
    earlier: EarlierVerdicts, lists: Sequence[Sequence[Verdict]], out: str | Path | None
) -> str:
    """Return a line on the verdicts of earlier imports that the page keeps beside those of the
    files; empty where there is none.
    """
    if not earlier.kept:
        return earlier.note  # that they cannot be read
    subjects = {verdict.subject for verdicts in lists for verdict in verdicts}
    number = sum(verdict.subject not in subjects for verdict in earlier.kept)
    if not number:
        return ""
    are = "1 verdict of an earlier import is"
    if number > 1:
        are = f"{number} verdicts of earlier imports are"
    return (
        f"{are} not in these files; the page in {out} keeps and counts them; for a page of these "
        "files alone, give a new folder as --out"
    )


def _earlier_on(
    page: Mapping[str, Any], reader: MapsReader, options: ReviewOptions
) -> EarlierVerdicts:
    """Return the verdicts that a page holds from earlier imports.

    Raises:
        InputError: the page is of other maps or of other images, or an option of the page is given.
    """
    out = Path(str(options.out))
    if page.get("run") != run_id(reader):
        raise InputError(
            f"{out} is a review page of other maps than those in {reader.place}",
            hint="give the --out of their page, or a new folder",
        )
    changed = frames_of_other_images(out, reader)
    if changed:
        raise InputError(
            f"{out} shows {counted(len(changed), 'frame')}, first {changed[0]}, of other images "
            f"than the maps in {reader.place} are of now",
            hint="first segunc review without --import makes the page again",
        )
    _refuse_page_options(options)
    return earlier_verdicts(out, reader)


def _import(paths: Sequence[Path], options: ReviewOptions) -> ReviewResult:
    """Merge and count verdicts and, where there is a page of the same run, let it show them beside
    those that it holds from earlier imports.
    """
    reader = open_maps(local_folder(options.maps))
    run = run_id(reader)
    on_images = read_verdict_files(paths, run, reader)
    page = page_of(Path(options.out)) if options.out else None
    earlier = _earlier_on(page, reader, options) if page else EarlierVerdicts([], "")
    verdicts = merge_verdicts([earlier.kept, *on_images.lists])
    notes = (*on_images.notes, *_notes_on(verdicts, earlier, on_images.lists, options.out))
    tables = [
        summary_table(verdicts, len(reader.frames)),
        agreement_table(verdicts),
        dispute_list(verdicts),
    ]
    table = "\n\n".join(table for table in tables if table)
    if not options.out:
        return ReviewResult(verdicts=table, notes=notes)
    out = Path(options.out)
    made = ReviewResult() if page else _write_page(options, out)
    path = write_verdicts(out, run, verdicts)
    program = note_on_program(out)
    if program:
        notes = (*notes, program)
    return replace(made, verdicts=table, path=path, notes=(*notes, *made.notes))
