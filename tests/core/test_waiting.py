"""OpenMP learns how long its threads wait, in a process of its own: it reads that once."""

import os
import re
import subprocess
import sys

import pytest

from segunc.core.waiting import SPIN_COUNT, TURNS

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="PyTorch has another OpenMP")


COMMAND_THAT_IMPORTS_TORCH = """
from segunc.cli.main import main
main(["doctor", "--model", "no-model"])
import torch
"""


def spin_counts(**environment: str) -> set[int]:
    """Return what each OpenMP of a command that imports PyTorch says of its turns."""
    chosen = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
    kept = {name: text for name, text in os.environ.items() if name not in chosen}
    done = subprocess.run(
        [sys.executable, "-c", COMMAND_THAT_IMPORTS_TORCH],
        env={**kept, "OMP_DISPLAY_ENV": "verbose", **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return {int(count) for count in re.findall(rf"{SPIN_COUNT} = '(\d+)'", done.stderr)}


def test_threads_of_a_command_wait_briefly() -> None:
    assert spin_counts() == {TURNS}


def test_what_a_user_has_chosen_is_kept() -> None:
    assert spin_counts(GOMP_SPINCOUNT="77") == {77}
    assert TURNS not in spin_counts(OMP_WAIT_POLICY="active")
