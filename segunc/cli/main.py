"""The command line: parse the options of a verb, call its function, and turn errors into exit
codes.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from importlib.metadata import version
from typing import Any, NoReturn

from segunc import options
from segunc.cli.parser import Parser, add_keys, add_options, check_options, parsed
from segunc.cli.run import run
from segunc.core.errors import InputError, NoteWarning, PartialFailure, is_out_of_memory, nearest
from segunc.core.terminal import open_standard_streams, say

VERBS = {
    "demo": "--out demo",
    "init": "data/mine --out mine.yaml",
    "import": "torchvision:deeplabv3_resnet50 --weights deeplab.pth --classes cityscapes --out runs/deeplab",
    "train": "--config configs/camvid_lite0.yaml --data.root data/camvid --out runs/camvid",
    "finetune": "--base runs/camvid --config configs/camvid_abnn.yaml --data.root data/camvid --out runs/abnn",
    "predict": "--model runs/abnn --input monday.mp4 tuesday/ --out maps --overlay --shard 1/4",
    "evaluate": "--maps maps --anomaly-labels labels --groups '^[a-z_]+' --out metrics.json",
    "threshold": "--maps maps --anomaly-labels masks --control missed-objects --level 0.1 --out threshold.json",
    "review": "--maps maps --anomaly-labels masks --out review",
    "summary": "--maps maps --score entropy --statistic p99 --apart 10 --out summary.csv",
    "monitor": "--threshold threshold.json --maps maps --reference calibration --out monitor.json",
    "overlay": "--maps maps --out figures --score entropy,epistemic --video",
    "compare": "abnn.json base.json --baseline base.json --out table.md",
    "report": "--model runs/abnn --runs metrics.json fog.json --threshold threshold.json --out report",
    "export": "--model runs/abnn --to onnx --size 512x1024 --threshold threshold.json --out exported",
    "doctor": "--model runs/abnn --image frame.png",
}
"""An example of each verb."""
TRAINING = ("train", "finetune")  # verbs with a configuration
RESUMED = ("demo", *TRAINING, "predict")
DEBUG_HINT = " (--debug shows where)"
# Characters of an unexpected error that still make one readable line; --debug shows all of it.
MAX_MESSAGE = 600


def options_of(verb: str) -> type:
    """Return the dataclass of a verb's options."""
    options_type: type = getattr(options, f"{verb.capitalize()}Options")
    return options_type


class ConfigurationHelp(argparse._HelpAction):
    """Print the help of a verb, and then the keys of its configuration: of the method that is named
    before ``--help``, or of the usual one.
    """

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, *_: Any
    ) -> NoReturn:
        from segunc.verbs.training import settings_of

        parser.print_help()
        keys = Parser(add_help=False, usage=argparse.SUPPRESS)
        for section in settings_of(getattr(namespace, "method", None)):
            add_keys(keys, section)
        say("\nkeys of the configuration, in a YAML file (--config) or as --key VALUE:")
        keys.print_help(sys.stdout)
        raise SystemExit(0)


