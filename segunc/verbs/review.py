"""``segunc review``: write the page of a maps folder, or read back the verdicts that reviewers gave on it."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from segunc.core.errors import InputError
from segunc.core.progress import ConsoleProgress, Progress
from segunc.data.datasets import dataset_entry
from segunc.data.entry import BINARY
from segunc.review.description import run_id
from segunc.review.inputs import open_maps
from segunc.review.page import write_review
from segunc.review.verdicts import VERDICTS_NAME, page_of, read_verdicts, summary_table, write_verdicts


def run(arguments: argparse.Namespace) -> None:
    """Write the page, or import verdicts."""
    if arguments.verdicts:
        _import(arguments)
        return
    if not arguments.out:
        raise InputError("no --out is given", "a folder for the page", "e.g. --out review")
    entry = dataset_entry(arguments.dataset) if arguments.dataset else None
    if arguments.labels and (entry is None or entry.labels is None):
        raise InputError(
            "--labels without the data set they belong to", "--dataset with class labels", "e.g. --dataset cityscapes"
        )
    with ConsoleProgress() as show:
        start = time.monotonic()
        page = write_review(
            Path(arguments.maps),
            Path(arguments.out),
            labels=_path(arguments.labels),
            label_map=entry.label_map() if arguments.labels and entry else None,
            anomaly_labels=_path(arguments.anomaly_labels),
            anomaly_encoding=(entry.anomaly_encoding if entry else None) or BINARY,
            compare=_path(arguments.compare),
            images=arguments.images,
            metrics=_path(arguments.metrics),
            scores=arguments.scores,
            limit=arguments.limit,
            on_frame=lambda done, total: show(Progress(done, 0, 0, total, time.monotonic() - start)),
        )
    print(f"open {page.resolve()} in a browser")


def _import(arguments: argparse.Namespace) -> None:
    reader = open_maps(Path(arguments.maps))
    verdicts = read_verdicts(Path(arguments.verdicts), run_id(reader), reader.frames)
    print(summary_table(verdicts, len(reader.frames)))
    if arguments.out:
        out = Path(arguments.out)
        page = page_of(out)
        if page is None or page.get("run") != run_id(reader):
            raise InputError(f"{out} is no review page of these maps", "the --out of that page", "check the path")
        write_verdicts(out, run_id(reader), verdicts)
        print(f"wrote {out / VERDICTS_NAME}; the page shows these verdicts")


def _path(text: str | None) -> Path | None:
    return Path(text) if text else None
