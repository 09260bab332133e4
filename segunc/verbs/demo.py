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
FITTED = {
    "a witness: what the training frames look like to the base's own encoder": "features",
    "one score of the base's energy and of what the witness never saw": "anomaly",
}
"""Titles of the steps between the ABNN and the model that is used, and their methods."""

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
    """Toy data, base, ABNN, a witness, maps, metrics, video and page.

    The witness is the base's own encoder, which never saw the anomalies: a second encoder that knows toy things does not exist.
    ``step`` does each step, the verb's function unless something is to be shown of it; ``say`` receives a line of each set of scenes.

    Raises:
        PartialFailure: a step failed; what was finished is kept.
    """
    from segunc.toyroads import ToyConfig, generate_toy

    step = step or _call
    out, device, start = Path(options.out), options.device, time.monotonic()
    data, base, abnn = (out / name for name in ("data", "base", "abnn"))
    frames, masks = data / "leftImg8bit" / "anomaly", data / "gtAnomaly" / "anomaly"
    generate_toy(data, ToyConfig(seed=options.seed), progress=say or (lambda text: None))
    root = {"data.root": str(data)}
    with resources.as_file(resources.files("segunc.verbs")) as configs:
        config = configs / "demo_train.yaml"
        step("train a base network", "train", opts.TrainOptions(config, base, settings=root, device=device))
        config = configs / "demo_finetune.yaml"
        tuned = opts.FinetuneOptions(base=base, config=config, out=abnn, settings=root, device=device)
        step("convert and fine-tune it (ABNN)", "finetune", tuned)
        for title, method in FITTED.items():
            config = configs / f"demo_{method}.yaml"
            fitted = opts.FinetuneOptions(
                base=abnn, method=method, config=config, out=abnn, settings=root, device=device
            )
            step(title, "finetune", fitted)
    step("is the uncertainty alive", "doctor", opts.DoctorOptions(model=abnn, device=device))
    maps = opts.PredictOptions(model=abnn, input=frames, out=out / "maps", overlay=True, device=device)
    step("maps of the anomaly split", "predict", maps)
    anomaly = opts.EvaluateOptions(maps=out / "maps", anomaly_labels=masks, out=out / "anomaly.json", device=device)
    step("anomaly metrics of the maps", "evaluate", anomaly)
    for name, model in (("base", base), ("abnn", abnn)):
        tested = opts.EvaluateOptions(
            model=model, dataset="toy", root=data, out=out / f"test-{name}.json", device=device
        )
        step(f"segmentation and calibration of the {name} network on the test split", "evaluate", tested)
    video = data / "video" / "crossing.webm"
    crossing = opts.PredictOptions(model=abnn, input=video, out=out / "video", overlay=True, device=device)
    step("maps and overlay video of the crossing", "predict", crossing)
    page = out / "review"
    shown = opts.ReviewOptions(out / "maps", anomaly_labels=masks, out=page, device=device)
    step("a page to look at", "review", shown)
    labels = data / "video" / "crossing_anomaly"
    shown = opts.ReviewOptions(out / "video", anomaly_labels=labels, out=out / "review-video", device=device)
    step("a page of the video", "review", shown)
    scores = read_json(out / "anomaly.json", "a result of evaluate")["scores"]
    auroc = {name: scores[name]["pooled"]["auroc"] for name in SHOWN}
    if any(value is None for value in auroc.values()):
        raise PartialFailure(f"the demo has no anomaly score: {auroc}")
    seconds = time.monotonic() - start
    return DemoResult((page / "index.html").resolve(), out / "video" / "overlay.webm", auroc, seconds)


def _call(title: str, verb: str, options: Any) -> None:
    verbs: tuple[Any, ...] = (doctor, evaluate, finetune, predict, review, train)
    result = next(function for function in verbs if function.__name__ == verb)(options)
    if failure := getattr(result, "failure", ""):
        raise PartialFailure(f"{title}: {failure}")
