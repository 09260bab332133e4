"""Runs the command line: in this process, or as a :class:`Command` where it is killed, limited or
runs beside another.

Importing torch and Lightning takes seconds, so a server process imports them a single time and
forks a child for each command.
"""

import contextlib
import io
import multiprocessing
import os
import re
import shutil
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from segunc import _HOMES
from segunc.cli.main import VERBS, main
from segunc.cli.run import FUNCTIONS

CONTEXT = multiprocessing.get_context("forkserver")
_LIBRARIES = (
    "albumentations",
    "sklearn",
    "lightning",
    "torch._dynamo",
    "torch.distributed",
    "torchvision",
)
_LATE = (
    "evaluation.from_model",
    "training.base",
    "posteriors.finetune_run",
    "posteriors.abnn",
)
"""Modules that a verb imports when it runs."""
CONTEXT.set_forkserver_preload(
    [
        *_LIBRARIES,
        *{_HOMES[FUNCTIONS.get(verb, verb)] for verb in VERBS},
        *(f"segunc.{name}" for name in _LATE),
    ]
)
FAST = "--precision float32 --device cpu"
PROGRESS = re.compile(
    r" (frames|parts)/s| frames$| are free$|^(train|finetune|student): .* steps/s"
    r"|^(tracing|writing|comparing|making|measuring) "  # the steps of an export
    r"|^loading "  # the first step of a watch
    r"|^(starting|connecting to) .*Ray|^each worker loads |Ray workers? ready$"  # of --ray
)
SMALL = f"--draws 2 {FAST} --scores entropy,aleatoric,epistemic"


@dataclass(frozen=True)
class Finished:
    """How a command ended: its exit code (negative: the signal that killed it) and its
    two streams.
    """

    code: int
    stdout: str
    stderr: str

    @property
    def error_lines(self) -> list[str]:
        return [
            line for line in self.stderr.splitlines() if line.strip() and not PROGRESS.search(line)
        ]


def spread(*words: object) -> list[str]:
    """The words of a command; its first word, and words that begin with ``--``, may be several:
    ``--draws 2 --device cpu``.
    """
    texts = enumerate(map(str, words))
    return [
        part
        for place, text in texts
        for part in (text.split() if not place or text.startswith("--") else [text])
    ]


class Command:
    """A command under way, of words as of :func:`spread`; ``prepare``, picklable, is called in its
    process before.
    """

    def __init__(self, *words: object, prepare: Callable[[], object] | None = None) -> None:
        folder = Path(tempfile.mkdtemp(prefix="segunc-command-"))
        self._streams = folder / "stdout", folder / "stderr"
        streams = map(str, self._streams)
        self.process: ForkServerProcess = CONTEXT.Process(
            target=_child, args=(spread(*words), *streams, prepare)
        )
        self.process.start()

    def wait(self, timeout: float = 120.0) -> Finished:
        self.process.join(timeout)
        if self.process.exitcode is None:
            raise AssertionError(f"the command hangs; standard error so far: {self.kill().stderr}")
        return self._finish()

    def stop(self, kind: signal.Signals) -> Finished:
        assert self.process.pid is not None
        os.kill(self.process.pid, kind)
        return self.wait()

    def kill(self) -> Finished:
        """SIGKILL, which nothing can catch."""
        self.process.kill()
        self.process.join()
        return self._finish()

    def _finish(self) -> Finished:
        texts = (
            path.read_text("utf-8", "replace") if path.exists() else "" for path in self._streams
        )
        done = Finished(self.process.exitcode, *texts)
        shutil.rmtree(self._streams[0].parent)
        return done


def segunc(*words: object) -> Finished:
    """Run ``segunc`` with these words to its end in this process, with the warnings that a process
    shows.
    """
    out = io.StringIO()
    err = io.StringIO()
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        warnings.catch_warnings(),
    ):
        warnings.resetwarnings()
        for category in (
            DeprecationWarning,
            PendingDeprecationWarning,
            ImportWarning,
            ResourceWarning,
        ):
            warnings.simplefilter("ignore", category)
        try:
            code: object = main(spread(*words))
        except SystemExit as end:
            code = end.code
    return Finished(code if isinstance(code, int) else 3, out.getvalue(), err.getvalue())


def succeed(*words: object, apart: bool = False) -> Finished:
    """Run ``segunc``, ``apart`` in a process of its own; it must end with 0 and print nothing but
    progress on standard error.
    """
    done = Command(*words).wait() if apart else segunc(*words)
    assert done.code == 0, done.stderr
    assert done.error_lines == [], done.error_lines
    return done


def refuse(*words: object, code: int = 2, apart: bool = False) -> str:
    """Run ``segunc``; it must end with an exit code and exactly one line on standard error, which
    is returned.
    """
    done = Command(*words).wait() if apart else segunc(*words)
    assert done.code == code, (done.code, done.stderr, done.stdout)
    assert len(done.error_lines) == 1, done.stderr
    assert "Traceback" not in done.stdout
    return done.error_lines[0]


def _child(
    arguments: list[str], stdout: str, stderr: str, prepare: Callable[[], object] | None
) -> None:
    # What runs in the background of a shell ignores SIGINT, and so do its children.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, path in ((1, stdout), (2, stderr)):
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(opened, number)
        os.close(opened)
    from segunc import __file__ as package

    # Lightning starts the further processes of a distributed run by this command line.
    sys.argv = [str(Path(package).with_name("__main__.py")), *arguments]
    code: object = 3
    if prepare is not None:
        prepare()
    try:
        code = main(arguments)
    except SystemExit as end:
        code = end.code
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 3)
