"""Where and when a number was measured: what every benchmark and study writes beside its results."""

from __future__ import annotations

import platform
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from segunc.commands.device import describe_device
from segunc.maps.manifest import environment, tool_commit


def provenance(device: torch.device | None = None) -> dict[str, Any]:
    """Command, date, hardware, versions and commit.

    Args:
        device: that the numbers were measured on; None is the CPU.
    """
    return {
        "command": " ".join(["python", Path(sys.argv[0]).as_posix(), *sys.argv[1:]]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "hardware": f"{processor()}, {describe_device(device or torch.device('cpu'))}",
        "versions": environment(),
        "commit": tool_commit(),
    }


def processor() -> str:
    """The processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
