"""Lightning without its advertisements and hints; warnings that matter stay."""

from __future__ import annotations

import logging
import warnings


def quiet_lightning() -> None:
    """Keep Lightning to warnings and errors."""
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
