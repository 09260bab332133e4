"""``segunc demo``: the whole job on the built-in toy road scenes, by the functions that anyone
would call.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from segunc import options as opts
from segunc.core.errors import PartialFailure
from segunc.core.files import inside, read_json
from segunc.core.results import VerbResult
from segunc.options import DemoOptions, takes
from segunc.verbs.doctor import doctor
from segunc.verbs.evaluate import evaluate
from segunc.verbs.predict import predict
from segunc.verbs.report import report
from segunc.verbs.review import review
from segunc.verbs.threshold import threshold
from segunc.verbs.training import finetune, train

# Scores whose numbers are printed at the end.
SHOWN = ("deterministic-energy", "entropy", "epistemic", "anomaly")
DRAWS = 6  # of the ABNN: two of each member
# Patterns of the names of every second frame of the anomaly split, and of the frames between.
EVEN_FRAMES = "[02468]_[0-9]+_"
ODD_FRAMES = "[13579]_[0-9]+_"
Step = Callable[[str, Callable[[Any], Any], Any], None]
"""Does one step: receives its title, the function of the verb, and the verb's options."""


@dataclass(frozen=True, repr=False)
class DemoResult(VerbResult):
    """What the demo made.

    Attributes:
        page: the page, to open in a browser.
        video: the video of the overlays.
        auroc: the AUROC of anomalies over all pixels, by score.
        seconds: how long the demo took.
    """

    page: Path
    video: Path
    auroc: Mapping[str, float]
    seconds: float


class DemoSteps:
    """The files of the demo, and the options of each of its steps, in the order of the steps.

    Args:
        out: folder of all that the demo makes.
        device: on which the steps run.
    """

    def __init__(self, out: Path, device: str) -> None:
        self.device = device
        self.data = inside(out, "data")
        self.base = inside(out, "base")
        self.abnn = inside(out, "abnn")
        self.maps = inside(out, "maps")
        self.page = inside(out, "review")
        self.video_maps = inside(out, "video")
        self.video_page = inside(out, "review-video")
        self.report_folder = inside(out, "report")
        self.anomaly_metrics = out / "anomaly.json"
        self.base_metrics = out / "test-base.json"
        self.abnn_metrics = out / "test-abnn.json"
        self.threshold = out / "threshold.json"
        self.achieved = out / "achieved.json"
        self.masks = self.data / "gtAnomaly" / "anomaly"

    def train_base(self, configs: Path) -> opts.TrainOptions:
        return opts.TrainOptions(
            config=configs / "demo_train.yaml",
            out=self.base,
            device=self.device,
            settings={"data.root": str(self.data)},
        )

    def finetune_abnn(self, configs: Path) -> opts.FinetuneOptions:
        return opts.FinetuneOptions(
            base=self.base,
            method="abnn",
            config=configs / "demo_finetune.yaml",
            out=self.abnn,
            device=self.device,
            settings={"data.root": str(self.data)},
        )

    def fit_on_abnn(self, method: str, configs: Path) -> opts.FinetuneOptions:
        return opts.FinetuneOptions(
            base=self.abnn,
            method=method,
            config=configs / f"demo_{method}.yaml",
            out=self.abnn,
            device=self.device,
            settings={"data.root": str(self.data)},
        )

    def check_abnn(self) -> opts.DoctorOptions:
        return opts.DoctorOptions(model=self.abnn, device=self.device)

    def predict_anomalies(self) -> opts.PredictOptions:
        return opts.PredictOptions(
            model=self.abnn,
            input=self.data / "leftImg8bit" / "anomaly",
            out=self.maps,
            draws=DRAWS,
            overlay=True,
            device=self.device,
        )

    def evaluate_anomalies(self) -> opts.EvaluateOptions:
        return opts.EvaluateOptions(
            maps=self.maps,
            anomaly_labels=self.masks,
            out=self.anomaly_metrics,
            device=self.device,
        )

    def evaluate_classes(self, model: Path, out: Path) -> opts.EvaluateOptions:
        return opts.EvaluateOptions(
            model=model,
            dataset="toy",
            root=self.data,
            out=out,
            scores=["msp"],
            split="test",
            every=2,
            draws=DRAWS,
            device=self.device,
        )

    def predict_video(self) -> opts.PredictOptions:
        return opts.PredictOptions(
            model=self.abnn,
            input=self.data / "video" / "crossing.webm",
            out=self.video_maps,
            draws=DRAWS,
            overlay=True,
            device=self.device,
        )

    def review_maps(self) -> opts.ReviewOptions:
        return opts.ReviewOptions(
            maps=self.maps, anomaly_labels=self.masks, out=self.page, device=self.device
        )

    def review_video(self) -> opts.ReviewOptions:
        return opts.ReviewOptions(
            maps=self.video_maps,
            anomaly_labels=self.data / "video" / "crossing_anomaly",
            out=self.video_page,
            device=self.device,
        )

    def choose_threshold(self) -> opts.ThresholdOptions:
        return opts.ThresholdOptions(
            maps=self.maps,
            out=self.threshold,
            anomaly_labels=self.masks,
            control="missed-pixels",
            level=0.3,
            frames=EVEN_FRAMES,
        )

    def evaluate_threshold(self) -> opts.EvaluateOptions:
        return opts.EvaluateOptions(
            maps=self.maps,
            anomaly_labels=self.masks,
            out=self.achieved,
            frames=ODD_FRAMES,
            flag=[str(self.threshold)],
            scores=["anomaly"],
            device=self.device,
        )

    def report(self) -> opts.ReportOptions:
        return opts.ReportOptions(
            model=self.abnn,
            runs=[self.anomaly_metrics, self.abnn_metrics, self.achieved],
            maps=[self.maps],
            threshold=[self.threshold],
            anomaly_labels=self.masks,
            out=self.report_folder,
        )


