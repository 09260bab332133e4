"""The command line. Only arguments are parsed here; each verb imports what it needs when it runs."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from segunc.cli.options import (
    EXPORT_EXAMPLES,
    OVERLAY_EXAMPLES,
    REVIEW_EXAMPLES,
    add_cluster_options,
    add_export_options,
    add_metric_options,
    add_overlay_options,
    add_review_options,
    add_sampling_options,
    add_summary_options,
    add_video_options,
    image_size,
)
from segunc.core.errors import InputError, PartialFailure
from segunc.posteriors.methods import METHODS

VERBS = {
    "demo": "toy data, train, convert, fine-tune, predict, evaluate, review: the whole job in a few minutes",
    "train": "train a deterministic segmentation network",
    "finetune": "turn a trained network into a Bayesian one (ABNN and others), or calibrate a finished model",
    "predict": "write uncertainty maps of images, folders or a video; resumable",
    "evaluate": "metrics from maps on disk, or from a model in one pass",
    "review": "a static HTML page on which people look at the maps and judge them; reads their verdicts back",
    "summary": "the worst moments of maps on disk, and frames ranked for labelling",
    "overlay": "pictures and videos of the maps for print: scores over their images, or panels with legends",
    "export": "score maps in the files of a public benchmark, or all maps for a viewer",
    "compare": "results side by side, with intervals and paired tests; their place on a public leaderboard",
    "doctor": "is the uncertainty alive and the conversion sound?",
}


LONGEST_MESSAGE = 600
"""Characters of an unexpected error that still make one readable line; ``--debug`` shows all of it."""


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line and exits with 2."""

    def __init__(self, **settings: Any) -> None:
        # Abbreviated options would change their meaning when an option is added, and would swallow configuration keys.
        super().__init__(**settings, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}; see {self.prog} --help\n")


def names(text: str) -> list[str]:
    """``a,b`` as a list."""
    return [part.strip() for part in text.split(",") if part.strip()]


def whole_numbers(text: str) -> list[int]:
    """``0,1,2`` as a list."""
    if not all(part.isdigit() for part in names(text)) or not names(text):
        raise argparse.ArgumentTypeError(f"'{text}' is not a list of whole numbers, e.g. 0,1,2,3")
    return [int(part) for part in names(text)]


def _verb(subparsers: argparse._SubParsersAction[Parser], name: str, example: str) -> Parser:
    parser = subparsers.add_parser(
        name,
        help=VERBS[name],
        description=VERBS[name][0].upper() + VERBS[name][1:] + ".",
        epilog=f"example:\n  {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--debug", action="store_true", help="show a traceback when something fails")
    parser.add_argument("--device", default="auto", metavar="auto|cpu|cuda[:N]", help="where to compute (default auto)")
    return parser


