"""Achieved against asked: thresholds of many calibrations on synthetic frames, whose risk at every
threshold is known.

    python tools/simulate_guarantees.py [--draws 1000] [--population 2000]
        [--margin PIXELS] [--level-frames]

A population of small frames is made once; its mean loss is the risk. Each draw takes n of its
frames with replacement, which are exchangeable with the next one, and calibrates by the package's
own functions. With --margin or --level-frames, maps are prepared first. Printed as one Markdown
table, a row for each control and method: of each n the mean risk over the draws, and the share of
draws whose risk is above the level.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import get_args

import cv2
import numpy as np
import numpy.typing as npt

from segunc.decisions.guarantee import MethodName
from segunc.decisions.preparation import AS_IT_IS, Preparation
from segunc.decisions.risks import OF_ANOMALIES, RISING, LossSums, Method, Pool, Scene, monotone

CONTROLS = ("missed-pixels", "flagged-pixels", "missed-objects", "false-alarms", "errors-kept")
LEVEL, CONFIDENCE, UNITS = 0.2, 0.9, (20, 50, 200)  # the level in shares of the largest loss
SIZE, CODES, SMALLEST = (
    (32, 48),
    257,
    4,
)  # scores are uint8 codes, whose keys are 257 apart: the thresholds are 0 to 256
Losses = npt.NDArray[np.float64]


def scene(random: np.random.Generator, preparation: Preparation = AS_IT_IS) -> Scene:
    """Make a frame: smooth normal ground of its own difficulty, one to four objects of which some
    look like it, and wrong predictions that are more frequent where the score is high.
    """
    noise = cv2.GaussianBlur(random.normal(size=SIZE), (0, 0), 1.0)
    scores, anomaly = 70 + 15 * random.normal() + 90 * noise, np.zeros(SIZE, np.uint8)
    for _ in range(random.integers(1, 5)):
        top, left, side = random.integers(24), random.integers(40), random.integers(3, 8)
        anomaly[top : top + side, left : left + side] = 1
        scores[top : top + side, left : left + side] += random.gamma(3.0, 35.0)
    stored = np.clip(np.rint(scores), 0, 255).astype(np.uint8)
    wrong = random.random(SIZE) < 1 / (1 + np.exp((110 - scores - 25 * random.normal()) / 25))
    prepared = preparation.ranked(stored)
    if preparation.level == "frame":
        # As codes, too: 60 of them a decade.
        prepared = np.clip(np.rint(60 * prepared), 0, 255).astype(np.uint8)
    return Scene(prepared, anomaly, np.zeros(SIZE, np.uint8), wrong.astype(np.uint8))


def population(
    frames: int, seed: int = 0, preparation: Preparation = AS_IT_IS
) -> dict[str, Losses]:
    """Return the monotone losses of each frame at each threshold, float64 ``[N, 257]``,
    by control.
    """
    random = np.random.default_rng(seed)
    rows: dict[str, list[Losses]] = {control: [] for control in CONTROLS}
    for _ in range(frames):
        frame = scene(random, preparation)
        for control in CONTROLS:
            unit, counts = Pool(control), frame.counts(control, smallest=SMALLEST)
            assert counts is not None
            # From 256 on no pixel is flagged, as at the last threshold.
            unit.add(counts[:, [*range(0, 1 << 16, 257), -1]])
            of_unit = unit.losses()
            assert of_unit is not None, OF_ANOMALIES
            rows[control].append(monotone(of_unit, control))
    return {control: np.stack(values) for control, values in rows.items()}


def simulate(
    units: Losses, control: str, method: Method, n: int, draws: int, seed: int = 1
) -> Losses:
    """Return the true risk at the threshold of each calibration on ``n`` units, ``[draws]``, as a
    share of the largest loss: the mean loss of the population, of clopper-pearson its share of
    units with any loss.
    """
    random, largest = np.random.default_rng(seed), method.largest(control)
    truth = (units > 0).mean(0) if method.name == "clopper-pearson" else units.mean(0) / largest
    risks = np.zeros(draws)
    for draw in range(draws):
        sample, sums = units[random.integers(len(units), size=n)], LossSums(control, units.shape[1])
        sums.units, sums.total, sums.failed = n, sample.sum(0), np.count_nonzero(sample > 0, axis=0)
        place = method.certified(sums, LEVEL * largest)
        risks[draw] = truth[place if place is not None else 0 if control in RISING else -1]
    return risks


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--population", type=int, default=2000)
    parser.add_argument("--margin", type=int, default=0, metavar="PIXELS")
    parser.add_argument("--level-frames", action="store_true")
    asked = parser.parse_args(words)
    preparation = Preparation("frame" if asked.level_frames else "none", asked.margin)
    columns = [f"n = {n}: mean risk, draws above {LEVEL:g}" for n in UNITS]
    print(
        f"| control | method | {' | '.join(columns)} |\n| --- | --- |"
        f" {' | '.join(['---:'] * len(UNITS))} |"
    )
    for control, units in population(asked.population, preparation=preparation).items():
        for name in get_args(MethodName):
            method = Method(name, None if name == "conformal" else CONFIDENCE)
            risks = [simulate(units, control, method, n, asked.draws) for n in UNITS]
            cells = [f"{of.mean():.3f}, {100 * np.mean(of > LEVEL):.1f} %" for of in risks]
            print(f"| {control} | {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
