"""Libraries that talk are kept quiet."""

from __future__ import annotations

import contextlib
import logging
import os
import warnings
from collections.abc import Iterator


@contextlib.contextmanager
def quiet_stderr() -> Iterator[None]:
    """Swallow what is printed on the file descriptor of standard error, by Python too: exceptions are to say what is wrong."""
    saved = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(nowhere)


def quiet_lightning() -> None:
    """Keep Lightning to warnings and errors; imports it, because that sets the levels anew."""
    import lightning.pytorch  # noqa: F401

    for name in ("lightning.pytorch", "lightning.fabric", "lightning.pytorch.utilities.rank_zero"):
        logging.getLogger(name).setLevel(logging.WARNING)
    for message in (
        ".*isinstance\\(treespec.*",
        ".*does not have many workers.*",
        ".*The number of training batches.*",
        ".*Checkpoint directory .* exists.*",
        ".*Experiment logs directory.*",
        ".*Found .* module\\(s\\) in eval mode.*",
    ):
        warnings.filterwarnings("ignore", message=message)
