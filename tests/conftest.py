import pytest

from asyncsim.cluster import Cluster, Workers


@pytest.fixture
def scenarios_folder(request):
    return request.config.rootpath / "scenarios"


@pytest.fixture
def make_cluster():
    """A cluster of equal workers."""

    def make(step_time, count, latency=0.0):
        return Cluster((Workers(step_time, count),), latency)

    return make
