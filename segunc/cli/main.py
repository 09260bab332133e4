"""The command line: parse the options of a verb, call its function, and turn errors into exit
codes.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from difflib import get_close_matches
from importlib.metadata import version
from typing import Any, NoReturn

from segunc import options
from segunc.cli.completion import SHELLS, PrintCompletion
from segunc.cli.help import add_help
from segunc.cli.parser import (
    HelpFormatter,
    Parser,
    add_options,
    check_options,
    description_of,
    paragraphs_of,
    parsed,
)
from segunc.cli.run import run
from segunc.core.errors import InputError, NoteWarning, PartialFailure, is_out_of_memory
from segunc.core.memory import keep_freed_memory
from segunc.core.terminal import open_standard_streams, say
from segunc.core.waiting import wait_briefly

VERBS = {
    "demo": "--out demo",
    "init": "data/mine --out mine.yaml",
    "import": (
        "torchvision:deeplabv3_resnet50 --weights deeplab.pth --classes cityscapes"
        " --out runs/deeplab"
    ),
    "train": "--config configs/camvid_lite0.yaml --data.root data/camvid --out runs/camvid",
    "finetune": (
        "--base runs/camvid --config configs/camvid_abnn.yaml --data.root data/camvid"
        " --out runs/abnn"
    ),
    "predict": ("--model runs/abnn --input monday.mp4 tuesday/ --out maps --overlay --shard 1/4"),
    "evaluate": ("--maps maps --anomaly-labels labels --groups '^[a-z_]+' --out metrics.json"),
    "threshold": (
        "--maps maps --anomaly-labels masks --control missed-objects --level 0.1"
        " --out threshold.json"
    ),
    "review": "--maps maps --anomaly-labels masks --out review",
    "summary": ("--maps maps --score entropy --statistic p99 --apart 10 --out summary.csv"),
    "monitor": (
        "--threshold threshold.json --maps maps --reference calibration --out monitor.json"
    ),
    "watch": "--model runs/abnn --input rtsp://10.0.0.7/live --flag threshold.json --out night",
    "overlay": "--maps maps --out figures --score entropy,epistemic --video",
    "compare": "abnn.json base.json --baseline base.json --out table.md",
    "report": (
        "--model runs/abnn --runs metrics.json fog.json --threshold threshold.json --out report"
    ),
    "export": (
        "--model runs/abnn --to onnx --size 512x1024 --threshold threshold.json --out exported"
    ),
    "doctor": "--model runs/abnn --image frame.png",
}
"""An example of each verb."""
TRAINING = ("train", "finetune")  # verbs with a configuration
RESUMED = ("demo", *TRAINING, "predict", "watch")
DEBUG_HINT = " (--debug shows where)"
# Characters of an unexpected error that still make one readable line; --debug shows all of it.
MAX_MESSAGE = 600
SUCCESS = 0
FAILED = 1
BAD_INPUT = 2
ENDED_BY_SIGNAL = 128  # plus the number of the signal, as shells do it


def options_of(verb: str) -> type:
    """Return the dataclass of a verb's options."""
    options_type: type = getattr(options, f"{verb.capitalize()}Options")
    return options_type


def build_parser(*, as_json: bool = False) -> Parser:
    """Return the parser of all verbs.

    Args:
        as_json: also print errors as JSON.
    """
    parser = Parser(
        prog="segunc",
        description="How far to trust a segmentation network, pixel by pixel.",
        epilog=(
            "segunc VERB --help shows an example and the usual options of a verb; "
            "segunc VERB --help-all shows all of them."
        ),
        as_json=as_json,
    )
    parser.add_argument(
        "--print-completion",
        action=PrintCompletion,
        options_types={verb: options_of(verb) for verb in VERBS},
        choices=SHELLS,
        help="print the script that completes commands in a shell",
    )
    parser.add_argument("--version", action="version", version=f"segunc {version('segunc')}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", parser_class=Parser, required=True)
    for verb, example in VERBS.items():
        _add_verb(verbs, verb, example, as_json=as_json)
    return parser


