"""How often 95 % intervals of few units hold the truth: candidates beside each other, on numbers as the package makes them.

    python -m tools.simulate_intervals --json intervals.json

A unit (a frame, or 10 s of video) brings counts: scores of normal and anomalous pixels in bins, a confusion matrix, a sum of losses,
reliability bins. Units differ in size (lognormal) and in how hard they are, and two models share what makes a unit hard. From
the sums come numbers like AUPR, FPR95, mIoU, NLL and ECE, of one model and as difference of the two; the truth is that of 200,000 units.
Each trial draws n units and 2000 Poisson replicates, and asks every candidate for an interval:

* percentile; expanded: percentiles at the level of Student's t with n - 1 degrees of freedom (Hesterberg 2015);
* BCa (Efron 1987), its acceleration from covariances of replicates and weights, and at expanded levels;
* t: the bootstrap's standard error and t with n - 1 degrees of freedom, on a scale (logit of shares, log of losses, differences as they
  are), and with the degrees of freedom of the effective units;
* bootstrap-t (Tibshirani 1988), replicates studentised by the spread that their weights give the influences;
* segunc: what `segunc.evaluation.resampling` does.

Two levels: the mean of K = 4 seeds of training over 30 units, with seeds resampled (tools/study/means.py) and with units alone.
Prints coverage ± its Monte Carlo error and the width over that of percentiles; `--json` writes the same.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import special

from segunc.evaluation import resampling
from segunc.evaluation.resampling import Replicates, Resampling
from tools.measuring import provenance
from tools.study.means import mean_replicates

Floats = npt.NDArray[np.float64]
Bounds = tuple[float, float]
REPLICATES = 2000
BINS, CLASSES, LEVELS = 48, 4, 7
SEEDS = 4
OURS, UNITS_ALONE = "segunc", "segunc, units alone"


def draw_units(number: int, random: np.random.Generator) -> dict[str, tuple[Floats, Floats]]:
    """The counts ``[n, cells]`` of both models, by what is made of them."""
    kinds = {"curve": _curve, "confusion": _confusion, "loss": _loss, "reliability": _reliability}
    return {name: draw(number, random) for name, draw in kinds.items()}


def _histogram(mean: Floats) -> Floats:
    """The shares of a normal score with a mean for each unit, ``[n, B]``."""
    below: Floats = special.ndtr(np.linspace(-5, 7, BINS + 1) - mean[:, None])
    below[:, 0], below[:, -1] = 0, 1
    return np.asarray(np.diff(below), np.float64)


def _curve(number: int, random: np.random.Generator) -> tuple[Floats, Floats]:
    """Anomalies of very different size (a factor of 50 between the 2.5 and 97.5 percentiles), on frames of much the same."""
    hard, size, frame = random.normal(0, 1, number), random.lognormal(0, 1, number), random.lognormal(3, 0.3, number)
    common = random.normal(0, 0.2, number)

    def model(better: float) -> Floats:
        own, other = random.normal(0, 0.25, (2, number))
        anomaly = _histogram(1.8 + better + 0.8 * hard + own) * size[:, None]
        normal = _histogram(0.3 * hard + common + 0.5 * other) * frame[:, None]
        return np.concatenate([normal, anomaly], axis=1)

    return model(0.0), model(0.15)


def _confusion(number: int, random: np.random.Generator) -> tuple[Floats, Floats]:
    """Four classes, the rare ones in fewer units."""
    size = random.lognormal(0, 1, (number, CLASSES)) * (10, 4, 1, 0.3)
    size *= random.random((number, CLASSES)) < (1, 0.9, 0.6, 0.4)
    hard = random.normal(0, 0.8, size.shape)

    def model(better: float) -> Floats:
        right = special.expit(1.5 + better + hard + random.normal(0, 0.3, size.shape))
        wrong = (1 - right) / (CLASSES - 1)
        shares = np.where(np.eye(CLASSES, dtype=bool), right[:, :, None], wrong[:, :, None])
        return (shares * size[:, :, None]).reshape(number, -1)

    return model(0.0), model(0.2)


def _loss(number: int, random: np.random.Generator) -> tuple[Floats, Floats]:
    """Sums of losses that are lognormal over units, and pixels."""
    size, hard = random.lognormal(0, 0.7, number), random.normal(0, 0.7, number)

    def model(better: float) -> Floats:
        return np.stack([size * np.exp(-1 - better + hard + random.normal(0, 0.25, number)), size], axis=1)

    return model(0.0), model(0.1)


def _reliability(number: int, random: np.random.Generator) -> tuple[Floats, Floats]:
    """Pixels, right ones and confidences by bin."""
    size, over = random.lognormal(0, 0.7, number), random.normal(0, 0.12, number)
    confidence = np.linspace(0.35, 0.95, LEVELS)
    pixels = random.dirichlet((0.5, 0.5, 0.7, 1, 1.5, 3, 8), number) * size[:, None]

    def model(shift: float) -> Floats:
        right = np.clip(confidence + shift + over[:, None] + random.normal(0, 0.04, pixels.shape), 0, 1)
        return np.concatenate([pixels, pixels * right, pixels * confidence], axis=1)

    return model(-0.06), model(-0.03)


def _rates(sums: Floats) -> tuple[Floats, Floats]:
    """Pixels of both kinds at or above each bin, from the highest down, two ``[R, B]``."""
    normal, anomalous = np.moveaxis(sums.reshape(-1, 2, BINS)[:, :, ::-1].cumsum(axis=2), 1, 0)
    return normal, anomalous


def _aupr(sums: Floats) -> Floats:
    normal, anomalous = _rates(sums)
    precision = anomalous / np.maximum(normal + anomalous, 1e-300)
    return np.asarray((np.diff(anomalous, axis=1, prepend=0) * precision).sum(axis=1) / anomalous[:, -1])


def _fpr95(sums: Floats) -> Floats:
    """Interpolated within the bin, as thousands of bins would be."""
    normal, anomalous = (part / part[:, -1:] for part in _rates(sums))
    place, rows = (anomalous >= 0.95).argmax(axis=1), np.arange(len(sums))
    low, high = anomalous[rows, place - 1], anomalous[rows, place]
    share = (0.95 - low) / (high - low)
    return np.asarray((1 - share) * normal[rows, place - 1] + share * normal[rows, place])


def _miou(sums: Floats) -> Floats:
    matrix = sums.reshape(-1, CLASSES, CLASSES)
    right = np.einsum("rcc->rc", matrix)
    union = matrix.sum(axis=1) + matrix.sum(axis=2) - right
    there = union > 0
    return np.asarray((right / np.where(there, union, 1)).sum(axis=1) / there.sum(axis=1))


def _nll(sums: Floats) -> Floats:
    return np.asarray(sums[:, 0] / sums[:, 1])


def _ece(sums: Floats) -> Floats:
    pixels, right, confidence = np.split(sums, 3, axis=1)
    return np.asarray(np.abs(right - confidence).sum(axis=1) / pixels.sum(axis=1))


NUMBERS: dict[str, tuple[str, Callable[[Floats], Floats], str]] = {
    "AUPR": ("curve", _aupr, "logit"),
    "FPR95": ("curve", _fpr95, "logit"),
    "mIoU": ("confusion", _miou, "logit"),
    "NLL": ("loss", _nll, "log"),
    "ECE": ("reliability", _ece, "log"),
}
SCALES: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "logit": (special.logit, special.expit),
    "log": (np.log, np.exp),
    "as it is": (lambda value: value, lambda value: value),
}


def candidates(values: Floats, estimate: float, weights: Floats, scale: str, ours: Replicates) -> dict[str, Bounds]:
    """The interval of each method."""
    chance = ours.chance(values)
    found: dict[str, Bounds] = {OURS: (chance.low, chance.high)}
    defined = np.isfinite(values)
    values, weights = values[defined], weights[:, defined]
    number, total = weights.shape
    stretch, normal, student = (
        math.sqrt(number / (number - 1)),
        special.ndtri(0.975),
        special.stdtrit(number - 1, 0.975),
    )
    expanded = stretch * student / normal
    found["percentile"] = _quantiles(values, special.ndtr(-normal))
    found["percentile, expanded"] = _quantiles(values, special.ndtr(-normal * expanded))
    centred = values - values.mean()
    influence = weights @ centred / total
    skew = (influence**3).sum() / (6 * (influence**2).sum() ** 1.5)
    bias = special.ndtri(np.clip((values < estimate).mean(), 1 / total, 1 - 1 / total))
    for name, factor in (("BCa", 1.0), ("BCa, expanded", expanded)):
        ends = bias + np.array([-1, 1]) * normal * factor
        levels = special.ndtr(bias + ends / np.maximum(1 - skew * ends, 1e-9))
        low, high = np.quantile(values, levels)
        found[name] = float(low), float(high)
    forward, back = SCALES[scale]
    scaled, centre = forward(np.clip(values, 1e-6, None)) if scale != "as it is" else values, forward(estimate)
    error = stretch * scaled.std()
    of_effective = special.stdtrit(chance.effective - 1, 0.975)
    for name, factor in (("t on a scale", student), ("t on a scale, effective units", of_effective)):
        found[name] = float(back(centre - factor * error)), float(back(centre + factor * error))
    influence = weights @ (scaled - scaled.mean()) / total
    influence -= influence.mean()
    counts = weights.sum(axis=0)
    mean = influence @ weights / counts
    own = np.sqrt(np.maximum(influence**2 @ weights / counts - mean**2, 1e-12) * number)
    low, high = np.quantile(mean * number / own, (0.025, 0.975))
    spread = math.sqrt(float((influence**2).sum()))
    found["bootstrap-t"] = float(back(centre - high * spread)), float(back(centre - low * spread))
    return found


def _quantiles(values: Floats, level: float) -> Bounds:
    low, high = np.quantile(values, (level, 1 - level))
    return float(low), float(high)


class Score:
    """How often intervals held the truth, and how wide they were."""

    def __init__(self) -> None:
        self.held: dict[tuple[str, str], list[bool]] = {}
        self.widths: dict[tuple[str, str], list[float]] = {}

    def add(self, what: str, truth: float, found: dict[str, Bounds]) -> None:
        for method, (low, high) in found.items():
            self.held.setdefault((method, what), []).append(low <= truth <= high)
            self.widths.setdefault((method, what), []).append(high - low)

    def table(self) -> dict[str, dict[str, dict[str, float]]]:
        """Method -> number -> coverage, its Monte Carlo error, median width over that of percentiles."""
        rows: dict[str, dict[str, dict[str, float]]] = {}
        for (method, what), held in self.held.items():
            coverage = float(np.mean(held))
            reference = "percentile" if ("percentile", what) in self.widths else UNITS_ALONE
            base = np.median(self.widths[reference, what])
            rows.setdefault(method, {})[what] = {
                "coverage": coverage,
                "error": math.sqrt(coverage * (1 - coverage) / len(held)),
                "width": float(np.median(self.widths[method, what]) / base),
            }
        return rows


def simulate(number: int, trials: int, truth: dict[str, Bounds], random: np.random.Generator) -> Score:
    """Every candidate on every number and difference of so many units."""
    score, names = Score(), tuple(map(str, range(number)))
    for trial in range(trials):
        units = draw_units(number, random)
        weights = np.stack([Resampling(REPLICATES, trial).weights(name) for name in names]).astype(np.float64)
        ours = Replicates((), np.zeros((0, REPLICATES)), trial, names)
        for name, (kind, of, scale) in NUMBERS.items():
            with np.errstate(invalid="ignore"):  # a replicate without an anomaly, or without a unit
                first, second = (of(weights.T @ counts) for counts in units[kind])
            one, other = (float(of(counts.sum(axis=0, keepdims=True))[0]) for counts in units[kind])
            score.add(name, truth[name][0], candidates(first, one, weights, scale, ours))
            difference = candidates(second - first, other - one, weights, "as it is", ours)
            score.add(f"{name}, difference", truth[name][1] - truth[name][0], difference)
    return score


def simulate_seeds(number: int, trials: int, random: np.random.Generator) -> Score:
    """Means of a loss over SEEDS seeds, and of the difference of two models, that differ by seed as much as by draws of units."""
    score, names, seeds = Score(), tuple(map(str, range(number))), tuple(map(str, range(SEEDS)))
    truth = math.exp(0.5 * (0.7**2 + 0.25**2))
    for trial in range(trials):
        weights = np.stack([Resampling(REPLICATES, trial).weights(name) for name in names])
        size, hard = random.lognormal(0, 0.7, number), random.normal(0, 0.7, number)
        of_seed = random.normal(0, 0.12, (2, SEEDS))
        models: list[list[Replicates]] = [[], []]
        for model, seed in np.ndindex(2, SEEDS):
            loss = np.exp(hard + random.normal(0, 0.25, number)) * (1 + of_seed[model, seed]) * (1 - 0.1 * model)
            values = (size * loss) @ weights / (size @ weights)
            models[model].append(Replicates(("n",), values[None], trial, names))
        for method, resampled in ((UNITS_ALONE, ()), (OURS, seeds)):
            first, second = (mean_replicates(model, resampled) for model in models)
            assert first is not None
            assert second is not None
            for what, values, true in (
                ("mean", first.values[0], truth),
                ("difference", second.values[0] - first.values[0], -0.1 * truth),
            ):
                chance = first.chance(values)
                score.add(what, true, {method: (chance.low, chance.high)})
    return score


def true_values(random: np.random.Generator) -> dict[str, Bounds]:
    """Of both models, each number of 200,000 units."""
    sums: dict[str, list[Floats]] = {}
    for _ in range(20):
        for kind, models in draw_units(10_000, random).items():
            sums[kind] = [a + m.sum(axis=0) for a, m in zip(sums.get(kind, [np.zeros(1)] * 2), models, strict=True)]
    return {
        name: (float(of(sums[kind][0][None])[0]), float(of(sums[kind][1][None])[0]))
        for name, (kind, of, _) in NUMBERS.items()
    }


def show(title: str, rows: dict[str, dict[str, dict[str, float]]]) -> None:
    """Coverage / width of each number, and the mean coverage of numbers and of differences, as Markdown."""
    names = list(next(iter(rows.values())))
    print(f"\n{title}\n\n| | {' | '.join(names)} | numbers | differences | error |\n|---|{'---|' * (len(names) + 3)}")
    for method, row in rows.items():
        groups = [[cell for name, cell in row.items() if ("difference" in name) == paired] for paired in (False, True)]
        means = [f"{np.mean([cell['coverage'] for cell in group]):.3f}" for group in groups]
        cells = [f"{cell['coverage']:.3f} / {cell['width']:.2f}" for cell in row.values()]
        most = f"{max(cell['error'] for cell in row.values()):.3f}"
        print(f"| {' | '.join([method, *cells, *means, most])} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--units", type=int, nargs="+", default=[15, 17, 30])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    resampling.FEWEST_UNITS = 2  # what the package refuses is measured too
    random = np.random.default_rng(arguments.seed)
    truth = true_values(random)
    tables = {}
    for number in arguments.units:
        tables[f"{number} units"] = simulate(number, arguments.trials, truth, random).table()
        show(f"{number} units", tables[f"{number} units"])
    title = f"{SEEDS} seeds, 30 units"
    tables[title] = simulate_seeds(30, arguments.trials, random).table()
    show(f"{title}; widths over those of units alone", tables[title])
    if arguments.json:
        settings = {"trials": arguments.trials, "seed": arguments.seed, "replicates": REPLICATES}
        content = {"about": provenance(), **settings, "truth": truth, "tables": tables}
        arguments.json.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
