"""Metrics of torchmetrics against scikit-learn, against the command line, and in two processes."""

from __future__ import annotations

import doctest
import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed
import torch.multiprocessing
from matplotlib import pyplot
from matplotlib.figure import Figure
from sklearn import metrics as sklearn_metrics
from torch import Tensor
from torchmetrics import Metric, MetricCollection
from torchmetrics.functional.classification import multiclass_calibration_error

import segunc
import segunc.metrics
from segunc.core.errors import InputError, NoteWarning
from segunc.maps.encoding import encode_unit
from segunc.metrics import (
    AURC,
    AUSE,
    ECE,
    FPR95,
    NLL,
    AdaptiveECE,
    BestF1,
    BestF1Threshold,
    Brier,
    ClassIoU,
    ComponentF1,
    ComponentPPV,
    ComponentSIoU,
    FailureAUROC,
    FailureAveragePrecision,
    FailureFPR95,
    FPRAtTPR,
    MIoU,
    PixelAccuracy,
    PixelAUROC,
    PixelAveragePrecision,
    score_table,
    streaming,
)
from tests.evaluation.runs import CLASSES, decoded, make_run, write_run
from tests.support.oracles import pixel_numbers

RUN = make_run()
CURVES: dict[str, type[Metric]] = {
    "auroc": PixelAUROC,
    "aupr": PixelAveragePrecision,
    "fpr95": FPR95,
    "best_f1": BestF1,
    "threshold": BestF1Threshold,
}
FAILURES: dict[str, type[Metric]] = {
    "aurc": AURC,
    "ause": AUSE,
    "failure_auroc": FailureAUROC,
    "failure_aupr": FailureAveragePrecision,
    "failure_fpr95": FailureFPR95,
}


