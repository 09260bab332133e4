"""The command line: one verb's options are parsed, its function is called, its result printed."""

from __future__ import annotations

import argparse
import inspect
import os
import sys
import warnings
from collections.abc import Sequence
from typing import Any, NoReturn

from segunc import options
from segunc.cli import run
from segunc.cli.checks import check_asked
from segunc.cli.parser import Parser, add_options, parsed
from segunc.core.errors import InputError, NoteWarning, PartialFailure, is_out_of_memory
from segunc.core.terminal import say

VERBS = {
    "demo": "segunc demo --out demo",
    "import": (
        "segunc import torchvision:deeplabv3_resnet50 --weights deeplab.pth --classes cityscapes --out runs/deeplab\n"
        "  segunc import transformers:nvidia/segformer-b0-finetuned-cityscapes-768-768 --out runs/segformer\n"
        "  segunc import python:my_networks.unet:build --trust --weights unet.pt --classes road,car,sky --mean 0,0,0 --std 1,1,1 "
        "--out runs/unet"
    ),
    "train": "segunc train --config configs/camvid_lite0.yaml --data.root data/camvid --out runs/camvid",
    "finetune": (
        "segunc finetune --base runs/camvid --config configs/camvid_abnn.yaml --data.root data/camvid --out runs/camvid-abnn"
    ),
    "predict": (
        "segunc predict --model runs/camvid-abnn --input drive.mp4 --out maps --overlay\n"
        "  segunc predict --model runs/camvid-abnn --input monday.mp4 tuesday/ --every 5 --shard 1/4 --out maps\n"
        "  segunc predict --model runs/camvid-abnn --input frames/ --out maps --engine ray --ray-address auto --workers 16"
    ),
    "evaluate": (
        "segunc evaluate --maps maps --anomaly-labels labels --groups ^[a-z_]+ --out metrics.json\n"
        "  segunc evaluate --model runs/camvid-abnn --dataset camvid --root data/camvid --split test --flag metrics.json:0.8 "
        "--out camvid.json\n"
        "  segunc evaluate --model runs/cityscapes --dataset camvid --root data/camvid "
        "--map-classes road=road,sidewalk=pavement,car=car,truck=car --out metrics.json"
    ),
    "review": (
        "segunc review --maps maps --anomaly-labels masks --out review\n"
        "  segunc review --maps maps --labels labels --dataset cityscapes --compare other-maps --out review\n"
        "  segunc review --import verdicts.json --maps maps --out review"
    ),
    "summary": "segunc summary --maps maps --score entropy --statistic p99 --apart 10 --out summary.csv",
    "overlay": (
        "segunc overlay --maps maps --out figures --score epistemic --frames 'night/*' --theme light\n"
        "  segunc overlay --maps maps --out figures --panel --anomaly-labels masks\n"
        "  segunc overlay --maps maps --out figures --panel --score entropy,epistemic --video"
    ),
    "export": (
        "segunc export --maps maps --score entropy --to smiyc --method MyNet --dataset AnomalyTrack-all --out outputs\n"
        "  segunc export --maps maps --score entropy --to fishyscapes --out outputs"
    ),
    "compare": (
        "segunc compare abnn.json base.json --baseline base.json --out table.md\n"
        "  segunc compare metrics.json --scores entropy,deterministic-msp\n"
        "  segunc compare base.json abnn.json --scores base:msp,abnn:entropy --baseline base:msp"
    ),
    "doctor": ("segunc doctor --model runs/camvid-abnn --image frame.png\n  segunc doctor --maps maps --repair"),
}
"""Verb -> an example, or several in lines of two blanks."""
FUNCTIONS = {"import": "import_network"}  # verb -> its function, where Python's grammar has taken its name
TRAINING = ("train", "finetune")  # verbs with a configuration
DEBUG = " (--debug shows where)"
RESUMED = ("demo", *TRAINING, "predict")
INTERRUPTED = 128 + 2  # as shells say it of a command that SIGINT ended
PIPE_CLOSED = 128 + 13  # likewise SIGPIPE: whoever reads what is printed has stopped
LONGEST_MESSAGE = 600  # characters of an unexpected error that still make one readable line; --debug shows all of it


def options_of(verb: str) -> type:
    """The dataclass of a verb's options."""
    found: type = getattr(options, f"{verb.capitalize()}Options")
    return found


