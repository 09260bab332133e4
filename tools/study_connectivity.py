"""How are members and draws connected? Loss and accuracy along straight lines between their affine parameters.

    python -m tools.study_connectivity --model runs/camvid-abnn --data data/camvid --every 8 --json lines.json --plot lines

A point of a line is the network with (1 - t) theta_a + t theta_b for its affine parameters, t from -0.25 to 1.25: between
the base and each of ABNN's members without noise, between all pairs of these, and between draws of any posterior over the affine
parameters: each and the next one, which is of another member, and the first two of one member. With ``--other`` also for all weights,
from the base to that network, which was trained from another seed; channels are not matched (as Ainsworth et al. 2023, 2209.04836, do).
With ``--reestimate`` the lines that are not of draws come once more, with the statistics of batch norms averaged anew at every point,
the ends among them, over so many training frames as the network sees them (Jordan et al. 2023, 2211.08403).

Loss is the mean-pixel NLL of that one network in nats, at the size that it sees; accuracy is the share of its pixels that are
right, mIoU that of all frames. The barrier of a line is the largest excess over 0 < t < 1 of the loss over the straight line between its ends (Frankle
et al. 2020, 1912.05671, with the interpolated ends of Entezari et al. 2022, 2110.06296); 0 or below: the two lie in one valley.
"""

from __future__ import annotations

import argparse
import copy
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor, nn

from segunc.affine.convert import convert
from segunc.affine.draws import AffineLayout
from segunc.affine.posterior import Deterministic, Posterior
from segunc.core.bounds import Settings
from segunc.core.device import resolve_device
from segunc.core.errors import InputError
from segunc.core.files import write_json
from segunc.core.progress import ConsoleProgress
from segunc.data.labels import IGNORE
from segunc.data.module import SegmentationDataModule
from segunc.evaluation.compare import format_number, markdown_table
from segunc.metrics.segmentation import accuracy, confusion_matrix, mean_iou
from segunc.networks.files import load_network
from segunc.plots.charts import PANEL, REFERENCE, Line, add_legend, draw_lines, new_figure, save_figure, styled
from segunc.posteriors.abnn import ABNNPosterior, reestimate
from segunc.posteriors.fitting import frames_as_seen, load_for_fitting
from segunc.posteriors.model import Model
from segunc.sampling.runner import draw_logits
from segunc.training.config import FitConfig
from tools.measuring import provenance

FIRST, LAST = -0.25, 1.25
STATISTICS_BATCH = 4  # frames whose statistics are taken together


@dataclass(frozen=True)
class Segment:
    """A line between two affine sets.

    Attributes:
        name: of its ends.
        weight, bias: ``[P, T]`` at its points.
        networks: of its points, where they do not share the model's.
    """

    name: str
    weight: Tensor
    bias: Tensor
    networks: Sequence[nn.Module] = ()


def places_on_line(points: int) -> Tensor:
    """t of P points from FIRST to LAST; with 7, 13, 25, ... both ends are among them."""
    return torch.linspace(FIRST, LAST, points, dtype=torch.float64)


def segments(posterior: Posterior, layout: AffineLayout, draws: int, seed: int, t: Tensor) -> Iterator[Segment]:
    """The lines of a posterior: the base to each of ABNN's members, and all pairs of these; draw 0 to 1, 1 to 2 and so on; draw 0 to
    the next of its member."""
    sets: list[tuple[str, Any, Iterator[tuple[int, int]]]] = []
    if isinstance(posterior, ABNNPosterior):
        every = range(posterior.members)
        ends = posterior.with_alpha(0.0).affine(layout, every, seed)
        yield from member_lines(ends.weight, ends.bias, layout, t)
    members = posterior.members
    of_one = [(0, members)] if 1 < members < draws else []
    sets.append(("draws", posterior.affine(layout, range(draws), seed), chain(pairwise(range(draws)), of_one)))
    along = t.to(layout.device, torch.float32)[:, None]
    for kind, held, pairs in sets:
        for a, b in pairs:
            weight, bias = (torch.lerp(values[a], values[b], along) for values in (held.weight, held.bias))
            yield Segment(f"{kind} {a} to {b}", weight, bias)