@takes(DemoOptions)
def demo(
    options: DemoOptions,
    step: Step | None = None,
    say: Callable[[str], None] | None = None,
    processes: int = 1,
) -> DemoResult:
    """Make toy data, base, ABNN, second encoder, maps, metrics, video and page.

    The second encoder is the base's own, which never saw the anomalies: no pretrained encoder knows
    toy things.

    Args:
        step: does each step; by default calls the verb's function.
        say: receives a line for each set of scenes.
        processes: that draw scenes at once; see :func:`segunc.toyroads.generate_toy`.

    Raises:
        PartialFailure: a step failed; what was finished is kept.
    """
    from segunc.toyroads import ToyConfig, generate_toy

    start = time.monotonic()
    step = step or _call
    steps = DemoSteps(Path(options.out), options.device)
    scenes = ToyConfig(seed=options.seed)
    generate_toy(steps.data, scenes, progress=say or _say_nothing, processes=processes)

    with resources.as_file(resources.files("segunc.verbs")) as configs:
        step("train a base network", train, steps.train_base(configs))
        step("convert and fine-tune it (ABNN)", finetune, steps.finetune_abnn(configs))
        step(
            "second encoder: remember the features of the training frames",
            finetune,
            steps.fit_on_abnn("features", configs),
        )
        step(
            "anomaly score: the base's energy and the distance to these features as one number",
            finetune,
            steps.fit_on_abnn("anomaly", configs),
        )
    step("is the uncertainty alive", doctor, steps.check_abnn())
    step("maps of the anomaly split", predict, steps.predict_anomalies())
    step("anomaly metrics of the maps", evaluate, steps.evaluate_anomalies())
    step(
        "segmentation and calibration of the base network on every second test frame",
        evaluate,
        steps.evaluate_classes(steps.base, steps.base_metrics),
    )
    step(
        "segmentation and calibration of the abnn network on every second test frame",
        evaluate,
        steps.evaluate_classes(steps.abnn, steps.abnn_metrics),
    )
    step("maps and overlay video of the crossing", predict, steps.predict_video())
    step("a page to look at", review, steps.review_maps())
    step("a page of the video", review, steps.review_video())
    step("a threshold with a promise, from every second frame", threshold, steps.choose_threshold())
    step("what it achieves on the other frames", evaluate, steps.evaluate_threshold())
    step("a report of the model", report, steps.report())

    return DemoResult(
        page=(steps.page / "index.html").resolve(),
        video=steps.video_maps / "overlay.webm",
        auroc=_anomaly_auroc(steps.anomaly_metrics),
        seconds=time.monotonic() - start,
    )


def _anomaly_auroc(metrics: Path) -> dict[str, float]:
    """Return the pooled AUROC of the scores that are shown."""
    scores = read_json(metrics, "a result of evaluate")["scores"]
    auroc = {name: scores[name]["pooled"]["auroc"] for name in SHOWN}
    if None in auroc.values():
        raise PartialFailure(f"the demo has no anomaly score: {auroc}")
    return auroc


def _call(title: str, verb: Callable[[Any], Any], options: Any) -> None:
    """Do a step without showing anything of it."""
    failure = getattr(verb(options), "failure", "")
    if failure:
        raise PartialFailure(f"{title}: {failure}")


def _say_nothing(line: str) -> None:
    pass
