"""``segunc review``."""

from __future__ import annotations

import argparse
from pathlib import Path


def run(arguments: argparse.Namespace) -> None:
    """Write the static page of a maps folder."""
    from segunc.review.page import write_review

    page = write_review(
        Path(arguments.maps),
        Path(arguments.out),
        anomaly_labels=Path(arguments.anomaly_labels) if arguments.anomaly_labels else None,
        metrics=Path(arguments.metrics) if arguments.metrics else None,
    )
    print(f"open {page.resolve()} in a browser")
