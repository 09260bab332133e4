"""``segunc review``."""

from __future__ import annotations

import argparse
from pathlib import Path


def run(arguments: argparse.Namespace) -> None:
    """Write the static page of a maps folder."""
    from segunc.data.anomaly_labels import BINARY
    from segunc.data.datasets import dataset_entry
    from segunc.data.label_images import read_label_image
    from segunc.review.page import write_review

    entry = dataset_entry(arguments.dataset) if arguments.dataset else None
    encoding = (entry.anomaly_encoding if entry else None) or BINARY
    page = write_review(
        Path(arguments.maps),
        Path(arguments.out),
        anomaly_labels=Path(arguments.anomaly_labels) if arguments.anomaly_labels else None,
        read_anomaly=lambda path: encoding.encode(read_label_image(path), f"anomaly label {path}") == 1,
        metrics=Path(arguments.metrics) if arguments.metrics else None,
    )
    print(f"open {page.resolve()} in a browser")
