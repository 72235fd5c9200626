import pytest

from asyncsim.cluster import Cluster, Workers


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory):
    """Nothing is read from or left in the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ASYNCSIM_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def scenarios_folder(request):
    return request.config.rootpath / "scenarios"


@pytest.fixture
def make_cluster():
    """A cluster of equal workers."""

    def make(step_time, count, latency=0.0):
        return Cluster((Workers(step_time, count),), latency)

    return make
