"""What benchmarks share: measurements in processes of their own, and their peak memory."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[2]


def peak_bytes(device: torch.device) -> int:
    """Largest memory of this process so far: resident on a CPU (Linux counts it in KiB), allocated on a GPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def in_own_process(script: str, words: Sequence[str], what: str) -> dict[str, Any]:
    """The JSON object in the last line that a script prints, run with these words in a fresh process.

    Empty where it fails, with the reason on stderr beside ``what``.
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, script, *words]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        print(f"{what}: {(done.stderr.strip().splitlines() or ['failed'])[-1]}", file=sys.stderr)
        return {}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
