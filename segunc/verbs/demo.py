"""``segunc demo``: the whole job on the built-in toy road scenes, by the functions that anyone would call."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from segunc import options as opts
from segunc.core.errors import PartialFailure
from segunc.core.files import read_json
from segunc.options import DemoOptions, takes
from segunc.verbs.doctor import doctor
from segunc.verbs.evaluate import evaluate
from segunc.verbs.predict import predict
from segunc.verbs.results import review
from segunc.verbs.training import finetune, train

SHOWN = ("deterministic-energy", "entropy", "epistemic", "anomaly")
"""Scores whose numbers are printed at the end."""
SECOND_ENCODER_STEPS = {
    "features": "second encoder: remember the features of the training frames",
    "anomaly": "anomaly score: the base's energy and the distance to these features as one number",
}
"""Methods that are fitted on the ABNN, and the titles of their steps."""

Step = Callable[[str, str, Any], None]  # does one step: its title, the verb, and the verb's options


@dataclass(frozen=True)
class DemoResult:
    """What the demo made."""

    page: Path  # to open in a browser
    video: Path  # of the overlays
    auroc: Mapping[str, float]  # pooled, of anomalies, by score
    seconds: float  # that it took


@takes(DemoOptions)
def demo(options: DemoOptions, step: Step | None = None, say: Callable[[str], None] | None = None) -> DemoResult:
    """Make toy data, base, ABNN, second encoder, maps, metrics, video and page.

    The second encoder is the base's own, which never saw the anomalies: one that knows toy things does not exist.

    Args:
        step: does each step: the verb's function unless something is to be shown of it.
        say: receives a line of each set of scenes.

    Raises:
        PartialFailure: a step failed; what was finished is kept.
    """
    from segunc.toyroads import ToyConfig, generate_toy

    step = step or _call
    out, device, start = Path(options.out), options.device, time.monotonic()
    data, base, abnn = (out / name for name in ("data", "base", "abnn"))
    generate_toy(data, ToyConfig(seed=options.seed), progress=say or (lambda text: None))
    _fit(base, abnn, data, device, step)
    step("is the uncertainty alive", "doctor", opts.DoctorOptions(model=abnn, device=device))

    frames, masks = data / "leftImg8bit" / "anomaly", data / "gtAnomaly" / "anomaly"
    maps, numbers, page = out / "maps", out / "anomaly.json", out / "review"
    predicted = opts.PredictOptions(model=abnn, input=frames, out=maps, overlay=True, device=device)
    step("maps of the anomaly split", "predict", predicted)
    evaluated = opts.EvaluateOptions(maps=maps, anomaly_labels=masks, out=numbers, device=device)
    step("anomaly metrics of the maps", "evaluate", evaluated)
    for name, model in (("base", base), ("abnn", abnn)):
        result = out / f"test-{name}.json"
        tested = opts.EvaluateOptions(model=model, dataset="toy", root=data, out=result, device=device)
        step(f"segmentation and calibration of the {name} network on the test split", "evaluate", tested)
    video, video_maps = data / "video" / "crossing.webm", out / "video"
    crossing = opts.PredictOptions(model=abnn, input=video, out=video_maps, overlay=True, device=device)
    step("maps and overlay video of the crossing", "predict", crossing)
    shown = opts.ReviewOptions(maps, anomaly_labels=masks, out=page, device=device)
    step("a page to look at", "review", shown)
    labels = data / "video" / "crossing_anomaly"
    shown = opts.ReviewOptions(video_maps, anomaly_labels=labels, out=out / "review-video", device=device)
    step("a page of the video", "review", shown)

    scores = read_json(numbers, "a result of evaluate")["scores"]
    auroc = {name: scores[name]["pooled"]["auroc"] for name in SHOWN}
    if any(value is None for value in auroc.values()):
        raise PartialFailure(f"the demo has no anomaly score: {auroc}")
    seconds = time.monotonic() - start
    return DemoResult((page / "index.html").resolve(), video_maps / "overlay.webm", auroc, seconds)


def _fit(base: Path, abnn: Path, data: Path, device: str, step: Step) -> None:
    """Train the base and fit the ABNN, its second encoder and its anomaly score."""
    with resources.as_file(resources.files("segunc.verbs")) as configs:

        def finetune_options(model: Path, method: str, config: str) -> opts.FinetuneOptions:
            return opts.FinetuneOptions(
                base=model, method=method, config=configs / config, out=abnn, settings=settings, device=device
            )

        settings = {"data.root": str(data)}
        trained = opts.TrainOptions(configs / "demo_train.yaml", base, settings=settings, device=device)
        step("train a base network", "train", trained)
        step("convert and fine-tune it (ABNN)", "finetune", finetune_options(base, "abnn", "demo_finetune.yaml"))
        for method, title in SECOND_ENCODER_STEPS.items():
            step(title, "finetune", finetune_options(abnn, method, f"demo_{method}.yaml"))


def _call(title: str, verb: str, options: Any) -> None:
    verbs: tuple[Any, ...] = (doctor, evaluate, finetune, predict, review, train)
    result = next(function for function in verbs if function.__name__ == verb)(options)
    if failure := getattr(result, "failure", ""):
        raise PartialFailure(f"{title}: {failure}")