def member_lines(gamma: Tensor, beta: Tensor, layout: AffineLayout, t: Tensor) -> Iterator[Segment]:
    """From the base to each of M members ``[M, T]``, and between all pairs of these."""
    along = t.to(layout.device, torch.float32)[:, None]
    ends = [
        torch.cat([own[None], values.to(layout.device)])
        for own, values in ((layout.weight, gamma), (layout.bias, beta))
    ]
    for a, b in combinations(range(len(gamma) + 1), 2):
        weight, bias = (torch.lerp(values[a], values[b], along) for values in ends)
        yield Segment(f"members {a - 1} to {b - 1}" if a else f"base to member {b - 1}", weight, bias)


@torch.no_grad()
def networks_line(network: nn.Module, other: nn.Module, t: Tensor) -> Segment:
    """From one network to another over all weights and running statistics, both converted.

    Raises:
        InputError: they have other weights.
    """
    first, last = network.state_dict(), other.state_dict()
    if {k: v.shape for k, v in first.items()} != {k: v.shape for k, v in last.items()}:
        raise InputError("a network of other weights", "two networks of one architecture and the same classes")
    trained, points = dict(network.named_parameters()), [copy.deepcopy(network) for _ in t]
    for place, point in zip(t.tolist(), points, strict=True):
        for name, values in point.state_dict().items():  # which are the point's own
            # Beyond an end running statistics stay as they are there: a variance gone on with would fall below 0.
            along = place if name in trained else min(max(place, 0.0), 1.0)
            if values.is_floating_point():
                values.copy_(torch.lerp(first[name], last[name].to(values.device), along))
    layouts = [AffineLayout(point) for point in points]
    return Segment(
        "base to other",
        torch.stack([own.weight for own in layouts]),
        torch.stack([own.bias for own in layouts]),
        points,
    )


def reestimated(line: Segment, network: nn.Module, batches: Sequence[Tensor]) -> Segment:
    """The same line with the statistics of every point averaged anew, folded into its affine parameters."""
    found = [
        (gamma * scale, beta + gamma * shift)
        for gamma, beta, own in zip(line.weight, line.bias, line.networks or [network] * len(line.weight), strict=True)
        for scale, shift in [reestimate(own, ABNNPosterior(gamma[None], beta[None], 0.0), 0, batches)]
    ]
    weight, bias = (torch.stack(values) for values in zip(*found, strict=True))
    return Segment(f"{line.name}, re-estimated", weight, bias, line.networks)


