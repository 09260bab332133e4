"""``segunc demo``: the whole job on the built-in toy road scenes, by the functions that anyone
would call.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from segunc import options as opts
from segunc.core.errors import PartialFailure
from segunc.core.files import inside, read_json
from segunc.options import DemoOptions, takes
from segunc.verbs.doctor import doctor
from segunc.verbs.evaluate import evaluate
from segunc.verbs.predict import predict
from segunc.verbs.report import report
from segunc.verbs.review import review
from segunc.verbs.threshold import threshold
from segunc.verbs.training import finetune, train

SHOWN = (
    "deterministic-energy",
    "entropy",
    "epistemic",
    "anomaly",
)  # scores whose numbers are printed at the end
METHODS = {
    "abnn": "convert and fine-tune it (ABNN)",
    "features": "second encoder: remember the features of the training frames",
    "anomaly": "anomaly score: the base's energy and the distance to these features as one number",
}
"""Methods of the ABNN and of what is fitted on it, with the titles of their steps."""
Step = Callable[
    [str, Callable[[Any], Any], Any], None
]  # does one step: its title, the verb, and the verb's options


class DemoResult(NamedTuple):
    """What the demo made."""

    page: Path  # to open in a browser
    video: Path  # of the overlays
    auroc: Mapping[str, float]  # pooled, of anomalies, by score
    seconds: float  # that it took


@takes(DemoOptions)
def demo(
    options: DemoOptions, step: Step | None = None, say: Callable[[str], None] | None = None
) -> DemoResult:
    """Make toy data, base, ABNN, second encoder, maps, metrics, video and page.

    The second encoder is the base's own, which never saw the anomalies: one that knows toy things
    does not exist.

    Args:
        step: does each step: the verb's function unless something is to be shown of it.
        say: receives a line of each set of scenes.

    Raises:
        PartialFailure: a step failed; what was finished is kept.
    """
    from segunc.toyroads import ToyConfig, generate_toy

    out, start, step = Path(options.out), time.monotonic(), step or _call
    for name in ("video", "review-video", "report"):
        inside(out, name)
    data, base, abnn, maps, page = (
        inside(out, name) for name in ("data", "base", "abnn", "maps", "review")
    )
    generate_toy(data, ToyConfig(seed=options.seed), progress=say or (lambda text: None))
    common: dict[str, Any] = {"device": options.device}
    fitting = {**common, "settings": {"data.root": str(data)}}
    with resources.as_file(resources.files("segunc.verbs")) as configs:
        step(
            "train a base network",
            train,
            opts.TrainOptions(configs / "demo_train.yaml", base, **fitting),
        )
        for method, title in METHODS.items():
            config = configs / f"demo_{'finetune' if method == 'abnn' else method}.yaml"
            model = base if method == "abnn" else abnn
            step(
                title,
                finetune,
                opts.FinetuneOptions(base=model, method=method, config=config, out=abnn, **fitting),
            )
    step("is the uncertainty alive", doctor, opts.DoctorOptions(model=abnn, **common))

    video, labels = data / "video" / "crossing.webm", data / "video" / "crossing_anomaly"
    frames, masks, numbers = (
        data / "leftImg8bit" / "anomaly",
        data / "gtAnomaly" / "anomaly",
        out / "anomaly.json",
    )
    quick = {**common, "draws": 6}  # two of each member
    drawn = {**quick, "overlay": True}
    step("maps of the anomaly split", predict, opts.PredictOptions(abnn, frames, maps, **drawn))
    evaluated = opts.EvaluateOptions(maps=maps, anomaly_labels=masks, out=numbers, **common)
    step("anomaly metrics of the maps", evaluate, evaluated)
    for model in (base, abnn):
        result = out / f"test-{model.name}.json"
        every: dict[str, Any] = {"split": "test", "every": 2}
        tested = opts.EvaluateOptions(
            model=model, dataset="toy", root=data, out=result, scores=["msp"], **every, **quick
        )
        step(
            f"segmentation and calibration of the {model.name} network on every second test frame",
            evaluate,
            tested,
        )
    step(
        "maps and overlay video of the crossing",
        predict,
        opts.PredictOptions(abnn, video, out / "video", **drawn),
    )
    step(
        "a page to look at",
        review,
        opts.ReviewOptions(maps, anomaly_labels=masks, out=page, **common),
    )
    shown = opts.ReviewOptions(
        out / "video", anomaly_labels=labels, out=out / "review-video", **common
    )
    step("a page of the video", review, shown)

    promise, achieved = out / "threshold.json", out / "achieved.json"
    bounded: dict[str, Any] = {
        "control": "missed-pixels",
        "level": 0.3,
        "frames": "[02468]_[0-9]+_",
    }
    calibrated = opts.ThresholdOptions(maps=maps, out=promise, anomaly_labels=masks, **bounded)
    step("a threshold with a promise, from every second frame", threshold, calibrated)
    others: dict[str, Any] = {
        "frames": "[13579]_[0-9]+_",
        "flag": [str(promise)],
        "scores": ["anomaly"],
        **common,
    }
    kept = opts.EvaluateOptions(maps=maps, anomaly_labels=masks, out=achieved, **others)
    step("what it achieves on the other frames", evaluate, kept)
    results = [numbers, out / "test-abnn.json", achieved]
    reported = opts.ReportOptions(
        model=abnn,
        runs=results,
        maps=[maps],
        threshold=[promise],
        anomaly_labels=masks,
        out=out / "report",
    )
    step("a report of the model", report, reported)

    scores = read_json(numbers, "a result of evaluate")["scores"]
    auroc = {name: scores[name]["pooled"]["auroc"] for name in SHOWN}
    if any(value is None for value in auroc.values()):
        raise PartialFailure(f"the demo has no anomaly score: {auroc}")
    return DemoResult(
        (page / "index.html").resolve(), out / "video/overlay.webm", auroc, time.monotonic() - start
    )


def _call(title: str, verb: Callable[[Any], Any], options: Any) -> None:
    if failure := getattr(verb(options), "failure", ""):
        raise PartialFailure(f"{title}: {failure}")