def build_parser(*, as_json: bool = False) -> Parser:
    """Return the parser of all verbs, which says errors as JSON, too, if ``as_json``."""
    about = "How far to trust a segmentation network, pixel by pixel."
    parser = Parser(prog="segunc", description=about, as_json=as_json)
    parser.add_argument("--version", action="version", version=f"segunc {version('segunc')}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", parser_class=Parser, required=True)
    for verb, example in VERBS.items():
        about, *_ = inspect.cleandoc(options_of(verb).__doc__ or "").splitlines()
        verb_parser = verbs.add_parser(
            verb,
            help=about[0].lower() + about[1:].removesuffix("."),
            description=about,
            epilog=f"example:\n  segunc {verb} {example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            add_help=verb not in TRAINING,
            as_json=as_json,
        )
        if verb in TRAINING:
            shown = "show this help message, with the keys of the configuration, and exit"
            verb_parser.add_argument("-h", "--help", action=ConfigurationHelp, help=shown)
        add_options(verb_parser, options_of(verb))
        further = verb_parser.add_argument_group("for scripts and reports of faults")
        further.add_argument(
            "--json",
            action="store_true",
            help="print the result as one line of JSON, and all else on standard error",
        )
        further.add_argument(
            "--debug", action="store_true", help="show a traceback when something fails"
        )
        verb_parser.set_defaults(parser=verb_parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return the exit code: 0, 1 (failed in the middle, what was finished is
    kept), 2 (bad input), 130 (Ctrl-C), 143 (the signal that ends a process) or 141 (nobody reads
    what is printed any more).
    """
    words = sys.argv[1:] if argv is None else argv
    arguments, rest = build_parser(as_json="--json" in words).parse_known_args(words)
    verb = arguments.verb
    # Training verbs hand further --key.subkey VALUE pairs to their configuration; the others know
    # all their options.
    if rest and verb not in TRAINING:
        near = nearest(rest[0], arguments.parser._option_string_actions)
        arguments.parser.error(f"unrecognised arguments: {' '.join(rest)}{near}")
    # albumentations would ask a server for news on import, and Lightning would advertise.
    os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")
    # Its threads wait in a loop, which takes more CPU than they gain for the small matrices of the
    # bootstrap.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    again = "goes on from there" if verb in RESUMED else "begins again"
    kept = f"what is finished is kept, and the same command {again}"
    result, ended = sys.stdout, list[int]()  # by which signal
    try:
        with (
            warnings.catch_warnings(),
            _ended_by(ended),
            redirect_stdout(sys.stderr if arguments.json else result),
        ):
            warnings.showwarning = _show_warning
            asked = parsed(
                options_of(verb), arguments, **({"settings": rest} if verb in TRAINING else {})
            )
            check_options(asked)
            run(verb, asked, *([result] if arguments.json else []))
        sys.stdout.flush()
        return 0
    except (
        BrokenPipeError
    ):  # as `| head` leaves it; what Python would still write has nowhere to go
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + 13  # as shells say it of a command that SIGPIPE ended
    except KeyboardInterrupt:
        say(f"segunc {verb}: interrupted; {kept}", stream=sys.stderr)
        if arguments.json:
            say(json.dumps({"error": "interrupted", "hint": kept}))
        return 128 + (ended[0] if ended else signal.SIGINT)  # likewise
    except Exception as error:
        if arguments.debug:
            import traceback

            say("".join(traceback.format_exception(error)), stream=sys.stderr, end="")
        text = " ".join(_message(error, kept).split())
        say(f"segunc {verb}: {text}", stream=sys.stderr)
        if arguments.json and not isinstance(error, PartialFailure):  # whose result is printed
            say(
                json.dumps(
                    {"error": getattr(error, "message", text), "hint": getattr(error, "hint", "")}
                )
            )
        return 2 if isinstance(error, InputError) else 1


@contextmanager
def _ended_by(signals: list[int]) -> Iterator[None]:
    """Let SIGTERM, by which systems end a process, do what Ctrl-C does, and note it."""

    def end(number: int, frame: object) -> NoReturn:
        signals.append(number)
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():  # which alone may set handlers
        yield
        return
    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _show_warning(message: Warning | str, category: type[Warning], *place: Any, **_: Any) -> None:
    """Print a warning; a note is shown without its place in our code."""
    if issubclass(category, NoteWarning):
        say(f"note: {message}")
    else:
        say(warnings.formatwarning(message, category, *place[:2]), stream=sys.stderr, end="")


def _message(error: Exception, kept: str) -> str:
    """Return what the user reads of an error, with ``kept`` where the system refused something."""
    if isinstance(error, InputError):
        return error.command_line
    if isinstance(error, PartialFailure):
        return str(error)
    if isinstance(error, OSError) and error.strerror and not is_out_of_memory(error):
        text = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
        return f"{text}; {kept}{DEBUG_HINT}"
    text = (
        f"{'not enough memory: ' if is_out_of_memory(error) else ''}{type(error).__name__}: {error}"
    )
    return f"{text if len(text) <= MAX_MESSAGE else f'{text[:MAX_MESSAGE]}...'}{DEBUG_HINT}"


def entry() -> NoReturn:
    """Run the console command."""
    open_standard_streams()
    sys.exit(main())