@torch.no_grad()
def measure(
    model: Model, data: SegmentationDataModule, lines: list[Segment], split: str, every: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Loss in nats, accuracy and mIoU of all points of all lines, each ``[L, P]`` float64."""
    places, classes = len(lines[0].weight), model.network.description.num_classes
    loss = torch.zeros(len(lines), places, dtype=torch.float64)
    counts = np.zeros((len(lines), places, classes, classes), np.int64)
    frames = -(-len(data.dataset(split)) // every)
    for _, image, labels in frames_as_seen(model, data, split, frames, "connectivity"):
        truth = torch.from_numpy(labels.astype(np.int64)).to(image.device)[None]
        for number, line in enumerate(lines):
            for point, logits in enumerate(logits_along(line, model.network, image)):
                loss[number, point] += float(
                    F.cross_entropy(logits.float(), truth, ignore_index=IGNORE, reduction="sum")
                )
                counts[number, point] += confusion_matrix(labels, logits.argmax(1)[0].cpu().numpy(), classes)
    pixels = int(counts[0, 0].sum())
    if not pixels:
        raise InputError(f"the {split} frames hold no labelled pixel", "frames with labels", "choose another split")
    shares = [
        torch.tensor([[share(matrix) for matrix in line] for line in counts], dtype=torch.float64)
        for share in (accuracy, mean_iou)
    ]
    return loss / pixels, shares[0], shares[1]


def logits_along(line: Segment, network: nn.Module, image: Tensor) -> Iterator[Tensor]:
    """Of one image at each point."""
    if not line.networks:
        yield from draw_logits(network, ABNNPosterior(line.weight, line.bias, 0.0), image, len(line.weight))
    for own, weight, bias in zip(line.networks, line.weight, line.bias, strict=False):
        yield from draw_logits(own, ABNNPosterior(weight[None], bias[None], 0.0), image, 1)


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
    head += ["mIoU at its ends", "mIoU barrier"]
    table = [head]
    for row in rows:
        barriers = [format_number(row[key], sign=True) for key in ("barrier", "accuracy_barrier", "miou_barrier")]
        ends = [", ".join(map(format_number, row[key])) for key in ("nll_ends", "accuracy_ends", "miou_ends")]
        table.append(
            [
                row["name"],
                ends[0],
                format_number(row["highest_nll"]),
                barriers[0],
                ends[1],
                barriers[1],
                ends[2],
                barriers[2],
            ]
        )
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
    layout = AffineLayout(model.network)
    lines = list(segments(posterior, layout, options.draws, options.seed, t))
    whole = [] if options.other is None else [networks_line(model.network, other_network(options.other, device), t)]
    if options.reestimate:
        seen = [image for _, image, _ in frames_as_seen(model, data, "train", options.reestimate, "statistics")]
        batches = [torch.cat(seen[i : i + STATISTICS_BATCH]) for i in range(0, len(seen), STATISTICS_BATCH)]
        # A member's own statistics are no part of the line: every point gets its own.
        raw = member_lines(posterior.gamma, posterior.beta, layout, t) if isinstance(posterior, ABNNPosterior) else ()
        show = ConsoleProgress(label="re-estimated lines")
        anew = [reestimated(line, model.network, batches) for line in show.follow([*raw, *whole])]
        lines += anew
    lines += whole
    if not lines:
        raise InputError("no line: one member and one draw", "at least two draws", "raise --draws")
    nll, right, miou = measure(model, data, lines, options.split, options.every)
    inside = (t > -1e-9) & (t < 1 + 1e-9)
    rows = []
    for index, line in enumerate(lines):
        between = [v[index][inside] for v in (nll, right, miou)]
        rows.append(
            {
                "name": line.name,
                "nll": nll[index].tolist(),
                "accuracy": right[index].tolist(),
                "miou": miou[index].tolist(),
                "nll_ends": between[0][[0, -1]].tolist(),
                "accuracy_ends": between[1][[0, -1]].tolist(),
                "highest_nll": float(between[0].max()),
                "barrier": barrier(nll[index], t),
                "accuracy_barrier": barrier(-right[index], t),
                "miou_ends": between[2][[0, -1]].tolist(),
                "miou_barrier": barrier(-miou[index], t),
            }
        )
    settings = {key: str(value) if isinstance(value, Path) else value for key, value in vars(options).items()}
    hashes = {"base_sha256": model.sha256, "posterior_sha256": model.posterior_sha256}
    return {"about": provenance(device), "settings": settings, **hashes, "t": t.tolist(), "lines": rows}


def other_network(folder: Path, device: torch.device) -> nn.Module:
    """The network of a model folder, converted."""
    network = load_network(folder)
    convert(network.body)
    return network.to(device, memory_format=torch.channels_last)


@styled
def series_figure(panels: Sequence[tuple[str, Sequence[Line]]], x_label: str, marks: Sequence[float] = ()) -> Figure:
    """Panels of lines over one horizontal axis, which is marked by dotted lines: from the top, the label of the vertical axis and
    the lines; all with the same names in the same order."""
    figure, every = new_figure(len(panels), 0.75 * PANEL * len(panels), share_x=True)
    for axes, (label, lines) in zip(every, panels, strict=True):
        draw_lines(axes, lines, marker="o", markersize=2.2)
        for mark in marks:
            axes.axvline(mark, **REFERENCE)
        axes.set_ylabel(label)
    every[-1].set_xlabel(x_label)
    add_legend(figure)
    return figure


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
    parser.add_argument(
        "--other", type=Path, metavar="DIR", help="a network of another seed, joined to the base by a line"
    )
    parser.add_argument(
        "--reestimate", type=int, default=0, metavar="N", help="training frames for the statistics of every point"
    )
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
