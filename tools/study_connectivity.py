"""How are members and draws connected? Loss and accuracy along straight lines between their affine parameters.

    python -m tools.study_connectivity --model runs/camvid-abnn --data data/camvid --every 8 --json lines.json --plot lines

A point of a line is the network with (1 - t) theta_a + t theta_b for its affine parameters, t from -0.25 to 1.25: between
all pairs of ABNN's members without noise, and between draws of any posterior over the affine parameters: each and the next one,
which is of another member, and the first two of one member.
Loss is the mean-pixel NLL of that one network in nats, at the size that it sees; accuracy is the share of its pixels that are
right. The barrier of a line is the largest excess over 0 < t < 1 of the loss over the straight line between its ends (Frankle
et al. 2020, 1912.05671, with the interpolated ends of Entezari et al. 2022, 2110.06296); 0 or below: the two lie in one valley.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from segunc.affine.draws import AffineLayout
from segunc.affine.posterior import Deterministic, Posterior
from segunc.core.bounds import Settings
from segunc.core.device import resolve_device
from segunc.core.errors import InputError
from segunc.core.files import write_json
from segunc.data.labels import IGNORE
from segunc.data.module import SegmentationDataModule
from segunc.evaluation.compare import format_number, markdown_table
from segunc.plots.charts import Line, save_figure, series_figure
from segunc.posteriors.abnn import ABNN
from segunc.posteriors.files import Model
from segunc.posteriors.fitting import frames_as_seen, load_for_fitting
from segunc.sampling.runner import draw_logits
from segunc.training.config import FitConfig
from tools.measuring import provenance

FIRST, LAST = -0.25, 1.25


@dataclass(frozen=True)
class Segment:
    """A line between two affine sets.

    Attributes:
        name: of its ends.
        weight, bias: ``[P, T]`` at its points.
    """

    name: str
    weight: Tensor
    bias: Tensor


def places_on_line(points: int) -> Tensor:
    """t of P points from FIRST to LAST; with 7, 13, 25, ... both ends are among them."""
    return torch.linspace(FIRST, LAST, points, dtype=torch.float64)


def segments(posterior: Posterior, layout: AffineLayout, draws: int, seed: int, t: Tensor) -> Iterator[Segment]:
    """The lines of a posterior: all pairs of ABNN's members; draw 0 to 1, 1 to 2 and so on; draw 0 to the next of its member."""
    sets: list[tuple[str, Any, Iterator[tuple[int, int]]]] = []
    if isinstance(posterior, ABNN):
        every = range(posterior.members)
        sets.append(("members", posterior.with_alpha(0.0).affine(layout, every, seed), combinations(every, 2)))
    members = posterior.members
    of_one = [(0, members)] if 1 < members < draws else []
    sets.append(("draws", posterior.affine(layout, range(draws), seed), chain(pairwise(range(draws)), of_one)))
    along = t.to(layout.device, torch.float32)[:, None]
    for kind, held, pairs in sets:
        for a, b in pairs:
            weight, bias = (torch.lerp(values[a], values[b], along) for values in (held.weight, held.bias))
            yield Segment(f"{kind} {a} to {b}", weight, bias)


