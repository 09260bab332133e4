"""``segunc export``: score maps in the formats of the public benchmarks, and maps for viewers."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

from segunc.cli.options import BENCHMARKS
from segunc.core.errors import InputError
from segunc.core.progress import ConsoleProgress, Progress
from segunc.exchange.export import ExportSummary, export_maps
from segunc.exchange.fiftyone import export_fiftyone
from segunc.exchange.rerun import export_rerun

VIEWER_EXPORTS = {"rerun": export_rerun, "fiftyone": export_fiftyone}


def run(arguments: argparse.Namespace) -> None:
    """Export and say where it is."""
    start = time.monotonic()
    export = _to_benchmark if arguments.to in BENCHMARKS else _to_viewer
    with ConsoleProgress() as show:
        summary = export(arguments, lambda done, total: show(Progress(done, 0, 0, total, time.monotonic() - start)))
    for note in summary.notes:
        print(f"note: {note}")
    what = f" of '{arguments.score}'" if arguments.score else ""
    print(f"{summary.written} of {summary.total} frames{what} in {summary.folder}")
    summary.raise_failures()


def _to_benchmark(arguments: argparse.Namespace, on_frame: Callable[[int, int], None]) -> ExportSummary:
    if not arguments.score:
        raise InputError(f"--to {arguments.to} without --score", "the score to hand in", "e.g. --score entropy")
    if arguments.images:
        raise InputError(f"--images with --to {arguments.to}", "a viewer", "leave --images out")
    return export_maps(
        Path(arguments.maps),
        Path(arguments.out),
        arguments.score,
        arguments.to,
        method=arguments.method,
        dataset=arguments.dataset,
        overwrite=arguments.overwrite,
        on_frame=on_frame,
    )


def _to_viewer(arguments: argparse.Namespace, on_frame: Callable[[int, int], None]) -> ExportSummary:
    scores = [part.strip() for part in arguments.score.split(",")] if arguments.score else None
    return VIEWER_EXPORTS[arguments.to](
        Path(arguments.maps),
        Path(arguments.out),
        scores=scores,
        images=arguments.images,
        overwrite=arguments.overwrite,
        on_frame=on_frame,
    )
