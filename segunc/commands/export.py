"""``segunc export``: score maps in the formats of the public benchmarks."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from segunc.exchange.export import export_maps
from segunc.maps.pipeline import Progress
from segunc.maps.progress import ConsoleProgress


def run(arguments: argparse.Namespace) -> None:
    """Export one score and say where it is."""
    start = time.monotonic()
    with ConsoleProgress() as show:
        summary = export_maps(
            Path(arguments.maps),
            Path(arguments.out),
            arguments.score,
            arguments.to,
            method=arguments.method,
            dataset=arguments.dataset,
            overwrite=arguments.overwrite,
            on_frame=lambda done, total: show(Progress(done, 0, 0, total, time.monotonic() - start)),
        )
    for note in summary.notes:
        print(f"note: {note}")
    print(f"{summary.written} of {summary.total} frames of '{arguments.score}' in {summary.folder}")
    summary.raise_failures()