def untied(seed: int = 0, size: tuple[int, ...] = (3, 20, 30)) -> tuple[Tensor, Tensor]:
    """Return scores and anomaly labels with ignored pixels, of a batch."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(size, generator=generator)
    target = (scores + torch.randn(size, generator=generator) > 1.5).long()
    target[torch.rand(size, generator=generator) < 0.1] = 255
    return scores, target


def tied(seed: int = 0) -> tuple[Tensor, Tensor]:
    scores, target = untied(seed)
    return (scores * 4).round() / 4, target


# Numbers from other tools.

MAKES: dict[str, Callable[[], tuple[Tensor, Tensor]]] = {"untied": untied, "tied": tied}
TYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("make", MAKES)
def test_curves_are_those_of_scikit_learn(make: str, dtype: torch.dtype) -> None:
    scores, target = MAKES[make]()
    scores = scores.to(dtype)
    counted = target != 255
    expected = pixel_numbers(target[counted].numpy(), scores[counted].double().numpy())
    for name, kind in CURVES.items():
        metric = kind()
        for batch in range(len(scores)):
            metric.update(scores[batch], target[batch])
        assert float(metric.compute()) == pytest.approx(expected[name], abs=1e-12)


@pytest.mark.parametrize("tpr", [0.2, 0.8, 0.95, 1.0])
def test_the_false_positive_rate_at_any_recall(tpr: float) -> None:
    scores, target = untied()
    counted = target != 255
    false, true, _ = sklearn_metrics.roc_curve(
        target[counted], scores[counted], drop_intermediate=False
    )
    metric = FPRAtTPR(tpr)
    metric.update(scores, target)
    assert float(metric.compute()) == false[np.argmax(true >= tpr)]


FIXTURES = [
    ([0, 0, 0, 1, 1], [0, 0, 0, 1, 1], (1, 1, 0, 1)),
    ([0, 1, 0, 1], [0.1, 0.4, 0.35, 0.8], (1, 1, 0, 1)),
    ([0, 0, 1, 1], [0.1, 0.4, 0.35, 0.8], (0.75, 0.833333, 0.5, 0.8)),
    ([0, 0, 1, 1], [0.5, 0.5, 0.5, 0.5], (0.5, 0.5, 1, 0.666667)),
    ([0, 0, 0, 1, 1, 1], [0, 0, 0.9, 0.1, 1, 1], (0.888889, 0.916667, 0.333333, 0.857143)),
]


@pytest.mark.parametrize("repeats", [1, 128])
@pytest.mark.parametrize(("labels", "scores", "numbers"), FIXTURES)
def test_curves_whose_numbers_are_known(
    labels: list[int], scores: list[float], numbers: tuple[float, ...], repeats: int
) -> None:
    for kind, expected in zip((PixelAUROC, PixelAveragePrecision, FPR95, BestF1), numbers):  # noqa: B905
        metric = kind()
        for _ in range(repeats):
            metric.update(torch.tensor(scores, dtype=torch.float32), torch.tensor(labels))
        assert float(metric.compute()) == pytest.approx(expected, abs=1e-6)


def probabilities_and_labels() -> tuple[Tensor, Tensor]:
    frames = RUN.values()
    probabilities = torch.from_numpy(np.stack([frame.probabilities for frame in frames]))
    labels = torch.from_numpy(np.stack([frame.labels for frame in frames]))
    return probabilities, labels.long()


def test_numbers_of_classes_are_those_of_scikit_learn() -> None:
    probabilities, labels = probabilities_and_labels()
    counted = (labels != 255).numpy()
    flat = np.moveaxis(probabilities.numpy(), 1, -1)[counted].astype(np.float64)
    truth = labels.numpy()[counted]
    ids = flat.argmax(1)
    expected = {
        MIoU: sklearn_metrics.jaccard_score(truth, ids, average="macro"),
        PixelAccuracy: sklearn_metrics.accuracy_score(truth, ids),
    }
    for kind, value in expected.items():
        for preds in (probabilities, probabilities.argmax(1)):
            metric = kind(num_classes=4)
            metric.update(preds, labels)
            assert float(metric.compute()) == pytest.approx(value, abs=1e-12)
    per_class = ClassIoU(num_classes=4)
    per_class.update(probabilities, labels)
    iou = sklearn_metrics.jaccard_score(truth, ids, average=None)
    np.testing.assert_allclose(per_class.compute().numpy(), iou, atol=1e-12)
    one_hot = np.eye(4)[truth]
    nll = NLL()
    brier = Brier()
    for metric in (nll, brier):
        metric.update(probabilities, labels)
    assert float(nll.compute()) == pytest.approx(-np.log(flat[one_hot == 1]).mean(), abs=1e-6)
    assert float(brier.compute()) == pytest.approx(((flat - one_hot) ** 2).sum(1).mean(), abs=1e-6)


def test_ece_is_that_of_torchmetrics_but_for_the_rounding_of_the_confidence() -> None:
    probabilities, labels = probabilities_and_labels()
    metric = ECE()
    metric.update(probabilities, labels)
    expected = multiclass_calibration_error(
        probabilities, labels, num_classes=4, n_bins=15, ignore_index=255
    )
    assert float(metric.compute()) == pytest.approx(float(expected), abs=2e-3)


def test_aurc_is_the_mean_risk_of_all_coverages() -> None:
    scores, target = untied(5, (2, 4, 5))
    ids = torch.randint(0, 2, target.shape, generator=torch.Generator().manual_seed(1))
    metric = AURC()
    metric.update(ids, target, scores)
    counted = target != 255
    wrong = (ids != target)[counted][scores[counted].argsort()].double()
    expected = (wrong.cumsum(0) / torch.arange(1, len(wrong) + 1)).mean()
    assert float(metric.compute()) == pytest.approx(float(expected), abs=1e-12)


# Numbers of the command line.


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("streamed")
    write_run(root, RUN)
    return root


def evaluated(folder: Path, **options: Any) -> dict[str, Any]:
    return segunc.evaluate(maps=folder / "maps", replicates=0, **options).numbers


@pytest.fixture(scope="module")
def anomaly_numbers(folder: Path) -> dict[str, Any]:
    numbers = evaluated(
        folder, anomaly_labels=folder / "anomaly", components=["smiyc-anomaly", "smiyc-obstacle"]
    )
    scores: dict[str, Any] = numbers["scores"]
    return scores


@pytest.mark.parametrize("score", RUN["bergen/frame_0"].stored)
def test_curves_are_those_of_the_command_line(score: str, anomaly_numbers: dict[str, Any]) -> None:
    for name, kind in CURVES.items():
        metric = kind()
        for frame in RUN.values():
            scores = torch.from_numpy(decoded(frame)[score])
            metric.update(scores, torch.from_numpy(frame.anomaly))
        assert float(metric.compute()) == anomaly_numbers[score]["pooled"][name]


@pytest.mark.parametrize("track", ["smiyc-anomaly", "smiyc-obstacle"])
def test_components_are_those_of_the_command_line(
    track: str, anomaly_numbers: dict[str, Any]
) -> None:
    numbers = anomaly_numbers["entropy"]
    threshold = numbers["smiyc"]["threshold"]
    kinds = {"siou_gt": ComponentSIoU, "ppv": ComponentPPV, "mean_f1": ComponentF1}
    for name, kind in kinds.items():
        metric = kind(threshold, track)
        for frame in RUN.values():
            scores = torch.from_numpy(decoded(frame)["entropy"]).half()
            metric.update(scores, torch.from_numpy(frame.anomaly))
        expected = numbers["components"][track][name]
        if expected is None:
            with pytest.warns(NoteWarning, match="large enough|neither a labelled nor"):
                assert metric.compute().isnan()
        else:
            assert float(metric.compute()) == expected


def test_codes_of_the_confidence_are_those_of_its_maps() -> None:
    """Torch's square root of float32 is rounded otherwise than NumPy's."""
    values = torch.rand(1 << 20, generator=torch.Generator().manual_seed(0))
    expected = encode_unit(values.numpy()).astype(np.int64)
    assert torch.equal(streaming._unit_codes(values), torch.from_numpy(expected))


def test_numbers_of_classes_are_those_of_the_command_line(folder: Path) -> None:
    numbers = evaluated(folder, labels=folder / "labels", label_map=str(folder / "classes.csv"))
    probabilities, labels = probabilities_and_labels()
    ece = ECE()
    of_ids = ECE()
    for metric in (ece, of_ids):
        for frame, image, label in zip(RUN.values(), probabilities, labels, strict=True):
            if metric is ece:
                metric.update(image, label)
            else:
                msp = torch.from_numpy(decoded(frame)["msp"])
                metric.update(torch.from_numpy(frame.prediction), label, msp)
        assert float(metric.compute()) == numbers["calibration"]["ece"]
    for kind, name in ((MIoU, "miou"), (PixelAccuracy, "accuracy")):
        metric = kind(len(CLASSES))
        metric.update(probabilities, labels)
        assert float(metric.compute()) == numbers["segmentation"][name]
    per_class = ClassIoU(len(CLASSES))
    per_class.update(probabilities, labels)
    assert per_class.compute().tolist() == [*numbers["segmentation"]["per_class"].values()]
    for score in ("msp", "entropy"):
        for name, kind in FAILURES.items():
            metric = kind()
            for frame in RUN.values():
                scores = torch.from_numpy(decoded(frame)[score])
                ids = torch.from_numpy(frame.prediction)
                metric.update(ids, torch.from_numpy(frame.labels), scores)
            assert float(metric.compute()) == numbers["selective"][score][name]
    of_probabilities = AURC()
    of_probabilities.update(probabilities, labels)
    assert float(of_probabilities.compute()) == numbers["selective"]["msp"]["aurc"]


def test_probabilities_give_the_numbers_of_arrays() -> None:
    """``segunc.score`` counts them with the evaluator of the command line."""
    probabilities, labels = probabilities_and_labels()
    expected = segunc.score(probabilities, labels, classes=CLASSES, replicates=0)
    for kind, value in (
        (NLL, expected.nll),
        (Brier, expected.brier),
        (AdaptiveECE, expected.adaptive_ece),
    ):
        metric = kind()
        metric.update(probabilities[:1], labels[:1])
        metric.update(probabilities[1:], labels[1:])
        assert float(metric.compute()) == value


# Behaviour of torchmetrics.


def filled(seed: int) -> dict[str, Metric]:
    """Return every metric with one batch, and another with each seed."""
    scores, target = untied(seed)
    generator = torch.Generator().manual_seed(seed)
    probabilities = torch.randn(3, 4, 20, 30, generator=generator).softmax(1)
    labels = torch.randint(0, 4, (3, 20, 30), generator=generator)
    metrics: dict[str, Metric] = {
        "PixelAUROC": PixelAUROC(),
        "PixelAveragePrecision": PixelAveragePrecision(),
        "FPRAtTPR": FPRAtTPR(0.8),
        "FPR95": FPR95(),
        "BestF1": BestF1(),
        "BestF1Threshold": BestF1Threshold(),
        "ComponentF1": ComponentF1(1.0, "smiyc-obstacle"),
        "ComponentSIoU": ComponentSIoU(1.0, "smiyc-obstacle"),
        "ComponentPPV": ComponentPPV(1.0, "smiyc-obstacle"),
        "AURC": AURC(),
        "AUSE": AUSE(),
        "FailureAUROC": FailureAUROC(),
        "FailureAveragePrecision": FailureAveragePrecision(),
        "FailureFPR95": FailureFPR95(),
        "ECE": ECE(),
        "AdaptiveECE": AdaptiveECE(),
        "NLL": NLL(),
        "Brier": Brier(),
        "MIoU": MIoU(4),
        "PixelAccuracy": PixelAccuracy(4),
        "ClassIoU": ClassIoU(4),
    }
    blobs = torch.nn.functional.interpolate(scores[None], scale_factor=4)[0]
    blob_target = torch.nn.functional.interpolate(target[None].float(), scale_factor=4)[0].long()
    for metric in metrics.values():
        if isinstance(metric, streaming._AnomalyMetric):
            metric.update(scores, target)
        elif isinstance(metric, streaming._ComponentMetric):
            metric.update(blobs, blob_target)
        else:
            metric.update(probabilities, labels)
    return metrics


ALL = [*filled(0)]


def test_every_metric_is_public() -> None:
    assert sorted(ALL) == sorted(segunc.metrics.__all__)
    assert {*ALL} <= {*dir(segunc.metrics)}
    with pytest.raises(AttributeError, match="no attribute 'PixelAUROK'"):
        segunc.metrics.__getattr__("PixelAUROK")


@pytest.mark.parametrize("name", ALL)
def test_a_metric_is_copied_pickled_moved_and_merged(name: str) -> None:
    metric = filled(1)[name]
    value = metric.compute()
    assert value.dtype == torch.float64
    for copy in (metric.clone(), pickle.loads(pickle.dumps(metric)), metric.to("cpu")):
        assert torch.equal(copy.compute(), value)
    merged = filled(2)[name]
    merged.merge_state(metric)
    other = filled(1)[name]
    other.merge_state(filled(2)[name])
    assert torch.equal(merged.compute(), other.compute())
    assert not torch.equal(merged.compute(), value)


@pytest.mark.parametrize("name", ALL)
def test_a_state_dict_holds_the_counts(name: str) -> None:
    metric = filled(1)[name]
    metric.persistent(True)
    empty = filled(2)[name]
    empty.reset()
    empty.load_state_dict(metric.state_dict())
    empty._update_count = 1  # torchmetrics warns otherwise
    assert torch.equal(empty.compute(), metric.compute())


@pytest.mark.parametrize("name", ALL)
def test_after_a_reset_there_is_no_number_and_a_warning_says_why(name: str) -> None:
    metric = filled(1)[name]
    metric.reset()
    reason = "was called before the ``update``" if name == "ClassIoU" else f"{name} is undefined: "
    with pytest.warns(UserWarning, match=reason):
        assert metric.compute().isnan().all()


@pytest.mark.parametrize("name", ALL)
def test_flags_of_torchmetrics(name: str) -> None:
    metric = filled(1)[name]
    lower = {"FPRAtTPR", "FPR95", "AURC", "AUSE", "FailureFPR95", "ECE", "AdaptiveECE", "NLL"}
    lower.add("Brier")
    expected = None if name == "BestF1Threshold" else name not in lower
    assert metric.higher_is_better is expected
    assert metric.is_differentiable is False
    assert metric.full_state_update is False


@pytest.mark.parametrize("name", ALL)
def test_a_plot_shows_the_value(name: str) -> None:
    metric = filled(1)[name]
    figure, axes = metric.plot()
    assert isinstance(figure, Figure)
    drawn = [float(line.get_ydata()[0]) for line in axes.lines if len(line.get_ydata()) == 1]
    for value in metric.compute().reshape(-1).tolist():
        assert any(abs(value - height) < 1e-6 for height in drawn)
    pyplot.close(figure)


def test_a_plot_of_steps() -> None:
    metric = PixelAUROC()
    values = [metric(*untied(seed)) for seed in range(3)]
    figure, axes = metric.plot(values)
    np.testing.assert_allclose(axes.lines[0].get_ydata(), values)
    pyplot.close(figure)


def test_forward_gives_the_batch_and_keeps_the_sum() -> None:
    metric = PixelAUROC()
    whole = PixelAUROC()
    for seed in range(4):
        alone = PixelAUROC()
        alone.update(*untied(seed))
        assert torch.equal(metric(*untied(seed)), alone.compute())
        whole.update(*untied(seed))
        assert len(metric.anomaly_keys) == 1  # a list that grew would hold every batch
    assert torch.equal(metric.compute(), whole.compute())


def test_a_collection_counts_once_for_metrics_of_the_same_pixels() -> None:
    collection = MetricCollection(
        [PixelAUROC(), PixelAveragePrecision(), FPR95(), BestF1(), ComponentF1(1.0)]
    )
    for seed in range(3):
        collection.update(*untied(seed))
    groups = [sorted(group) for group in collection.compute_groups.values()]
    assert ["BestF1", "FPR95", "PixelAUROC", "PixelAveragePrecision"] in groups
    values = collection.compute()
    for kind in (PixelAUROC, PixelAveragePrecision, FPR95, BestF1):
        metric = kind()
        for seed in range(3):
            metric.update(*untied(seed))
        assert torch.equal(values[kind.__name__], metric.compute())


def test_a_collection_never_shares_the_states_of_other_settings() -> None:
    """Of its first batch both count the same: no component."""
    collection = MetricCollection({"low": ComponentF1(0.5), "high": ComponentF1(2.0)})
    target = torch.zeros(64, 64, dtype=torch.long)
    collection.update(torch.zeros(64, 64), target)
    target[:40, :40] = 1
    collection.update(target * 1.0, target)
    values = collection.compute()
    assert float(values["low"]) == 1
    assert float(values["high"]) == 0


def test_no_pixel_means_nan_with_the_reason() -> None:
    metric = PixelAUROC()
    metric.update(torch.rand(4), torch.zeros(4, dtype=torch.bool))
    with pytest.warns(NoteWarning, match="PixelAUROC is undefined: no pixel is labelled as an an"):
        assert metric.compute().isnan()


def test_too_many_scores_are_rounded_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(score_table, "MAX_DISTINCT", 200)
    scores, target = untied()
    counted = target != 255
    exact = sklearn_metrics.roc_auc_score(target[counted], scores[counted])
    metric = PixelAUROC()
    metric.update(scores, target)
    with pytest.warns(NoteWarning, match=r"bits were dropped; AUROC is off by at most \d"):
        assert abs(float(metric.compute()) - exact) <= metric.table().auroc_error()


@pytest.mark.parametrize("name", ["PixelAUROC", "ECE", "NLL", "MIoU"])
def test_a_validation_loop_in_inference_mode(name: str) -> None:
    """A tensor that was made in it must not be changed outside of it."""
    arguments: dict[str, tuple[Tensor, Tensor]] = {
        "PixelAUROC": untied(),
        "MIoU": (torch.randn(3, 4, 20, 30), untied()[1]),
    }
    batch = arguments.get(name, (torch.randn(3, 4, 20, 30).softmax(1), untied()[1]))
    metric = filled(1)[name]
    with torch.inference_mode():
        metric.reset()
        metric.update(*batch)
        metric(*batch)
    metric.update(*batch)
    expected = filled(1)[name]
    expected.reset()
    for _ in range(3):
        expected.update(*batch)
    assert torch.equal(metric.compute(), expected.compute())


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_gives_the_bits_of_the_cpu() -> None:
    for make in (untied, tied):
        scores, target = make()
        for kind in CURVES.values():
            metric = kind().to("cuda")
            metric.update(scores.cuda(), target.cuda())
            expected = kind()
            expected.update(scores, target)
            assert metric.compute().cpu() == expected.compute()
    probabilities, labels = probabilities_and_labels()
    for make_metric in (AURC, ECE, NLL, Brier, lambda: MIoU(4), lambda: PixelAccuracy(4)):
        metric = make_metric().to("cuda")
        metric.update(probabilities.cuda(), labels.cuda())
        expected = make_metric()
        expected.update(probabilities, labels)
        assert metric.compute().cpu() == expected.compute()


# Several processes.


def _in_process(rank: int, folder: str) -> None:
    """Count one shard of uneven size, of which the last process has nothing of a third metric."""
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2
    )
    values: dict[str, Tensor] = {}
    score_table.MAX_DISTINCT = 900
    for name, metric in filled(rank).items():
        if rank:
            for seed in (2, 3):
                metric.merge_state(filled(seed)[name])
        values[name] = metric.compute()
    metric = PixelAUROC()
    if rank == 0:
        metric.update(*tied(7))
    values["of one process alone"] = metric.compute()
    metric = PixelAUROC(dist_sync_on_step=True)
    values["of a step"] = metric(*tied(rank))
    values["after a step"] = metric.compute()
    for other in (ComponentF1(0.5 + rank / 10), MIoU(2 + rank)):
        with pytest.raises(InputError, match="several processes have other settings"):
            other.compute()
    torch.save(values, f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_two_processes_give_the_number_of_one_to_the_last_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    torch.multiprocessing.spawn(_in_process, (str(tmp_path),), nprocs=2)
    monkeypatch.setattr(score_table, "MAX_DISTINCT", 900)
    expected: dict[str, Tensor] = {}
    for name, metric in filled(0).items():
        for seed in (1, 2, 3):
            metric.merge_state(filled(seed)[name])
        expected[name] = metric.compute()
    alone = PixelAUROC()
    expected["of one process alone"] = alone(*tied(7))
    both = PixelAUROC()
    for rank in range(2):
        both.update(*tied(rank))
    expected["of a step"] = both.compute()
    expected["after a step"] = both.compute()
    for rank in range(2):
        values = torch.load(tmp_path / f"{rank}.pt")
        assert values.keys() == expected.keys()
        for name, value in values.items():
            assert torch.equal(value, expected[name]), name


# Memory.


def memory() -> float:
    """Return the memory of this process in MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


