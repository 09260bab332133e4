"""``segunc export``: score maps in the formats of the public benchmarks, and maps for viewers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from segunc.core.errors import InputError
from segunc.core.progress import count_frames
from segunc.exchange.export import export_maps
from segunc.exchange.fiftyone import export_fiftyone
from segunc.exchange.viewers import ViewerMaps, export_rerun
from segunc.options import ExportOptions

VIEWERS = {"rerun": export_rerun, "fiftyone": export_fiftyone}  # the others are benchmarks


@dataclass(frozen=True)
class ExportResult:
    """What was exported."""

    folder: Path  # of the files
    written: int  # frames
    total: int  # frames of the maps
    notes: tuple[str, ...] = ()  # what a user should know
    failure: str = ""  # which frames failed, in one line; empty where none did


def export(options: ExportOptions) -> ExportResult:
    """Write maps in the files of a benchmark or a viewer.

    Raises:
        InputError: the maps, the score or the place of the export do not fit.

    >>> result = export(ExportOptions(maps=maps, score="entropy", to="fishyscapes", out=folder / "export"))
    >>> result.written == result.total, len(list(result.folder.rglob("*_anomaly.npy")))
    (True, 4)
    """
    maps, out, to, anew = Path(options.maps), Path(options.out), options.to, options.overwrite
    with count_frames() as show:
        if export_to := VIEWERS.get(to):
            scores = [part.strip() for part in options.score.split(",")] if options.score else None
            content = ViewerMaps(maps, scores, options.images)
            summary = export_to(content, out, overwrite=anew, on_frame=show)
        elif not options.score:
            raise InputError(f"--to {to} without --score", "the score to hand in", "e.g. --score entropy")
        elif options.images:
            raise InputError(f"--images with --to {to}", "a viewer", "leave --images out")
        else:
            names = {"method": options.method, "dataset": options.dataset}
            summary = export_maps(maps, out, options.score, to, **names, overwrite=anew, on_frame=show)
    return ExportResult(summary.folder, summary.written, summary.total, tuple(summary.notes), summary.failure)