class ConfigurationHelp(argparse.Action):
    """The help of a verb, and then the keys of its configuration: of the method that is named before ``--help``, or of the usual one."""

    def __init__(self, option_strings: Sequence[str], **more: Any) -> None:
        super().__init__(option_strings, **{**more, "nargs": 0})

    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, *_: Any) -> NoReturn:
        from segunc.verbs.training import keys_help

        parser.print_help()
        say(f"\n{keys_help(getattr(namespace, 'method', None))}")
        parser.exit()


def build_parser() -> Parser:
    """The parser of all verbs."""
    parser = Parser(prog="segunc", description="How far to trust a segmentation network, pixel by pixel.")
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", parser_class=Parser)
    for verb, example in VERBS.items():
        about, *_ = inspect.cleandoc(options_of(verb).__doc__ or "").splitlines()
        own = verbs.add_parser(
            verb,
            help=about[0].lower() + about[1:].removesuffix("."),
            description=about,
            epilog=f"example:\n  {example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            add_help=verb not in TRAINING,
        )
        if verb in TRAINING:
            shown = "show this help message, with the keys of the configuration, and exit"
            own.add_argument("-h", "--help", action=ConfigurationHelp, help=shown)
        own.add_argument("--debug", action="store_true", help="show a traceback when something fails")
        add_options(own, options_of(verb))
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return the exit code: 0, 1 (failed in the middle, what was finished is kept), 2 (bad input), 130 (Ctrl-C) or 141
    (nobody reads what is printed any more)."""
    parser = build_parser()
    arguments, rest = parser.parse_known_args(argv)
    if arguments.version:
        from importlib.metadata import version

        say(f"segunc {version('segunc')}")
        return 0
    if arguments.verb is None:
        parser.error(f"no verb is given; choose one of {', '.join(VERBS)}")
    # Training verbs hand further --key.subkey VALUE pairs to their configuration; the others know all their options.
    training = arguments.verb in TRAINING
    if rest and not training:
        parser.error(f"unrecognised arguments: {' '.join(rest)}")
    # albumentations would ask a server for news on import, and Lightning would advertise.
    os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")
    try:
        with warnings.catch_warnings():

            def show(message: Warning | str, category: type[Warning], *place: Any, **_: Any) -> None:
                """What is worth a note is no warning with its place in our code."""
                if issubclass(category, NoteWarning):
                    say(f"note: {message}")
                else:
                    say(warnings.formatwarning(message, category, *place[:2]), stream=sys.stderr, end="")

            warnings.showwarning = show
            asked = parsed(options_of(arguments.verb), arguments, **({"settings": rest} if training else {}))
            check_asked(asked)
            getattr(run, FUNCTIONS.get(arguments.verb, arguments.verb))(asked)
        sys.stdout.flush()
    except BrokenPipeError:  # as `| head` leaves it; what Python would still write has nowhere to go
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    except InputError as error:
        return _fail(arguments, error, 2, error.command_line)
    except PartialFailure as error:
        return _fail(arguments, error, 1)
    except KeyboardInterrupt:
        say(f"segunc {arguments.verb}: interrupted; {_kept(arguments.verb)}", stream=sys.stderr)
        return INTERRUPTED
    except OSError as error:
        if not error.strerror or is_out_of_memory(error):
            return _fail_unforeseen(arguments, error)
        place = f"{error.filename}: " if error.filename else ""
        return _fail(arguments, error, 1, f"{place}{error.strerror}; {_kept(arguments.verb)}", DEBUG)
    except Exception as error:
        return _fail_unforeseen(arguments, error)
    return 0


def _kept(verb: str) -> str:
    goes_on = "goes on from there" if verb in RESUMED else "begins again"
    return f"what is finished is kept, and the same command {goes_on}"


def _fail_unforeseen(arguments: argparse.Namespace, error: Exception) -> int:
    what = "not enough memory: " if is_out_of_memory(error) else ""
    return _fail(arguments, error, 1, f"{what}{type(error).__name__}: {error}", DEBUG)


def _fail(arguments: argparse.Namespace, error: Exception, code: int, text: str = "", hint: str = "") -> int:
    if arguments.debug:
        import traceback

        say("".join(traceback.format_exception(error)), stream=sys.stderr, end="")
    line = " ".join((text or str(error)).split())
    if code == 1 and text and len(line) > LONGEST_MESSAGE:
        line = f"{line[:LONGEST_MESSAGE]}..."
    say(f"segunc {arguments.verb}: {line}{hint}", stream=sys.stderr)
    return code


def entry() -> NoReturn:
    """The console command."""
    sys.exit(main())
