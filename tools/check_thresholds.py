"""Thresholds with a promise on real frames: calibrated on one half of the units, measured on the
other, both directions, clean and corrupted.

    python -m tools.check_thresholds --model MODEL --images FOLDER --dataset NAME --root DIR \
        --out runs/check --control missed-objects=0.1 \
        [--score anomaly] [--size HxW] [--unit PATTERN] [--frames PATTERN]

Units alternate between the halves in the order of their names; with --unit the first half of them
is one: neighbours in a drive are alike.
"""

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2

import segunc
from segunc.data.corruptions import CORRUPTIONS, Corruption
from segunc.data.frame_names import frame_name
from segunc.data.image_files import image_files
from segunc.data.images import read_image
from segunc.evaluation.comparison import format_number
from segunc.evaluation.resampling import resampled_units

STRENGTH = 3
KINDS = ("clean", *(f"{name}:{STRENGTH}" for name in CORRUPTIONS))


@dataclass
class Halves:
    """The frames of a folder in two halves of whole units, as patterns of their names."""

    units: int
    units_of_first: int
    first: str
    second: str


def main() -> None:
    options = read_options()
    out = Path(options.out)
    files = frames_of(Path(options.images), options.frames)
    halves = split(files, options.unit)
    for kind in KINDS:
        predict_corrupted(options, files, kind, folder_of(out, kind))
    clean: list[str] = []
    corrupted: list[str] = []
    for word in options.control:
        control, level = word.split("=")
        achieved: dict[str, list[str]] = {kind: [] for kind in KINDS}
        prices = []
        for calibration, test in (
            (halves.first, halves.second),
            (halves.second, halves.first),
        ):
            file = out / f"{control}.json"
            prices.append(calibrate(options, control, float(level), calibration, file))
            for kind in KINDS:
                achieved[kind].append(risk_on(options, kind, test, file))
        clean.append(" | ".join([f"`{control}`", level, *achieved["clean"], *prices]))
        both = [" / ".join(achieved[kind]) for kind in KINDS[1:]]
        corrupted.append(" | ".join([f"`{control}`", *both]))
    others = halves.units - halves.units_of_first
    print(
        f"{halves.units} units, {len(files)} frames, "
        f"halves of {halves.units_of_first} and {others} units"
    )
    print_table(
        ["control", "level", "achieved", "the other way", "price", "price, the other way"], clean
    )
    print_table(["control", *KINDS[1:]], corrupted)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    for name in ("model", "images", "dataset", "root", "out"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--score", default="anomaly")
    parser.add_argument("--size")
    parser.add_argument("--unit", default="frame")
    parser.add_argument("--frames", default="")
    parser.add_argument("--split")
    parser.add_argument("--control", action="append", required=True)
    return parser.parse_args()


def frames_of(images: Path, pattern: str) -> dict[str, Path]:
    """Return the files of a folder whose names the pattern finds, by name."""
    files = {}
    for path in image_files(images):
        name = frame_name(images, path)
        if re.search(pattern, name):
            files[name] = path
    return files


def split(files: Mapping[str, Path], unit: str) -> Halves:
    """Split frames into every second unit and the rest; drives into the earlier and the later."""
    unit_of = resampled_units(unit, lambda name: None, "--unit")
    units = list(dict.fromkeys(unit_of(name) for name in sorted(files)))
    first = set(units[::2] if unit == "frame" else units[: len(units) // 2])
    patterns = []
    for in_first in (True, False):
        names = [re.escape(name) for name in files if (unit_of(name) in first) == in_first]
        patterns.append(f"^({'|'.join(names)})$")
    return Halves(len(units), len(first), *patterns)


def folder_of(out: Path, kind: str) -> Path:
    return out / kind.replace(":", "-")


def predict_corrupted(
    options: argparse.Namespace, files: Mapping[str, Path], kind: str, folder: Path
) -> None:
    """Write the corrupted images of one kind, and their maps."""
    for name, path in files.items():
        target = folder / "images" / f"{name}.png"
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.exists():
            continue
        image = read_image(path)
        if kind != "clean":
            image = Corruption.parse(kind)(image, name)
        cv2.imwrite(str(target), image[..., ::-1])
    size: Any = tuple(map(int, options.size.split("x"))) if options.size else None
    segunc.predict(
        model=options.model,
        input=folder / "images",
        out=folder / "maps",
        scores=[options.score],
        size=size,
    )


def labels_of(options: argparse.Namespace) -> dict[str, Any]:
    return {"dataset": options.dataset, "root": options.root, "split": options.split}


def calibrate(
    options: argparse.Namespace, control: str, level: float, frames: str, file: Path
) -> str:
    """Write the threshold of the frames of one half, and return its price as text."""
    asked: dict[str, Any] = {
        "control": control,
        "level": level,
        "unit": options.unit,
        "score": options.score,
        "frames": frames,
    }
    maps = folder_of(Path(options.out), "clean") / "maps"
    made = segunc.threshold(maps=maps, out=file, **asked, **labels_of(options))
    prices = [
        f"{name} {format_number(value)}" for name, value in made.price.items() if name != control
    ]
    return "; ".join(prices)


def risk_on(options: argparse.Namespace, kind: str, frames: str, file: Path) -> str:
    """Return the risk that a threshold achieves on frames of one kind."""
    result = segunc.evaluate(
        maps=folder_of(Path(options.out), kind) / "maps",
        flag=[str(file)],
        replicates=0,
        scores=[options.score],
        frames=frames,
        by=["none"],
        **labels_of(options),
    )
    return format_number(result.numbers["flagged"][options.score]["risk"])


def print_table(header: Sequence[str], rows: Sequence[str]) -> None:
    print()
    print("| " + " | ".join(header) + " |")
    print("|" + "---|" * len(header))
    for row in rows:
        print(f"| {row} |")


if __name__ == "__main__":
    main()
