"""Thresholds with a promise on real frames: calibrated on one half of the units, measured on the
other, both directions, clean and corrupted.

    python -m tools.check_thresholds --model MODEL --images FOLDER --dataset NAME --root DIR --out
    runs/check --control missed-objects=0.1 \
        [--score anomaly] [--size HxW] [--unit PATTERN] [--frames PATTERN]

Units alternate between the halves in the order of their names; with --unit the first half of them
is one: neighbours in a drive are alike.
"""

import argparse
import re
from pathlib import Path

import cv2

import segunc
from segunc.data.corruptions import CORRUPTIONS, Corruption
from segunc.data.frame_names import frame_name
from segunc.data.image_files import image_files
from segunc.data.images import read_image
from segunc.evaluation.compare import format_number
from segunc.evaluation.resampling import resampled_units

STRENGTH = 3
KINDS = ("clean", *(f"{name}:{STRENGTH}" for name in CORRUPTIONS))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    for name in ("model", "images", "dataset", "root", "out"):
        parser.add_argument(f"--{name}", required=True)
    for name, usual in (
        ("score", "anomaly"),
        ("size", None),
        ("unit", "frame"),
        ("frames", ""),
        ("split", None),
    ):
        parser.add_argument(f"--{name}", default=usual)
    parser.add_argument("--control", action="append", required=True)
    given = parser.parse_args()
    out, images = Path(given.out), Path(given.images)
    size = tuple(map(int, given.size.split("x"))) if given.size else None
    files = {
        frame_name(images, path): path
        for path in image_files(images)
        if re.search(given.frames, frame_name(images, path))
    }
    unit_of = resampled_units(given.unit, lambda name: None, "--unit")
    units = list(dict.fromkeys(map(unit_of, sorted(files))))
    first = set(units[::2] if given.unit == "frame" else units[: len(units) // 2])
    halves = [
        f"^({'|'.join(re.escape(name) for name in files if (unit_of(name) in first) == side)})$"
        for side in (True, False)
    ]
    for kind in KINDS:
        folder = out / kind.replace(":", "-")
        for name, path in files.items():
            (target := folder / "images" / f"{name}.png").parent.mkdir(parents=True, exist_ok=True)
            if not target.exists():
                image = read_image(path)
                shown = image if kind == "clean" else Corruption.parse(kind)(image, name)
                cv2.imwrite(str(target), shown[..., ::-1])
        segunc.predict(
            model=given.model,
            input=folder / "images",
            out=folder / "maps",
            scores=[given.score],
            size=size,
        )
    labels = {"dataset": given.dataset, "root": given.root, "split": given.split}
    rows: dict[str, list[str]] = {"clean": [], "corrupted": []}
    for control, level in (word.split("=") for word in given.control):
        achieved: dict[str, list[str]] = {kind: [] for kind in KINDS}
        prices = []
        for here, there in (halves, halves[::-1]):
            file = out / f"{control}.json"
            asked = {
                "control": control,
                "level": float(level),
                "unit": given.unit,
                "score": given.score,
                "frames": here,
            }
            made = segunc.threshold(maps=out / "clean" / "maps", out=file, **asked, **labels)
            prices.append(
                "; ".join(
                    f"{name} {format_number(value)}"
                    for name, value in made.price.items()
                    if name != control
                )
            )
            for kind in KINDS:
                maps = out / kind.replace(":", "-") / "maps"
                how = {
                    "flag": [str(file)],
                    "replicates": 0,
                    "scores": [given.score],
                    "frames": there,
                    "by": ["none"],
                }
                result = segunc.evaluate(maps=maps, **how, **labels)
                achieved[kind].append(format_number(result.numbers["flagged"][given.score]["risk"]))
        rows["clean"].append(" | ".join([f"`{control}`", level, *achieved["clean"], *prices]))
        rows["corrupted"].append(
            " | ".join([f"`{control}`", *(" / ".join(achieved[kind]) for kind in KINDS[1:])])
        )
    print(
        f"{len(units)} units, {len(files)} frames, halves of {len(first)} and {len(units) - len(first)} units"
    )
    for kind, header in (
        (
            "clean",
            ("control", "level", "achieved", "the other way", "price", "price, the other way"),
        ),
        ("corrupted", ("control", *KINDS[1:])),
    ):
        print(
            "\n| "
            + " | ".join(header)
            + " |\n|"
            + "---|" * len(header)
            + "\n"
            + "\n".join(f"| {row} |" for row in rows[kind])
        )


if __name__ == "__main__":
    main()
