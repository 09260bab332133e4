"""The scores ``knn`` and ``anomaly`` with 100,000 features for each layer of a second encoder.

The encoder has random weights and the bank holds random features, because time and memory do not
depend on them. So that small distances are tested too, the bank also holds noisy copies of some
features of the frame.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from segunc.baselines.anomaly import ScoreSum, Standard, Surprise
from segunc.baselines.density import FeatureDistances, Neighbours, unit_features
from segunc.baselines.feature_extractor import FeatureExtractor, SecondEncoder
from segunc.networks.smp import encoder_normalisation
from segunc.sampling.sampler import Fitted, Sampler
from tools.bench_sampler import make_network
from tools.cost_table import in_turns
from tools.gpu_day.networks import Size, arguments_of, networks_of, size_words, sizes_of
from tools.gpu_day.steps import Day, Row, Step
from tools.gpu_day.timing import Prepared, prepare

BANK = 100_000
TINY_BANK = 600
ENCODER = "tf_efficientnet_lite0"
LAYERS = ("encoder.blocks.5", "encoder.blocks.6")
ANOMALY_PASSES = 4.0
"""Goal of ``anomaly``, the base's pass included, in passes of the base."""
SAMPLE = 256  # places whose distances are compared with float64
COPIES = 64  # of them, of which the bank has a noisy copy
DISTANCE_BOUND = {"cuda": 2.0**-9, "cpu": 2.0**-13}
"""By how much a distance may err. On a GPU features are float16: each of the two vectors of length
1 errs by the share 2^-11, and so does the stored cosine, together 1.5 x 2^-10. On a CPU, where sums
of about 1000 products are float32, errors are at most 1000 x 2^-24.
"""
ROUNDS = 10
TINY_ROUNDS = 1
GIB = 2**30


def steps(day: Day) -> Iterator[Step]:
    """Give the steps of the part ``bank``."""
    for size in sizes_of(day):
        name = f"a bank of {BANK} features, {size_words(size)}"
        yield Step(name, partial(measure_bank, day, size))


@dataclass(frozen=True)
class Exactness:
    """A sample of distances beside those of float64, of a search through the whole bank.

    Attributes:
        largest_error: of a distance.
        wrong_neighbours: how many places got a neighbour that is farther than the nearest by more
            than twice the bound of a distance.
    """

    largest_error: float
    wrong_neighbours: int


