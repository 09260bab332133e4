"""A recorded command, typed again, asks for the same."""

import shlex
from typing import Any

import pytest

from segunc.cli.main import TRAINING, build_parser, options_of
from segunc.cli.parser import parsed
from segunc.options import (
    CompareOptions,
    EvaluateOptions,
    ImportOptions,
    InitOptions,
    OverlayOptions,
    PredictOptions,
    ThresholdOptions,
    TrainOptions,
    WatchOptions,
    recorded_command,
)

ASKED: dict[str, Any] = {
    "compare": CompareOptions(["a.json", "b c.json"], keys=["*.miou", "*.aupr"]),
    "evaluate": EvaluateOptions("maps", flag=["a=1", "b=2"], anomaly_class=["x", "y"], every=2),
    "import": ImportOptions(source="smp:net", out="out", arguments={"width": 32, "kind": "a b"}),
    "init": InitOptions("data/mine", out="mine.yaml", two_classes=True),
    "overlay": OverlayOptions("maps", "out", ranges={"epistemic": (0.0, 0.05)}),
    "predict": PredictOptions("model", ["a.mp4", "b/*.png"], "out", size=(512, 1024), compact=True),
    "threshold": ThresholdOptions(
        maps="maps",
        out="threshold.json",
        control="missed-pixels",
        level=0.1,
        also={"flagged-pixels": 0.02},
        groups="^[a-z]+",
    ),
    "watch": WatchOptions(
        model="model",
        input="rtsp://camera/live",
        flag=["threshold.json", "entropy=0.5"],
        stream_options={"rtsp_transport": "udp"},
        every_frame=True,
    ),
    "train": TrainOptions("a.yaml", "out", seeds=[0, 1], settings=["--trainer.max_epochs", "3"]),
}


@pytest.mark.parametrize("verb", ASKED)
def test_a_recorded_command_asks_for_the_same(verb: str) -> None:
    command = recorded_command(verb, ASKED[verb])
    arguments, further_words = build_parser().parse_known_args(shlex.split(command)[1:])
    assert arguments.verb == verb
    settings = {"settings": further_words} if verb in TRAINING else {}
    again = parsed(options_of(verb), arguments, **settings)
    assert recorded_command(verb, again) == command


@pytest.mark.parametrize("verb", ["compare", "init", "import"])
def test_a_recorded_command_names_no_option_that_has_no_flag(verb: str) -> None:
    _, _, first_word, *_ = shlex.split(recorded_command(verb, ASKED[verb]))
    assert first_word in ("a.json", "data/mine", "smp:net")