@torch.no_grad()
def measure(
    model: Model, data: SegmentationDataModule, lines: list[Segment], split: str, every: int
) -> tuple[Tensor, Tensor]:
    """Loss in nats and accuracy of all points of all lines, each ``[L, P]`` float64."""
    points = ABNN(torch.cat([line.weight for line in lines]), torch.cat([line.bias for line in lines]), 0.0)
    loss, right = (torch.zeros(points.members, dtype=torch.float64) for _ in range(2))
    pixels = 0
    frames = -(-len(data.dataset(split)) // every)
    for _, image, labels in frames_as_seen(model, data, split, frames, "connectivity"):
        truth = torch.from_numpy(labels.astype(np.int64)).to(image.device)[None]
        valid = truth != IGNORE
        pixels += int(valid.sum())
        for point, logits in enumerate(draw_logits(model.network, points, image, points.members)):
            loss[point] += float(F.cross_entropy(logits.float(), truth, ignore_index=IGNORE, reduction="sum"))
            right[point] += int((logits.argmax(1) == truth)[valid].sum())
    if not pixels:
        raise InputError(f"the {split} frames hold no labelled pixel", "frames with labels", "choose another split")
    return (loss / pixels).view(len(lines), -1), (right / pixels).view(len(lines), -1)


def barrier(values: Tensor, t: Tensor) -> float:
    """The largest excess of ``values [P]`` between t = 0 and t = 1 over the straight line between those there.

    Raises:
        InputError: the ends are not among the points.
    """
    ends = [torch.nonzero((t - end).abs() < 1e-9).flatten().tolist() for end in (0.0, 1.0)]
    if not all(ends):
        raise InputError(f"{len(t)} points without the ends of the line", "7, 13, 25 or 1 + a multiple of 6")
    between = (t > 1e-9) & (t < 1 - 1e-9)
    straight = (1 - t) * values[ends[0][0]] + t * values[ends[1][0]]
    return float((values - straight)[between].max())


def markdown(rows: list[dict[str, Any]]) -> str:
    """A line for each line."""
    head = ["line", "NLL at its ends", "highest NLL between", "barrier", "accuracy at its ends", "accuracy barrier"]
    table = [head]
    for row in rows:
        numbers = [row["barrier"], row["accuracy_barrier"]]
        loss, accuracy = (", ".join(format_number(v) for v in row[key]) for key in ("nll_ends", "accuracy_ends"))
        texts = [format_number(number, sign=True) for number in numbers]
        table.append([row["name"], loss, format_number(row["highest_nll"]), texts[0], accuracy, texts[1]])
    return markdown_table(table)


def study(options: argparse.Namespace) -> dict[str, Any]:
    """All lines of a model, measured."""
    device = resolve_device(options.device)
    given = {"dataset": options.dataset, "root": str(options.data), "anomaly_class": options.anomaly_class}
    model, data = load_for_fitting(options.model, FitConfig(Settings(), given), device)
    posterior = model.posterior
    if not isinstance(posterior, Posterior) or isinstance(posterior, Deterministic):
        raise InputError(
            f"{options.model} is a model of method {posterior.method}", "a posterior over affine parameters"
        )
    t = places_on_line(options.points)
    lines = list(segments(posterior, AffineLayout(model.network), options.draws, options.seed, t))
    if not lines:
        raise InputError("no line: one member and one draw", "at least two draws", "raise --draws")
    nll, accuracy = measure(model, data, lines, options.split, options.every)
    inside = (t > -1e-9) & (t < 1 + 1e-9)
    rows = []
    for index, line in enumerate(lines):
        between = [v[index][inside] for v in (nll, accuracy)]
        rows.append(
            {
                "name": line.name,
                "nll": nll[index].tolist(),
                "accuracy": accuracy[index].tolist(),
                "nll_ends": between[0][[0, -1]].tolist(),
                "accuracy_ends": between[1][[0, -1]].tolist(),
                "highest_nll": float(between[0].max()),
                "barrier": barrier(nll[index], t),
                "accuracy_barrier": barrier(-accuracy[index], t),
            }
        )
    settings = {key: str(value) if isinstance(value, Path) else value for key, value in vars(options).items()}
    hashes = {"base_sha256": model.sha256, "posterior_sha256": model.posterior_sha256}
    return {"about": provenance(device), "settings": settings, **hashes, "t": t.tolist(), "lines": rows}


def draw(result: dict[str, Any], path: Path) -> list[Path]:
    """Loss and accuracy along the lines, the ends marked."""
    t = np.array(result["t"])
    panels = [
        (title, [Line(row["name"], t, np.array(row[key]), place=i) for i, row in enumerate(result["lines"])])
        for key, title in (("nll", "NLL of one network, nats"), ("accuracy", "pixel accuracy"))
    ]
    return save_figure(series_figure(panels, "t along the line (dotted: its ends)", marks=(0.0, 1.0)), path)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="a posterior over affine parameters")
    parser.add_argument("--dataset", default="camvid")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--anomaly-class", metavar="A,B", help="classes that the model does not know")
    parser.add_argument("--split", default="test")
    parser.add_argument("--every", type=int, default=8, metavar="N", help="one frame in N, evenly spaced (default 8)")
    parser.add_argument("--draws", type=int, default=4, help="draws that lines are laid through (default 4)")
    parser.add_argument("--points", type=int, default=13, help="of each line, 1 + a multiple of 6 (default 13)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", type=Path, required=True, metavar="FILE")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="without suffix: PDF, SVG and PNG are written")
    options = parser.parse_args()
    if options.every < 1 or options.points < 7 or options.points % 6 != 1:
        parser.error("expected --every of at least 1, and --points of 7, 13, 19, 25, ...")
    try:
        result = study(options)
    except InputError as error:
        print(f"study_connectivity: {error}", file=sys.stderr)
        return 2
    write_json(options.json, result)
    print(markdown(result["lines"]))
    if options.plot:
        draw(result, options.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
