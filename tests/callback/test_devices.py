"""The callback in trainings of several processes, which are killed and continued."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow


def start(folder: Path, **settings: Any) -> subprocess.Popen[bytes]:
    """Start the training script in a process group of its own."""
    folder.mkdir(exist_ok=True)
    settings = {"epochs": 2, "devices": 2, "callback": {}, "validates": True, **settings}
    path = f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    with (folder / "output.txt").open("ab") as output:
        return subprocess.Popen(
            [sys.executable, ROOT / "tests/callback/script.py", folder, json.dumps(settings)],
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


def finish(folder: Path, **settings: Any) -> list[dict[str, Any]]:
    """Run the training script to its end, and return the result of each process."""
    process = start(folder, **settings)
    try:
        code = process.wait(timeout=180)
    finally:
        kill(process)
    assert code == 0, (folder / "output.txt").read_text()[-3000:]
    return [json.loads(path.read_text()) for path in sorted(folder.glob("result-*.json"))]


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill all processes of a training."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait(timeout=30)


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    state: dict[str, torch.Tensor] = torch.load(folder / "last.ckpt", weights_only=True)[
        "state_dict"
    ]
    return state


def test_two_processes_find_the_numbers_of_one(tmp_path: Path) -> None:
    """The second training evaluates the network that the first one made, and does not change it.

    Without a validation, the processes end an epoch with other statistics of BatchNorm each.
    """
    first, second = finish(tmp_path / "two", callback={"every": 2}, validates=False)
    assert [evaluation["epoch"] for evaluation in first["history"]] == [2]
    assert first["history"][0]["frames"] == 5
    numbers = first["history"][0]["numbers"]
    assert second["history"][0]["numbers"] == numbers
    assert second["history"][0]["picture"] is None
    assert Path(first["history"][0]["picture"]).is_file()
    (alone,) = finish(
        tmp_path / "one",
        devices=1,
        epochs=1,
        weights=str(tmp_path / "two/last.ckpt"),
        module={"lr": 0.0, "momentum": 0.0},
    )
    assert alone["history"][0]["numbers"] == numbers


def test_a_stream_that_is_shared_out_is_evaluated_whole(tmp_path: Path) -> None:
    """Each process evaluates its own frames, of which the others have none."""
    settings = {"shares_out": "frames", "method": None}
    first, second = finish(tmp_path / "two", callback=settings, epochs=1)
    assert first["history"][0]["frames"] == 6
    numbers = first["history"][0]["numbers"]
    assert second["history"][0]["numbers"] == numbers
    (alone,) = finish(
        tmp_path / "one",
        callback=settings,
        devices=1,
        epochs=1,
        weights=str(tmp_path / "two/last.ckpt"),
        module={"lr": 0.0, "momentum": 0.0},
    )
    assert alone["history"][0]["numbers"] == numbers


def test_a_stream_to_fit_on_that_is_shared_out_is_refused(tmp_path: Path) -> None:
    """The numbers would be of two models, a half of the frames of each."""
    settings = {"shares_out": "fit_data", "on_error": "warn"}
    first, second = finish(tmp_path / "two", callback=settings, epochs=1)
    assert first["history"] == second["history"] == []
    assert any("each process has other batches to fit on" in text for text in first["warnings"])
    (alone,) = finish(tmp_path / "one", callback=settings, epochs=1, devices=1)
    assert len(alone["history"]) == 1


def test_a_process_that_fails_lets_no_other_wait(tmp_path: Path) -> None:
    """The second process reads frame 3, the first does not."""
    first, second = finish(tmp_path / "run", callback={"damaged": 3, "on_error": "warn"})
    assert first["epoch"] == second["epoch"] == 2
    assert first["history"] == second["history"] == []
    said = [text for text in first["warnings"] if "no evaluation" in text]
    assert len(said) == 2
    assert "frame 3 is damaged" in said[0]
    assert not [text for text in second["warnings"] if "no evaluation" in text]


def test_a_killed_training_goes_on_in_the_same_rhythm(tmp_path: Path) -> None:
    """And ends in the weights of one that was neither killed nor watched."""
    folder = tmp_path / "killed"
    process = start(folder, epochs=6, callback={"every": 2}, wait_at=4)
    deadline = time.monotonic() + 120
    while not (folder / "waiting").exists():
        assert process.poll() is None, (folder / "output.txt").read_text()[-3000:]
        assert time.monotonic() < deadline
        time.sleep(0.1)
    kill(process)
    first, second = finish(folder, epochs=6, callback={"every": 2})
    finish(tmp_path / "alone", epochs=6, callback=None)
    assert [evaluation["epoch"] for evaluation in first["history"]] == [2, 4, 6]
    assert [evaluation["frames"] for evaluation in first["history"]] == [5, 5, 5]
    numbers = [evaluation["numbers"] for evaluation in first["history"]]
    assert [evaluation["numbers"] for evaluation in second["history"]] == numbers
    assert all(Path(one["picture"]).is_file() for one in first["history"])
    expected = weights_of(tmp_path / "alone")
    for name, value in weights_of(folder).items():
        assert torch.equal(value, expected[name]), name
