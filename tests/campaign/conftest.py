import pytest

from tests.campaign.world import World
from tests.conftest import Job


@pytest.fixture(scope="module")
def world(predicted: Job, tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(predicted, tmp_path_factory.mktemp("faults"))
