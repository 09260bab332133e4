"""Draw the pictures of the concepts pages from the output of the demo: the same demo gives the same pictures.

segunc demo --out demo && python -m tools.concept_figures --demo demo --out docs/images
"""

from __future__ import annotations

import argparse
import io
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from matplotlib import rcParams
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

import segunc
from segunc.affine.draws import AffineLayout
from segunc.core.files import write_atomically
from segunc.data.images import read_image, read_label_image
from segunc.maps.reader import MapsReader
from segunc.metrics import smiyc
from segunc.metrics.counting import average_precision, count_scores, detection_curve
from segunc.plots import COLOURS, FAINT, INK, styled

FRAME, EASY, HARD = 7, 12, 27  # places in the anomaly split: a bear beside the road; a found and a missed object
ALPHA = 0.3  # stronger noise than the default 0.1, so that three draws differ in print
NAMES = ("first frame", "second frame", "both, pooled")
SIZE = 10  # of text in points, on a page 8 inches wide
Floats = npt.NDArray[np.floating]


class Demo:
    """The folder that `segunc demo` writes."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.reader = folder, MapsReader(folder / "maps")
        self.names = list(self.reader.frames)

    def image(self, frame: int) -> npt.NDArray[np.uint8]:
        return read_image(self.folder / "data/leftImg8bit/anomaly" / f"{self.names[frame]}.png")

    def labels(self, frame: int) -> npt.NDArray[np.uint8]:
        name = self.names[frame].replace("leftImg8bit", "anomaly")
        return read_label_image(self.folder / "data/gtAnomaly/anomaly" / f"{name}.png")

    def scores(self, frame: int, score: str) -> Floats:
        return self.reader.read(self.names[frame], score).astype(np.float32)


def show(axes: Axes, values: npt.NDArray[Any], title: str, outline: npt.NDArray[np.uint8] | None = None, **look: Any) -> Any:
    """Draw an image or a map under a title, with the rim of anomalies in white over black."""
    drawn = axes.imshow(values, interpolation="nearest", **look)
    if outline is not None:
        for colour, width in (("black", 2.2), ("white", 1.0)):
            axes.contour(outline == 1, levels=[0.5], colors=colour, linewidths=width)
    axes.set_title(title)
    axes.set_axis_off()
    return drawn


def bar(figure: Figure, drawn: Any, axes: Any, label: str) -> None:
    """Draw the scale of a map beside it."""
    figure.colorbar(drawn, ax=axes, fraction=0.024, pad=0.015, label=label).outline.set_visible(False)


def draws(demo: Demo) -> Figure:
    """Three draws of gamma, what each says of the frame, and where 24 draws disagree."""
    image, labels = demo.image(FRAME), demo.labels(FRAME)
    model = segunc.ABNN(alpha=ALPHA).fit(segunc.load(demo.folder / "base"))
    layout = AffineLayout(model.network)
    figure = Figure(figsize=(8, 3.9), layout="constrained")
    grid = figure.subplot_mosaic("AAABBB;CCDDEE", height_ratios=(1.35, 1))
    for seed, key in enumerate("CDE"):
        gamma = model.posterior.affine(layout, [0], seed).weight[0] / layout.weight  # type: ignore[union-attr]
        look: dict[str, Any] = {"color": COLOURS[seed], "linewidth": 1.0, "marker": "os^"[seed], "markersize": 3}
        grid["A"].plot(gamma[:16].numpy(), label=f"draw {seed + 1}", **look)
        sure = 1 - model(image, draws=1, seed=seed, scores=["msp"]).msp
        drawn = show(grid[key], sure, f"confidence of draw {seed + 1}", labels, cmap="cividis", vmin=0, vmax=1)
    bar(figure, drawn, grid["E"], "")
    grid["A"].set(xlabel="channel of the first layer", ylabel="1 + alpha eps", ylim=(0, 2.3), xticks=range(0, 16, 3))
    grid["A"].set_title("each draw multiplies gamma by random factors")
    grid["A"].axhline(1, color=FAINT, linewidth=0.8)
    grid["A"].legend(ncols=3, loc="upper center", handlelength=1.2, columnspacing=0.8)
    drawn = show(grid["B"], model(image, draws=24).epistemic, "where 24 draws disagree", labels, cmap="inferno", vmin=0)
    bar(figure, drawn, grid["B"], "epistemic")
    return figure


def scores(demo: Demo) -> Figure:
    """Entropy as the sum of aleatoric and epistemic; below it what looks for unknown objects."""
    labels, top = demo.labels(FRAME), float(demo.scores(FRAME, "entropy").max())
    figure = Figure(figsize=(8, 3.5), layout="constrained")
    grid = figure.subplots(2, 3)
    show(grid[1, 0], demo.image(FRAME), "frame: bear and boulder\nare unknown", labels)
    for axes, name, title, unit, look in (
        (grid[0, 0], "entropy", "entropy:\nis the class right?", "", {"vmin": 0, "vmax": top}),
        (grid[0, 1], "aleatoric", "= aleatoric:\nis the scene ambiguous?", "", {"vmin": 0, "vmax": top}),
        (grid[0, 2], "epistemic", "+ epistemic:\ndo the draws disagree?", "share of ln C", {"vmin": 0}),
        (grid[1, 1], "deterministic-energy", "energy: has no class\na large logit?", "", {}),
        (grid[1, 2], "anomaly", "anomaly: is the object\nknown at all?", "decades of rarity", {"vmin": 0}),
    ):
        bar(figure, show(axes, demo.scores(FRAME, name), title, labels, cmap="inferno", **look), axes, unit)
    return figure


def density(demo: Demo) -> Figure:
    """Distances of places to the nearest training feature: as a histogram of known classes and anomalies, and as a map."""
    model = segunc.load(demo.folder / "abnn")
    known, unknown, maps = [], [], []
    for frame in range(len(demo.names)):
        maps.append(model(demo.image(frame), draws=model.posterior.members, scores=["knn"]).knn)
        labels = demo.labels(frame)
        known.append(maps[-1][labels == 0])
        unknown.append(maps[-1][labels == 1])
    figure = Figure(figsize=(8, 3.2), layout="constrained")
    grid = figure.subplot_mosaic("AC;BC", width_ratios=(0.72, 1.25))
    show(grid["A"], demo.image(FRAME), "a new frame", demo.labels(FRAME))
    drawn = show(grid["B"], maps[FRAME], "its distances: the map knn", demo.labels(FRAME), cmap="inferno", vmin=0)
    bar(figure, drawn, grid["B"], "1 - cosine")
    for key in "AB":
        grid[key].set_anchor("W")
    edges = np.linspace(0, float(max(part.max() for part in unknown)), 40).tolist()
    for values, colour, name in ((known, COLOURS[0], "known classes"), (unknown, COLOURS[1], "unknown objects")):
        pixels = np.concatenate(values)
        share = np.full(len(pixels), 100 / len(pixels))
        grid["C"].hist(pixels, edges, weights=share, histtype="step", color=colour, label=name, linewidth=1.6)
    grid["C"].set(xlabel="distance to the nearest training feature", ylabel="pixels of the kind, %", ylim=(0, 10.5))
    grid["C"].set_title(f"all {len(demo.names)} frames with unknown objects")
    grid["C"].legend(loc="upper right", ncols=2, handlelength=1.2)
    return figure


def protocols(demo: Demo) -> Figure:
    """Two frames, their curves alone and together, and the number of each protocol."""
    maps = [demo.scores(frame, "anomaly") for frame in (EASY, HARD)]
    labels = [demo.labels(frame) for frame in (EASY, HARD)]
    halves = [values.astype(np.float16) for values in maps]
    counts = [count_scores(values, truth) for values, truth in zip(halves, labels, strict=True)]
    curves = {name: detection_curve(n) for name, n in zip(NAMES, (*counts, counts[0] + counts[1]), strict=True)}
    first, second, pooled = (float(average_precision(curve) or 0) for curve in curves.values())
    figure = Figure(figsize=(8, 3.2), layout="constrained")
    grid = figure.subplot_mosaic("ACE;BCE", width_ratios=(1, 1.1, 0.8))
    for place, (key, name) in enumerate(zip("AB", NAMES, strict=False)):
        show(grid[key], maps[place], f"anomaly: {name}", labels[place], cmap="inferno", vmin=0, vmax=maps[0].max())
    for place, (name, curve) in enumerate(curves.items()):
        style: dict[str, Any] = {"color": COLOURS[place], "linestyle": ("-", "--", ":")[place], "linewidth": 1.8}
        grid["C"].plot(curve.recall, curve.precision, label=name, **style)
    grid["C"].set(xlabel="recall", ylabel="precision", xlim=(0, 1.02), ylim=(0, 1.45), yticks=np.linspace(0, 1, 6))
    grid["C"].set_title("one curve a frame,\nor one of all pixels")
    grid["C"].legend()
    bins = [smiyc.smiyc_bins(count, smiyc.VALUES_OF_FLOAT_KEYS) for count in counts]
    binned = smiyc.smiyc_result(smiyc.merge_bins(bins))
    threshold, pairs = float(binned["threshold"] or 0), zip(halves, labels, strict=True)
    parts = [smiyc.component_counts(half, truth, threshold, "smiyc-anomaly") for half, truth in pairs]
    objects = smiyc.component_result(np.sum(parts, 0))
    numbers = {"pooled\nAP": pooled, "per-image\nAP": (first + second) / 2}
    numbers |= {"smiyc\nAP": float(binned["aupr"] or 0), "components\nF1": float(objects["mean_f1"] or 0)}
    grid["E"].barh(list(numbers), list(numbers.values()), color=COLOURS[0], height=0.55)
    for place, value in enumerate(numbers.values()):
        grid["E"].text(value + 0.03, place, f"{value:.2f}", va="center", color=INK)
    grid["E"].set(xlim=(0, 1), xlabel="higher is better")
    grid["E"].set_title("the same two maps,\nfour numbers")
    grid["E"].grid(visible=False)
    grid["E"].invert_yaxis()
    return figure


@styled
def write(demo: Demo, out: Path) -> None:
    """Write the figures as PNG of 256 colours."""
    rcParams.update({name: SIZE for name in ("font.size", "axes.titlesize", "axes.labelsize")})
    rcParams.update({name: SIZE - 1 for name in ("xtick.labelsize", "ytick.labelsize", "legend.fontsize")})
    for concept in (draws, scores, density, protocols):
        figure = concept(demo)
        figure.set_facecolor("white")  # legible on a dark page, too
        figure.set_layout_engine("constrained", w_pad=0.08, h_pad=0.08)
        drawn, file = io.BytesIO(), io.BytesIO()
        figure.savefig(drawn, format="png", dpi=130)
        Image.open(drawn).convert("RGB").quantize(256, Image.Quantize.MEDIANCUT).save(file, "PNG", optimize=True)
        write_atomically(out / f"concept_{concept.__name__}.png", file.getvalue())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--demo", type=Path, required=True, help="what `segunc demo --out` wrote")
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    asked = parser.parse_args()
    torch.set_num_threads(1)  # the same bytes on any number of cores
    write(Demo(asked.demo), asked.out)


if __name__ == "__main__":
    main()
