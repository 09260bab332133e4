"""What the tools that measure have in common: where numbers come from, memory, and processes of
their own.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import resource
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from segunc.core.device import describe_device
from segunc.core.version import tool_commit
from segunc.maps.manifest import environment

ROOT = Path(__file__).resolve().parents[1]


def provenance(device: torch.device | None = None) -> dict[str, Any]:
    """Command, date, hardware, versions and commit.

    Args:
        device: that the numbers were measured on; None is the CPU.
    """
    return {
        "command": " ".join(["python", *program(Path(sys.argv[0])), *sys.argv[1:]]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "hardware": f"{processor()}, {describe_device(device or torch.device('cpu'))}",
        "versions": environment(),
        "commit": tool_commit(),
    }


def program(script: Path) -> list[str]:
    """Return the words behind ``python`` that run a script: its path, or ``-m`` and the module of a
    tool.
    """
    path = script.resolve()
    if ROOT / "tools" not in path.parents:
        return [script.as_posix()]
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    if parts[-1] == "__main__":
        parts.pop()
    return ["-m", ".".join(parts)]


def processor() -> str:
    """The processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def peak_bytes(device: torch.device) -> int:
    """Largest memory of this process so far: resident on a CPU, allocated on a GPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    # Linux starts ru_maxrss of a new program at the peak of the process that started it; VmHWM is
    # the program's own.
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
        return 1024 * int(next(line.split()[1] for line in lines if line.startswith("VmHWM")))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def in_own_process(script: str, words: Sequence[str], what: str) -> dict[str, Any]:
    """The JSON object in the last line that a script prints, run with these words in a fresh
    process.

    Empty where it fails, with the reason on stderr beside ``what``.
    """
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }
    command = [sys.executable, script, *words]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        print(f"{what}: {(done.stderr.strip().splitlines() or ['failed'])[-1]}", file=sys.stderr)
        return {}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