def build_parser() -> Parser:
    """The parser of all verbs."""
    parser = Parser(prog="segunc", description="How far to trust a segmentation network, pixel by pixel.")
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", parser_class=Parser)

    demo = _verb(verbs, "demo", "segunc demo --out demo")
    demo.add_argument("--out", required=True, metavar="DIR", help="folder for data, models, maps and pages")
    demo.add_argument("--seed", type=int, default=0, help="of the scenes and the training (default 0)")

    train = _verb(verbs, "train", "segunc train --config configs/camvid.yaml --data.root data/camvid --out runs/camvid")
    train.add_argument(
        "--config", required=True, metavar="YAML", help="see configs/; any key can be overruled as --key.subkey VALUE"
    )
    train.add_argument(
        "--out", required=True, metavar="DIR", help="the model folder; the same command continues a killed run"
    )
    seeds = "train one network for each seed, into DIR/seed-A and so on: the members of an ensemble"
    train.add_argument("--seeds", type=whole_numbers, metavar="A,B", help=seeds)

    tune = _verb(
        verbs,
        "finetune",
        "segunc finetune --base runs/camvid --config configs/camvid_abnn.yaml --data.root data/camvid --out runs/camvid-abnn",
    )
    bases = "model folder; abnn takes a deterministic network, ensemble several folders or one of several seeds"
    tune.add_argument("--base", required=True, nargs="+", metavar="DIR", help=bases)
    config = "see configs/; any key can be overruled as --key.subkey VALUE; ensemble takes none, tta needs none"
    tune.add_argument("--config", metavar="YAML", help=config)
    tune.add_argument("--out", required=True, metavar="DIR", help="the new model folder")
    methods = "which posterior (default abnn), or what is fitted on a finished model"
    tune.add_argument("--method", choices=tuple(METHODS), default="abnn", help=methods)

    predict = _verb(
        verbs,
        "predict",
        "segunc predict --model runs/camvid-abnn --input drive.mp4 --out maps --overlay\n"
        "  segunc predict --model runs/camvid-abnn --input monday.mp4 tuesday/ --every 5 --shard 1/4 --out maps\n"
        "  segunc predict --model runs/camvid-abnn --input frames/ --out maps --engine ray --ray-address auto --workers 16",
    )
    predict.add_argument("--model", required=True, metavar="DIR", help="model folder")
    predict.add_argument(
        "--input",
        required=True,
        nargs="+",
        metavar="PATH",
        help="images, folders, glob patterns or videos; of several, each has a sub-folder of --out",
    )
    predict.add_argument(
        "--out", required=True, metavar="DIR", help="the maps folder; the same command continues a killed run"
    )
    predict.add_argument("--overlay", action="store_true", help="also write overlays, and a video of them for a video")
    predict.add_argument(
        "--overlay-score", default="entropy", metavar="SCORE", help="the score that overlays show (default entropy)"
    )
    scores = "scores to write (default: those that need no further sums or statistics)"
    predict.add_argument("--scores", "--maps", dest="scores", type=names, metavar="A,B", help=scores)
    add_video_options(predict, image_size)
    add_cluster_options(predict)
    predict.add_argument("--overwrite", action="store_true", help="start the maps folder anew")
    add_sampling_options(predict)

    evaluate = _verb(
        verbs,
        "evaluate",
        "segunc evaluate --maps maps --anomaly-labels labels --out metrics.json\n"
        "  segunc evaluate --model runs/camvid-abnn --dataset camvid --root data/camvid --split test --out metrics.json",
    )
    what = evaluate.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--maps", metavar="DIR", help="a folder of score maps (png, tif, npy, hdf5) of segunc or any other tool"
    )
    what.add_argument(
        "--model", metavar="DIR", help="a model folder: predict and score in one pass, write only the result"
    )
    evaluate.add_argument("--out", required=True, metavar="JSON", help="the result")
    evaluate.add_argument("--labels", metavar="DIR", help="class labels of the frames in --maps")
    evaluate.add_argument(
        "--anomaly-labels",
        metavar="DIR",
        help="anomaly masks of the frames in --maps: 0 normal, 1 anomaly, 255 ignored",
    )
    evaluate.add_argument(
        "--dataset", metavar="NAME", help="data set; with --maps its label encodings, with --model its frames too"
    )
    evaluate.add_argument("--root", metavar="DIR", help="where the data set lies; with --maps instead of label folders")
    split = "of the data set (default test); selection: the frames that hyper-parameters are selected on"
    evaluate.add_argument("--split", default="test", help=split)
    evaluate.add_argument(
        "--frames", metavar="PATTERN", help="only the split's frames whose names match this regular expression"
    )
    evaluate.add_argument("--every", type=int, default=1, metavar="N", help="of these, every N-th (default 1)")
    evaluate.add_argument(
        "--anomaly-class",
        type=names,
        action="append",
        metavar="A,B",
        help="classes of the data set that the network was not trained on: anomalies (may be repeated)",
    )
    evaluate.add_argument(
        "--scores",
        type=names,
        metavar="A,B",
        help="scores to evaluate (default: all maps; with --model those that predict writes by default)",
    )
    add_metric_options(evaluate, names)
    add_sampling_options(evaluate)

    review = _verb(verbs, "review", REVIEW_EXAMPLES)
    add_review_options(review, names)

    summary = _verb(
        verbs,
        "summary",
        "segunc summary --maps maps --score entropy --statistic p99 --apart 10 --out summary.csv",
    )
    add_summary_options(summary)

    overlay = _verb(verbs, "overlay", OVERLAY_EXAMPLES)
    add_overlay_options(overlay, names)

    export = _verb(verbs, "export", EXPORT_EXAMPLES)
    add_export_options(export)

    compare = _verb(
        verbs,
        "compare",
        "segunc compare abnn.json base.json --baseline base.json --out table.md\n"
        "  segunc compare metrics.json --scores entropy,deterministic-msp\n"
        "  segunc compare metrics.json --scores entropy --leaderboard leaderboard.json --track anomaly",
    )
    compare.add_argument("results", nargs="+", metavar="JSON", help="results of evaluate")
    compare.add_argument(
        "--out", metavar="FILE", help="also write the tables: .md (Markdown) or .csv (and .leaderboard.csv)"
    )
    compare.add_argument("--names", type=names, metavar="A,B", help="names of the results (default: the files' names)")
    compare.add_argument(
        "--scores", type=names, metavar="A,B", help="compare these scores, of one result or of several"
    )
    compare.add_argument(
        "--keys", type=names, metavar="A,B", help="numbers to show, as dotted paths with wildcards: '*.pooled.*,*.miou'"
    )
    compare.add_argument(
        "--baseline", metavar="NAME", help="column, or its file, that differences refer to (default: the first)"
    )
    compare.add_argument(
        "--leaderboard", metavar="JSON", help="a leaderboard.json of SegmentMeIfYouCan to find the results' place in"
    )
    compare.add_argument(
        "--track",
        choices=("anomaly", "obstacle", "laf-no-known"),
        default="anomaly",
        help="table of the leaderboard (default anomaly)",
    )

    doctor = _verb(verbs, "doctor", "segunc doctor --model runs/camvid-abnn --image frame.png")
    doctor.add_argument("--model", required=True, metavar="DIR", help="model folder")
    doctor.add_argument("--image", metavar="FILE", help="a clean frame (default: a toy road scene)")
    doctor.add_argument("--dataset", metavar="NAME", help="data set for the calibration check")
    doctor.add_argument("--root", metavar="DIR", help="where it lies")
    doctor.add_argument("--split", default="val", help="of the data set (default val)")
    doctor.add_argument(
        "--frames", type=int, default=8, metavar="N", help="labelled frames of the calibration check (default 8)"
    )
    add_sampling_options(doctor)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return the exit code: 0, 1 (failed in the middle, what was finished is kept) or 2 (bad input)."""
    parser = build_parser()
    arguments, rest = parser.parse_known_args(argv)
    if arguments.version:
        from importlib.metadata import version

        print(f"segunc {version('segunc')}")
        return 0
    if arguments.verb is None:
        parser.error(f"no verb is given; choose one of {', '.join(VERBS)}")
    # Training verbs hand further --key.subkey VALUE pairs to their configuration; the others know all their options.
    if rest and arguments.verb not in ("train", "finetune"):
        parser.error(f"unrecognised arguments: {' '.join(rest)}")
    arguments.overrides = rest
    # albumentations would ask a server for news on import, and Lightning would advertise.
    os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")
    try:
        importlib.import_module(f"segunc.verbs.{arguments.verb}").run(arguments)
    except InputError as error:
        return _fail(arguments, error, 2)
    except PartialFailure as error:
        return _fail(arguments, error, 1)
    except KeyboardInterrupt:
        print("segunc: interrupted; the same command continues where it stopped", file=sys.stderr)
        return 1
    except Exception as error:
        return _fail(arguments, error, 1, f"{type(error).__name__}: {error}", " (--debug shows where)")
    return 0


def _fail(arguments: argparse.Namespace, error: Exception, code: int, text: str = "", hint: str = "") -> int:
    if arguments.debug:
        import traceback

        traceback.print_exception(error)
    line = " ".join((text or str(error)).split())
    if text and len(line) > LONGEST_MESSAGE:
        line = f"{line[:LONGEST_MESSAGE]}..."
    print(f"segunc {arguments.verb}: {line}{hint}", file=sys.stderr)
    return code


def entry() -> NoReturn:
    """The console command."""
    sys.exit(main())
