"""A maps folder for FiftyOne (https://docs.voxel51.com): images, the prediction as segmentation masks, scores as heatmaps.

In the documented layout of FiftyOne's type ``ImageSegmentationDirectory``, ``data/`` and ``labels/``, with a folder of heatmaps
for each score beside it. It is written without FiftyOne, whose own export needs a running database.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from segunc.core.errors import InputError
from segunc.core.files import inside, read_json, write_file, write_json
from segunc.exchange.export import ExportResult
from segunc.exchange.viewers import ViewerFrame, ViewerMaps
from segunc.gallery.colormap import DisplayRange, levels
from segunc.gallery.description import describe_classes
from segunc.maps.encoding import encode_jpeg, encode_png
from segunc.maps.statistics import STATISTICS

if TYPE_CHECKING:
    import fiftyone

INDEX_NAME = "segunc.json"
FORMAT = "segunc-fiftyone"
DATA, LABELS, HEATMAPS = "data", "labels", "heatmaps"
FIRST_CLASS = 1  # mask value of class 0: FiftyOne draws nothing where a mask is 0


def export_fiftyone(
    content: ViewerMaps, out: Path, *, overwrite: bool = False, on_frame: Callable[[int, int], None] | None = None
) -> ExportResult:
    """Write maps as ``data/F.jpg``, ``labels/F.png``, ``heatmaps/SCORE/F.png`` and ``segunc.json``.

    Masks hold the class id plus 1. Heatmaps are uint8, 0..255 over the fixed range of the score, which the index names
    with the classes and the statistics of each frame. A frame without an image has no place in FiftyOne and fails.
    ``overwrite`` removes an earlier export in ``out`` first; ``on_frame`` is told the frames done and their total.
    InputError where ``out`` holds something else.
    """
    _prepare(out, overwrite=overwrite)
    samples: list[dict[str, Any]] = []
    summary = content.export(out, lambda frame: samples.append(_write_frame(out, frame, content.ranges)), on_frame)
    classes = {str(i + FIRST_CLASS): entry["name"] for i, entry in enumerate(describe_classes(content.reader, None))}
    ranges = {score: [shown.low, shown.high] for score, shown in content.ranges.items()}
    write_json(out / INDEX_NAME, {"format": FORMAT, "classes": classes, "ranges": ranges, "samples": samples})
    summary.notes.append(f"in Python: segunc.exchange.fiftyone.load_fiftyone('{out}', 'a name')")
    return summary


def load_fiftyone(folder: str | Path, name: str) -> fiftyone.Dataset:
    """A FiftyOne data set, under a name that FiftyOne does not have, of what :func:`export_fiftyone` wrote: segmentation
    ``prediction``, a heatmap for each score, statistics.

    Raises:
        InputError: FiftyOne is not installed, or the folder is no such export.
    """
    samples, classes = fiftyone_samples(Path(folder))
    import fiftyone

    dataset = fiftyone.Dataset(name, persistent=True)
    dataset.default_mask_targets = classes
    dataset.add_samples(samples)
    return dataset


def fiftyone_samples(folder: Path) -> tuple[list[fiftyone.Sample], dict[int, str]]:
    """The samples of an exported folder, in its order, and mask value -> class name, as :func:`load_fiftyone`; needs no database."""
    os.environ.setdefault("FIFTYONE_DO_NOT_TRACK", "true")
    try:
        import fiftyone
    except ImportError as error:
        remedy = "pip install 'segunc[fiftyone]'"
        raise InputError(f"a data set without FiftyOne ({error})", "the extra 'fiftyone'", remedy) from error
    index = read_json(folder / INDEX_NAME, "the index of an export to FiftyOne")
    if index.get("format") != FORMAT:
        raise InputError(f"{folder / INDEX_NAME} is no index of an export", f'"format": "{FORMAT}"', "export again")
    root = folder.resolve()
    samples = []
    for entry in index["samples"]:
        sample = fiftyone.Sample(filepath=str(inside(root, entry["image"])), frame=entry["frame"], time=entry["time"])
        if entry["prediction"]:
            sample["prediction"] = fiftyone.Segmentation(mask_path=str(inside(root, entry["prediction"])))
        for score, path in entry["heatmaps"].items():
            name = "".join(c if c.isalnum() else "_" for c in score)  # names of fields are identifiers
            sample[name] = fiftyone.Heatmap(map_path=str(inside(root, path)), range=[0, 255])
            for statistic, value in entry["statistics"][score].items():
                sample[f"{name}_{statistic}"] = value
        samples.append(sample)
    return samples, {int(value): text for value, text in index["classes"].items()}


def _prepare(out: Path, *, overwrite: bool) -> None:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        ours = (out / INDEX_NAME).is_file()
        if not (ours and overwrite):
            remedy = "--overwrite removes it" if ours else "give another --out"
            raise InputError(f"output {out} holds {'an export' if ours else 'files'}", "an empty or new folder", remedy)
        for folder in (DATA, LABELS, HEATMAPS):
            shutil.rmtree(out / folder, ignore_errors=True)
    # Written first too, so that a killed export can be told from other folders and written again.
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / INDEX_NAME, {"format": FORMAT, "classes": {}, "ranges": {}, "samples": []})


def _write_frame(out: Path, frame: ViewerFrame, ranges: dict[str, DisplayRange]) -> dict[str, Any]:
    """Write the files of a frame; returns its entry in the index."""
    if frame.image is None:
        raise InputError(f"frame {frame.name} has no image", "its image", "--images gives their place")
    image = f"{DATA}/{frame.name}.jpg"
    entry: dict[str, Any] = {"frame": frame.name, "time": frame.time, "image": image, "prediction": None}
    entry["heatmaps"] = {score: f"{HEATMAPS}/{score}/{frame.name}.png" for score in frame.scores}
    entry["statistics"] = {
        score: {s: frame.record[s][score] for s in STATISTICS if score in frame.record.get(s, {})}
        for score in frame.scores
    }
    if frame.prediction is not None:
        if frame.prediction.max(initial=0) == 255:
            raise InputError(f"frame {frame.name} holds class 255", "class ids below 255", "masks hold the id plus 1")
        entry["prediction"] = f"{LABELS}/{frame.name}.png"
        write_file(out / entry["prediction"], encode_png(frame.prediction + np.uint8(FIRST_CLASS)))
    for score, values in frame.scores.items():
        write_file(out / entry["heatmaps"][score], encode_png(levels(values, ranges[score])))
    write_file(out / image, encode_jpeg(frame.image))
    return entry