class Case:
    """A frame, and what is asked of it.

    Attributes:
        places: for each layer, the features ``[M, D]`` of the frame, of length 1.
        stored: for each layer, the features ``[N, D]`` of the bank before they are rounded.
        banks: for each layer, the bank.
    """

    def __init__(self, day: Day, size: Size) -> None:
        torch.manual_seed(0)
        self.day = day
        network = make_network(arguments_of(day, networks_of(day)[0], size))
        encoder = SecondEncoder(ENCODER, *encoder_normalisation(ENCODER))
        folded = encoder.folded(LAYERS).to(day.device)
        self.extractor = FeatureExtractor(folded, LAYERS)
        self.images = torch.rand(1, 3, *size, device=day.device)
        self.images = self.images.contiguous(memory_format=torch.channels_last)
        self.precision = day.precision
        with torch.inference_mode():
            self.places = [unit_features(maps) for maps in self.extractor(self.images)]
        self.stored = [self._features_like(rows) for rows in self.places]
        names = [str(number) for number in range(len(self.stored[0]))]
        self.banks = [Neighbours(features, names) for features in self.stored]
        distances = FeatureDistances(self.extractor, self.banks)
        total = ScoreSum(
            parts=("deterministic-energy", "knn"),
            weights=(1.0, 2.0),
            scales=(Standard(0.5, 0.25), Standard(0.5, 0.25)),
            surprise=Surprise((0.0, 0.5, 1.0), 0.1),
            fitted_on={},
            frames=1,
            draws=1,
            temperature=1.0,
            base_sha256="",
            posterior_sha256=None,
            features_sha256=None,
        )
        self.plain = self._sampler(network, "deterministic-energy", Fitted())
        self.knn = self._sampler(network, "knn", Fitted(providers=[distances]))
        self.anomaly = self._sampler(network, "anomaly", Fitted(providers=[distances, total]))

    def _sampler(
        self, network: torch.nn.Module, score: str, fitted: Fitted
    ) -> Callable[[], object]:
        sampler = Sampler(network, scores=(score,), precision=self.precision, fitted=fitted)
        return partial(sampler, self.images)

    def _features_like(self, rows: Tensor) -> Tensor:
        """Return the features of a bank: random ones, and noisy copies of the first places."""
        count = TINY_BANK if self.day.tiny else BANK
        copies = rows[:COPIES]
        noise = 0.02 * F.normalize(torch.randn_like(copies), dim=1)
        random = torch.randn(count - len(copies), rows.shape[1], device=rows.device)
        return F.normalize(torch.cat([copies + noise, random]), dim=1)

    @torch.inference_mode()
    def search(self) -> list[Tensor]:
        """Return the distances of all places, for each layer."""
        return [bank(rows) for bank, rows in zip(self.banks, self.places, strict=True)]

    @torch.inference_mode()
    def exactness(self) -> Exactness:
        """Compare distances and neighbours of a sample of places with float64."""
        bound = DISTANCE_BOUND[self.day.device.type]
        largest_error = 0.0
        wrong_neighbours = 0
        for bank, rows, stored in zip(self.banks, self.places, self.stored, strict=True):
            sample = rows[:SAMPLE]
            exact = 1.0 - sample.double() @ stored.double().T
            nearest = exact.amin(1)
            errors = (bank(sample).double() - nearest).abs()
            largest_error = max(largest_error, float(errors.max()))
            for place, (_, name) in enumerate(bank.nearest(sample)):
                if exact[place, int(name)] > nearest[place] + 2 * bound:
                    wrong_neighbours += 1
        return Exactness(largest_error, wrong_neighbours)


def measure_bank(day: Day, size: Size) -> Row:
    """Return the times and the memory of the scores beside a plain pass, and their exactness."""
    case = Case(day, size)
    jobs: dict[str, Prepared] = {
        "plain pass": prepare(case.plain, day.device),
        "second encoder": prepare(lambda: _features(case), day.device),
        "search": prepare(case.search, day.device),
        "knn": prepare(case.knn, day.device),
        "anomaly": prepare(case.anomaly, day.device),
    }
    runs = {name: prepared.run for name, prepared in jobs.items()}
    with day.turns:
        ms = in_turns(runs, TINY_ROUNDS if day.tiny else ROUNDS, day.device)
    exactness = case.exactness()
    row: Row = {"features of a layer": len(case.stored[0])}
    row["places of the maps"] = [len(rows) for rows in case.places]
    row |= {f"{name}, ms": value for name, value in ms.items()}
    row["anomaly over plain pass"] = ms["anomaly"] / ms["plain pass"]
    bank_bytes = sum(bank.bank.nbytes for bank in case.banks)
    row["bank, GiB"] = bank_bytes / GIB
    plain_bytes = jobs["plain pass"].held_bytes
    for name in ("knn", "anomaly"):
        held = jobs[name].held_bytes
        if held is not None and plain_bytes is not None:
            row[f"{name}, extra GiB beside the bank"] = (held - plain_bytes) / GIB
    row["largest error of a distance"] = exactness.largest_error
    row["wrong neighbours"] = exactness.wrong_neighbours
    exact = exactness.largest_error <= DISTANCE_BOUND[day.device.type]
    row["met"] = exact and exactness.wrong_neighbours == 0
    if row["anomaly over plain pass"] > ANOMALY_PASSES:
        row["met"] = False
    return row


@torch.inference_mode()
def _features(case: Case) -> list[Tensor]:
    """Return the feature maps of the frame."""
    return list(case.extractor(case.images))
