import os

import pytest

from asyncsim.cluster import Cluster, Workers
from asyncsim.compilation import keep_programs, program_cache


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory):
    """Nothing is read from or left in the user's cache. All that is compiled is kept there for all of these tests, in
    whatever process: compiling is half of what they do."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "cache"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ASYNCSIM_CACHE", str(folder))
        keep_programs(program_cache(os.cpu_count() or 1))
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
