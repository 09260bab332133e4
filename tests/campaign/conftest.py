"""The campaign is short in ``make test``; ``SEGUNC_CASES=START:STOP`` chooses the cases of each reader."""

from __future__ import annotations

import os

import pytest

from tests.campaign.world import World
from tests.conftest import Job

CASES = range(*map(int, os.environ.get("SEGUNC_CASES", "0:8").split(":")))


@pytest.fixture(scope="module")
def world(predicted: Job, tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(predicted, tmp_path_factory.mktemp("faults"))