def _add_verb(verbs: Any, verb: str, example: str, *, as_json: bool) -> None:
    """Add the parser of one verb, with its help and an example."""
    summary = paragraphs_of(options_of(verb))[0]
    parser = verbs.add_parser(
        verb,
        help=summary[0].lower() + summary[1:].removesuffix("."),
        description=description_of(options_of(verb)),
        epilog=f"example:\n  segunc {verb} {example}",
        formatter_class=HelpFormatter,
        add_help=False,
        as_json=as_json,
    )
    add_help(parser, verb, options_of(verb), example=example, configured=verb in TRAINING)
    add_options(parser, options_of(verb))
    further = parser.add_argument_group("scripts and error reports")
    further.add_argument(
        "--json",
        action="store_true",
        help="print the result as one line of JSON, and everything else on standard error",
    )
    further.add_argument(
        "--debug", action="store_true", help="show a traceback when something fails"
    )
    parser.set_defaults(parser=parser)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb.

    Args:
        argv: the words of the command line; by default those of this process.

    Returns:
        The exit code: 0 for success, 2 for bad input, and 1 for a failure in the middle, whose
        finished part is kept. 130 is Ctrl-C, 143 the signal by which systems end a process, and 141
        means that nobody reads what is printed any more.
    """
    words = sys.argv[1:] if argv is None else argv
    try:
        arguments, further_words = build_parser(as_json="--json" in words).parse_known_args(words)
        _check_words(arguments, words, further_words)
    except BrokenPipeError:  # of a help that nobody reads to its end
        return _unread()
    _quiet_libraries()
    keep_freed_memory()
    wait_briefly()
    kept = _kept_words(arguments.verb)
    signals: list[int] = []
    try:
        with warnings.catch_warnings(), _ended_by(signals):
            _run_verb(arguments, further_words)
        sys.stdout.flush()
        return SUCCESS
    except BrokenPipeError:
        return _unread()
    except KeyboardInterrupt:
        _tell_interrupt(arguments, kept)
        return ENDED_BY_SIGNAL + (signals[0] if signals else signal.SIGINT)
    except Exception as error:
        _tell_error(arguments, error, kept)
        return BAD_INPUT if isinstance(error, InputError) else FAILED


def _unread() -> int:
    """Return the exit code of a command whose output nobody reads any more, as ``| head`` leaves
    it. What Python would still write goes to the null device.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return ENDED_BY_SIGNAL + signal.SIGPIPE


def _check_words(
    arguments: argparse.Namespace, words: Sequence[str], further_words: Sequence[str]
) -> None:
    """End with an error where a verb that has no configuration gets words that it does not know.

    Training verbs hand them to their configuration, as --KEY.SUBKEY VALUE pairs.

    Args:
        arguments: what was understood.
        words: of the command line.
        further_words: those that were not understood.
    """
    if further_words and arguments.verb not in TRAINING:
        actions = arguments.parser._option_string_actions
        near = _with_commas(words, further_words[0], actions) or _meant_by(further_words, actions)
        arguments.parser.error(f"unrecognised arguments: {' '.join(further_words)}{near}")


def _with_commas(words: Sequence[str], stray: str, actions: Mapping[str, argparse.Action]) -> str:
    """Return how several values of one option are written, if a word that was not understood
    follows the value of such an option; else an empty text.
    """
    place = list(words).index(stray)
    option, value = words[place - 2 : place] if place >= 2 else ("", "")
    action = actions.get(option)
    if stray.startswith("-") or action is None or action.type is not options.comma_list:
        return ""
    return f" (several values have commas between them: {option} {value},{stray})"


OTHER_NAMES = {"--end": "--duration", "--threshold": "--flag", "--input": "--maps"}
"""Options of some verbs, and what other verbs call the same thing. Their names are not alike, so
:func:`difflib.get_close_matches` would not find them."""