class Peak:
    """Measures how much memory a block takes at its peak, in MB more than before."""

    def __enter__(self) -> Peak:
        self.before = memory()
        self.growth = 0.0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._done.wait(0.001):
            self.growth = max(self.growth, memory() - self.before)

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()


def frames(number: int, kind: str) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield frames of 2^18 pixels: decoded maps of this tool, or floats of any value."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(number):
        scores = torch.rand(512, 512, generator=generator)
        if kind == "maps":
            scores = ((scores * 65535).round() / 65535).square()
        yield scores, torch.rand(512, 512, generator=generator) < 0.02


PIXELS = int(os.environ.get("SEGUNC_TEST_PIXELS", "10_000_000"))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("kind", ["maps", "floats"])
def test_ten_million_pixels_take_no_more_memory_than_a_few(kind: str) -> None:
    few = PixelAUROC()
    for batch in frames(4, kind):
        few.update(*batch)
    metric = PixelAUROC()
    started = time.monotonic()
    with Peak() as peak:
        for batch in frames(PIXELS // 512**2, kind):
            metric.update(*batch)
        with pytest.warns() if kind == "floats" else _nothing():
            value = metric.compute()
    print(f"{kind}: {PIXELS:,} pixels, {peak.growth:.0f} MB, {time.monotonic() - started:.0f} s")
    assert peak.growth < 100
    assert 0.49 < float(value) < 0.51
    assert len(metric.anomaly_keys[0]) <= score_table.MAX_DISTINCT


class _nothing:
    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


# Bad input.

SCORES, TARGET = untied()
PROBABILITIES = torch.full((3, 4, 20, 30), 0.25)
LABELS = torch.zeros(3, 20, 30, dtype=torch.long)
BAD: dict[str, tuple[Callable[[], Metric], tuple[Any, ...], str]] = {
    "another size": (PixelAUROC, (SCORES, TARGET[0]), r"\(3, 20, 30\), and target \(20, 30\)"),
    "unknown labels": (PixelAUROC, (SCORES, TARGET + 1), r"values \[2, 256\].*255 ignored"),
    "NaN": (PixelAUROC, (SCORES / 0 * 0, TARGET), "NaN or infinite values at 1\\d\\d\\d labelled"),
    "float labels": (PixelAUROC, (SCORES, SCORES), "target is of type torch.float32"),
    "integer scores": (PixelAUROC, (TARGET, TARGET), "scores are of type torch.int64.*decode_unit"),
    "NumPy scores": (PixelAUROC, (SCORES.numpy(), TARGET), "scores is a NumPy array, .*tensors"),
    "NumPy labels": (PixelAUROC, (SCORES, TARGET.numpy()), "target is a NumPy array"),
    "a list": (ECE, ([0.1, 0.9], LABELS), "preds is a list, and metrics count tensors"),
    "a list of ids": (lambda: MIoU(4), ([0, 1], LABELS), "preds is a list"),
    "names of classes": (lambda: MIoU(["a", "b"]), (), "num_classes is .'a', 'b'., which is not"),  # type: ignore[arg-type]
    "no threshold": (lambda: ComponentF1(float("nan")), (), "threshold is nan"),
    "no recall": (lambda: FPRAtTPR(0.0), (), "tpr is 0.0"),
    "logits": (AURC, (PROBABILITIES * 9, LABELS), "do not sum to 1.*softmax"),
    "NaN probabilities": (ECE, (PROBABILITIES * np.nan, LABELS), "do not sum to 1"),
    "no scores": (AURC, (LABELS, LABELS), "preds are class ids, so that scores are needed"),
    "no confidence": (ECE, (LABELS, LABELS), "preds are class ids, so that scores are needed"),
    "scores for msp": (ECE, (LABELS, LABELS, SCORES), "leave 0..1"),
    "no bins": (lambda: ECE(0), (), "bins is 0"),
    "negative classes": (AURC, (LABELS, LABELS - 100, SCORES), r"class ids \[-100\], .* negative"),
    "other axes": (ECE, (PROBABILITIES[:, :, :5], LABELS), r"\(3, 4, 5, 30\), and target"),
    "unknown classes": (NLL, (PROBABILITIES, LABELS + 4), r"class ids \[4\], .* 0\.\.3"),
    "ids for NLL": (NLL, (LABELS[:, None], LABELS), "probabilities are needed"),
    "sums": (NLL, (PROBABILITIES * 2, LABELS), "do not sum to 1"),
    "classes": (lambda: MIoU(1), (), "num_classes is 1"),
    "predicted classes": (
        lambda: MIoU(4),
        (LABELS + 7, LABELS),
        r"preds holds the class ids \[7\]",
    ),
    "sizes of ids": (lambda: MIoU(4), (LABELS[0], LABELS), r"preds has the shape \(20, 30\)"),
    "a track": (lambda: ComponentF1(0.5, "x"), (), "no track 'x'"),
    "no image": (lambda: ComponentF1(0.5), (SCORES[0, 0], TARGET[0, 0]), r"shape \(30,\)"),
}


@pytest.mark.parametrize("fault", BAD)
def test_bad_input_is_one_sentence_that_names_the_argument(fault: str) -> None:
    make, arguments, message = BAD[fault]
    with pytest.raises(InputError, match=message) as caught:
        make().update(*arguments)
    assert "\n" not in str(caught.value)


def test_a_refused_batch_is_not_counted() -> None:
    metric = PixelAUROC()
    metric.update(SCORES, TARGET)
    value = metric.compute()
    with pytest.raises(InputError):
        metric.update(SCORES, TARGET + 1)
    metric._computed = None
    assert torch.equal(metric.compute(), value)


def test_the_room_of_counting_loads_neither_torch_nor_torchmetrics() -> None:
    code = (
        "import sys, segunc.metrics, segunc.metrics.counting\n"
        "print({'torch', 'torchmetrics'} & {*sys.modules})\n"
        "import segunc; segunc.metrics.MIoU; print('torchmetrics' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["set()", "True"]


def test_examples() -> None:
    results = doctest.testmod(streaming)
    assert results.attempted > 50
    assert results.failed == 0


def test_another_type_of_floats_changes_no_count() -> None:
    scores = torch.linspace(0, 1, 5000)
    target = (torch.arange(5000) % 3 == 0).long()
    plain: list[Metric] = [PixelAUROC(), MIoU(2)]
    typed: list[Metric] = [PixelAUROC(), MIoU(2)]
    for metric, other in zip(plain, typed, strict=True):
        other.set_dtype(torch.float16)
        given = scores if isinstance(metric, PixelAUROC) else target.flip(0)
        for one in (metric, other):
            one.update(given, target)
        assert other.compute() == metric.compute()


def test_logits_that_are_nan_have_no_class() -> None:
    logits = torch.zeros(1, 2, 1, 2)
    logits[0, 1, 0, 1] = torch.nan
    with pytest.raises(InputError, match="preds hold NaN at 1 labelled pixels"):
        MIoU(2).update(logits, torch.tensor([[[0, 1]]]))
    metric = MIoU(2)
    metric.update(logits, torch.tensor([[[0, 255]]]))
    assert metric.compute() == 1


def test_components_at_another_threshold_are_not_merged() -> None:
    metric = ComponentF1(0.5)
    with pytest.raises(InputError, match="the ComponentF1 to merge has other settings"):
        metric.merge_state(ComponentF1(0.7))
    with pytest.raises(InputError, match="the MIoU to merge has other settings"):
        MIoU(2).merge_state(MIoU(3))


def test_a_checkpoint_of_other_settings_is_not_loaded() -> None:
    metric = ComponentF1(0.5)
    metric.persistent(True)
    kept = ComponentF1(0.5, ignore_index=-1)
    kept.load_state_dict(metric.state_dict())
    assert kept.ignore_index == -1
    with pytest.raises(InputError, match="the checkpoint holds a ComponentF1 with other settings"):
        ComponentF1(0.7).load_state_dict(metric.state_dict())
    classes = MIoU(2)
    classes.persistent(True)
    with pytest.raises(InputError, match="the checkpoint holds a MIoU with other settings"):
        MIoU(3).load_state_dict(classes.state_dict())


def test_data_sets_of_other_ignored_labels_are_merged() -> None:
    metric = MIoU(2)
    metric.update(torch.tensor([0, 1]), torch.tensor([0, 255]))
    other = MIoU(2, ignore_index=-1)
    other.update(torch.tensor([0, 1]), torch.tensor([1, -1]))
    metric.merge_state(other)
    metric.update(torch.tensor([0]), torch.tensor([255]))
    assert metric.confusion.tolist() == [[1, 0], [1, 0]]