def _meant_by(unknown_words: Sequence[str], options: Collection[str]) -> str:
    """Return a question after the options of a verb that unknown ones are likely to mean; empty if
    there are none.
    """
    # The first may be a stray value, which is like no option.
    names = [word.partition("=")[0] for word in unknown_words if word.startswith("--")]
    meant_by = {name: _meant(name, options) for name in names}
    meant = {name: option for name, option in meant_by.items() if option}
    if not meant:
        return ""
    if len(meant_by) == 1:
        return f" (did you mean {meant[names[0]]}?)"
    shown = ", ".join(f"{option} for {name}" for name, option in meant.items())
    return f" (did you mean {shown}?)"


def _meant(name: str, options: Collection[str]) -> str:
    """Return the option of a verb that an unknown one is likely to mean; empty if there is none."""
    same = OTHER_NAMES.get(name, "")
    if same in options:
        return same
    return "".join(get_close_matches(name, list(options), 1))


def _quiet_libraries() -> None:
    """Set what libraries read from the environment when they are imported."""
    # albumentations would ask a server for news on import, and Lightning would advertise.
    os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")
    # Its threads wait in a loop, which takes more CPU than they gain for the small matrices of the
    # bootstrap.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def _run_verb(arguments: argparse.Namespace, further_words: Sequence[str]) -> None:
    """Check the options of a verb, run it and print its result."""
    warnings.showwarning = _show_warning
    standard_output = sys.stdout
    with redirect_stdout(sys.stderr if arguments.json else standard_output):
        settings = {"settings": further_words} if arguments.verb in TRAINING else {}
        verb_options = parsed(options_of(arguments.verb), arguments, **settings)
        check_options(verb_options)
        if arguments.json:
            run(arguments.verb, verb_options, as_json=standard_output)
        else:
            run(arguments.verb, verb_options)


def _kept_words(verb: str) -> str:
    """Return what becomes of an interrupted verb, and of the same command afterwards."""
    if verb == "finetune":
        return (
            "a training of a posterior goes on from its last finished epoch with the same command; "
            "all else, such as temperature, features, anomaly and a student, begins again"
        )
    next_run = "goes on from there" if verb in RESUMED else "begins again"
    return f"what is finished is kept, and the same command {next_run}"


def _tell_interrupt(arguments: argparse.Namespace, kept: str) -> None:
    say(f"segunc {arguments.verb}: interrupted; {kept}", stream=sys.stderr)
    if arguments.json:
        say(json.dumps({"error": "interrupted", "hint": kept}))


def _tell_error(arguments: argparse.Namespace, error: Exception, kept: str) -> None:
    """Print an error as one line, below a traceback with --debug, and with --json as JSON too."""
    if arguments.debug:
        import traceback

        say("".join(traceback.format_exception(error)), stream=sys.stderr, end="")
    text = " ".join(_message(error, kept).split())
    say(f"segunc {arguments.verb}: {text}", stream=sys.stderr)
    # The result of a partial failure is printed already.
    if arguments.json and not isinstance(error, PartialFailure):
        message = getattr(error, "message", text)
        hint = getattr(error, "hint", "")
        say(json.dumps({"error": message, "hint": hint}))


@contextmanager
def _ended_by(signals: list[int]) -> Iterator[None]:
    """Let SIGTERM, by which systems end a process, do what Ctrl-C does, and append its number."""

    def end(number: int, frame: object) -> NoReturn:
        signals.append(number)
        raise KeyboardInterrupt

    # Only the main thread may set handlers.
    if threading.current_thread() is not threading.main_thread():
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
    """Return what the user reads of an error.

    Args:
        error: what was raised.
        kept: what is said of finished work where the system refused something.
    """
    if isinstance(error, InputError):
        return error.command_line
    if isinstance(error, PartialFailure):
        return str(error)
    if isinstance(error, OSError) and error.strerror and not is_out_of_memory(error):
        text = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
        return f"{text}; {kept}{DEBUG_HINT}"
    text = f"{type(error).__name__}: {error}"
    if is_out_of_memory(error):
        text = f"not enough memory: {text}"
    if len(text) > MAX_MESSAGE:
        text = f"{text[:MAX_MESSAGE]}..."
    return f"{text}{DEBUG_HINT}"


def entry() -> NoReturn:
    """Run the console command."""
    open_standard_streams()
    sys.exit(main())
